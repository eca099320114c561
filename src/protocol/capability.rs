//! The capabilities that a client declares: raw, and as flags.
//!
//! A modern client declares its capabilities with every request; a legacy server receives them once, when a
//! session begins. So each request needs a session that was opened with the same capabilities: two clients
//! can share sessions if their [`Capabilities::legacy`] are equal. A server may still send an input request
//! that the client did not declare; [`Capabilities::missing_for`] detects this before the client receives the
//! request.

use super::{
    Method,
    meta::TASKS_EXTENSION,
    splice::{JsonObject, ObjectEdit},
};
use bytes::Bytes;
use serde_json::{Map, Value, json};

/// The capabilities a client declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The object exactly as it was declared, in an allocation of its own; `None` if it equals `legacy`.
    raw: Option<Bytes>,
    /// The object without the capabilities that the proxy handles itself; see [`Capabilities::legacy`].
    legacy: Bytes,
    flags: CapabilityFlags,
}

/// The declared capabilities that the proxy acts on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CapabilityFlags {
    elicitation_form: bool,
    elicitation_url: bool,
    sampling: bool,
    sampling_tools: bool,
    sampling_context: bool,
    roots: bool,
    tasks: bool,
}

/// Why a `capabilities` value is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapabilitiesError {
    #[error("capabilities must be an object")]
    NotAnObject,
    #[error("capabilities of {length} bytes exceed the limit of {MAX_DECLARATION_BYTES}; declare less")]
    TooLarge { length: usize },
}

/// The maximum size of a declaration, in bytes. Real clients declare some hundred bytes. A declaration is
/// retained as long as the sessions opened with it, and sent to the server at the beginning of each.
pub const MAX_DECLARATION_BYTES: usize = 64 << 10;

/// The client capabilities in the specification, 2025-03-26 to 2026-07-28, each with the members it may have;
/// the list is empty where any member is allowed.
pub const KNOWN_CAPABILITIES: [(&str, &[&str]); 6] = [
    ("elicitation", &["form", "url"]),
    ("experimental", &[]),
    ("extensions", &[]),
    ("roots", &["listChanged"]),
    ("sampling", &["context", "tools"]),
    ("tasks", &["cancel", "list", "requests"]),
];

// === impl Capabilities ===

impl Capabilities {
    /// Reads a client's `capabilities` object. A capability is declared by an object; any other value, such
    /// as `null` or `false`, does not declare it.
    ///
    /// # Errors
    /// [`CapabilitiesError`] if the bytes are no object, or more than [`MAX_DECLARATION_BYTES`].
    pub fn read(raw: Bytes) -> Result<Self, CapabilitiesError> {
        if raw.len() > MAX_DECLARATION_BYTES {
            return Err(CapabilitiesError::TooLarge { length: raw.len() });
        }
        let object = JsonObject::read(&raw).map_err(|_| CapabilitiesError::NotAnObject)?;
        let (legacy, flags) = (legacy_form(&object), CapabilityFlags::from_declaration(&object));
        // Copy the bytes, because a slice would keep the whole request alive. `raw` mostly equals `legacy`
        // and is then stored once.
        let raw = (raw != legacy).then(|| Bytes::copy_from_slice(&raw));
        Ok(Self { raw, legacy, flags })
    }

    /// The capabilities of a client that declares none.
    pub fn none() -> Self {
        Self::read(Bytes::from_static(b"{}")).expect("it is an object")
    }

    /// The capabilities that a legacy server receives: the same object without those that the proxy handles
    /// itself (the tasks extension; `extensions` too if nothing else is in it; the `tasks` of 2025-11-25,
    /// with which a server could turn its input requests into tasks). Clients with equal bytes here can share
    /// sessions.
    ///
    /// The bytes are an allocation of their own, so a session that keeps them does not keep a request.
    pub fn legacy(&self) -> &Bytes {
        &self.legacy
    }

    /// The declaration as it was sent, raw JSON.
    pub fn as_bytes(&self) -> &Bytes {
        self.raw.as_ref().unwrap_or(&self.legacy)
    }

    /// Bytes of memory that the declaration takes.
    pub fn retained_bytes(&self) -> usize {
        self.legacy.len() + self.raw.as_ref().map_or(0, Bytes::len)
    }

