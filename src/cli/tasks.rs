//! `deferral tasks`: lists, shows or cancels tasks of a running proxy.

use super::{
    choice_parser::ChoiceParser,
    exit_codes::{EXIT_FAILURE, EXIT_SUCCESS},
    operator,
    printer::{Printer, to_single_line},
    tools::truncate,
};
use crate::client::{AdminClient, Error};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::fmt::Write as _;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: TasksCommand,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum TasksCommand {
    /// List tasks: active ones, then finished ones, newest first.
    List {
        /// Only tasks of this route.
        #[arg(long, value_name = "PATH")]
        route: Option<String>,
        /// Only tasks of this tool.
        #[arg(long, value_name = "NAME")]
        tool: Option<String>,
        /// Only tasks with this status.
        #[arg(long, value_parser = ChoiceParser::new(STATUSES, status))]
        status: Option<String>,
        /// Maximum number of tasks, up to 1000.
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Continue an earlier list at the position that it printed.
        #[arg(long, value_name = "POSITION")]
        after: Option<String>,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Show a task.
    Show {
        /// Task id (the handle that the client received), or at least its first 4 digits, as the list and the log show it.
        task: String,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Cancel a task, as its client could. Requires the admin token.
    Cancel {
        /// Task id (the handle that the client received), or at least its first 4 digits, as the list and the log show it.
        task: String,
        #[command(flatten)]
        common: CommonArgs,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct CommonArgs {
    #[command(flatten)]
    address: operator::AdminArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const STATUSES: &[&str] = &["working", "input_required", "completed", "failed", "cancelled"];

#[derive(Deserialize)]
struct TaskListResponse {
    tasks: Vec<TaskRow>,
    next: Option<String>,
}

/// A task in the list, as the admin listener returns it.
#[derive(Deserialize)]
struct TaskRow {
    task: String,
    route: String,
    tool: String,
    status: String,
    age_ms: u64,
    principal: String,
    /// The token name of its principal, if it has one.
    #[serde(default)]
    caller: Option<String>,
    message: Option<String>,
}

/// The details of one task.
#[derive(Deserialize)]
struct TaskDetails {
    #[serde(flatten)]
    task: TaskRow,
    view: String,
    created: String,
    kept_until: String,
    #[serde(default)]
    questions: Vec<PendingInputRequest>,
    waits: usize,
    is_held: bool,
    is_lost: bool,
    waits_for_store: bool,
}

#[derive(Deserialize)]
struct PendingInputRequest {
    key: String,
    kind: String,
    since_ms: u64,
}

/// Runs the command and returns the exit code.
pub async fn run(args: Args, printer: &mut Printer) -> u8 {
    let common = match &args.command {
        TasksCommand::List { common, .. }
        | TasksCommand::Show { common, .. }
        | TasksCommand::Cancel { common, .. } => common,
    };
    let client = match common.address.client() {
        Ok(client) => client,
        Err(error) => {
            printer.error(error);
            return EXIT_FAILURE;
        }
    };
    let printed = match fetch(&args.command, &client).await {
        Ok(body) if common.json => {
            printer.json(&body);
            Ok(())
        }
        Ok(body) => show(&args.command, body, printer),
        Err(error) => Err(error),
    };
    match printed {
        Ok(()) => EXIT_SUCCESS,
        Err(error) => common.address.report(&error, printer),
    }
}

async fn fetch(command: &TasksCommand, client: &AdminClient) -> Result<Value, Error> {
    let body = match command {
        TasksCommand::List { route, tool, status, limit, after, .. } => {
            let mut path = format!("/tasks?limit={limit}");
            for (key, value) in [("route", route), ("tool", tool), ("status", status), ("after", after)] {
                if let Some(value) = value {
                    path.push_str(&format!("&{key}={}", percent_encode(value)));
                }
            }
            client.get(&path).await?
        }
        TasksCommand::Show { task, .. } => client.get(&format!("/tasks/{}", percent_encode(task))).await?,
        TasksCommand::Cancel { task, .. } => {
            client.post(&format!("/tasks/{}/cancel", percent_encode(task))).await?
        }
    };
    serde_json::from_slice(&body).map_err(|error| invalid_response(&error))
}

fn invalid_response(error: &serde_json::Error) -> Error {
    Error::Invalid(format!("unexpected response, perhaps of another version of deferral: {error}"))
}

/// Prints the response as text.
fn show(command: &TasksCommand, body: Value, printer: &mut Printer) -> Result<(), Error> {
    fn read<T: DeserializeOwned>(body: Value) -> Result<T, Error> {
        serde_json::from_value(body).map_err(|error| invalid_response(&error))
    }
    match command {
        TasksCommand::List { .. } => {
            for line in table(&read(body)?) {
                printer.line(line);
            }
        }
        TasksCommand::Show { .. } => {
            for line in read::<TaskDetails>(body)?.lines() {
                printer.line(line);
            }
        }
        TasksCommand::Cancel { .. } => {
            let TaskRow { task, status, .. } = read(body)?;
            printer.line(format_args!("{task} is {status}"));
        }
    }
    Ok(())
}

/// Parses a status.
fn status(text: &str) -> Result<String, String> {
    match STATUSES.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!("unknown status `{text}`; use one of {}", STATUSES.join(", "))),
    }
}

/// Heading and maximum width of each column; the last column takes the rest of [`LINE_WIDTH`].
const COLUMNS: [(&str, usize); 7] = [
    ("TASK", 12),
    ("STATUS", 14),
    ("AGE", 7),
    ("TOOL", 24),
    ("ROUTE", 15),
    ("CALLER", 16),
    ("PROGRESS", usize::MAX),
];
/// Index of the column of the route.
const ROUTE_COLUMN: usize = 4;
/// Maximum width of a line, in characters.
const LINE_WIDTH: usize = 120;

/// Returns the lines of the table. The route has a column only if there are several routes.
fn table(page: &TaskListResponse) -> Vec<String> {
    if page.tasks.is_empty() && page.next.is_none() {
        return vec!["no tasks".to_owned()];
    }
    let mut rows = vec![COLUMNS.map(|(heading, _)| heading.to_owned())];
    rows.extend(page.tasks.iter().map(TaskRow::row));
    let has_routes = page.tasks.windows(2).any(|pair| pair[0].route != pair[1].route);
    let widths: Vec<_> = COLUMNS
        .iter()
        .enumerate()
        .map(|(column, (_, max_width))| {
            let longest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
            longest.min(*max_width)
        })
        .collect();
    let line = |row: &[String; 7]| {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if column == ROUTE_COLUMN && !has_routes {
                continue;
            }
            let width = *width;
            let _ = match COLUMNS[column].0 {
                "AGE" => write!(line, "{:>width$}  ", truncate(cell, width)),
                "PROGRESS" => write!(line, "{cell}"),
                _ => write!(line, "{:width$}  ", truncate(cell, width)),
            };
        }
        truncate(line.trim_end(), LINE_WIDTH)
    };
    let mut lines: Vec<_> = rows.iter().map(line).collect();
    lines.extend(page.next.as_ref().map(|next| format!("more tasks follow: --after {next}")));
    lines
}

// === impl TaskRow ===

impl TaskRow {
    fn caller(&self) -> &str {
        self.caller.as_deref().unwrap_or(&self.principal)
    }

    /// Returns the cells of the row, in the order of [`COLUMNS`].
    fn row(&self) -> [String; 7] {
        let Self { task, route, tool, status, age_ms, message, .. } = self;
        let progress = message.as_deref().filter(|_| !self.is_ended()).unwrap_or_default();
        [task, status, &format_age(*age_ms), tool, route, self.caller(), progress].map(to_single_line)
    }

    fn is_ended(&self) -> bool {
        !matches!(&*self.status, "working" | "input_required")
    }
}

// === impl TaskDetails ===

impl TaskDetails {
    fn lines(&self) -> Vec<String> {
        let Self { task, view, created, kept_until, questions, waits, is_held, is_lost, waits_for_store } =
            self;
        let view = match view.as_str() {
            "extension" => "a task of the tasks extension (2026-07-28)",
            "experimental" => "a task of 2025-11-25",
            "ticket" => "a ticket",
            other => other,
        };
        let mut lines = vec![format!("{}: {} on {}", task.task, task.tool, task.route)];
        let mut add = |name: &str, value: &str| lines.push(format!("  {name:10} {value}"));
        let message = task.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
        add("status", &format!("{}{message}", task.status));
        add("caller", task.caller());
        add("age", &format!("{}, since {created}", format_age(task.age_ms)));
        add("shown as", view);
        for PendingInputRequest { key, kind, since_ms } in questions {
            add("asks", &format!("{kind} (`{key}`), for {}", format_age(*since_ms)));
        }
        if task.is_ended() {
            add("kept until", kept_until);
        } else {
            let clients = if *waits == 1 { "1 client waits" } else { &format!("{waits} clients wait") };
            let state = match (is_held, is_lost) {
                (true, _) => "running in this process",
                (false, true) => "its process has ended; the task will fail soon",
                (false, false) => "running in another process",
            };
            add("call", &format!("{state}; {clients}"));
        }
        if *waits_for_store {
            add("store", "has not stored the last change yet");
        }
        lines
    }
}

fn format_age(millis: u64) -> String {
    match millis / 1000 {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Percent-encodes a value for a path or a query.
pub(super) fn percent_encode(value: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    value
        .bytes()
        .map(|byte| if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn task(tool: &str, route: &str, status: &str, age_ms: u64) -> TaskRow {
        TaskRow {
            task: "0123456789ab".into(),
            route: route.into(),
            tool: tool.into(),
            status: status.into(),
            age_ms,
            principal: "anonymous".into(),
            caller: None,
            message: Some("files (3/12)".into()),
        }
    }

    #[test]
    fn the_table_is_aligned_and_shows_caller_and_progress() {
        let tasks = vec![
            task("report", "/mcp", "working", 7_900),
            TaskRow { caller: Some("alice".into()), ..task("import", "/mcp", "completed", 60_000) },
        ];
        let text = table(&TaskListResponse { tasks, next: None }).join("\n");
        expect![[r#"
            TASK          STATUS      AGE  TOOL    CALLER     PROGRESS
            0123456789ab  working     7 s  report  anonymous  files (3/12)
            0123456789ab  completed  60 s  import  alice"#]]
        .assert_eq(&text);
        assert_eq!(table(&TaskListResponse { tasks: Vec::new(), next: None }), ["no tasks"]);
    }

    #[test]
    fn a_table_of_several_routes_has_a_route_column_and_truncates() {
        let tasks = vec![
            task(&"long".repeat(20), &"/long".repeat(9), "input_required", 7_199_000),
            TaskRow {
                message: Some("x".repeat(200)),
                ..task("evil\u{1b}[2J\nerror: x", "/a", "working", 999_999_999)
            },
        ];
        let lines = table(&TaskListResponse { tasks, next: Some("e12".into()) });
        assert!(lines.iter().all(|line| line.chars().count() <= LINE_WIDTH), "{lines:#?}");
        assert!(
            lines[1].contains("  119 min  longlonglonglonglonglon…  /long/long/lon…  anon"),
            "{lines:#?}"
        );
        assert!(lines[2].contains("   11 d  evil\\u{1b}[2J error: x  "), "{lines:#?}");
        assert_eq!(lines[3], "more tasks follow: --after e12");
        assert_eq!(lines.len(), 4, "a tool's name makes no line");
    }

    #[test]
    fn one_task_is_shown_as_text() {
        let details = TaskDetails {
            task: task("report", "/mcp", "input_required", 7_900),
            view: "ticket".into(),
            created: "2026-07-28T10:30:00Z".into(),
            kept_until: "2026-07-28T11:30:00Z".into(),
            questions: vec![PendingInputRequest {
                key: "who".into(),
                kind: "elicitation/create".into(),
                since_ms: 5_000,
            }],
            waits: 1,
            is_held: true,
            is_lost: false,
            waits_for_store: false,
        };
        expect![[r#"
            0123456789ab: report on /mcp
              status     input_required: files (3/12)
              caller     anonymous
              age        7 s, since 2026-07-28T10:30:00Z
              shown as   a ticket
              asks       elicitation/create (`who`), for 5 s
              call       running in this process; 1 client waits"#]]
        .assert_eq(&details.lines().join("\n"));
    }

    #[test]
    fn a_value_is_percent_encoded_in_a_url() {
        assert_eq!(percent_encode("a/b c&é=%"), "a%2Fb%20c%26%C3%A9%3D%25");
    }
}
