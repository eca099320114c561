//! The end of a legacy client's session: what its client is told, and what its server is.
//!
//! A client ends its session by a DELETE (2025-11-25, *Session Management*), which passes like
//! anything else where nothing speaks against it. Where the server must not hear of it, or not yet,
//! it is [answered here](answer_here): the session is over for its client from then on, whatever the
//! server still knows of it, and [`end_at_server`] ends it there when its time has come.
//!
//! Some servers must never hear of it: those on the Python SDK before 2025-06-18 fail all sessions of
//! everybody for ever after one DELETE (`WIRE`, B 1, rule 5). What a server is, is judged by the newest
//! revision it offers itself: a client may be older than its server.

use crate::{
    dialect::Principal,
    protocol::{ErrorObject, code},
    proxy::{
        AccessSummary, Passage, Passed, Passing, passage, relay,
        session::{Key, Watched},
        shared::Shared,
    },
    telemetry::Outcome,
    upstream::{CallError, ClientSession, Forward, Purpose},
};
use bytes::Bytes;
use http::{
    HeaderMap, Method, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use smallvec::SmallVec;
use std::sync::Arc;

/// The client ends its session.
pub(super) async fn leave(shared: Arc<Shared>, passage: Passage) -> Passed {
    let Some(key) = Key::of(passage.principal, &passage.headers) else {
        return relay::exchange(shared, passage, None).await;
    };
    // The tasks in it go on: its server hears of the end after the last of them.
    if shared.residents.leave(key, passage.principal, || passage.session()) {
        return answer_here(&shared, key);
    }
    match shared.survives_farewells(passage.principal, &passage.headers).await {
        Ok(true) => {}
        Ok(false) => return answer_here(&shared, key),
        Err(lost) => return relay::unreachable(&shared, &lost),
    }
    let leaving = shared.ended.leave(key);
    let watched = Watched::of(&passage);
    let passed = relay::exchange(Arc::clone(&shared), passage, None).await;
    shared.sessions.saw(&watched, &passed);
    if passed.status.is_success() {
        leaving.is_over();
    }
    passed
}

/// Answers a client's DELETE in the server's place. What the client asks in this session from now on is
/// [refused](refusal).
pub(super) fn answer_here(shared: &Shared, key: Key) -> Passed {
    shared.ended.close(key);
    shared.sessions.doubt(key);
    let body = Passing::Whole(Bytes::new(), AccessSummary::default());
    Passed { status: StatusCode::OK, headers: HeaderMap::new(), body }
}

/// Ends a session at its server, whose client has been told so before. A server that does not survive
/// that, or cannot be reached, is left to forget the session by itself.
pub(in crate::proxy) async fn end_at_server(shared: &Shared, principal: Principal, session: ClientSession) {
    if !matches!(shared.survives_farewells(principal, &session.headers).await, Ok(true)) {
        return;
    }
    let ClientSession { query, mut headers } = session;
    headers.remove(CONTENT_TYPE);
    headers.remove(ACCEPT);
    let told = shared.upstream.forward(Forward {
        method: Method::DELETE,
        query,
        headers,
        body: Bytes::new(),
        purpose: Purpose::Tell,
        calls: SmallVec::new(),
        interest: None,
    });
    if let Err(lost) = told.await {
        tracing::debug!(error = %lost, "the end of a client's session could not be told");
    }
}

/// What a request is answered with whose session its client has ended here (2025-11-25, *Session
/// Management*); nothing for any other.
pub(super) fn refusal(shared: &Shared, passage: &Passage) -> Option<Passed> {
    // Before a digest is made of the session: there mostly is none to look for.
    if !shared.ended.has_closed() {
        return None;
    }
    let key = Key::of(passage.principal, &passage.headers)?;
    shared.ended.is_closed(key).then(|| {
        let error = ErrorObject::new(
            code::INVALID_REQUEST,
            "the session was ended by its client: begin another with initialize",
        );
        let account = AccessSummary::failed(Outcome::Departed, &error);
        let body = crate::dialect::legacy::refusal(&passage.post.waiting(), &error);
        Passed { status: StatusCode::NOT_FOUND, ..passage::document(body, account) }
    })
}

// === impl Shared ===

impl Shared {
    /// Whether the server goes on serving after a DELETE. One that has only been heard by older clients,
    /// or not at all, is asked; of one that does not say it is not believed.
    ///
    /// # Errors
    /// [`CallError`] where the server cannot be reached.
    async fn survives_farewells(&self, principal: Principal, headers: &HeaderMap) -> Result<bool, CallError> {
        if let Some(known) = self.offering.survives_farewells() {
            return Ok(known);
        }
        match self.ask_server(principal, headers).await {
            Ok(()) => Ok(self.offering.survives_farewells().unwrap_or(false)),
            Err(lost @ (CallError::Unreachable(_) | CallError::ConnectTimeout(_) | CallError::Closing)) => {
                Err(lost)
            }
            Err(_) => Ok(false),
        }
    }
}
