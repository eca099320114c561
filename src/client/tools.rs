//! Tool lists, and the arguments of a call.

use super::{
    Error, error_text,
    message::{JsonRpcResponse, parse_result},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};
use std::collections::BTreeSet;

/// Most pages of `tools/list` that are read.
const MAX_PAGES: usize = 100;
/// Most tools that are kept of a list.
const MAX_TOOLS: usize = 10_000;

/// The members of a listed tool that matter before its call.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolEntry {
    name: String,
    pub(super) input_schema: Option<Box<RawValue>>,
    #[serde(default)]
    pub(super) execution: ToolExecution,
}

/// Execution support of a tool (2025-11-25, *Tool*).
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolExecution {
    /// `forbidden`, `optional` or `required`; absent is `forbidden`.
    pub(super) task_support: Option<String>,
}

/// The tools of a server.
#[derive(Debug, Default)]
pub struct ToolList {
    /// The tools as raw JSON objects.
    pub tools: Vec<Box<RawValue>>,
    /// Whether the server has more pages, or more tools, than are read.
    pub is_truncated: bool,
}

#[derive(Deserialize)]
struct ToolPage<T> {
    tools: Vec<T>,
    #[serde(rename = "nextCursor")]
    next_cursor: Option<String>,
}

/// Outcome of reading the pages of a list.
enum ListOutcome {
    /// The last page was read, or the reader needed no more.
    Whole,
    /// There are more pages than [`MAX_PAGES`], or the server repeats a cursor.
    Cut,
    /// The server answered with this error.
    Refused(Box<RawValue>),
}

/// Looks up a tool in the server's list. `page` requests the page at a cursor. `None` if the server does not
/// list the tool, or refuses the list.
pub(super) async fn find_tool(
    tool: &str,
    page: impl AsyncFnMut(Option<String>) -> Result<JsonRpcResponse, Error>,
) -> Result<Option<ToolEntry>, Error> {
    let mut found = None;
    let accept = |tools: Vec<ToolEntry>| {
        found = tools.into_iter().find(|entry| entry.name == tool);
        found.is_none()
    };
    read_pages(page, accept).await?;
    Ok(found)
}

/// Lists the tools of the server, within the bounds of this module. `page` requests the page at a cursor.
pub(super) async fn list_all(
    page: impl AsyncFnMut(Option<String>) -> Result<JsonRpcResponse, Error>,
) -> Result<ToolList, Error> {
    let mut list = ToolList::default();
    let accept = |tools: Vec<Box<RawValue>>| {
        list.tools.extend(tools);
        list.tools.len() <= MAX_TOOLS
    };
    let outcome = read_pages(page, accept).await?;
    list.is_truncated = matches!(outcome, ListOutcome::Cut) || list.tools.len() > MAX_TOOLS;
    list.tools.truncate(MAX_TOOLS);
    match outcome {
        ListOutcome::Refused(error) => Err(Error::ListRefused(error_text(&error))),
        ListOutcome::Whole | ListOutcome::Cut => Ok(list),
    }
}

/// Reads pages while `accept` returns true. The server decides how many there are, so their number is
/// bounded, and a repeated cursor ends the list.
async fn read_pages<T: DeserializeOwned>(
    mut page: impl AsyncFnMut(Option<String>) -> Result<JsonRpcResponse, Error>,
    mut accept: impl FnMut(Vec<T>) -> bool,
) -> Result<ListOutcome, Error> {
    let mut cursors = BTreeSet::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let result = match page(cursor).await? {
            JsonRpcResponse::Result(result) => result,
            JsonRpcResponse::Error(error) => return Ok(ListOutcome::Refused(error)),
        };
        let ToolPage { tools, next_cursor } = parse_result(&result)?;
        if !accept(tools) {
            return Ok(ListOutcome::Whole);
        }
        match next_cursor.filter(|next| !next.is_empty()) {
            Some(next) if cursors.insert(next.clone()) => cursor = Some(next),
            Some(_) => return Ok(ListOutcome::Cut),
            None => return Ok(ListOutcome::Whole),
        }
    }
    Ok(ListOutcome::Cut)
}

/// Parses the arguments of a tool, a JSON object, from the command line.
///
/// # Errors
/// A text that says what is wrong with the arguments, and a hint.
pub fn arguments(text: &str) -> Result<Box<RawValue>, String> {
    let hint = "write the tool's arguments as a JSON object, as in '{\"name\":\"Ada\"}'";
    let value: Value = serde_json::from_str(text).map_err(|error| format!("{error}; {hint}"))?;
    if !value.is_object() {
        return Err(format!("not an object; {hint}"));
    }
    // The text itself is kept as raw JSON, so that numbers keep their spelling.
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Returns an empty object of arguments.
pub fn no_arguments() -> Box<RawValue> {
    to_raw_value(&serde_json::json!({})).expect("an object is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Lists the pages that `page` returns for their numbers, from 1; returns the list, and how many pages
    /// were requested.
    async fn listed(page: impl Fn(usize) -> Value) -> (Result<ToolList, Error>, usize) {
        let mut requested = 0;
        let list = list_all(async |_| {
            requested += 1;
            Ok(JsonRpcResponse::Result(to_raw_value(&page(requested)).expect("JSON")))
        });
        (list.await, requested)
    }

    #[tokio::test]
    async fn pages_are_read_until_the_last_or_until_a_cursor_repeats() {
        let tool = json!({ "name": "a" });
        let (list, requested) = listed(|number| match number {
            1 => json!({ "tools": [tool], "nextCursor": "b" }),
            _ => json!({ "tools": [tool] }),
        })
        .await;
        let list = list.expect("a list");
        assert_eq!((list.tools.len(), list.is_truncated, requested), (2, false, 2));
        let (list, requested) = listed(|_| json!({ "tools": [tool], "nextCursor": "" })).await;
        assert_eq!((list.expect("a list").is_truncated, requested), (false, 1));
        let (list, requested) = listed(|_| json!({ "tools": [tool], "nextCursor": "same" })).await;
        assert_eq!((list.expect("a list").is_truncated, requested), (true, 2));
        let (list, requested) =
            listed(|number| json!({ "tools": [], "nextCursor": number.to_string() })).await;
        assert_eq!((list.expect("a list").is_truncated, requested), (true, MAX_PAGES));
        let (list, requested) =
            listed(|number| json!({ "tools": vec![&tool; 6_000], "nextCursor": number.to_string() })).await;
        let list = list.expect("a list");
        assert_eq!((list.tools.len(), list.is_truncated, requested), (MAX_TOOLS, true, 2));
    }
}
