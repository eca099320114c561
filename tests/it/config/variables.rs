//! `${NAME}` in values of a configuration, and secrets in files and variables.

use deferral::internals::{
    config::{self, Config, Environment},
    upstream::UpstreamTarget,
};
use expect_test::{Expect, expect};
use serde_json::{Value, json};
use std::{fs, path::Path};

const SECRET: &str = "hunter2-hunter2";

fn environment() -> Environment {
    Environment::from_iter([
        ("HOST", "tools.example.com"),
        ("PORT", "9000"),
        ("COUNT", "7"),
        ("YES", "true"),
        ("EMPTY", ""),
        ("SECRET", SECRET),
        ("YAML", "http://a/ }, path: /evil, x: {"),
        ("LINES", "a\nlisten: 0.0.0.0:1\n"),
    ])
}

fn checked(text: &str) -> Result<(Config, String), String> {
    let checked = config::check_in(Path::new("deferral.yaml"), text, &environment());
    let (config, doubts) = checked.map_err(|problems| format!("{problems}\n"))?;
    Ok((config, doubts.map(|doubts| doubts.to_string()).unwrap_or_default()))
}

fn read(text: &str) -> Config {
    checked(text).unwrap_or_else(|problems| panic!("{problems}")).0
}

fn refused(text: &str, expected: Expect) {
    let problems = checked(text).map(drop).expect_err("there are problems");
    assert!(!problems.contains("hunter"), "a secret is shown: {problems}");
    expected.assert_eq(&problems);
}

#[test]
fn a_variable_stands_for_any_value_and_may_be_a_part_of_one() {
    let config = read(
        r#"
listen: 127.0.0.1:${PORT}
admin: ${ADMIN:-off}
store: ${STORE:-memory}
limits: { calls: "${COUNT}" }
routes:
  - path: /${COUNT}
    upstream:
      url: https://${HOST}/mcp
    resume: { mint: "${YES}" }
    tools: [{ match: "${TOOL:-*}", after: "${COUNT}s" }]
    empty_contents_is_error: ${YES}
"#,
    );
    assert_eq!(config.front.listen, ["127.0.0.1:9000".parse().unwrap()]);
    assert_eq!((config.admin, config.front.limits.calls), (None, 7));
    let route = &config.routes[0];
    assert_eq!((&*route.route.path, route.route.tools[0].matches.as_str()), ("/7", "*"));
    assert!(route.route.empty_contents_is_error && route.route.resume.assigns_event_ids);
    let UpstreamTarget::Url(url) = &route.server else { panic!("a URL") };
    assert_eq!(*url.uri(), "https://tools.example.com/mcp");
    assert_eq!((url.shown(), url.host(), url.port()), ("https://${HOST}/mcp", "${HOST}", None));
    assert_eq!(url.authority(), "${HOST}", "errors name it so");
}

#[test]
fn what_a_variable_gives_is_never_yaml() {
    let config = read("routes: [{ path: /a, upstream: { command: [true, '${YAML}', '${LINES}'] } }]\n");
    let UpstreamTarget::Command(command) = &config.routes[0].server else { panic!("a command") };
    assert_eq!(command.words[1..], ["http://a/ }, path: /evil, x: {", "a\nlisten: 0.0.0.0:1\n"]);
    assert_eq!((&*config.routes[0].route.path, config.front.listen[0].port()), ("/a", 8808));
}

