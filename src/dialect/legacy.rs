//! Handshake and sessions (2025-03-26 to 2025-11-25): what has to be read of a legacy client's
//! messages to pass them on.
//!
//! In front of a legacy server a legacy client's session is the server's own, so almost nothing
//! has to be read: which methods a POST asks for, under which ids, and, as the answer goes by,
//! whether each of them has been answered.

use super::{
    ambiguous::{self, Ambiguity},
    modern::error_response,
};
use crate::protocol::{
    ErrorObject, Frame, FrameError, Id, Kind, Messages, Method, Payload, Revision,
    glance::Gist,
    headers::PROTOCOL_VERSION,
    sse::{self, Decoder, Watch},
};
use bytes::Bytes;
use http::HeaderValue;
use smallvec::SmallVec;
use std::{collections::HashSet, fmt, time::Duration};

/// The messages of one POST.
#[derive(Debug, Default)]
pub struct Post {
    /// One, or those of a batch (2025-03-26), in order.
    pub messages: SmallVec<[Message; 1]>,
    pub is_batch: bool,
    /// Why it cannot be told which tools a server would call for it, where it cannot.
    pub ambiguity: Option<Box<Ambiguity>>,
    /// The methods that a body names which holds no messages; for people.
    pub unread: Option<Box<str>>,
    /// A message does not say that it is JSON-RPC 2.0 ([`Frame::is_json_rpc`]).
    pub is_unversioned: bool,
}

/// One message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Request {
        id: Id,
        method: Method,
        /// The tool, prompt, resource or task it is about.
        target: Option<String>,
    },
    Notification(Method),
    /// The client takes the request of this id back; none where it names none.
    Cancelled(Option<Id>),
    /// The client's answer to the question of this id; none where the error names none.
    Response(Option<Id>),
}

/// Which requests of a POST its answer has answered so far.
#[derive(Debug)]
pub struct Answers {
    /// What was waited for, in order. Of a batch some of it may have been answered.
    asked: SmallVec<[Id; 1]>,
    watch: Watch,
    /// Of several requests it must be known which. Of one there is nothing to tell apart, and
    /// nothing to decode.
    batch: Option<Box<Batch>>,
    said: Option<Gist>,
    /// How often in a row the stream was taken up and brought no message.
    fruitless: u32,
}

/// Where an event stream can be taken up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The id of the last event that had one.
    pub last_id: HeaderValue,
    /// How long the server wants to be left alone before it is asked for more.
    pub retry: Option<Duration>,
    /// How often in a row it was taken up and brought no message.
    pub fruitless: u32,
}

/// Which requests of a batch are answered. As many as fit into a body: so none is looked for among
/// the others one by one.
#[derive(Debug)]
struct Batch {
    decoder: Decoder,
    /// For one message, in bytes.
    limit: usize,
    open: HashSet<Id>,
}

/// A session id as it may stand in a log: the beginning of its hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionTag([u8; 8]);

// === impl Post ===

impl Post {
    /// Reads the messages of a body. Nothing is judged that the server judges itself.
    ///
    /// # Errors
    /// [`FrameError`] where something in it is no message.
    pub fn read(messages: &mut Messages) -> Result<Self, FrameError> {
        let mut post = Self { is_batch: messages.is_batch(), ..Self::default() };
        messages.try_for_each(|frame| {
            post.take(&frame?);
            Ok(())
        })?;
        Ok(post)
    }

    /// A message that has been read.
    pub fn of(frame: &Frame) -> Self {
        let mut post = Self::default();
        post.take(frame);
        post
    }

    /// A body that could not be read.
    pub fn unreadable(body: &[u8], error: FrameError) -> Self {
        let methods = ambiguous::methods(body);
        Self {
            ambiguity: Some(Ambiguity::Unreadable(error).into()),
            unread: (!methods.is_empty()).then(|| methods.into()),
            ..Self::default()
        }
    }

