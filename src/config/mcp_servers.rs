//! Recognises the configuration file of an MCP host, and suggests equivalent routes.
//!
//! Claude Desktop, Cursor and others list servers under `mcpServers`, VS Code under `servers`, Zed under
//! `context_servers`. Such a file is rejected rather than read, because parts of it (input values, workspace
//! paths) have no meaning here. The error contains the complete equivalent file.

use super::schema::{MapEntry, Node, NodeValue, Problem, yaml};
use std::fmt::Write;

/// Keys under which MCP hosts list their servers.
const SERVER_LIST_KEYS: [&str; 4] = ["mcpServers", "servers", "mcp_servers", "context_servers"];

/// Returns the problem to report for the configuration file of an MCP host; `None` for any other file.
pub(super) fn host_file_problem(file: &Node) -> Option<Problem> {
    let entries = map_entries(file)?;
    let has_routes = entries.iter().any(|entry| entry.key == "routes");
    let find_list =
        |entries: &[MapEntry]| entries.iter().position(|entry| SERVER_LIST_KEYS.contains(&&*entry.key));
    // The settings of VS Code have the servers one level deeper.
    let mcp_entries = entries.iter().find(|entry| entry.key == "mcp").and_then(|mcp| map_entries(&mcp.node));
    let (entries, at) =
        match (find_list(entries), mcp_entries.and_then(|within| Some((within, find_list(within)?)))) {
            (Some(at), _) => (entries, at),
            (None, Some(within)) => within,
            (None, None) => return None,
        };
    let MapEntry { key, key_span, node } = &entries[at];
    let servers: Vec<_> = map_entries(node)?.iter().filter(|server| is_server(&server.node)).collect();
    if servers.is_empty() || has_routes {
        return None;
    }
    let message = format!(
        "`{key}` is the format of MCP hosts; deferral uses `routes`. The same servers as routes, with the \
         values of variables and headers read from the environment:\n\n{}",
        routes_yaml(&servers)
    );
    Some(Problem::new(*key_span, message))
}

/// Like [`host_file_problem`], for JSON with comments, which editors accept but which is not YAML.
pub(super) fn host_text_problem(text: &str) -> Option<Problem> {
    if !text.trim_start_matches('\u{feff}').trim_start().starts_with(['{', '/']) {
        return None;
    }
    let plain = strip_comments(text);
    if plain == text {
        return None;
    }
    host_file_problem(&yaml::parse(&plain, &mut Vec::new())?)
}

fn map_entries(node: &Node) -> Option<&[MapEntry]> {
    let NodeValue::Map(entries) = &node.value else { return None };
    Some(entries)
}

fn get_any<'n>(node: &'n Node, keys: &[&str]) -> Option<&'n Node> {
    let entries = map_entries(node)?;
    keys.iter().find_map(|key| entries.iter().find(|entry| entry.key == *key)).map(|entry| &entry.node)
}

fn get_any_text<'n>(node: &'n Node, keys: &[&str]) -> Option<&'n str> {
    get_any(node, keys)?.scalar_text()
}

/// Keys of a server's URL; Windsurf and Gemini CLI use names of their own.
const URL_KEYS: [&str; 4] = ["url", "serverUrl", "httpUrl", "endpoint"];

fn is_server(node: &Node) -> bool {
    get_any(node, &["command"]).is_some() || get_any(node, &URL_KEYS).is_some()
}

/// Returns the equivalent routes as YAML.
fn routes_yaml(servers: &[&MapEntry]) -> String {
    let mut yaml = String::from("routes:\n");
    for server in servers {
        let is_single = servers.len() == 1;
        let path = if is_single { "/mcp".to_owned() } else { format!("/{}", to_path_segment(&server.key)) };
        write_route(&mut yaml, &path, server).expect("a string takes everything");
    }
    yaml
}

