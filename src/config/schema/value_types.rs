//! Types of values that any key may have: texts, numbers, durations, sizes, words, addresses, URLs, headers.

use super::{
    problem::{DiagnosticSink, InvalidValue, SourceSpan, SpannedValue, ValueResult, invalid},
    url_text::UrlText,
    value_type::{ValueType, list, or_variable, read_scalar},
    values::{self, show_duration, show_size},
    yaml::{MapEntry, Node, NodeValue, ScalarType},
};
use http::{HeaderName, Uri};
use serde_json::{Value as Json, json};
use std::{net::SocketAddr, rc::Rc, time::Duration};

/// The type of a value that may be `off`. YAML 1.1 reads `off` as false, so `false` is accepted as well.
pub fn or_off<'a, T: 'a>(
    schema: Json,
    read: impl Fn(&str) -> ValueResult<Option<T>> + 'a,
) -> ValueType<'a, Option<T>> {
    let schema = or_variable(json!({ "anyOf": [schema, { "const": false }] }));
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.scalar_type() {
        Some(ScalarType::Bool(false)) => Some(None),
        _ => read_scalar(node, report, &read),
    };
    ValueType::new(move || schema.clone(), read)
}

/// A string with the given parser.
pub fn string<'a, T: 'a>(parse: impl Fn(&str) -> ValueResult<T> + 'a) -> ValueType<'a, T> {
    ValueType::text(json!({ "type": "string" }), parse)
}

/// A string that is not empty, with the given parser.
pub fn non_empty_string<'a, T: 'a>(parse: impl Fn(&str) -> ValueResult<T> + 'a) -> ValueType<'a, T> {
    ValueType::text(json!({ "type": "string", "minLength": 1 }), parse)
}

/// A string that is not empty.
pub fn text() -> ValueType<'static, String> {
    non_empty_string(|text| match text {
        "" => invalid("must not be empty"),
        _ => Ok(text.to_owned()),
    })
}

/// A string without NUL characters, which the system can pass to a program.
pub fn program_text() -> ValueType<'static, String> {
    string(|text| match text.contains('\0') {
        true => invalid("must not contain a NUL character"),
        false => Ok(text.to_owned()),
    })
}

/// One of several words, each with its value. `subject` describes an unknown word in the message, with `{}`
/// for the word.
pub fn word<T: Clone + PartialEq + 'static>(
    subject: &'static str,
    words: &'static [(&'static str, T)],
) -> ValueType<'static, T> {
    let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
    let show =
        |value: &T| words.iter().find(|(_, of_word)| of_word == value).map_or("", |(name, _)| name).into();
    ValueType::text(json!({ "enum": names }), |text| parse_word(text, subject, words)).show_with(show)
}

/// Parses one of several words, as [`word`] does.
///
/// # Errors
/// The word is none of them.
pub fn parse_word<T: Clone>(text: &str, subject: &str, words: &[(&str, T)]) -> ValueResult<T> {
    let Some((_, value)) = words.iter().find(|(name, _)| *name == text) else {
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        return invalid(format!("unknown {}; use {}", subject.replace("{}", text), names.join(" or ")));
    };
    Ok(value.clone())
}

/// `true` or `false`.
pub fn boolean() -> ValueType<'static, bool> {
    let read = |node: &Node, report: &mut DiagnosticSink| {
        if let Some(ScalarType::Bool(boolean)) = node.scalar_type() {
            return Some(boolean);
        }
        // Inside `{ }` a variable must be quoted to be valid YAML, and is then a string.
        if node.interpolation().is_some() || node.is_invalid() {
            return read_scalar(node, report, |text| {
                text.parse().map_err(|_| InvalidValue(format!("must be true or false, not `{text}`")))
            });
        }
        let shown = match node.scalar_text() {
            Some(text) if !text.is_empty() => format!("`{text}`"),
            _ => node.type_name().to_owned(),
        };
        report.reject(node.span, format!("must be true or false, not {shown}"))
    };
    ValueType::new(|| or_variable(json!({ "type": "boolean" })), read).show_with(|boolean| (*boolean).into())
}

/// A duration, as in `5s`, or 0.
pub fn duration() -> ValueType<'static, Duration> {
    duration_with(values::duration)
}

/// A duration of more than 0.
pub fn positive_duration() -> ValueType<'static, Duration> {
    duration_with(|text| match values::duration(text)? {
        Duration::ZERO => invalid("must be more than 0; leave it out for the default"),
        duration => Ok(duration),
    })
}

fn duration_with(parse: fn(&str) -> ValueResult<Duration>) -> ValueType<'static, Duration> {
    let pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$";
    let schema = json!({ "anyOf": [{ "type": "string", "pattern": pattern }, { "const": 0 }] });
    ValueType::text(schema, parse).show_with(|duration| show_duration(*duration).into())
}

/// A positive duration, or `off`.
pub fn duration_or_off() -> ValueType<'static, Option<Duration>> {
    let pattern = r"^(off|([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+)$";
    let value_type = or_off(json!({ "type": "string", "pattern": pattern }), |text| match text {
        "off" => Ok(None),
        text => match values::duration(text)? {
            Duration::ZERO => invalid("must be more than 0; `off` is for never"),
            duration => Ok(Some(duration)),
        },
    });
    value_type.show_with(|duration| {
        duration.map_or_else(|| "off".into(), |duration| show_duration(duration).into())
    })
}

