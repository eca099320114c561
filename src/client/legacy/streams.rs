//! The streams of a session, each read by a task of its own, and what is heard on them.
//!
//! The server chooses on which stream it speaks, so they are all read all the time, also while
//! somebody thinks about an answer.

use super::{
    super::{
        Error,
        message::Answer,
        wire::{Events, is_stream},
    },
    line::Line,
    resume::Place,
};
use crate::protocol::{Frame, Messages, headers};
use http::{HeaderValue, Response};
use hyper::body::Incoming;
use std::time::Duration;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{sleep, timeout},
};

/// Messages that may wait to be looked at, before their streams are made to wait.
const WAITING: usize = 64;
/// How long the first call waits for the GET stream: servers that are asked for one put questions
/// there, and those that find it missing lose them.
const LISTEN_PATIENCE: Duration = Duration::from_millis(250);
/// Attempts in a row that bring no GET stream, before it is done without.
const ATTEMPTS: u32 = 5;

/// The streams of a session.
pub(super) struct Streams {
    pub(super) line: Line,
    /// Each ends with its stream, and all with the session.
    readers: JoinSet<()>,
    heard: mpsc::Receiver<Said>,
    /// For the next reader.
    said: mpsc::Sender<Said>,
}

/// Something that was heard.
pub(super) enum Heard {
    /// What became of a request.
    Answer { id: u64, answer: Result<Answer, Error> },
    /// Any other message.
    Message(Frame),
}

/// What a reader tells.
enum Said {
    Heard(Heard),
    /// The server has begun a session.
    Session(HeaderValue),
}

/// A GET stream that was asked for.
pub(super) struct Listening(oneshot::Receiver<()>);

// === impl Streams ===

impl Streams {
    pub(super) fn new(line: Line) -> Self {
        let (said, heard) = mpsc::channel(WAITING);
        Self { line, readers: JoinSet::new(), heard, said }
    }

    /// Posts a request. What becomes of it will be heard.
    pub(super) fn request(&mut self, id: u64, request: String) {
        let (line, said) = (self.line.clone(), self.said.clone());
        self.spawn(async move {
            let answer = answer(line, id, request, &said).await;
            let _ = said.send(Said::Heard(Heard::Answer { id, answer })).await;
        });
    }

    /// Posts a response that nothing depends on.
    pub(super) fn respond(&mut self, response: String) {
        let line = self.line.clone();
        // A server that has gone will be noticed by the call.
        self.spawn(async move { drop(line.tell(response).await) });
    }

    /// Asks for the stream that belongs to no request, and for another one when it ends.
    pub(super) fn listen(&mut self) -> Listening {
        let (opened, listening) = oneshot::channel();
        let (line, said) = (self.line.clone(), self.said.clone());
        self.spawn(listen(line, opened, said));
        Listening(listening)
    }

    /// What is heard next. May be dropped and taken up again.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            match self.heard.recv().await.expect("a sender is kept here") {
                Said::Heard(heard) => return heard,
                Said::Session(id) => self.line.join(id),
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

impl Listening {
    /// Once the stream is open, or it is clear that there is none, or it has been waited for long
    /// enough.
    pub(super) async fn opened(self) {
        let _ = timeout(LISTEN_PATIENCE, self.0).await;
    }
}

/// Posts a request and reads until its response, on as many streams as that takes.
async fn answer(
    mut line: Line,
    id: u64,
    request: String,
    said: &mpsc::Sender<Said>,
) -> Result<Answer, Error> {
    let response = line.post(request).await?;
    if let Some(session) = response.headers().get(&headers::SESSION_ID) {
        line.join(session.clone());
        let _ = said.send(Said::Session(session.clone())).await;
    }
    if !is_stream(&response) {
        return document(&line, id, response, said).await;
    }
    let mut place = Place::default();
    let mut events = line.wire.events(response.into_body());
    loop {
        let lost = match read(&mut events, &mut place, Some(id), said).await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => line.wire.cut_short(),
            Err(error @ Error::Broken { .. }) => error,
            Err(error) => return Err(error),
        };
        events = place.resume(&line, lost).await?;
    }
}

async fn document(
    line: &Line,
    id: u64,
    response: Response<Incoming>,
    said: &mpsc::Sender<Said>,
) -> Result<Answer, Error> {
    let status = response.status();
    let messages = Messages::of(line.wire.whole(response.into_body()).await?);
    if !messages.is_batch() {
        return Answer::of_document(status, messages.bytes().clone(), id);
    }
    take(messages, Some(id), said)
        .await?
        .ok_or_else(|| Error::Invalid("the response to this request is not in the batch".to_owned()))
}

/// Reads to the response of this request, or to the end of the stream.
async fn read(
    events: &mut Events,
    place: &mut Place,
    id: Option<u64>,
    said: &mpsc::Sender<Said>,
) -> Result<Option<Answer>, Error> {
    while let Some(event) = events.next().await? {
        place.pass(&event);
        if event.data.is_empty() {
            continue;
        }
        if let Some(answer) = take(Messages::of(event.data), id, said).await? {
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

/// Hands on each message, and gives the response to this request if it is among them.
async fn take(
    messages: Messages,
    id: Option<u64>,
    said: &mpsc::Sender<Said>,
) -> Result<Option<Answer>, Error> {
    let mut found = None;
    for frame in messages {
        let frame = frame?;
        match id.and_then(|id| Answer::of(&frame, id)) {
            Some(answer) => found = Some(answer?),
            None => drop(said.send(Said::Heard(Heard::Message(frame))).await),
        }
    }
    Ok(found)
}

/// Keeps the GET stream open. A server that has none says 405, and whatever else it says comes to
/// the same: its messages come on the streams of the requests.
async fn listen(line: Line, opened: oneshot::Sender<()>, said: mpsc::Sender<Said>) {
    let (mut place, mut opened, mut failed) = (Place::default(), Some(opened), 0);
    while failed < ATTEMPTS {
        match line.listen(place.last_id.as_deref()).await {
            Ok(response) if response.status().is_success() && is_stream(&response) => {
                failed = 0;
                opened.take().map(|opened| opened.send(()));
                let mut events = line.wire.events(response.into_body());
                // Whatever ends it, another one is asked for.
                let _ = read(&mut events, &mut place, None, &said).await;
            }
            Ok(response) if !response.status().is_server_error() => return,
            Ok(_) | Err(_) => failed += 1,
        }
        sleep(place.pause()).await;
    }
}
