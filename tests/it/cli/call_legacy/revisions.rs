//! The choice of the revision, and servers that refuse it.

use super::{Running, SESSION, TASKS, refusals, refuses_strangers, said, with_tasks};
use crate::support::legacy_server::{Canned, LegacyServer, Options, Seen};
use http::Method;
use serde_json::json;

#[test]
fn a_legacy_server_is_called_in_its_own_way_directly_and_through_the_proxy() {
    let demo = super::super::Demo::start();
    let answer = r#"elicitation-1={"date":"2026-08-01","party":4,"seat":"outside"}"#;
    for url in [&demo.server, &demo.url] {
        for revision in ["2025-11-25", "2025-06-18"] {
            let words = ["call", url, "book_table", "--protocol", revision, "--answer", answer];
            let output = super::super::deferral(&words);
            assert_eq!(
                (output.status.code(), super::super::text(&output.stdout)),
                (Some(0), super::super::BOOKED)
            );
        }
        let words = ["call", url, "report", r#"{"seconds":0.7}"#, "--protocol", "2025-03-26"];
        let output = super::super::deferral(&words);
        assert_eq!(super::super::text(&output.stdout), "The report is done. It took 0.7 s.\n");
        assert_eq!(super::super::text(&output.stderr), "writing the report (0.5/0.7)\n");
    }
}

#[tokio::test]
async fn revision_2025_03_26_has_batches_no_version_header_and_no_delete() {
    let server = LegacyServer::start(Options { version: "2025-03-26", ..Options::default() }).await;
    let call = Running::start(&server, "tool", &["2025-03-26", "--answer", "roots-1={\"roots\":[]}"]);
    let waiting = server.call().await;
    assert_eq!((waiting.session(), waiting.seen.header("mcp-protocol-version")), (SESSION, None));
    let body = json!([
        { "jsonrpc": "2.0", "method": "notifications/message", "params": {} },
        { "jsonrpc": "2.0", "id": waiting.id(), "result": said("done") },
    ]);
    waiting.canned(Canned::json(200, &body));
    let ended = call.end().await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"), "{ended:?}");
    assert_eq!(server.count(|seen| seen.http == Method::DELETE), 0);
    let hello = server.message("initialize").await;
    assert_eq!(
        hello.json["params"]["capabilities"],
        json!({ "sampling": {}, "roots": {} }),
        "no elicitation"
    );
}

#[tokio::test]
async fn the_server_chooses_the_revision_among_those_that_both_speak() {
    let server = LegacyServer::start(Options { version: "2025-06-18", ..with_tasks() }).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    let plain = server.call().await;
    assert_eq!(plain.seen.header("mcp-protocol-version"), Some("2025-06-18"));
    assert_eq!(plain.seen.json["params"].get("task"), None, "there were none yet");
    plain.says("done");
    call.end().await.says(&["the server uses revision 2025-06-18\n"]);

    let server = LegacyServer::start(Options { version: "2024-11-05", ..Options::default() }).await;
    let ended = Running::start(&server, "tool", &[TASKS]).end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&[
        "the server uses revision 2024-11-05, which this client does not support; it supports 2026-07-28,",
    ]);
}

#[tokio::test]
async fn a_refused_handshake_prints_likely_causes() {
    let refuse = |canned: fn(&Seen) -> Canned| {
        Options::default().hook(move |seen| (seen.method() == "initialize").then(|| canned(seen)))
    };
    let unknown = refuse(|seen| {
        let error = json!({ "code": -32601, "message": "unknown method" });
        Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "error": error }))
    });
    let missing = refuse(|_| Canned::status(404).body("nothing here"));
    let closed = refuse(|_| Canned::status(401));
    for (options, part, hint) in [
        (unknown, "the server refused `initialize`: unknown method (-32601)", true),
        (missing, "the server refused `initialize`: HTTP 404 Not Found: nothing here", true),
        (closed, "the server refused `initialize`: HTTP 401 Unauthorized", false),
    ] {
        let server = LegacyServer::start(options).await;
        let ended = Running::start(&server, "tool", &[TASKS]).end().await;
        assert_eq!(ended.code, Some(2));
        ended.says(&[part]);
        assert_eq!(ended.err.contains("the server may support no revision before"), hint, "{}", ended.err);
    }
}

#[tokio::test]
async fn a_modern_call_of_a_legacy_server_prints_a_hint() {
    let error = json!({ "code": -32600, "message": "no session" });
    let body = json!({ "jsonrpc": "2.0", "id": "server-error", "error": error });
    let server = LegacyServer::start(Options::default().hook(move |_| Some(Canned::json(400, &body)))).await;
    let ended = Running::start(&server, "tool", &["2026-07-28"]).end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&["HTTP 400 Bad Request: ", "no session", "try `--protocol 2025-11-25`"]);
}

#[tokio::test]
async fn an_unknown_protocol_option_lists_the_known_revisions() {
    let server = LegacyServer::start(Options::default()).await;
    for word in ["2024-11-05", "latest"] {
        let ended = Running::start(&server, "tool", &[word]).end().await;
        assert_eq!(ended.code, Some(2));
        ended.says(&[&format!(
            "`{word}` is not a revision that this client supports; use 2026-07-28, 2025-11-25, 2025-06-18 or 2025-03-26"
        )]);
    }
    assert!(server.log().is_empty());
}

#[tokio::test]
async fn the_revision_of_a_legacy_server_is_chosen_automatically() {
    for (who, canned) in refusals() {
        let options = Options { version: "2025-06-18", ..Options::default() };
        let server = LegacyServer::start(refuses_strangers(canned, options)).await;
        let call = Running::begin(&server, &["tool"]);
        let plain = server.call().await;
        assert_eq!((plain.method(), plain.session()), ("tools/call", SESSION), "{who}");
        plain.says("done");
        let ended = call.end().await;
        assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"), "{who}: {ended:?}");
        assert_eq!(ended.err, "the server uses revision 2025-06-18\n", "{who}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_credentials_or_is_busy_is_not_tried_with_legacy_revisions() {
    for status in [401, 403, 429, 503] {
        let server =
            LegacyServer::start(Options::default().hook(move |_| Some(Canned::status(status)))).await;
        let ended = Running::begin(&server, &["tool"]).end().await;
        assert_eq!(ended.code, Some(2));
        ended.says(&[&format!("error: HTTP {status} ")]);
        assert_eq!(server.messages("initialize"), 0, "{status}");
    }
}

#[tokio::test]
async fn where_no_revision_is_accepted_each_refusal_is_printed() {
    let server = LegacyServer::start(Options::default().hook(|_| Some(Canned::status(404)))).await;
    let ended = Running::begin(&server, &["tool"]).end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&[
        "supports no revision of this client",
        "2026-07-28: HTTP 404",
        "earlier revisions: HTTP 404",
    ]);
}
