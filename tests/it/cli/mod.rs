//! Commands: the program itself, its options and output.

mod call;
mod call_legacy;
mod check;
mod completions;
mod configuration;
mod exit_codes;
mod explain;
mod file_descriptors;
mod report;
mod serve;
mod service_manager;
mod start_environment;
mod threads;
mod untrusted_servers;
mod usage_errors;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdout, Command, Output, Stdio},
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

/// `deferral demo` at work, with everything it has said.
struct Demo {
    child: Child,
    said: BufReader<ChildStdout>,
    /// Of the proxy.
    url: String,
    /// Of the server behind it.
    server: String,
}

impl Demo {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args(["demo", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let said = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut demo = Self { child, said, url: String::new(), server: String::new() };
        let last = |line: String| line.split_whitespace().last().expect("a URL").to_owned();
        demo.server = last(demo.until("A legacy server").pop().expect("a line"));
        demo.url = last(demo.until("The proxy in front of it:").pop().expect("a line"));
        demo
    }

    /// The lines up to one that has this in it.
    fn until(&mut self, part: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.said.read_line(&mut line).expect("it can be read");
            assert!(read > 0, "it ended before it said {part:?}: {lines:#?}");
            let found = line.contains(part);
            lines.push(line);
            if found {
                return lines;
            }
        }
    }

    fn call(&self, words: &[&str]) -> Output {
        deferral(&[&["call", &self.url], words].concat())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does what `curl` would do with the words of a command, taken apart by a real shell.
fn curl(command: &str) -> serde_json::Value {
    let script = format!("curl() {{ printf '%s\\0' \"$@\"; }}\n{command}");
    let words = Command::new("sh").args(["-c", &script]).output().expect("a shell is there").stdout;
    let words: Vec<_> = text(&words).split_terminator('\0').collect();
    let mut request = http::Request::post(words[1]);
    let mut body = String::new();
    for pair in words[2..].chunks(2) {
        match pair {
            ["-H", header] => {
                let (name, value) = header.split_once(": ").expect("a header");
                request = request.header(name, value);
            }
            ["-d", data] => body = (*data).to_owned(),
            other => panic!("{other:?}"),
        }
    }
    let request = request.body(Full::new(Bytes::from(body))).expect("a request");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let response = client.request(request).await.expect("an answer");
        assert_eq!(response.headers()["content-type"], "application/json");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        serde_json::from_slice(&body).expect("JSON")
    })
}

impl Demo {
    /// A call whose standard input is this text.
    fn call_typing(&self, words: &[&str], typed: &str) -> Output {
        let mut call = self.begin(words);
        // It may end before it has read everything.
        let _ = call.stdin.take().expect("it is piped").write_all(typed.as_bytes());
        call.wait_with_output().expect("it ends")
    }

    fn begin(&self, words: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args([&["call", &self.url], words].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    }
}

const BOOKED: &str = "A table for 4 on 2026-08-01, on the terrace is yours.\n";

impl Demo {
    /// What `tasks/get` says of a task.
    fn status(&self, task: &str) -> String {
        let get = format!(
            r#"curl -s {} -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tasks/get' -H 'Mcp-Name: {task}' -d '{{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{{"taskId":"{task}","_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{"extensions":{{"io.modelcontextprotocol/tasks":{{}}}}}}}}}}}}'"#,
            self.url
        );
        curl(&get)["result"]["status"].as_str().expect("a status").to_owned()
    }
}

/// A proxy with a configuration of its own in front of some server.
struct Serving {
    child: Child,
    url: String,
}

impl Serving {
    fn start(config: &Path, key: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args(["--config", config.to_str().expect("a plain path")])
            .env("STATE_KEY", key)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut said).expect("a line");
        let url = said.trim().strip_prefix("listening on ").expect("where it listens").to_owned();
        Self { child, url }
    }

    /// `tools/call` of `book_table` with a state, or without one.
    fn book(&self, state: Option<&str>) -> serde_json::Value {
        let state = state.map(|state| format!(r#","requestState":"{state}""#)).unwrap_or_default();
        curl(&format!(
            r#"curl -s {} -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tools/call' -H 'Mcp-Name: book_table' -d '{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"book_table"{state},"_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{"elicitation":{{}}}}}}}}}}'"#,
            self.url
        ))
    }
}

impl Serving {
    /// Whether the connection ends with what is answered on it.
    fn lets_go(&self) -> bool {
        let answer = http_get(&self.url);
        answer.to_ascii_lowercase().contains("\r\nconnection: close\r\n")
    }
}

/// The head of the answer to a GET that asks for nothing.
fn http_get(url: &str) -> String {
    let (address, path) = url.strip_prefix("http://").and_then(|url| url.split_once('/')).expect("a URL");
    let mut socket = TcpStream::connect(address).expect("it listens");
    write!(socket, "GET /{path} HTTP/1.1\r\nhost: {address}\r\n\r\n").expect("it is read");
    let mut head = String::new();
    let mut lines = BufReader::new(socket);
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(lines.read_line(&mut head).expect("a head"), 0, "{head}");
    }
    head
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends the process a signal.
fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill is there");
    assert!(sent.success());
}
