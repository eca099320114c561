//! Handshake and sessions (2025-03-26 to 2025-11-25): the parts of a legacy client's messages that a relay
//! reads.
//!
//! In front of a legacy server a legacy client's session is the server's own, so little has to be read: which
//! methods a POST calls, under which ids, and, as the response is relayed, whether each request has been
//! answered.

use super::{
    ambiguity::{self, MessageAmbiguity},
    modern::error_response,
};
use crate::protocol::{
    ErrorObject, Frame, FrameError, Kind, MessageReader, Method, Payload, RequestId, Revision,
    headers::PROTOCOL_VERSION,
    message_kind::MessageKind,
    sse::{self, EventDecoder, StreamObserver},
};
use bytes::Bytes;
use http::HeaderValue;
use smallvec::SmallVec;
use std::{collections::HashSet, fmt, time::Duration};

/// The messages of one POST.
#[derive(Debug, Default)]
pub struct LegacyPost {
    /// One, or those of a batch (2025-03-26), in order.
    pub messages: SmallVec<[ClientMessage; 1]>,
    pub is_batch: bool,
    /// Why it is unknown which tools a server would call for it, if it is.
    pub ambiguity: Option<Box<MessageAmbiguity>>,
    /// The methods in a body that contains no valid messages; for the log.
    pub unread_methods: Option<Box<str>>,
    /// A message does not declare JSON-RPC 2.0 ([`Frame::is_json_rpc`]).
    pub is_unversioned: bool,
}

/// One message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    Request {
        id: RequestId,
        method: Method,
        /// The tool, prompt, resource or task that the request names.
        target: Option<String>,
    },
    Notification(Method),
    /// The client cancels the request with this id; `None` if it names none.
    Cancelled(Option<RequestId>),
    /// The client's response to the server's request with this id; `None` if the error names none.
    Response(Option<RequestId>),
}

/// Tracks which requests of a POST have been answered.
#[derive(Debug)]
pub struct ResponseTracker {
    /// The requests, in order. Some of a batch may have been answered.
    requests: SmallVec<[RequestId; 1]>,
    observer: StreamObserver,
    /// Only for several requests: a single one needs no matching and no decoding.
    batch: Option<Box<BatchTracker>>,
    last_response: Option<MessageKind>,
    /// Consecutive resumptions that delivered no message.
    fruitless_resumes: u32,
}

/// Where an event stream can be resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumePosition {
    /// The id of the last event that had one.
    pub last_id: HeaderValue,
    /// The server's delay before a resumption.
    pub retry: Option<Duration>,
    /// Consecutive resumptions that delivered no message.
    pub fruitless_resumes: u32,
}

/// The unanswered requests of a batch. A hash set, because a body may contain very many.
#[derive(Debug)]
struct BatchTracker {
    decoder: EventDecoder,
    /// The maximum size of one message, in bytes.
    limit: usize,
    open: HashSet<RequestId>,
}

/// The beginning of the hash of a session id, for the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionTag([u8; 8]);

// === impl LegacyPost ===

impl LegacyPost {
    /// Reads the messages of a body, without the checks that the server does itself.
    ///
    /// # Errors
    /// [`FrameError`] if any part of it is no message.
    pub fn read(messages: &mut MessageReader) -> Result<Self, FrameError> {
        let mut post = Self { is_batch: messages.is_batch(), ..Self::default() };
        messages.try_for_each(|frame| {
            post.take(&frame?);
            Ok(())
        })?;
        Ok(post)
    }

    /// The post of one parsed message.
    pub fn of(frame: &Frame) -> Self {
        let mut post = Self::default();
        post.take(frame);
        post
    }

    /// The post of a body that could not be read.
    pub fn unreadable(body: &[u8], error: FrameError) -> Self {
        let methods = ambiguity::named_methods(body);
        Self {
            ambiguity: Some(MessageAmbiguity::Unreadable(error).into()),
            unread_methods: (!methods.is_empty()).then(|| methods.into()),
            ..Self::default()
        }
    }

