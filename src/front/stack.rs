//! How the front begins, and what a request passes through, the outermost first.

use super::{
    Bound, Config, Error, Front, Lasting,
    arrival::Admitted,
    face,
    layers::{access::Access, shed::Shed, tokens::Tokens},
    listener::{self, Generation, Serves},
    places::Places,
    receive::BodyMemory,
    renewal::{self, Renewal},
};
use crate::{
    dialect::PrincipalKey,
    proxy::Service,
    runtime::{Clock, Live, Net, Stopping},
    telemetry::trace::Tracer,
};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tower::{ServiceBuilder, layer::layer_fn, service_fn};

/// Begins to listen on `net`, and serves `services` until `stopping` says so; from when `leaving` does each connection
/// ends with what it is answered, and new ones are accepted. Must be called within a runtime. Once it returns,
/// connections are accepted.
///
/// # Errors
/// [`Error`] names the address or the file that is at fault.
pub fn serve(
    config: Config,
    services: Vec<Arc<dyn Service>>,
    principals: PrincipalKey,
    [leaving, stopping]: [Stopping; 2],
    clock: Arc<dyn Clock>,
    tracer: Tracer,
    net: &Net,
) -> Result<Bound, Error> {
    let tls = renewal::acceptor(&config)?;
    let listeners = listener::Listeners::bind(&config.listen, net)?;
    let listening: Vec<_> = listeners.addresses().collect();
    let addresses = listening.iter().map(|one| one.address).collect();
    let lasting = Arc::new(Lasting {
        principals,
        connections: Arc::new(Semaphore::new(config.limits.connections.min(Semaphore::MAX_PERMITS))),
        bodies: BodyMemory::new(config.limits.body_memory),
        calls: Places::new(config.limits.calls),
        clock,
        tracer,
        guests: Arc::default(),
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

/// Builds the stack. Every layer is always ready and refuses in `call` what it has no room for:
/// a request's head is in memory by then, so there is nothing to gain by letting it wait, and its
/// client is owed an answer. No layer boxes anything; what is boxed
/// for a request is its line and its items.
fn stack(front: &Arc<Front>, config: &Config) -> impl Serves + use<> {
    let (front, calls) = (Arc::clone(front), config.limits.calls);
    let (access, tokens) = (Arc::new(config.access.clone()), Arc::new(config.tokens.clone()));
    let places = front.calls.clone();
    ServiceBuilder::new()
        // First, before anything is spent on the request: what a strange web page made a browser
        // send must reach nothing. It also puts on the answers what browsers ask for, refusals of
        // the layers below included.
        .layer(layer_fn(|inner| Access::new(inner, Arc::clone(&access))))
        // Before there is a place for the request, and before its body is read: who is not known takes nothing from
        // those who are.
        .layer(layer_fn(|inner| Tokens::new(inner, Arc::clone(&tokens))))
        // Before the body is read, so that bodies in memory are bounded too.
        .layer(layer_fn(|inner| Shed::new(inner, places.clone(), calls)))
        // Reads bodies within their limits, and knows routes, so principals too.
        .service(service_fn(move |admitted: Admitted<_>| face::serve(Arc::clone(&front), admitted)))
}
