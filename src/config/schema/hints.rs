//! Suggestions for unknown keys: the key that was probably meant, by its full path.

use super::problem::find_similar;
use serde_json::Value as Json;

/// Names that other programs use, the paths of the equivalent keys here (most likely first), and a note on
/// the value.
type KeyAlias = (&'static [&'static str], &'static [&'static str], &'static str);

/// Key names of other proxies and of MCP hosts, and common guesses. None of them is a valid key in the
/// section where it is looked up.
const ALIASES: &[KeyAlias] = &[
    (&["args", "arguments"], &["routes[].upstream.command"], ": one list of the program and its arguments"),
    (
        &["cmd", "exec", "program", "executable", "entrypoint"],
        &["routes[].upstream.command"],
        ": a list of strings",
    ),
    (&["environment", "envs", "environment_variables", "variables"], &["routes[].upstream.env"], ""),
    (&["working_directory", "working_dir", "workdir", "directory"], &["routes[].upstream.cwd"], ""),
    (
        &[
            "endpoint",
            "target",
            "backend",
            "server_url",
            "http_url",
            "uri",
            "destination",
            "proxy_pass",
            "server",
            "upstream_url",
        ],
        &["routes[].upstream.url"],
        "",
    ),
    (
        &[
            "servers",
            "services",
            "upstreams",
            "backends",
            "endpoints",
            "locations",
            "proxies",
            "targets",
            "mcp_servers",
        ],
        &["routes"],
        ": a list of `{ path, upstream }`",
    ),
    (&["prefix", "location", "mount", "base_path"], &["routes[].path"], ""),
    (
        &["port", "bind", "address", "addr", "listeners"],
        &["listen", "admin.listen"],
        ", as in `127.0.0.1:8808`",
    ),
    (
        &["host", "allowed_hosts", "hostnames", "server_name", "server_names", "domains"],
        &["access.hosts"],
        "",
    ),
    (&["cors", "allowed_origins", "allow_origins", "cors_origins"], &["access.origins"], ""),
    (
        &["auth", "authentication", "api_keys", "api_key", "bearer_tokens", "token", "clients"],
        &["access.tokens", "admin.token"],
        "",
    ),
    (
        &["certificate", "cert_file", "certfile", "ssl_certificate", "tls_cert", "crt"],
        &["tls.cert", "admin.tls.cert", "routes[].upstream.tls.cert"],
        "",
    ),
    (
        &["key_file", "keyfile", "private_key", "ssl_certificate_key", "tls_key"],
        &["tls.key", "admin.tls.key", "routes[].upstream.tls.key"],
        "",
    ),
    (&["ssl", "https"], &["tls", "admin.tls", "routes[].upstream.tls"], ""),
    (&["ca_file", "ca_cert", "root_ca", "ca_bundle", "cacert"], &["routes[].upstream.tls.ca"], ""),
    (
        &["threshold", "delay", "defer_after", "after_ms", "task_after", "latency"],
        &["routes[].defer.after", "routes[].tools[].after"],
        "",
    ),
    (&["policy", "strategy"], &["routes[].defer.mode", "routes[].tools[].mode"], ""),
    (&["ttl", "expiry", "expires", "task_ttl", "result_ttl", "keep"], &["routes[].defer.retention"], ""),
    (
        &["timeout", "request_timeout", "read_timeout", "proxy_read_timeout", "call_timeout", "tool_timeout"],
        &["timeouts.call"],
        "",
    ),
    (&["connect_timeout", "proxy_connect_timeout", "dial_timeout"], &["timeouts.connect"], ""),
    (&["idle_timeout", "keepalive_timeout"], &["timeouts.idle_connection", "routes[].upstream.idle"], ""),
    (&["session_timeout"], &["timeouts.idle_session"], ""),
    (&["startup_timeout", "init_timeout", "start_period"], &["routes[].upstream.start_timeout"], ""),
    (
        &[
            "shutdown_timeout",
            "grace_period",
            "graceful_shutdown",
            "termination_grace_period",
            "drain_timeout",
        ],
        &["drain"],
        ", as in `30s`",
    ),
    (&["log_level", "loglevel", "verbosity", "level"], &["log.level"], ""),
    (&["log_format"], &["log.format"], ""),
    (&["logging", "logs", "logger"], &["log"], ""),
    (&["tracing", "otel", "opentelemetry", "traces", "otlp_endpoint"], &["telemetry.otlp"], ""),
    (&["replicas", "processes", "pool_size", "max_processes"], &["routes[].upstream.instances"], ""),
    (&["max_connections", "worker_connections"], &["limits.connections"], ""),
    (&["storage", "database", "persistence", "db"], &["store"], ", as in `{ disk: ./data }`"),
    (&["dir", "folder", "data_dir", "path"], &["store.disk"], ""),
    (&["name", "tool", "pattern", "names"], &["routes[].tools[].match"], ""),
    (&["rules", "tool_rules", "overrides"], &["routes[].tools"], ""),
    (&["user_header", "identity", "caller", "user"], &["routes[].principal"], ", as in `{ header: X-User }`"),
    (&["forward_headers", "pass_headers", "forwarded_headers"], &["routes[].forward"], ""),
    (
        &["set_headers", "proxy_set_header", "request_headers", "extra_headers"],
        &["routes[].upstream.headers"],
        "",
    ),
    (&["base_url", "external_url", "public_uri", "hostname"], &["public_url"], ""),
    (&["management", "admin_port", "dashboard"], &["admin"], ""),
    (&["http_proxy", "https_proxy"], &["routes[].upstream.proxy"], ""),
];

