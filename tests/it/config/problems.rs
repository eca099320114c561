//! Problems of a configuration: each is reported with its place and the fix.

use super::{parse, refused};
use deferral::internals::{config, policy, task::retention};
use expect_test::expect;
use std::{path::Path, time::Duration};

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
    assert!(
        config.routes[0].route.tool_policy("a").requires.is_some_and(|all| all["acme/vault"].is_object())
    );
}

#[test]
fn keys_of_commands_are_refused_beside_a_url() {
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
fn a_command_that_remote_clients_can_reach_needs_shared() {
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
fn a_remote_admin_listener_needs_tls_and_a_token() {
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

/// Each of these would otherwise silently select a default.
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
fn problems_across_several_parts_are_found() {
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
fn tickets_that_no_client_can_get_or_use_are_a_problem() {
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

#[cfg(feature = "otlp")]
#[test]
fn problems_of_traces_have_their_place_and_show_no_key() {
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
fn a_file_that_cannot_be_read_is_named() {
    let problems = config::load(Path::new("no/such.yaml")).unwrap_err();
    assert!(problems.to_string().starts_with("no/such.yaml: cannot be read: "), "{problems}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latin.yaml");
    std::fs::write(&path, b"routes: []\n# caf\xe9\n").unwrap();
    let problems = config::load(&path).unwrap_err();
    assert!(problems.to_string().ends_with("is not UTF-8 (line 2)"), "{problems}");
}

#[test]
fn a_short_retention_is_a_warning() {
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
    assert_eq!(policy::MIN_RETENTION, retention::MIN_RETENTION);
}
