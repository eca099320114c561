//! One JSON-RPC message, indexed but not rebuilt.
//!
//! A [`Frame`] keeps the bytes that the peer sent and the positions of the parts that the proxy routes by.
//! Unknown members therefore reach the other side exactly as they were sent.
//!
//! The bytes are read once ([`Frame::parse`]). That pass validates the JSON, measures its depth, and locates
//! the members of the message, of its `params` or `result`, and of their `_meta`. All later lookups use that
//! index.

pub use super::scan::is_like;
use super::{
    Method, RequestId,
    scan::{JsonScanner, MemberList, unescaped},
    splice::JsonObject,
    sse::BYTE_ORDER_MARK,
};
use bytes::{Buf, Bytes};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    ops::{Deref, Range},
    sync::Arc,
};

/// One JSON-RPC message as received.
#[derive(Clone, Debug)]
pub struct Frame(Box<FrameParts>);

/// The contents of a [`Frame`], boxed because frames are moved many times.
#[derive(Clone, Debug)]
struct FrameParts {
    bytes: Bytes,
    kind: Kind,
    depth: u32,
    /// The result of [`Frame::ambiguous_member`], as an index into [`ROUTED_MEMBERS`].
    ambiguous_member: Option<u8>,
    is_json_rpc: bool,
}

/// The JSON-RPC shape of a message, with its routed members. All parts share the allocation of the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message with an id; its sender expects a response.
    Request { id: RequestId, method: Method, params: Option<Payload> },
    /// A message without an id; its sender expects no response.
    Notification { method: Method, params: Option<Payload> },
    /// A response with a result.
    Success { id: RequestId, result: Payload },
    /// A response with an error. `id` is `None` if the peer could not read the request's id.
    Failure { id: Option<RequestId>, error: Bytes },
}

/// The `params` or `result` of a message, as it was sent. If it is an object, as it must be, its members and
/// those of its `_meta` are located.
#[derive(Clone, Debug)]
pub struct Payload {
    bytes: Bytes,
    located: Option<Arc<PayloadIndex>>,
}

/// The members of a [`Payload`], shared behind a pointer to keep messages of waiting calls small.
#[derive(Debug)]
struct PayloadIndex {
    object: JsonObject,
    meta: Option<JsonObject>,
}

/// Why some bytes are not a JSON-RPC message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("not valid JSON: {0}")]
    Syntax(#[source] serde_json::Error),
    /// Valid JSON that has none of the four shapes. `id` is the message's id, if it could be read.
    #[error("neither a request, a notification nor a response")]
    Shape { id: Option<RequestId> },
    /// A routed member occurs twice or has the wrong type, as `problem` says. `id` is the message's id, if it
    /// could be read.
    #[error("{problem}")]
    Member { id: Option<RequestId>, problem: String },
    #[error("`id` must be a string or a number")]
    Id,
    #[error("nested deeper than {limit} levels")]
    Depth { limit: usize },
}

/// Removes a leading byte order mark.
pub(super) fn strip_byte_order_mark(mut bytes: Bytes) -> Bytes {
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.advance(BYTE_ORDER_MARK.len());
    }
    bytes
}

// === impl Frame ===

impl Frame {
    /// Indexes one message, in one pass. A leading byte order mark is removed: senders must not write one,
    /// and readers may ignore it (RFC 8259, 8.1).
    ///
    /// # Errors
    /// [`FrameError`] if the bytes are no valid message. Nesting is not bounded here; see [`Frame::depth`].
    pub fn parse(bytes: Bytes) -> Result<Self, FrameError> {
        let bytes = strip_byte_order_mark(bytes);
        let mut scan = JsonScanner::prescanned(&bytes);
        let mut index = MessageIndex::default();
        match index.read(&mut scan).filter(|()| scan.is_at_end() && scan.is_utf8(&bytes)) {
            Some(()) => Self::from_index(bytes, &mut index),
            None => Err(parse_error(&bytes)),
        }
    }

