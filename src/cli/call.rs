//! `deferral call`: calls a tool, responds to input requests, follows its task, and prints the result.
//!
//! The result goes to standard output, everything else to standard error: a progress bar on a terminal,
//! otherwise a line for each change. [`ask`] responds to input requests. The exit code depends on the outcome
//! (`docs/commands.md`).

use super::{
    ask::{self, InputResponder, ResponderError},
    command_runtime::interrupted,
    exit_codes::{EXIT_CANCELLED, EXIT_FAILURE, EXIT_NEGATIVE, EXIT_SUCCESS},
    printer::{Printer, StatusBar},
    tools::{self, ServerArgs},
};
use crate::{
    client::{
        self, CallEnding, CallStep, CallTurn, Error, Progress, Task, Ticket, ToolSession, arguments,
        error_text, no_arguments,
    },
    config::values::{self, show_duration},
    runtime::or_pending,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{fmt::Write as _, time::Duration};
use tokio::time::{sleep, timeout};

/// Longest wait for the response to a cancellation before the program exits.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which a pending cancellation is reported.
const CANCEL_NOTICE_DELAY: Duration = Duration::from_millis(250);
/// Maximum number of rounds of input requests in one call. Options such as `--sampling` respond every time,
/// so a server could continue forever.
const MAX_ROUNDS: u32 = 100;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Tool to call. Without it, the tools of the server are listed.
    tool: Option<String>,
    /// Arguments of the tool, a JSON object [default: {}].
    #[arg(value_name = "JSON", value_parser = arguments)]
    arguments: Option<Box<RawValue>>,
    /// Follow the task with this handle (task id), which an earlier call printed, instead of calling a tool.
    #[arg(long, value_name = "HANDLE", conflicts_with_all = ["tool", "arguments", "no_tasks"])]
    task: Option<String>,
    /// Do not declare support for tasks: wait for the result of the call itself.
    #[arg(long)]
    no_tasks: bool,
    /// If the proxy responds with a ticket, print it and its text instead of following it.
    #[arg(long, conflicts_with = "task")]
    ticket: bool,
    /// Print the result as JSON, as it was received.
    #[arg(long)]
    json: bool,
    /// Cancel the call and give up after this time, which includes the time for answering input requests [default: no limit].
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    ask: ask::AnswerArgs,
}

