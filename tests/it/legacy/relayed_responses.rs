//! Relayed responses, byte for byte and with their times: the server's bytes, insertions of the proxy, and broken responses.
//! Compared with a golden file.
//!
//! All of it happens in one process and on a paused clock, so that it always happens alike.

use super::proxy_and_client::{HELLO, LegacyClient, READY, call};
use crate::support::{
    legacy_server::{Call, Canned, Events, Get, LegacyServer, Options, Seen},
    modern_client::Waiting,
};
use deferral::internals::{
    app, config,
    runtime::{Clock, Network, PipeNetwork, SystemClock},
};
use http::Method;
use serde_json::json;
use std::{
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};
use tokio::{task::JoinHandle, time::sleep};

/// A server, a proxy and a client on a clock of their own.
struct Stage {
    server: LegacyServer,
    proxy: app::RunningProxy,
    client: LegacyClient,
    clock: SystemClock,
    began: Instant,
}

/// What a client reads, with the times.
type Reading = JoinHandle<String>;

const PROXY: &str = "10.0.0.1:80";
const SERVER: &str = "10.0.0.2:80";

/// A comment each second.
const COMMENTS: &[&str] = &["held: { progress: off, comments: 1s }"];
const FIRST: &str = "id: e1\nretry: 100\ndata:\n\n";
const LOG: &str =
    "id: e2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":1}}\n\n";
const RESULT: &str =
    "id: e3\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[]}}\n\n";

async fn ms(millis: u64) {
    sleep(Duration::from_millis(millis)).await;
}

// === impl Stage ===

impl Stage {
    fn new(route: &[&str], top: &[&str], change: impl FnOnce(&mut Options)) -> Self {
        let pipes = PipeNetwork::default();
        let mut options = Options::default();
        change(&mut options);
        let server = LegacyServer::piped(&pipes, SERVER.parse().expect("an address"), options);
        let mut yaml = format!("listen: {PROXY}\nadmin: \"off\"\n");
        top.iter().for_each(|member| yaml.push_str(&format!("{member}\n")));
        yaml.push_str(&format!("routes:\n  - upstream: {{ url: \"http://{SERVER}/mcp\" }}\n"));
        route.iter().for_each(|member| yaml.push_str(&format!("    {member}\n")));
        let config = config::parse(Path::new("stage.yaml"), &yaml).unwrap_or_else(|error| panic!("{error}"));
        let proxy = app::start_on(config, &Network::Pipes(pipes.clone())).expect("it starts");
        let at: SocketAddr = PROXY.parse().expect("an address");
        let clock = SystemClock::new();
        let client = LegacyClient::new(at).piped(&pipes).within("s1");
        Self { server, proxy, client, began: clock.now(), clock }
    }

    /// Reads an answer as it comes.
    fn reads(&self, waiting: Waiting) -> Reading {
        let (clock, began) = (self.clock, self.began);
        tokio::spawn(async move {
            let mut pieces: Vec<(u128, String)> = Vec::new();
            let mut stream = waiting.stream().await;
            let kind =
                stream.headers.get("content-type").map(|kind| kind.to_str().expect("ascii").to_owned());
            let head = format!("{} {}", stream.status.as_u16(), kind.unwrap_or_default());
            let end = loop {
                match stream.piece().await {
                    Some(Ok(piece)) => {
                        // A timer may be a little late.
                        let at = (clock.now() - began).as_millis() / 20 * 20;
                        match pieces.last_mut() {
                            Some((last, text)) if *last == at => text.push_str(&piece),
                            _ => pieces.push((at, piece)),
                        }
                    }
                    Some(Err(_)) => break "breaks off",
                    None => break "ends",
                }
            };
            let told = pieces.into_iter().map(|(at, text)| format!("{at:>6} {text:?}\n"));
            format!("{head}\n{}       {end}\n", told.collect::<String>())
        })
    }

    async fn posts(&self, body: &str) -> Reading {
        self.reads(self.client.post(body).await)
    }

    /// A call with the id 1, which the server has.
    async fn calls(&self) -> (Reading, Call) {
        let reading = self.posts(&call(1)).await;
        (reading, self.server.call().await)
    }

    /// A call whose server has said something.
    async fn begun(&self, first: &'static str) -> (Reading, Events) {
        let (reading, called) = self.calls().await;
        let events = called.stream();
        events.raw(first);
        ms(50).await;
        (reading, events)
    }

    async fn cancels(&self) {
        let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
        self.client.post(cancel).await.answer().await;
    }

    /// What the server hears beside calls.
    fn heard(&self) -> String {
        let told = self.server.log().into_iter().filter_map(|seen| match (&seen.http, seen.method()) {
            (&Method::GET, _) => {
                Some(format!("       GET {}\n", seen.header("last-event-id").unwrap_or("-")))
            }
            (_, "notifications/cancelled") => Some(format!("       cancelled {}\n", seen.json["params"])),
            _ => None,
        });
        told.collect()
    }
}

async fn read(reading: Reading) -> String {
    reading.await.expect("it is read")
}

