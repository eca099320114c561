//! Clients: connections that are kept, each with one call in flight, as fast as they are answered.
//!
//! The client is written by hand because it shares two cores with what it measures. It reads every
//! answer to its end and looks at it: a proxy that answers something else is not measured but
//! reported.

use super::Failure;
use bytes::Bytes;
use memchr::memmem;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

/// No part of this bench takes longer than that.
const PATIENCE: Duration = Duration::from_secs(120);

/// A request, head and body, and what must be in the answer to it.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) request: Bytes,
    pub(crate) wants: &'static str,
}

/// A connection that is kept.
pub(crate) struct Connection {
    stream: TcpStream,
    /// Bytes that came and were not used yet.
    read: Vec<u8>,
}

/// The answer to one request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// What came for a body. Chunks are not taken apart: nobody here needs to.
    pub(crate) body: Vec<u8>,
}

/// Connections that all ask the same.
pub(crate) struct Load {
    connections: Vec<Connection>,
    ask: Ask,
}

// === impl Ask ===

impl Ask {
    /// A POST to `/mcp` as a 2026-07-28 client sends it.
    pub(crate) fn post(method: &str, name: &str, body: &str, wants: &'static str) -> Self {
        let length = body.len();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: {method}\r\nMcp-Name: {name}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        Self { request: request.into(), wants }
    }

    /// A POST to `/mcp` as a client of 2025-11-25 sends it, once it has a session.
    pub(crate) fn in_session(body: &str, wants: &'static str) -> Self {
        let length = body.len();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n\
             Mcp-Session-Id: session-{:032x}\r\nContent-Length: {length}\r\n\r\n{body}",
            0
        );
        Self { request: request.into(), wants }
    }

    pub(crate) fn get(path: &str) -> Self {
        Self { request: format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").into(), wants: "" }
    }

    fn check(&self, answer: &Answer) -> Result<(), Failure> {
        if answer.status == 200 && memmem::find(&answer.body, self.wants.as_bytes()).is_some() {
            return Ok(());
        }
        let body = String::from_utf8_lossy(&answer.body);
        Err(format!("wanted {} and got HTTP {}: {body}", self.wants, answer.status).into())
    }
}

// === impl Connection ===

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::new() })
    }

    pub(crate) async fn send(&mut self, ask: &Ask) -> Result<(), Failure> {
        Ok(self.stream.write_all(&ask.request).await?)
    }

    /// Sends a request and waits for the right answer.
    pub(crate) async fn ask(&mut self, ask: &Ask) -> Result<Answer, Failure> {
        self.send(ask).await?;
        loop {
            if let Some((answer, length)) = whole(&self.read)? {
                self.read.drain(..length);
                ask.check(&answer)?;
                return Ok(answer);
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err("the connection was closed in mid-answer".into());
            }
        }
    }
}

/// One connection, one request, one answer.
pub(crate) async fn once(address: SocketAddr, ask: &Ask) -> Result<Answer, Failure> {
    timeout(PATIENCE, async { Connection::open(address).await?.ask(ask).await }).await?
}

// === impl Load ===

impl Load {
    /// Opens `count` connections and makes a call on each, so that what is done once has been done.
    pub(crate) async fn open(address: SocketAddr, count: usize, ask: Ask) -> Result<Self, Failure> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(Connection::open(address).await?);
        }
        let mut load = Self { connections, ask };
        load.run(count * 4).await?;
        Ok(load)
    }

    /// Makes `calls` calls in all.
    pub(crate) async fn run(&mut self, calls: usize) -> Result<(), Failure> {
        let left = Arc::new(AtomicUsize::new(calls));
        let mut running = JoinSet::new();
        for mut connection in self.connections.drain(..) {
            let (left, ask) = (Arc::clone(&left), self.ask.clone());
            running.spawn(async move {
                let take = |left| usize::checked_sub(left, 1);
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                    connection.ask(&ask).await?;
                }
                Ok::<_, Failure>(connection)
            });
        }
        while let Some(ended) = timeout(PATIENCE, running.join_next()).await? {
            self.connections.push(ended??);
        }
        Ok(())
    }
}

/// The first answer in `read` and how many bytes it takes, once it is there whole.
fn whole(read: &[u8]) -> Result<Option<(Answer, usize)>, Failure> {
    let Some(head) = memmem::find(read, b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&read[..head])?;
    let status = text.get(9..12).ok_or("a short status line")?.parse()?;
    let header = |name: &str| {
        text.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let start = head + 4;
    let end = match (header("content-length"), header("transfer-encoding")) {
        (Some(length), _) => start + length.parse::<usize>()?,
        (None, Some("chunked")) => match end_of_chunks(&read[start..])? {
            Some(length) => start + length,
            None => return Ok(None),
        },
        (None, Some(other)) => return Err(format!("transfer-encoding {other}").into()),
        (None, None) => start,
    };
    Ok(read.get(start..end).map(|body| (Answer { status, body: body.to_vec() }, end)))
}

/// The length of a chunked body, once it is there whole.
fn end_of_chunks(body: &[u8]) -> Result<Option<usize>, Failure> {
    let mut at = 0;
    while let Some(line) = memmem::find(&body[at..], b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[at..at + line])?, 16)?;
        at += line + 2 + size + 2;
        if at > body.len() {
            return Ok(None);
        }
        if size == 0 {
            return Ok(Some(at));
        }
    }
    Ok(None)
}
