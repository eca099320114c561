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

/// The messages in the body of one POST of a legacy client.
#[derive(Debug, Default)]
pub struct LegacyPost {
    /// The single message, or the messages of a batch (2025-03-26) in order.
    pub messages: SmallVec<[ClientMessage; 1]>,
    /// Whether the body is a batch (a JSON array).
    pub is_batch: bool,
    /// The reason why it is unknown which tools a server would call for this POST; `None` if it is known.
    pub ambiguity: Option<Box<MessageAmbiguity>>,
    /// The methods in a body that contains no valid messages, for the log; `None` if the body is valid or
    /// none is found.
    pub unread_methods: Option<Box<str>>,
    /// Whether a message does not declare JSON-RPC 2.0 ([`Frame::is_json_rpc`]).
    pub is_unversioned: bool,
}

/// One message of a legacy client, with the parts that the proxy's decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// A request of the client.
    Request {
        id: RequestId,
        method: Method,
        /// The tool, prompt, resource or task that the request names.
        target: Option<String>,
    },
    /// Any notification but a cancellation.
    Notification(Method),
    /// The client cancels the request with this id; `None` if the message names no valid id.
    Cancelled(Option<RequestId>),
    /// The client's response to the server's request with this id; `None` for an error without an id.
    Response(Option<RequestId>),
}

/// Tracks on an event stream which requests of a POST have been answered.
#[derive(Debug)]
pub struct ResponseTracker {
    /// The requests in the order of the POST, those of a batch including answered ones.
    requests: SmallVec<[RequestId; 1]>,
    observer: StreamObserver,
    /// Present for several requests only: a single request needs no decoding, because the first response
    /// answers it.
    batch: Option<Box<BatchTracker>>,
    last_response: Option<MessageKind>,
    /// The number of consecutive resumptions after which no message arrived.
    fruitless_resumes: u32,
}

/// The position after which an event stream can be resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumePosition {
    /// The id of the last event that had one.
    pub last_id: HeaderValue,
    /// The delay before a resumption that the server requested (`retry` field); `None` if it requested none.
    pub retry: Option<Duration>,
    /// The number of consecutive resumptions after which no message arrived.
    pub fruitless_resumes: u32,
}

/// The unanswered requests of a batch. A hash set, because a body may contain very many.
#[derive(Debug)]
struct BatchTracker {
    decoder: EventDecoder,
    /// The maximum size of one message, in bytes.
    limit: usize,
    unanswered: HashSet<RequestId>,
}

/// The first 8 bytes of the hash of a session id, which identify the session in the log without revealing its
/// id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionTag([u8; 8]);

// === impl LegacyPost ===

impl LegacyPost {
    /// Reads the messages of a body. Omits the checks that the server makes itself.
    ///
    /// # Errors
    /// [`FrameError`] if any part of the body is not a message.
    pub fn read(messages: &mut MessageReader) -> Result<Self, FrameError> {
        let mut post = Self { is_batch: messages.is_batch(), ..Self::default() };
        messages.try_for_each(|frame| {
            post.add_message(&frame?);
            Ok(())
        })?;
        Ok(post)
    }

    /// Creates the post of one parsed message.
    pub fn from_frame(frame: &Frame) -> Self {
        let mut post = Self::default();
        post.add_message(frame);
        post
    }

    /// Creates the post of a body that could not be parsed; it has no messages, and is ambiguous.
    pub fn unreadable(body: &[u8], error: FrameError) -> Self {
        let methods = ambiguity::collect_methods(body);
        Self {
            ambiguity: Some(MessageAmbiguity::Unreadable(error).into()),
            unread_methods: (!methods.is_empty()).then(|| methods.into()),
            ..Self::default()
        }
    }

    /// Adds one message.
    fn add_message(&mut self, frame: &Frame) {
        let message = ClientMessage::from_frame(frame);
        let target = match &message {
            ClientMessage::Request { target, .. } => target.as_deref(),
            ClientMessage::Notification(_) | ClientMessage::Cancelled(_) | ClientMessage::Response(_) => None,
        };
        self.is_unversioned |= !frame.is_json_rpc();
        self.ambiguity =
            self.ambiguity.take().or_else(|| ambiguity::find_ambiguity(frame, target).map(Box::new));
        self.messages.push(message);
    }

    /// Returns the ids of the requests that the post cancels (2025-11-25, *Cancellation*).
    pub fn cancelled_ids(&self) -> impl Iterator<Item = &RequestId> {
        self.messages.iter().filter_map(|message| match message {
            ClientMessage::Cancelled(id) => id.as_ref(),
            ClientMessage::Request { .. } | ClientMessage::Notification(_) | ClientMessage::Response(_) => {
                None
            }
        })
    }

