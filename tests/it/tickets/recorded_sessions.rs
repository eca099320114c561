//! A whole session, sent to the server directly and through a proxy with tickets: it differs as `manual/tickets.md` lists
//! for ticket holders, and not at all for other clients.

use super::names;
use crate::{
    legacy::{
        proxy_and_client::{HELLO, LegacyClient, READY},
        recorded_session::{Headers, Record, TASKS, headers},
    },
    proxy::proxy_and_server::start,
    support::{
        legacy_server::{Canned, LegacyServer, Options, Seen},
        modern_client::Client,
    },
};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Who calls: what its `initialize` asks for and declares, and whether the operator has named it.
#[derive(Clone, Copy, Debug)]
struct Who {
    revision: &'static str,
    knows_tasks: bool,
    is_named: bool,
}

const ROUTE: [&str; 2] = [
    "tickets: { for: [{ header: X-Agent, value: \"1\", after: 1h }] }",
    "tools: [{ match: never, ticket: \"off\" }]",
];

/// Answers in odd spellings: what is rebuilt is not the same.
fn answer(seen: &Seen) -> Option<Canned> {
    let (params, id) = (&seen.json["params"], &seen.json["id"]);
    Some(match (&seen.http, seen.method()) {
        (&Method::GET, _) => events("retry: 10\n\n: hello\r\n\r\nid: g1\ndata: {\"jsonrpc\":\"2.0\", \"method\":\"notifications/tools/list_changed\"}\n\n".to_owned()),
        (&Method::DELETE, _) => Canned::status(204),
        (_, "tools/list") if params["cursor"] == "2" => document(format!(
            r#"{{"jsonrpc":"2.0","id":{id} ,"result":{{ "tools":[ {{"outputSchema" : {{"type":"object"}} , "name":"u","x":1.50,"inputSchema":{{}}}}, {{"name":"never","inputSchema":{{}},"outputSchema":{{ }}}} ] ,"n":1e400}}}}"#
        )),
        (_, "tools/list") => document(format!(
            r#"{{ "jsonrpc":"2.0","id":{id},"result":{{"nextCursor":"2","tools":[{{"name":"t","inputSchema":{{"type":"object"}},"outputSchema":{{"type":"object"}}}} ]}}}}"#
        )),
        (_, "tools/call") if params["arguments"]["events"] == true => events(told(id, &params["_meta"]["progressToken"])),
        (_, "tools/call") if params["arguments"]["fails"] == true => Canned::status(400)
            .body(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32600, "message":"no"}}}}"#))
            .header("content-type", "application/json"),
        (_, "tools/call" | "ping" | "resources/list" | "resources/read" | "prompts/get") => document(format!(
            "{{ \"result\": {{\"content\":[ ],\n\"n\":1.0e400,\"n\":2}} ,\"id\":{id},\"jsonrpc\":\"2.0\"}}"
        )),
        _ => return None,
    })
}

fn document(body: String) -> Canned {
    let answer = Canned::status(200).body(body).header("content-type", "application/json; charset=utf-8");
    answer.header("x-request-id", "r1").header("set-cookie", "a=1")
}

fn events(body: String) -> Canned {
    Canned::status(200).body(body).header("content-type", "text/event-stream").header("x-request-id", "r2")
}

/// The events of a call. Of progress there is one where there is a token.
fn told(id: &Value, token: &Value) -> String {
    let progress = match token {
        Value::Null => String::new(),
        token => format!(
            "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{{\"progressToken\":{token} ,\"progress\":1.0}}}}\n\n"
        ),
    };
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"é"}}"#;
    let result =
        format!(r#"{{"result":{{"content":[ ],"n":12345678901234567890123}},"id":{id},"jsonrpc":"2.0"}}"#);
    format!(
        "id: 1\nretry: 5\ndata:\n\n: hello\n\nevent: message\nid: 2\ndata: {log}\n\n{progress}id: 3\ndata: {result}\n\n"
    )
}

/// The added members that say which tools can be tasks.
const SUPPORT: &str = r#","execution":{"taskSupport":"optional"}"#;

// === impl Who ===

impl Who {
    fn gets_tickets(self) -> bool {
        self.is_named && !self.knows_tasks
    }

    fn messages(self) -> Vec<String> {
        let capabilities =
            if self.knows_tasks { r#""capabilities":{"tasks":{}}"# } else { r#""capabilities":{}"# };
        let hello = HELLO.replace("2025-11-25", self.revision).replace(r#""capabilities":{}"#, capabilities);
        let messages = [
            &*hello,
            READY,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{ "cursor":"2" }}"#,
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"never","arguments":{"n":1.50}}}"#,
            r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"never","arguments":{"events":true}}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed" }"#,
            r#"{"jsonrpc":"2.0", "id":"q","result":{"x":1e400}}"#,
            r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":9,"method":"resources/list"}"#,
            r#"{"jsonrpc":"2.0","id":10,"method":"resources/read","params":{"uri":"a:b"}}"#,
            r#"{"jsonrpc":"2.0","id":11,"method":"prompts/get","params":{"name":"p"}}"#,
            r#"{ "jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"t","arguments":{ "n":1.50 },"_meta":{"x":1.00}}}"#,
            r#"{"jsonrpc":"2.0","id":"six","method":"tools/call","params":{"arguments":{"events":true},"_meta":{"progressToken":"mine"},"name":"t"}}"#,
            r#"{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"t","arguments":{"events":true}}}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"u","arguments":{"fails":true}}}"#,
            "GET",
            "DELETE",
        ];
        messages.map(str::to_owned).to_vec()
    }
}

