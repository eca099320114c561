//! The configuration file: what it means, and what is said of one that is wrong.

mod keys;
mod listeners;
mod upstream_http;
mod variables;

use deferral::internals::{
    admin,
    config::{self, Config, LogFormat},
    policy::{self, Mode, PrincipalSource},
    task::retention,
};
use expect_test::{Expect, expect};
use http::{HeaderMap, header::AUTHORIZATION};
use std::{path::Path, time::Duration};

fn parse(text: &str) -> Config {
    config::parse(Path::new("deferral.yaml"), text).unwrap_or_else(|problems| panic!("{problems}"))
}

fn refused(text: &str, expected: Expect) {
    let problems = config::parse(Path::new("deferral.yaml"), text).expect_err("there are problems");
    expected.assert_eq(&format!("{problems}\n"));
}

#[test]
fn what_is_left_out_has_the_documented_default() {
    let config = parse("routes: [{ upstream: { url: 'http://127.0.0.1:9000/mcp' } }]");
    assert_eq!(config.front.listen, ["127.0.0.1:8808".parse().unwrap()]);
    assert_eq!(config.admin, Some(admin::Config::on("127.0.0.1:8809".parse().unwrap())));
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
fn everything_that_can_be_said_arrives_where_it_belongs() {
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
    questions: { settle: 1ms, park: 2s }
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
fn one_run_reports_everything_that_is_wrong() {
    refused(
        r#"lisen: 127.0.0.1:8808
admin: localhost:8809
store: { disc: ./data, max_bytes: 1KiB }
drain: 30
log: xml
public_url: https://mcp.example.com/base
access: { hosts: ["https://mcp.example.com"], origin: [] }
limits:
  sessions: 0
  body_bytes: 4 megabytes
  retention: 1h
  tasks: -1
timeouts:
  call: 0s
  connect:
routes:
  - path: mcp
    upstream: { url: "127.0.0.1:9000/mcp" }
  - path: /a
    upstream: { url: "http://127.0.0.1:9000/mcp", command: [python, server.py] }
    after: 5s
    defer: { mode: sometimes, after: 5, retention: [1h] }
  - path: /a
    upstream: { command: [python, server.py] }
  - path: /b
    tools:
      - { match: "train_*", mode: always }
      - { match: "train_*", mode: never }
      - { match: train_big, keys: [a, a] }
      - { mode: auto }
      - { match: x, requires: [sampling] }
      - { match: y, requires: { sampling: true } }
    principal: { heder: X-User }
    forward: [Authorization, X-Tenant, x-tenant, Mcp-Name]
  - path: /c
    path: /d
    upstream: {}
    questions: 5s
  - path: /e
    upstream: { url: "http://127.0.0.1:9000/mcp" }
    tasks:
      max_ttl: 0
      tool_errors: passed
      immediate_response: ""
      across_eras: maybe
      unsolicitd: never
    held: { progress: 0s, comments: off, deadline: soon, keep_alive: 5s }
  - path: /f
    upstream: { url: "http://127.0.0.1:9000/mcp" }
    tasks:
      unsolicited:
        - { header: Authorization, value: Bearer x }
        - { header: X-A, value: " " }
        - { header: X-A }
        - { value: a }
        - { principal: 0f3c }
        - { principal: anonymous }
        - { header: X-A, value: a, principal: 0f3c000000000016 }
        - {}
        - 0f3c000000000016
  - path: /g
    upstream: { url: "http://127.0.0.1:9000/mcp" }
    tasks: { unsolicited: sometimes }
  - path: /h
    upstream: { url: "http://127.0.0.1:9000/mcp" }
    tasks: { unsolicited: { header: X-A, value: a } }
"#,
        expect![[r#"
            deferral.yaml:1:1: unknown key `lisen` at the top level; did you mean `listen`?
            deferral.yaml:2:8: `localhost:8809` is not an address; did you mean `127.0.0.1:8809`?
            deferral.yaml:3:8: `store` names no folder; add `disk`, as in `{ disk: ./data }`
            deferral.yaml:3:10: unknown key `disc` in `store`; did you mean `store.disk`?
            deferral.yaml:3:35: `max_bytes` must be at least 16MiB
            deferral.yaml:4:8: `30` has no unit; did you mean `30s` or `30ms`?
            deferral.yaml:5:6: unknown log format `xml`; use text or json
            deferral.yaml:6:13: `https://mcp.example.com/base` has a path; write scheme and host only, as in `https://mcp.example.com`
            deferral.yaml:7:19: `https://mcp.example.com` is not a host; write a host name only, as in `mcp.example.com`, or `*` for any
            deferral.yaml:7:47: unknown key `origin` in `access`; did you mean `access.origins`?
            deferral.yaml:9:13: `sessions` must be at least 1
            deferral.yaml:10:15: `4 megabytes` is not a size; write bytes, or a number and KiB, MiB or GiB, as in `4MiB`
            deferral.yaml:11:3: unknown key `retention` in `limits`; it belongs at `routes[].defer.retention`
            deferral.yaml:12:10: `-1` is not a count; write a whole number
            deferral.yaml:14:9: `call` must be more than 0; leave it out for the default
            deferral.yaml:15:3: `connect` has no value; give it one or remove the line
            deferral.yaml:17:11: a path begins with `/`; did you mean `/mcp`?
            deferral.yaml:18:22: `127.0.0.1:9000/mcp` is not a URL that the proxy can call; it has no scheme, did you mean `http://127.0.0.1:9000/mcp`?
            deferral.yaml:20:60: `upstream` has both `url` and `command`; remove one of the two
            deferral.yaml:21:5: unknown key `after` in a route; it belongs at `routes[].defer.after` or `routes[].tools[].after`
            deferral.yaml:22:20: unknown mode `sometimes`; use auto, never, always, required, observe or, for a tool, deny
            deferral.yaml:22:38: `5` has no unit; did you mean `5s` or `5ms`?
            deferral.yaml:22:52: `retention` must be a single value, not a list
            deferral.yaml:23:11: the path `/a` is already a route (line 19); choose another
            deferral.yaml:25:5: the route has no `upstream`; add `upstream: { url: "http://…" }`
            deferral.yaml:28:18: there is a rule for `train_*` already (line 27), and the first match wins; remove one of the two
            deferral.yaml:29:18: this rule never applies, because `train_*` (line 27) matches all of `train_big`; put this one first
            deferral.yaml:29:39: the key `a` is listed twice; each input request needs its own
            deferral.yaml:30:9: the rule has no `match`; add the name of a tool, or `*` for all
            deferral.yaml:31:31: `requires` must be a mapping of capabilities, as in `{ sampling: {} }`, not a list
            deferral.yaml:32:43: a capability must be a mapping; write `sampling: {}`
            deferral.yaml:33:16: `principal` names no header; add one, as in `{ header: X-User }`
            deferral.yaml:33:18: unknown key `heder` in `principal`; did you mean `routes[].principal.header`?
            deferral.yaml:34:15: `Authorization` selects the session in any case; remove it
            deferral.yaml:34:50: `Mcp-Name` belongs to the protocol, and the proxy sets it itself; remove it
            deferral.yaml:36:5: `path` is already set on line 35; remove one of the two
            deferral.yaml:37:15: `upstream` names no server; add a `url` or a `command`
            deferral.yaml:38:16: `questions` must be a mapping (`key: value`), not a string
            deferral.yaml:42:16: `max_ttl` must be more than 0; leave it out for the default
            deferral.yaml:43:20: unknown value `passed` of `tool_errors`; use failed or completed
            deferral.yaml:44:27: `immediate_response` must not be empty
            deferral.yaml:45:20: `across_eras` must be true or false, not `maybe`
            deferral.yaml:46:7: unknown key `unsolicitd` in `tasks`; did you mean `routes[].tasks.unsolicited`?
            deferral.yaml:47:23: `progress` must be more than 0; `off` is for never
            deferral.yaml:47:37: `off` is not a duration; write a number and ms, s, m, h or d, as in `250ms` or `5s`
            deferral.yaml:47:52: `soon` is not a duration; write a number and ms, s, m, h or d, as in `250ms` or `5s`
            deferral.yaml:47:58: unknown key `keep_alive` in `held`; it belongs at `timeouts.keep_alive`
            deferral.yaml:52:21: `Authorization` carries a secret, which must not be written here; use `principal`, as the access log shows it
            deferral.yaml:53:33: `value` must be a valid header value: visible ASCII, without spaces around it
            deferral.yaml:54:11: the client match has no `value` for its `header`; add one
            deferral.yaml:55:11: the client match has no `header` for its `value`; add one
            deferral.yaml:56:24: `0f3c` is not a principal; write the 16 hex digits that the access log shows, in quotes
            deferral.yaml:57:24: `anonymous` means all clients without credentials; use `unsolicited: always` for them
            deferral.yaml:58:11: the client match has both a header and `principal`; write two entries, either is enough
            deferral.yaml:59:11: the client match has neither `header` with `value` nor `principal`; add one of them
            deferral.yaml:60:11: a client match must be a mapping (`key: value`), not a string
            deferral.yaml:63:27: unknown value `sometimes` of `unsolicited`; use never, always or a list, as in `[{ principal: 0f3c… }]`
            deferral.yaml:66:27: `unsolicited` must be never, always or a list, as in `[{ header: X-Takes-Tasks, value: "1" }]`
        "#]],
    );
}

#[test]
fn what_is_not_yaml_or_holds_nothing_is_one_problem() {
    refused(
        "",
        expect![[r#"
        deferral.yaml:1:1: the file is empty; it needs at least one route
    "#]],
    );
    refused(
        "# only a comment\n",
        expect![[r#"
        deferral.yaml:1:1: the file is empty; it needs at least one route
    "#]],
    );
    refused(
        "routes: [",
        expect![[r#"
        deferral.yaml:2:1: not valid YAML: while parsing a node, did not find expected node content
    "#]],
    );
    refused(
        "routes:\n\t- x",
        expect![[r#"
        deferral.yaml:2:2: not valid YAML: tabs disallowed within this context (block indentation)
    "#]],
    );
    refused(
        "just text",
        expect![[r#"
            deferral.yaml:1:1: the file must be a mapping (`key: value`), not a string
        "#]],
    );
    refused(
        "listen: 127.0.0.1:1",
        expect![[r#"
        deferral.yaml: no route; add one, as in `routes: [{ upstream: { url: "http://…" } }]`
    "#]],
    );
    refused(
        "routes: []",
        expect![[r#"
        deferral.yaml:1:9: no route; add one, as in `routes: [{ upstream: { url: "http://…" } }]`
    "#]],
    );
    refused(
        "routes: { upstream: {} }",
        expect![[r#"
        deferral.yaml:1:9: `routes` must be a list (`- …` or `[…]`), not a mapping
    "#]],
    );
}

#[test]
fn a_capability_that_is_a_slip_of_the_finger_is_a_problem() {
    refused(
        r#"
routes:
  - upstream: { url: "http://x" }
    tools:
      - { match: a, requires: { samplin: {}, roots: {} } }
      - { match: b, requires: { elicitation: { from: {} }, Sampling: {} } }
"#,
        expect![[r#"
            deferral.yaml:5:33: unknown capability `samplin`, which no client declares; did you mean `sampling`?
            deferral.yaml:6:48: unknown capability `from`, which no client declares; did you mean `form`?
            deferral.yaml:6:60: unknown capability `Sampling`, which no client declares; did you mean `sampling`?
        "#]],
    );
    // What the specification leaves open stays open.
    let open = "{ elicitation: { url: {} }, sampling: { tools: {} }, extensions: { io.acme/rots: {} }, acme/vault: {} }";
    let route = format!("{{ upstream: {{ url: 'http://x' }}, tools: [{{ match: a, requires: {open} }}] }}");
    let config = parse(&format!("routes: [{route}]"));
    assert!(config.routes[0].route.treatment("a").requires.is_some_and(|all| all["acme/vault"].is_object()));
}

#[test]
fn what_goes_with_a_command_is_refused_beside_a_url_and_where_it_says_nothing() {
    refused(
        r#"
routes:
  - path: /a
    upstream: { url: "http://a/", env: { A: b }, cwd: x, shared: true, instances: 2 }
  - path: /b
    upstream: { command: [] }
  - path: /c
    upstream: { command: server, env: [A], inherit_env: some, start: soon, start_timeout: 0, instances: 0 }
  - path: /d
    upstream: { command: [server, ""], env: { "": x, A=B: y, C: [z] }, inherit_env: ["A=B"], instances: {} }
  - path: /e
    upstream: { command: [server], instances: { per: user }, args: [x] }
"#,
        expect![[r#"
            deferral.yaml:4:40: `env` is for stdio servers (`command`), and this one has a `url`; remove it
            deferral.yaml:4:55: `cwd` is for stdio servers (`command`), and this one has a `url`; remove it
            deferral.yaml:4:66: `shared` is for servers that cannot tell clients apart: stdio servers, and those that get their `Authorization` from `headers`; remove it
            deferral.yaml:4:83: `instances` is for stdio servers (`command`), and this one has a `url`; remove it
            deferral.yaml:6:26: `command` is empty; name the program first
            deferral.yaml:8:26: `command` must be a list (`- …` or `[…]`), not a string
            deferral.yaml:8:39: `env` must be a mapping (`NAME: value`), not a list
            deferral.yaml:8:57: unknown value `some` of `inherit_env`; use all, safe or a list of names
            deferral.yaml:8:70: unknown value `soon` of `start`; use lazy or eager
            deferral.yaml:8:91: `start_timeout` must be more than 0; leave it out for the default
            deferral.yaml:8:105: `instances` must be at least 1
            deferral.yaml:10:47: `env` must be the name of an environment variable, which has no `=`
            deferral.yaml:10:54: `env` must be the name of an environment variable, which has no `=`
            deferral.yaml:10:65: `env` must be a single value, not a list
            deferral.yaml:10:86: `inherit_env` must be the name of an environment variable, which has no `=`
            deferral.yaml:10:105: `instances` is empty; write a number, or `{ per: caller }`
            deferral.yaml:12:54: `per` must be `caller`, not `user`
            deferral.yaml:12:62: unknown key `args` in `upstream`; use `routes[].upstream.command`: one list of the program and its arguments
        "#]],
    );
}

#[test]
fn a_command_that_clients_from_elsewhere_could_use_needs_a_word_that_they_may() {
    let refused = |exposed: &str, shared: &str| {
        let text = format!("{exposed}routes: [{{ upstream: {{ command: [server]{shared} }} }}]");
        config::parse(Path::new("deferral.yaml"), &text).err().map(|problems| problems.to_string())
    };
    for exposed in
        ["listen: 0.0.0.0:80\n", "listen: ['127.0.0.1:1', '[::]:80']\n", "public_url: https://example.com\n"]
    {
        let said = refused(exposed, "").expect("it is refused");
        assert!(said.contains(":2:33: clients on other machines can connect"), "{said}");
        assert!(said.contains("`shared: true`"), "{said}");
        assert_eq!(refused(exposed, ", shared: true"), None);
        assert!(refused(exposed, ", shared: false").is_some());
    }
    assert_eq!(refused("listen: '[::1]:80'\n", ""), None);
    // Or else each of them is known.
    let known = "listen: 0.0.0.0:80\naccess: { tokens: [{ name: alice, file: tests/it/config.key }] }\n";
    assert_eq!(refused(known, ""), None);
    let said = refused("listen: 0.0.0.0:80\n", "").expect("it is refused");
    assert!(said.contains("require tokens (`access.tokens`)"), "{said}");
}

#[test]
fn operators_from_elsewhere_need_tls_and_a_token() {
    const ROUTES: &str = "routes: [{ upstream: { url: 'http://x' } }]\n";
    const TOKEN: &str = "token: { file: tests/it/config.key }";
    const TLS: &str = "tls: { cert: a.pem, key: a.key }";
    let said = |admin: &str| {
        let text = format!("admin: {admin}\n{ROUTES}");
        config::parse(Path::new("deferral.yaml"), &text).err().map(|problems| problems.to_string())
    };
    for (admin, place, missing) in [
        ("0.0.0.0:8809".to_owned(), "1:8", "requires `tls` and a `token`:"),
        ("'[::]:8809'".to_owned(), "1:8", "requires `tls` and a `token`:"),
        ("{ listen: 10.0.0.7:8809 }".to_owned(), "1:18", "requires `tls` and a `token`:"),
        (format!("{{ listen: 10.0.0.7:8809, {TOKEN} }}"), "1:18", "requires `tls`:"),
        (format!("{{ listen: 10.0.0.7:8809, {TLS} }}"), "1:18", "requires a `token`:"),
    ] {
        let said = said(&admin).expect("it is refused");
        assert!(said.starts_with(&format!("deferral.yaml:{place}: `admin` at ")), "{said}");
        assert!(said.contains(missing) && said.contains("or listen on loopback"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for right in [
        "'[::1]:8809'".to_owned(),
        "'[::ffff:127.0.0.1]:8809'".to_owned(),
        "{}".to_owned(),
        format!("{{ {TOKEN} }}"),
        format!("{{ listen: '[::]:8809', {TOKEN}, {TLS} }}"),
    ] {
        assert_eq!(said(&right), None, "{right}");
    }
    refused(
        "admin: { token: secret, tls: { cert: a.pem }, port: 1 }\nroutes: [{ upstream: { url: 'http://x' } }]\n",
        expect![[r#"
            deferral.yaml:1:17: a token must not be written in this file; name its source: `{ file: PATH }` or `{ env: NAME }`
            deferral.yaml:1:30: `tls` has no `key`; name a PEM file
            deferral.yaml:1:47: unknown key `port` in `admin`; use `admin.listen`, as in `127.0.0.1:8808`
        "#]],
    );
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

/// Each of these would otherwise mean a default that nobody asked for.
#[test]
fn a_choice_that_chooses_nothing_is_a_problem() {
    refused(
        r#"
store: {}
tls: {}
request_state: { keys: [{}] }
routes: [{ upstream: {}, principal: {}, tools: [{}] }]
"#,
        expect![[r#"
            deferral.yaml:2:8: `store` names no folder; add `disk`, as in `{ disk: ./data }`
            deferral.yaml:3:6: `tls` has no `cert`; name a PEM file
            deferral.yaml:3:6: `tls` has no `key`; name a PEM file
            deferral.yaml:4:25: the key has neither `file` nor `env`; add one of them
            deferral.yaml:5:22: `upstream` names no server; add a `url` or a `command`
            deferral.yaml:5:37: `principal` names no header; add one, as in `{ header: X-User }`
            deferral.yaml:5:49: the rule has no `match`; add the name of a tool, or `*` for all
        "#]],
    );
}

#[test]
fn what_only_shows_when_parts_are_seen_together_is_seen() {
    refused(
        r#"
listen: [127.0.0.1:8809, 127.0.0.1:8809]
tls: { cert: a.pem }
limits: { poll_interval_min: 1m }
routes:
  - upstream: { url: "http://127.0.0.1/" }
  - upstream: { url: "http://127.0.0.1/" }
  - path: /a
    upstream: { url: "http://127.0.0.1/" }
    held: { deadline: 24h }
    defer: { mode: observe, after: 2d }
    tasks:
      unsolicited:
        - { header: X-A, value: a }
        - { header: x-a, value: a }
  - path: /b
    upstream: { url: "http://127.0.0.1/" }
    tasks: { unsolicited: [] }
    held: { deadline: 5s }
  - path: /c
    upstream: { url: "http://127.0.0.1/" }
    held: { deadline: 5s }
    defer: { mode: never }
    tools: [{ match: x, mode: required, after: 1m }, { match: y, mode: always, after: 2m }]
"#,
        expect![[r#"
            deferral.yaml:2:10: `admin` and `listen` are both 127.0.0.1:8809; choose another port for one of them, or set `admin: off`
            deferral.yaml:2:26: `127.0.0.1:8809` is listed twice; remove one of the two
            deferral.yaml:3:6: `tls` has no `key`; name a PEM file
            deferral.yaml:4:30: `poll_interval_min` (60s) is more than `poll_interval_max` (30s); lower it
            deferral.yaml:7:5: the path `/mcp` is already a route (line 6); choose another
            deferral.yaml:10:23: `deadline` (1d) is never reached, because `timeouts.call` (1d) ends every call earlier; raise `timeouts.call`, or lower `deadline`
            deferral.yaml:15:11: this client match is listed already (line 14); remove one of the two
            deferral.yaml:18:27: `unsolicited` is empty; add a client match, or write `never`
            deferral.yaml:19:23: `deadline` (5s) ends calls before they can become tasks (`after` is 5s); raise `deadline`, or lower `after`
            deferral.yaml:22:23: `deadline` (5s) ends calls before they can become tasks (`after` is 1m); raise `deadline`, or lower `after`
        "#]],
    );
    // Port 0 is another port each time.
    parse(
        "listen: ['127.0.0.1:0', '127.0.0.1:0']\nadmin: 127.0.0.1:0\nroutes: [{ upstream: { url: 'http://x' } }]",
    );
}

#[test]
fn tickets_that_nobody_could_get_or_use_are_a_problem() {
    refused(
        r#"
timeouts: { call: 1m }
routes:
  - path: /never
    upstream: { url: "http://127.0.0.1/" }
    tickets: { wait: 5s }
  - path: /off
    upstream: { url: "http://127.0.0.1/" }
    held: { ticket: off }
    tools: [{ match: t, ticket: off }]
    tickets: { for: [{ client: c }] }
  - path: /words
    upstream: { url: "http://127.0.0.1/" }
    held: { ticket: 5s }
    tickets: { text: "{tool} runs: {result} {ticket} {eta}" }
  - path: /half
    upstream: { url: "http://127.0.0.1/" }
    held: { ticket: 5s }
    tickets: { text: "call {result}" }
  - path: /nobody
    upstream: { url: "http://127.0.0.1/" }
    held: { ticket: 5s }
    tickets: { for: [], wait: 0s }
  - path: /at_once
    upstream: { url: "http://127.0.0.1/" }
    held: { ticket: 0s }
  - path: /unsigned
    upstream: { url: "http://127.0.0.1/" }
    tickets: { for: [{ after: 5s }, { client: c, principal: 0123456789abcdef }, { header: X-A }, c] }
  - path: /late
    upstream: { url: "http://127.0.0.1/" }
    held: { ticket: 30s, deadline: 30s }
  - path: /later
    upstream: { url: "http://127.0.0.1/" }
    held: { ticket: 1m }
  - path: /tool
    upstream: { url: "http://127.0.0.1/" }
    held: { deadline: 30s }
    tools: [{ match: a, ticket: 29s }, { match: b, ticket: 30s }, { match: c, ticket: off }]
"#,
        expect![[r#"
            deferral.yaml:6:14: `tickets` has no effect without a time; set `held: { ticket: 45s }`, the `ticket` of a tool, or an `after`
            deferral.yaml:11:14: `tickets` has no effect without a time; set `held: { ticket: 45s }`, the `ticket` of a tool, or an `after`
            deferral.yaml:15:22: unknown placeholder `{eta}`; there are {tool}, {elapsed}, {progress}, {ticket}, {result}, {cancel}, {wait}
            deferral.yaml:19:22: `text` must contain `{ticket}`, without which the model cannot fetch the result
            deferral.yaml:23:21: `for` is empty; add a client, or remove the key for all clients without task support
            deferral.yaml:23:31: `wait` must be more than 0; leave it out for the default
            deferral.yaml:26:21: `ticket` must be more than 0; `off` is for never
            deferral.yaml:29:22: the client match has neither `client`, nor `header` with `value`, nor `principal`; add one of them
            deferral.yaml:29:37: the client match has both `client` and another; write two entries, either is enough
            deferral.yaml:29:81: the client match has no `value` for its `header`; add one
            deferral.yaml:29:98: a ticket client must be a mapping (`key: value`), not a string
            deferral.yaml:32:21: `ticket` (30s) is never given, because `deadline` (30s) ends every call earlier; raise `deadline`, or lower `ticket`
            deferral.yaml:35:21: `ticket` (1m) is never given, because `timeouts.call` (1m) ends every call earlier; raise `timeouts.call`, or lower `ticket`
            deferral.yaml:39:49: `ticket` (30s) is never given, because `deadline` (30s) ends every call earlier; raise `deadline`, or lower `ticket`
        "#]],
    );
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

#[cfg(feature = "otlp")]
#[test]
fn what_is_wrong_with_traces_is_named_by_its_place_and_no_key_is_shown() {
    for (otlp, wrong) in [
        ("collector:4318", "did you mean `http://collector:4318`?"),
        ("{ sample: 10% }", "`otlp` names no collector; add `endpoint`"),
        (
            "{ endpoint: \"http://c\", sample: 0.1 }",
            "`0.1` is not a share; write it from `0%` to `100%`, as in `10%`",
        ),
        ("{ endpoint: \"http://c\", sample: 101% }", "`101%` is not a share"),
        ("{ endpoint: \"http://c\", protocol: json }", "unknown protocol `json`; use http or grpc"),
        ("{ endpoint: \"http://c\", timeout: 0 }", "`timeout` must be more than 0"),
        (
            "{ endpoint: \"http://c\", headers: { api-key: k-0000 } }",
            "must not be written in this file; name its source",
        ),
        ("{ endpoint: \"http://c\", headers: { host: { env: A } } }", "`host` belongs to the connection"),
        (
            "{ endpoint: \"http://c\", headers: { k: { file: tests/it/gone } } }",
            "`tests/it/gone` cannot be read",
        ),
        ("{ endpiont: \"http://c\" }", "did you mean `telemetry.otlp.endpoint`?"),
    ] {
        let text =
            format!("telemetry: {{ otlp: {otlp} }}\nroutes: [{{ upstream: {{ url: \"http://s\" }} }}]\n");
        let said = config::parse(Path::new("x.yaml"), &text).expect_err(otlp).to_string();
        assert!(said.contains("x.yaml:1:") && said.contains(wrong), "{otlp}: {said}");
        assert!(!said.contains("k-0000"), "{said}");
    }
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

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let problems = config::load(Path::new("no/such.yaml")).unwrap_err();
    assert!(problems.to_string().starts_with("no/such.yaml: cannot be read: "), "{problems}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latin.yaml");
    std::fs::write(&path, b"routes: []\n# caf\xe9\n").unwrap();
    let problems = config::load(&path).unwrap_err();
    assert!(problems.to_string().ends_with("is not UTF-8 (line 2)"), "{problems}");
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

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

#[test]
fn keys_are_read_from_where_they_are_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("new.key"), format!("{KEY}\n")).unwrap();
    std::fs::write(folder.path().join("old.key"), "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=").unwrap();
    let text = "
request_state: { keys: [{ file: new.key }, { file: ./old.key }] }
routes: [{ upstream: { url: 'http://x' } }]
";
    let path = folder.path().join("deferral.yaml");
    let config = config::parse(&path, text).unwrap_or_else(|problems| panic!("{problems}"));
    let keys: Vec<_> = config.state_keys.iter().map(|key| *key.expose()).collect();
    assert_eq!(keys[1], [b'A'; 32]);
    assert_eq!((keys[0][1], keys[0][31], keys.len()), (1, 31, 2));
    assert!(format!("{config:?}").contains("state_keys: [Secret(..), Secret(..)]"));
    assert!(parse("routes: [{ upstream: { url: 'http://x' } }]").state_keys.is_empty());
}

#[test]
fn a_key_that_cannot_be_used_is_named_by_its_place_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("short.key"), &KEY[..60]).unwrap();
    std::fs::write(folder.path().join("good.key"), KEY).unwrap();
    let said = |keys: &str| {
        let text = format!("routes: [{{ upstream: {{ url: 'http://x' }} }}]\nrequest_state: {keys}\n");
        let path = folder.path().join("deferral.yaml");
        let problems = config::parse(&path, &text).expect_err(keys).to_string();
        problems.replace(&*folder.path().to_string_lossy(), "~")
    };
    expect![[r#"
        ~/deferral.yaml:2:25: the file `~/no.key` cannot be read: No such file or directory (os error 2)
        ~/deferral.yaml:2:43: the environment variable `DEFERRAL_TEST_UNSET` is not set
        ~/deferral.yaml:2:73: the file `~/short.key` has 60 hex digits; a key is 32 bytes as 64 hex digits or base64, generated for example by `openssl rand -hex 32`
        ~/deferral.yaml:2:94: the environment variable `PATH` is neither hex digits nor base64; a key is 32 bytes as 64 hex digits or base64, generated for example by `openssl rand -hex 32`
    "#]]
    .assert_eq(&format!(
        "{}\n",
        said("{ keys: [{ file: no.key }, { env: DEFERRAL_TEST_UNSET }, { file: short.key }, { env: PATH }] }")
    ));
    for (keys, part) in [
        ("{ keys: [{ file: good.key }, { file: ./good.key }] }", "2:45: this key is listed already (line 2)"),
        ("{ keys: [] }", "2:24: `keys` is empty"),
        ("{}", "2:16: `request_state` has no `keys`"),
        ("{ keys: [{}] }", "2:25: the key has neither `file` nor `env`"),
        ("{ keys: [{ file: good.key, env: X }] }", "2:25: the key has both `file` and `env`"),
        ("{ keys: [{ env: 'A=B' }] }", "2:32: `env` must be the name of an environment variable"),
        (&format!("{{ keys: [{KEY}] }}"), "2:25: a key must not be written in this file; name its source"),
        (
            &format!("{{ keys: [{{ env: {KEY} }}] }}"),
            "2:32: `env` must name a variable that holds the key, not",
        ),
        (
            &format!("{{ keys: [{{ file: {KEY} }}] }}"),
            "2:33: `file` must name a file that holds the key, not",
        ),
    ] {
        let said = said(keys);
        assert!(said.contains(part), "{keys}: {said}");
    }
    for keys in [format!("[{KEY}]"), format!("[{{ env: {KEY} }}]"), format!("[{{ file: {KEY} }}]")] {
        assert!(!said(&format!("{{ keys: {keys} }}")).contains(KEY), "{keys}");
    }
    assert!(!said("{ keys: [{ env: PATH }] }").contains(&std::env::var("PATH").unwrap()));
}

const TOKEN: &str = "correct-horse-battery-staple";

/// What is said of a file with these tokens of clients.
fn said_of_tokens(folder: &Path, tokens: &str) -> Result<Config, String> {
    let text = format!("routes: [{{ upstream: {{ url: 'http://x' }} }}]\naccess: {{ tokens: {tokens} }}\n");
    config::parse(&folder.join("deferral.yaml"), &text)
        .map_err(|problems| problems.to_string().replace(&*folder.to_string_lossy(), "~"))
}

#[test]
fn tokens_are_read_from_where_they_are_and_somebody_may_have_several() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("old"), format!("{TOKEN}\n")).unwrap();
    std::fs::write(folder.path().join("new"), KEY).unwrap();
    let config = said_of_tokens(folder.path(), "[{ name: alice, file: old }, { name: alice, file: ./new }]");
    let config = config.unwrap_or_else(|problems| panic!("{problems}"));
    let known = |token: &str| {
        let authorization = format!("Bearer {token}").try_into().expect("a header value");
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, authorization)]);
        config.front.tokens.take(&mut headers).ok().map(|token| token.name().to_owned())
    };
    assert_eq!((known(TOKEN).as_deref(), known(KEY).as_deref()), (Some("alice"), Some("alice")));
    assert_eq!(known(&format!("{TOKEN}\n").trim_end()[1..]), None);
    let shown = format!("{config:?}");
    assert!(shown.contains("alice") && !shown.contains(TOKEN) && !shown.contains(KEY), "{shown}");
    assert!(parse("routes: [{ upstream: { url: 'http://x' } }]").front.tokens.is_empty());
}

#[test]
fn a_token_that_cannot_be_used_is_named_by_its_place_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("good", TOKEN),
        ("again", &format!("{TOKEN}\r\n")),
        ("empty", "\n"),
        ("short", &TOKEN[..15]),
        ("odd", "correct horse battery staple"),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let said = |tokens: &str| said_of_tokens(folder.path(), tokens).expect_err(tokens);
    expect![[r#"
        ~/deferral.yaml:2:20: the file `~/none` cannot be read: No such file or directory (os error 2)
        ~/deferral.yaml:2:49: the file `~/empty` is empty; a token has at least 16 letters, digits and `-._~+/`, generated for example by `openssl rand -hex 32`
        ~/deferral.yaml:2:79: the file `~/short` has 15 characters; a token has at least 16 letters, digits and `-._~+/`, generated for example by `openssl rand -hex 32`
        ~/deferral.yaml:2:109: the file `~/odd` has a character that is not allowed in a token; a token has at least 16 letters, digits and `-._~+/`, generated for example by `openssl rand -hex 32`
        ~/deferral.yaml:2:137: the environment variable `DEFERRAL_TEST_UNSET` is not set
    "#]]
    .assert_eq(&format!(
        "{}\n",
        said("[{ name: alice, file: none }, { name: alice, file: empty }, { name: alice, file: short }, { name: alice, file: odd }, { name: alice, env: DEFERRAL_TEST_UNSET }]")
    ));
    for (tokens, part) in [
        ("[]", "2:19: `tokens` is empty; add a token, or remove the key"),
        (
            "[{ name: a, file: good }, { name: a, file: again }]",
            "2:45: this token is listed already (line 2)",
        ),
        ("[{ name: a, file: good }, { name: b, file: good }]", "2:45: this token is listed already (line 2)"),
        ("[{ file: good }]", "2:20: the token has no `name`"),
        ("[{ name: '', file: good }]", "2:28: `name` must be 1 to 64 letters"),
        (&format!("[{{ name: {}, file: good }}]", "n".repeat(65)), "2:28: `name` must be 1 to 64 letters"),
        ("[{ name: 'a b', file: good }]", "2:28: `name` must be 1 to 64 letters"),
        ("[{ name: \"a\\nb\", file: good }]", "2:28: `name` must be 1 to 64 letters"),
        ("[{ name: a }]", "2:20: the token has neither `file` nor `env`"),
        ("[{ name: a, file: good, env: X }]", "2:20: the token has both `file` and `env`"),
        ("[{ name: a, env: 'A=B' }]", "2:36: `env` must be the name of an environment variable"),
        ("[{ name: a, token: correct-horse-battery-staple }]", "2:31: unknown key `token` in a token"),
        (TOKEN, "2:19: `tokens` must be a list"),
        (&format!("[{TOKEN}]"), "2:20: a token must not be written in this file; name its source"),
        (
            &format!("[{{ name: {KEY}, file: good }}]"),
            "2:28: `name` must be a name for the token, not the token",
        ),
        (
            &format!("[{{ name: a, env: {KEY} }}]"),
            "2:36: `env` must name a variable that holds the token, not",
        ),
        (&format!("[{{ name: a, file: {KEY} }}]"), "2:37: `file` must name a file that holds the token, not"),
    ] {
        let said = said(tokens);
        assert!(said.contains(part), "{tokens}: {said}");
        assert!(!said.contains(TOKEN) && !said.contains(KEY), "{tokens}: {said}");
    }
}

#[test]
fn who_needs_a_token_is_told_apart_by_it() {
    let doubts = |access: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deferral.yaml");
        std::fs::write(folder.path().join("token"), TOKEN).expect("it can be written");
        let text = format!("listen: 0.0.0.0:80\n{access}routes: [{{ upstream: {{ url: 'http://x' }} }}]\n");
        std::fs::write(&path, text).expect("it can be written");
        config::check(&path).expect("it is right").1.map(|doubts| doubts.to_string())
    };
    assert!(doubts("").expect("a doubt").contains("all clients without `Authorization` are one principal"));
    assert_eq!(doubts("access: { tokens: [{ name: alice, file: token }] }\n"), None);
}

#[test]
fn what_is_gone_soon_after_its_end_is_a_doubt() {
    let doubts = |route: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deferral.yaml");
        let text = format!("routes:\n  - upstream: {{ url: \"http://127.0.0.1/\" }}\n    {route}\n");
        std::fs::write(&path, text).expect("it can be written");
        let (config, doubts) = config::check(&path).expect("it is right");
        let said = doubts.map(|doubts| doubts.to_string()).unwrap_or_default();
        (config, said.replace(path.to_str().expect("a plain path"), "deferral.yaml"))
    };
    for fine in ["defer: { retention: 1m }", "tasks: { max_ttl: 1m }", "defer: { after: 1s }"] {
        assert_eq!(doubts(fine).1, "", "{fine}");
    }
    let (config, said) = doubts("defer: { retention: 10s }");
    assert_eq!(config.routes[0].route.defer.retention, Duration::from_secs(10), "it holds all the same");
    expect![[r#"
        deferral.yaml:3:25: warning: `retention` (10s) is short: the result of a task is removed that long after its end, fetched or not; a client that disconnects for a moment, or polls less often than asked, never gets it"#]]
    .assert_eq(&said);
    let (_, said) = doubts("tasks: { max_ttl: 10ms }");
    expect![[r#"
        deferral.yaml:3:23: warning: `max_ttl` (10ms) counts as 1s: the result of a task is removed that long after its end, fetched or not; a client that disconnects for a moment, or polls less often than asked, never gets it"#]]
    .assert_eq(&said);
    assert_eq!(policy::SHORTEST_RETENTION, retention::SHORTEST);
}
