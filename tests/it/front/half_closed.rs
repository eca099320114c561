//! Clients that half-close the connection after a request and read on.

use super::listener_and_service::{FrontAndService, ScriptedService, channel, message, notice, once, reply};
use deferral::internals::{protocol::RequestId, proxy::ReplyItem};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc::UnboundedSender,
    time::timeout,
};

/// Long enough never to pass in a test.
const NEVER: Duration = Duration::from_secs(600);

/// A desk that answers its only call with what the sender gives, and breaks no silence.
fn scripted() -> (Arc<ScriptedService>, UnboundedSender<ReplyItem>) {
    let (sender, stream) = channel();
    let stream = Mutex::new(Some(stream));
    let desk = ScriptedService::new(move |_| stream.lock().unwrap().take().expect("one call"));
    (desk.with(|route| route.wait_policy.comment_after = NEVER), sender)
}

fn head(length: usize) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n\
         mcp-method: tools/call\r\nmcp-name: work\r\n\r\n"
    )
}

fn body() -> String {
    message("tools/call", r#""name":"work","#)
}

async fn sent_and_ended(world: &FrontAndService) -> TcpStream {
    let mut socket = world.socket().await;
    let body = body();
    socket.write_all(format!("{}{body}", head(body.len())).as_bytes()).await.expect("it is read");
    socket.shutdown().await.expect("it ends");
    socket
}

async fn rest_of(socket: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    timeout(NEVER, socket.read_to_end(&mut rest)).await.expect("in time").expect("it ends in order");
    String::from_utf8(rest).expect("text")
}

/// The bytes of a body that was sent in chunks.
fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").expect("a size");
        let size = usize::from_str_radix(size, 16).expect("hexadecimal digits");
        if size == 0 {
            assert_eq!(rest, "\r\n", "nothing follows");
            return whole;
        }
        whole.push_str(&rest[..size]);
        body = rest[size..].strip_prefix("\r\n").expect("the end of a chunk");
    }
}

#[tokio::test]
async fn a_client_that_ends_its_side_after_its_request_gets_the_answer() {
    let (desk, sender) = scripted();
    let world = FrontAndService::new(&[&desk], |_| {});
    let mut socket = sent_and_ended(&world).await;
    // The front asks whether anybody is still there, by the first byte of what comes in any case.
    assert_eq!(socket.read_u8().await.expect("a byte"), b'H');
    sender.send(ReplyItem::Reply(reply(&RequestId::from_number(7), "\"late\""))).expect("the call goes on");
    let answer = rest_of(&mut socket).await;
    assert!(answer.starts_with("TTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"late\"}"), "{answer}");
}

#[tokio::test]
async fn an_answer_at_once_reaches_a_client_that_has_ended_its_side() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    for _ in 0..20 {
        let answer = rest_of(&mut sent_and_ended(&world).await).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\"done\"}"), "{answer}");
    }
    let answer = world.raw(b"GET /other HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}

#[tokio::test]
async fn an_event_stream_goes_on_for_a_client_that_has_ended_its_side() {
    let (desk, sender) = scripted();
    let world = FrontAndService::new(&[&desk], |_| {});
    sender.send(notice("1")).expect("it is kept");
    let mut socket = sent_and_ended(&world).await;
    let mut answer = String::new();
    while !answer.ends_with("\r\n0") {
        answer.push(socket.read_u8().await.expect("it goes on") as char);
    }
    sender.send(notice("2")).expect("the call goes on");
    sender.send(ReplyItem::Reply(reply(&RequestId::from_number(7), "{}"))).expect("the call goes on");
    answer.push_str(&rest_of(&mut socket).await);
    let (head, chunks) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("transfer-encoding: chunked"), "{head}");
    let events = unchunked(chunks);
    let data: Vec<_> = events.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.len(), 3, "{events}");
    assert!(data[2].ends_with("\"result\":{}}"), "{events}");
}

#[tokio::test]
async fn a_large_answer_is_sent_to_its_end_to_a_client_that_has_ended_its_side() {
    let text = format!("\"{}\"", "x".repeat(8 << 20));
    let large = text.clone();
    let desk = ScriptedService::new(move |call| once(reply(&call.id, &large)));
    let world = FrontAndService::new(&[&desk], |_| {});
    let mut socket = sent_and_ended(&world).await;
    let answer = rest_of(&mut socket).await;
    assert!(answer.ends_with(&format!("\"result\":{text}}}")), "{} bytes", answer.len());
}

#[tokio::test]
async fn a_body_that_comes_in_pieces_is_complete_where_its_client_ends_its_side_with_the_last() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let body = body();
    let (first, last) = body.split_at(body.len() / 2);
    let mut socket = world.socket().await;
    socket.set_nodelay(true).expect("it is a socket");
    for piece in [&head(body.len()), first, last] {
        socket.write_all(piece.as_bytes()).await.expect("it is read");
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
    socket.shutdown().await.expect("it ends");
    let answer = rest_of(&mut socket).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\"done\"}"), "{answer}");
}

#[tokio::test]
async fn a_client_that_ends_its_side_within_its_request_has_made_no_call() {
    let desk = ScriptedService::prompt();
    let world = FrontAndService::new(&[&desk], |_| {});
    let body = body();
    for request in
        ["POST /mcp HT".to_owned(), head(body.len()), format!("{}{}", head(body.len()), &body[1..])]
    {
        let mut socket = world.socket().await;
        socket.write_all(request.as_bytes()).await.expect("it is read");
        socket.shutdown().await.expect("it ends");
        let answer = rest_of(&mut socket).await;
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert!(desk.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_client_that_ends_its_side_and_then_closes_abandons_its_call() {
    let (desk, mut given_up) = ScriptedService::silent(Duration::from_millis(50));
    let world = FrontAndService::new(&[&desk], |_| {});
    let mut socket = sent_and_ended(&world).await;
    assert_eq!(socket.read_u8().await.expect("a byte"), b'H');
    assert!(given_up.try_recv().is_err(), "it reads on");
    drop(socket);
    // By what is written to it next.
    given_up.recv().await.expect("the call is given up");
}

#[tokio::test]
async fn a_call_whose_client_has_closed_is_cancelled_before_its_response() {
    let (desk, mut given_up) = ScriptedService::silent(NEVER);
    let world = FrontAndService::new(&[&desk], |_| {});
    let socket = sent_and_ended(&world).await;
    while desk.seen.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    drop(socket);
    given_up.recv().await.expect("the call is given up");
}
