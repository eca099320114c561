//! TLS, start and drain of listeners.

use super::{
    BOTH, NEVER,
    listener_and_service::{
        Client, FrontAndService, ScriptedService, Version, bare, call, channel, reply, tls_paths, whole,
    },
    start,
};
use deferral::internals::{
    front::{self, Config},
    protocol::RequestId,
    proxy::ReplyItem,
};

use http::StatusCode;
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn tls_serves_both_versions_as_agreed() {
    for version in BOTH {
        let world =
            FrontAndService::new(&[&ScriptedService::prompt()], |config| config.tls = Some(tls_paths()));
        let answer = world.secure_client(version).await.ask(call("greet")).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_client_without_tls_is_not_served_where_tls_is() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| config.tls = Some(tls_paths()));
    let answer = world.raw(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(!answer.contains("HTTP/1.1"), "{answer}");
}

#[tokio::test]
async fn every_address_is_listened_on_and_told() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| {
        config.listen = vec!["127.0.0.1:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()];
    });
    assert_eq!(world.addresses.len(), 2);
    assert_ne!(world.addresses[0], world.addresses[1]);
    for &address in &world.addresses {
        let socket = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let answer = Client::over(socket, Version::Http1).await.ask(call("greet")).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn what_is_wrong_at_the_start_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = start(Config { listen: vec![address], ..Config::default() }).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot listen on {address}: ")), "{error}");

    let error = start(Config { listen: Vec::new(), ..Config::default() }).unwrap_err();
    assert!(error.to_string().contains("`listen`"), "{error}");

    let with_tls = |change: fn(&mut front::TlsPaths)| {
        let mut paths = tls_paths();
        change(&mut paths);
        start(Config { tls: Some(paths), ..Config::default() }).unwrap_err().to_string()
    };
    assert!(with_tls(|paths| paths.cert = "none.pem".into()).contains("none.pem (tls.cert)"));
    assert!(
        with_tls(|paths| paths.cert = paths.key.to_string().into())
            .contains("(tls.cert) holds no certificate")
    );
    assert!(with_tls(|paths| paths.key = paths.cert.clone().into()).contains("cert.pem (tls.key)"));
}

#[tokio::test]
async fn at_the_end_calls_are_finished_and_nothing_new_is_begun() {
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let desk = ScriptedService::new(move |_| stream.lock().unwrap().take().expect("one call"));
        let world = FrontAndService::new(&[&desk], |_| {});
        let address = world.addresses[0];
        // One that has said nothing, one that is idle between two requests.
        let mut fresh = world.socket().await;
        let mut idle = world.client(Version::Http1).await;
        idle.ask(bare("GET", "/mcp", &[])).await;
        let mut client = world.client(version).await;
        let answer = tokio::spawn(client.send(call("work")));
        while desk.seen.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let stopped = tokio::spawn(world.drain.stop(NEVER));
        world.task.await.expect("no panic");
        assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
        assert_eq!(fresh.read(&mut [0]).await.unwrap_or(0), 0, "closed");
        assert!(!stopped.is_finished());
        let id = RequestId::from_number(7);
        sender.send(ReplyItem::Reply(reply(&id, "{}"))).expect("it is listened to");
        let answer = whole(answer.await.expect("no panic").expect("an answer")).await;
        assert_eq!(answer.status, StatusCode::OK, "{version:?}");
        assert_eq!(stopped.await.expect("no panic"), 0, "all work has ended");
    }
}

#[tokio::test]
async fn a_request_line_that_is_not_http_is_answered_by_the_connection() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    assert!(world.raw(b"hello\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    let mut socket = world.socket().await;
    // What HTTP/2 begins with, in two pieces.
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\n").await.unwrap();
    socket.flush().await.unwrap();
    socket.write_all(b"SM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut settings = [0; 9];
    socket.read_exact(&mut settings).await.expect("HTTP/2 is spoken");
    assert_eq!(settings[3], 4, "its first frame is SETTINGS");
}
