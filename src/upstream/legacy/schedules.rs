//! Tests of sessions, leases and their ends under random schedules of threads.
//!
//! Everything is real, up to the bytes that a server reads from a pipe; only time stands still. Each test
//! tries some random schedules; `SCHEDULES=10000 cargo nextest run schedules` tries more.

use bytes::Bytes;
use futures_util::{StreamExt, future::join_all, poll};
use shuttle::{
    future::{spawn, yield_now},
    rand::{Rng, thread_rng},
};
use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    dialect::{Credentials, Principal, modern},
    protocol::{Capabilities, Method},
    runtime::{Network, NetworkListener, NetworkStream, PipeNetwork, explore_schedules},
    upstream::{
        CallError, CallerIdentity, Config, HttpUpstream, OutgoingCall, Upstream, UpstreamEvent,
        UpstreamLimits,
    },
};

const ADDRESS: &str = "127.0.0.1:1";
/// Sessions that the callers share.
const SESSIONS: usize = 2;

/// A server that would send requests on its sessions' GET streams: its calls must not share one.
#[derive(Debug, Default)]
struct ScheduledServer {
    /// A lock of the standard library: the server's work is one step of the schedule.
    seen: Mutex<BTreeMap<usize, SessionTrace>>,
    /// Calls that arrived, also for ended sessions.
    arrived: AtomicUsize,
}

/// Events in one session.
#[derive(Debug, Default)]
struct SessionTrace {
    running: Vec<u64>,
    calls: Vec<u64>,
    cancelled: Vec<u64>,
    deleted: usize,
}

/// Result of a call.
#[derive(Debug, PartialEq, Eq)]
enum CallResult {
    Answered,
    Closing,
    /// Dropped by its caller.
    Dropped,
}

// === impl ScheduledServer ===

impl ScheduledServer {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<usize, SessionTrace>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn listen(self: Arc<Self>, mut listener: NetworkListener) {
        while let Ok(connection) = poll_fn(|cx| listener.poll_accept(cx)).await {
            drop(spawn(self.clone().serve(connection)));
        }
    }

