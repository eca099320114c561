//! A legacy server as the rest of the house meets it, over real sockets.

use bytes::Bytes;
use deferral::internals::{
    dialect::{Call, Credentials, Principal, modern},
    protocol::{Capabilities, Frame, Kind, List, Method},
    upstream::{
        CallError, ClientSession, Config, Event, Identity, NativeCall, Outgoing, Question, Replies, Report,
        Streamable, Upstream,
    },
};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::timeout;

use crate::support::{
    legacy_server::{Canned, Get, LegacyServer, Nobody, Options, PATIENCE, Seen, crowded, tls_before},
    limit_hits::Hits,
};

mod handshake;
mod http_responses;
mod lost_sessions;
mod odd_events;
mod outbound_messages;
mod session_queue;
mod unfinished_calls;
mod upstream_http;

const ASKABLE: &str = r#"{"elicitation":{}}"#;
const MUTE: &str = "{}";

/// The server that a test scripts, and the upstream that speaks to it.
struct World {
    server: LegacyServer,
    upstream: Streamable,
}

impl World {
    async fn new(options: Options) -> Self {
        Self::with(options, |_| {}).await
    }

    async fn with(options: Options, change: impl FnOnce(&mut Config)) -> Self {
        let server = LegacyServer::start(options).await;
        let upstream = connect(&server.url(), change);
        Self { server, upstream }
    }

    fn call(&self, id: u64) -> Running {
        self.send(request(id, Method::ToolsCall, MUTE))
    }

    fn ask(&self, id: u64) -> Running {
        self.send(request(id, Method::ToolsCall, ASKABLE))
    }

    fn list(&self, id: u64) -> Running {
        self.send(request(id, Method::ToolsList, MUTE))
    }

    /// Makes a call in a task of its own, as the proxy does with those it has in hand.
    fn send(&self, call: Outgoing) -> Running {
        Running::new(self.upstream.call(call))
    }

    /// The next call, answered with its own session.
    async fn answer(&self) -> String {
        let call = self.server.call().await;
        let session = call.session().to_owned();
        call.result(json!({ "session": session }));
        session
    }
}

/// Bytes that say when the last slice of them is gone.
struct Watched {
    bytes: Vec<u8>,
    _alive: Arc<()>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[tokio::test]
async fn what_was_sent_is_let_go_once_the_server_answers() {
    let world = World::new(Options::default()).await;
    let alive = Arc::new(());
    let text = "x".repeat(1 << 20);
    let body =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "t", "text": text } });
    let body = Bytes::from_owner(Watched { bytes: body.to_string().into(), _alive: Arc::clone(&alive) });
    let session = ClientSession { principal: Principal::ANONYMOUS, query: None, headers: HeaderMap::new() };
    let call = NativeCall { id: 1, method: Method::ToolsCall, body, deferral: None };
    let mut running = Running::new(world.upstream.call_in(session, call).0);
    let call = world.server.call().await;
    assert_eq!(Arc::strong_count(&alive), 2);
    let events = call.stream();
    events.notify("notifications/message", json!({ "level": "info", "data": "begun" }));
    running.notice().await;
    assert_eq!(Arc::strong_count(&alive), 1, "the call goes on without what was sent");
    events.result(&json!(1), json!({ "content": [] }));
    running.result().await;
}

/// A call under way. Dropping it drops its stream of events.
struct Running {
    events: tokio::sync::mpsc::UnboundedReceiver<Event>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    fn new(mut replies: Replies) -> Self {
        let (sender, events) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(event) = replies.next().await {
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Self { events, task }
    }

    async fn next(&mut self) -> Option<Event> {
        timeout(PATIENCE, self.events.recv()).await.expect("something happens to the call")
    }

    async fn result(&mut self) -> Value {
        match self.next().await {
            Some(Event::Final(response)) => {
                assert!(self.next().await.is_none(), "nothing follows the final event");
                result(response.frame())
            }
            other => panic!("a final event, not {other:?}"),
        }
    }

    async fn lost(&mut self) -> CallError {
        match self.next().await {
            Some(Event::Lost(lost)) => {
                assert!(self.next().await.is_none(), "nothing follows the loss");
                lost
            }
            other => panic!("a loss, not {other:?}"),
        }
    }

    async fn notice(&mut self) -> Value {
        match self.next().await {
            Some(Event::Notification(frame)) => value(&frame),
            other => panic!("a notice, not {other:?}"),
        }
    }

    async fn question(&mut self) -> Question {
        match self.next().await {
            Some(Event::Asked(question)) => question,
            other => panic!("a question, not {other:?}"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn connect(url: &str, change: impl FnOnce(&mut Config)) -> Streamable {
    let mut config = Config::default();
    change(&mut config);
    Streamable::new(&url.parse().expect("a URL"), config).expect("a URL to speak to")
}

fn identity(capabilities: &'static str) -> Identity {
    Identity {
        principal: Principal::ANONYMOUS,
        credentials: Credentials::default(),
        capabilities: Arc::new(
            Capabilities::read(Bytes::from_static(capabilities.as_bytes())).expect("an object"),
        ),
        client_info: Default::default(),
    }
}

fn token(token: &str) -> Identity {
    let value: HeaderValue = token.parse().expect("a header value");
    Identity {
        principal: Principal::of(&[token.as_bytes()]),
        credentials: Credentials::new(HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])),
        ..identity(MUTE)
    }
}

fn request(id: u64, method: Method, capabilities: &'static str) -> Outgoing {
    let call = modern::request(&method, r#"{"name":"t","_meta":{"progressToken":"t"}}"#);
    let call = Call { progress_token: Some(Bytes::from_static(b"\"t\"")), ..call };
    Outgoing { id, call: Arc::new(call), caller: identity(capabilities), deferral: None }
}

fn value(frame: &Frame) -> Value {
    serde_json::from_slice(frame.as_bytes()).expect("JSON")
}

fn result(frame: &Frame) -> Value {
    match frame.kind() {
        Kind::Success { result, .. } => serde_json::from_slice(result).expect("JSON"),
        other => panic!("a success, not {other:?}"),
    }
}

fn elicitation(id: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": { "message": "?" } })
}

fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

// === answers ===

#[tokio::test]
async fn a_call_is_answered_by_a_document() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(7);
    let arrived = world.server.call().await;
    assert_eq!(arrived.id(), 7);
    arrived.result(json!({ "content": [] }));
    assert_eq!(call.result().await, json!({ "content": [] }));
}

#[tokio::test]
async fn a_call_is_answered_by_a_stream_and_what_trails_the_response_is_dropped() {
    let world = World::new(Options { sse: true, ..Options::default() }).await;
    let mut call = world.call(7);
    let events = world.server.call().await.stream();
    events.send(&notification("notifications/progress", json!({ "progressToken": 7, "progress": 1 })));
    assert_eq!(call.notice().await["params"]["progress"], 1);
    events.raw(": a comment\n\nevent: ping\ndata: {\"not\": \"a message\"}\n\n");
    events.send(&notification("vendor/thing", json!({})));
    assert_eq!(call.notice().await["method"], "vendor/thing");
    events.result(&json!(99), json!({ "of": "another request" }));
    events.result(&json!(7), json!({ "n": 1 }));
    events.result(&json!(7), json!({ "n": 2 }));
    assert_eq!(call.result().await, json!({ "n": 1 }));
}

#[tokio::test]
async fn a_long_document_in_many_pieces_is_put_together() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(7);
    let document = world.server.call().await.document();
    let text = "x".repeat(300_000);
    let body = json!({ "jsonrpc": "2.0", "id": 7, "result": { "text": text } }).to_string();
    for piece in body.as_bytes().chunks(70_000) {
        document.raw(Bytes::copy_from_slice(piece));
    }
    drop(document);
    assert_eq!(call.result().await["text"].as_str().map(str::len), Some(300_000));
}

#[tokio::test]
async fn a_batch_is_read_in_its_order() {
    let world = World::new(Options { version: "2025-03-26", ..Options::default() }).await;
    let mut call = world.call(7);
    let note = notification("notifications/message", json!({ "data": 1 }));
    let response = json!({ "jsonrpc": "2.0", "id": 7, "result": {} });
    world.server.call().await.canned(Canned::json(200, &json!([note, response])));
    assert_eq!(call.notice().await["params"]["data"], 1);
    assert_eq!(call.result().await, json!({}));
}

#[tokio::test]
async fn an_error_of_the_server_is_the_answer_whatever_its_status_and_id() {
    let world = World::new(Options::default()).await;
    let failure =
        |id: Value| json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32000, "message": "no" } });
    for (n, (status, id)) in
        [(200, json!(0)), (422, json!("server-error")), (500, Value::Null)].into_iter().enumerate()
    {
        let n = n as u64;
        let mut call = world.call(n);
        world.server.call().await.canned(Canned::json(status, &failure(id)));
        match call.next().await {
            Some(Event::Final(response)) => {
                assert_eq!(value(response.frame())["error"]["message"], "no");
            }
            other => panic!("{status}: a final event, not {other:?}"),
        }
    }
}

