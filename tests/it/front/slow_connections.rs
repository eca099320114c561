//! Connections that send no complete request, and other clients of the listener.

use super::listener_and_service::{Client, FrontAndService, Lines, ScriptedService, Version, bare, call};
use crate::support::limit_hits::LimitHits;
use http::StatusCode;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::timeout,
};

/// Longer than a connection may be young, shorter than any timeout.
const SOON: Duration = Duration::from_secs(3);

/// What clients send who never complete a request.
const INCOMPLETE: [&[u8]; 5] = [
    b"",
    b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n",
    b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
    // The preface of HTTP/2 with half of it missing, and with empty SETTINGS.
    b"PRI * HTTP/2.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
];

async fn is_closed(mut pipe: DuplexStream) -> bool {
    // Whatever was said before.
    let mut bytes = [0; 1024];
    loop {
        match timeout(Duration::ZERO, pipe.read(&mut bytes)).await {
            Ok(Ok(0) | Err(_)) => return true,
            Ok(Ok(_)) => {}
            Err(_elapsed) => return false,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connections_without_a_complete_request_make_room_for_others_when_all_are_taken() {
    for incomplete in INCOMPLETE {
        let (world, pipes) =
            FrontAndService::on_pipes(&[&ScriptedService::prompt()], |config| config.limits.connections = 8);
        let pipe = || pipes.connect(world.addresses[0]).expect("the front listens");
        let mut slow = Vec::new();
        for _ in 0..8 {
            let mut pipe = pipe();
            pipe.write_all(incomplete).await.expect("it is read");
            slow.push(pipe);
        }
        let shown = String::from_utf8_lossy(incomplete);
        for version in [Version::Http1, Version::Http2] {
            let asked = async { Client::over(pipe(), version).await.ask(call("greet")).await };
            let answer = timeout(SOON, asked).await.unwrap_or_else(|_| panic!("{version:?} waits: {shown}"));
            assert_eq!(answer.status, StatusCode::OK);
        }
        let mut closed = 0;
        for pipe in slow {
            closed += usize::from(is_closed(pipe).await);
        }
        assert!((1..=2).contains(&closed), "no more than were needed: {closed}, {shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn tls_handshakes_that_do_not_go_on_make_room_for_others() {
    let (world, pipes) = FrontAndService::on_pipes(&[&ScriptedService::prompt()], |config| {
        config.limits.connections = 4;
        config.tls = Some(super::listener_and_service::tls_paths());
    });
    let pipe = || pipes.connect(world.addresses[0]).expect("the front listens");
    let slow: Vec<_> = (0..4).map(|_| pipe()).collect();
    let mut next = pipe();
    // A record that is no handshake is answered with an alert, once there is a place for it.
    next.write_all(b"\x15\x03\x01\0\x02\x02\x28").await.expect("it is read");
    timeout(SOON, next.read(&mut [0; 64])).await.expect("it is accepted").expect("it is answered or closed");
    drop(slow);
}

#[tokio::test(start_paused = true)]
async fn a_client_between_two_requests_keeps_its_connection_while_others_complete_none() {
    let (world, pipes) =
        FrontAndService::on_pipes(&[&ScriptedService::prompt()], |config| config.limits.connections = 4);
    let pipe = || pipes.connect(world.addresses[0]).expect("the front listens");
    let mut known = Client::over(pipe(), Version::Http1).await;
    assert_eq!(known.ask(call("greet")).await.status, StatusCode::OK);
    let mut slow = Vec::new();
    for _ in 0..30 {
        let mut pipe = pipe();
        pipe.write_all(INCOMPLETE[1]).await.expect("it is read");
        slow.push(pipe);
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    assert_eq!(known.ask(call("greet")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn one_address_has_so_many_connections_without_a_complete_request_and_no_more() {
    let (hits, lines) = (LimitHits::of("limits.pending_connections"), Lines::record());
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| {
        config.limits.connections = 64;
        config.limits.pending_connections = 8;
    });
    let mut known = world.client(Version::Http1).await;
    assert_eq!(known.ask(bare("GET", "/mcp", &[])).await.status, StatusCode::OK);
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut socket = world.socket().await;
        socket.write_all(INCOMPLETE[1]).await.expect("it is taken");
        slow.push(socket);
    }
    // With the next ones they are closed, the oldest first: none of them waits for a timeout.
    let mut next = Vec::new();
    for socket in &mut slow[..32] {
        let closed = async {
            loop {
                let mut byte = [0];
                let read = timeout(Duration::from_millis(20), socket.read(&mut byte)).await;
                match read {
                    Ok(read) => return assert_eq!(read.unwrap_or(0), 0, "closed"),
                    Err(_elapsed) => next.push(world.socket().await),
                }
            }
        };
        timeout(SOON, closed).await.expect("it is closed");
    }
    drop(next);
    // One whose request was complete does not count.
    assert_eq!(known.ask(call("greet")).await.status, StatusCode::OK);
    assert_eq!(world.client(Version::Http2).await.ask(call("greet")).await.status, StatusCode::OK);
    assert!(hits.now() >= 32, "{}", hits.now());
    let logged = lines.of("pending_connections_full");
    assert_eq!(logged.len(), 1, "no more than now and then: {logged:?}");
    assert_eq!(
        (&logged[0]["limit"], &logged[0]["client"]),
        (&"limits.pending_connections".into(), &"127.0.0.1".into())
    );
}
