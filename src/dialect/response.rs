//! The response to a call, on its way from its server to whoever waits for it.

use super::{
    Call,
    raise::{self, NotAResult},
};
use crate::protocol::{
    ErrorObject, Frame, InputRequest, Kind, Method, frame::on_one_line, splice::Patch, tool_result,
};
use bytes::Bytes;

/// A response: the server's own bytes, and what there is to edit in them. They are edited where the response is
/// written, once for each who gets it, so that the common case is one pass and one allocation.
#[derive(Clone, Debug)]
pub struct Response {
    frame: Frame,
    /// Where it is to be raised: who the server is.
    raised_by: Option<Bytes>,
}

// === impl Response ===

impl Response {
    /// In the words of whoever gets it.
    pub fn as_it_is(frame: Frame) -> Self {
        Self { frame, raised_by: None }
    }

    /// Of a legacy server that says this of who it is, for a client of 2026-07-28.
    pub fn raised(frame: Frame, server_info: Bytes) -> Self {
        Self { frame, raised_by: Some(server_info) }
    }

    /// As the server sent it: a [`Kind::Success`] or [`Kind::Failure`] frame, where it is valid.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The whole message of a success for the client that made `call`, and whether it is the result of a tool
    /// that failed: `isError`.
    ///
    /// # Errors
    /// [`NotAResult`].
    pub fn message(&self, call: &Call) -> Result<(Bytes, bool), NotAResult> {
        if let Some(server_info) = &self.raised_by {
            return raise::response(call, &self.frame, server_info);
        }
        let Kind::Success { id, result } = self.frame.kind() else { return Err(NotAResult) };
        let mut patch = Patch::new(self.frame.as_bytes().clone());
        patch.replace(id.as_bytes(), call.id.as_bytes().clone());
        let is_error = call.method == Method::ToolsCall && tool_result::is_error(result);
        Ok((on_one_line(patch.apply()), is_error))
    }

    /// The result of a success as its client would get it, without the response around it: what a task keeps.
    ///
    /// # Errors
    /// [`NotAResult`].
    pub fn result(&self, method: &Method) -> Result<Bytes, NotAResult> {
        let Kind::Success { result, .. } = self.frame.kind() else { return Err(NotAResult) };
        match &self.raised_by {
            Some(server_info) => raise::result(method, result, server_info),
            // A copy of its own: a slice would keep the server's whole message alive.
            None => Ok(on_one_line(Bytes::copy_from_slice(result))),
        }
    }

    /// The error of a failure for the client that made `call`.
    pub fn error(&self, call: &Call) -> Option<ErrorObject> {
        let Kind::Failure { error, .. } = self.frame.kind() else { return None };
        Some(match &self.raised_by {
            Some(_) => raise::error(call, error),
            None => ErrorObject::from_raw(error.clone()),
        })
    }

    /// The addresses that the server wants visited before the call is made again, each with its key, where that
    /// is how it has ended.
    pub fn to_visit(&self) -> Option<Vec<(String, InputRequest)>> {
        let (Kind::Failure { error, .. }, Some(_)) = (self.frame.kind(), &self.raised_by) else {
            return None;
        };
        raise::url_required(error)
    }
}
