//! Sets the headers of a route (`response.headers`) on every response of its path, errors of the proxy
//! included.

use crate::{
    front::{Front, incoming::IncomingRequest, reply::FrontBody},
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

/// Layer that sets the headers of a route on its responses.
pub(in crate::front) struct RouteHeaders<S> {
    inner: S,
    /// `None` where no route has headers.
    routes: Option<RouteHeaderTable>,
}

/// The headers of all routes, by the position of the route in [`Front`].
struct RouteHeaderTable {
    front: Arc<Front>,
    headers: Vec<Option<Arc<ResponseHeaders>>>,
}

/// The response of [`RouteHeaders`].
#[pin_project]
pub(in crate::front) struct RouteHeadersFuture<F> {
    #[pin]
    inner: F,
    headers: Option<Arc<ResponseHeaders>>,
}

type RouteResponse = http::Response<FrontBody>;

// === impl RouteHeaders ===

impl<S> RouteHeaders<S> {
    pub(in crate::front) fn new(inner: S, front: &Arc<Front>) -> Self {
        let non_empty = |headers: &ResponseHeaders| (!headers.is_empty()).then(|| Arc::new(headers.clone()));
        let headers: Vec<_> =
            front.services.iter().map(|service| non_empty(&service.route().response_headers)).collect();
        let has_any = headers.iter().any(Option::is_some);
        Self { inner, routes: has_any.then(|| RouteHeaderTable { front: Arc::clone(front), headers }) }
    }
}

impl<S, B> Service<IncomingRequest<B>> for RouteHeaders<S>
where
    S: Service<IncomingRequest<B>, Response = RouteResponse, Error = Infallible>,
{
    type Response = RouteResponse;
    type Error = Infallible;
    type Future = RouteHeadersFuture<S::Future>;

    fn call(&self, incoming: IncomingRequest<B>) -> Self::Future {
        let headers = self.routes.as_ref().and_then(|routes| {
            let position = routes.front.route_index(incoming.request.uri().path())?;
            routes.headers.get(position)?.clone()
        });
        RouteHeadersFuture { inner: self.inner.call(incoming), headers }
    }
}

// === impl RouteHeadersFuture ===

impl<F: Future<Output = Result<RouteResponse, Infallible>>> Future for RouteHeadersFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Ok(mut response) = ready!(this.inner.poll(cx));
        if let Some(headers) = this.headers {
            // Replaces the server's header of the same name.
            headers.iter().for_each(|(name, value)| drop(response.headers_mut().insert(name, value.clone())));
        }
        Poll::Ready(Ok(response))
    }
}
