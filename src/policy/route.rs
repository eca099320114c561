//! Where calls come in and which server they go to.

use super::{Defer, ToolRule, Treatment};
use http::HeaderName;
use std::{sync::Arc, time::Duration};

/// One MCP endpoint of the proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The path clients use, `/mcp` by default. Also the route's name.
    pub path: Arc<str>,
    pub defer: Defer,
    /// The first match wins.
    pub tools: Vec<ToolRule>,
    pub principal: PrincipalSource,
    pub questions: Questions,
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

/// How questions are treated that a server asks during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Questions {
    /// How long further ones are waited for after the first, so that parallel ones are put together.
    /// It adds to every answer that asks. Default 25 ms.
    pub settle: Duration,
    /// How long an unanswered one may wait before a task exists; the server's call, its session and
    /// a few KiB wait with it. Default 5 min.
    pub park: Duration,
}

// === impl Questions ===

impl Default for Questions {
    fn default() -> Self {
        Self { settle: Duration::from_millis(25), park: Duration::from_secs(5 * 60) }
    }
}

// === impl Route ===

impl Route {
    /// What holds for a tool on this route.
    pub fn treatment(&self, tool: &str) -> Treatment {
        self.defer.treatment(&self.tools, tool)
    }
}
