//! Requests of one session over HTTP.

use bytes::Bytes;
use dashmap::{DashMap, Entry};
use http::{HeaderMap, HeaderValue, Method, header};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{hop, server::StreamableHttp};
use crate::{
    dialect::HeaderScope,
    protocol::{
        Revision,
        headers::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID},
    },
    upstream::{
        CallAnchor, CallError, ClientSession,
        http1::{self, ConnectionReuse, CookieJar, PendingResponse, SendOptions, TrafficClass},
    },
};

/// One session over Streamable HTTP, with its header lines serialized once.
pub struct HttpSession {
    pub(super) http: Arc<StreamableHttp>,
    /// Path of requests: that of the server, with the client's query if there is one.
    path: String,
    /// Header lines of every POST.
    post_lines: Vec<u8>,
    /// Header lines of requests without a body.
    bodiless_lines: Vec<u8>,
    /// Headers in `post_lines`, for lookups by name.
    post_headers: HeaderMap,
    /// `User-Agent` header line of the proxy, for messages without a client's; empty if the session has one.
    user_agent_line: &'static [u8],
    /// Whether the server assigned an id to the session, and so can lose the session.
    pub(super) has_id: bool,
    /// Counted id of the session, if the proxy must end it.
    open_id: Option<OpenSessionId>,
    /// Whether the server survives a DELETE of the session.
    survives_delete: bool,
    /// Cookies of a session that the proxy owns.
    cookies: Option<Arc<CookieJar>>,
}

/// Ids of the proxy's open sessions, with the number of sessions that have each. A server may assign one id
/// to several sessions, derived from the user or constant; the end of one would end all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenSessionIds(Arc<DashMap<HeaderValue, usize>>);

/// Id of an open session, counted until the session is closed.
struct OpenSessionId {
    ids: OpenSessionIds,
    id: HeaderValue,
    is_closed: AtomicBool,
}

// === impl OpenSessionIds ===

impl OpenSessionIds {
    /// Counts a session with this id.
    fn open(&self, id: &HeaderValue) -> OpenSessionId {
        *self.0.entry(id.clone()).or_default() += 1;
        OpenSessionId { ids: self.clone(), id: id.clone(), is_closed: AtomicBool::new(false) }
    }
}

// === impl OpenSessionId ===

impl OpenSessionId {
    /// Closes the session. Returns whether no other open session has its id; `false` if already closed.
    fn close(&self) -> bool {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return false;
        }
        let Entry::Occupied(mut open) = self.ids.0.entry(self.id.clone()) else { return true };
        *open.get_mut() -= 1;
        let is_last = *open.get() == 0;
        if is_last {
            open.remove();
        }
        is_last
    }
}

impl Drop for OpenSessionId {
    fn drop(&mut self) {
        self.close();
    }
}

// === impl HttpSession ===

impl HttpSession {
    /// Creates the session that an `initialize` response opened. `post_headers` are the headers of
    /// [`StreamableHttp::post_headers`].
    ///
    /// # Errors
    /// [`CallError::Invalid`] if the negotiated revision is not a header value.
    pub(super) fn from_handshake(
        http: Arc<StreamableHttp>,
        revision: &str,
        mut post_headers: HeaderMap,
        id: Option<HeaderValue>,
        cookies: Arc<CookieJar>,
    ) -> Result<Self, CallError> {
        let version = HeaderValue::from_str(revision)
            .map_err(|_| CallError::Invalid("its protocol version is not a header value".to_owned()))?;
        post_headers.insert(&PROTOCOL_VERSION, version);
        let has_id = id.is_some();
        let open_id = id.as_ref().map(|id| http.open_ids.open(id));
        if let Some(id) = id {
            post_headers.insert(&SESSION_ID, id);
        }
        Ok(Self {
            path: http.path.clone(),
            post_lines: http1::header_lines(&post_headers),
            bodiless_lines: http1::header_lines(&without_content(&post_headers)),
            user_agent_line: http.user_agent_line(&post_headers),
            post_headers,
            has_id,
            open_id,
            // Servers on the Python SDK before 2025-06-18 fail all sessions after a DELETE, so
            // their sessions are left to expire.
            survives_delete: Revision::parse(revision).is_none_or(Revision::survives_delete),
            cookies: Some(cookies),
            http,
        })
    }

    /// Creates a session that a legacy client opened, with the headers of its requests.
    pub(super) fn opened_by_client(http: Arc<StreamableHttp>, session: &ClientSession) -> Self {
        let ClientSession { principal: _, query, headers } = session;
        let config = http.config.load();
        let (host, via, configured) = (&http.host, &http.via.0, &config.headers);
        Self {
            path: hop::with_query(&http.path, query.as_deref()).into_owned(),
            post_lines: hop::request_lines(host, via, headers, configured),
            bodiless_lines: hop::request_lines(host, via, &without_content(headers), configured),
            post_headers: headers.clone(),
            // The client's requests keep their own `User-Agent`, or none.
            user_agent_line: b"",
            has_id: headers.contains_key(&SESSION_ID),
            open_id: None,
            survives_delete: false,
            // The client manages its cookies.
            cookies: None,
            http: Arc::clone(&http),
        }
    }

