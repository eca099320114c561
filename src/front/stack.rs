//! How the front begins, and what a request passes through, the outermost first.

use super::{
    Bound, Config, Error, Front,
    arrival::Admitted,
    face,
    layers::{access::Access, shed::Shed, tokens::Tokens},
    listener::{self, Serves},
    receive::BodyMemory,
    tls,
};
use crate::{
    dialect::PrincipalKey,
    policy,
    proxy::Service,
    runtime::{Clock, Net, Stopping},
    telemetry::trace::Tracer,
};
use std::sync::Arc;
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
    let tls = config.tls.as_ref().map(|paths| tls::acceptor(paths, &[b"h2", b"http/1.1"])).transpose()?;
    let listeners = listener::Listeners::bind(&config.listen, net)?;
    let addresses = listeners.addresses.clone();
    if let Some(listen) = config.shows_tokens_on() {
        tracing::warn!(
            target: "deferral",
            event = "tokens_unencrypted",
            %listen,
            remedy = "serve `tls`, or name the `https` address of what stands in front in `public_url`",
        );
    }
    let front = Arc::new(Front {
        services,
        principals,
        bodies: BodyMemory::new(config.limits.body_memory),
        limits: config.limits,
        timeouts: config.timeouts,
        public_url: config.public_url,
        clock,
        tracer,
        guests: Arc::default(),
        leaving,
        room: net.room().cloned(),
    });
    let stack = stack(Arc::clone(&front), config.access, config.tokens);
    let task = tokio::spawn(listener::accept(listeners, tls, front, stack, stopping));
    Ok(Bound { addresses, task })
}

/// Builds the stack. Every layer is always ready and refuses in `call` what it has no room for:
/// a request's head is in memory by then, so there is nothing to gain by letting it wait, and its
/// client is owed an answer. No layer boxes anything; what is boxed
/// for a request is its line and its items.
fn stack(front: Arc<Front>, access: policy::Access, tokens: policy::Tokens) -> impl Serves {
    let (calls, access, tokens) = (front.limits.calls, Arc::new(access), Arc::new(tokens));
    ServiceBuilder::new()
        // First, before anything is spent on the request: what a strange web page made a browser
        // send must reach nothing. It also puts on the answers what browsers ask for, refusals of
        // the layers below included.
        .layer(layer_fn(|inner| Access::new(inner, Arc::clone(&access))))
        // Before there is a place for the request, and before its body is read: who is not known takes nothing from
        // those who are.
        .layer(layer_fn(|inner| Tokens::new(inner, Arc::clone(&tokens))))
        // Before the body is read, so that bodies in memory are bounded too.
        .layer(layer_fn(|inner| Shed::new(inner, calls)))
        // Reads bodies within their limits, and knows routes, so principals too.
        .service(service_fn(move |admitted: Admitted<_>| face::serve(Arc::clone(&front), admitted)))
}