    fn take(&mut self, frame: &Frame) {
        let message = Message::of(frame);
        let target = match &message {
            Message::Request { target, .. } => target.as_deref(),
            Message::Notification(_) | Message::Cancelled(_) | Message::Response(_) => None,
        };
        self.is_unversioned |= !frame.is_json_rpc();
        self.ambiguity = self.ambiguity.take().or_else(|| ambiguous::ambiguity(frame, target).map(Box::new));
        self.messages.push(message);
    }

    /// The requests that it takes back (2025-11-25, *Cancellation*).
    pub fn cancels(&self) -> impl Iterator<Item = &Id> {
        self.messages.iter().filter_map(|message| match message {
            Message::Cancelled(id) => id.as_ref(),
            Message::Request { .. } | Message::Notification(_) | Message::Response(_) => None,
        })
    }

    /// The tools that it calls, in order; an empty name where one cannot be read.
    pub fn calls(&self) -> impl Iterator<Item = &str> {
        self.messages.iter().filter_map(|message| match message {
            Message::Request { method: Method::ToolsCall, target, .. } => {
                Some(target.as_deref().unwrap_or_default())
            }
            Message::Request { .. }
            | Message::Notification(_)
            | Message::Cancelled(_)
            | Message::Response(_) => None,
        })
    }

    /// Whether it says that the handshake is over.
    pub fn begins(&self) -> bool {
        self.messages.contains(&Message::Notification(Method::Initialized))
    }

    /// Whether the server may ask the client something while it serves this.
    pub fn may_ask(&self) -> bool {
        self.messages
            .iter()
            .any(|message| matches!(message, Message::Request { method, .. } if method.may_ask()))
    }

    /// The ids of what waits for an answer. An id that occurs twice is there once.
    pub fn waiting(&self) -> SmallVec<[Id; 1]> {
        let ids = self.messages.iter().filter_map(|message| match message {
            Message::Request { id, .. } => Some(id),
            Message::Notification(_) | Message::Cancelled(_) | Message::Response(_) => None,
        });
        if self.messages.len() <= 1 {
            return ids.cloned().collect();
        }
        let mut seen = HashSet::new();
        ids.filter(|id| seen.insert(*id)).cloned().collect()
    }
}

// === impl Message ===

impl Message {
    /// In memory of its own: what is kept of a message must not keep all of it.
    fn of(frame: &Frame) -> Self {
        match frame.kind() {
            Kind::Request { id, method, params } => Self::Request {
                id: id.detached(),
                method: method.clone(),
                target: target(method, params.as_ref()),
            },
            Kind::Notification { method: Method::Cancelled, params } => {
                let id = params.as_ref().and_then(|params| Id::from_token(params.get("requestId")?));
                Self::Cancelled(id.map(|id| id.detached()))
            }
            Kind::Notification { method, .. } => Self::Notification(method.clone()),
            Kind::Success { id, .. } => Self::Response(Some(id.detached())),
            Kind::Failure { id, .. } => Self::Response(id.as_ref().map(Id::detached)),
        }
    }

    /// Its method; `response` for what has none.
    pub fn name(&self) -> &str {
        match self {
            Self::Request { method, .. } | Self::Notification(method) => method.as_str(),
            Self::Cancelled(_) => Method::Cancelled.as_str(),
            Self::Response(_) => "response",
        }
    }
}

/// Nothing where there are two to choose from: which of them a server takes is not known.
fn target(method: &Method, params: Option<&Payload>) -> Option<String> {
    let key = match method {
        Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => "uri",
        Method::TasksResult => "taskId",
        method => method.name_member()?,
    };
    params?.object()?.only(key).and_then(|text| serde_json::from_slice(&text).ok())
}

// === impl Answers ===

impl Answers {
    /// Nothing has been answered yet. `limit` is for one message of a batch's answer, in bytes;
    /// beyond it, it is no longer told which of several requests are answered.
    pub fn to(waiting: SmallVec<[Id; 1]>, limit: usize) -> Self {
        let batch = (waiting.len() > 1).then(|| {
            let open = waiting.iter().cloned().collect();
            Box::new(Batch { decoder: Decoder::new(limit), limit, open })
        });
        Self { asked: waiting, watch: Watch::default(), batch, said: None, fruitless: 0 }
    }