    /// Whether the client declares the tasks extension (SEP-2663).
    pub fn declares_tasks(&self) -> bool {
        self.flags.tasks
    }

    /// Whether the client declares any input capability, so that a server may send it input requests.
    pub fn can_receive_input_requests(&self) -> bool {
        self.input_capability_count() > 0
    }

    /// The number of declared input capabilities: each kind of input request, and each of its options.
    pub fn input_capability_count(&self) -> usize {
        self.flags.input_capabilities().into_iter().filter(|is_declared| *is_declared).count()
    }

    /// Whether this client declares every input capability (elicitation, sampling, roots and their options)
    /// that `other` declares. Other capabilities do not count.
    pub fn covers(&self, other: &Self) -> bool {
        self.flags
            .input_capabilities()
            .into_iter()
            .zip(other.flags.input_capabilities())
            .all(|(ours, theirs)| ours >= theirs)
    }

    /// The capability that the client would have to declare to receive this input request, in the shape of
    /// `requiredCapabilities` (`{"sampling":{}}`, `{"elicitation":{"url":{}}}`), or `None` if it declared it.
    /// `params` decides: an elicitation of mode `url` needs `elicitation.url`; `{}` declares form only;
    /// sampling with `tools` needs `sampling.tools`; `includeContext` needs nothing more (it is a hint). A
    /// method that is no input request needs nothing.
    pub fn missing_for(&self, method: &Method, params: Option<&Bytes>) -> Option<Value> {
        let params = params.and_then(|params| JsonObject::read(params).ok());
        let has_param =
            |key| params.as_ref().and_then(|params| params.get(key)).is_some_and(|value| value != "null");
        let required = match method {
            Method::Elicit => {
                let mode = params.as_ref().and_then(|params| params.string("mode"));
                json!({ "elicitation": { mode.as_deref().unwrap_or("form"): {} } })
            }
            Method::CreateMessage if has_param("tools") || has_param("toolChoice") => {
                json!({ "sampling": { "tools": {} } })
            }
            Method::CreateMessage => json!({ "sampling": {} }),
            Method::RootsList => json!({ "roots": {} }),
            _ => return None,
        };
        self.missing(&required)
    }

    /// The part of `required` (an object of objects, any depth) that the client did not declare, or `None`.
    /// `{"elicitation":{"form":{}}}` is satisfied by `"elicitation":{}`.
    ///
    /// A requirement that is no object, such as `true`, is satisfied by the same value.
    pub fn missing(&self, required: &Value) -> Option<Value> {
        if !self.flags.elicitation_form {
            return missing(self.as_bytes(), required);
        }
        missing(&with_explicit_form(self.as_bytes()), required)
    }
}

// === impl CapabilityFlags ===

impl CapabilityFlags {
    fn from_declaration(capabilities: &JsonObject) -> Self {
        let elicitation = object_member(capabilities, "elicitation");
        let sampling = object_member(capabilities, "sampling");
        let has_sampling_option = |name| sampling.as_ref().is_some_and(|sampling| declares(sampling, name));
        let has_mode = |name| elicitation.as_ref().is_some_and(|modes| declares(modes, name));
        // A client that declares `elicitation` and names no mode supports forms only: revisions before
        // 2025-11-25 have no modes (2026-07-28, *Elicitation*).
        let names_no_mode =
            |modes: &JsonObject| ["form", "url"].into_iter().all(|name| !modes.contains(name));
        Self {
            elicitation_form: has_mode("form") || elicitation.as_ref().is_some_and(names_no_mode),
            elicitation_url: has_mode("url"),
            sampling: declares(capabilities, "sampling"),
            sampling_tools: has_sampling_option("tools"),
            sampling_context: has_sampling_option("context"),
            roots: declares(capabilities, "roots"),
            tasks: object_member(capabilities, "extensions")
                .is_some_and(|extensions| declares(&extensions, TASKS_EXTENSION)),
        }
    }

    /// The flags of the input capabilities.
    fn input_capabilities(self) -> [bool; 6] {
        let Self {
            elicitation_form, elicitation_url, sampling, sampling_tools, sampling_context, roots, ..
        } = self;
        [elicitation_form, elicitation_url, sampling, sampling_tools, sampling_context, roots]
    }
}

