//! How settings look to an editor: the JSON Schema of the file, with descriptions and defaults.
//!
//! The types here stand for texts of a certain shape. They exist for the schema only; the shapes
//! themselves are read by [`super::values`].

use super::file::File;
use crate::policy::Mode;
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::Value;
use std::borrow::Cow;

/// The JSON Schema (2020-12) of the configuration file, every part written out in its place.
pub fn schema() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.into_generator().into_root_schema_for::<File>().to_value()
}

/// Where in the file a key does exist, such as `routes[].defer`; for keys written in another place.
pub(super) fn home(key: &str) -> Option<String> {
    fn search(schema: &Value, key: &str, path: &str) -> Option<String> {
        let inner = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        if let Some(properties) = schema["properties"].as_object() {
            if properties.contains_key(key) {
                return Some(path.to_owned());
            }
            return properties.iter().find_map(|(name, schema)| search(schema, key, &inner(name)));
        }
        for choice in ["anyOf", "oneOf"] {
            if let Some(found) =
                schema[choice].as_array().and_then(|all| all.iter().find_map(|one| search(one, key, path)))
            {
                return Some(found);
            }
        }
        search(schema.get("items")?, key, &format!("{path}[]"))
    }
    search(&schema(), key, "")
}

/// Every key may be left out unless a section says otherwise, see [`required`].
pub(super) fn optional(schema: &mut Schema) {
    schema.remove("required");
}

/// The keys a section cannot do without.
pub(super) fn required(keys: &'static [&'static str]) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("required".to_owned(), keys.into());
    }
}

macro_rules! shapes {
    ($($name:ident = { $($schema:tt)* },)*) => {
        $(
            pub(super) struct $name;

            impl JsonSchema for $name {
                fn schema_name() -> Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!({ $($schema)* })
                }
            }
        )*
    };
}

const MODES: [&str; 5] = [
    Mode::Auto.as_str(),
    Mode::Never.as_str(),
    Mode::Always.as_str(),
    Mode::Required.as_str(),
    Mode::Observe.as_str(),
];

shapes! {
    Duration = {
        "anyOf": [
            { "type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$" },
            { "const": 0 },
        ],
    },
    DurationOrOff = {
        "anyOf": [
            { "type": "string", "pattern": r"^(off|([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+)$" },
            { "const": false },
        ],
    },
    Size = {
        "anyOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(GiB|MiB|KiB|GB|MB|kB|KB|B)?$" },
        ],
    },
    Count = { "type": "integer", "minimum": 0 },
    Address = { "type": "string", "examples": ["127.0.0.1:8808", "[::]:8808"] },
    Admin = {
        "anyOf": [{ "type": "string", "examples": ["127.0.0.1:8809", "off"] }, { "const": false }],
    },
    Url = { "type": "string", "pattern": "^https?://" },
    Path = { "type": "string", "pattern": "^/" },
    ModeName = { "enum": MODES },
    ToolErrors = { "enum": ["failed", "completed"] },
    Unsolicited = {
        "anyOf": [
            { "enum": ["never", "always"] },
            {
                "type": "array",
                "minItems": 1,
                "items": {
                    "anyOf": [
                        {
                            "type": "object",
                            "properties": {
                                "header": { "type": "string" },
                                "value": { "type": "string", "minLength": 1 },
                            },
                            "required": ["header", "value"],
                            "additionalProperties": false,
                        },
                        {
                            "type": "object",
                            "properties": { "principal": { "type": "string", "pattern": "^[0-9a-f]{16}$" } },
                            "required": ["principal"],
                            "additionalProperties": false,
                        },
                    ],
                },
            },
        ],
    },
    Store = { "enum": ["memory"] },
    KeySource = {
        "anyOf": [
            {
                "type": "object",
                "properties": { "file": { "type": "string" } },
                "required": ["file"],
                "additionalProperties": false,
            },
            {
                "type": "object",
                "properties": { "env": { "type": "string" } },
                "required": ["env"],
                "additionalProperties": false,
            },
        ],
    },
    Principal = {
        "anyOf": [
            { "const": "authorization" },
            {
                "type": "object",
                "properties": { "header": { "type": "string" } },
                "required": ["header"],
                "additionalProperties": false,
            },
        ],
    },
    Requires = { "type": "object", "additionalProperties": { "type": "object" } },
    Log = { "enum": ["text", "json"] },
}

/// One value, or a list of them.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "stands for a shape in the schema only")]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}
