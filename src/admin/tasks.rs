//! `/tasks`: tasks of all principals, without arguments and results.

use super::{
    response::{self, AdminResponse, error_response},
    server::AdminParts,
};
use crate::{
    protocol::ClockReading,
    proxy::{CancelOutcome, LeaseState, TaskCursor, TaskLookup, TaskSummary, name_and_principal},
    store::StoreError,
    task::{HistoryEntry, Record, TaskState, TaskView},
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A task as the admin listener shows it.
#[derive(Serialize)]
struct TaskListEntry<'a> {
    task: &'a str,
    route: &'a str,
    tool: &'a str,
    status: &'static str,
    view: TaskView,
    created: String,
    age_ms: u128,
    updated: String,
    status_since: String,
    ttl_ms: u128,
    kept_until: String,
    message: Option<&'a str>,
    principal: String,
    /// The token name of the principal, if it has one.
    caller: Option<&'a str>,
    questions: Vec<InputRequestView<'a>>,
    waits: usize,
    /// Whether this process runs the call.
    is_held: bool,
    /// Whether no process runs the call, although the task has not ended.
    is_lost: bool,
    waits_for_store: bool,
}

/// An open input request, without its content.
#[derive(Serialize)]
struct InputRequestView<'a> {
    key: &'a str,
    kind: String,
    /// Time since the task began to wait for input.
    since_ms: u128,
}

/// A page of the list of tasks.
#[derive(Serialize)]
pub(super) struct TaskListPage {
    tasks: Vec<Value>,
    /// The value of `after` for the next page; `None` on the last page.
    next: Option<String>,
    /// Number of all tasks with each status, regardless of the query.
    counts: BTreeMap<&'static str, usize>,
}

/// The parameters of `/tasks`.
#[derive(Debug, Default, PartialEq, Eq)]
struct TaskQuery {
    route: Option<String>,
    tool: Option<String>,
    status: Option<String>,
    /// A lower-case text to search for, not empty.
    search: Option<String>,
    limit: Option<usize>,
    after: Option<TaskCursor>,
}

/// Default number of tasks in a page.
const DEFAULT_PAGE_TASKS: usize = 100;

/// Maximum number of tasks in a page.
const MAX_PAGE_TASKS: usize = 1000;

/// Responds with the page of tasks that the query requests.
pub(super) async fn respond_with_page(parts: &AdminParts, query: &str) -> AdminResponse {
    let task_query = match TaskQuery::parse(query) {
        Ok(task_query) => task_query,
        Err(error) => return error_response(StatusCode::BAD_REQUEST, &error),
    };
    match find_page(parts, &task_query).await {
        Ok(page) => respond_with_json(StatusCode::OK, &page),
        Err(error) => store_failed(&error),
    }
}

/// Returns the first page of all tasks, with at most `limit` tasks.
///
/// # Errors
/// [`StoreError`], which has been logged.
pub(super) async fn first_page(parts: &AdminParts, limit: usize) -> Result<TaskListPage, StoreError> {
    find_page(parts, &TaskQuery { limit: Some(limit), ..TaskQuery::default() }).await
}

async fn find_page(parts: &AdminParts, query: &TaskQuery) -> Result<TaskListPage, StoreError> {
    let size = query.limit.unwrap_or(DEFAULT_PAGE_TASKS).clamp(1, MAX_PAGE_TASKS);
    let is_match = |record: &Record| {
        let has_text = |search: &String| matches_search(search, record, parts);
        query.matches(record) && query.search.as_ref().is_none_or(has_text)
    };
    let page = parts.operators.page(is_match, query.after, size).await?;
    let now = parts.operators.now();
    let mut counts = BTreeMap::new();
    for tally in parts.ledger.census().await?.0 {
        *counts.entry(tally.status).or_default() += tally.tasks;
    }
    Ok(TaskListPage {
        tasks: page.tasks.iter().map(|task| task_json(parts, task, now)).collect(),
        next: page.next.map(|next| next.to_string()),
        counts,
    })
}

/// Responds with one task, its cause and its history. `name` is the beginning of its id.
pub(super) async fn show_task(parts: &AdminParts, name: &str) -> AdminResponse {
    match parts.operators.find(name).await {
        Ok(TaskLookup::One(task)) => {
            let mut body = task_json(parts, &task, parts.operators.now());
            let record = &task.record;
            body["waited_ms"] =
                json!(u64::try_from(record.elapsed_before_task.as_millis()).unwrap_or(u64::MAX));
            body["cause"] = json!(record.cause);
            body["life"] = record.history.entries().iter().map(|it| history_entry_json(record, it)).collect();
            respond_with_json(StatusCode::OK, &body)
        }
        Ok(TaskLookup::Several(tasks)) => ambiguous_task(name, &tasks),
        Ok(TaskLookup::None) => unknown_task(name),
        Err(error) => store_failed(&error),
    }
}

