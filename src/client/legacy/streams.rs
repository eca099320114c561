//! The streams of a session, each read by a task of its own, and their events.
//!
//! The server chooses the stream of a message, so all of them are read all the time, also while the user
//! answers an input request.

use super::{
    super::{
        Error,
        http_transport::{EventReader, is_event_stream},
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

/// Most messages in the queue; at the limit their streams are no longer read.
const MAX_QUEUED: usize = 64;
/// How long the first call waits for the GET stream: some servers send input requests there, and lose those
/// that they cannot send.
const OPEN_TIMEOUT: Duration = Duration::from_millis(250);
/// Failed attempts in a row to open a GET stream, after which the client goes on without one.
const ATTEMPTS: u32 = 5;

/// The streams of a session.
pub(super) struct StreamReaders {
    /// Sends the requests of the session.
    pub(super) transport: SessionTransport,
    /// The tasks that read streams. Each ends with its stream, and all end with the session.
    readers: JoinSet<()>,
    events: mpsc::Receiver<ReaderEvent>,
    /// Sender of `events`, cloned for each new reader.
    sender: mpsc::Sender<ReaderEvent>,
}

/// An event of the session.
pub(super) enum StreamEvent {
    /// The outcome of a request.
    Response { id: u64, response: Result<JsonRpcResponse, Error> },
    /// A message that is not the response to a request of the client.
    Message(Frame),
}

/// An event that a reading task sends to the session.
enum ReaderEvent {
    Stream(StreamEvent),
    /// The server has opened a session with this id.
    Session(HeaderValue),
}

/// A GET stream that is being opened.
pub(super) struct PendingStream(oneshot::Receiver<()>);

// === impl StreamReaders ===

impl StreamReaders {
    /// Creates the streams of a session; none is open yet.
    pub(super) fn new(transport: SessionTransport) -> Self {
        let (sender, events) = mpsc::channel(MAX_QUEUED);
        Self { transport, readers: JoinSet::new(), events, sender }
    }

    /// Posts a request. Its outcome arrives as an event.
    pub(super) fn request(&mut self, id: u64, request: String) {
        let (transport, sender) = (self.transport.clone(), self.sender.clone());
        self.spawn(async move {
            let response = post_and_read(transport, id, request, &sender).await;
            let _ = sender.send(ReaderEvent::Stream(StreamEvent::Response { id, response })).await;
        });
    }

    /// Posts a response to a request of the server, and ignores the outcome.
    pub(super) fn respond(&mut self, response: String) {
        let transport = self.transport.clone();
        // The outcome is ignored: the call will fail if the server cannot be reached.
        self.spawn(async move { drop(transport.send(response).await) });
    }

    /// Opens the GET stream, and a new one each time it ends.
    pub(super) fn listen(&mut self) -> PendingStream {
        let (on_open, opened) = oneshot::channel();
        let (transport, sender) = (self.transport.clone(), self.sender.clone());
        self.spawn(keep_listening(transport, on_open, sender));
        PendingStream(opened)
    }

    /// Returns the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> StreamEvent {
        loop {
            match self.events.recv().await.expect("a sender is kept here") {
                ReaderEvent::Stream(event) => return event,
                ReaderEvent::Session(id) => self.transport.set_session(id),
            }
        }
    }

    /// Closes every stream.
    pub(super) async fn close(&mut self) {
        self.readers.shutdown().await;
    }

    fn spawn(&mut self, reader: impl Future<Output = ()> + Send + 'static) {
        while self.readers.try_join_next().is_some() {}
        self.readers.spawn(reader);
    }
}

// === impl PendingStream ===

impl PendingStream {
    /// Resolves when the stream is open, when the server has none, or after [`OPEN_TIMEOUT`].
    pub(super) async fn wait_until_open(self) {
        let _ = timeout(OPEN_TIMEOUT, self.0).await;
    }
}

/// Posts a request and reads until its response, resuming the stream as often as needed.
async fn post_and_read(
    mut transport: SessionTransport,
    id: u64,
    request: String,
    sender: &mpsc::Sender<ReaderEvent>,
) -> Result<JsonRpcResponse, Error> {
    let response = transport.post(request).await?;
    if let Some(session) = response.headers().get(&headers::SESSION_ID) {
        transport.set_session(session.clone());
        let _ = sender.send(ReaderEvent::Session(session.clone())).await;
    }
    if !is_event_stream(&response) {
        return read_document(&transport, id, response, sender).await;
    }
    let mut position = StreamPosition::default();
    let mut events = transport.http.events(response.into_body());
    loop {
        let error = match read_until_response(&mut events, &mut position, Some(id), sender).await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => transport.http.truncated_error(),
            Err(error @ Error::Broken { .. }) => error,
            Err(error) => return Err(error),
        };
        events = position.resume(&transport, error).await?;
    }
}

/// Reads a response that is a JSON document, a message or a batch.
async fn read_document(
    transport: &SessionTransport,
    id: u64,
    response: Response<Incoming>,
    sender: &mpsc::Sender<ReaderEvent>,
) -> Result<JsonRpcResponse, Error> {
    let status = response.status();
    let messages = MessageReader::new(transport.http.read_body(response.into_body()).await?);
    if !messages.is_batch() {
        return JsonRpcResponse::from_document(status, messages.bytes().clone(), id);
    }
    forward_messages(messages, Some(id), sender)
        .await?
        .ok_or_else(|| Error::Invalid("the response to this request is not in the batch".to_owned()))
}

/// Reads a stream to the response of this request, or to its end; `None` if the response is not in it.
async fn read_until_response(
    events: &mut EventReader,
    position: &mut StreamPosition,
    id: Option<u64>,
    sender: &mpsc::Sender<ReaderEvent>,
) -> Result<Option<JsonRpcResponse>, Error> {
    while let Some(event) = events.next().await? {
        position.advance(&event);
        if event.data.is_empty() {
            continue;
        }
        if let Some(answer) = forward_messages(MessageReader::new(event.data), id, sender).await? {
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

/// Sends each message to the session, and returns the response to this request if it is among them.
async fn forward_messages(
    messages: MessageReader,
    id: Option<u64>,
    sender: &mpsc::Sender<ReaderEvent>,
) -> Result<Option<JsonRpcResponse>, Error> {
    let mut response = None;
    for frame in messages {
        let frame = frame?;
        match id.and_then(|id| JsonRpcResponse::from_frame(&frame, id)) {
            Some(answer) => response = Some(answer?),
            None => drop(sender.send(ReaderEvent::Stream(StreamEvent::Message(frame))).await),
        }
    }
    Ok(response)
}

/// Keeps the GET stream open. A server without GET streams answers 405; after that or any other error, its
/// messages come on the streams of the requests.
async fn keep_listening(
    transport: SessionTransport,
    opened: oneshot::Sender<()>,
    sender: mpsc::Sender<ReaderEvent>,
) {
    let (mut position, mut opened, mut failed_attempts) = (StreamPosition::default(), Some(opened), 0);
    while failed_attempts < ATTEMPTS {
        match transport.open_stream(position.last_id.as_deref()).await {
            Ok(response) if response.status().is_success() && is_event_stream(&response) => {
                failed_attempts = 0;
                opened.take().map(|opened| opened.send(()));
                let mut events = transport.http.events(response.into_body());
                // Another stream is opened, whatever has ended this one.
                let _ = read_until_response(&mut events, &mut position, None, &sender).await;
            }
            Ok(response) if !response.status().is_server_error() => return,
            Ok(_) | Err(_) => failed_attempts += 1,
        }
        sleep(position.next_pause()).await;
    }
}
