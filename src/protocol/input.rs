//! The input requests that a server sends during a call, and the client's input responses (2026-07-28, *Multi
//! Round-Trip Requests*).
//!
//! A legacy server sends a JSON-RPC request of its own; a 2026-07-28 client receives the same method and
//! parameters under a key of `inputRequests`, and puts its response under that key of `inputResponses`. An
//! [`InputRequest`] has the latter shape.

use super::{
    Frame, Kind, Method, Payload, frame, meta,
    splice::{BytesPatch, JsonObject, ObjectEdit},
};
use bytes::Bytes;
use std::collections::BTreeMap;

/// A kind of input request. The specification has no others (2026-07-28, *InputRequest*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InputKind {
    /// Requests information from the user, by a form or at a URL.
    Elicitation,
    /// Requests a completion from the client's model.
    Sampling,
    /// Requests the directories that the client works in.
    Roots,
}

/// One input request in the shape of 2026-07-28: a raw JSON object of `method` and `params`, on one line and
/// in an allocation of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputRequest {
    kind: InputKind,
    raw: Bytes,
}

/// The input responses of a retry: raw JSON by key. They are slices of the client's message and not
/// validated; see [`crate::bridge::elicit::check_input_response`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputResponses(BTreeMap<String, Bytes>);

/// Why the input responses or the `requestState` of a retry cannot be read. The client gets error `-32602`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedRetry {
    #[error("`params` must be an object")]
    Params,
    #[error("`inputResponses` must be an object of input responses by the keys of `inputRequests`")]
    Responses,
    /// A key occurs twice: two readers could disagree on which response counts.
    #[error("`inputResponses` has the key `{key}` twice")]
    Repeated { key: String },
    #[error("`requestState` must be the string that came with the `inputRequests`")]
    State,
}

/// The `requestState` of a retry's `params`; `None` if absent.
pub fn request_state(params: Option<&Payload>) -> Result<Option<String>, MalformedRetry> {
    let Some(raw) = params_member(params, "requestState")? else { return Ok(None) };
    serde_json::from_slice(&raw).map(Some).map_err(|_| MalformedRetry::State)
}

// === impl InputKind ===

impl InputKind {
    /// All kinds of input requests.
    pub const ALL: [Self; 3] = [Self::Elicitation, Self::Sampling, Self::Roots];

    /// The kind of input request that `method` makes; `None` for any other method.
    pub fn from_method(method: &Method) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == *method)
    }

    /// The JSON-RPC method by which a server makes this kind of input request.
    pub const fn method(self) -> Method {
        match self {
            Self::Elicitation => Method::Elicit,
            Self::Sampling => Method::CreateMessage,
            Self::Roots => Method::RootsList,
        }
    }

    /// The name of the capability that the kind needs, and the prefix of its keys.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Elicitation => "elicitation",
            Self::Sampling => "sampling",
            Self::Roots => "roots",
        }
    }
}

// === impl InputRequest ===

impl InputRequest {
    /// Converts the request of a legacy server to an input request; `None` if the message is no input
    /// request.
    pub fn from_frame(frame: &Frame) -> Option<Self> {
        let Kind::Request { id: _, method, params } = frame.kind() else { return None };
        Some(Self::new(InputKind::from_method(method)?, params.as_deref()))
    }

