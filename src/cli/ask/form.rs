//! The fields of an elicitation form, and parsing of typed values.
//!
//! A server that elicits by form sends a flat object schema (2026-07-28, *Elicitation, Requested Schema*).
//! Each property is a [`FormField`], which parses typed text. [`elicit::check_input_response`] validates the values,
//! as it does for clients of the proxy.

use crate::{
    bridge::elicit,
    protocol::{
        InputKind, InputRequest,
        splice::{JsonObject, array_items},
    },
};
use bytes::Bytes;
use serde_json::value::RawValue;

/// A field of a form.
#[derive(Clone, Debug)]
pub(super) struct FormField {
    /// The name of the property, by which the response has the value.
    pub(super) key: String,
    title: Option<String>,
    pub(super) description: Option<String>,
    /// Whether the field must be filled in. An optional field may be omitted from the response.
    pub(super) is_required: bool,
    /// The default as JSON, if it matches the schema.
    pub(super) default: Option<Bytes>,
    kind: FieldKind,
    schema: Bytes,
}

/// Type of a field, which determines how its value is typed and parsed.
#[derive(Clone, Debug)]
enum FieldKind {
    Text,
    Number,
    Boolean,
    /// One of these choices.
    One(Vec<FieldChoice>),
    /// Any number of these choices.
    Many(Vec<FieldChoice>),
    /// A type that the specification does not define; its value is typed as JSON.
    Json,
}

/// A value to choose from.
#[derive(Clone, Debug)]
struct FieldChoice {
    /// The value as JSON.
    value: Bytes,
    /// The displayed text.
    label: String,
}

/// Returns the fields of an elicitation's `requestedSchema`, in its order; none without a schema.
pub(super) fn read_fields(schema: Option<&Bytes>) -> Vec<FormField> {
    let Some(Ok(schema)) = schema.map(JsonObject::read) else { return Vec::new() };
    let required_keys: Vec<String> = read_member(&schema, "required").unwrap_or_default();
    let properties = schema.get("properties").and_then(|raw| JsonObject::read(&raw).ok());
    let members: Vec<_> = properties
        .iter()
        .flat_map(JsonObject::members)
        .map(|(key, property)| (key.into_owned(), property))
        .collect();
    // Required fields must be filled in even if the schema does not describe them.
    let undescribed =
        required_keys.iter().filter(|key| members.iter().all(|(described, _)| described != *key));
    let undescribed: Vec<_> = undescribed.map(|key| (key.clone(), Bytes::from_static(b"{}"))).collect();
    let field = |(key, property): (String, Bytes)| {
        let is_required = required_keys.contains(&key);
        FormField::new(key, property, is_required)
    };
    members.into_iter().chain(undescribed).map(field).collect()
}

/// Builds the content of a form, as a JSON object, from keys and JSON values.
pub(super) fn form_content<'a>(values: impl IntoIterator<Item = (&'a str, &'a Bytes)>) -> String {
    let members: Vec<_> =
        values.into_iter().map(|(key, answer)| format!("{}:{}", to_json_string(key), text(answer))).collect();
    format!("{{{}}}", members.join(","))
}

// === impl FormField ===

impl FormField {
    fn new(key: String, schema: Bytes, is_required: bool) -> Self {
        let object = JsonObject::read(&schema).ok();
        let string = |name| object.as_ref().and_then(|object| object.string(name));
        let kind = object.as_ref().map_or(FieldKind::Json, FieldKind::from_schema);
        let mut field = Self {
            title: string("title"),
            description: string("description"),
            is_required,
            default: None,
            kind,
            key,
            schema,
        };
        // The server would reject a default that does not match.
        let default = object.as_ref().and_then(|object| object.get("default"));
        field.default = default.filter(|default| field.check(default).is_ok());
        field
    }

