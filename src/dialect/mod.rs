//! Requests of both eras, read into neutral values.
//!
//! [`modern`] turns a message of 2026-07-28 into one [`Call`] with a [`Caller`] beside it; the modern path
//! works on calls. [`legacy`] reads only as much of a legacy message as the proxy's decisions need, because
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

/// One request of a client.
#[derive(Clone, Debug)]
pub struct Call {
    /// The whole message as it was sent. `params` and the other raw parts are slices of it.
    pub bytes: Bytes,
    /// The client's id for it.
    pub id: RequestId,
    pub method: Method,
    /// The object of parameters; absent where none was sent.
    pub params: Option<Payload>,
    /// The subject of the call: a tool's or prompt's name, a resource's URI, a task's id.
    pub target: Option<String>,
    /// The client's progress token, a raw JSON token.
    pub progress_token: Option<Bytes>,
    /// The least severe log message that the client wants; `None` for no log messages.
    pub log_level: Option<LogLevel>,
    /// The headers of [`HeaderScope::Request`]: `Mcp-Param-*`, `traceparent`, `User-Agent`, …
    pub headers: ExtraHeaders,
    /// The client's implementation info.
    pub client_info: ClientInfo,
    /// The span of the call, if it is traced: the client's request as the proxy received it, and once the
    /// call is sent, the span that the server receives.
    pub trace: Option<Arc<TraceContext>>,
}

/// The origin of a call.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Principal,
    /// The headers that identify the caller to the server; never stored.
    pub credentials: Credentials,
    pub capabilities: Arc<Capabilities>,
    pub client_info: ClientInfo,
    /// All headers of the request, if the ticket policy matches by header. Never forwarded.
    pub match_headers: Option<Arc<HeaderMap>>,
    /// Membership in the rollouts of the route, in their order; `None` if the route has no rollout.
    pub rollout_membership: Option<Arc<[bool]>>,
}

/// Identifies a caller for sharing: the hash of what the route identifies callers by, or
/// [`Principal::ANONYMOUS`] without any.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Principal([u8; 16]);

/// The key from which principals are derived.
#[derive(Clone, Debug, Default)]
pub struct PrincipalKey(Option<ring::hmac::Key>);

/// The headers by which a server may identify the caller: those of [`HeaderScope::Session`]. Callers with
/// different credentials share no session. Cheap to clone.
#[derive(Clone, Default)]
pub struct Credentials(Option<Arc<CredentialHeaders>>);

/// At least one header.
struct CredentialHeaders {
    headers: HeaderMap,
    digest: [u8; 16],
}

/// The severities of RFC 5424, the least severe first.
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
    /// A copy without the bytes: what is needed after the call has been sent.
    pub fn without_bytes(&self) -> Self {
        Self {
            bytes: Bytes::new(),
            id: self.id.detached(),
            method: self.method.clone(),
            params: None,
            target: self.target.clone(),
            // A slice would keep all of the bytes alive.
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
    /// A key for principals that outlive the process: without it, a stored principal can neither be
    /// attributed nor guessed.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Some(ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key)))
    }

    /// Derives a principal from what identifies the caller.
    pub fn principal(&self, parts: &[&[u8]]) -> Principal {
        let Some(key) = &self.0 else { return Principal::of(parts) };
        let mut tag = ring::hmac::Context::with_key(key);
        for part in parts {
            tag.update(&(part.len() as u64).to_be_bytes());
            tag.update(part);
        }
        let mut short = [0; 16];
        short.copy_from_slice(&tag.sign().as_ref()[..16]);
        Principal(short)
    }
}

// === impl Principal ===

impl Principal {
    /// All callers without credentials.
    pub const ANONYMOUS: Self = Self([0; 16]);

    /// Derives a principal from what identifies the caller, without a key: the input must not be guessable if
    /// the digest leaves the process ([`PrincipalKey`]).
    pub fn of(parts: &[&[u8]]) -> Self {
        Self(digest(parts))
    }

    pub fn is_anonymous(&self) -> bool {
        *self == Self::ANONYMOUS
    }

    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A stored principal.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// 128 bits of the SHA-256 of parts, each with its length.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let mut short = [0; 16];
    short.copy_from_slice(&digest.finish().as_ref()[..16]);
    short
}

impl fmt::Display for Principal {
    /// The first half in hexadecimal: enough to distinguish callers in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_anonymous() {
            return f.write_str("anonymous");
        }
        // Hand-written for speed: it is in every access log line.
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

    /// The credentials among a request's headers, with the headers that `forward` names.
    pub fn from_request(headers: &HeaderMap, forward: &[HeaderName]) -> Self {
        let mut shown = HeaderMap::new();
        for (name, value) in session_headers(headers, forward) {
            shown.append(name, detached(value));
        }
        Self::new(shown)
    }

    /// Whether they are what [`Credentials::from_request`] would return, in the same order.
    pub fn matches_request(&self, headers: &HeaderMap, forward: &[HeaderName]) -> bool {
        session_headers(headers, forward).eq(self.headers())
    }

    pub fn headers(&self) -> &HeaderMap {
        static NONE: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
        self.0.as_ref().map_or_else(|| &*NONE, |shown| &shown.headers)
    }

    /// A digest that is equal for equal headers in any order, and for no others.
    pub fn digest(&self) -> [u8; 16] {
        self.0.as_ref().map_or([0; 16], |shown| shown.digest)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a server may identify the caller by any of them: by any header that is not known to be
    /// impersonal.
    pub fn can_identify_caller(&self) -> bool {
        self.headers().keys().any(|name| !is_impersonal(name))
    }

    /// Bytes of their names and values.
    pub fn retained_bytes(&self) -> usize {
        self.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
    }
}

fn session_headers<'a>(
    headers: &'a HeaderMap,
    forward: &[HeaderName],
) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
    headers.iter().filter(|(name, _)| match HeaderScope::of(name) {
        HeaderScope::Session => true,
        HeaderScope::Request => forward.contains(name),
        HeaderScope::Hop | HeaderScope::Message => false,
    })
}

/// Headers of HTTP client libraries and intermediaries that do not identify a caller.
fn is_impersonal(name: &HeaderName) -> bool {
    let name = name.as_str();
    let known = matches!(
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
    known || name.starts_with("sec-")
}

/// A copy in an allocation of its own. A value that hyper read is a slice of the connection's read buffer;
/// kept for the length of a call, it would keep 8 KiB or more alive.
pub fn detached(value: &HeaderValue) -> HeaderValue {
    let mut own = HeaderValue::from_bytes(value.as_bytes()).expect("a header value is one");
    own.set_sensitive(value.is_sensitive());
    own
}

impl fmt::Debug for Credentials {
    /// Names only: values are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.headers().keys()).finish()
    }
}

// === impl LogLevel ===

impl LogLevel {
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

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }
}