    /// As [`Answers::to`], and what the server says meanwhile is kept until it is taken.
    pub fn listening(mut self) -> Self {
        self.watch = Watch::listening();
        self
    }

    /// The notifications and requests of the server since this was last asked ([`Watch::take_heard`]).
    pub fn take_heard(&mut self) -> Vec<Vec<u8>> {
        self.watch.take_heard()
    }

    /// Only these are still waited for.
    pub fn only(&mut self, owed: SmallVec<[Id; 1]>) {
        if let Some(batch) = &mut self.batch {
            batch.open = owed.iter().cloned().collect();
        }
        self.asked = owed;
    }

    /// Takes the next chunk of the event stream that answers.
    pub fn see(&mut self, chunk: &Bytes) {
        self.watch.see(chunk);
        if self.watch.take_told() {
            self.fruitless = 0;
        }
        let Some(batch) = &mut self.batch else {
            if let Some(gist) = self.watch.response() {
                self.said = Some(gist);
                self.asked.clear();
            }
            return;
        };
        batch.decoder.feed(chunk.clone());
        loop {
            match batch.decoder.next_event() {
                Ok(Some(event)) => {
                    for (id, gist) in responses(&event.data) {
                        batch.open.remove(&id);
                        self.said = Some(gist);
                    }
                }
                Ok(None) => return,
                Err(_too_large) => {
                    self.asked.clear();
                    self.batch = None;
                    return;
                }
            }
        }
    }

    /// Whether a request is still to be answered.
    pub fn are_due(&self) -> bool {
        match &self.batch {
            Some(batch) => !batch.open.is_empty(),
            None => !self.asked.is_empty(),
        }
    }

    /// The requests that are still to be answered, in the order of their asking.
    pub fn waiting(&self) -> SmallVec<[Id; 1]> {
        match &self.batch {
            Some(batch) => self.asked.iter().filter(|id| batch.open.contains(*id)).cloned().collect(),
            None => self.asked.clone(),
        }
    }

    /// What the last response that was seen is.
    pub fn said(&self) -> Option<Gist> {
        self.said
    }

    /// Whether the client can take the stream up again from here.
    pub fn is_resumable(&self) -> bool {
        self.watch.is_resumable()
    }

    /// Where it can be taken up by somebody else ([`Watch::last_id`]).
    pub fn anchor(&self) -> Option<Anchor> {
        let last_id = HeaderValue::from_bytes(self.watch.last_id()?).ok()?;
        Some(Anchor { last_id, retry: self.watch.retry(), fruitless: self.fruitless })
    }

    /// The ids of the last events before that ([`Watch::earlier_ids`]).
    pub fn earlier_ids(&self) -> impl Iterator<Item = &[u8]> {
        self.watch.earlier_ids()
    }

    /// It is taken up once more.
    pub fn taken_up(&mut self) {
        self.fruitless = self.fruitless.saturating_add(1);
    }

    /// The stream goes on after the event of this id.
    pub fn go_on_after(&mut self, id: &[u8]) {
        self.watch.go_on_after(id);
    }

    /// Gives up an event that was cut off, and gives what has to come before anything else
    /// ([`Watch::void`]): its rest will not come.
    pub fn void(&mut self) -> Bytes {
        if let Some(batch) = self.batch.as_mut().filter(|_| !self.watch.is_between_events()) {
            batch.decoder = Decoder::new(batch.limit);
        }
        self.watch.void().into()
    }

    /// Whether an event of our own can be put in here.
    pub fn is_between_events(&self) -> bool {
        self.watch.is_between_events()
    }