    /// Builds a frame from the located parts of its bytes.
    pub(super) fn from_index(bytes: Bytes, index: &mut MessageIndex) -> Result<Self, FrameError> {
        let RoutedMembers { found, ambiguous_member: ambiguous, is_json_rpc } =
            index.locate_routed_members(&bytes)?;
        let [id_range, method, params, result, error] = found;
        let is_not_null = |at: &Range<usize>| &bytes[at.clone()] != b"null";
        let read_id = |at: Range<usize>| RequestId::from_token(bytes.slice(at)).ok_or(FrameError::Id);
        let method = match method.filter(is_not_null).map(|at| parse_method(&bytes[at])) {
            Some(None) => {
                let id = id_range.and_then(|at| read_id(at).ok());
                return Err(FrameError::Member { id, problem: "`method` must be a string".to_owned() });
            }
            Some(method) => method,
            None => None,
        };
        let depth = index.depth;
        let kind = match (method, id_range, result, error.filter(is_not_null)) {
            (Some(method), id_range, None, None) => {
                let id = id_range.map(read_id).transpose()?;
                let params = params.filter(is_not_null).map(|at| index.take_payload(&bytes, at));
                match id {
                    Some(id) => Kind::Request { id, method, params },
                    None => Kind::Notification { method, params },
                }
            }
            (None, Some(id_range), Some(result), None) => {
                Kind::Success { id: read_id(id_range)?, result: index.take_payload(&bytes, result) }
            }
            (None, id_range, None, Some(error)) => Kind::Failure {
                id: id_range.filter(is_not_null).map(read_id).transpose()?,
                error: bytes.slice(error),
            },
            (_, id_range, ..) => {
                return Err(FrameError::Shape { id: id_range.and_then(|at| read_id(at).ok()) });
            }
        };
        Ok(Self(Box::new(FrameParts { bytes, kind, depth, ambiguous_member: ambiguous, is_json_rpc })))
    }

    /// The message exactly as the peer sent it.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0.bytes
    }

    /// The shape of the message (request, notification or response) and its routed members.
    pub fn kind(&self) -> &Kind {
        &self.0.kind
    }

    /// Splits the frame into its bytes and its kind.
    pub fn into_parts(self) -> (Bytes, Kind) {
        let FrameParts { bytes, kind, .. } = *self.0;
        (bytes, kind)
    }

    /// The deepest nesting of objects and arrays in the message; 1 if its members are all scalars.
    pub fn depth(&self) -> usize {
        self.0.depth as usize
    }

    /// Whether the message declares JSON-RPC 2.0, as each message must (JSON-RPC 2.0, sections 4 and 5; MCP,
    /// *Messages*). A message that names two versions does not.
    pub fn is_json_rpc(&self) -> bool {
        self.0.is_json_rpc
    }

    /// The routed member that another member resembles in all but case, if there is one: a reader that
    /// ignores case would confuse the two.
    pub fn ambiguous_member(&self) -> Option<&'static str> {
        self.0.ambiguous_member.map(|at| ROUTED_MEMBERS[usize::from(at)])
    }

    /// The `params` of a request or a notification.
    pub fn params(&self) -> Option<&Payload> {
        match &self.0.kind {
            Kind::Request { params, .. } | Kind::Notification { params, .. } => params.as_ref(),
            Kind::Success { .. } | Kind::Failure { .. } => None,
        }
    }
}

// === impl FrameError ===

impl FrameError {
    /// Whether the bytes are no JSON.
    pub const fn is_syntax(&self) -> bool {
        matches!(self, Self::Syntax(_))
    }
}

// === impl Payload ===

impl Payload {
    /// Indexes the bytes of a payload.
    pub fn read(bytes: Bytes) -> Self {
        let located = JsonObject::read(&bytes).ok().map(|object| {
            let meta = object.get("_meta").and_then(|meta| JsonObject::read(&meta).ok());
            Arc::new(PayloadIndex { object, meta })
        });
        Self { bytes, located }
    }

