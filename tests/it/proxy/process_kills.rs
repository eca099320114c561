//! A process that is killed before and after each of its writes.
//!
//! One task lives its life: it is made, its server reports, asks and is answered, and ends; or it is cancelled.
//! Somewhere the store halts in the middle of an operation, done or not done, and the process with it. What the
//! client was told until then, what the server has seen, and what the next process says must agree.

use super::{call_resumption::keeps_events, program::Program, proxy_and_server::ALWAYS, restart::Place};
use crate::support::{
    faulty_store::{FaultyStore, Halt, Op},
    legacy_server::Events,
    modern_client::{Client, soon},
};
use deferral::internals::{
    protocol::Timestamp,
    store::{DueTask, MemoryStore, Store as _},
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::sync::Mutex;

/// How the life of a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Answered,
    Cancelled,
}

/// Responses that the client received.
#[derive(Debug, Default)]
struct Told {
    handle: Option<String>,
    /// Its answer, or its cancellation, was acknowledged.
    acknowledged: bool,
    /// The end of the task.
    end: Option<Value>,
}

const QUESTION: &str = "q1";

fn client(program: &Program) -> Client {
    program
        .client()
        .declaring(json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } }))
}

/// The server asks, unless it has its answer; then it answers.
async fn serve(place: &Place, events: Events, call: &Value, first: u32) {
    let progress = json!({ "progressToken": call, "progress": first, "message": format!("at {first}") });
    let notice = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress });
    events.raw(format!("id: e{first}\ndata: {notice}\n\n"));
    let is_answer = |seen: &crate::support::legacy_server::Seen| seen.answers(&json!(QUESTION));
    if place.server.count(is_answer) == 0 {
        let question = json!({ "jsonrpc": "2.0", "id": QUESTION, "method": "elicitation/create", "params": {
            "mode": "form", "message": "who?", "requestedSchema": { "type": "object", "properties": {} },
        } });
        events.raw(format!("id: e{}\ndata: {question}\n\n", first + 1));
        place.server.seen(is_answer).await;
    }
    let result = json!({ "content": [{ "type": "text", "text": "made once" }] });
    let response = json!({ "jsonrpc": "2.0", "id": call, "result": result });
    events.raw(format!("id: e{}\ndata: {response}\n\n", first + 2));
    // Until the proxy has it.
    events.left().await;
}

/// The client does its part of a life, as far as it has not.
async fn live(client: &Client, life: Life, told: &Mutex<Told>) {
    let note = |change: &dyn Fn(&mut Told)| change(&mut told.lock().expect("nothing panics"));
    let handle = told.lock().expect("nothing panics").handle.clone();
    let task = match handle {
        Some(task) => task,
        None => {
            let task = client.call("slow").await.answer().await.task();
            note(&|told| told.handle = Some(task.clone()));
            task
        }
    };
    loop {
        let shown = client.until(&task, |shown| shown["status"] != "working").await;
        if shown["status"] != "input_required" {
            return note(&|told| told.end = Some(shown.clone()));
        }
        let done = match life {
            Life::Answered => {
                let key = shown["inputRequests"]
                    .as_object()
                    .expect("questions")
                    .keys()
                    .next()
                    .expect("one")
                    .clone();
                let answers = json!({ key: { "action": "accept", "content": { "n": 1 } } });
                client.ask("tasks/update", json!({ "taskId": task, "inputResponses": answers })).await
            }
            Life::Cancelled => client.ask("tasks/cancel", json!({ "taskId": task })).await,
        };
        done.result();
        note(&|told| told.acknowledged = true);
    }
}

/// How many tasks have not ended.
async fn working(store: &MemoryStore) -> usize {
    let all = store.due(Timestamp::from_millis(u64::MAX), 9).await.expect("it answers");
    all.iter().filter(|due: &&DueTask| !due.is_ended).count()
}

