//! Validates the content of a filled-in elicitation form against its schema.
//!
//! A server that elicits by form sends a flat object schema of strings, numbers, booleans and choices
//! (2026-07-28, *Elicitation, Requested Schema*). A client that sends an invalid response gets the form
//! again, so a wrong refusal would repeat forever: an unknown keyword accepts any value, and the server
//! validates itself. The known keywords are checked exactly: lengths count characters, numbers are compared
//! by value, and `5.0` is an integer.

use crate::protocol::{
    canonical,
    splice::{JsonObject, array_items},
};
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};

/// Error: a part of an input response is invalid. Names the part and the requirement, never the client's
/// values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {must}", .at.as_ref().map_or_else(|| "the answer".into(), |at| format!("`{at}`")))]
pub struct InvalidAnswer {
    /// The path of the invalid member, such as `content.colors[2]`; `None` for the whole response.
    pub at: Option<String>,
    /// The requirement, such as `must be at least 18`.
    pub must: String,
}

/// The members of a filled-in form by key, as raw JSON.
type FormContent = BTreeMap<String, Bytes>;

/// The values of the `type` keyword of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SchemaType {
    String,
    Number,
    Integer,
    Boolean,
    Array,
    Object,
    Null,
}

/// The maximum depth at which a schema is followed into `items`, `anyOf` and `oneOf`. The specification uses
/// two levels; deeper schemas accept any value.
const MAX_DEPTH: usize = 8;

/// Validates the content of an accepted form against its `requestedSchema`. Missing content counts as an
/// empty form, and `null` as a missing optional member: clients in the field send both for a form without
/// required members.
///
/// # Errors
/// [`InvalidAnswer`], which names the first invalid member.
pub(super) fn check_form(schema: Option<&Bytes>, content: Option<&Bytes>) -> Result<(), InvalidAnswer> {
    let content = match content {
        Some(raw) => read_content(raw)?,
        None => FormContent::new(),
    };
    let Some(Ok(schema)) = schema.map(JsonObject::read) else { return Ok(()) };
    if schema
        .get("type")
        .is_some_and(|types| !matches!(parse_types(&types).as_deref(), Some([SchemaType::Object])))
    {
        return Ok(());
    }
    let required = schema.get("required").and_then(|raw| parse_list::<String>(&raw)).unwrap_or_default();
    if let Some(key) = required.iter().find(|key| !content.contains_key(*key)) {
        return Err(invalid_answer(&member_path(key), "is required"));
    }
    let required: HashSet<_> = required.iter().map(String::as_str).collect();
    let Some(Ok(properties)) = schema.get("properties").map(|raw| JsonObject::read(&raw)) else {
        return Ok(());
    };
    for (key, property) in properties.members() {
        let Some(answer) = content.get(&*key) else { continue };
        if answer == "null" && !required.contains(&*key) {
            continue;
        }
        check_value(&property, answer, &member_path(&key), MAX_DEPTH)?;
    }
    Ok(())
}

/// Reads the members of the content.
fn read_content(raw: &Bytes) -> Result<FormContent, InvalidAnswer> {
    let object = JsonObject::read(raw).map_err(|_| invalid_answer("content", "must be an object"))?;
    let mut content = FormContent::new();
    for (key, answer) in object.members() {
        // A repeated member is refused, because readers disagree about which one counts.
        if content.contains_key(&*key) {
            return Err(invalid_answer(&member_path(&key), "must be given once"));
        }
        content.insert(key.into_owned(), answer);
    }
    Ok(content)
}

