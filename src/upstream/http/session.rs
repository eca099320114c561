//! Messages of one session over HTTP.

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
        CallAnchor, CallError, ClientSession, UpstreamDescription,
        http1::{self, ConnectionReuse, CookieJar, PendingResponse, SendOptions, TrafficClass},
    },
};

/// One session over HTTP, with its header lines serialized once.
pub struct HttpSession {
    pub(super) http: Arc<StreamableHttp>,
    /// Request path: the server's, with the client's query if there is one.
    path: String,
    /// Headers of every POST.
    posting: Vec<u8>,
    /// Headers of requests without a body.
    bodiless: Vec<u8>,
    /// Headers in `posting`, for look-ups by name.
    names: HeaderMap,
    /// `User-Agent` header line of the proxy, for messages without one of a client; empty if the session has
    /// one.
    agent: &'static [u8],
    /// Whether the server assigned the session an id, and so can lose it.
    pub(super) has_id: bool,
    /// The id, if the session is the proxy's to end.
    open_id: Option<OpenSessionId>,
    /// Whether the server survives a DELETE.
    survives_delete: bool,
    /// Cookies of a session that the proxy owns.
    cookies: Option<Arc<CookieJar>>,
}

/// Ids of the proxy's open sessions. A server may assign one id to several sessions, derived from the user or
/// constant; the end of one would end all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenSessionIds(Arc<DashMap<HeaderValue, usize>>);

/// Id of an open session.
struct OpenSessionId {
    ids: OpenSessionIds,
    id: HeaderValue,
    is_closed: AtomicBool,
}

// === impl OpenSessionIds ===

impl OpenSessionIds {
    fn open(&self, id: &HeaderValue) -> OpenSessionId {
        *self.0.entry(id.clone()).or_default() += 1;
        OpenSessionId { ids: self.clone(), id: id.clone(), is_closed: AtomicBool::new(false) }
    }
}

// === impl OpenSessionId ===

impl OpenSessionId {
    /// Closes the session. Returns whether no other session has its id.
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
    /// Session opened by an `initialize` response; `posting` are the headers of
    /// [`StreamableHttp::post_headers`].
    ///
    /// # Errors
    /// [`CallError::Invalid`] if its revision is not a header value.
    pub(super) fn from_initialize(
        http: Arc<StreamableHttp>,
        description: &UpstreamDescription,
        mut posting: HeaderMap,
        id: Option<HeaderValue>,
        cookies: Arc<CookieJar>,
    ) -> Result<Self, CallError> {
        let version = HeaderValue::from_str(&description.version)
            .map_err(|_| CallError::Invalid("its protocol version is not a header value".to_owned()))?;
        posting.insert(&PROTOCOL_VERSION, version);
        let has_id = id.is_some();
        let open_id = id.as_ref().map(|id| http.open_ids.open(id));
        if let Some(id) = id {
            posting.insert(&SESSION_ID, id);
        }
        Ok(Self {
            path: http.path.clone(),
            posting: http1::header_lines(&posting),
            bodiless: http1::header_lines(&without_content(&posting)),
            agent: http.user_agent_line(&posting),
            names: posting,
            has_id,
            open_id,
            // Servers on the Python SDK before 2025-06-18 fail all sessions after a DELETE (WIRE, B 1.5), so
            // their sessions are left to expire.
            survives_delete: Revision::parse(&description.version).is_none_or(Revision::survives_delete),
            cookies: Some(cookies),
            http,
        })
    }

    /// Session of a legacy client, from the parts of its requests.
    pub(super) fn of_client(http: Arc<StreamableHttp>, session: &ClientSession) -> Self {
        let ClientSession { principal: _, query, headers } = session;
        let config = http.config.load();
        let (host, via, ours) = (&http.host, &http.via.0, &config.headers);
        Self {
            path: hop::with_query(&http.path, query.as_deref()).into_owned(),
            posting: hop::request_lines(host, via, headers, ours),
            bodiless: hop::request_lines(host, via, &without_content(headers), ours),
            names: headers.clone(),
            // The client's requests keep their own `User-Agent`, or none.
            agent: b"",
            has_id: headers.contains_key(&SESSION_ID),
            open_id: None,
            survives_delete: false,
            // The client manages its cookies.
            cookies: None,
            http: Arc::clone(&http),
        }
    }