#[tokio::test]
async fn an_http_error_without_a_message_is_a_loss_with_its_words() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(1);
    world.server.call().await.canned(Canned::status(502).body(" bad gateway\n"));
    let CallError::Status { status, detail, .. } = call.lost().await else { panic!("a status") };
    assert_eq!((status, detail.as_str()), (StatusCode::BAD_GATEWAY, "bad gateway"));

    let mut call = world.call(2);
    world.server.call().await.canned(Canned::status(307).header("location", "http://other.invalid/mcp"));
    let CallError::Status { detail, .. } = call.lost().await else { panic!("a status") };
    assert_eq!(
        detail,
        "it redirects to http://other.invalid/mcp, which is another server or another method; name it in upstream.url"
    );
}

#[tokio::test]
async fn refused_credentials_come_back_with_their_challenge() {
    let world = World::new(Options::default()).await;
    for status in [401, 403] {
        let mut call = world.call(1);
        world.server.call().await.canned(Canned::status(status).header("www-authenticate", "Bearer x"));
        let CallError::Unauthorized { status: got, challenge } = call.lost().await else {
            panic!("unauthorized")
        };
        assert_eq!(got, status);
        assert_eq!(challenge.expect("a challenge"), "Bearer x");
    }
}

#[tokio::test]
async fn an_answer_that_is_no_message_is_invalid() {
    let world = World::new(Options::default()).await;
    for canned in [
        Canned::status(200).body("<html>").header("content-type", "text/html"),
        Canned::status(200).body("{").header("content-type", "application/json"),
        Canned::status(200).body("[]").header("content-type", "application/json"),
        Canned::json(200, &json!({ "jsonrpc": "2.0", "id": 99, "result": {} })),
    ] {
        let mut call = world.call(1);
        world.server.call().await.canned(canned);
        assert!(matches!(call.lost().await, CallError::Invalid(_)));
    }
}

#[tokio::test]
async fn an_answer_over_the_limit_is_refused_and_the_call_cancelled() {
    let world = World::with(Options::default(), |config| config.limits.result_bytes = 1000).await;
    for id in [1, 2] {
        let mut call = world.call(id);
        let arrived = world.server.call().await;
        let events = if id == 1 { arrived.document() } else { arrived.stream() };
        events.raw(format!("data: {{\"text\":\"{}\"}}", "x".repeat(2000)));
        assert!(matches!(call.lost().await, CallError::TooLarge { limit: 1000 }));
        world.server.seen(|seen| seen.json["params"]["requestId"] == id).await;
    }
}

#[tokio::test]
async fn a_call_that_was_only_taken_is_answered_on_the_get_stream() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(1);
    world.server.call().await.canned(Canned::status(202));
    let listener = world.server.listener("s1").await;
    listener.result(&json!(1), json!({ "late": true }));
    assert_eq!(call.result().await, json!({ "late": true }));
}

/// We send numbers; a server may keep ids as text and hand them back as that.
#[tokio::test]
async fn what_arrives_on_the_get_stream_finds_its_call_also_where_the_number_came_back_as_text() {
    let world = World::new(Options::default()).await;
    let (mut first, mut second) = (world.call(1), world.call(2));
    world.server.call().await.canned(Canned::status(202));
    world.server.call().await.canned(Canned::status(202));
    let listener = world.server.listener("s1").await;
    listener.send(&notification("notifications/progress", json!({ "progressToken": "2", "progress": 22 })));
    assert_eq!(second.notice().await["params"]["progress"], 22);
    for nobody in ["3", "x", "", "-1", "1.0"] {
        listener.result(&json!(nobody), json!({ "for": nobody }));
    }
    listener.result(&json!("2"), json!({ "for": 2 }));
    listener.result(&json!("1"), json!({ "for": 1 }));
    assert_eq!(second.result().await, json!({ "for": 2 }));
    assert_eq!(first.result().await, json!({ "for": 1 }));
}

/// Some servers read numbers as floating-point ones.
#[tokio::test]
async fn the_answer_to_a_call_is_found_however_its_number_is_spelled() {
    let world = World::new(Options::default()).await;
    for (spelled, in_call) in
        [("1.0", true), ("1e0", true), ("\"1\"", true), ("1.0", false), ("10e-1", false)]
    {
        let mut call = world.call(1);
        let arrived = world.server.call().await;
        let answer = format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{spelled},\"result\":{{}}}}\n\n");
        if in_call {
            arrived.stream().raw(answer);
        } else {
            arrived.canned(Canned::status(202));
            world.server.listener("s1").await.raw(answer);
        }
        assert_eq!(call.result().await, json!({}), "{spelled}");
    }
}

#[tokio::test]
async fn no_id_of_ours_is_wider_than_31_bits() {
    let world = World::new(Options::default()).await;
    world.upstream.describe(&identity(ASKABLE)).await.expect("a session");
    let caller = identity(ASKABLE);
    let subscribing = world.upstream.subscribe(&caller, "a://b");
    let answering = async { world.server.call().await.result(json!({})) };
    assert!(tokio::join!(subscribing, answering).0.is_ok());
    let ids: Vec<_> = world.server.log().iter().filter_map(|seen| seen.json["id"].as_u64()).collect();
    assert!(ids.len() >= 2 && ids.iter().all(|id| (1..1 << 31).contains(id)), "{ids:?}");
}

#[tokio::test]
async fn a_call_that_was_only_taken_is_invalid_where_there_is_no_get_stream() {
    let world = World::new(Options { get: Get::Refused(405), ..Options::default() }).await;
    let mut call = world.call(1);
    world.server.call().await.canned(Canned::status(202));
    assert!(matches!(call.lost().await, CallError::Invalid(_)));
}

#[tokio::test]
async fn a_call_that_was_only_taken_is_lost_where_the_get_stream_is_refused_afterwards() {
    let is_first = AtomicBool::new(true);
    let hook = move |seen: &Seen| {
        let is_again = seen.http == http::Method::GET && !is_first.swap(false, Ordering::Relaxed);
        is_again.then(|| Canned::status(405))
    };
    let world = World::new(Options::default().hook(hook)).await;
    let mut call = world.call(1);
    world.server.call().await.canned(Canned::status(202));
    world.server.listener("s1").await.raw("id: g1\nretry: 1\ndata:\n\n");
    world.server.hang_up("s1");
    assert!(matches!(call.lost().await, CallError::SessionEnded));
}

// === the handshake ===