fn write_route(yaml: &mut String, path: &str, MapEntry { key, node, .. }: &MapEntry) -> std::fmt::Result {
    if get_any_text(node, &["disabled"]) == Some("true") {
        writeln!(yaml, "  # {} is disabled in the host's file", to_path_segment(key))?;
    }
    if matches!(get_any_text(node, &["type", "transport"]), Some("sse")) {
        writeln!(
            yaml,
            "  # {} uses HTTP+SSE there; deferral needs its Streamable HTTP endpoint",
            to_path_segment(key)
        )?;
    }
    writeln!(yaml, "  - path: {path}\n    upstream:")?;
    if let Some(url) = get_any_text(node, &URL_KEYS) {
        writeln!(yaml, "      url: {}", quote_yaml(url))?;
        let headers = get_any(node, &["headers"]).and_then(map_entries).unwrap_or_default();
        if !headers.is_empty() {
            writeln!(yaml, "      headers:")?;
        }
        for MapEntry { key: name, .. } in headers {
            let variable = to_variable_name(&format!("{}_{name}", to_path_segment(key)));
            writeln!(yaml, "        {}: {{ env: {variable} }}", quote_yaml(name))?;
        }
        return Ok(());
    }
    let command = get_any(node, &["command"]);
    // In a file of Zed, `command` is a mapping with `path`.
    let command = command.and_then(|command| get_any(command, &["path"])).or(command);
    let words = |node: &Node| match &node.value {
        NodeValue::List(items) => items.iter().filter_map(Node::scalar_text).map(quote_yaml).collect(),
        NodeValue::Scalar { text, .. } => vec![quote_yaml(text)],
        NodeValue::Map(_) => Vec::new(),
    };
    let mut all: Vec<String> = command.map(words).unwrap_or_default();
    all.extend(get_any(node, &["args"]).map(words).unwrap_or_default());
    writeln!(yaml, "      command: [{}]", all.join(", "))?;
    if let Some(folder) = get_any_text(node, &["cwd"]) {
        writeln!(yaml, "      cwd: {}", quote_yaml(folder))?;
    }
    let variables = get_any(node, &["env"]).and_then(map_entries).unwrap_or_default();
    if !variables.is_empty() {
        writeln!(yaml, "      env:")?;
    }
    for MapEntry { key: name, .. } in variables {
        writeln!(yaml, "        {}: {{ env: {} }}", quote_yaml(name), to_variable_name(name))?;
    }
    Ok(())
}

/// Returns a quoted YAML string, with variables of VS Code converted to `${NAME}`.
fn quote_yaml(text: &str) -> String {
    let mut converted = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("${") {
        converted.push_str(before);
        let Some((name, after)) = behind.split_once('}') else {
            converted.push_str("$${");
            rest = behind;
            continue;
        };
        match name.split_once(':') {
            Some(("env" | "input", name)) => {
                let _ = write!(converted, "${{{}}}", to_variable_name(name));
            }
            None if !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') =>
            {
                let _ = write!(converted, "${{{name}}}");
            }
            // Placeholders that only the host can resolve stay literal.
            _ => {
                let _ = write!(converted, "$${{{name}}}");
            }
        }
        rest = after;
    }
    converted.push_str(rest);
    serde_json::to_string(&converted).expect("a string is written to memory")
}

/// Converts a name to the name of an environment variable.
fn to_variable_name(name: &str) -> String {
    let word = |byte: char| if byte.is_ascii_alphanumeric() { byte.to_ascii_uppercase() } else { '_' };
    let name: String = name.chars().map(word).collect();
    match name.starts_with(|first: char| first.is_ascii_digit()) || name.is_empty() {
        true => format!("_{name}"),
        false => name,
    }
}

/// Converts a name to a path segment.
fn to_path_segment(name: &str) -> String {
    let part = |byte: char| match byte {
        byte if byte.is_ascii_alphanumeric() || matches!(byte, '-' | '_' | '.') => byte.to_ascii_lowercase(),
        _ => '-',
    };
    let slug: String = name.chars().map(part).collect();
    if slug.is_empty() { "mcp".to_owned() } else { slug }
}

