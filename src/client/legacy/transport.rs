//! The requests of one session: their headers, and errors by status.

use super::super::{Error, http_transport::HttpTransport, message::http_error};
use crate::protocol::{Revision, accept, headers};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;

/// HTTP requests to the server, with the headers of the session.
#[derive(Clone)]
pub(super) struct SessionTransport {
    /// Sends the requests.
    pub(super) http: HttpTransport,
    /// The session id of the `initialize` response, if the server keeps sessions.
    session: Option<HeaderValue>,
    /// The negotiated revision; `None` before the end of the handshake.
    revision: Option<Revision>,
}

// === impl SessionTransport ===

impl SessionTransport {
    pub(super) fn new(http: HttpTransport) -> Self {
        Self { http, session: None, revision: None }
    }

    /// Sets the session id for later requests.
    pub(super) fn set_session(&mut self, session: HeaderValue) {
        self.session = Some(session);
    }

    /// Sets the revision for later requests.
    pub(super) fn set_revision(&mut self, revision: Revision) {
        self.revision = Some(revision);
    }

    /// Posts a request, and returns the head of the response.
    ///
    /// # Errors
    /// [`Error::SessionLost`] if the server no longer knows the session; an error if the server cannot be
    /// reached.
    pub(super) async fn post(&self, request: String) -> Result<Response<Incoming>, Error> {
        let response = self.http.post(request, self.headers()).await?;
        self.check_session(response)
    }

    /// Posts a notification or a response.
    ///
    /// # Errors
    /// An error if the server refuses the message or cannot be reached.
    pub(super) async fn send(&self, message: String) -> Result<(), Error> {
        let response = self.post(message).await?;
        let status = response.status();
        // The body is not read: it may be an event stream, which need not end.
        if status.is_success() {
            return Ok(());
        }
        Err(http_error(status, &self.http.read_body(response.into_body()).await?))
    }

    /// Opens a GET stream: a new one, or the rest of the stream with this last event id.
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

    /// Checks that the server still knows the session; it answers 404 for an unknown one (2025-11-25,
    /// *Session Management*).
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
        // Revisions before 2025-06-18 do not have this header.
        if let Some(revision) = self.revision.filter(|revision| *revision >= Revision::V2025_06_18) {
            map.insert(headers::PROTOCOL_VERSION.clone(), HeaderValue::from_static(revision.as_str()));
        }
        map
    }
}