#[tokio::test]
async fn a_session_begins_with_the_newest_revision_and_goes_on_with_the_servers() {
    let world = World::new(Options { version: "2025-06-18", ..Options::default() }).await;
    let mut request = request(1, Method::ToolsCall, r#"{"elicitation":{}, "x":[ 1.50 ]}"#);
    for (name, value) in [
        ("traceparent", "00-1"),
        ("mcp-method", "tools/call"),
        ("mcp-session-id", "forged"),
        ("origin", "http://x"),
    ] {
        Arc::make_mut(&mut request.call).headers.to_mut().insert(name, HeaderValue::from_static(value));
    }
    let mut call = world.send(request);
    let arrived = world.server.call().await;

    let log = world.server.log();
    let order: Vec<_> = log.iter().map(|seen| (seen.http.as_str(), seen.method())).collect();
    assert_eq!(
        order,
        [("POST", "initialize"), ("POST", "notifications/initialized"), ("GET", ""), ("POST", "tools/call")],
        "the GET stream is open before the first call"
    );
    let hello = &log[0];
    assert_eq!(hello.json["params"]["protocolVersion"], "2025-11-25");
    assert_eq!(hello.json["params"]["clientInfo"]["name"], "deferral");
    assert!(hello.body.ends_with(br#""capabilities":{"elicitation":{}, "x":[ 1.50 ]}}}"#), "word for word");
    assert_eq!(hello.header("mcp-protocol-version"), None);
    for seen in &log {
        assert_eq!(seen.header("host"), Some(world.server.addr().to_string().as_str()));
        assert!(seen.header("user-agent").expect("one").starts_with("deferral/"));
    }
    for seen in &log[1..] {
        assert_eq!(seen.header("mcp-protocol-version"), Some("2025-06-18"));
        assert_eq!(seen.session(), "s1");
    }
    assert_eq!(log[2].header("accept"), Some("text/event-stream"));
    let post = &arrived.seen;
    assert_eq!(post.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(post.header("content-type"), Some("application/json"));
    assert_eq!(post.header("traceparent"), Some("00-1"));
    assert_eq!((post.header("mcp-method"), post.header("origin")), (None, None));
    arrived.result(json!({}));
    call.result().await;
}

#[tokio::test]
async fn a_server_without_sessions_get_or_streams_is_served() {
    for status in [400, 404, 405, 501] {
        let options = Options { sessions: false, get: Get::Refused(status), ..Options::default() };
        let world = World::new(options).await;
        for id in 0..3 {
            let mut call = world.ask(id);
            assert_eq!(world.answer().await, "");
            call.result().await;
        }
        assert_eq!(world.server.messages("initialize"), 1);
        assert_eq!(world.server.count(|seen| seen.http == http::Method::GET), 1, "{status}");
    }
}

#[tokio::test]
async fn a_get_stream_whose_head_is_held_back_delays_the_first_call_only_shortly() {
    let world = World::new(Options { get: Get::Silent, ..Options::default() }).await;
    let mut call = world.call(1);
    let answered = async {
        world.answer().await;
        call.result().await
    };
    timeout(Duration::from_secs(2), answered).await.expect("the call is not held up");
}

#[tokio::test]
async fn an_unknown_version_is_gone_on_with() {
    let world = World::new(Options { version: "2031-01-01", ..Options::default() }).await;
    let mut call = world.call(1);
    world.answer().await;
    call.result().await;
    assert_eq!(world.server.message("tools/call").await.header("mcp-protocol-version"), Some("2031-01-01"));
}

#[tokio::test]
async fn what_the_server_said_of_itself_can_be_asked_for() {
    let world = World::new(Options::default()).await;
    let said = world.upstream.describe(&identity(MUTE)).await.expect("a description");
    assert_eq!(said.version, "2025-11-25");
    assert_eq!(*said.capabilities, r#"{"tools":{"listChanged":true}}"#);
    assert_eq!(said.server_info, r#"{"name":"scripted","version":"1"}"#);
    assert_eq!(said.instructions.as_deref(), Some(&br#""be kind""#[..]));
    world.upstream.describe(&identity(MUTE)).await.expect("a description");
    assert_eq!(world.server.messages("initialize"), 1);
}

#[tokio::test]
async fn first_calls_at_the_same_time_open_one_session() {
    let world = World::new(Options::default()).await;
    let mut calls: Vec<_> = (0..8).map(|id| world.call(id)).collect();
    for _ in 0..8 {
        assert_eq!(world.answer().await, "s1");
    }
    for call in &mut calls {
        call.result().await;
    }
    assert_eq!(world.server.messages("initialize"), 1);
}

#[tokio::test]
async fn a_refused_handshake_is_told_in_the_servers_words_and_tried_again() {
    let error =
        json!({ "jsonrpc": "2.0", "id": "server-error", "error": { "code": -32600, "message": "go away" } });
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let hook = move |seen: &Seen| {
        let canned = || match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Some(Canned::json(400, &error)),
            1 => Some(Canned::json(200, &error)),
            2 => Some(Canned::status(401).header("www-authenticate", "Bearer y")),
            3 => Some(Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} }))),
            _ => None,
        };
        (seen.method() == "initialize").then(canned).flatten()
    };
    let world = World::new(Options::default().hook(hook)).await;
    let words = |lost: &CallError| assert!(lost.to_string().contains("go away"), "{lost}");
    let lost = world.call(1).lost().await;
    let is_not_sent = |lost: &CallError, cause: fn(&CallError) -> bool| match lost {
        CallError::NotSent(lost) => cause(lost),
        _ => false,
    };
    let is_bad_request =
        |lost: &CallError| matches!(lost, CallError::Status { status: StatusCode::BAD_REQUEST, .. });
    assert!(is_not_sent(&lost, is_bad_request), "{lost}");
    words(&lost);
    let lost = world.call(2).lost().await;
    assert!(is_not_sent(&lost, |lost| matches!(lost, CallError::Invalid(_))), "{lost}");
    words(&lost);
    assert!(matches!(world.call(3).lost().await, CallError::Unauthorized { challenge: Some(_), .. }));
    assert!(world.call(4).lost().await.to_string().contains("protocolVersion"));
    let mut call = world.call(5);
    world.answer().await;
    call.result().await;
}

// === lost sessions ===

#[tokio::test]
async fn a_call_refused_because_the_session_is_gone_is_made_in_a_new_one() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(1);
    world.answer().await;
    call.result().await;

    let mut call = world.call(2);
    let gone =
        json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32001, "message": "Session not found" } });
    world.server.call().await.canned(Canned::json(404, &gone));
    assert_eq!(world.answer().await, "s2");
    assert_eq!(call.result().await, json!({ "session": "s2" }));
}

#[tokio::test]
async fn a_call_goes_past_every_session_that_a_server_forgot_when_it_was_started_anew() {
    let forgot = Arc::new(AtomicBool::new(false));
    let forgets = Arc::clone(&forgot);
    let options = Options::default().hook(move |seen| {
        let is_old = ["s1", "s2", "s3"].contains(&seen.session()) && seen.method() == "tools/call";
        (is_old && forgets.load(Ordering::Relaxed)).then(|| Canned::status(404))
    });
    let world = World::new(options).await;
    // Each has a session to itself, until it is known where the server asks.
    let mut calls: Vec<_> = (1..4).map(|id| world.ask(id)).collect();
    let mut arrived = Vec::new();
    for _ in 0..3 {
        arrived.push(world.server.call().await);
    }
    arrived.into_iter().for_each(|call| call.result(json!({})));
    for call in &mut calls {
        call.result().await;
    }
    forgot.store(true, Ordering::Relaxed);
    let mut call = world.ask(4);
    assert_eq!(world.answer().await, "s4");
    assert_eq!(call.result().await, json!({ "session": "s4" }));
}

#[tokio::test]
async fn a_call_is_not_made_a_third_time() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(1);
    for session in ["s1", "s2"] {
        let arrived = world.server.call().await;
        assert_eq!(arrived.session(), session);
        arrived.canned(Canned::status(404).body("nobody home"));
    }
    assert!(matches!(call.lost().await, CallError::Status { status: StatusCode::NOT_FOUND, .. }));
    assert_eq!(world.server.messages("tools/call"), 2);
}

#[tokio::test]
async fn a_404_that_answers_the_call_is_its_answer() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(1);
    let error = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32601, "message": "no such tool" } });
    world.server.call().await.canned(Canned::json(404, &error));
    assert!(matches!(call.next().await, Some(Event::Final(_))));
    assert_eq!(world.server.messages("tools/call"), 1);
}

// === streams that break ===

