//! Every command that the pages show is run: against a proxy with a folder for its tasks, in front of the demo's server.

use super::{Block, all_blocks, root};
use crate::support::program::{ReadyLines, interrupt};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
};

/// Programs of others, and what runs them, or reads what they are told, in their place.
const ELSEWHERE: [(&str, &str); 17] = [
    ("./scripts/test", ".ci/run"),
    ("cargo", ".ci/run"),
    ("scripts/release", "scripts/test"),
    ("systemctl", "tests/deploy/service.py"),
    ("docker", "tests/deploy/image.py"),
    ("kubectl", "tests/deploy/manifests.py"),
    ("npx", "tests/deploy/packages.py"),
    ("uvx", "tests/deploy/packages.py"),
    ("apt", "tests/deploy/packages.py"),
    ("openssl", "tests/deploy/image.py"),
    // What people type into a client of theirs is a line of its own manual; nothing of it is ours.
    ("claude", "docs/clients.md"),
    ("codex", "docs/clients.md"),
    ("gemini", "docs/clients.md"),
    ("sh", "tests/it/docs/examples.rs"),
    ("node", "tests/it/docs/examples.rs"),
    ("python", "tests/interop/snippets.py"),
    ("UPDATE_EXPECT=1", ".ci/run"),
];

/// What runs while a command is tried.
struct CommandSetup {
    folder: tempfile::TempDir,
    demo: Child,
    proxy: Child,
    server: String,
    url: String,
    admin: String,
    token: String,
}

