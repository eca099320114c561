//! What is sent to the server a second time, where its connection breaks before it has answered.

use super::world::{HELLO, Older};
use crate::proxy::world::start;
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
async fn what_is_only_asked_for_is_asked_for_once_more_and_a_call_is_not() {
    let (url, seen) = server().await;
    let running = start(&url, &["defer: { mode: never }"], &[]);
    let client = Older::new(running.addresses[0]);
    for message in [HELLO, LIST] {
        let answer = client.within("s").post(message).await.answer().await;
        assert!(answer.json().get("result").is_some(), "{answer:?}");
    }
    assert_eq!(seen.load(Relaxed), 4);
    let answer = client.within("s").post(CALL).await.answer().await;
    assert_eq!(answer.refusal(), (200, -31002), "whether it ran is unknown");
    assert_eq!(seen.load(Relaxed), 5);
}