    fn take(&mut self, frame: &Frame) {
        let message = ClientMessage::of(frame);
        let target = match &message {
            ClientMessage::Request { target, .. } => target.as_deref(),
            ClientMessage::Notification(_) | ClientMessage::Cancelled(_) | ClientMessage::Response(_) => None,
        };
        self.is_unversioned |= !frame.is_json_rpc();
        self.ambiguity = self.ambiguity.take().or_else(|| ambiguity::find(frame, target).map(Box::new));
        self.messages.push(message);
    }

    /// The ids of the requests that it cancels (2025-11-25, *Cancellation*).
    pub fn cancelled_ids(&self) -> impl Iterator<Item = &RequestId> {
        self.messages.iter().filter_map(|message| match message {
            ClientMessage::Cancelled(id) => id.as_ref(),
            ClientMessage::Request { .. } | ClientMessage::Notification(_) | ClientMessage::Response(_) => {
                None
            }
        })
    }

    /// The tools that it calls, in order; an empty name if one cannot be read.
    pub fn called_tools(&self) -> impl Iterator<Item = &str> {
        self.messages.iter().filter_map(|message| match message {
            ClientMessage::Request { method: Method::ToolsCall, target, .. } => {
                Some(target.as_deref().unwrap_or_default())
            }
            ClientMessage::Request { .. }
            | ClientMessage::Notification(_)
            | ClientMessage::Cancelled(_)
            | ClientMessage::Response(_) => None,
        })
    }

    /// Whether it completes the handshake (`notifications/initialized`).
    pub fn completes_handshake(&self) -> bool {
        self.messages.contains(&ClientMessage::Notification(Method::Initialized))
    }

    /// Whether the server may send input requests while it serves this post.
    pub fn can_request_input(&self) -> bool {
        self.messages.iter().any(
            |message| matches!(message, ClientMessage::Request { method, .. } if method.can_request_input()),
        )
    }

    /// The ids of its requests. A repeated id is returned once.
    pub fn request_ids(&self) -> SmallVec<[RequestId; 1]> {
        let ids = self.messages.iter().filter_map(|message| match message {
            ClientMessage::Request { id, .. } => Some(id),
            ClientMessage::Notification(_) | ClientMessage::Cancelled(_) | ClientMessage::Response(_) => None,
        });
        if self.messages.len() <= 1 {
            return ids.cloned().collect();
        }
        let mut seen = HashSet::new();
        ids.filter(|id| seen.insert(*id)).cloned().collect()
    }
}

// === impl ClientMessage ===

impl ClientMessage {
    /// Copies its parts, because slices would keep the whole message alive.
    fn of(frame: &Frame) -> Self {
        match frame.kind() {
            Kind::Request { id, method, params } => Self::Request {
                id: id.detached(),
                method: method.clone(),
                target: target(method, params.as_ref()),
            },
            Kind::Notification { method: Method::Cancelled, params } => {
                let id = params.as_ref().and_then(|params| RequestId::from_token(params.get("requestId")?));
                Self::Cancelled(id.map(|id| id.detached()))
            }
            Kind::Notification { method, .. } => Self::Notification(method.clone()),
            Kind::Success { id, .. } => Self::Response(Some(id.detached())),
            Kind::Failure { id, .. } => Self::Response(id.as_ref().map(RequestId::detached)),
        }
    }

    /// Its method; `response` for a response.
    pub fn name(&self) -> &str {
        match self {
            Self::Request { method, .. } | Self::Notification(method) => method.as_str(),
            Self::Cancelled(_) => Method::Cancelled.as_str(),
            Self::Response(_) => "response",
        }
    }
}

/// `None` if the member is repeated, because the server might read the other one.
fn target(method: &Method, params: Option<&Payload>) -> Option<String> {
    let key = match method {
        Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => "uri",
        Method::TasksResult => "taskId",
        method => method.name_member()?,
    };
    params?.object()?.get_unique(key).and_then(|text| serde_json::from_slice(&text).ok())
}

// === impl ResponseTracker ===

impl ResponseTracker {
    /// A tracker without any response yet. `limit` is the maximum size of one message of a batch response, in
    /// bytes; after a larger one the tracker no longer matches responses to requests.
    pub fn new(waiting: SmallVec<[RequestId; 1]>, limit: usize) -> Self {
        let batch = (waiting.len() > 1).then(|| {
            let open = waiting.iter().cloned().collect();
            Box::new(BatchTracker { decoder: EventDecoder::new(limit), limit, open })
        });
        Self {
            requests: waiting,
            observer: StreamObserver::default(),
            batch,
            last_response: None,
            fruitless_resumes: 0,
        }
    }