/// Answers so many GETs like this.
fn first_gets(
    count: usize,
    answer: impl Fn() -> Canned + Send + Sync + 'static,
) -> impl FnOnce(&mut Options) {
    let left = AtomicUsize::new(count);
    let fits = move |seen: &Seen| {
        seen.http == Method::GET
            && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    };
    move |options| {
        let before = std::mem::take(options);
        *options = before.hook(move |seen| fits(seen).then(&answer));
    }
}

fn plain(_: &mut Options) {}

async fn comments_between_events() -> String {
    let stage = Stage::new(COMMENTS, &[], plain);
    let (reading, events) = stage.begun("\u{feff}id: e1\ndata:\n\n").await;
    ms(2500).await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\"meth");
    ms(2500).await;
    events.raw("od\":\"notifications/message\"}\r");
    ms(1500).await;
    events.raw("\n\r\n");
    ms(1500).await;
    events.raw(": its own\n\n");
    ms(800).await;
    events.raw(RESULT);
    ms(1500).await;
    events.raw("data: behind\n\n");
    drop(events);
    read(reading).await
}

async fn progress_between_events() -> String {
    let stage = Stage::new(&["held: { progress: 1s, comments: 400ms }"], &[], plain);
    let body = call(1).replace("\"arguments\"", "\"_meta\":{\"progressToken\":7},\"arguments\"");
    let reading = stage.posts(&body).await;
    let events = stage.server.call().await.stream();
    ms(1500).await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":7,\"progress\":5,\"total\":9}}\n\n");
    ms(2500).await;
    events.raw(RESULT);
    ms(900).await;
    drop(events);
    read(reading).await
}

async fn late_heads() -> String {
    let mut told = String::new();
    let answers: [fn(Call); 4] = [
        |called| called.canned(Canned::json(200, &json!({ "jsonrpc": "2.0", "id": 1, "result": {} }))),
        |called| {
            let events = called.stream();
            events.raw(FIRST);
            events.raw(RESULT);
        },
        |called| called.canned(Canned::status(503).body("busy")),
        drop,
    ];
    for answer in answers {
        let stage = Stage::new(COMMENTS, &[], plain);
        let (reading, called) = stage.calls().await;
        ms(2500).await;
        answer(called);
        told += &read(reading).await;
    }
    told
}

async fn an_edited_handshake() -> String {
    let stage = Stage::new(&[], &[], |options| options.sse = true);
    let reading = stage.reads(stage.client.with("mcp-session-id", "").post(HELLO).await);
    read(reading).await
}

async fn minted_ids() -> String {
    let stage = Stage::new(&[COMMENTS[0], "resume: { mint: true }"], &[], plain);
    let (reading, events) = stage.begun("\u{feff}data: {\"jsonrpc\":\"2.0\",\"method\":\"m\"}\n\n").await;
    ms(1500).await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\"id\":1,");
    ms(1500).await;
    events.raw("\"result\":{}}\r\n\r\n");
    drop(events);
    let told = read(reading).await;
    let (_, name) = told.split_once("deferral-").expect("an id");
    told.replace(&name[..32], "NAME")
}

async fn taken_up() -> String {
    let stage = Stage::new(COMMENTS, &[], first_gets(3, || Canned::status(503)));
    let (reading, events) = stage.begun(FIRST).await;
    events.raw(&LOG[..20]);
    ms(50).await;
    events.break_off();
    let events = loop {
        ms(50).await;
        if let Some(events) = stage.server.listening("s1") {
            break events;
        }
    };
    stage.server.hang_up("s1");
    events.raw(LOG);
    ms(50).await;
    events.raw(&RESULT[..64]);
    ms(50).await;
    events.break_off();
    ms(500).await;
    let events = stage.server.listener("s1").await;
    stage.server.hang_up("s1");
    events.raw(RESULT);
    ms(50).await;
    drop(events);
    read(reading).await + &stage.heard()
}

async fn not_taken_up() -> String {
    let mut told = String::new();
    for refusal in [404, 503] {
        let stage = Stage::new(
            &["held: { progress: off, comments: 4s }"],
            &[],
            first_gets(99, move || Canned::status(refusal)),
        );
        let (reading, events) = stage.begun(FIRST).await;
        events.raw(&RESULT[..64]);
        ms(50).await;
        events.break_off();
        told += &read(reading).await;
        told += &stage.heard();
    }
    told
}

async fn ends_without_a_response() -> String {
    let mut told = String::new();
    for first in ["data: {\"method\":\"m\"}\n\ndata: x\n", FIRST] {
        for breaks in [false, true] {
            for cancelled in [false, true] {
                let stage = Stage::new(COMMENTS, &[], first_gets(99, || Canned::status(405)));
                let (reading, events) = stage.begun(first).await;
                if cancelled {
                    stage.cancels().await;
                }
                match breaks {
                    true => events.break_off(),
                    false => drop(events),
                }
                told += &read(reading).await;
            }
        }
    }
    told
}

