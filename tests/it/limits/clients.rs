//! Limits of clients: memory of announced bodies, permits of refused requests, calls on one connection, connections of
//! operators.

use super::program::{Log, Program};
use crate::{
    proxy::proxy_and_server::Setup,
    support::{
        legacy_server::{LegacyServer, Options},
        limit_hits::LimitHits,
        modern_client::{Version, soon},
    },
};
use deferral::internals::{app, config};
use serde_json::json;
use std::{net::SocketAddr, path::Path};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Announces a body of so many bytes and waits for what the proxy says to that: that it reads it (100), or
/// something else.
async fn announced(addr: SocketAddr, bytes: usize) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(addr).await.expect("it listens");
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nexpect: 100-continue\r\ncontent-length: {bytes}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.expect("it reads");
    let said = soon("an answer", heard(&mut socket)).await;
    (socket, said)
}

/// What comes next.
async fn heard(socket: &mut TcpStream) -> String {
    let mut answer = vec![0; 4096];
    let length = socket.read(&mut answer).await.expect("it answers");
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[tokio::test]
async fn an_announced_body_takes_no_memory_before_it_arrives() {
    const MIB: usize = 1 << 20;
    let server = LegacyServer::start(Options { tools: Some(json!([])), ..Options::default() }).await;
    let program = Program::start(&server, &["timeouts: { read_body: 10m }"], Log::Nowhere);
    assert!(program.serves("before").await);
    let before = program.reserved();
    let mut announcing = Vec::new();
    for _ in 0..200 {
        let (mut socket, said) = announced(program.addr, 4 * MIB).await;
        assert!(said.starts_with("HTTP/1.1 100 "), "{said}");
        socket.write_all(b" ").await.expect("it is read");
        announcing.push(socket);
    }
    assert!(program.serves("meanwhile").await);
    let refused = announcing.iter().filter(|socket| socket.try_read(&mut [0]).is_ok()).count();
    assert_eq!(refused, 0, "there is room for what has come of them");
    let taken = program.reserved().saturating_sub(before);
    assert!(taken < 100 * MIB, "200 bodies of 4 MiB that do not come have {} KiB", taken >> 10);
    assert!(program.descriptors() < 250, "{}", program.descriptors());
}

#[tokio::test]
async fn bodies_of_refused_requests_are_read_within_bounds() {
    let server = LegacyServer::start(Options { tools: Some(json!([])), ..Options::default() }).await;
    let top = ["limits: { calls: 1 }", "timeouts: { read_body: 10m }"];
    let program = Program::start(&server, &top, Log::Nowhere);
    let held = program.client().call("long").await;
    let call = server.call().await;

    // A longer one is not read for the sake of its id.
    let (_, said) = announced(program.addr, (64 << 10) + 1).await;
    assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("limits.calls"), "{said}");
    let mut waiting = Vec::new();
    let body = format!("{:200}", r#"{"jsonrpc":"2.0","id":"mine","method":"tools/list"}"#);
    for _ in 0..64 {
        let (socket, said) = announced(program.addr, body.len()).await;
        assert!(said.starts_with("HTTP/1.1 100 "), "{said}");
        waiting.push(socket);
    }
    // A call over the limit gets an error at once.
    for _ in 0..8 {
        let (_, said) = announced(program.addr, body.len()).await;
        assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("-31006"), "{said}");
    }
    let mut first = waiting.remove(0);
    first.write_all(body.as_bytes()).await.expect("it is read");
    let said = soon("an answer", heard(&mut first)).await;
    assert!(said.starts_with("HTTP/1.1 200 ") && said.contains(r#""id":"mine""#), "{said}");
    assert!(program.descriptors() < 150, "{}", program.descriptors());

    // The call has had its place all along, and others have it after it.
    call.says("done");
    assert_eq!(held.answer().await.text(), "done");
    drop(waiting);
    assert!(program.serves("afterwards").await);
}

#[tokio::test]
async fn more_calls_on_one_connection_than_it_may_carry_wait_at_their_client() {
    let world = Setup::new().top("limits: { streams: 2 }").start().await;
    let mut greedy = world.client().over(Version::Http2).kept().await;
    greedy.ask("tools/list", json!({})).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let request = greedy.client().request("tools/call", json!({ "name": "long", "arguments": {} }));
        waiting.push(soon("its turn", greedy.begin(request)).await);
    }
    let (first, second) = (world.server.call().await, world.server.call().await);
    // Another connection is served, and nothing more has come by the first.
    let other = world.client().bearing("other").ask("tools/list", json!({})).await;
    assert!(other.result()["tools"].is_array());
    assert_eq!(world.calls(), 2);
    first.says("done");
    world.server.call().await.says("done");
    second.says("done");
    for waiting in waiting {
        assert_eq!(waiting.answer().await.text(), "done");
    }
}

#[tokio::test]
async fn calls_beyond_what_a_connection_may_carry_are_refused_where_its_client_does_not_queue_them() {
    let hits = LimitHits::of("limits.streams");
    let world = Setup::new().top("limits: { streams: 2 }").start().await;
    let frame = |length: usize, kind: u8, stream: u8| {
        let length = u8::try_from(length).expect("it is short");
        vec![0, 0, length, kind, END_HEADERS, 0, 0, 0, stream]
    };
    // Behind an empty SETTINGS. No header is indexed that HPACK does not know by itself (RFC 7541, A), and no body comes.
    let mut sent = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]].concat();
    let mut head = vec![0x83, 0x86];
    for (name, value) in [(&[0x04][..], "/mcp"), (&[0x01], "localhost"), (&[0x0f, 0x10], "application/json")]
    {
        let length = u8::try_from(value.len()).expect("it is short");
        head.extend([name, &[length], value.as_bytes()].concat());
    }
    for stream in [1, 3, 5, 7] {
        sent.extend([frame(head.len(), HEADERS, stream), head.clone()].concat());
    }
    let mut socket = TcpStream::connect(world.addr()).await.expect("it listens");
    socket.write_all(&sent).await.expect("it is read");
    let mut refused = Vec::new();
    while refused.len() < 2 {
        let mut head = [0; 9];
        soon("a frame", socket.read_exact(&mut head)).await.expect("it goes on");
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        soon("the rest of it", socket.read_exact(&mut payload)).await.expect("it goes on");
        if head[3] == RST_STREAM {
            assert_eq!(payload, REFUSED_STREAM);
            refused.push(head[8]);
        }
    }
    assert_eq!(refused, [5, 7]);
    hits.are(2).await;
}