    /// A tracker that also collects the server's messages.
    pub fn collecting_messages(mut self) -> Self {
        self.observer = StreamObserver::collecting_messages();
        self
    }

    /// The server's notifications and requests since the last call ([`StreamObserver::take_messages`]).
    pub fn take_messages(&mut self) -> Vec<Vec<u8>> {
        self.observer.take_messages()
    }

    /// Stops tracking all requests but these.
    pub fn retain(&mut self, owed: SmallVec<[RequestId; 1]>) {
        if let Some(batch) = &mut self.batch {
            batch.open = owed.iter().cloned().collect();
        }
        self.requests = owed;
    }

    /// Observes the next chunk of the response stream.
    pub fn observe(&mut self, chunk: &Bytes) {
        self.observer.observe(chunk);
        if self.observer.take_has_message() {
            self.fruitless_resumes = 0;
        }
        let Some(batch) = &mut self.batch else {
            if let Some(gist) = self.observer.response() {
                self.last_response = Some(gist);
                self.requests.clear();
            }
            return;
        };
        batch.decoder.feed(chunk.clone());
        loop {
            match batch.decoder.next_event() {
                Ok(Some(event)) => {
                    for (id, gist) in responses(&event.data) {
                        batch.open.remove(&id);
                        self.last_response = Some(gist);
                    }
                }
                Ok(None) => return,
                Err(_too_large) => {
                    self.requests.clear();
                    self.batch = None;
                    return;
                }
            }
        }
    }

    /// Whether a request is unanswered.
    pub fn has_unanswered(&self) -> bool {
        match &self.batch {
            Some(batch) => !batch.open.is_empty(),
            None => !self.requests.is_empty(),
        }
    }

    /// The unanswered requests, in the order of the post.
    pub fn unanswered(&self) -> SmallVec<[RequestId; 1]> {
        match &self.batch {
            Some(batch) => self.requests.iter().filter(|id| batch.open.contains(*id)).cloned().collect(),
            None => self.requests.clone(),
        }
    }

    /// The kind of the last response observed.
    pub fn last_response(&self) -> Option<MessageKind> {
        self.last_response
    }

    /// Whether the client can resume the stream from here.
    pub fn is_resumable(&self) -> bool {
        self.observer.is_resumable()
    }

    /// Where the proxy can resume the stream ([`StreamObserver::last_id`]).
    pub fn resume_position(&self) -> Option<ResumePosition> {
        let last_id = HeaderValue::from_bytes(self.observer.last_id()?).ok()?;
        Some(ResumePosition {
            last_id,
            retry: self.observer.retry(),
            fruitless_resumes: self.fruitless_resumes,
        })
    }

    /// The ids of the events before the last one ([`StreamObserver::earlier_ids`]).
    pub fn earlier_ids(&self) -> impl Iterator<Item = &[u8]> {
        self.observer.earlier_ids()
    }

    /// Counts one more resumption.
    pub fn count_resume(&mut self) {
        self.fruitless_resumes = self.fruitless_resumes.saturating_add(1);
    }

    /// The stream continues after the event with this id.
    pub fn resume_after(&mut self, id: &[u8]) {
        self.observer.resume_after(id);
    }

    /// Abandons an event that was cut off; the returned bytes must be sent before anything else
    /// ([`StreamObserver::abandon_event`]).
    pub fn abandon_event(&mut self) -> Bytes {
        if let Some(batch) = self.batch.as_mut().filter(|_| !self.observer.is_between_events()) {
            batch.decoder = EventDecoder::new(batch.limit);
        }
        self.observer.abandon_event().into()
    }

    /// Whether the proxy's own event can be inserted here.
    pub fn is_between_events(&self) -> bool {
        self.observer.is_between_events()
    }

    /// The end of a stream that broke off: an error for each unanswered request. A client without one would
    /// wait forever (`WIRE`, B 1, rule 20).
    pub fn closing_errors(&mut self, error: &ErrorObject) -> Bytes {
        let mut words = self.observer.abandon_event();
        for id in &self.unanswered() {
            words.extend_from_slice(&event(&error_response(Some(id), error)));
        }
        words.into()
    }
}

