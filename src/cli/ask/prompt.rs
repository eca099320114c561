//! Asks the user to respond to an input request.
//!
//! The user can decline each request. Elicitation has an action for that; for sampling and roots, the call is
//! cancelled (2026-07-28, *Sampling, Error Handling*).

use super::{
    ResponderError,
    form::{self, FormField},
    parse_root,
    terminal::{InputClosed, Terminal},
};
use crate::{
    cli::call::result_text,
    protocol::{
        InputKind, InputRequest,
        splice::{JsonObject, array_items},
    },
};
use bytes::Bytes;
use http::Uri;
use serde_json::{json, value::RawValue};
use std::collections::BTreeMap;

/// Input that leaves an optional field empty.
const SKIP: &str = "/skip";
/// Input that declines a request.
const DECLINE: &str = "/decline";
/// Input that cancels a form.
const CANCEL: &str = "/cancel";

/// What the user does with a form.
#[derive(Clone, Copy)]
enum FormAction {
    Accept,
    Edit,
    Decline,
    Cancel,
}

/// What the user typed for a field.
enum FieldInput {
    Value(Bytes),
    Omitted,
    Action(FormAction),
}

/// Asks the user for the response to one input request, and returns it as JSON. `requester` names the tool
/// and the server; `current_dir` is the current directory as a file URI, if known.
///
/// # Errors
/// [`ResponderError`] if there is no response, so that the call cannot continue.
pub(super) async fn ask(
    terminal: &mut Terminal,
    requester: &str,
    request: &InputRequest,
    current_dir: Option<&str>,
) -> Result<String, ResponderError> {
    let params = request.params().and_then(|params| JsonObject::read(&params).ok());
    let text = |name| params.as_ref().and_then(|params: &JsonObject| params.string(name));
    match request.kind() {
        InputKind::Elicitation => {
            let message = text("message").unwrap_or_default();
            match text("mode").as_deref() {
                None | Some("form") => {
                    introduce(terminal, &format!("{requester} requests input:"), &message);
                    let schema = params.and_then(|params| params.get("requestedSchema"));
                    Ok(fill_form(terminal, form::read_fields(schema.as_ref())).await?)
                }
                Some("url") => {
                    introduce(terminal, &format!("{requester} asks you to visit a URL:"), &message);
                    Ok(confirm_visit(terminal, &text("url").unwrap_or_default()).await?)
                }
                Some(mode) => Err(ResponderError::UnsupportedMode(mode.to_owned())),
            }
        }
        InputKind::Sampling => {
            introduce(terminal, &format!("{requester} requests a message, as a model would write it:"), "");
            ask_message(terminal, params.as_ref()).await
        }
        InputKind::Roots => {
            introduce(terminal, &format!("{requester} requests the directories you work in."), "");
            ask_roots(terminal, current_dir).await
        }
    }
}

/// Prints who requests input, and quotes the message.
fn introduce(terminal: &mut Terminal, heading: &str, message: &str) {
    terminal.print_line("");
    terminal.print_line(heading);
    if !message.is_empty() {
        terminal.quote(message);
    }
}

