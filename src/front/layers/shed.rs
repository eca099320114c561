//! Refuses requests above the limit of calls in flight.
//!
//! A call counts from its head to the last byte of its response. A deferred call no longer counts: its
//! response is the handle.
//!
//! A status alone does not suffice for a legacy client: some wait for ever after a bare 503. So requests that
//! may be legacy are read, a few at a time, and refused by their id.

use crate::front::{
    call_permits::CallPermits,
    dispatch,
    incoming::AdmittedRequest,
    reply::FrontBody,
    responses::{RefusalReason, refuse},
};
use futures_util::future::{Either, Ready, ready};
use hyper::service::Service;
use std::{convert::Infallible, future::Future};

/// Layer that admits at most `limit` calls at a time, and refuses others.
#[derive(Debug)]
pub(in crate::front) struct LoadShed<S> {
    inner: S,
    permits: CallPermits,
    limit: usize,
}

type ShedResponse = http::Response<FrontBody>;

// === impl LoadShed ===

impl<S> LoadShed<S> {
    /// Wraps a service. `limit` is the number of `permits`, for the refusals.
    pub(in crate::front) fn new(inner: S, permits: CallPermits, limit: usize) -> Self {
        Self { inner, permits, limit }
    }
}

impl<S, B> Service<AdmittedRequest<B>> for LoadShed<S>
where
    S: Service<AdmittedRequest<B>, Response = ShedResponse, Error = Infallible>,
    S::Future: Future<Output = Result<ShedResponse, Infallible>>,
{
    type Response = ShedResponse;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<ShedResponse, Infallible>>>;

    fn call(&self, mut admitted: AdmittedRequest<B>) -> Self::Future {
        if let Some(permit) = self.permits.try_acquire() {
            admitted.incoming.entry.set_permit(permit);
            return Either::Left(self.inner.call(admitted));
        }
        if dispatch::may_be_legacy(&admitted.incoming.request)
            && let Some(permit) = self.permits.try_acquire_shed()
        {
            admitted.incoming.entry.set_permit(permit);
            admitted.over_limit = Some(self.limit);
            return Either::Left(self.inner.call(admitted));
        }
        let busy = RefusalReason::Busy { limit: self.limit };
        Either::Right(ready(Ok(refuse(busy, admitted.incoming.entry))))
    }
}
