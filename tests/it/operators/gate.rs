//! Who may do what there, and over what.

use super::Operator;
use crate::{proxy::world::start, support::clients::soon};
use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
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
    assert_eq!(bound.link.expose(), format!("https://0.0.0.0:{}/", bound.address.port()), "no token in it");
    let operator = Operator::at(([127, 0, 0, 1], bound.address.port()).into()).over_tls();
    for path in ["/live", "/ready"] {
        assert_eq!(operator.get(path).await.status, 200, "{path}");
    }
    for path in ["/metrics", "/tools", "/limits", "/processes"] {
        let refused = operator.get(path).await;
        assert!(refused.status == 401 && refused.head.contains("www-authenticate: Bearer"), "{refused:?}");
        assert!(refused.error().contains("admin.token"), "{refused:?}");
        let refused = operator.with_token("0123456789abcdef").get(path).await;
        assert!(refused.status == 401 && refused.error().starts_with("that is not the operator's token"));
        assert_eq!(operator.with_token(TOKEN.trim()).get(path).await.status, 200, "{path}");
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_page_of_another_site_and_a_host_of_another_name_are_refused_with_the_token_too() {
    let proxy = start(NOWHERE, &[], &["admin: 127.0.0.1:0"]);
    let operator = Operator::by_link(proxy.admin.as_ref().expect("there is one").link.expose());
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
async fn a_body_that_nobody_wants_is_read_so_far_and_no_further() {
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
async fn the_program_prints_the_link_with_the_token_it_made_and_logs_no_token() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(["--upstream", NOWHERE, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let (mut link, mut log) = (None, String::new());
    let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
    while link.is_none() || !log.contains("event=started") {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).expect("text") > 0, "{link:?}: {log}");
        match line.trim().strip_prefix("for operators: ") {
            Some(found) => link = Some(found.to_owned()),
            None => log.push_str(&line),
        }
    }
    let link = link.expect("it was read");
    let operator = Operator::by_link(&link);
    assert_eq!(operator.get("/live").await.status, 200);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    stderr.read_to_string(&mut log).expect("text");
    let (_, token) = link.split_once("#token=").expect("it has one");
    assert!(token.len() == 64 && !log.contains(token), "{log}");
    let mut stdout = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut stdout).expect("text");
    assert!(stdout.starts_with("listening on ") && !stdout.contains(token), "{stdout}");
}
