//! The `Mcp-*` headers: reading, writing, and comparing them with the body (2026-07-28, *Request Metadata*).
//!
//! A modern client repeats parts of the body in headers, so that intermediaries can route without reading the
//! body. A server that reads the body must refuse a request whose headers differ from it: otherwise two parts
//! of a system act on two different requests. Text that is not safe in a header is encoded in a base64
//! *sentinel*, `=?base64?…?=`.

use super::{canonical, splice::JsonObject};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header::FORWARDED};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::HashMap};

/// The protocol revision of a request.
pub static PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The JSON-RPC method of a request, repeated from the body (2026-07-28).
pub static METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// The name of the tool, prompt, resource or task of a request, repeated from the body (2026-07-28).
pub static NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The session of a legacy client.
pub static SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The id of the SSE event after which a client resumes a stream.
pub static LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The header that proxies used before `Forwarded` was standardized.
static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The prefix, in lower case, of every header that mirrors a parameter of a tool.
pub const PARAM_PREFIX: &str = "mcp-param-";

/// The member of a property's JSON schema by which a tool requests that the parameter is mirrored into a
/// header.
const ANNOTATION: &str = "x-mcp-header";
/// The maximum nesting of a mirrored parameter. Bounds the recursion into a schema; a deeper parameter is not
/// mirrored.
const MAX_NESTING: usize = 64;
/// Maximum characters of a value that a [`HeaderMismatch`] quotes.
const MAX_EXCERPT_CHARS: usize = 64;
const SENTINEL_START: &str = "=?base64?";
const SENTINEL_END: &str = "?=";

/// A header value that cannot be read: not visible ASCII, or a base64 sentinel with invalid contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("header value is malformed: {0}")]
pub struct MalformedHeader(pub &'static str);

/// A parameter that a tool's schema requires in a header (`x-mcp-header`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamHeader {
    /// `mcp-param-<name>`.
    pub header: HeaderName,
    /// The chain of property names from the root of the arguments to the parameter. Never empty.
    pub path: Vec<String>,
    /// The declared type of the parameter.
    pub kind: ParamKind,
}

/// The type the tool declares for a mirrored parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    String,
    Integer,
    Boolean,
}

/// A header that differs from the body. The text names the header and both values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Header mismatch: {0}")]
pub struct HeaderMismatch(pub String);

/// The decoded value of a header; `None` if the header is absent.
///
/// # Errors
/// [`HeaderMismatch`] if the header is repeated, because two readers may disagree on which value counts, or
/// if its value is a [`MalformedHeader`].
pub fn read<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<Cow<'a, str>>, HeaderMismatch> {
    let mut lines = headers.get_all(name).iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(HeaderMismatch(format!("{name} header appears more than once")));
    }
    decode(line)
        .map(Some)
        .map_err(|MalformedHeader(why)| HeaderMismatch(format!("{name} header value is malformed: {why}")))
}

/// The value of a header as text, without decoding a base64 sentinel. Bytes that are not UTF-8 are replaced
/// by U+FFFD.
pub fn to_text_lossy(value: &HeaderValue) -> Cow<'_, str> {
    value.to_str().map_or_else(|_| String::from_utf8_lossy(value.as_bytes()), Cow::Borrowed)
}

/// The addresses that a request passed before this proxy, as the client or an intermediary wrote them:
/// `Forwarded` (RFC 7239), else `X-Forwarded-For`. Not trustworthy, because any client can send the header.
pub fn forwarded_for(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    [&FORWARDED, &FORWARDED_FOR].into_iter().find_map(|name| headers.get(name)).map(to_text_lossy)
}

