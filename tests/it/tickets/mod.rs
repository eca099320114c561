//! Tickets: clients without tasks, whose model fetches the result.

mod legacy_clients;
mod limits_and_failures;
mod modern_clients;
mod recorded_sessions;

use serde_json::{Value, json};

/// Each call is answered with a ticket after this long.
const SOON: &str = "held: { ticket: 50ms }";
/// A result is waited for until it is there.
const PATIENT: &str = "tickets: { wait: 1h }";
/// Or hardly at all.
const IMPATIENT: &str = "tickets: { wait: 10ms }";

/// Two tools, one of which says what its result looks like.
pub(crate) fn tools() -> Value {
    json!([
        { "name": "t", "inputSchema": { "type": "object" }, "outputSchema": { "type": "object" } },
        { "name": "u", "inputSchema": { "type": "object" } },
    ])
}

/// The names in a list of tools.
pub(crate) fn names(result: &Value) -> Vec<&str> {
    let tools = result["tools"].as_array().expect("a list");
    tools.iter().map(|tool| tool["name"].as_str().expect("a name")).collect()
}

/// The ticket in a result, and the words that go with it.
fn ticket(result: &Value) -> (String, &str) {
    let about = &result["_meta"]["deferral/ticket"];
    let ticket = about["ticket"].as_str().unwrap_or_else(|| panic!("there is no ticket in {result:#}"));
    assert_eq!(result.get("isError"), None);
    (ticket.to_owned(), result["content"][0]["text"].as_str().expect("a text"))
}
