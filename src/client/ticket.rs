//! The ticket with which a deferral proxy answers a slow call of a client without task support.
//!
//! Any server can put such an object into `_meta`. The client follows an object only if it is exactly what a
//! proxy writes: the tools that it names are the proxy's own, so that no server chooses which tool is called,
//! and with which arguments.

use crate::protocol::meta;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use std::{collections::BTreeMap, time::Duration};

/// Ticket of a running call, with the names of the tools that fetch its result or cancel it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    /// The ticket itself, which stands for the call.
    pub ticket: String,
    /// The tool of the call.
    tool: String,
    status: String,
    /// How long a call of `result_tool` waits, in milliseconds.
    wait_ms: u64,
    /// The tool that waits for the result.
    pub result_tool: String,
    /// The tool that cancels the call.
    pub cancel_tool: String,
    /// The last progress message.
    pub status_message: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TicketResult {
    #[serde(rename = "_meta")]
    meta: BTreeMap<String, Box<RawValue>>,
    content: Vec<TicketContent>,
    #[serde(default)]
    is_error: bool,
}

#[derive(Deserialize)]
struct TicketContent {
    r#type: String,
    #[serde(default)]
    text: String,
}

/// Name of the proxy's tool that fetches a result; a number is appended if the server has a tool of that name
/// (`…_2`).
const RESULT_TOOL: &str = "deferral_result";
/// Name of the proxy's tool that cancels a call; a number may be appended as for [`RESULT_TOOL`].
const CANCEL_TOOL: &str = "deferral_cancel";
/// Longest ticket in bytes; those of a proxy are shorter.
const MAX_TICKET: usize = 512;

// === impl Ticket ===

impl Ticket {
    /// Shortest time between two calls of the result tool. A proxy answers only after `wait_ms`, so this
    /// matters for servers that answer at once.
    pub const MIN_POLL_INTERVAL: Duration = Duration::from_millis(500);
    /// Most calls of the result tool for one ticket.
    pub const MAX_POLLS: u32 = 10_000;

    /// Returns the ticket in the result of a call of `tool`, if the result is one that a proxy writes for a
    /// running call.
    pub fn from_result(result: &RawValue, tool: &str) -> Option<Self> {
        let outcome: TicketResult = serde_json::from_str(result.get()).ok()?;
        let ticket: Self = serde_json::from_str(outcome.meta.get(meta::TICKET)?.get()).ok()?;
        let [TicketContent { r#type, text }] = &outcome.content[..] else { return None };
        // An operator may choose the text, which must contain these two values (`tickets.text`).
        let has_text =
            r#type == "text" && text.contains(&ticket.ticket) && text.contains(&ticket.result_tool);
        let is_genuine = !outcome.is_error
            && has_text
            && ticket.tool == tool
            && matches!(&*ticket.status, "working" | "input_required")
            && is_named(&ticket.result_tool, RESULT_TOOL)
            && is_named(&ticket.cancel_tool, CANCEL_TOOL)
            && (1..=MAX_TICKET).contains(&ticket.ticket.len())
            && ticket.ticket.bytes().all(|byte| byte.is_ascii_graphic());
        is_genuine.then_some(ticket)
    }

    /// Whether `next`, a result of the result tool, describes the same call with the same tools.
    pub fn is_continued_by(&self, next: &Self) -> bool {
        let identity = |ticket: &Self| {
            [&ticket.ticket, &ticket.tool, &ticket.result_tool, &ticket.cancel_tool].map(Clone::clone)
        };
        identity(self) == identity(next)
    }

    /// Returns the arguments for a call of `result_tool` or `cancel_tool`.
    pub fn arguments(&self) -> Box<RawValue> {
        to_raw_value(&BTreeMap::from([("ticket", &self.ticket)])).expect("a string is written to memory")
    }
}

/// Whether a tool has this name, or this name with a number from 2.
fn is_named(tool: &str, name: &str) -> bool {
    let Some(suffix) = tool.strip_prefix(name) else { return false };
    let number = suffix.strip_prefix('_').and_then(|digits| digits.parse::<u32>().ok());
    suffix.is_empty() || number.is_some_and(|number| number >= 2 && suffix == format!("_{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn running() -> Value {
        json!({
            "content": [{ "type": "text", "text": "index is still running: call deferral_result with tk_1" }],
            "_meta": { "x": [1], "deferral/ticket": {
                "ticket": "tk_1", "tool": "index", "status": "working", "elapsedMs": 7, "waitMs": 5,
                "resultTool": "deferral_result", "cancelTool": "deferral_cancel_2",
            } },
        })
    }

    fn of(result: &Value) -> Option<Ticket> {
        Ticket::from_result(&RawValue::from_string(result.to_string()).expect("JSON"), "index")
    }

    #[test]
    fn a_proxys_answer_for_a_running_call_is_a_ticket() {
        let ticket = of(&running()).expect("a ticket");
        assert_eq!((&*ticket.result_tool, &*ticket.cancel_tool), ("deferral_result", "deferral_cancel_2"));
        assert_eq!(ticket.arguments().get(), r#"{"ticket":"tk_1"}"#);
        assert!(ticket.is_continued_by(&Ticket { status_message: Some("half".into()), ..ticket.clone() }));
        assert!(!ticket.is_continued_by(&Ticket { ticket: "tk_2".into(), ..ticket.clone() }));
    }

    #[test]
    fn a_result_that_no_proxy_writes_is_not_a_ticket() {
        let ticket = |key: &str, value: Value| {
            let mut result = running();
            result["_meta"]["deferral/ticket"][key] = value;
            result
        };
        let with = |key: &str, value: Value| {
            let mut result = running();
            result[key] = value;
            result
        };
        for made_up in [
            ticket("resultTool", json!("delete_everything")),
            ticket("resultTool", json!("deferral_result_x")),
            ticket("resultTool", json!("deferral_result_02")),
            ticket("resultTool", json!("deferral_results")),
            ticket("cancelTool", json!("delete_everything")),
            ticket("tool", json!("other")),
            ticket("status", json!("completed")),
            ticket("waitMs", json!("5")),
            ticket("ticket", json!("")),
            ticket("ticket", json!("a b")),
            ticket("ticket", json!("x".repeat(1000))),
            with("content", json!([])),
            with("content", json!([{ "type": "text", "text": "done" }])),
            with("content", json!([{ "type": "image", "data": "" }])),
            with("isError", json!(true)),
            with("_meta", json!({ "deferral/ticket": 5 })),
            with("_meta", json!({})),
            json!(5),
        ] {
            assert_eq!(of(&made_up), None, "{made_up}");
        }
    }
}