    /// What ends a stream that broke off: an error for each request that was not answered. A
    /// client that is left without waits for ever (`WIRE`, B 1, rule 20).
    pub fn last_words(&mut self, error: &ErrorObject) -> Bytes {
        let mut words = self.watch.void();
        for id in &self.waiting() {
            words.extend_from_slice(&event(&error_response(Some(id), error)));
        }
        words.into()
    }
}

/// The ids that an event's data answers, a batch included.
fn responses(data: &Bytes) -> impl Iterator<Item = (Id, Gist)> {
    let text = sse::replaced(data).unwrap_or_else(|| data.clone());
    Messages::of(text).filter_map(|frame| match frame.ok()?.kind() {
        Kind::Success { id, .. } => Some((id.clone(), Gist::Result)),
        Kind::Failure { id: Some(id), .. } => Some((id.clone(), Gist::Error)),
        Kind::Failure { id: None, .. } | Kind::Request { .. } | Kind::Notification { .. } => None,
    })
}

/// One message as an event, as servers of this era write it: a named one. `json` holds no line break.
pub fn event(json: &[u8]) -> Bytes {
    [b"event: message\ndata: ", json, b"\n\n"].concat().into()
}

/// The revision that a session's requests name, where they name one that is known.
pub fn revision(headers: &http::HeaderMap) -> Option<Revision> {
    Revision::parse(headers.get(&PROTOCOL_VERSION)?.to_str().ok()?)
}

/// The revision that an `initialize` asks for, where it is one we know. One that we do not know is newer.
pub fn asked_revision(params: &Payload) -> Option<Revision> {
    let version = params.string("protocolVersion")?;
    Some(Revision::parse(&version).unwrap_or(Revision::NEWEST_LEGACY))
}

/// The revision that the answer to an `initialize` names, as the server spells it.
pub fn answered_revision(answer: &Frame) -> Option<String> {
    let Kind::Success { result, .. } = answer.kind() else { return None };
    result.string("protocolVersion")
}

/// A response with this result, which stands on one line.
pub fn success(id: &Id, result: &[u8]) -> Bytes {
    super::modern::success_response(id, result)
}

