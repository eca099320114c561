//! The server's loop: how a request is answered without the test, and which ones are left to it.

use super::{Body, Call, Canned, Get, Seen, State, event_stream, events, locked, respond};
use bytes::Bytes;
use deferral::internals::runtime::NetworkListener;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::{future::poll_fn, io, sync::Arc};
use tokio::sync::oneshot;

pub(super) async fn accept(mut listener: NetworkListener, state: Arc<State>) {
    let mut connections = tokio::task::JoinSet::new();
    for connection in 1.. {
        let Ok(socket) = poll_fn(|cx| listener.poll_accept(cx)).await else { return };
        let state = state.clone();
        let service = hyper::service::service_fn(move |request| serve(request, connection, state.clone()));
        connections.spawn(async move {
            // A connection that a test breaks ends with an error.
            let _ = hyper::server::conn::http1::Builder::new()
                .half_close(false)
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

fn serve(
    request: Request<Incoming>,
    connection: usize,
    state: Arc<State>,
) -> BoxFuture<'static, io::Result<Response<Body>>> {
    Box::pin(async move {
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else { return Ok(respond(400, Bytes::new())) };
        let body = body.to_bytes();
        let seen = Seen {
            http: head.method,
            path: head.uri.path().to_owned(),
            query: head.uri.query().map(str::to_owned),
            headers: head.headers,
            json: serde_json::from_slice(&body).unwrap_or_default(),
            body,
            connection,
        };
        let answer = keep_house(&seen, &state);
        let (sender, receiver) = oneshot::channel();
        match answer {
            Handling::Done(response) => {
                log(&state, seen);
                Ok(response)
            }
            Handling::Break => {
                log(&state, seen);
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Handling::Never => {
                locked(&state.silent).push(sender);
                log(&state, seen);
                Ok(receiver.await.unwrap_or_else(|_| respond(500, Bytes::new())))
            }
            Handling::Ask => {
                log(&state, seen.clone());
                let _ = state.calls.send(Call { seen, answer: sender });
                // A test that drops a call leaves it without an answer.
                Ok(receiver
                    .await
                    .unwrap_or_else(|_| respond(500, Bytes::from_static(b"the test gave no answer"))))
            }
        }
    })
}

enum Handling {
    Done(Response<Body>),
    Break,
    Never,
    /// The test decides.
    Ask,
}

fn keep_house(seen: &Seen, state: &State) -> Handling {
    if (state.options.breaks)(seen) {
        return Handling::Break;
    }
    if (state.options.ignores)(seen) {
        return Handling::Never;
    }
    if (state.options.asks)(seen) {
        return Handling::Ask;
    }
    if let Some(canned) = state.options.hook.as_ref().and_then(|hook| hook(seen)) {
        return Handling::Done(canned.into_response());
    }
    match (&seen.http, seen.method()) {
        (&Method::POST, "initialize") => Handling::Done(initialize(seen, state)),
        (&Method::POST, _) if seen.json["id"].is_null() || seen.json["method"].is_null() => {
            Handling::Done(respond(202, Bytes::new()))
        }
        (&Method::POST, "tools/list") if state.options.tools.is_some() => {
            let result = json!({ "tools": state.options.tools });
            let body = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result });
            Handling::Done(Canned::json(200, &body).into_response())
        }
        (&Method::POST, "ping") if state.options.pongs => {
            let body = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} });
            Handling::Done(Canned::json(200, &body).into_response())
        }
        (&Method::POST, _) => Handling::Ask,
        (&Method::GET, _) => match state.options.get {
            Get::Stream | Get::StreamEach => {
                let (events, body) = events();
                let event = seen.header("last-event-id").filter(|_| state.options.get == Get::StreamEach);
                let name = event.unwrap_or_else(|| seen.session()).to_owned();
                locked(&state.listeners).insert(name, events);
                Handling::Done(event_stream(body))
            }
            Get::Refused(status) => Handling::Done(respond(status, Bytes::new())),
            Get::Silent => Handling::Never,
        },
        _ => Handling::Done(respond(200, Bytes::new())),
    }
}

fn initialize(seen: &Seen, state: &State) -> Response<Body> {
    let result = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {
        "protocolVersion": state.options.version,
        "capabilities": state.options.capabilities,
        "serverInfo": { "name": "scripted", "version": "1" },
        "instructions": "be kind",
    }});
    let mut response = match state.options.sse {
        false => Canned::json(200, &result).into_response(),
        true => Canned::status(200)
            .body(format!("id: 1\ndata:\n\ndata: {result}\n\n"))
            .header("content-type", "text/event-stream")
            .into_response(),
    };
    if state.options.sessions {
        let mut sessions = locked(&state.sessions);
        *sessions += 1;
        let id = format!("{}{sessions}", state.options.prefix).parse().expect("a header value");
        response.headers_mut().insert("mcp-session-id", id);
    }
    response
}

fn log(state: &State, seen: Seen) {
    let mut log = locked(&state.log);
    log.push(seen);
    state.logged.send_replace(log.len());
}
