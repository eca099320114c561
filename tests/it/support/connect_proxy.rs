//! An HTTP proxy: tunnels (CONNECT), and requests with an absolute URL.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

/// A proxy on this machine. Every host leads to one server.
pub(crate) struct ConnectProxy {
    pub(crate) addr: SocketAddr,
    /// The heads of what it was asked.
    asked: Arc<Mutex<Vec<String>>>,
}

impl ConnectProxy {
    /// One that leads to this server, or answers with this status where there is none.
    pub(crate) async fn start(to: Result<SocketAddr, &'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("a bound socket");
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(tunnel(client, to, Arc::clone(&log)));
            }
        });
        Self { addr, asked }
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("nothing panics with a lock").clone()
    }
}

async fn tunnel(mut client: TcpStream, to: Result<SocketAddr, &str>, log: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = client.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).expect("a head is text");
    log.lock().expect("nothing panics with a lock").push(head.clone());
    match to {
        Ok(server) => {
            let mut server = TcpStream::connect(server).await.expect("the server runs");
            if head.starts_with("CONNECT ") {
                let established = b"HTTP/1.1 200 Connection established\r\n\r\n";
                client.write_all(established).await.expect("it is read");
            } else {
                server.write_all(head.as_bytes()).await.expect("the server reads");
            }
            let _ = copy_bidirectional(&mut client, &mut server).await;
        }
        Err(status) => {
            let _ = client.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await;
        }
    }
}