    async fn serve(self: Arc<Self>, mut connection: NetworkStream) {
        let mut read = Vec::new();
        while let Some((head, body)) = request(&mut connection, &mut read).await {
            let session = head.split("mcp-session-id: ").nth(1).and_then(number);
            let id = body.split(r#""id":"#).nth(1).and_then(number).unwrap_or_default();
            let answer = match (&head[..4], session) {
                ("GET ", Some(_)) => "content-type: text/event-stream\r\n\r\n".to_owned(),
                ("DELE", Some(session)) => {
                    self.session(session, |seen| seen.deleted += 1);
                    json("{}")
                }
                ("POST", None) => {
                    let session = self.seen().len();
                    self.seen().insert(session, SessionTrace::default());
                    let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#;
                    format!("mcp-session-id: {session}\r\n{}", response(id as u64, result))
                }
                ("POST", Some(session)) if body.contains("tools/call") => {
                    match self.call(session, id as u64).await {
                        true => response(id as u64, r#"{"content":[]}"#),
                        false => String::new(),
                    }
                }
                ("POST", Some(session)) => {
                    if let Some(call) = body.split(r#""requestId":"#).nth(1).and_then(number) {
                        self.session(session, |seen| seen.cancelled.push(call as u64));
                    }
                    "content-length: 0\r\n\r\n".to_owned()
                }
                _ => panic!("{head}"),
            };
            let status =
                if answer.is_empty() { "404 Not Found\r\ncontent-length: 0\r\n\r\n" } else { "200 OK\r\n" };
            let answer = format!("HTTP/1.1 {status}{answer}");
            if connection.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// A call that takes some steps. Returns `false` if its session has ended.
    async fn call(&self, session: usize, id: u64) -> bool {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let is_over = self.seen()[&session].deleted > 0;
        if is_over {
            return false;
        }
        self.session(session, |seen| {
            // Also not beside a cancelled call: the server may send requests of it all the same.
            assert!(seen.running.is_empty(), "{id} shares session {session}: {seen:?}");
            seen.running.push(id);
            seen.calls.push(id);
        });
        for _ in 0..thread_rng().gen_range(0..3) {
            yield_now().await;
        }
        self.session(session, |seen| seen.running.retain(|call| *call != id));
        true
    }

    fn session(&self, session: usize, change: impl FnOnce(&mut SessionTrace)) {
        change(self.seen().get_mut(&session).expect("a session of this server"));
    }
}

/// Reads the next request on a connection: head and body.
async fn request(connection: &mut NetworkStream, read: &mut Vec<u8>) -> Option<(String, String)> {
    loop {
        let text = String::from_utf8(read.clone()).expect("UTF-8");
        if let Some((head, rest)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1).and_then(number).unwrap_or(0);
            if rest.len() >= length {
                read.drain(..head.len() + 4 + length);
                return Some((head.to_owned(), rest[..length].to_owned()));
            }
        }
        if connection.read_buf(read).await.ok()? == 0 {
            return None;
        }
    }
}

fn number(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

fn json(body: &str) -> String {
    format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn response(id: u64, result: &str) -> String {
    json(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

fn build_world() -> (Arc<ScheduledServer>, Arc<HttpUpstream>) {
    let (server, pipes) = (Arc::new(ScheduledServer::default()), PipeNetwork::default());
    let address: SocketAddr = ADDRESS.parse().expect("an address");
    drop(spawn(server.clone().listen(pipes.listen(address))));
    let url = format!("http://{ADDRESS}/mcp").parse::<http::Uri>().expect("a URL").into();
    let limits = UpstreamLimits { sessions: SESSIONS, ..UpstreamLimits::default() };
    let config = Config { limits, ..Config::default() };
    let upstream =
        HttpUpstream::for_route("", &url, config, &Network::Pipes(pipes)).expect("a runtime is entered");
    // Initialize one-time state before the schedules start.
    drop(upstream.call(build_call(0, "{}")));
    (server, Arc::new(upstream))
}

fn build_call(id: u64, capabilities: &'static str) -> OutgoingCall {
    let capabilities = Capabilities::read(Bytes::from_static(capabilities.as_bytes())).expect("an object");
    let caller = CallerIdentity {
        principal: Principal::ANONYMOUS,
        credentials: Credentials::default(),
        capabilities: Arc::new(capabilities),
        client_info: Default::default(),
    };
    let call = Arc::new(modern::build_call(&Method::ToolsCall, r#"{"name":"t"}"#));
    OutgoingCall { id, call, caller, deferral: None }
}

/// Makes a call with capabilities, and drops it after some steps if it has not ended.
async fn make_call(upstream: Arc<HttpUpstream>, id: u64, steps: Option<usize>) -> CallResult {
    let mut replies = upstream.call(build_call(id, r#"{"elicitation":{}}"#));
    let ended = pin!(async move { result_of(replies.next().await) });
    let dropped = pin!(async move {
        let Some(steps) = steps else { return std::future::pending().await };
        for _ in 0..steps {
            yield_now().await;
        }
        CallResult::Dropped
    });
    futures_util::future::select(ended, dropped).await.factor_first().0
}

fn result_of(event: Option<UpstreamEvent>) -> CallResult {
    match event {
        Some(UpstreamEvent::Final(_)) => CallResult::Answered,
        Some(UpstreamEvent::Lost(CallError::Closing | CallError::SessionEnded)) => CallResult::Closing,
        other => panic!("{other:?}"),
    }
}

async fn some_steps(max: usize) {
    for _ in 0..thread_rng().gen_range(0..=max) {
        yield_now().await;
    }
}

fn run_all<F: Future<Output = CallResult> + Send + 'static>(
    calls: Vec<F>,
) -> impl Future<Output = Vec<CallResult>> {
    let calls: Vec<_> = calls.into_iter().map(spawn).collect();
    async { join_all(calls).await.into_iter().map(|end| end.expect("it is not aborted")).collect() }
}

#[test]
fn each_call_has_a_session_to_itself_and_each_session_is_ended_once() {
    explore_schedules(60, || async {
        let (server, upstream) = build_world();
        let leaves = |id| (id % 2 == 0).then(|| thread_rng().gen_range(0..40));
        let calls = (1..=5).map(|id| make_call(upstream.clone(), id, leaves(id))).collect();
        let ends = run_all(calls).await;
        for (id, end) in (1..).zip(&ends) {
            assert!(*end == CallResult::Answered || id % 2 == 0, "{id}: {end:?}");
        }
        upstream.close().await;
        for (session, seen) in &*server.seen() {
            // A handshake in progress is dropped.
            assert!(seen.deleted == 1 || seen.calls.is_empty(), "session {session}: {seen:?}");
            assert!(seen.deleted <= 1, "session {session}: {seen:?}");
            for (id, end) in (1..).zip(&ends) {
                let cancels = seen.cancelled.iter().filter(|call| **call == id).count();
                assert!(cancels <= usize::from(*end == CallResult::Dropped), "{id} {end:?}: {seen:?}");
            }
        }
        let made = server.seen().values().flat_map(|seen| seen.calls.clone()).collect::<Vec<_>>();
        for id in [1, 3, 5] {
            assert_eq!(made.iter().filter(|call| **call == id).count(), 1, "{made:?}");
        }
    });
}

#[test]
fn closing_during_calls_leaves_no_call_waiting_and_no_session_open() {
    explore_schedules(60, || async {
        let (server, upstream) = build_world();
        let calls = (1..=4).map(|id| make_call(upstream.clone(), id, None)).collect();
        let ends = run_all(calls);
        for _ in 0..thread_rng().gen_range(0..60) {
            yield_now().await;
        }
        upstream.close().await;
        assert!(!ends.await.contains(&CallResult::Dropped));
        for (session, seen) in &*server.seen() {
            assert!(seen.deleted <= 1, "session {session}: {seen:?}");
            assert!(seen.deleted == 1 || seen.calls.is_empty(), "session {session}: {seen:?}");
        }
    });
}

#[test]
fn a_call_that_was_given_its_session_before_all_closed_is_not_sent_afterwards() {
    explore_schedules(60, || async {
        let (server, upstream) = build_world();
        // Each call has advanced by a random number of steps, from the search for a session to its response,
        // and is not polled any more.
        let mut calls: Vec<_> =
            (1..=4).map(|id| upstream.call(build_call(id, r#"{"elicitation":{}}"#))).collect();
        let mut waiting = Vec::new();
        for mut replies in calls.drain(..) {
            let mut event = None;
            for _ in 0..thread_rng().gen_range(1..=4) {
                if let Poll::Ready(ready) = poll!(replies.next()) {
                    event = ready;
                    break;
                }
                some_steps(40).await;
            }
            match event {
                Some(event) => assert_eq!(result_of(Some(event)), CallResult::Answered),
                None => waiting.push(replies),
            }
        }
        upstream.close().await;
        // Calls sent before have arrived.
        for _ in 0..100 {
            yield_now().await;
        }
        let before = server.arrived.load(Ordering::Relaxed);
        for mut replies in waiting {
            result_of(replies.next().await);
        }
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(server.arrived.load(Ordering::Relaxed), before);
    });
}
