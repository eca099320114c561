//! `docs/configuration.md`: every key, as the declarations that read it have it. `UPDATE_EXPECT=1` writes it anew.

use super::root;
use deferral::internals::config;
use serde_json::Value;
use std::fmt::Write;

const INTRODUCTION: &str = "\
# Configuration

Every key of the configuration file. `deferral check FILE` reports every problem of a file with line and column; `deferral check --schema` prints this list as
a JSON Schema for editors. Samples are in [`config/`](../config). Flags of the command line override the file.

**Bold** keys are required. Relative paths in keys are relative to the folder of the file. In any value `${NAME}` is an environment variable; if it is not set, the file is
refused, unless `${NAME:-default}` gives a default. `$${NAME}` is the text `${NAME}` itself.

A reload (SIGHUP, `--watch`) applies all keys except `store`, `log`, `telemetry`, `ready`, `metrics` and the address of `admin`, which need a restart. An invalid
file changes nothing ([reloading](upgrading.md#reloading-the-configuration)).

| type | written as |
|---|---|
| duration | numbers with the units `ms`, `s`, `m`, `h`, `d`: `250ms`, `5s`, `1h30m`; at most 366 days. `0` is no time, not the absence of a limit |
| size | bytes, or a number with a unit: `64KiB`, `10MB`, `1GiB` |
| percentage | `25%`, `0.5%` |
| path | a file; relative paths are relative to the folder of the configuration file |
| secret | `{ file: PATH }` or `{ env: NAME }`: the file or the environment variable that contains the secret; never the secret itself |

| term | meaning ([glossary](dev/glossary.md)) |
|---|---|
| server, upstream | the MCP server behind a route |
| legacy, modern (the two eras) | revisions of MCP: 2024-11-05 to 2025-11-25, which have sessions; 2026-07-28, which has none. A legacy client, a modern client: one that uses such a revision |
| principal (in some keys and flags: caller) | the user or application on whose behalf a request is made (`routes[].principal`); tasks and quotas belong to it |
| call | a `tools/call` request, unless stated otherwise |
| task support | a modern client has it if it declares the tasks extension; a call of a legacy client has it if it asks for a task (`params.task`, 2025-11-25) |
| session pool | the sessions that the proxy keeps with one server for one principal, one set of client capabilities and one set of request headers (`routes[].forward`) |
| input request | a request of the server to its client during a call: elicitation, sampling, roots |
| task, ticket | how a client with task support, and one without, gets the result of a slow call later |

Codes in the descriptions are those of JSON-RPC errors: `-31001` server not reachable, `-31002` unknown whether the call ran, `-31003` timeout, `-31005` response too
large, `-31006` limit reached, `-31007` proxy is shutting down (with status 503 the call was not sent, otherwise it may have run), `-32021` client lacks a capability ([errors](errors.md)). Numbers from 400 are HTTP status codes.
";

const DURATION: &str = "ms|s|m|h|d";
const SIZE: &str = "GiB|MiB";
/// What a variable may stand for is said once.
const VARIABLE: &str = r"\$\{";

/// The mapping among what a value may be, and where its keys are: `name`, `name[]`, `name.*`.
fn mapping(schema: &Value, name: &str) -> Option<(String, Value)> {
    if schema["properties"].is_object() {
        return (!is_secret(schema)).then(|| (name.to_owned(), schema.clone()));
    }
    let choices = schema["anyOf"].as_array().into_iter().flatten().find_map(|choice| mapping(choice, name));
    choices.or_else(|| mapping(schema.get("items")?, &format!("{name}[]")))
}

/// `{ file }` or `{ env }`, and nothing else.
fn is_secret(schema: &Value) -> bool {
    let keys: Vec<_> =
        schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    keys == ["env", "file"]
}

fn plural(kind: &str) -> String {
    if kind.starts_with('`') { kind.to_owned() } else { format!("{kind}s") }
}

/// The types of a value, in words.
fn kinds(schema: &Value) -> Vec<String> {
    let one = |word: &str| vec![word.to_owned()];
    if let Some(choices) = schema["anyOf"].as_array() {
        let mut all: Vec<String> = Vec::new();
        for kind in choices.iter().flat_map(kinds) {
            if !all.contains(&kind) {
                all.push(kind);
            }
        }
        // The place of a secret may be a path alone.
        if all == ["string", "secret"] {
            all[0] = "path".to_owned();
        }
        // A number of bytes is a size.
        if let [number, size] = &mut all[..]
            && size == "size"
            && let Some(least) = number.strip_prefix("number from ")
        {
            let kib = least.parse::<u64>().expect("a number") >> 10;
            return vec![match kib {
                0 => size.clone(),
                1..1024 => format!("size from {kib}KiB"),
                _ => format!("size from {}MiB", kib >> 10),
            }];
        }
        return all;
    }
    if let Some(words) = schema["enum"].as_array() {
        return words
            .iter()
            .map(|word| format!("`{}`", word.as_str().map_or_else(|| word.to_string(), str::to_owned)))
            .collect();
    }
    if let Some(word) = schema.get("const") {
        // `off` as YAML may read it, and a duration or a size of none.
        return word.as_str().map(|word| format!("`{word}`")).into_iter().collect();
    }
    if let Some(items) = schema.get("items") {
        return vec![format!(
            "list of {}",
            kinds(items).iter().map(|kind| plural(kind)).collect::<Vec<_>>().join(" or ")
        )];
    }
    match (schema["pattern"].as_str(), schema["type"].as_str()) {
        (Some(pattern), _) if pattern.starts_with(VARIABLE) => Vec::new(),
        (Some(pattern), _) if pattern.contains(DURATION) && pattern.contains("off") => {
            vec!["duration".to_owned(), "`off`".to_owned()]
        }
        (Some(pattern), _) if pattern.contains(DURATION) => one("duration"),
        (Some(pattern), _) if pattern.contains(SIZE) => one("size"),
        (Some(pattern), _) if pattern.ends_with("%$") => one("percentage"),
        (Some(pattern), _) if pattern.contains("http") => one("URL"),
        (_, Some("object")) if is_secret(schema) => one("secret"),
        (_, Some("object")) => one("mapping"),
        (_, Some("integer")) => one(&schema["minimum"]
            .as_u64()
            .map_or_else(|| "number".to_owned(), |least| format!("number from {least}"))),
        (_, Some("boolean")) => vec!["`true`".to_owned(), "`false`".to_owned()],
        _ => one("string"),
    }
}

fn section(name: &str, schema: &Value, out: &mut String) {
    let required: Vec<_> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (title, place) = match name {
        "" => ("Top level".to_owned(), String::new()),
        name => (format!("`{name}`"), format!("{name}.")),
    };
    write!(out, "\n## {title}\n\n| key | type | default | description |\n|---|---|---|---|\n")
        .expect("it is memory");
    let keys = schema["properties"].as_object().expect("a mapping");
    let mut below = Vec::new();
    for (key, value) in keys {
        let shown =
            if required.contains(&key.as_str()) { format!("**`{key}`**") } else { format!("`{key}`") };
        let default = match &value["default"] {
            Value::Null => String::new(),
            Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        let about = value["description"].as_str().unwrap_or_default().replace('|', "\\|");
        let kinds = kinds(value).join(", ").replace('|', "\\|");
        writeln!(out, "| {shown} | {kinds} | {default} | {about} |").expect("it is memory");
        below.extend(mapping(value, &format!("{place}{key}")));
    }
    for (name, schema) in below {
        section(&name, &schema, out);
    }
}

#[test]
fn the_reference_has_every_key_as_it_is_read() {
    let mut text = INTRODUCTION.to_owned();
    section("", &config::schema(), &mut text);
    expect_test::expect_file![root().join("docs/configuration.md")].assert_eq(&text);
}
