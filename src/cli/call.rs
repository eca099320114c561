//! `deferral call`: calls a tool, answers what its server asks, follows its task, prints the result.
//!
//! The result goes to the standard output, everything else to the standard error: a progress bar
//! where that is a terminal, a line for each change where it is not. Questions are answered by
//! [`ask`]. The exit code says how it ended, see [`Exit`].

use super::{
    ask::{self, Asker, Unanswered},
    interrupted,
    plain::plain,
};
use crate::{
    client::{
        self, Ending, Error, Progress, REVISIONS, Session, Step, Task, Ticket, Turn, arguments, error_text,
        no_arguments, revisions,
    },
    config::values::{self, Invalid, show_duration},
    protocol::Revision,
    runtime::or_never,
};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

/// How long to wait for the answer to a cancellation before leaving anyhow.
const CANCEL_PATIENCE: Duration = Duration::from_secs(2);
/// How often a server may ask in one call. Options such as `--sampling` answer every time, so that a server could ask
/// for ever.
const MAX_ROUNDS: u32 = 100;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The MCP endpoint: a proxy, or any server over Streamable HTTP.
    #[arg(value_parser = values::upstream_url)]
    url: Uri,
    /// The tool to call.
    #[arg(required_unless_present = "task")]
    tool: Option<String>,
    /// Its arguments, a JSON object [default: {}].
    #[arg(value_name = "JSON", value_parser = arguments)]
    arguments: Option<Box<RawValue>>,
    /// A header to send with each request, as in 'Authorization: Bearer …'; may be repeated.
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Follow the task of this handle, which an earlier call became, instead of calling a tool.
    #[arg(long, value_name = "HANDLE", conflicts_with_all = ["tool", "arguments", "no_tasks"])]
    task: Option<String>,
    /// The revision to speak: 2026-07-28, 2025-11-25 with its experimental tasks, 2025-06-18 or
    /// 2025-03-26 [default: the newest that the server speaks].
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    protocol: Option<Revision>,
    /// Want no task: wait for the result on the call itself.
    #[arg(long)]
    no_tasks: bool,
    /// Print the ticket that a proxy may answer a slow call with, and the words that go with it, instead of following it.
    #[arg(long, conflicts_with = "task")]
    ticket: bool,
    /// Print the result as the JSON it came as.
    #[arg(long)]
    json: bool,
    /// Give up, and cancel the call, after this time; that of answering questions counts.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    ask: ask::Options,
}

/// How it ended, as an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The tool's result was printed.
    Done = 0,
    /// So was the tool's own error (`isError`).
    ToolError = 1,
    /// There is no result: a JSON-RPC error, no connection, a question nobody answers.
    Failed = 2,
    /// Cancelled, by Ctrl-C, by declining to answer, or by somebody else.
    Cancelled = 130,
}

