//! Reader of the messages in one HTTP response, a JSON document or an event stream.
//!
//! An event that is not a message (a keep-alive text, a duplicate member, an empty batch) is skipped and
//! counted, as in the clients of SDKs: only the end of the stream means that there is no response. The text
//! of a stream is decoded by the rules of event streams (WHATWG HTML, *Parsing an event stream*): invalid
//! UTF-8 becomes U+FFFD.

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

/// Class of a response, determined by its head.
pub(super) enum ResponseClass {
    /// Messages follow.
    Messages(ResponseReader),
    /// The message was accepted, and no messages follow (HTTP 202).
    Accepted,
    /// An HTTP error, whose body may still be a JSON-RPC message.
    Refused(http::response::Parts, IncomingBody),
}

/// Reads messages from a response body.
pub(super) struct ResponseReader {
    body: IncomingBody,
    format: BodyFormat,
    /// Limit of one message, in bytes.
    limit: usize,
    /// Whether bytes have arrived since the last [`ResponseReader::take_progress`].
    has_progress: bool,
    /// Messages that remain of the last document or event: batches (2025-03-26).
    remaining: Parts,
    /// Route of the server, for the count of skipped events.
    route: Arc<str>,
    /// Reason why the last skipped part of the response is not a message.
    skip_reason: Option<FrameError>,
}

enum BodyFormat {
    /// A JSON document: the bytes so far, if it arrives in more than one chunk.
    Document(BytesMut),
    /// An event stream.
    Events(Box<SseEvents>),
    /// The body has ended.
    Ended,
}

/// Decoder of an event stream, with its resume position.
struct SseEvents {
    decoder: EventDecoder,
    resumption: SseResumption,
}

/// Position at which a broken stream is resumed.
#[derive(Clone, Debug, Default)]
pub(super) struct SseResumption {
    /// Last event id.
    pub(super) last_id: Option<String>,
    /// Pause that the server requests before a resumption.
    pub(super) retry: Option<Duration>,
    /// Number of consecutive resumptions without a message.
    pub(super) fruitless: u32,
}

/// Reason why reading stopped.
#[derive(Debug)]
pub(super) enum ReadEnd {
    /// The body ended, or broke for this reason. An event stream may be resumed.
    Ended(Option<String>),
    /// A message cannot be read, or a document holds no response.
    Lost(CallError),
}

// === impl ResponseClass ===

impl ResponseClass {
    /// Classifies a response of `server` by its head.
    ///
    /// # Errors
    /// [`CallError::Invalid`] if no message can follow: the body is empty, or has another content type.
    pub(super) fn classify(
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
        // Only a 202 means that the response may arrive elsewhere.
        if is_empty {
            return Err(no_response());
        }
        let format = match head.headers.get(header::CONTENT_TYPE) {
            _ if is_events(&head.headers) => BodyFormat::Events(Box::new(SseEvents::new(limit))),
            None => BodyFormat::Document(BytesMut::new()),
            content_type if is_media(content_type, accept::JSON) => BodyFormat::Document(BytesMut::new()),
            Some(content_type) => {
                let content_type = String::from_utf8_lossy(content_type.as_bytes()).into_owned();
                return Err(CallError::Invalid(format!(
                    "its content type is {content_type}, not JSON or an event stream"
                )));
            }
        };
        Ok(Self::Messages(ResponseReader {
            body,
            format,
            limit,
            has_progress: true,
            remaining: Parts::default(),
            route: Arc::clone(&server.route),
            skip_reason: None,
        }))
    }
}

/// Whether the content type is `text/event-stream`.
pub(super) fn is_events(headers: &HeaderMap) -> bool {
    is_media(headers.get(header::CONTENT_TYPE), accept::EVENT_STREAM)
}

// === impl SseEvents ===

impl SseEvents {
    fn new(limit: usize) -> Self {
        Self { decoder: EventDecoder::new(limit), resumption: SseResumption::default() }
    }

