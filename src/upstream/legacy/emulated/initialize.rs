//! Handshake of an emulated session (2025-11-25, *Lifecycle*).
//!
//! The server got the proxy's newest revision in the handshake of the first client, and its result is used
//! for every client. Only the revision differs: a client that requests an older revision than the server's
//! gets the requested one, as the server would answer, because later revisions only add features, which are
//! used with clients that declare them.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use std::sync::Arc;

use super::{EmulatedSession, EmulatedSessions, PoolLookup};
use crate::{
    dialect::{ClientInfo, Credentials, Principal, legacy},
    protocol::{
        Capabilities, ErrorObject, Payload, RequestId, Revision, code,
        headers::SESSION_ID,
        revision::Era,
        splice::{BytesPatch, JsonObject, ObjectEdit},
    },
    runtime::random,
    telemetry::Limit,
    upstream::{CallError, CallerIdentity, HttpResponse, UpstreamDescription, transport::Transport},
};

// === impl EmulatedSessions ===

impl<W: Transport> EmulatedSessions<W> {
    /// Handles `initialize`: opens an emulated session. Starts the server if no client with the same
    /// capabilities has used it yet.
    pub(super) async fn initialize(
        &self,
        principal: Principal,
        id: &RequestId,
        params: Option<&Payload>,
        pools: PoolLookup<'_, W>,
    ) -> Result<HttpResponse, CallError> {
        let refuse = |code, text: &str| {
            let error = ErrorObject::new(code, text);
            Ok(self.json_response(StatusCode::OK, legacy::error_responses(std::slice::from_ref(id), &error)))
        };
        let params = params.and_then(Payload::object);
        let Some(requested) = params.and_then(|params| params.string("protocolVersion")) else {
            return refuse(code::INVALID_PARAMS, "initialize names no protocolVersion");
        };
        let declared = params.and_then(|params| params.get("capabilities"));
        let capabilities = match declared.map_or(Ok(Capabilities::none()), Capabilities::read) {
            Ok(capabilities) => Arc::new(capabilities),
            Err(error) => return refuse(code::INVALID_PARAMS, &error.to_string()),
        };
        if !self.evict_for_session() {
            let limit = self.server.config.load().limits.client_sessions;
            Limit::ClientSessions.record_hit();
            let text = format!(
                "all {limit} sessions of clients with this server are in use (limits.client_sessions)"
            );
            return refuse(code::BUSY, &text);
        }
        let (credentials, client_info) = (Credentials::default(), ClientInfo::default());
        let caller = CallerIdentity { principal, credentials, capabilities, client_info };
        let session_id = HeaderValue::from_str(&format!("{:032x}", u128::from_be_bytes(random())))
            .expect("hexadecimal digits are a header value");
        let session = EmulatedSession::new(session_id.clone(), principal, caller);
        // The session is a listener before the server starts, which may send requests at once.
        let description = session.pool(pools).list_session().await?.description.clone();
        let version = negotiated_revision(&requested, &description.version);
        session
            .set_negotiated(&description, Revision::parse(&version).is_some_and(Revision::has_empty_events));
        let result = initialize_result(&description, &version);
        self.sessions.insert(session_id.clone(), session);
        let mut response = self.json_response(StatusCode::OK, legacy::success_response(id, &result));
        response.headers.insert(SESSION_ID.clone(), session_id);
        Ok(response)
    }
}

/// Returns the revision of a session whose client requests `requested`, with a server that negotiated
/// `server_revision`.
fn negotiated_revision(requested: &str, server_revision: &str) -> String {
    let is_older =
        |requested: &Revision| requested.era() == Era::Legacy && requested.as_str() < server_revision;
    Revision::parse(requested)
        .filter(is_older)
        .map_or_else(|| server_revision.to_owned(), |requested| requested.as_str().to_owned())
}

/// Returns the `initialize` result for a session of this revision. The server's task capability is removed,
/// because clients share the server.
fn initialize_result(server: &UpstreamDescription, version: &str) -> Bytes {
    let Ok(result) = JsonObject::read(&server.result) else { return server.result.clone() };
    let mut patch = BytesPatch::new(server.result.clone());
    let mut edit = ObjectEdit::new(&result);
    if server.version != version {
        edit.set("protocolVersion", format!("\"{version}\""));
    }
    if let Some(Ok(capabilities)) = result.get("capabilities").map(|raw| JsonObject::read(&raw)) {
        let mut inner = ObjectEdit::new(&capabilities);
        inner.remove("tasks");
        inner.add_to(&mut patch);
    }
    edit.add_to(&mut patch);
    patch.apply()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_an_older_revision_gets_its_own_and_any_other_the_servers() {
        for (requested, spoken, agreed_on) in [
            ("2025-11-25", "2025-11-25", "2025-11-25"),
            ("2025-03-26", "2025-11-25", "2025-03-26"),
            ("2024-11-05", "2025-06-18", "2024-11-05"),
            ("2025-11-25", "2025-06-18", "2025-06-18"),
            ("2026-07-28", "2025-11-25", "2025-11-25"),
            ("1.0", "2025-11-25", "2025-11-25"),
            ("v999.0.0", "2025-06-18", "2025-06-18"),
            ("2025-06-18", "2027-01-01", "2025-06-18"),
        ] {
            assert_eq!(negotiated_revision(requested, spoken), agreed_on, "{requested} {spoken}");
        }
    }

    #[test]
    fn the_initialize_result_is_unchanged_except_for_revision_and_tasks() {
        let result = Bytes::from_static(
            br#"{"protocolVersion":"2025-11-25","capabilities":{"tasks":{},"tools":{ }},"serverInfo":{"name":"s","x":1.0},"y":[]}"#,
        );
        let server = UpstreamDescription {
            version: "2025-11-25".to_owned(),
            result,
            ..UpstreamDescription::unknown()
        };
        let wanted = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{ }},"serverInfo":{"name":"s","x":1.0},"y":[]}"#;
        assert_eq!(initialize_result(&server, "2025-06-18"), wanted);
    }
}
