//! The same with the program itself, in front of a real process.

use super::proxy_and_stdio_server::{ask, hello, tell};
use crate::{
    legacy::proxy_and_client::LegacyClient,
    support::modern_client::{Following, soon},
};
use http::Method;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};
use tokio::task::yield_now;

/// A server: `ask` asks its client before it answers, `die` ends it. `hold` is answered when another calls `release`, but
/// not where it was cancelled. Each answer names the process, and what it has read.
const SERVER: &str = r#"
say() { printf '{"jsonrpc":"2.0",%s}\n' "$1"; }
answer() { say '"id":'$1',"result":{"content":[],"process":'$$',"read":"'"$seen"'"}'; }
seen= held= asked=
while read -r line; do
    id=${line#*\"id\":}; id=${id%%[,\}]*}
    case $line in
    *'"initialize"'*)
        say '"id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}' ;;
    *'"name":"die"'*) exit 3 ;;
    *'"name":"ask"'*)
        say '"id":"q","method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}'
        asked=$id seen="$seen ask" ;;
    *'"id":"q"'*)
        seen="$seen $(expr "$line" : '.*"action":"\([a-z]*\)')"
        answer "$asked" ;;
    *'"notifications/cancelled"'*)
        cancelled=${line#*\"requestId\":}; cancelled=${cancelled%%[,\}]*}
        held=$(echo "$held " | sed "s/ $cancelled / /") seen="$seen cancelled" ;;
    *'"name":"hold"'*) held="$held $id" seen="$seen hold" ;;
    *'"name":"release"'*)
        seen="$seen release"
        for one in $held $id; do answer "$one"; done
        held= ;;
    *'"tools/list"'*) say '"id":'$id',"result":{"tools":[]}' ;;
    *'"tools/call"'*) seen="$seen t"; answer "$id" ;;
    esac
done
"#;

/// A proxy that is stopped when this is dropped.
struct Proxy(Child);

// === impl Proxy ===

impl Proxy {
    /// Starts it, and gives a client of it.
    fn start() -> (Self, LegacyClient) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args(["--listen", "127.0.0.1:0", "--admin", "off", "--", "sh", "-c", SERVER])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let proxy = Self(child);
        let first = stdout.lines().next().expect("it says where it listens").expect("text");
        let address = first.split("http://").nth(1).and_then(|rest| rest.strip_suffix("/mcp"));
        let address = address.unwrap_or_else(|| panic!("{first}")).parse().expect("an address");
        (proxy, LegacyClient::new(address))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two clients that declare the same, and can be asked.
async fn two(client: &LegacyClient) -> [LegacyClient; 2] {
    let declared = json!({ "elicitation": {} });
    [hello(client, declared.clone()).await, hello(client, declared).await]
}

async fn called(client: &LegacyClient, tool: &str) -> Value {
    over(&call(client, tool).await).await
}

async fn call(client: &LegacyClient, tool: &str) -> Following {
    ask(client, &json!(tool), "tools/call", json!({ "name": tool })).await
}

/// What a call comes to.
async fn over(answer: &Following) -> Value {
    is_over(answer).await;
    answer.messages().pop().expect("an answer")
}

async fn is_over(answer: &Following) {
    let over = async {
        while !answer.is_over() {
            yield_now().await;
        }
    };
    soon("the call is over", over).await;
}

/// The first that is said of a call: a question, where it is asked.
async fn first_of(answer: &Following) -> Value {
    let said = async {
        while answer.messages().is_empty() {
            yield_now().await;
        }
        answer.messages().remove(0)
    };
    soon("something is said", said).await
}

/// A list that the server is asked for, and has answered: what was sent to it before has been read.
async fn lists(client: &LegacyClient) {
    is_over(&ask(client, &json!("list"), "tools/list", json!({})).await).await;
}

/// Waits until the process has read this so often, as it says to a client whose calls are read there, too.
async fn has_read(client: &LegacyClient, what: &str, times: usize) {
    let read = async {
        loop {
            let answer = called(client, "t").await;
            if answer["result"]["read"].as_str().expect("a text").matches(what).count() == times {
                return;
            }
        }
    };
    soon("it is read", read).await;
}

#[tokio::test]
async fn a_client_of_2025_11_25_calls_a_process_answers_it_and_outlives_it() {
    let (_proxy, client) = Proxy::start();
    let client = hello(&client, json!({ "elicitation": {} })).await;
    assert_eq!(called(&client, "t").await["result"]["content"], json!([]));

    let asking = ask(&client, &json!("a"), "tools/call", json!({ "name": "ask" })).await;
    let put = first_of(&asking).await;
    assert_eq!(put["method"], "elicitation/create");
    tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "decline" } })).await;
    let answer = over(&asking).await;
    assert_eq!((&answer["id"], &answer["result"]["read"]), (&json!("a"), &json!(" t ask decline")));

    let lost = called(&client, "die").await;
    assert_eq!(lost["error"]["code"], -31002);
    assert!(
        lost["error"]["message"].as_str().is_some_and(|words| words.contains("exit status: 3")),
        "{lost}"
    );
    assert_eq!(called(&client, "t").await["result"]["content"], json!([]), "another is started");
    assert_eq!(client.send(Method::DELETE, "/mcp", "").await.answer().await.status, 200);
    assert_eq!(client.listen().await.answer().await.status, 404);
}

