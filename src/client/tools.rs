//! Looking a tool up, and what it is called with.

use super::{
    Error,
    message::{Answer, read},
};
use serde::Deserialize;
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

/// Pages of `tools/list` that are looked through for a tool.
const MAX_PAGES: usize = 1_000;

/// What a server says of one tool.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tool {
    name: String,
    pub(super) input_schema: Option<Box<RawValue>>,
    #[serde(default)]
    pub(super) execution: Execution,
}

/// How it may be run (2025-11-25, *Tool*).
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Execution {
    /// `forbidden`, `optional` or `required`; absent is `forbidden`.
    pub(super) task_support: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    tools: Vec<Tool>,
    #[serde(rename = "nextCursor")]
    next_cursor: Option<String>,
}

/// Looks a tool up. `page` asks for the page at a cursor. `None` for a tool that the server does not
/// list, or where it lists nothing.
pub(super) async fn find(
    tool: &str,
    mut page: impl AsyncFnMut(Option<String>) -> Result<Answer, Error>,
) -> Result<Option<Tool>, Error> {
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let Answer::Result(result) = page(cursor).await? else { break };
        let page: Page = read(&result)?;
        if let Some(found) = page.tools.into_iter().find(|known| known.name == tool) {
            return Ok(Some(found));
        }
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    Ok(None)
}

/// A JSON object from what somebody typed.
///
/// # Errors
/// Says what is wrong with it.
pub fn arguments(text: &str) -> Result<Box<RawValue>, String> {
    let hint = "write the tool's arguments as a JSON object, as in '{\"name\":\"Ada\"}'";
    let value: Value = serde_json::from_str(text).map_err(|error| format!("{error}; {hint}"))?;
    if !value.is_object() {
        return Err(format!("not an object; {hint}"));
    }
    // Numbers stay as they were typed.
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// No arguments at all.
pub fn no_arguments() -> Box<RawValue> {
    to_raw_value(&serde_json::json!({})).expect("an object is JSON")
}