/// A size in bytes, as in `4MiB`, of at least `minimum`.
pub fn size(minimum: usize) -> ValueType<'static, usize> {
    let pattern = r"^[0-9]+(\.[0-9]+)? ?(GiB|MiB|KiB|GB|MB|kB|KB|B)?$";
    let schema = json!({ "anyOf": [{ "type": "integer", "minimum": minimum }, { "type": "string", "pattern": pattern }] });
    let read = move |text: &str| match values::size(text)? {
        size if size < minimum => invalid(format!("must be at least {}", show_size(minimum))),
        size => Ok(size),
    };
    ValueType::text(schema, read).show_with(|size| show_size(*size).into())
}

/// A whole number of at least `minimum`.
pub fn count<N: TryFrom<usize> + Copy + Into<Json> + 'static>(minimum: usize) -> ValueType<'static, N> {
    let read = move |text: &str| {
        let digits = text.replace('_', "");
        match digits.parse().ok().and_then(|count: usize| Some((count, N::try_from(count).ok()?))) {
            Some((count, _)) if count < minimum => invalid(format!("must be at least {minimum}")),
            Some((_, count)) => Ok(count),
            None => invalid(format!("`{text}` is not a count; write a whole number")),
        }
    };
    let schema = json!({ "type": "integer", "minimum": minimum });
    ValueType::text(schema, read).show_with(|count| (*count).into())
}

/// An address to listen on.
pub fn address<const N: usize>(examples: [&'static str; N]) -> ValueType<'static, SocketAddr> {
    ValueType::text(json!({ "type": "string", "examples": examples.as_slice() }), values::address)
        .show_with(|address| address.to_string().into())
}

/// One address, or a list of addresses.
pub fn addresses() -> ValueType<'static, Vec<SpannedValue<SocketAddr>>> {
    let one = || address(["127.0.0.1:8808", "[::]:8808"]);
    one()
        .and_then(|address, node, _| Some(vec![SpannedValue::new(node.span, address)]))
        .or_list(list(one()))
        .show_with(|all| {
            all.iter().map(|address| address.value.to_string()).collect::<Vec<_>>().join(", ").into()
        })
}

/// An HTTP URL, with the given parser.
pub fn url(parse: fn(&str) -> ValueResult<Uri>) -> ValueType<'static, Uri> {
    ValueType::text(json!({ "type": "string", "pattern": "^https?://" }), parse)
}

/// Warns of a literal secret in a URL of the file.
pub fn warn_literal_secret(node: &Node, report: &mut DiagnosticSink) {
    let (SourceSpan::File { .. }, Some(text)) = (node.span, node.as_written()) else { return };
    if let Some(what) = UrlText::new(text).literal_secret() {
        let message = format!(
            "this URL contains {what}, in a file that is printed, copied and put under version control; set \
             an environment variable and write `${{NAME}}` instead"
        );
        report.warn(node.span, message);
    }
}

/// A mapping of names to values. `form` shows an entry in messages. An invalid entry makes the mapping
/// invalid after all entries have been read.
pub fn entries<'a, N: 'a, T: 'a>(
    form: &'static str,
    parse_name: fn(&str) -> ValueResult<N>,
    value: ValueType<'a, T>,
) -> ValueType<'a, Vec<(N, SpannedValue<T>)>> {
    mapping_of(form, value, move |entries, value, report| {
        let read = |MapEntry { key, key_span, node }: &MapEntry| {
            let name = report.accept(*key_span, parse_name(key));
            let value = value.read(node, report);
            Some((name?, SpannedValue::new(node.span, value?)))
        };
        let read: Vec<_> = entries.iter().map(read).collect();
        read.into_iter().collect()
    })
}

/// A mapping of header names to values.
pub fn headers<'a, T: 'a>(
    parse_name: fn(&str) -> ValueResult<HeaderName>,
    value: ValueType<'a, T>,
) -> ValueType<'a, Vec<(HeaderName, SpannedValue<T>)>> {
    mapping_of("NAME: value", value, move |entries, value, report| {
        let before = report.problems.len();
        let (mut names, mut headers) = (Vec::new(), Vec::new());
        for MapEntry { key, key_span, node } in entries {
            let name = parse_name(key).and_then(|name| match names.contains(&name) {
                true => invalid(format!(
                    "`{key}` is listed twice, with different capitalisation; remove one of the two"
                )),
                false => Ok(name),
            });
            let name = report.accept(*key_span, name);
            names.extend(name.clone());
            let first_new = report.problems.len();
            let value = value.read(node, report);
            report.name_value(first_new, &format!("the header `{key}`"));
            headers.extend(name.zip(value.map(|value| SpannedValue::new(node.span, value))));
        }
        (report.problems.len() == before).then_some(headers)
    })
}

/// A mapping of any names to values of the type `value`, with the given reader.
fn mapping_of<'a, T: 'a, U: 'a>(
    form: &'static str,
    value: ValueType<'a, T>,
    read: impl Fn(&[MapEntry], &ValueType<'a, T>, &mut DiagnosticSink) -> Option<U> + 'a,
) -> ValueType<'a, U> {
    let value = Rc::new(value);
    let of_schema = Rc::clone(&value);
    ValueType::new(
        move || json!({ "type": "object", "additionalProperties": of_schema.schema() }),
        move |node, report| match &node.value {
            NodeValue::Map(entries) => read(entries, &value, report),
            _ => report.reject(node.span, format!("must be a mapping (`{form}`), not {}", node.type_name())),
        },
    )
}
