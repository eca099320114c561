//! The `Mcp-*` headers: every text survives one, only canonical base64 is read, and what a schema asks to be
//! mirrored agrees with a header that says the same and with no other.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use deferral::internals::protocol::{
    headers::{check_params, decode, encode, param_headers, read},
    splice::JsonObject,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

/// Three lines: a value, a tool's `inputSchema`, its arguments. Those that are missing are empty.
pub fn target(lines: &[u8]) {
    let mut lines = lines.splitn(3, |byte| *byte == b'\n');
    let mut next = || lines.next().unwrap_or_default();
    let (value, schema, arguments) = (next(), next(), next());
    one_value(value);
    if let Ok(text) = std::str::from_utf8(value) {
        one_text(text);
    }
    mirrored(schema, arguments, value);
}

fn one_value(bytes: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
    let text = decode(&value);
    let shown = value.to_str().map(|text| text.trim_matches([' ', '\t']));
    let inner = |text: &'_ str| text.strip_prefix("=?base64?")?.strip_suffix("?=").map(str::to_owned);
    match (&text, shown) {
        (Ok(text), Ok(shown)) => match inner(shown) {
            // What is read is what would be written: no second spelling of one text.
            Some(inner) => assert_eq!(STANDARD.encode(text.as_bytes()), inner),
            None => assert_eq!(text, shown),
        },
        (Err(_), Ok(shown)) => {
            let inner = inner(shown).expect("only a sentinel can be malformed");
            let bytes = STANDARD.decode(&inner);
            assert!(bytes.is_err() || String::from_utf8(bytes.expect("decoded")).is_err());
        }
        (Err(_), Err(_)) => assert!(bytes.iter().any(|byte| !matches!(byte, b'\t' | b' '..=b'~'))),
        (Ok(text), Err(_)) => panic!("{text:?} is read of what is no text"),
    }
    let name = HeaderName::from_static("mcp-name");
    let mut headers = HeaderMap::new();
    assert!(matches!(read(&headers, &name), Ok(None)));
    headers.append(&name, value.clone());
    assert_eq!(read(&headers, &name).is_ok(), text.is_ok());
    headers.append(&name, value);
    assert!(read(&headers, &name).is_err(), "two lines can say two things");
}

fn one_text(text: &str) {
    let value = encode(text);
    assert!(value.as_bytes().iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~')));
    assert_eq!(decode(&value).as_deref(), Ok(text));
}

/// `other` is a header's value that may or may not be right.
fn mirrored(schema: &[u8], arguments: &[u8], other: &[u8]) {
    let wanted = param_headers(&Bytes::copy_from_slice(schema));
    let arguments = Bytes::copy_from_slice(arguments);
    let judge = |headers: &HeaderMap| check_params(&wanted, Some(&arguments), headers).is_ok();
    let mut right = HeaderMap::new();
    if let Ok(other) = HeaderValue::from_bytes(other) {
        for param in &wanted {
            right.append(&param.header, other.clone());
        }
        judge(&right);
        right.clear();
    }
    // Only where the arguments can be read by anybody, and by all in one way.
    let Ok(value) = serde_json::from_slice::<Value>(&arguments) else { return };
    let is_clear = wanted.iter().all(|param| is_named_once(&arguments, &param.path));
    for param in &wanted {
        let found = param.path.iter().try_fold(&value, |value, key| value.get(key));
        let said = match found {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(truth)) => truth.to_string(),
            // How a number is spelt is the client's; whole ones are read back the same.
            Some(Value::Number(number)) if number.is_u64() || number.is_i64() => number.to_string(),
            Some(Value::Number(_)) => return,
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => continue,
        };
        right.append(&param.header, encode(&said));
    }
    if is_clear && !spells_numbers_oddly(&arguments) {
        assert!(judge(&right), "{wanted:?} {right:?}");
    }
    for param in &wanted {
        // Without its header, where there is one; with a header of nothing's, where there is none.
        let mut wrong = right.clone();
        if wrong.remove(&param.header).is_none() {
            wrong.insert(&param.header, HeaderValue::from_static("made up"));
        }
        assert!(!judge(&wrong), "{param:?} {wrong:?}");
    }
}

fn is_named_once(json: &Bytes, path: &[String]) -> bool {
    let Some((key, rest)) = path.split_first() else { return true };
    let Ok(object) = JsonObject::read(json) else { return true };
    let named: Vec<_> = object.members().filter(|(name, _)| name == key).map(|(_, value)| value).collect();
    named.len() < 2 && named.iter().all(|value| is_named_once(value, rest))
}

/// `-0` is a whole number to no one but JSON.
fn spells_numbers_oddly(json: &[u8]) -> bool {
    json.windows(2).any(|pair| pair == b"-0")
}
