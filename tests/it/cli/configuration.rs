//! A configuration on standard input, and environment variables in it.

use super::text;
use crate::support::{
    connect_proxy::ConnectProxy,
    legacy_server::{LegacyServer, Options},
    modern_client::Client,
    program::{interrupt, where_it_listens},
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

const KEY: &str = "hunter2-hunter2";

/// The program with these words, to which this file is typed.
fn typed(words: &[&str], file: &str) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(words)
        .envs([("DEFERRAL_TEST_NAME", "tools"), ("DEFERRAL_TEST_KEY", KEY)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("it is piped").write_all(file.as_bytes()).expect("it is read");
    child
}

/// What operators are shown at this address and path, up to its end or this text.
fn shown_at(address: &str, path: &str, until: &str) -> String {
    let mut socket = TcpStream::connect(address).expect("it listens");
    write!(socket, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")
        .expect("it is read");
    let (mut answer, mut some) = (String::new(), [0; 4096]);
    loop {
        let length = socket.read(&mut some).expect("it is read");
        answer.push_str(std::str::from_utf8(&some[..length]).expect("it is text"));
        if length == 0 || answer.contains(until) {
            break;
        }
    }
    let (_, body) = answer.split_once("\r\n\r\n").expect("there is a body");
    body.to_owned()
}

#[test]
fn values_of_variables_are_used_and_never_printed() {
    let file = "
listen: 127.0.0.1:${DEFERRAL_TEST_PORT:-0}
admin: 127.0.0.1:0
routes:
  - path: /${DEFERRAL_TEST_NAME}
    upstream:
      url: http://127.0.0.1:1/mcp/${DEFERRAL_TEST_KEY}?key=${DEFERRAL_TEST_KEY}
      headers: { Authorization: Bearer literal-and-doubted }
    tasks: { unsolicited: [{ header: X-Key, value: '${DEFERRAL_TEST_KEY}' }] }
";
    let checked = typed(&["check", "-"], file).wait_with_output().expect("it ends");
    assert_eq!(text(&checked.stdout), "<stdin>: ok (1 route)\n", "{}", text(&checked.stderr));

    let mut child = typed(&["--config", "-", "--after", "9s"], file);
    let mut url = String::new();
    BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut url).expect("a line");
    assert!(url.starts_with("listening on ") && url.ends_with("/tools\n"), "{url}");
    let mut said = BufReader::new(child.stderr.take().expect("it is piped"));
    let (mut log, mut line) = (String::new(), String::new());
    while !line.starts_with("admin: ") {
        line.clear();
        assert_ne!(said.read_line(&mut line).expect("it is text"), 0, "{log}");
        log.push_str(&line);
    }
    let operators = line.trim().trim_start_matches("admin: http://").trim_end_matches('/');
    let config = shown_at(operators, "/config", "never");
    let config: serde_json::Value = serde_json::from_str(&config).expect("it is JSON");
    let route = &config["settings"]["routes"][0];
    assert_eq!(route["path"], "/${DEFERRAL_TEST_NAME}", "{config}");
    assert_eq!(route["defer"]["after"], "9s");
    assert!(!config.to_string().contains(KEY), "{config}");
    const SHOWN: &str = "http://127.0.0.1:1/mcp/${DEFERRAL_TEST_KEY}?key=${DEFERRAL_TEST_KEY}";
    for (path, until) in [("/routes", "never"), ("/events", "\n\n\r\n"), ("/metrics", "never")] {
        let shown = shown_at(operators, path, until);
        assert!(!shown.contains(KEY), "{path}: {shown}");
        assert!(path == "/metrics" || shown.contains(SHOWN), "{path}: {shown}");
    }
    interrupt(&child);
    said.read_to_string(&mut log).expect("it is text");
    assert!(!log.contains(KEY) && log.contains(SHOWN), "{log}");
    assert!(log.contains("event=config_warning") && !log.contains("literal-and-doubted"), "{log}");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn check_points_to_the_place_of_a_variable_and_does_not_show_it() {
    let file = "
listen: 127.0.0.1:${DEFERRAL_TEST_UNSET}
drain: ${DEFERRAL_TEST_KEY}
";
    let checked = typed(&["check", "-"], file).wait_with_output().expect("it ends");
    assert_eq!(checked.status.code(), Some(2));
    let said: Vec<_> = text(&checked.stderr).lines().collect();
    assert!(said[0].starts_with("<stdin>:2:9: the variable `DEFERRAL_TEST_UNSET` is not set; "), "{said:?}");
    assert!(said[1].starts_with("<stdin>:3:8: `${DEFERRAL_TEST_KEY}` is not a duration; "), "{said:?}");
    assert!(said[2].starts_with("<stdin>: no route; add one"), "{said:?}");
    assert_eq!(said[3..], ["error: 3 problems in the configuration"]);
    assert!(!text(&checked.stderr).contains(KEY), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_are_reached_by_the_proxy_that_the_environment_names() {
    let server =
        LegacyServer::start(Options { tools: Some(serde_json::json!([])), ..Options::default() }).await;
    let proxy = ConnectProxy::start(Ok(server.addr())).await;
    let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(["--listen", "127.0.0.1:0", "--admin", "off", "--upstream", "http://tools.invalid/mcp"])
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .env("HTTP_PROXY", format!("http://{}", proxy.addr))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let waiting = Client::new(where_it_listens(&mut child)).call("t").await;
    server.call().await.says("through the proxy");
    assert_eq!(waiting.answer().await.text(), "through the proxy");
    let asked = proxy.asked();
    assert!(!asked.is_empty(), "it was asked");
    let absolute = "POST http://tools.invalid/mcp HTTP/1.1\r\n";
    assert!(asked.iter().all(|head| head.starts_with(absolute)), "{asked:?}");
    interrupt(&child);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_learns_where_a_request_came_from_where_that_is_configured() {
    for (forwarded, expected) in [(false, None), (true, Some("for=127.0.0.1;proto=http;host="))] {
        let server =
            LegacyServer::start(Options { tools: Some(serde_json::json!([])), ..Options::default() }).await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("deferral.yaml");
        let url = server.url();
        let yaml = format!(
            "listen: 127.0.0.1:0\nadmin: off\nroutes:\n  - upstream: {{ url: \"{url}\", forwarded: {forwarded} }}\n"
        );
        std::fs::write(&file, yaml).expect("it is written");
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args(["--config".as_ref(), file.as_os_str()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let addr = where_it_listens(&mut child);
        let waiting = Client::new(addr).call("t").await;
        let call = server.call().await;
        let header = call.seen.header("forwarded").map(str::to_owned);
        let expected = expected.map(|expected| format!("{expected}\"{addr}\""));
        assert_eq!(header, expected);
        call.says("done");
        assert_eq!(waiting.answer().await.text(), "done");
        interrupt(&child);
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
    }
}
