//! The configuration file: values, defaults and problems.

mod keys;
mod listeners;
mod problems;
mod schema;
mod secrets;
mod upstream_http;
mod variables;

use deferral::internals::{
    admin,
    config::{self, Config, LogFormat},
    policy::{Mode, PrincipalSource},
};
use expect_test::{Expect, expect};
use std::{path::Path, time::Duration};

fn parse(text: &str) -> Config {
    config::parse(Path::new("deferral.yaml"), text).unwrap_or_else(|problems| panic!("{problems}"))
}

fn refused(text: &str, expected: Expect) {
    let problems = config::parse(Path::new("deferral.yaml"), text).expect_err("there are problems");
    expected.assert_eq(&format!("{problems}\n"));
}

#[test]
fn omitted_keys_have_their_documented_defaults() {
    let config = parse("routes: [{ upstream: { url: 'http://127.0.0.1:9000/mcp' } }]");
    assert_eq!(config.front.listen, ["127.0.0.1:8808".parse().unwrap()]);
    assert_eq!(config.admin, Some(admin::Config::at_address("127.0.0.1:8809".parse().unwrap())));
    assert_eq!((config.drain.notice, config.drain.limit), (Duration::ZERO, Duration::from_secs(30)));
    assert_eq!(config.log.format, LogFormat::Text);
    assert!(config.front.tls.is_none());
    let [route] = &config.routes[..] else { panic!("one route") };
    assert_eq!(&*route.route.path, "/mcp");
    assert_eq!(route.route.defer.mode, Mode::Auto);
    assert_eq!(route.route.defer.after, Duration::from_secs(5));
    assert_eq!(route.route.principal, PrincipalSource::Authorization);
    assert_eq!(route.upstream.limits.sessions, 64);
}

#[test]
fn every_key_reaches_its_setting() {
    let config = parse(
        r#"
listen: ["127.0.0.1:1", "[::1]:2"]
tls: { cert: a.pem, key: /etc/b.pem }
admin: off
store: { disk: data, key: data.secret, max_bytes: 2GiB }
drain: { notice: 3s, limit: 5s }
log: json
telemetry: { otlp: { endpoint: "https://collector.example.com/otlp", protocol: http, headers: { x-key: { file: tests/it/config.key } }, sample: 12.5%, timeout: 3s } }
request_state: { keys: [{ file: tests/it/config.key }] }
public_url: https://mcp.example.com
access:
  hosts: [mcp.example.com]
  origins: ["https://app.example.com"]
  tokens: [{ name: alice, file: tests/it/config.key }]
limits:
  body_bytes: 1MiB
  body_memory: 9MiB
  header_bytes: 16384
  headers: 64
  connections: 1
  upstream_connections: 13
  calls: 2
  depth: 17
  streams: 11
  sessions: 3
  result_bytes: 2KiB
  identities: 7
  task_sessions: 13
  queue: 14
  messages: 15
  identity_bytes: 8KiB
  departed: 12
  client_sessions: 16
  tasks: 4
  tasks_per_principal: 5
  stored_bytes: 6
  stored_bytes_per_principal: 3
  stored_result_bytes: 7
  polls_per_second: 8
  misses_per_minute: 9
  listens_per_principal: 10
  poll_interval_min: 1ms
  poll_interval_max: 2ms
timeouts: { connect: 1s, first_byte: 2s, idle: 3s, call: 4s, queue: 10s, idle_session: 11m, read_headers: 5s, read_body: 6s, idle_connection: 8s, write: 9s, keep_alive: 7s }
routes:
  - path: /a
    upstream: { url: "http://127.0.0.1:9000/mcp" }
    defer: { mode: observe, after: 0, retention: 1m }
    tools:
      - { match: x, mode: always, after: 1s, keys: [a, b], requires: { sampling: {}, elicitation: { url: {} } } }
      - { match: "*" }
    principal: { header: X-User }
    forward: [X-Tenant]
    questions: { settle: 1ms, park: 2s, turn: 3s }
    empty_contents_is_error: true
    tasks:
      max_ttl: 90m
      tool_errors: completed
      immediate_response: "started: go on"
      across_eras: true
      unsolicited: [{ header: X-Takes-Tasks, value: 1 }, { principal: 0F3C000000000016 }]
    held: { progress: 3s, comments: 4s, deadline: 3600ms, ticket: 45ms }
    tickets: { for: [{ client: "codex*", after: 4s, wait: 5s }, { header: X-Agent, value: "1" }, { principal: 0123456789abcdef }], wait: 6s, text: "{result} {ticket}" }
    resume: { mint: true, keep: 1m, wait: 2m, bytes: 2KiB, streams: 7 }
  - path: /b
    held: { progress: off, deadline: off }
    upstream: { url: "https://example.com/mcp" }
  - path: /c
    upstream:
      command: [python, -m, server]
      env: { A: 1, B: x y }
      inherit_env: [TOKEN]
      cwd: servers
      start: eager
      start_timeout: 5m
      instances: 2
      shared: true
  - path: /d
    upstream: { command: [server], inherit_env: all, instances: { per: caller }, shared: true }
"#,
    );
    expect_test::expect_file!["../golden/config-full.txt"].assert_eq(&format!("{config:#?}\n"));
}

