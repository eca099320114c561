//! The front on real sockets: what comes in, what is turned away, and how answers go out.

mod half_closed;
mod http_semantics;
pub(crate) mod listener_and_service;
mod paths;
mod slow_connections;
mod tokens;

use self::listener_and_service::{
    Client, Desk, Lines, Version, Watch, World, bare, call, channel, frame, handle, items, message, notice,
    once, post, reply, tls_paths, whole,
};
use crate::support::{
    limit_hits::Hits,
    paused_time::{Still, passes},
};
use deferral::internals::{
    dialect::{Principal, PrincipalKey},
    front::{self, Config},
    policy::{self, PrincipalSource},
    protocol::Id,
    proxy::{AccessSummary, Item},
    runtime::{Drain, Net, SystemClock},
    task::TaskId,
    telemetry::{self, Outcome},
    upstream::{CallError, Document},
};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};

const BOTH: [Version; 2] = [Version::Http1, Version::Http2];

/// Long enough never to pass in a test.
const NEVER: Duration = Duration::from_secs(600);

// === answers ===

#[tokio::test]
async fn a_reply_at_once_is_one_json_response() {
    for version in BOTH {
        let desk = Desk::prompt();
        let world = World::new(&[&desk], |_| {});
        let answer = world.client(version).await.ask(call("greet")).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.body, r#"{"jsonrpc":"2.0","id":7,"result":"done"}"#);
        assert_eq!(answer.header("content-length"), answer.body.len().to_string());
        assert_eq!(desk.seen.lock().unwrap()[0].0.target.as_deref(), Some("greet"));
    }
}

#[tokio::test]
async fn a_reply_at_once_has_its_own_status_and_headers() {
    let desk = Desk::new(|call| {
        let mut reply = reply(&call.id, "{}");
        reply.status = StatusCode::FORBIDDEN;
        reply.headers.insert("x-seen", HeaderValue::from_static("yes"));
        once(reply)
    });
    let answer = World::new(&[&desk], |_| {}).client(Version::Http1).await.ask(call("greet")).await;
    assert_eq!((answer.status, answer.header("x-seen")), (StatusCode::FORBIDDEN, "yes"));
}

#[tokio::test]
async fn a_notice_first_begins_an_event_stream_that_ends_with_the_reply() {
    for version in BOTH {
        let desk = Desk::new(|call| {
            let mut reply = reply(&call.id, "{}");
            reply.status = StatusCode::BAD_REQUEST;
            items([notice("1"), notice("2"), Item::Reply(reply)])
        });
        let answer = World::new(&[&desk], |_| {}).client(version).await.ask(call("work")).await;
        assert_eq!(answer.status, StatusCode::OK, "a stream that has begun is 200 for good");
        assert_eq!(answer.header("content-type"), "text/event-stream");
        assert_eq!(answer.header("cache-control"), "no-cache");
        assert_eq!(answer.header("x-accel-buffering"), "no");
        let want = concat!(
            "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":\"1\"}\n\n",
            "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":\"2\"}\n\n",
            "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n",
        );
        assert_eq!(answer.body, want);
    }
}

#[tokio::test]
async fn silence_begins_an_event_stream_and_is_broken_by_comments() {
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let desk = Desk::paced(20, move |_| stream.lock().unwrap().take().expect("one call"));
        let world = World::new(&[&desk], |_| {});
        let response = world.client(version).await.send(call("work")).await.expect("an answer");
        let (head, mut body) = response.into_parts();
        assert_eq!(head.headers["content-type"], "text/event-stream");
        assert_eq!(frame(&mut body).await.as_deref(), Some(":\n\n"));
        assert_eq!(frame(&mut body).await.as_deref(), Some(":\n\n"));
        let id = Id::from_number(7);
        sender.send(Item::Reply(reply(&id, "{}"))).expect("it is listened to");
        let rest = String::from_utf8(body.collect().await.expect("an end").to_bytes().to_vec()).unwrap();
        assert!(rest.ends_with("data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n"), "{rest}");
    }
}

#[tokio::test]
async fn each_message_goes_out_as_it_comes() {
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let desk = Desk::new(move |_| stream.lock().unwrap().take().expect("one call"));
        let world = World::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let answer = client.send(call("work"));
        sender.send(notice("1")).expect("it is listened to");
        let mut body = answer.await.expect("an answer").into_body();
        assert!(frame(&mut body).await.expect("an event").contains("\"1\""));
        sender.send(notice("2")).expect("it is listened to");
        assert!(frame(&mut body).await.expect("an event").contains("\"2\""));
    }
}

#[tokio::test]
async fn a_large_reply_is_one_event_and_one_json_body() {
    let large = format!("\"{}\"", "x".repeat(3 << 20));
    for version in BOTH {
        for first in [None, Some("1")] {
            let result = large.clone();
            let desk = Desk::new(move |call| {
                let reply = Item::Reply(reply(&call.id, &result));
                items(first.map(notice).into_iter().chain([reply]).collect::<Vec<_>>())
            });
            let answer = World::new(&[&desk], |_| {}).client(version).await.ask(call("work")).await;
            let last = answer.body.trim_end().rsplit('\n').next().expect("a line");
            let message: serde_json::Value =
                serde_json::from_str(last.strip_prefix("data: ").unwrap_or(last)).expect("JSON");
            assert_eq!(message["result"].as_str().map(str::len), Some(3 << 20));
        }
    }
}

