//! A request on its way to whoever answers it.

use super::{layers::access_entry::AccessEntry, reply::FrontBody};
use crate::policy::AccessProof;
use std::convert::Infallible;

/// A request whose head has been read. Its access line goes with it, so that whoever answers has
/// to take it: no answer without a line.
pub(super) struct IncomingRequest<B> {
    pub(super) request: http::Request<B>,
    pub(super) line: AccessEntry,
}

/// A request that may come in.
pub(super) struct AdmittedRequest<B> {
    pub(super) incoming: IncomingRequest<B>,
    /// It is one more than the limit of calls in flight, which is this: it is only read to be answered
    /// in its own way.
    pub(super) over_limit: Option<usize>,
    /// Only the check can make one.
    pub(super) _proof: AccessProof,
}

/// Everything is answered, one way or the other.
pub(super) type ResponseResult = Result<http::Response<FrontBody>, Infallible>;