#[test]
fn the_folder_of_a_store_is_relative_to_the_file() {
    let store = |store: &str| {
        let text = format!("store: {store}\nroutes: [{{ upstream: {{ url: 'http://a' }} }}]\n");
        let config = config::parse(Path::new("etc/deferral.yaml"), &text).expect("it is right");
        format!("{:?}", config.store)
    };
    assert_eq!(store("memory"), "Memory");
    assert_eq!(
        store("{ disk: data, key: k }"),
        r#"Disk { path: "etc/data", key: Some(File("etc/k")), max_bytes: None }"#
    );
    assert_eq!(store("disk:/data"), r#"Disk { path: "/data", key: None, max_bytes: None }"#);
    assert_eq!(store("'disk:./data'"), r#"Disk { path: "etc/./data", key: None, max_bytes: None }"#);
}

#[test]
fn a_drain_that_is_a_mapping_is_read_key_by_key() {
    let route = "routes: [{ upstream: { url: 'http://x' } }]";
    let said = |drain: &str| {
        let drain = parse(&format!("drain: {drain}\n{route}")).drain;
        (drain.notice, drain.limit)
    };
    let (none, ten, thirty) = (Duration::ZERO, Duration::from_secs(10), Duration::from_secs(30));
    assert_eq!(said("10s"), (none, ten));
    assert_eq!(said("{ notice: 10s }"), (ten, thirty));
    assert_eq!(said("{ limit: 10s }"), (none, ten));
    refused(
        &format!("drain: {{ notice: 5, limit: soon, notise: 1s }}\n{route}"),
        expect![[r#"
            deferral.yaml:1:18: `5` has no unit; did you mean `5s` or `5ms`?
            deferral.yaml:1:28: `soon` is not a duration; write a number and ms, s, m, h or d, as in `250ms` or `5s`
            deferral.yaml:1:34: unknown key `notise` in `drain`; did you mean `drain.notice`?
        "#]],
    );
    refused(
        &format!("drain: [5s]\n{route}"),
        expect![[r#"
        deferral.yaml:1:8: `drain` must be a single value, not a list
    "#]],
    );
}

#[test]
fn aliases_may_repeat_what_was_written_once() {
    let config = parse(
        r#"
routes:
  - { path: /a, upstream: { url: "http://a/" }, defer: &slow { mode: always, after: 1s } }
  - { path: /b, upstream: { url: "http://b/" }, defer: *slow }
"#,
    );
    assert_eq!(config.routes[0].route.defer, config.routes[1].route.defer);
}

/// Every key of the schema, as `routes[].defer.after`.
fn keys(schema: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        keys(schema, &path, found);
        found.push(path);
    }
    for choice in schema["anyOf"].as_array().into_iter().flatten() {
        keys(choice, path, found);
    }
    if let Some(items) = schema.get("items") {
        keys(items, &format!("{path}[]"), found);
    }
}

const TOKEN: &str = "correct-horse-battery-staple";