/// Why there is no ending.
#[derive(Debug, thiserror::Error)]
enum Stopped {
    #[error(transparent)]
    Lost(#[from] Error),
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
    #[error("cancelled")]
    Interrupted,
    #[error("no result within {}; the call was cancelled", show_duration(*.0))]
    Overdue(Duration),
    #[error("no result after {} calls of `{tool}`; the call was cancelled", Ticket::MAX_POLLS)]
    Polls { tool: String },
    #[error("the server has asked {MAX_ROUNDS} times; the call was cancelled")]
    Rounds,
}

/// What the user sees while the call runs.
struct Screen {
    /// Drawn on the standard error where that is a terminal.
    bar: Option<ProgressBar>,
    /// What the bar says until there is something to say.
    title: String,
    /// The last line said, so that only changes are.
    last: String,
}

/// Runs the command to its end.
pub async fn run(args: Args) -> Exit {
    let headers: HeaderMap = args.headers.iter().cloned().collect();
    let mut asker = Asker::new(args.ask.clone(), format!("{} at {}", args.what(), args.url));
    let declared = asker.declared(!args.no_tasks);
    let mut session = Session::new(args.url.clone(), headers, declared, args.protocol);
    let mut screen = Screen::new(io::stderr().is_terminal(), args.what());
    let mut held = None;
    let ending = tokio::select! {
        ending = talk(&mut session, &mut asker, &mut screen, &args, &mut held) => ending,
        () = interrupted() => Err(Stopped::Interrupted),
        limit = or_never(args.timeout.map(passed)) => Err(Stopped::Overdue(limit)),
    };
    screen.make_room();
    for key in asker.unused() {
        tell(&format!("note: nothing was asked under the key `{key}`"));
    }
    let exit = conclude(ending, &mut session, held.as_ref(), args.json).await;
    session.close().await;
    exit
}

/// The call from its beginning to its end, with everything that is asked in between, and with the ticket that it may be
/// answered with in `held`.
async fn talk(
    session: &mut Session,
    asker: &mut Asker,
    screen: &mut Screen,
    args: &Args,
    held: &mut Option<Ticket>,
) -> Result<Ending, Stopped> {
    let mut arguments = args.arguments.clone().unwrap_or_else(no_arguments);
    let mut tool = args.tool.clone().unwrap_or_default();
    let called = tool.clone();
    let (mut polls, mut rounds) = (0, 0);
    let mut turn = match &args.task {
        Some(handle) => session.resume(handle, &mut |step| screen.show(&step)).await?,
        None => {
            session.open(&tool, &mut |step| screen.show(&step)).await?;
            let call = client::Call { tool: &tool, arguments: &arguments };
            session.call(&call, &mut |step| screen.show(&step)).await?
        }
    };
    loop {
        let questions = match turn {
            Turn::Ended(Ending::Result(result)) => {
                let ticket = Ticket::of(&result, &called).filter(|_| !args.ticket);
                let is_next =
                    |next: &Ticket| held.as_ref().is_none_or(|held: &Ticket| held.is_continued_by(next));
                let Some(ticket) = ticket.filter(is_next) else { return Ok(Ending::Result(result)) };
                screen.holds(&ticket, held.is_some());
                if polls == Ticket::MAX_POLLS {
                    return Err(Stopped::Polls { tool: ticket.result_tool });
                }
                polls += 1;
                (tool, arguments) = (ticket.result_tool.clone(), ticket.arguments());
                *held = Some(ticket);
                let call = client::Call { tool: &tool, arguments: &arguments };
                // Runs beside the call: a proxy that waits for the result takes longer than this.
                let pause = tokio::time::sleep(Ticket::PAUSE);
                turn = session.call(&call, &mut |step| screen.show(&step)).await?;
                if matches!(&turn, Turn::Ended(Ending::Result(next)) if Ticket::of(next, &called).is_some()) {
                    pause.await;
                }
                continue;
            }
            Turn::Ended(ending) => return Ok(ending),
            Turn::Asked(questions) => questions,
        };
        rounds += 1;
        if rounds > MAX_ROUNDS {
            return Err(Stopped::Rounds);
        }
        screen.make_room();
        let answers = asker.answer(&questions).await?;
        screen.begin();
        let call = client::Call { tool: &tool, arguments: &arguments };
        turn = session.answer(&call, &answers, &mut |step| screen.show(&step)).await?;
    }
}

/// Shows how it ended, and takes the call back where nobody waits for it any more.
async fn conclude(
    ending: Result<Ending, Stopped>,
    session: &mut Session,
    held: Option<&Ticket>,
    json: bool,
) -> Exit {
    match ending {
        Err(Stopped::Lost(error)) => failed(&error),
        Err(why @ (Stopped::Interrupted | Stopped::Unanswered(Unanswered::Declined))) => {
            cancel(session, held).await;
            tell(&why.to_string());
            Exit::Cancelled
        }
        Err(
            why @ (Stopped::Overdue(_) | Stopped::Polls { .. } | Stopped::Rounds | Stopped::Unanswered(_)),
        ) => {
            cancel(session, held).await;
            tell(&format!("error: {why}"));
            Exit::Failed
        }
        Ok(Ending::Result(result)) => print(&result, json),
        Ok(Ending::Error(error)) => {
            tell(&format!("error: {}", error_text(&error)));
            Exit::Failed
        }
        Ok(Ending::Cancelled(task)) => {
            tell(&format!("the task was cancelled{}", why(task)));
            Exit::Cancelled
        }
        Ok(Ending::Failed(task)) => {
            tell(&format!("error: the task failed{}", why(task)));
            Exit::Failed
        }
    }
}

/// What its server says of the state of a task.
fn why(task: Task) -> String {
    task.message.map(|why| format!(": {why}")).unwrap_or_default()
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

fn failed(error: &Error) -> Exit {
    tell(&format!("error: {error}"));
    if let Error::Task { task, .. } = error {
        tell(&format!(
            "the task may still be at work; its handle is {task}: `--task {task}` in the place of the tool follows it"
        ));
    }
    Exit::Failed
}

/// Says something on the standard error. What a server wrote may be in it.
fn tell(text: &str) {
    eprintln!("{}", plain(text));
}

async fn passed(limit: Duration) -> Duration {
    tokio::time::sleep(limit).await;
    limit
}

/// Takes back what is waited for, and stops the call itself where that is known by a ticket.
async fn cancel(session: &mut Session, held: Option<&Ticket>) {
    let cancelled = async {
        session.cancel().await?;
        let Some(ticket) = held else { return Ok(()) };
        let call = client::Call { tool: &ticket.cancel_tool, arguments: &ticket.arguments() };
        session.call(&call, &mut |_| {}).await.map(drop)
    };
    match tokio::time::timeout(CANCEL_PATIENCE, cancelled).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tell(&format!("the call could not be cancelled: {error}")),
        Err(_) => tell(&format!("the call could not be cancelled: no answer within {CANCEL_PATIENCE:?}")),
    }
}

// === impl Args ===

impl Args {
    /// What is called or followed.
    fn what(&self) -> &str {
        self.tool.as_deref().or(self.task.as_deref()).unwrap_or_default()
    }
}

// === impl Screen ===

impl Screen {
    fn new(terminal: bool, tool: &str) -> Self {
        let mut screen = Self {
            bar: terminal.then(ProgressBar::hidden),
            title: format!("calling {tool}"),
            last: String::new(),
        };
        screen.begin();
        screen
    }

