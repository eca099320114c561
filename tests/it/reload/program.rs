//! Reload of the program: SIGHUP, the admin listener, watched files.

use crate::{
    admin::Operator,
    support::{
        modern_client::Client,
        program::{ReadyLines, where_it_listens},
    },
};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Lines},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
};

/// The program at work, and what it says.
pub(super) struct Program {
    child: Child,
    addr: SocketAddr,
    lines: Lines<BufReader<ChildStderr>>,
    operator: Operator,
    file: PathBuf,
}

const BEFORE: &str = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlog: json\nroutes: [{ upstream: { url: 'http://127.0.0.1:1/mcp' }, defer: { after: 1s } }]\n";

impl Program {
    fn start(folder: &Path, flags: &[&str]) -> Self {
        Self::with(folder, BEFORE, flags)
    }

    pub(super) fn with(folder: &Path, text: &str, flags: &[&str]) -> Self {
        let file = folder.join("deferral.yaml");
        std::fs::write(&file, text).expect("it can be written");
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .arg("--config")
            .arg(&file)
            .args(flags)
            .env("XDG_RUNTIME_DIR", folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let operator = Operator::by_lines(&ReadyLines::read(&mut lines, drop));
        let addr = where_it_listens(&mut child);
        Self { child, addr, lines, operator, file }
    }

    pub(super) fn client(&self) -> Client {
        Client::new(self.addr)
    }

    /// How many processes it has started that run.
    pub(super) fn children(&self) -> usize {
        let pid = self.child.id();
        let of_threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").map(|thread| {
            let path = thread.expect("a thread").path().join("children");
            std::fs::read_to_string(path).map_or(0, |pids| pids.split_whitespace().count())
        });
        of_threads.sum()
    }

    /// Has this read.
    pub(super) async fn goes_on_with(&self, text: &str) {
        self.write(text);
        let answer = self.operator.post("/reload").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.file, text).expect("it can be written");
    }

    fn hangup(&self) {
        let sent = Command::new("kill").args(["-HUP", &self.child.id().to_string()]).status();
        assert!(sent.expect("kill is there").success());
    }

    /// The next line of this event.
    fn says(&mut self, event: &str) -> Value {
        let said = self.lines.find_map(|line| {
            let line: Value = serde_json::from_str(&line.expect("text")).expect("JSON");
            (line["event"] == event).then_some(line)
        });
        said.unwrap_or_else(|| panic!("it never says {event}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn sighup_reloads_and_a_broken_configuration_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(folder.path(), &[]);
    program.write(&BEFORE.replace("after: 1s", "after: 2s"));
    program.hangup();
    let line = program.says("config_reloaded");
    assert_eq!(
        (&line["by"], &line["changed"]),
        (&"SIGHUP".into(), &"routes./mcp.defer.after".into()),
        "{line}"
    );
    let settings = program.operator.json("/config").await;
    assert_eq!(settings["settings"]["routes"][0]["defer"]["after"], "2s");
    program.write("routes: []\nlisen: x\n");
    program.hangup();
    let line = program.says("config_refused");
    let error = line["error"].as_str().expect("text");
    assert!(error.contains("deferral.yaml:2:1: unknown key `lisen`"), "{line}");
    assert_eq!(program.operator.json("/config").await, settings);
}

#[tokio::test]
async fn a_reload_over_the_admin_listener_returns_its_outcome() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(folder.path(), &[]);
    assert_eq!(program.operator.with_token("nobody's token at all").post("/reload").await.status, 401);
    let same = program.operator.post("/reload").await;
    assert_eq!((same.status, &*same.body), (200, r#"{"changed":[],"needs_restart":[]}"#));
    program.write(&BEFORE.replace("after: 1s", "mode: always").replace("log: json", "log: text"));
    let told = program.operator.post("/reload").await.json();
    assert_eq!(told["needs_restart"], serde_json::json!(["log"]));
    let line = program.says("config_reloaded");
    assert_eq!(line["by"], "POST /reload");
    program.write("routes: [{ upstream: { url: 'ftp://x' } }]\n");
    let refused = program.operator.post("/reload").await;
    assert_eq!(refused.status, 422);
    assert!(refused.error().starts_with("the configuration was not changed: "), "{refused:?}");
    assert!(refused.error().contains("deferral.yaml:1:29: `ftp://x`"), "{refused:?}");
    std::fs::remove_file(&program.file).expect("it is there");
    assert_eq!(program.operator.post("/reload").await.status, 422);
}

#[tokio::test]
async fn files_that_are_watched_are_read_again_when_they_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(folder.path(), &["--watch"]);
    let token = folder.path().join("alice.token");
    std::fs::write(&token, "0123456789abcdef").expect("it can be written");
    program.write(&format!("{BEFORE}access: {{ tokens: [{{ name: alice, file: alice.token }}] }}\n"));
    let line = program.says("config_reloaded");
    assert_eq!((&line["by"], &line["changed"]), (&"--watch".into(), &"access.tokens".into()), "{line}");
    // Replaced whole, as careful writers do.
    let other = folder.path().join("other.token");
    std::fs::write(&other, "fedcba9876543210").expect("it can be written");
    std::fs::rename(&other, &token).expect("it can be moved");
    let line = program.says("config_reloaded");
    assert_eq!(line["changed"], token.display().to_string());
    program.write("listen: nowhere\n");
    assert_eq!(program.says("config_refused")["by"], "--watch");
}

#[test]
fn what_came_on_the_standard_input_cannot_be_read_again() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(["--config", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    std::io::Write::write_all(&mut stdin, BEFORE.as_bytes()).expect("it reads");
    drop(stdin);
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    assert!(lines.any(|line| line.expect("text").starts_with("admin: ")));
    let sent = Command::new("kill").args(["-HUP", &child.id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
    assert!(lines.any(|line| {
        let line = line.expect("text");
        line.contains("config_refused") && line.contains("start with a file to reload it")
    }));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}
