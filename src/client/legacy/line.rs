//! The requests of one session: which headers they carry, and what their status says.

use super::super::{Error, message::refused, wire::Wire};
use crate::protocol::{Revision, accept, headers};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;

/// The way to the server, and what each request on it says of the session.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) wire: Wire,
    /// Given by the server with its answer to `initialize`, if it keeps sessions.
    session: Option<HeaderValue>,
    /// Known after the handshake.
    revision: Option<Revision>,
}

// === impl Line ===

impl Line {
    pub(super) fn new(wire: Wire) -> Self {
        Self { wire, session: None, revision: None }
    }

    /// From here on this is the session.
    pub(super) fn join(&mut self, session: HeaderValue) {
        self.session = Some(session);
    }

    /// From here on this is the revision.
    pub(super) fn speak(&mut self, revision: Revision) {
        self.revision = Some(revision);
    }

    /// Posts a request; its answer begins with this.
    ///
    /// # Errors
    /// [`Error::SessionLost`], and where the server cannot be reached.
    pub(super) async fn post(&self, request: String) -> Result<Response<Incoming>, Error> {
        let response = self.wire.post(request, self.headers()).await?;
        self.checked(response)
    }

    /// Posts a notification or a response, which has no answer.
    ///
    /// # Errors
    /// Where the server does not take it.
    pub(super) async fn tell(&self, message: String) -> Result<(), Error> {
        let response = self.post(message).await?;
        let status = response.status();
        // An event stream here would be an answer to nothing; it need not end.
        if status.is_success() {
            return Ok(());
        }
        Err(refused(status, &self.wire.whole(response.into_body()).await?))
    }

    /// Asks for a stream: a new one, or the rest of the one that had the event of this id.
    pub(super) async fn listen(&self, last_id: Option<&str>) -> Result<Response<Incoming>, Error> {
        let mut headers = self.headers();
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept::EVENT_STREAM));
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(headers::LAST_EVENT_ID.clone(), id);
        }
        self.wire.send(Method::GET, String::new(), headers).await
    }

    /// Ends the session, if there is one.
    pub(super) async fn leave(&self) -> Result<(), Error> {
        if self.session.is_some() {
            self.wire.send(Method::DELETE, String::new(), self.headers()).await?;
        }
        Ok(())
    }

    /// A server that does not know a session any more says 404 (2025-11-25, *Session Management*).
    pub(super) fn checked(&self, response: Response<Incoming>) -> Result<Response<Incoming>, Error> {
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
