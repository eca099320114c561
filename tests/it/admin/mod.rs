//! The admin listener, over real sockets.

mod access;
mod metrics_listener;
mod page;
mod readiness;
mod slow_connections;
mod tap;
mod tasks;
mod tasks_command;

use crate::support::{modern_client::soon, program::ReadyLines};
use deferral::internals::admin::AdminServer;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::Value;
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

/// An operator with or without a token.
#[derive(Clone)]
pub(crate) struct Operator {
    address: SocketAddr,
    token: Option<String>,
    tls: bool,
}

/// What an operator is answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

// === impl Operator ===

impl Operator {
    pub(crate) const fn at(address: SocketAddr) -> Self {
        Self { address, token: None, tls: false }
    }

    /// One who has the token that this proxy made at start.
    pub(crate) fn of(bound: &AdminServer) -> Self {
        Self::at(bound.address).with_token(bound.generated_token().expose())
    }

    /// One who has read the lines that the program writes once it is ready.
    pub(crate) fn by_lines(ready: &ReadyLines) -> Self {
        Self::at(ready.address()).with_token(&ready.token())
    }

    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    pub(crate) fn over_tls(&self) -> Self {
        Self { tls: true, ..self.clone() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", "").await
    }

    pub(crate) async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    pub(crate) async fn post(&self, path: &str) -> Answer {
        self.ask("POST", path, "", "").await
    }

    /// `headers` are lines.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n"));
        let host =
            if headers.lines().any(|line| line.starts_with("host:")) { "" } else { "host: localhost\r\n" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{host}connection: close\r\ncontent-length: {}\r\n{}{headers}\r\n{body}",
            body.len(),
            token.unwrap_or_default(),
        );
        let socket = TcpStream::connect(self.address).await.expect("it listens");
        if self.tls {
            soon("an answer", exchanged(secured(socket).await, &request)).await
        } else {
            soon("an answer", exchanged(socket, &request)).await
        }
    }
}

async fn exchanged(mut socket: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Answer {
    socket.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = Vec::new();
    // A reset after the answer is as good as an end.
    let _ = socket.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("it has a head: {answer:?}"));
    let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

async fn secured(socket: TcpStream) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    for cert in CertificateDer::pem_file_iter(CERT).expect("the file is there") {
        roots.add(cert.expect("a certificate")).expect("it is one");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the defaults are fine")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").expect("a name");
    connector.connect(name, socket).await.expect("a handshake")
}

// === impl Answer ===

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("no error: {self:?}")).to_owned()
    }
}

const CERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/front/cert.pem");
