//! `deferral report`: from a log, and from a proxy that runs.

use crate::proxy::proxy_and_server::{SLOW, Setup};
use expect_test::expect;
use serde_json::Value;
use std::{fs, process::Command};

/// What it prints, on both, and its exit code.
fn report(args: &[&str]) -> (String, String, Option<i32>) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_deferral")).arg("report").args(args).output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[test]
fn a_log_is_reported_on_tool_by_tool_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let line = |tool: &str, outcome: &str, upstream_ms: u64| {
        format!(
            "2026-07-28T10:30:00.007008Z  INFO deferral::access: method=tools/call target={tool} route=/mcp principal=anonymous client=2025 status=200 outcome={outcome} upstream_us={} own_us=100\n",
            upstream_ms * 1000
        )
    };
    let mut log = String::from("something else\n");
    for number in 0..100 {
        log += &line("quick", "result", 20);
        log += &line(
            "export",
            if number < 3 { "departed" } else { "result" },
            if number < 90 { 4_000 } else { 70_000 },
        );
    }
    log += &line("\"a \\u001b[31mtool\"", "result", 1);
    log += "{\"timestamp\":\"2026-07-28T10:30:00.007008Z\",\"level\":\"INFO\",\"logger\":\"deferral::access\",\"method\":\"tools/call\",\"target\":\"quick\",\"route\":\"/mcp\",\"outcome\":\"result\",\"upstream_us\":20000,\"own_us\":100}\n";
    log += &line("quick", "tool_error", 9_000).replace("T10:30", "T11:30");
    fs::write(&path, log).unwrap();
    let path = path.to_str().unwrap();
    let (out, err, code) = report(&[path]);
    assert_eq!((err.as_str(), code), ("note: 1 of 204 lines are not from a log of deferral\n", Some(0)));
    expect![[r#"
        period: 2026-07-28T10:30:00.007008Z to 2026-07-28T11:30:00.007008Z

        ROUTE  TOOL              CALLS  ERRORS  TIMED OUT  ABANDONED  TASKS   P50   P90   P99   MAX
        /mcp   quick               101       1          0          0      0  20ms  20ms  20ms  20ms
        /mcp   export              100       0          0          3      0  4.6s  5.0s   69s   70s
        /mcp   a \u{1b}[31mtool      1       0          0          0      0   1ms   1ms   1ms   1ms

        /mcp quick
          over  1 s  ······························    0 %
          over  2 s  ······························    0 %
          over  5 s  ······························    0 %
          over 10 s  ······························    0 %
          over 30 s  ······························    0 %
          over 60 s  ······························    0 %
          not included: 1 failed call, p50 8.5s, max 9.0s
          advice: none (every call ended within 1 s: no threshold makes a difference)

    "#]]
    .assert_eq(out.split_inclusive("\n\n").take(3).collect::<String>().as_str());
    assert!(!out.contains('\u{1b}'), "{out}");
    assert!(out.contains("  over 10 s  ███···························   10 %"), "{out}");
    assert!(
        out.contains("  advice: after: 5s (10 % of the calls would become tasks; 10 % take longer than 60 s, when most clients give up, and 3 ended because the client or the server timed out or disconnected)"),
        "{out}"
    );
    let (json, _, _) = report(&["--json", path]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json[1]["tool"], &json[1]["calls"]), (&"export".into(), &100.into()));
    assert_eq!(json[1]["advice"]["setting"], "after: 5s");
    assert_eq!(json[1]["thresholds"][5]["share"], 0.1);
    assert_eq!((&json[0]["errors"], &json[0]["since"]), (&1.into(), &"2026-07-28T10:30:00.007008Z".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_runs_is_reported_on() {
    let listed = serde_json::json!([{ "name": "t", "inputSchema": { "type": "object" } }]);
    let setup = Setup::new().server(|options| options.tools = Some(listed));
    let world = setup.top("admin: 127.0.0.1:0").route(SLOW).start().await;
    // A name that is not listed is asked for, so that the list is known before there is a task.
    let first = world.client().call("another").await;
    world.server.call().await.error(serde_json::json!({ "code": -32602, "message": "unknown tool" }));
    first.answer().await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.says("done");
    client.ended(&task).await;
    let admin = format!("http://{}", world.proxy.admin.as_ref().expect("there is one").address);
    let (out, err, code) =
        tokio::task::spawn_blocking(move || report(&["--admin", &admin])).await.expect("it runs");
    assert_eq!((err.as_str(), code), ("", Some(0)));
    assert!(out.starts_with("period: since 2"), "{out}");
    let row = out.lines().find(|line| line.starts_with("/mcp   t ")).expect("a row");
    let row: Vec<_> = row.split_whitespace().take(7).collect();
    assert_eq!(row, ["/mcp", "t", "1", "0", "0", "0", "1"], "{out}");
}

#[test]
fn a_report_without_data_gives_the_reason() {
    let (_, err, code) = report(&["--admin", "http://127.0.0.1:1"]);
    assert!(err.contains("no response at http://127.0.0.1:1") && err.contains("`admin` address"), "{err}");
    assert_eq!(code, Some(2));
    let (_, err, code) = report(&["/nowhere/at/all"]);
    assert!(err.contains("/nowhere/at/all: No such file"), "{err}");
    assert_eq!(code, Some(2));
    let (_, err, _) = report(&["--admin", "127.0.0.1:8809"]);
    assert!(err.contains("must begin with http://"), "{err}");
    let (out, _, code) = report(&["/dev/null"]);
    assert_eq!((out.as_str(), code), ("no tool calls have ended yet\n", Some(0)));
}
