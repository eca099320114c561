//! Servers that send messages of a task on the session's GET stream and not on the call's.

use super::task_client::{
    Call, Canned, ProxyAndServer, Stream, Tasker, Value, beyond_status, json, pong, question, related, setup,
    soon, up_to_mark, world,
};
use crate::{
    front::listener_and_service::Lines,
    legacy::client_disconnects::{departed, next_connection},
    proxy::proxy_and_server::ALWAYS,
    support::legacy_server::Seen,
};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What the server says on the stream of this session.
async fn says(world: &ProxyAndServer, message: &Value) {
    world.server.listener("s1").await.raw(format!("data: {message}\n\n"));
}

fn progress(token: &Value, message: &str) -> Value {
    let params = json!({ "progressToken": token, "progress": 1, "message": message });
    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
}

/// A client that listens, and a task of it.
async fn listening(world: &ProxyAndServer) -> (Tasker, Stream, String, Call) {
    let client = Tasker::hello(world).await;
    let stream = client.listens().await;
    let (task, call) = client.makes(world).await;
    (client, stream, task, call)
}

/// The question is refused to the server, and the client hears nothing of it.
async fn is_refused(world: &ProxyAndServer, stream: &mut Stream, asks: &Value) {
    says(world, asks).await;
    let refused = world.server.seen(|seen| seen.answers(&asks["id"])).await;
    assert_eq!(refused.json["error"]["code"], -32603);
    assert_eq!(refused.session(), "s1");
    let said = up_to_mark(world, "s1", stream).await;
    assert!(said.iter().all(|message| message["method"] == "notifications/tasks/status"), "{said:#?}");
}

#[tokio::test]
async fn an_input_request_on_the_sessions_stream_belongs_to_the_only_task() {
    for waits in [false, true] {
        let world = world(ALWAYS).await;
        let (client, mut stream, task, call) = listening(&world).await;
        says(&world, &question(3, "who?")).await;
        let put = if waits {
            client.becomes(&task, "input_required").await;
            stream.leave();
            world.server.hang_up("s1");
            beyond_status(&mut client.waits(&task).await).await
        } else {
            beyond_status(&mut stream).await
        };
        assert_eq!((related(&put), &put["params"]["message"]), (&json!(task), &json!("who?")));
        assert_ne!(put["id"], 3);
        assert_eq!(client.get(&task).await["status"], "input_required");
        client.answers(&put["id"], json!({ "action": "accept", "content": {} })).await;
        let seen = world.server.seen(|seen| seen.answers(&json!(3))).await;
        assert_eq!((seen.session(), &seen.json["result"]["action"]), ("s1", &json!("accept")));
        client.becomes(&task, "working").await;
        call.says("done");
        assert_eq!(client.result(&task).await.text(), "done");
        assert_eq!(world.server.count(|seen| seen.answers(&json!(3))), 1);
    }
}

#[tokio::test]
async fn a_client_that_does_not_listen_is_asked_in_its_request_for_the_result() {
    for waits_first in [false, true] {
        let world = world(ALWAYS).await;
        let client = Tasker::hello(&world).await;
        let (task, call) = client.makes(&world).await;
        let opened = world.server.seen(|seen| seen.http == http::Method::GET).await;
        assert_eq!(opened.session(), "s1", "the stream is opened in the client's session");
        let early = if waits_first { Some(client.waits(&task).await) } else { None };
        says(&world, &question(3, "who?")).await;
        client.becomes(&task, "input_required").await;
        let mut waiting = match early {
            Some(waiting) => waiting,
            None => client.waits(&task).await,
        };
        let put = beyond_status(&mut waiting).await;
        assert_eq!((related(&put), &put["params"]["message"]), (&json!(task), &json!("who?")));
        client.answers(&put["id"], json!({ "action": "accept", "content": {} })).await;
        let seen = world.server.seen(|seen| seen.answers(&json!(3))).await;
        assert_eq!((seen.session(), &seen.json["result"]["action"]), ("s1", &json!("accept")));
        client.becomes(&task, "working").await;
        call.says("done");
        assert_eq!(beyond_status(&mut waiting).await["result"]["content"][0]["text"], "done");
    }
}

