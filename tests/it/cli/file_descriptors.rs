//! A proxy with a low limit of file descriptors.

use crate::support::{
    legacy_server::{LegacyServer, Options, PATIENCE},
    modern_client::{Answer, Client, soon},
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::{net::SocketAddr, process::Stdio};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, ChildStderr, Command},
};

/// The program at work. Dropping it kills it.
struct Program {
    child: Child,
    /// What it said of itself when it had started.
    started: Value,
    _log: tokio::task::JoinHandle<()>,
}

impl Program {
    /// In front of a server, with a soft and a hard limit of descriptors.
    async fn limited(url: &str, [soft, hard]: [usize; 2], more: &[&str]) -> Self {
        let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
        let mut child = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_deferral"), "--upstream", url])
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log", "json"])
            .args(more)
            .env_remove("DEFERRAL_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped"));
        let started = soon("it says that it has started", started(&mut said)).await;
        let log = tokio::spawn(async move {
            let _ = tokio::io::copy(&mut said, &mut tokio::io::sink()).await;
        });
        Self { child, started, _log: log }
    }

    fn address(&self, field: &str) -> SocketAddr {
        let text = self.started[field].as_str().unwrap_or_default();
        text.trim_start_matches("http://").parse().unwrap_or_else(|_| panic!("{field}: {:#}", self.started))
    }

    fn client(&self) -> Client {
        Client::new(self.address("listen"))
    }

    /// What the operator's address says to a request for this path.
    async fn admin(&self, path: &str) -> String {
        let mut socket = TcpStream::connect(self.address("admin")).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        soon("the operator is answered", socket.read_to_string(&mut answer)).await.expect("it answers");
        answer
    }

    fn number(&self, field: &str) -> u64 {
        self.started[field].as_u64().unwrap_or_else(|| panic!("{field}: {:#}", self.started))
    }
}

async fn started(said: &mut BufReader<ChildStderr>) -> Value {
    let mut line = String::new();
    while said.read_line(&mut line).await.expect("it is text") > 0 {
        let happening: Value = serde_json::from_str(&line).unwrap_or_default();
        if happening["event"] == "started" {
            return happening;
        }
        line.clear();
    }
    panic!("it ended without having started")
}

fn server() -> Options {
    Options { tools: Some(json!([])), ..Options::default() }
}

#[tokio::test]
async fn the_descriptor_limit_is_raised_and_derived_limits_are_logged() {
    let server = LegacyServer::start(server()).await;
    let program = Program::limited(&server.url(), [128, 512], &[]).await;
    assert_eq!((program.number("descriptors"), program.number("descriptors_before")), (512, 128));
    let (connections, upstream) = (program.number("connections"), program.number("upstream_connections"));
    assert!(
        connections >= 100 && upstream >= 2 * connections && connections + upstream < 512,
        "{:#}",
        program.started
    );
    if cfg!(target_os = "linux") {
        let pid = program.child.id().expect("it runs");
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
        let open_files =
            limits.lines().find(|line| line.starts_with("Max open files")).expect("there is one");
        assert_eq!(open_files.split_whitespace().nth(3), Some("512"), "{open_files}");
    }
}

#[tokio::test]
async fn the_start_is_summed_up_in_one_line() {
    let server = LegacyServer::start(server()).await;
    // What a URL holds that is not for everybody's eyes is not for the log.
    let url = format!("{}?key=secret", server.url());
    let more = ["--mode", "observe", "--after", "2s"];
    let program = Program::limited(&url, [256, 256], &more).await;
    assert!(!program.started.to_string().contains("secret"), "{:#}", program.started);
    let routes = program.started["routes"].as_str().expect("a text");
    assert_eq!(routes, format!("/mcp -> {} (observe after 2s)", server.url()));
    assert_eq!((&program.started["store"], &program.started["level"]), (&json!("memory"), &json!("INFO")));
    assert_eq!(program.started.get("descriptors_before"), None, "nothing could be raised");
}

#[tokio::test]
async fn more_callers_than_there_are_descriptors_are_all_served() {
    let server = LegacyServer::start(server()).await;
    let program = Program::limited(&server.url(), [256, 256], &[]).await;
    let callers = stream::iter(0..300).map(|caller| {
        let client = program.client().bearing(&format!("caller-{caller}"));
        async move { client.ask("tools/list", json!({})).await }
    });
    let answers: Vec<_> = callers.buffer_unordered(16).collect().await;
    for answer in answers {
        assert_eq!((answer.status.as_u16(), &answer.result()["tools"]), (200, &json!([])));
    }
    assert!(program.admin("/ready").await.starts_with("HTTP/1.1 200 "));
}

/// Calls, and comes back where its connection was closed: where there is no room, a client that has said nothing for a
/// second gives way, and on a busy machine that is before it gets to speak. Each waits for all the others.
async fn patient(client: &Client) -> Answer {
    loop {
        let waiting = client.call("slow").await;
        if let Some(answer) = waiting.answer_if_any(4 * PATIENCE).await {
            return answer;
        }
    }
}

#[tokio::test]
async fn calls_that_wait_keep_out_neither_each_other_for_ever_nor_the_operator() {
    let server = LegacyServer::start(server()).await;
    let program = Program::limited(&server.url(), [256, 256], &[]).await;
    let callers = 0..260;
    let waiting: Vec<_> = callers
        .map(|caller| {
            let client = program.client().bearing(&format!("caller-{caller}"));
            tokio::spawn(async move { patient(&client).await })
        })
        .collect();
    // As many at a time as the proxy lets in.
    let mut held = Vec::new();
    while (held.len() as u64) < program.number("connections") {
        held.push(server.call().await);
    }
    assert!(program.admin("/live").await.starts_with("HTTP/1.1 200 "));
    held.into_iter().for_each(|call| call.says("done"));
    let served = async {
        loop {
            server.call().await.says("done");
        }
    };
    let answered = async {
        for answer in waiting {
            assert_eq!(answer.await.expect("it does not panic").text(), "done");
        }
    };
    tokio::select! {
        () = answered => {}
        () = served => unreachable!("it goes on"),
    }
    assert_eq!(server.messages("tools/call"), 260, "no call that was let in was turned away again");
}
