//! The response to a call, with the edits for the client that receives it.

use super::{
    Call,
    translate::{self, InvalidResult},
};
use crate::protocol::{
    ErrorObject, Frame, InputRequest, Kind, Method, frame::to_single_line, splice::BytesPatch, tool_result,
};
use bytes::Bytes;

/// A response to a call: the server's own bytes, and whether they must be translated. The edits are made when
/// the response is written, once for each receiver, so that the common case is one pass and one allocation.
#[derive(Clone, Debug)]
pub struct CallResponse {
    frame: Frame,
    /// The server info to add to the translated response; `None` if the response needs no translation.
    server_info: Option<Bytes>,
}

// === impl CallResponse ===

impl CallResponse {
    /// Creates a response that already is in the era of its receiver.
    pub fn relayed(frame: Frame) -> Self {
        Self { frame, server_info: None }
    }

    /// Creates a response of a legacy server with this `serverInfo`, to be translated for a client of
    /// 2026-07-28.
    pub fn translated(frame: Frame, server_info: Bytes) -> Self {
        Self { frame, server_info: Some(server_info) }
    }

    /// Returns the message as the server sent it: a [`Kind::Success`] or [`Kind::Failure`] frame, unless the
    /// server's message is invalid.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Writes the whole response message of a success for the client of `call`. Also returns whether the
    /// result is a tool error (`isError`).
    ///
    /// # Errors
    /// [`InvalidResult`] if the response is no success or its result is not an object.
    pub fn write_message(&self, call: &Call) -> Result<(Bytes, bool), InvalidResult> {
        if let Some(server_info) = &self.server_info {
            return translate::translate_response(call, &self.frame, server_info);
        }
        let Kind::Success { id, result } = self.frame.kind() else { return Err(InvalidResult) };
        let mut patch = BytesPatch::new(self.frame.as_bytes().clone());
        patch.replace(id.as_bytes(), call.id.as_bytes().clone());
        let is_error = call.method == Method::ToolsCall && tool_result::is_error(result);
        Ok((to_single_line(patch.apply()), is_error))
    }

    /// Returns the result object of a success in the era of its client, without the JSON-RPC message, for
    /// storage in a task.
    ///
    /// # Errors
    /// [`InvalidResult`] if the response is no success or its result is not an object.
    pub fn client_result(&self, method: &Method) -> Result<Bytes, InvalidResult> {
        let Kind::Success { result, .. } = self.frame.kind() else { return Err(InvalidResult) };
        match &self.server_info {
            Some(server_info) => translate::translate_bare_result(method, result, server_info),
            // The result is copied, because a slice would keep the server's whole message alive.
            None => Ok(to_single_line(Bytes::copy_from_slice(result))),
        }
    }

    /// Returns the error of a failure, translated for the client of `call`; `None` if the response is a
    /// success.
    pub fn client_error(&self, call: &Call) -> Option<ErrorObject> {
        let Kind::Failure { error, .. } = self.frame.kind() else { return None };
        Some(match &self.server_info {
            Some(_) => translate::translate_error(call, error),
            None => ErrorObject::from_raw(error.clone()),
        })
    }

    /// Returns the URLs that the user must visit before the call is sent again, as input requests with their
    /// keys, if the call ended with `-32042`; otherwise `None`.
    pub fn required_urls(&self) -> Option<Vec<(String, InputRequest)>> {
        let (Kind::Failure { error, .. }, Some(_)) = (self.frame.kind(), &self.server_info) else {
            return None;
        };
        translate::required_urls(error)
    }
}