/// The text of a header value: the value itself, or what its base64 sentinel (`=?base64?…?=`, markers
/// case-sensitive, strict padding and alphabet, UTF-8) encodes.
///
/// Blanks around the value are not part of it (RFC 9110, 5.5). A value with only one of the markers is taken
/// literally.
///
/// # Errors
/// [`MalformedHeader`] if the value cannot be decoded.
pub fn decode(value: &HeaderValue) -> Result<Cow<'_, str>, MalformedHeader> {
    // `to_str` accepts visible ASCII, space and tab.
    let text =
        value.to_str().map_err(|_| MalformedHeader("only visible ASCII, space and tab are allowed"))?;
    let text = text.trim_matches([' ', '\t']);
    let Some(inner) = text.strip_prefix(SENTINEL_START).and_then(|rest| rest.strip_suffix(SENTINEL_END))
    else {
        return Ok(text.into());
    };
    let bytes =
        STANDARD.decode(inner).map_err(|_| MalformedHeader("the sentinel does not hold canonical base64"))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text.into()),
        Err(_) => Err(MalformedHeader("the sentinel does not hold UTF-8")),
    }
}

/// A header value for `text`: the text itself if it is safe in a header, else the base64 sentinel.
pub fn encode(text: &str) -> HeaderValue {
    let is_allowed = |byte: u8| matches!(byte, b'\t' | b' '..=b'~');
    let is_trimmed = text.trim_matches([' ', '\t']).len() == text.len();
    // Text that looks like a sentinel, even if its markers overlap, must be encoded.
    let is_ambiguous = text.starts_with(SENTINEL_START) && text.ends_with(SENTINEL_END);
    let value = match text.bytes().all(is_allowed) && is_trimmed && !is_ambiguous {
        true => HeaderValue::from_str(text),
        false => HeaderValue::try_from(format!("{SENTINEL_START}{}{SENTINEL_END}", STANDARD.encode(text))),
    };
    value.expect("visible ASCII is a header value")
}

/// The parameters of a tool's `inputSchema` that are mirrored into headers. An annotation that breaks a rule
/// of *Schema Extension* is ignored: clients drop such tools themselves, and the server validates calls of
/// such a tool.
///
/// Only chains of `properties` are followed, so an annotation that is not statically reachable is ignored. A
/// header name that two parameters use, in any case, is ignored for both.
pub fn param_headers(input_schema: &Bytes) -> Vec<ParamHeader> {
    let mut found = Vec::new();
    collect_annotations(input_schema, &mut Vec::new(), &mut found);
    let mut uses = HashMap::<_, usize>::new();
    for HeaderAnnotation { header, .. } in &found {
        *uses.entry(header.clone()).or_default() += 1;
    }
    let to_param_header = |HeaderAnnotation { header, path, kind }| {
        Some(ParamHeader { kind: kind.filter(|_| uses[&header] == 1)?, header, path })
    };
    found.into_iter().filter_map(to_param_header).collect()
}

/// Compares the headers of a `tools/call` with its arguments. A value that is present and not null needs its
/// header, equal after decoding (integers as numbers). An absent or null value needs none, and a header for
/// it is a mismatch.
///
/// The specification does not state the last rule: it only says that no header may be expected, but also that
/// a header must match the body, and an intermediary would act on a value that the body never contained. An
/// object or array where the tool declares a primitive cannot be written into a header, so it needs none
/// either; the server will refuse it.
///
/// # Errors
/// The first [`HeaderMismatch`], in the order of the parameters.
pub fn check_params(
    expected: &[ParamHeader],
    arguments: Option<&Bytes>,
    headers: &HeaderMap,
) -> Result<(), HeaderMismatch> {
    if expected.is_empty() {
        return Ok(());
    }
    let arguments = arguments.and_then(|arguments| JsonObject::read(arguments).ok());
    expected.iter().try_for_each(|param| param.check(arguments.as_ref(), headers))
}

// === impl ParamHeader ===

