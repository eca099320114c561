//! The messages in one HTTP answer, be it one JSON document or a stream of events.
//!
//! An event that is no message (a keep-alive as text, a member too many, an empty batch) is skipped and counted, as
//! the clients of SDKs do: only the end of the stream says that there is no response. The text of a stream is decoded
//! as that of event streams is (WHATWG HTML, *Parsing an event stream*): bytes that are no UTF-8 become U+FFFD.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header};
use http_body::Body;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::server::StreamableHttp;
use crate::{
    protocol::{
        Frame, FrameError, MessageReader as Parts,
        accept::{self, is_media},
        sse::{self, EventDecoder},
    },
    telemetry::EventSkipped,
    upstream::{CallError, http1::IncomingBody, root_cause},
};

/// What an answer's head announces.
pub(super) enum ResponseClass {
    /// Messages follow.
    Messages(ResponseReader),
    /// Taken, and nothing follows here (202).
    Accepted,
    /// An HTTP error, whose body may still be a JSON-RPC message.
    Refused(http::response::Parts, IncomingBody),
}

/// Reads messages from an answer's body.
pub(super) struct ResponseReader {
    body: IncomingBody,
    form: BodyFormat,
    /// For one message, in bytes.
    limit: usize,
    /// Something has arrived since this was last asked.
    progress: bool,
    /// What is left of the last document or event: there were batches (2025-03-26).
    left: Parts,
    /// The route whose server answers, which skipped events are counted for.
    route: Arc<str>,
    /// Why the last part that was skipped is no message.
    skipped: Option<FrameError>,
}

enum BodyFormat {
    /// One JSON document: what has come of it, where it took more than one chunk.
    Document(BytesMut),
    Events(Box<SseEvents>),
    /// The body has ended.
    Ended,
}

struct SseEvents {
    decoder: EventDecoder,
    resumption: SseResumption,
}

/// What is needed to take up a broken stream again.
#[derive(Clone, Debug, Default)]
pub(super) struct SseResumption {
    /// The id of the last event that had one.
    pub(super) last_id: Option<String>,
    /// How long the server wants to be left alone before.
    pub(super) retry: Option<Duration>,
    /// How often it was taken up since it last brought a message.
    pub(super) fruitless: u32,
}

/// Why reading stopped.
#[derive(Debug)]
pub(super) enum ReadEnd {
    /// The body ended, or broke (then there is a reason).
    Ended(Option<String>),
    Lost(CallError),
}

// === impl Opening ===

impl ResponseClass {
    /// Reads the head of an answer of `server`.
    ///
    /// # Errors
    /// [`CallError::Invalid`] where no message can follow: the body is empty, or of another content type.
    pub(super) fn of(
        response: http::Response<IncomingBody>,
        server: &StreamableHttp,
    ) -> Result<Self, CallError> {
        let limit = server.config.load().limits.result_bytes;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            return Ok(Self::Refused(head, body));
        }
        let is_empty = body.size_hint().exact() == Some(0);
        if head.status == StatusCode::ACCEPTED && (is_empty || !is_events(&head.headers)) {
            return Ok(Self::Accepted);
        }
        // Only a 202 says that there may be more elsewhere.
        if is_empty {
            return Err(no_response());
        }
        let form = match head.headers.get(header::CONTENT_TYPE) {
            _ if is_events(&head.headers) => BodyFormat::Events(Box::new(SseEvents::new(limit))),
            None => BodyFormat::Document(BytesMut::new()),
            kind if is_media(kind, accept::JSON) => BodyFormat::Document(BytesMut::new()),
            Some(kind) => {
                let kind = String::from_utf8_lossy(kind.as_bytes()).into_owned();
                return Err(CallError::Invalid(format!(
                    "its content type is {kind}, not JSON or an event stream"
                )));
            }
        };
        Ok(Self::Messages(ResponseReader {
            body,
            form,
            limit,
            progress: true,
            left: Parts::default(),
            route: Arc::clone(&server.route),
            skipped: None,
        }))
    }
}

pub(super) fn is_events(headers: &HeaderMap) -> bool {
    is_media(headers.get(header::CONTENT_TYPE), accept::EVENT_STREAM)
}

// === impl Events ===

impl SseEvents {
    fn new(limit: usize) -> Self {
        Self { decoder: EventDecoder::new(limit), resumption: SseResumption::default() }
    }

    /// The data of the next event that holds a message.
    fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            let event = match self.decoder.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(None),
                Err(error) => return Err(CallError::TooLarge { limit: error.limit }),
            };
            self.resumption.retry = event.retry.or(self.resumption.retry);
            if let Some(id) = event.id {
                self.resumption.last_id = Some(id).filter(|id| !id.is_empty());
            }
            let is_message = event.event.as_deref().is_none_or(|name| name.is_empty() || name == "message");
            if is_message && !event.data.is_empty() {
                return Ok(Some(event.data));
            }
        }
    }
}

// === impl Messages ===