    /// The members of the payload, if it is an object.
    pub fn object(&self) -> Option<&JsonObject> {
        self.located.as_deref().map(|located| &located.object)
    }

    /// The members of `_meta`, if the payload and its `_meta` are objects.
    pub fn meta(&self) -> Option<&JsonObject> {
        self.located.as_deref()?.meta.as_ref()
    }

    /// The raw value of a member ([`JsonObject::get`]).
    pub fn get(&self, key: &str) -> Option<Bytes> {
        self.object()?.get(key)
    }

    /// The decoded value of a member; `None` if it is missing or no string.
    pub fn string(&self, key: &str) -> Option<String> {
        self.object()?.string(key)
    }
}

impl Deref for Payload {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload {}

/// The positions of the parts of a message in its bytes.
#[derive(Default)]
pub(super) struct MessageIndex {
    members: MemberList,
    /// `params` or `result`: its range in the bytes and its members.
    payload: Option<(Range<usize>, MemberList)>,
    /// The `_meta` of `params` or `result`: its range and its members.
    meta: Option<(Range<usize>, MemberList)>,
    depth: u32,
}

/// The names of the members that the proxy routes by.
const ROUTED_MEMBERS: [&str; 5] = ["id", "method", "params", "result", "error"];

/// The ranges of the values of the routed members.
struct RoutedMembers {
    found: [Option<Range<usize>>; ROUTED_MEMBERS.len()],
    /// As [`FrameParts::ambiguous_member`].
    ambiguous_member: Option<u8>,
    /// As [`FrameParts::is_json_rpc`].
    is_json_rpc: bool,
}

// === impl MessageIndex ===

impl MessageIndex {
    /// Reads the object at the beginning of the bytes; `None` if they do not begin with one.
    pub(super) fn read(&mut self, scan: &mut JsonScanner<'_>) -> Option<()> {
        let Self { members, payload, meta, depth } = self;
        scan.object(0, members, |scan, key| {
            if scan.peek() != Some(b'{') || !(key.is("params") || key.is("result")) {
                return scan.value();
            }
            // If `params` or `result` occurs more than once, the last one is indexed.
            *meta = None;
            let (at, members) = payload.insert((scan.at()..0, MemberList::new()));
            scan.object(at.start, members, |scan, key| {
                if !key.is("_meta") {
                    return scan.value();
                }
                *meta = None;
                if scan.peek() != Some(b'{') {
                    return scan.value();
                }
                let (at, members) = meta.insert((scan.at()..0, MemberList::new()));
                scan.object(at.start, members, |scan, _| scan.value())?;
                at.end = scan.at();
                Some(())
            })?;
            at.end = scan.at();
            Some(())
        })?;
        *depth = u32::try_from(scan.deepest()).ok()?;
        Some(())
    }

    /// Locates the routed members, and fails if one occurs twice.
    fn locate_routed_members(&self, bytes: &[u8]) -> Result<RoutedMembers, FrameError> {
        let (mut found, mut ambiguous) = ([const { None }; ROUTED_MEMBERS.len()], None);
        let mut is_json_rpc_2 = None;
        for member in &self.members {
            let key = member.key(bytes);
            if key.is("jsonrpc") {
                let is_version_2 = is_json_rpc_version(&bytes[member.value()]);
                is_json_rpc_2 = Some(is_json_rpc_2.is_none_or(|all_before| all_before) && is_version_2);
                continue;
            }
            let Some(at) = ROUTED_MEMBERS.iter().position(|name| key.is(name)) else {
                let find_similar = || (0..).zip(&ROUTED_MEMBERS[..3]).find(|(_, name)| key.is_like(name));
                ambiguous = ambiguous.or_else(|| find_similar().map(|(at, _)| at));
                continue;
            };
            if found[at].replace(member.value()).is_some() {
                let problem = format!("`{}` occurs twice", ROUTED_MEMBERS[at]);
                return Err(FrameError::Member { id: None, problem });
            }
        }
        Ok(RoutedMembers { found, ambiguous_member: ambiguous, is_json_rpc: is_json_rpc_2 == Some(true) })
    }

