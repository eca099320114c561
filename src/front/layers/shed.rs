//! Refuses what is more than the limit of calls in flight.
//!
//! A call counts from its head to the last byte of its answer. A call that has become a task
//! counts no longer: its answer has been given.
//!
//! A legacy client is not told by a status: some wait for ever behind a bare 503 (`WIRE`, B 1,
//! rule 19). So what may come from one is read, a few at a time, to be answered by its id.

use crate::front::{
    answer::{Refusal, refuse},
    arrival::Admitted,
    face,
    places::Places,
    reply::Body,
};
use futures_util::future::{Either, Ready, ready};
use hyper::service::Service;
use std::{convert::Infallible, future::Future};

/// Lets `limit` calls in at once.
#[derive(Debug)]
pub(in crate::front) struct Shed<S> {
    inner: S,
    places: Places,
    limit: usize,
}

type Response = http::Response<Body>;

// === impl Shed ===

impl<S> Shed<S> {
    /// `limit` is how many `places` there are.
    pub(in crate::front) fn new(inner: S, places: Places, limit: usize) -> Self {
        Self { inner, places, limit }
    }
}

impl<S, B> Service<Admitted<B>> for Shed<S>
where
    S: Service<Admitted<B>, Response = Response, Error = Infallible>,
    S::Future: Future<Output = Result<Response, Infallible>>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response, Infallible>>>;

    fn call(&self, mut admitted: Admitted<B>) -> Self::Future {
        if let Some(place) = self.places.call() {
            admitted.arrival.line.hold(place);
            return Either::Left(self.inner.call(admitted));
        }
        if face::may_be_legacy(&admitted.arrival.request)
            && let Some(place) = self.places.wait()
        {
            admitted.arrival.line.hold(place);
            admitted.turned_away = Some(self.limit);
            return Either::Left(self.inner.call(admitted));
        }
        let busy = Refusal::Busy { limit: self.limit };
        Either::Right(ready(Ok(refuse(busy, admitted.arrival.line))))
    }
}
