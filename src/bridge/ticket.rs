//! Edits a server's tool list for clients that get tickets: adds the two ticket tools, and removes the
//! `outputSchema` of tools whose calls may return a ticket, because clients refuse a result without
//! `structuredContent` if the tool has a schema.
//!
//! Every other byte of these messages is preserved.

use crate::protocol::{
    Frame, Kind, Payload,
    splice::{BytesPatch, JsonObject, ObjectEdit, array_items},
};
use bytes::Bytes;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// The names of the two ticket tools in the tool list of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketToolNames {
    /// The tool that waits for the result of a call.
    pub result: Box<str>,
    /// The tool that cancels a call.
    pub cancel: Box<str>,
}

/// The options of a ticket: how its client fetches the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketOptions {
    /// The names under which the client has the ticket tools.
    pub names: Arc<TicketToolNames>,
    /// How long one call of the result tool waits for the result.
    pub wait: Duration,
}

/// The action of a ticket tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketAction {
    /// Wait for the result of the ticket's call.
    Result,
    /// Cancel the ticket's call.
    Cancel,
}

/// The default name of the tool that waits for a result.
const RESULT_TOOL: &str = "deferral_result";
/// The default name of the tool that cancels a call.
const CANCEL_TOOL: &str = "deferral_cancel";

// === impl TicketToolNames ===

impl TicketToolNames {
    /// The prefix of the names of the ticket tools. A server's own tool may have it, too.
    pub const PREFIX: &str = "deferral_";

    /// Chooses names that the server's own tools do not use, by appending a number if necessary.
    pub fn choose_unused(is_taken: impl Fn(&str) -> bool) -> Self {
        let unused = |name: &str| {
            let suffixed = (2..).map(|n: u32| format!("{name}_{n}"));
            let mut names = std::iter::once(name.to_owned()).chain(suffixed);
            names.find(|name| !is_taken(name)).expect("there are always more names").into()
        };
        Self { result: unused(RESULT_TOOL), cancel: unused(CANCEL_TOOL) }
    }

    /// Returns the action of this tool; `None` if it is not one of these ticket tools.
    pub fn action_of(&self, tool: &str) -> Option<TicketAction> {
        match () {
            () if *self.result == *tool => Some(TicketAction::Result),
            () if *self.cancel == *tool => Some(TicketAction::Cancel),
            () => None,
        }
    }

    /// Returns the action that a tool of this name has if it is a ticket tool: the default name with or
    /// without an appended number. `None` for any other name.
    pub fn possible_action(tool: &str) -> Option<TicketAction> {
        let is_variant_of = |name: &str| {
            let rest = tool.strip_prefix(name)?;
            let digits = rest.strip_prefix('_').unwrap_or_default();
            (rest.is_empty() || !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
                .then_some(())
        };
        is_variant_of(RESULT_TOOL)
            .map(|()| TicketAction::Result)
            .or_else(|| is_variant_of(CANCEL_TOOL).map(|()| TicketAction::Cancel))
    }

    /// Returns the definitions of the two ticket tools for `tools/list`.
    fn definitions(&self) -> [Value; 2] {
        let schema = json!({
            "type": "object",
            "properties": {
                "ticket": { "type": "string", "description": "The ticket, exactly as it was given." },
            },
            "required": ["ticket"],
            "additionalProperties": false,
        });
        let annotations = |title: &str, is_read_only: bool| {
            json!({
                "title": title,
                "readOnlyHint": is_read_only,
                "destructiveHint": !is_read_only,
                "idempotentHint": true,
                "openWorldHint": false,
            })
        };
        [
            json!({
                "name": self.result,
                "description": "Gets the result of a tool that was still running when its call was answered. Takes \
                     the ticket of that answer, waits for a while, and gives what the tool gives, or says that it is \
                     still running: then call this again with the same ticket.",
                "inputSchema": schema,
                "annotations": annotations("Result of a running tool", true),
            }),
            json!({
                "name": self.cancel,
                "description": "Stops a tool that is still running, when its result is not wanted any more. Takes the \
                     ticket that its call was answered with.",
                "inputSchema": schema,
                "annotations": annotations("Stop a running tool", false),
            }),
        ]
    }
}

/// The relevant parts of a page of `tools/list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolListPage {
    /// The tool names of the server that begin with [`TicketToolNames::PREFIX`], and so may collide with the
    /// ticket tools.
    pub similar_names: Vec<String>,
    /// Whether no page follows.
    pub is_last: bool,
}

/// Reads a server's response to `tools/list`; `None` for any other message.
pub fn read_tool_list_page(response: &Frame) -> Option<ToolListPage> {
    let Kind::Success { result, .. } = response.kind() else { return None };
    let tools = array_items(&result.get("tools")?)?;
    let names = tools.iter().filter_map(|tool| JsonObject::read(tool).ok()?.string("name"));
    Some(ToolListPage {
        similar_names: names.filter(|name| name.starts_with(TicketToolNames::PREFIX)).collect(),
        // An empty cursor counts as the end, because clients stop at it.
        is_last: result.get("nextCursor").is_none_or(|next| next == "null" || next == "\"\""),
    })
}