#[tokio::test]
async fn the_stream_that_is_read_for_a_client_is_open_before_its_call_and_ends_with_its_last_task() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (first, first_call) = client.makes(&world).await;
    let place = |is_it: fn(&Seen) -> bool| world.server.log().iter().position(is_it);
    let (get, called) =
        (place(|seen| seen.http == http::Method::GET), place(|seen| seen.method() == "tools/call"));
    assert!(get.is_some() && get < called, "{get:?} {called:?}");
    let (second, second_call) = client.makes(&world).await;
    first_call.says("done");
    client.becomes(&first, "completed").await;
    assert!(world.server.listening("s1").is_some(), "another task runs");
    says(&world, &question(3, "who?")).await;
    client.becomes(&second, "input_required").await;
    second_call.says("done");
    client.becomes(&second, "completed").await;
    soon("its stream is closed", async {
        while world.server.listening("s1").is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(world.server.count(|seen| seen.http == http::Method::GET), 1);
}

#[tokio::test]
async fn a_client_that_begins_to_listen_takes_its_stream_over_and_gives_it_back() {
    for status in [400, 409] {
        takes_its_stream_over(status).await;
    }
}

async fn takes_its_stream_over(status: u16) {
    // As SDKs have it: one stream for a session, and the next is refused while that is open.
    let conflicts = AtomicUsize::new(0);
    let world = setup()
        .server(move |options| {
            let refused = move |seen: &Seen| {
                let is_second = seen.http == http::Method::GET && conflicts.fetch_add(1, Relaxed) == 1;
                is_second.then(|| Canned::status(status)).or_else(|| pong(seen))
            };
            *options = std::mem::take(options).hook(refused);
        })
        .route(ALWAYS)
        .start()
        .await;
    let client = Tasker::hello(&world).await;
    let (task, _call) = client.makes(&world).await;
    let ours = world.server.listener("s1").await;
    let mut stream = client.listens().await;
    ours.left().await;
    says(&world, &question(3, "who?")).await;
    let put = beyond_status(&mut stream).await;
    assert_eq!(related(&put), &json!(task));
    client.answers(&put["id"], json!({ "action": "accept", "content": {} })).await;
    client.becomes(&task, "working").await;
    stream.leave();
    let is_get = |seen: &Seen| seen.http == http::Method::GET;
    world.server.last_of(4, is_get).await;
    says(&world, &question(4, "and now?")).await;
    let put = beyond_status(&mut client.waits(&task).await).await;
    assert_eq!(put["params"]["message"], "and now?");
}

/// The official SDK for Rust sends the messages of an earlier stream again on each new one.
#[tokio::test]
async fn an_answered_input_request_that_the_server_repeats_is_not_sent_to_the_client_again() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    world.server.seen(|seen| seen.http == http::Method::GET).await;
    says(&world, &question(3, "who?")).await;
    client.becomes(&task, "input_required").await;
    let mut waiting = client.waits(&task).await;
    let put = beyond_status(&mut waiting).await;
    client.answers(&put["id"], json!({ "action": "accept", "content": {} })).await;
    client.becomes(&task, "working").await;
    says(&world, &question(3, "who?")).await;
    // The ping behind it is answered once it has been read.
    says(&world, &json!({ "jsonrpc": "2.0", "id": 9, "method": "ping" })).await;
    world.server.seen(|seen| seen.answers(&json!(9))).await;
    assert_eq!(client.get(&task).await["status"], "working");
    assert_eq!(world.server.count(|seen| seen.answers(&json!(3))), 1);
    call.says("done");
    assert_eq!(beyond_status(&mut waiting).await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_stream_that_is_read_for_a_client_answers_pings_and_leaves_other_requests_alone() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, _call) = client.makes(&world).await;
    says(&world, &json!({ "jsonrpc": "2.0", "id": 8, "method": "x/other" })).await;
    says(&world, &json!({ "jsonrpc": "2.0", "id": 9, "method": "ping" })).await;
    let pong = world.server.seen(|seen| seen.answers(&json!(9))).await;
    assert_eq!((pong.session(), &pong.json["result"]), ("s1", &json!({})));
    assert_eq!(world.server.count(|seen| seen.answers(&json!(8))), 0);
    assert_eq!(client.get(&task).await["status"], "working");
}

