//! Sessions that a server has lost, whatever its error.

use super::{UpstreamAndServer, value};
use crate::support::legacy_server::{Canned, Options, Seen};
use deferral::internals::upstream::{CallError, UpstreamEvent};

use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

fn error(code: i64, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": null, "error": { "code": code, "message": message } })
}

/// A server that refuses every request but `initialize` like this in the sessions that it has forgotten.
fn forgetful(refusal: impl Fn(&Seen) -> Canned + Send + Sync + 'static) -> (Options, Arc<AtomicBool>) {
    let forgot = Arc::<AtomicBool>::default();
    let (forgets, known) = (Arc::clone(&forgot), std::sync::Mutex::new(0_usize));
    let options = Options::default().hook(move |seen| {
        let mut known = known.lock().expect("nothing panics");
        if seen.method() == "initialize" {
            *known += 1;
            return None;
        }
        // All that were opened before the last one, once it has forgotten them.
        let is_old = seen.session() != format!("s{known}") || *known == 1;
        (seen.http == http::Method::POST && is_old && forgets.load(Ordering::Relaxed)).then(|| refusal(seen))
    });
    (options, forgot)
}

async fn is_served(world: &UpstreamAndServer, id: u64) -> String {
    let mut call = world.call(id);
    let session = world.answer().await;
    call.result().await;
    session
}

#[tokio::test]
async fn a_call_in_a_session_that_was_lost_is_made_once_more_in_a_fresh_one() {
    let refusals: [fn(&Seen) -> Canned; 7] = [
        |_| Canned::json(400, &error(-32000, "Bad Request: Server not initialized")),
        |_| Canned::json(400, &error(-32000, "Bad Request: No valid session ID provided")),
        |_| Canned::status(400),
        |_| Canned::json(404, &error(-32001, "Session not found")),
        |_| Canned::status(410).body("gone"),
        |_| Canned::status(503).body("no backend for this session"),
        |seen| {
            let error = json!({ "code": -32600, "message": "Server not initialized" });
            Canned::json(400, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "error": error }))
        },
    ];
    for refusal in refusals {
        let (options, forgot) = forgetful(refusal);
        let world = UpstreamAndServer::new(options).await;
        assert_eq!(is_served(&world, 1).await, "s1");
        forgot.store(true, Ordering::Relaxed);
        assert_eq!(is_served(&world, 2).await, "s2");
        assert_eq!(is_served(&world, 3).await, "s2");
        let counts = (world.server.messages("initialize"), world.server.messages("tools/call"));
        assert_eq!(counts, (2, 4), "the second call was made twice, in one fresh session");
    }
}

#[tokio::test]
async fn calls_that_lose_a_session_together_open_one_fresh_session() {
    let (options, forgot) = forgetful(|_| Canned::status(400));
    let world = UpstreamAndServer::new(options).await;
    is_served(&world, 1).await;
    forgot.store(true, Ordering::Relaxed);
    let mut calls: Vec<_> = (2..10).map(|id| world.call(id)).collect();
    for _ in &calls {
        assert_eq!(world.answer().await, "s2");
    }
    for call in &mut calls {
        call.result().await;
    }
    assert_eq!(world.server.messages("initialize"), 2);
}

#[tokio::test]
async fn a_server_without_session_ids_that_was_started_anew_is_initialized_again() {
    let (options, forgot) = forgetful(|_| Canned::json(400, &error(-32000, "Server not initialized")));
    let hook = options.hook.expect("it has one");
    let refuses = Arc::clone(&forgot);
    let options = Options { sessions: false, ..Options::default() }.hook(move |seen| {
        let answer = hook(seen);
        if seen.method() == "initialize" {
            refuses.store(false, Ordering::Relaxed);
        }
        answer
    });
    let world = UpstreamAndServer::new(options).await;
    is_served(&world, 1).await;
    forgot.store(true, Ordering::Relaxed);
    is_served(&world, 2).await;
    assert_eq!(world.server.messages("initialize"), 2);
}

#[tokio::test]
async fn a_call_that_a_fresh_session_refuses_too_ends_with_the_servers_error() {
    for status in [400, 404, 410, 503] {
        let world = UpstreamAndServer::new(Options::default()).await;
        for (id, times) in [(1, 2), (2, 1)] {
            // Within a second the next call is not made twice.
            let mut call = world.call(id);
            for _ in 0..times {
                world.server.call().await.canned(Canned::status(status).body("overloaded"));
            }
            let lost = call.lost().await;
            assert!(matches!(&lost, CallError::Status { status: of, .. } if of.as_u16() == status), "{lost}");
            assert!(lost.to_string().contains("overloaded"), "{lost}");
        }
        assert_eq!(world.server.messages("tools/call"), 3);
    }
}