#[tokio::test]
async fn a_call_that_ends_without_a_reply_is_answered_all_the_same() {
    let desk = Desk::new(|_| items([]));
    let answer = World::new(&[&desk], |_| {}).client(Version::Http1).await.ask(call("work")).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (500, -32603));
    assert_eq!(answer.json()["id"], 7);

    let desk = Desk::new(|_| items([notice("1")]));
    let answer = World::new(&[&desk], |_| {}).client(Version::Http1).await.ask(call("work")).await;
    assert!(answer.body.contains(r#""id":7,"error":{"code":-32603"#), "{}", answer.body);
}

#[tokio::test]
async fn a_notification_is_accepted_without_a_body() {
    let desk = Desk::prompt();
    let world = World::new(&[&desk], |_| {});
    let body = r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#;
    let answer = world.client(Version::Http1).await.ask(post(body, &[])).await;
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (202, ""));
    assert!(desk.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    for version in BOTH {
        let world = World::new(&[&Desk::prompt()], |_| {});
        let mut client = world.client(version).await;
        for _ in 0..5 {
            assert_eq!(client.ask(call("greet")).await.status, StatusCode::OK);
        }
    }
}

// === departures ===

#[tokio::test]
async fn a_client_that_leaves_while_waiting_gives_up_its_call() {
    for version in BOTH {
        let (desk, mut given_up) = Desk::silent(NEVER);
        let world = World::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let waiting = tokio::spawn(client.send(call("work")));
        while desk.seen.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        drop(client);
        given_up.recv().await.expect("the call is dropped");
    }
}

/// A call with a progress token; the client declares this.
fn watched(capabilities: &str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let body = message("tools/call", r#""name":"work","#)
        .replace(r#""_meta":{"#, r#""_meta":{"progressToken":"t","#)
        .replace(r#"clientCapabilities":{}"#, &format!(r#"clientCapabilities":{capabilities}"#));
    post(&body, &[("mcp-method", "tools/call"), ("mcp-name", "work")])
}

#[tokio::test]
async fn a_client_with_a_token_and_without_tasks_hears_that_its_call_still_runs() {
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let pace = |route: &mut policy::Route| route.held.progress = Some(Duration::from_millis(20));
        let desk = Desk::on("/mcp", pace, move |_| stream.lock().unwrap().take().expect("one call"));
        let world = World::new(&[&desk], |_| {});
        let response = world.client(version).await.send(watched("{}")).await.expect("an answer");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut body = response.into_body();
        let progress = |event: Option<String>| {
            let event = event.expect("it goes on");
            let data = event.strip_prefix("data: ").expect("an event");
            let message: serde_json::Value = serde_json::from_str(data).expect("JSON");
            assert_eq!(message["method"], "notifications/progress");
            assert_eq!(message["params"]["progressToken"], "t");
            let said = message["params"]["message"].as_str().expect("a text");
            let seconds = said.strip_prefix("still running, ").and_then(|rest| rest.strip_suffix(" s"));
            // None, where the machine is not busy.
            seconds.and_then(|seconds| seconds.parse::<u8>().ok()).unwrap_or_else(|| panic!("{said}"));
            message["params"]["progress"].as_f64().expect("a number")
        };
        let first = progress(frame(&mut body).await);
        let second = progress(frame(&mut body).await);
        assert!(0.0 < first && first < second, "{first} {second}");
        let said = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":3}}"#;
        sender.send(Item::Notification(said.into())).expect("it is listened to");
        let mut third = second;
        while third <= 3.0 {
            let event = frame(&mut body).await;
            match event.as_deref() == Some(&*format!("data: {said}\n\n")) {
                true => third = 3.0_f64.next_up(),
                false => third = progress(event),
            }
        }
        assert!(progress(frame(&mut body).await) > 3.0);
        sender.send(Item::Reply(reply(&Id::from_number(7), "{}"))).expect("it is listened to");
        let rest = String::from_utf8(body.collect().await.expect("an end").to_bytes().to_vec()).unwrap();
        assert!(rest.ends_with("data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n"), "{rest}");
    }
}

#[tokio::test]
async fn a_client_with_tasks_hears_of_progress_in_its_task() {
    let pace = |route: &mut policy::Route| {
        route.held.progress = Some(Duration::from_millis(5));
        route.held.comments = Duration::from_millis(20);
    };
    let desk = Desk::on("/mcp", pace, |_| stream::pending().boxed());
    let world = World::new(&[&desk], |_| {});
    let tasks = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
    let response = world.client(Version::Http1).await.send(watched(tasks)).await.expect("an answer");
    let mut body = response.into_body();
    for _ in 0..2 {
        assert_eq!(frame(&mut body).await.as_deref(), Some(":\n\n"));
    }
}

#[tokio::test]
async fn a_call_that_has_waited_long_enough_gets_an_error_and_is_given_up() {
    for version in BOTH {
        for comments in [NEVER, Duration::from_millis(5)] {
            let (desk, mut given_up) = Desk::silent(comments);
            // The same desk with a deadline.
            let desk = desk.with(|route| route.held.deadline = Some(Duration::from_secs(10)));
            let lines = Lines::record();
            let world = World::new(&[&desk], |_| {});
            let mut client = world.client(version).await;
            let waiting = client.send(call("work"));
            // Its time is over once it is silent; where it gets comments, once it has got one.
            let silent = async {
                while desk.seen.lock().unwrap().is_empty() {
                    tokio::task::yield_now().await;
                }
                if comments == NEVER {
                    passes(Duration::from_secs(10)).await;
                }
            };
            let (response, ()) = tokio::join!(waiting, silent);
            let (head, mut body) = response.expect("an answer").into_parts();
            let kind = if comments == NEVER { "application/json" } else { "text/event-stream" };
            assert_eq!((head.status.as_u16(), &head.headers["content-type"]), (200, &kind.parse().unwrap()));
            if comments != NEVER {
                assert_eq!(frame(&mut body).await.as_deref(), Some(":\n\n"));
                passes(Duration::from_secs(10)).await;
            }
            let rest = String::from_utf8(body.collect().await.expect("an end").to_bytes().to_vec()).unwrap();
            given_up.recv().await.expect("the call is dropped");
            let body = match comments == NEVER {
                true => &*rest,
                false => rest.rsplit_once("data: ").expect("an event").1,
            };
            let message: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!((&message["id"], &message["error"]["code"]), (&json!(7), &json!(-31003)));
            let why = message["error"]["message"].as_str().expect("a text");
            assert!(why.contains("10s (held.deadline)"), "{why}");
            assert_eq!(lines.until(1).await[0]["outcome"], "timed_out");
        }
    }
}

#[tokio::test]
async fn what_is_no_call_has_no_deadline() {
    let (sender, stream) = channel();
    let stream = Mutex::new(Some(stream));
    let pace = |route: &mut policy::Route| {
        route.held.comments = Duration::from_millis(10);
        route.held.deadline = Some(Duration::from_millis(15));
    };
    let desk = Desk::on("/mcp", pace, move |_| stream.lock().unwrap().take().expect("one request"));
    let world = World::new(&[&desk], |_| {});
    let list = post(&message("tools/list", ""), &[("mcp-method", "tools/list")]);
    let mut body = world.client(Version::Http1).await.send(list).await.expect("an answer").into_body();
    for _ in 0..4 {
        assert_eq!(frame(&mut body).await.as_deref(), Some(":\n\n"));
    }
    sender.send(Item::Reply(reply(&Id::from_number(7), "{}"))).expect("it is listened to");
    assert!(frame(&mut body).await.is_some_and(|event| event.contains("result")));
}

#[tokio::test]
async fn a_client_that_leaves_an_event_stream_gives_up_its_call() {
    for version in BOTH {
        let (desk, mut given_up) = Desk::silent(Duration::from_millis(5));
        let world = World::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let response = client.send(call("work")).await.expect("an event stream");
        drop(response);
        drop(client);
        given_up.recv().await.expect("the call is dropped");
    }
}

#[tokio::test]
async fn giving_up_one_http_2_request_leaves_the_others_alone() {
    let (sender, stream) = channel();
    let stream = Mutex::new(Some(stream));
    let desk = Desk::new(move |call| match call.target.as_deref() {
        Some("slow") => stream.lock().unwrap().take().expect("one call"),
        _ => once(reply(&call.id, "{}")),
    });
    let world = World::new(&[&desk], |_| {});
    let mut client = world.client(Version::Http2).await;
    let slow = tokio::spawn(client.send(call("slow")));
    while desk.seen.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    slow.abort();
    sender.closed().await;
    assert_eq!(client.ask(call("fast")).await.status, StatusCode::OK);
}

// === handles ===

#[tokio::test]
async fn a_handle_counts_as_given_once_the_socket_has_it() {
    for version in BOTH {
        for first in [None, Some("1")] {
            let (fates, mut told) = mpsc::unbounded_channel();
            let desk = Desk::new(move |call| {
                let (reply, fate) = handle(&call.id, "{}");
                fates.send(fate).expect("somebody wants to know");
                items(first.map(notice).into_iter().chain([Item::Reply(reply)]).collect::<Vec<_>>())
            });
            let world = World::new(&[&desk], |_| {});
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
        let desk = Desk::new(move |call| {
            let (reply, fate) = handle(&call.id, &format!("\"{}\"", "x".repeat(3000)));
            fates.send(fate).expect("somebody wants to know");
            once(reply)
        });
        let world = World::new(&[&desk], |_| {});
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
        let desk = Desk::new(move |call| {
            let (reply, fate) = handle(&call.id, "{}");
            fates.send(fate).expect("somebody wants to know");
            once(reply)
        });
        let world = World::new(&[&desk], |config| config.tls = Some(tls_paths()));
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
        let desk = Desk::new(move |call| {
            let (reply, fate) = handle(&call.id, &result);
            fates.send(fate).expect("somebody wants to know");
            once(reply)
        });
        let world = World::new(&[&desk], |_| {});
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
    let desk = Desk::new(move |call| {
        if call.target.as_deref() == Some("fast") {
            return once(reply(&call.id, "{}"));
        }
        let (reply, fate) = handle(&call.id, &result);
        fates.send(fate).expect("somebody wants to know");
        once(reply)
    });
    let world = World::new(&[&desk], |_| {});
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

// === who may come in ===

#[tokio::test]
async fn a_strange_host_is_turned_away() {
    for version in BOTH {
        let desk = Desk::prompt();
        let world = World::new(&[&desk], |_| {});
        let mut request = call("greet");
        *request.uri_mut() = "http://evil.example.com/mcp".parse().unwrap();
        request.headers_mut().insert("host", HeaderValue::from_static("evil.example.com"));
        let answer = world.client(version).await.ask(request).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
        assert!(answer.message().contains("access.hosts"), "{}", answer.body);
        assert!(answer.message().contains("`--host evil.example.com`"), "{}", answer.body);
        assert!(answer.json().get("id").is_none(), "{}", answer.body);
        assert!(desk.seen.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_strange_origin_is_turned_away() {
    let desk = Desk::prompt();
    let world = World::new(&[&desk], |_| {});
    let mut client = world.client(Version::Http1).await;
    let body = message("tools/list", "");
    let answer = client.ask(post(&body, &[("origin", "http://evil.example.com")])).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(answer.message().contains("access.origins"), "{}", answer.body);
    assert_eq!(answer.header("access-control-allow-origin"), "");
    let preflight = bare("OPTIONS", "/mcp", &[("origin", "http://evil.example.com")]);
    assert_eq!(client.ask(preflight).await.status, StatusCode::FORBIDDEN);
    assert!(desk.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_page_that_may_call_can_ask_first_and_read_the_answer() {
    let origin = "https://app.example.com";
    let world = World::new(&[&Desk::prompt()], |config| config.access.origins = vec![origin.to_owned()]);
    let mut client = world.client(Version::Http1).await;
    let preflight = bare(
        "OPTIONS",
        "/mcp",
        &[
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,mcp-param-region"),
        ],
    );
    let answer = client.ask(preflight).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.header("access-control-allow-origin"), origin);
    assert_eq!(answer.header("access-control-allow-methods"), "POST, GET, DELETE");
    assert_eq!(answer.header("access-control-allow-headers"), "authorization,mcp-param-region");

    let mut request = call("greet");
    request.headers_mut().insert("origin", HeaderValue::from_static("https://app.example.com"));
    let answer = client.ask(request).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("access-control-allow-origin"), origin);
    assert_eq!(answer.header("vary"), "origin");
    // A page must be able to read why it was refused, too.
    let refused = client.ask(post("{}", &[("origin", origin), ("content-type", "text/plain")])).await;
    assert_eq!(refused.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(refused.header("access-control-allow-origin"), origin);
}

// === paths, methods, media types ===

#[tokio::test]
async fn a_path_that_is_not_served_is_answered_with_those_that_are() {
    let other = Desk::on("/other", |_| {}, |call| once(reply(&call.id, "{}")));
    let world = World::new(&[&Desk::prompt(), &other], |_| {});
    let mut request = call("greet");
    *request.uri_mut() = "http://localhost/mpc".parse().unwrap();
    let answer = world.client(Version::Http1).await.ask(request).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert!(answer.message().contains("`/mpc`; served here: /mcp, /other"), "{}", answer.body);
}

#[tokio::test]
async fn each_path_leads_to_its_own_route() {
    let other = Desk::on("/other", |_| {}, |call| once(reply(&call.id, "\"other\"")));
    let world = World::new(&[&Desk::prompt(), &other], |_| {});
    let mut request = call("greet");
    *request.uri_mut() = "http://localhost/other?x=1".parse().unwrap();
    assert_eq!(world.client(Version::Http1).await.ask(request).await.json()["result"], "other");
}

#[tokio::test]
async fn other_methods_are_not_served() {
    for version in BOTH {
        let world = World::new(&[&Desk::prompt()], |_| {});
        let mut client = world.client(version).await;
        for method in ["PUT", "PATCH", "HEAD"] {
            let answer = client.ask(bare(method, "/mcp", &[("mcp-session-id", "s")])).await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
            assert_eq!(answer.header("allow"), "POST, GET, DELETE");
        }
        // 2026-07-28 has neither streams to listen on nor sessions to end.
        for method in ["GET", "DELETE"] {
            let modern = bare(method, "/mcp", &[("mcp-protocol-version", "2026-07-28")]);
            let answer = client.ask(modern).await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
            assert_eq!(answer.header("allow"), "POST");
            assert!(answer.message().contains("2026-07-28 is spoken over POST alone"), "{}", answer.body);
            assert!(answer.json().get("id").is_none());
        }
    }
}

#[tokio::test]
async fn a_body_that_is_not_json_is_refused() {
    let world = World::new(&[&Desk::prompt()], |_| {});
    let mut client = world.client(Version::Http1).await;
    for media in ["text/plain", "", "application/jsonx"] {
        let mut request = call("greet");
        match media {
            "" => request.headers_mut().remove("content-type"),
            media => request.headers_mut().insert("content-type", HeaderValue::try_from(media).unwrap()),
        };
        assert_eq!(client.ask(request).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{media}");
    }
    let mut request = call("greet");
    request.headers_mut().insert("content-type", HeaderValue::from_static("Application/JSON; charset=utf-8"));
    assert_eq!(client.ask(request).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_client_must_take_both_kinds_of_answer() {
    let world = World::new(&[&Desk::prompt()], |_| {});
    let mut client = world.client(Version::Http1).await;
    for (accept, status) in [
        ("application/json", 406),
        ("text/event-stream", 406),
        ("application/json, text/event-stream;q=0", 406),
        ("text/event-stream, application/json", 200),
        ("*/*", 200),
    ] {
        let mut request = call("greet");
        request.headers_mut().insert("accept", HeaderValue::try_from(accept).unwrap());
        assert_eq!(client.ask(request).await.status.as_u16(), status, "{accept}");
    }
    let mut request = call("greet");
    request.headers_mut().remove("accept");
    assert_eq!(client.ask(request).await.status, StatusCode::OK, "a missing header admits everything");
}

// === revisions ===

#[tokio::test]
async fn a_client_of_an_older_revision_is_passed_on() {
    for version in BOTH {
        let desk = Desk::prompt();
        let world = World::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let hello = r#"{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}"#;
        // What it must send beside its message is for its server to say.
        let bare_hello = post(hello, &[("mcp-protocol-version", ""), ("accept", ""), ("content-type", "")]);
        assert_eq!(client.ask(bare_hello).await.body, "POST ");
        for method in ["GET", "DELETE"] {
            let answer = client.ask(bare(method, "/mcp?k=v", &[("mcp-session-id", "s")])).await;
            assert_eq!(answer.body, format!("{method} k=v"));
        }
        let passed = desk.passed.lock().unwrap();
        assert_eq!(passed[0].body, hello);
        assert_eq!(passed[0].post.messages[0].name(), "initialize");
        assert_eq!(passed[1].headers["mcp-session-id"], "s");
        assert!(desk.seen.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_version_that_is_not_spoken_is_answered_with_those_that_are() {
    let world = World::new(&[&Desk::prompt()], |_| {});
    let mut client = world.client(Version::Http1).await;
    for (version, way_out) in
        [("2027-01-01", "this server speaks 2026-07-28"), ("2025-11-25", "begin a session with `initialize`")]
    {
        let body = message("tools/list", "").replace("2026-07-28", version);
        let answer = client.ask(post(&body, &[("mcp-protocol-version", version)])).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (400, -32022));
        let served = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"];
        let data = json!({ "supported": served, "requested": version });
        assert_eq!(answer.json()["error"]["data"], data);
        assert!(answer.message().contains(way_out), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_modern_request_without_its_header_is_a_mismatch_and_not_an_older_client() {
    let world = World::new(&[&Desk::prompt()], |_| {});
    let mut request = call("greet");
    request.headers_mut().remove("mcp-protocol-version");
    let answer = world.client(Version::Http1).await.ask(request).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (400, -32020));
    assert_eq!(answer.json()["id"], 7);
}

#[tokio::test]
async fn a_removed_method_is_not_found_with_its_id() {
    let world = World::new(&[&Desk::prompt()], |_| {});
    let request = post(&message("initialize", ""), &[("mcp-method", "initialize")]);
    let answer = world.client(Version::Http1).await.ask(request).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (404, -32601));
    assert_eq!(answer.json()["id"], 7);
}

// === limits ===

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    for version in BOTH {
        let desk = Desk::prompt();
        let world = World::new(&[&desk], |config| config.limits.body_bytes = 1000);
        let pad = " ".repeat(1000);
        let answer = world.client(version).await.ask(post(&message("tools/list", &pad), &[])).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{version:?}");
        assert!(answer.message().contains("1000 bytes (limits.body_bytes)"), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_is_refused_once_it_is_over_the_limit() {
    let hits = Hits::of("limits.body_bytes");
    let world = World::new(&[&Desk::prompt()], |config| config.limits.body_bytes = 1000);
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("320\r\n{}\r\n", " ".repeat(800));
    let answer = world.raw(format!("{head}{chunk}{chunk}").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    hits.are(1).await;
}

#[tokio::test]
async fn a_client_that_is_refused_while_it_sends_can_read_why() {
    for secure in [false, true] {
        let world = World::new(&[&Desk::prompt()], |config| config.tls = secure.then(tls_paths));
        let body = message("tools/list", &" ".repeat(16 << 20));
        let mut client = match secure {
            false => world.client(Version::Http1).await,
            true => world.secure_client(Version::Http1).await,
        };
        let answer = client.ask(post(&body, &[("mcp-method", "tools/list")])).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    }
    // A client that reads nothing before it has sent everything.
    let world = World::new(&[&Desk::prompt()], |_| {});
    let length = 16 << 20;
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let answer = world.raw(&[head.as_bytes(), &vec![b' '; length]].concat()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn a_body_in_many_pieces_arrives_whole() {
    let desk = Desk::prompt();
    let world = World::new(&[&desk], |_| {});
    let pad = " ".repeat(200 << 10);
    let body = message("tools/list", &pad);
    for version in BOTH {
        let answer = world.client(version).await.ask(post(&body, &[("mcp-method", "tools/list")])).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
    for (call, _) in &*desk.seen.lock().unwrap() {
        assert!(call.bytes == body.as_bytes());
    }
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    let hits = Hits::of("timeouts.read_body");
    let world = World::new(&[&Desk::prompt()], |config| {
        config.timeouts.read_body = Duration::from_millis(50);
    });
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    let answer = world.raw(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("timeouts.read_body"), "{answer}");
    hits.are(1).await;
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused() {
    let (bytes, headers) = (Hits::of("limits.header_bytes"), Hits::of("limits.headers"));
    let world = World::new(&[&Desk::prompt()], |_| {});
    let lines = Lines::record();
    let large = format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(17 << 10));
    assert!(world.raw(large.as_bytes()).await.starts_with("HTTP/1.1 431 "));
    tokio::join!(bytes.are(1), headers.are(0));
    let many = |count: usize| {
        let more = "x: y\r\n".repeat(count - 2);
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n")
    };
    assert!(world.raw(many(101).as_bytes()).await.starts_with("HTTP/1.1 431 "));
    tokio::join!(bytes.are(1), headers.are(1));
    assert!(!world.raw(many(100).as_bytes()).await.starts_with("HTTP/1.1 431 "));
    // Over HTTP/2 the second answer on a connection is written in another way.
    let mut client = world.client(Version::Http2).await;
    for count in 1..=2 {
        let mut request = call("greet");
        let value = HeaderValue::try_from("x".repeat(17 << 10)).expect("text");
        request.headers_mut().insert("x", value);
        assert_eq!(client.ask(request).await.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        tokio::join!(bytes.are(1 + count), headers.are(1));
    }
    assert_eq!(client.ask(call("greet")).await.status, StatusCode::OK);
    let refused: Vec<_> = lines.of("head_refused");
    let limits: Vec<_> = refused.iter().map(|line| line["limit"].as_str().expect("a key")).collect();
    assert_eq!(
        limits,
        ["limits.header_bytes", "limits.headers", "limits.header_bytes", "limits.header_bytes"]
    );
    for line in &refused {
        assert_eq!((&line["level"], &line["client"]), (&json!("WARN"), &json!("127.0.0.1")), "{line:#}");
    }
}

#[tokio::test]
async fn a_connection_that_does_not_get_to_a_request_is_closed() {
    let hits = Hits::of("timeouts.read_headers");
    let world = World::new(&[&Desk::prompt()], |config| {
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
async fn a_connection_may_rest_between_requests_but_not_within_a_head() {
    let world = World::new(&[&Desk::prompt()], |config| {
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
async fn a_client_that_takes_nothing_is_let_go_and_one_that_has_nothing_to_take_is_not() {
    let hits = Hits::of("timeouts.write");
    for (version, secure) in BOTH.into_iter().flat_map(|version| [(version, false), (version, true)]) {
        let (said, quiet) = channel();
        let quiet = Mutex::new(Some(quiet));
        let (told, mut given_up) = mpsc::unbounded_channel();
        let desk = Desk::new(move |call| match call.target.as_deref() {
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
        let world = World::new(&[&desk], |config| {
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

        said.send(Item::Reply(reply(&Id::from_number(1), "\"done\""))).unwrap();
        let rest = waits.collect().await.expect("the stream goes on").to_bytes();
        assert!(String::from_utf8_lossy(&rest).contains("done"), "{version:?}");
    }
    hits.are(4).await;
}

#[tokio::test]
async fn a_connection_that_rests_too_long_is_closed() {
    let hits = Hits::of("timeouts.idle_connection");
    let world = World::new(&[&Desk::prompt()], |config| {
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
    let (world, pipes) = World::on_pipes(&[&Desk::prompt()], |_| {});
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
        let desk = Desk::new(move |_| stream.lock().unwrap().take().expect("one call"));
        let (world, pipes) = World::on_pipes(&[&desk], |_| {});
        let pipe = pipes.connect(world.addresses[0]).expect("the front listens");
        let mut client = Client::over(pipe, version).await;
        let waiting = tokio::spawn(client.send(call("slow")));
        tokio::time::sleep(Duration::from_secs(500)).await;
        sender.send(Item::Reply(reply(&Id::from_number(7), "\"late\""))).expect("it is listened to");
        let answer = whole(waiting.await.expect("no panic").expect("an answer")).await;
        assert!(answer.body.contains("late"), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_there_is_no_room_a_connection_that_rests_goes_and_one_at_work_stays() {
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let desk = Desk::new(move |call| match call.target.as_deref() {
            Some("slow") => stream.lock().unwrap().take().expect("one call"),
            _ => once(reply(&call.id, "\"done\"")),
        });
        let (world, pipes) = World::on_pipes(&[&desk], |config| {
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
        sender.send(Item::Reply(reply(&Id::from_number(7), "\"late\""))).expect("it is listened to");
        let slow = whole(slow.await.expect("no panic").expect("an answer")).await;
        assert!(slow.body.contains("late"), "{slow:?}");
    }
}

#[tokio::test]
async fn more_calls_than_the_limit_are_shed_and_places_are_given_back() {
    let hits = Hits::of("limits.calls");
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let desk = Desk::new(move |call| match call.target.as_deref() {
            Some("slow") => stream.lock().unwrap().take().expect("one call"),
            _ => once(reply(&call.id, "{}")),
        });
        let world = World::new(&[&desk], |config| {
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
        let id = Id::from_number(7);
        sender.send(Item::Reply(reply(&id, "{}"))).expect("it is listened to");
        whole(slow).await;
        assert_eq!(second.ask(call("fast")).await.status.as_u16(), 200);
    }
    hits.are(4).await;
}

#[tokio::test]
async fn more_connections_than_the_limit_wait_for_one_to_close() {
    let hits = Hits::of("limits.connections");
    let world = World::new(&[&Desk::prompt()], |config| config.limits.connections = 1);
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
async fn that_there_is_no_place_is_logged_now_and_then_and_not_for_each_connection() {
    let (lines, hits) = (Lines::record(), Hits::of("limits.connections"));
    let world = World::new(&[&Desk::prompt()], |config| config.limits.connections = 1);
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

// === who asks ===

#[tokio::test]
async fn a_service_hears_who_asks_and_what_to_show_the_server() {
    for version in BOTH {
        let desk = Desk::on(
            "/mcp",
            |route| route.forward = vec![HeaderName::from_static("x-tenant")],
            |call| once(reply(&call.id, "{}")),
        );
        let world = World::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let mut request = call("greet");
        for (name, value) in [
            ("authorization", "Bearer a"),
            ("cookie", "c=1"),
            ("x-tenant", "t"),
            ("proxy-authorization", "Basic x"),
            ("mcp-param-region", "eu"),
        ] {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        client.ask(request).await;
        client.ask(call("greet")).await;
        let seen = desk.seen.lock().unwrap();
        let [(call, known), (_, anonymous)] = &seen[..] else { panic!("two calls") };
        let mut shown: Vec<_> =
            known.credentials.headers().iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
        shown.sort_unstable();
        assert_eq!(shown, [("authorization", "Bearer a"), ("cookie", "c=1"), ("x-tenant", "t")]);
        assert_eq!(call.headers["mcp-param-region"], "eu");
        assert_ne!(known.principal, Principal::ANONYMOUS);
        assert_eq!(anonymous.principal, Principal::ANONYMOUS);
        assert!(anonymous.credentials.headers().is_empty());
    }
}

#[tokio::test]
async fn cookies_that_http_2_has_split_are_one_header_again() {
    let desk = Desk::prompt();
    let world = World::new(&[&desk], |_| {});
    let mut client = world.client(Version::Http2).await;
    let cookies = |mut request: http::Request<_>| {
        for cookie in ["a=1", "b=2", "c=3"] {
            request.headers_mut().append("cookie", HeaderValue::from_static(cookie));
        }
        request
    };
    client.ask(cookies(call("greet"))).await;
    client.ask(cookies(bare("GET", "/mcp", &[]))).await;
    let seen = desk.seen.lock().unwrap();
    let passed = desk.passed.lock().unwrap();
    for headers in [seen[0].1.credentials.headers(), &passed[0].headers] {
        let cookies: Vec<_> = headers.get_all("cookie").iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3"]);
    }
}

#[tokio::test]
async fn a_route_may_know_callers_by_another_header() {
    let desk = Desk::on(
        "/mcp",
        |route| route.principal = PrincipalSource::Header(HeaderName::from_static("x-user")),
        |call| once(reply(&call.id, "{}")),
    );
    let world = World::new(&[&desk], |_| {});
    let mut client = world.client(Version::Http1).await;
    for (user, token) in [("u", "Bearer a"), ("u", "Bearer b"), ("v", "Bearer b")] {
        let mut request = call("greet");
        request.headers_mut().insert("x-user", HeaderValue::from_static(user));
        request.headers_mut().insert("authorization", HeaderValue::from_static(token));
        client.ask(request).await;
    }
    let seen = desk.seen.lock().unwrap();
    let principals: Vec<_> = seen.iter().map(|(_, caller)| caller.principal).collect();
    assert_eq!(principals[0], principals[1]);
    assert_ne!(principals[1], principals[2]);
}

// === metadata ===

const SERVERS_OWN: &str = r#"{ "resource" : "https://inner:9000/v1/mcp","x":1.10e3 }"#;

fn document(body: &'static str) -> Document {
    let headers = HeaderMap::from_iter([
        (http::header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8")),
        (http::header::CONTENT_LENGTH, HeaderValue::from_static("1")),
        (http::header::SET_COOKIE, HeaderValue::from_static("inner=1")),
    ]);
    Document { status: StatusCode::OK, headers, body: body.into() }
}

#[tokio::test]
async fn metadata_names_us_and_is_otherwise_the_servers() {
    for version in BOTH {
        let desk = Desk::prompt();
        *desk.document.lock().unwrap() = Some(Ok(document(SERVERS_OWN)));
        let world = World::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        for path in ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"] {
            let answer = client.ask(bare("GET", path, &[("host", "localhost:8808")])).await;
            assert_eq!(answer.status, StatusCode::OK);
            assert_eq!(answer.header("content-type"), "application/json; charset=utf-8");
            assert_eq!(answer.header("set-cookie"), "");
            let host = if version == Version::Http1 { "localhost:8808" } else { "localhost" };
            assert_eq!(answer.body, format!(r#"{{ "resource" : "http://{host}/mcp","x":1.10e3 }}"#));
            assert_eq!(desk.fetched.lock().unwrap().last().map(String::as_str), Some(path));
        }
        let answer = client.ask(bare("POST", "/.well-known/oauth-protected-resource", &[])).await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, "GET"));
    }
}

#[tokio::test]
async fn our_address_is_the_configured_one_or_what_the_client_used() {
    let resource = async |headers: &[(&str, &str)], public: Option<&str>, tls: bool| {
        let desk = Desk::prompt();
        *desk.document.lock().unwrap() = Some(Ok(document(SERVERS_OWN)));
        let world = World::new(&[&desk], |config| {
            config.public_url = public.map(|url| url.parse().unwrap());
            config.tls = tls.then(tls_paths);
        });
        let mut client = match tls {
            true => world.secure_client(Version::Http1).await,
            false => world.client(Version::Http1).await,
        };
        let answer = client.ask(bare("GET", "/.well-known/oauth-protected-resource/mcp", headers)).await;
        answer.json()["resource"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(resource(&[], None, false).await, "http://localhost/mcp");
    assert_eq!(resource(&[], None, true).await, "https://localhost/mcp");
    assert_eq!(resource(&[("x-forwarded-proto", "https, http")], None, false).await, "https://localhost/mcp");
    assert_eq!(resource(&[("x-forwarded-proto", "gopher")], None, true).await, "https://localhost/mcp");
    assert_eq!(resource(&[], Some("https://mcp.example.com/"), false).await, "https://mcp.example.com/mcp");
}

#[tokio::test]
async fn metadata_that_cannot_be_had_is_an_error_of_the_server() {
    let desk = Desk::prompt();
    *desk.document.lock().unwrap() = Some(Err(CallError::Unreachable("no route".into())));
    let world = World::new(&[&desk], |_| {});
    let path = "/.well-known/oauth-protected-resource/mcp";
    let answer = world.client(Version::Http1).await.ask(bare("GET", path, &[])).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (502, -31001));
}

#[tokio::test]
async fn with_several_routes_metadata_belongs_to_the_one_named() {
    let desk = Desk::prompt();
    let other = Desk::on("/other", |_| {}, |call| once(reply(&call.id, "{}")));
    *other.document.lock().unwrap() = Some(Ok(document(SERVERS_OWN)));
    let world = World::new(&[&desk, &other], |_| {});
    let mut client = world.client(Version::Http1).await;
    let answer = client.ask(bare("GET", "/.well-known/oauth-protected-resource/other", &[])).await;
    assert_eq!(answer.json()["resource"], "http://localhost/other");
    let answer = client.ask(bare("GET", "/.well-known/oauth-protected-resource", &[])).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert!(answer.message().contains("/.well-known/oauth-protected-resource/other"), "{}", answer.body);
}

#[tokio::test]
async fn a_challenge_leads_to_our_metadata() {
    let challenge = r#"Bearer realm="resource_metadata=no", Resource_Metadata="https://inner:9000/.well-known/oauth-protected-resource/v1/mcp", scope="a""#;
    let desk = |path: &str| {
        Desk::on(
            path,
            |_| {},
            move |call| {
                let mut reply = reply(&call.id, "{}");
                reply.status = StatusCode::UNAUTHORIZED;
                reply.headers.insert("www-authenticate", HeaderValue::from_static(challenge));
                once(reply)
            },
        )
    };
    let ask = async |desks: &[&Arc<Desk>]| {
        let world = World::new(desks, |_| {});
        let answer = world.client(Version::Http1).await.ask(call("greet")).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        answer.header("www-authenticate").to_owned()
    };
    let one = ask(&[&desk("/mcp")]).await;
    assert_eq!(one, challenge.replace("https://inner:9000", "http://localhost"));
    let several = ask(&[&desk("/mcp"), &desk("/other")]).await;
    assert_eq!(
        several,
        challenge.replace("https://inner:9000", "http://localhost").replace("/v1/mcp", "/mcp")
    );
}

// === TLS ===

#[tokio::test]
async fn tls_serves_both_versions_as_agreed() {
    for version in BOTH {
        let world = World::new(&[&Desk::prompt()], |config| config.tls = Some(tls_paths()));
        let answer = world.secure_client(version).await.ask(call("greet")).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_client_without_tls_is_not_served_where_tls_is() {
    let world = World::new(&[&Desk::prompt()], |config| config.tls = Some(tls_paths()));
    let answer = world.raw(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(!answer.contains("HTTP/1.1"), "{answer}");
}

// === access lines ===

#[tokio::test]
async fn each_request_leaves_one_line() {
    for version in BOTH {
        let lines = Lines::record();
        let desk = Desk::new(|call| {
            let mut reply = reply(&call.id, "{}");
            reply.account = AccessSummary {
                outcome: Outcome::Task,
                task: TaskId::parse(&"0a".repeat(16)),
                upstream: Duration::from_millis(3),
                ..AccessSummary::default()
            };
            match call.target.as_deref() {
                Some("talk") => items([notice("1"), Item::Reply(reply)]),
                _ => once(reply),
            }
        });
        let world = World::new(&[&desk], |config| config.limits.body_bytes = 1000);
        let mut client = world.client(version).await;
        for tool in ["greet", "talk"] {
            let mut request = call(tool);
            request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer a"));
            client.ask(request).await;
        }
        for line in &lines.until(2).await {
            assert_eq!(line["method"], "tools/call");
            assert_eq!(line["route"], "/mcp");
            assert_eq!(line["client"], "modern");
            assert_eq!(line["status"], 200);
            assert_eq!(line["outcome"], "task");
            assert_eq!(line["task"], "0a".repeat(4));
            assert_eq!(line["upstream_us"], 3000);
            let known = line["principal"].as_str().expect("text");
            assert!(known != "anonymous" && !known.contains("Bearer"), "{line}");
        }
        assert_eq!(lines.so_far()[0]["target"], "greet");

        client.ask(bare("GET", "/nowhere", &[])).await;
        client.ask(bare("DELETE", "/mcp", &[])).await;
        client.ask(bare("OPTIONS", "/mcp", &[])).await;
        client.ask(post(&message("tools/list", &" ".repeat(1000)), &[])).await;
        let seen: Vec<_> = lines.until(6).await[2..]
            .iter()
            .map(|line| {
                (
                    line["method"].clone(),
                    line["route"].clone(),
                    line["status"].clone(),
                    line["outcome"].clone(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                (json!("GET"), json!(""), json!(404), json!("refused")),
                (json!("DELETE"), json!("/mcp"), json!(200), json!("result")),
                (json!("OPTIONS"), json!("/mcp"), json!(204), json!("result")),
                (json!("POST"), json!("/mcp"), json!(413), json!("refused")),
            ]
        );
    }
}

#[tokio::test]
async fn a_client_that_leaves_leaves_a_line() {
    for version in BOTH {
        for keep_alive in [NEVER, Duration::from_millis(5)] {
            let lines = Lines::record();
            let (desk, mut given_up) = Desk::silent(keep_alive);
            let world = World::new(&[&desk], |_| {});
            let mut client = world.client(version).await;
            let answer = client.send(call("work"));
            let begun = if keep_alive == NEVER {
                let waiting = tokio::spawn(answer);
                while desk.seen.lock().unwrap().is_empty() {
                    tokio::task::yield_now().await;
                }
                waiting.abort();
                None
            } else {
                Some(answer.await.expect("an event stream"))
            };
            let status = if begun.is_some() { 200 } else { 499 };
            drop(begun);
            drop(client);
            given_up.recv().await.expect("the call is dropped");
            let line = &lines.until(1).await[0];
            assert_eq!(line["outcome"], "departed");
            assert_eq!(line["status"], status);
            assert_eq!(line["target"], "work");
            assert_eq!(line["own_us"], 0);
        }
    }
}

// === beginning and end ===

fn start(config: Config) -> Result<front::Bound, front::Error> {
    let (_drain, stopping) = Drain::new();
    front::serve(
        config,
        Vec::new(),
        PrincipalKey::default(),
        [stopping.clone(), stopping],
        Arc::new(SystemClock::new()),
        telemetry::Tracer::default(),
        &Net::System,
    )
}

#[tokio::test]
async fn every_address_is_listened_on_and_told() {
    let world = World::new(&[&Desk::prompt()], |config| {
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
        let desk = Desk::new(move |_| stream.lock().unwrap().take().expect("one call"));
        let world = World::new(&[&desk], |_| {});
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
        let id = Id::from_number(7);
        sender.send(Item::Reply(reply(&id, "{}"))).expect("it is listened to");
        let answer = whole(answer.await.expect("no panic").expect("an answer")).await;
        assert_eq!(answer.status, StatusCode::OK, "{version:?}");
        assert_eq!(stopped.await.expect("no panic"), 0, "all work has ended");
    }
}

#[tokio::test]
async fn a_request_line_that_is_not_http_is_answered_by_the_connection() {
    let world = World::new(&[&Desk::prompt()], |_| {});
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

// === bounds that time or the log shows ===

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_on_after_its_refusal_is_read_for_a_moment_only() {
    let (world, pipes) = World::on_pipes(&[&Desk::prompt()], |_| {});
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

#[tokio::test]
async fn a_line_of_the_log_is_short_however_much_it_tells_of() {
    let lines = Lines::record();
    let world = World::new(&[&Desk::prompt()], |_| {});
    let mut client = world.client(Version::Http1).await;
    client.ask(call(&"x".repeat(5000))).await;
    let batch = vec![r#"{"jsonrpc":"2.0","method":"notifications/vendor"}"#; 100];
    let mut request = post(&format!("[{}]", batch.join(",")), &[]);
    for name in ["mcp-method", "mcp-protocol-version"] {
        request.headers_mut().remove(name);
    }
    client.ask(request).await;
    let lines = lines.until(2).await;
    assert_eq!(lines[0]["target"], "x".repeat(200));
    let names = lines[1]["method"].as_str().expect("text");
    assert_eq!(names, ["notifications/vendor"; 8].join(","), "{}", lines[1]);
}