#[tokio::test]
async fn progress_on_the_sessions_stream_is_the_tasks() {
    let world = world(ALWAYS).await;
    let (client, mut stream, task, call) = listening(&world).await;
    let token = call.seen.json["params"]["_meta"]["progressToken"].clone();
    for token in [token.clone(), json!(token.to_string())] {
        says(&world, &progress(&token, "half")).await;
    }
    let said = up_to_mark(&world, "s1", &mut stream).await;
    assert!(said.is_empty(), "the client gave no token: {said:#?}");
    client.until(&task, |task| task["statusMessage"] == "half").await;
    call.says("done");
    client.becomes(&task, "completed").await;
    says(&world, &progress(&token, "late")).await;
    let said = up_to_mark(&world, "s1", &mut stream).await;
    assert!(said.iter().all(|message| message["method"] == "notifications/tasks/status"), "{said:#?}");
    // Under its own token it is relayed, and says which task it is of; under another it passes.
    let params = json!({ "name": "slow", "task": {}, "_meta": { "progressToken": "mine" } });
    let answer = client.ask("tools/call", params).await;
    let task = answer.result()["task"]["taskId"].clone();
    let _call = world.server.call().await;
    for token in ["other", "mine"] {
        says(&world, &progress(&json!(token), "on")).await;
    }
    let said = [beyond_status(&mut stream).await, beyond_status(&mut stream).await];
    assert!(said.contains(&progress(&json!("other"), "on")), "{said:#?}");
    let own = said.iter().find(|said| said["params"]["progressToken"] == "mine").expect("it is relayed");
    assert_eq!(related(own), &task);
}

#[tokio::test]
async fn an_input_request_that_is_withdrawn_on_the_sessions_stream_is_cancelled() {
    let world = world(ALWAYS).await;
    let (client, mut stream, task, _call) = listening(&world).await;
    says(&world, &question(3, "who?")).await;
    let put = beyond_status(&mut stream).await;
    let back = |id: Value| json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    says(&world, &back(json!(3))).await;
    assert_eq!(beyond_status(&mut stream).await["params"]["requestId"], put["id"]);
    client.becomes(&task, "working").await;
    // What is not a task's is the client's.
    says(&world, &back(json!(4))).await;
    assert_eq!(beyond_status(&mut stream).await, back(json!(4)));
}

#[tokio::test]
async fn an_input_request_that_could_be_anothers_is_refused() {
    let world = world(ALWAYS).await;
    let (client, mut stream, task, call) = listening(&world).await;
    let (second, second_call) = client.makes(&world).await;
    is_refused(&world, &mut stream, &question(3, "who?")).await;
    second_call.says("done");
    client.becomes(&second, "completed").await;
    // A plain call of the client's own may be meant as well.
    let plain = client.0.call(9).await;
    let plain_call = world.server.call().await;
    is_refused(&world, &mut stream, &question(4, "who?")).await;
    plain_call.says("plain");
    assert_eq!(plain.answer().await.text(), "plain");
    // By now there is one alone.
    says(&world, &question(5, "who?")).await;
    assert_eq!(related(&beyond_status(&mut stream).await), &json!(task));
    drop(call);
}

#[tokio::test]
async fn an_input_request_is_refused_where_an_unfinished_call_remains() {
    for ours in [true, false] {
        let world = world(ALWAYS).await;
        let (client, mut stream, task, _call) = listening(&world).await;
        if ours {
            let (second, _call) = client.makes(&world).await;
            client.of("tasks/cancel", &second).await.result();
            world.server.message("notifications/cancelled").await;
        } else {
            let plain = client.0.call(9).await;
            world.server.call().await.stream().break_off();
            plain.answer().await;
        }
        is_refused(&world, &mut stream, &question(3, "who?")).await;
        assert_eq!(client.get(&task).await["status"], "working");
    }
}

