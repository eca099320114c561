//! Reloads that change headers, limits or the command of a server.

use super::{NEVER, program::Program};
use crate::{proxy::proxy_and_server::ProxyAndServer, support::modern_client::soon};
use deferral::internals::config;
use serde_json::{Value, json};
use std::path::Path;

/// Says its own name to every call, and how often it was called.
const NAMED: &str = r"
import json, sys
called = 0
for line in sys.stdin:
    asked = json.loads(line)
    if 'id' not in asked:
        continue
    result = {}
    if asked['method'] == 'initialize':
        result = {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}}, 'serverInfo': {'name': 's', 'version': '1'}}
    elif asked['method'] == 'tools/list':
        result = {'tools': []}
    elif asked['method'] == 'tools/call':
        called += 1
        result = {'content': [{'type': 'text', 'text': f'{sys.argv[1]} {called}'}]}
    print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], 'result': result}), flush=True)
";

#[tokio::test]
async fn a_header_of_ours_and_limits_change_while_the_session_stays() {
    let mut world = ProxyAndServer::with(NEVER).await;
    let config = |world: &ProxyAndServer, key: &str, bytes: &str| {
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: off\nlimits: {{ result_bytes: {bytes} }}\nroutes: [{{ upstream: {{ url: '{}', headers: {{ X-Key: '{key}' }} }}, {NEVER} }}]\n",
            world.server.url()
        );
        config::parse(Path::new("test.yaml"), &text).expect("it is right")
    };
    let first = config(&world, "one", "1MiB");
    world.proxy.reload(first).expect("it is right");
    let client = world.client();
    for (key, bytes) in [("one", "1MiB"), ("two", "2MiB"), ("three", "1KiB")] {
        let next = config(&world, key, bytes);
        world.proxy.reload(next).expect("it is right");
        let waiting = client.call("t").await;
        let call = world.server.call().await;
        call.says("done");
        assert_eq!(waiting.answer().await.text(), "done");
        let seen =
            world.server.log().into_iter().rfind(|seen| seen.method() == "tools/call").expect("a call");
        assert_eq!(seen.header("x-key"), Some(key));
    }
    assert_eq!(world.server.messages("initialize"), 1, "one session for all of them");
    let waiting = client.call("t").await;
    world.server.call().await.says(&"x".repeat(2048));
    let error = waiting.answer().await.error();
    assert!(error["message"].as_str().expect("text").contains("larger than 1024 bytes"), "{error}");
}

fn of_command(name: &str, more: &str) -> String {
    let command: Value = json!(["python3", "-c", NAMED, name]);
    format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlog: json\ndrain: 10ms\n{more}\nroutes: [{{ upstream: {{ command: {command} }}, {NEVER} }}]\n"
    )
}

#[tokio::test]
async fn a_process_is_started_anew_where_its_command_is_another_one_and_only_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = Program::with(folder.path(), &of_command("a", ""), &[]);
    let client = program.client();
    let said = async || client.call("t").await.answer().await.text();
    assert_eq!(said().await, "a 1");
    program.goes_on_with(&of_command("a", "timeouts: { call: 1h, queue: 7s }")).await;
    assert_eq!(said().await, "a 2");
    program.goes_on_with(&of_command("b", "")).await;
    assert_eq!(said().await, "b 1");
    program.goes_on_with(&of_command("a", "")).await;
    assert_eq!(said().await, "a 1", "the former is not gone back to");
    // The proxy's own children: one supervisor for each process.
    let ends = async {
        while program.children() > 1 {
            tokio::task::yield_now().await
        }
    };
    soon("the former ones end", ends).await;
    assert_eq!(program.children(), 1, "the one that is asked");
}
