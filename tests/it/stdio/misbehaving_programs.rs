//! Programs that do not read, that end during an input request, or that write lines without a message.

use super::{Proxy, SERVER, arguments, memory};
use crate::support::legacy_server::PATIENCE;
use futures_util::{StreamExt, stream};
use serde_json::json;

const BUSY: i64 = -31006;
const OUTCOME_UNKNOWN: i64 = -31002;

fn program(nasty: &str) -> String {
    format!("{{ command: [python3, '{SERVER}', {nasty}], inherit_env: all }}")
}

#[tokio::test]
async fn a_process_that_does_not_read_costs_bounded_memory_and_blocks_no_other_client() {
    const CALLS: usize = 32;
    /// Calls of a megabyte that may wait for it, at most (16 MiB).
    const WAIT: usize = 16;
    let folder = tempfile::tempdir().expect("a folder");
    // The first of its processes reads nothing behind the request by which its tools are listed. That comes before all calls.
    let first = folder.path().join("first");
    let proxy = Proxy::configured(&program(&format!("deaf, '{}'", first.display())));
    let client = proxy.client();
    assert_eq!(client.ask("tools/list", json!({})).await.result()["tools"][0]["name"], "echo");
    let before = memory(proxy.child.id(), "RssAnon:");
    let large = arguments("echo", json!({ "ignored": "x".repeat(1 << 20) }));
    let calls = stream::iter(0..CALLS).map(|_| async {
        let waiting = client.send("tools/call", large.clone()).await;
        let answer = waiting.answer_within(4 * PATIENCE).await;
        (answer.refusal(), answer.error()["message"].to_string())
    });
    let mut ended = Box::pin(calls.buffer_unordered(WAIT + 2));
    for _ in WAIT..CALLS {
        let (refusal, message) = ended.next().await.expect("there are more");
        assert_eq!(refusal, (200, BUSY), "{message}");
        assert!(message.contains("does not read its input"), "{message}");
    }
    // What waits is kept once to be written, and once by its call.
    let taken = memory(proxy.child.id(), "RssAnon:") - before;
    assert!(taken < 45_000, "{taken} kB for {CALLS} calls of a megabyte");
    // Those who declare something else have another process, which reads.
    let others = client.declaring(json!({ "roots": {} }));
    assert_eq!(others.call("echo").await.answer().await.text(), "x");
    let (left, ()) = tokio::join!(ended.collect::<Vec<_>>(), proxy.stops());
    let left: Vec<_> = left.into_iter().filter(|(refusal, _)| *refusal != (200, BUSY)).collect();
    assert!(!left.is_empty() && left.iter().all(|(refusal, _)| *refusal == (200, -31007)), "{left:?}");
}

#[tokio::test]
async fn a_process_that_ends_during_an_input_request_fails_its_call_with_its_exit_status() {
    // Its question is not put to anybody yet: others may follow.
    let proxy = Proxy::configured(&format!("{}, questions: {{ settle: 1h }}", program("plain")));
    let asked = proxy.client().declaring(json!({ "elicitation": {} }));
    let lost = asked.ask("tools/call", arguments("ask", json!({ "exits": "asking" }))).await;
    assert_eq!(lost.refusal(), (200, OUTCOME_UNKNOWN));
    assert!(lost.error()["message"].to_string().contains("exit status: 5"), "{lost:?}");
    proxy.leaves_nothing().await;
    assert_eq!(asked.call("echo").await.answer().await.text(), "x");
    proxy.stops().await;
}

#[tokio::test]
async fn a_process_that_ends_after_an_input_response_fails_its_call_with_its_exit_status() {
    let proxy = Proxy::start("plain");
    let asked = proxy.client().declaring(json!({ "elicitation": {} }));
    let call = arguments("ask", json!({ "exits": "answered" }));
    let round = asked.ask("tools/call", call.clone()).await.result();
    let key = round["inputRequests"].as_object().and_then(|all| all.keys().next()).expect("a question");
    let mut again = call;
    again["requestState"] = round["requestState"].clone();
    again["inputResponses"] = json!({ key: { "action": "decline" } });
    let lost = asked.ask("tools/call", again).await;
    assert_eq!(lost.refusal(), (200, OUTCOME_UNKNOWN));
    assert!(lost.error()["message"].to_string().contains("exit status: 6"), "{lost:?}");
    proxy.leaves_nothing().await;
    proxy.stops().await;
}

