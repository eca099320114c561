//! Tasks and calls after a restart.
//!
//! The records lie in memory that outlives both: what a disk adds to that is shown in `durable`.

use super::{
    program::{Members, Program},
    proxy_and_server::{ALWAYS, Kept, SLOW, Setup},
};
use crate::support::{
    legacy_server::{LegacyServer, Options},
    modern_client::{Client, soon},
};
use deferral::internals::store::{MemoryStore, Store, StoreSecret};
use serde_json::{Value, json};
use std::sync::Arc;

/// A server, and where the proxies before it keep their tasks.
pub(crate) struct Place {
    pub(crate) server: LegacyServer,
    memory: MemoryStore,
    secret: u8,
}

impl Place {
    async fn new() -> Self {
        Self::before(|_| {}).await
    }

    /// Before a server that is like this.
    pub(crate) async fn before(change: impl FnOnce(&mut Options)) -> Self {
        let server = LegacyServer::start(Setup::new().server(change).options).await;
        Self { server, memory: MemoryStore::default(), secret: 1 }
    }

    /// The next process.
    pub(crate) async fn start(&mut self, route: Members, top: Members) -> Program {
        let memory = Arc::new(self.next());
        self.start_on(memory, route, top).await
    }

    /// What the next process finds.
    pub(crate) fn next(&mut self) -> MemoryStore {
        self.memory = self.memory.restarted();
        self.memory.restarted()
    }

    /// The next process, on a store of the test's own.
    pub(crate) async fn start_on(&self, store: Arc<dyn Store>, route: Members, top: Members) -> Program {
        let kept: Kept = (store, StoreSecret::new(&[self.secret; 32]));
        Program::kept(&self.server, kept, route, top).await
    }
}

/// The task as it is once this process has seen to it.
async fn ended(client: &Client, task: &str) -> Value {
    soon("its end is waited for", client.ended(task)).await
}

#[tokio::test]
async fn what_had_ended_is_served_and_what_had_not_fails_once_and_is_never_made_again() {
    let mut place = Place::new().await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = first.client().with_tasks();
    let mut made = Vec::new();
    for _ in 0..3 {
        let waiting = client.call("slow").await;
        let call = place.server.call().await;
        made.push((waiting.answer().await.task(), call));
    }
    let (done, call) = made.remove(0);
    call.says("finished");
    client.ended(&done).await;
    let (cancelled, _call) = made.remove(0);
    client.ask("tasks/cancel", json!({ "taskId": cancelled })).await.result();
    let (lost, _other) = made.remove(0);
    first.killed().await;

    let second = place.start(&[ALWAYS], &[]).await;
    let client = second.client().with_tasks();
    assert_eq!(client.task(&done).await["result"]["content"][0]["text"], "finished");
    assert_eq!(client.task(&cancelled).await["status"], "cancelled");
    let failed = ended(&client, &lost).await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!(-31002)));
    let words = failed["error"]["message"].as_str().expect("words");
    assert!(words.contains("may have run") && words.contains("outcome is unknown"), "{words}");
    second.killed().await;

    // It says the same ever after.
    let third = place.start(&[ALWAYS], &[]).await;
    assert_eq!(third.client().with_tasks().task(&lost).await, failed);
    third.killed().await;
    assert_eq!(place.server.messages("tools/call"), 3, "each was made once");
}

/// Nothing has been asked of the server yet.
#[tokio::test]
async fn a_task_shows_its_server_info_after_a_restart_before_the_next_handshake() {
    const SERVER: &str = "io.modelcontextprotocol/serverInfo";
    // The server may describe itself only once the call is a task.
    for is_known in [true, false] {
        let mut place = Place::new().await;
        let first = place.start(&[ALWAYS], &[]).await;
        let client = first.client().with_tasks();
        if is_known {
            client.ask("server/discover", json!({})).await.result();
        }
        let mut made = Vec::new();
        for _ in 0..2 {
            let waiting = client.call("slow").await;
            let call = place.server.call().await;
            made.push((waiting.answer().await.task(), call));
        }
        let (task, call) = made.remove(0);
        call.says("finished");
        client.ended(&task).await;
        first.killed().await;

        let second = place.start(&[ALWAYS], &[]).await;
        let client = second.client().with_tasks();
        for method in ["tasks/get", "tasks/cancel"] {
            let said = client.ask(method, json!({ "taskId": task })).await.result();
            let server = json!({ "name": "scripted", "version": "1" });
            assert_eq!(said["_meta"][SERVER], server, "{is_known} {method}");
        }
        second.killed().await;
    }
}

