//! Requests that are sent again where the connection breaks before the response.

use super::proxy_and_client::{HELLO, LegacyClient};
use crate::proxy::proxy_and_server::start;
use http::Method;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;

/// A server that breaks every other connection. Gives its URL and how many it has seen.
async fn server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = vec![0; 4096];
            let _ = stream.read(&mut head).await.expect("a request");
            if count.fetch_add(1, Relaxed).is_multiple_of(2) {
                continue;
            }
            let body = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.expect("it is read");
        }
    });
    (url, seen)
}

#[tokio::test]
async fn reads_are_retried_once_and_calls_are_not() {
    let (url, seen) = server().await;
    let running = start(&url, &["defer: { mode: never }"], &[]);
    let client = LegacyClient::new(running.addresses[0]);
    for message in [HELLO, LIST] {
        let answer = client.within("s").post(message).await.answer().await;
        assert!(answer.json().get("result").is_some(), "{answer:?}");
    }
    assert_eq!(seen.load(Relaxed), 4);
    let answer = client.within("s").post(CALL).await.answer().await;
    assert_eq!(answer.refusal(), (200, -31002), "whether it ran is unknown");
    assert_eq!(seen.load(Relaxed), 5);
}

#[tokio::test]
async fn requests_with_side_effects_are_not_retried() {
    let (url, seen) = server().await;
    let running = start(&url, &["defer: { mode: never }"], &[]);
    let client = LegacyClient::new(running.addresses[0]).within("s");
    let vendors = r#"{"jsonrpc":"2.0","id":1,"method":"vendor/charge"}"#;
    let cancel = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"t"}}"#;
    let batch = format!("[{LIST},{}]", vendors.replace("1,", "2,"));
    for (sent, message) in [vendors, cancel, &batch].into_iter().enumerate() {
        let answer = client.post(message).await.answer().await;
        assert!(answer.body.contains("-31002"), "whether it ran is unknown: {answer:?}");
        assert_eq!(seen.load(Relaxed), 2 * sent + 1, "{message}");
        // The next one breaks again.
        assert!(client.post(CALL).await.answer().await.body.contains("result"));
    }
}

/// A server that answers a call, and takes what it is told and then closes the connection with the next
/// request on it.
async fn closing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            tokio::spawn(async move {
                let mut took = false;
                loop {
                    let mut request = vec![0; 4096];
                    let read = stream.read(&mut request).await.unwrap_or_default();
                    if took || read == 0 {
                        return;
                    }
                    let body = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
                    took = !String::from_utf8_lossy(&request[..read]).contains("tools/call");
                    let answer = match took {
                        true => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
                        false => format!(
                            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                            body.len()
                        ),
                    };
                    stream.write_all(answer.as_bytes()).await.expect("it is read");
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn a_call_does_not_reuse_a_connection_after_a_202() {
    let running = start(&closing().await, &["defer: { mode: never }"], &[]);
    let client = LegacyClient::new(running.addresses[0]).within("s");
    for _ in 0..3 {
        assert_eq!(client.post(super::proxy_and_client::READY).await.answer().await.status, 202);
        let answer = client.with("authorization", "Bearer other").post(CALL).await.answer().await;
        assert!(answer.json().get("result").is_some(), "{answer:?}");
    }
}

#[tokio::test]
async fn nothing_that_is_sent_once_goes_on_such_a_connection() {
    let running = start(&closing().await, &["defer: { mode: never }"], &[]);
    let client = LegacyClient::new(running.addresses[0]).within("s");
    let answer = r#"{"jsonrpc":"2.0","id":9,"result":{}}"#;
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    for (method, target, body) in [
        (Method::POST, "/mcp", answer),
        (Method::POST, "/mcp", cancel),
        (Method::GET, "/.well-known/oauth-protected-resource/mcp", ""),
    ] {
        assert_eq!(client.post(super::proxy_and_client::READY).await.answer().await.status, 202);
        let answer = client.send(method, target, body).await.answer().await;
        assert!(answer.status.is_success(), "{body}: {answer:?}");
    }
}