/// Validates one value at this path against one schema. `depth_left` is the number of levels that are still
/// followed; at 0 any value is accepted.
fn check_value(schema: &Bytes, answer: &Bytes, path: &str, depth_left: usize) -> Result<(), InvalidAnswer> {
    let (Ok(schema), Some(depth_left)) = (JsonObject::read(schema), depth_left.checked_sub(1)) else {
        return Ok(());
    };
    let types = schema.get("type").and_then(|raw| parse_types(&raw));
    if let Some(types) = types
        && !types.iter().any(|schema_type| schema_type.matches(answer))
    {
        let names: Vec<_> = types.iter().map(|schema_type| schema_type.description()).collect();
        return Err(invalid_answer(path, format!("must be {}", names.join(" or "))));
    }
    let choices = schema.get("enum").and_then(|raw| array_items(&raw));
    // The canonical form is computed once: there may be many choices, and the value may be long.
    let canonical_answer = choices.as_ref().map(|_| canonical::canonicalize(answer)).unwrap_or_default();
    let is_chosen = |choice: &Bytes| choice == answer || canonical::canonicalize(choice) == canonical_answer;
    if choices.is_some_and(|choices| !choices.iter().any(is_chosen))
        || schema.get("const").is_some_and(|only| !canonical::is_equal(&only, answer))
    {
        return Err(invalid_answer(path, NOT_OFFERED));
    }
    for branches in ["anyOf", "oneOf"] {
        // One matching branch suffices, also for `oneOf`: an unknown branch accepts any value, so that two
        // branches may match.
        let branches = schema.get(branches).and_then(|raw| array_items(&raw)).unwrap_or_default();
        if !branches.is_empty()
            && branches.iter().all(|branch| check_value(branch, answer, path, depth_left).is_err())
        {
            return Err(invalid_answer(path, NOT_OFFERED));
        }
    }
    match answer.first() {
        Some(b'"') => check_string(&schema, answer, path),
        Some(b'[') => check_array(&schema, answer, path, depth_left),
        Some(b'-' | b'0'..=b'9') => check_number(&schema, answer, path),
        _ => Ok(()),
    }
}

fn check_string(schema: &JsonObject, answer: &Bytes, path: &str) -> Result<(), InvalidAnswer> {
    // A string with half of a surrogate pair has no length in characters, and is accepted.
    let Ok(text) = serde_json::from_slice::<String>(answer) else { return Ok(()) };
    check_bounds(schema, ["minLength", "maxLength"], to_float(text.chars().count()), " characters", path)?;
    match schema.string("format").as_deref() {
        Some("email") if !is_email(&text) => Err(invalid_answer(path, "must be an email address")),
        Some("uri") if !is_uri(&text) => Err(invalid_answer(path, "must be an absolute URI")),
        Some("date") if !is_date(&text) => Err(invalid_answer(path, "must be a date, as in 2026-07-28")),
        Some("date-time") if !is_date_time(&text) => {
            Err(invalid_answer(path, "must be a date with a time, as in 2026-07-28T10:30:00Z"))
        }
        _ => Ok(()),
    }
}

fn check_number(schema: &JsonObject, answer: &Bytes, path: &str) -> Result<(), InvalidAnswer> {
    let Some(number) = parse_number(answer) else { return Ok(()) };
    check_bounds(schema, ["minimum", "maximum"], number, "", path)?;
    // Rounding to `f64` preserves the order of two numbers but may make them equal, so equality is checked
    // exactly.
    let is_excluded = |key| schema.get(key).filter(|bound| canonical::is_equal(bound, answer));
    if let Some(bound) = number_keyword(schema, "exclusiveMinimum")
        && (number < bound || is_excluded("exclusiveMinimum").is_some())
    {
        return Err(invalid_answer(path, format!("must be more than {bound}")));
    }
    if let Some(bound) = number_keyword(schema, "exclusiveMaximum")
        && (number > bound || is_excluded("exclusiveMaximum").is_some())
    {
        return Err(invalid_answer(path, format!("must be less than {bound}")));
    }
    Ok(())
}

fn check_array(
    schema: &JsonObject,
    answer: &Bytes,
    path: &str,
    depth_left: usize,
) -> Result<(), InvalidAnswer> {
    let Some(answers) = array_items(answer) else { return Ok(()) };
    check_bounds(schema, ["minItems", "maxItems"], to_float(answers.len()), " items", path)?;
    let Some(schema) = schema.get("items") else { return Ok(()) };
    let mut answers = answers.iter().enumerate();
    answers
        .try_for_each(|(index, answer)| check_value(&schema, answer, &format!("{path}[{index}]"), depth_left))
}

/// Checks that `measure` is between the bounds that these two keywords of the schema set, inclusive.
fn check_bounds(
    schema: &JsonObject,
    [minimum_key, maximum_key]: [&str; 2],
    measure: f64,
    unit: &str,
    path: &str,
) -> Result<(), InvalidAnswer> {
    if let Some(least) = number_keyword(schema, minimum_key)
        && measure < least
    {
        return Err(invalid_answer(path, format!("must be at least {least}{unit}")));
    }
    if let Some(most) = number_keyword(schema, maximum_key)
        && measure > most
    {
        return Err(invalid_answer(path, format!("must be at most {most}{unit}")));
    }
    Ok(())
}

/// Reads a keyword whose value is a number; `None` for any other value.
fn number_keyword(schema: &JsonObject, key: &str) -> Option<f64> {
    parse_number(&schema.get(key)?)
}