/// Reason why a call has no outcome.
#[derive(Debug, thiserror::Error)]
enum CallFailure {
    #[error(transparent)]
    Client(#[from] Error),
    #[error(transparent)]
    Responder(#[from] ResponderError),
    #[error("cancelled")]
    Interrupted,
    #[error("no result within {}; the call was cancelled", show_duration(*.0))]
    TimedOut(Duration),
    #[error("no result after {} calls of `{tool}`; the call was cancelled", Ticket::MAX_POLLS)]
    TooManyPolls { tool: String },
    #[error("the server has requested input {MAX_ROUNDS} times; the call was cancelled")]
    TooManyRounds,
}

/// Output of the progress of a call.
struct ProgressScreen<'a> {
    printer: &'a mut Printer,
    /// The progress bar, on standard error; `None` if that is not a terminal.
    bar: Option<StatusBar>,
    /// The initial text of the bar.
    title: String,
    /// The last printed line, so that only changes are printed.
    last_line: String,
}

/// Runs the command and returns the exit code.
pub async fn run(args: Args, printer: &mut Printer) -> u8 {
    if args.tool.is_none() && args.task.is_none() {
        return tools::list_tools(&args.server, args.json, args.timeout, printer).await;
    }
    let mut responder =
        InputResponder::new(args.ask.clone(), format!("{} at {}", args.target(), args.server.url));
    let mut session = args.server.session(responder.declared_support(!args.no_tasks));
    let mut screen = ProgressScreen::new(StatusBar::on_terminal(), args.target(), printer);
    let mut current_ticket = None;
    let ending = tokio::select! {
        ending = run_call(&mut session, &mut responder, &mut screen, &args, &mut current_ticket) => ending,
        () = interrupted() => Err(CallFailure::Interrupted),
        limit = or_pending(args.timeout.map(wait_for)) => Err(CallFailure::TimedOut(limit)),
    };
    screen.clear();
    for key in responder.unused_keys() {
        printer.note(format_args!("note: no input request had the key `{key}`; its --answer was not used"));
    }
    let code = conclude(ending, &mut session, current_ticket.as_ref(), args.json, printer).await;
    session.close().await;
    code
}

/// Runs the call to its end, including input requests. If the response is a ticket, stores it in
/// `current_ticket`.
async fn run_call(
    session: &mut ToolSession,
    responder: &mut InputResponder,
    screen: &mut ProgressScreen<'_>,
    args: &Args,
    current_ticket: &mut Option<Ticket>,
) -> Result<CallEnding, CallFailure> {
    let mut arguments = args.arguments.clone().unwrap_or_else(no_arguments);
    let mut tool = args.tool.clone().unwrap_or_default();
    let called_tool = tool.clone();
    let (mut polls, mut rounds) = (0, 0);
    let mut turn = match &args.task {
        Some(handle) => session.resume(handle, &mut |step| screen.show(&step)).await?,
        None => {
            session.open(&tool, &mut |step| screen.show(&step)).await?;
            let call = client::ToolCall { tool: &tool, arguments: &arguments };
            session.call(&call, &mut |step| screen.show(&step)).await?
        }
    };
    loop {
        let requests = match turn {
            CallTurn::Ended(CallEnding::Result(result)) => {
                let ticket = Ticket::from_result(&result, &called_tool).filter(|_| !args.ticket);
                let is_next = |next: &Ticket| {
                    current_ticket.as_ref().is_none_or(|current: &Ticket| current.is_continued_by(next))
                };
                let Some(ticket) = ticket.filter(is_next) else { return Ok(CallEnding::Result(result)) };
                screen.show_ticket(&ticket, current_ticket.is_some());
                if polls == Ticket::MAX_POLLS {
                    return Err(CallFailure::TooManyPolls { tool: ticket.result_tool });
                }
                polls += 1;
                (tool, arguments) = (ticket.result_tool.clone(), ticket.arguments());
                *current_ticket = Some(ticket);
                let call = client::ToolCall { tool: &tool, arguments: &arguments };
                // The pause runs in parallel to the call: a proxy that waits for the result takes longer than
                // the pause.
                let pause = sleep(Ticket::MIN_POLL_INTERVAL);
                turn = session.call(&call, &mut |step| screen.show(&step)).await?;
                if matches!(&turn, CallTurn::Ended(CallEnding::Result(next)) if Ticket::from_result(next, &called_tool).is_some())
                {
                    pause.await;
                }
                continue;
            }
            CallTurn::Ended(ending) => return Ok(ending),
            CallTurn::InputRequired(requests) => requests,
        };
        rounds += 1;
        if rounds > MAX_ROUNDS {
            return Err(CallFailure::TooManyRounds);
        }
        screen.clear();
        let responses = responder.respond(&requests).await?;
        screen.begin();
        let call = client::ToolCall { tool: &tool, arguments: &arguments };
        turn = session.respond(&call, &responses, &mut |step| screen.show(&step)).await?;
    }
}

/// Prints the outcome, and cancels the call if its result is no longer awaited. Returns the exit code.
async fn conclude(
    ending: Result<CallEnding, CallFailure>,
    session: &mut ToolSession,
    current_ticket: Option<&Ticket>,
    json: bool,
    printer: &mut Printer,
) -> u8 {
    match ending {
        Err(CallFailure::Client(error)) => report_error(&error, printer),
        Err(failure @ (CallFailure::Interrupted | CallFailure::Responder(ResponderError::Declined))) => {
            cancel(session, current_ticket, printer).await;
            printer.note(failure);
            EXIT_CANCELLED
        }
        Err(
            failure @ (CallFailure::TimedOut(_)
            | CallFailure::TooManyPolls { .. }
            | CallFailure::TooManyRounds
            | CallFailure::Responder(_)),
        ) => {
            cancel(session, current_ticket, printer).await;
            printer.error(failure);
            EXIT_FAILURE
        }
        Ok(CallEnding::Result(result)) => print_result(&result, json, printer),
        Ok(CallEnding::Error(error)) => {
            printer.error(error_text(&error));
            EXIT_FAILURE
        }
        Ok(CallEnding::Cancelled(task)) => {
            printer.note(format_args!("the task was cancelled{}", status_suffix(task)));
            EXIT_CANCELLED
        }
        Ok(CallEnding::Failed(task)) => {
            printer.error(format_args!("the task failed{}", status_suffix(task)));
            EXIT_FAILURE
        }
    }
}

/// Returns the status message of a task, after a colon; empty if it has none.
fn status_suffix(task: Task) -> String {
    task.message.map(|message| format!(": {message}")).unwrap_or_default()
}

fn report_error(error: &Error, printer: &mut Printer) -> u8 {
    printer.error(error);
    if let Error::Task { task, .. } = error {
        printer.note(format_args!(
            "the task may still be running; its handle is {task}: follow it with `--task {task}` instead of a tool"
        ));
    }
    EXIT_FAILURE
}

async fn wait_for(limit: Duration) -> Duration {
    sleep(limit).await;
    limit
}

/// Cancels the pending request, and the call itself if a ticket identifies it.
async fn cancel(session: &mut ToolSession, current_ticket: Option<&Ticket>, printer: &mut Printer) {
    let cancellation = async {
        session.cancel().await?;
        let Some(ticket) = current_ticket else { return Ok(()) };
        let call = client::ToolCall { tool: &ticket.cancel_tool, arguments: &ticket.arguments() };
        session.call(&call, &mut |_| {}).await.map(drop)
    };
    let answered = timeout(CANCEL_TIMEOUT, cancellation);
    tokio::pin!(answered);
    let early_outcome = tokio::select! {
        answered = &mut answered => Some(answered),
        () = sleep(CANCEL_NOTICE_DELAY) => None,
    };
    let outcome = match early_outcome {
        Some(answered) => answered,
        None => {
            let limit = show_duration(CANCEL_TIMEOUT);
            printer.note(format_args!(
                "cancelling: waiting up to {limit} for the server's response; press Ctrl-C again to exit at once"
            ));
            tokio::select! {
                answered = &mut answered => answered,
                () = interrupted() => return,
            }
        }
    };
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => printer.note(format_args!("the call could not be cancelled: {error}")),
        Err(_) => printer.note(format_args!(
            "the call could not be cancelled: no response within {}",
            show_duration(CANCEL_TIMEOUT)
        )),
    }
}