impl CommandSetup {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::copy(root().join("config/minimal.yaml"), folder.path().join("deferral.yaml"))
            .expect("it is there");
        fs::write(folder.path().join("operator.token"), "").expect("it can be written");
        let mut demo = program(folder.path(), &["demo", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let server = said(&mut demo, "A legacy server ");
        let server = server.rsplit(' ').next().expect("a URL").to_owned();
        let log = folder.path().join("deferral.log");
        let words = [
            "--upstream",
            &server,
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--after",
            "100ms",
            "--store",
            "disk:./tasks",
        ];
        let mut proxy = program(folder.path(), &words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let url = said(&mut proxy, "listening on ").trim_start_matches("listening on ").to_owned();
        let ready = written(proxy.stderr.take().expect("it is piped"), log);
        let admin = ready.url.trim_end_matches('/').to_owned();
        let token = ready.token();
        fs::write(folder.path().join("operator.token"), &token).expect("it can be written");
        Self { folder, demo, proxy, server, url, admin, token }
    }

    /// The same command with the addresses of this setup.
    fn told(&self, command: &str) -> Vec<String> {
        let mut command = command
            .replace("http://127.0.0.1:9000/mcp", &self.server)
            .replace("http://127.0.0.1:8808/mcp", &self.url);
        if command.contains("TASK") {
            command = command.replace("TASK", &self.task());
        }
        let mut words = words(&command);
        let asks_operators = ["tasks", "explain", "report", "ready"].contains(&words[0].as_str());
        if asks_operators && !command.contains(".log") {
            words.extend(["--admin".to_owned(), self.admin.clone()]);
        }
        words
    }

    /// A task at work, by its handle.
    fn task(&self) -> String {
        let mut caller = program(self.folder.path(), &["call", &self.url, "report", r#"{"seconds": 60}"#])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        // It says so once it is one.
        let stderr = caller.stderr.as_mut().expect("it is piped");
        BufReader::new(stderr)
            .lines()
            .map(|line| line.expect("text"))
            .find(|line| line.contains("task"))
            .expect("it is a task");
        let listed = self.run(&["tasks", "list", "--json", "--admin", &self.admin]);
        // Killed, not interrupted: that would cancel it.
        caller.kill().expect("it runs");
        caller.wait().expect("it ends");
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("it is JSON");
        listed["tasks"][0]["task"].as_str().expect("one is at work").to_owned()
    }

    fn run(&self, words: &[&str]) -> Output {
        program(self.folder.path(), words).env("DEFERRAL_ADMIN_TOKEN", &self.token).output().expect("it runs")
    }
}

impl Drop for CommandSetup {
    fn drop(&mut self) {
        for child in [&mut self.proxy, &mut self.demo] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a log begins with for operators; all else goes to this file.
fn written(log: impl Read + Send + 'static, file: PathBuf) -> ReadyLines {
    let (told, ready) = mpsc::channel();
    let mut file = File::create(file).expect("it can be made");
    thread::spawn(move || {
        let mut lines = BufReader::new(log).lines();
        let mut keep = |line: String| writeln!(file, "{line}").expect("it can be written");
        let _ = told.send(ReadyLines::read(&mut lines, &mut keep));
        lines.map_while(Result::ok).for_each(keep);
    });
    ready.recv().expect("it is said")
}

pub(super) fn program(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
    command.args(words).current_dir(folder).stdin(Stdio::null());
    command
}

/// The line that begins like this.
pub(super) fn said(child: &mut Child, beginning: &str) -> String {
    let lines = BufReader::new(child.stdout.as_mut().expect("it is piped")).lines();
    let mut lines = lines.map(|line| line.expect("text"));
    lines.find(|line| line.starts_with(beginning)).unwrap_or_else(|| panic!("it does not say {beginning:?}"))
}

/// As a shell takes a line apart that has nothing but words and quotes.
pub(super) fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for char in line.chars() {
        match (quote, char) {
            (Some(end), char) if char == end => quote = None,
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (_, char) => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words
}

/// The commands of a block, each in one line, without what a shell does with them.
pub(super) fn commands(block: &Block) -> Vec<String> {
    let joined = block.text.replace("\\\n", " ");
    let lines = joined.lines().filter_map(|line| line.strip_prefix("$ "));
    lines.map(|line| line.split("  #").next().expect("a part").trim().to_owned()).collect()
}

/// Runs a `curl` with a URL of ours, where there is one: a machine that builds this need not have it.
fn asks(world: &CommandSetup, command: &str) {
    let told = command
        .replace("http://127.0.0.1:8808/mcp", &world.url)
        .replace("http://127.0.0.1:8809", &world.admin)
        .replace("$TOKEN", &world.token);
    let words = words(&told);
    let asked =
        Command::new("curl").args(["--silent", "--fail", "--max-time", "20"]).args(&words[1..]).output();
    match asked {
        Ok(output) => assert!(output.status.success() && !output.stdout.is_empty(), "{command}: {output:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
    }
}

/// Serves until SIGTERM, on free ports.
fn serves(world: &CommandSetup, words: &[String]) {
    let (own, server): (&[String], &[String]) = match words.iter().position(|word| word == "--") {
        Some(at) => words.split_at(at),
        None => (words, &[]),
    };
    let mut own = own.to_vec();
    for flag in ["--listen", "--admin"] {
        let free = "127.0.0.1:0".to_owned();
        match own.iter().position(|word| word == flag) {
            Some(at) => own[at + 1] = free,
            None => own.extend([flag.to_owned(), free]),
        }
    }
    own.extend_from_slice(server);
    let all: Vec<_> = own.iter().map(String::as_str).collect();
    // A store of its own.
    let folder = tempfile::tempdir().expect("a folder");
    fs::copy(world.folder.path().join("deferral.yaml"), folder.path().join("deferral.yaml"))
        .expect("it is there");
    let mut child = program(folder.path(), &all)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    said(&mut child, "listening on ");
    interrupt(&child);
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{all:?}");
}

pub(super) fn is_ours(command: &str) -> Option<&str> {
    let command = command.strip_prefix("source <(").map_or(command, |inner| inner.trim_end_matches(')'));
    command.strip_prefix("deferral ").map(|rest| rest.split(" | ").next().expect("a part"))
}

#[test]
fn commands_of_others_are_known_and_run_elsewhere() {
    for block in all_blocks(&["console"]) {
        for command in commands(&block) {
            if is_ours(&command).is_some() || command.starts_with("curl ") {
                continue;
            }
            let name = command.split(' ').next().expect("a word");
            let known = ELSEWHERE.iter().find(|(program, _)| *program == name);
            let (_, by) = known
                .unwrap_or_else(|| panic!("{}:{}: `{command}` is run by no test", block.page, block.line));
            assert!(root().join(by).exists(), "{by} is not there");
        }
    }
}

#[test]
fn every_command_of_ours_runs() {
    let world = CommandSetup::start();
    let mut ran = 0;
    for block in all_blocks(&["console"]) {
        for command in commands(&block) {
            if command.starts_with("curl ") {
                asks(&world, &command);
            }
            let Some(ours) = is_ours(&command) else { continue };
            ran += 1;
            let told = world.told(ours);
            if told[0].starts_with("--") {
                serves(&world, &told);
                continue;
            }
            if told[0] == "demo" {
                // It serves the others.
                continue;
            }
            let all: Vec<_> = told.iter().map(String::as_str).collect();
            let output = world.run(&all);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}:{}: `{command}`: {said}", block.page, block.line);
        }
    }
    assert!(ran > 20, "there are {ran}");
}
