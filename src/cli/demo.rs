//! `deferral demo`: a slow legacy server, the proxy in front of it, and what a client sees.
//!
//! The demo needs nothing else. It makes a quick and a slow call, prints commands to try in another terminal,
//! and serves until it is stopped.

use super::{
    call::{describe_task, result_text},
    command_runtime::interrupted,
    exit_codes::{EXIT_FAILURE, EXIT_SUCCESS},
    printer::{self, Printer},
};
use crate::{
    app,
    client::{
        self, CallEnding, CallStep, CallTurn, ClientSupport, InputResponseMap, JsonRpcRequest,
        RequestedInput, Task, TaskStatus, ToolSession, arguments, error_text,
    },
    config, demo,
    protocol::{Method, Revision, meta},
    runtime::{Clock, Drain, SystemClock},
};
use http::{HeaderMap, Uri};
use serde_json::{Value, json};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};
use tokio::net::TcpListener;

/// Duration of the slow call in seconds; the threshold is a quarter of it.
const SLOW_CALL_SECONDS: u32 = 4;
/// The threshold of the demo (`defer.after`).
const THRESHOLD: &str = "1s";
/// The response to the demo's own input request.
const FORM_RESPONSE: &str =
    r#"{"action":"accept","content":{"date":"2026-08-01","party":4,"seat":"outside"}}"#;
/// The capabilities that the demo's client declares.
const CLIENT_SUPPORT: ClientSupport =
    ClientSupport { tasks: true, elicitation: true, sampling: false, roots: false };

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Address of the proxy; the admin listener is on the next port.
    #[arg(long, value_name = "ADDR:PORT", default_value = config::DEFAULT_LISTEN, value_parser = config::values::address)]
    listen: SocketAddr,
}

/// Error of a demo that cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the server of the demo cannot start: {0}")]
    Server(#[source] io::Error),
    #[error("{0}; `deferral demo --listen 127.0.0.1:0` uses a free port")]
    Proxy(#[from] app::Error),
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error("the call of {tool} ended unexpectedly: {ending}")]
    Unexpected { tool: &'static str, ending: String },
}

/// Runs the demo until it is stopped, and returns the exit code.
pub async fn run(args: Args, printer: &mut Printer) -> u8 {
    match serve(args, printer).await {
        Ok(()) => EXIT_SUCCESS,
        Err(error) => {
            printer.error(error);
            EXIT_FAILURE
        }
    }
}

/// Starts server and proxy, and shows the calls.
///
/// # Errors
/// [`Error`] says what could not be started, or which call failed.
async fn serve(args: Args, printer: &mut Printer) -> Result<(), Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(Error::Server)?;
    let server = listener.local_addr().map_err(Error::Server)?;
    let (drain, stopping) = Drain::new();
    let server_task = tokio::spawn(demo::serve(listener, stopping));

    let yaml = config_text(args.listen, server);
    let config = config::parse(Path::new("demo.yaml"), &yaml).expect("the demo's configuration is valid");
    let proxy = app::start(config)?;
    let url = proxy.url(&proxy.addresses[0], config::DEFAULT_PATH);
    let admin_url =
        proxy.admin.as_ref().map_or_else(String::new, |admin| match printer::is_output_terminal() {
            true => admin.link_with_code(),
            false => admin.url.clone(),
        });

    let outcome = tokio::select! {
        shown = show((&url, &admin_url), server, &yaml, printer) => shown.map(|()| false),
        () = interrupted() => Ok(true),
    };
    if matches!(outcome, Ok(false)) {
        interrupted().await;
    }
    proxy.stop().await;
    drain.stop(Duration::from_secs(1)).await;
    let _ = server_task.await;
    outcome.map(|_| ())
}