impl ParamHeader {
    /// Compares the header of this parameter with its argument.
    fn check(&self, arguments: Option<&JsonObject>, headers: &HeaderMap) -> Result<(), HeaderMismatch> {
        let Self { header: name, path, kind } = self;
        let value = match arguments {
            Some(arguments) => value_at(arguments, path)?,
            None => None,
        };
        let value = value.map(ArgumentValue::read).filter(|value| *value != ArgumentValue::Null);
        match (value, read(headers, name)?) {
            (None | Some(ArgumentValue::Null | ArgumentValue::Compound), None) => Ok(()),
            (Some(ArgumentValue::Text(_) | ArgumentValue::Number(_)), None) => Err(HeaderMismatch(format!(
                "{name} header is missing, but argument '{}' has a value; tools/list shows which headers \
                 a call needs",
                excerpt(&path.join("."))
            ))),
            (Some(value), Some(header)) if value.matches_header(&header, *kind) => Ok(()),
            (Some(ArgumentValue::Text(value) | ArgumentValue::Number(value)), Some(header)) => {
                Err(HeaderMismatch(format!(
                    "{name} header value '{}' does not match body value '{}'",
                    excerpt(&header),
                    excerpt(&value)
                )))
            }
            (None | Some(ArgumentValue::Null | ArgumentValue::Compound), Some(header)) => {
                Err(HeaderMismatch(format!(
                    "{name} header value '{}' has no counterpart: argument '{}' has no value that fits in a header",
                    excerpt(&header),
                    excerpt(&path.join("."))
                )))
            }
        }
    }
}

/// An argument as it would be written into a header.
#[derive(Debug, PartialEq, Eq)]
enum ArgumentValue {
    Null,
    /// A string's contents, or `true` or `false`.
    Text(String),
    /// A number as it was written.
    Number(String),
    /// An object or an array.
    Compound,
}

// === impl ArgumentValue ===

impl ArgumentValue {
    fn read(json: Bytes) -> Self {
        let token = || String::from_utf8_lossy(&json).into_owned();
        match json.first() {
            Some(b'n') => Self::Null,
            Some(b'{' | b'[') => Self::Compound,
            Some(b't' | b'f') => Self::Text(token()),
            // A string with a lone surrogate cannot be decoded, so it is compared as it is spelled.
            Some(b'"') => Self::Text(serde_json::from_slice(&json).unwrap_or_else(|_| token())),
            _ => Self::Number(token()),
        }
    }

    /// Whether `header` has this value. A value of another type than the declared one is compared by its
    /// spelling.
    fn matches_header(&self, header: &str, kind: ParamKind) -> bool {
        match (self, kind) {
            (Self::Null | Self::Compound, _) => false,
            (Self::Number(number), ParamKind::Integer) => {
                is_number(header) && canonical::is_equal(number.as_bytes(), header.as_bytes())
            }
            (Self::Text(text) | Self::Number(text), _) => text == header,
        }
    }
}

/// Whether a text is exactly one JSON number.
fn is_number(text: &str) -> bool {
    text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
        && text.ends_with(|last: char| last.is_ascii_digit())
        && serde_json::from_str::<&RawValue>(text).is_ok()
}

/// A mirrored parameter whose header name is well-formed. `kind` is `None` if its type cannot be mirrored.
struct HeaderAnnotation {
    header: HeaderName,
    path: Vec<String>,
    kind: Option<ParamKind>,
}

/// Collects the annotations of the properties of `schema`, which is at `path`.
fn collect_annotations(schema: &Bytes, path: &mut Vec<String>, found: &mut Vec<HeaderAnnotation>) {
    let properties = JsonObject::read(schema).ok().and_then(|schema| schema.get("properties"));
    let Some(Ok(properties)) = properties.as_ref().map(JsonObject::read) else { return };
    for (key, property) in properties.members() {
        path.push(key.into_owned());
        if let Ok(schema) = JsonObject::read(&property)
            && let Some(header) = schema.string(ANNOTATION).as_deref().and_then(header_name)
        {
            found.push(HeaderAnnotation { header, path: path.clone(), kind: param_kind(&schema) });
        }
        if path.len() < MAX_NESTING {
            collect_annotations(&property, path, found);
        }
        path.pop();
    }
}

/// The header for an annotated name, if the name is a token (RFC 9110, 5.6.2).
fn header_name(name: &str) -> Option<HeaderName> {
    let full_name = format!("{PARAM_PREFIX}{}", name.to_ascii_lowercase());
    HeaderName::try_from(full_name).ok().filter(|_| !name.is_empty())
}