/// Cancels the task whose id begins with `name`; 409 if the task has ended, or if several tasks match.
pub(super) async fn cancel(parts: &AdminParts, name: &str) -> AdminResponse {
    match parts.operators.cancel(name).await {
        Ok(CancelOutcome::Cancelled(task)) => {
            respond_with_json(StatusCode::OK, &task_json(parts, &task, parts.operators.now()))
        }
        Ok(CancelOutcome::AlreadyEnded(task)) => {
            let error =
                format!("the task is {} already, and cannot be cancelled", task.record.state.status());
            error_response(StatusCode::CONFLICT, &error)
        }
        Ok(CancelOutcome::Several(tasks)) => ambiguous_task(name, &tasks),
        Ok(CancelOutcome::Unknown) => unknown_task(name),
        Err(error) => store_failed(&error),
    }
}

fn unknown_task(name: &str) -> AdminResponse {
    let name: String = name.chars().take(MAX_SHOWN_NAME).collect();
    let error = format!(
        "there is no task `{name}` (any more); name a task by at least 4 digits of its id, as `/tasks` \
         lists them"
    );
    error_response(StatusCode::NOT_FOUND, &error)
}

/// Responds that the name is the beginning of several ids.
fn ambiguous_task(name: &str, tasks: &[TaskSummary]) -> AdminResponse {
    let name: String = name.chars().take(MAX_SHOWN_NAME).collect();
    let tasks = tasks.iter().map(|TaskSummary { name, record, .. }| {
        format!("{name} ({} on {}, {})", record.tool, record.owner.route, record.state.status())
    });
    let tasks = tasks.collect::<Vec<_>>().join(", ");
    let error = format!("`{name}` matches several tasks: {tasks}; write more digits");
    error_response(StatusCode::CONFLICT, &error)
}

/// Maximum length of a name in an error message, in characters.
const MAX_SHOWN_NAME: usize = 64;

fn store_failed(error: &StoreError) -> AdminResponse {
    error_response(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
}

fn respond_with_json(status: StatusCode, value: &impl Serialize) -> AdminResponse {
    response::json_response(status, serde_json::to_vec(value).expect("it is written to memory").into())
}

fn task_json(parts: &AdminParts, task: &TaskSummary, now: ClockReading) -> Value {
    let record = &*task.record;
    let questions = match &record.state {
        TaskState::InputRequired { outstanding } => {
            let since_ms = now.time.since(record.status_since).as_millis();
            outstanding
                .iter()
                .map(|(key, raw)| InputRequestView { key, kind: request_method(raw), since_ms })
                .collect()
        }
        TaskState::Working
        | TaskState::Completed { .. }
        | TaskState::Failed { .. }
        | TaskState::Cancelled => Vec::new(),
    };
    let entry = TaskListEntry {
        task: &task.name,
        route: &record.owner.route,
        tool: &record.tool,
        status: record.state.status(),
        view: record.view,
        created: record.to_wall_time(record.created).to_string(),
        age_ms: now.time.since(record.created).as_millis(),
        updated: record.to_wall_time(record.updated).to_string(),
        status_since: record.to_wall_time(record.status_since).to_string(),
        ttl_ms: record.ttl.as_millis(),
        // The end of the retention is in the future, so it is shown with the current clock offset, not with
        // that of the task.
        kept_until: (record.created + record.ttl + now.offset).to_string(),
        message: record.message.as_deref(),
        principal: task.principal.to_string(),
        caller: parts.principal_names.name_of(&task.principal),
        questions,
        waits: task.waiting_requests,
        is_held: task.lease == LeaseState::Own,
        is_lost: task.lease == LeaseState::Lapsed && !record.state.is_ended(),
        waits_for_store: task.has_unstored_change,
    };
    serde_json::to_value(entry).expect("names are text")
}

/// Returns an entry of a task's history as JSON.
fn history_entry_json(record: &Record, entry: &HistoryEntry) -> Value {
    let repeats = entry.repeats();
    json!({
        "what": entry.what,
        "at": record.to_wall_time(entry.at).to_string(),
        "until": record.to_wall_time(repeats.until).to_string(),
        "times": repeats.times,
    })
}

/// Returns the method of an input request; empty if it cannot be read.
fn request_method(raw: &[u8]) -> String {
    #[derive(Deserialize)]
    struct MethodOnly {
        method: String,
    }
    serde_json::from_slice::<MethodOnly>(raw).map(|request| request.method).unwrap_or_default()
}

// === impl TaskQuery ===

impl TaskQuery {
    /// Parses a query.
    ///
    /// # Errors
    /// A text that says what is wrong with the query.
    fn parse(query: &str) -> Result<Self, String> {
        let mut parsed = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode_query_value(value).ok_or_else(|| format!("`{key}` is not valid UTF-8"))?;
            match key {
                "route" => parsed.route = Some(value),
                "tool" => parsed.tool = Some(value),
                "status" if STATUSES.contains(&&*value) => parsed.status = Some(value),
                "status" => {
                    return Err(format!("unknown status `{value}`; use one of {}", STATUSES.join(", ")));
                }
                "search" if value.chars().count() > MAX_SEARCH_LENGTH => {
                    return Err(format!("`search` is longer than {MAX_SEARCH_LENGTH} characters"));
                }
                "search" => {
                    parsed.search = Some(value.trim().to_lowercase()).filter(|search| !search.is_empty());
                }
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_PAGE_TASKS).contains(limit));
                    parsed.limit = Some(
                        limit
                            .ok_or_else(|| format!("`limit` must be a number from 1 to {MAX_PAGE_TASKS}"))?,
                    );
                }
                "after" => {
                    let after =
                        TaskCursor::parse(&value).ok_or("`after` must be the `next` of an earlier page")?;
                    parsed.after = Some(after);
                }
                _ => {
                    return Err(format!(
                        "unknown parameter `{key}`; use route, tool, status, search, limit or after"
                    ));
                }
            }
        }
        Ok(parsed)
    }

    fn matches(&self, record: &Record) -> bool {
        let matches_value =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        matches_value(&self.route, &record.owner.route)
            && matches_value(&self.tool, &record.tool)
            && matches_value(&self.status, record.state.status())
    }
}

