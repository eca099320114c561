//! The admin listener: tokens, hosts, origins, TLS.

use super::Operator;
use crate::{
    proxy::proxy_and_server::start,
    support::{
        modern_client::soon,
        program::{ReadyLines, interrupt},
    },
};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
const NOWHERE: &str = "http://127.0.0.1:1/mcp";
/// What `config.key` holds.
const TOKEN: &str = include_str!("../config.key");

#[tokio::test]
async fn an_address_that_others_reach_is_read_over_tls_with_the_token_and_probed_without() {
    let admin = format!(
        "admin: {{ listen: 0.0.0.0:0, token: {{ file: '{FILES}/config.key' }}, tls: {{ cert: '{FILES}/front/cert.pem', key: '{FILES}/front/key.pem' }} }}"
    );
    let proxy = start(NOWHERE, &[], &[&admin]);
    let bound = proxy.admin.as_ref().expect("there is one");
    assert_eq!(bound.ready_lines(false), [format!("admin: https://0.0.0.0:{}/", bound.address.port())]);
    let operator = Operator::at(([127, 0, 0, 1], bound.address.port()).into()).over_tls();
    for path in ["/live", "/ready"] {
        assert_eq!(operator.get(path).await.status, 200, "{path}");
    }
    for path in ["/metrics", "/tools", "/limits", "/processes"] {
        let refused = operator.get(path).await;
        assert!(refused.status == 401 && refused.head.contains("www-authenticate: Bearer"), "{refused:?}");
        assert!(refused.error().contains("admin.token"), "{refused:?}");
        let refused = operator.with_token("0123456789abcdef").get(path).await;
        assert!(refused.status == 401 && refused.error().starts_with("this is not the admin token"));
        assert_eq!(operator.with_token(TOKEN.trim()).get(path).await.status, 200, "{path}");
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_page_of_another_site_and_a_host_of_another_name_are_refused_with_the_token_too() {
    let proxy = start(NOWHERE, &[], &["admin: 127.0.0.1:0"]);
    let operator = Operator::of(proxy.admin.as_ref().expect("there is one"));
    for (headers, why) in [
        ("origin: https://evil.example.com\r\n", "origin `https://evil.example.com`"),
        ("origin: null\r\n", "origin `null`"),
        ("host: evil.example.com\r\n", "host `evil.example.com`"),
    ] {
        let refused = operator.ask("GET", "/metrics", headers, "").await;
        assert!(refused.status == 403 && refused.error().starts_with(why), "{refused:?}");
    }
    assert_eq!(operator.ask("GET", "/metrics", "origin: http://localhost:8809\r\n", "").await.status, 200);
    assert!(operator.json("/limits").await.is_array());
    assert_eq!(operator.post("/limits").await.status, 405);
    proxy.stop().await;
}

#[tokio::test]
async fn an_unexpected_body_is_read_up_to_a_limit() {
    let proxy = start(NOWHERE, &[], &["admin: 127.0.0.1:0"]);
    let operator = Operator::at(proxy.admin.as_ref().expect("there is one").address);
    let most = "x".repeat(16 << 10);
    assert_eq!(operator.ask("GET", "/live", "", &most).await.status, 200);
    let refused = operator.ask("GET", "/live", "", &format!("{most}x")).await;
    assert!(refused.status == 413 && refused.error().contains("16384 bytes"), "{refused:?}");
    proxy.stop().await;
}

#[tokio::test]
async fn an_operators_connection_serves_one_request_after_the_other() {
    let proxy = start(NOWHERE, &[], &["admin: 127.0.0.1:0"]);
    let mut socket = TcpStream::connect(proxy.admin.as_ref().expect("there is one").address).await.unwrap();
    for _ in 0..3 {
        socket
            .write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc")
            .await
            .unwrap();
        let mut heard = vec![0; 1024];
        let length = soon("an answer", socket.read(&mut heard)).await.unwrap();
        assert!(heard[..length].starts_with(b"HTTP/1.1 200 "));
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_wildcard_for_clients_hosts_does_not_open_the_admin_address_to_rebinding() {
    let proxy = start(NOWHERE, &[], &["admin: 127.0.0.1:0", "access: { hosts: ['*'], origins: ['*'] }"]);
    let operator = Operator::of(proxy.admin.as_ref().expect("there is one"));
    for headers in [
        "host: rebound.evil.example\r\n",
        "host: localhost\r\norigin: https://evil.example\r\n",
        "host: localhost\r\nsec-fetch-site: cross-site\r\n",
    ] {
        for path in ["/metrics", "/", "/live", "/session"] {
            let refused = operator.ask("GET", path, headers, "").await;
            assert_eq!(refused.status, 403, "{path} {headers}: {refused:?}");
        }
    }
    let own = "host: localhost\r\nsec-fetch-site: same-origin\r\n";
    assert_eq!(operator.ask("GET", "/limits", own, "").await.status, 200);
    proxy.stop().await;
}

#[tokio::test]
async fn a_one_time_code_signs_one_browser_in() {
    let proxy = start(NOWHERE, &[], &["admin: 127.0.0.1:0"]);
    let bound = proxy.admin.as_ref().expect("there is one");
    let stranger = Operator::at(bound.address);
    let link = bound.link_with_code();
    let (page, code) = link.split_once("#code=").expect("a code");
    assert_eq!(page, bound.url);
    for (body, status) in [("", 400), ("{}", 400), (r#"{"code": 1}"#, 400), (r#"{"code": "0123"}"#, 403)] {
        assert_eq!(stranger.ask("POST", "/session", "", body).await.status, status, "{body}");
    }
    let body = format!(r#"{{"code":"{code}"}}"#);
    let signed_in = stranger.ask("POST", "/session", "", &body).await;
    assert!(signed_in.status == 200 && signed_in.head.contains("cache-control: no-store"), "{signed_in:?}");
    let token = signed_in.json()["token"].as_str().expect("a token").to_owned();
    assert_ne!(token, bound.generated_token().expose());
    // It stands for the token: what it asks for is not there.
    assert_eq!(stranger.post("/tasks/none/cancel").await.status, 401);
    assert_eq!(stranger.with_token(&token).post("/tasks/none/cancel").await.status, 404);
    assert_eq!(stranger.with_token(code).post("/tasks/none/cancel").await.status, 401);
    let again = stranger.ask("POST", "/session", "", &body).await;
    assert!(again.status == 403 && again.error().contains("used already"), "{again:?}");
    for _ in 0..10 {
        stranger.ask("POST", "/session", "", r#"{"code":"guess"}"#).await;
    }
    let limited = stranger.ask("POST", "/session", "", &body).await;
    assert!(limited.status == 429 && limited.head.contains("retry-after: "), "{limited:?}");
    proxy.stop().await;
}

#[tokio::test]
async fn only_a_terminal_is_shown_a_secret() {
    let proxy = start(NOWHERE, &[], &["admin: 127.0.0.1:0"]);
    let bound = proxy.admin.as_ref().expect("there is one");
    let (token, address) = (bound.generated_token(), bound.address);
    let elsewhere = bound.ready_lines(false);
    assert_eq!(elsewhere[0], format!("admin: http://{address}/"));
    assert!(elsewhere[1].starts_with("admin token: none ("), "{elsewhere:?}");
    assert!(!elsewhere.concat().contains(token.expose()) && elsewhere.len() == 2, "{elsewhere:?}");
    let [link, shown] = &bound.ready_lines(true)[..] else { panic!("two lines") };
    assert!(link.starts_with(&format!("admin: http://{address}/#code=")), "{link}");
    assert_eq!(*shown, format!("admin token: {}", token.expose()), "it is in no file");
    proxy.stop().await;

    let configured = format!("admin: {{ listen: 127.0.0.1:0, token: {{ file: '{FILES}/config.key' }} }}");
    let proxy = start(NOWHERE, &[], &[&configured]);
    let lines = proxy.admin.as_ref().expect("there is one").ready_lines(true);
    assert!(lines.len() == 1 && lines[0].contains("#code="), "{lines:?}");
    proxy.stop().await;
}

/// The program with these flags, whose runtime folder is this; what it says, and its log so far.
fn program(
    runtime: &Path,
    flags: &[&str],
) -> (Child, ReadyLines, impl Iterator<Item = io::Result<String>> + use<>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(["--upstream", NOWHERE, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(flags)
        .env("XDG_RUNTIME_DIR", runtime)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let mut log = String::new();
    let ready = ReadyLines::read(&mut lines, |line| log.push_str(&line));
    (child, ready, lines, log)
}

#[tokio::test]
async fn the_program_writes_the_token_it_made_to_a_file_and_not_to_its_log() {
    for store in ["memory", "disk"] {
        let (runtime, data) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (flag, expected) = match store {
            "memory" => ("memory".to_owned(), runtime.path().join("deferral/admin.token")),
            _ => (format!("disk:{}/tasks", data.path().display()), data.path().join("admin.token")),
        };
        let (mut child, ready, lines, mut log) = program(runtime.path(), &["--store", &flag]);
        assert_eq!(Path::new(&ready.token_place), expected, "{store}");
        assert_eq!(fs::metadata(&expected).expect("it is there").permissions().mode() & 0o777, 0o600);
        let token = ready.token();
        assert_eq!(Operator::by_lines(&ready).post("/tasks/none/cancel").await.status, 404);
        // A command on the same machine finds it by itself, and sends it only because it needs it.
        let cancel = ["tasks", "cancel", "0123456789ab", "--admin", ready.url.trim_end_matches('/')];
        let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
        let output = command.args(cancel).env_remove("DEFERRAL_ADMIN_TOKEN").output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("there is no task") && !said.contains("401"), "{said}");
        interrupt(&child);
        lines.for_each(|line| log.push_str(&line.expect("text")));
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
        assert!(!log.contains(&token) && log.contains("event=drained"), "{log}");
        assert!(!expected.exists(), "it is removed at the end");
        let mut stdout = String::new();
        child.stdout.take().expect("it is piped").read_to_string(&mut stdout).expect("text");
        assert!(stdout.starts_with("listening on ") && stdout.lines().count() == 1, "{stdout}");
    }
}
