//! What is changed in what a server says for clients that hold tickets: two tools are added to its list, and tools
//! that may answer with a ticket lose their `outputSchema`, because clients refuse a result without
//! `structuredContent` where there is one.
//!
//! Nothing else in these messages changes, not by a byte.

use crate::protocol::{
    Frame, Kind, Payload,
    splice::{Edit, Object, Patch, items},
};
use bytes::Bytes;
use serde_json::{Value, json};

/// What the tools of ours are called, as this client was given them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolNames {
    /// Waits for the result of a call.
    pub result: Box<str>,
    /// Stops it.
    pub cancel: Box<str>,
}

/// What a call of one of them wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Result,
    Cancel,
}

const RESULT: &str = "deferral_result";
const CANCEL: &str = "deferral_cancel";

// === impl ToolNames ===

impl ToolNames {
    /// What a name of ours begins with: of those that the server uses one may be the same.
    pub const BEGINNING: &str = "deferral_";

    /// Names that the server does not use.
    pub fn beside(is_taken: impl Fn(&str) -> bool) -> Self {
        let free = |name: &str| {
            let suffixed = (2..).map(|n: u32| format!("{name}_{n}"));
            let mut names = std::iter::once(name.to_owned()).chain(suffixed);
            names.find(|name| !is_taken(name)).expect("there are always more names").into()
        };
        Self { result: free(RESULT), cancel: free(CANCEL) }
    }

    /// What a call of this tool wants, if it is one of these.
    pub fn wanted(&self, tool: &str) -> Option<Wanted> {
        match () {
            () if *self.result == *tool => Some(Wanted::Result),
            () if *self.cancel == *tool => Some(Wanted::Cancel),
            () => None,
        }
    }

    /// What a call of this tool wants if it is one that could be ours, whatever it was told to be called.
    pub fn alike(tool: &str) -> Option<Wanted> {
        let is = |name: &str| {
            let rest = tool.strip_prefix(name)?;
            let digits = rest.strip_prefix('_').unwrap_or_default();
            (rest.is_empty() || !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
                .then_some(())
        };
        is(RESULT).map(|()| Wanted::Result).or_else(|| is(CANCEL).map(|()| Wanted::Cancel))
    }

    /// Their descriptions, schemas and annotations, as they stand in a list.
    fn listed(&self) -> [Value; 2] {
        let schema = json!({
            "type": "object",
            "properties": {
                "ticket": { "type": "string", "description": "The ticket, exactly as it was given." },
            },
            "required": ["ticket"],
            "additionalProperties": false,
        });
        let annotations = |title: &str, reads: bool| {
            json!({
                "title": title,
                "readOnlyHint": reads,
                "destructiveHint": !reads,
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

/// A page of `tools/list`, as far as it matters to tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The names on it that could be ours.
    pub alike: Vec<String>,
    /// There is none behind it.
    pub is_last: bool,
}

/// Reads a server's answer to `tools/list`. `None` where it is none.
pub fn page(answer: &Frame) -> Option<Page> {
    let Kind::Success { result, .. } = answer.kind() else { return None };
    let tools = items(&result.get("tools")?)?;
    let names = tools.iter().filter_map(|tool| Object::read(tool).ok()?.string("name"));
    Some(Page {
        alike: names.filter(|name| name.starts_with(ToolNames::BEGINNING)).collect(),
        // Clients stop at an empty one, too.
        is_last: result.get("nextCursor").is_none_or(|next| next == "null" || next == "\"\""),
    })
}

/// A server's answer to `tools/list` as a holder of tickets is to see it. `None` where nothing changes.
pub fn tools(answer: &Frame, added: Option<&ToolNames>, may_defer: impl Fn(&str) -> bool) -> Option<Bytes> {
    let Kind::Success { result, .. } = answer.kind() else { return None };
    let listed = result.get("tools")?;
    let tools = items(&listed)?;
    let mut patch = Patch::new(answer.as_bytes().clone());
    let mut changes = false;
    for tool in tools.iter().filter_map(|tool| Object::read(tool).ok()) {
        if tool.contains("outputSchema") && tool.string("name").is_some_and(|name| may_defer(&name)) {
            let mut edit = Edit::new(&tool);
            edit.remove("outputSchema");
            edit.put(&mut patch);
            changes = true;
        }
    }
    if let Some(names) = added {
        let end = listed.slice(listed.len() - 1..);
        let added = names.listed().map(|tool| tool.to_string()).join(",");
        let comma = if tools.is_empty() { "" } else { "," };
        patch.replace(&end, format!("{comma}{added}]").into());
        changes = true;
    }
    changes.then(|| patch.apply())
}

/// The ticket that a tool of ours was called with.
pub fn argument(params: Option<&Payload>) -> Option<String> {
    let ticket = Object::read(&params?.get("arguments")?).ok()?.string("ticket")?;
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
        let names = ToolNames::beside(|_| false);
        assert_eq!((&*names.result, &*names.cancel), (RESULT, CANCEL));
        let names = ToolNames::beside(|name| ["deferral_result", "deferral_result_2"].contains(&name));
        assert_eq!((&*names.result, &*names.cancel), ("deferral_result_3", CANCEL));
        assert_eq!(names.wanted("deferral_result_3"), Some(Wanted::Result));
        assert_eq!(names.wanted("deferral_cancel"), Some(Wanted::Cancel));
        assert_eq!(names.wanted("deferral_result"), None);
        let alike = ["deferral_result", "deferral_result_12", "deferral_cancel_2"].map(ToolNames::alike);
        assert_eq!(alike, [Some(Wanted::Result), Some(Wanted::Result), Some(Wanted::Cancel)]);
        for other in ["deferral_resulting", "deferral_result_", "deferral_result_x", "result"] {
            assert_eq!(ToolNames::alike(other), None, "{other}");
        }
    }

    #[test]
    fn two_tools_stand_behind_those_of_the_server_and_schemas_of_results_are_gone() {
        let answer = listing(
            r#"[ {"name":"a","outputSchema":{"type":"object"},"x":1e5},{"name":"b","outputSchema":{}} ]"#,
        );
        let names = ToolNames::beside(|_| false);
        let seen = text(tools(&answer, Some(&names), |tool| tool == "a").expect("it changes"));
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
        let alone = text(tools(&listing("[]"), Some(&names), |_| true).expect("it changes"));
        assert!(alone.contains(r#""tools":[{"#), "{alone}");
        assert_eq!(tools(&answer, None, |_| false), None);
    }

    #[test]
    fn a_page_says_whether_there_are_more_and_which_names_could_be_ours() {
        let page_of = |text: &str| page(&Frame::parse(text.to_owned().into()).expect("a message"));
        let last =
            page_of(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"deferral_x"},{"name":"a"}]}}"#);
        assert_eq!(last, Some(Page { alike: vec!["deferral_x".to_owned()], is_last: true }));
        let first = page_of(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[],"nextCursor":"2"}}"#);
        assert_eq!(first, Some(Page { alike: Vec::new(), is_last: false }));
        assert_eq!(page_of(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}"#), None);
    }

    #[test]
    fn a_ticket_is_an_argument_and_a_text() {
        let of = |params: &str| argument(Some(&Payload::read(Bytes::copy_from_slice(params.as_bytes()))));
        assert_eq!(of(r#"{"name":"x","arguments":{"ticket":" a "}}"#).as_deref(), Some("a"));
        for wrong in [r#"{"arguments":{"ticket":5}}"#, r#"{"arguments":[]}"#, r#"{"name":"x"}"#] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(argument(None), None);
    }
}