    /// Returns the title of the field, or its key if it has no title.
    pub(super) fn name(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.key)
    }

    /// Returns a short description of valid input, for the prompt; may be empty.
    pub(super) fn hint(&self) -> String {
        let schema = JsonObject::read(&self.schema).ok();
        let mut parts = Vec::new();
        match &self.kind {
            FieldKind::Text => {
                let format = schema.as_ref().and_then(|schema| schema.string("format"));
                parts.extend(match format.as_deref() {
                    Some("email") => Some("an email address".to_owned()),
                    Some("uri") => Some("a URI".to_owned()),
                    Some("date") => Some("a date, as in 2026-07-28".to_owned()),
                    Some("date-time") => Some("a date and time, as in 2026-07-28T10:30:00Z".to_owned()),
                    Some(_) | None => None,
                });
                parts.extend(self.describe_bounds("minLength", "maxLength", " characters"));
            }
            FieldKind::Number => {
                let is_integer =
                    schema.as_ref().and_then(|schema| schema.string("type")).as_deref() == Some("integer");
                parts.push(if is_integer { "a whole number" } else { "a number" }.to_owned());
                parts.extend(self.describe_bounds("minimum", "maximum", ""));
            }
            FieldKind::Boolean => parts.push("yes or no".to_owned()),
            FieldKind::One(choices) => parts.push(format!("a number from 1 to {}", choices.len())),
            FieldKind::Many(_) => {
                parts.push("numbers separated by commas, or none".to_owned());
                parts.extend(self.describe_bounds("minItems", "maxItems", " of them"));
            }
            FieldKind::Json => parts.push("as JSON".to_owned()),
        }
        if !self.is_required {
            parts.push("optional".to_owned());
        }
        parts.join("; ")
    }

    fn describe_bounds(&self, min_key: &str, max_key: &str, unit: &str) -> Option<String> {
        let schema = JsonObject::read(&self.schema).ok()?;
        let bound = |key| schema.get(key).map(|raw| text(&raw).to_owned());
        match (bound(min_key), bound(max_key)) {
            (Some(least), Some(most)) => Some(format!("{least} to {most}{unit}")),
            (Some(least), None) => Some(format!("at least {least}{unit}")),
            (None, Some(most)) => Some(format!("at most {most}{unit}")),
            (None, None) => None,
        }
    }

    /// Returns the choices as numbered lines; empty if the field has no choices.
    pub(super) fn menu(&self) -> Vec<String> {
        match &self.kind {
            FieldKind::One(choices) | FieldKind::Many(choices) => {
                (1..).zip(choices).map(|(number, choice)| format!("{number}  {}", choice.label)).collect()
            }
            FieldKind::Text | FieldKind::Number | FieldKind::Boolean | FieldKind::Json => Vec::new(),
        }
    }

    /// Returns a JSON value as it is displayed: the label of a choice, `yes` or `no`, text without quotes.
    pub(super) fn display_value(&self, value: &Bytes) -> String {
        let label = |value: &Bytes, choices: &[FieldChoice]| {
            choices
                .iter()
                .find(|choice| choice.value == value)
                .map_or_else(|| label(value), |choice| choice.label.clone())
        };
        match &self.kind {
            FieldKind::Boolean if value == "true" => "yes".to_owned(),
            FieldKind::Boolean if value == "false" => "no".to_owned(),
            FieldKind::One(choices) => label(value, choices),
            FieldKind::Many(choices) => match array_items(value) {
                Some(values) if values.is_empty() => "none".to_owned(),
                Some(values) => {
                    values.iter().map(|value| label(value, choices)).collect::<Vec<_>>().join(", ")
                }
                None => text(value).to_owned(),
            },
            FieldKind::Text | FieldKind::Number | FieldKind::Boolean => self::label(value),
            FieldKind::Json => text(value).to_owned(),
        }
    }

    /// Parses a typed value into JSON.
    ///
    /// # Errors
    /// A text that says what the value must be, as in `must be a number`.
    pub(super) fn parse(&self, typed: &str) -> Result<Bytes, String> {
        let value = match &self.kind {
            // An empty line means no value, so an empty text is typed as `""`.
            FieldKind::Text if typed == "\"\"" => Bytes::from_static(b"\"\""),
            FieldKind::Text => to_json_string(typed).into(),
            FieldKind::Number => parse_json(typed.trim()).ok_or("must be a number")?,
            FieldKind::Boolean => match typed.trim().to_lowercase().as_str() {
                "y" | "yes" | "true" => Bytes::from_static(b"true"),
                "n" | "no" | "false" => Bytes::from_static(b"false"),
                _ => return Err("must be yes or no".to_owned()),
            },
            FieldKind::One(choices) => choose(choices, typed)?,
            FieldKind::Many(choices) => choose_several(choices, typed)?,
            FieldKind::Json => parse_json(typed.trim()).ok_or("must be JSON; put text in double quotes")?,
        };
        self.check(&value)?;
        Ok(value)
    }

    /// Validates a value by a form that has this field alone.
    fn check(&self, value: &Bytes) -> Result<(), String> {
        let (key, schema) = (to_json_string(&self.key), text(&self.schema));
        let params = format!(
            r#"{{"requestedSchema":{{"type":"object","properties":{{{key}:{schema}}},"required":[{key}]}}}}"#
        );
        let request = InputRequest::new(InputKind::Elicitation, Some(&params.into()));
        let response = format!(r#"{{"action":"accept","content":{}}}"#, form_content([(&*self.key, value)]));
        elicit::check_input_response(&request, &response.into()).map(drop).map_err(|error| error.must)
    }
}