/// The declared type of a property; `None` if such values cannot be mirrored into a header.
fn param_kind(property: &JsonObject) -> Option<ParamKind> {
    match property.string("type")?.as_str() {
        "string" => Some(ParamKind::String),
        "integer" => Some(ParamKind::Integer),
        "boolean" => Some(ParamKind::Boolean),
        _ => None,
    }
}

/// The raw value at a chain of keys, if every step exists.
fn value_at(arguments: &JsonObject, path: &[String]) -> Result<Option<Bytes>, HeaderMismatch> {
    let (first, rest) = path.split_first().expect("a path has at least one step");
    let Some(mut value) = only_member(arguments, first)? else { return Ok(None) };
    for key in rest {
        let Ok(object) = JsonObject::read(&value) else { return Ok(None) };
        let Some(inner) = only_member(&object, key)? else { return Ok(None) };
        value = inner;
    }
    Ok(Some(value))
}

/// The value of a member. A repeated member is an error, because the server might read the other value.
fn only_member(object: &JsonObject, key: &str) -> Result<Option<Bytes>, HeaderMismatch> {
    let mut values = object.members().filter(|(name, _)| name == key).map(|(_, value)| value);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => {
            Err(HeaderMismatch(format!("argument '{}' appears more than once in the body", excerpt(key))))
        }
    }
}

