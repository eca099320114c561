//! The sessions that were given the ticket tools, and the declarations of their clients.
//!
//! A client that read its tool list before tickets were enabled does not have the ticket tools, and its model
//! could not use a ticket; therefore it gets no tickets. The same applies to clients of evicted sessions.

use super::{SessionKey, bounded_map::BoundedMap};
use crate::{
    bridge::ticket::TicketToolNames,
    protocol::{Capabilities, Method, Payload, splice::JsonObject},
    runtime::Mutex,
};
use bytes::Bytes;
use std::{collections::BTreeSet, sync::Arc};

/// The sessions of one route that were given the ticket tools, and what their clients declared. Each lock is
/// held for one insertion or look-up.
#[derive(Debug, Default)]
pub(in crate::proxy) struct TicketHolders {
    /// The names under which each session was given the ticket tools.
    given: Mutex<BoundedMap<SessionKey, Arc<TicketToolNames>, MAX_SESSIONS>>,
    /// The declarations of the sessions' clients.
    clients: Mutex<BoundedMap<SessionKey, Arc<ClientDeclaration>, MAX_SESSIONS>>,
    /// Names of the server's tools that have the prefix of the ticket tools, and must not be used for those.
    similar_names: Mutex<BTreeSet<String>>,
}

/// What a client has declared in its handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct ClientDeclaration {
    /// The client's name (`clientInfo.name`).
    pub(in crate::proxy) name: Option<Box<str>>,
    /// Whether the client has declared support for tasks (2025-11-25), so that it gets no tickets.
    pub(in crate::proxy) declares_tasks: bool,
    /// The declared capabilities. `None` if they are too large to be stored.
    capabilities: Option<Capabilities>,
}

/// Sessions that are remembered. Each costs about 400 bytes.
const MAX_SESSIONS: usize = 16 << 10;

/// The maximum size of stored capabilities, in bytes. A client that declares more is sent all input requests.
const MAX_CAPABILITY_BYTES: usize = 1 << 10;

/// The maximum length of a stored client name, in bytes; longer names are not stored.
const MAX_CLIENT_NAME_BYTES: usize = 128;

/// Names of the server's tools with the prefix of the ticket tools that are stored.
const MAX_SIMILAR_NAMES: usize = 64;

// === impl TicketHolders ===

impl TicketHolders {
    /// Records the declaration of a new session's client.
    pub(in crate::proxy) fn add_session(&self, session: SessionKey, client: ClientDeclaration) {
        self.clients.lock().insert(session, Arc::new(client));
    }

    /// The declaration of the session's client; `None` if it is not remembered.
    pub(in crate::proxy) fn client_declaration(&self, session: SessionKey) -> Option<Arc<ClientDeclaration>> {
        self.clients.lock().get(&session).cloned()
    }

    /// The names under which this session was given the ticket tools; `None` if it was not given them.
    pub(in crate::proxy) fn given_names(&self, session: SessionKey) -> Option<Arc<TicketToolNames>> {
        self.given.lock().get(&session).cloned()
    }

    /// Records that this session was given the ticket tools, under these names.
    pub(in crate::proxy) fn set_given_names(&self, session: SessionKey, names: &Arc<TicketToolNames>) {
        self.given.lock().insert(session, Arc::clone(names));
    }

    /// Records names of the server's tools that the ticket tools must not have.
    pub(in crate::proxy) fn record_similar_names(&self, names: Vec<String>) {
        let mut recorded = self.similar_names.lock();
        for name in names {
            if recorded.len() < MAX_SIMILAR_NAMES {
                recorded.insert(name);
            }
        }
    }

    /// Whether the server has a tool of this name, as far as recorded.
    pub(in crate::proxy) fn is_server_tool(&self, name: &str) -> bool {
        self.similar_names.lock().contains(name)
    }

    /// Chooses names for the ticket tools that no tool of the server has.
    pub(in crate::proxy) fn free_names(&self) -> Arc<TicketToolNames> {
        let recorded = self.similar_names.lock();
        Arc::new(TicketToolNames::choose_unused(|name| recorded.contains(name)))
    }
}

// === impl ClientDeclaration ===

