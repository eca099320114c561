//! Limits and timeouts of connections, and the calls on them.

use super::{
    BOTH, NEVER,
    listener_and_service::{
        Client, FrontAndService, Lines, ScriptedService, Version, Watch, call, channel, frame, notice, once,
        reply, tls_paths, whole,
    },
};
use crate::support::{limit_hits::LimitHits, paused_time::Still};
use deferral::internals::{protocol::RequestId, proxy::ReplyItem};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use http_body_util::BodyExt;
use serde_json::json;
use std::{sync::Mutex, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};

#[tokio::test]
async fn a_connection_that_does_not_get_to_a_request_is_closed() {
    let hits = LimitHits::of("timeouts.read_headers");
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| {
        config.timeouts.read_headers = Duration::from_millis(50);
        config.timeouts.idle = NEVER;
    });
    // Nothing, the beginning of HTTP/1, of HTTP/2, and of what may become either.
    for start in ["", "POST /mcp HTTP/1.1\r\nhost: loc", "PRI * HTTP/2.0\r\n", "P"] {
        world.raw(start.as_bytes()).await;
    }
    hits.are(4).await;
}

#[tokio::test]
async fn a_connection_may_be_idle_between_requests_but_not_within_a_head() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| {
        config.timeouts.read_headers = Duration::from_millis(50);
        config.timeouts.idle = NEVER;
    });
    let mut resting = world.client(Version::Http1).await;
    assert_eq!(resting.ask(call("greet")).await.status, StatusCode::OK);
    let mut dawdling = world.socket().await;
    dawdling.write_all(b"GET /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(dawdling.read(&mut [0; 4096]).await.unwrap() > 0, "a whole request is answered");
    dawdling.write_all(b"GET /mcp HTTP/1.1\r\nhost: loc").await.unwrap();
    let mut rest = Vec::new();
    dawdling.read_to_end(&mut rest).await.expect("it is closed");
    // This took longer than a head may.
    assert_eq!(resting.ask(call("greet")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected_and_an_idle_reader_is_not() {
    let hits = LimitHits::of("timeouts.write");
    for (version, secure) in BOTH.into_iter().flat_map(|version| [(version, false), (version, true)]) {
        let (said, quiet) = channel();
        let quiet = Mutex::new(Some(quiet));
        let (told, mut given_up) = mpsc::unbounded_channel();
        let desk = ScriptedService::new(move |call| match call.target.as_deref() {
            Some("talk") => {
                let (told, watch) = (told.clone(), Watch::new());
                tokio::spawn(async move {
                    let _ = watch.1.await;
                    let _ = told.send(());
                });
                let watch = watch.0;
                let line = "x".repeat(10_000);
                stream::repeat_with(move || (notice(&line), &watch).0).boxed()
            }
            _ => quiet.lock().unwrap().take().expect("it is called once"),
        });
        let world = FrontAndService::new(&[&desk], |config| {
            config.timeouts.write = Duration::from_millis(100);
            config.tls = secure.then(tls_paths);
        });
        let client = async || match secure {
            true => world.secure_client(version).await,
            false => world.client(version).await,
        };
        let mut patient = client().await;
        let mut waits = Box::pin(patient.send(call("wait")));
        said.send(notice("first")).unwrap();
        let mut waits = waits.as_mut().await.expect("a stream").into_body();
        assert!(frame(&mut waits).await.is_some());

        let mut deaf = client().await;
        let answer = deaf.send(call("talk")).await.expect("it begins");
        given_up.recv().await.expect("the call is given up");
        drop(answer);

        said.send(ReplyItem::Reply(reply(&RequestId::from_number(1), "\"done\""))).unwrap();
        let rest = waits.collect().await.expect("the stream goes on").to_bytes();
        assert!(String::from_utf8_lossy(&rest).contains("done"), "{version:?}");
    }
    hits.are(4).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_timeout() {
    let hits = LimitHits::of("timeouts.idle_connection");
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| {
        config.timeouts.idle = Duration::from_millis(50);
    });
    let answer = world.raw(b"GET /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    hits.are(1).await;
}

/// An HTTP/2 client that asks nothing and sends PINGs, until its connection ends. Time is paused.
async fn pings(pipe: tokio::io::DuplexStream) {
    let (_sender, mut connection) = h2::client::handshake(pipe).await.expect("a handshake");
    let mut pings = connection.ping_pong().expect("they are asked for once");
    let open = tokio::spawn(connection);
    for _ in 0..100 {
        if pings.ping(h2::Ping::opaque()).await.is_err() {
            let _ended = open.await.expect("it does not panic");
            return;
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    panic!("its connection is still open");
}

#[tokio::test(start_paused = true)]
async fn a_silent_http_2_connection_is_closed_however_often_it_pings() {
    let (world, pipes) = FrontAndService::on_pipes(&[&ScriptedService::prompt()], |_| {});
    let pipe = || pipes.connect(world.addresses[0]).expect("the front listens");
    pings(pipe()).await;
    // Nor does one keep its place that does not even take its leave.
    let mut silent = pipe();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("it is taken");
    silent.write_all(&settings).await.expect("it is taken");
    silent.read_to_end(&mut Vec::new()).await.expect("it is closed");
    // Between two requests a connection may rest for that long, and no longer.
    let mut client = Client::over(pipe(), Version::Http2).await;
    for _ in 0..3 {
        assert_eq!(client.ask(call("greet")).await.status, StatusCode::OK);
        tokio::time::sleep(Duration::from_secs(70)).await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(client.send(call("greet")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_held_keeps_its_connection_however_long_it_is_silent() {
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let desk = ScriptedService::new(move |_| stream.lock().unwrap().take().expect("one call"));
        let (world, pipes) = FrontAndService::on_pipes(&[&desk], |_| {});
        let pipe = pipes.connect(world.addresses[0]).expect("the front listens");
        let mut client = Client::over(pipe, version).await;
        let waiting = tokio::spawn(client.send(call("slow")));
        tokio::time::sleep(Duration::from_secs(500)).await;
        sender
            .send(ReplyItem::Reply(reply(&RequestId::from_number(7), "\"late\"")))
            .expect("it is listened to");
        let answer = whole(waiting.await.expect("no panic").expect("an answer")).await;
        assert!(answer.body.contains("late"), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_connection_limit_an_idle_connection_is_closed_and_a_busy_one_kept() {
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let desk = ScriptedService::new(move |call| match call.target.as_deref() {
            Some("slow") => stream.lock().unwrap().take().expect("one call"),
            _ => once(reply(&call.id, "\"done\"")),
        });
        let (world, pipes) = FrontAndService::on_pipes(&[&desk], |config| {
            config.limits.connections = 2;
            config.timeouts.idle = NEVER;
        });
        let pipe = || pipes.connect(world.addresses[0]).expect("the front listens");
        let mut busy = Client::over(pipe(), version).await;
        let slow = tokio::spawn(busy.send(call("slow")));
        let mut resting = Client::over(pipe(), version).await;
        assert_eq!(resting.ask(call("greet")).await.status, StatusCode::OK);
        let mut third = Client::over(pipe(), version).await;
        let answer = tokio::time::timeout(Duration::from_secs(60), third.ask(call("greet"))).await;
        assert_eq!(answer.expect("room is made for it").status, StatusCode::OK);
        assert!(resting.send(call("greet")).await.is_err(), "its place was given away");
        sender
            .send(ReplyItem::Reply(reply(&RequestId::from_number(7), "\"late\"")))
            .expect("it is listened to");
        let slow = whole(slow.await.expect("no panic").expect("an answer")).await;
        assert!(slow.body.contains("late"), "{slow:?}");
    }
}

#[tokio::test]
async fn calls_over_the_limit_are_shed_and_permits_are_returned() {
    let hits = LimitHits::of("limits.calls");
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let desk = ScriptedService::new(move |call| match call.target.as_deref() {
            Some("slow") => stream.lock().unwrap().take().expect("one call"),
            _ => once(reply(&call.id, "{}")),
        });
        let world = FrontAndService::new(&[&desk], |config| {
            config.limits.calls = 1;
        });
        let mut first = world.client(version).await;
        let slow = tokio::spawn(first.send(call("slow")));
        while desk.seen.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let mut second = world.client(version).await;
        let answer = second.ask(call("fast")).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (503, -31006));
        assert_eq!(answer.header("retry-after"), "1");
        assert!(answer.message().contains("limits.calls"), "{}", answer.body);
        // A stream holds its place until its last byte.
        sender.send(notice("1")).expect("it is listened to");
        let slow = slow.await.expect("no panic").expect("an answer");
        assert_eq!(second.ask(call("fast")).await.status.as_u16(), 503);
        let id = RequestId::from_number(7);
        sender.send(ReplyItem::Reply(reply(&id, "{}"))).expect("it is listened to");
        whole(slow).await;
        assert_eq!(second.ask(call("fast")).await.status.as_u16(), 200);
    }
    hits.are(4).await;
}

#[tokio::test]
async fn more_connections_than_the_limit_wait_for_one_to_close() {
    let hits = LimitHits::of("limits.connections");
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| config.limits.connections = 1);
    let mut first = world.client(Version::Http1).await;
    assert_eq!(first.ask(call("greet")).await.status, StatusCode::OK);
    let mut second = world.client(Version::Http1).await;
    let waiting = tokio::spawn(second.send(call("greet")));
    assert_eq!(first.ask(call("greet")).await.status, StatusCode::OK);
    assert!(!waiting.is_finished());
    hits.are(1).await;
    drop(first);
    assert_eq!(waiting.await.expect("no panic").expect("an answer").status(), StatusCode::OK);
}

#[tokio::test]
async fn the_connection_limit_is_logged_at_intervals() {
    let (lines, hits) = (Lines::record(), LimitHits::of("limits.connections"));
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| config.limits.connections = 1);
    // However long a busy machine takes for what follows.
    let time = Still::stands();
    let mut client = world.client(Version::Http1).await;
    for met in 1..=5 {
        let mut next = world.client(Version::Http1).await;
        let waiting = tokio::spawn(next.send(call("greet")));
        hits.are(met).await;
        drop(client);
        assert_eq!(waiting.await.expect("no panic").expect("an answer").status(), StatusCode::OK);
        client = next;
    }
    let told = lines.of("connections_full");
    assert_eq!(told.len(), 1, "{told:#?}");
    time.passes(Duration::from_secs(10)).await;
    let _next = world.client(Version::Http1).await;
    hits.are(6).await;
    let told = lines.of("connections_full");
    assert_eq!((told.len(), &told[1]["waited"]), (2, &json!(5)), "{told:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_on_after_its_refusal_is_read_for_a_moment_only() {
    let (world, pipes) = FrontAndService::on_pipes(&[&ScriptedService::prompt()], |_| {});
    let pipe = || pipes.connect(world.addresses[0]).expect("the front listens");
    let (mut reader, mut writer) = tokio::io::split(pipe());
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 999999999\r\n\r\n";
    writer.write_all(head.as_bytes()).await.expect("it is read");
    let mut tenths = 0;
    while writer.write_all(&[b' '; 1024]).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        tenths += 1;
        assert!(tenths < 100, "it is read on and on");
    }
    assert!((15..30).contains(&tenths), "{tenths}");
    let mut answer = Vec::new();
    let _ = reader.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&answer));
    let mut other = Client::over(pipe(), Version::Http1).await;
    assert_eq!(other.ask(call("greet")).await.status, StatusCode::OK);
}
