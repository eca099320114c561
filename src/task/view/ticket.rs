//! Writes a task record for clients without task support: as an ordinary result of their call, with text for
//! the model.
//!
//! The text states which tool runs, for how long, its last progress, and how to continue. A model knows
//! nothing of tasks, so the text must be complete: it names the tools to call and their one argument. `_meta`
//! contains the same values for programs, under [`meta::TICKET`].

use crate::{
    protocol::{
        Timestamp, meta,
        splice::{JsonObject, ObjectEdit},
    },
    task::{Record, TaskState},
};
use bytes::Bytes;
use serde_json::{Value, json};
use std::time::Duration;

/// The placeholders that a configured ticket text may contain.
pub const PLACEHOLDERS: [&str; 7] =
    ["{tool}", "{elapsed}", "{progress}", "{ticket}", "{result}", "{cancel}", "{wait}"];
/// The placeholders that a configured ticket text must contain: without them no model can fetch the result.
pub const REQUIRED_PLACEHOLDERS: [&str; 2] = ["{ticket}", "{result}"];

/// The text of a ticket for the model, if none is configured.
const DEFAULT_TEXT: &str = "{tool} is still running, {elapsed} so far{progress}. This is not its result yet. To get it, call the tool \
     {result} with {\"ticket\": \"{ticket}\"}: it waits up to {wait}, and is to be called again for as long as it says \
     that {tool} is still running. Do not call {tool} again for this; it runs only once. To stop it, call {cancel} \
     with the same ticket.";

/// The values for the placeholders in the text of a ticket.
#[derive(Clone, Copy, Debug)]
pub struct TicketPrompt<'a> {
    /// The ticket.
    pub ticket: &'a str,
    /// The name of the tool that waits for the result, in the tool list of this client.
    pub result_tool: &'a str,
    /// The name of the tool that cancels the call, in the tool list of this client.
    pub cancel_tool: &'a str,
    /// How long a call of the result tool waits.
    pub result_wait: Duration,
    /// The configured text; `None` for the default text.
    pub text: Option<&'a str>,
}

/// Writes the result of a call, or of a call of the result tool, while the tool is still running: the ticket
/// and how to use it.
pub fn running_result(record: &Record, now: Timestamp, prompt: &TicketPrompt<'_>) -> Value {
    let elapsed = record.elapsed_before_task + now.since(record.created);
    let progress = record.message.as_deref().map(|message| format!(" (last progress: {message})"));
    let text = fill_placeholders(prompt.text.unwrap_or(DEFAULT_TEXT), |placeholder| {
        Some(match placeholder {
            "{tool}" => record.tool.to_string(),
            "{elapsed}" => format_duration(elapsed),
            "{progress}" => progress.clone().unwrap_or_default(),
            "{ticket}" => prompt.ticket.to_owned(),
            "{result}" => prompt.result_tool.to_owned(),
            "{cancel}" => prompt.cancel_tool.to_owned(),
            "{wait}" => format_duration(prompt.result_wait),
            _ => return None,
        })
    });
    let mut ticket_meta = json!({
        "ticket": prompt.ticket,
        "tool": record.tool,
        "status": record.state.status(),
        "elapsedMs": millis(elapsed),
        "waitMs": millis(prompt.result_wait),
        "resultTool": prompt.result_tool,
        "cancelTool": prompt.cancel_tool,
    });
    if let Some(message) = &record.message {
        ticket_meta["statusMessage"] = message.as_str().into();
    }
    json!({ "content": [{ "type": "text", "text": text }], "_meta": { meta::TICKET: ticket_meta } })
}

/// The outcome of a call: the response that the call would have had without a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The raw result object.
    Result(Bytes),
    /// The raw error object.
    Error(Bytes),
    /// The call was cancelled and has no result.
    Cancelled,
}

