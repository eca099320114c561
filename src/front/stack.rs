//! How the front begins, and what a request passes through, the outermost first.

use super::{
    Bound, Config, Error, Front, Keys, Lasting,
    arrival::{Admitted, Answered},
    face,
    layers::{access::Access, health::HealthChecks, route_headers::RouteHeaders, shed::Shed, tokens::Tokens},
    listener::{self, Generation, Serves},
    places::Places,
    receive::BodyMemory,
    renewal::{self, Renewal},
    reply::Body,
};
use crate::{
    proxy,
    runtime::{Clock, Live, Net, Stopping, Striped},
    telemetry::trace::Tracer,
};
use hyper::{body::Incoming, service::Service};
use std::{convert::Infallible, future::Future, sync::Arc};
use tokio::sync::{Semaphore, mpsc, watch};

/// Begins to listen on `net`, and serves `services` until `stopping` says so; from when `leaving` does each connection
/// ends with what it is answered, and new ones are accepted. Must be called within a runtime. Once it returns,
/// connections are accepted.
///
/// # Errors
/// [`Error`] names the address or the file that is at fault.
pub fn serve(
    config: Config,
    services: Vec<Arc<dyn proxy::Service>>,
    keys: impl Into<Keys>,
    [leaving, stopping]: [Stopping; 2],
    clock: Arc<dyn Clock>,
    tracer: Tracer,
    net: &Net,
) -> Result<Bound, Error> {
    let tls = renewal::acceptor(&config)?;
    let listeners = listener::Listeners::bind(&config.listen, net)?;
    let listening: Vec<_> = listeners.addresses().collect();
    let addresses = listening.iter().map(|one| one.address).collect();
    let Keys { principals, sessions } = keys.into();
    let lasting = Arc::new(Lasting {
        principals,
        sessions,
        endpoints: Default::default(),
        tokens: watch::Sender::new(config.tokens.clone()),
        connections: Arc::new(Semaphore::new(config.limits.connections.min(Semaphore::MAX_PERMITS))),
        bodies: BodyMemory::new(config.limits.body_memory),
        calls: Places::new(config.limits.calls),
        clock,
        tracer,
        idle: Arc::default(),
        leaving,
        room: net.room().cloned(),
    });
    let front = Front::of(&config, services, Arc::clone(&lasting));
    let generations = Live::new(Generation { stack: stack(&front, &config), front, tls });
    let (move_to, moves) = mpsc::unbounded_channel();
    let task =
        tokio::spawn(listener::accept(listeners, moves, generations.clone(), Arc::clone(&lasting), stopping));
    let renewal = Renewal {
        generations,
        stack,
        lasting,
        listening: listening.into(),
        moves: move_to,
        net: net.clone(),
    };
    Ok(Bound { addresses, task, renew: Arc::new(renewal) })
}

/// What all layers lead to.
struct Innermost<F>(F);

impl<F, A> Service<Admitted<Incoming>> for Innermost<F>
where
    F: Fn(Admitted<Incoming>) -> A,
    A: Future<Output = Answered>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = A;

    fn call(&self, admitted: Admitted<Incoming>) -> A {
        (self.0)(admitted)
    }
}

/// Builds the stack. No layer lets a request wait: each refuses what it has no room for, as
/// a request's head is in memory by then, so there is nothing to gain by letting it wait, and its
/// client is owed an answer. No layer boxes anything; what is boxed
/// for a request is its line and its items.
fn stack(front: &Arc<Front>, config: &Config) -> impl Serves + use<> {
    // Reads bodies within their limits, and knows routes, so principals too.
    let (places, fronts) = (front.calls.clone(), Striped::of(|| Arc::new(front.copy())));
    let face = Innermost(move |admitted| face::serve(Arc::clone(fronts.mine()), admitted));
    // Before the body is read, so that bodies in memory are bounded too.
    let shed = Shed::new(face, places, config.limits.calls);
    // Before there is a place for the request, and before its body is read: who is not known takes nothing from
    // those who are.
    let tokens = Tokens::new(shed, config.tokens.clone());
    // Before tokens: who checks health has none.
    let health = HealthChecks::new(tokens, config.health.clone(), Arc::clone(front));
    // First, before anything is spent on the request: what a strange web page made a browser
    // send must reach nothing. It also puts on the answers what browsers ask for, refusals of
    // the layers below included.
    let access = Access::new(health, config.access.clone());
    // Around all others: an operator's headers are on their refusals, too.
    RouteHeaders::new(access, front)
}