    /// An input request with a legacy server's parameters, without the members that 2026-07-28 does not have.
    /// These are `task`, the `elicitationId` of an elicitation by URL, and in `_meta` the progress token (a
    /// client does not report the progress of a response) and the related task.
    pub fn new(kind: InputKind, params: Option<&Bytes>) -> Self {
        let params = params.map(|params| to_modern_params(kind, params));
        let method = kind.method();
        let mut raw = Vec::with_capacity(48 + params.as_ref().map_or(0, Bytes::len));
        raw.extend_from_slice(br#"{"method":""#);
        raw.extend_from_slice(method.as_str().as_bytes());
        raw.push(b'"');
        if let Some(params) = params {
            raw.extend_from_slice(br#","params":"#);
            raw.extend_from_slice(&params);
        }
        raw.push(b'}');
        Self { kind, raw: frame::to_single_line(raw.into()) }
    }

    /// Reads a stored or received input request: an object with the `method` of one; `None` for anything
    /// else.
    pub fn from_raw(raw: Bytes) -> Option<Self> {
        let method = JsonObject::read(&raw).ok()?.string("method")?;
        let kind = InputKind::ALL.into_iter().find(|kind| kind.method().as_str() == method)?;
        Some(Self { kind, raw })
    }

    pub fn kind(&self) -> InputKind {
        self.kind
    }

    /// The object with `method` and `params`.
    pub fn as_bytes(&self) -> &Bytes {
        &self.raw
    }

    /// The `params` member as raw JSON; `None` if absent.
    pub fn params(&self) -> Option<Bytes> {
        JsonObject::read(&self.raw).ok()?.get("params")
    }
}

/// The parameters without the members that 2026-07-28 does not have; see [`InputRequest::new`].
fn to_modern_params(kind: InputKind, params: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(params) else { return params.clone() };
    let mut patch = BytesPatch::new(params.clone());
    let mut edit = ObjectEdit::new(&object);
    edit.remove("task");
    if kind == InputKind::Elicitation && object.string("mode").as_deref() == Some("url") {
        edit.remove("elicitationId");
    }
    if let Some(Ok(meta_object)) = object.get("_meta").map(|raw| JsonObject::read(&raw)) {
        let mut meta_edit = ObjectEdit::new(&meta_object);
        meta_edit.remove(meta::RELATED_TASK).remove(meta::PROGRESS_TOKEN);
        if !meta_edit.is_empty() && meta_edit.leaves_empty() {
            edit.remove("_meta");
        } else {
            meta_edit.add_to(&mut patch);
        }
    }
    edit.add_to(&mut patch);
    patch.apply()
}

// === impl InputResponses ===

impl InputResponses {
    /// The `inputResponses` of `params`, or `None` if absent. `{}` is present.
    ///
    /// # Errors
    /// [`MalformedRetry`], except [`MalformedRetry::State`]. `null` is no object.
    pub fn read(params: Option<&Payload>) -> Result<Option<Self>, MalformedRetry> {
        let Some(raw) = params_member(params, "inputResponses")? else { return Ok(None) };
        let object = JsonObject::read(&raw).map_err(|_| MalformedRetry::Responses)?;
        let mut responses = BTreeMap::new();
        for (key, response) in object.members() {
            if responses.contains_key(&*key) {
                return Err(MalformedRetry::Repeated { key: key.into_owned() });
            }
            responses.insert(key.into_owned(), response);
        }
        Ok(Some(Self(responses)))
    }

    /// Removes and returns the response under `key`, so that it is used once.
    pub fn take(&mut self, key: &str) -> Option<Bytes> {
        self.0.remove(key)
    }

    /// A copy in allocations of its own, which does not keep the client's message alive.
    pub fn detached(self) -> Self {
        Self(self.0.into_iter().map(|(key, response)| (key, Bytes::copy_from_slice(&response))).collect())
    }

    /// Keys and raw responses, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(key, response)| (key.as_str(), response))
    }
}

/// A member of `params`; an error if `params` is no object.
fn params_member(params: Option<&Payload>, key: &str) -> Result<Option<Bytes>, MalformedRetry> {
    let Some(params) = params else { return Ok(None) };
    Ok(params.object().ok_or(MalformedRetry::Params)?.get(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(text: &'static str) -> Option<Payload> {
        Some(Payload::read(Bytes::from_static(text.as_bytes())))
    }

    fn input_request(text: &'static str) -> String {
        let frame = Frame::parse(Bytes::from_static(text.as_bytes())).expect("a message");
        let raw = InputRequest::from_frame(&frame).expect("a question").as_bytes().to_vec();
        String::from_utf8(raw).expect("utf-8")
    }

    #[test]
    fn an_input_request_is_its_method_and_its_parameters_as_they_were_sent() {
        assert_eq!(
            input_request(
                r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{ "message" : "?","x":1e400,"requestedSchema":{"type":"object"}}}"#
            ),
            r#"{"method":"elicitation/create","params":{ "message" : "?","x":1e400,"requestedSchema":{"type":"object"}}}"#
        );
        assert_eq!(
            input_request(
                r#"{"id":"a","method":"sampling\/createMessage","params":{"messages":[]},"jsonrpc":"2.0"}"#
            ),
            r#"{"method":"sampling/createMessage","params":{"messages":[]}}"#
        );
        for without in
            [r#"{"id":1,"method":"roots/list"}"#, r#"{"id":1,"method":"roots/list","params":null}"#]
        {
            assert_eq!(input_request(without), r#"{"method":"roots/list"}"#);
        }
    }

    #[test]
    fn members_of_legacy_revisions_are_removed() {
        for (sent, shown) in [
            (
                r#"{"id":1,"method":"roots/list","params":{"_meta":{"progressToken":1}}}"#,
                r#"{"method":"roots/list","params":{}}"#,
            ),
            (
                r#"{"id":1,"method":"roots/list","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"},"a/b": 1.0,"progressToken":"x"}}}"#,
                r#"{"method":"roots/list","params":{"_meta":{"a/b": 1.0}}}"#,
            ),
            (
                r#"{"id":1,"method":"roots/list","params":{"_meta":{}}}"#,
                r#"{"method":"roots/list","params":{"_meta":{}}}"#,
            ),
            (
                r#"{"id":1,"method":"sampling/createMessage","params":{"task":{"ttl":1},"maxTokens":7,"elicitationId":"e"}}"#,
                r#"{"method":"sampling/createMessage","params":{"maxTokens":7,"elicitationId":"e"}}"#,
            ),
            (
                r#"{"id":1,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e","url":"https://a/?elicitationId=e","message":"m"}}"#,
                r#"{"method":"elicitation/create","params":{"mode":"url","url":"https://a/?elicitationId=e","message":"m"}}"#,
            ),
            (
                r#"{"id":1,"method":"elicitation/create","params":{"elicitationId":"e","message":"m"}}"#,
                r#"{"method":"elicitation/create","params":{"elicitationId":"e","message":"m"}}"#,
            ),
        ] {
            assert_eq!(input_request(sent), shown);
        }
    }

    #[test]
    fn an_input_request_is_on_one_line() {
        assert_eq!(
            input_request("{\"id\":1,\"method\":\"roots/list\",\"params\":{\n\"a\":\r\n\"\\n\"}}"),
            r#"{"method":"roots/list","params":{ "a":  "\n"}}"#
        );
    }

    #[test]
    fn what_is_no_question_is_none() {
        for other in [
            r#"{"id":1,"method":"ping"}"#,
            r#"{"method":"elicitation/create","params":{}}"#,
            r#"{"id":1,"result":{}}"#,
            r#"{"id":1,"method":"vendor/ask"}"#,
        ] {
            let frame = Frame::parse(Bytes::from_static(other.as_bytes())).expect("a message");
            assert_eq!(InputRequest::from_frame(&frame), None, "{other}");
        }
    }

    #[test]
    fn a_stored_input_request_reads_back() {
        for kind in InputKind::ALL {
            let question = InputRequest::new(kind, params(r#"{"a":1}"#).as_deref());
            assert_eq!(InputRequest::from_raw(question.as_bytes().clone()), Some(question.clone()));
            assert_eq!(question.kind(), kind);
            assert_eq!(question.params().as_ref(), params(r#"{"a":1}"#).as_deref());
        }
        for other in [r#"{"method":"tools/call"}"#, "{}", "[]", ""] {
            assert_eq!(InputRequest::from_raw(Bytes::from_static(other.as_bytes())), None, "{other}");
        }
    }

    #[test]
    fn answers_are_read_by_their_keys_and_left_as_they_are() {
        let params = params(r#"{"inputResponses":{"b": {"x" : 1.0},"a":12345,"\u0063":null}}"#);
        let mut answers = InputResponses::read(params.as_ref()).expect("well formed").expect("some");
        let read: Vec<_> = answers.iter().map(|(key, answer)| (key.to_owned(), answer.clone())).collect();
        assert_eq!(
            read,
            [
                ("a".into(), Bytes::from("12345")),
                ("b".into(), r#"{"x" : 1.0}"#.into()),
                ("c".into(), "null".into())
            ]
        );
        assert_eq!(answers.take("a").as_deref(), Some(&b"12345"[..]));
        assert_eq!(answers.take("a"), None, "it is given once");
    }

    #[test]
    fn no_answers_are_not_the_same_as_empty_answers() {
        assert_eq!(InputResponses::read(None), Ok(None));
        assert_eq!(InputResponses::read(params("{}").as_ref()), Ok(None));
        let empty = InputResponses::read(params(r#"{"inputResponses":{}}"#).as_ref());
        assert!(empty.is_ok_and(|answers| answers.is_some_and(|answers| answers.iter().next().is_none())));
    }

    #[test]
    fn answers_that_are_no_object_are_refused() {
        for text in [r#"{"inputResponses":null}"#, r#"{"inputResponses":[]}"#, r#"{"inputResponses":"x"}"#] {
            assert_eq!(InputResponses::read(params(text).as_ref()), Err(MalformedRetry::Responses), "{text}");
        }
        assert_eq!(
            InputResponses::read(params(r#"{"inputResponses":{"a":1,"\u0061":2}}"#).as_ref()),
            Err(MalformedRetry::Repeated { key: "a".into() })
        );
        assert_eq!(InputResponses::read(params("[]").as_ref()), Err(MalformedRetry::Params));
    }

    #[test]
    fn the_state_is_a_string_or_absent() {
        assert_eq!(request_state(params(r#"{"requestState":"a\n"}"#).as_ref()), Ok(Some("a\n".into())));
        assert_eq!(request_state(params("{}").as_ref()), Ok(None));
        assert_eq!(request_state(None), Ok(None));
        for text in [r#"{"requestState":null}"#, r#"{"requestState":1}"#, r#"{"requestState":{}}"#] {
            assert_eq!(request_state(params(text).as_ref()), Err(MalformedRetry::State), "{text}");
        }
    }
}