#[tokio::test]
async fn clients_share_a_process_until_it_sends_an_input_request_and_have_their_own_then() {
    let (_proxy, client) = Proxy::start();
    let [first, second] = two(&client).await;
    // The one is answered by what the other calls.
    let held = call(&first, "hold").await;
    has_read(&second, "hold", 1).await;
    let released = called(&second, "release").await;
    let process = released["result"]["process"].clone();
    assert_eq!(over(&held).await["result"]["process"], process);

    let asking = call(&first, "ask").await;
    let put = first_of(&asking).await;
    assert_eq!(put["method"], "elicitation/create");
    // The other does not wait.
    let other = called(&second, "t").await["result"]["process"].clone();
    assert_ne!(other, process);
    lists(&second).await;
    tell(&first, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "accept" } })).await;
    assert_eq!(over(&asking).await["result"]["process"], process);
    for _ in 0..2 {
        assert_eq!(called(&second, "t").await["result"]["process"], other);
        assert_eq!(called(&first, "t").await["result"]["process"], process);
    }
}

#[tokio::test]
async fn a_cancel_or_session_delete_of_one_client_does_not_affect_others() {
    let (_proxy, client) = Proxy::start();
    let [first, second] = two(&client).await;
    let (taken_back, held) = (call(&first, "hold").await, call(&second, "hold").await);
    has_read(&second, "hold", 2).await;
    let cancelled = json!({ "requestId": "hold" });
    tell(&first, json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled })).await;
    has_read(&second, "cancelled", 1).await;
    is_over(&taken_back).await;
    assert!(taken_back.messages().is_empty() && !held.is_over());
    // The same where its session ends.
    let left = call(&first, "hold").await;
    has_read(&second, "hold", 3).await;
    assert_eq!(first.send(Method::DELETE, "/mcp", "").await.answer().await.status, 200);
    has_read(&second, "cancelled", 2).await;
    let released = called(&second, "release").await;
    let answer = over(&held).await;
    assert_eq!(answer["result"]["process"], released["result"]["process"], "it has never asked, and stays");
    is_over(&left).await;
    assert!(left.messages().is_empty());
}

#[tokio::test]
async fn a_session_delete_during_an_input_request_ends_the_process_and_no_other_call() {
    let (_proxy, client) = Proxy::start();
    let [first, second] = two(&client).await;
    let process = called(&second, "t").await["result"]["process"].clone();
    let asking = call(&first, "ask").await;
    assert_eq!(first_of(&asking).await["method"], "elicitation/create");
    let waiting = call(&second, "t").await;
    lists(&second).await;
    assert_eq!(first.send(Method::DELETE, "/mcp", "").await.answer().await.status, 200);
    is_over(&asking).await;
    // What the first was asked could be put to the second, in the same process.
    let answer = over(&waiting).await;
    assert_eq!(answer["result"]["read"], " t", "{answer}");
    assert_ne!(answer["result"]["process"], process);
    assert_eq!(waiting.messages().len(), 1);
}
