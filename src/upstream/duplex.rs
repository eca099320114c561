//! A server in memory, for tests: each of its sessions is a duplex of lines, as standard input and output are.

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
    CallError, Config, Description, Identity, NotStarted, Upstream,
    legacy::Legacy,
    wire::{Again, Beside, Heard, Hello, Line, Progress, Reply, Wire},
    work::Work,
};
use crate::{
    dialect::{ClientInfo, Principal},
    protocol::Frame,
    runtime::{Mutex, Net},
};

/// Starts a server for each session, and hands its end to the test.
pub(super) struct Duplexes(pub(super) mpsc::UnboundedSender<DuplexStream>);

/// Our side of one.
pub(super) struct Pipe {
    reads: Mutex<Option<Lines<BufReader<ReadHalf<DuplexStream>>>>>,
    writes: Arc<tokio::sync::Mutex<WriteHalf<DuplexStream>>>,
}

/// A call that is being written, until it is.
pub(super) struct Written(Option<BoxFuture<'static, Result<(), CallError>>>);

/// A server in memory, and what its sessions speak to, as they are begun.
///
/// # Errors
/// [`NotStarted::NoRuntime`].
pub fn in_memory(
    config: Config,
) -> Result<(Arc<dyn Upstream>, mpsc::UnboundedReceiver<DuplexStream>), NotStarted> {
    let (started, starting) = mpsc::unbounded_channel();
    let server = Legacy::over(Duplexes(started), "", config, Work::new()?, &Net::System);
    Ok((Arc::new(server), starting))
}

async fn write(writes: &tokio::sync::Mutex<WriteHalf<DuplexStream>>, body: &[u8]) -> Result<(), CallError> {
    let line = [body, b"\n"].concat();
    writes.lock().await.write_all(&line).await.map_err(|error| CallError::Broken(error.to_string()))
}

// === impl Duplexes ===

impl Wire for Duplexes {
    type Line = Pipe;

    /// As processes are, which these stand for.
    const IS_COSTLY: bool = true;

    /// All callers are one to it.
    fn known_as(&self, caller: &Identity) -> Identity {
        let client_info = ClientInfo::default();
        Identity { principal: Principal::ANONYMOUS, client_info, ..caller.clone() }
    }

    async fn open(
        self: &Arc<Self>,
        _: &Identity,
        hello: &mut Hello,
    ) -> Result<(Description, Pipe), CallError> {
        let (ours, theirs) = duplex(1 << 16);
        let _ = self.0.send(theirs);
        let (reads, writes) = split(ours);
        let (mut reads, writes) = (BufReader::new(reads).lines(), Arc::new(tokio::sync::Mutex::new(writes)));
        write(&writes, &hello.body()).await?;
        while let Ok(Some(line)) = reads.next_line().await {
            let frame = Frame::parse(line.into()).expect("a message");
            if let Reply::Description(description) = hello.read(&frame)? {
                return Ok((description, Pipe { reads: Mutex::new(Some(reads)), writes }));
            }
        }
        Err(CallError::SessionEnded)
    }
}

// === impl Pipe ===

impl Line for Pipe {
    type Answer = Written;

    fn send(&self, body: Bytes, _: &HeaderMap) -> Written {
        let writes = Arc::clone(&self.writes);
        Written(Some(async move { write(&writes, &body).await }.boxed()))
    }

    fn poll_answer(self: &Arc<Self>, answer: &mut Written, _: u64, cx: &mut Context<'_>) -> Poll<Heard> {
        let writing = answer.0.as_mut().expect("it is not polled again");
        let written = ready!(writing.poll_unpin(cx));
        answer.0 = None;
        Poll::Ready(written.map_or_else(Heard::Lost, |()| Heard::Elsewhere))
    }

    fn progress(answer: &mut Written) -> Progress {
        if answer.0.is_some() { Progress::Unsent } else { Progress::Sent }
    }

    async fn tell(&self, body: Bytes, _: Again) -> Result<(), CallError> {
        write(&self.writes, &body).await
    }

    async fn listen(self: Arc<Self>, mut tell: impl FnMut(Beside) + Send) {
        let reads = self.reads.lock().take();
        let mut reads = reads.expect("it is listened to once");
        tell(Beside::Settled);
        while let Ok(Some(line)) = reads.next_line().await {
            tell(Beside::Message(Frame::parse(line.into()).expect("a message")));
        }
        tell(Beside::Ended);
    }

    async fn close(&self) {
        let _ = self.writes.lock().await.shutdown().await;
    }
}
