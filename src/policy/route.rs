//! Where calls come in and which server they go to.

use super::{Defer, ToolRule, Treatment};
use http::HeaderName;
use std::sync::Arc;

/// One MCP endpoint of the proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The path clients use, `/mcp` by default. Also the route's name.
    pub path: Arc<str>,
    pub defer: Defer,
    /// The first match wins.
    pub tools: Vec<ToolRule>,
    pub principal: PrincipalSource,
    /// Headers beside `Authorization` and cookies by which the server knows the caller. They are
    /// forwarded, and callers that differ in them share no session.
    pub forward: Vec<HeaderName>,
    /// Turn an empty `resources/read` result into the error it stands for. Off by default.
    pub empty_contents_is_error: bool,
}

/// What a caller is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PrincipalSource {
    /// The hash of the `Authorization` value. A refreshed token is another principal.
    #[default]
    Authorization,
    /// The value of a header that something trusted in front of the proxy sets.
    Header(HeaderName),
}

// === impl Route ===

impl Route {
    /// What holds for a tool on this route.
    pub fn treatment(&self, tool: &str) -> Treatment {
        self.defer.treatment(&self.tools, tool)
    }
}