/// Edits a server's response to `tools/list` for a client that gets tickets: appends the ticket tools `names`
/// (given for the last page only), and removes the `outputSchema` of tools that `may_defer`. Returns `None`
/// if nothing changes.
pub fn with_ticket_tools(
    response: &Frame,
    names: Option<&TicketToolNames>,
    may_defer: impl Fn(&str) -> bool,
) -> Option<Bytes> {
    let Kind::Success { result, .. } = response.kind() else { return None };
    let list = result.get("tools")?;
    let tools = array_items(&list)?;
    let mut patch = BytesPatch::new(response.as_bytes().clone());
    let mut has_changes = false;
    for tool in tools.iter().filter_map(|tool| JsonObject::read(tool).ok()) {
        if tool.contains("outputSchema") && tool.string("name").is_some_and(|name| may_defer(&name)) {
            let mut edit = ObjectEdit::new(&tool);
            edit.remove("outputSchema");
            edit.add_to(&mut patch);
            has_changes = true;
        }
    }
    if let Some(names) = names {
        let end = list.slice(list.len() - 1..);
        let definitions = names.definitions().map(|tool| tool.to_string()).join(",");
        let comma = if tools.is_empty() { "" } else { "," };
        patch.replace(&end, format!("{comma}{definitions}]").into());
        has_changes = true;
    }
    has_changes.then(|| patch.apply())
}

/// Returns the `ticket` argument in the parameters of a call of a ticket tool.
pub fn ticket_argument(params: Option<&Payload>) -> Option<String> {
    let ticket = JsonObject::read(&params?.get("arguments")?).ok()?.string("ticket")?;
    Some(ticket.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(tools: &str) -> Frame {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":{tools}}}}}"#);
        Frame::parse(text.into()).expect("a message")
    }

    fn text(bytes: Bytes) -> String {
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    #[test]
    fn a_name_that_the_server_uses_gets_a_suffix() {
        let names = TicketToolNames::choose_unused(|_| false);
        assert_eq!((&*names.result, &*names.cancel), (RESULT_TOOL, CANCEL_TOOL));
        let names =
            TicketToolNames::choose_unused(|name| ["deferral_result", "deferral_result_2"].contains(&name));
        assert_eq!((&*names.result, &*names.cancel), ("deferral_result_3", CANCEL_TOOL));
        assert_eq!(names.action_of("deferral_result_3"), Some(TicketAction::Result));
        assert_eq!(names.action_of("deferral_cancel"), Some(TicketAction::Cancel));
        assert_eq!(names.action_of("deferral_result"), None);
        let alike = ["deferral_result", "deferral_result_12", "deferral_cancel_2"]
            .map(TicketToolNames::possible_action);
        assert_eq!(
            alike,
            [Some(TicketAction::Result), Some(TicketAction::Result), Some(TicketAction::Cancel)]
        );
        for other in ["deferral_resulting", "deferral_result_", "deferral_result_x", "result"] {
            assert_eq!(TicketToolNames::possible_action(other), None, "{other}");
        }
    }

    #[test]
    fn two_tools_stand_behind_those_of_the_server_and_schemas_of_results_are_gone() {
        let answer = listing(
            r#"[ {"name":"a","outputSchema":{"type":"object"},"x":1e5},{"name":"b","outputSchema":{}} ]"#,
        );
        let names = TicketToolNames::choose_unused(|_| false);
        let seen = text(with_ticket_tools(&answer, Some(&names), |tool| tool == "a").expect("it changes"));
        let (theirs, ours) = seen.split_once(r#"} ,{"annotations""#).expect("ours stand behind theirs");
        assert_eq!(
            theirs,
            r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[ {"name":"a","x":1e5},{"name":"b","outputSchema":{}"#
        );
        assert!(ours.ends_with("]}}"), "{ours}");
        let whole: Value = serde_json::from_str(&seen).expect("JSON");
        let listed = whole["result"]["tools"].as_array().expect("tools").iter();
        let named: Vec<_> = listed.map(|tool| tool["name"].as_str().expect("a name")).collect();
        assert_eq!(named, ["a", "b", "deferral_result", "deferral_cancel"]);
        let alone = text(with_ticket_tools(&listing("[]"), Some(&names), |_| true).expect("it changes"));
        assert!(alone.contains(r#""tools":[{"#), "{alone}");
        assert_eq!(with_ticket_tools(&answer, None, |_| false), None);
    }

    #[test]
    fn a_page_says_whether_there_are_more_and_which_names_could_be_ours() {
        let page_of =
            |text: &str| read_tool_list_page(&Frame::parse(text.to_owned().into()).expect("a message"));
        let last =
            page_of(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"deferral_x"},{"name":"a"}]}}"#);
        assert_eq!(last, Some(ToolListPage { similar_names: vec!["deferral_x".to_owned()], is_last: true }));
        let first = page_of(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[],"nextCursor":"2"}}"#);
        assert_eq!(first, Some(ToolListPage { similar_names: Vec::new(), is_last: false }));
        assert_eq!(page_of(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}"#), None);
    }

    #[test]
    fn a_ticket_is_an_argument_and_a_text() {
        let of =
            |params: &str| ticket_argument(Some(&Payload::read(Bytes::copy_from_slice(params.as_bytes()))));
        assert_eq!(of(r#"{"name":"x","arguments":{"ticket":" a "}}"#).as_deref(), Some("a"));
        for wrong in [r#"{"arguments":{"ticket":5}}"#, r#"{"arguments":[]}"#, r#"{"name":"x"}"#] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(ticket_argument(None), None);
    }
}