// === impl Args ===

impl Args {
    /// Returns the tool to call, or the task to follow.
    fn target(&self) -> &str {
        self.tool.as_deref().or(self.task.as_deref()).unwrap_or_default()
    }
}

// === impl ProgressScreen ===

impl<'a> ProgressScreen<'a> {
    fn new(bar: Option<StatusBar>, tool: &str, printer: &'a mut Printer) -> Self {
        let mut screen = Self { printer, bar, title: format!("calling {tool}"), last_line: String::new() };
        screen.begin();
        screen
    }

    /// Starts to draw the bar, initially or after other output.
    fn begin(&mut self) {
        if let Some(bar) = &mut self.bar {
            bar.begin(&self.title);
        }
    }

    /// Removes the bar until the next [`ProgressScreen::begin`].
    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.clear();
        }
    }

    fn show(&mut self, step: &CallStep<'_>) {
        match step {
            CallStep::Progress(progress) => {
                let text = progress.to_string();
                self.draw(progress, &text);
                self.print_unless_drawn(&text);
            }
            CallStep::Handle(task) => {
                self.print(&describe_task(task));
                self.show_status(task);
            }
            CallStep::Polled(task) => self.show_status(task),
            CallStep::Lost(error) => self.print(&format!("{error}; retrying")),
            CallStep::Refused { method } => {
                self.print(&format!(
                    "the server requests input ({method}), which was refused: no answers are available"
                ));
            }
            CallStep::Revision(revision) => self.print(&format!("the server uses revision {revision}")),
        }
    }

    /// Reports a ticket, or only its status message if the ticket has been reported before.
    fn show_ticket(&mut self, ticket: &Ticket, is_repeated: bool) {
        if !is_repeated {
            self.print(&format!("still running; fetching the result with the ticket {}", ticket.ticket));
        }
        if let Some(message) = &ticket.status_message {
            self.print_unless_drawn(message);
        }
    }

    fn show_status(&mut self, task: &Task) {
        let mut text = task.status.as_str().to_owned();
        if let Some(message) = &task.message {
            let _ = write!(text, ": {message}");
        }
        if let Some((progress, message)) =
            task.message.as_deref().and_then(|message| Some((Progress::from_status(message)?, message)))
        {
            self.draw(&progress, message);
        } else if let Some(bar) = &self.bar {
            bar.set_message(&text);
        }
        self.print_unless_drawn(&text);
    }

    /// Updates the bar and its text.
    fn draw(&self, progress: &Progress, text: &str) {
        let Some(bar) = &self.bar else { return };
        if let Some(total) = progress.total.filter(|total| *total > 0.0) {
            bar.set_progress(progress.done / total);
        }
        bar.set_message(text);
    }

    fn print(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.note(text),
            None => self.printer.note(text),
        }
    }

    fn print_unless_drawn(&mut self, text: &str) {
        if self.bar.is_none() && self.last_line != text {
            self.printer.note(text);
            text.clone_into(&mut self.last_line);
        }
    }
}

