//! Configuration of an upstream.

use super::http1::{Proxy, UpstreamTls};
use http::{HeaderMap, Uri};
use std::{sync::Arc, time::Duration};

/// Configuration of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub timeouts: UpstreamTimeouts,
    pub limits: UpstreamLimits,
    /// Headers for every HTTP request, replacing the caller's. Their values are marked as sensitive.
    pub headers: Arc<HeaderMap>,
    /// TLS settings; `None` for the system's roots and no client certificate.
    pub tls: Option<Arc<UpstreamTls>>,
    /// Proxy between this process and the server.
    pub proxy: Option<Arc<Proxy>>,
    /// Whether requests of clients carry the header `Forwarded`, which the front end adds. Default off.
    pub forwarded: bool,
}

/// Timeouts of an upstream. Each ends a call with its own error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// Limit of connecting, including TLS. Default 10 s.
    pub connect: Duration,
    /// Limit of the first byte of a response. Calls (`tools/call`, `prompts/get`, `resources/read`) are
    /// exempt, because a server that answers with JSON sends no byte until it is done. Default 30 s.
    pub first_byte: Duration,
    /// Limit of the pause between two bytes of a response; calls are exempt as well. Default 60 s.
    pub idle: Duration,
    /// Limit of a whole call. Default 24 h.
    pub call: Duration,
    /// Limit of the wait for a session while all are busy. A call that became a task meanwhile continues to
    /// wait. Default 30 s.
    pub queue: Duration,
    /// Time after which an unanswered input request of a process may end because clients of other principals
    /// wait for the process. Default 30 s.
    pub turn: Duration,
    /// Idle time after which an emulated session of a legacy client expires. Checked once a minute. Default
    /// 24 h.
    pub idle_session: Duration,
}

/// Resource limits of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamLimits {
    /// Sessions of one principal and set of capabilities; calls that need one more are queued. Each costs two
    /// connections. Default 64.
    pub sessions: usize,
    /// Sessions that tasks hold beside [`UpstreamLimits::sessions`], for one principal and set of
    /// capabilities, so that tasks do not delay calls. A task above the limit counts as a call. Each costs
    /// two connections while the task runs. Default 256.
    pub task_sessions: usize,
    /// Calls that wait for a session, for one principal and set of capabilities; a further call is refused.
    /// Each costs its request. Default 1024.
    pub queue: usize,
    /// Messages in flight to the server that are not calls: responses to its requests, pings included, and
    /// cancellations. Further ones wait. Each costs a connection. Default 64.
    pub messages: usize,
    /// Identities with sessions; a client may declare other capabilities with every request. Above the limit,
    /// the sessions of the idle identity with the oldest last call are closed. Each costs a session and its
    /// stream. Default 4096.
    pub identities: usize,
    /// Bytes of credentials, capabilities and `clientInfo` that those identities keep, with the same effect.
    /// Default 64 MiB.
    pub identity_bytes: usize,
    /// Limit of one message of the server, in bytes. Default 64 MiB.
    pub result_bytes: usize,
    /// Calls of disconnected legacy clients whose responses are read on, so that the server does not take the
    /// disconnect for a cancellation; a further one is closed. Each costs a connection and its buffer.
    /// Default 1000.
    pub departed: usize,
    /// Emulated sessions of legacy clients. Above the limit, the longest idle ones end, if any are idle. Each
    /// costs about a kilobyte, and its stored stream events. Default 10 000.
    pub client_sessions: usize,
}

/// Applies a prepared reload.
pub type ApplyReload = Box<dyn FnOnce() + Send>;

/// Reason why an upstream cannot be created or reconfigured.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamSetupError {
    #[error("the upstream URL {0} must begin with http:// or https://")]
    Scheme(Uri),
    #[error("the upstream URL {0} names no host")]
    NoHost(Uri),
    #[error(
        "no usable certificate authority on this system; set SSL_CERT_FILE, name it by upstream.tls.ca, or install its certificates {0}"
    )]
    NoRoots(String),
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] rustls::Error),
    #[error("an upstream needs a tokio runtime")]
    NoRuntime,
}

/// Default limit of connections to all servers, if the system allows the process as many: one for a call and
/// one for its session's stream, for each client connection of the front's default. Each needs a descriptor.
pub const DEFAULT_MAX_CONNECTIONS: usize = 20_000;

// === impl UpstreamTimeouts ===

impl Default for UpstreamTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            call: Duration::from_secs(24 * 60 * 60),
            queue: Duration::from_secs(30),
            turn: Duration::from_secs(30),
            idle_session: Duration::from_secs(24 * 60 * 60),
        }
    }
}

// === impl UpstreamLimits ===

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            sessions: 64,
            task_sessions: 256,
            queue: 1024,
            messages: 64,
            identities: 4096,
            identity_bytes: 64 << 20,
            result_bytes: 64 << 20,
            departed: 1000,
            client_sessions: 10_000,
        }
    }
}
