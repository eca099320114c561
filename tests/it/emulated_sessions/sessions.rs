//! How sessions begin, end, and outlive the processes of their servers.

use super::proxy_and_stdio_server::{ProxyAndStdioServer, ask, heard, hello, settle, tell};
use crate::support::limit_hits::LimitHits;
use http::Method;
use serde_json::{Value, json};

#[tokio::test(start_paused = true)]
async fn the_handshake_relays_the_servers_description_and_adds_the_proxys_tasks() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let client = world.client();
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } },
    });
    let hello = hello.to_string();
    let waiting = client.post(&hello).await;
    let _child = world.child().await;
    let answer = waiting.answer().await;
    assert!(answer.is_json());
    let result = answer.result();
    assert_eq!((&result["serverInfo"]["name"], &result["instructions"]), (&json!("child"), &json!("slowly")));
    assert_eq!(result["capabilities"]["logging"], json!({}));
    assert_eq!(result["capabilities"]["tasks"]["requests"], json!({ "tools": { "call": {} } }), "ours");
    assert!(answer.header("mcp-session-id").len() >= 32);
}

#[tokio::test(start_paused = true)]
async fn a_client_of_a_legacy_revision_gets_its_own() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let client = world.client();
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } },
    });
    let hello = hello.to_string();
    let waiting = client.post(&hello).await;
    let mut child = world.child().await;
    let answer = waiting.answer().await;
    assert_eq!(answer.result()["protocolVersion"], "2025-03-26");
    assert_eq!(answer.result()["capabilities"].get("tasks"), None, "it knows none");
    // One that sends a batch gets each of its requests answered.
    let client = client.with("mcp-session-id", answer.header("mcp-session-id"));
    let batch = r#"[{"jsonrpc":"2.0","id":"a","method":"tools/list"},{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":"b","method":"ping"},{"jsonrpc":"2.0","id":"c","method":"prompts/list"}]"#;
    let answer = client.post(batch).await.follow();
    let (tools, prompts) = (child.told("tools/list").await, child.told("prompts/list").await);
    child.told("notifications/x").await;
    child.answers(&prompts, json!({ "prompts": [] })).await;
    child.answers(&tools, json!({ "tools": [] })).await;
    let mut ids: Vec<_> = heard(&answer).await.iter().map(|message| message["id"].clone()).collect();
    ids.sort_by_key(Value::to_string);
    assert_eq!((ids, answer.is_over()), (vec![json!("a"), json!("b"), json!("c")], true));
    let many = format!("[{}]", vec![r#"{"jsonrpc":"2.0","method":"notifications/x"}"#; 101].join(","));
    assert_eq!(client.post(&many).await.answer().await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_is_for_a_legacy_client_is_known_from_its_child() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let client = world.client();
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-03-26", "capabilities": { "sampling": {} },
            "clientInfo": { "name": "c", "version": "1" } },
    });
    let hello = hello.to_string();
    let waiting = client.post(&hello).await;
    let _child = world.child().await;
    let client = client.with("mcp-session-id", waiting.answer().await.header("mcp-session-id"));
    assert_eq!(client.send(Method::DELETE, "/mcp", "").await.answer().await.status, 200);
    settle().await;
    assert_eq!(world.started(), 0, "no child is started to be asked what it is");
}

