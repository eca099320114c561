//! The configuration as shown to operators: as written, with the flags applied, and without secrets.
//!
//! Keys and tokens are never written in a configuration. Other possible secrets are omitted: values of
//! environment variables and headers, arguments of commands, query and user of URLs. A value with variables
//! is shown as written, as in `${NAME}`.

use super::schema::{MapEntry, Node, NodeValue, ScalarType, TextOrigin, UrlText};
use serde_json::{Value as Json, json};
use std::fmt;

/// The configuration as JSON, without secrets. `Debug` prints nothing of it, so that equivalent
/// configurations compare equal.
#[derive(Clone, Default)]
pub struct RedactedSettings(Json);

/// Placeholder for omitted values.
const PLACEHOLDER: &str = "…";

// === impl RedactedSettings ===

impl RedactedSettings {
    /// Creates the settings of a tree, without secrets. `file` is the name of the configuration file, if
    /// there is one.
    pub(super) fn from_tree(file: Option<&str>, node: &Node) -> Self {
        Self(json!({ "file": file, "settings": redact(node) }))
    }

    /// Returns the settings as JSON: `file` and `settings`.
    pub const fn json(&self) -> &Json {
        &self.0
    }
}

impl fmt::Debug for RedactedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedactedSettings(..)")
    }
}

fn redact(node: &Node) -> Json {
    match &node.value {
        NodeValue::List(items) => items.iter().map(redact).collect(),
        NodeValue::Map(entries) => {
            entries.iter().map(|entry| (entry.key.clone(), redact_entry(entry))).collect()
        }
        // The value of a variable may be a secret.
        NodeValue::Scalar { origin: TextOrigin::Variables(interpolated), .. } => {
            redact_url(&interpolated.written).into()
        }
        NodeValue::Scalar { text, .. } => match node.scalar_type() {
            Some(ScalarType::Null) => Json::Null,
            Some(ScalarType::Bool(is_true)) => is_true.into(),
            Some(ScalarType::Number) => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
            Some(ScalarType::Text) | None => redact_url(text).into(),
        },
    }
}

fn redact_entry(MapEntry { key, node, .. }: &MapEntry) -> Json {
    match (key.as_str(), &node.value) {
        // These are values of environment variables and headers; a single name under `env` is the source of a
        // secret.
        ("env" | "headers", NodeValue::Map(entries)) => entries
            .iter()
            .map(|entry| match entry.node.value {
                // A mapping is the source of a secret, which may be shown.
                NodeValue::Map(_) => (entry.key.clone(), redact(&entry.node)),
                NodeValue::List(_) | NodeValue::Scalar { .. } => (entry.key.clone(), PLACEHOLDER.into()),
            })
            .collect(),
        ("env", NodeValue::List(items)) => items.iter().map(|_| Json::from(PLACEHOLDER)).collect(),
        ("command", NodeValue::List(items)) => {
            let program = items.iter().take(1).map(redact);
            program.chain(items.iter().skip(1).map(|_| PLACEHOLDER.into())).collect()
        }
        ("value", _) => PLACEHOLDER.into(),
        // A URL whose scheme comes from a variable may not look like a URL.
        (
            "url" | "endpoint" | "otlp" | "proxy" | "public_url",
            NodeValue::Scalar { origin: TextOrigin::Variables(interpolated), .. },
        ) => UrlText::new(&interpolated.written).display_form(true).into(),
        _ => redact(node),
    }
}

/// Removes user, query and fragment from a URL; other texts are returned unchanged.
fn redact_url(text: &str) -> String {
    let url = UrlText::new(text);
    if url.has_scheme() { url.display_form(true) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_secrets_are_not_shown() {
        let text = "
listen: 127.0.0.1:1
log: json
access: { tokens: [{ name: alice, env: ALICE_TOKEN }] }
limits: { calls: 7, body_bytes: 1MiB }
routes:
  - upstream: { url: 'https://me:secret@host:1/mcp?key=secret#secret' }
    tasks: { unsolicited: [{ header: X-Key, value: secret }] }
  - upstream: { command: [run, --key, secret], env: { KEY: secret, TOKEN: { file: a.token } }, shared: true }
  - upstream: { url: 'http://host:2', headers: { X-Key: secret, X-Token: { env: TOKEN } } }
";
        let node = crate::config::schema::yaml::parse(text, &mut Vec::new()).expect("it is right");
        let settings = RedactedSettings::from_tree(Some("deferral.yaml"), &node);
        assert_eq!(
            *settings.json(),
            json!({ "file": "deferral.yaml", "settings": {
                "listen": "127.0.0.1:1",
                "log": "json",
                "access": { "tokens": [{ "name": "alice", "env": "ALICE_TOKEN" }] },
                "limits": { "calls": 7, "body_bytes": "1MiB" },
                "routes": [
                    {
                        "upstream": { "url": "https://…@host:1/mcp?…" },
                        "tasks": { "unsolicited": [{ "header": "X-Key", "value": "…" }] },
                    },
                    { "upstream": {
                        "command": ["run", "…", "…"],
                        "env": { "KEY": "…", "TOKEN": { "file": "a.token" } },
                        "shared": true,
                    } },
                    { "upstream": {
                        "url": "http://host:2",
                        "headers": { "X-Key": "…", "X-Token": { "env": "TOKEN" } },
                    } },
                ],
            } })
        );
        assert_eq!(format!("{settings:?}"), "RedactedSettings(..)");
    }
}