/// Returns the outcome of a call, for a client of 2026-07-28 if `is_modern`, otherwise for a client of a
/// legacy revision; `None` while the call runs.
pub fn call_outcome(record: &Record, is_modern: bool) -> Option<CallOutcome> {
    match &record.state {
        TaskState::Working | TaskState::InputRequired { .. } => None,
        TaskState::Completed { result, .. } if record.is_translated && !is_modern => {
            Some(CallOutcome::Result(to_legacy(result)))
        }
        TaskState::Completed { result, .. } => Some(CallOutcome::Result(result.clone())),
        TaskState::Failed { error } => Some(CallOutcome::Error(error.clone())),
        TaskState::Cancelled => Some(CallOutcome::Cancelled),
    }
}

/// Removes the members that legacy revisions do not have from a result of 2026-07-28.
fn to_legacy(result: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(result) else { return result.clone() };
    let mut edit = ObjectEdit::new(&object);
    edit.remove("resultType");
    if let Some(Ok(meta_object)) = object.get("_meta").map(|raw| JsonObject::read(&raw)) {
        let mut inner = ObjectEdit::new(&meta_object);
        inner.remove(meta::SERVER_INFO);
        edit.set("_meta", inner.apply());
    }
    edit.apply()
}

/// Writes the result of the cancel tool for a call that was cancelled.
pub fn cancelled_result(tool: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": format!("{tool} was asked to stop. It has no result.") }] })
}

/// Writes the result of the cancel tool for a call that has ended already.
pub fn already_ended_result(record: &Record, result_tool: &str) -> Value {
    let tool = &record.tool;
    let text = match record.state {
        TaskState::Cancelled => format!("{tool} was already stopped. It has no result."),
        _ => format!("{tool} has finished and cannot be stopped. Call {result_tool} for its result."),
    };
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// Writes the result of a ticket tool for a ticket that is unknown, belongs to another principal, or has
/// expired. The text is the same in all cases.
pub fn unknown_ticket_result() -> Value {
    let text =
        "This ticket is not known: it is not written exactly as it was given, or its result has expired.";
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

/// Writes the result of a ticket tool if the ticket cannot be processed at present, for this reason. The
/// ticket stays valid.
pub fn busy_result(reason: &str) -> Value {
    let text = format!(
        "This is not possible at the moment: {reason}. The ticket is still valid: wait a little, then call this again with \
         the same ticket."
    );
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

/// Writes the result of a ticket tool that was called without a ticket; `name` is the tool.
pub fn missing_ticket_result(name: &str) -> Value {
    let text = format!("{name} needs the argument `ticket`: the ticket, exactly as it was given.");
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

/// Returns the placeholders in a text, with their braces: lower-case letters in braces, such as `{tool}`.
pub fn find_placeholders(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let start = rest.find('{')?;
            let after_brace = &rest[start + 1..];
            let letters = after_brace.bytes().take_while(u8::is_ascii_lowercase).count();
            if letters > 0 && after_brace[letters..].starts_with('}') {
                let placeholder = &rest[start..start + letters + 2];
                rest = &after_brace[letters + 1..];
                return Some(placeholder);
            }
            rest = after_brace;
        }
    })
}

/// Replaces the placeholders in a text; those without a value stay. The inserted values are not searched for
/// placeholders.
fn fill_placeholders(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len() + 128);
    let mut rest = text;
    for placeholder in find_placeholders(text) {
        let offset = placeholder.as_ptr() as usize - rest.as_ptr() as usize;
        out.push_str(&rest[..offset]);
        out.push_str(value(placeholder).as_deref().unwrap_or(placeholder));
        rest = &rest[offset + placeholder.len()..];
    }
    out.push_str(rest);
    out
}