#[tokio::test]
async fn a_broken_stream_is_taken_up_after_the_last_event_when_the_server_wants_it() {
    use deferral::internals::runtime::{Clock, SystemClock};
    let world = World::new(Options { get: Get::Refused(405), ..Options::default() }).await;
    let mut warm = world.list(1);
    world.answer().await;
    warm.result().await;

    let options = Options { version: "2025-03-26", ..Options::default() };
    let world = World::new(options).await;
    let mut call = world.call(7);
    let events = world.server.call().await.stream();
    events.raw("id: e1\nretry: 200\ndata:\n\n");
    events.raw(format!(
        "id: e2\ndata: {}\n\n",
        notification("notifications/progress", json!({ "progress": 1 }))
    ));
    call.notice().await;
    let clock = SystemClock::new();
    let closed = clock.now();
    drop(events);
    world.server.seen(|seen| seen.header("last-event-id") == Some("e2")).await;
    let waited = clock.now() - closed;
    assert!((Duration::from_millis(190)..Duration::from_millis(400)).contains(&waited), "{waited:?}");
    world.server.listener("s1").await.result(&json!(7), json!({ "resumed": true }));
    assert_eq!(call.result().await, json!({ "resumed": true }));
    assert_eq!(world.server.messages("tools/call"), 1);
}

#[tokio::test]
async fn a_stream_can_be_taken_up_many_times() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(7);
    let events = world.server.call().await.stream();
    events.raw("id: e0\nretry: 1\ndata:\n\n");
    drop(events);
    for n in 0..4 {
        let last = format!("e{n}");
        world.server.seen(|seen| seen.header("last-event-id") == Some(last.as_str())).await;
        let events = world.server.listener("s1").await;
        events.raw(format!("id: e{}\ndata:\n\n", n + 1));
        if n == 3 {
            events.result(&json!(7), json!({}));
        }
        world.server.hang_up("s1");
    }
    assert_eq!(call.result().await, json!({}));
}

#[tokio::test]
async fn a_stream_without_ids_that_ends_is_a_broken_call() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(1);
    drop(world.server.call().await.stream());
    assert!(matches!(call.lost().await, CallError::Broken(_)));

    let mut call = world.call(2);
    let events = world.server.call().await.stream();
    events.raw("data: {");
    events.break_off();
    assert!(matches!(call.lost().await, CallError::Broken(_)));
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_stream_whose_session_is_gone_when_it_is_taken_up_ends_the_call() {
    let hook = |seen: &Seen| seen.header("last-event-id").map(|_| Canned::status(404));
    let world = World::new(Options::default().hook(hook)).await;
    let mut call = world.call(1);
    world.server.call().await.stream().raw("id: e1\nretry: 1\ndata:\n\n");
    assert!(matches!(call.lost().await, CallError::SessionEnded));
}

#[tokio::test]
async fn a_call_whose_server_refuses_connections_is_given_up_within_twelve_seconds() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(1);
    let events = world.server.call().await.stream();
    events.raw(format!(
        "id: e1\nretry: 500\ndata: {}\n\n",
        notification("notifications/progress", json!({ "progress": 1 }))
    ));
    call.notice().await;
    let World { server, upstream: _upstream } = world;
    drop(server);
    tokio::time::pause();
    drop(events);
    let lost = timeout(Duration::from_secs(12), call.events.recv()).await.expect("it is given up");
    assert!(matches!(lost, Some(Event::Lost(CallError::Broken(_)))), "{lost:?}");
}

#[tokio::test]
async fn an_empty_answer_is_no_promise_of_another() {
    for canned in [Canned::status(204), Canned::status(200).header("content-length", "0")] {
        let world = World::new(Options::default()).await;
        let mut call = world.call(1);
        world.server.call().await.canned(canned);
        assert!(matches!(call.lost().await, CallError::Invalid(_)));
    }
}

#[tokio::test]
async fn a_connection_that_breaks_before_the_answer_loses_a_call_and_repeats_a_list() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address");
    let server = LegacyServer::on(listener, Options::default());
    let upstream = connect(&format!("http://{addr}/mcp"), |_| {});
    let world = World { server, upstream };
    let mut call = world.call(1);
    world.server.call().await.document().break_off();
    assert!(matches!(call.lost().await, CallError::Broken(_)));
    assert_eq!(world.server.messages("tools/call"), 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    let nobody = Nobody::new();
    let mut replies = connect(&nobody.url(), |_| {}).call(request(1, Method::ToolsCall, MUTE));
    assert!(matches!(replies.next().await, Some(Event::Lost(CallError::Unreachable(_)))));
    assert!(replies.next().await.is_none());
}

// === cancelling ===

#[tokio::test]
async fn a_call_that_is_dropped_is_cancelled_once_and_its_session_not_used_again() {
    let world = World::new(Options::default()).await;
    let mut other = world.call(1);
    let held = world.server.call().await;
    let call = world.call(2);
    let arrived = world.server.call().await;
    assert_eq!(arrived.session(), "s1");
    drop(call);
    let cancelled = world.server.message("notifications/cancelled").await;
    assert_eq!(cancelled.json["params"]["requestId"], 2);
    assert_eq!(cancelled.session(), "s1");
    arrived.left().await;

    let mut next = world.call(3);
    assert_eq!(world.answer().await, "s2");
    next.result().await;
    assert_eq!(world.server.count(|seen| seen.http == http::Method::DELETE), 0, "one call is still on it");
    held.result(json!({ "went": "on" }));
    assert_eq!(other.result().await, json!({ "went": "on" }));
    let farewell = world.server.seen(|seen| seen.http == http::Method::DELETE).await;
    assert_eq!(farewell.session(), "s1");
    assert_eq!(world.server.messages("notifications/cancelled"), 1);
}

#[tokio::test]
async fn an_old_server_is_never_told_delete() {
    let world = World::new(Options { version: "2025-03-26", ..Options::default() }).await;
    let call = world.call(1);
    let arrived = world.server.call().await;
    drop(call);
    world.server.message("notifications/cancelled").await;
    arrived.left().await;
    let listener = world.server.listener("s1").await;
    listener.left().await;
    world.upstream.close().await;
    assert_eq!(world.server.count(|seen| seen.http == http::Method::DELETE), 0);
}

#[tokio::test]
async fn a_call_that_is_over_or_was_never_sent_is_not_cancelled() {
    let world = World::with(Options::default(), |config| config.limits.sessions = 1).await;
    let mut call = world.ask(1);
    let held = world.server.call().await;
    drop(world.upstream.call(request(2, Method::ToolsCall, ASKABLE)));
    let mut queued = world.upstream.call(request(3, Method::ToolsCall, ASKABLE));
    assert!(futures_util::poll!(queued.next()).is_pending());
    drop(queued);
    held.result(json!({}));
    call.result().await;
    drop(call);
    let mut last = world.ask(4);
    world.answer().await;
    last.result().await;
    world.upstream.close().await;
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
    assert_eq!(world.server.messages("tools/call"), 2);
}

// === timeouts ===

#[tokio::test]
async fn a_call_as_a_whole_is_limited_and_cancelled_then() {
    let limit = Duration::from_millis(50);
    let world = World::with(Options::default(), |config| {
        config.timeouts.call = limit;
        config.timeouts.first_byte = PATIENCE;
    })
    .await;
    world.upstream.describe(&identity(MUTE)).await.expect("a session");
    let mut call = world.call(1);
    let arrived = world.server.call().await;
    assert!(matches!(call.lost().await, CallError::CallTimeout(by) if by == limit));
    world.server.message("notifications/cancelled").await;
    arrived.left().await;
}

#[tokio::test]
async fn first_byte_and_idle_limit_what_is_not_a_call() {
    let world = World::with(Options::default(), |config| {
        config.timeouts.first_byte = Duration::from_millis(300);
        config.timeouts.idle = Duration::from_millis(50);
    })
    .await;
    world.upstream.describe(&identity(MUTE)).await.expect("a session");
    let mut call = world.call(1);
    let silent = world.server.call().await;

    let mut list = world.list(2);
    let held = world.server.call().await;
    assert!(matches!(list.lost().await, CallError::FirstByteTimeout(_)));
    held.left().await;

    let mut list = world.list(3);
    let events = world.server.call().await.stream();
    events.raw(":\n\n");
    assert!(matches!(list.lost().await, CallError::IdleTimeout(_)));

    silent.result(json!({ "silence": "is work" }));
    call.result().await;
}

#[tokio::test]
async fn a_connection_that_does_not_come_about_has_its_own_error() {
    let crowd = crowded().await;
    let addr = crowd.addr;
    let limit = Duration::from_millis(50);
    let upstream = connect(&format!("http://{addr}/mcp"), |config| config.timeouts.connect = limit);
    let mut replies = upstream.call(request(1, Method::ToolsCall, MUTE));
    assert!(matches!(replies.next().await, Some(Event::Lost(CallError::ConnectTimeout(by))) if by == limit));
}

