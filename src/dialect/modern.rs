//! Self-contained requests (2026-07-28 and later): every request states its revision and its client's
//! capabilities in `_meta`, and repeats in headers the values by which routers route.

use super::{Call, ClientInfo, ClientProfile, ExtraHeaders, HeaderScope, LogLevel, detach};
use crate::protocol::{
    Capabilities, Era, ErrorObject, Frame, FrameError, Kind, Method, Payload, RequestId, Revision, code,
    frame, headers, meta,
    splice::{BytesPatch, JsonObject, ObjectEdit},
};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, StatusCode};
use serde_json::{Value, json, value::RawValue};
use std::{borrow::Cow, sync::Arc};

/// The refusal of a request before it is processed: the HTTP status and the JSON-RPC error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRefusal {
    /// The HTTP status of the response.
    pub status: StatusCode,
    /// The id of the refused request; `None` only if the id could not be read.
    pub id: Option<RequestId>,
    /// The JSON-RPC error of the response.
    pub error: ErrorObject,
}

/// The message in one HTTP body of a 2026-07-28 client.
#[derive(Debug)]
pub enum ModernMessage {
    /// A request, with the capabilities that the client declared on it.
    Request(Arc<Call>, Arc<Capabilities>),
    /// A notification, which is accepted with 202 and has no effect in this revision over HTTP.
    Notification,
}

/// The revisions that a self-contained (session-less) request may name.
pub const SELF_CONTAINED_REVISIONS: [Revision; 1] = [Revision::V2026_07_28];

/// All revisions that the proxy serves at one address in front of a legacy server, the newest first. Clients
/// of legacy revisions open a session with `initialize` (2026-07-28, *Versioning*: an error names the same
/// revisions as `server/discover`).
pub const SERVED_REVISIONS: [Revision; 4] =
    [Revision::V2026_07_28, Revision::V2025_11_25, Revision::V2025_06_18, Revision::V2025_03_26];

/// Reads one message of a 2026-07-28 client. The checks run in an order that satisfies every conformance
/// probe: JSON, shape, version header, `_meta`, agreement of header and `_meta`, version, `Mcp-Method`,
/// method, `Mcp-Name` (2026-07-28, *Streamable HTTP, Server Validation*).
///
/// `previous` is the profile of the client's previous request, if known: unchanged parts are not parsed
/// again.
///
/// # Errors
/// [`RequestRefusal`], with the status and the error to respond with, if a check fails.
pub fn read_message(
    frame: Result<Frame, FrameError>,
    headers: &HeaderMap,
    previous: Option<&ClientProfile>,
) -> Result<ModernMessage, RequestRefusal> {
    let frame = frame.map_err(|error| unreadable_refusal(&error))?;
    if !frame.is_json_rpc() {
        return Err(missing_json_rpc_version(match frame.kind() {
            Kind::Request { id, .. } => Some(id.clone()),
            Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => None,
        }));
    }
    let (bytes, kind) = frame.into_parts();
    let (id, method, params) = match kind {
        Kind::Request { id, method, params } => (id, method, params),
        Kind::Notification { .. } => return Ok(ModernMessage::Notification),
        Kind::Success { .. } | Kind::Failure { .. } => {
            let error = "a client of 2026-07-28 sends no responses; answer input requests by retrying the request with inputResponses";
            return Err(RequestRefusal::new(None, ErrorObject::new(code::INVALID_REQUEST, error)));
        }
    };
    let refuse = |error: ErrorObject| RequestRefusal::new(Some(id.clone()), error);

    let version_header = single_value(headers, &headers::PROTOCOL_VERSION).map_err(refuse)?;
    let version_header =
        version_header.ok_or_else(|| refuse(missing_header_error(&headers::PROTOCOL_VERSION)))?;
    let (object, request_meta) = read_meta(params.as_ref(), previous).map_err(refuse)?;
    if version_header != request_meta.version {
        return Err(refuse(header_mismatch_error(
            &headers::PROTOCOL_VERSION,
            &version_header,
            &request_meta.version,
        )));
    }
    if !SELF_CONTAINED_REVISIONS.iter().any(|revision| revision.as_str() == request_meta.version) {
        return Err(refuse(unsupported_version_error(&request_meta.version)));
    }
    let method_header = single_value(headers, &headers::METHOD).map_err(refuse)?;
    let method_header = method_header.ok_or_else(|| refuse(missing_header_error(&headers::METHOD)))?;
    if method_header != method.as_str() {
        return Err(refuse(header_mismatch_error(&headers::METHOD, &method_header, method.as_str())));
    }
    if method.modern_requirement().is_none() {
        return Err(method_not_found(id, &method));
    }
    let target = read_target(&method, object, headers).map_err(refuse)?;
    let call = Call {
        bytes,
        id,
        method,
        params,
        target,
        progress_token: request_meta.progress_token,
        log_level: request_meta.log_level,
        headers: request_headers(headers, previous),
        client_info: request_meta.client_info,
        trace: None,
    };
    Ok(ModernMessage::Request(Arc::new(call), request_meta.capabilities))
}