// Of HTTP/2 (RFC 9113, 6 and 7).
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_HEADERS: u8 = 4;
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];

#[tokio::test]
async fn calls_beyond_the_connections_to_servers_wait_and_the_limit_is_named() {
    let hits = LimitHits::of("limits.upstream_connections");
    let setup = Setup::new().server(|options| options.get = crate::support::legacy_server::Get::Refused(405));
    let world =
        setup.top("limits: { upstream_connections: 2 }").top("timeouts: { connect: 200ms }").start().await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let waiting = world.client().call("long").await;
        held.push((waiting, world.server.call().await));
    }
    let refused = world.client().call("more").await.answer().await;
    assert_eq!(refused.error()["code"], -31006, "{}", refused.body);
    assert!(refused.body.contains("limits.upstream_connections"), "{}", refused.body);
    // Who comes when one is given back is served.
    for (waiting, call) in held {
        call.says("done");
        assert_eq!(waiting.answer().await.text(), "done");
    }
    let waiting = world.client().call("later").await;
    world.server.call().await.says("done");
    assert_eq!(waiting.answer().await.text(), "done");
    hits.are(1).await;
}

#[tokio::test]
async fn operators_have_so_many_connections_and_clients_are_served_beside_them() {
    let server = LegacyServer::start(Options { tools: Some(json!([])), ..Options::default() }).await;
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nroutes: [{{ upstream: {{ url: '{}' }} }}]\n",
        server.url()
    );
    let config = config::parse(Path::new("test.yaml"), &text).expect("a configuration");
    let proxy = app::start(config).expect("the proxy starts");
    let admin = proxy.admin.as_ref().expect("it is on").address;
    let live = async |mut socket: TcpStream| {
        socket.write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it is taken");
        assert!(heard(&mut socket).await.starts_with("HTTP/1.1 200 "));
        socket
    };
    let mut all = Vec::new();
    for _ in 0..18 {
        let socket = TcpStream::connect(admin).await.expect("it listens");
        all.push(soon("an answer", live(socket)).await);
    }
    // Their clients may go on, so for a while they make no room, and there are some for probes alone.
    let more = TcpStream::connect(admin).await.expect("the system takes it");
    let mut probe = soon("an answer", live(more)).await;
    assert_eq!(heard(&mut probe).await, "", "it serves one request");
    let mut other = TcpStream::connect(admin).await.expect("the system takes it");
    other.write_all(b"GET /limits HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it is taken");
    let refused = soon("an answer", heard(&mut other)).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("all 18 connections"), "{refused}");
    let client = crate::support::modern_client::Client::new(proxy.addresses[0]);
    assert!(client.ask("tools/list", json!({})).await.result()["tools"].is_array());
    // The one that has waited the longest makes room once it has waited for a while.
    let asked = async {
        loop {
            let mut socket = TcpStream::connect(admin).await.expect("the system takes it");
            socket.write_all(b"GET /limits HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it is taken");
            if heard(&mut socket).await.starts_with("HTTP/1.1 200 ") {
                return;
            }
        }
    };
    soon("room", asked).await;
    drop(all);
}
