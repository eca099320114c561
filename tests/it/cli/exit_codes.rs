//! The table of `docs/commands.md`: exit codes and the prefix of errors, over all commands.

use super::{deferral, sample, text};
use std::process::Command;

#[test]
fn every_command_that_fails_ends_with_2_and_reports_it_behind_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("bad.yaml");
    std::fs::write(&bad, "lisen: x\n").expect("it can be written");
    let bad = bad.to_str().expect("a plain path");
    let nowhere = "http://127.0.0.1:1";
    let admin = ["--admin", nowhere];
    for words in [
        &[][..],
        &["--lisen", "x"],
        &["--config", bad],
        &["--config", "/nowhere/at/all"],
        &["npx", "foo"],
        &["check", bad],
        &["check", "/nowhere/at/all"],
        &["call", "http://127.0.0.1:1/mcp", "t"],
        &["call", "http://127.0.0.1:1/mcp"],
        &["call", "ftp://x", "t"],
        &["tools", "http://127.0.0.1:1/mcp"],
        &["report", admin[0], admin[1]],
        &["report", "/nowhere/at/all"],
        &["tasks", "list", admin[0], admin[1]],
        &["tasks", "list", "--status", "done"],
        &["tasks", "show", "0123", admin[0], admin[1]],
        &["tasks", "cancel", "0123", admin[0], admin[1]],
        &["tap", admin[0], admin[1]],
        &["explain", "0123", admin[0], admin[1]],
        &["explain", "0123", "--admin", "ftp://x"],
        &["ready", "--admin", "ftp://x"],
        &["store", "check", "/nowhere/at/all"],
        &["store", "backup", "/nowhere/at/all", "/nowhere/else"],
        &["man", "nothing"],
        &["completions", "tcsh"],
        &["supervise", "--", "true"],
    ] {
        let output = deferral(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        let errors = text(&output.stderr).lines().filter(|line| line.starts_with("error: ")).count();
        assert_eq!(errors, 1, "{words:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "", "{words:?}");
    }
}

#[test]
fn ready_ends_with_1_where_nothing_answers() {
    let output = deferral(&["ready", "--admin", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).starts_with("error: no response at "), "{output:?}");
}

#[test]
fn what_is_done_ends_with_0_and_without_an_error() {
    let file = sample("minimal.yaml");
    for words in [&["--version"][..], &["--help"], &["check", &file], &["man"], &["completions", "bash"]] {
        let output = deferral(words);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let run = Command::new("sh")
        .args(["-c", &format!("'{}' man > /dev/full", env!("CARGO_BIN_EXE_deferral"))])
        .output()
        .expect("a shell is there");
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    assert!(text(&run.stderr).starts_with("error: cannot write the output: "), "{run:?}");
    let run = Command::new("sh")
        .args(["-c", &format!("'{}' man | true", env!("CARGO_BIN_EXE_deferral"))])
        .output()
        .expect("a shell is there");
    assert_eq!(text(&run.stderr), "", "a reader that went away is no failure");
}

#[test]
fn a_servers_command_without_the_dashes_before_it_is_tipped() {
    let output = deferral(&["npx", "-y", "some-server"]);
    let said = text(&output.stderr);
    assert!(said.ends_with("write its command after `--`: deferral -- npx -y some-server\n"), "{said}");
}
