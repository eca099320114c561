//! Headers, TLS and HTTP proxy of an upstream with a URL.

use deferral::internals::{
    config::{self, Config, Environment},
    upstream::Proxy,
};
use expect_test::expect;
use serde_json::json;
use std::{fs, path::Path, sync::Arc};
use tempfile::TempDir;

/// A folder with the certificates of the tests, and other files.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let tls = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/tls");
    for entry in fs::read_dir(tls).expect("the folder is there") {
        let path = entry.expect("a file").path();
        fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("it can be copied");
    }
    let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let long = "#".repeat((1 << 20) + 1);
    for (name, content) in
        [("api.key", "from a file\n"), ("bad.pem", bad), ("empty.pem", ""), ("long.pem", &long)]
    {
        fs::write(folder.path().join(name), content).expect("it can be written");
    }
    folder
}

fn checked(upstream: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let folder = folder();
    let environment: Environment = variables.iter().copied().collect();
    let text = format!("routes:\n  - upstream: {{ {upstream} }}\n");
    let checked = config::check_in(&folder.path().join("deferral.yaml"), &text, &environment);
    checked.map(|(config, _)| config).map_err(|problems| {
        let path = folder.path().to_str().expect("a plain path");
        format!("{problems}\n").replace(&format!("{path}/deferral.yaml:2:"), "").replace(path, "~")
    })
}

fn refused(upstream: &str) -> String {
    checked(upstream, &[("KEY", "hunter2-hunter2")]).map(drop).expect_err(upstream)
}

#[test]
fn headers_are_texts_or_elsewhere_and_are_not_shown() {
    let upstream = r#"url: "https://a/mcp", headers: { Authorization: "Bearer ${KEY}", X-Key: { file: api.key }, x-more: { env: KEY }, User-Agent: mine }"#;
    let config = checked(upstream, &[("KEY", "hunter2")]).expect("it is right");
    let headers = &config.routes[0].upstream.headers;
    let all: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    assert_eq!(
        all,
        [
            ("authorization", "Bearer hunter2"),
            ("x-key", "from a file"),
            ("x-more", "hunter2"),
            ("user-agent", "mine")
        ]
    );
    assert!(headers.values().all(http::HeaderValue::is_sensitive));
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
    let shown = &config.settings.json()["settings"]["routes"][0]["upstream"]["headers"];
    let elsewhere = (json!({ "file": "api.key" }), json!({ "env": "KEY" }));
    assert_eq!(
        *shown,
        json!({ "Authorization": "…", "X-Key": elsewhere.0, "x-more": elsewhere.1, "User-Agent": "…" })
    );
    let again = checked(upstream, &[("KEY", "hunter2")]).expect("it is right");
    assert_eq!(again.routes[0].upstream, config.routes[0].upstream);
    let other = checked(upstream, &[("KEY", "hunter3")]).expect("it is right");
    assert_ne!(
        other.routes[0].upstream, config.routes[0].upstream,
        "a reload sees that a secret has changed"
    );
}