/// A notification with these params.
pub fn notification(method: &Method, params: &[u8]) -> Bytes {
    [br#"{"jsonrpc":"2.0","method":""#, method.as_str().as_bytes(), br#"","params":"#, params, b"}"]
        .concat()
        .into()
}

/// Takes a request back (2025-11-25, *Cancellation*).
pub fn cancelled(request: &Id, reason: &str) -> Bytes {
    let reason = serde_json::to_string(reason).expect("a string is written to memory");
    let params =
        [br#"{"requestId":"#, &**request.as_bytes(), br#","reason":"#, reason.as_bytes(), b"}"].concat();
    notification(&Method::Cancelled, &params)
}

/// The JSON document that refuses all of a POST's requests: one error response, or a batch of them.
pub fn refusal(waiting: &[Id], error: &ErrorObject) -> Bytes {
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

    fn read(text: &'static str) -> Post {
        Post::read(&mut Messages::of(Bytes::from_static(text.as_bytes()))).expect("messages")
    }

    fn ids(tokens: &[&'static str]) -> SmallVec<[Id; 1]> {
        tokens
            .iter()
            .map(|token| Id::from_token(Bytes::from_static(token.as_bytes())).expect("an id"))
            .collect()
    }

    fn seen(waiting: &[&'static str], stream: &'static str) -> Answers {
        let mut answers = Answers::to(ids(waiting), 1000);
        // As unkind as a network can be.
        for byte in stream.as_bytes().chunks(1) {
            answers.see(&Bytes::from_static(byte));
        }
        answers
    }

    #[test]
    fn each_kind_of_message_is_told() {
        let post = read(
            r#" [{"id":1,"method":"tools/call","params":{"arguments":{"name":"no"},"name":"t"}},
                {"method":"notifications/cancelled"},{"id":"q","result":{}},{"id":2,"method":"ping"},
                {"id":"u","method":"resources/read","params":{"uri":"file:///a"}},{"id":2,"method":"x"}]"#,
        );
        let names: Vec<_> = post.messages.iter().map(Message::name).collect();
        assert_eq!(
            names,
            ["tools/call", "notifications/cancelled", "response", "ping", "resources/read", "x"]
        );
        assert_eq!(post.waiting(), ids(&["1", "2", r#""u""#]));
        let target = |at: usize| match &post.messages[at] {
            Message::Request { target, .. } => target.as_deref(),
            other => panic!("{other:?}"),
        };
        assert_eq!((target(0), target(3), target(4)), (Some("t"), None, Some("file:///a")));
        assert!(read("[]").messages.is_empty());
        assert!(Post::read(&mut Messages::of(Bytes::from_static(b"[{\"id\":{}}]"))).is_err());
    }

    #[test]
    fn the_response_on_a_stream_answers_the_one_request() {
        let stream = "data: {\"method\":\"n\"}\n\ndata: {\"result\":{},\"id\":\"1\"}\n\n";
        let answers = seen(&["1"], stream);
        assert!(answers.waiting().is_empty(), "whatever id it carries");
        assert_eq!(answers.said(), Some(Gist::Result));
        assert_eq!(seen(&["1"], "data: {\"method\":\"n\"}\n\n").waiting(), ids(&["1"]));
    }

    #[test]
    fn of_several_requests_it_is_known_which_are_answered() {
        let stream = "data: {\"id\":2,\"result\":{}}\n\ndata: {\"id\":9,\"result\":{}}\n\n";
        assert_eq!(seen(&["1", "2", "3"], stream).waiting(), ids(&["1", "3"]));
        let batch = "data: [{\"id\":3,\"error\":{}},{\"id\":1,\"result\":{}}]\n\n";
        assert_eq!(seen(&["1", "2", "3"], batch).waiting(), ids(&["2"]));
    }

    #[test]
    fn what_is_not_answered_is_answered_with_an_error_each() {
        let error = ErrorObject::new(-1, "gone");
        let one = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"gone"}}"#;
        assert_eq!(seen(&["1"], "").last_words(&error), format!("event: message\ndata: {one}\n\n"));
        let cut = seen(&["1", "2"], "data: {\"id\":2,\"result\":{}}\n\ndata: {").last_words(&error);
        assert_eq!(cut, format!("\nevent: incomplete\n\nevent: message\ndata: {one}\n\n"));
        assert_eq!(refusal(&ids(&["1"]), &error), one);
        assert_eq!(
            refusal(&ids(&["1", "2"]), &error),
            format!("[{one},{}]", one.replace("\"id\":1", "\"id\":2"))
        );
        assert_eq!(refusal(&[], &error), r#"{"jsonrpc":"2.0","error":{"code":-1,"message":"gone"}}"#);
    }

    #[test]
    fn what_is_taken_back_is_told_alone_and_in_a_batch() {
        let cancel = |id: &str| {
            format!(r#"{{"method":"notifications/cancelled","params":{{"requestId":{id},"reason":"x"}}}}"#)
        };
        let told = |body: String| -> Vec<Id> {
            let post = Post::read(&mut Messages::of(body.into())).expect("messages");
            post.cancels().cloned().collect()
        };
        assert_eq!(told(cancel("23")), ids(&["23"])[..]);
        let batch = format!(r#"[{},{{"id":9,"method":"ping"}},{}]"#, cancel("1"), cancel("\"a\""));
        assert_eq!(told(batch), ids(&["1", "\"a\""])[..]);
        assert!(told(cancel("{}")).is_empty());
        assert!(told(r#"{"method":"notifications/cancelled"}"#.to_owned()).is_empty());
    }

    #[test]
    fn a_session_is_told_apart_in_a_log_without_being_told() {
        let tag = SessionTag::of(b"secret").to_string();
        assert_eq!(tag.len(), 16);
        assert_eq!(tag, SessionTag::of(b"secret").to_string());
        assert_ne!(tag, SessionTag::of(b"other").to_string());
    }
}