impl ResponseReader {
    /// The next message. Once this has given [`ReadEnd`] there is no further one.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, ReadEnd>> {
        loop {
            while let Some(part) = self.left.next() {
                match part {
                    Ok(frame) => {
                        if let BodyFormat::Events(events) = &mut self.form {
                            events.resumption.fruitless = 0;
                        }
                        return Poll::Ready(Ok(frame));
                    }
                    Err(error) => self.skip(error),
                }
            }
            match &mut self.form {
                BodyFormat::Ended => return Poll::Ready(Err(ReadEnd::Lost(self.no_response()))),
                BodyFormat::Events(events) => match events.next() {
                    Ok(Some(data)) => {
                        self.take_event(data);
                        continue;
                    }
                    Ok(None) => {}
                    Err(lost) => return Poll::Ready(Err(ReadEnd::Lost(lost))),
                },
                BodyFormat::Document(_) => {}
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    self.progress = true;
                    let Ok(chunk) = frame.into_data() else { continue };
                    if let Some(document) = self.feed(chunk)? {
                        self.left = Parts::of(document);
                    }
                }
                Some(Err(error)) => {
                    return Poll::Ready(Err(ReadEnd::Ended(Some(root_cause(&error)))));
                }
                None => match std::mem::replace(&mut self.form, BodyFormat::Ended) {
                    BodyFormat::Document(document) if !document.is_empty() => {
                        self.left = Parts::of(document.freeze());
                    }
                    events @ BodyFormat::Events(_) => {
                        self.form = events;
                        return Poll::Ready(Err(ReadEnd::Ended(self.why_ended())));
                    }
                    BodyFormat::Document(_) | BodyFormat::Ended => {}
                },
            }
        }
    }

    /// Takes a chunk, and gives the whole document where this completed it.
    fn feed(&mut self, chunk: Bytes) -> Result<Option<Bytes>, ReadEnd> {
        match &mut self.form {
            BodyFormat::Events(events) => events.decoder.feed(chunk),
            BodyFormat::Document(document) => {
                if document.len() + chunk.len() > self.limit {
                    return Err(ReadEnd::Lost(CallError::TooLarge { limit: self.limit }));
                }
                // The usual case, a small answer of known length, is not copied.
                if document.is_empty() && self.body.is_end_stream() {
                    self.form = BodyFormat::Ended;
                    return Ok(Some(chunk));
                }
                if document.is_empty() {
                    // What a header claims is believed up to a bound only.
                    let more = usize::try_from(self.body.size_hint().lower()).unwrap_or(0);
                    document.reserve(chunk.len() + more.min(1 << 20));
                }
                document.extend_from_slice(&chunk);
            }
            BodyFormat::Ended => {}
        }
        Ok(None)
    }

    /// Takes the data of an event, which may hold several messages, or none.
    fn take_event(&mut self, data: Bytes) {
        let parts = Parts::of(data);
        // One message is looked at again where it cannot be read; the parts of a batch are read one by one.
        self.left = match parts.is_batch() {
            true => sse::decode_lossy(parts.bytes()).map_or(parts, Parts::of),
            false => parts,
        };
        if self.left.is_empty() {
            self.skip(FrameError::Shape { id: None });
        }
    }

    /// Passes over a part of the answer that is no message. Of a document, that is all of it.
    fn skip(&mut self, error: FrameError) {
        if matches!(self.form, BodyFormat::Events(_)) {
            if !self.left.is_batch()
                && let Some(text) = sse::decode_lossy(self.left.bytes())
            {
                self.left = Parts::of(text);
                return;
            }
            EventSkipped { route: &self.route, why: &error }.emit();
        }
        self.skipped = Some(error);
    }

    /// Why a document has no response, or no further one.
    fn no_response(&self) -> CallError {
        match &self.skipped {
            Some(error) => CallError::Invalid(error.to_string()),
            None => no_response(),
        }
    }

    /// Why a stream that came to its end may have none, where that is known.
    fn why_ended(&self) -> Option<String> {
        let error = self.skipped.as_ref()?;
        Some(format!(
            "the answer ended without a response; an event in it was skipped, which is no message: {error}"
        ))
    }

    /// Whether anything has arrived since this was last asked.
    pub(super) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.progress)
    }

    /// Where a broken stream can be taken up; `Missing` for what is no stream.
    pub(super) fn resumption(&self) -> Option<&SseResumption> {
        match &self.form {
            BodyFormat::Events(events) => Some(&events.resumption),
            BodyFormat::Document(_) | BodyFormat::Ended => None,
        }
    }

    /// Goes on from where an earlier stream broke.
    pub(super) fn continue_from(&mut self, earlier: SseResumption) {
        if let BodyFormat::Events(events) = &mut self.form {
            events.resumption = earlier;
        }
    }

    /// The body, where there may be more of it to read before the connection is free.
    pub(super) fn into_rest(self) -> Option<IncomingBody> {
        (!matches!(self.form, BodyFormat::Ended) && !self.body.is_end_stream()).then_some(self.body)
    }
}

fn no_response() -> CallError {
    CallError::Invalid("it holds no response to the request".to_owned())
}

impl From<ReadEnd> for CallError {
    fn from(stop: ReadEnd) -> Self {
        match stop {
            ReadEnd::Lost(lost) => lost,
            ReadEnd::Ended(why) => {
                Self::Broken(why.unwrap_or_else(|| "the answer ended without a response".to_owned()))
            }
        }
    }
}
