//! Description of a server.

use crate::protocol::{ListKind, Payload, splice::JsonObject};
use bytes::Bytes;

/// Description of a server from its `initialize` result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamDescription {
    /// Revision of the session in which the server was described, as the server spelled it.
    pub version: String,
    /// Server capabilities: raw JSON in the format of 2026-07-28.
    pub capabilities: Payload,
    /// Whether the server's own tasks, of any revision, are available to clients.
    pub has_tasks: bool,
    /// `serverInfo`: raw JSON.
    pub server_info: Bytes,
    /// `instructions`: raw JSON string, if present.
    pub instructions: Option<Bytes>,
    /// Result of `initialize` as the server sent it, raw JSON; empty if unknown.
    pub result: Bytes,
}

// === impl UpstreamDescription ===

impl UpstreamDescription {
    /// Description of a server that has not been queried: no capabilities, and a placeholder name.
    pub fn unknown() -> Self {
        Self {
            version: String::new(),
            capabilities: Payload::read(Bytes::from_static(b"{}")),
            has_tasks: false,
            server_info: Bytes::from_static(br#"{"name":"deferral","version":"unknown upstream"}"#),
            instructions: None,
            result: Bytes::new(),
        }
    }

    /// Lists whose changes the server reports (`listChanged`).
    pub(crate) fn reported_lists(&self) -> impl Iterator<Item = ListKind> + use<> {
        let capabilities = self.capabilities.clone();
        ListKind::ALL.into_iter().filter(move |list| {
            let list = capabilities.get(list.capability());
            let list_changed = list.and_then(|list| JsonObject::read(&list).ok()?.get("listChanged"));
            list_changed.is_some_and(|reports| reports == "true")
        })
    }
}
