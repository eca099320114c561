//! The handshake of a hosted session (2025-11-25, *Lifecycle*).
//!
//! The server was greeted with our newest revision, by whoever was first, and its answer is every client's. Only the
//! revision can differ: a client that asks for an older one than the server speaks gets its own, as it would from
//! the server, for what came with later revisions is additional, and is only used with who declares it.

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

// === impl Sessions ===

impl<W: Transport> EmulatedSessions<W> {
    /// Begins a session. The server is started for it where nobody has been served yet who declares the same.
    pub(super) async fn initialize(
        &self,
        principal: Principal,
        id: &RequestId,
        params: Option<&Payload>,
        groups: PoolLookup<'_, W>,
    ) -> Result<HttpResponse, CallError> {
        let refused = |code, words: &str| {
            let error = ErrorObject::new(code, words);
            Ok(self.json_response(StatusCode::OK, legacy::error_responses(std::slice::from_ref(id), &error)))
        };
        let params = params.and_then(Payload::object);
        let Some(asked) = params.and_then(|params| params.string("protocolVersion")) else {
            return refused(code::INVALID_PARAMS, "initialize names no protocolVersion");
        };
        let declared = params.and_then(|params| params.get("capabilities"));
        let capabilities = match declared.map_or(Ok(Capabilities::none()), Capabilities::read) {
            Ok(capabilities) => Arc::new(capabilities),
            Err(error) => return refused(code::INVALID_PARAMS, &error.to_string()),
        };
        if !self.make_room() {
            let limit = self.server.config.load().limits.client_sessions;
            Limit::ClientSessions.record_hit();
            let words = format!(
                "all {limit} sessions of clients with this server are in use (limits.client_sessions)"
            );
            return refused(code::BUSY, &words);
        }
        let (credentials, client_info) = (Credentials::default(), ClientInfo::default());
        let caller = CallerIdentity { principal, credentials, capabilities, client_info };
        let name = HeaderValue::from_str(&format!("{:032x}", u128::from_be_bytes(random())))
            .expect("hexadecimal digits are a header value");
        let session = EmulatedSession::new(name.clone(), principal, caller);
        // It hears what is said there before the server is started, which may ask at once.
        let server = session.pool(groups).list_session().await?.description.clone();
        let version = negotiated_revision(&asked, &server.version);
        session.set_negotiated(&server, Revision::parse(&version).is_some_and(Revision::has_empty_events));
        let result = initialize_result(&server, &version);
        self.table.insert(name.clone(), session);
        let mut answer = self.json_response(StatusCode::OK, legacy::success(id, &result));
        answer.headers.insert(SESSION_ID.clone(), name);
        Ok(answer)
    }
}

/// The revision of a session whose client asks for one, with a server that speaks another.
fn negotiated_revision(asked: &str, spoken: &str) -> String {
    let is_older = |asked: &Revision| asked.era() == Era::Legacy && asked.as_str() < spoken;
    Revision::parse(asked)
        .filter(is_older)
        .map_or_else(|| spoken.to_owned(), |asked| asked.as_str().to_owned())
}

/// What the server says of itself, in a session of this revision. Its tasks are not for clients that share it.
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
        for (asked, spoken, agreed_on) in [
            ("2025-11-25", "2025-11-25", "2025-11-25"),
            ("2025-03-26", "2025-11-25", "2025-03-26"),
            ("2024-11-05", "2025-06-18", "2024-11-05"),
            ("2025-11-25", "2025-06-18", "2025-06-18"),
            ("2026-07-28", "2025-11-25", "2025-11-25"),
            ("1.0", "2025-11-25", "2025-11-25"),
            ("v999.0.0", "2025-06-18", "2025-06-18"),
            ("2025-06-18", "2027-01-01", "2025-06-18"),
        ] {
            assert_eq!(negotiated_revision(asked, spoken), agreed_on, "{asked} {spoken}");
        }
    }

    #[test]
    fn what_the_server_says_of_itself_is_told_as_it_was_said_but_for_revision_and_tasks() {
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