// === impl FieldKind ===

impl FieldKind {
    fn from_schema(schema: &JsonObject) -> Self {
        if let Some(choices) = FieldChoice::read_all(schema) {
            return Self::One(choices);
        }
        match schema.string("type").as_deref() {
            Some("string") => Self::Text,
            Some("number" | "integer") => Self::Number,
            Some("boolean") => Self::Boolean,
            Some("array") => {
                let items = schema.get("items").and_then(|raw| JsonObject::read(&raw).ok());
                items.as_ref().and_then(FieldChoice::read_all).map_or(Self::Json, Self::Many)
            }
            _ => Self::Json,
        }
    }
}

// === impl FieldChoice ===

impl FieldChoice {
    /// Reads the choices of a schema: `enum`, with `enumNames` of older servers, or constants with titles.
    /// `None` if it has none.
    fn read_all(schema: &JsonObject) -> Option<Vec<Self>> {
        if let Some(values) = schema.get("enum").and_then(|raw| array_items(&raw)) {
            let names: Vec<String> = read_member(schema, "enumNames").unwrap_or_default();
            let mut names = names.into_iter();
            let choice = |value: Bytes| Self { label: names.next().unwrap_or_else(|| label(&value)), value };
            return Some(values.into_iter().map(choice).collect()).filter(|all: &Vec<_>| !all.is_empty());
        }
        let branches = ["oneOf", "anyOf"].iter().find_map(|key| array_items(&schema.get(key)?))?;
        let choice = |branch: &Bytes| {
            let branch = JsonObject::read(branch).ok()?;
            let value = branch.get("const")?;
            Some(Self { label: branch.string("title").unwrap_or_else(|| label(&value)), value })
        };
        branches.iter().map(choice).collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())
    }
}

/// Finds a choice by number, value or label.
fn choose(choices: &[FieldChoice], typed: &str) -> Result<Bytes, String> {
    let typed = typed.trim();
    if let Some(choice) = typed.parse::<usize>().ok().and_then(|number| choices.get(number.checked_sub(1)?)) {
        return Ok(choice.value.clone());
    }
    let is_match = |choice: &&FieldChoice| {
        label(&choice.value) == typed || choice.label.to_lowercase() == typed.to_lowercase()
    };
    match choices.iter().find(is_match) {
        Some(choice) => Ok(choice.value.clone()),
        None => Err(format!("must be a number from 1 to {}, or one of the values", choices.len())),
    }
}

fn choose_several(choices: &[FieldChoice], typed: &str) -> Result<Bytes, String> {
    let typed = typed.trim();
    if typed == "none" && choose(choices, typed).is_err() {
        return Ok(Bytes::from_static(b"[]"));
    }
    // The whole text is tried first, because a value may contain a comma.
    let mut chosen = match choose(choices, typed) {
        Ok(one) => vec![one],
        Err(_) => typed.split(',').map(|one| choose(choices, one)).collect::<Result<Vec<_>, _>>()?,
    };
    let mut seen = Vec::new();
    chosen.retain(|value| {
        let is_new = !seen.contains(value);
        seen.push(value.clone());
        is_new
    });
    let chosen: Vec<_> = chosen.iter().map(text).collect();
    Ok(format!("[{}]", chosen.join(",")).into())
}

/// Returns a JSON string without quotes, and any other JSON unchanged.
fn label(raw: &Bytes) -> String {
    serde_json::from_slice(raw).unwrap_or_else(|_| text(raw).to_owned())
}

fn text(raw: &Bytes) -> &str {
    std::str::from_utf8(raw).expect("JSON that was read is UTF-8")
}

fn to_json_string(text: &str) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}

/// Returns the typed text if it is JSON, with numbers unchanged.
fn parse_json(typed: &str) -> Option<Bytes> {
    let raw: Box<RawValue> = serde_json::from_str(typed).ok()?;
    Some(raw.get().to_owned().into())
}

