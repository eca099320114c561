//! Creation of the upstream of a route.

use super::{Config, HttpUpstream, ServerCommand, ServerUrl, StdioUpstream, Upstream, UpstreamSetupError};
use crate::runtime::Network;
use std::sync::Arc;

/// Target of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamTarget {
    /// MCP endpoint over Streamable HTTP.
    Url(ServerUrl),
    /// Command that starts stdio servers.
    Command(Box<ServerCommand>),
}

/// Creates the upstream of a route, without connecting to the server.
///
/// # Errors
/// [`UpstreamSetupError`].
pub fn create_upstream(
    server: UpstreamTarget,
    route: &str,
    config: Config,
    net: &Network,
) -> Result<Arc<dyn Upstream>, UpstreamSetupError> {
    Ok(match server {
        UpstreamTarget::Url(url) => Arc::new(HttpUpstream::for_route(route, &url, config, net)?),
        UpstreamTarget::Command(command) => Arc::new(StdioUpstream::new(route, *command, config, net)?),
    })
}
