//! Readiness, where a route's server is required for it.

use super::Operator;
use crate::{
    proxy::proxy_and_server::start,
    support::{
        legacy_server::{LegacyServer, Options, ReservedPort},
        modern_client::{Client, soon},
    },
};
use deferral::internals::app;
use serde_json::json;
use std::process::Command;

const TOP: [&str; 2] = ["admin: 127.0.0.1:0", "ready: { upstream: required }"];

#[tokio::test]
async fn a_proxy_whose_server_is_needed_is_ready_when_that_can_be_reached() {
    let nobody = ReservedPort::new();
    let proxy = start(&nobody.url(), &[], &TOP);
    let operator = Operator::at(proxy.admin.as_ref().expect("there is one").address);
    let down = json!({ "status": "waiting", "upstream": { "/mcp": "cannot be reached" } });
    soon("it is known that nobody is there", async {
        loop {
            let answer = operator.get("/ready").await;
            assert_eq!(answer.status, 503, "{answer:?}");
            if answer.json() == down {
                return;
            }
        }
    })
    .await;
    let (code, said) = deferral_ready(&proxy).await;
    assert!(code == Some(1) && said.contains("503") && said.contains("waiting"), "{said}");
    assert_eq!(operator.get("/live").await.status, 200);
    let _server =
        LegacyServer::on(nobody.listens(), Options { tools: Some(json!([])), ..Options::default() });
    // A client's call is as good as a question of ours.
    Client::new(proxy.addresses[0]).ask("tools/list", json!({})).await;
    let answer = operator.get("/ready").await;
    assert_eq!((answer.status, answer.json()), (200, json!({ "status": "ready" })));
    assert_eq!(deferral_ready(&proxy).await, (Some(0), "{\"status\":\"ready\"}\n".to_owned()));
}

/// How `deferral ready` ends, which health checks of containers run, and what it says.
async fn deferral_ready(proxy: &app::RunningProxy) -> (Option<i32>, String) {
    let admin = format!("http://{}", proxy.admin.as_ref().expect("there is one").address);
    let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
    command.args(["ready", "--admin", &admin]);
    let ended = tokio::task::spawn_blocking(move || command.output().expect("it starts"));
    let ended = ended.await.expect("it ends");
    let said = [ended.stdout, ended.stderr].concat();
    (ended.status.code(), String::from_utf8(said).expect("text"))
}

#[tokio::test]
async fn readiness_probes_a_required_server_that_has_no_calls() {
    let server = LegacyServer::start(Options::default()).await;
    let proxy = start(&server.url(), &[], &TOP);
    let operator = Operator::at(proxy.admin.as_ref().expect("there is one").address);
    soon("it is ready", async { while operator.get("/ready").await.status != 200 {} }).await;
    assert!(server.messages("initialize") >= 1);
}

#[tokio::test]
async fn readiness_ignores_servers_that_are_not_required() {
    let nobody = ReservedPort::new();
    let proxy = start(&nobody.url(), &[], &TOP[..1]);
    let operator = Operator::at(proxy.admin.as_ref().expect("there is one").address);
    Client::new(proxy.addresses[0]).ask("tools/list", json!({})).await;
    assert_eq!(operator.json("/ready").await, json!({ "status": "ready" }));
}
