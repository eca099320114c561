//! How the front begins, and what a request passes through, the outermost first.

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

/// Begins to listen on `net`, and serves `services` until `stopping` says so; from when `drain_notice` does each connection
/// ends with what it is answered, and new ones are accepted. Must be called within a runtime. Once it returns,
/// connections are accepted.
///
/// # Errors
/// [`Error`] names the address or the file that is at fault.
pub fn serve(
    config: Config,
    services: Vec<Arc<dyn proxy::RouteService>>,
    keys: impl Into<IdentityKeys>,
    [leaving, stopping]: [DrainWatch; 2],
    clock: Arc<dyn Clock>,
    tracer: Tracer,
    net: &Network,
) -> Result<FrontHandle, Error> {
    let tls = reload::acceptor(&config)?;
    let listeners = listener::ListenerSet::bind(&config.listen, net)?;
    let listening: Vec<_> = listeners.addresses().collect();
    let addresses = listening.iter().map(|one| one.address).collect();
    let IdentityKeys { principals, sessions } = keys.into();
    let lasting = Arc::new(SharedState {
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
        drain_notice: leaving,
        limiter: net.limiter().cloned(),
    });
    let front = Front::of(&config, services, Arc::clone(&lasting));
    let generations = SwapCell::new(StackGeneration { stack: stack(&front, &config), front, tls });
    let (move_to, moves) = mpsc::unbounded_channel();
    let task =
        tokio::spawn(listener::accept(listeners, moves, generations.clone(), Arc::clone(&lasting), stopping));
    let renewal = ReloadHandle {
        generations,
        stack,
        shared: lasting,
        listening: listening.into(),
        updates: move_to,
        net: net.clone(),
    };
    Ok(FrontHandle { addresses, task, reload: Arc::new(renewal) })
}

/// What all layers lead to.
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

/// Builds the stack. No layer lets a request wait: each refuses what it has no room for, as
/// a request's head is in memory by then, so there is nothing to gain by letting it wait, and its
/// client is owed an answer. No layer boxes anything; what is boxed
/// for a request is its line and its items.
fn stack(front: &Arc<Front>, config: &Config) -> impl FrontStack + use<> {
    // Reads bodies within their limits, and knows routes, so principals too.
    let (places, fronts) = (front.call_permits.clone(), PerThread::from_fn(|| Arc::new(front.copy())));
    let face = InnermostService(move |admitted| dispatch::serve(Arc::clone(fronts.local()), admitted));
    // Before the body is read, so that bodies in memory are bounded too.
    let shed = LoadShed::new(face, places, config.limits.calls);
    // Before there is a place for the request, and before its body is read: who is not known takes nothing from
    // those who are.
    let tokens = TokenAuth::new(shed, config.tokens.clone());
    // Before tokens: who checks health has none.
    let health = HealthChecks::new(tokens, config.health.clone(), Arc::clone(front));
    // First, before anything is spent on the request: what a strange web page made a browser
    // send must reach nothing. It also puts on the answers what browsers ask for, refusals of
    // the layers below included.
    let access = AccessLayer::new(health, config.access.clone());
    // Around all others: an operator's headers are on their refusals, too.
    RouteHeaders::new(access, front)
}