/// Removes `//` and `/* */` comments outside of strings, and keeps line numbers.
fn strip_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    let mut in_string = false;
    while let Some(character) = characters.next() {
        match (in_string, character, characters.peek()) {
            (true, '\\', Some(_)) => {
                plain.push(character);
                plain.extend(characters.next());
                continue;
            }
            (_, '"', _) => in_string = !in_string,
            (false, '/', Some('/')) => {
                while characters.next_if(|next| *next != '\n').is_some() {}
                continue;
            }
            (false, '/', Some('*')) => {
                let mut before = ' ';
                for next in characters.by_ref().skip(1) {
                    if next == '\n' {
                        plain.push(next);
                    }
                    if before == '*' && next == '/' {
                        break;
                    }
                    before = next;
                }
                continue;
            }
            _ => {}
        }
        plain.push(character);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use std::path::Path;

    /// The suggested YAML for a host's file.
    fn suggested(text: &str) -> String {
        let problems =
            config::parse(Path::new("host.json"), text).expect_err("it is none of ours").to_string();
        assert_eq!(problems.matches("host.json:").count(), 1, "{problems}");
        let (message, yaml) = problems.split_once("\n\n").unwrap_or_else(|| panic!("{problems}"));
        assert!(message.contains("is the format of MCP hosts"), "{message}");
        yaml.to_owned()
    }

    const DESKTOP: &str = r#"{
  "mcpServers": {
    "My files": { "command": "npx", "args": ["-y", "@scope/server", "", "C:\\x \"y\""], "env": { "API_KEY": "sk-secret" } },
    "remote": { "type": "http", "url": "https://mcp.example.com/mcp", "headers": { "Authorization": "Bearer secret" } }
  },
  "globalShortcut": ""
}"#;

    #[test]
    fn a_claude_desktop_file_is_converted_without_its_secrets() {
        let yaml = suggested(DESKTOP);
        assert_eq!(
            yaml,
            "routes:\n  - path: /my-files\n    upstream:\n      command: [\"npx\", \"-y\", \"@scope/server\", \"\", \"C:\\\\x \\\"y\\\"\"]\n      \
             env:\n        \"API_KEY\": { env: API_KEY }\n  - path: /remote\n    upstream:\n      url: \"https://mcp.example.com/mcp\"\n      \
             headers:\n        \"Authorization\": { env: REMOTE_AUTHORIZATION }\n"
        );
        let environment = [("API_KEY", "k"), ("REMOTE_AUTHORIZATION", "Bearer x")].into_iter().collect();
        let checked = config::check_in(Path::new("deferral.yaml"), &yaml.replace("npx", "sh"), &environment);
        assert_eq!(checked.expect("it is a configuration").0.routes.len(), 2);
    }

    #[test]
    fn a_vs_code_file_may_have_comments_and_inputs() {
        let file = r#"{
  // The key is asked for.
  "inputs": [{ "type": "promptString", "id": "api-key", "password": true }], /* and
  */
  "servers": {
    "db": { "type": "stdio", "command": "uvx", "args": ["server", "--key=${input:api-key}", "${workspaceFolder}/x", "${env:HOME}"], },
  }
}"#;
        let yaml = suggested(file);
        let command = r#"command: ["uvx", "server", "--key=${API_KEY}", "$${workspaceFolder}/x", "${HOME}"]"#;
        assert!(yaml.contains("path: /mcp\n") && yaml.contains(command), "{yaml}");
        let settings = r#"{ "mcp": { "servers": { "a": { "url": "http://127.0.0.1:1/mcp" } } } }"#;
        assert!(suggested(settings).contains("url: \"http://127.0.0.1:1/mcp\""));
    }

    #[test]
    fn a_configuration_with_a_host_key_is_not_taken_for_a_host_file() {
        let text = "servers: { a: { command: sh } }\nroutes: [{ upstream: { url: 'http://a' } }]";
        let problems = config::parse(Path::new("x.yaml"), text).expect_err("unknown").to_string();
        assert!(problems.contains("unknown key `servers`"), "{problems}");
        let other = config::parse(Path::new("x.yaml"), "servers: [a]").expect_err("unknown").to_string();
        assert!(other.contains("unknown key `servers` at the top level; use `routes`"), "{other}");
    }

    #[test]
    fn comments_are_removed_from_json_but_not_from_strings() {
        let text = "{ \"a\": \"http://x/*y*/\\\"//\", // z\n \"b\": 1 /* \n ** */ }";
        assert_eq!(strip_comments(text), "{ \"a\": \"http://x/*y*/\\\"//\", \n \"b\": 1 \n }");
    }
}