async fn a_batch() -> String {
    const SOME: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}";
    let stage = Stage::new(COMMENTS, &[], |options| {
        let before = std::mem::take(options);
        *options = before.hook(|seen| {
            let answer = Canned::status(200).body(SOME).header("content-type", "text/event-stream");
            seen.json.is_array().then_some(answer)
        });
    });
    read(stage.posts(&format!("[{},{READY},{},{}]", call(1), call(2), call(3))).await).await
}

async fn at_the_deadline() -> String {
    let mut told = String::new();
    let route = ["defer: { mode: never }", "held: { progress: off, comments: 1s, deadline: 2500ms }"];
    for first in [FIRST, "id: e1\ndata: {\"jsonrpc"] {
        let stage = Stage::new(&route, &[], plain);
        let (reading, _events) = stage.begun(first).await;
        told += &read(reading).await;
        ms(50).await;
        told += &stage.heard();
    }
    let stage = Stage::new(&route, &[], plain);
    let (reading, called) = stage.calls().await;
    let document = called.document();
    document.raw("{\"jsonrpc\":");
    told += &read(reading).await;
    let stage = Stage::new(&route, &[], |options| options.get = Get::Silent);
    let (reading, events) = stage.begun(FIRST).await;
    events.raw("id: e9\n");
    ms(50).await;
    events.break_off();
    told += &read(reading).await;
    ms(50).await;
    told + &stage.heard()
}

async fn when_a_call_takes_too_long() -> String {
    let stage = Stage::new(COMMENTS, &["timeouts: { call: 2500ms }"], plain);
    let (reading, _events) = stage.begun("data: {\"method\":\"m\"}\n\ndata").await;
    let told = read(reading).await;
    ms(50).await;
    told + &stage.heard()
}

async fn documents() -> String {
    let mut told = String::new();
    for breaks in [false, true] {
        let stage = Stage::new(COMMENTS, &[], plain);
        let (reading, called) = stage.calls().await;
        let document = called.document();
        document.raw("{\"jsonrpc\":\"2.0\",\"id\":1,");
        ms(1500).await;
        document.raw("\"result\":{}}");
        ms(50).await;
        match breaks {
            true => document.break_off(),
            false => drop(document),
        }
        told += &read(reading).await;
    }
    let stage = Stage::new(COMMENTS, &[], plain);
    let (reading, called) = stage.calls().await;
    drop(called.document());
    told + &read(reading).await
}

async fn when_the_proxy_stops() -> String {
    let mut told = String::new();
    for first in ["data: {\"method\":\"m\"}\n\nid: e1\ndata", FIRST] {
        let stage = Stage::new(COMMENTS, &["drain: 1500ms"], plain);
        let (reading, _events) = stage.begun(first).await;
        let Stage { server, proxy, client, clock, began } = stage;
        proxy.stop().await;
        told += &read(reading).await;
        // What it heard is what its log says; the proxy is gone.
        drop((server, client, clock, began));
    }
    told
}

async fn who_comes_back() -> String {
    let stage = Stage::new(COMMENTS, &["timeouts: { call: 2500ms }"], |options| options.get = Get::Silent);
    let (reading, events) = stage.begun(FIRST).await;
    drop(events);
    let mut told = read(reading).await;
    let back = stage.reads(stage.client.with("last-event-id", "e1").listen().await);
    told += &read(back).await;
    let stage = Stage::new(COMMENTS, &[], plain);
    let (reading, events) = stage.begun(FIRST).await;
    drop(events);
    told += &read(reading).await;
    let back = stage.reads(stage.client.with("last-event-id", "e1").listen().await);
    let events = stage.server.listener("s1").await;
    stage.server.hang_up("s1");
    events.raw(&RESULT[..64]);
    ms(1500).await;
    events.raw(&RESULT[64..]);
    ms(1500).await;
    drop(events);
    told + &read(back).await
}

#[tokio::test(start_paused = true)]
async fn relayed_responses_match_the_golden_file() {
    let mut told = String::new();
    macro_rules! record {
        ($($scene:ident),*) => { $(
            told += &format!("=== {}\n{}\n", stringify!($scene).replace('_', " "), $scene().await);
        )* };
    }
    record!(
        comments_between_events,
        progress_between_events,
        late_heads,
        an_edited_handshake,
        minted_ids,
        taken_up,
        not_taken_up,
        ends_without_a_response,
        a_batch,
        at_the_deadline,
        when_a_call_takes_too_long,
        documents,
        when_the_proxy_stops,
        who_comes_back
    );
    expect_test::expect_file!["../golden/relayed.txt"].assert_eq(&told);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_brings_messages_is_resumed_without_a_longer_pause() {
    for brings in [true, false] {
        let body = if brings { LOG } else { FIRST };
        let stage = Stage::new(COMMENTS, &[], plain);
        let (reading, mut events) = stage.begun(FIRST).await;
        for times in 1..=12 {
            events.break_off();
            stage.server.sees(times, |seen| seen.http == Method::GET).await;
            events = stage.server.listener("s1").await;
            stage.server.hang_up("s1");
            events.raw(body);
            ms(20).await;
        }
        let took = stage.clock.now() - stage.began;
        assert_eq!(took < Duration::from_secs(4), brings, "{took:?}");
        reading.abort();
    }
}
