//! Calls in flight in a process whose command changes with a reload.

use super::{Proxy, SERVER, arguments, text};
use crate::support::modern_client::{Answer, Client, TASKS};
use serde_json::{Value, json};
use std::{fs, process::Command};
use tokio::task::JoinHandle;

/// A configuration whose command is distinguished by this word.
fn with(drain: &str, word: &str) -> String {
    let upstream = format!("{{ command: [python3, '{SERVER}', plain, {word}], inherit_env: all }}");
    text(drain, "", &upstream)
}

/// A client that declares otherwise than one that declares nothing, and takes tasks: it has another process.
fn tasker(proxy: &Proxy) -> Client {
    proxy.client().declaring(json!({ "roots": {}, "extensions": { TASKS: {} } }))
}

/// A call and a task of this tool, in hand in a process each.
async fn in_hand(proxy: &Proxy, tool: &str, said: &str, more: [Value; 2]) -> (JoinHandle<Answer>, String) {
    let [of_call, of_task] = more;
    let call = proxy.client().send("tools/call", arguments(tool, of_call)).await;
    let call = tokio::spawn(call.answer());
    let task = tasker(proxy).ask("tools/call", arguments(tool, of_task)).await.task();
    proxy.has_logged_more(said, 1).await;
    assert_eq!(proxy.below().len(), 4, "two of them, with their supervisors");
    (call, task)
}

#[tokio::test]
async fn calls_of_a_process_may_end_within_the_drain_after_its_command_changes() {
    let proxy = Proxy::of_file(&with("3s", "former"));
    let folder = tempfile::tempdir().expect("a folder");
    let gates = ["call", "task"].map(|name| folder.path().join(name));
    for gate in &gates {
        assert!(Command::new("mkfifo").arg(gate).status().expect("it runs").success());
    }
    let of_gate = |at: usize| json!({ "gate": gates[at] });
    let (call, task) = in_hand(&proxy, "wait", "it waits", [of_gate(0), of_gate(1)]).await;
    let former = proxy.below();
    proxy.goes_on_with(&with("3s", "latter")).await;
    assert!(former.iter().all(|pid| proxy.below().contains(pid)), "they have time");
    for gate in &gates {
        fs::write(gate, "go\n").expect("somebody waits at the gate");
    }
    assert_eq!(call.await.expect("it is answered").text(), "waited");
    let ended = tasker(&proxy).ended(&task).await;
    assert_eq!(ended["result"]["content"][0]["text"], "waited", "{ended}");
    // No call needs them any more.
    proxy.leaves_nothing().await;
    assert_eq!(proxy.client().call("echo").await.answer().await.text(), "x");
    proxy.stops().await;
}

#[tokio::test]
async fn calls_of_a_process_are_lost_after_the_drain_when_its_command_changes() {
    let proxy = Proxy::of_file(&with("100ms", "former"));
    let long = || json!({ "seconds": 1000 });
    let (call, task) = in_hand(&proxy, "sleep", "it sleeps", [long(), long()]).await;
    proxy.goes_on_with(&with("100ms", "latter")).await;
    assert_eq!(call.await.expect("it is answered").refusal(), (200, -31007));
    let ended = tasker(&proxy).ended(&task).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!(-31007)), "{ended}");
    // While the proxy goes on, and with it what the new command has started.
    proxy.leaves_nothing().await;
    assert_eq!(proxy.client().call("echo").await.answer().await.text(), "x");
    assert_eq!(proxy.below().len(), 2);
    proxy.stops().await;
}