/// Parses a JSON number, rounded to `f64`; `1e400` becomes infinite.
fn parse_number(raw: &Bytes) -> Option<f64> {
    let text = std::str::from_utf8(raw).ok()?;
    text.starts_with(|first: char| first == '-' || first.is_ascii_digit()).then(|| text.parse().ok())?
}

#[expect(clippy::cast_precision_loss, reason = "no message has 2^53 characters")]
fn to_float(count: usize) -> f64 {
    count as f64
}

/// Parses the value of a `type` keyword, one name or several; `None` if a name is unknown.
fn parse_types(raw: &Bytes) -> Option<Vec<SchemaType>> {
    let names = serde_json::from_slice::<String>(raw).map(|name| vec![name]).ok();
    names.or_else(|| parse_list(raw))?.iter().map(|name| SchemaType::parse(name)).collect()
}

fn parse_list<T: serde::de::DeserializeOwned>(raw: &Bytes) -> Option<Vec<T>> {
    serde_json::from_slice(raw).ok()
}

// === impl SchemaType ===

impl SchemaType {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "string" => Self::String,
            "number" => Self::Number,
            "integer" => Self::Integer,
            "boolean" => Self::Boolean,
            "array" => Self::Array,
            "object" => Self::Object,
            "null" => Self::Null,
            _ => return None,
        })
    }

    /// Whether a raw JSON value is of this type.
    fn matches(self, raw: &Bytes) -> bool {
        let first = raw.first().copied().unwrap_or_default();
        let is_number = first == b'-' || first.is_ascii_digit();
        match self {
            Self::String => first == b'"',
            Self::Number => is_number,
            Self::Integer => is_number && canonical::is_integer(raw),
            Self::Boolean => matches!(first, b't' | b'f'),
            Self::Array => first == b'[',
            Self::Object => first == b'{',
            Self::Null => first == b'n',
        }
    }

    /// Returns the type in words for error messages, such as `a list`.
    const fn description(self) -> &'static str {
        match self {
            Self::String => "a string",
            Self::Number => "a number",
            Self::Integer => "an integer",
            Self::Boolean => "true or false",
            Self::Array => "a list",
            Self::Object => "an object",
            Self::Null => "null",
        }
    }
}

// The formats of the specification are checked loosely: each check refuses only clearly invalid text, and any
// other format accepts all text.

fn is_email(text: &str) -> bool {
    let printable = !text.chars().any(|char| char.is_whitespace() || char.is_control());
    printable && text.rsplit_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
}

fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
        && !rest.is_empty()
        && !rest.chars().any(|char| char.is_whitespace() || char.is_control())
}

