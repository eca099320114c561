//! What people type, and what they read: the program itself.

use std::{
    path::Path,
    process::{Command, Output},
};

fn deferral(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deferral")).args(words).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("output is text")
}

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name).to_str().expect("a plain path").to_owned()
}

#[test]
fn check_says_ok_and_how_many_routes_there_are() {
    let path = sample("minimal.yaml");
    let output = deferral(&["check", "--config", &path]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), format!("{path}: ok (1 route)\n"));
}

#[test]
fn check_reports_every_problem_on_stderr_and_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.yaml");
    std::fs::write(&path, "lisen: x\nroutes: [{ upstream: { url: 'ftp://x' } }]\n").unwrap();
    let path = path.to_str().unwrap();
    let output = deferral(&["check", "--config", path]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    let lines: Vec<_> = text(&output.stderr).lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with(&format!("{path}:1:1: unknown key `lisen`")), "{lines:?}");
    assert!(lines[1].starts_with(&format!("{path}:2:29: `ftp://x`")), "{lines:?}");
}

#[test]
fn check_prints_the_schema() {
    let output = deferral(&["check", "--schema"]);
    assert_eq!(output.status.code(), Some(0));
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(schema["properties"]["routes"].is_object());
}

#[test]
fn without_a_server_the_three_ways_to_name_one_are_shown() {
    let output = deferral(&[]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    for way in ["deferral --upstream ", "deferral -- ", "deferral --config "] {
        assert!(said.contains(way), "{said}");
    }
}

#[test]
fn a_flag_that_cannot_be_used_says_why_and_exits_with_2() {
    for (words, part) in [
        (&["--upstream", "127.0.0.1:9000/mcp"][..], "did you mean `http://127.0.0.1:9000/mcp`?"),
        (&["--upstream", "http://x/", "--listen", "localhost:1"], "did you mean `127.0.0.1:1`?"),
        (&["--upstream", "http://x/", "--after", "5"], "did you mean `5s` or `5ms`?"),
        (&["--upstream", "http://x/", "--mode", "maybe"], "use auto, never, always, required or observe"),
        (&["--upstream", "http://x/", "--tool", "x"], "write PATTERN=MODE"),
        (
            &["--upstream", "http://x/", "--store", "disk:./x"],
            "--store: the store `disk` is not built into this version",
        ),
        (&["--", "python", "server.py"], "servers over stdio are not served by this version"),
        (&["--upstream", "http://x/", "--", "python"], "has both"),
        (&["--config", "no/such.yaml"], "no/such.yaml: cannot be read"),
        (&["--nonsense"], "unexpected argument"),
        (&["check"], "Usage"),
    ] {
        let output = deferral(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains(part), "{words:?}: {said}");
    }
}