#[tokio::test]
async fn the_id_of_a_task_in_its_clients_session_is_above_those_of_the_client_and_has_31_bits() {
    let world = world(ALWAYS).await;
    let (client, _stream, task, call) = listening(&world).await;
    let id = call.id().as_u64().expect("a number");
    assert!((1 << 30..1 << 31).contains(&id), "{id}");
    assert_eq!(call.seen.json["params"]["_meta"]["progressToken"], id);
    // Progress is the task's in any spelling of its token.
    says(&world, &progress(&json!(id as f64), "half")).await;
    client.until(&task, |task| task["statusMessage"] == "half").await;
}

#[tokio::test]
async fn a_cancelled_call_does_not_block_input_requests_of_later_tasks() {
    let world = world(ALWAYS).await;
    let (client, mut stream, first, _first_call) = listening(&world).await;
    client.of("tasks/cancel", &first).await.result();
    world.server.message("notifications/cancelled").await;
    // A call of the client's own, whose server ends the stream of it, or does not, behind the cancellation.
    let mut open = Vec::new();
    for (id, ends) in [(8, true), (9, false)] {
        let plain = client.0.call(id).await;
        let events = world.server.call().await.stream();
        let cancel =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
        client.posts(&cancel).await;
        open.push((plain, (!ends).then_some(events)));
    }
    let (later, _call) = client.makes(&world).await;
    says(&world, &question(5, "who?")).await;
    assert_eq!(related(&beyond_status(&mut stream).await), &json!(later));
}

#[tokio::test]
async fn a_finished_call_of_a_disconnected_client_does_not_block_attribution() {
    for has_begun in [false, true] {
        let lines = Lines::record();
        let world = world(ALWAYS).await;
        let (client, mut stream, task, _call) = listening(&world).await;
        let plain = client.0.call(9).await;
        let plain_call = world.server.call().await;
        let connection = plain_call.seen.connection;
        if has_begun {
            let events = plain_call.stream();
            events.raw("id: 1\ndata:\n\n");
            let mut begun = plain.stream().await;
            begun.piece().await.expect("it goes on").expect("it does not break off");
            begun.leave();
            departed(&lines).await;
            is_refused(&world, &mut stream, &question(3, "who?")).await;
            events.result(&json!(9), json!({}));
        } else {
            plain.leave();
            departed(&lines).await;
            is_refused(&world, &mut stream, &question(3, "who?")).await;
            plain_call.says("nobody hears this");
        }
        // It was read to its end once the connection is free again.
        while next_connection(&world, &client.0).await != connection {}
        says(&world, &question(4, "who?")).await;
        assert_eq!(related(&beyond_status(&mut stream).await), &json!(task));
    }
}

#[tokio::test]
async fn an_input_request_is_found_behind_a_byte_order_mark_and_before_a_cr_that_nothing_follows() {
    for (mark, end) in [("\u{feff}", "\n\n"), ("", "\r\r")] {
        let world = world(ALWAYS).await;
        let (client, _stream, task, _call) = listening(&world).await;
        let asks = question(3, "who?");
        world.server.listener("s1").await.raw(format!("{mark}data: {asks}{end}"));
        client.becomes(&task, "input_required").await;
    }
}

#[tokio::test]
async fn without_a_task_the_sessions_stream_is_the_clients_byte_for_byte() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut stream = client.listens().await;
    let plain = client.0.call(9).await;
    let call = world.server.call().await;
    says(&world, &question(3, "who?")).await;
    assert_eq!(beyond_status(&mut stream).await, question(3, "who?"));
    client.answers(&json!(3), json!({ "action": "decline" })).await;
    assert_eq!(world.server.seen(|seen| seen.answers(&json!(3))).await.session(), "s1");
    call.says("plain");
    assert_eq!(plain.answer().await.text(), "plain");
}