/// Maximum length of a search, in characters.
const MAX_SEARCH_LENGTH: usize = 200;

/// Whether tool, route, message, id or caller of the task contain the lower-case text, ignoring case.
fn matches_search(search: &str, record: &Record, parts: &AdminParts) -> bool {
    let (id, principal) = name_and_principal(record);
    let (caller, principal) = (parts.principal_names.name_of(&principal), principal.to_string());
    let texts = [&*record.tool, &*record.owner.route, id, &principal].into_iter();
    let mut texts = texts.chain(record.message.as_deref()).chain(caller);
    texts.any(|text| text.to_lowercase().contains(search))
}

/// The values of the parameter `status`.
const STATUSES: [&str; 5] = ["working", "input_required", "completed", "failed", "cancelled"];

/// Decodes a query value (WHATWG URL, `application/x-www-form-urlencoded`); `None` if it is not UTF-8.
pub(super) fn decode_query_value(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut input = value.bytes();
    while let Some(byte) = input.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [input.next()?, input.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            _ => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_query_is_parsed_or_rejected_with_a_reason() {
        let wanted =
            TaskQuery::parse("tool=a%2Fb+c%C3%A9&status=failed&limit=7&after=e12&route=/mcp").expect("right");
        assert_eq!(wanted.tool.as_deref(), Some("a/b cé"));
        assert_eq!((wanted.status.as_deref(), wanted.limit), (Some("failed"), Some(7)));
        assert_eq!(wanted.after.map(|after| after.to_string()).as_deref(), Some("e12"));
        let searched = TaskQuery::parse("search=+Page%203+").expect("right");
        assert_eq!(searched.search.as_deref(), Some("page 3"));
        assert_eq!(TaskQuery::parse(""), Ok(TaskQuery::default()));
        assert_eq!(TaskQuery::parse("search=+"), Ok(TaskQuery::default()));
        for (query, why) in [
            ("limit=0", "`limit` must be a number from 1 to 1000"),
            ("limit=1001", "`limit` must be a number from 1 to 1000"),
            ("status=done", "unknown status `done`; use one of working, "),
            ("after=x1", "`after` must be the `next` of an earlier page"),
            ("after=%C3%A9", "`after` must be the `next` of an earlier page"),
            ("tool=%F", "`tool` is not valid UTF-8"),
            ("tool=%FF", "`tool` is not valid UTF-8"),
            (&*format!("search={}", "x".repeat(201)), "`search` is longer than 200 characters"),
            ("owner=x", "unknown parameter `owner`"),
        ] {
            let wrong = TaskQuery::parse(query).expect_err(query);
            assert!(wrong.starts_with(why), "{query}: {wrong}");
        }
    }
}