    /// Begins to draw, for the first time or after there was room for something else.
    fn begin(&mut self) {
        if let Some(bar) = &mut self.bar {
            *bar = ProgressBar::new_spinner().with_style(spinner()).with_message(self.title.clone());
            bar.enable_steady_tick(Duration::from_millis(100));
        }
    }

    /// Takes away what is drawn, until [`Screen::begin`].
    fn make_room(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn show(&mut self, step: &Step<'_>) {
        match step {
            Step::Progress(progress) => {
                let text = progress.to_string();
                self.draw(progress, &text);
                self.say_unless_drawn(&text);
            }
            Step::Handle(task) => {
                self.say(&handle_text(task));
                self.status(task);
            }
            Step::Polled(task) => self.status(task),
            Step::Lost(error) => self.say(&format!("{error}; asking again")),
            Step::Refused { method } => {
                self.say(&format!("the server asks something ({method}), and was told that nobody answers"));
            }
            Step::Revision(spoken) => self.say(&format!("the server speaks revision {spoken}")),
        }
    }

    /// The call is answered with a ticket, for the first time or `again`.
    fn holds(&mut self, ticket: &Ticket, again: bool) {
        if !again {
            self.say(&format!("still running; its result is fetched with the ticket {}", ticket.ticket));
        }
        if let Some(message) = &ticket.status_message {
            self.say_unless_drawn(message);
        }
    }

    fn status(&mut self, task: &Task) {
        let mut text = task.status.as_str().to_owned();
        if let Some(message) = &task.message {
            let _ = write!(text, ": {message}");
        }
        if let Some((progress, message)) =
            task.message.as_deref().and_then(|message| Some((Progress::from_status(message)?, message)))
        {
            self.draw(&progress, message);
        } else if let Some(bar) = &self.bar {
            bar.set_message(plain(&text));
        }
        self.say_unless_drawn(&text);
    }

    /// Moves the bar; `text` stands beside it as it was sent.
    fn draw(&self, progress: &Progress, text: &str) {
        let Some(bar) = &self.bar else { return };
        if let Some(total) = progress.total.filter(|total| *total > 0.0) {
            // In thousandths, as the counts of a bar are whole.
            let share = (progress.done / total).clamp(0.0, 1.0) * 1000.0;
            bar.set_style(measured());
            bar.set_length(1000);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
            bar.set_position(share as u64);
        }
        bar.set_message(plain(text));
    }

    fn say(&mut self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(plain(line)),
            None => tell(line),
        }
    }

    fn say_unless_drawn(&mut self, line: &str) {
        if self.bar.is_none() && self.last != line {
            tell(line);
            line.clone_into(&mut self.last);
        }
    }
}

fn spinner() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {elapsed:>4} {wide_msg}").expect("the template is right")
}

fn measured() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {elapsed:>4} {bar:30} {percent:>3}% {wide_msg}")
        .expect("the template is right")
}

pub(super) fn handle_text(task: &Task) -> String {
    let kept = task.ttl.map_or_else(|| "for ever".to_owned(), |ttl| format!("for {}", show_duration(ttl)));
    format!("task {} (kept {kept}, polled every {})", task.id, show_duration(task.poll_interval))
}

fn print(result: &RawValue, json: bool) -> Exit {
    #[derive(Deserialize)]
    struct Outline {
        #[serde(default, rename = "isError")]
        is_error: bool,
    }
    let is_error = serde_json::from_str::<Outline>(result.get()).is_ok_and(|outline| outline.is_error);
    let text = if json { result.get().to_owned() } else { result_text(result) };
    // As it came for programs; a terminal would obey what is in it.
    let text = if io::stdout().is_terminal() { plain(&text) } else { text };
    let mut out = io::stdout().lock();
    // A reader that went away (`| head`) has seen enough.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    if is_error { Exit::ToolError } else { Exit::Done }
}

