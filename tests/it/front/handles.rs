//! Delivery of task handles: a handle counts as given once the socket has taken it.

use super::{
    BOTH,
    listener_and_service::{
        Client, FrontAndService, ScriptedService, Version, call, handle, items, notice, once, reply,
        tls_paths, whole,
    },
};
use deferral::internals::proxy::ReplyItem;

use http::StatusCode;
use tokio::sync::mpsc;

#[tokio::test]
async fn a_handle_counts_as_given_once_the_socket_has_it() {
    for version in BOTH {
        for first in [None, Some("1")] {
            let (fates, mut told) = mpsc::unbounded_channel();
            let desk = ScriptedService::new(move |call| {
                let (reply, fate) = handle(&call.id, "{}");
                fates.send(fate).expect("somebody wants to know");
                items(first.map(notice).into_iter().chain([ReplyItem::Reply(reply)]).collect::<Vec<_>>())
            });
            let world = FrontAndService::new(&[&desk], |_| {});
            let mut client = world.client(version).await;
            // Twice: a connection gives more than one.
            for _ in 0..2 {
                client.ask(call("work")).await;
                told.recv().await.expect("a handle").await.expect("it was given");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_handles_at_once_are_all_given() {
    for version in BOTH {
        let (fates, mut told) = mpsc::unbounded_channel();
        let desk = ScriptedService::new(move |call| {
            let (reply, fate) = handle(&call.id, &format!("\"{}\"", "x".repeat(3000)));
            fates.send(fate).expect("somebody wants to know");
            once(reply)
        });
        let world = FrontAndService::new(&[&desk], |_| {});
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let mut client = world.client(version).await;
            asking.spawn(async move {
                for _ in 0..10 {
                    let answers: Vec<_> = match version {
                        Version::Http1 => vec![client.ask(call("work")).await],
                        Version::Http2 => {
                            let answers = [(); 5].map(|()| client.send(call("work")));
                            let answers = futures_util::future::join_all(answers).await;
                            futures_util::future::join_all(answers.into_iter().map(|a| whole(a.unwrap())))
                                .await
                        }
                    };
                    assert!(answers.iter().all(|answer| answer.status == StatusCode::OK));
                }
            });
        }
        asking.join_all().await;
        drop(world);
        let mut given = 0;
        while let Ok(fate) = told.try_recv() {
            fate.await.expect("it was given");
            given += 1;
        }
        assert_eq!(given, if version == Version::Http1 { 80 } else { 400 });
    }
}

#[tokio::test]
async fn a_handle_counts_as_given_over_tls_too() {
    for version in BOTH {
        let (fates, mut told) = mpsc::unbounded_channel();
        let desk = ScriptedService::new(move |call| {
            let (reply, fate) = handle(&call.id, "{}");
            fates.send(fate).expect("somebody wants to know");
            once(reply)
        });
        let world = FrontAndService::new(&[&desk], |config| config.tls = Some(tls_paths()));
        world.secure_client(version).await.ask(call("work")).await;
        told.recv().await.expect("a handle").await.expect("it was given");
    }
}

#[tokio::test]
async fn a_handle_is_not_given_to_a_client_that_does_not_take_it() {
    // Far more than sockets and windows hold, so that its end cannot be on the way.
    let large = format!("\"{}\"", "x".repeat(32 << 20));
    for version in BOTH {
        let (fates, mut told) = mpsc::unbounded_channel();
        let result = large.clone();
        let desk = ScriptedService::new(move |call| {
            let (reply, fate) = handle(&call.id, &result);
            fates.send(fate).expect("somebody wants to know");
            once(reply)
        });
        let world = FrontAndService::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let response = client.send(call("work")).await.expect("a head");
        let mut fate = told.recv().await.expect("a handle");
        assert!(fate.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty), "still on its way");
        drop(response);
        drop(client);
        assert!(fate.await.is_err(), "{version:?}: it was never given");
    }
}

#[tokio::test]
async fn a_handle_held_back_by_flow_control_is_not_given_by_other_answers() {
    // One stream's window is 64 KiB here; the handle's end waits behind it while others pass.
    let (fates, mut told) = mpsc::unbounded_channel();
    let result = format!("\"{}\"", "x".repeat(100 << 10));
    let desk = ScriptedService::new(move |call| {
        if call.target.as_deref() == Some("fast") {
            return once(reply(&call.id, "{}"));
        }
        let (reply, fate) = handle(&call.id, &result);
        fates.send(fate).expect("somebody wants to know");
        once(reply)
    });
    let world = FrontAndService::new(&[&desk], |_| {});
    let io = hyper_util::rt::TokioIo::new(world.socket().await);
    let (sender, connection) = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
        .initial_stream_window_size(64 << 10)
        .handshake(io)
        .await
        .expect("a handshake");
    tokio::spawn(connection);
    let mut client = Client::Http2(sender);
    let held = client.send(call("work")).await.expect("a head");
    let mut fate = told.recv().await.expect("a handle");
    for _ in 0..3 {
        client.ask(call("fast")).await;
    }
    assert!(fate.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty), "still held back");
    whole(held).await;
    fate.await.expect("it was given");
}
