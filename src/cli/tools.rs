//! `deferral tools`: lists the tools of a server; and the common options for servers.

use super::{
    choice_parser::ChoiceParser,
    command_runtime::interrupted,
    exit_codes::{EXIT_CANCELLED, EXIT_FAILURE, EXIT_SUCCESS},
    printer::{Printer, to_single_line},
};
use crate::{
    client::{CallStep, ClientSupport, Error, REVISIONS, ToolList, ToolSession, revisions},
    config::values::{self, InvalidValue, show_duration},
    protocol::Revision,
    runtime::or_pending,
};
use clap::ValueHint;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use serde::Deserialize;
use std::time::Duration;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Print the tools as JSON, as they were received.
    #[arg(long)]
    json: bool,
    /// Give up after this time [default: no limit].
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<Duration>,
}

/// Options for a server.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerArgs {
    /// MCP endpoint of a proxy, or of any server over Streamable HTTP.
    #[arg(value_parser = values::http_url, value_hint = ValueHint::Url)]
    pub url: Uri,
    /// Header to send with each request, as in 'Authorization: Bearer …'. May be repeated.
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Protocol revision; 2025-11-25 has experimental tasks [default: the newest that the server supports].
    #[arg(long, value_name = "REVISION", value_parser = ChoiceParser::new(SPOKEN, revision))]
    protocol: Option<Revision>,
}

const SPOKEN: &[&str] = &["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"];

/// Maximum width of a line, in characters.
const LINE_WIDTH: usize = 100;
/// Maximum width of the column of names, in characters.
const NAME_WIDTH: usize = 32;

/// Prints the tools and returns the exit code.
pub async fn run(args: Args, printer: &mut Printer) -> u8 {
    list_tools(&args.server, args.json, args.timeout, printer).await
}

/// Prints the tools of a server and returns the exit code.
pub(super) async fn list_tools(
    server: &ServerArgs,
    json: bool,
    timeout: Option<Duration>,
    printer: &mut Printer,
) -> u8 {
    let mut session = server.session(ClientSupport::default());
    let mut ignore = |_: CallStep<'_>| {};
    let outcome = tokio::select! {
        found = session.list_tools(&mut ignore) => found,
        () = interrupted() => {
            printer.note("cancelled");
            return EXIT_CANCELLED;
        }
        limit = or_pending(timeout.map(async |limit| { tokio::time::sleep(limit).await; limit })) => {
            printer.error(format_args!("no tool list within {}", show_duration(limit)));
            return EXIT_FAILURE;
        }
    };
    session.close().await;
    match outcome {
        Ok(list) => print_tools(&list, json, printer),
        Err(error) => {
            printer.error(error);
            EXIT_FAILURE
        }
    }
}

fn print_tools(ToolList { tools, is_truncated }: &ToolList, json: bool, printer: &mut Printer) -> u8 {
    #[derive(Deserialize)]
    struct ToolHeading {
        name: String,
        #[serde(default)]
        description: Option<String>,
    }
    let read = || tools.iter().map(|tool| serde_json::from_str::<ToolHeading>(tool.get()));
    if *is_truncated {
        printer.note(format_args!("note: the server has more tools; these are the first {}", tools.len()));
    }
    if json {
        printer.json(tools);
        return EXIT_SUCCESS;
    }
    if tools.is_empty() {
        printer.note("the server lists no tools");
    }
    let widths = read().flatten().map(|tool| to_single_line(&tool.name).chars().count());
    let width = widths.max().unwrap_or_default().min(NAME_WIDTH);
    for tool in read() {
        match tool {
            Ok(ToolHeading { name, description }) => {
                let summary = description.unwrap_or_default();
                let summary = summary.trim().lines().next().unwrap_or_default();
                let line = format!("{:width$}  {}", to_single_line(&name), to_single_line(summary));
                printer.line(truncate(line.trim_end(), LINE_WIDTH));
            }
            Err(error) => {
                printer.error(Error::ListRefused(error.to_string()));
                return EXIT_FAILURE;
            }
        }
    }
    EXIT_SUCCESS
}

/// Truncates a text to `max_chars` characters, with an ellipsis.
pub(super) fn truncate(text: &str, max_chars: usize) -> String {
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    text.chars().take(max_chars.saturating_sub(1)).chain(['…']).collect()
}

// === impl ServerArgs ===

impl ServerArgs {
    /// Creates a client session that declares these capabilities.
    pub fn session(&self, declared: ClientSupport) -> ToolSession {
        let headers: HeaderMap = self.headers.iter().cloned().collect();
        ToolSession::new(self.url.clone(), headers, declared, self.protocol)
    }
}

/// Parses a revision that this client supports.
fn revision(text: &str) -> Result<Revision, InvalidValue> {
    Revision::parse(text).filter(|revision| REVISIONS.contains(revision)).ok_or_else(|| {
        InvalidValue(format!("`{text}` is not a revision that this client supports; use {}", revisions()))
    })
}

/// Parses `Name: value`.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), InvalidValue> {
    let Some((name, value)) = text.split_once(':') else {
        return Err(InvalidValue(format!("`{text}` has no `:`; write it as in 'Authorization: Bearer …'")));
    };
    let value = HeaderValue::from_str(value.trim())
        .map_err(|_| InvalidValue(format!("the value of `{name}` cannot be sent in a header")))?;
    Ok((values::header(name.trim())?, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::printer::tests::Screen;
    use serde_json::value::RawValue;

    fn printed(tools: &[&str], json: bool) -> (u8, String) {
        let raw = |text: &&str| RawValue::from_string((*text).to_owned()).expect("JSON");
        let list = ToolList { tools: tools.iter().map(raw).collect(), is_truncated: false };
        let screen = Screen::default();
        let code = print_tools(&list, json, &mut Printer::new(screen.clone(), screen.clone()));
        (code, screen.text())
    }

    #[test]
    fn tools_are_listed_with_the_first_line_of_their_descriptions() {
        let long = format!(r#"{{"name":"c","description":"{}"}}"#, "x".repeat(200));
        let tools =
            [r#"{"name":"greet","description":"\n Says hello.\nIn full."}"#, r#"{"name":"b"}"#, &long];
        let (code, text) = printed(&tools, false);
        assert!(code == EXIT_SUCCESS && text.starts_with("greet  Says hello.\nb\nc      xxx"), "{text}");
        assert_eq!(text.lines().map(|line| line.chars().count()).max(), Some(LINE_WIDTH));
        assert_eq!(printed(&[], false), (EXIT_SUCCESS, "the server lists no tools\n".to_owned()));
        let (_, json) = printed(&tools[1..2], true);
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&json).expect("JSON"),
            serde_json::json!([{ "name": "b" }])
        );
    }

    #[test]
    fn a_tool_with_a_line_break_in_its_name_is_one_line() {
        let (_, text) = printed(&[r#"{"name":"a\nerror: b\u001b[2J","description":"\u202ec"}"#], false);
        assert!(text.lines().count() == 1 && !text.contains(['\u{1b}', '\u{202e}']), "{text}");
    }

    #[test]
    fn headers_are_checked_when_typed() {
        assert!(header("X-A: b").is_ok());
        assert!(header("X-A").is_err() && header("X A: b").is_err() && header("X-A: b\nc").is_err());
    }

    #[test]
    fn every_supported_revision_is_offered() {
        assert_eq!(SPOKEN, REVISIONS.map(Revision::as_str));
    }
}
