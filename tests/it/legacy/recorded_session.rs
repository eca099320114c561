//! One session, sent to the server directly and through the proxy: only hop-by-hop parts differ.

use super::proxy_and_client::{HELLO, LegacyClient, READY, call};
use crate::{
    proxy::proxy_and_server::start,
    support::legacy_server::{Canned, LegacyServer, Options, Seen},
};
use http::{HeaderMap, Method, StatusCode};
use std::net::SocketAddr;

/// Names and values, in order.
pub(crate) type Headers = Vec<(String, String)>;

/// What both sides have seen: the answers, and the requests.
#[derive(Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) client: Vec<(StatusCode, Headers, String)>,
    pub(crate) server: Vec<(String, Headers, String)>,
}

/// What is added to the server's capabilities.
pub(crate) const TASKS: &str = r#","tasks":{"cancel":{},"list":{},"requests":{"tools":{"call":{}}}}"#;

/// Of the hop: what each connection says for itself.
const HOP: [&str; 7] =
    ["host", "date", "connection", "transfer-encoding", "content-length", "accept-encoding", "origin"];

// === impl Record ===

impl Record {
    /// Of what came back, and what has arrived there by now, in its order.
    pub(crate) fn of(client: Vec<(StatusCode, Headers, String)>, server: &LegacyServer) -> Self {
        let said = |seen: &Seen| {
            let body = String::from_utf8(seen.body.to_vec()).expect("utf-8");
            (format!("{} {}", seen.http, seen.path), headers(&seen.headers), body)
        };
        Self { client, server: server.log().iter().map(said).collect() }
    }

    /// Without what each request says of its having passed the proxy.
    pub(crate) fn unpassed(mut self) -> Self {
        for (_, headers, _) in &mut self.server {
            let (passed, others) = std::mem::take(headers).into_iter().partition(|(name, _)| name == "via");
            let passed: Vec<_> = passed;
            assert!(matches!(&passed[..], [(_, name)] if name.starts_with("1.1 deferral-")), "{passed:?}");
            *headers = others;
        }
        self
    }
}

pub(crate) fn headers(headers: &HeaderMap) -> Headers {
    let mut list: Vec<_> = headers
        .iter()
        .filter(|(name, _)| !HOP.contains(&name.as_str()))
        .map(|(name, value)| (name.to_string(), value.to_str().expect("ascii").to_owned()))
        .collect();
    list.sort();
    list
}

/// Answers each call in another way.
fn answer(seen: &Seen) -> Option<Canned> {
    let events = |body: &str| Canned::status(200).body(body).header("content-type", "text/event-stream");
    let (http, id) = (&seen.http, seen.json["id"].as_u64());
    Some(match (http, seen.method(), id) {
        (&Method::GET, ..) => events("id: 9\nretry: 10\ndata:\n\n: hello\r\n\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{\"resumed\":true}}\n\n"),
        (&Method::DELETE, ..) => Canned::status(204),
        (_, "tools/call", Some(1)) => Canned::status(200)
            .body("{ \"result\": {\"content\":[],\"n\":1.0e400,\"n\":12345678901234567890123} ,\n\"id\":1,\"jsonrpc\":\"2.0\"}")
            .header("content-type", "application/json; charset=utf-8")
            .header("x-request-id", "r1")
            .header("set-cookie", "a=1")
            .header("set-cookie", "b=2"),
        (_, "tools/call", Some(2)) => events(&format!(
            "event: message\r\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{\"data\":\"é\"}}}}\r\n\r\ndata:{{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{{\"large\":\"{}\"}}}}\r\rid\n\n",
            "x".repeat(200_000)
        )),
        (_, "tools/call", Some(3)) => Canned::status(400).body("{\"jsonrpc\":\"2.0\",\"id\":\"server-error\",\"error\":{\"code\":-32600,\"message\":\"no\"}}"),
        (_, "tools/call", Some(4)) => events("id: 1\ndata: \n\nretry: 100\n\n"),
        (_, "tools/call", _) => Canned::status(200)
            .body(format!("{{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{{\"large\":\"{}\"}}}}", "y".repeat(300_000)))
            .header("content-type", "application/json"),
        _ => return None,
    })
}

/// One client's whole session.
async fn session(addr: SocketAddr) -> Vec<(StatusCode, Headers, String)> {
    let first = LegacyClient::new(addr).with("user-agent", "recorder/1").with("authorization", "Bearer t");
    let client = first.within("s1");
    let batch = format!(" [ {} ,{READY}]", call(6));
    let mut answers = Vec::new();
    for waiting in [
        first.post(HELLO).await,
        client.post(READY).await,
        client.call(1).await,
        client.call(2).await,
        client.call(3).await,
        client.call(4).await,
        client.with("last-event-id", "1").listen().await,
        client.call(5).await,
        client.post("{\"jsonrpc\":\"2.0\", \"id\":\"q\",\"result\":{\"x\":1e400}}").await,
        client.post(&batch).await,
        client.post("not json at all").await,
        client.send(Method::DELETE, "/mcp", "").await,
    ] {
        let answer = waiting.answer().await;
        answers.push((answer.status, headers(&answer.headers), answer.body));
    }
    answers
}

async fn record(through_proxy: bool) -> Record {
    let server = LegacyServer::start(Options::default().hook(answer)).await;
    let proxy = through_proxy.then(|| start(&server.url(), &[], &[]));
    let client = session(proxy.as_ref().map_or_else(|| server.addr(), |proxy| proxy.addresses[0])).await;
    let mut record = Record::of(client, &server);
    // They are sent one after another, by connections of their own.
    record.server.sort();
    record
}

#[tokio::test]
async fn a_session_through_the_proxy_is_the_session_without_it() {
    let (direct, mut proxied) = (record(false).await, record(true).await.unpassed());
    assert_eq!(direct.client.len(), 12);
    // The edits there are (`manual/passthrough.md`): the server has no tasks, so they are offered, and
    // each request says that it has passed the proxy.
    let hello = &mut proxied.client[0].2;
    assert!(hello.contains(TASKS), "{hello}");
    *hello = hello.replace(TASKS, "");
    for (direct, proxied) in direct.client.iter().zip(&proxied.client) {
        assert_eq!(direct, proxied);
    }
    assert_eq!(direct.server, proxied.server);
}
