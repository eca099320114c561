//! The requests of one session: which headers they carry, and what their status says.

use super::super::{Error, http_transport::HttpTransport, message::http_error};
use crate::protocol::{Revision, accept, headers};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;

/// The way to the server, and what each request on it says of the session.
#[derive(Clone)]
pub(super) struct SessionTransport {
    pub(super) http: HttpTransport,
    /// Given by the server with its answer to `initialize`, if it keeps sessions.
    session: Option<HeaderValue>,
    /// Known after the handshake.
    revision: Option<Revision>,
}

// === impl Line ===

impl SessionTransport {
    pub(super) fn new(wire: HttpTransport) -> Self {
        Self { http: wire, session: None, revision: None }
    }

    /// From here on this is the session.
    pub(super) fn set_session(&mut self, session: HeaderValue) {
        self.session = Some(session);
    }

    /// From here on this is the revision.
    pub(super) fn set_revision(&mut self, revision: Revision) {
        self.revision = Some(revision);
    }

    /// Posts a request; its answer begins with this.
    ///
    /// # Errors
    /// [`Error::SessionLost`], and where the server cannot be reached.
    pub(super) async fn post(&self, request: String) -> Result<Response<Incoming>, Error> {
        let response = self.http.post(request, self.headers()).await?;
        self.check_session(response)
    }

    /// Posts a notification or a response, which has no answer.
    ///
    /// # Errors
    /// Where the server does not take it.
    pub(super) async fn send(&self, message: String) -> Result<(), Error> {
        let response = self.post(message).await?;
        let status = response.status();
        // An event stream here would be an answer to nothing; it need not end.
        if status.is_success() {
            return Ok(());
        }
        Err(http_error(status, &self.http.read_body(response.into_body()).await?))
    }

    /// Asks for a stream: a new one, or the rest of the one that had the event of this id.
    pub(super) async fn open_stream(&self, last_id: Option<&str>) -> Result<Response<Incoming>, Error> {
        let mut headers = self.headers();
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept::EVENT_STREAM));
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(headers::LAST_EVENT_ID.clone(), id);
        }
        self.http.send(Method::GET, String::new(), headers).await
    }

    /// Ends the session, if there is one.
    pub(super) async fn end_session(&self) -> Result<(), Error> {
        if self.session.is_some() {
            self.http.send(Method::DELETE, String::new(), self.headers()).await?;
        }
        Ok(())
    }

    /// A server that does not know a session any more says 404 (2025-11-25, *Session Management*).
    pub(super) fn check_session(&self, response: Response<Incoming>) -> Result<Response<Incoming>, Error> {
        if response.status() == StatusCode::NOT_FOUND && self.session.is_some() {
            return Err(Error::SessionLost);
        }
        Ok(response)
    }

    fn headers(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        if let Some(session) = &self.session {
            map.insert(headers::SESSION_ID.clone(), session.clone());
        }
        // Not known before 2025-06-18.
        if let Some(revision) = self.revision.filter(|revision| *revision >= Revision::V2025_06_18) {
            map.insert(headers::PROTOCOL_VERSION.clone(), HeaderValue::from_static(revision.as_str()));
        }
        map
    }
}