/// The capabilities without those that the proxy handles itself.
fn legacy_form(capabilities: &JsonObject) -> Bytes {
    let mut edit = ObjectEdit::new(capabilities);
    edit.remove("tasks");
    if let Some(extensions) = object_member(capabilities, "extensions") {
        let mut extensions_edit = ObjectEdit::new(&extensions);
        extensions_edit.remove(TASKS_EXTENSION);
        if extensions_edit.leaves_empty() {
            edit.remove("extensions");
        } else if !extensions_edit.is_empty() {
            edit.set("extensions", extensions_edit.apply());
        }
    }
    match edit.is_empty() {
        true => Bytes::copy_from_slice(capabilities.as_bytes()),
        false => edit.apply(),
    }
}

/// The capabilities with an explicit `elicitation.form`, for a client that declares it by naming no mode.
fn with_explicit_form(raw: &Bytes) -> Bytes {
    let capabilities = JsonObject::read(raw).expect("it was read as an object");
    let elicitation = object_member(&capabilities, "elicitation").expect("a form needs one");
    let mut modes = ObjectEdit::new(&elicitation);
    modes.set_if_absent("form", "{}");
    let mut edit = ObjectEdit::new(&capabilities);
    edit.set("elicitation", modes.apply());
    edit.apply()
}

/// The part of `required` that is not in `declared`, compared recursively.
fn missing(declared: &Bytes, required: &Value) -> Option<Value> {
    let Value::Object(required_members) = required else {
        let is_same = serde_json::from_slice::<Value>(declared).is_ok_and(|declared| declared == *required);
        return if is_same { None } else { Some(required.clone()) };
    };
    let Ok(declared) = JsonObject::read(declared) else { return Some(required.clone()) };
    let missing_members = required_members.iter().filter_map(|(key, required)| {
        let part = match declared.get(key) {
            Some(declared) => missing(&declared, required),
            None => Some(required.clone()),
        };
        Some((key.clone(), part?))
    });
    Some(missing_members.collect::<Map<_, _>>()).filter(|members| !members.is_empty()).map(Value::Object)
}

/// The member `key`, if it is an object.
fn object_member(object: &JsonObject, key: &str) -> Option<JsonObject> {
    JsonObject::read(&object.get(key)?).ok()
}