#[test]
fn an_invalid_header_is_named_without_its_value() {
    expect![[r#"
        49: `Host` belongs to the connection, and the proxy sets it itself; remove it
        58: `te` belongs to the connection, and the proxy sets it itself; remove it
        65: `Content-Length` belongs to the body of each request; remove it
        84: `Mcp-Session-Id` belongs to the protocol, and the proxy sets it itself; remove it
        103: `Via` belongs to the connection, and the proxy sets it itself; remove it
        111: `traceparent` belongs to the trace of each request; remove it
        127: `a b` is not a valid header name
    "#]].assert_eq(&refused(
        r#"url: "http://a/mcp", headers: { Host: a, te: b, Content-Length: 7, Mcp-Session-Id: x, Via: x, traceparent: x, a b: x }"#,
    ));
    expect![[r#"
        54: the header `X-A` must be a valid header value: visible ASCII, without spaces around it
        69: the header `B` must be a valid header value: visible ASCII, without spaces around it (the value of ` ${KEY}`, which is not shown)
        80: `x-a` is listed twice, with different capitalisation; remove one of the two
        91: the environment variable `NO` is not set
        107: the file `~/empty.pem` does not hold a valid header value
        131: the value has neither `file` nor `env`; add one of them
        138: the header `F` must be a single value, not a list
    "#]].assert_eq(&refused(
        r#"url: "http://a/mcp", headers: { X-A: "hunter2é", B: " ${KEY}", x-a: 1, C: { env: NO }, D: { file: empty.pem }, E: {}, F: [1] }"#,
    ));
    expect![[r#"
        45: `headers` is for servers with a `url`, and this one has a `command`; remove it
        60: `tls` is for servers with a `url`, and this one has a `command`; remove it
        87: `proxy` is for servers with a `url`, and this one has a `command`; remove it
    "#]]
    .assert_eq(&refused("command: ['true'], headers: { A: 1 }, tls: { server_name: a }, proxy: off"));
}

#[test]
fn credentials_of_the_proxy_need_shared_for_remote_clients() {
    let with = |top: &str, upstream: &str| {
        let text = format!(
            "{top}\nroutes:\n  - principal: authorization\n    upstream: {{ url: 'http://a/', {upstream} }}\n"
        );
        let checked = config::check_in(Path::new("d.yaml"), &text, &Environment::default());
        checked.map(drop).map_err(|problems| problems.to_string())
    };
    let (local, elsewhere) = ("listen: 127.0.0.1:1", "listen: 0.0.0.0:1");
    let ours = "headers: { Authorization: Bearer x }";
    assert_eq!(with(local, ours), Ok(()));
    assert_eq!(
        with(elsewhere, ours),
        Err(
            "d.yaml:4:44: clients on other machines can connect, and the server cannot tell them apart, because `headers` sets the `authorization` of all requests: each of them can do whatever it permits; listen on loopback, require tokens (`access.tokens`), or write `shared: true` under `upstream` if this is intended".to_owned()
        )
    );
    assert!(
        with("public_url: https://x", "headers: { cookie: a }").unwrap_err().contains("sets the `cookie`")
    );
    assert_eq!(with(elsewhere, &format!("{ours}, shared: true")), Ok(()));
    assert!(with(elsewhere, &format!("{ours}, shared: false")).is_err());
    assert_eq!(with(elsewhere, "headers: { X-Tenant: a }"), Ok(()), "a caller may still show its own");
    let tokens = "listen: 0.0.0.0:1\naccess: { tokens: [{ name: a, env: NO }] }";
    let said = with(tokens, ours).expect_err("there is no token");
    assert!(said.lines().count() == 1 && said.contains("`NO` is not set"), "{said}");
    assert!(
        with(local, "shared: true")
            .unwrap_err()
            .contains("`shared` is for servers that cannot tell clients apart")
    );
}

#[test]
fn tls_settings_are_read_and_their_problems_have_their_place() {
    let config = checked(
        "url: 'https://a/', tls: { ca: house-authority.pem, cert: client.pem, key: client-key.pem, server_name: tools.house.example }",
        &[],
    )
    .expect("it is right");
    let tls = format!("{:?}", config.routes[0].upstream.tls.as_ref().expect("it is written"));
    assert!(tls.starts_with("UpstreamTls { authorities: Some(1), has_identity: true, name: Some("), "{tls}");
    for (tls, wrong) in [
        (
            "{ ca: none.pem }",
            "47: no certificate authority can be read from ~/none.pem (tls.ca): No such file",
        ),
        (
            "{ ca: empty.pem }",
            "47: no certificate authority can be read from ~/empty.pem (tls.ca): it holds none",
        ),
        ("{ ca: bad.pem }", "(tls.ca): it holds no valid certificate"),
        ("{ ca: long.pem }", "(tls.ca): it is longer than 1048576 bytes"),
        ("{ ca: client-key.pem }", "(tls.ca): it holds none"),
        ("{ cert: client.pem }", "49: `cert` has no `key`; add `key`, the file of its private key"),
        ("{ key: client-key.pem }", "48: `key` has no `cert`; add `cert`, the file of its certificate"),
        (
            "{ cert: none.pem, key: client-key.pem }",
            "49: no certificate can be read from ~/none.pem (tls.cert)",
        ),
        ("{ cert: client.pem, key: none.pem }", "66: no private key can be read from ~/none.pem (tls.key)"),
        (
            "{ cert: client.pem, key: client.pem }",
            "66: no private key can be read from ~/client.pem (tls.key)",
        ),
        (
            "{ cert: client.pem, key: stranger-key.pem }",
            "49: ~/client.pem (tls.cert) and ~/stranger-key.pem (tls.key) cannot be used together",
        ),
        ("{ server_name: 'a b' }", "56: `a b` is not a server name"),
        ("{ server_name: 'https://a' }", "is not a server name"),
        ("{}", "`tls` is empty"),
        (
            "{ ca: x, insecure: true }",
            "unknown key `insecure` in `tls`; there are ca, cert, key, server_name",
        ),
    ] {
        let said = refused(&format!("url: 'https://a/', tls: {tls}"));
        assert!(said.contains(wrong), "{tls}: {said}");
    }
    let said = refused("url: 'http://a/', tls: { server_name: b }");
    assert!(said.starts_with("40: `tls` needs a `url` with `https`, and this one has `http`"), "{said}");
}

fn proxy_of(upstream: &str, variables: &[(&str, &str)]) -> Option<Arc<Proxy>> {
    checked(upstream, variables)
        .unwrap_or_else(|problems| panic!("{problems}"))
        .routes
        .remove(0)
        .upstream
        .proxy
}

#[test]
fn the_proxy_is_that_of_the_environment_unless_another_is_written() {
    let (https, http) = ("url: 'https://a.example/'", "url: 'http://a.example:9000/'");
    for (upstream, variables, proxy) in [
        (https, &[][..], None),
        (https, &[("HTTPS_PROXY", "http://p:1")], Some("http://p:1")),
        (https, &[("https_proxy", "p:1")], Some("http://p:1")),
        (https, &[("HTTPS_PROXY", "http://p:1"), ("https_proxy", "http://q:1")], Some("http://p:1")),
        (https, &[("HTTPS_PROXY", " "), ("https_proxy", "http://q:1")], Some("http://q:1")),
        (https, &[("HTTP_PROXY", "http://p:1")], None),
        (https, &[("ALL_PROXY", "http://p:1")], Some("http://p:1")),
        (https, &[("all_proxy", "http://p:1"), ("HTTPS_PROXY", "http://q:1")], Some("http://q:1")),
        (http, &[("HTTPS_PROXY", "http://p:1")], None),
        (http, &[("HTTP_PROXY", "http://p:1")], Some("http://p:1")),
        (http, &[("http_proxy", "http://p:1")], Some("http://p:1")),
        // In a CGI program `HTTP_PROXY` is what a client says.
        (http, &[("HTTP_PROXY", "http://p:1"), ("REQUEST_METHOD", "GET")], None),
        (http, &[("http_proxy", "http://p:1"), ("REQUEST_METHOD", "GET")], Some("http://p:1")),
        (https, &[("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", "b,.example")], None),
        (https, &[("HTTPS_PROXY", "http://p:1"), ("no_proxy", "*")], None),
        (http, &[("HTTP_PROXY", "http://p:1"), ("NO_PROXY", "a.example:9000")], None),
        (http, &[("HTTP_PROXY", "http://p:1"), ("NO_PROXY", "a.example:9001")], Some("http://p:1")),
        ("url: 'http://127.0.0.1:9000/'", &[("ALL_PROXY", "http://p:1")], None),
        ("url: 'https://a/', proxy: off", &[("ALL_PROXY", "http://p:1")], None),
        ("url: 'https://a/', proxy: false", &[("ALL_PROXY", "http://p:1")], None),
        ("url: 'https://a/', proxy: 'http://q:1'", &[("ALL_PROXY", "http://p:1")], Some("http://q:1")),
        // What is written for a server is meant.
        ("url: 'http://localhost/', proxy: 'http://q:1'", &[("NO_PROXY", "*")], Some("http://q:1")),
    ] {
        let found = proxy_of(upstream, variables);
        assert_eq!(found.map(|found| found.to_string()).as_deref(), proxy, "{upstream} {variables:?}");
    }
}

#[test]
fn an_invalid_proxy_url_is_named_by_its_variable_or_place() {
    let by_variable =
        checked("url: 'https://a.example/'", &[("HTTPS_PROXY", "socks5://me:hunter2@p")]).map(drop);
    assert_eq!(
        by_variable.expect_err("it is none"),
        "22: the environment variable `HTTPS_PROXY` cannot be used: the proxy URL has the scheme `socks5`, and only `http` is supported; write it as in `http://proxy.example.com:3128`; or write `proxy: off` under `upstream`\n"
    );
    // The proxy is not used.
    for spared in ["url: 'http://a.example/'", "url: 'https://localhost/'", "url: 'https://a/', proxy: off"] {
        assert!(checked(spared, &[("HTTPS_PROXY", "socks5://p")]).is_ok(), "{spared}");
    }
    for (proxy, wrong) in [
        ("'me:hunter2@'", "43: the value is not a proxy URL"),
        ("'https://me:hunter2@p'", "43: the proxy URL has the scheme `https`, and only `http` is supported"),
        ("'${KEY}://p'", "43: the value is not a proxy URL"),
    ] {
        let said = refused(&format!("url: 'https://a/', proxy: {proxy}"));
        assert!(said.starts_with(wrong) && !said.contains("hunter2"), "{said}");
    }
    let config =
        checked("url: 'https://a/', proxy: 'http://me:${KEY}@p:1'", &[("KEY", "hunter2")]).expect("right");
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
    let shown = &config.settings.json()["settings"]["routes"][0]["upstream"]["proxy"];
    assert_eq!(*shown, "http://…@p:1");
}