// === questions ===

#[tokio::test]
async fn a_question_on_the_calls_stream_is_answered_in_its_session_byte_for_byte() {
    let world = World::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    events.send(&elicitation(json!(0)));
    let question = call.question().await;
    let asked = question.asked.canonical().expect("in the words of 2026-07-28");
    assert_eq!(asked.as_bytes(), r#"{"method":"elicitation/create","params":{"message":"?"}}"#);
    question.answer.send(Ok(Bytes::from_static(br#"{"action":"accept","x":1e400}"#)));
    let answer = world.server.seen(|seen| seen.answers_raw("0")).await;
    assert_eq!(answer.body, r#"{"jsonrpc":"2.0","id":0,"result":{"action":"accept","x":1e400}}"#);
    assert_eq!(answer.session(), "s1");
    events.result(&json!(1), json!({}));
    call.result().await;
}

#[tokio::test]
async fn a_question_that_is_dropped_is_refused() {
    let world = World::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    events.send(&elicitation(json!("q")));
    drop(call.question().await);
    let answer = world.server.seen(|seen| seen.answers(&json!("q"))).await;
    assert_eq!(answer.json["error"], json!({ "code": -32603, "message": "not answered" }));
}

#[tokio::test]
async fn what_is_no_question_is_answered_at_once() {
    let world = World::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    let listener = world.server.listener("s1").await;
    for (n, events) in [(1, &events), (2, &listener)] {
        events.send(&json!({ "jsonrpc": "2.0", "id": format!("ping{n}"), "method": "ping" }));
        events.send(&json!({ "jsonrpc": "2.0", "id": format!("other{n}"), "method": "vendor/x" }));
        let pong = world.server.seen(|seen| seen.answers(&json!(format!("ping{n}")))).await;
        assert_eq!(pong.json["result"], json!({}));
        let other = world.server.seen(|seen| seen.answers(&json!(format!("other{n}")))).await;
        assert_eq!(other.json["error"]["code"], -32601);
    }
    events.result(&json!(1), json!({}));
    call.result().await;
}

#[tokio::test]
async fn a_question_on_the_get_stream_goes_to_the_call_that_leased_the_session() {
    let world = World::new(Options::default()).await;
    let (mut first, mut second) = (world.ask(1), world.ask(2));
    let (a, b) = (world.server.call().await, world.server.call().await);
    assert_ne!(a.session(), b.session(), "a session for each call that can be asked");
    for (n, call) in [(7, &a), (8, &b)] {
        world.server.listener(call.session()).await.send(&elicitation(json!(n)));
    }
    for (running, n) in [(&mut first, a.id() == 1), (&mut second, a.id() == 2)]
        .map(|(call, is_a)| (call, if is_a { 7 } else { 8 }))
    {
        let question = running.question().await;
        assert_eq!(question.id.to_string(), n.to_string());
        question.answer.send(Err(Bytes::from_static(br#"{"code":1,"message":"no"}"#)));
        world.server.seen(|seen| seen.answers(&json!(n)) && seen.json["error"]["code"] == 1).await;
    }
    a.result(json!({}));
    b.result(json!({}));
    first.result().await;
    second.result().await;
}

#[tokio::test]
async fn a_server_that_asks_on_the_calls_stream_shares_a_session_until_it_asks_elsewhere() {
    let world = World::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    events.send(&elicitation(json!(0)));
    drop(call.question().await);
    events.result(&json!(1), json!({}));
    call.result().await;

    let (mut first, mut second) = (world.ask(2), world.ask(3));
    let (a, b) = (world.server.call().await, world.server.call().await);
    assert_eq!((a.session(), b.session()), ("s1", "s1"));
    let listener = world.server.listener("s1").await;
    listener.send(&elicitation(json!("whose?")));
    let refusal = world.server.seen(|seen| seen.answers(&json!("whose?"))).await;
    assert_eq!(
        refusal.json["error"],
        json!({ "code": -32603, "message": "cannot be attributed to one call" })
    );
    let mut third = world.ask(6);
    assert_eq!(world.answer().await, "s2", "in the first session two others may be asked");
    third.result().await;
    a.result(json!({}));
    b.result(json!({}));
    first.result().await;
    second.result().await;

    let (_first, _second) = (world.ask(4), world.ask(5));
    let (a, b) = (world.server.call().await, world.server.call().await);
    assert_ne!(a.session(), b.session());
}

#[tokio::test]
async fn a_session_is_leased_when_the_last_call_that_shared_it_has_ended() {
    let world = World::with(Options::default(), |config| config.limits.sessions = 1).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    events.send(&elicitation(json!(0)));
    drop(call.question().await);
    events.result(&json!(1), json!({}));
    call.result().await;
    let mut shared = world.ask(2);
    let held = world.server.call().await;
    world.server.listener("s1").await.send(&elicitation(json!("off its stream")));
    drop(shared.question().await);

    let mut next = world.upstream.call(request(3, Method::ToolsCall, ASKABLE));
    assert!(futures_util::poll!(next.next()).is_pending());
    assert!(!world.server.has_call(), "it waits in line");
    held.result(json!({}));
    shared.result().await;
    let (event, session) = tokio::join!(next.next(), world.answer());
    assert!(matches!(event, Some(Event::Final(_))));
    assert_eq!(session, "s1");
}

#[tokio::test]
async fn a_question_with_no_call_in_flight_is_refused() {
    let world = World::new(Options::default()).await;
    world.upstream.describe(&identity(ASKABLE)).await.expect("a session");
    world.server.listener("s1").await.send(&elicitation(json!(5)));
    let refusal = world.server.seen(|seen| seen.answers(&json!(5))).await;
    assert_eq!(refusal.json["error"]["code"], -32603);
}

#[tokio::test]
async fn a_question_can_be_withdrawn_on_either_stream() {
    let world = World::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    let listener = world.server.listener("s1").await;
    for (id, events) in [(json!(0), &events), (json!("b"), &listener)] {
        events.send(&elicitation(id.clone()));
        let question = call.question().await;
        events.send(&notification("notifications/cancelled", json!({ "requestId": id })));
        match call.next().await {
            Some(Event::Withdrawn { id: withdrawn }) => assert_eq!(withdrawn.to_string(), id.to_string()),
            other => panic!("a withdrawal, not {other:?}"),
        }
        drop(question);
    }
    events.result(&json!(1), json!({}));
    call.result().await;
}

// === what arrives on the GET stream ===

#[tokio::test]
async fn progress_goes_to_the_call_it_names_and_logs_to_an_only_call() {
    let world = World::new(Options::default()).await;
    let (mut first, mut second) = (world.call(1), world.call(2));
    let (a, b) = (world.server.call().await, world.server.call().await);
    let listener = world.server.listener("s1").await;
    let log = |n: u32| notification("notifications/message", json!({ "level": "info", "data": n }));
    listener.send(&log(1));
    listener.send(&notification("notifications/progress", json!({ "progressToken": 2, "progress": 22 })));
    listener.send(&notification("notifications/progress", json!({ "progressToken": 1, "progress": 11 })));
    assert_eq!(second.notice().await["params"]["progress"], 22);
    assert_eq!(first.notice().await["params"]["progress"], 11, "the log message before it named no call");
    let (mine, other, running) = if a.id() == 1 { (a, b, first) } else { (b, a, first) };
    let mut first = running;
    other.result(json!({}));
    second.result().await;
    listener.send(&log(2));
    assert_eq!(first.notice().await["params"]["data"], 2);
    mine.result(json!({}));
    first.result().await;
}

#[tokio::test]
async fn what_2026_07_28_has_no_word_for_ends_at_the_seam_and_a_native_call_hears_it() {
    let world = World::new(Options { sse: true, ..Options::default() }).await;
    let gone = notification("notifications/elicitation/complete", json!({ "elicitationId": "e" }));
    let kept = notification("notifications/vendor", json!({ "n": 1 }));
    let session = ClientSession { principal: Principal::ANONYMOUS, query: None, headers: HeaderMap::new() };
    let body = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "t" } });
    let native =
        NativeCall { id: 2, method: Method::ToolsCall, body: body.to_string().into(), deferral: None };
    for (id, is_native) in [(1, false), (2, true)] {
        let mut running = match is_native {
            true => Running::new(world.upstream.call_in(session.clone(), native.clone()).0),
            false => world.call(id),
        };
        let events = world.server.call().await.stream();
        events.send(&gone);
        events.send(&kept);
        if is_native {
            assert_eq!(running.notice().await, gone);
        }
        assert_eq!(running.notice().await, kept);
        events.result(&json!(id), json!({ "content": [] }));
        let Some(Event::Final(response)) = running.next().await else { panic!("it is answered") };
        let raised: Value =
            serde_json::from_slice(&response.result(&Method::ToolsCall).expect("a result")).expect("JSON");
        assert_eq!(raised["resultType"] == "complete", !is_native, "{raised}");
    }
}

#[tokio::test]
async fn changes_are_reported_and_lists_come_from_the_session_that_reported() {
    let world = World::new(Options::default()).await;
    let mut reports = world.upstream.watch(Principal::ANONYMOUS);
    let (mut first, mut second) = (world.ask(1), world.ask(2));
    let (a, b) = (world.server.call().await, world.server.call().await);
    let (in_first, in_second) = if a.session() == "s1" { (a, b) } else { (b, a) };
    world.server.listener("s2").await.send(&notification("notifications/tools/list_changed", json!({})));
    assert_eq!(reports.recv().await, Ok(Report::ListChanged(List::Tools)));

    let mut list = world.send(request(3, Method::ToolsList, ASKABLE));
    assert_eq!(world.answer().await, "s2");
    list.result().await;

    let events = in_first.stream();
    events.send(&notification("notifications/resources/updated", json!({ "uri": "a://b", "x": 1 })));
    let params = Bytes::from_static(br#"{"uri":"a://b","x":1}"#);
    assert_eq!(reports.recv().await, Ok(Report::ResourceUpdated { uri: "a://b".to_owned(), params }));
    events.result(&json!(1), json!({}));
    in_second.result(json!({}));
    first.result().await;
    second.result().await;
}

#[tokio::test]
async fn a_get_stream_that_ends_is_opened_again_as_a_new_one_and_what_may_have_changed_is_reported() {
    let world = World::new(Options::default()).await;
    let mut reports = world.upstream.watch(Principal::ANONYMOUS);
    world.upstream.describe(&identity(MUTE)).await.expect("a session");
    let listener = world.server.listener("s1").await;
    let changed = notification("notifications/prompts/list_changed", json!({}));
    listener.raw(format!("id: g1\nretry: 1\ndata: {changed}\n\n"));
    assert_eq!(reports.recv().await, Ok(Report::ListChanged(List::Prompts)));
    drop(listener);
    world.server.hang_up("s1");
    world.server.sees(2, |seen| seen.http == http::Method::GET).await;
    let again = world.server.listener("s1").await;
    // Behind its last event a server may give what was said in the sessions of others.
    assert_eq!(world.server.count(|seen| seen.header("last-event-id").is_some()), 0);
    assert_eq!(reports.recv().await, Ok(Report::ListChanged(List::Tools)), "it may have changed meanwhile");
    again.send(&changed);
    assert_eq!(reports.recv().await, Ok(Report::ListChanged(List::Prompts)));
}

// === who shares what ===

#[tokio::test]
async fn callers_that_differ_in_credentials_or_capabilities_share_no_session() {
    let world = World::new(Options::default()).await;
    let callers = [identity(MUTE), identity(r#"{"sampling":{}}"#), token("Bearer a"), token("Bearer b")];
    for (id, caller) in callers.iter().enumerate() {
        let id = id as u64;
        let mut call =
            world.send(Outgoing { caller: caller.clone(), ..request(id, Method::ToolsCall, MUTE) });
        assert_eq!(world.answer().await, format!("s{}", id + 1));
        call.result().await;
    }
    let mut call = world.send(Outgoing { caller: token("Bearer a"), ..request(9, Method::ToolsCall, MUTE) });
    let arrived = world.server.call().await;
    assert_eq!((arrived.session(), arrived.seen.header("authorization")), ("s3", Some("Bearer a")));
    arrived.result(json!({}));
    call.result().await;
    let hellos = world.server.log().into_iter().filter(|seen| seen.method() == "initialize");
    let shown: Vec<_> = hellos.map(|seen| seen.header("authorization").map(str::to_owned)).collect();
    assert_eq!(shown, [None, None, Some("Bearer a".to_owned()), Some("Bearer b".to_owned())]);
}

#[tokio::test]
async fn of_too_many_callers_those_that_called_least_lately_are_let_go() {
    let hits = Hits::of("limits.identities");
    let world = World::with(Options::default(), |config| config.limits.identities = 4).await;
    let callers = ["Bearer a", "Bearer b", "Bearer c", "Bearer d", "Bearer e", "Bearer f"].map(token);
    let from = |caller: usize, id| {
        world.send(Outgoing { caller: callers[caller].clone(), ..request(id, Method::ToolsCall, MUTE) })
    };
    // The first never ends, the second calls once more.
    let mut waiting = from(0, 1);
    let held = world.server.call().await;
    for (id, caller) in [1, 2, 3, 1].into_iter().enumerate() {
        let mut call = from(caller, 2 + id as u64);
        world.answer().await;
        call.result().await;
    }
    for (caller, session) in [(4, "s3"), (5, "s4")] {
        let mut call = from(caller, 10 + caller as u64);
        world.answer().await;
        call.result().await;
        let told = move |seen: &Seen| seen.http == http::Method::DELETE && seen.session() == session;
        world.server.seen(told).await;
    }
    held.result(json!({ "still": "there" }));
    assert_eq!(waiting.result().await, json!({ "still": "there" }));
    assert_eq!(world.server.count(|seen| seen.http == http::Method::DELETE), 2);
    hits.are(2).await;
}

#[tokio::test]
async fn calls_one_after_the_other_meet_the_same_session() {
    let world = World::new(Options::default()).await;
    for id in 0..5 {
        let mut call = world.ask(id);
        assert_eq!(world.answer().await, "s1");
        call.result().await;
    }
}

#[tokio::test]
async fn calls_wait_in_line_for_a_session() {
    let world = World::with(Options::default(), |config| config.limits.sessions = 1).await;
    let mut first = world.ask(1);
    let held = world.server.call().await;
    let mut queued: Vec<_> =
        (2..5).map(|id| world.upstream.call(request(id, Method::ToolsCall, ASKABLE))).collect();
    for replies in &mut queued {
        assert!(futures_util::poll!(replies.next()).is_pending());
    }
    drop(queued.remove(0));
    assert!(!world.server.has_call());
    held.result(json!({}));
    first.result().await;
    for (id, mut replies) in [3, 4].into_iter().zip(queued) {
        let answered = async {
            let call = world.server.call().await;
            assert_eq!((call.id(), call.session()), (json!(id), "s1"));
            call.result(json!({}));
        };
        let (event, ()) = tokio::join!(replies.next(), answered);
        assert!(matches!(event, Some(Event::Final(_))));
    }
}

#[tokio::test]
async fn a_session_that_is_lost_makes_room_for_another() {
    let world = World::with(Options::default(), |config| config.limits.sessions = 1).await;
    let first = world.ask(1);
    let held = world.server.call().await;
    let mut second = world.ask(2);
    drop(first);
    held.left().await;
    assert_eq!(world.answer().await, "s2");
    second.result().await;
}

#[tokio::test]
async fn a_session_whose_caller_leaves_while_it_is_opened_serves_the_next() {
    let options = Options { get: Get::Silent, ..Options::default() };
    let world = World::with(options, |config| config.limits.sessions = 2).await;
    let _first = world.ask(1);
    let _held = world.server.call().await;
    let mut abandoned = world.upstream.call(request(2, Method::ToolsCall, ASKABLE));
    tokio::select! {
        _ = abandoned.next() => panic!("nobody answers it"),
        _ = world.server.seen(|seen| seen.http == http::Method::GET && seen.session() == "s2") => {}
    }
    drop(abandoned);
    let mut next = world.ask(3);
    assert_eq!(world.answer().await, "s2");
    next.result().await;
}

#[tokio::test]
async fn a_session_in_which_a_lost_call_may_go_on_is_leased_to_nobody_else() {
    let world = World::new(Options::default()).await;
    let mut call = world.ask(1);
    drop(world.server.call().await.stream());
    assert!(matches!(call.lost().await, CallError::Broken(_)));
    let mut next = world.ask(2);
    assert_eq!(world.answer().await, "s2");
    next.result().await;
}

#[tokio::test]
async fn more_callers_than_may_wait_are_told_that_the_server_is_busy() {
    let world = World::with(Options::default(), |config| config.limits.sessions = 1).await;
    let _first = world.ask(1);
    let _held = world.server.call().await;
    let mut queued = Vec::new();
    let lost = loop {
        let mut replies = world.upstream.call(request(2 + queued.len() as u64, Method::ToolsCall, ASKABLE));
        match futures_util::poll!(replies.next()) {
            std::task::Poll::Ready(event) => break event,
            std::task::Poll::Pending => queued.push(replies),
        }
        assert!(queued.len() < 10_000, "the queue is bounded");
    };
    assert!(matches!(lost, Some(Event::Lost(CallError::Busy { limit: 1, queue: 1024, .. }))));
}

#[tokio::test]
async fn sessions_that_nobody_uses_are_closed_the_list_session_last() {
    let world = World::new(Options::default()).await;
    let (mut first, mut second) = (world.ask(1), world.ask(2));
    let (a, b) = (world.server.call().await, world.server.call().await);
    a.result(json!({}));
    b.result(json!({}));
    first.result().await;
    second.result().await;
    let minutes = async |minutes: u32| {
        tokio::time::pause();
        for _ in 0..minutes {
            tokio::time::advance(Duration::from_secs(60)).await;
            tokio::task::yield_now().await;
        }
        tokio::time::resume();
    };
    let closed = |session: &'static str| {
        move |seen: &Seen| seen.http == http::Method::DELETE && seen.session() == session
    };
    minutes(7).await;
    world.server.seen(closed("s2")).await;
    assert_eq!(world.server.count(closed("s1")), 0);
    minutes(31).await;
    world.server.seen(closed("s1")).await;
    let mut call = world.ask(3);
    assert_eq!(world.answer().await, "s3");
    call.result().await;
}

/// An id may be derived from the user, or be the only one that there is.
#[tokio::test]
async fn a_session_is_not_ended_while_another_has_its_id() {
    let world = World::new(Options::default().hook(|seen| {
        let result = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": { "name": "s", "version": "1" } });
        let answer = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result });
        (seen.method() == "initialize").then(|| Canned::json(200, &answer).header("mcp-session-id", "only"))
    }))
    .await;
    let (mut first, second) = (world.ask(1), world.ask(2));
    let (a, b) = (world.server.call().await, world.server.call().await);
    assert_eq!((world.server.messages("initialize"), a.session(), b.session()), (2, "only", "only"));
    // A session in which a call was cancelled is given up.
    drop(second);
    world.server.message("notifications/cancelled").await;
    let (running, _left) = if a.id() == 1 { (a, b) } else { (b, a) };
    running.result(json!({}));
    first.result().await;
    let ends = |world: &World| world.server.count(|seen| seen.http == http::Method::DELETE);
    assert_eq!(ends(&world), 0);
    world.upstream.close().await;
    assert_eq!(ends(&world), 1, "the last is ended");
}

#[tokio::test]
async fn connections_are_kept() {
    let world = World::new(Options { get: Get::Refused(405), ..Options::default() }).await;
    for id in 0..5 {
        let mut call = world.call(id);
        let arrived = world.server.call().await;
        if id % 2 == 0 {
            arrived.result(json!({}));
        } else {
            let events = arrived.stream();
            events.result(&json!(id), json!({}));
        }
        call.result().await;
    }
    assert!(world.server.log().iter().all(|seen| seen.connection <= 2), "{:?}", world.server.log());
}

// === subscriptions, documents, the end ===

#[tokio::test]
async fn a_resource_is_subscribed_once_for_all_and_let_go_by_the_last() {
    let world = World::new(Options::default()).await;
    let caller = identity(MUTE);
    let subscribe = || world.upstream.subscribe(&caller, "a://b");
    let (first, session) = tokio::join!(subscribe(), world.answer());
    let (first, second) = (first.expect("subscribed"), subscribe().await.expect("subscribed"));
    assert_eq!(session, "s1");
    assert_eq!(world.server.message("resources/subscribe").await.json["params"]["uri"], "a://b");
    drop(first);
    let mut list = world.list(1);
    assert_eq!(world.server.call().await.seen.method(), "tools/list", "one still holds it");
    drop(second);
    let last = world.server.call().await;
    assert_eq!(last.seen.method(), "resources/unsubscribe");
    last.result(json!({}));
    drop(list);
    list = world.list(2);
    drop(list);
    assert_eq!(world.server.messages("resources/subscribe"), 1);
}

#[tokio::test]
async fn a_subscription_follows_its_identity_into_a_new_session() {
    let world = World::new(Options::default()).await;
    let caller = identity(MUTE);
    let (held, _) = tokio::join!(world.upstream.subscribe(&caller, "a://b"), world.answer());
    let held = held.expect("subscribed");
    let mut call = world.call(1);
    world.server.call().await.canned(Canned::status(404));
    let (a, b) = (world.server.call().await, world.server.call().await);
    assert_eq!((a.session(), b.session()), ("s2", "s2"));
    let (again, repeated) = if a.seen.method() == "tools/call" { (b, a) } else { (a, b) };
    assert_eq!(again.seen.json["params"]["uri"], "a://b");
    again.result(json!({}));
    repeated.result(json!({}));
    call.result().await;
    drop(held);
    assert_eq!(world.server.call().await.seen.method(), "resources/unsubscribe");
}

#[tokio::test]
async fn a_refused_subscription_is_an_error() {
    let world = World::new(Options::default()).await;
    let caller = identity(MUTE);
    let refuse = async {
        let call = world.server.call().await;
        let error =
            json!({ "jsonrpc": "2.0", "id": call.id(), "error": { "code": -32601, "message": "not here" } });
        call.canned(Canned::json(200, &error));
    };
    let (outcome, ()) = tokio::join!(world.upstream.subscribe(&caller, "a://b"), refuse);
    assert!(outcome.map(drop).expect_err("refused").to_string().contains("not here"));
}

#[tokio::test]
async fn a_document_beside_the_endpoint_is_fetched_as_it_is() {
    let path = "/.well-known/oauth-protected-resource/mcp";
    let hook = move |seen: &Seen| {
        (seen.path == path).then(|| Canned::status(418).body("tea").header("x-kind", "oolong"))
    };
    let world = World::new(Options::default().hook(hook)).await;
    let credentials = token("Bearer a").credentials;
    let document = world.upstream.fetch(path, &credentials).await.expect("a document");
    assert_eq!((document.status.as_u16(), document.body.as_ref()), (418, &b"tea"[..]));
    assert_eq!(document.headers["x-kind"], "oolong");
    assert_eq!(world.server.log()[0].header("authorization"), Some("Bearer a"));
}

#[tokio::test]
async fn closing_cancels_what_is_in_flight_ends_the_sessions_and_refuses_further_calls() {
    let world = World::new(Options::default()).await;
    let mut call = world.call(1);
    let arrived = world.server.call().await;
    world.upstream.close().await;
    assert!(matches!(call.lost().await, CallError::Closing));
    arrived.left().await;
    assert_eq!(world.server.messages("notifications/cancelled"), 1);
    assert_eq!(world.server.count(|seen| seen.http == http::Method::DELETE && seen.session() == "s1"), 1);
    assert!(matches!(world.call(2).lost().await, CallError::Closing));
    assert!(world.upstream.describe(&identity(MUTE)).await.is_err());
    assert_eq!(world.server.messages("tools/call"), 1);
}

#[tokio::test]
async fn a_url_that_cannot_be_spoken_to_is_named() {
    for url in ["ftp://a/mcp", "/mcp"] {
        let target = url.parse().expect("a URI");
        let error = Streamable::new(&target, Config::default()).map(drop).expect_err("refused").to_string();
        assert!(error.contains(url), "{error}");
    }
}

/// The seam hands out boxed streams; this keeps the name in use where tests hold one.
#[tokio::test]
async fn nothing_is_sent_before_a_call_is_polled() {
    let world = World::new(Options::default()).await;
    let replies: Replies = world.upstream.call(request(1, Method::ToolsCall, MUTE));
    drop(replies);
    world.upstream.close().await;
    assert!(world.server.log().is_empty());
}

/// As where a kept connection is closed by the server while the handshake is on its way.
#[tokio::test]
async fn a_handshake_whose_connection_breaks_is_begun_anew_once() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let server = tokio::spawn(async move {
        for round in 0.. {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.expect("a request");
            let said = String::from_utf8_lossy(&head[..read]).into_owned();
            if round == 0 {
                continue; // Dropped: closed without an answer.
            }
            let id = said.split("\"id\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
            let answer = match id {
                Some(id) => {
                    let body = format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{}},"serverInfo":{{"name":"s","version":"1"}}}}}}"#
                    );
                    format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                        body.len()
                    )
                }
                None => "HTTP/1.1 405 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    .to_owned()
                    .replace("405 No", if said.starts_with("GET") { "405 No" } else { "202 Accepted" }),
            };
            stream.write_all(answer.as_bytes()).await.expect("it is read");
        }
    });
    let upstream = connect(&url, |_| {});
    let described = timeout(PATIENCE, upstream.describe(&identity(MUTE))).await.expect("in time");
    assert_eq!(described.expect("the second time").version, "2025-11-25");
    server.abort();
}