    /// Builds the payload at `at`, with its index if this was the last indexed member.
    fn take_payload(&mut self, bytes: &Bytes, at: Range<usize>) -> Payload {
        let object = |(at, members)| JsonObject::from_members(bytes.slice(at), members);
        match self.payload.take_if(|(range, _)| *range == at) {
            Some(payload) => {
                let located = PayloadIndex { object: object(payload), meta: self.meta.take().map(object) };
                Payload { bytes: bytes.slice(at), located: Some(Arc::new(located)) }
            }
            // The value is no object, or the message has both members.
            None => Payload::read(bytes.slice(at)),
        }
    }
}

/// The method in a JSON value; `None` if it is no string.
fn parse_method(name: &[u8]) -> Option<Method> {
    if let Some(name) = unescaped(name) {
        return Some(Cow::Borrowed(name).into());
    }
    let name: BorrowedString<'_> = serde_json::from_slice(name).ok()?;
    Some(name.0.into())
}

/// Whether a JSON value is the string `2.0`.
fn is_json_rpc_version(value: &[u8]) -> bool {
    value == br#""2.0""#
        || serde_json::from_slice::<BorrowedString<'_>>(value).is_ok_and(|BorrowedString(text)| text == "2.0")
}

/// The error for bytes that [`MessageIndex::read`] could not read.
pub(super) fn parse_error(bytes: &[u8]) -> FrameError {
    match serde_json::from_slice::<&RawValue>(bytes) {
        Err(error) => FrameError::Syntax(error),
        // JSON, but no object. -32700 is only for bytes that are no JSON (JSON-RPC 2.0, section 5.1).
        Ok(_) => FrameError::Shape { id: None },
    }
}

/// The maximum number of brackets that are open at a time. The bytes may be invalid JSON, because another
/// reader might accept them.
pub fn bracket_depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut at) = (0usize, 0, 0);
    while let Some(&byte) = json.get(at) {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => at = end_of_string(json, at),
            _ => {}
        }
        at += 1;
    }
    deepest
}

/// The index of the quote that ends the string opened at `open`, or the last index.
fn end_of_string(json: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while let Some(step) = json.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += step;
        if json[at] == b'"' {
            return at;
        }
        at += 2;
    }
    json.len()
}

/// Puts a message on one line: line breaks between tokens become spaces.
///
/// JSON strings cannot contain a raw line break, so no string is changed. Some clients parse each `data:`
/// line of an event as a whole message, and fail on a message that spans several.
pub fn to_single_line(json: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &json).is_none() {
        return json;
    }
    let mut line = Vec::from(json);
    for byte in &mut line {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    line.into()
}

