//! `deferral tap`: live traffic of a running proxy.

use super::{
    exit_codes::{EXIT_FAILURE, EXIT_SUCCESS},
    operator,
    printer::Printer,
    tasks::percent_encode,
};
use serde_json::{Value, value::RawValue};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Show this route only, by its path.
    #[arg(long, value_name = "PATH")]
    route: Option<String>,
    /// Show requests of this principal (caller) only: the name of its token, or the 16 hex digits by which the access log shows it.
    #[arg(long, value_name = "PRINCIPAL")]
    caller: Option<String>,
    /// Show matching tools only; `*` matches any characters, `?` one.
    #[arg(long, value_name = "PATTERN")]
    tool: Option<String>,
    /// Show arguments and results of calls, which may be confidential.
    #[arg(long)]
    arguments: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    address: operator::AdminArgs,
}

/// Prints events until the proxy or the reader closes the stream. Returns the exit code.
pub async fn run(args: Args, printer: &mut Printer) -> u8 {
    let client = match args.address.client() {
        Ok(client) => client,
        Err(error) => {
            printer.error(error);
            return EXIT_FAILURE;
        }
    };
    let mut lines = match client.lines(&args.request_path()).await {
        Ok(lines) => lines,
        Err(error) => return args.address.report(&error, printer),
    };
    loop {
        match lines.next().await {
            // An empty line keeps the connection alive.
            Ok(Some(line)) => print_event(&line, args.json, printer),
            Ok(None) => {
                printer.note_line("the proxy closed the tap");
                return EXIT_SUCCESS;
            }
            Err(error) => return args.address.report(&error, printer),
        }
        if printer.has_failed() {
            return EXIT_SUCCESS;
        }
    }
}

fn print_event(line: &[u8], is_json: bool, printer: &mut Printer) {
    if is_json {
        if let Ok(event) = serde_json::from_slice::<Box<RawValue>>(line) {
            printer.raw_json(&event);
        }
    } else if let Ok(event) = serde_json::from_slice::<Value>(line) {
        printer.line(format_event(&event));
    }
}

/// Formats an event as one line of text.
fn format_event(event: &Value) -> String {
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    let number = |name: &str| event[name].as_u64();
    if text("event") == "lost" {
        return format!(
            "({} lines were dropped: this tap reads too slowly)",
            number("lines").unwrap_or_default()
        );
    }
    let time = text("at").split('T').nth(1).unwrap_or_default().trim_end_matches('Z');
    let caller = if event["caller"].is_string() { text("caller") } else { text("principal") };
    let mut words = vec![time.to_owned(), text("route").to_owned(), caller.to_owned()];
    match text("event") {
        "task" => {
            words.push(format!("task {}", text("task")));
            words.push(text("tool").to_owned());
            words.push(format!("{} -> {}", text("from"), text("to")));
        }
        "input_request" => {
            words.extend(["tool", "method", "outcome"].map(|name| text(name).to_owned()));
        }
        _ => {
            words.extend([text("method").to_owned(), text("target").to_owned(), text("outcome").to_owned()]);
            words.extend(number("status").map(|status| status.to_string()));
            words.extend(event["took_ms"].as_f64().map(|took| format!("{took:.0} ms")));
            if !text("task").is_empty() {
                words.push(format!("task {}", text("task")));
            }
            words.push(text("reason").to_owned());
        }
    }
    for name in ["arguments", "result"] {
        if let Some(value) = event.get(name) {
            words.push(format!("{name}={value}"));
        }
    }
    words.retain(|word| !word.is_empty());
    words.join("  ")
}

// === impl Args ===

impl Args {
    fn request_path(&self) -> String {
        let filters = [("route", &self.route), ("caller", &self.caller), ("tool", &self.tool)];
        let filters = filters
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", percent_encode(value.as_deref()?))));
        let filters: Vec<_> = filters.chain(self.arguments.then(|| "arguments=1".to_owned())).collect();
        match filters.is_empty() {
            true => "/tap".to_owned(),
            false => format!("/tap?{}", filters.join("&")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::printer::tests::Screen;
    use serde_json::json;

    fn printed(event: &Value, is_json: bool) -> String {
        let screen = Screen::default();
        print_event(event.to_string().as_bytes(), is_json, &mut Printer::new(screen.clone(), screen.clone()));
        screen.text()
    }

    #[test]
    fn an_event_is_one_line_with_control_characters_escaped() {
        let event = json!({
            "at": "2026-07-28T10:30:00.250Z", "event": "request", "route": "/mcp", "principal": "00ff", "caller": "alice",
            "method": "tools/call", "target": "a\u{1b}[2Jb\nforged", "outcome": "result", "status": 200, "took_ms": 12,
            "arguments": { "text": "x\u{202e}y\n" },
        });
        assert_eq!(
            printed(&event, false),
            "10:30:00.250  /mcp  alice  tools/call  a\\u{1b}[2Jb forged  result  200  12 ms  arguments={\"text\":\"x\\u{202e}y\\n\"}\n"
        );
        let json = printed(&event, true);
        assert!(!json.contains('\u{202e}') && !json.contains('\u{1b}'), "{json}");
        assert_eq!(json.lines().count(), 1);
        assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), event);
        assert_eq!(
            printed(&json!({ "event": "lost", "lines": 3 }), false),
            "(3 lines were dropped: this tap reads too slowly)\n"
        );
        let opened = json!({
            "at": "2026-07-28T10:30:00Z", "event": "input_request", "route": "/mcp", "principal": "00ff",
            "tool": "book", "method": "elicitation/create", "outcome": "asked",
        });
        assert_eq!(printed(&opened, false), "10:30:00  /mcp  00ff  book  elicitation/create  asked\n");
        let screen = Screen::default();
        print_event(b"", true, &mut Printer::new(screen.clone(), screen.clone()));
        assert_eq!(screen.text(), "");
    }
}