/// A 202 says all there is to say, even where its body has no end that could be waited for.
#[tokio::test]
async fn a_202_that_is_left_open_does_not_hold_up_the_first_call() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let (left_open, open) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let mut left_open = Some(left_open);
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.expect("a request");
            let said = String::from_utf8_lossy(&head[..read]).into_owned();
            let id = said.split("\"id\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
            let answer = match id {
                Some(id) => {
                    let body = format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{}},"serverInfo":{{"name":"s","version":"1"}}}}}}"#
                    );
                    let length = body.len();
                    format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                    )
                }
                None if said.starts_with("GET") => {
                    "HTTP/1.1 405 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
                }
                None => "HTTP/1.1 202 Accepted\r\n\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).await.expect("it is read");
            if answer.contains(" 202 ")
                && let Some(left_open) = left_open.take()
            {
                let _ = left_open.send(stream);
            }
        }
    });
    let upstream = connect(&url, |_| {});
    // Well below the second for which the rest of an answer is read.
    let described = timeout(Duration::from_millis(500), upstream.describe(&identity(MUTE))).await;
    assert_eq!(described.expect("at once").expect("a session").version, "2025-11-25");
    drop(open.await.expect("a connection that was left open"));
    server.abort();
}

// === TLS ===

/// Runs in a process of its own, because the system's trust is read from the environment.
#[tokio::test]
async fn tls_is_spoken_to_a_server_that_the_system_trusts() {
    let authority = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/tls/authority.pem");
    if std::env::var("SSL_CERT_FILE").as_deref() != Ok(authority) {
        let status = tokio::process::Command::new(std::env::current_exe().expect("a test binary"))
            .args(["--exact", "upstream::tls_is_spoken_to_a_server_that_the_system_trusts"])
            .env("SSL_CERT_FILE", authority)
            .env_remove("SSL_CERT_DIR")
            .status();
        assert!(status.await.expect("a process").success());
        return;
    }
    let server = LegacyServer::start(Options::default()).await;
    let port = tls_before(server.addr(), "127.0.0.1").await;
    for host in ["localhost", "127.0.0.1"] {
        let upstream = connect(&format!("https://{host}:{port}/mcp"), |_| {});
        let world = World { server: LegacyServer::start(Options::default()).await, upstream };
        for id in 0..3 {
            let mut call = world.call(id);
            server.call().await.result(json!({ "text": "x".repeat(100_000) }));
            assert_eq!(call.result().await["text"].as_str().map(str::len), Some(100_000));
        }
    }
    // The name is checked too: the certificate does not speak of this one.
    let port = tls_before(server.addr(), "127.0.0.2").await;
    let upstream = connect(&format!("https://127.0.0.2:{port}/mcp"), |_| {});
    let mut replies = upstream.call(request(1, Method::ToolsCall, MUTE));
    assert!(matches!(replies.next().await, Some(Event::Lost(CallError::Unreachable(_)))));
}

