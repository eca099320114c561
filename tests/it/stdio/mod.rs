//! The proxy in front of real processes: how they are served and how they end.
//!
//! Submodules: processes that clients share, misbehaving programs, a reload that changes the command, random kills, and what
//! the admin listener and traces show of processes.
//!
//! Every process below a proxy is known by a variable of its environment, which it cannot lose.

mod admin_processes;
mod misbehaving_programs;
mod random_kills;
mod reload;
mod shared_process;
#[cfg(feature = "otlp")]
mod traces;

use crate::support::{
    modern_client::{Client, soon},
    program::where_it_listens,
};
use serde_json::{Value, json};
use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::sleep;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/stdio/server.py");
/// The variable by which processes are known.
const MARK: &str = "TREE_OF_A_TEST";
/// What a proxy is configured by.
const FILE: &str = "deferral.yaml";

/// A proxy in front of a command. Nothing is left of it when it is dropped.
struct Proxy {
    child: Child,
    addr: SocketAddr,
    mark: String,
    folder: TempDir,
}

impl Proxy {
    /// In front of the server that is nasty in this way.
    fn start(nasty: &str) -> Self {
        Self::of(&[], &["python3", SERVER, nasty])
    }

    fn of(flags: &[&str], command: &[&str]) -> Self {
        Self::with(&[flags, &["--listen", "127.0.0.1:0", "--admin", "off", "--"], command].concat())
    }

    /// Of a file in which this is the upstream.
    fn configured(upstream: &str) -> Self {
        Self::written("", upstream)
    }

    /// The same with this before the routes.
    fn written(top: &str, upstream: &str) -> Self {
        Self::of_file(&text("1s", top, upstream))
    }

    /// Of a file, which can be read again.
    fn of_file(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        fs::write(&path, text).expect("it can be written");
        Self::within(folder, &["--config", path.to_str().expect("a plain path")])
    }

    fn with(words: &[&str]) -> Self {
        Self::within(tempfile::tempdir().expect("a folder"), words)
    }

    fn within(folder: TempDir, words: &[&str]) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let mark = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let log = fs::File::create(folder.path().join("log")).expect("it can be written");
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args(words)
            .env(MARK, &mark)
            .env("SECRET", "of the proxy")
            .env("DEFERRAL_ADMIN_TOKEN", "of the proxy")
            .env("DEFERRAL_STORE_KEY", "of the proxy")
            .env_remove("DEFERRAL_LOG")
            // What it does not need any more is given back at once: its memory is looked at.
            .env("MIMALLOC_PURGE_DELAY", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let addr = where_it_listens(&mut child);
        Self { child, addr, mark, folder }
    }

    /// Has this read in place of what its file had.
    async fn goes_on_with(&self, text: &str) {
        const READ: &str = "event=config_reloaded";
        let before = self.logged(READ);
        fs::write(self.folder.path().join(FILE), text).expect("it can be written");
        self.signal("-HUP");
        self.has_logged_more(READ, before).await;
    }

    fn client(&self) -> Client {
        Client::new(self.addr)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("it is text")
    }

