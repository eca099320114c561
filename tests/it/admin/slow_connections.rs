//! Connections to the admin and metrics listeners that send no complete request, and probes beside them.

use super::Operator;
use crate::{
    proxy::proxy_and_server::start,
    support::{legacy_server::ReservedPort, modern_client::soon},
};
use tokio::{io::AsyncWriteExt, net::TcpStream};

/// What clients send who never complete a request.
const INCOMPLETE: [&[u8]; 3] = [
    b"",
    b"GET /live HTTP/1.1\r\nhost: ",
    b"GET /live HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{",
];

#[tokio::test]
async fn connections_that_complete_no_request_keep_no_probe_waiting() {
    let nobody = ReservedPort::new();
    let proxy = start(&nobody.url(), &[], &["admin: 127.0.0.1:0", "metrics: 127.0.0.1:0"]);
    let admin = proxy.admin.as_ref().expect("there is one").address;
    let metrics = proxy.metrics.as_ref().expect("there is one").address;
    for incomplete in INCOMPLETE {
        let mut slow = Vec::new();
        for address in [admin, metrics] {
            for _ in 0..80 {
                let mut socket = TcpStream::connect(address).await.expect("it listens");
                // It may be closed already.
                let _ = socket.write_all(incomplete).await;
                slow.push(socket);
            }
        }
        for path in ["/live", "/ready"] {
            let answer = soon(path, async { Operator::at(admin).get(path).await }).await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let scraped = soon("metrics", async { Operator::at(metrics).get("/metrics").await }).await;
        assert_eq!(scraped.status, 200, "{scraped:?}");
    }
    proxy.stop().await;
}

#[tokio::test]
async fn pages_that_hold_all_connections_keep_no_probe_waiting() {
    let nobody = ReservedPort::new();
    let proxy = start(&nobody.url(), &[], &["admin: 127.0.0.1:0"]);
    let admin = proxy.admin.as_ref().expect("there is one").address;
    // Bodies that go on and on are at work: they make no room.
    let mut busy = Vec::new();
    for _ in 0..8 {
        let mut socket = TcpStream::connect(admin).await.expect("it listens");
        socket.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it is taken");
        busy.push(socket);
    }
    for _ in 0..40 {
        let answer = soon("a probe", async { Operator::at(admin).get("/live").await }).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    proxy.stop().await;
}
