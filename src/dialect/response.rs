//! The response to a call, on its way from its server to whoever waits for it.

use super::{
    Call,
    translate::{self, InvalidResult},
};
use crate::protocol::{
    ErrorObject, Frame, InputRequest, Kind, Method, frame::to_single_line, splice::BytesPatch, tool_result,
};
use bytes::Bytes;

/// A response: the server's own bytes, and what there is to edit in them. They are edited where the response is
/// written, once for each who gets it, so that the common case is one pass and one allocation.
#[derive(Clone, Debug)]
pub struct CallResponse {
    frame: Frame,
    /// Where it is to be raised: who the server is.
    server_info: Option<Bytes>,
}

// === impl Response ===

impl CallResponse {
    /// In the words of whoever gets it.
    pub fn relayed(frame: Frame) -> Self {
        Self { frame, server_info: None }
    }

    /// Of a legacy server that says this of who it is, for a client of 2026-07-28.
    pub fn translated(frame: Frame, server_info: Bytes) -> Self {
        Self { frame, server_info: Some(server_info) }
    }

    /// As the server sent it: a [`Kind::Success`] or [`Kind::Failure`] frame, where it is valid.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The whole message of a success for the client that made `call`, and whether it is the result of a tool
    /// that failed: `isError`.
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

    /// The result of a success as its client would get it, without the response around it: what a task keeps.
    ///
    /// # Errors
    /// [`InvalidResult`].
    pub fn result(&self, method: &Method) -> Result<Bytes, InvalidResult> {
        let Kind::Success { result, .. } = self.frame.kind() else { return Err(InvalidResult) };
        match &self.server_info {
            Some(server_info) => translate::result(method, result, server_info),
            // A copy of its own: a slice would keep the server's whole message alive.
            None => Ok(to_single_line(Bytes::copy_from_slice(result))),
        }
    }

    /// The error of a failure for the client that made `call`.
    pub fn error(&self, call: &Call) -> Option<ErrorObject> {
        let Kind::Failure { error, .. } = self.frame.kind() else { return None };
        Some(match &self.server_info {
            Some(_) => translate::error(call, error),
            None => ErrorObject::from_raw(error.clone()),
        })
    }

    /// The addresses that the server wants visited before the call is made again, each with its key, where that
    /// is how it has ended.
    pub fn required_urls(&self) -> Option<Vec<(String, InputRequest)>> {
        let (Kind::Failure { error, .. }, Some(_)) = (self.frame.kind(), &self.server_info) else {
            return None;
        };
        translate::required_urls(error)
    }
}
