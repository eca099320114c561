//! Bytes in are bytes out, but for the edits that `src/manual/passthrough.md` lists. Each test
//! applies the list to what was sent, by means of its own, and compares.

use crate::support::random_json::{Member, member, members, mixed, object, unknown_members, value};
use bytes::Bytes;
use deferral::internals::{
    bridge::offer::{self, ServerTaskSupport},
    dialect::{
        Call,
        modern::{self, ModernMessage},
        raise,
    },
    policy::Mode,
    protocol::{Frame, Kind, Method, Payload, TraceContext, frame},
};
use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use serde_json::value::RawValue;
use std::sync::Arc;

const HOP: u64 = 4_711;
const SERVER_INFO: &str = r#"{"name":"s","version":"1"}"#;

fn m(key: &str, value: impl Into<String>) -> Member {
    (key.to_owned(), value.into())
}

/// `_meta` of a modern request, with or without a token and a trace, among unknown members.
fn modern_meta() -> impl Strategy<Value = String> {
    any::<[bool; 2]>().prop_flat_map(|[with_token, with_trace]| {
        let mut known = vec![
            m("io.modelcontextprotocol/protocolVersion", r#""2026-07-28""#),
            m("io.modelcontextprotocol/clientCapabilities", r#"{ "elicitation" : {} }"#),
            m("io.modelcontextprotocol/clientInfo", r#"{"name":"c","version":"1"}"#),
            m("io.modelcontextprotocol/logLevel", r#""info""#),
        ];
        if with_token {
            known.push(m("progressToken", "\"p\""));
        }
        if with_trace {
            known.push(m("traceparent", "\"theirs\""));
            known.push(m("tracestate", "\"of theirs\""));
        }
        mixed(known)
    })
}

/// The span that a call is a part of.
fn trace() -> impl Strategy<Value = TraceContext> {
    (any::<[u8; 16]>(), any::<[u8; 8]>(), 0..4_u8, prop::option::of("[a-z]{1,8}=[a-z0-9]{1,8}")).prop_map(
        |(trace, span, flags, state)| TraceContext { trace, span, flags, state: state.map(Into::into) },
    )
}

/// A whole modern `tools/call`, with known and unknown members on every level.
fn modern_call() -> impl Strategy<Value = String> {
    (modern_meta(), value(), any::<bool>())
        .prop_flat_map(|(about, arguments, retried)| {
            let mut known = vec![m("name", "\"tool\""), m("arguments", arguments), m("_meta", about)];
            if retried {
                known.extend([
                    m("task", r#"{"ttl":1}"#),
                    m("inputResponses", "{}"),
                    m("requestState", "\"s\""),
                ]);
            }
            mixed(known)
        })
        .prop_flat_map(|params| {
            mixed(vec![
                m("jsonrpc", "\"2.0\""),
                m("id", "9007199254740993"),
                m("method", "\"tools/call\""),
                m("params", params),
            ])
        })
}

fn read(text: &str) -> Call {
    let mut headers = HeaderMap::new();
    headers.insert("mcp-protocol-version", HeaderValue::from_static("2026-07-28"));
    headers.insert("mcp-method", HeaderValue::from_static("tools/call"));
    headers.insert("mcp-name", HeaderValue::from_static("tool"));
    match modern::read_message(Frame::parse(Bytes::copy_from_slice(text.as_bytes())), &headers, None) {
        Ok(ModernMessage::Request(call, _)) => Arc::unwrap_or_clone(call),
        other => panic!("{other:?}: {text}"),
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8(bytes.to_vec()).expect("utf-8")
}

/// `members` with the values of some replaced in their place, and some taken away.
fn with(members: Vec<Member>, change: &[(&str, Option<String>)]) -> Vec<Member> {
    members
        .into_iter()
        .filter_map(|(key, value)| match change.iter().find(|(changed, _)| *changed == key) {
            Some((_, Some(new))) => Some((key, new.clone())),
            Some((_, None)) => None,
            None => Some((key, value)),
        })
        .collect()
}

/// `members` with one set in its place, or added at the end.
fn set(mut members: Vec<Member>, key: &str, value: &str) -> Vec<Member> {
    match members.iter_mut().find(|(k, _)| k == key) {
        Some((_, old)) => value.clone_into(old),
        None => members.push(m(key, value)),
    }
    members
}

fn set_if_absent(members: Vec<Member>, key: &str, value: &str) -> Vec<Member> {
    if members.iter().any(|(k, _)| k == key) { members } else { set(members, key, value) }
}

proptest! {
    #[test]
    fn a_request_reaches_the_server_with_the_listed_edits_only(
        sent in modern_call(),
        wants_progress: bool,
        trace in prop::option::of(trace()),
    ) {
        let mut call = read(&sent);
        call.trace = trace.clone().map(Arc::new);
        let got = text(&raise::translate_request(&call, HOP, wants_progress));

        let outer = |text: &str| with(members(text), &[("params", None)]);
        prop_assert_eq!(outer(&got), with(outer(&sent), &[("id", Some(HOP.to_string()))]));

        let (sent, got) = (member(&sent, "params").expect("sent"), member(&got, "params").expect("kept"));
        let beside = |text: &str| with(members(text), &[("_meta", None)]);
        let gone = [("task", None), ("inputResponses", None), ("requestState", None)];
        prop_assert_eq!(beside(&got), with(beside(&sent), &gone));

        let mut want = with(members(&member(&sent, "_meta").expect("sent")), &[
            ("io.modelcontextprotocol/protocolVersion", None),
            ("io.modelcontextprotocol/clientCapabilities", None),
            ("io.modelcontextprotocol/clientInfo", None),
            ("io.modelcontextprotocol/logLevel", None),
        ]);
        want = if wants_progress { set(want, "progressToken", &HOP.to_string()) } else { with(want, &[("progressToken", None)]) };
        if let Some(trace) = &trace {
            want = set(want, "traceparent", &format!("\"{trace}\""));
            want = match &trace.state {
                Some(state) => set(want, "tracestate", &format!("\"{state}\"")),
                None => with(want, &[("tracestate", None)]),
            };
        }
        let got = member(&got, "_meta").map(|about| members(&about));
        prop_assert_eq!(got.unwrap_or_default(), want);
    }

    #[test]
    fn a_result_reaches_the_client_with_the_listed_edits_only(
        sent in modern_call(),
        about in prop::option::of(unknown_members()),
        known in prop::sample::select(vec![
            vec![], vec![m("resultType", "\"other\"")], vec![m("content", "[ ]"), m("isError", "false")],
        ]),
        pad in "[ \t]{0,2}",
        unknown in unknown_members(),
        outer in unknown_members(),
    ) {
        let call = read(&sent);
        let mut inner = known;
        inner.extend(unknown);
        if let Some(about) = &about {
            inner.push(m("_meta", object(about, &pad)));
        }
        let mut whole = vec![m("jsonrpc", "\"2.0\""), m("id", HOP.to_string()), m("result", object(&inner, &pad))];
        whole.extend(outer);
        let said = object(&whole, &pad);
        let frame = Frame::parse(Bytes::from(said.clone())).expect("valid");
        let Kind::Success { result, .. } = frame.kind() else { panic!("a success") };
        let got = text(&raise::translate_response(&call, &frame, SERVER_INFO.as_bytes()).expect("an object").0);

        let beside = |text: &str| with(members(text), &[("result", None)]);
        prop_assert_eq!(beside(&got), with(beside(&said), &[("id", Some("9007199254740993".into()))]));
        let got = member(&got, "result").expect("kept");
        let want = set(with(inner, &[("_meta", None)]), "resultType", "\"complete\"");
        prop_assert_eq!(with(members(&got), &[("_meta", None)]), want);
        let want = set_if_absent(about.unwrap_or_default(), "io.modelcontextprotocol/serverInfo", SERVER_INFO);
        prop_assert_eq!(members(&member(&got, "_meta").expect("added")), want);
        // A task keeps the same result.
        let kept = text(&raise::translate_bare_result(&call.method, result, SERVER_INFO.as_bytes()).expect("an object"));
        prop_assert_eq!(kept, got);
    }

    #[test]
    fn progress_reaches_the_client_under_its_own_token(
        sent in modern_call(),
        params in mixed(vec![m("progressToken", HOP.to_string()), m("progress", "0.50"), m("message", "\"x\"")]),
    ) {
        let call = read(&sent);
        let said = object(&[m("method", "\"notifications/progress\""), m("params", params.clone())], " ");
        let frame = Frame::parse(Bytes::from(said)).expect("valid");
        let got = modern::translate_notification(&call, &frame).map(|got| text(&got));
        prop_assert_eq!(got.is_some(), call.progress_token.is_some());
        if let Some(got) = got {
            let want = with(members(&params), &[("progressToken", Some("\"p\"".into()))]);
            prop_assert_eq!(members(&member(&got, "params").expect("kept")), want);
        }
    }

    #[test]
    fn a_handshake_is_offered_tasks_and_nothing_else(
        capabilities in mixed(vec![m("tools", "{ }")]),
        result in unknown_members(),
        outer in unknown_members(),
        pad in "[ \t]{0,2}",
        lists: bool,
    ) {
        let mut result = result;
        result.extend([m("protocolVersion", "\"2025-11-25\""), m("capabilities", capabilities.clone())]);
        let mut whole = vec![m("jsonrpc", "\"2.0\""), m("id", "0"), m("result", object(&result, &pad))];
        whole.extend(outer);
        let said = object(&whole, &pad);
        let frame = Frame::parse(Bytes::from(said.clone())).expect("valid");
        let Some(ServerTaskSupport::Missing { offer: Some(got) }) = offer::read_task_support(&frame, lists) else {
            panic!("no offer: {said}")
        };
        let list = if lists { r#""list":{},"# } else { "" };
        let tasks = format!(r#"{{"cancel":{{}},{list}"requests":{{"tools":{{"call":{{}}}}}}}}"#);
        // Taken out again, it is what the server said, byte for byte.
        prop_assert_eq!(text(&got).replacen(&format!(r#","tasks":{tasks}"#), "", 1), said);
        let got = member(&member(&text(&got), "result").expect("kept"), "capabilities").expect("kept");
        prop_assert_eq!(members(&got), set(members(&capabilities), "tasks", &tasks));
    }

    #[test]
    fn a_tool_gains_task_support_and_nothing_else(
        tools in prop::collection::vec(
            (any::<bool>(), any::<bool>()).prop_flat_map(|(is_task, knows)| {
                let name = if is_task { "\"task\"" } else { "\"plain\"" };
                let mut known = vec![m("name", name)];
                if knows {
                    known.push(m("execution", r#"{ "x":1.0,"taskSupport":"forbidden" }"#));
                }
                (Just(is_task), mixed(known))
            }),
            0..4,
        ),
        pad in "[ \t]{0,2}",
    ) {
        let list = tools.iter().map(|(_, tool)| format!("{pad}{tool}")).collect::<Vec<_>>().join(",");
        let result = object(&[m("tools", format!("[{list}]")), m("nextCursor", "\"c\"")], &pad);
        let said = object(&[m("jsonrpc", "\"2.0\""), m("id", "0"), m("result", result)], &pad);
        let frame = Frame::parse(Bytes::from(said.clone())).expect("valid");
        let mode = |name: &str| if name == "task" { Mode::Auto } else { Mode::Never };
        let got = offer::edit_tool_list(&frame, mode).map_or_else(|| said.clone(), |got| text(&got));
        let parse = |text: &str| {
            let list = member(&member(text, "result").expect("kept"), "tools").expect("kept");
            let tools: Vec<Box<RawValue>> = serde_json::from_str(&list).expect("tools");
            tools.iter().map(|tool| members(tool.get())).collect::<Vec<_>>()
        };
        let want = tools.iter().map(|(is_task, tool)| {
            let execution = member(tool, "execution").map_or_else(
                || r#"{"taskSupport":"optional"}"#.to_owned(),
                |known| known.replace("forbidden", "optional"),
            );
            if *is_task { set(members(tool), "execution", &execution) } else { members(tool) }
        });
        prop_assert_eq!(parse(&got), want.collect::<Vec<_>>());
        let beside = |text: &str| with(members(&member(text, "result").expect("kept")), &[("tools", None)]);
        prop_assert_eq!(beside(&got), beside(&said));
    }

    #[test]
    fn a_call_becomes_a_task_with_the_listed_edits_only(
        params in (value(), prop::option::of(unknown_members()), any::<bool>()).prop_flat_map(|(arguments, about, token)| {
            let mut known = vec![m("name", "\"t\""), m("arguments", arguments), m("task", r#"{"ttl":1}"#)];
            if let Some(mut about) = about {
                if token {
                    about.push(m("progressToken", "\"p\""));
                }
                known.push(m("_meta", object(&about, " ")));
            }
            mixed(known)
        }),
        outer in unknown_members(),
    ) {
        let mut whole = vec![m("method", "\"tools/call\""), m("id", "\"c\""), m("params", params.clone())];
        whole.extend(outer);
        let said = object(&whole, " ");
        let got = text(&offer::rewrite_call(&Frame::parse(Bytes::from(said.clone())).expect("valid"), HOP));
        let outer = |text: &str| with(members(text), &[("params", None)]);
        prop_assert_eq!(outer(&got), with(outer(&said), &[("id", Some(HOP.to_string()))]));
        let sent = member(&got, "params").expect("kept");
        let beside = |text: &str| with(members(text), &[("_meta", None), ("task", None)]);
        prop_assert_eq!(with(members(&sent), &[("_meta", None)]), beside(&params));
        let about = member(&params, "_meta").map(|about| members(&about)).unwrap_or_default();
        let want = set_if_absent(about, "progressToken", &HOP.to_string());
        prop_assert_eq!(members(&member(&sent, "_meta").expect("there")), want);
    }

    #[test]
    fn an_unknown_message_is_relayed_unchanged(params in value()) {
        let call = read(&object(&[
            m("jsonrpc", "\"2.0\""), m("id", "1"), m("method", "\"tools/call\""),
            m("params", object(&[m("name", "\"tool\""), m("_meta", object(&[
                m("io.modelcontextprotocol/protocolVersion", "\"2026-07-28\""),
                m("io.modelcontextprotocol/clientCapabilities", "{}"),
            ], ""))], "")),
        ], ""));
        let said = Bytes::from(object(&[m("method", "\"notifications/vendor\""), m("params", params)], " "));
        let frame = Frame::parse(said.clone()).expect("valid");
        prop_assert_eq!(modern::translate_notification(&call, &frame), Some(said));
    }

    #[test]
    fn an_error_of_the_server_keeps_its_bytes_unless_its_code_is_not_of_this_era(
        code in prop::sample::select(vec![-32050i64, -32042, -32021, -32002, -32603, -32602, -32601, -32000, -1, 7]),
        data in prop::option::of(value()),
        unknown in unknown_members(),
    ) {
        let call = read(&object(&[
            m("jsonrpc", "\"2.0\""), m("id", "1"), m("method", "\"tools/call\""),
            m("params", object(&[m("name", "\"tool\""), m("_meta", object(&[
                m("io.modelcontextprotocol/protocolVersion", "\"2026-07-28\""),
                m("io.modelcontextprotocol/clientCapabilities", "{}"),
            ], ""))], "")),
        ], ""));
        let mut said = vec![m("code", code.to_string()), m("message", "\"m\"")];
        said.extend(data.map(|data| m("data", data)));
        said.extend(unknown);
        let got = raise::translate_error(&call, &Bytes::from(object(&said, " ")));
        let want = match code {
            -32099..=-32020 => {
                let kept = said.iter().filter(|(key, _)| ["code", "data"].contains(&&**key));
                let kept = object(&kept.cloned().collect::<Vec<_>>(), "");
                set(with(said, &[("code", Some("-32603".to_owned()))]), "data", &kept)
            }
            -32002 => with(said, &[("code", Some("-32602".to_owned()))]),
            _ => said,
        };
        prop_assert_eq!(members(&text(got.as_bytes())), want);
    }

    #[test]
    fn a_message_put_on_one_line_is_the_same_message(value in value()) {
        let spread = value.replace(' ', "\n").replace('\t', "\r\n");
        let spread_is_json = serde_json::from_str::<&RawValue>(&spread).is_ok();
        prop_assume!(spread_is_json);
        let line = text(&frame::to_single_line(Bytes::from(spread.clone())));
        prop_assert!(!line.contains(['\n', '\r']));
        prop_assert_eq!(line, spread.replace(['\n', '\r'], " "));
    }
}

#[test]
fn a_tools_list_loses_task_support_and_nothing_else() {
    let result = r#"{"tools":[{"name":"a","execution":{"taskSupport":"optional"},"inputSchema":{"x":1e400}}, {"name":"b","execution":{"x":1, "taskSupport":"required"}},{"name":"c","taskSupport":"mine"}],"nextCursor":"n"}"#;
    let got = raise::translate_bare_result(&Method::ToolsList, &Payload::read(result.into()), b"{}")
        .expect("an object");
    assert_eq!(
        text(&got),
        r#"{"tools":[{"name":"a","inputSchema":{"x":1e400}}, {"name":"b","execution":{"x":1}},{"name":"c","taskSupport":"mine"}],"nextCursor":"n","resultType":"complete","ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{}}}"#
    );
}