/// Whether the member `key` is an object, which declares the capability.
fn declares(object: &JsonObject, key: &str) -> bool {
    object.raw(key).is_some_and(|value| value.starts_with(b"{"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{borrow::Cow, sync::Arc};

    /// Bytes whose drop is observable: the flag shows when their last slice is dropped.
    struct Watched {
        bytes: &'static str,
        _alive: Arc<()>,
    }

    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            self.bytes.as_bytes()
        }
    }

    #[test]
    fn capabilities_do_not_keep_their_request_alive() {
        for declared in [
            r#"{"elicitation":{}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
            r#"{"tasks":{},"roots":{}}"#,
        ] {
            let alive = Arc::new(());
            let request = Bytes::from_owner(Watched { bytes: declared, _alive: Arc::clone(&alive) });
            let capabilities = Capabilities::read(request).expect("an object");
            assert_eq!(Arc::strong_count(&alive), 1, "{declared}");
            assert_eq!(capabilities.as_bytes(), declared);
        }
    }

    fn client(text: &str) -> Capabilities {
        Capabilities::read(Bytes::copy_from_slice(text.as_bytes())).expect("an object")
    }

    fn missing_for(capabilities: &str, method: &'static str, params: &'static str) -> Option<Value> {
        let params = Bytes::from_static(params.as_bytes());
        client(capabilities).missing_for(&Method::from(Cow::from(method)), Some(&params))
    }

    #[test]
    fn only_an_object_is_read() {
        for text in ["null", "[]", "true", "", "{"] {
            assert_eq!(Capabilities::read(text.into()), Err(CapabilitiesError::NotAnObject), "{text}");
        }
    }

    #[test]
    fn a_legacy_server_receives_all_capabilities_but_tasks() {
        for (declared, received) in [
            ("{}", "{}"),
            (r#"{ "sampling" : {"tools":{}}, "x":1e400 }"#, r#"{ "sampling" : {"tools":{}}, "x":1e400 }"#),
            (r#"{"roots":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#, r#"{"roots":{}}"#),
            (r#"{"extensions":{"io.modelcontextprotocol/tasks":null}, "roots":{}}"#, r#"{"roots":{}}"#),
            (
                r#"{"extensions":{"a/b": {"c":1.0},"io.modelcontextprotocol/tasks":{}},"roots":{}}"#,
                r#"{"extensions":{"a/b": {"c":1.0}},"roots":{}}"#,
            ),
            (r#"{"extensions":{}}"#, "{}"),
            (r#"{"extensions":7}"#, r#"{"extensions":7}"#),
            (r#"{"tasks":{"list":{}},"roots":{}}"#, r#"{"roots":{}}"#),
        ] {
            let client = client(declared);
            assert_eq!(client.legacy(), received, "{declared}");
            assert_eq!(client.as_bytes(), declared);
        }
    }

    #[test]
    fn capabilities_above_the_limit_are_refused() {
        let declared = |length: usize| {
            let padding = "x".repeat(length - r#"{"experimental":{"":{}}}"#.len());
            Capabilities::read(format!(r#"{{"experimental":{{"{padding}":{{}}}}}}"#).into())
        };
        assert!(declared(MAX_DECLARATION_BYTES).is_ok());
        let refused = declared(MAX_DECLARATION_BYTES + 1).expect_err("it is too large");
        assert_eq!(
            refused.to_string(),
            "capabilities of 65537 bytes exceed the limit of 65536; declare less"
        );
    }

    #[test]
    fn what_is_kept_does_not_keep_the_request() {
        for declared in [r#"{"roots":{}}"#, r#"{"roots":{},"tasks":{}}"#] {
            let request = Bytes::from_static(declared.as_bytes());
            let client = Capabilities::read(request.clone()).expect("an object");
            for kept in [client.legacy(), client.as_bytes()] {
                assert!(!request.as_ptr_range().contains(&kept.as_ptr()), "{declared}");
            }
        }
    }

    #[test]
    fn tasks_are_declared_by_their_extension_alone() {
        assert!(client(r#"{"extensions":{"io.modelcontextprotocol/tasks":{"x":1}}}"#).declares_tasks());
        for other in [
            r#"{"tasks":{}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/tasks":false}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/ui":{}}}"#,
            r#"{"extensions":["io.modelcontextprotocol/tasks"]}"#,
        ] {
            assert!(!client(other).declares_tasks(), "{other}");
        }
    }

    #[test]
    fn a_client_with_any_of_the_three_can_receive_input_requests() {
        for some in [
            r#"{"sampling":{}}"#,
            r#"{"roots":{}}"#,
            r#"{"elicitation":{}}"#,
            r#"{"elicitation":{"url":{}}}"#,
        ] {
            assert!(client(some).can_receive_input_requests(), "{some}");
        }
        for none in
            ["{}", r#"{"sampling":null}"#, r#"{"elicitation":{"form":false}}"#, r#"{"experimental":{}}"#]
        {
            assert!(!client(none).can_receive_input_requests(), "{none}");
        }
    }

    #[test]
    fn input_capabilities_are_counted_by_meaning() {
        for (declared, count) in [
            ("{}", 0),
            (r#"{"experimental":{"a":{},"b":{},"c":{},"d":{},"e":{},"f":{},"g":{}}}"#, 0),
            (r#"{"elicitation":{}}"#, 1),
            (r#"{"elicitation":{"form":{},"url":{}}}"#, 2),
            (r#"{"sampling":{"tools":{}},"roots":{"listChanged":true}}"#, 3),
        ] {
            assert_eq!(client(declared).input_capability_count(), count, "{declared}");
        }
    }

    #[test]
    fn capabilities_cover_others_that_declare_no_more_input() {
        let covers = |one: &'static str, other: &'static str| client(one).covers(&client(other));
        let all = r#"{"elicitation":{"form":{},"url":{}},"roots":{},"sampling":{"tools":{}}}"#;
        for less in ["{}", r#"{"elicitation":{}}"#, r#"{"sampling":{}, "experimental":{"a":{}}}"#, all] {
            assert!(covers(all, less), "{less}");
        }
        for (one, other) in [
            (r#"{"sampling":{},"roots":{}}"#, r#"{"elicitation":{}}"#),
            (r#"{"elicitation":{}}"#, r#"{"elicitation":{"url":{}}}"#),
            (r#"{"sampling":{}}"#, r#"{"sampling":{"tools":{}}}"#),
        ] {
            assert!(!covers(one, other), "{one} {other}");
        }
    }

    #[test]
    fn an_elicitation_needs_its_own_mode() {
        let form = Some(json!({ "elicitation": { "form": {} } }));
        let url = Some(json!({ "elicitation": { "url": {} } }));
        for (declared, for_form, for_url) in [
            ("{}", &form, &url),
            (r#"{"elicitation":null}"#, &form, &url),
            (r#"{"elicitation":{}}"#, &None, &url),
            (r#"{"elicitation":{"form":{}}}"#, &None, &url),
            (r#"{"elicitation":{"later":{}}}"#, &None, &url),
            (r#"{"elicitation":{"url":{}}}"#, &form, &None),
            (r#"{"elicitation":{"form":{},"url":{}}}"#, &None, &None),
            (r#"{"elicitation":{"form":{"applyDefaults":true}}}"#, &None, &url),
        ] {
            let asked = |params| missing_for(declared, "elicitation/create", params);
            assert_eq!(&asked(r#"{"message":"?"}"#), for_form, "{declared}");
            assert_eq!(&asked(r#"{"mode":"form"}"#), for_form, "{declared}");
            assert_eq!(&asked(r#"{"mode":"url"}"#), for_url, "{declared}");
        }
    }

    #[test]
    fn sampling_with_tools_needs_them_declared() {
        let ask = "sampling/createMessage";
        assert_eq!(missing_for("{}", ask, "{}"), Some(json!({ "sampling": {} })));
        assert_eq!(
            missing_for(r#"{"sampling":{}}"#, ask, r#"{"includeContext":"allServers","tools":null}"#),
            None
        );
        for params in [r#"{"tools":[]}"#, r#"{"toolChoice":{"mode":"auto"}}"#] {
            let tools = Some(json!({ "sampling": { "tools": {} } }));
            assert_eq!(missing_for("{}", ask, params), tools);
            assert_eq!(missing_for(r#"{"sampling":{}}"#, ask, params), tools);
            assert_eq!(missing_for(r#"{"sampling":{"tools":{}}}"#, ask, params), None);
        }
    }

    #[test]
    fn roots_need_roots_and_what_is_no_question_needs_nothing() {
        assert_eq!(missing_for("{}", "roots/list", "{}"), Some(json!({ "roots": {} })));
        assert_eq!(missing_for(r#"{"roots":{"listChanged":true}}"#, "roots/list", "{}"), None);
        assert_eq!(missing_for("{}", "ping", "{}"), None);
        assert_eq!(client("{}").missing_for(&Method::RootsList, None), Some(json!({ "roots": {} })));
    }

    #[test]
    fn only_the_part_that_is_missing_is_named() {
        let declared = r#"{"elicitation":{},"sampling":{"tools":{}},"extensions":{"a/b":{}},"roots":{"listChanged":false}}"#;
        for (required, missing) in [
            (json!({}), None),
            (json!({ "elicitation": {}, "sampling": { "tools": {} } }), None),
            (json!({ "elicitation": { "form": {} } }), None),
            (
                json!({ "elicitation": { "form": { "x": {} } } }),
                Some(json!({ "elicitation": { "form": { "x": {} } } })),
            ),
            (json!({ "elicitation": { "form": {} }, "x": {} }), Some(json!({ "x": {} }))),
            (
                json!({ "elicitation": { "form": {}, "url": {} } }),
                Some(json!({ "elicitation": { "url": {} } })),
            ),
            (
                json!({ "sampling": { "context": {}, "tools": {} } }),
                Some(json!({ "sampling": { "context": {} } })),
            ),
            (json!({ "extensions": { "a/b": {}, "c/d": {} } }), Some(json!({ "extensions": { "c/d": {} } }))),
            (json!({ "roots": { "listChanged": true } }), Some(json!({ "roots": { "listChanged": true } }))),
            (json!({ "roots": { "listChanged": false } }), None),
        ] {
            assert_eq!(client(declared).missing(&required), missing, "{required}");
        }
    }
}
