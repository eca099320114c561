//! The ticket that a proxy answers a slow call with, for a client that wants no tasks.

use crate::protocol::meta;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use std::collections::BTreeMap;

/// What is fetched later, and by which tools.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    pub ticket: String,
    /// The tool that waits for the result.
    pub result_tool: String,
    /// The tool that stops the call.
    pub cancel_tool: String,
    /// What was last said of the progress.
    pub status_message: Option<String>,
}

#[derive(Deserialize)]
struct Outcome {
    #[serde(rename = "_meta")]
    about: BTreeMap<String, Box<RawValue>>,
}

// === impl Ticket ===

impl Ticket {
    /// The ticket that a result stands for, if it does.
    pub fn of(result: &RawValue) -> Option<Self> {
        let outcome: Outcome = serde_json::from_str(result.get()).ok()?;
        serde_json::from_str(outcome.about.get(meta::TICKET)?.get()).ok()
    }

    /// The arguments of the tools that take it.
    pub fn arguments(&self) -> Box<RawValue> {
        to_raw_value(&BTreeMap::from([("ticket", &self.ticket)])).expect("a string is written to memory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_stands_for_a_later_one_is_known_by_its_meta() {
        let of = |text: &str| Ticket::of(&RawValue::from_string(text.to_owned()).expect("JSON"));
        let about = r#"{"ticket":"tk_1","resultTool":"r","cancelTool":"c","waitMs":5}"#;
        let ticket = of(&format!(r#"{{"content":[],"_meta":{{"x":[1],"deferral/ticket":{about}}}}}"#));
        let ticket = ticket.expect("a ticket");
        assert_eq!((&*ticket.result_tool, &*ticket.cancel_tool), ("r", "c"));
        assert_eq!(ticket.arguments().get(), r#"{"ticket":"tk_1"}"#);
        for other in [r#"{"content":[]}"#, r#"{"_meta":{}}"#, r#"{"_meta":{"deferral/ticket":5}}"#, "5"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
