//! The same with the program itself, in front of a real process.

use super::world::{ask, hello, tell};
use crate::{legacy::world::Older, support::clients::soon};
use http::Method;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};
use tokio::task::yield_now;

/// A server: `ask` asks its client before it answers, `die` ends it.
const SERVER: &str = r#"
say() { printf '{"jsonrpc":"2.0",%s}\n' "$1"; }
while read -r line; do
    id=${line#*\"id\":}; id=${id%%[,\}]*}
    case $line in
    *'"initialize"'*)
        say '"id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}' ;;
    *'"name":"die"'*) exit 3 ;;
    *'"name":"ask"'*)
        say '"id":"q","method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}'
        read -r answer
        say '"id":'$id',"result":{"content":[],"answer":'"$answer"'}' ;;
    *'"tools/call"'*) say '"id":'$id',"result":{"content":[]}' ;;
    esac
done
"#;

/// A proxy that is stopped when this is dropped.
struct Proxy(Child);

// === impl Proxy ===

impl Proxy {
    /// Starts it, and gives a client of it.
    fn start() -> (Self, Older) {
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
        (proxy, Older::new(address))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn called(client: &Older, tool: &str) -> Value {
    let answer = ask(client, &json!(1), "tools/call", json!({ "name": tool })).await;
    let over = async {
        while !answer.is_over() {
            yield_now().await;
        }
    };
    soon("the call is answered", over).await;
    answer.messages().pop().expect("an answer")
}

#[tokio::test]
async fn a_client_of_2025_11_25_calls_a_process_answers_it_and_outlives_it() {
    let (_proxy, client) = Proxy::start();
    let client = hello(&client, json!({ "elicitation": {} })).await;
    assert_eq!(called(&client, "t").await["result"]["content"], json!([]));

    let asking = ask(&client, &json!("a"), "tools/call", json!({ "name": "ask" })).await;
    let put = async {
        while asking.messages().is_empty() {
            yield_now().await;
        }
        asking.messages().remove(0)
    };
    let put = soon("it is asked", put).await;
    assert_eq!(put["method"], "elicitation/create");
    tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "decline" } })).await;
    let answered = async {
        while !asking.is_over() {
            yield_now().await;
        }
    };
    soon("it is answered", answered).await;
    let answer = asking.messages().remove(1);
    assert_eq!((&answer["id"], &answer["result"]["answer"]["id"]), (&json!("a"), &json!("q")));

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
