//! What a request passes through, the outermost first.

use super::{
    Front, face,
    layers::{access::AccessLayer, shed::ShedLayer, trace::Line},
    listener::Serves,
    reply::Body,
};
use crate::policy::{self, Checked};
use std::{convert::Infallible, sync::Arc};
use tower::{ServiceBuilder, service_fn};

/// A request whose head has been read. Its access line goes with it, so that whoever answers has
/// to take it: no answer without a line.
pub(super) struct Arrival<B> {
    pub(super) request: http::Request<B>,
    pub(super) line: Line,
}

/// Everything is answered, one way or the other.
pub(super) type Answered = Result<http::Response<Body>, Infallible>;

/// A request that may come in.
pub(super) struct Admitted<B> {
    pub(super) arrival: Arrival<B>,
    /// It is one more than the limit of calls in flight, which is this: it is only read to be answered
    /// in its own way.
    pub(super) turned_away: Option<usize>,
    /// Only the check can make one.
    pub(super) _proof: Checked,
}

/// Builds the stack. Every layer is always ready and refuses in `call` what it has no room for:
/// a request's head is in memory by then, so there is nothing to gain by letting it wait, and its
/// client is owed an answer. No layer boxes anything; what is boxed
/// for a request is its line and its items.
pub(super) fn stack(front: Arc<Front>, access: policy::Access) -> impl Serves {
    let calls = front.limits.calls;
    ServiceBuilder::new()
        // First, before anything is spent on the request: what a strange web page made a browser
        // send must reach nothing. It also puts on the answers what browsers ask for, refusals of
        // the layers below included.
        .layer(AccessLayer::new(access))
        // Before the body is read, so that bodies in memory are bounded too.
        .layer(ShedLayer::new(calls))
        // Reads bodies within their limits, and knows routes, so principals too.
        .service(service_fn(move |admitted: Admitted<_>| face::serve(Arc::clone(&front), admitted)))
}
