//! In-memory server for tests: each session is a duplex of lines, like standard input and output.

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::HeaderMap;
use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{
        AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, duplex, split,
    },
    sync::mpsc,
};

use super::{
    CallError, CallerIdentity, Config, Upstream, UpstreamDescription, UpstreamSetupError,
    background::BackgroundTasks,
    legacy::LegacyUpstream,
    transport::{
        CallEvent, CallProgress, InitializeReply, InitializeRequest, RetryOnLoss, SessionEvent, Transport,
        TransportSession,
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
    reads: Mutex<Option<Lines<BufReader<ReadHalf<DuplexStream>>>>>,
    writes: Arc<tokio::sync::Mutex<WriteHalf<DuplexStream>>>,
}

/// A call being written; `None` once it has been written.
pub(super) struct PendingWrite(Option<BoxFuture<'static, Result<(), CallError>>>);

/// Creates an in-memory upstream, and a receiver of the server ends of its sessions as they are opened.
///
/// # Errors
/// [`UpstreamSetupError::NoRuntime`].
pub fn in_memory(
    config: Config,
) -> Result<(Arc<dyn Upstream>, mpsc::UnboundedReceiver<DuplexStream>), UpstreamSetupError> {
    let (started, starting) = mpsc::unbounded_channel();
    let server = LegacyUpstream::with_transport(
        DuplexTransport(started),
        "",
        config,
        BackgroundTasks::new()?,
        &Network::System,
    );
    Ok((Arc::new(server), starting))
}

async fn write(writes: &tokio::sync::Mutex<WriteHalf<DuplexStream>>, body: &[u8]) -> Result<(), CallError> {
    let line = [body, b"\n"].concat();
    writes.lock().await.write_all(&line).await.map_err(|error| CallError::Broken(error.to_string()))
}

// === impl DuplexTransport ===

impl Transport for DuplexTransport {
    type Line = DuplexSession;

    /// Behaves like the processes that it stands for.
    const IS_COSTLY: bool = true;

    /// All callers share one identity.
    fn pool_key(&self, caller: &CallerIdentity) -> CallerIdentity {
        let client_info = ClientInfo::default();
        CallerIdentity { principal: Principal::ANONYMOUS, client_info, ..caller.clone() }
    }

    async fn open(
        self: &Arc<Self>,
        _: &CallerIdentity,
        request: &mut InitializeRequest,
    ) -> Result<(UpstreamDescription, DuplexSession), CallError> {
        let (ours, theirs) = duplex(1 << 16);
        let _ = self.0.send(theirs);
        let (reads, writes) = split(ours);
        let (mut reads, writes) = (BufReader::new(reads).lines(), Arc::new(tokio::sync::Mutex::new(writes)));
        write(&writes, &request.body()).await?;
        while let Ok(Some(line)) = reads.next_line().await {
            let frame = Frame::parse(line.into()).expect("a message");
            if let InitializeReply::Description(description) = request.read_reply(&frame)? {
                return Ok((description, DuplexSession { reads: Mutex::new(Some(reads)), writes }));
            }
        }
        Err(CallError::SessionEnded)
    }
}

// === impl DuplexSession ===

impl TransportSession for DuplexSession {
    type Answer = PendingWrite;

    fn send_call(&self, body: Bytes, _: &HeaderMap) -> PendingWrite {
        let writes = Arc::clone(&self.writes);
        PendingWrite(Some(async move { write(&writes, &body).await }.boxed()))
    }

    fn poll_call(
        self: &Arc<Self>,
        answer: &mut PendingWrite,
        _: u64,
        cx: &mut Context<'_>,
    ) -> Poll<CallEvent> {
        let writing = answer.0.as_mut().expect("it is not polled again");
        let written = ready!(writing.poll_unpin(cx));
        answer.0 = None;
        Poll::Ready(written.map_or_else(CallEvent::Lost, |()| CallEvent::AnsweredOffStream))
    }

    fn progress(answer: &mut PendingWrite) -> CallProgress {
        if answer.0.is_some() { CallProgress::Unsent } else { CallProgress::Sent }
    }

    async fn send_message(&self, body: Bytes, _: RetryOnLoss) -> Result<(), CallError> {
        write(&self.writes, &body).await
    }

    async fn listen(self: Arc<Self>, mut deliver: impl FnMut(SessionEvent) + Send) {
        let reads = self.reads.lock().take();
        let mut reads = reads.expect("it is listened to once");
        deliver(SessionEvent::Settled);
        while let Ok(Some(line)) = reads.next_line().await {
            deliver(SessionEvent::Message(Frame::parse(line.into()).expect("a message")));
        }
        deliver(SessionEvent::Ended);
    }

    async fn close(&self) {
        let _ = self.writes.lock().await.shutdown().await;
    }
}