#[tokio::test]
async fn a_repeated_input_request_on_a_resumed_stream_is_sent_once() {
    let world = world(ALWAYS).await;
    let (client, mut stream, task, _call) = listening(&world).await;
    let asks = question(3, "who?");
    for _ in 0..2 {
        world.server.listener("s1").await.raw(format!("data: {asks}\n\n"));
    }
    let put = beyond_status(&mut stream).await;
    let rest = up_to_mark(&world, "s1", &mut stream).await;
    assert!(rest.iter().all(|message| message["method"] == "notifications/tasks/status"), "{rest:#?}");
    client.answers(&put["id"], json!({ "action": "cancel" })).await;
    client.becomes(&task, "working").await;
    assert_eq!(world.server.count(|seen| seen.answers(&json!(3))), 1);
}

/// A world whose server refuses so many answers with this status.
async fn refusing(times: usize, status: u16) -> ProxyAndServer {
    let left = AtomicUsize::new(times);
    let refused = move |seen: &Seen| {
        let is_answer = seen.http == http::Method::POST && seen.method().is_empty();
        let one_less = |left: usize| left.checked_sub(1);
        let refuses = is_answer && left.fetch_update(Relaxed, Relaxed, one_less).is_ok();
        refuses.then(|| Canned::status(status)).or_else(|| pong(seen))
    };
    setup().server(|options| *options = std::mem::take(options).hook(refused)).route(ALWAYS).start().await
}

/// Asks on the session's stream, and answers what is put to the client.
async fn asked_and_answered(world: &ProxyAndServer, client: &Tasker, stream: &mut Stream) {
    says(world, &question(3, "who?")).await;
    let put = beyond_status(stream).await;
    client.answers(&put["id"], json!({ "action": "accept", "content": {} })).await;
    world.server.seen(|seen| seen.answers(&json!(3))).await;
}

#[tokio::test]
async fn an_input_response_that_the_server_does_not_accept_is_sent_again() {
    let world = refusing(2, 503).await;
    let (client, mut stream, task, call) = listening(&world).await;
    asked_and_answered(&world, &client, &mut stream).await;
    world.server.last_of(3, |seen| seen.answers(&json!(3))).await;
    call.says("done");
    assert_eq!(client.result(&task).await.text(), "done");
}

#[tokio::test]
async fn a_task_whose_input_response_cannot_be_delivered_fails_with_the_reason() {
    let world = refusing(usize::MAX, 404).await;
    let (client, mut stream, task, _call) = listening(&world).await;
    asked_and_answered(&world, &client, &mut stream).await;
    let shown = client.becomes(&task, "failed").await;
    let why = shown["statusMessage"].as_str().expect("a text");
    assert!(why.contains("404"), "{why}");
    let cancelled = world.server.message("notifications/cancelled").await;
    assert_eq!(cancelled.session(), "s1");
}

#[tokio::test]
async fn the_input_response_of_a_cancelled_task_follows_the_cancellation() {
    let world = world(ALWAYS).await;
    let (client, mut stream, task, _call) = listening(&world).await;
    says(&world, &question(3, "who?")).await;
    beyond_status(&mut stream).await;
    client.of("tasks/cancel", &task).await.result();
    world.server.seen(|seen| seen.answers(&json!(3))).await;
    let log = world.server.log();
    let told =
        log.iter().filter(|seen| seen.method() == "notifications/cancelled" || seen.answers(&json!(3)));
    let told: Vec<_> = told.map(Seen::method).collect();
    assert_eq!(told, ["notifications/cancelled", ""]);
}