/// Builds the refusal of a method that is not served. The status is 404 with a JSON-RPC error, to distinguish
/// it from a missing endpoint (2026-07-28, *Protocol Version Header*).
pub fn method_not_found(id: RequestId, method: &Method) -> RequestRefusal {
    let error = ErrorObject::new(code::METHOD_NOT_FOUND, format!("Method not found: {method}"));
    RequestRefusal { status: StatusCode::NOT_FOUND, id: Some(id), error }
}

/// Builds the refusal of a message that does not declare JSON-RPC 2.0 (JSON-RPC 2.0, section 4; MCP,
/// *Messages*).
pub fn missing_json_rpc_version(id: Option<RequestId>) -> RequestRefusal {
    RequestRefusal::new(
        id,
        ErrorObject::new(code::INVALID_REQUEST, "each message must have `\"jsonrpc\":\"2.0\"`"),
    )
}

/// Builds the error `-32022`, which names the served revisions and the requested one.
pub fn unsupported_version_error(requested: &str) -> ErrorObject {
    let supported: Vec<_> = SERVED_REVISIONS.iter().map(|revision| revision.as_str()).collect();
    let message = match Revision::parse(requested).map(Revision::era) {
        Some(Era::Legacy) => format!(
            "Unsupported protocol version {requested} on a self-contained request; begin a session with `initialize`, or use {}",
            supported[0]
        ),
        Some(Era::Modern) | None => {
            format!("Unsupported protocol version {requested}; this server supports {}", supported.join(", "))
        }
    };
    let data = json!({ "supported": supported, "requested": requested });
    ErrorObject::with_data(code::UNSUPPORTED_VERSION, message, &data)
}