fn read_member<T: serde::de::DeserializeOwned>(schema: &JsonObject, key: &str) -> Option<T> {
    serde_json::from_slice(&schema.get(key)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn field(schema: Value) -> FormField {
        FormField::new("x".into(), schema.to_string().into(), true)
    }

    fn read(schema: &Value, typed: &str) -> Result<String, String> {
        field(schema.clone()).parse(typed).map(|raw| text(&raw).to_owned())
    }

    #[test]
    fn typed_text_is_parsed_according_to_the_schema() {
        let colors = json!({ "type": "string", "enum": ["Red", "Green", "a,b"] });
        let titled = json!({ "oneOf": [{ "const": "#f00", "title": "Red" }, { "const": 7 }] });
        let older = json!({ "type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"] });
        let many = json!({ "type": "array", "minItems": 1, "maxItems": 2, "items": colors });
        let bounded = json!({ "type": "string", "minLength": 2, "maxLength": 3 });
        let integer = json!({ "type": "integer", "minimum": 1, "maximum": 12 });
        for (schema, typed, value) in [
            (json!({ "type": "string" }), " a \"b\" ", r#"" a \"b\" ""#),
            (json!({ "type": "string" }), "\"\"", r#""""#),
            (json!({ "type": "string", "format": "date" }), "2026-08-01", r#""2026-08-01""#),
            (json!({ "type": "number" }), "9007199254740993.10", "9007199254740993.10"),
            (integer.clone(), " 12 ", "12"),
            (json!({ "type": "boolean" }), "Y", "true"),
            (json!({ "type": "boolean" }), "false", "false"),
            (colors.clone(), "2", r#""Green""#),
            (colors.clone(), "green", r#""Green""#),
            (titled.clone(), "red", r##""#f00""##),
            (titled.clone(), "#f00", r##""#f00""##),
            (titled, "2", "7"),
            (older, "Green", r#""g""#),
            (many.clone(), "1, green,1", r#"["Red","Green"]"#),
            (many.clone(), "a,b", r#"["a,b"]"#),
            (json!({ "type": "array", "items": colors }), "none", "[]"),
            (json!({ "type": "object" }), r#" {"a":1.0} "#, r#"{"a":1.0}"#),
            (json!({}), "true", "true"),
        ] {
            assert_eq!(read(&schema, typed).as_deref(), Ok(value), "{typed} for {schema}");
        }
        for (schema, typed, must) in [
            (bounded.clone(), "a", "must be at least 2 characters"),
            (bounded, "abcd", "must be at most 3 characters"),
            (json!({ "type": "string", "format": "date" }), "tomorrow", "must be a date, as in 2026-07-28"),
            (integer.clone(), "13", "must be at most 12"),
            (integer.clone(), "1.5", "must be an integer"),
            (integer, "many", "must be a number"),
            (json!({ "type": "boolean" }), "perhaps", "must be yes or no"),
            (colors.clone(), "4", "must be a number from 1 to 3, or one of the values"),
            (colors, "0", "must be a number from 1 to 3, or one of the values"),
            (many.clone(), "1,2,3", "must be at most 2 items"),
            (many, "none", "must be at least 1 items"),
            (json!({}), "hello", "must be JSON; put text in double quotes"),
        ] {
            assert_eq!(read(&schema, typed).unwrap_err(), must, "{typed} for {schema}");
        }
    }

    #[test]
    fn a_field_describes_its_valid_input() {
        for (schema, hint) in [
            (
                json!({ "type": "string", "format": "email", "maxLength": 50 }),
                "an email address; at most 50 characters",
            ),
            (json!({ "type": "integer", "minimum": 1, "maximum": 12 }), "a whole number; 1 to 12"),
            (json!({ "type": "number", "minimum": 0.5 }), "a number; at least 0.5"),
            (json!({ "type": "boolean" }), "yes or no"),
            (json!({ "enum": ["a", "b"] }), "a number from 1 to 2"),
        ] {
            assert_eq!(field(schema).hint(), hint);
        }
        let optional = FormField::new("x".into(), r#"{"type":"string"}"#.into(), false);
        assert_eq!((optional.name(), &*optional.hint()), ("x", "optional"));
        let titled = field(json!({ "title": "Color", "enum": ["r", "g"], "enumNames": ["Red"] }));
        assert_eq!((titled.name(), titled.menu()), ("Color", vec!["1  Red".to_owned(), "2  g".to_owned()]));
        assert_eq!(titled.display_value(&Bytes::from_static(b"\"r\"")), "Red");
    }

    #[test]
    fn a_default_that_does_not_fit_is_not_offered() {
        assert_eq!(field(json!({ "type": "integer", "default": 2 })).default.as_deref(), Some(&b"2"[..]));
        assert_eq!(field(json!({ "type": "integer", "default": "2" })).default, None);
        assert_eq!(field(json!({ "enum": ["a"], "default": "b" })).default, None);
    }

    #[test]
    fn fields_keep_the_order_of_the_schema_and_include_required_ones() {
        let schema = Bytes::from_static(
            br#"{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"boolean"}},"required":["a","q"]}"#,
        );
        let fields: Vec<_> =
            read_fields(Some(&schema)).into_iter().map(|field| (field.key, field.is_required)).collect();
        assert_eq!(fields, [("z".into(), false), ("a".into(), true), ("q".into(), true)]);
        assert!(read_fields(None).is_empty());
        assert!(read_fields(Some(&Bytes::from_static(b"[]"))).is_empty());
    }
}
