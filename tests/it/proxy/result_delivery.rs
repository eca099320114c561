//! When the result of a task, or of a call with a ticket, has been fetched: once its client's socket has taken it, and not when the reply was made.
//!
//! Seen by a proxy that stops, which says how many results in memory nobody has fetched.

use super::{program::Program, proxy_and_server::ALWAYS};
use crate::{
    legacy::proxy_and_client::LegacyClient,
    support::{
        legacy_server::{Call, Canned, LegacyServer, Options},
        modern_client::soon,
    },
};
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::yield_now,
};

/// More than the socket buffers hold, and less than the limit of results.
const LARGE: usize = 15 << 20;

const TICKETS: &str = "tickets: { for: [{ header: X-Agent, value: \"1\", after: 50ms, wait: 1h }] }";

/// How a client asks for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `tasks/get`.
    Get,
    /// `subscriptions/listen`.
    Listen,
    /// `tasks/result` of 2025-11-25, before the end or behind it.
    ResultStream,
    ResultDocument,
    /// `deferral_result` of a client of 2026-07-28, before the end or behind it.
    TicketWait,
    Ticket,
    /// The same of one of 2025-11-25.
    LegacyTicketStream,
    LegacyTicketDocument,
}

impl Way {
    const OF_TASKS: [Self; 4] = [Self::Get, Self::Listen, Self::ResultStream, Self::ResultDocument];
    const OF_TICKETS: [Self; 4] =
        [Self::TicketWait, Self::Ticket, Self::LegacyTicketStream, Self::LegacyTicketDocument];

    /// Whether it is asked for before there is one.
    const fn is_early(self) -> bool {
        matches!(self, Self::Listen | Self::ResultStream | Self::TicketWait | Self::LegacyTicketStream)
    }
}

/// A server that has no tasks of its own.
async fn server() -> LegacyServer {
    let options =
        Options { capabilities: json!({ "tools": {} }), tools: Some(json!([])), ..Options::default() };
    LegacyServer::start(options.hook(|seen| {
        let answer = || json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} });
        (seen.method() == "ping").then(|| Canned::json(200, &answer()))
    }))
    .await
}

/// A call that has become a task or got a ticket, and the request for what it comes to.
async fn begun(way: Way, program: &Program, server: &LegacyServer) -> (Call, Request<Full<bytes::Bytes>>) {
    let client = program.client().with("x-agent", "1");
    let older = LegacyClient::new(program.addr).with("x-agent", "1").hello().await;
    let post = |id: u64, method: &str, params: &Value| {
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        older.request(http::Method::POST, "/mcp", &body)
    };
    let slow = json!({ "name": "slow", "arguments": {} });
    let begins = match way {
        Way::Get | Way::Listen => client.with_tasks().request("tools/call", slow),
        Way::ResultStream | Way::ResultDocument => {
            post(1, "tools/call", &json!({ "name": "slow", "arguments": {}, "task": {} }))
        }
        Way::TicketWait | Way::Ticket => client.request("tools/call", slow),
        Way::LegacyTicketStream | Way::LegacyTicketDocument => post(1, "tools/call", &slow),
    };
    let waiting = client.send_request(begins).await;
    let call = server.call().await;
    let answer = waiting.answer().await;
    let result = answer.messages().pop().expect("a response")["result"].take();
    let request = match way {
        Way::Get => client.with_tasks().request("tasks/get", json!({ "taskId": result["taskId"] })),
        Way::Listen => {
            let filter = json!({ "notifications": { "taskIds": [result["taskId"]] } });
            client.with_tasks().request("subscriptions/listen", filter)
        }
        Way::ResultStream | Way::ResultDocument => {
            post(2, "tasks/result", &json!({ "taskId": result["task"]["taskId"] }))
        }
        Way::TicketWait | Way::Ticket => client.request("tools/call", fetches(&result)),
        Way::LegacyTicketStream | Way::LegacyTicketDocument => post(2, "tools/call", &fetches(&result)),
    };
    (call, request)
}

/// A call of the tool that fetches the result.
fn fetches(result: &Value) -> Value {
    let ticket = &result["_meta"]["deferral/ticket"]["ticket"];
    assert!(ticket.is_string(), "{result:#}");
    json!({ "name": "deferral_result", "arguments": { "ticket": ticket } })
}

/// Sends a request on a connection of its own.
async fn sent(program: &Program, request: Request<Full<bytes::Bytes>>) -> TcpStream {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("it is here").to_bytes();
    let mut text = format!("POST /mcp HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in &head.headers {
        text += &format!("{name}: {}\r\n", value.to_str().expect("text"));
    }
    let mut socket = TcpStream::connect(program.addr).await.expect("it listens");
    socket.write_all(&[text.as_bytes(), b"\r\n", &body].concat()).await.expect("it reads");
    socket
}

/// Reads until so many bytes of the result are there.
async fn reads(socket: &mut TcpStream, wanted: usize) {
    let (mut piece, mut count) = (vec![0; 64 << 10], 0);
    while count < wanted {
        let read = soon("more of it", socket.read(&mut piece)).await.expect("it goes on");
        assert!(read > 0, "it breaks off");
        count += piece[..read].iter().filter(|byte| **byte == b'~').count();
    }
}

/// How many results a proxy that stops says are lost, where a client has taken so much of the one there is.
async fn lost(way: Way, taken: usize) -> Value {
    let server = server().await;
    let routes: &[&str] = if Way::OF_TICKETS.contains(&way) { &[TICKETS] } else { &[ALWAYS] };
    let mut program = Program::start(&server, routes, &["drain: 20ms"]).await;
    let (call, request) = begun(way, &program, &server).await;
    let mut requests = Some(request);
    let mut early = None;
    if way.is_early() {
        early = Some(sent(&program, requests.take().expect("it is sent once")).await);
        // What comes after it is answered after it.
        for _ in 0..2 {
            program.client().ask("server/discover", json!({})).await.result();
        }
    }
    call.says(&"~".repeat(LARGE));
    let has_ended = |line: &Value| line["event"] == "transition" && line["to"] == "completed";
    soon("it ends", async {
        while !program.log.lines().iter().any(has_ended) {
            yield_now().await;
        }
    })
    .await;
    let mut socket = match early {
        Some(socket) => socket,
        None => sent(&program, requests.take().expect("it is sent once")).await,
    };
    reads(&mut socket, taken).await;
    if taken < LARGE {
        drop(socket);
    }
    program.stop();
    program.gone().await["results_lost"].take()
}

async fn are_lost(ways: &[Way], taken: usize, count: u32) {
    for way in ways {
        assert_eq!(lost(*way, taken).await, json!(count), "{way:?}");
    }
}

#[tokio::test]
async fn a_result_whose_client_disconnects_before_its_end_has_not_been_fetched() {
    are_lost(&Way::OF_TASKS, 1, 1).await;
}

#[tokio::test]
async fn a_result_that_its_client_has_taken_has_been_fetched() {
    are_lost(&Way::OF_TASKS, LARGE, 0).await;
}

#[tokio::test]
async fn a_result_with_a_ticket_whose_client_disconnects_before_its_end_has_not_been_fetched() {
    are_lost(&Way::OF_TICKETS, 1, 1).await;
}

#[tokio::test]
async fn a_result_with_a_ticket_that_its_client_has_taken_has_been_fetched() {
    are_lost(&Way::OF_TICKETS, LARGE, 0).await;
}
