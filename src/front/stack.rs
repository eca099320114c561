//! The start of the front, and the layers that a request passes, the outermost first.

use super::{
    Config, Error, Front, FrontHandle, IdentityKeys, SharedState,
    call_permits::CallPermits,
    dispatch,
    incoming::{AdmittedRequest, ResponseResult},
    layers::{
        access::AccessLayer, health::HealthChecks, route_headers::RouteHeaders, shed::LoadShed,
        tokens::TokenAuth,
    },
    listener::{self, FrontStack, StackGeneration},
    receive::BodyMemory,
    reload::{self, ReloadHandle},
    reply::FrontBody,
};
use crate::{
    proxy,
    runtime::{Clock, DrainWatch, Network, PerThread, SwapCell},
    telemetry::trace::Tracer,
};
use hyper::{body::Incoming, service::Service};
use std::{convert::Infallible, future::Future, sync::Arc};
use tokio::sync::{Semaphore, mpsc, watch};

/// Listens on `net`, and serves `services` until `stopping` is signalled; once `drain_notice` is signalled,
/// each response is the last of its connection, and new connections are still accepted. Must be called within
/// a runtime. Once it returns, connections are accepted.
///
/// # Errors
/// [`Error`] names the address or the file that is at fault.
pub fn serve(
    config: Config,
    services: Vec<Arc<dyn proxy::RouteService>>,
    keys: impl Into<IdentityKeys>,
    [drain_notice, stopping]: [DrainWatch; 2],
    clock: Arc<dyn Clock>,
    tracer: Tracer,
    net: &Network,
) -> Result<FrontHandle, Error> {
    let tls = reload::tls_acceptor(&config)?;
    let listeners = listener::ListenerSet::bind(&config.listen, net)?;
    let listening: Vec<_> = listeners.addresses().collect();
    let addresses = listening.iter().map(|socket| socket.address).collect();
    let IdentityKeys { principals, sessions } = keys.into();
    let shared = Arc::new(SharedState {
        principals,
        sessions,
        endpoints: Default::default(),
        tokens: watch::Sender::new(config.tokens.clone()),
        connections: Arc::new(Semaphore::new(config.limits.connections.min(Semaphore::MAX_PERMITS))),
        bodies: BodyMemory::new(config.limits.body_memory),
        call_permits: CallPermits::new(config.limits.calls),
        clock,
        tracer,
        idle: Arc::default(),
        drain_notice,
        limiter: net.limiter().cloned(),
    });
    let front = Front::new(&config, services, Arc::clone(&shared));
    let generations = SwapCell::new(StackGeneration { stack: build_stack(&front, &config), front, tls });
    let (updates, update_receiver) = mpsc::unbounded_channel();
    let task = tokio::spawn(listener::accept(
        listeners,
        update_receiver,
        generations.clone(),
        Arc::clone(&shared),
        stopping,
    ));
    let reload_handle = ReloadHandle {
        generations,
        stack: build_stack,
        shared,
        listening: listening.into(),
        updates,
        net: net.clone(),
    };
    Ok(FrontHandle { addresses, task, reload: Arc::new(reload_handle) })
}

/// The service inside all layers.
struct InnermostService<F>(F);

impl<F, A> Service<AdmittedRequest<Incoming>> for InnermostService<F>
where
    F: Fn(AdmittedRequest<Incoming>) -> A,
    A: Future<Output = ResponseResult>,
{
    type Response = http::Response<FrontBody>;
    type Error = Infallible;
    type Future = A;

    fn call(&self, admitted: AdmittedRequest<Incoming>) -> A {
        (self.0)(admitted)
    }
}

/// Builds the stack of layers. No layer queues requests: each refuses what exceeds its limit, because a
/// request's head is in memory by then, so waiting would save nothing. No layer boxes futures; only the
/// access log entry and the items of a request are boxed.
fn build_stack(front: &Arc<Front>, config: &Config) -> impl FrontStack + use<> {
    // The innermost service reads bodies within their limits, and determines the route and the principal.
    let (permits, fronts) = (front.call_permits.clone(), PerThread::from_fn(|| Arc::new(front.copy())));
    let innermost = InnermostService(move |admitted| dispatch::serve(Arc::clone(fronts.local()), admitted));
    // Load is shed before the body is read, so that the memory of bodies is bounded too.
    let shed = LoadShed::new(innermost, permits, config.limits.calls);
    // Tokens are checked before the request has a permit, and before its body is read: an unauthenticated
    // client uses no resources of others.
    let tokens = TokenAuth::new(shed, config.tokens.clone());
    // Health checks come before tokens, because they have none.
    let health = HealthChecks::new(tokens, config.health.clone(), Arc::clone(front));
    // Access is checked before any work for the request: a request that a foreign web page made a browser
    // send must reach nothing. The layer also sets CORS headers on the responses of all inner layers,
    // refusals included.
    let access = AccessLayer::new(health, config.access.clone());
    // The headers of a route are set around all other layers, so that refusals have them, too.
    RouteHeaders::new(access, front)
}
