//! Checks the head against HTTP, `Host` against DNS rebinding, and `Origin`, so that pages of other sites
//! cannot make a browser call the proxy (2026-07-28, *Streamable HTTP, Security*).
//!
//! Responses to allowed pages get the headers that let their browser show them.

use crate::{
    front::{
        incoming::{AdmittedRequest, IncomingRequest},
        reply::FrontBody,
        responses::{RefusalReason, refuse},
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

/// Headers of a response that a page of another origin may read.
const EXPOSED_HEADERS: HeaderValue =
    HeaderValue::from_static("www-authenticate, retry-after, mcp-session-id");

/// Layer that checks HTTP heads, hosts and origins: admits a request, or answers with 400, 403 or 501.
#[derive(Debug)]
pub(in crate::front) struct AccessLayer<S> {
    inner: S,
    access: policy::AccessPolicy,
}

/// The response of [`AccessLayer`].
#[pin_project(project = ResponsePinned)]
pub(in crate::front) enum AccessFuture<F> {
    /// The refusal, `None` once returned. Boxed, because it is large and rare.
    Denied(Option<Box<AccessResponse>>),
    Admitted {
        #[pin]
        inner: F,
        /// The origin of the page that sent the request, if there is one.
        origin: Option<HeaderValue>,
    },
}

type AccessResponse = http::Response<FrontBody>;

// === impl AccessLayer ===

impl<S> AccessLayer<S> {
    pub(in crate::front) fn new(inner: S, access: policy::AccessPolicy) -> Self {
        Self { inner, access }
    }
}

impl<S, B> Service<IncomingRequest<B>> for AccessLayer<S>
where
    S: Service<AdmittedRequest<B>, Response = AccessResponse, Error = Infallible>,
{
    type Response = AccessResponse;
    type Error = Infallible;
    type Future = AccessFuture<S::Future>;

    fn call(&self, incoming: IncomingRequest<B>) -> Self::Future {
        let request = &incoming.request;
        let (uri, headers) = (request.uri(), request.headers());
        let checked =
            request_head::check_request_head(request.version(), uri, headers).map_err(RefusalReason::Head);
        match checked.and_then(|()| self.access.check_head(uri, headers).map_err(RefusalReason::Access)) {
            Ok(proof) => {
                let origin = incoming.request.headers().get(ORIGIN).map(crate::dialect::detach);
                let inner = self.inner.call(AdmittedRequest { incoming, over_limit: None, _proof: proof });
                AccessFuture::Admitted { inner, origin }
            }
            Err(refusal) => {
                if let RefusalReason::Access(denied) = &refusal {
                    log_denied(&incoming, denied);
                }
                AccessFuture::Denied(Some(Box::new(refuse(refusal, incoming.entry))))
            }
        }
    }
}

// === impl AccessFuture ===

impl<F: Future<Output = Result<AccessResponse, Infallible>>> Future for AccessFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            ResponsePinned::Denied(response) => {
                Poll::Ready(Ok(*response.take().expect("a finished future is not polled again")))
            }
            ResponsePinned::Admitted { inner, origin } => {
                let Ok(mut response) = ready!(inner.poll(cx));
                if let Some(origin) = origin.take() {
                    add_cors_headers(origin, response.headers_mut());
                }
                Poll::Ready(Ok(response))
            }
        }
    }
}

/// Logs the client of a request that is refused for its `Host` or `Origin`. The access log has the reason.
fn log_denied<B>(incoming: &IncomingRequest<B>, denied: &policy::AccessDenial) {
    let (host, origin) = denied.denied_values();
    let forwarded = forwarded_for(incoming.request.headers());
    let client = incoming.entry.connection().peer;
    AccessDenied { listener: "clients", client, forwarded: forwarded.as_deref(), host, origin }.emit();
}

/// Lets a page read the response (Fetch standard, *HTTP extensions*). Cookies are not included: no
/// `Access-Control-Allow-Credentials`. Pages send tokens in `Authorization`, which needs none.
fn add_cors_headers(origin: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    headers.append(VARY, HeaderValue::from_static("origin"));
}
