//! What clients send, read: how a request of either era spells what it wants, and of whom it comes.
//!
//! [`modern`] turns a message of 2026-07-28 into one [`Call`] with a [`Caller`] beside it; calls are
//! what the rest of that road speaks of. [`legacy`] reads only as much of an older message as it
//! takes to judge it, for its bytes go on as they are. [`translate`] changes the bytes of a legacy server's world
//! into those of a 2026-07-28 client's, and back.

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

/// What a client wants.
#[derive(Clone, Debug)]
pub struct Call {
    /// The whole message as it was sent. `params` and the other raw parts are slices of it.
    pub bytes: Bytes,
    /// The client's id for it.
    pub id: RequestId,
    pub method: Method,
    /// The object of parameters; absent where none was sent.
    pub params: Option<Payload>,
    /// What the call is about: a tool's or prompt's name, a resource's URI, a task's id.
    pub target: Option<String>,
    /// The token under which the client wants to hear of progress, a raw JSON token.
    pub progress_token: Option<Bytes>,
    /// The least severe log message the client wants to see; none at all where absent.
    pub log_level: Option<LogLevel>,
    /// Those of [`HeaderScope::Request`]: `Mcp-Param-*`, `traceparent`, `User-Agent`, …
    pub headers: ExtraHeaders,
    /// Who its client says it is.
    pub client_info: ClientInfo,
    /// The span that it is a part of, where it is traced: the client's request as we see it. When it is sent, that
    /// which its server is told of.
    pub trace: Option<Arc<TraceContext>>,
}

/// Who asks. Travels beside the call.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Principal,
    /// What is shown to the server on the caller's behalf, and never stored.
    pub credentials: Credentials,
    pub capabilities: Arc<Capabilities>,
    pub client_info: ClientInfo,
    /// All headers of the request, where the operator tells by them who gets tickets. Never passed on.
    pub match_headers: Option<Arc<HeaderMap>>,
    /// For which rollouts of the route it is in, in their order; none where the route has no rollout.
    pub rollout_membership: Option<Arc<[bool]>>,
}

/// What a caller is, as far as sharing goes: the hash of what the route was told to look at, or
/// the whole world where there was nothing to look at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Principal([u8; 16]);

/// What principals are derived with.
#[derive(Clone, Debug, Default)]
pub struct PrincipalKey(Option<ring::hmac::Key>);

/// The headers by which a server may know the caller: those of [`HeaderScope::Session`]. Sessions are not shared by
/// callers that differ in them. Cheap to clone.
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
    /// The call without its bytes: what is left to know of it once it has been sent.
    pub fn without_bytes(&self) -> Self {
        Self {
            bytes: Bytes::new(),
            id: self.id.detached(),
            method: self.method.clone(),
            params: None,
            target: self.target.clone(),
            // A slice of the bytes, which would keep all of them.
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
    /// For principals that are kept for longer than the process lives: whoever reads them without the key can
    /// neither tell whose they are nor try what they may be.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Some(ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key)))
    }

    /// Derived from what identifies the caller.
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
    /// Everybody who shows no credentials.
    pub const ANONYMOUS: Self = Self([0; 16]);

    /// Derived from what identifies the caller. Keyed by nothing: what goes in must not be guessable where
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

    /// As it was stored.
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
    /// The first half in hexadecimal: enough to tell callers apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_anonymous() {
            return f.write_str("anonymous");
        }
        // By hand: it stands in every access line.
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
            // By name alone, so that the values of one name stay in their order, which means something.
            pairs.sort_by_key(|(name, _)| *name);
            let parts: SmallVec<[_; 32]> =
                pairs.into_iter().flat_map(|(name, value)| [name, value]).collect();
            digest(&parts)
        };
        Self(Some(Arc::new(CredentialHeaders { headers, digest })))
    }

    /// Those among a request's headers, and further ones that are named in `forward`.
    pub fn from_request(headers: &HeaderMap, forward: &[HeaderName]) -> Self {
        let mut shown = HeaderMap::new();
        for (name, value) in session_headers(headers, forward) {
            shown.append(name, detached(value));
        }
        Self::new(shown)
    }

    /// Whether they are what [`Credentials::from_request`] would give, in the same order.
    pub fn matches_request(&self, headers: &HeaderMap, forward: &[HeaderName]) -> bool {
        session_headers(headers, forward).eq(self.headers())
    }

    pub fn headers(&self) -> &HeaderMap {
        static NONE: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
        self.0.as_ref().map_or_else(|| &*NONE, |shown| &shown.headers)
    }

    /// What the same headers have in common, in whatever order they came, and no others.
    pub fn digest(&self) -> [u8; 16] {
        self.0.as_ref().map_or([0; 16], |shown| shown.digest)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a server may know the caller by any of them: all but those that are known to say nothing of it.
    pub fn can_identify_caller(&self) -> bool {
        self.headers().keys().any(|name| !is_impersonal(name))
    }

    /// Bytes that their names and values take.
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

/// Headers of clients' HTTP libraries, and of proxies on the way, that are nobody's secret.
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

/// The same value in memory of its own. A value that hyper read is a slice of the connection's
/// read buffer; kept for the length of a call, it would keep 8 KiB or more alive.
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
