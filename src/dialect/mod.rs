//! Reads requests of both eras into values that do not depend on the era.
//!
//! [`modern`] converts a message of 2026-07-28 to a [`Call`], on which the modern path works, and its origin
//! to a [`Caller`]. [`legacy`] reads only as much of a legacy message as the proxy's decisions need, because
//! its bytes are relayed. [`translate`] converts messages between a legacy server and a 2026-07-28 client.

pub mod ambiguity;
mod client_headers;
mod client_info;
mod client_profile;
mod extra_headers;
pub mod legacy;
pub mod modern;
mod response;
mod session_seal;
pub mod translate;

pub use client_headers::{HeaderScope, remove_named_by_connection};
pub use client_info::ClientInfo;
pub use client_profile::ClientProfile;
pub use extra_headers::ExtraHeaders;
pub use response::CallResponse;
pub use session_seal::SessionSeal;

use crate::protocol::{Capabilities, Method, Payload, RequestId, TraceContext};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use std::{
    fmt,
    sync::{Arc, LazyLock},
};

/// One request of a client to its server: a tool call, or any other method.
#[derive(Clone, Debug)]
pub struct Call {
    /// The whole message as it was sent. `params` and the other raw parts are slices of it.
    pub bytes: Bytes,
    /// The id of the request, as the client chose it.
    pub id: RequestId,
    /// The method, such as `tools/call`.
    pub method: Method,
    /// The parameters of the request; `None` if the client sent none.
    pub params: Option<Payload>,
    /// The subject of the call: a tool's or prompt's name, a resource's URI, a task's id.
    pub target: Option<String>,
    /// The client's progress token as raw JSON; `None` if the client wants no progress.
    pub progress_token: Option<Bytes>,
    /// The least severe log message that the client wants; `None` for no log messages.
    pub log_level: Option<LogLevel>,
    /// The headers of [`HeaderScope::Request`]: `Mcp-Param-*`, `traceparent`, `User-Agent`, …
    pub headers: ExtraHeaders,
    /// The client's implementation info.
    pub client_info: ClientInfo,
    /// The trace context of the call; `None` without tracing. Before the call is sent, this is the span of
    /// the client's request; afterwards, the span that the server receives.
    pub trace: Option<Arc<TraceContext>>,
}

/// The caller of a request: its identity, and the capabilities of its client.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The principal that the request acts for.
    pub principal: Principal,
    /// The headers that identify the caller to the server; never written to the store.
    pub credentials: Credentials,
    /// The capabilities that the client declared on the request.
    pub capabilities: Arc<Capabilities>,
    /// The client's `clientInfo`.
    pub client_info: ClientInfo,
    /// All headers of the request, for a ticket policy that matches by header; otherwise `None`. Never
    /// forwarded.
    pub match_headers: Option<Arc<HeaderMap>>,
    /// Membership in the rollouts of the route, in their order; `None` if the route has no rollout.
    pub rollout_membership: Option<Arc<[bool]>>,
}

/// Who a request acts for: a 128-bit hash of the property by which the route identifies callers, or
/// [`Principal::ANONYMOUS`] without credentials. Tasks, sessions and quotas belong to a principal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Principal([u8; 16]);

/// The secret key of the keyed hash that derives principals; without a key, the hash is not keyed.
#[derive(Clone, Debug, Default)]
pub struct PrincipalKey(Option<ring::hmac::Key>);

/// The headers by which a server may identify the caller ([`HeaderScope::Session`]). Callers with different
/// credentials share no upstream session. Cheap to clone.
#[derive(Clone, Default)]
pub struct Credentials(Option<Arc<CredentialHeaders>>);

/// The headers of [`Credentials`], at least one, and their digest.
struct CredentialHeaders {
    headers: HeaderMap,
    digest: [u8; 16],
}

/// The log levels of MCP (the severities of RFC 5424), the least severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

// === impl Call ===

impl Call {
    /// Returns a copy with the parts that are needed after the call has been sent: without the message bytes,
    /// parameters and headers.
    pub fn without_bytes(&self) -> Self {
        Self {
            bytes: Bytes::new(),
            id: self.id.detached(),
            method: self.method.clone(),
            params: None,
            target: self.target.clone(),
            // The token is copied, because a slice would keep the whole message alive.
            progress_token: self.progress_token.as_deref().map(Bytes::copy_from_slice),
            log_level: self.log_level,
            headers: ExtraHeaders::default(),
            client_info: self.client_info.clone(),
            trace: self.trace.clone(),
        }
    }
}

// === impl PrincipalKey ===

impl PrincipalKey {
    /// Creates a key from secret bytes, for principals that are stored: nobody without the key can find out
    /// whose they are.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Some(ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key)))
    }

    /// Derives a principal from the parts that identify the caller, such as the value of a header.
    pub fn derive_principal(&self, parts: &[&[u8]]) -> Principal {
        let Some(key) = &self.0 else { return Principal::derive(parts) };
        let mut tag = ring::hmac::Context::with_key(key);
        for part in parts {
            tag.update(&(part.len() as u64).to_be_bytes());
            tag.update(part);
        }
        let mut truncated = [0; 16];
        truncated.copy_from_slice(&tag.sign().as_ref()[..16]);
        Principal(truncated)
    }
}

