//! The response to a call, on its way from its server to its receivers.

use super::{
    Call,
    translate::{self, InvalidResult},
};
use crate::protocol::{
    ErrorObject, Frame, InputRequest, Kind, Method, frame::to_single_line, splice::BytesPatch, tool_result,
};
use bytes::Bytes;

/// A response: the server's own bytes, and how they must be edited. The edits are made when the response is
/// written, once for each receiver, so that the common case is one pass and one allocation.
#[derive(Clone, Debug)]
pub struct CallResponse {
    frame: Frame,
    /// The server info, if the response must be translated.
    server_info: Option<Bytes>,
}

// === impl CallResponse ===

impl CallResponse {
    /// A response in the era of its receiver.
    pub fn relayed(frame: Frame) -> Self {
        Self { frame, server_info: None }
    }

    /// A response of a legacy server with this info, to be translated for a client of 2026-07-28.
    pub fn translated(frame: Frame, server_info: Bytes) -> Self {
        Self { frame, server_info: Some(server_info) }
    }

    /// The message as the server sent it: if valid, a [`Kind::Success`] or [`Kind::Failure`] frame.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The whole message of a success for the client of `call`, and whether it is a tool error (`isError`).
    ///
    /// # Errors
    /// [`InvalidResult`].
    pub fn message(&self, call: &Call) -> Result<(Bytes, bool), InvalidResult> {
        if let Some(server_info) = &self.server_info {
            return translate::response(call, &self.frame, server_info);
        }
        let Kind::Success { id, result } = self.frame.kind() else { return Err(InvalidResult) };
        let mut patch = BytesPatch::new(self.frame.as_bytes().clone());
        patch.replace(id.as_bytes(), call.id.as_bytes().clone());
        let is_error = call.method == Method::ToolsCall && tool_result::is_error(result);
        Ok((to_single_line(patch.apply()), is_error))
    }

    /// The result of a success in the era of its client, without the response around it, for storage in a
    /// task.
    ///
    /// # Errors
    /// [`InvalidResult`].
    pub fn result(&self, method: &Method) -> Result<Bytes, InvalidResult> {
        let Kind::Success { result, .. } = self.frame.kind() else { return Err(InvalidResult) };
        match &self.server_info {
            Some(server_info) => translate::result(method, result, server_info),
            // A copy, because a slice would keep the server's whole message alive.
            None => Ok(to_single_line(Bytes::copy_from_slice(result))),
        }
    }

    /// The error of a failure for the client of `call`.
    pub fn error(&self, call: &Call) -> Option<ErrorObject> {
        let Kind::Failure { error, .. } = self.frame.kind() else { return None };
        Some(match &self.server_info {
            Some(_) => translate::error(call, error),
            None => ErrorObject::from_raw(error.clone()),
        })
    }

    /// The URLs that must be visited before the call is sent again, each with its key, if the call ended with
    /// `-32042`.
    pub fn required_urls(&self) -> Option<Vec<(String, InputRequest)>> {
        let (Kind::Failure { error, .. }, Some(_)) = (self.frame.kind(), &self.server_info) else {
            return None;
        };
        translate::required_urls(error)
    }
}