#[tokio::test]
async fn lines_without_a_message_are_skipped_and_logged_with_their_route() {
    let lines = ["Debugger listening", "[1, 2]", "{\"jsonrpc\":\"2.0\",", "\"text\"", ""];
    let proxy = Proxy::start("plain");
    let client = proxy.client();
    let printed = client.ask("tools/call", arguments("print", json!({ "lines": lines }))).await;
    assert_eq!(printed.text(), "printed");
    assert_eq!(client.call("echo").await.answer().await.text(), "x");
    let log = proxy.log();
    let skipped: Vec<_> = log.lines().filter(|line| line.contains("event=stdout_skipped")).collect();
    assert_eq!(skipped.len(), 6, "all but the blank one, and an array for each of what is in it: {log}");
    assert!(skipped.iter().all(|line| line.contains(" WARN ") && line.contains("route=/mcp ")), "{log}");
    for shown in ["line=\"Debugger listening\"", "line=\"[1, 2]\"", "is no text\""] {
        assert!(skipped.iter().any(|line| line.contains(shown)), "{shown}: {log}");
    }
    proxy.stops().await;
}

#[tokio::test]
async fn skipped_lines_over_the_log_limit_are_counted() {
    const LINES: usize = 1000;
    let proxy = Proxy::start("plain");
    let client = proxy.client();
    let lines: Vec<_> = (0..LINES).map(|number| format!("line {number}")).collect();
    let printed = client.ask("tools/call", arguments("print", json!({ "lines": lines }))).await;
    assert_eq!(printed.text(), "printed");
    client.ask("tools/call", arguments("die", json!({ "code": 0 }))).await;
    proxy.has_logged("event=ended_unexpectedly").await;
    let log = proxy.log();
    let logged = log.lines().filter(|line| line.contains("event=stdout_skipped")).count();
    let count = |line: &str| line.rsplit_once("count=")?.1.parse::<usize>().ok();
    let omitted: usize = log
        .lines()
        .filter(|line| line.contains("event=lines_suppressed lines=stdout_skipped of=/mcp "))
        .filter_map(count)
        .sum();
    assert!(logged < LINES / 2, "{logged}");
    // One of them is no text.
    assert_eq!(logged + omitted, LINES + 1, "{logged} are logged, {omitted} omitted");
    proxy.stops().await;
}

#[tokio::test]
async fn stderr_over_the_log_limit_is_counted_with_its_route() {
    const REMARKS: usize = 1000;
    let proxy = Proxy::start("plain");
    let client = proxy.client();
    let remarked = client.ask("tools/call", arguments("remark", json!({ "lines": REMARKS }))).await;
    assert_eq!(remarked.text(), "remarked");
    // Omitted lines are counted in the log once the rate allows it, or at the end.
    let lost = client.ask("tools/call", arguments("die", json!({ "code": 0 }))).await;
    assert_eq!(lost.refusal(), (200, OUTCOME_UNKNOWN));
    proxy.has_logged("event=ended_unexpectedly").await;
    let log = proxy.log();
    let count = |line: &str| line.rsplit_once("count=")?.1.parse::<usize>().ok();
    let logged = log.lines().filter(|line| line.contains("event=stderr route=/mcp line=")).count();
    let omitted: usize = log
        .lines()
        .filter(|line| line.contains("event=lines_suppressed lines=stderr of=/mcp "))
        .filter_map(count)
        .sum();
    // One that dies has its last words.
    assert_eq!(logged + omitted, REMARKS + 1, "{logged} are logged, {omitted} omitted");
    assert!(logged < REMARKS / 2, "{logged}");
    assert!(log.contains("line=\"remark 0\"") && log.contains("the last words"), "{log}");
    proxy.stops().await;
}
