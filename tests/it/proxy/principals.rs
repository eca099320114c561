//! Tasks and sessions belong to a principal.

use super::proxy_and_server::{ALWAYS, ProxyAndServer, Setup};
use crate::support::modern_client::{Client, indistinguishable};
use http::Method;
use serde_json::json;

/// A well-formed id that no task has.
const UNKNOWN: &str = "0123456789abcdef0123456789abcdef";

async fn makes_a_task(
    world: &ProxyAndServer,
    client: &Client,
) -> (String, crate::support::legacy_server::Call) {
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    (waiting.answer().await.task(), call)
}

#[tokio::test]
async fn a_foreign_task_is_answered_byte_for_byte_as_an_unknown_one() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let (alice, bob) = (world.tasker().bearing("alice"), world.tasker().bearing("bob"));
    let (task, call) = makes_a_task(&world, &alice).await;
    let unknown: String = UNKNOWN.chars().cycle().take(task.len()).collect();
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let foreign = bob.of_task(method, &task).await;
        assert_eq!(foreign.refusal(), (200, -32602));
        for unknown in [&*unknown, "no id at all"] {
            let unknown = bob.of_task(method, unknown).await;
            assert!(indistinguishable(&foreign, &unknown), "{method}: {foreign:?} {unknown:?}");
        }
    }
    let asked = json!({ "taskIds": [task, unknown] });
    let mut stream = bob.listen(asked).await;
    let ack = stream.notice("notifications/subscriptions/acknowledged").await;
    let honoured = &ack["notifications"];
    assert!(
        honoured.get("taskIds").is_none_or(|ids| ids == &json!([])),
        "neither is acknowledged: {honoured}"
    );

    // Nothing of all this has touched it.
    assert_eq!(alice.task(&task).await["status"], "working");
    call.says("done");
    assert_eq!(alice.ended(&task).await["status"], "completed");
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
    let foreign = bob.of_task("tasks/get", &task).await;
    assert!(indistinguishable(&foreign, &bob.of_task("tasks/get", &unknown).await));
}

#[tokio::test]
async fn callers_share_no_session_and_each_is_known_to_the_server_by_its_own_credentials() {
    let world = ProxyAndServer::new().await;
    let mut sessions = Vec::new();
    for token in ["alice", "bob"] {
        for _ in 0..2 {
            let waiting = world.client().bearing(token).call("t").await;
            let call = world.server.call().await;
            sessions.push((token, call.session().to_owned()));
            call.says("hi");
            waiting.answer().await;
        }
    }
    assert_eq!(sessions[0], sessions[1]);
    assert_eq!(sessions[2], sessions[3]);
    assert_ne!(sessions[0].1, sessions[2].1);
    for (token, session) in sessions {
        let authorization = format!("Bearer {token}");
        world.server.seen(|seen| seen.http == Method::GET && seen.session() == session).await;
        for seen in world.server.log().iter().filter(|seen| seen.session() == session) {
            assert_eq!(seen.header("authorization"), Some(&*authorization), "{seen:?}");
        }
    }
    for seen in world.server.log() {
        assert!(seen.header("authorization").is_some(), "handshakes too: {seen:?}");
    }
}

#[tokio::test]
async fn without_credentials_every_client_is_one_and_the_id_is_the_secret() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let (task, call) = makes_a_task(&world, &world.tasker()).await;
    assert_eq!(world.tasker().task(&task).await["status"], "working");
    assert_eq!(world.tasker().bearing("bob").of_task("tasks/get", &task).await.refusal(), (200, -32602));
    assert_eq!(call.seen.header("authorization"), None);
    call.says("done");
}

#[tokio::test]
async fn a_caller_may_be_known_by_a_header_that_outlives_its_token() {
    let world = Setup::new().route(ALWAYS).route("principal: { header: x-user }").start().await;
    let alice = world.tasker().with("x-user", "alice");
    let (task, call) = makes_a_task(&world, &alice.bearing("monday")).await;
    assert_eq!(call.seen.header("authorization"), Some("Bearer monday"));
    assert_eq!(alice.bearing("tuesday").task(&task).await["status"], "working");
    let bob = world.tasker().with("x-user", "bob").bearing("monday");
    assert_eq!(bob.of_task("tasks/get", &task).await.refusal(), (200, -32602), "a token alone is nobody");
    assert_eq!(world.tasker().bearing("monday").of_task("tasks/get", &task).await.refusal(), (200, -32602));

    // The server gets the token of this request, never that of another.
    let (_, other) = makes_a_task(&world, &alice.bearing("tuesday")).await;
    assert_eq!(other.seen.header("authorization"), Some("Bearer tuesday"));
    assert_ne!(other.session(), call.session());
    // Nor do two callers share a session because they have the same token.
    let (_, his) = makes_a_task(&world, &bob).await;
    assert_ne!(his.session(), call.session());
    call.says("done");
}

#[tokio::test]
async fn a_task_belongs_to_the_route_it_was_made_on() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let url = world.server.url();
    let yaml = format!(
        "listen: 127.0.0.1:0\nadmin: \"off\"\nroutes:\n\
         \x20 - {{ path: /a, upstream: {{ url: \"{url}\" }}, defer: {{ mode: always }} }}\n\
         \x20 - {{ path: /b, upstream: {{ url: \"{url}\" }}, defer: {{ mode: always }} }}\n"
    );
    let config =
        deferral::internals::config::parse(std::path::Path::new("two.yaml"), &yaml).expect("it is valid");
    let proxy = deferral::internals::app::start(config).expect("it starts");
    let client = Client::new(proxy.addresses[0]).with_tasks();
    let (task, call) = makes_a_task(&world, &client.at("/a")).await;
    assert_eq!(client.at("/a").task(&task).await["status"], "working");
    assert_eq!(client.at("/b").of_task("tasks/get", &task).await.refusal(), (200, -32602));
    call.says("done");
}
