//! The front on real sockets: requests, refusals, responses.

mod access_log;
mod body_limits;
mod client_disconnects;
mod connections;
mod half_closed;
mod handles;
mod http_semantics;
pub(crate) mod listener_and_service;
mod paths;
mod principals;
mod request_checks;
mod resource_metadata;
mod responses;
mod slow_connections;
mod start_and_drain;
mod tokens;

use self::listener_and_service::Version;
use deferral::internals::{
    dialect::PrincipalKey,
    front::{self, Config},
    runtime::{Drain, Network, SystemClock},
    telemetry,
};
use std::{sync::Arc, time::Duration};

const BOTH: [Version; 2] = [Version::Http1, Version::Http2];

/// Long enough never to pass in a test.
const NEVER: Duration = Duration::from_secs(600);

fn start(config: Config) -> Result<front::FrontHandle, front::Error> {
    let (_drain, stopping) = Drain::new();
    front::serve(
        config,
        Vec::new(),
        PrincipalKey::default(),
        [stopping.clone(), stopping],
        Arc::new(SystemClock::new()),
        telemetry::Tracer::default(),
        &Network::System,
    )
}