/// Suggests a fix for the unknown `key` of the section at `path`; `known` are the keys of that section, and
/// `file_schema` returns the schema of the whole file.
pub fn suggest_fix(key: &str, path: &str, known: &[&str], file_schema: fn() -> Json) -> String {
    let path_of = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let word = snake_case(key);
    if let Some(near) = find_similar(&word, known.iter().copied()) {
        return format!("did you mean `{}`?", path_of(near));
    }
    let aliases = ALIASES.iter().filter(|(words, ..)| words.contains(&&*word));
    let find_alias = |only_in_section: bool| {
        aliases.clone().find_map(|(_, paths, note)| {
            let in_section = paths.iter().find(|at| parent_path(at) == path);
            let path = if only_in_section { in_section? } else { paths.first()? };
            Some(format!("use `{path}`{note}"))
        })
    };
    if let Some(remedy) = find_alias(true) {
        return remedy;
    }
    let all = all_key_paths(&file_schema());
    let mut same_name: Vec<&String> = all.iter().filter(|at| last_segment(at) == word).collect();
    same_name.sort_by_key(|at| distance(at, path));
    same_name.truncate(2);
    if !same_name.is_empty() {
        let paths: Vec<_> = same_name.iter().map(|at| format!("`{at}`")).collect();
        return format!("it belongs at {}", paths.join(" or "));
    }
    if let Some(remedy) = find_alias(false) {
        return remedy;
    }
    if matches!(&*word, "workers" | "threads" | "worker_processes" | "worker_threads") {
        return "threads are set by the environment variable `TOKIO_WORKER_THREADS`".to_owned();
    }
    if let Some(near) = find_similar(&word, all.iter().map(|at| last_segment(at))) {
        let mut candidates: Vec<&String> = all.iter().filter(|at| last_segment(at) == near).collect();
        candidates.sort_by_key(|at| distance(at, path));
        return format!("did you mean `{}`?", candidates[0]);
    }
    format!("there are {}", known.join(", "))
}

/// Returns a sort key for the distance from a section to a key: keys below the section first, then less
/// nested keys, then keys of routes.
fn distance(key: &str, section: &str) -> (bool, usize, bool) {
    let is_below = section.is_empty() || key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
    (!is_below, key.matches('.').count(), !key.starts_with("routes[]"))
}

/// Converts `startTimeout` and `start-timeout` to `start_timeout`.
fn snake_case(key: &str) -> String {
    let mut word = String::with_capacity(key.len() + 4);
    let mut was_small = false;
    for character in key.chars() {
        if character.is_uppercase() && was_small {
            word.push('_');
        }
        was_small = character.is_lowercase() || character.is_ascii_digit();
        match character {
            '-' | ' ' => word.push('_'),
            character => word.extend(character.to_lowercase()),
        }
    }
    word
}

/// Returns the name of the key at a path, its last segment.
fn last_segment(path: &str) -> &str {
    let segment = path.rsplit('.').next().unwrap_or(path);
    segment.strip_suffix("[]").unwrap_or(segment)
}

fn parent_path(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

/// Returns the paths of all keys, as in `routes[].defer.after`.
fn all_key_paths(schema: &Json) -> Vec<String> {
    fn collect(schema: &Json, path: &str, all: &mut Vec<String>) {
        if let Some(properties) = schema["properties"].as_object() {
            for (name, schema) in properties {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                if !all.contains(&path) {
                    all.push(path.clone());
                }
                collect(schema, &path, all);
            }
        }
        for choice in schema["anyOf"].as_array().into_iter().flatten() {
            collect(choice, path, all);
        }
        if let Some(items) = schema.get("items") {
            collect(items, &format!("{path}[]"), all);
        }
    }
    let mut all = Vec::new();
    collect(schema, "", &mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suggested_key_exists() {
        let all = all_key_paths(&crate::config::schema());
        for (words, paths, _) in ALIASES {
            for path in *paths {
                assert!(all.iter().any(|known| known == path), "{path}, for {words:?}");
            }
        }
    }

    #[test]
    fn the_intended_key_is_suggested_with_its_path() {
        let here = |key: &str, path: &str| {
            let all = all_key_paths(&crate::config::schema());
            let known: Vec<_> =
                all.iter().filter(|at| parent_path(at) == path).map(|at| last_segment(at)).collect();
            suggest_fix(key, path, &known, crate::config::schema)
        };
        for (key, path, wanted) in [
            ("lisen", "", "did you mean `listen`?"),
            ("retenton", "routes[].defer", "did you mean `routes[].defer.retention`?"),
            ("startTimeout", "routes[].upstream", "did you mean `routes[].upstream.start_timeout`?"),
            ("after", "routes[]", "it belongs at `routes[].defer.after` or `routes[].tools[].after`"),
            ("upstream", "", "it belongs at `routes[].upstream` or `ready.upstream`"),
            ("command", "", "it belongs at `routes[].upstream.command`"),
            ("command", "routes[]", "it belongs at `routes[].upstream.command`"),
            (
                "args",
                "routes[].upstream",
                "use `routes[].upstream.command`: one list of the program and its arguments",
            ),
            ("port", "", "use `listen`, as in `127.0.0.1:8808`"),
            ("port", "admin", "use `admin.listen`, as in `127.0.0.1:8808`"),
            ("name", "routes[].tools[]", "use `routes[].tools[].match`"),
            ("commnd", "routes[]", "did you mean `routes[].upstream.command`?"),
            ("workers", "", "threads are set by the environment variable `TOKIO_WORKER_THREADS`"),
            ("read_timeout", "routes[]", "use `timeouts.call`"),
            ("logLevel", "", "use `log.level`"),
        ] {
            assert_eq!(here(key, path), wanted, "{key} in {path}");
        }
        assert!(here("qqqqqqqqqqqqqqqqqqqq", "tls").starts_with("there are "));
    }
}
