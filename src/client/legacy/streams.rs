//! The streams of a session, each read by a task of its own, and what is heard on them.
//!
//! The server chooses on which stream it speaks, so they are all read all the time, also while
//! somebody thinks about an answer.

use super::{
    super::{
        Error,
        http_transport::{EventReader, is_stream},
        message::JsonRpcResponse,
    },
    resume::StreamPosition,
    transport::SessionTransport,
};
use crate::protocol::{Frame, MessageReader, headers};
use http::{HeaderValue, Response};
use hyper::body::Incoming;
use std::time::Duration;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{sleep, timeout},
};

/// Messages that may wait to be looked at, before their streams are made to wait.
const MAX_QUEUED: usize = 64;
/// How long the first call waits for the GET stream: servers that are asked for one put questions
/// there, and those that find it missing lose them.
const OPEN_TIMEOUT: Duration = Duration::from_millis(250);
/// Attempts in a row that bring no GET stream, before it is done without.
const ATTEMPTS: u32 = 5;

/// The streams of a session.
pub(super) struct StreamReaders {
    pub(super) transport: SessionTransport,
    /// Each ends with its stream, and all with the session.
    readers: JoinSet<()>,
    events: mpsc::Receiver<ReaderEvent>,
    /// For the next reader.
    sender: mpsc::Sender<ReaderEvent>,
}

/// Something that was heard.
pub(super) enum StreamEvent {
    /// What became of a request.
    Answer { id: u64, answer: Result<JsonRpcResponse, Error> },
    /// Any other message.
    Message(Frame),
}

/// What a reader tells.
enum ReaderEvent {
    Stream(StreamEvent),
    /// The server has begun a session.
    Session(HeaderValue),
}

/// A GET stream that was asked for.
pub(super) struct PendingStream(oneshot::Receiver<()>);

// === impl Streams ===

impl StreamReaders {
    pub(super) fn new(line: SessionTransport) -> Self {
        let (said, heard) = mpsc::channel(MAX_QUEUED);
        Self { transport: line, readers: JoinSet::new(), events: heard, sender: said }
    }

    /// Posts a request. What becomes of it will be heard.
    pub(super) fn request(&mut self, id: u64, request: String) {
        let (line, said) = (self.transport.clone(), self.sender.clone());
        self.spawn(async move {
            let answer = answer(line, id, request, &said).await;
            let _ = said.send(ReaderEvent::Stream(StreamEvent::Answer { id, answer })).await;
        });
    }

    /// Posts a response that nothing depends on.
    pub(super) fn respond(&mut self, response: String) {
        let line = self.transport.clone();
        // A server that has gone will be noticed by the call.
        self.spawn(async move { drop(line.send(response).await) });
    }

    /// Asks for the stream that belongs to no request, and for another one when it ends.
    pub(super) fn listen(&mut self) -> PendingStream {
        let (opened, listening) = oneshot::channel();
        let (line, said) = (self.transport.clone(), self.sender.clone());
        self.spawn(listen(line, opened, said));
        PendingStream(listening)
    }

    /// What is heard next. May be dropped and taken up again.
    pub(super) async fn next(&mut self) -> StreamEvent {
        loop {
            match self.events.recv().await.expect("a sender is kept here") {
                ReaderEvent::Stream(heard) => return heard,
                ReaderEvent::Session(id) => self.transport.set_session(id),
            }
        }
    }

    /// Lets go of every stream.
    pub(super) async fn close(&mut self) {
        self.readers.shutdown().await;
    }

    fn spawn(&mut self, reader: impl Future<Output = ()> + Send + 'static) {
        while self.readers.try_join_next().is_some() {}
        self.readers.spawn(reader);
    }
}

// === impl Listening ===

impl PendingStream {
    /// Once the stream is open, or it is clear that there is none, or it has been waited for long
    /// enough.
    pub(super) async fn opened(self) {
        let _ = timeout(OPEN_TIMEOUT, self.0).await;
    }
}

/// Posts a request and reads until its response, on as many streams as that takes.
async fn answer(
    mut line: SessionTransport,
    id: u64,
    request: String,
    said: &mpsc::Sender<ReaderEvent>,
) -> Result<JsonRpcResponse, Error> {
    let response = line.post(request).await?;
    if let Some(session) = response.headers().get(&headers::SESSION_ID) {
        line.set_session(session.clone());
        let _ = said.send(ReaderEvent::Session(session.clone())).await;
    }
    if !is_stream(&response) {
        return document(&line, id, response, said).await;
    }
    let mut place = StreamPosition::default();
    let mut events = line.http.events(response.into_body());
    loop {
        let lost = match read(&mut events, &mut place, Some(id), said).await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => line.http.truncated(),
            Err(error @ Error::Broken { .. }) => error,
            Err(error) => return Err(error),
        };
        events = place.resume(&line, lost).await?;
    }
}

async fn document(
    line: &SessionTransport,
    id: u64,
    response: Response<Incoming>,
    said: &mpsc::Sender<ReaderEvent>,
) -> Result<JsonRpcResponse, Error> {
    let status = response.status();
    let messages = MessageReader::of(line.http.read_body(response.into_body()).await?);
    if !messages.is_batch() {
        return JsonRpcResponse::of_document(status, messages.bytes().clone(), id);
    }
    take(messages, Some(id), said)
        .await?
        .ok_or_else(|| Error::Invalid("the response to this request is not in the batch".to_owned()))
}

/// Reads to the response of this request, or to the end of the stream.
async fn read(
    events: &mut EventReader,
    place: &mut StreamPosition,
    id: Option<u64>,
    said: &mpsc::Sender<ReaderEvent>,
) -> Result<Option<JsonRpcResponse>, Error> {
    while let Some(event) = events.next().await? {
        place.advance(&event);
        if event.data.is_empty() {
            continue;
        }
        if let Some(answer) = take(MessageReader::of(event.data), id, said).await? {
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

/// Hands on each message, and gives the response to this request if it is among them.
async fn take(
    messages: MessageReader,
    id: Option<u64>,
    said: &mpsc::Sender<ReaderEvent>,
) -> Result<Option<JsonRpcResponse>, Error> {
    let mut found = None;
    for frame in messages {
        let frame = frame?;
        match id.and_then(|id| JsonRpcResponse::of(&frame, id)) {
            Some(answer) => found = Some(answer?),
            None => drop(said.send(ReaderEvent::Stream(StreamEvent::Message(frame))).await),
        }
    }
    Ok(found)
}

/// Keeps the GET stream open. A server that has none says 405, and whatever else it says comes to
/// the same: its messages come on the streams of the requests.
async fn listen(line: SessionTransport, opened: oneshot::Sender<()>, said: mpsc::Sender<ReaderEvent>) {
    let (mut place, mut opened, mut failed) = (StreamPosition::default(), Some(opened), 0);
    while failed < ATTEMPTS {
        match line.open_stream(place.last_id.as_deref()).await {
            Ok(response) if response.status().is_success() && is_stream(&response) => {
                failed = 0;
                opened.take().map(|opened| opened.send(()));
                let mut events = line.http.events(response.into_body());
                // Whatever ends it, another one is asked for.
                let _ = read(&mut events, &mut place, None, &said).await;
            }
            Ok(response) if !response.status().is_server_error() => return,
            Ok(_) | Err(_) => failed += 1,
        }
        sleep(place.pause()).await;
    }
}
