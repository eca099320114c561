//! The description of a server, for `server/discover` (2026-07-28).

use crate::{
    dialect::modern::{self, server_info_meta},
    protocol::{
        Payload, meta,
        method::RequiredCapability,
        splice::{JsonObject, ObjectEdit},
    },
};
use bytes::Bytes;
use serde_json::{Value, json};

/// The parts of a server's description, as the raw JSON from its response to `initialize`.
#[derive(Clone, Copy, Debug)]
pub struct ServerDescription<'a> {
    /// The server's `capabilities` object.
    pub capabilities: &'a Bytes,
    /// The server's `serverInfo` object.
    pub server_info: &'a Bytes,
    /// The server's `instructions`, a JSON string; `None` if it has none.
    pub instructions: Option<&'a Bytes>,
}

/// Builds the result of `server/discover` (2026-07-28, *Discovery*): the server's own capabilities with the
/// tasks extension added.
pub fn build_discover_result(server: ServerDescription<'_>) -> Vec<u8> {
    let versions: Vec<_> = modern::SERVED_REVISIONS.iter().map(|revision| revision.as_str()).collect();
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(br#"{"resultType":"complete","supportedVersions":"#);
    serde_json::to_writer(&mut out, &versions).expect("strings are written to memory");
    out.extend_from_slice(br#","capabilities":"#);
    out.extend_from_slice(&with_tasks_extension(server.capabilities));
    if let Some(instructions) = server.instructions {
        out.extend_from_slice(br#","instructions":"#);
        out.extend_from_slice(instructions);
    }
    out.extend_from_slice(br#","ttlMs":0,"cacheScope":"private","_meta":"#);
    out.extend_from_slice(&server_info_meta(server.server_info));
    out.push(b'}');
    out
}

/// Whether the server's `capabilities` contain the capability that a method needs.
pub fn has_capability(capabilities: &Payload, required: RequiredCapability) -> bool {
    let member = match required {
        RequiredCapability::Nothing => return true,
        RequiredCapability::Tools => "tools",
        RequiredCapability::Prompts => "prompts",
        RequiredCapability::Resources => "resources",
        RequiredCapability::Completions => "completions",
    };
    capabilities.object().is_some_and(|object| object.contains(member))
}

/// Whether the server declared a kind of notifications: the flag `listChanged` or `subscribe` of a member of
/// its `capabilities`, such as `tools`.
pub fn has_flag(capabilities: &Payload, member: &str, flag: &str) -> bool {
    let member = capabilities.get(member).and_then(|member| JsonObject::read(&member).ok());
    member.is_some_and(|member| member.raw(flag) == Some(b"true"))
}

/// Adds the tasks extension to the server's capabilities. The value is exactly `{}`: with any member, clients
/// in the field assume that the server has no tasks.
fn with_tasks_extension(raw: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(raw) else {
        return json!({ "extensions": { meta::TASKS_EXTENSION: {} } }).to_string().into();
    };
    let extensions = match object.get("extensions").map(|raw| JsonObject::read(&raw)) {
        Some(Ok(extensions)) => {
            let mut edit = ObjectEdit::new(&extensions);
            edit.set(meta::TASKS_EXTENSION, "{}");
            edit.apply()
        }
        _ => Value::from_iter([(meta::TASKS_EXTENSION, json!({}))]).to_string().into(),
    };
    let mut edit = ObjectEdit::new(&object);
    edit.set("extensions", extensions);
    edit.apply()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_is_added_to_what_the_server_declares() {
        let raw = Bytes::from_static(br#"{"tools":{"listChanged":true},"x":1e400}"#);
        assert_eq!(
            with_tasks_extension(&raw),
            r#"{"tools":{"listChanged":true},"x":1e400,"extensions":{"io.modelcontextprotocol/tasks":{}}}"#
        );
        let raw = Bytes::from_static(br#"{"extensions":{"a/b":{"v":1}}}"#);
        assert_eq!(
            with_tasks_extension(&raw),
            r#"{"extensions":{"a/b":{"v":1},"io.modelcontextprotocol/tasks":{}}}"#
        );
    }

    #[test]
    fn flags_are_read_from_their_member() {
        let raw = r#"{"tools":{"listChanged":true},"resources":{"subscribe":false}}"#;
        let raw = Payload::read(raw.into());
        assert!(has_capability(&raw, RequiredCapability::Tools));
        assert!(!has_capability(&raw, RequiredCapability::Prompts));
        assert!(has_flag(&raw, "tools", "listChanged"));
        assert!(!has_flag(&raw, "resources", "subscribe"));
        assert!(!has_flag(&raw, "prompts", "listChanged"));
    }

    #[test]
    fn a_discover_result_is_valid_json_with_all_it_needs() {
        let text = build_discover_result(ServerDescription {
            capabilities: &Bytes::from_static(b"{}"),
            server_info: &Bytes::from_static(br#"{"name":"s","version":"1"}"#),
            instructions: Some(&Bytes::from_static(br#""Use well.""#)),
        });
        let value: Value = serde_json::from_slice(&text).expect("valid");
        assert_eq!(
            value["supportedVersions"],
            json!(["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"])
        );
        assert_eq!(value["instructions"], "Use well.");
        assert_eq!(value["_meta"][meta::SERVER_INFO]["name"], "s");
        assert_eq!((&value["ttlMs"], &value["cacheScope"]), (&json!(0), &json!("private")));
    }
}