    /// How often its log says so.
    fn logged(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    async fn has_logged(&self, text: &str) {
        self.has_logged_more(text, 0).await;
    }

    /// Waits until its log says so more often than before.
    async fn has_logged_more(&self, text: &str, before: usize) {
        let reached = async {
            while self.logged(text) <= before {
                sleep(Duration::from_millis(10)).await;
            }
        };
        soon("its log says so", reached).await;
    }

    /// What it has started and has not ended, by their ids.
    fn below(&self) -> Vec<u32> {
        let own = self.child.id();
        marked(&self.mark).into_iter().filter(|pid| *pid != own).collect()
    }

    fn signal(&self, signal: &str) {
        send(signal, self.child.id());
    }

    /// Waits until there are so many processes below it.
    async fn has_below(&self, wanted: impl Fn(usize) -> bool) {
        let reached = async {
            while !wanted(self.below().len()) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        soon("what it has started is there, or gone", reached).await;
    }

    /// Kills it, and waits until nothing is left.
    async fn dies(mut self) {
        self.signal("-KILL");
        self.child.wait().expect("it ends");
        self.leaves_nothing().await;
    }

    /// Stops it, and waits until nothing is left.
    async fn stops(mut self) {
        self.signal("-TERM");
        let ended = tokio::task::spawn_blocking(move || (self.child.wait().expect("it ends"), self));
        let (status, proxy) = soon("it stops", ended).await.expect("it is waited for");
        assert!(status.success(), "{status}: {}", proxy.log());
        assert_eq!(proxy.below(), [0; 0], "{}", proxy.log());
    }

    async fn leaves_nothing(&self) {
        self.has_below(|left| left == 0).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A test that has failed leaves nothing either.
        self.below().into_iter().for_each(|pid| send("-KILL", pid));
    }
}

/// A file with this before the routes, in which this is the upstream.
fn text(drain: &str, top: &str, upstream: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\nadmin: off\ndrain: {drain}\n{top}routes: [{{ defer: {{ after: 300ms }}, upstream: {upstream} }}]\n"
    )
}

/// So much of it, in kilobytes, as `/proc` counts it.
fn memory(pid: u32, what: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("it has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn send(signal: &str, pid: u32) {
    let sent = Command::new("kill").args([signal, &pid.to_string()]).stderr(Stdio::null()).status();
    sent.expect("kill is there");
}

fn is_supervisor(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with(b"deferral\0supervise\0"))
}

/// The processes that have this mark, those that have ended and are not reaped left out.
fn marked(mark: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("there is one").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| has_variable(*pid, MARK, mark)).collect()
}

/// Whether this is in the environment of a process that runs.
fn has_variable(pid: u32, name: &str, value: &str) -> bool {
    let environment = fs::read(Path::new("/proc").join(pid.to_string()).join("environ"));
    environment.is_ok_and(|all| {
        let all = [b"\0", &all[..]].concat();
        memchr::memmem::find(&all, format!("\0{name}={value}\0").as_bytes()).is_some()
    })
}

fn arguments(tool: &str, arguments: Value) -> Value {
    json!({ "name": tool, "arguments": arguments })
}

#[tokio::test]
async fn a_server_that_is_a_process_is_served_as_any_other() {
    let proxy = Proxy::of(&["--after", "300ms"], &["python3", SERVER]);
    let client = proxy.client();
    assert_eq!(client.ask("tools/list", json!({})).await.result()["tools"][0]["name"], "echo");
    assert_eq!(client.call("echo").await.answer().await.text(), "x");
    assert_eq!(client.call("fail").await.answer().await.result()["isError"], true);
    assert_eq!(client.call("nobody").await.answer().await.error()["code"], -32602);
    let large = client.ask("tools/call", arguments("echo", json!({ "size": 5 << 20 }))).await;
    assert_eq!(large.text().len(), 5 << 20);
    let told = json!({ "name": "progress", "_meta": { "progressToken": "p" } });
    let messages = client.ask("tools/call", told).await.messages();
    assert_eq!(messages.len(), 4, "{messages:#?}");
    assert_eq!(messages[2]["params"], json!({ "progressToken": "p", "progress": 2, "total": 3 }));

    let slow = client.with_tasks();
    let task = slow.ask("tools/call", arguments("sleep", json!({ "seconds": 0.6 }))).await.task();
    assert_eq!(slow.ended(&task).await["result"]["content"][0]["text"], "slept");

    // It is asked on the call: a round, and the same call again.
    let asked = client.declaring(json!({ "elicitation": {} }));
    let round = asked.call("ask").await.answer().await.result();
    let key =
        round["inputRequests"].as_object().and_then(|all| all.keys().next()).expect("a question").clone();
    let again = json!({
        "name": "ask", "arguments": {}, "requestState": round["requestState"],
        "inputResponses": { key: { "action": "accept", "content": { "name": "Ada" } } },
    });
    let answer: Value = serde_json::from_str(&asked.ask("tools/call", again).await.text()).expect("JSON");
    assert_eq!(answer, json!({ "action": "accept", "content": { "name": "Ada" } }));
    // Each set of capabilities has its process, under a supervisor of its own.
    assert_eq!(proxy.below().len(), 4);
    proxy.stops().await;
}

