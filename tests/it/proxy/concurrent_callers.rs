//! Many concurrent callers.

use super::proxy_and_server::Setup;
use crate::support::{legacy_server::PATIENCE, modern_client::Client};
use futures_util::future::join_all;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

const CALLERS: usize = 200;
const ROUNDS: usize = 3;

/// Different for each call, and the same in each run.
fn delay(caller: usize, round: usize) -> Duration {
    Duration::from_millis(((caller * 31 + round * 17) % 40) as u64)
}

async fn calls(client: Client, caller: usize) {
    let mut kept = client.kept().await;
    for round in 0..ROUNDS {
        let wanted = format!("{caller}/{round}");
        let params =
            json!({ "name": "echo", "arguments": { "say": wanted, "caller": caller, "round": round } });
        // Every id is used by everybody.
        let answer = kept.ask_as(&json!(round), "tools/call", params).await;
        assert_eq!(answer.json()["id"], json!(round));
        let mut result = answer.result();
        if result["resultType"] == "task" {
            let task = result["taskId"].as_str().expect("an id").to_owned();
            loop {
                let mut polled = kept.ask("tasks/get", json!({ "taskId": task })).await.result();
                if polled["status"] != "working" {
                    result = polled["result"].take();
                    break;
                }
            }
        }
        assert_eq!(result["content"][0]["text"], json!(wanted), "{result}");
    }
}

/// Half of each principal's callers declare tasks; half of all calls are slow enough for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_callers_each_get_their_own_answers() {
    let world = Setup::new()
        .route("defer: { after: 20ms }")
        .top("limits: { polls_per_second: 1000000 }")
        .start()
        .await;
    let addr = world.addr();
    let server = Arc::new(world.server);
    let answering = tokio::spawn({
        let server = Arc::clone(&server);
        async move {
            loop {
                let call = server.call().await;
                tokio::spawn(async move {
                    let arguments = call.seen.json["params"]["arguments"].clone();
                    let number = |key: &str| arguments[key].as_u64().expect("a number") as usize;
                    let token = ["alice", "bob"][number("caller") % 2];
                    assert_eq!(call.seen.header("authorization"), Some(&*format!("Bearer {token}")));
                    tokio::time::sleep(delay(number("caller"), number("round"))).await;
                    call.says(arguments["say"].as_str().expect("a text"));
                });
            }
        }
    });
    let callers = (0..CALLERS).map(|caller| {
        let client = Client::new(addr).bearing(["alice", "bob"][caller % 2]);
        let client = if caller % 4 < 2 { client.with_tasks() } else { client };
        tokio::spawn(calls(client, caller))
    });
    for outcome in timeout(PATIENCE * 3, join_all(callers)).await.expect("all are answered") {
        outcome.expect("each got its own");
    }
    answering.abort();
    assert_eq!(server.messages("tools/call"), CALLERS * ROUNDS);
    assert_eq!(server.messages("notifications/cancelled"), 0);
    let sessions = server.log();
    for token in ["alice", "bob"] {
        let theirs = |seen: &&crate::support::legacy_server::Seen| {
            seen.header("authorization") == Some(&*format!("Bearer {token}"))
        };
        let mut ids: Vec<_> =
            sessions.iter().filter(theirs).map(|seen| seen.session()).filter(|id| !id.is_empty()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 1, "nobody here can be asked, so one session serves all of {token}'s");
    }
}