    /// Returns the names of the tools that the post calls, in order; an empty name for a call whose tool
    /// cannot be read.
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

    /// Whether the post completes the handshake (`notifications/initialized`).
    pub fn completes_handshake(&self) -> bool {
        self.messages.contains(&ClientMessage::Notification(Method::Initialized))
    }

    /// Whether the server may send input requests while it serves this post.
    pub fn can_request_input(&self) -> bool {
        self.messages.iter().any(
            |message| matches!(message, ClientMessage::Request { method, .. } if method.can_request_input()),
        )
    }

    /// Returns the ids of the requests in the post; a repeated id only once.
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
    /// Reads the parts of a message. They are copied, because slices would keep the whole message alive.
    fn from_frame(frame: &Frame) -> Self {
        match frame.kind() {
            Kind::Request { id, method, params } => Self::Request {
                id: id.detached(),
                method: method.clone(),
                target: read_target(method, params.as_ref()),
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

    /// Returns the message's method for the log; `response` for a response.
    pub fn method_name(&self) -> &str {
        match self {
            Self::Request { method, .. } | Self::Notification(method) => method.as_str(),
            Self::Cancelled(_) => Method::Cancelled.as_str(),
            Self::Response(_) => "response",
        }
    }
}

/// Reads the name of the tool, prompt, resource or task in the parameters of a request. `None` if the member
/// is missing or repeated, because the server might read the other one.
fn read_target(method: &Method, params: Option<&Payload>) -> Option<String> {
    let key = match method {
        Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => "uri",
        Method::TasksResult => "taskId",
        method => method.name_member()?,
    };
    params?.object()?.get_unique(key).and_then(|text| serde_json::from_slice(&text).ok())
}

// === impl ResponseTracker ===

impl ResponseTracker {
    /// Creates a tracker for the requests in `waiting`. `limit` is the maximum size of one message of a batch
    /// response, in bytes; after a larger message the tracker counts all requests as answered.
    pub fn new(waiting: SmallVec<[RequestId; 1]>, limit: usize) -> Self {
        let batch = (waiting.len() > 1).then(|| {
            let unanswered = waiting.iter().cloned().collect();
            Box::new(BatchTracker { decoder: EventDecoder::new(limit), limit, unanswered })
        });
        Self {
            requests: waiting,
            observer: StreamObserver::default(),
            batch,
            last_response: None,
            fruitless_resumes: 0,
        }
    }

    /// Makes the tracker also collect the server's notifications and requests
    /// ([`ResponseTracker::take_messages`]).
    pub fn collecting_messages(mut self) -> Self {
        self.observer = StreamObserver::collecting_messages();
        self
    }

    /// Takes the server's notifications and requests since the last call ([`StreamObserver::take_messages`]).
    pub fn take_messages(&mut self) -> Vec<Vec<u8>> {
        self.observer.take_messages()
    }

    /// Tracks only these requests from now on.
    pub fn retain_unanswered(&mut self, unanswered: SmallVec<[RequestId; 1]>) {
        if let Some(batch) = &mut self.batch {
            batch.unanswered = unanswered.iter().cloned().collect();
        }
        self.requests = unanswered;
    }

    /// Observes the next chunk of the response stream.
    pub fn observe(&mut self, chunk: &Bytes) {
        self.observer.observe(chunk);
        if self.observer.take_has_message() {
            self.fruitless_resumes = 0;
        }
        let Some(batch) = &mut self.batch else {
            if let Some(kind) = self.observer.response() {
                self.last_response = Some(kind);
                self.requests.clear();
            }
            return;
        };
        batch.decoder.feed(chunk.clone());
        loop {
            match batch.decoder.next_event() {
                Ok(Some(event)) => {
                    for (id, kind) in read_responses(&event.data) {
                        batch.unanswered.remove(&id);
                        self.last_response = Some(kind);
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

    /// Whether any tracked request is unanswered.
    pub fn has_unanswered(&self) -> bool {
        match &self.batch {
            Some(batch) => !batch.unanswered.is_empty(),
            None => !self.requests.is_empty(),
        }
    }

    /// Returns the unanswered requests in the order of the post.
    pub fn unanswered(&self) -> SmallVec<[RequestId; 1]> {
        match &self.batch {
            Some(batch) => {
                self.requests.iter().filter(|id| batch.unanswered.contains(*id)).cloned().collect()
            }
            None => self.requests.clone(),
        }
    }

    /// Returns the kind of the last response on the stream; `None` before the first.
    pub fn last_response(&self) -> Option<MessageKind> {
        self.last_response
    }

    /// Whether the client can resume the stream, if it ends here.
    pub fn is_resumable(&self) -> bool {
        self.observer.is_resumable()
    }

    /// Returns the position after which the stream can be resumed ([`StreamObserver::last_id`]); `None` if no
    /// event had an id.
    pub fn resume_position(&self) -> Option<ResumePosition> {
        let last_id = HeaderValue::from_bytes(self.observer.last_id()?).ok()?;
        Some(ResumePosition {
            last_id,
            retry: self.observer.retry(),
            fruitless_resumes: self.fruitless_resumes,
        })
    }

    /// Returns the ids of the events before the last event ([`StreamObserver::earlier_ids`]).
    pub fn earlier_ids(&self) -> impl Iterator<Item = &[u8]> {
        self.observer.earlier_ids()
    }

    /// Counts one more resumption; the count is reset when a message arrives.
    pub fn count_resume(&mut self) {
        self.fruitless_resumes = self.fruitless_resumes.saturating_add(1);
    }

    /// Records that the stream begins after the event with this id, because it resumes another.
    pub fn resume_after(&mut self, id: &[u8]) {
        self.observer.resume_after(id);
    }

    /// Abandons an event that was cut off. The returned bytes end the event for the client, and must be sent
    /// before any other bytes ([`StreamObserver::abandon_event`]).
    pub fn abandon_event(&mut self) -> Bytes {
        if let Some(batch) = self.batch.as_mut().filter(|_| !self.observer.is_between_events()) {
            batch.decoder = EventDecoder::new(batch.limit);
        }
        self.observer.abandon_event().into()
    }

    /// Whether no event is open on the stream, so that an event of the proxy can be inserted.
    pub fn is_between_events(&self) -> bool {
        self.observer.is_between_events()
    }

    /// Returns the last bytes of a stream that broke off: an error for each unanswered request. A client that
    /// gets no response would wait forever.
    pub fn closing_errors(&mut self, error: &ErrorObject) -> Bytes {
        let mut events = self.observer.abandon_event();
        for id in &self.unanswered() {
            events.extend_from_slice(&message_event(&error_response(Some(id), error)));
        }
        events.into()
    }
}

/// Returns the ids and kinds of the responses in the data of an event, which may be a batch.
fn read_responses(data: &Bytes) -> impl Iterator<Item = (RequestId, MessageKind)> {
    let text = sse::decode_lossy(data).unwrap_or_else(|| data.clone());
    MessageReader::new(text).filter_map(|frame| match frame.ok()?.kind() {
        Kind::Success { id, .. } => Some((id.clone(), MessageKind::Result)),
        Kind::Failure { id: Some(id), .. } => Some((id.clone(), MessageKind::Error)),
        Kind::Failure { id: None, .. } | Kind::Request { .. } | Kind::Notification { .. } => None,
    })
}

/// Writes one message as an SSE event named `message`, as servers of this era do. `json` must contain no line
/// break.
pub fn message_event(json: &[u8]) -> Bytes {
    [b"event: message\ndata: ", json, b"\n\n"].concat().into()
}

/// Returns the revision that a request's `MCP-Protocol-Version` header names; `None` if the header is missing
/// or the revision unknown.
pub fn header_revision(headers: &http::HeaderMap) -> Option<Revision> {
    Revision::parse(headers.get(&PROTOCOL_VERSION)?.to_str().ok()?)
}

/// Returns the revision that the parameters of an `initialize` request; `None` if they name none. An unknown
/// revision counts as the newest legacy revision.
pub fn requested_revision(params: &Payload) -> Option<Revision> {
    let version = params.string("protocolVersion")?;
    Some(Revision::parse(&version).unwrap_or(Revision::NEWEST_LEGACY))
}

/// Returns the revision in a response to `initialize`, as the server spells it; `None` for any other message.
pub fn negotiated_revision(response: &Frame) -> Option<String> {
    let Kind::Success { result, .. } = response.kind() else { return None };
    result.string("protocolVersion")
}

/// Writes a JSON-RPC response with this result, which must be on one line.
pub fn success_response(id: &RequestId, result: &[u8]) -> Bytes {
    super::modern::success_response(id, result)
}

/// Writes a JSON-RPC notification with these raw params.
pub fn notification(method: &Method, params: &[u8]) -> Bytes {
    [br#"{"jsonrpc":"2.0","method":""#, method.as_str().as_bytes(), br#"","params":"#, params, b"}"]
        .concat()
        .into()
}

/// Writes the notification that cancels a request (2025-11-25, *Cancellation*).
pub fn cancelled_notification(request: &RequestId, reason: &str) -> Bytes {
    let reason = serde_json::to_string(reason).expect("a string is written to memory");
    let params =
        [br#"{"requestId":"#, &**request.as_bytes(), br#","reason":"#, reason.as_bytes(), b"}"].concat();
    notification(&Method::Cancelled, &params)
}

/// Writes the JSON document that refuses all requests of a POST: one error response, or a batch of error
/// responses. Without requests the error has no id.
pub fn error_responses(waiting: &[RequestId], error: &ErrorObject) -> Bytes {
    match waiting {
        [] => error_response(None, error),
        [id] => error_response(Some(id), error),
        ids => {
            let responses: Vec<_> = ids.iter().map(|id| error_response(Some(id), error)).collect();
            [b"[", &responses.join(&b","[..])[..], b"]"].concat().into()
        }
    }
}

// === impl SessionTag ===

impl SessionTag {
    /// Hashes a session id.
    pub fn for_session(session: &[u8]) -> Self {
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
        LegacyPost::read(&mut MessageReader::new(Bytes::from_static(text.as_bytes()))).expect("messages")
    }

    fn ids(tokens: &[&'static str]) -> SmallVec<[RequestId; 1]> {
        tokens
            .iter()
            .map(|token| RequestId::from_token(Bytes::from_static(token.as_bytes())).expect("an id"))
            .collect()
    }

    fn track(waiting: &[&'static str], stream: &'static str) -> ResponseTracker {
        let mut tracker = ResponseTracker::new(ids(waiting), 1000);
        // Chunk boundaries at the worst possible places.
        for byte in stream.as_bytes().chunks(1) {
            tracker.observe(&Bytes::from_static(byte));
        }
        tracker
    }

    #[test]
    fn each_kind_of_message_is_detected() {
        let post = read(
            r#" [{"id":1,"method":"tools/call","params":{"arguments":{"name":"no"},"name":"t"}},
                {"method":"notifications/cancelled"},{"id":"q","result":{}},{"id":2,"method":"ping"},
                {"id":"u","method":"resources/read","params":{"uri":"file:///a"}},{"id":2,"method":"x"}]"#,
        );
        let names: Vec<_> = post.messages.iter().map(ClientMessage::method_name).collect();
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
        assert!(LegacyPost::read(&mut MessageReader::new(Bytes::from_static(b"[{\"id\":{}}]"))).is_err());
    }

    #[test]
    fn the_response_on_a_stream_answers_the_one_request() {
        let stream = "data: {\"method\":\"n\"}\n\ndata: {\"result\":{},\"id\":\"1\"}\n\n";
        let answers = track(&["1"], stream);
        assert!(answers.unanswered().is_empty(), "whatever id it carries");
        assert_eq!(answers.last_response(), Some(MessageKind::Result));
        assert_eq!(track(&["1"], "data: {\"method\":\"n\"}\n\n").unanswered(), ids(&["1"]));
    }

    #[test]
    fn responses_are_matched_to_several_requests() {
        let stream = "data: {\"id\":2,\"result\":{}}\n\ndata: {\"id\":9,\"result\":{}}\n\n";
        assert_eq!(track(&["1", "2", "3"], stream).unanswered(), ids(&["1", "3"]));
        let batch = "data: [{\"id\":3,\"error\":{}},{\"id\":1,\"result\":{}}]\n\n";
        assert_eq!(track(&["1", "2", "3"], batch).unanswered(), ids(&["2"]));
    }

    #[test]
    fn each_unanswered_request_gets_an_error() {
        let error = ErrorObject::new(-1, "gone");
        let one = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"gone"}}"#;
        assert_eq!(track(&["1"], "").closing_errors(&error), format!("event: message\ndata: {one}\n\n"));
        let cut = track(&["1", "2"], "data: {\"id\":2,\"result\":{}}\n\ndata: {").closing_errors(&error);
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
            let post = LegacyPost::read(&mut MessageReader::new(body.into())).expect("messages");
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
        let tag = SessionTag::for_session(b"secret").to_string();
        assert_eq!(tag.len(), 16);
        assert_eq!(tag, SessionTag::for_session(b"secret").to_string());
        assert_ne!(tag, SessionTag::for_session(b"other").to_string());
    }
}