/// One life, which is cut off there. Says whether it was.
async fn cut(life: Life, halt: Halt) -> bool {
    let mut place = Place::before(keeps_events).await;
    let store = FaultyStore::halting(place.next(), halt);
    let first = place.start_on(store.clone(), &[ALWAYS], &[]).await;
    let told = Mutex::new(Told::default());
    let call = Mutex::new(None);
    let server = async {
        let arrived = place.server.call().await;
        let id = arrived.id();
        *call.lock().expect("nothing panics") = Some(id.clone());
        serve(&place, arrived.stream(), &id, 1).await;
        std::future::pending::<()>().await
    };
    let asked = client(&first);
    let is_cut = tokio::select! {
        () = store.halted() => true,
        () = live(&asked, life, &told) => false,
        () = server => unreachable!("it goes on"),
    };
    first.killed().await;
    let name = format!("{life:?} {halt:?}");
    let before = told.into_inner().expect("nothing panics");

    let second = place.start(&[ALWAYS], &[]).await;
    let asked = client(&second);
    let was_called = place.server.messages("tools/call");
    assert!(was_called <= 1, "{name}");
    if let Some(task) = &before.handle {
        let resumed = async {
            let seen = place.server.seen(|seen| seen.header("last-event-id").is_some()).await;
            let events = place.server.listener(seen.session()).await;
            let id = call.lock().expect("nothing panics").clone().expect("it was called");
            serve(&place, events, &id, 11).await;
            std::future::pending::<()>().await
        };
        let told = Mutex::new(Told { handle: Some(task.clone()), ..Told::default() });
        tokio::select! {
            () = soon(&name, live(&asked, life, &told)) => {}
            () = resumed => unreachable!("it goes on"),
        }
        let end = told.into_inner().expect("nothing panics").end.expect("it has ended");
        if let Some(shown) = &before.end {
            assert_eq!(end["status"], shown["status"], "{name}");
            assert_eq!(end["result"], shown["result"], "{name}");
        }
        let ends = match (life, before.acknowledged) {
            (Life::Cancelled, true) => vec![json!("cancelled")],
            (Life::Cancelled, false) => vec![json!("cancelled"), json!("failed")],
            (Life::Answered, _) => vec![json!("completed"), json!("failed")],
        };
        assert!(ends.contains(&end["status"]), "{name}: {end:#}");
        match end["status"].as_str() {
            Some("completed") => assert_eq!(end["result"]["content"][0]["text"], "made once", "{name}"),
            Some("failed") => {
                assert_eq!(end["error"]["code"], -31002, "{name}: {end:#}");
                let is_early =
                    matches!(halt, Halt { op: Op::Insert, .. } | Halt { op: Op::Anchor, time: 1, .. });
                assert!(is_early || halt.op == Op::Swap && halt.time == 1, "{name}: it could have gone on");
            }
            _ => {
                let cancelled =
                    |seen: &crate::support::legacy_server::Seen| seen.method() == "notifications/cancelled";
                place.server.seen(cancelled).await;
            }
        }
        let answers = place
            .server
            .count(|seen| seen.answers(&json!(QUESTION)) && seen.json["result"]["action"] == "accept");
        assert!(answers >= usize::from(end["status"] == "completed"), "{name}");
    } else {
        assert_eq!(halt.op, Op::Insert, "{name}: it has its handle");
    }
    assert_eq!(place.server.messages("tools/call"), was_called, "{name}: it was made once");
    // No orphaned task is left.
    let left = place.next();
    let all_ended = async {
        while working(&left).await > 0 {
            tokio::task::yield_now().await;
        }
    };
    soon(&name, all_ended).await;
    second.killed().await;
    is_cut
}

#[tokio::test]
async fn wherever_a_process_is_killed_client_server_and_store_agree() {
    let mut lives = Vec::new();
    for life in [Life::Answered, Life::Cancelled] {
        for (op, times) in [(Op::Insert, 1), (Op::Swap, 7), (Op::Anchor, 6)] {
            for time in 1..=times {
                for is_done in [false, true] {
                    lives.push((life, Halt { op, time, is_done }));
                }
            }
        }
    }
    let cuts = stream::iter(lives).map(|(life, halt)| async move { (halt, cut(life, halt).await) });
    let cuts: Vec<_> = cuts.buffer_unordered(6).collect().await;
    let cut: Vec<_> = cuts.into_iter().filter_map(|(halt, is_cut)| is_cut.then_some(halt)).collect();
    // A life has fewer of them than that, some by chance: but it has been cut off everywhere.
    for (op, least) in [(Op::Insert, 4), (Op::Swap, 10), (Op::Anchor, 4)] {
        let count = cut.iter().filter(|halt| halt.op == op).count();
        assert!(count >= least, "{op:?}: {count}");
    }
}
