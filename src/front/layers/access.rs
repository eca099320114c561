//! Turns away what may not come in: a head that HTTP forbids; then by `Host`, so that a name of somebody else's cannot be made to
//! lead here, and by `Origin`, so that pages of other sites cannot make a reader's browser call.
//! (2026-07-28, *Streamable HTTP, Security*.)
//!
//! Answers to pages that may call are marked so that their browser shows them the answer.

use crate::{
    front::{
        answer::{Refusal, refuse},
        arrival::{Admitted, Arrival},
        reply::Body,
    },
    policy,
    protocol::{headers::forwarded_for, request_head},
    telemetry::AccessDenied,
};
use http::{
    HeaderMap, HeaderValue,
    header::{ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ORIGIN, VARY},
};
use hyper::service::Service;
use pin_project::pin_project;
use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// What a page may read of an answer beside its body.
const EXPOSED: HeaderValue = HeaderValue::from_static("www-authenticate, retry-after, mcp-session-id");

/// Admits requests or answers them with 400, 403 or 501.
#[derive(Debug)]
pub(in crate::front) struct Access<S> {
    inner: S,
    access: policy::Access,
}

#[pin_project(project = ResponsePinned)]
pub(in crate::front) enum ResponseFuture<F> {
    /// Boxed: it is large, and should be rare.
    Denied(Option<Box<Response>>),
    Admitted {
        #[pin]
        inner: F,
        /// The page's origin, where a page called.
        origin: Option<HeaderValue>,
    },
}

type Response = http::Response<Body>;

// === impl Access ===

impl<S> Access<S> {
    pub(in crate::front) fn new(inner: S, access: policy::Access) -> Self {
        Self { inner, access }
    }
}

impl<S, B> Service<Arrival<B>> for Access<S>
where
    S: Service<Admitted<B>, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future>;

    fn call(&self, arrival: Arrival<B>) -> Self::Future {
        let request = &arrival.request;
        let (uri, headers) = (request.uri(), request.headers());
        let checked = request_head::check(request.version(), uri, headers).map_err(Refusal::Head);
        match checked.and_then(|()| self.access.check_head(uri, headers).map_err(Refusal::Access)) {
            Ok(proof) => {
                let origin = arrival.request.headers().get(ORIGIN).map(crate::dialect::detached);
                let inner = self.inner.call(Admitted { arrival, turned_away: None, _proof: proof });
                ResponseFuture::Admitted { inner, origin }
            }
            Err(refusal) => {
                if let Refusal::Access(denied) = &refusal {
                    denied_by(&arrival, denied);
                }
                ResponseFuture::Denied(Some(Box::new(refuse(refusal, arrival.line))))
            }
        }
    }
}

// === impl ResponseFuture ===

impl<F: Future<Output = Result<Response, Infallible>>> Future for ResponseFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            ResponsePinned::Denied(response) => {
                Poll::Ready(Ok(*response.take().expect("a finished future is not polled again")))
            }
            ResponsePinned::Admitted { inner, origin } => {
                let Ok(mut response) = ready!(inner.poll(cx));
                if let Some(origin) = origin.take() {
                    show_to(origin, response.headers_mut());
                }
                Poll::Ready(Ok(response))
            }
        }
    }
}

/// Says in the log where a request came from that is refused for its `Host` or `Origin`. The access line has the reason.
fn denied_by<B>(arrival: &Arrival<B>, denied: &policy::Denied) {
    let (host, origin) = denied.values();
    let forwarded = forwarded_for(arrival.request.headers());
    let client = arrival.line.connection().peer;
    AccessDenied { listener: "clients", client, forwarded: forwarded.as_deref(), host, origin }.emit();
}

/// Lets a page read the answer (Fetch standard, *HTTP extensions*). Cookies are not included: no
/// `Access-Control-Allow-Credentials`. Pages show tokens in `Authorization`, which needs none.
fn show_to(origin: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.append(VARY, HeaderValue::from_static("origin"));
}
