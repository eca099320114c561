//! A request on its way through the layers.

use super::{layers::access_entry::AccessEntry, reply::FrontBody};
use crate::policy::AccessProof;
use std::convert::Infallible;

/// A request whose head has been read, with its access log entry: no request can be answered without one.
pub(super) struct IncomingRequest<B> {
    pub(super) request: http::Request<B>,
    pub(super) entry: AccessEntry,
}

/// A request that has passed the access check.
pub(super) struct AdmittedRequest<B> {
    pub(super) incoming: IncomingRequest<B>,
    /// The limit of calls in flight, where this request exceeds it: it is read only to be refused by its
    /// JSON-RPC id.
    pub(super) over_limit: Option<usize>,
    /// Proof that the access check admitted the request; nothing else can create it.
    pub(super) _proof: AccessProof,
}

/// The result of every layer. A refusal is a response as well, so no layer fails.
pub(super) type ResponseResult = Result<http::Response<FrontBody>, Infallible>;