/// Writes a JSON-RPC error response on one line; without `id` if the id of the request could not be read.
pub fn error_response(id: Option<&RequestId>, error: &ErrorObject) -> Bytes {
    let error = frame::to_single_line(error.as_bytes().clone());
    let mut out = BytesMut::with_capacity(48 + error.len() + id.map_or(0, |id| id.as_bytes().len()));
    out.put_slice(br#"{"jsonrpc":"2.0","#);
    if let Some(id) = id {
        out.put_slice(br#""id":"#);
        out.put_slice(id.as_bytes());
        out.put_u8(b',');
    }
    out.put_slice(br#""error":"#);
    out.put_slice(&error);
    out.put_u8(b'}');
    out.freeze()
}

/// Writes a JSON-RPC response on one line. `result` is raw JSON, also on one line.
pub fn success_response(id: &RequestId, result: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(40 + result.len() + id.as_bytes().len());
    out.put_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.put_slice(id.as_bytes());
    out.put_slice(br#","result":"#);
    out.put_slice(result);
    out.put_u8(b'}');
    out.freeze()
}

/// Writes a JSON-RPC notification on one line. `params` is raw JSON, also on one line.
pub fn notification(method: &Method, params: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(48 + method.as_str().len() + params.len());
    out.put_slice(br#"{"jsonrpc":"2.0","method":""#);
    out.put_slice(method.as_str().as_bytes());
    out.put_slice(br#"","params":"#);
    out.put_slice(params);
    out.put_u8(b'}');
    out.freeze()
}

/// Writes a `_meta` object that contains only the server info (raw JSON).
pub fn server_info_meta(server_info: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 + server_info.len());
    out.extend_from_slice(br#"{"io.modelcontextprotocol/serverInfo":"#);
    out.extend_from_slice(server_info);
    out.push(b'}');
    out
}

/// Completes a result of the proxy with `resultType` and the server info (raw JSON), and serializes it.
pub fn complete_result(mut result: Value, server_info: &[u8]) -> Vec<u8> {
    result["resultType"] = "complete".into();
    if let Ok(server_info) = serde_json::from_slice::<Value>(server_info) {
        result["_meta"][meta::SERVER_INFO] = server_info;
    }
    result.to_string().into_bytes()
}

/// Translates a server's notification during a call for the client of the call. `None` if the client did not
/// request such notifications, or receives them on another stream.
pub fn translate_notification(call: &Call, frame: &Frame) -> Option<Bytes> {
    let Kind::Notification { method, params } = frame.kind() else { return None };
    match method {
        Method::Progress => {
            let token = call.progress_token.clone()?;
            let mut patch = BytesPatch::new(frame.as_bytes().clone());
            let mut edit = ObjectEdit::new(params.as_ref()?.object()?);
            edit.set(meta::PROGRESS_TOKEN, token);
            edit.add_to(&mut patch);
            Some(frame::to_single_line(patch.apply()))
        }
        // A request without a log level gets no log messages (2026-07-28, *Logging*).
        Method::Message => {
            let minimum = call.log_level?;
            let level = LogLevel::parse(&params.as_ref()?.string("level")?)?;
            (level >= minimum).then(|| frame::to_single_line(frame.as_bytes().clone()))
        }
        // Change notifications are sent on `subscriptions/listen` streams, and a cancellation is for the
        // proxy, which made the request.
        Method::ToolsListChanged
        | Method::PromptsListChanged
        | Method::ResourcesListChanged
        | Method::ResourceUpdated
        | Method::Cancelled => None,
        _ => Some(frame::to_single_line(frame.as_bytes().clone())),
    }
}

/// Whether the result of a `resources/read` is an empty list, with which some servers report an unknown
/// resource.
pub fn has_empty_contents(result: &Bytes) -> bool {
    JsonObject::read(result)
        .ok()
        .and_then(|object| {
            serde_json::from_slice::<Vec<&RawValue>>(&object.get("contents")?).ok().map(|c| c.is_empty())
        })
        .unwrap_or(false)
}

/// Builds the error `-32602` with the URI of the unknown resource (2026-07-28, *Resources, Error Handling*).
pub fn unknown_resource_error(uri: &str) -> ErrorObject {
    ErrorObject::with_data(code::INVALID_PARAMS, format!("Resource not found: {uri}"), &json!({ "uri": uri }))
}

/// Creates a call that the proxy itself makes, with these params (raw JSON).
pub fn build_call(method: &Method, params: &str) -> Call {
    let body = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{method}","params":{params}}}"#);
    let frame = Frame::parse(body.into()).expect("what is written here is a message");
    let Kind::Request { id, method, params } = frame.kind() else {
        unreachable!("it has an id and a method")
    };
    Call {
        bytes: frame.as_bytes().clone(),
        id: id.clone(),
        method: method.clone(),
        params: params.clone(),
        target: None,
        progress_token: None,
        log_level: None,
        headers: ExtraHeaders::default(),
        client_info: ClientInfo::default(),
        trace: None,
    }
}

// === impl RequestRefusal ===

impl RequestRefusal {
    /// Creates a refusal with status 400.
    fn new(id: Option<RequestId>, error: ErrorObject) -> Self {
        Self { status: StatusCode::BAD_REQUEST, id, error }
    }

    /// Writes the JSON-RPC error response.
    pub fn to_response(&self) -> Bytes {
        error_response(self.id.as_ref(), &self.error)
    }
}

/// The contents of the `_meta` of a request.
struct RequestMeta {
    version: String,
    capabilities: Arc<Capabilities>,
    client_info: ClientInfo,
    progress_token: Option<Bytes>,
    log_level: Option<LogLevel>,
}

/// Refuses a body that is nested deeper than `limit` levels.
///
/// # Errors
/// [`RequestRefusal`] without an id, if `depth` is greater than `limit`.
pub fn check_depth(depth: usize, limit: usize) -> Result<(), RequestRefusal> {
    if depth > limit {
        return Err(unreadable_refusal(&FrameError::Depth { limit }));
    }
    Ok(())
}

/// Builds the refusal of a body that is not a valid message.
fn unreadable_refusal(error: &FrameError) -> RequestRefusal {
    let (id, code) = match error {
        FrameError::Syntax(_) => (None, code::PARSE_ERROR),
        FrameError::Shape { id } | FrameError::Member { id, .. } => (id.clone(), code::INVALID_REQUEST),
        FrameError::Id | FrameError::Depth { .. } => (None, code::INVALID_REQUEST),
    };
    RequestRefusal::new(id, ErrorObject::new(code, error.to_string()))
}

/// Reads the params and the contents of their `_meta` (2026-07-28, *Per-request protocol fields*).
fn read_meta<'a>(
    params: Option<&'a Payload>,
    previous: Option<&ClientProfile>,
) -> Result<(&'a JsonObject, RequestMeta), ErrorObject> {
    let invalid_params = |message: String| ErrorObject::new(code::INVALID_PARAMS, message);
    let missing_member = |key: &str| invalid_params(format!("params._meta[\"{key}\"] is required"));
    let payload = params.ok_or_else(|| missing_member(meta::PROTOCOL_VERSION))?;
    let params = payload.object().ok_or_else(|| invalid_params("params must be an object".into()))?;
    let meta_object = match payload.meta() {
        Some(meta_object) => meta_object,
        None if params.contains("_meta") => {
            return Err(invalid_params("params._meta must be an object".into()));
        }
        None => return Err(missing_member(meta::PROTOCOL_VERSION)),
    };
    // A repeated member is refused, because parsers disagree about which one counts: a check here might not
    // cover what the server executes.
    if let Some(key) = params.repeated_key().or_else(|| meta_object.repeated_key()) {
        return Err(invalid_params(format!("`{key}` occurs twice")));
    }
    let version =
        meta_object.string(meta::PROTOCOL_VERSION).ok_or_else(|| missing_member(meta::PROTOCOL_VERSION))?;
    let capabilities = meta_object
        .get(meta::CLIENT_CAPABILITIES)
        .ok_or_else(|| missing_member(meta::CLIENT_CAPABILITIES))?;
    let capabilities = match previous.filter(|known| *known.capabilities.as_bytes() == capabilities) {
        Some(known) => Arc::clone(&known.capabilities),
        None => Capabilities::read(capabilities).map(Arc::new).map_err(|error| {
            invalid_params(format!("params._meta[\"{}\"]: {error}", meta::CLIENT_CAPABILITIES))
        })?,
    };
    let client_info = match meta_object.get(meta::CLIENT_INFO) {
        None => ClientInfo::default(),
        Some(info) => match previous.filter(|known| known.client_info.as_bytes() == Some(&info)) {
            Some(known) => known.client_info.clone(),
            None => ClientInfo::read(&info).map_err(|error| {
                invalid_params(format!("params._meta[\"{}\"]: {error}", meta::CLIENT_INFO))
            })?,
        },
    };
    let progress_token = meta_object.get(meta::PROGRESS_TOKEN);
    if progress_token.as_ref().is_some_and(|token| RequestId::from_token(token.clone()).is_none()) {
        return Err(invalid_params("params._meta.progressToken must be a string or an integer".into()));
    }
    let log_level = match meta_object.get(meta::LOG_LEVEL) {
        None => None,
        Some(_) => {
            Some(meta_object.string(meta::LOG_LEVEL).and_then(|level| LogLevel::parse(&level)).ok_or_else(
                || invalid_params(format!("params._meta[\"{}\"] is not a log level", meta::LOG_LEVEL)),
            )?)
        }
    };
    Ok((params, RequestMeta { version, capabilities, client_info, progress_token, log_level }))
}

/// Reads the subject of the call, and checks that the `Mcp-Name` header names the same. The header may be
/// absent for `tasks/*`: clients in the field omit it, and the proxy does not route by it.
fn read_target(
    method: &Method,
    params: &JsonObject,
    headers: &HeaderMap,
) -> Result<Option<String>, ErrorObject> {
    let Some(member) = method.name_member() else { return Ok(None) };
    let target = params.string(member);
    let name_header = headers::read(headers, &headers::NAME)
        .map_err(|error| ErrorObject::new(code::HEADER_MISMATCH, error.to_string()))?;
    match (&name_header, &target) {
        (Some(name_header), Some(target)) if *name_header != **target => {
            return Err(header_mismatch_error(&headers::NAME, name_header, target));
        }
        (None, Some(_)) if method.can_request_input() => return Err(missing_header_error(&headers::NAME)),
        (Some(_) | None, Some(_)) => {}
        (_, None) => {
            return Err(ErrorObject::new(code::INVALID_PARAMS, format!("params.{member} must be a string")));
        }
    }
    Ok(target)
}

/// Reads a header that may occur only once, without decoding: the base64 sentinel is only for names and
/// parameters (2026-07-28, *Value Encoding*).
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<Cow<'a, str>>, ErrorObject> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(header_mismatch(format!("{} occurs twice", spec_name(name))));
    }
    // A value with bytes beyond ASCII matches no expected value, and is quoted in the error.
    Ok(Some(headers::to_text_lossy(value)))
}

/// Copies the headers that are forwarded with this request only; shares those of the previous request if they
/// are equal.
fn request_headers(headers: &HeaderMap, previous: Option<&ClientProfile>) -> ExtraHeaders {
    let forwarded =
        || headers.iter().filter(|(name, _)| HeaderScope::for_header(name) == HeaderScope::Request);
    if let Some(profile) = previous
        && forwarded().eq(profile.headers.iter())
    {
        return profile.headers.clone();
    }
    let mut out = HeaderMap::new();
    for (name, value) in forwarded() {
        out.append(name, detach(value));
    }
    out.into()
}

fn missing_header_error(name: &HeaderName) -> ErrorObject {
    header_mismatch(format!("the {} header is required", spec_name(name)))
}

fn header_mismatch_error(name: &HeaderName, header: &str, body: &str) -> ErrorObject {
    header_mismatch(format!("{} header value '{header}' does not match body value '{body}'", spec_name(name)))
}

fn header_mismatch(message: String) -> ErrorObject {
    ErrorObject::new(code::HEADER_MISMATCH, format!("Header mismatch: {message}"))
}

/// Returns the name of a header in the spelling of the specification.
fn spec_name(name: &HeaderName) -> &str {
    match name.as_str() {
        "mcp-protocol-version" => "MCP-Protocol-Version",
        "mcp-method" => "Mcp-Method",
        "mcp-name" => "Mcp-Name",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::MessageReader;
    use http::HeaderValue;

    const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).expect("a header value"));
        }
        headers
    }

    fn good() -> HeaderMap {
        headers(&[("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "add")])
    }

    fn without(name: &str) -> HeaderMap {
        let mut headers = good();
        headers.remove(name);
        headers
    }

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = without(name);
        headers.append(name, HeaderValue::from_str(value).expect("a header value"));
        headers
    }

    fn read_text(text: &str, headers: &HeaderMap) -> Result<ModernMessage, RequestRefusal> {
        let mut messages = MessageReader::new(text.replace("META", META).into());
        let frame = messages.next().expect("there is one");
        check_depth(messages.depth(), 16)?;
        read_message(frame, headers, None)
    }

    const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add",META}}"#;

    #[test]
    fn repeated_capabilities_are_not_parsed_again_and_changed_ones_are() {
        let declaring = |capabilities: &str, declared: Option<&Arc<Capabilities>>| {
            let text = CALL.replace("META", &META.replace("{}", capabilities));
            let nothing = Default::default();
            let before = declared
                .map(|declared| ClientProfile::for_request(declared, &nothing, &ExtraHeaders::default()));
            let Ok(ModernMessage::Request(_, capabilities)) =
                read_message(Frame::parse(text.into()), &good(), before.as_ref())
            else {
                panic!("refused")
            };
            capabilities
        };
        let first = declaring(r#"{"roots":{}}"#, None);
        assert!(Arc::ptr_eq(&first, &declaring(r#"{"roots":{}}"#, Some(&first))));
        for other in ["{}", r#"{"roots": {}}"#, r#"{"sampling":{}}"#, r#"{"roots":{},"tasks":{}}"#] {
            let read = declaring(other, Some(&first));
            assert_eq!(read.as_bytes(), other);
            assert_eq!(
                *read,
                Capabilities::read(Bytes::copy_from_slice(other.as_bytes())).expect("an object")
            );
        }
    }

    fn refused(text: &str, headers: &HeaderMap) -> (u16, i64, bool) {
        match read_text(text, headers) {
            Err(refused) => (refused.status.as_u16(), refused.error.code(), refused.id.is_some()),
            Ok(read) => panic!("accepted as {read:?}"),
        }
    }

    #[test]
    fn a_good_request_is_read() {
        let Ok(ModernMessage::Request(call, _)) = read_text(CALL, &good()) else { panic!("refused") };
        assert_eq!((&call.method, call.target.as_deref()), (&Method::ToolsCall, Some("add")));
    }

    #[test]
    fn each_defect_has_its_status_and_code() {
        let discover = |meta: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{{{meta}}}}}"#)
        };
        for (what, text, headers, want) in [
            ("no JSON", "{", good(), (400, -32700, false)),
            ("no shape, but an id", r#"{"jsonrpc":"2.0","id":1}"#, good(), (400, -32600, true)),
            ("a null id", r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, good(), (400, -32600, false)),
            ("too deep", &"[".repeat(17), good(), (400, -32600, false)),
            ("a response", r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, good(), (400, -32600, false)),
            ("no version header", CALL, without("mcp-protocol-version"), (400, -32020, true)),
            (
                "no params",
                r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#,
                good(),
                (400, -32602, true),
            ),
            ("no _meta", &discover(""), good(), (400, -32602, true)),
            ("an empty _meta", &discover(r#""_meta":{}"#), good(), (400, -32602, true)),
            (
                "no capabilities",
                &discover(r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#),
                good(),
                (400, -32602, true),
            ),
            (
                "header and _meta differ",
                CALL,
                with("mcp-protocol-version", "2025-11-25"),
                (400, -32020, true),
            ),
            (
                "a version nobody speaks",
                &CALL.replace("META", &META.replace("2026-07-28", "v999.0.0")),
                with("mcp-protocol-version", "v999.0.0"),
                (400, -32022, true),
            ),
            ("no method header", CALL, without("mcp-method"), (400, -32020, true)),
            ("another method", CALL, with("mcp-method", "tools/list"), (400, -32020, true)),
            ("another case", CALL, with("mcp-method", "Tools/Call"), (400, -32020, true)),
            ("no name header", CALL, without("mcp-name"), (400, -32020, true)),
            ("another name", CALL, with("mcp-name", "Add"), (400, -32020, true)),
            ("a name that is bad base64", CALL, with("mcp-name", "=?base64?YWRk=?="), (400, -32020, true)),
            (
                "no name in the body",
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{META}}"#,
                good(),
                (400, -32602, true),
            ),
            (
                "a name that occurs twice",
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","name":"rm",META}}"#,
                good(),
                (400, -32602, true),
            ),
            (
                "a removed method",
                r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{META}}"#,
                with("mcp-method", "ping"),
                (404, -32601, true),
            ),
        ] {
            assert_eq!(refused(text, &headers), want, "{what}");
        }
    }

    #[test]
    fn a_repeated_header_is_refused() {
        let mut headers = good();
        headers.append("mcp-method", HeaderValue::from_static("tools/call"));
        assert_eq!(refused(CALL, &headers), (400, -32020, true));
    }

    #[test]
    fn a_name_may_be_encoded() {
        assert!(read_text(CALL, &with("mcp-name", "=?base64?YWRk?=")).is_ok());
    }

    #[test]
    fn a_task_needs_no_name_header_but_none_that_differs() {
        let get = r#"{"jsonrpc":"2.0","id":"a","method":"tasks/get","params":{"taskId":"t",META}}"#;
        let mut headers = with("mcp-method", "tasks/get");
        headers.remove("mcp-name");
        assert!(read_text(get, &headers).is_ok());
        headers.insert("mcp-name", HeaderValue::from_static("u"));
        assert_eq!(refused(get, &headers), (400, -32020, true));
    }

    #[test]
    fn an_error_response_without_an_id_has_none() {
        let error = ErrorObject::new(code::PARSE_ERROR, "m");
        assert_eq!(
            error_response(None, &error),
            r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"m"}}"#
        );
    }
}