/// Describes a new task: its handle, retention and poll interval.
pub(super) fn describe_task(task: &Task) -> String {
    let kept = task.ttl.map_or_else(|| "forever".to_owned(), |ttl| format!("for {}", show_duration(ttl)));
    format!("task {} (kept {kept}, polled every {})", task.id, show_duration(task.poll_interval))
}

fn print_result(result: &RawValue, json: bool, printer: &mut Printer) -> u8 {
    #[derive(Deserialize)]
    struct ErrorFlag {
        #[serde(default, rename = "isError")]
        is_error: bool,
    }
    let is_error = serde_json::from_str::<ErrorFlag>(result.get()).is_ok_and(|outline| outline.is_error);
    match json {
        true => printer.raw_json(result),
        false => printer.text(result_text(result)),
    }
    if is_error { EXIT_NEGATIVE } else { EXIT_SUCCESS }
}

/// Returns the contents of a tool result for display: texts as they are, others by type. A result without
/// contents is shown as JSON.
pub(super) fn result_text(result: &RawValue) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ToolResultOutline<'a> {
        #[serde(default)]
        content: Vec<ContentBlock>,
        #[serde(borrow)]
        structured_content: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ContentBlock {
        r#type: String,
        text: Option<String>,
        mime_type: Option<String>,
        data: Option<String>,
        uri: Option<String>,
        resource: Option<EmbeddedResource>,
    }
    #[derive(Deserialize)]
    struct EmbeddedResource {
        uri: Option<String>,
        text: Option<String>,
    }
    let Ok(outline) = serde_json::from_str::<ToolResultOutline<'_>>(result.get()) else {
        return result.get().to_owned();
    };
    if outline.content.is_empty() {
        return outline.structured_content.unwrap_or(result).get().to_owned();
    }
    let to_text = |content: ContentBlock| match content {
        ContentBlock { text: Some(text), .. } => text,
        ContentBlock { resource: Some(EmbeddedResource { text: Some(text), .. }), .. } => text,
        ContentBlock { r#type, mime_type, data, uri, resource, .. } => {
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
    outline.content.into_iter().map(to_text).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::TaskStatus;

    fn raw(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn text_contents_are_shown_as_is_and_others_by_type() {
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
    fn arguments_are_checked_when_typed() {
        assert_eq!(
            arguments(r#"{"n": 9007199254740993}"#).expect("an object").get(),
            r#"{"n": 9007199254740993}"#
        );
        assert!(arguments("[1]").is_err() && arguments("{").is_err());
    }

    #[test]
    fn a_plain_screen_prints_each_change_once() {
        let mut printer = Printer::new(std::io::sink(), std::io::sink());
        let mut screen = ProgressScreen::new(None, "x", &mut printer);
        let mut task = Task {
            id: "t".into(),
            status: TaskStatus::Working,
            message: None,
            poll_interval: Duration::from_millis(500),
            ttl: None,
        };
        screen.show(&CallStep::Handle(&task));
        assert_eq!(screen.last_line, "working");
        task.message = Some("half".into());
        screen.show(&CallStep::Polled(&task));
        assert_eq!(screen.last_line, "working: half");
        assert_eq!(describe_task(&task), "task t (kept forever, polled every 500ms)");
    }
}