#[test]
fn an_alias_repeats_the_variables_of_its_anchor() {
    let config = read(
        "routes:\n  - upstream: &server\n      url: http://${HOST}:${PORT}/\n  - { path: /b, upstream: *server }\n",
    );
    assert_eq!(config.routes[0].server, config.routes[1].server);
    refused(
        "listen: &x 127.0.0.1:${NO}\npublic_url: *x\nroutes: [{ upstream: { url: 'http://a' } }]\n",
        expect![[r#"
            deferral.yaml:1:9: the variable `NO` is not set; set it, or add a default: `${NO:-default}`
        "#]],
    );
}

#[test]
fn a_variable_that_is_not_there_or_none_is_named_by_its_place() {
    refused(
        r#"
listen: 127.0.0.1:${NO}
store: ${STORE-memory}
drain: ${EMPTY}
log: "${"
public_url: ${SECRET:-${HOST}}
routes:
  - upstream: { url: "http://${ 1}", command: ["${NO}"] }
    empty_contents_is_error: ${ALSO_NOT}
    resume: { mint: "${COUNT}" }
"#,
        expect![[r#"
            deferral.yaml:2:9: the variable `NO` is not set; set it, or add a default: `${NO:-default}`
            deferral.yaml:3:8: `${STORE-memory}` names no variable; write `${NAME}` or `${NAME:-default}` with letters, digits and `_` in the name, or `$${` for a literal `${`
            deferral.yaml:4:8: `drain` has no value: `${EMPTY}` is empty; set the variable, or add a default as in `${NAME:-default}`
            deferral.yaml:5:6: `${` has no closing brace; write `${NAME}`, or `$${` for a literal `${`
            deferral.yaml:6:13: the default of `SECRET` cannot contain a variable; write a literal value
            deferral.yaml:8:22: `${ 1}` names no variable; write `${NAME}` or `${NAME:-default}` with letters, digits and `_` in the name, or `$${` for a literal `${`
            deferral.yaml:8:48: the variable `NO` is not set; set it, or add a default: `${NO:-default}`
            deferral.yaml:9:30: the variable `ALSO_NOT` is not set; set it, or add a default: `${ALSO_NOT:-default}`
            deferral.yaml:10:21: `mint` must be true or false, not `${COUNT}` (the values of variables are not shown)
        "#]],
    );
}

#[test]
fn of_a_wrong_value_is_shown_where_it_is_from_and_never_what_it_is() {
    refused(
        r#"
listen: ${SECRET}
store: disk${SECRET}
limits: { calls: "${SECRET}" }
timeouts: { call: "${COUNT}", idle: "${COUNT}x${SECRET}" }
access: { tokens: [{ name: a, file: "/${SECRET}" }], hosts: ["${SECRET}/x"] }
routes:
  - path: /${SECRET}
    upstream: { url: "${SECRET}://${HOST}/" }
    defer: { mode: "${SECRET}" }
  - path: /${SECRET}
    upstream: { url: "http://x:${SECRET}/" }
    empty_contents_is_error: ${SECRET}
    questions: { settle: "${PORT}" }
"#,
        expect![[r#"
            deferral.yaml:2:9: `${SECRET}` is not an address; write an IP address and a port, as in `127.0.0.1:8808` (the values of variables are not shown)
            deferral.yaml:3:8: there is no store `disk${SECRET}` in this version; use memory (tasks end with the process) or disk:PATH (the values of variables are not shown)
            deferral.yaml:4:18: `${SECRET}` is not a count; write a whole number (the values of variables are not shown)
            deferral.yaml:5:19: `${COUNT}` is not a duration; write a number and ms, s, m, h or d, as in `250ms` or `5s` (the values of variables are not shown)
            deferral.yaml:5:37: `${COUNT}x${SECRET}` is not a duration; write a number and ms, s, m, h or d, as in `250ms` or `5s` (the values of variables are not shown)
            deferral.yaml:6:20: the file `/${SECRET}` cannot be read: No such file or directory (os error 2)
            deferral.yaml:6:62: `${SECRET}/x` is not a host; write a host name only, as in `mcp.example.com`, or `*` for any (the values of variables are not shown)
            deferral.yaml:9:22: `${SECRET}://${HOST}/` is not a URL that the proxy can call; write it as in `http://127.0.0.1:9000/mcp` (the values of variables are not shown)
            deferral.yaml:10:20: unknown mode `${SECRET}`; use auto, never, always, required, observe or, for a tool, deny (the values of variables are not shown)
            deferral.yaml:11:11: the path `/${SECRET}` is already a route (line 8); choose another
            deferral.yaml:12:22: `http://x:${SECRET}/` is not a URL that the proxy can call; its port is not a number from 1 to 65535 (the values of variables are not shown)
            deferral.yaml:13:30: `empty_contents_is_error` must be true or false, not `${SECRET}` (the values of variables are not shown)
            deferral.yaml:14:26: `${PORT}` is not a duration; write a number and ms, s, m, h or d, as in `250ms` or `5s` (the values of variables are not shown)
        "#]],
    );
}

#[test]
fn operators_are_shown_what_was_written() {
    let text = r#"
listen: 127.0.0.1:${PORT}
limits:
  calls: ${COUNT}
routes:
  - upstream: { url: "https://me:${SECRET}@x/${HOST}?key=${SECRET}" }
"#
    .replace("me:${SECRET}@", "");
    let config = read(&text);
    let shown = config.settings.json();
    assert_eq!(
        shown["settings"],
        json!({
            "listen": "127.0.0.1:${PORT}",
            "limits": { "calls": "${COUNT}" },
            "routes": [{ "upstream": { "url": "https://x/${HOST}?key=${SECRET}" } }],
        })
    );
    assert!(!format!("{config:?}").contains("Given"), "what was written is no part of the meaning");
}

#[test]
fn a_literal_secret_in_headers_and_urls_is_doubted() {
    let literal = checked(
        r#"
routes:
  - path: /a
    upstream:
      url: http://x/mcp?api_key=hunter2-hunter2
      headers: { Authorization: Bearer hunter2-hunter2, X-Api-Key: hunter2-hunter2, X-Tenant: a }
      proxy: http://me:hunter2-hunter2@proxy:3128
  - path: /b
    upstream:
      url: http://x/mcp?api_key=${SECRET}
      headers: { Authorization: "Bearer ${SECRET}", X-Api-Key: { env: SECRET } }
      proxy: http://me:${SECRET}@proxy:3128
"#,
    );
    let (config, doubts) = literal.expect("it is right");
    expect![[r#"
        deferral.yaml:5:12: warning: this URL contains the value of `api_key`, in a file that is printed, copied and put under version control; set an environment variable and write `${NAME}` instead
        deferral.yaml:6:33: warning: the value of `authorization` is in a file that is printed, copied and put under version control; name its source: `{ file: PATH }` or `{ env: NAME }`, or set an environment variable and write `${NAME}` instead
        deferral.yaml:6:68: warning: the value of `x-api-key` is in a file that is printed, copied and put under version control; name its source: `{ file: PATH }` or `{ env: NAME }`, or set an environment variable and write `${NAME}` instead
        deferral.yaml:7:14: warning: this URL contains a password, in a file that is printed, copied and put under version control; set an environment variable and write `${NAME}` instead"#]]
    .assert_eq(&doubts);
    assert!(!format!("{doubts}{config:?}").contains(SECRET), "{doubts}{config:?}");
    let at_start = config.warnings.lines();
    assert_eq!(at_start.len(), 4, "the log has them at the start");
    assert!(
        at_start[0].starts_with("deferral.yaml:5:12: this URL contains the value of `api_key`"),
        "{at_start:?}"
    );
}

#[test]
fn editors_know_that_a_variable_may_stand_for_a_number() {
    let schema = config::schema();
    let calls = &schema["properties"]["limits"]["properties"]["calls"];
    assert_eq!(calls["anyOf"][0]["type"], "integer", "{calls}");
    assert!(calls["anyOf"][1]["pattern"].as_str().expect("a text").starts_with(r"\$\{"), "{calls}");
    assert_eq!(schema["properties"]["log"]["anyOf"][0]["anyOf"][1], calls["anyOf"][1]);
}

#[test]
fn a_key_is_taken_as_it_is_and_that_is_doubted() {
    let (config, doubts) = checked(
        "routes: [{ upstream: { command: ['true'], env: { 'A${COUNT}': x, B: '$${COUNT} $COUNT $$' } } }]\n",
    )
    .expect("it is right");
    let UpstreamTarget::Command(command) = &config.routes[0].server else { panic!("a command") };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(command.env.0, pairs(&[("A${COUNT}", "x"), ("B", "${COUNT} $COUNT $$")]));
    assert_eq!(
        doubts,
        "deferral.yaml:1:50: warning: variables are expanded in values only, and `A${COUNT}` is a key: it stays as it is written"
    );
}

#[test]
fn a_variable_that_needs_quotes_gets_a_hint() {
    for (text, place) in [
        ("routes: [{ upstream: { url: ${HOST} } }]", "1:30"),
        ("routes:\n  - upstream: { url: http://${HOST}/mcp }", "2:30"),
        ("listen: [\n  127.0.0.1:${PORT} ]", "2:14"),
    ] {
        let said = checked(text).map(drop).expect_err("it is no YAML");
        assert!(said.starts_with(&format!("deferral.yaml:{place}: not valid YAML")), "{said}");
        assert!(said.ends_with("; inside `{ }` and `[ ]` quote a variable, as in `\"${NAME}\"`\n"), "{said}");
    }
    let said = checked("listen: [1, {]").map(drop).expect_err("it is no YAML");
    assert!(!said.contains("quotes"), "{said}");
}

#[test]
fn a_variable_of_a_command_may_be_in_a_file_or_a_variable() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("deferral.yaml");
    for (name, content) in [("key", "from a file\r\n"), ("nul", "a\0b"), ("two", "a\n\n")] {
        fs::write(folder.path().join(name), content).expect("it can be written");
    }
    let checked = |env: &str| {
        let text = format!("routes:\n  - upstream: {{ command: ['true'], env: {env} }}\n");
        config::check_in(&path, &text, &environment()).map(|(config, _)| config).map_err(|problems| {
            problems.to_string().replace(folder.path().to_str().expect("a plain path"), "~")
        })
    };
    let config =
        checked("{ A: { file: key }, B: { env: SECRET }, C: { file: two }, D: plain }").expect("right");
    let UpstreamTarget::Command(command) = &config.routes[0].server else { panic!("a command") };
    let env: Vec<_> = command.env.0.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(env, [("A", "from a file"), ("B", SECRET), ("C", "a\n"), ("D", "plain")]);
    assert!(!format!("{config:?}").contains(SECRET), "{config:?}");
    let shown: Value = config.settings.json()["settings"]["routes"][0]["upstream"]["env"].clone();
    assert_eq!(
        shown,
        json!({ "A": { "file": "key" }, "B": { "env": "SECRET" }, "C": { "file": "two" }, "D": "…" })
    );

    let wrong =
        checked("{ A: { file: none }, B: { env: NO }, C: { file: nul }, D: {}, E: [x] }").expect_err("all");
    expect![[r#"
        ~/deferral.yaml:2:46: the file `~/none` cannot be read: No such file or directory (os error 2)
        ~/deferral.yaml:2:65: the environment variable `NO` is not set
        ~/deferral.yaml:2:81: the file `~/nul` contains a NUL character
        ~/deferral.yaml:2:99: the value has neither `file` nor `env`; add one of them
        ~/deferral.yaml:2:106: `env` must be a single value, not a list"#]]
    .assert_eq(&wrong);
}
