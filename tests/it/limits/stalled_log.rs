//! A log whose reader stalls, and one on a full disk.

use super::program::{Log, Program};
use crate::support::{
    legacy_server::{Canned, LegacyServer, Options},
    modern_client::soon,
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    thread,
};

const DROPPED: &str = "deferral_log_lines_dropped_total";

#[tokio::test]
async fn a_stalled_log_reader_delays_no_call_and_missed_lines_are_counted() {
    const CALLS: usize = 600;
    let options = Options { tools: Some(json!([])), ..Options::default() };
    let server = LegacyServer::start(options.hook(|seen| {
        let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": {} });
        seen.method().starts_with("vendor/").then(|| Canned::json(200, &answer))
    }))
    .await;
    let mut program = Program::start(&server, &["log: json"], Log::Piped);
    // Each line is some 4 KiB: these are more than a pipe and what is gathered take.
    let method = format!("vendor/{}", "x".repeat(6000));
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method }).to_string();
    let legacy = program.client().with("mcp-protocol-version", "");
    let mut kept = legacy.kept().await;
    let mut before = 0;
    for call in 0..CALLS {
        let request = legacy.spelled("", None, body.clone());
        let answer = soon("an answer", async { kept.begin(request).await.answer().await }).await;
        assert_eq!((answer.status.as_u16(), answer.result()), (200, json!({})));
        if call == 9 {
            before = program.memory();
        }
    }
    let taken = program.memory().saturating_sub(before);
    assert!(taken < 16 << 20, "{} KiB", taken >> 10);
    // Operators see it while it lasts.
    let counted = program.count(DROPPED).await;
    assert!(counted > 0, "nothing is missing yet");

    // It reads on.
    let log = BufReader::new(program.log.take().expect("it is piped"));
    let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
    thread::spawn(move || log.lines().map_while(Result::ok).for_each(|line| drop(said.send(line))));
    let (mut written, mut dropped) = (0, 0);
    while written + dropped < CALLS {
        let line = soon("a line", heard.recv()).await.expect("it goes on");
        if line.starts_with("admin") {
            continue;
        }
        let line: Value = serde_json::from_str(&line).expect("a line is an object");
        match line["event"].as_str() {
            Some("log_lines_dropped") => {
                dropped += usize::try_from(line["count"].as_u64().expect("a count")).expect("it is small");
            }
            _ if line["logger"] == "deferral::access" => written += 1,
            _ => {}
        }
    }
    assert_eq!(written + dropped, CALLS, "{written} were written, {dropped} dropped");
    assert!(dropped > 0, "all were written");
    assert_eq!(program.count(DROPPED).await, dropped as u64);
    assert!(program.serves("afterwards").await);
}

#[tokio::test]
async fn a_full_disk_under_the_log_delays_no_call_and_missed_lines_are_counted() {
    const CALLS: u64 = 50;
    let options = Options { tools: Some(json!([])), ..Options::default() };
    let server = LegacyServer::start(options).await;
    let program = Program::start(&server, &[], Log::Full);
    for caller in 0..CALLS {
        assert!(program.serves(&caller.to_string()).await);
    }
    // The line of the start, and one for each of them.
    let counted = async { while program.count(DROPPED).await < 1 + CALLS {} };
    soon("all are counted", counted).await;
    assert_eq!(program.count(DROPPED).await, 1 + CALLS);
}
