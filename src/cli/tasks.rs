//! `deferral tasks`: the tasks of a proxy that runs, one of them, or its end.

use super::{USAGE, operator, plain::plain};
use crate::client::{Error, Operator};
use serde::Deserialize;
use serde_json::Value;
use std::io::{self, Write};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Command {
    /// List tasks: those at work, then those that have ended, the youngest first.
    List {
        /// Only those of this route.
        #[arg(long, value_name = "PATH")]
        route: Option<String>,
        /// Only those of this tool.
        #[arg(long, value_name = "NAME")]
        tool: Option<String>,
        /// Only those of this status: working, input_required, completed, failed or cancelled.
        #[arg(long)]
        status: Option<String>,
        /// How many at most, up to 1000.
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Go on behind a list, which says where.
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Show a task.
    Show {
        /// Its handle, as the list has it, or its whole id.
        task: String,
        #[command(flatten)]
        common: Common,
    },
    /// Cancel a task, as its client could. Needs the operator's token.
    Cancel {
        /// Its handle, as the list has it, or its whole id.
        task: String,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    address: operator::Address,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Page {
    tasks: Vec<Task>,
    next: Option<String>,
}

/// What the list shows of a task.
#[derive(Deserialize)]
struct Task {
    task: String,
    route: String,
    tool: String,
    status: String,
    age_ms: u64,
}

/// Does what is asked, and prints it to `out`, or to `err` why it cannot be. Gives the exit code.
///
/// # Errors
/// Where nothing can be printed.
pub async fn run(args: Args, out: &mut impl Write, err: &mut impl Write) -> io::Result<u8> {
    let common = match &args.command {
        Command::List { common, .. } | Command::Show { common, .. } | Command::Cancel { common, .. } => {
            common
        }
    };
    let operator = match common.address.operator() {
        Ok(operator) => operator,
        Err(why) => {
            writeln!(err, "error: {why}")?;
            return Ok(USAGE);
        }
    };
    match asked(&args.command, &operator).await {
        Ok(body) if common.json => writeln!(out, "{body:#}")?,
        Ok(body) => write!(out, "{}", shown(&args.command, &body))?,
        Err(error) => {
            writeln!(err, "error: {}", plain(&common.address.explain(&error)))?;
            return Ok(1);
        }
    }
    Ok(0)
}

async fn asked(command: &Command, operator: &Operator) -> Result<Value, Error> {
    let body = match command {
        Command::List { route, tool, status, limit, after, .. } => {
            let mut path = format!("/tasks?limit={limit}");
            for (key, value) in [("route", route), ("tool", tool), ("status", status), ("after", after)] {
                if let Some(value) = value {
                    path.push_str(&format!("&{key}={}", encoded(value)));
                }
            }
            operator.get(&path).await?
        }
        Command::Show { task, .. } => operator.get(&format!("/tasks/{}", encoded(task))).await?,
        Command::Cancel { task, .. } => operator.post(&format!("/tasks/{}/cancel", encoded(task))).await?,
    };
    serde_json::from_slice(&body).map_err(|error| Error::Invalid(format!("that is no deferral: {error}")))
}

/// What is printed for people.
fn shown(command: &Command, body: &Value) -> String {
    match command {
        Command::List { .. } => match serde_json::from_value(body.clone()) {
            Ok(page) => table(&page),
            Err(error) => format!("{}\n", plain(&error.to_string())),
        },
        Command::Show { .. } => members(body),
        Command::Cancel { .. } => {
            let word = |key: &str| plain(body[key].as_str().unwrap_or_default());
            format!("{} is {}\n", word("task"), word("status"))
        }
    }
}

/// Columns of the table, which fits a terminal of 80.
const TOOL: usize = 24;
const ROUTE: usize = 15;

fn table(page: &Page) -> String {
    if page.tasks.is_empty() && page.next.is_none() {
        return "there are no such tasks\n".to_owned();
    }
    let line = |task: &str, status: &str, age: &str, tool: &str, route: &str| {
        let line = format!("{task:12}  {status:14}  {age:>7}  {tool:TOOL$}  {route}");
        format!("{}\n", line.trim_end())
    };
    let mut text = line("TASK", "STATUS", "AGE", "TOOL", "ROUTE");
    for Task { task, route, tool, status, age_ms } in &page.tasks {
        text.push_str(&line(task, status, &age(*age_ms), &cut(tool, TOOL), &cut(route, ROUTE)));
    }
    if let Some(next) = &page.next {
        text.push_str(&format!("there are more: --after {}\n", plain(next)));
    }
    text
}

/// Each member of a task on a line of its own.
fn members(task: &Value) -> String {
    let members = task.as_object().into_iter().flatten();
    let line = |(key, value): (&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{:16} {}\n", plain(key), plain(&value).replace('\n', " "))
    };
    members.map(line).collect()
}

fn age(millis: u64) -> String {
    match millis / 1000 {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// At most so many characters, of which the last says that there were more.
fn cut(text: &str, most: usize) -> String {
    let text = plain(text).replace('\n', " ");
    if text.chars().count() <= most {
        return text;
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// A value as it may stand in a URL.
/// As a path or a query has it.
pub(super) fn encoded(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    value
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn the_table_is_aligned_and_fits_80_columns() {
        let task = |tool: &str, route: &str, status: &str, age_ms| Task {
            task: "0123456789ab".into(),
            route: route.into(),
            tool: tool.into(),
            status: status.into(),
            age_ms,
        };
        let tasks = vec![
            task("report", "/mcp", "working", 7_900),
            task(&"long".repeat(20), &"/long".repeat(9), "input_required", 7_199_000),
            task("evil\u{1b}[2J", "/a", "failed", 999_999_999),
        ];
        let text = table(&Page { tasks, next: Some("e12".into()) });
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        expect![[r#"
            TASK          STATUS              AGE  TOOL                      ROUTE
            0123456789ab  working             7 s  report                    /mcp
            0123456789ab  input_required  119 min  longlonglonglonglonglon…  /long/long/lon…
            0123456789ab  failed             11 d  evil\u{1b}[2J             /a
            there are more: --after e12
        "#]]
        .assert_eq(&text);
        assert_eq!(table(&Page { tasks: Vec::new(), next: None }), "there are no such tasks\n");
    }

    #[test]
    fn a_value_stands_in_a_url_as_what_it_is() {
        assert_eq!(encoded("a/b c&é=%"), "a%2Fb%20c%26%C3%A9%3D%25");
    }
}