#[tokio::test]
async fn endless_unattributed_input_requests_take_a_bounded_number_of_connections() {
    const PLACES: usize = 8;
    let ignores = |seen: &Seen| seen.json["error"]["code"] == -32603;
    let world = setup()
        .server(|options| options.ignores = Box::new(ignores))
        .top("limits: { messages: 8 }")
        .route(ALWAYS)
        .start()
        .await;
    let (client, mut stream, task, call) = listening(&world).await;
    let (_second, _call) = client.makes(&world).await;
    let own = world.server.listener("s1").await;
    for number in 0..2_000 {
        own.raw(format!("data: {}\n\n", question(number, "who?")));
    }
    let said = up_to_mark(&world, "s1", &mut stream).await;
    assert!(said.is_empty(), "{said:#?}");
    // Others have their way.
    call.says("done");
    assert_eq!(client.result(&task).await.text(), "done");
    let refused = world.server.count(ignores);
    assert!(refused <= PLACES / 2, "{refused} are on their way");
}

#[tokio::test]
async fn a_clients_own_progress_passes_whatever_number_its_token_is() {
    let world = world(ALWAYS).await;
    let (_client, mut stream, _task, _call) = listening(&world).await;
    let own = progress(&json!(1_750_000_000_000_000_000_u64), "own");
    says(&world, &own).await;
    assert_eq!(up_to_mark(&world, "s1", &mut stream).await, [own]);
}

/// A call is made in the session, and is not served; then a task's server asks on the session's stream.
async fn asks_after(world: &ProxyAndServer, client: &Tasker, stream: &mut Stream) {
    let (task, call) = client.makes(world).await;
    says(world, &question(7, "who?")).await;
    assert_eq!(related(&beyond_status(stream).await), &json!(task));
    call.says("done");
}

#[tokio::test]
async fn a_call_refused_by_the_server_does_not_block_attribution() {
    for status in [400, 401, 429, 500, 503] {
        for task in [false, true] {
            let world = world(ALWAYS).await;
            let client = Tasker::hello(&world).await;
            let mut stream = client.listens().await;
            if task {
                let (refused, call) = client.makes(&world).await;
                call.canned(Canned::status(status));
                client.becomes(&refused, "failed").await;
            } else {
                let plain = client.0.call(9).await;
                world.server.call().await.canned(Canned::status(status));
                plain.answer().await;
            }
            asks_after(&world, &client, &mut stream).await;
        }
    }
}

#[tokio::test]
async fn an_input_request_is_refused_after_a_gateway_timeout_of_another_call() {
    for status in [502, 504, 524] {
        let world = world(ALWAYS).await;
        let (client, mut stream, _task, _call) = listening(&world).await;
        let plain = client.0.call(9).await;
        world.server.call().await.canned(Canned::status(status));
        plain.answer().await;
        is_refused(&world, &mut stream, &question(3, "who?")).await;
    }
}

#[tokio::test]
async fn a_call_without_a_connection_does_not_block_attribution() {
    let world = setup()
        .top("limits: { upstream_connections: 2 }")
        .top("timeouts: { connect: 50ms }")
        .route(ALWAYS)
        .start()
        .await;
    let client = Tasker::hello(&world).await;
    let mut stream = client.listens().await;
    world.server.listener("s1").await;
    let other = Tasker::within(&world, "s9").0.call(1).await;
    let others = world.server.call().await;
    let refused = client.0.call(9).await.answer().await;
    assert!(refused.body.contains("upstream_connections"), "{refused:?}");
    others.says("done");
    other.answer().await;
    asks_after(&world, &client, &mut stream).await;
}

#[tokio::test]
async fn a_resumed_and_finished_call_does_not_block_attribution() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    // 2025-11-25, *Streamable HTTP*: the server closes the connection, and its client polls.
    let plain = client.0.call(9).await;
    let call = world.server.call().await;
    let id = call.id();
    let events = call.stream();
    events.raw("id: e1\nretry: 10\ndata:\n\n");
    let mut ended = plain.stream().await;
    drop(events);
    while ended.piece().await.is_some() {}
    let mut resumed = client.0.with("last-event-id", "e1").listen().await.stream().await;
    says(&world, &json!({ "jsonrpc": "2.0", "id": id, "result": { "content": [] } })).await;
    assert_eq!(resumed.next().await["id"], id);
    world.server.hang_up("s1");
    while resumed.piece().await.is_some() {}
    let mut stream = client.listens().await;
    asks_after(&world, &client, &mut stream).await;
}