/// Formats a duration for a model: `45 s`, `2 min 5 s`, `1 h 3 min`.
fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let format_two_units = |most: u64, unit: &str, rest: u64, small: &str| match rest {
        0 => format!("{most} {unit}"),
        rest => format!("{most} {unit} {rest} {small}"),
    };
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => format_two_units(seconds / 60, "min", seconds % 60, "s"),
        _ => format_two_units(seconds / 3600, "h", seconds % 3600 / 60, "min"),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{TaskId, TaskPrincipal, TaskSharing, TaskView};
    use expect_test::expect;

    fn record() -> Record {
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Legacy };
        let id = TaskId::from_entropy([7; 16]);
        let mut record = Record::new(id, owner, "index_repo", Duration::ZERO, Timestamp::from_millis(41_000));
        (record.view, record.elapsed_before_task) = (TaskView::Ticket, Duration::from_secs(40));
        record
    }

    fn prompt(text: Option<&str>) -> TicketPrompt<'_> {
        let (result, cancel) = ("deferral_result", "deferral_cancel");
        TicketPrompt {
            ticket: "T-1",
            result_tool: result,
            cancel_tool: cancel,
            result_wait: Duration::from_secs(45),
            text,
        }
    }

    #[test]
    fn the_text_names_the_tool_the_time_the_progress_and_the_next_call() {
        let mut record = record();
        let now = Timestamp::from_millis(46_000);
        let first = running_result(&record, now, &prompt(None));
        expect![[r#"index_repo is still running, 45 s so far. This is not its result yet. To get it, call the tool deferral_result with {"ticket": "T-1"}: it waits up to 45 s, and is to be called again for as long as it says that index_repo is still running. Do not call index_repo again for this; it runs only once. To stop it, call deferral_cancel with the same ticket."#]]
        .assert_eq(first["content"][0]["text"].as_str().expect("text"));
        record.message = Some("40 of 100: reading".to_owned());
        let later = running_result(&record, Timestamp::from_millis(126_000), &prompt(None));
        let text = later["content"][0]["text"].as_str().expect("text");
        assert!(text.contains("2 min 5 s so far (last progress: 40 of 100: reading)."), "{text}");
        assert_eq!(later["_meta"][meta::TICKET]["statusMessage"], "40 of 100: reading");
        assert_eq!(later["_meta"][meta::TICKET]["elapsedMs"], 125_000);
    }

    #[test]
    fn placeholders_of_a_configured_text_are_replaced_once() {
        let mut record = record();
        record.tool = "{ticket}".into();
        let text = Some("{tool} runs: {result}({\"ticket\":\"{ticket}\"}) { {Tool} {}");
        let said = running_result(&record, Timestamp::from_millis(46_000), &prompt(text));
        assert_eq!(
            said["content"][0]["text"],
            "{ticket} runs: deferral_result({\"ticket\":\"T-1\"}) { {Tool} {}"
        );
    }

    #[test]
    fn only_lower_case_letters_in_braces_are_a_placeholder() {
        let found: Vec<_> = find_placeholders("{a} {{b}} {\"c\"} {d {e} {F} {}").collect();
        assert_eq!(found, ["{a}", "{b}", "{e}"]);
    }

    #[test]
    fn a_result_is_that_of_the_call_in_the_callers_era() {
        let mut record = record();
        assert_eq!(call_outcome(&record, false), None);
        let result: Bytes =
            r#"{"resultType":"complete","content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{},"x":1}}"#
                .into();
        record.state = TaskState::Completed { result: result.clone(), is_error: false };
        assert_eq!(call_outcome(&record, true), Some(CallOutcome::Result(result)));
        let lowered = CallOutcome::Result(r#"{"content":[],"_meta":{"x":1}}"#.into());
        assert_eq!(call_outcome(&record, false), Some(lowered));
        record.is_translated = false;
        let same = call_outcome(&record, false);
        assert_eq!(same, call_outcome(&record, true));
    }

    #[test]
    fn durations_are_formatted_for_people() {
        let shown = |seconds| format_duration(Duration::from_secs(seconds));
        assert_eq!([45, 60, 125, 3600, 3780].map(shown), ["45 s", "1 min", "2 min 5 s", "1 h", "1 h 3 min"]);
        assert_eq!(format_duration(Duration::from_millis(300)), "300 ms");
    }
}