/// Sends its messages one after another.
async fn session(addr: SocketAddr, who: Who) -> Vec<(StatusCode, Headers, String)> {
    let first = LegacyClient::new(addr).with("user-agent", "recorder/1").with("authorization", "Bearer t");
    let first = if who.is_named { first.with("x-agent", "1") } else { first };
    let client = first.within("s1").with("mcp-protocol-version", who.revision);
    let mut answers = Vec::new();
    for message in who.messages() {
        let client = if answers.is_empty() { &first } else { &client };
        let waiting = match &*message {
            "GET" => client.listen().await,
            "DELETE" => client.send(Method::DELETE, "/mcp", "").await,
            message => client.post(message).await,
        };
        let answer = waiting.answer().await;
        answers.push((answer.status, headers(&answer.headers), answer.body));
    }
    answers
}

async fn record(through_proxy: bool, who: Who) -> Record {
    let options = Options { version: who.revision, ..Options::default() };
    let server = LegacyServer::start(options.hook(answer)).await;
    let proxy = through_proxy.then(|| start(&server.url(), &ROUTE, &[]));
    let client = session(proxy.as_ref().map_or_else(|| server.addr(), |proxy| proxy.addresses[0]), who).await;
    Record::of(client, &server)
}

/// The direct session with the server, edited as for a ticket holder.
fn edited(mut direct: Record, messages: &[String], proxied: &Record) -> Record {
    for ((message, answer), ours) in messages.iter().zip(&mut direct.client).zip(&proxied.client) {
        let message = serde_json::from_str(message).unwrap_or(Value::Null);
        match message["method"].as_str() {
            Some("tools/list") => edit_list(&mut answer.2, &ours.2),
            Some("tools/call") if may_get_ticket(&message) => edit_answer(answer),
            _ => {}
        }
    }
    for ((_, _, body), ours) in direct.server.iter_mut().zip(&proxied.server) {
        if let Some(call) = serde_json::from_str(body).ok().filter(may_get_ticket) {
            edit_call(body, &call, &ours.2);
        }
    }
    direct
}

fn may_get_ticket(message: &Value) -> bool {
    message["method"] == "tools/call" && message["params"]["name"] != "never"
}