#[tokio::test]
async fn what_a_server_may_say_in_one_answer_is_bounded() {
    let path = "/.well-known/oauth-protected-resource/mcp";
    let hook =
        move |seen: &Seen| (seen.path == path).then(|| Canned::status(200).body("x".repeat((1 << 20) + 1)));
    let world = World::new(Options::default().hook(hook)).await;
    let answered = async |id, canned| {
        let mut call = world.call(id);
        world.server.call().await.canned(canned);
        call.lost().await
    };
    // A page that an error comes with is read so far, and shown in short.
    let lost = answered(1, Canned::status(500).body("x".repeat(200_000))).await;
    assert!(matches!(&lost, CallError::Status { detail, .. } if detail == "Internal Server Error"), "{lost}");
    let lost = answered(2, Canned::status(500).body("x".repeat(1000))).await;
    assert!(matches!(&lost, CallError::Status { detail, .. } if detail.len() == 200), "{lost}");
    let many = (0..130).fold(Canned::json(200, &json!({})), |canned, _| canned.header("x-many", "y"));
    let lost = answered(3, many).await;
    assert!(matches!(lost, CallError::Invalid(_)), "{lost}");
    let document = world.upstream.fetch(path, &Credentials::default()).await;
    assert!(matches!(document.map(drop), Err(CallError::TooLarge { limit: 1_048_576 })));
    // It is heard again when it speaks as others do.
    let mut call = world.call(4);
    world.answer().await;
    call.result().await;
}

