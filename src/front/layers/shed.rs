//! Refuses what is more than the limit of calls in flight.
//!
//! A call counts from its head to the last byte of its answer. A call that has become a task
//! counts no longer: its answer has been given.

use crate::front::{
    answer::{Refusal, refuse},
    reply::Body,
    stack::Admitted,
};
use futures_util::future::{Either, Ready, ready};
use std::{
    convert::Infallible,
    future::Future,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::Semaphore;
use tower::{Layer, Service};

/// Applies [`Shed`].
#[derive(Clone, Debug)]
pub(in crate::front) struct ShedLayer {
    places: Arc<Semaphore>,
    limit: usize,
}

/// Lets `limit` calls in at once.
#[derive(Clone, Debug)]
pub(in crate::front) struct Shed<S> {
    inner: S,
    places: Arc<Semaphore>,
    limit: usize,
}

type Response = http::Response<Body>;

// === impl ShedLayer ===

impl ShedLayer {
    pub(in crate::front) fn new(limit: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS))), limit }
    }
}

impl<S> Layer<S> for ShedLayer {
    type Service = Shed<S>;

    fn layer(&self, inner: S) -> Shed<S> {
        Shed { inner, places: Arc::clone(&self.places), limit: self.limit }
    }
}

// === impl Shed ===

impl<S, B> Service<Admitted<B>> for Shed<S>
where
    S: Service<Admitted<B>, Response = Response, Error = Infallible>,
    S::Future: Future<Output = Result<Response, Infallible>>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut admitted: Admitted<B>) -> Self::Future {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => {
                admitted.arrival.line.hold(place);
                Either::Left(self.inner.call(admitted))
            }
            Err(_full) => {
                let busy = Refusal::Busy { limit: self.limit };
                Either::Right(ready(Ok(refuse(busy, admitted.arrival.line))))
            }
        }
    }
}