#[tokio::test]
async fn a_refused_call_keeps_its_error_where_no_new_session_can_be_opened() {
    let refuses = Arc::<AtomicBool>::default();
    let refuse = Arc::clone(&refuses);
    let options = Options::default().hook(move |seen| {
        let is_refused = seen.method() == "initialize" && refuse.load(Ordering::Relaxed);
        is_refused.then(|| Canned::status(503).body("still busy"))
    });
    let world = UpstreamAndServer::new(options).await;
    is_served(&world, 1).await;
    refuses.store(true, Ordering::Relaxed);
    let mut call = world.call(2);
    world.server.call().await.canned(Canned::json(503, &error(-32050, "busy until noon")));
    match call.next().await {
        Some(UpstreamEvent::Final(response)) => assert_eq!(value(response.frame())["error"]["code"], -32050),
        other => panic!("the server's own words, not {other:?}"),
    }
    refuses.store(false, Ordering::Relaxed);
    assert_eq!(is_served(&world, 3).await, "s2");
}

#[tokio::test]
async fn a_ping_decides_about_the_session_of_a_call_that_ends_with_an_error() {
    let errors: [fn(crate::support::legacy_server::Call); 3] = [
        |call| call.canned(Canned::status(500).body("oops")),
        |call| call.canned(Canned::json(500, &error(-32603, "oops"))),
        |call| call.error(json!({ "code": -32600, "message": "unknown session" })),
    ];
    type Pong = fn(&Seen) -> Canned;
    let pongs: [(Pong, &str); 6] = [
        (|seen| Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} })), "s1"),
        (|_| Canned::json(200, &error(-32601, "no pings here")), "s1"),
        (|_| Canned::status(429), "s1"),
        (|_| Canned::status(500), "s2"),
        (|_| Canned::status(404), "s2"),
        (|_| Canned::json(200, &error(-32600, "unknown session")), "s2"),
    ];
    for fails in errors {
        for (pong, session) in pongs {
            let options = Options::default().hook(move |seen| (seen.method() == "ping").then(|| pong(seen)));
            let world = UpstreamAndServer::new(options).await;
            let mut call = world.call(1);
            fails(world.server.call().await);
            assert!(matches!(call.next().await, Some(UpstreamEvent::Final(_) | UpstreamEvent::Lost(_))));
            let ping = world.server.message("ping").await;
            assert_eq!(ping.session(), "s1");
            if session == "s2" {
                let given_up = |seen: &Seen| seen.http == http::Method::DELETE && seen.session() == "s1";
                world.server.seen(given_up).await;
            }
            assert_eq!(is_served(&world, 2).await, session);
            assert_eq!(world.server.messages("tools/call"), 2, "a call that may have run is not made again");
        }
    }
}

#[tokio::test]
async fn a_server_is_pinged_once_a_second_whatever_number_of_calls_fail() {
    let world = UpstreamAndServer::new(Options::default()).await;
    for id in 1..6 {
        let mut call = world.call(id);
        world.server.call().await.error(json!({ "code": -32602, "message": "no such tool" }));
        assert!(matches!(call.next().await, Some(UpstreamEvent::Final(_))));
    }
    world.server.message("ping").await;
    assert_eq!(is_served(&world, 7).await, "s1");
    assert_eq!(world.server.messages("ping"), 1);
}

#[tokio::test]
async fn a_tool_error_does_not_count_as_a_lost_session() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(1);
    let result = json!({ "content": [{ "type": "text", "text": "session expired" }], "isError": true });
    world.server.call().await.result(result);
    call.result().await;
    is_served(&world, 2).await;
    assert_eq!((world.server.messages("ping"), world.server.messages("tools/call")), (0, 2));
}

#[tokio::test]
async fn a_session_whose_stream_is_refused_when_it_is_opened_again_is_abandoned() {
    for status in [400, 404, 410] {
        let gets = std::sync::atomic::AtomicUsize::new(0);
        let options = Options::default().hook(move |seen| {
            let is_again = seen.http == http::Method::GET && gets.fetch_add(1, Ordering::Relaxed) == 1;
            let is_ping = seen.method() == "ping";
            (is_again || is_ping).then(|| Canned::status(status))
        });
        let world = UpstreamAndServer::new(options).await;
        assert_eq!(is_served(&world, 1).await, "s1");
        world.server.listener("s1").await.raw("retry: 10\ndata:\n\n");
        world.server.hang_up("s1");
        world.server.sees(2, |seen| seen.http == http::Method::GET).await;
        if status == 400 {
            // A server may have no such stream any more; a `ping` decides.
            world.server.seen(|seen| seen.http == http::Method::DELETE).await;
        }
        assert_eq!(is_served(&world, 2).await, "s2", "{status}");
        assert_eq!(world.server.messages("tools/call"), 2, "{status}");
    }
}