#[tokio::test]
async fn of_notifications_that_nobody_fetches_so_many_are_kept() {
    use tokio::sync::broadcast::error::{RecvError, TryRecvError};
    const KEPT: usize = 256;
    let world = World::new(Options::default()).await;
    let (mut idle, mut busy) =
        (world.upstream.watch(Principal::ANONYMOUS), world.upstream.watch(Principal::ANONYMOUS));
    let mut replies = world.upstream.call(request(1, Method::ToolsCall, MUTE));
    let arrived = tokio::select! {
        call = world.server.call() => call,
        _ = replies.next() => panic!("nobody has answered"),
    };
    let listener = world.server.listener("s1").await;
    for n in 0..2000 {
        listener.notify("notifications/message", json!({ "data": n }));
        listener.notify("notifications/tools/list_changed", json!({}));
    }
    listener.notify("notifications/prompts/list_changed", json!({}));
    loop {
        match timeout(PATIENCE, busy.recv()).await.expect("it is heard") {
            Ok(Report::ListChanged(List::Prompts)) => break,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => panic!("the upstream is there"),
        }
    }
    // Others have their way meanwhile.
    let mut list = world.list(2);
    world.answer().await;
    list.result().await;

    assert!(matches!(idle.try_recv(), Err(TryRecvError::Lagged(_))), "it is told that it missed some");
    let mut reports = 0;
    while idle.try_recv().is_ok() {
        reports += 1;
    }
    assert_eq!(reports, KEPT);
    arrived.result(json!({}));
    let mut notices = 0;
    loop {
        match timeout(PATIENCE, replies.next()).await.expect("it goes on") {
            Some(Event::Notification(_)) => notices += 1,
            Some(Event::Final(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(notices, KEPT);
}

#[tokio::test]
async fn a_call_that_asks_without_end_fails_and_others_are_served() {
    let world = World::new(Options::default()).await;
    let mut asking = world.ask(1);
    let events = world.server.call().await.stream();
    for n in 0..300 {
        events.send(&elicitation(json!(n)));
    }
    let mut questions = Vec::new();
    let lost = loop {
        match asking.next().await {
            Some(Event::Asked(question)) => questions.push(question),
            Some(Event::Lost(lost)) => break lost,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(&lost, CallError::Invalid(why) if why.contains("256 questions")), "{lost}");
    assert!(questions.len() <= 256, "{}", questions.len());
    let mut call = world.ask(2);
    world.answer().await;
    call.result().await;
}