/// Fills in a form field by field. The user can review and edit everything before it is sent (2026-07-28,
/// *Elicitation, User Interaction Model*).
async fn fill_form(terminal: &mut Terminal, fields: Vec<FormField>) -> Result<String, InputClosed> {
    if !fields.is_empty() {
        terminal.print_line(&format!(
            "Enter accepts the value in brackets; {SKIP} leaves an optional field empty; {DECLINE} and {CANCEL} end the form."
        ));
        terminal.print_line("");
    }
    let mut filled: BTreeMap<&str, Bytes> = BTreeMap::new();
    loop {
        for field in &fields {
            let previous = filled.remove(&*field.key);
            match fill_field(terminal, field, previous.or_else(|| field.default.clone())).await? {
                FieldInput::Value(value) => drop(filled.insert(&field.key, value)),
                FieldInput::Omitted => {}
                FieldInput::Action(choice) => return Ok(action_response(choice)),
            }
        }
        let filled_fields = || fields.iter().filter_map(|field| Some((field, filled.get(&*field.key)?)));
        if !fields.is_empty() {
            terminal.print_line("");
        }
        for (field, value) in filled_fields() {
            terminal.print_line(&format!("  {}: {}", field.name(), field.display_value(value)));
        }
        let edit_hint = if fields.is_empty() { "" } else { "e edits, " };
        let prompt = format!("Send? Enter sends, {edit_hint}d declines, c cancels >");
        match ask_action(terminal, &prompt, !fields.is_empty()).await? {
            FormAction::Accept => {
                let content = form::form_content(filled_fields().map(|(field, value)| (&*field.key, value)));
                return Ok(format!(r#"{{"action":"accept","content":{content}}}"#));
            }
            FormAction::Edit => {}
            choice @ (FormAction::Decline | FormAction::Cancel) => return Ok(action_response(choice)),
        }
    }
}

async fn fill_field(
    terminal: &mut Terminal,
    field: &FormField,
    default: Option<Bytes>,
) -> Result<FieldInput, InputClosed> {
    let hint = field.hint();
    let hint = if hint.is_empty() { hint } else { format!(" ({hint})") };
    terminal.print_line(&format!("  {}{hint}", field.name()));
    if let Some(description) = &field.description {
        terminal.print_line(&format!("  {description}"));
    }
    for line in field.menu() {
        terminal.print_line(&format!("    {line}"));
    }
    let prompt = match &default {
        Some(default) => format!("  [{}] >", field.display_value(default)),
        None => "  >".to_owned(),
    };
    loop {
        let typed = terminal.read_line(&prompt).await?;
        let problem = match (typed.trim(), &default) {
            (DECLINE, _) => return Ok(FieldInput::Action(FormAction::Decline)),
            (CANCEL, _) => return Ok(FieldInput::Action(FormAction::Cancel)),
            ("", Some(default)) => return Ok(FieldInput::Value(default.clone())),
            ("", None) | (SKIP, _) if !field.is_required => return Ok(FieldInput::Omitted),
            ("", None) | (SKIP, _) => "is required".to_owned(),
            (_, _) => match field.parse(&typed) {
                Ok(value) => return Ok(FieldInput::Value(value)),
                Err(wrong) => wrong,
            },
        };
        terminal.print_line(&format!("  {} {problem}.", field.name()));
    }
}

/// Asks for the action on a completed form, or on a request without fields.
async fn ask_action(
    terminal: &mut Terminal,
    prompt: &str,
    can_edit: bool,
) -> Result<FormAction, InputClosed> {
    loop {
        match terminal.read_line(prompt).await?.trim().to_lowercase().as_str() {
            "" | "a" | "accept" | "y" | "yes" => return Ok(FormAction::Accept),
            "e" | "edit" if can_edit => return Ok(FormAction::Edit),
            "d" | "decline" | "n" | "no" | DECLINE => return Ok(FormAction::Decline),
            "c" | "cancel" | CANCEL => return Ok(FormAction::Cancel),
            _ => {}
        }
    }
}

fn action_response(choice: FormAction) -> String {
    let action = match choice {
        FormAction::Accept | FormAction::Edit => "accept",
        FormAction::Decline => "decline",
        FormAction::Cancel => "cancel",
    };
    json!({ "action": action }).to_string()
}

/// Shows a URL as is and its host separately, and never opens it (2026-07-28, *Elicitation, Safe URL
/// Handling*).
async fn confirm_visit(terminal: &mut Terminal, url: &str) -> Result<String, InputClosed> {
    terminal.print_line("");
    terminal.print_line(&format!("  {url}"));
    terminal.print_line("");
    for line in url_warnings(url) {
        terminal.print_line(&format!("  {line}"));
    }
    let prompt = "Enter once you have visited it, d declines, c cancels >";
    Ok(action_response(ask_action(terminal, prompt, false).await?))
}

/// Returns lines with the host of a URL, and warnings about it.
fn url_warnings(url: &str) -> Vec<String> {
    let Ok(uri) = url.parse::<Uri>() else {
        return vec!["Warning: this is not a valid URL.".to_owned()];
    };
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return vec!["Warning: this URL has no host.".to_owned()];
    };
    let host = authority.host();
    let mut lines = vec![format!("Host: {host}")];
    if !matches!(scheme, "http" | "https") {
        lines.push(format!("Warning: its scheme is {scheme}, which is not a web page."));
    }
    if authority.as_str().contains('@') {
        lines.push("Warning: the part before the @ is not its host.".to_owned());
    }
    if host.split('.').any(|label| label.to_lowercase().starts_with("xn--")) {
        lines.push("Warning: its host is written in Punycode, and may imitate another.".to_owned());
    }
    let is_local = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    if scheme == "http" && !is_local {
        lines.push("Warning: the connection is not encrypted.".to_owned());
    }
    lines
}

async fn ask_message(terminal: &mut Terminal, params: Option<&JsonObject>) -> Result<String, ResponderError> {
    for line in params.iter().flat_map(|params| conversation_lines(params)) {
        terminal.quote(&line);
    }
    terminal.print_line(&format!(
        "Type the message; a line with a single . ends it, {DECLINE} cancels the call."
    ));
    let mut lines: Vec<String> = Vec::new();
    loop {
        let line = match terminal.read_line(">").await {
            Err(InputClosed::Ended) if !lines.is_empty() => break,
            line => line?,
        };
        match line.as_str() {
            "." => break,
            DECLINE | CANCEL => return Err(ResponderError::Declined),
            _ => lines.push(line),
        }
    }
    Ok(sampling_response(&lines.join("\n")))
}

/// Formats a text as the response to a sampling request, a message of a model.
pub(super) fn sampling_response(text: &str) -> String {
    json!({
        "role": "assistant",
        "content": { "type": "text", "text": text },
        // The specification requires a name, although no model wrote the message.
        "model": "human",
        "stopReason": "endTurn",
    })
    .to_string()
}

/// Returns the conversation of a sampling request, one line per message.
fn conversation_lines(params: &JsonObject) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(params.string("systemPrompt").map(|prompt| format!("system: {prompt}")));
    for message in params.get("messages").and_then(|messages| array_items(&messages)).unwrap_or_default() {
        let Ok(message) = JsonObject::read(&message) else { continue };
        let role = message.string("role").unwrap_or_default();
        let content = message.get("content").unwrap_or_default();
        let blocks = String::from_utf8_lossy(&content);
        let blocks = if blocks.starts_with('[') { blocks.into_owned() } else { format!("[{blocks}]") };
        let content = RawValue::from_string(format!(r#"{{"content":{blocks}}}"#));
        let content_text = content.map_or_else(|_| blocks, |raw| result_text(&raw));
        lines.push(format!("{role}: {content_text}"));
    }
    if let Some(max_tokens) = params.get("maxTokens") {
        lines.push(format!("(at most {} tokens)", String::from_utf8_lossy(&max_tokens)));
    }
    lines
}

async fn ask_roots(terminal: &mut Terminal, current_dir: Option<&str>) -> Result<String, ResponderError> {
    let skip_hint = if current_dir.is_some() { format!("{SKIP} returns none, ") } else { String::new() };
    terminal.print_line(&format!(
        "Type one per line, as in file:///home/ada/project; an empty line ends the list, {skip_hint}{DECLINE} cancels the call."
    ));
    let first = current_dir.map(|here| format!("[{here}] >"));
    let mut roots = Vec::new();
    loop {
        let default = current_dir.filter(|_| roots.is_empty());
        let prompt = first.as_deref().filter(|_| default.is_some()).unwrap_or(">");
        let typed = match terminal.read_line(prompt).await {
            Err(InputClosed::Ended) if !roots.is_empty() => break,
            typed => typed?,
        };
        match typed.trim() {
            "" => {
                roots.extend(default.map(str::to_owned));
                break;
            }
            SKIP if default.is_some() => break,
            DECLINE | CANCEL => return Err(ResponderError::Declined),
            typed => match parse_root(typed) {
                Ok(uri) => roots.push(uri),
                Err(wrong) => terminal.print_line(&format!("  {wrong}")),
            },
        }
    }
    Ok(roots_response(&roots))
}

/// Formats the response to a request of roots.
pub(super) fn roots_response(uris: &[String]) -> String {
    let roots: Vec<_> = uris.iter().map(|uri| json!({ "uri": uri })).collect();
    json!({ "roots": roots }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::elicit::check_input_response;
    use crate::cli::printer::{Printer, tests::Screen};
    use expect_test::{Expect, expect};

    fn input_request(kind: InputKind, params: &str) -> InputRequest {
        InputRequest::new(kind, Some(&Bytes::copy_from_slice(params.as_bytes())))
    }

    /// Returns the response when these lines are typed, and what was printed.
    async fn talk(question: &InputRequest, typed: &'static str) -> (Result<String, String>, String) {
        let screen = Screen::default();
        let mut terminal = Terminal::new(typed.as_bytes(), Printer::new(std::io::sink(), screen.clone()));
        let answer = ask(&mut terminal, "book at http://x/mcp", question, None).await;
        if let Ok(answer) = &answer {
            assert!(check_input_response(question, &answer.clone().into()).is_ok(), "{answer}");
        }
        let printed = screen.text();
        (answer.map_err(|error| error.to_string()), printed)
    }

    async fn assert_response(question: &InputRequest, typed: &'static str, expected: &str) {
        let (answer, printed) = talk(question, typed).await;
        assert_eq!(answer.as_deref(), Ok(expected), "{printed}");
    }

    fn booking() -> InputRequest {
        input_request(
            InputKind::Elicitation,
            r#"{"message":"When?","requestedSchema":{"type":"object","properties":{
                "date":{"type":"string","format":"date","title":"Date"},
                "party":{"type":"integer","minimum":1,"maximum":12,"default":2,"title":"Party","description":"How many come."},
                "seat":{"type":"string","enum":["Inside","Terrace"]},
                "note":{"type":"string","maxLength":5,"default":"-"}
            },"required":["date","party"]}}"#,
        )
    }

    fn assert_printed(printed: &str, expected: Expect) {
        // Typed lines follow their prompts on a terminal, but not on a pipe.
        let printed: Vec<_> = printed.lines().map(str::trim_end).collect();
        expected.assert_eq(&format!("{}\n", printed.join("\n")));
    }

    #[tokio::test]
    async fn a_form_is_filled_in_field_by_field_and_sent_after_review() {
        let (answer, printed) = talk(&booking(), "soon\n\n2026-08-01\n13\n4\n2\n\n\n").await;
        assert_eq!(
            answer.as_deref(),
            Ok(
                r#"{"action":"accept","content":{"date":"2026-08-01","party":4,"seat":"Terrace","note":"-"}}"#
            )
        );
        assert_printed(
            &printed,
            expect![[r#"

            book at http://x/mcp requests input:
            | When?
            Enter accepts the value in brackets; /skip leaves an optional field empty; /decline and /cancel end the form.

              Date (a date, as in 2026-07-28)
              >   Date must be a date, as in 2026-07-28.
              >   Date is required.
              >   Party (a whole number; 1 to 12)
              How many come.
              [2] >   Party must be at most 12.
              [2] >   seat (a number from 1 to 2; optional)
                1  Inside
                2  Terrace
              >   note (at most 5 characters; optional)
              [-] >
              Date: 2026-08-01
              Party: 4
              seat: Terrace
              note: -
            Send? Enter sends, e edits, d declines, c cancels >
        "#]],
        );
    }

    #[tokio::test]
    async fn optional_fields_can_be_skipped_and_defaults_accepted() {
        assert_response(
            &booking(),
            "2026-08-01\n\n\n/skip\n\n",
            r#"{"action":"accept","content":{"date":"2026-08-01","party":2}}"#,
        )
        .await;
        // Required fields cannot be skipped.
        let (_, printed) = talk(&booking(), "/skip\n/cancel\n").await;
        assert!(printed.contains("Date is required."), "{printed}");
    }

    #[tokio::test]
    async fn a_form_can_be_changed_before_it_is_sent() {
        assert_response(
            &booking(),
            "2026-08-01\n3\n1\n\ne\n\n5\n\nx\naccept\n",
            r#"{"action":"accept","content":{"date":"2026-08-01","party":5,"seat":"Inside","note":"x"}}"#,
        )
        .await;
    }

    #[tokio::test]
    async fn a_form_can_be_declined_and_cancelled_at_any_point() {
        for (typed, action) in [
            ("/decline\n", "decline"),
            ("2026-08-01\n/cancel\n", "cancel"),
            ("2026-08-01\n\n\n\nwhat\nd\n", "decline"),
            ("2026-08-01\n\n\n\nc\n", "cancel"),
        ] {
            assert_response(&booking(), typed, &format!(r#"{{"action":"{action}"}}"#)).await;
        }
        let confirm = input_request(InputKind::Elicitation, r#"{"message":"Really?","mode":"form"}"#);
        assert_response(&confirm, "\n", r#"{"action":"accept","content":{}}"#).await;
        assert_response(&confirm, "n\n", r#"{"action":"decline"}"#).await;
    }

    #[tokio::test]
    async fn the_end_of_input_is_an_error() {
        let (answer, _) = talk(&booking(), "2026-08-01\n").await;
        assert_eq!(answer.unwrap_err(), "standard input ended before every input request was answered");
    }

    #[tokio::test]
    async fn a_url_is_shown_with_its_host_and_visited_or_declined() {
        let visit = input_request(
            InputKind::Elicitation,
            r#"{"mode":"url","message":"Sign in.","url":"https://login.example.com@xn--exmple-cua.com/a?b"}"#,
        );
        let (answer, printed) = talk(&visit, "?\n\n").await;
        assert_eq!(answer.as_deref(), Ok(r#"{"action":"accept"}"#));
        assert_printed(
            &printed,
            expect![[r#"

                book at http://x/mcp asks you to visit a URL:
                | Sign in.

                  https://login.example.com@xn--exmple-cua.com/a?b

                  Host: xn--exmple-cua.com
                  Warning: the part before the @ is not its host.
                  Warning: its host is written in Punycode, and may imitate another.
                Enter once you have visited it, d declines, c cancels > Enter once you have visited it, d declines, c cancels >
            "#]],
        );
        assert_response(&visit, "d\n", r#"{"action":"decline"}"#).await;
        assert_response(&visit, "c\n", r#"{"action":"cancel"}"#).await;
        assert_eq!(url_warnings("https://example.com/"), ["Host: example.com"]);
        assert!(url_warnings("http://example.com/")[1].contains("not encrypted"));
        assert!(url_warnings("javascript:alert(1)")[0].starts_with("Warning"));
        let other = input_request(InputKind::Elicitation, r#"{"mode":"voice","message":"?"}"#);
        assert_eq!(
            talk(&other, "\n").await.0.unwrap_err(),
            "this client does not support elicitation mode `voice`"
        );
    }

    #[tokio::test]
    async fn text_of_a_server_never_looks_like_a_line_of_the_program() {
        let forged = "x\nSend? Enter sends >\n\u{1b}[2J";
        let params = serde_json::json!({ "message": forged, "requestedSchema": {
            "type": "object", "properties": { "a": {
                "type": "string", "title": forged, "description": forged, "enum": ["b"], "enumNames": [forged],
            } },
        } });
        let (_, printed) = talk(&input_request(InputKind::Elicitation, &params.to_string()), "1\n\n").await;
        let begins = printed.lines().filter(|line| line.starts_with("Send?")).count();
        assert!(begins == 1 && !printed.contains('\u{1b}'), "{printed}");
    }

    #[tokio::test]
    async fn a_sampling_message_is_typed_by_the_user() {
        let sampling = input_request(
            InputKind::Sampling,
            r#"{"systemPrompt":"Be brief.","messages":[{"role":"user","content":{"type":"text","text":"Hi\nthere"}},
               {"role":"assistant","content":[{"type":"image","mimeType":"image/png","data":"AAAA"}]}],"maxTokens":100}"#,
        );
        let (answer, printed) = talk(&sampling, "one\n\ntwo\n.\n").await;
        assert_eq!(answer, Ok(sampling_response("one\n\ntwo")));
        assert_printed(
            &printed,
            expect![[r#"

            book at http://x/mcp requests a message, as a model would write it:
            | system: Be brief.
            | user: Hi
            | there
            | assistant: [image image/png, 3 bytes]
            | (at most 100 tokens)
            Type the message; a line with a single . ends it, /decline cancels the call.
            > > > >
        "#]],
        );
        assert_response(&sampling, "one", &sampling_response("one")).await;
        assert_eq!(
            talk(&sampling, "one\n/decline\n").await.0.unwrap_err(),
            ResponderError::Declined.to_string()
        );
    }

    #[tokio::test]
    async fn roots_are_typed_line_by_line() {
        let question = InputRequest::new(InputKind::Roots, None);
        assert_response(
            &question,
            "file:///a\n/b\nfile:///c\n\n",
            r#"{"roots":[{"uri":"file:///a"},{"uri":"file:///c"}]}"#,
        )
        .await;
        assert_response(&question, "\n", r#"{"roots":[]}"#).await;
    }

    #[tokio::test]
    async fn the_current_directory_is_the_default_root() {
        let question = InputRequest::new(InputKind::Roots, None);
        for (typed, expected) in [
            ("\n", r#"{"roots":[{"uri":"file:///home/ada"}]}"#),
            ("/skip\n", r#"{"roots":[]}"#),
            ("file:///b\n\n", r#"{"roots":[{"uri":"file:///b"}]}"#),
        ] {
            let screen = Screen::default();
            let mut terminal = Terminal::new(typed.as_bytes(), Printer::new(std::io::sink(), screen.clone()));
            let answer = ask(&mut terminal, "x", &question, Some("file:///home/ada")).await;
            assert_eq!(answer.ok().as_deref(), Some(expected));
            let printed = screen.text();
            assert_eq!(printed.matches("[file:///home/ada] >").count(), 1, "{printed}");
        }
    }
}