#[tokio::test]
async fn a_server_that_dies_fails_its_calls_with_how_it_ended_and_is_started_again() {
    let dies = async {
        let proxy = Proxy::start("plain");
        let client = proxy.client();
        let lost = client.ask("tools/call", arguments("die", json!({ "code": 3 }))).await;
        assert_eq!(lost.refusal(), (200, -31002));
        let said = lost.error()["message"].as_str().expect("a text").to_owned();
        assert!(said.contains("exit status: 3") && !said.contains("the last words"), "{said}");
        proxy.leaves_nothing().await;
        assert_eq!(client.call("echo").await.answer().await.text(), "x");
        let log = proxy.log();
        assert!(log.contains("event=ended_unexpectedly route=/mcp how=\"exit status: 3\""), "{log}");
        assert!(log.contains("said=\"the last words\""), "{log}");
        proxy.stops().await;
    };
    let exits_while_it_is_asked = async {
        let proxy = Proxy::start("plain");
        let asked = proxy.client().declaring(json!({ "elicitation": {} }));
        let round = asked.call("ask").await.answer().await.result();
        let below = proxy.below();
        below.iter().for_each(|pid| send("-KILL", *pid));
        proxy.leaves_nothing().await;
        let key = round["inputRequests"].as_object().and_then(|all| all.keys().next()).expect("a question");
        let again = json!({
            "name": "ask", "arguments": {}, "requestState": round["requestState"],
            "inputResponses": { key: { "action": "decline" } },
        });
        assert_eq!(asked.ask("tools/call", again).await.error()["code"], -31002);
        proxy.stops().await;
    };
    let ends_otherwise = async |tool: &'static str, how: &str| {
        let proxy = Proxy::start("plain");
        let lost = proxy.client().call(tool).await.answer().await;
        assert_eq!(lost.refusal(), (200, -31002));
        assert!(lost.error()["message"].to_string().contains(how), "{lost:?}");
        proxy.leaves_nothing().await;
        proxy.stops().await;
    };
    tokio::join!(
        dies,
        exits_while_it_is_asked,
        ends_otherwise("half", "in the middle of a message"),
        ends_otherwise("close", "it closed its standard output"),
    );
}

#[tokio::test]
async fn whatever_a_process_has_started_ends_with_the_proxy_however_that_ends() {
    let ends = async |nasty: &str, is_killed: bool| {
        let proxy = Proxy::of(&[], &["sh", "-c", "python3 \"$0\" \"$1\"; true", SERVER, nasty]);
        assert_eq!(proxy.client().call("echo").await.answer().await.text(), "x");
        // The supervisor, two shells, a sleep, and python at least.
        proxy.has_below(|count| count >= 5).await;
        match is_killed {
            true => proxy.dies().await,
            false => proxy.stops().await,
        }
    };
    tokio::join!(
        ends("helper", false),
        ends("helper", true),
        ends("setsid", false),
        ends("setsid", true),
        ends("both", false),
        ends("both", true),
    );
}

#[tokio::test]
async fn orphans_of_the_server_are_killed() {
    let proxy = Proxy::start("both");
    let lost = proxy.client().ask("tools/call", arguments("die", json!({ "code": 0 }))).await;
    assert_eq!(lost.refusal(), (200, -31002));
    proxy.leaves_nothing().await;
    proxy.stops().await;
}

#[tokio::test]
async fn a_killed_supervisor_ends_its_command() {
    let proxy = Proxy::start("plain");
    let client = proxy.client();
    let waiting = client.send("tools/call", arguments("sleep", json!({ "seconds": 1000 }))).await;
    let waiting = tokio::spawn(waiting.answer());
    proxy.has_logged("it sleeps").await;
    let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let supervisor =
        proxy.below().into_iter().find(|pid| name(pid).contains("supervise")).expect("there is one");
    send("-KILL", supervisor);
    assert_eq!(waiting.await.expect("it is answered").refusal(), (200, -31002));
    proxy.leaves_nothing().await;
    assert_eq!(client.call("echo").await.answer().await.text(), "x");
    proxy.stops().await;
}

#[tokio::test]
async fn a_supervisor_killed_after_its_command_ends_the_orphans() {
    let proxy = Proxy::start("helper");
    let lost = proxy.client().ask("tools/call", arguments("die", json!({ "code": 0 }))).await;
    assert_eq!(lost.refusal(), (200, -31002));
    // What it has left behind has a second from here on.
    let supervisor = proxy.below().into_iter().find(|pid| is_supervisor(*pid));
    supervisor.into_iter().for_each(|pid| send("-KILL", pid));
    proxy.leaves_nothing().await;
    proxy.stops().await;
}