/// The ids of the responses in an event's data, including a batch.
fn responses(data: &Bytes) -> impl Iterator<Item = (RequestId, MessageKind)> {
    let text = sse::decode_lossy(data).unwrap_or_else(|| data.clone());
    MessageReader::of(text).filter_map(|frame| match frame.ok()?.kind() {
        Kind::Success { id, .. } => Some((id.clone(), MessageKind::Result)),
        Kind::Failure { id: Some(id), .. } => Some((id.clone(), MessageKind::Error)),
        Kind::Failure { id: None, .. } | Kind::Request { .. } | Kind::Notification { .. } => None,
    })
}

/// One message as a named event, as servers of this era write it. `json` contains no line break.
pub fn event(json: &[u8]) -> Bytes {
    [b"event: message\ndata: ", json, b"\n\n"].concat().into()
}

/// The revision in the headers of a session's requests, if it is a known one.
pub fn revision(headers: &http::HeaderMap) -> Option<Revision> {
    Revision::parse(headers.get(&PROTOCOL_VERSION)?.to_str().ok()?)
}

/// The revision that an `initialize` requests, if it names one. An unknown revision is assumed to be newer.
pub fn requested_revision(params: &Payload) -> Option<Revision> {
    let version = params.string("protocolVersion")?;
    Some(Revision::parse(&version).unwrap_or(Revision::NEWEST_LEGACY))
}

/// The revision in the result of an `initialize`, as the server spells it.
pub fn negotiated_revision(answer: &Frame) -> Option<String> {
    let Kind::Success { result, .. } = answer.kind() else { return None };
    result.string("protocolVersion")
}

/// A response with this result, which is on one line.
pub fn success(id: &RequestId, result: &[u8]) -> Bytes {
    super::modern::success_response(id, result)
}