// === impl Principal ===

impl Principal {
    /// The common principal of all callers without credentials.
    pub const ANONYMOUS: Self = Self([0; 16]);

    /// Derives a principal from the parts that identify the caller, without a key: the parts must not be
    /// guessable if the digest leaves the process ([`PrincipalKey`]).
    pub fn derive(parts: &[&[u8]]) -> Self {
        Self(digest(parts))
    }

    /// Whether this is the common principal of callers without credentials.
    pub fn is_anonymous(&self) -> bool {
        *self == Self::ANONYMOUS
    }

    /// Returns the 16 bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Restores a principal from its stored bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// Returns the first 128 bits of the SHA-256 of the parts, each preceded by its length.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let mut truncated = [0; 16];
    truncated.copy_from_slice(&digest.finish().as_ref()[..16]);
    truncated
}

impl fmt::Display for Principal {
    /// Formats the first half in hexadecimal, which suffices to distinguish callers in a log; `anonymous`
    /// without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_anonymous() {
            return f.write_str("anonymous");
        }
        // The digits are written without `format!` for speed: a principal is in every entry of the access
        // log.
        let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
        let mut digits = [0; 16];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        f.write_str(std::str::from_utf8(&digits).expect("digits are ASCII"))
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Principal({self})")
    }
}

// === impl Credentials ===

impl Credentials {
    /// Creates credentials from these headers, all of which identify the caller.
    pub fn new(headers: HeaderMap) -> Self {
        if headers.is_empty() {
            return Self::default();
        }
        let digest = {
            let pairs = headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
            let mut pairs: SmallVec<[_; 16]> = pairs.collect();
            // Sorted by name only, because the order of values of one name is significant.
            pairs.sort_by_key(|(name, _)| *name);
            let parts: SmallVec<[_; 32]> =
                pairs.into_iter().flat_map(|(name, value)| [name, value]).collect();
            digest(&parts)
        };
        Self(Some(Arc::new(CredentialHeaders { headers, digest })))
    }

    /// Reads the credentials from a request's headers: those of [`HeaderScope::Session`], and those whose
    /// names are in `configured`.
    pub fn from_request(headers: &HeaderMap, configured: &[HeaderName]) -> Self {
        let mut selected = HeaderMap::new();
        for (name, value) in session_headers(headers, configured) {
            selected.append(name, detach(value));
        }
        Self::new(selected)
    }

    /// Whether [`Credentials::from_request`] would return the same headers in the same order.
    pub fn matches_request(&self, headers: &HeaderMap, configured: &[HeaderName]) -> bool {
        session_headers(headers, configured).eq(self.headers())
    }

    /// Returns the headers; an empty map without credentials.
    pub fn headers(&self) -> &HeaderMap {
        static EMPTY: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
        self.0.as_ref().map_or_else(|| &*EMPTY, |credentials| &credentials.headers)
    }

    /// Returns a digest that is equal exactly for equal headers, whatever the order of their names.
    pub fn digest(&self) -> [u8; 16] {
        self.0.as_ref().map_or([0; 16], |credentials| credentials.digest)
    }

    /// Whether there are no credentials.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a server may identify the caller by any of the headers, that is, by any header not known to be
    /// impersonal.
    pub fn can_identify_caller(&self) -> bool {
        self.headers().keys().any(|name| !is_impersonal(name))
    }

    /// Returns the total length of the names and values, in bytes.
    pub fn retained_bytes(&self) -> usize {
        self.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
    }
}

/// Returns the headers that select an upstream session: those of [`HeaderScope::Session`], and the configured
/// ones.
fn session_headers<'a>(
    headers: &'a HeaderMap,
    configured: &[HeaderName],
) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
    headers.iter().filter(|(name, _)| match HeaderScope::for_header(name) {
        HeaderScope::Session => true,
        HeaderScope::Request => configured.contains(name),
        HeaderScope::Hop | HeaderScope::Message => false,
    })
}

/// Headers of HTTP client libraries and intermediaries that do not identify a caller.
fn is_impersonal(name: &HeaderName) -> bool {
    let name = name.as_str();
    let is_listed = matches!(
        name,
        "via"
            | "cache-control"
            | "pragma"
            | "priority"
            | "dnt"
            | "referer"
            | "x-real-ip"
            | "x-forwarded-for"
            | "x-forwarded-proto"
            | "x-forwarded-host"
            | "x-forwarded-port"
            | "x-forwarded-server"
            | "upgrade-insecure-requests"
            | "accept-charset"
    );
    is_listed || name.starts_with("sec-")
}

/// Copies a value to an allocation of its own. A value that hyper read is a slice of the connection's read
/// buffer; kept for the length of a call, it would keep 8 KiB or more alive.
pub fn detach(value: &HeaderValue) -> HeaderValue {
    let mut copy = HeaderValue::from_bytes(value.as_bytes()).expect("a header value is one");
    copy.set_sensitive(value.is_sensitive());
    copy
}

impl fmt::Debug for Credentials {
    /// Prints only the names: the values are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.headers().keys()).finish()
    }
}

// === impl LogLevel ===

impl LogLevel {
    /// All levels, the least severe first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// Returns the name of the level in MCP messages, such as `warning`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }

    /// Parses the name of a level in an MCP message; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }
}