#[tokio::test(start_paused = true)]
async fn clients_with_the_same_capabilities_share_a_process() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let (first, mut child) = world.begin(json!({})).await;
    let second = hello(&world.client(), json!({})).await;
    assert_eq!(world.started(), 0, "it is the same child");
    assert_ne!(first.session(), second.session());
    // Both count from the same number, with the same token.
    let call = json!({ "name": "t", "_meta": { "progressToken": 1 } });
    let one = ask(&first, &json!(7), "tools/call", call.clone()).await;
    let at_child = child.told("tools/call").await;
    let other = ask(&second, &json!(7), "tools/call", call).await;
    let beside = child.told("tools/call").await;
    assert_ne!(at_child["id"], beside["id"]);
    assert_ne!(at_child["params"]["_meta"]["progressToken"], beside["params"]["_meta"]["progressToken"]);
    let token = &beside["params"]["_meta"]["progressToken"];
    child.notifies("notifications/progress", json!({ "progressToken": token, "progress": 1 })).await;
    child.answers(&beside, json!({ "content": ["second"] })).await;
    child.answers(&at_child, json!({ "content": ["first"] })).await;
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progressToken": 1, "progress": 1 } });
    let answer = |words| json!({ "jsonrpc": "2.0", "id": 7, "result": { "content": [words] } });
    assert_eq!(heard(&one).await, [answer("first")]);
    assert_eq!(heard(&other).await, [progress, answer("second")]);
    let (_third, _other_child) = world.begin(json!({ "roots": {} })).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_with_delete_and_unknown_ones_are_refused() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let (client, mut child) = world.begin(json!({})).await;
    let listening = client.listen().await.follow();
    let call = ask(&client, &json!(1), "prompts/get", json!({ "name": "p" })).await;
    let at_child = child.told("prompts/get").await;
    let answer = client.send(Method::DELETE, "/mcp", "").await.answer().await;
    assert_eq!(answer.status, 200);
    assert_eq!(child.told("notifications/cancelled").await["params"]["requestId"], at_child["id"]);
    settle().await;
    assert!(listening.is_over() && call.is_over() && call.messages().is_empty());
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for session in [&client, &client.within("made-up")] {
        assert_eq!(session.post(ping).await.answer().await.status, 404);
        assert_eq!(session.send(Method::DELETE, "/mcp", "").await.answer().await.status, 404);
    }
    assert_eq!(client.within("made-up").listen().await.answer().await.status, 404);
    let none = world.client().with("mcp-protocol-version", "2025-11-25");
    assert_eq!(none.post(ping).await.answer().await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_its_principals_alone() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let ours = world.client().with("authorization", "Bearer a");
    let (client, _child) = tokio::join!(hello(&ours, json!({})), world.child());
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    assert_eq!(client.post(ping).await.answer().await.result(), json!({}));
    assert_eq!(client.with("authorization", "Bearer b").post(ping).await.answer().await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_dies_loses_its_calls_and_the_session_goes_on_with_another() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let (client, mut child) = world.begin(json!({})).await;
    let listening = client.listen().await.follow();
    let subscribed = ask(&client, &json!(1), "resources/subscribe", json!({ "uri": "file:///a" })).await;
    let request = child.told("resources/subscribe").await;
    child.answers(&request, json!({})).await;
    assert_eq!(heard(&subscribed).await[0]["result"], json!({}));
    let call = ask(&client, &json!(2), "tools/call", json!({ "name": "t" })).await;
    child.told("tools/call").await;
    drop(child);
    let error = heard(&call).await.remove(0);
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(2), &json!(-31002)), "{error:#}");
    // As somebody listens, another is started at once, and what was subscribed to is subscribed again.
    let mut child = world.child().await;
    let again = child.told("resources/subscribe").await;
    assert_eq!(again["params"]["uri"], "file:///a");
    child.answers(&again, json!({})).await;
    assert_eq!(heard(&listening).await[0]["method"], "notifications/tools/list_changed");
    let call = ask(&client, &json!(3), "tools/call", json!({ "name": "t" })).await;
    let at_child = child.told("tools/call").await;
    child.answers(&at_child, json!({ "content": [] })).await;
    assert_eq!(heard(&call).await[0]["id"], 3);
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_expires_after_a_day_unless_a_request_is_in_flight() {
    let hits = LimitHits::of("timeouts.idle_session");
    let mut world = ProxyAndStdioServer::new("defer: { mode: never }");
    let (quiet, mut child) = world.begin(json!({})).await;
    let listens = hello(&world.client(), json!({})).await;
    let calls = hello(&world.client(), json!({})).await;
    let listening = listens.listen().await.follow();
    let call = ask(&calls, &json!(1), "prompts/get", json!({ "name": "p" })).await;
    let at_child = child.told("prompts/get").await;
    tokio::time::sleep(std::time::Duration::from_secs(24 * 60 * 60 - 120)).await;
    child.answers(&at_child, json!({ "messages": [] })).await;
    assert_eq!(heard(&call).await.len(), 1);
    tokio::time::sleep(std::time::Duration::from_secs(180)).await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    assert_eq!(quiet.post(ping).await.answer().await.status, 404);
    assert_eq!(calls.post(ping).await.answer().await.status, 200);
    assert_eq!(listens.post(ping).await.answer().await.status, 200);
    assert!(!listening.is_over());
    tell(
        &listens,
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 9 } }),
    )
    .await;
    hits.are(1).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_process_ends_and_its_session_starts_another() {
    let mut world = ProxyAndStdioServer::new("defer: { mode: never }");
    let (client, mut child) = world.begin(json!({})).await;
    assert_eq!(child.later().await, None, "its input ends");
    let call = ask(&client, &json!(1), "tools/list", json!({})).await;
    let mut child = world.child().await;
    let at_child = child.told("tools/list").await;
    // What it says beside calls is heard in the session as before.
    child.notifies("notifications/resources/list_changed", json!({})).await;
    child.answers(&at_child, json!({ "tools": [] })).await;
    assert_eq!(heard(&call).await[0]["result"]["tools"], json!([]));
    let listening = client.listen().await.follow();
    assert_eq!(heard(&listening).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_unknown_under_the_token_of_another_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = ["alice", "alice", "bob"].into_iter().enumerate().map(|(n, name)| {
        let path = folder.path().join(n.to_string());
        std::fs::write(&path, format!("token-number-{n:04}")).expect("it can be written");
        format!("{{ name: {name}, file: '{}' }}", path.display())
    });
    let tokens = tokens.collect::<Vec<_>>().join(", ");
    let mut world =
        ProxyAndStdioServer::new(&format!("defer: {{ after: 1s }}\naccess: {{ tokens: [{tokens}] }}"));
    let bearing = |n: usize| world.client().with("authorization", &format!("Bearer token-number-{n:04}"));
    let (alice, renewed, bob) = (bearing(0), bearing(1), bearing(2));
    let (alice, mut child) = tokio::join!(hello(&alice, json!({})), world.child());
    let bobs = hello(&bob, json!({})).await;

    // A foreign session is unknown for POST, GET and DELETE.
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let foreign = bob.within(&alice.session());
    assert_eq!(foreign.post(list).await.answer().await.status, 404);
    assert_eq!(foreign.listen().await.answer().await.status, 404);
    assert_eq!(foreign.send(Method::DELETE, "/mcp", "").await.answer().await.status, 404);
    // Without a token nothing is known at all.
    let nobody = world.client().within(&alice.session());
    assert_eq!(nobody.post(list).await.answer().await.status, 401);

    // It goes on under a new token of the same name, and what others do changes nothing.
    for client in [renewed.within(&alice.session()), bobs] {
        let waiting = client.post(list).await;
        let asked = child.told("tools/list").await;
        child.answers(&asked, json!({ "tools": [] })).await;
        assert_eq!(waiting.answer().await.result()["tools"], json!([]));
    }
    assert_eq!(world.started(), 0, "to the server they are one");
}
