//! Refuses what is more than the limit of calls in flight.
//!
//! A call counts from its head to the last byte of its answer. A call that has become a task
//! counts no longer: its answer has been given.
//!
//! A legacy client is not told by a status: some wait for ever behind a bare 503 (`WIRE`, B 1,
//! rule 19). So what may come from one is read, a few at a time, to be answered by its id.

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

/// Lets `limit` calls in at once.
#[derive(Debug)]
pub(in crate::front) struct LoadShed<S> {
    inner: S,
    permits: CallPermits,
    limit: usize,
}

type ShedResponse = http::Response<FrontBody>;

// === impl Shed ===

impl<S> LoadShed<S> {
    /// `limit` is how many `permits` there are.
    pub(in crate::front) fn new(inner: S, places: CallPermits, limit: usize) -> Self {
        Self { inner, permits: places, limit }
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
        if let Some(place) = self.permits.try_acquire() {
            admitted.incoming.line.set_permit(place);
            return Either::Left(self.inner.call(admitted));
        }
        if dispatch::may_be_legacy(&admitted.incoming.request)
            && let Some(place) = self.permits.try_acquire_shed()
        {
            admitted.incoming.line.set_permit(place);
            admitted.over_limit = Some(self.limit);
            return Either::Left(self.inner.call(admitted));
        }
        let busy = RefusalReason::Busy { limit: self.limit };
        Either::Right(ready(Ok(refuse(busy, admitted.incoming.line))))
    }
}
