//! The handshake of a hosted session (2025-11-25, *Lifecycle*).
//!
//! The server was greeted with our newest revision, by whoever was first, and its answer is every client's. Only the
//! revision can differ: a client that asks for an older one than the server speaks gets its own, as it would from
//! the server, for what came with later revisions is additional, and is only used with who declares it.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use std::sync::Arc;

use super::{Groups, Hosted, Sessions};
use crate::{
    dialect::{ClientInfo, Credentials, Principal, legacy},
    protocol::{
        Capabilities, ErrorObject, Id, Payload, Revision, code,
        headers::SESSION_ID,
        revision::Era,
        splice::{Edit, Object, Patch},
    },
    runtime::random,
    telemetry::Limit,
    upstream::{CallError, Description, Forwarded, Identity, wire::Wire},
};

// === impl Sessions ===

impl<W: Wire> Sessions<W> {
    /// Begins a session. The server is started for it where nobody has been served yet who declares the same.
    pub(super) async fn begin(
        &self,
        principal: Principal,
        id: &Id,
        params: Option<&Payload>,
        groups: Groups<'_, W>,
    ) -> Result<Forwarded, CallError> {
        let refused = |code, words: &str| {
            let error = ErrorObject::new(code, words);
            Ok(self.document(StatusCode::OK, legacy::refusal(std::slice::from_ref(id), &error)))
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
        if !self.has_room() {
            let limit = self.server.config.now().limits.client_sessions;
            Limit::ClientSessions.hit();
            let words = format!(
                "all {limit} sessions of clients with this server are in use (limits.client_sessions)"
            );
            return refused(code::BUSY, &words);
        }
        let (credentials, client_info) = (Credentials::default(), ClientInfo::default());
        let caller = Identity { principal, credentials, capabilities, client_info };
        let name = HeaderValue::from_str(&format!("{:032x}", u128::from_be_bytes(random())))
            .expect("hexadecimal digits are a header value");
        let session = Hosted::begun(name.clone(), principal, caller);
        // It hears what is said there before the server is started, which may ask at once.
        let server = session.group(groups).lists().await?.description.clone();
        let version = agreed(&asked, &server.version);
        session.agrees(&server, Revision::parse(&version).is_some_and(Revision::has_empty_events));
        let result = welcome(&server, &version);
        self.table.insert(name.clone(), session);
        let mut answer = self.document(StatusCode::OK, legacy::success(id, &result));
        answer.headers.insert(SESSION_ID.clone(), name);
        Ok(answer)
    }
}

/// The revision of a session whose client asks for one, with a server that speaks another.
fn agreed(asked: &str, spoken: &str) -> String {
    let is_older = |asked: &Revision| asked.era() == Era::Legacy && asked.as_str() < spoken;
    Revision::parse(asked)
        .filter(is_older)
        .map_or_else(|| spoken.to_owned(), |asked| asked.as_str().to_owned())
}

/// What the server says of itself, in a session of this revision. Its tasks are not for clients that share it.
fn welcome(server: &Description, version: &str) -> Bytes {
    let Ok(result) = Object::read(&server.result) else { return server.result.clone() };
    let mut patch = Patch::new(server.result.clone());
    let mut edit = Edit::new(&result);
    if server.version != version {
        edit.set("protocolVersion", format!("\"{version}\""));
    }
    if let Some(Ok(capabilities)) = result.get("capabilities").map(|raw| Object::read(&raw)) {
        let mut inner = Edit::new(&capabilities);
        inner.remove("tasks");
        inner.put(&mut patch);
    }
    edit.put(&mut patch);
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
            assert_eq!(agreed(asked, spoken), agreed_on, "{asked} {spoken}");
        }
    }

    #[test]
    fn what_the_server_says_of_itself_is_told_as_it_was_said_but_for_revision_and_tasks() {
        let result = Bytes::from_static(
            br#"{"protocolVersion":"2025-11-25","capabilities":{"tasks":{},"tools":{ }},"serverInfo":{"name":"s","x":1.0},"y":[]}"#,
        );
        let server = Description { version: "2025-11-25".to_owned(), result, ..Description::unknown() };
        let wanted = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{ }},"serverInfo":{"name":"s","x":1.0},"y":[]}"#;
        assert_eq!(welcome(&server, "2025-06-18"), wanted);
    }
}
