//! In-memory server for tests: each session is a duplex of lines, like standard input and output.

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::HeaderMap;
use std::{
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{
        AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, duplex, split,
    },
    sync::mpsc,
};

use super::{
    CallError, CallerIdentity, Config, Upstream, UpstreamSetupError,
    background::BackgroundTasks,
    legacy::LegacyUpstream,
    transport::{
        CallEvent, CallProgress, HandshakeChannel, HandshakeEvent, RetryOnLoss, SessionEvent, SessionKind,
        Transport, TransportSession,
    },
};
use crate::{
    dialect::{ClientInfo, Principal},
    protocol::Frame,
    runtime::{Mutex, Network},
};

/// Opens a duplex for each session and sends the server's end to the test.
pub(super) struct DuplexTransport(pub(super) mpsc::UnboundedSender<DuplexStream>);

/// The proxy's end of a duplex.
pub(super) struct DuplexSession {
    reader: Mutex<Option<Lines<BufReader<ReadHalf<DuplexStream>>>>>,
    writer: Arc<tokio::sync::Mutex<WriteHalf<DuplexStream>>>,
}

/// A duplex whose handshake is not complete.
pub(super) struct DuplexChannel {
    reader: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: Arc<tokio::sync::Mutex<WriteHalf<DuplexStream>>>,
    /// Request that is written before the next message is read.
    unsent: Option<Bytes>,
}

/// A call being written; `None` once it has been written.
pub(super) struct PendingWrite(Option<BoxFuture<'static, Result<(), CallError>>>);

/// Creates an in-memory upstream for tests, and a receiver of the server's end of each session as it is
/// opened.
///
/// # Errors
/// [`UpstreamSetupError::NoRuntime`].
pub fn in_memory(
    config: Config,
) -> Result<(Arc<dyn Upstream>, mpsc::UnboundedReceiver<DuplexStream>), UpstreamSetupError> {
    let (server_ends, opened) = mpsc::unbounded_channel();
    let server = LegacyUpstream::with_transport(
        DuplexTransport(server_ends),
        "",
        config,
        BackgroundTasks::new()?,
        &Network::System,
    );
    Ok((Arc::new(server), opened))
}

async fn write(writer: &tokio::sync::Mutex<WriteHalf<DuplexStream>>, body: &[u8]) -> Result<(), CallError> {
    let line = [body, b"\n"].concat();
    writer.lock().await.write_all(&line).await.map_err(|error| CallError::Broken(error.to_string()))
}

// === impl DuplexTransport ===

impl Transport for DuplexTransport {
    type Session = DuplexSession;
    type Channel = DuplexChannel;

    /// Behaves like the processes that it stands for.
    const SESSIONS: SessionKind = SessionKind::Process;

    /// All callers share one identity.
    fn pool_key(&self, caller: &CallerIdentity) -> CallerIdentity {
        let client_info = ClientInfo::default();
        CallerIdentity { principal: Principal::ANONYMOUS, client_info, ..caller.clone() }
    }

    async fn open(self: &Arc<Self>, _: &CallerIdentity) -> Result<DuplexChannel, CallError> {
        let (proxy_end, server_end) = duplex(1 << 16);
        let _ = self.0.send(server_end);
        let (reader, writer) = split(proxy_end);
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        Ok(DuplexChannel { reader: BufReader::new(reader).lines(), writer, unsent: None })
    }
}

// === impl DuplexChannel ===

impl HandshakeChannel for DuplexChannel {
    type Session = DuplexSession;

    fn time_limit(&self) -> Duration {
        Duration::MAX
    }

    fn send(&mut self, _: &'static str, body: Bytes) -> Result<(), CallError> {
        self.unsent = Some(body);
        Ok(())
    }

    async fn receive(&mut self) -> Result<HandshakeEvent, CallError> {
        if let Some(body) = self.unsent.take() {
            write(&self.writer, &body).await?;
        }
        let line = self.reader.next_line().await.ok().flatten().ok_or(CallError::SessionEnded)?;
        Ok(HandshakeEvent::Message(Frame::parse(line.into()).expect("a message")))
    }

    fn into_session(self, _: &str) -> Result<DuplexSession, CallError> {
        Ok(DuplexSession { reader: Mutex::new(Some(self.reader)), writer: self.writer })
    }
}

// === impl DuplexSession ===

impl TransportSession for DuplexSession {
    type CallHandle = PendingWrite;

    fn send_call(&self, body: Bytes, _: &HeaderMap) -> PendingWrite {
        let writer = Arc::clone(&self.writer);
        PendingWrite(Some(async move { write(&writer, &body).await }.boxed()))
    }

    fn poll_call(
        self: &Arc<Self>,
        handle: &mut PendingWrite,
        _: u64,
        cx: &mut Context<'_>,
    ) -> Poll<CallEvent> {
        let writing = handle.0.as_mut().expect("it is not polled again");
        let written = ready!(writing.poll_unpin(cx));
        handle.0 = None;
        Poll::Ready(written.map_or_else(CallEvent::Lost, |()| CallEvent::AnsweredOffStream))
    }

    fn progress(handle: &mut PendingWrite) -> CallProgress {
        if handle.0.is_some() { CallProgress::Unsent } else { CallProgress::Sent }
    }

    async fn send_message(&self, body: Bytes, _: RetryOnLoss) -> Result<(), CallError> {
        write(&self.writer, &body).await
    }

    async fn listen(self: Arc<Self>, mut deliver: impl FnMut(SessionEvent) + Send) {
        let reader = self.reader.lock().take();
        let mut reader = reader.expect("it is listened to once");
        deliver(SessionEvent::Settled);
        while let Ok(Some(line)) = reader.next_line().await {
            deliver(SessionEvent::Message(Frame::parse(line.into()).expect("a message")));
        }
        deliver(SessionEvent::Ended);
    }

    async fn close(&self) {
        let _ = self.writer.lock().await.shutdown().await;
    }
}