fn is_date(text: &str) -> bool {
    // The length is checked, because the parser also accepts a date with a time.
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

/// Whether the text is a date with a time, with an offset as in RFC 3339, or without an offset as browser
/// forms send it.
fn is_date_time(text: &str) -> bool {
    text.len() > 10
        && (text.parse::<jiff::Timestamp>().is_ok() || text.parse::<jiff::civil::DateTime>().is_ok())
}

/// The requirement that a value with an `enum`, `const`, `anyOf` or `oneOf` violates.
const NOT_OFFERED: &str = "must be one of the values that were offered";

/// Returns the path of a member of the content.
fn member_path(key: &str) -> String {
    format!("content.{key}")
}

/// Builds the error for the member at this path; `must` is the requirement, such as `must be a list`.
pub(super) fn invalid_answer(path: &str, must: impl Into<String>) -> InvalidAnswer {
    InvalidAnswer { at: Some(path.to_owned()), must: must.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn raw(text: impl Into<String>) -> Bytes {
        Bytes::from(text.into())
    }

    /// The error of `content` as the response to a form with these properties.
    fn error_of_content(properties: &Value, required: &[&str], content: &str) -> Option<String> {
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        check_form(Some(&raw(schema.to_string())), Some(&raw(content)))
            .err()
            .map(|invalid| invalid.to_string())
    }

    /// The error of one value under the key `x`.
    fn error_of_value(property: &Value, answer: &str) -> Option<String> {
        error_of_content(&json!({ "x": property }), &["x"], &format!("{{\"x\":{answer}}}"))
    }

    fn accepts(property: &Value, answers: &[&str]) {
        for answer in answers {
            assert_eq!(error_of_value(property, answer), None, "{answer} for {property}");
        }
    }

    fn refuses(property: &Value, answers: &[&str], must: &str) {
        for answer in answers {
            let wrong = error_of_value(property, answer);
            assert_eq!(wrong.as_deref(), Some(&*format!("`content.x` {must}")), "{answer} for {property}");
        }
    }

    #[test]
    fn required_members_must_be_present() {
        let form = json!({ "name": { "type": "string" }, "age": { "type": "integer" } });
        assert_eq!(error_of_content(&form, &["name"], r#"{"name":"x"}"#), None);
        assert_eq!(
            error_of_content(&form, &["name"], r#"{"age":1}"#).as_deref(),
            Some("`content.name` is required")
        );
        assert_eq!(error_of_content(&form, &["other"], "{}").as_deref(), Some("`content.other` is required"));
        assert_eq!(error_of_content(&form, &[], "{}"), None);
    }

    #[test]
    fn content_left_out_is_a_form_without_answers() {
        let schema =
            |required: &str| raw(format!(r#"{{"type":"object","properties":{{}},"required":[{required}]}}"#));
        assert_eq!(check_form(Some(&schema("")), None), Ok(()));
        assert_eq!(check_form(Some(&schema("\"a\"")), None), Err(invalid_answer("content.a", "is required")));
    }

    #[test]
    fn null_is_no_answer() {
        let form = json!({ "x": { "type": "string" } });
        assert_eq!(error_of_content(&form, &[], r#"{"x":null}"#), None);
        assert_eq!(
            error_of_content(&form, &["x"], r#"{"x":null}"#).as_deref(),
            Some("`content.x` must be a string")
        );
    }

    #[test]
    fn members_that_the_form_does_not_have_are_accepted() {
        assert_eq!(error_of_content(&json!({}), &[], r#"{"x":{"deep":[1e400]},"y":null}"#), None);
    }

    #[test]
    fn content_is_an_object_with_each_member_once() {
        for content in ["null", "[]", "7", "\"x\""] {
            assert_eq!(
                error_of_content(&json!({}), &[], content).as_deref(),
                Some("`content` must be an object")
            );
        }
        assert_eq!(
            error_of_content(&json!({}), &[], r#"{"x":1,"\u0078":2}"#).as_deref(),
            Some("`content.x` must be given once")
        );
    }

    #[test]
    fn each_type_takes_its_own() {
        let all = [r#""5""#, "5", "5.5", "true", "[]", "{}", "null"];
        for (name, fit, must) in [
            ("string", &all[..1], "must be a string"),
            ("number", &all[1..3], "must be a number"),
            ("integer", &all[1..2], "must be an integer"),
            ("boolean", &all[3..4], "must be true or false"),
            ("array", &all[4..5], "must be a list"),
        ] {
            let property = json!({ "type": name });
            accepts(&property, fit);
            let others: Vec<_> = all.into_iter().filter(|answer| !fit.contains(answer)).collect();
            refuses(&property, &others, must);
        }
        refuses(&json!({ "type": ["string", "null"] }), &["1"], "must be a string or null");
        accepts(&json!({ "type": ["string", "null"] }), &["null", "\"\""]);
    }

    #[test]
    fn a_whole_number_is_an_integer_however_it_is_written() {
        accepts(&json!({ "type": "integer" }), &["5.0", "-5e3", "5.5e1", "12345678901234567890123"]);
        refuses(&json!({ "type": "integer" }), &["0.1", "55e-1"], "must be an integer");
    }

    #[test]
    fn lengths_count_characters() {
        let property = json!({ "type": "string", "minLength": 2, "maxLength": 3.0 });
        accepts(&property, &["\"ab\"", "\"\u{1f600}\u{1f600}\u{1f600}\"", r#""\ud83d\ude00\n""#]);
        refuses(&property, &["\"\"", "\"\u{1f600}\""], "must be at least 2 characters");
        refuses(&property, &["\"abcd\""], "must be at most 3 characters");
    }

    #[test]
    fn numbers_lie_between_their_bounds() {
        let property = json!({ "type": "number", "minimum": 18, "maximum": 120.5 });
        accepts(&property, &["18", "18.0", "120.5", "1e2"]);
        refuses(&property, &["17.999", "-18", "-1e400"], "must be at least 18");
        refuses(&property, &["120.51", "1e400"], "must be at most 120.5");
        let open = json!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 });
        accepts(&open, &["0.5", "1e-400"]);
        refuses(&open, &["0", "-0.0", "-1"], "must be more than 0");
        refuses(&open, &["1", "1.0", "2"], "must be less than 1");
    }

    #[test]
    fn a_choice_is_one_of_those_offered() {
        for property in [
            json!({ "type": "string", "enum": ["red", "green"], "enumNames": ["Red", "Green"] }),
            json!({ "type": "string", "oneOf": [{ "const": "red", "title": "Red" }, { "const": "green", "title": "G" }] }),
        ] {
            accepts(&property, &["\"red\"", r#""gr\u0065en""#]);
            refuses(&property, &["\"Red\"", "\"\""], NOT_OFFERED);
            refuses(&property, &["1"], "must be a string");
        }
        accepts(&json!({ "enum": [1, null] }), &["1.0", "null"]);
    }

    #[test]
    fn several_choices_are_each_one_of_those_offered() {
        for items in [
            json!({ "type": "string", "enum": ["a", "b", "c"] }),
            json!({ "anyOf": [{ "const": "a", "title": "A" }, { "const": "b" }, { "const": "c" }] }),
        ] {
            let property = json!({ "type": "array", "items": items, "minItems": 1, "maxItems": 2 });
            accepts(&property, &[r#"["a"]"#, r#"["c", "a"]"#]);
            refuses(&property, &["[]"], "must be at least 1 items");
            refuses(&property, &[r#"["a","b","c"]"#], "must be at most 2 items");
            let wrong = error_of_value(&property, r#"["a","d"]"#);
            assert_eq!(wrong, Some(format!("`content.x[1]` {NOT_OFFERED}")));
        }
    }

    #[test]
    fn formats_refuse_clearly_invalid_text() {
        for (format, good, bad) in [
            ("email", &["a@b", "a.b+c@d.example", "ä@ö.example"][..], &["", "a", "@b", "a@", "a b@c"][..]),
            (
                "uri",
                &["https://a.example/?q=1", "mailto:a@b", "urn:x:y"],
                &["", "a.example", "//a", "1a:b", "a:", "a: b"],
            ),
            (
                "date",
                &["2026-07-28", "2024-02-29"],
                &["", "2026-7-28", "2026-02-29", "28.07.2026", "2026-07-28T10:30:00Z"],
            ),
            (
                "date-time",
                &["2026-07-28T10:30:00Z", "2026-07-28T10:30:00.123+02:00", "2026-07-28T10:30"],
                &["", "2026-07-28", "10:30", "2026-07-28T25:00:00Z"],
            ),
            ("phone", &["anything"], &[]),
        ] {
            let property = json!({ "type": "string", "format": format });
            for text in good {
                assert_eq!(error_of_value(&property, &json!(text).to_string()), None, "{text} as {format}");
            }
            for text in bad {
                assert_ne!(error_of_value(&property, &json!(text).to_string()), None, "{text} as {format}");
            }
        }
    }

    #[test]
    fn a_schema_that_is_not_understood_accepts() {
        for schema in [
            "null",
            "true",
            "[]",
            r#"{"type":"array"}"#,
            r#"{"type":"object","properties":[]}"#,
            r#"{"type":"object","required":"x"}"#,
            r#"{"properties":{"x":false}}"#,
            r#"{"properties":{"x":{"type":"widget"}}}"#,
            r#"{"properties":{"x":{"type":7,"minLength":"many","enum":{},"anyOf":3,"format":[]}}}"#,
            r##"{"properties":{"x":{"$ref":"#/$defs/x","not":{},"pattern":"^$"}}}"##,
        ] {
            assert_eq!(check_form(Some(&raw(schema)), Some(&raw(r#"{"x":"y"}"#))), Ok(()), "{schema}");
        }
        assert_eq!(check_form(None, Some(&raw("{}"))), Ok(()));
    }

    #[test]
    fn a_schema_is_not_followed_for_ever() {
        let mut property = json!({ "type": "integer" });
        for _ in 0..100 {
            property = json!({ "anyOf": [property] });
        }
        accepts(&property, &["\"x\""]);
    }

    proptest! {
        #[test]
        fn a_length_within_its_bounds_is_accepted_and_no_other(text in ".{0,8}", least in 0usize..8, more in 0usize..4) {
            let property = json!({ "type": "string", "minLength": least, "maxLength": least + more });
            let fits = (least..=least + more).contains(&text.chars().count());
            prop_assert_eq!(error_of_value(&property, &json!(text).to_string()).is_none(), fits);
        }

        #[test]
        fn no_answer_and_no_schema_is_too_odd_to_look_at(
            schema in "[{}\\[\\]\":,a-c0-9]{0,24}", content in "[{}\\[\\]\":,a-c0-9]{0,24}",
        ) {
            let _ = check_form(Some(&raw(schema)), Some(&raw(content)));
        }
    }
}