/// No `outputSchema` of a tool that may answer with a ticket; two tools behind those of the last page.
fn edit_list(body: &mut String, ours: &str) {
    *body = body.replace(r#","outputSchema":{"type":"object"}"#, "");
    *body = body.replace(r#""outputSchema" : {"type":"object"} , "#, "");
    let Some(at) = body.find(r#"] ,"n":1e400"#) else { return };
    let added =
        ours.get(at..).and_then(|added| added.strip_suffix(&body[at..])).expect("nothing is put elsewhere");
    let tools: Value = serde_json::from_str(&format!("[{}]", &added[1..])).expect("tools");
    assert_eq!(names(&json!({ "tools": tools })), ["deferral_result", "deferral_cancel"]);
    body.insert_str(at, added);
}

/// The head is the proxy's; of events there is the data, where there is any; line breaks are spaces.
fn edit_answer((status, headers, body): &mut (StatusCode, Headers, String)) {
    let is_stream = body.starts_with("id: 1");
    *status = StatusCode::OK;
    let head: &[(&str, &str)] = match is_stream {
        true => &[
            ("cache-control", "no-cache"),
            ("content-type", "text/event-stream"),
            ("x-accel-buffering", "no"),
        ],
        false => &[("content-type", "application/json")],
    };
    *headers = head.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    if is_stream {
        let data = body.lines().filter(|line| line.starts_with("data: "));
        *body = data.map(|line| format!("{line}\n\n")).collect();
    } else {
        *body = body.replace('\n', " ");
    }
}

/// The id is the proxy's, and is the token for the progress where the client gave none.
fn edit_call(body: &mut String, call: &Value, ours: &str) {
    let ours: Value = serde_json::from_str(ours).expect("a message");
    let id = ours["id"].as_u64().expect("a number");
    *body = body.replace(&format!(r#""id":{}"#, call["id"]), &format!(r#""id":{id}"#));
    if !body.contains("progressToken") {
        let token = format!(r#""progressToken":{id}"#);
        *body = match body.contains("_meta") {
            true => body.replace(r#""x":1.00}"#, &format!(r#""x":1.00,{token}}}"#)),
            false => body.replace("}}}", &format!(r#"}},"_meta":{{{token}}}}}}}"#)),
        };
    }
}

/// Without what tells a client of 2025-11-25 of tasks, with tickets or without.
fn taskless(mut proxied: Record, who: Who) -> Record {
    for (_, _, body) in &mut proxied.client[..4] {
        let rest = body.replace(TASKS, "").replace(SUPPORT, "");
        let has_more = body.starts_with('{') && who.revision == "2025-11-25";
        assert_eq!(rest != *body, has_more, "{body}");
        *body = rest;
    }
    proxied
}

async fn compare(who: Who) {
    let (direct, proxied) = (record(false, who).await, record(true, who).await);
    let proxied = taskless(proxied.unpassed(), who);
    let messages = who.messages();
    assert_eq!(
        [direct.client.len(), direct.server.len(), proxied.server.len()],
        [messages.len(); 3],
        "{who:?}"
    );
    let expected = if who.gets_tickets() { edited(direct, &messages, &proxied) } else { direct };
    for (expected, proxied) in expected.client.iter().zip(&proxied.client) {
        assert_eq!(expected, proxied, "{who:?}");
    }
    for (expected, proxied) in expected.server.iter().zip(&proxied.server) {
        assert_eq!(expected, proxied, "{who:?}");
    }
}

#[tokio::test]
async fn the_session_of_a_client_that_gets_tickets_has_the_listed_edits_only() {
    for revision in ["2025-06-18", "2025-11-25"] {
        compare(Who { revision, knows_tasks: false, is_named: true }).await;
    }
}

#[tokio::test]
async fn the_session_of_a_client_that_gets_none_is_the_session_without_the_proxy() {
    for revision in ["2025-06-18", "2025-11-25"] {
        compare(Who { revision, knows_tasks: false, is_named: false }).await;
    }
    compare(Who { revision: "2025-11-25", knows_tasks: true, is_named: true }).await;
}

/// The same for a client of 2026-07-28, through a proxy without tickets or with them.
async fn modern(route: &[&str], is_named: bool) -> Record {
    // The proxy listens by itself: its stream stays open.
    let options = Options::default().hook(|seen| if seen.http == Method::GET { None } else { answer(seen) });
    let server = LegacyServer::start(options).await;
    let proxy = start(&server.url(), route, &[]);
    let client = Client::new(proxy.addresses[0]).with("authorization", "Bearer t");
    let client = if is_named { client.with("x-agent", "1") } else { client };
    let mut answers = Vec::new();
    for (method, params) in [
        ("tools/list", json!({})),
        ("tools/list", json!({ "cursor": "2" })),
        ("tools/call", json!({ "name": "never", "arguments": { "n": 1.5 } })),
        ("tools/call", json!({ "name": "never", "arguments": { "events": true } })),
        ("tools/call", json!({ "name": "t", "arguments": { "n": 1.5 } })),
        ("tools/call", json!({ "name": "t", "arguments": { "events": true } })),
        ("tools/call", json!({ "name": "u", "arguments": { "fails": true } })),
        ("resources/list", json!({})),
        ("resources/read", json!({ "uri": "a:b" })),
        ("prompts/get", json!({ "name": "p" })),
    ] {
        let answer = client.ask(method, params).await;
        answers.push((answer.status, headers(&answer.headers), answer.body));
    }
    let mut record = Record::of(answers, &server).unpassed();
    record.server.retain(|(request, ..)| !request.starts_with("GET"));
    record
}

/// Without the ids, which are the proxy's own in either case: for the requests are its own. With tickets each call
/// that may get one asks for progress.
fn own_requests(record: &Record, with_tickets: bool) -> Vec<(Headers, String)> {
    let own = |(_, headers, body): &(String, Headers, String)| {
        let message: Value = serde_json::from_str(body).expect("a message");
        // Small numbers stand elsewhere, too.
        let named = |body: String, name: &str| {
            body.replace(&format!("\"{name}\":{}", message["id"]), &format!("\"{name}\":ID"))
        };
        let mut body = named(named(body.clone(), "id"), "progressToken");
        if with_tickets && may_get_ticket(&message) {
            let rest = body.replace(r#""_meta":{"progressToken":ID},"#, "");
            assert_ne!(rest, body);
            body = rest;
        }
        (headers.clone(), body)
    };
    record.server.iter().map(own).collect()
}

#[tokio::test]
async fn the_requests_of_a_2026_07_28_client_have_the_listed_edits_only() {
    for gets_tickets in [false, true] {
        let (mut off, on) = (modern(&[], gets_tickets).await, modern(&ROUTE, gets_tickets).await);
        assert_eq!(own_requests(&off, false), own_requests(&on, gets_tickets));
        if gets_tickets {
            let lists = off.client.iter_mut().zip(&on.client).take(2);
            lists.for_each(|(answer, ours)| edit_list(&mut answer.2, &ours.2));
        }
        for (off, on) in off.client.iter().zip(&on.client) {
            assert_eq!(off, on);
        }
    }
}