    /// Session of the previous process, which is left to expire at the server. `None` if its id or revision
    /// is not a header value.
    pub(super) fn resumed(
        http: Arc<StreamableHttp>,
        mut posting: HeaderMap,
        anchor: &CallAnchor,
    ) -> Option<Self> {
        posting.insert(&PROTOCOL_VERSION, HeaderValue::from_str(&anchor.revision).ok()?);
        posting.insert(&SESSION_ID, HeaderValue::from_str(&anchor.session).ok()?);
        Some(Self {
            path: http.path.clone(),
            posting: http1::header_lines(&posting),
            bodiless: http1::header_lines(&without_content(&posting)),
            agent: http.user_agent_line(&posting),
            names: posting,
            has_id: true,
            open_id: None,
            // Other calls of that process may be resumed in it later: the first one to end would end them
            // all.
            survives_delete: false,
            // The cookies of that process are lost; the server may set others.
            cookies: Some(Arc::new(CookieJar::new(http.url.uri()))),
            http,
        })
    }

    /// Id and revision of the session, if it can be resumed with those: a query that a client adds to the
    /// server's URL may hold a key, and is not stored.
    pub(super) fn resume_ids(&self) -> Option<(&str, &str)> {
        if self.path != self.http.path {
            return None;
        }
        let text = |name| self.names.get(name).and_then(|value| value.to_str().ok());
        Some((text(&SESSION_ID)?, text(&PROTOCOL_VERSION)?))
    }

    /// Session id, if there is one.
    pub(super) fn id(&self) -> Option<&HeaderValue> {
        self.names.get(&SESSION_ID)
    }

    /// Sends a call.
    pub(super) fn call(&self, body: Bytes, further: &HeaderMap) -> PendingResponse {
        let config = self.http.config.load();
        let mut lines = http1::header_lines(&config.headers);
        for (name, value) in further {
            let is_set = self.names.contains_key(name) || config.headers.contains_key(name);
            if HeaderScope::for_header(name) == HeaderScope::Request && !is_set {
                http1::write_header_line(&mut lines, name, value);
            }
        }
        if !further.contains_key(header::USER_AGENT) {
            lines.extend_from_slice(self.agent);
        }
        let lines = [&*self.posting, &lines];
        self.http.client.send(
            &Method::POST,
            &self.path,
            lines,
            body,
            self.options(ConnectionReuse::Proven, TrafficClass::Call),
        )
    }

    /// Sends a notification or a response.
    pub(super) fn post(&self, body: Bytes, reuse: ConnectionReuse) -> PendingResponse {
        let mut ours = self.http.configured_lines();
        ours.extend_from_slice(self.agent);
        let lines: [&[u8]; 2] = [&self.posting, &ours];
        self.http.client.send(
            &Method::POST,
            &self.path,
            lines,
            body,
            self.options(reuse, TrafficClass::Control),
        )
    }

    /// Opens the GET stream, or resumes a broken stream after `last_id`.
    pub(super) fn get(&self, last_id: Option<&str>) -> PendingResponse {
        let mut lines = b"accept: text/event-stream\r\n".to_vec();
        // An id that is not a header value cannot be sent; the stream then starts anew.
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            http1::write_header_line(&mut lines, &LAST_EVENT_ID, &id);
        }
        self.bodiless(&Method::GET, &lines, ConnectionReuse::Any, TrafficClass::Call)
    }

    /// Sends DELETE, if the server survives it and no other session of the proxy has its id.
    pub(super) fn delete(&self) -> Option<PendingResponse> {
        let is_last = self.open_id.as_ref().is_some_and(OpenSessionId::close);
        (self.survives_delete && is_last)
            .then(|| self.bodiless(&Method::DELETE, &[], ConnectionReuse::Proven, TrafficClass::Control))
    }

    fn options(&self, reuse: ConnectionReuse, traffic: TrafficClass) -> SendOptions<'_> {
        SendOptions { reuse, traffic, cookies: self.cookies.as_ref() }
    }

    fn bodiless(
        &self,
        method: &Method,
        further: &[u8],
        reuse: ConnectionReuse,
        traffic: TrafficClass,
    ) -> PendingResponse {
        let mut more = self.http.configured_lines();
        more.extend_from_slice(self.agent);
        more.extend_from_slice(further);
        let lines = [&*self.bodiless, &more];
        self.http.client.send(method, &self.path, lines, Bytes::new(), self.options(reuse, traffic))
    }
}

/// Headers of a session without those about bodies.
pub(super) fn without_content(headers: &HeaderMap) -> HeaderMap {
    let mut bodiless = headers.clone();
    bodiless.remove(header::CONTENT_TYPE);
    bodiless.remove(header::ACCEPT);
    bodiless
}
