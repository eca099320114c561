//! Self-contained requests (2026-07-28 on).

use super::Call;
use crate::protocol::{Capabilities, ErrorObject, Id};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};

/// A request that is refused before anything is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: StatusCode,
    /// Absent only where it could not be read.
    pub id: Option<Id>,
    pub error: ErrorObject,
}

/// What one HTTP body turned out to be.
#[derive(Debug)]
pub enum Read {
    Request(Box<Call>, Capabilities),
    /// A notification: accepted with 202, and of no consequence in this revision over HTTP.
    Notification,
}

/// Reads one POST of a 2026-07-28 client, checking in the order that satisfies every probe
/// (`WIRE`, section 4): JSON, shape, version header, `_meta`, agreement, version, `Mcp-Method`,
/// method, `Mcp-Name`.
///
/// # Errors
/// [`Refused`] carries the status and error to answer with.
pub fn read(body: Bytes, headers: &HeaderMap, max_depth: usize) -> Result<Read, Refused> {
    let _ = (body, headers, max_depth);
    todo!()
}

/// A whole JSON-RPC error response on one line; without `id` where it could not be read.
pub fn error_response(id: Option<&Id>, error: &ErrorObject) -> Bytes {
    let _ = (id, error);
    todo!()
}
