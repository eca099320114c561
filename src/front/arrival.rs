//! A request on its way to whoever answers it.

use super::{layers::trace::Line, reply::Body};
use crate::policy::Checked;
use std::convert::Infallible;

/// A request whose head has been read. Its access line goes with it, so that whoever answers has
/// to take it: no answer without a line.
pub(super) struct Arrival<B> {
    pub(super) request: http::Request<B>,
    pub(super) line: Line,
}

/// A request that may come in.
pub(super) struct Admitted<B> {
    pub(super) arrival: Arrival<B>,
    /// It is one more than the limit of calls in flight, which is this: it is only read to be answered
    /// in its own way.
    pub(super) turned_away: Option<usize>,
    /// Only the check can make one.
    pub(super) _proof: Checked,
}

/// Everything is answered, one way or the other.
pub(super) type Answered = Result<http::Response<Body>, Infallible>;