/// A string that borrows from the input; serde copies into a plain `Cow<str>` always.
#[derive(Deserialize)]
struct BorrowedString<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &'static str) -> Result<Frame, FrameError> {
        Frame::parse(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn unknown_members_and_long_numbers_survive() {
        let text = r#"{ "jsonrpc":"2.0","id":9007199254740993 ,"x-new":[1.0e400], "method":"a/b","params":{"k" : 1}}"#;
        let frame = parse(text).expect("valid");
        assert_eq!(frame.as_bytes(), text.as_bytes());
        let Kind::Request { id, params, .. } = frame.kind() else { panic!("a request") };
        assert_eq!(id.as_bytes(), "9007199254740993");
        assert_eq!(params.as_ref().map(|params| &***params), Some(&br#"{"k" : 1}"#[..]));
    }

    #[test]
    fn parts_share_the_frames_allocation() {
        let frame = parse(r#"{"id":"x","result":{"a":1}}"#).expect("valid");
        let Kind::Success { result, .. } = frame.kind() else { panic!("a success") };
        let whole = frame.as_bytes().as_ptr_range();
        assert!(whole.contains(&result.as_ptr()));
    }

    #[test]
    fn null_id_is_not_a_notification() {
        assert!(matches!(parse(r#"{"id":null,"method":"m"}"#), Err(FrameError::Id)));
    }

    #[test]
    fn null_result_is_a_success() {
        let frame = parse(r#"{"id":1,"result":null}"#).expect("valid");
        assert!(matches!(frame.kind(), Kind::Success { .. }));
    }

    #[test]
    fn an_array_is_no_message() {
        for text in [r#"[1,"tools/call",{}]"#, r#" [1,"m"]"#, "[]"] {
            assert!(matches!(parse(text), Err(FrameError::Shape { id: None })), "{text}");
        }
        assert!(matches!(parse("[1,"), Err(FrameError::Syntax(_))));
    }

    #[test]
    fn json_that_is_no_message_is_no_syntax_error() {
        for text in ["1", "null", r#""text""#, "true", "{}", r#"{"id":1,"method":"a","method":"b"}"#] {
            let refused = parse(text).expect_err(text);
            assert!(
                matches!(refused, FrameError::Shape { .. } | FrameError::Member { .. }),
                "{text}: {refused}"
            );
        }
        let Err(FrameError::Member { id: Some(id), problem }) = parse(r#"{"id":7,"method":5}"#) else {
            panic!("a method that is no string")
        };
        assert_eq!((id.as_bytes().as_ref(), &*problem), (&b"7"[..], "`method` must be a string"));
    }

    #[test]
    fn a_message_declares_json_rpc() {
        for (version, is_json_rpc) in [
            (r#""jsonrpc":"2.0","#, true),
            (r#""jsonrpc":"2\u002e0","#, true),
            (r#""jsonrpc":"2.0","jsonrpc":"2.0","#, true),
            (r#""jsonrpc":"1.0","jsonrpc":"2.0","#, false),
            (r#""jsonrpc":"2.0","jsonrpc":2,"#, false),
            (r#""jsonrpc":"1.0","#, false),
            (r#""jsonrpc":2.0,"#, false),
            (r#""jsonrpc":null,"#, false),
            (r#""JSONRPC":"2.0","#, false),
            ("", false),
        ] {
            let frame =
                Frame::parse(format!(r#"{{{version}"id":1,"method":"m"}}"#).into()).expect("a request");
            assert_eq!(frame.is_json_rpc(), is_json_rpc, "{version}");
        }
    }

    #[test]
    fn an_invalid_message_still_reports_its_id() {
        let Err(FrameError::Shape { id: Some(id) }) = parse(r#"{"id":7}"#) else { panic!("shapeless") };
        assert_eq!(id.as_bytes(), "7");
    }

    #[test]
    fn brackets_count_outside_strings_only() {
        for (json, depth) in
            [(r#"{"a":["[[[\"[["]}"#, 2), ("[[[]]]", 3), ("[[],[],[]]", 2), (r#"["unterminated \"#, 1)]
        {
            assert_eq!(bracket_depth(json.as_bytes()), depth, "{json}");
        }
    }

    #[test]
    fn a_member_that_differs_only_in_case_is_reported() {
        for (key, resembled) in
            [("PARAMS", "params"), ("param\u{17f}", "params"), ("Id", "id"), ("m\\u0045thod", "method")]
        {
            let text = format!(r#"{{"id":1,"method":"m","{key}":{{}}}}"#);
            assert_eq!(
                Frame::parse(text.into()).expect("valid").ambiguous_member(),
                Some(resembled),
                "{key}"
            );
        }
        assert_eq!(
            parse(r#"{"id":1,"method":"m","ñame":{},"Result":1}"#).expect("valid").ambiguous_member(),
            None
        );
    }

    #[test]
    fn line_breaks_between_tokens_become_spaces() {
        let json = to_single_line(Bytes::from_static(b"{\r\n  \"a\": \"x\\n\"\n}"));
        assert_eq!(json, &b"{    \"a\": \"x\\n\" }"[..]);
    }
}