/// The contents of a tool's result for people: texts as they are, the rest named. A result without
/// contents is shown as it is.
pub(super) fn result_text(result: &RawValue) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Outline<'a> {
        #[serde(default)]
        content: Vec<Content>,
        #[serde(borrow)]
        structured_content: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Content {
        r#type: String,
        text: Option<String>,
        mime_type: Option<String>,
        data: Option<String>,
        uri: Option<String>,
        resource: Option<Resource>,
    }
    #[derive(Deserialize)]
    struct Resource {
        uri: Option<String>,
        text: Option<String>,
    }
    let Ok(outline) = serde_json::from_str::<Outline<'_>>(result.get()) else {
        return result.get().to_owned();
    };
    if outline.content.is_empty() {
        return outline.structured_content.unwrap_or(result).get().to_owned();
    }
    let shown = |content: Content| match content {
        Content { text: Some(text), .. } => text,
        Content { resource: Some(Resource { text: Some(text), .. }), .. } => text,
        Content { r#type, mime_type, data, uri, resource, .. } => {
            let mut text = format!("[{type}");
            for part in
                [mime_type, uri.or_else(|| resource.and_then(|resource| resource.uri))].into_iter().flatten()
            {
                let _ = write!(text, " {part}");
            }
            if let Some(data) = data {
                let _ = write!(text, ", {} bytes", data.trim_end_matches('=').len() * 3 / 4);
            }
            text + "]"
        }
    };
    outline.content.into_iter().map(shown).collect::<Vec<_>>().join("\n")
}

/// The date of a revision that this client speaks.
fn revision(text: &str) -> Result<Revision, Invalid> {
    Revision::parse(text).filter(|revision| REVISIONS.contains(revision)).ok_or_else(|| {
        Invalid(format!("`{text}` is no revision that this client speaks; use {}", revisions()))
    })
}

/// `Name: value`.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), Invalid> {
    let Some((name, value)) = text.split_once(':') else {
        return Err(Invalid(format!("`{text}` has no `:`; write it as in 'Authorization: Bearer …'")));
    };
    let value = HeaderValue::from_str(value.trim())
        .map_err(|_| Invalid(format!("the value of `{name}` cannot be sent in a header")))?;
    Ok((values::header(name.trim())?, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Status;

    fn raw(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn texts_are_shown_as_they_are_and_the_rest_is_named() {
        let text = result_text(&raw(
            r#"{"content":[{"type":"text","text":"one\ntwo"},{"type":"image","mimeType":"image/png","data":"AAAA"},
               {"type":"resource_link","uri":"file:///x"},{"type":"resource","resource":{"uri":"a:b","text":"inside"}},
               {"type":"resource","resource":{"uri":"a:b","blob":"AA=="}}]}"#,
        ));
        assert_eq!(
            text,
            "one\ntwo\n[image image/png, 3 bytes]\n[resource_link file:///x]\ninside\n[resource a:b]"
        );
        assert_eq!(
            result_text(&raw(r#"{"structuredContent":{"n":9007199254740993},"content":[]}"#)),
            r#"{"n":9007199254740993}"#
        );
        assert_eq!(result_text(&raw(r#"{"x":1}"#)), r#"{"x":1}"#);
    }

    #[test]
    fn headers_and_arguments_are_checked_when_typed() {
        assert!(header("X-A: b").is_ok());
        assert!(header("X-A").is_err() && header("X A: b").is_err() && header("X-A: b\nc").is_err());
        assert_eq!(
            arguments(r#"{"n": 9007199254740993}"#).expect("an object").get(),
            r#"{"n": 9007199254740993}"#
        );
        assert!(arguments("[1]").is_err() && arguments("{").is_err());
    }

    #[test]
    fn a_plain_screen_says_each_change_once() {
        let mut screen = Screen::new(false, "x");
        let mut task = Task {
            id: "t".into(),
            status: Status::Working,
            message: None,
            poll_interval: Duration::from_millis(500),
            ttl: None,
        };
        screen.show(&Step::Handle(&task));
        assert_eq!(screen.last, "working");
        task.message = Some("half".into());
        screen.show(&Step::Polled(&task));
        assert_eq!(screen.last, "working: half");
        assert_eq!(handle_text(&task), "task t (kept for ever, polled every 500ms)");
    }
}
