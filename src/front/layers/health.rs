//! Answers health checks on the clients' listeners (`health`), where that is configured.
//!
//! Health checks need no token and no call permit, so that a busy proxy, or one that requires tokens, does
//! not look unhealthy. Hosts and origins are checked as for every request: load balancers use an address, or
//! a name that clients use, too.

use crate::{
    front::{
        Front, HealthConfig,
        incoming::{AdmittedRequest, IncomingRequest},
        reply::FrontBody,
        responses::{self, RefusalReason, refuse},
    },
    proxy::AccessSummary,
};
use bytes::Bytes;
use futures_util::future::{Either, Ready, ready};
use http::{HeaderValue, Method, StatusCode, header::CACHE_CONTROL};
use hyper::service::Service;
use std::{convert::Infallible, sync::Arc};

/// Layer that answers requests for the path of health checks, and passes on all others.
pub(in crate::front) struct HealthChecks<S> {
    inner: S,
    health: Option<HealthConfig>,
    front: Arc<Front>,
}

type HealthResponse = http::Response<FrontBody>;

/// The methods that the path serves, as in `Allow`.
const HEALTH_METHODS: &str = "GET, HEAD";

// === impl HealthChecks ===

impl<S> HealthChecks<S> {
    pub(in crate::front) fn new(inner: S, health: Option<HealthConfig>, front: Arc<Front>) -> Self {
        Self { inner, health, front }
    }

    fn answer<B>(&self, health: &HealthConfig, incoming: IncomingRequest<B>) -> HealthResponse {
        let IncomingRequest { request, entry } = incoming;
        entry.connection().complete_request();
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return refuse(
                RefusalReason::Method { method: request.method().clone(), allow: HEALTH_METHODS },
                entry,
            );
        }
        let (status, body) = self.readiness(health);
        let mut response = responses::json(status, Bytes::from_static(body), AccessSummary::default(), entry);
        // A cached state would be of no use.
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// Returns the status and body that `/ready` of the admin listener has, without the names of servers.
    fn readiness(&self, health: &HealthConfig) -> (StatusCode, &'static [u8]) {
        let has_unreachable_server = || self.front.services.iter().any(|service| !service.is_reachable());
        if self.front.drain_notice.is_stopped() {
            (StatusCode::SERVICE_UNAVAILABLE, br#"{"status":"stopping"}"#)
        } else if health.needs_servers && has_unreachable_server() {
            (StatusCode::SERVICE_UNAVAILABLE, br#"{"status":"waiting"}"#)
        } else {
            (StatusCode::OK, br#"{"status":"ready"}"#)
        }
    }
}

impl<S, B> Service<AdmittedRequest<B>> for HealthChecks<S>
where
    S: Service<AdmittedRequest<B>, Response = HealthResponse, Error = Infallible>,
    S::Future: Future<Output = Result<HealthResponse, Infallible>>,
{
    type Response = HealthResponse;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<HealthResponse, Infallible>>>;

    fn call(&self, admitted: AdmittedRequest<B>) -> Self::Future {
        match &self.health {
            Some(health) if admitted.incoming.request.uri().path() == &*health.path => {
                Either::Right(ready(Ok(self.answer(health, admitted.incoming))))
            }
            _ => Either::Left(self.inner.call(admitted)),
        }
    }
}