#[tokio::test]
async fn a_server_that_does_not_start_is_reported_and_leaves_no_process() {
    let proxy = Proxy::start("exits");
    let error = proxy.client().call("echo").await.answer().await.error();
    assert_eq!(error["code"], -31001);
    assert!(error["message"].to_string().contains("exit status: 7"), "{error}");
    proxy.leaves_nothing().await;
    proxy.stops().await;

    let proxy =
        Proxy::configured(&format!("{{ command: [python3, '{SERVER}', hangs], start_timeout: 200ms }}"));
    let error = proxy.client().call("echo").await.answer().await.error();
    assert!(error["message"].to_string().contains("within 200ms (upstream.start_timeout)"), "{error}");
    proxy.stops().await;
}

#[tokio::test]
async fn a_server_that_floods_stderr_is_served_in_bounded_memory() {
    let proxy = Proxy::start("floods");
    assert_eq!(proxy.client().call("echo").await.answer().await.text(), "x");
    let peak = memory(proxy.child.id(), "VmHWM:");
    assert!(peak < 45_000, "{peak} kB");
    assert!(proxy.log().len() < 20_000, "{}", proxy.log().len());
    proxy.stops().await;
}

#[tokio::test]
async fn a_command_gets_the_environment_and_the_folder_that_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let cwd = folder.path().canonicalize().expect("it is there");
    let environment = async |proxy: &Proxy| -> Value {
        let said = proxy.client().call("environment").await.answer().await.text();
        serde_json::from_str(&said).expect("JSON")
    };
    let written = format!(
        "{{ command: [python3, '{SERVER}'], env: {{ A: b }}, inherit_env: [{MARK}], cwd: '{}' }}",
        cwd.display()
    );
    let proxy = Proxy::configured(&written);
    let had = environment(&proxy).await;
    assert_eq!((&had["A"], &had["SECRET"], &had["cwd"]), (&json!("b"), &Value::Null, &json!(cwd)));
    assert_eq!(had["HOME"], json!(std::env::var("HOME").ok()));
    proxy.stops().await;
    let proxy = Proxy::start("plain");
    let had = environment(&proxy).await;
    assert_eq!(had["SECRET"], "of the proxy");
    let own: Vec<_> =
        had.as_object().expect("variables").keys().filter(|name| name.starts_with("DEFERRAL_")).collect();
    assert!(own.is_empty(), "no process inherits what the proxy is configured by: {own:?}");
    proxy.stops().await;
}

#[tokio::test]
async fn a_server_with_start_eager_starts_with_the_proxy() {
    let command = format!("[python3, '{SERVER}']");
    let proxy = Proxy::configured(&format!("{{ command: {command}, inherit_env: all, start: eager }}"));
    proxy.has_below(|count| count == 2).await;
    assert_eq!(proxy.client().call("echo").await.answer().await.text(), "x");
    assert_eq!(proxy.below().len(), 2);
    proxy.stops().await;
}

#[tokio::test]
async fn a_call_that_waits_for_its_process_to_start_becomes_a_task() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = folder.path().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().expect("it runs").success());
    // The program neither reads nor writes before the gate is opened.
    let script = format!("read _ < {}; exec python3 {SERVER}", gate.display());
    let proxy = Proxy::of(&["--after", "50ms"], &["sh", "-c", &script]);
    let client = proxy.client().with_tasks();
    let task = client.call("echo").await.answer().await.task();
    assert_eq!(client.task(&task).await["status"], "working");
    fs::write(&gate, "go\n").expect("somebody waits at the gate");
    let ended = client.ended(&task).await;
    assert_eq!(ended["result"]["content"][0]["text"], "x", "{ended}");
    proxy.stops().await;
}

#[tokio::test]
async fn calls_may_end_within_the_drain_and_their_process_ends_after_them() {
    let proxy = Proxy::of(&[], &["python3", SERVER]);
    let client = proxy.client();
    assert_eq!(client.call("echo").await.answer().await.text(), "x");
    let waiting = client.send("tools/call", arguments("sleep", json!({ "seconds": 0.5 }))).await;
    let waiting = tokio::spawn(waiting.answer());
    proxy.has_logged("it sleeps").await;
    proxy.stops().await;
    assert_eq!(waiting.await.expect("it is answered").text(), "slept");
}