#[tokio::test]
async fn an_unfetched_result_does_not_delay_the_shutdown() {
    let mut place = Place::new().await;
    let mut first = place.start(&[ALWAYS], &[]).await;
    let client = first.client().with_tasks();
    let waiting = client.call("slow").await;
    let call = place.server.call().await;
    let task = waiting.answer().await.task();
    first.stop();
    call.says("finished");
    // The drain time is longer than anybody waits here.
    let lost = first.gone().await;
    assert_eq!((&lost["tasks_lost"], &lost["results_lost"]), (&json!(0), &json!(0)));
    let second = place.start(&[ALWAYS], &[]).await;
    let shown = second.client().with_tasks().task(&task).await;
    assert_eq!(shown["result"]["content"][0]["text"], "finished");
    second.killed().await;
}

#[tokio::test]
async fn a_waiting_call_becomes_a_task_when_the_proxy_stops() {
    let mut place = Place::new().await;
    let mut first = place.start(&[], &[]).await;
    let client = first.client().with_tasks();
    let waiting = client.call("slow").await;
    let call = place.server.call().await;
    let plain = first.client().call("plain").await;
    let other = place.server.call().await;
    first.stop();
    // Long before its threshold of five seconds.
    let task = waiting.answer().await.task();
    call.says("finished");
    other.says("as it is");
    assert_eq!(plain.answer().await.text(), "as it is", "its client can be given none");
    first.gone().await;
    let second = place.start(&[], &[]).await;
    let shown = second.client().with_tasks().task(&task).await;
    assert_eq!(shown["result"]["content"][0]["text"], "finished");
    second.killed().await;
}

#[tokio::test]
async fn a_task_belongs_to_its_owner_after_a_restart_unless_the_key_is_lost() {
    let mut place = Place::new().await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = first.client().with_tasks().bearing("one");
    let waiting = client.call("slow").await;
    place.server.call().await.says("finished");
    let task = waiting.answer().await.task();
    client.ended(&task).await;
    first.killed().await;

    let second = place.start(&[ALWAYS], &[]).await;
    let shown = async |program: &Program, token| {
        let client = program.client().with_tasks().bearing(token);
        client.ask("tasks/get", json!({ "taskId": task })).await
    };
    assert_eq!(shown(&second, "one").await.result()["status"], "completed");
    assert_eq!(shown(&second, "two").await.refusal().1, -32602);
    second.killed().await;

    place.secret = 2;
    let third = place.start(&[ALWAYS], &[]).await;
    assert_eq!(shown(&third, "one").await.refusal().1, -32602, "whoever has the store alone has nothing");
    third.killed().await;
}

#[tokio::test]
async fn a_retry_of_a_lost_call_reports_an_unknown_outcome() {
    let mut place = Place::new().await;
    let first = place.start(&[SLOW], &[]).await;
    let client = first.client().declaring(json!({ "elicitation": {} }));
    let waiting = client.call("ask").await;
    let call = place.server.call().await;
    let events = call.stream();
    events.send(&json!({ "jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {
        "mode": "form", "message": "who?", "requestedSchema": { "type": "object", "properties": {} },
    } }));
    let asked = waiting.answer().await.result();
    first.killed().await;
    let second = place.start(&[SLOW], &[]).await;
    let client = second.client().declaring(json!({ "elicitation": {} }));
    let key = asked["inputRequests"].as_object().expect("questions").keys().next().expect("one").clone();
    let back = client
        .send(
            "tools/call",
            json!({
                "name": "ask",
                "arguments": {},
                "requestState": asked["requestState"],
                "inputResponses": { key: { "action": "decline" } },
            }),
        )
        .await;
    let refused = back.answer().await;
    assert_eq!(refused.refusal().1, -31002, "{refused:?}");
    second.killed().await;
    assert_eq!(place.server.messages("tools/call"), 1);
}