/// The beginning of a value, with control characters escaped, for an error message.
fn excerpt(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_EXCERPT_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_EXCERPT_CHARS).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(value: &'static str) -> Result<String, MalformedHeader> {
        decode(&HeaderValue::from_static(value)).map(Cow::into_owned)
    }

    fn params(schema: &'static str) -> Vec<(String, String, ParamKind)> {
        let plain = |it: ParamHeader| (it.header.to_string(), it.path.join("."), it.kind);
        param_headers(&Bytes::from_static(schema.as_bytes())).into_iter().map(plain).collect()
    }

    /// Checks a call of a tool with a parameter of each kind, one of them nested.
    fn check(arguments: &str, lines: &[(&'static str, &'static str)]) -> Result<(), String> {
        let schema = r#"{"type":"object","properties":{
            "s":{"type":"string","x-mcp-header":"S"},
            "i":{"type":"integer","x-mcp-header":"I"},
            "b":{"type":"boolean","x-mcp-header":"B"},
            "deep":{"type":"object","properties":{"s":{"type":"string","x-mcp-header":"Deep"}}}}}"#;
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        let arguments = Bytes::copy_from_slice(arguments.as_bytes());
        let wanted = param_headers(&Bytes::from_static(schema.as_bytes()));
        assert_eq!(wanted.len(), 4);
        check_params(&wanted, Some(&arguments), &headers).map_err(|mismatch| mismatch.to_string())
    }

    #[test]
    fn the_examples_of_the_specification_are_encoded_as_it_says() {
        for (text, value) in [
            ("us-west1", "us-west1"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(encode(text), value);
            assert_eq!(decoded(value).as_deref(), Ok(text));
        }
    }

    #[test]
    fn a_value_without_both_markers_is_literal() {
        for value in ["SGVsbG8=", "=?base64?SGVsbG8=", "SGVsbG8=?=", "=?BASE64?SGVsbG8=?=", "=?base64?="] {
            assert_eq!(decoded(value).as_deref(), Ok(value));
        }
    }

    #[test]
    fn base64_is_read_strictly() {
        for value in [
            "=?base64?SGVsbG8?=",     // no padding
            "=?base64?SGVsbG8==?=",   // too much of it
            "=?base64?SGVsbG9=?=",    // bits beyond the end
            "=?base64?SGVs!!!bG8=?=", // not of the alphabet
            "=?base64?SGVs bG8=?=",
            "=?base64?__8=?=", // the alphabet for URLs
            "=?base64?//8=?=", // not UTF-8
        ] {
            assert!(decoded(value).is_err(), "{value}");
        }
        assert_eq!(decoded("=?base64??=").as_deref(), Ok(""));
    }

    #[test]
    fn blanks_around_a_value_are_not_part_of_it_and_other_characters_are_refused() {
        assert_eq!(decoded(" \t a b\t ").as_deref(), Ok("a b"));
        let value = HeaderValue::from_bytes("é".as_bytes()).expect("obsolete text");
        assert!(decode(&value).is_err());
    }

    #[test]
    fn annotations_are_found_along_properties_only() {
        let schema = r#"{"x-mcp-header":"Root","properties":{
            "region":{"type":"string","x-mcp-header":"Region"},
            "a":{"type":"object","properties":{"b":{"properties":{"c":{"x-mcp-header":"X-c","type":"integer"}}}}},
            "list":{"type":"array","items":{"type":"string","x-mcp-header":"Item"}},
            "either":{"anyOf":[{"type":"string","x-mcp-header":"Either"}]},
            "plain":{"type":"string"}, "any":true}}"#;
        assert_eq!(
            params(schema),
            [
                ("mcp-param-region".into(), "region".into(), ParamKind::String),
                ("mcp-param-x-c".into(), "a.b.c".into(), ParamKind::Integer),
            ]
        );
    }

    #[test]
    fn an_annotation_that_breaks_a_rule_yields_nothing() {
        for annotated in [
            r#"{"type":"string","x-mcp-header":""}"#,
            r#"{"type":"string","x-mcp-header":"My Region"}"#,
            r#"{"type":"string","x-mcp-header":"Region:Primary"}"#,
            r#"{"type":"string","x-mcp-header":"Région"}"#,
            r#"{"type":"string","x-mcp-header":"Region\n"}"#,
            r#"{"type":"string","x-mcp-header":7}"#,
            r#"{"type":"number","x-mcp-header":"N"}"#,
            r#"{"type":"object","x-mcp-header":"N"}"#,
            r#"{"type":["string","null"],"x-mcp-header":"N"}"#,
            r#"{"x-mcp-header":"N"}"#,
        ] {
            let schema = format!(
                r#"{{"properties":{{"a":{annotated},"b":{{"type":"boolean","x-mcp-header":"ok"}}}}}}"#
            );
            assert_eq!(param_headers(&schema.into()).len(), 1, "{annotated}");
        }
        assert_eq!(params("[]"), []);
        assert_eq!(params("not json"), []);
    }

    #[test]
    fn a_name_used_twice_counts_for_neither() {
        let schema = r#"{"properties":{"a":{"type":"string","x-mcp-header":"Region"},
            "b":{"type":"object","properties":{"c":{"type":"number","x-mcp-header":"REGION"}}},
            "d":{"type":"string","x-mcp-header":"Other"}}}"#;
        assert_eq!(params(schema), [("mcp-param-other".into(), "d".into(), ParamKind::String)]);
    }

    #[test]
    fn a_schema_nested_without_end_is_survived() {
        let levels = 2000;
        let schema = r#"{"properties":{"a":"#.repeat(levels) + "{}" + &"}}".repeat(levels);
        assert_eq!(param_headers(&schema.into()), []);
    }

    #[test]
    fn values_that_agree_pass() {
        let lines = [
            ("Mcp-Param-S", "=?base64?SGVsbG8=?="),
            ("mcp-param-i", "42"),
            ("MCP-PARAM-B", "true"),
            ("mcp-param-deep", " x "),
            ("mcp-param-unknown", "whatever"),
        ];
        assert_eq!(check(r#"{"deep":{"s":"x"},"i":42.0,"s":"Hel\u006co","b":true}"#, &lines), Ok(()));
    }

    #[test]
    fn integers_are_compared_as_numbers_and_exactly() {
        for (body, header, agrees) in [
            ("42", "42.0", true),
            ("4.2e1", "42", true),
            ("4200", "42E+2", true),
            ("-7", "-7", true),
            ("0", "-0.00", true),
            ("9007199254740993", "9007199254740993", true),
            ("9007199254740993", "9007199254740992", false),
            ("42", "-42", false),
            ("42", "420", false),
            ("42", "042", false),
            ("42", "+42", false),
            ("42", "0x2a", false),
            ("42", "", false),
            ("42", "42,42", false),
            ("1e99999999999999999999", "1e99999999999999999998", false),
        ] {
            let result = check(&format!(r#"{{"i":{body}}}"#), &[("mcp-param-i", header)]);
            assert_eq!(result.is_ok(), agrees, "{body} {header}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_compared_as_it_is_written() {
        assert_eq!(check(r#"{"i":"seven"}"#, &[("mcp-param-i", "seven")]), Ok(()));
        assert_eq!(
            check(r#"{"s":42,"b":"true"}"#, &[("mcp-param-s", "42"), ("mcp-param-b", "true")]),
            Ok(())
        );
        assert!(check(r#"{"b":true}"#, &[("mcp-param-b", "True")]).is_err());
        assert_eq!(check(r#"{"s":{"x":1}}"#, &[]), Ok(()));
        assert!(check(r#"{"s":{"x":1}}"#, &[("mcp-param-s", r#"{"x":1}"#)]).is_err());
    }

    #[test]
    fn an_absent_or_null_value_needs_no_header_and_agrees_with_none() {
        for arguments in ["{}", r#"{"s":null}"#, r#"{"deep":{}}"#, r#"{"deep":7}"#, "null", "[1]"] {
            assert_eq!(check(arguments, &[]), Ok(()), "{arguments}");
            assert!(check(arguments, &[("mcp-param-s", "x")]).is_err(), "{arguments}");
            assert!(check(arguments, &[("mcp-param-deep", "")]).is_err(), "{arguments}");
        }
        let wanted = param_headers(&Bytes::from_static(
            br#"{"properties":{"s":{"type":"string","x-mcp-header":"S"}}}"#,
        ));
        assert_eq!(check_params(&wanted, None, &HeaderMap::new()), Ok(()));
    }

    #[test]
    fn an_empty_value_is_a_value() {
        assert!(check(r#"{"s":""}"#, &[]).is_err());
        assert_eq!(check(r#"{"s":""}"#, &[("mcp-param-s", "")]), Ok(()));
        assert_eq!(check(r#"{"s":""}"#, &[("mcp-param-s", "=?base64??=")]), Ok(()));
    }

    #[test]
    fn a_repeated_argument_is_a_mismatch() {
        let twice = [("mcp-param-s", "x"), ("Mcp-Param-S", "x")];
        assert_eq!(
            check(r#"{"s":"x"}"#, &twice).as_ref().map_err(String::as_str),
            Err("Header mismatch: mcp-param-s header appears more than once")
        );
        assert!(check(r#"{"s":"x","s":"x"}"#, &twice[..1]).is_err());
        assert_eq!(
            check(r#"{"s":"x","t":1,"t":2}"#, &twice[..1]),
            Ok(()),
            "not mirrored, so not ours to judge"
        );
    }

    #[test]
    fn a_mismatch_names_the_header_and_what_is_wrong_in_short() {
        let message =
            |arguments: &str, value| check(arguments, &[("mcp-param-s", value)]).expect_err("a mismatch");
        assert_eq!(
            message(r#"{"s":"bar\n"}"#, "foo"),
            r"Header mismatch: mcp-param-s header value 'foo' does not match body value 'bar\n'"
        );
        assert!(
            message(r#"{"s":"x"}"#, "=?base64?SGVsbG8?=").contains("mcp-param-s header value is malformed")
        );
        assert!(message(r#"{"s":"x"}"#, "é").contains("mcp-param-s header value is malformed"));
        assert!(message(&format!(r#"{{"s":"{}"}}"#, "é".repeat(9999)), "x").len() < 300);
        assert!(check(r#"{"deep":{"s":"x"}}"#, &[]).expect_err("missing").contains("'deep.s'"));
    }

    proptest! {
        #[test]
        fn every_text_survives_a_header(text in prop_oneof![any::<String>(), "[=?base64 \t]{0,20}"]) {
            let value = encode(&text);
            prop_assert_eq!(decode(&value), Ok(text.as_str().into()));
        }
    }
}
