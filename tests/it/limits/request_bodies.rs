//! The memory of all request bodies, unfinished ones too.

use super::program::{Log, Program};
use crate::support::{
    legacy_server::{LegacyServer, Options},
    modern_client::soon,
};
use serde_json::json;
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
    task::JoinSet,
};

const MIB: usize = 1 << 20;

/// Sends a request of which the last byte is missing, until it is answered or may end. Gives the answer.
async fn unfinished(addr: SocketAddr, end: Arc<Notify>) -> String {
    let stream = TcpStream::connect(addr).await.expect("it listens");
    let (mut reader, mut writer) = stream.into_split();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n",
        4 * MIB
    );
    // Given up with this.
    let mut sending = JoinSet::new();
    sending.spawn(async move {
        writer.write_all(head.as_bytes()).await?;
        writer.write_all(&vec![b' '; 4 * MIB - 1]).await?;
        end.notified().await;
        writer.write_all(b" ").await?;
        std::io::Result::Ok(writer)
    });
    let mut answer = vec![0; 4096];
    let length = reader.read(&mut answer).await.unwrap_or(0);
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[tokio::test]
async fn unfinished_bodies_share_one_limit_and_block_no_other_client() {
    const ALL: usize = 16;
    /// So many fit into the seven eighths that are for large ones.
    const FIT: usize = 4;
    let server = LegacyServer::start(Options { tools: Some(json!([])), ..Options::default() }).await;
    let top = ["limits: { body_memory: 20MiB }", "timeouts: { read_body: 10m }"];
    let program = Program::start(&server, &top, Log::Nowhere);
    assert!(program.serves("before").await);
    let before = program.memory();

    let end = Arc::new(Notify::new());
    let mut requests = JoinSet::new();
    for _ in 0..ALL {
        requests.spawn(unfinished(program.addr, Arc::clone(&end)));
    }
    let mut refused = Vec::new();
    for _ in FIT..ALL {
        refused
            .push(soon("a refusal", requests.join_next()).await.expect("there are more").expect("it ends"));
    }
    assert!(
        refused.iter().all(|answer| answer.is_empty() || answer.starts_with("HTTP/1.1 503 ")),
        "{refused:?}"
    );
    let told = refused.iter().find(|answer| !answer.is_empty()).expect("somebody is told");
    assert!(told.contains("(limits.body_memory)") && told.contains("-31006"), "{told}");
    assert!(told.to_lowercase().contains("retry-after: 1"), "{told}");
    let taken = program.memory().saturating_sub(before);
    assert!(taken < 2 * 20 * MIB, "{ALL} bodies of 4 MiB take {} KiB", taken >> 10);
    assert!(program.descriptors() < 100, "{}", program.descriptors());
    // Small ones still fit.
    assert!(program.serves("meanwhile").await);

    // What they had is given back.
    requests.abort_all();
    while requests.join_next().await.is_some() {}
    let fits = async {
        loop {
            let end = Arc::new(Notify::new());
            end.notify_one();
            let answer = unfinished(program.addr, end).await;
            if answer.starts_with("HTTP/1.1 400 ") {
                return;
            }
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503 "), "{answer}");
        }
    };
    soon("room for another", fits).await;
}
