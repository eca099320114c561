//! The JSON Schema: its keys, descriptions and defaults.

use super::keys;
use deferral::internals::config;
use std::path::Path;

#[test]
fn the_schema_knows_exactly_the_keys_that_are_read() {
    let mut found = Vec::new();
    keys(&config::schema(), "", &mut found);
    found.sort();
    assert!(found.contains(&"routes[].tools[].match".to_owned()), "{found:?}");
    for path in &found {
        // Written somewhere, with a value no setting takes, a known key is never called unknown.
        let mut text = String::from("[[]]");
        for part in path.rsplit('.') {
            let (key, list) = part.strip_suffix("[]").map_or((part, false), |key| (key, true));
            text = if list { format!("{{ {key}: [{text}] }}") } else { format!("{{ {key}: {text} }}") };
        }
        let problems = config::parse(Path::new("x.yaml"), &text).expect_err("the value is wrong").to_string();
        assert!(!problems.contains("unknown key"), "{path}: {problems}");
        let last = path.rsplit(['.', ']']).next().unwrap();
        let misspelt = text.replace(&format!(" {last}:"), &format!(" {last}_x_y_z_x_y_z:"));
        let problems = config::parse(Path::new("x.yaml"), &misspelt).expect_err("misspelt").to_string();
        assert!(problems.contains("unknown key"), "{path}: {problems}");
    }
    // And the other way: what the readers list when they meet an unknown key is in the schema.
    for path in [
        "",
        "tls",
        "access",
        "access.tokens[]",
        "limits",
        "timeouts",
        "routes[]",
        "routes[].defer",
        "routes[].tools[]",
        "routes[].upstream",
        "routes[].questions",
        "routes[].tasks",
        "routes[].tasks.unsolicited[]",
        "routes[].held",
        "request_state",
        "request_state.keys[]",
        "telemetry",
        "telemetry.otlp",
    ] {
        let mut text = String::from("{ qqqqqqqqqqqqqqqqqqqq: 1 }");
        for part in path.rsplit('.').filter(|part| !part.is_empty()) {
            let (key, list) = part.strip_suffix("[]").map_or((part, false), |key| (key, true));
            text = if list { format!("{{ {key}: [{text}] }}") } else { format!("{{ {key}: {text} }}") };
        }
        let problems = config::parse(Path::new("x.yaml"), &text).expect_err("unknown").to_string();
        let (_, list) = problems.split_once("there are ").unwrap_or_else(|| panic!("{path}: {problems}"));
        for key in list.lines().next().unwrap().split(", ") {
            let full = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            assert!(found.contains(&full), "{full} is read and not in the schema");
        }
    }
}

#[test]
fn the_schema_describes_every_setting_and_shows_its_default() {
    let schema = config::schema();
    fn described(schema: &serde_json::Value, path: &str) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            if !["disk", "redis", "header", "file", "env"].contains(&&**name) {
                assert!(schema["description"].is_string(), "{path}.{name} has no description");
            }
            described(schema, &format!("{path}.{name}"));
        }
        if let Some(items) = schema.get("items") {
            described(items, &format!("{path}[]"));
        }
    }
    described(&schema, "");
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["required"], serde_json::json!(["routes"]));
    assert_eq!(schema["properties"]["limits"]["properties"]["stored_result_bytes"]["default"], "16MiB");
    assert_eq!(schema["properties"]["timeouts"]["properties"]["call"]["default"], "1d");
    assert_eq!(schema["properties"]["routes"]["items"]["required"], serde_json::json!(["upstream"]));
}