/// A notification with these params.
pub fn notification(method: &Method, params: &[u8]) -> Bytes {
    [br#"{"jsonrpc":"2.0","method":""#, method.as_str().as_bytes(), br#"","params":"#, params, b"}"]
        .concat()
        .into()
}

/// The notification that cancels a request (2025-11-25, *Cancellation*).
pub fn cancelled_notification(request: &RequestId, reason: &str) -> Bytes {
    let reason = serde_json::to_string(reason).expect("a string is written to memory");
    let params =
        [br#"{"requestId":"#, &**request.as_bytes(), br#","reason":"#, reason.as_bytes(), b"}"].concat();
    notification(&Method::Cancelled, &params)
}

/// The JSON document that refuses all requests of a POST: one error response, or a batch of them.
pub fn error_responses(waiting: &[RequestId], error: &ErrorObject) -> Bytes {
    match waiting {
        [] => error_response(None, error),
        [id] => error_response(Some(id), error),
        several => {
            let responses: Vec<_> = several.iter().map(|id| error_response(Some(id), error)).collect();
            [b"[", &responses.join(&b","[..])[..], b"]"].concat().into()
        }
    }
}

// === impl SessionTag ===

impl SessionTag {
    pub fn of(session: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, session);
        let mut tag = [0; 8];
        tag.copy_from_slice(&digest.as_ref()[..8]);
        Self(tag)
    }
}

impl fmt::Display for SessionTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionTag({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> LegacyPost {
        LegacyPost::read(&mut MessageReader::of(Bytes::from_static(text.as_bytes()))).expect("messages")
    }

    fn ids(tokens: &[&'static str]) -> SmallVec<[RequestId; 1]> {
        tokens
            .iter()
            .map(|token| RequestId::from_token(Bytes::from_static(token.as_bytes())).expect("an id"))
            .collect()
    }

    fn seen(waiting: &[&'static str], stream: &'static str) -> ResponseTracker {
        let mut answers = ResponseTracker::new(ids(waiting), 1000);
        // Chunk boundaries at the worst possible places.
        for byte in stream.as_bytes().chunks(1) {
            answers.observe(&Bytes::from_static(byte));
        }
        answers
    }

    #[test]
    fn each_kind_of_message_is_detected() {
        let post = read(
            r#" [{"id":1,"method":"tools/call","params":{"arguments":{"name":"no"},"name":"t"}},
                {"method":"notifications/cancelled"},{"id":"q","result":{}},{"id":2,"method":"ping"},
                {"id":"u","method":"resources/read","params":{"uri":"file:///a"}},{"id":2,"method":"x"}]"#,
        );
        let names: Vec<_> = post.messages.iter().map(ClientMessage::name).collect();
        assert_eq!(
            names,
            ["tools/call", "notifications/cancelled", "response", "ping", "resources/read", "x"]
        );
        assert_eq!(post.request_ids(), ids(&["1", "2", r#""u""#]));
        let target = |at: usize| match &post.messages[at] {
            ClientMessage::Request { target, .. } => target.as_deref(),
            other => panic!("{other:?}"),
        };
        assert_eq!((target(0), target(3), target(4)), (Some("t"), None, Some("file:///a")));
        assert!(read("[]").messages.is_empty());
        assert!(LegacyPost::read(&mut MessageReader::of(Bytes::from_static(b"[{\"id\":{}}]"))).is_err());
    }

    #[test]
    fn the_response_on_a_stream_answers_the_one_request() {
        let stream = "data: {\"method\":\"n\"}\n\ndata: {\"result\":{},\"id\":\"1\"}\n\n";
        let answers = seen(&["1"], stream);
        assert!(answers.unanswered().is_empty(), "whatever id it carries");
        assert_eq!(answers.last_response(), Some(MessageKind::Result));
        assert_eq!(seen(&["1"], "data: {\"method\":\"n\"}\n\n").unanswered(), ids(&["1"]));
    }

    #[test]
    fn responses_are_matched_to_several_requests() {
        let stream = "data: {\"id\":2,\"result\":{}}\n\ndata: {\"id\":9,\"result\":{}}\n\n";
        assert_eq!(seen(&["1", "2", "3"], stream).unanswered(), ids(&["1", "3"]));
        let batch = "data: [{\"id\":3,\"error\":{}},{\"id\":1,\"result\":{}}]\n\n";
        assert_eq!(seen(&["1", "2", "3"], batch).unanswered(), ids(&["2"]));
    }

    #[test]
    fn each_unanswered_request_gets_an_error() {
        let error = ErrorObject::new(-1, "gone");
        let one = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"gone"}}"#;
        assert_eq!(seen(&["1"], "").closing_errors(&error), format!("event: message\ndata: {one}\n\n"));
        let cut = seen(&["1", "2"], "data: {\"id\":2,\"result\":{}}\n\ndata: {").closing_errors(&error);
        assert_eq!(cut, format!("\nevent: incomplete\n\nevent: message\ndata: {one}\n\n"));
        assert_eq!(error_responses(&ids(&["1"]), &error), one);
        assert_eq!(
            error_responses(&ids(&["1", "2"]), &error),
            format!("[{one},{}]", one.replace("\"id\":1", "\"id\":2"))
        );
        assert_eq!(error_responses(&[], &error), r#"{"jsonrpc":"2.0","error":{"code":-1,"message":"gone"}}"#);
    }

    #[test]
    fn cancellations_are_read_alone_and_in_a_batch() {
        let cancel = |id: &str| {
            format!(r#"{{"method":"notifications/cancelled","params":{{"requestId":{id},"reason":"x"}}}}"#)
        };
        let cancelled = |body: String| -> Vec<RequestId> {
            let post = LegacyPost::read(&mut MessageReader::of(body.into())).expect("messages");
            post.cancelled_ids().cloned().collect()
        };
        assert_eq!(cancelled(cancel("23")), ids(&["23"])[..]);
        let batch = format!(r#"[{},{{"id":9,"method":"ping"}},{}]"#, cancel("1"), cancel("\"a\""));
        assert_eq!(cancelled(batch), ids(&["1", "\"a\""])[..]);
        assert!(cancelled(cancel("{}")).is_empty());
        assert!(cancelled(r#"{"method":"notifications/cancelled"}"#.to_owned()).is_empty());
    }

    #[test]
    fn a_session_tag_distinguishes_sessions_without_revealing_their_ids() {
        let tag = SessionTag::of(b"secret").to_string();
        assert_eq!(tag.len(), 16);
        assert_eq!(tag, SessionTag::of(b"secret").to_string());
        assert_ne!(tag, SessionTag::of(b"other").to_string());
    }
}