/// Returns the configuration of the proxy as the text of a file. The admin listener has the default address
/// if the client listener has, so that commands find it.
fn config_text(listen: SocketAddr, server: SocketAddr) -> String {
    let admin = match listen.port() {
        0 | u16::MAX => 0,
        port => port + 1,
    };
    format!(
        "listen: \"{listen}\"
admin: \"127.0.0.1:{admin}\"
drain: 1s
routes:
  - path: {path}
    upstream: {{ url: \"http://{server}{endpoint}\" }}
    defer: {{ mode: auto, after: {THRESHOLD} }}
",
        path = config::DEFAULT_PATH,
        endpoint = demo::PATH,
    )
}

/// Makes calls, and prints their events.
struct DemoPrinter<'a> {
    printer: &'a mut Printer,
    clock: SystemClock,
    /// The start of the current call.
    call_start: Instant,
}

/// Shows the calls through the proxy at `url`, and the commands to try.
async fn show(
    (url, admin_url): (&str, &str),
    server: SocketAddr,
    config: &str,
    printer: &mut Printer,
) -> Result<(), Error> {
    let clock = SystemClock::new();
    let mut demo_printer = DemoPrinter { call_start: clock.now(), clock, printer };
    demo_printer.print(&format!(
        "A legacy server ({legacy}, synchronous, without tasks):  http://{server}{endpoint}
The proxy in front of it:  {url}

With this configuration:

{config}",
        legacy = Revision::NEWEST_LEGACY,
        endpoint = demo::PATH,
        config = indented(config),
    ));
    let parsed: Uri = url.parse().expect("an address and a path make a URL");
    let mut client = ToolSession::new(parsed, HeaderMap::new(), CLIENT_SUPPORT, Some(Revision::V2026_07_28));

    demo_printer.print("A quick call passes through:  greet {\"name\":\"Ada\"}\n");
    demo_printer.call(&mut client, "greet", r#"{"name":"Ada"}"#).await?;

    let slow = format!("{{\"seconds\":{SLOW_CALL_SECONDS}}}");
    demo_printer
        .print(&format!("\nA call that runs longer than {THRESHOLD} becomes a task:  report {slow}\n"));
    let task = demo_printer.call(&mut client, "report", &slow).await?.unwrap_or_else(|| "TASK_ID".to_owned());

    demo_printer.print(&format!("\nA tool that requests input during its call:  {} {{}}\n", demo::BOOKING));
    demo_printer.call(&mut client, demo::BOOKING, "{}").await?;

    demo_printer.print(&format!(
        "
Try it from another terminal. List the tools:

{list}

A slow call, which returns a handle after {THRESHOLD}:

{call}

The task above; to see yours, put its handle in both places:

{get}

All of this with one command and a progress bar:

  deferral call {url} report '{{\"seconds\":10}}'

Answer input requests yourself, during the call or, after two seconds, in its task:

  deferral call {url} {book}
  deferral call {url} {book} '{{\"seconds\":2}}'

The admin page, in a browser:

  {admin_url}

Serving until Ctrl-C.",
        book = demo::BOOKING,
        list = curl(url, &Method::ToolsList, None, json!({})),
        call = curl(
            url,
            &Method::ToolsCall,
            Some("report"),
            json!({ "name": "report", "arguments": { "seconds": 20 } })
        ),
        get = curl(url, &Method::TasksGet, Some(&task), json!({ "taskId": task })),
    ));
    Ok(())
}

// === impl DemoPrinter ===

impl DemoPrinter<'_> {
    fn print(&mut self, text: &str) {
        self.printer.text(text);
    }

    fn print_event(&mut self, text: &str) {
        let elapsed = self.clock.now() - self.call_start;
        self.printer.line(format_args!("  {:>5.2} s  {text}", elapsed.as_secs_f64()));
    }

    /// Makes a call and prints its events. Returns the handle if it became a task.
    async fn call(
        &mut self,
        client: &mut ToolSession,
        tool: &'static str,
        text: &str,
    ) -> Result<Option<String>, Error> {
        self.call_start = self.clock.now();
        let arguments = arguments(text).expect("the demo's arguments are valid");
        let call = client::ToolCall { tool, arguments: &arguments };
        let mut handle = None;
        let mut turn = client.call(&call, &mut |step| self.print_step(&step, &mut handle)).await?;
        loop {
            match turn {
                CallTurn::InputRequired(requests) => {
                    let responses = self.respond(&requests);
                    turn = client
                        .respond(&call, &responses, &mut |step| self.print_step(&step, &mut handle))
                        .await?;
                }
                CallTurn::Ended(CallEnding::Result(result)) => {
                    self.print_event(&format!("result: {}", result_text(&result)));
                    return Ok(handle);
                }
                CallTurn::Ended(CallEnding::Error(error)) => {
                    return Err(Error::Unexpected { tool, ending: error_text(&error) });
                }
                CallTurn::Ended(CallEnding::Cancelled(_)) => {
                    return Err(Error::Unexpected { tool, ending: "cancelled".to_owned() });
                }
                CallTurn::Ended(CallEnding::Failed(_)) => {
                    return Err(Error::Unexpected { tool, ending: "failed".to_owned() });
                }
            }
        }
    }

    fn print_step(&mut self, step: &CallStep<'_>, handle: &mut Option<String>) {
        match step {
            CallStep::Progress(progress) => self.print_event(&format!("progress: {progress}")),
            CallStep::Handle(task) => {
                self.print_event(&format!("handle of {}", describe_task(task)));
                *handle = Some(task.id.clone());
            }
            CallStep::Polled(task) => self.print_event(&format!("tasks/get: {}", status_text(task))),
            CallStep::Lost(error) => self.print_event(&format!("{error}; retrying")),
            // These steps occur with legacy servers only.
            CallStep::Refused { .. } | CallStep::Revision(_) => {}
        }
    }

    /// Prints input requests, and returns the responses to them.
    fn respond(&mut self, requests: &[RequestedInput]) -> InputResponseMap {
        let mut responses = InputResponseMap::new();
        for request in requests {
            let message = request.message().unwrap_or_default();
            self.print_event(&format!("input_required: {} asks: {message}", request.key));
            self.print_event(&format!("retry of the call with the response {FORM_RESPONSE}"));
            let response = serde_json::from_str(FORM_RESPONSE).expect("the demo's response is valid JSON");
            responses.insert(request.key.clone(), response);
        }
        responses
    }
}

fn status_text(task: &Task) -> String {
    match (&task.message, task.status) {
        (Some(message), TaskStatus::Working) => format!("working: {message}"),
        (_, status) => status.as_str().to_owned(),
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// Formats a request as a shell command.
fn curl(url: &str, method: &Method, name: Option<&str>, mut params: Value) -> String {
    let version = Revision::V2026_07_28.as_str();
    params["_meta"] = json!({
        meta::PROTOCOL_VERSION: version,
        meta::CLIENT_CAPABILITIES: { "extensions": { meta::TASKS_EXTENSION: {} } },
    });
    let body = JsonRpcRequest::new(1, method.as_str(), params).to_json();
    let name = name.map(|name| format!(" -H 'Mcp-Name: {name}'")).unwrap_or_default();
    format!(
        "  curl -s {url} \\
    -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \\
    -H 'MCP-Protocol-Version: {version}' -H 'Mcp-Method: {method}'{name} \\
    -d '{body}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_the_demo_is_valid() {
        let any = "127.0.0.1:0".parse().unwrap();
        for listen in ["127.0.0.1:8808", "[::1]:0"] {
            let text = config_text(listen.parse().unwrap(), any);
            let config =
                config::parse(Path::new("demo.yaml"), &text).unwrap_or_else(|problems| panic!("{problems}"));
            assert_eq!(config.routes[0].route.defer.after, Duration::from_secs(1));
            let admin = config.admin.expect("there is one").listen.port();
            assert!(
                matches!((listen, admin), ("127.0.0.1:8808", 8809) | ("[::1]:0", 0)),
                "{listen}: {admin}"
            );
        }
    }

    #[test]
    fn commands_survive_a_shell() {
        let command = curl("http://x/mcp", &Method::TasksGet, Some("t-1"), json!({ "taskId": "t-1" }));
        assert_eq!(command.matches('\'').count() % 2, 0, "{command}");
        assert!(command.contains("-H 'Mcp-Method: tasks/get' -H 'Mcp-Name: t-1'"), "{command}");
        assert!(!command.trim_end().ends_with('\\'), "{command}");
    }
}