    /// Data of the next message event; `None` if more bytes are needed.
    fn next_data(&mut self) -> Result<Option<Bytes>, CallError> {
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

// === impl ResponseReader ===

impl ResponseReader {
    /// Polls the next message. Must not be polled after it returned [`ReadEnd`].
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, ReadEnd>> {
        loop {
            while let Some(part) = self.remaining.next() {
                match part {
                    Ok(frame) => {
                        if let BodyFormat::Events(events) = &mut self.format {
                            events.resumption.fruitless = 0;
                        }
                        return Poll::Ready(Ok(frame));
                    }
                    Err(error) => self.skip(error),
                }
            }
            match &mut self.format {
                BodyFormat::Ended => return Poll::Ready(Err(ReadEnd::Lost(self.no_response()))),
                BodyFormat::Events(events) => match events.next_data() {
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
                    self.has_progress = true;
                    let Ok(chunk) = frame.into_data() else { continue };
                    if let Some(document) = self.feed(chunk)? {
                        self.remaining = Parts::new(document);
                    }
                }
                Some(Err(error)) => {
                    return Poll::Ready(Err(ReadEnd::Ended(Some(root_cause(&error)))));
                }
                None => match std::mem::replace(&mut self.format, BodyFormat::Ended) {
                    BodyFormat::Document(document) if !document.is_empty() => {
                        self.remaining = Parts::new(document.freeze());
                    }
                    events @ BodyFormat::Events(_) => {
                        self.format = events;
                        return Poll::Ready(Err(ReadEnd::Ended(self.end_reason())));
                    }
                    BodyFormat::Document(_) | BodyFormat::Ended => {}
                },
            }
        }
    }

    /// Adds a chunk of the body, and returns the document if that completes it.
    fn feed(&mut self, chunk: Bytes) -> Result<Option<Bytes>, ReadEnd> {
        match &mut self.format {
            BodyFormat::Events(events) => events.decoder.feed(chunk),
            BodyFormat::Document(document) => {
                if document.len() + chunk.len() > self.limit {
                    return Err(ReadEnd::Lost(CallError::TooLarge { limit: self.limit }));
                }
                // A small response of known length, the usual case, is not copied.
                if document.is_empty() && self.body.is_end_stream() {
                    self.format = BodyFormat::Ended;
                    return Ok(Some(chunk));
                }
                if document.is_empty() {
                    // The announced length is trusted up to a bound only.
                    let more = usize::try_from(self.body.size_hint().lower()).unwrap_or(0);
                    document.reserve(chunk.len() + more.min(1 << 20));
                }
                document.extend_from_slice(&chunk);
            }
            BodyFormat::Ended => {}
        }
        Ok(None)
    }

    /// Takes the data of an event, which may hold several messages or none.
    fn take_event(&mut self, data: Bytes) {
        let parts = Parts::new(data);
        // Decode a single message again if it cannot be read; read the parts of a batch one by one.
        self.remaining = match parts.is_batch() {
            true => sse::decode_lossy(parts.bytes()).map_or(parts, Parts::new),
            false => parts,
        };
        if self.remaining.is_empty() {
            self.skip(FrameError::Shape { id: None });
        }
    }

    /// Skips a part of the response that is not a message: an event, an element of a batch, or a whole
    /// document.
    fn skip(&mut self, error: FrameError) {
        if matches!(self.format, BodyFormat::Events(_)) {
            if !self.remaining.is_batch()
                && let Some(text) = sse::decode_lossy(self.remaining.bytes())
            {
                self.remaining = Parts::new(text);
                return;
            }
            EventSkipped { route: &self.route, why: &error }.emit();
        }
        self.skip_reason = Some(error);
    }

    /// Error of a document that holds no further response.
    fn no_response(&self) -> CallError {
        match &self.skip_reason {
            Some(error) => CallError::Invalid(error.to_string()),
            None => no_response(),
        }
    }

    /// Reason why a stream that has ended may hold no response, if an event was skipped.
    fn end_reason(&self) -> Option<String> {
        let error = self.skip_reason.as_ref()?;
        Some(format!(
            "the answer ended without a response; an event in it was skipped, because it is not a message: {error}"
        ))
    }

    /// Returns whether bytes have arrived since the last call, and resets the mark.
    pub(super) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.has_progress)
    }

    /// Resume position of an event stream; `None` for a document.
    pub(super) fn resumption(&self) -> Option<&SseResumption> {
        match &self.format {
            BodyFormat::Events(events) => Some(&events.resumption),
            BodyFormat::Document(_) | BodyFormat::Ended => None,
        }
    }

    /// Sets the resume position of an earlier, broken stream, which this response continues.
    pub(super) fn continue_from(&mut self, earlier: SseResumption) {
        if let BodyFormat::Events(events) = &mut self.format {
            events.resumption = earlier;
        }
    }

    /// Returns the body, if it must be read to its end before its connection can be reused.
    pub(super) fn into_remainder(self) -> Option<IncomingBody> {
        (!matches!(self.format, BodyFormat::Ended) && !self.body.is_end_stream()).then_some(self.body)
    }
}

/// Error of a response without a message.
fn no_response() -> CallError {
    CallError::Invalid("it holds no response to the request".to_owned())
}

impl From<ReadEnd> for CallError {
    fn from(end: ReadEnd) -> Self {
        match end {
            ReadEnd::Lost(error) => error,
            ReadEnd::Ended(reason) => {
                Self::Broken(reason.unwrap_or_else(|| "the answer ended without a response".to_owned()))
            }
        }
    }
}