    /// Creates a session of the previous process, which is left to expire at the server. `None` if its id or
    /// revision is not a header value.
    pub(super) fn resumed(
        http: Arc<StreamableHttp>,
        mut post_headers: HeaderMap,
        anchor: &CallAnchor,
    ) -> Option<Self> {
        post_headers.insert(&PROTOCOL_VERSION, HeaderValue::from_str(&anchor.revision).ok()?);
        post_headers.insert(&SESSION_ID, HeaderValue::from_str(&anchor.session).ok()?);
        Some(Self {
            path: http.path.clone(),
            post_lines: http1::header_lines(&post_headers),
            bodiless_lines: http1::header_lines(&without_content(&post_headers)),
            user_agent_line: http.user_agent_line(&post_headers),
            post_headers,
            has_id: true,
            open_id: None,
            // Other calls of that process may be resumed in the session later: the first call to end would
            // end them all.
            survives_delete: false,
            // The cookies of that process are lost; the server may set others.
            cookies: Some(Arc::new(CookieJar::new(http.url.uri()))),
            http,
        })
    }

    /// Id and revision of the session, by which another process can resume it. `None` if the client adds a
    /// query to the server's URL: the query may hold a key, and is not stored.
    pub(super) fn resume_ids(&self) -> Option<(&str, &str)> {
        if self.path != self.http.path {
            return None;
        }
        let text = |name| self.post_headers.get(name).and_then(|value| value.to_str().ok());
        Some((text(&SESSION_ID)?, text(&PROTOCOL_VERSION)?))
    }

    /// Session id, if there is one.
    pub(super) fn id(&self) -> Option<&HeaderValue> {
        self.post_headers.get(&SESSION_ID)
    }

    /// Sends a call as a POST. `extra` are the client's headers for this call.
    pub(super) fn post_call(&self, body: Bytes, extra: &HeaderMap) -> PendingResponse {
        let config = self.http.config.load();
        let mut lines = http1::header_lines(&config.headers);
        for (name, value) in extra {
            let is_set = self.post_headers.contains_key(name) || config.headers.contains_key(name);
            if HeaderScope::for_header(name) == HeaderScope::Request && !is_set {
                http1::write_header_line(&mut lines, name, value);
            }
        }
        if !extra.contains_key(header::USER_AGENT) {
            lines.extend_from_slice(self.user_agent_line);
        }
        let lines = [&*self.post_lines, &lines];
        self.http.client.send(
            &Method::POST,
            &self.path,
            lines,
            body,
            self.options(ConnectionReuse::Proven, TrafficClass::Call),
        )
    }

    /// Sends a notification or a response as a POST.
    pub(super) fn post_message(&self, body: Bytes, reuse: ConnectionReuse) -> PendingResponse {
        let mut lines = self.http.configured_lines();
        lines.extend_from_slice(self.user_agent_line);
        let all_lines: [&[u8]; 2] = [&self.post_lines, &lines];
        self.http.client.send(
            &Method::POST,
            &self.path,
            all_lines,
            body,
            self.options(reuse, TrafficClass::Control),
        )
    }

    /// Opens the GET stream, or resumes a broken stream after `last_id`.
    pub(super) fn open_stream(&self, last_id: Option<&str>) -> PendingResponse {
        let mut lines = b"accept: text/event-stream\r\n".to_vec();
        // An id that is not a header value cannot be sent; the stream then starts at its current end.
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            http1::write_header_line(&mut lines, &LAST_EVENT_ID, &id);
        }
        self.send_bodiless(&Method::GET, &lines, ConnectionReuse::Any, TrafficClass::Call)
    }

    /// Sends DELETE; `None` if the server does not survive it, or another session of the proxy has the same
    /// id.
    pub(super) fn send_delete(&self) -> Option<PendingResponse> {
        let is_last = self.open_id.as_ref().is_some_and(OpenSessionId::close);
        (self.survives_delete && is_last)
            .then(|| self.send_bodiless(&Method::DELETE, &[], ConnectionReuse::Proven, TrafficClass::Control))
    }

    fn options(&self, reuse: ConnectionReuse, traffic: TrafficClass) -> SendOptions<'_> {
        SendOptions { reuse, traffic, cookies: self.cookies.as_ref() }
    }

    fn send_bodiless(
        &self,
        method: &Method,
        extra: &[u8],
        reuse: ConnectionReuse,
        traffic: TrafficClass,
    ) -> PendingResponse {
        let mut lines = self.http.configured_lines();
        lines.extend_from_slice(self.user_agent_line);
        lines.extend_from_slice(extra);
        let all_lines = [&*self.bodiless_lines, &lines];
        self.http.client.send(method, &self.path, all_lines, Bytes::new(), self.options(reuse, traffic))
    }
}

/// Returns the headers without `Content-Type` and `Accept`, for requests without a body.
pub(super) fn without_content(headers: &HeaderMap) -> HeaderMap {
    let mut bodiless = headers.clone();
    bodiless.remove(header::CONTENT_TYPE);
    bodiless.remove(header::ACCEPT);
    bodiless
}
