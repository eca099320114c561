//! Frame in, frame out: what a call's bytes cost on their way through, for results of several
//! sizes, beside what building a tree of them would cost.
//!
//! `cargo bench --bench passthrough`

mod support;

use bytes::Bytes;
use deferral::internals::{
    dialect::{
        Call,
        modern::{self, ModernMessage},
        raise,
    },
    protocol::{Frame, Kind, Method, meta},
};
use http::{HeaderMap, HeaderValue};
use serde_json::Value;
use std::{hint::black_box, sync::Arc};
use support::Group;

const SERVER_INFO: &[u8] = br#"{"name":"bench","version":"1.0.0"}"#;

fn main() {
    for size in [200, 1 << 10, 16 << 10, 256 << 10] {
        let (call, headers) = request(200);
        let response = response(size);
        result_out(size, &call_of(&call, &headers), &response);
    }
    for size in [200, 16 << 10] {
        let (body, headers) = request(size);
        request_in(size, &body, &headers);
    }
}

/// The server's response, as it is indexed and raised.
fn result_out(size: usize, call: &Call, whole: &Bytes) {
    let frame = Frame::parse(whole.clone()).expect("a response");
    let Kind::Success { result, .. } = frame.kind() else { panic!("a success") };
    Group::new(format!("a response with a result of about {size} bytes"))
        .case("serde_json::Value, for comparison", whole.len(), || {
            serde_json::from_slice::<Value>(whole).expect("JSON")
        })
        .case("Frame::parse", whole.len(), || Frame::parse(whole.clone()).expect("a response"))
        .case("raise::response", whole.len(), || {
            raise::translate_response(call, &frame, SERVER_INFO).expect("a result")
        })
        .case("raise::result, for a task to keep", whole.len(), || {
            raise::translate_bare_result(&Method::ToolsCall, result, SERVER_INFO).expect("a result")
        })
        .case("parse and raise", whole.len(), || {
            let frame = Frame::parse(whole.clone()).expect("a response");
            raise::translate_response(call, &frame, SERVER_INFO).expect("a result")
        })
        .run();
}

/// The client's request, as it is read, checked and translated.
fn request_in(size: usize, body: &Bytes, headers: &HeaderMap) {
    let call = call_of(body, headers);
    Group::new(format!("a request with arguments of about {size} bytes"))
        .case("serde_json::Value, for comparison", body.len(), || {
            serde_json::from_slice::<Value>(body).expect("JSON")
        })
        .case("Frame::parse", body.len(), || Frame::parse(body.clone()).expect("a request"))
        .case("modern::read", body.len(), || {
            modern::read_message(Frame::parse(body.clone()), headers, None).expect("a good request")
        })
        .case("raise::request", body.len(), || raise::translate_request(black_box(&call), 7, false))
        .case("raise::request with a progress token", body.len(), || {
            raise::translate_request(black_box(&call), 7, true)
        })
        .run();
}

fn call_of(body: &Bytes, headers: &HeaderMap) -> Arc<Call> {
    match modern::read_message(Frame::parse(body.clone()), headers, None) {
        Ok(ModernMessage::Request(call, _)) => call,
        Ok(ModernMessage::Notification) | Err(_) => panic!("a good request"),
    }
}

fn request(size: usize) -> (Bytes, HeaderMap) {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"fast","arguments":{{"rows":{}}},"_meta":{{"{}":"2026-07-28","{}":{{"name":"bench","version":"1.0.0"}},"{}":{{"elicitation":{{}},"sampling":{{}}}}}}}}}}"#,
        rows(size),
        meta::PROTOCOL_VERSION,
        meta::CLIENT_INFO,
        meta::CLIENT_CAPABILITIES,
    );
    let mut headers = HeaderMap::new();
    headers.insert("mcp-protocol-version", HeaderValue::from_static("2026-07-28"));
    headers.insert("mcp-method", HeaderValue::from_static("tools/call"));
    headers.insert("mcp-name", HeaderValue::from_static("fast"));
    (body.into(), headers)
}

fn response(size: usize) -> Bytes {
    let (before, after) = (r#"{"structuredContent":{"rows":"#, r#"},"content":[],"isError":false}"#);
    let rows = rows(size - before.len() - after.len());
    format!(r#"{{"jsonrpc":"2.0","id":7,"result":{before}{rows}{after}}}"#).into()
}

/// A JSON array of about `size` bytes that looks like what tools deal in: rows of short values, and
/// a text with an escape now and then.
fn rows(size: usize) -> String {
    const ROW: &str =
        r#"{"id":48151,"name":"report \"q3\"","ratio":0.8125,"tags":["a","b"],"done":true,"by":null}"#;
    let count = (size / (ROW.len() + 1)).max(1);
    format!("[{}]", [ROW].repeat(count).join(","))
}
