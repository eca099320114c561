//! Puts the headers of a route (`response.headers`) on every response of its path, errors of ours included.

use crate::{
    front::{Front, arrival::Arrival, reply::Body},
    policy::ResponseHeaders,
};
use hyper::service::Service;
use pin_project::pin_project;
use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// Adds headers to what is answered by the layers below.
pub(in crate::front) struct RouteHeaders<S> {
    inner: S,
    /// None where no route has any.
    routes: Option<Routes>,
}

/// The headers of all routes, by their position in the front.
struct Routes {
    front: Arc<Front>,
    headers: Vec<Option<Arc<ResponseHeaders>>>,
}

#[pin_project]
pub(in crate::front) struct ResponseFuture<F> {
    #[pin]
    inner: F,
    headers: Option<Arc<ResponseHeaders>>,
}

type Response = http::Response<Body>;

// === impl RouteHeaders ===

impl<S> RouteHeaders<S> {
    pub(in crate::front) fn new(inner: S, front: &Arc<Front>) -> Self {
        let of_route = |headers: &ResponseHeaders| (!headers.is_empty()).then(|| Arc::new(headers.clone()));
        let headers: Vec<_> =
            front.services.iter().map(|service| of_route(&service.route().response_headers)).collect();
        let has_any = headers.iter().any(Option::is_some);
        Self { inner, routes: has_any.then(|| Routes { front: Arc::clone(front), headers }) }
    }
}

impl<S, B> Service<Arrival<B>> for RouteHeaders<S>
where
    S: Service<Arrival<B>, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future>;

    fn call(&self, arrival: Arrival<B>) -> Self::Future {
        let headers = self.routes.as_ref().and_then(|routes| {
            let position = routes.front.position(arrival.request.uri().path())?;
            routes.headers.get(position)?.clone()
        });
        ResponseFuture { inner: self.inner.call(arrival), headers }
    }
}

// === impl ResponseFuture ===

impl<F: Future<Output = Result<Response, Infallible>>> Future for ResponseFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Ok(mut response) = ready!(this.inner.poll(cx));
        if let Some(headers) = this.headers {
            // In the place of the server's own of that name.
            headers.iter().for_each(|(name, value)| drop(response.headers_mut().insert(name, value.clone())));
        }
        Poll::Ready(Ok(response))
    }
}