impl ClientDeclaration {
    /// Reads the declaration from the params of `initialize`.
    pub(in crate::proxy) fn from_initialize_params(params: Option<&Payload>) -> Self {
        let member = |key: &str| JsonObject::read(&params?.get(key)?).ok();
        let name = member("clientInfo").and_then(|info| info.string("name"));
        let declared = params.and_then(|params| params.get("capabilities"));
        let declared = declared.map_or(Ok(Capabilities::none()), Capabilities::read);
        Self {
            name: name.filter(|name| name.len() <= MAX_CLIENT_NAME_BYTES).map(Into::into),
            declares_tasks: member("capabilities").is_some_and(|capabilities| capabilities.contains("tasks")),
            capabilities: declared.ok().filter(|declared| declared.retained_bytes() <= MAX_CAPABILITY_BYTES),
        }
    }

    /// Whether the client declared the capability for an input request with this method and these params.
    /// True if its capabilities are unknown.
    pub(in crate::proxy) fn can_receive(&self, method: &Method, params: Option<&Bytes>) -> bool {
        self.capabilities.as_ref().is_none_or(|declared| declared.missing_for(method, params).is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> SessionKey {
        SessionKey::from_digest([n; 16])
    }

    #[test]
    fn ticket_tools_get_names_that_the_server_does_not_use() {
        let holders = TicketHolders::default();
        assert_eq!(holders.given_names(key(1)), None);
        holders.set_given_names(key(1), &holders.free_names());
        holders.record_similar_names(vec!["deferral_result".to_owned()]);
        assert_eq!(
            &*holders.given_names(key(1)).expect("given").result,
            "deferral_result",
            "as it was given"
        );
        holders.set_given_names(key(1), &holders.free_names());
        assert_eq!(&*holders.given_names(key(1)).expect("given").result, "deferral_result_2");
    }

    #[test]
    fn the_last_sessions_are_remembered_up_to_a_bound() {
        let (holders, names) = (TicketHolders::default(), TicketHolders::default().free_names());
        let key = |n: usize| SessionKey::from_digest((n as u128).to_be_bytes());
        for n in 0..=MAX_SESSIONS {
            holders.set_given_names(key(n), &names);
            holders.add_session(key(n), ClientDeclaration::from_initialize_params(None));
        }
        let is_known =
            |n| (holders.given_names(key(n)).is_some(), holders.client_declaration(key(n)).is_some());
        assert_eq!([0, 1, MAX_SESSIONS].map(is_known), [(false, false), (true, true), (true, true)]);
    }

    #[test]
    fn stored_tool_names_of_a_server_are_bounded() {
        let holders = TicketHolders::default();
        holders.record_similar_names((0..10_000).map(|n| format!("deferral_{n}")).collect());
        assert_eq!(holders.similar_names.lock().len(), MAX_SIMILAR_NAMES);
    }

    #[test]
    fn the_handshake_declares_the_client_name_and_tasks() {
        let of = |params: &str| {
            let known = ClientDeclaration::from_initialize_params(Some(&Payload::read(
                Bytes::copy_from_slice(params.as_bytes()),
            )));
            (known.name, known.declares_tasks)
        };
        let known = of(r#"{"clientInfo":{"name":"codex"},"capabilities":{"tasks":{}}}"#);
        assert_eq!(known, (Some("codex".into()), true));
        let long = format!(r#"{{"clientInfo":{{"name":"{}"}}}}"#, "x".repeat(MAX_CLIENT_NAME_BYTES + 1));
        assert_eq!(of(&long), (None, false));
        assert_eq!(ClientDeclaration::from_initialize_params(None).name, None);
    }

    #[test]
    fn undeclared_input_is_refused_unless_the_capabilities_are_too_large() {
        let asked = |capabilities: &str| {
            let params = format!(r#"{{"capabilities":{capabilities}}}"#);
            let client = ClientDeclaration::from_initialize_params(Some(&Payload::read(params.into())));
            [Method::Elicit, Method::CreateMessage, Method::RootsList]
                .map(|method| client.can_receive(&method, None))
        };
        assert_eq!(asked("{}"), [false; 3]);
        assert_eq!(asked(r#"{"elicitation":{},"roots":{}}"#), [true, false, true]);
        assert_eq!(asked("5"), [true; 3], "what cannot be read says nothing");
        let long = format!(r#"{{"experimental":{{"x":"{}"}}}}"#, "x".repeat(MAX_CAPABILITY_BYTES));
        assert_eq!(asked(&long), [true; 3]);
        assert!(!ClientDeclaration::from_initialize_params(None).can_receive(&Method::Elicit, None));
    }
}
