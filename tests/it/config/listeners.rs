//! Metrics listener and health paths.

use deferral::internals::config;
use std::path::Path;

fn problems(top: &str, paths: &[&str]) -> String {
    let routes: String = paths
        .iter()
        .map(|path| format!("  - {{ path: {path}, upstream: {{ url: 'http://127.0.0.1:9000/mcp' }} }}\n"))
        .collect();
    let text = format!("{top}\nroutes:\n{routes}");
    config::parse(Path::new("deferral.yaml"), &text)
        .map(|_| String::new())
        .unwrap_or_else(|error| error.to_string())
}

#[test]
fn metrics_have_an_address_of_their_own() {
    for top in [
        "metrics: 0.0.0.0:9464",
        "metrics: off",
        "metrics: 127.0.0.1:0\nadmin: 127.0.0.1:0",
        "{ admin: off, metrics: 127.0.0.1:8809, listen: 127.0.0.1:8808 }",
    ] {
        let top = top.trim_start_matches("{ ").trim_end_matches(" }").replace(", ", "\n");
        assert_eq!(problems(&top, &["/mcp"]), "", "{top}");
    }
    for (top, other) in [
        ("metrics: 127.0.0.1:8808", "`metrics` and `listen` are both 127.0.0.1:8808"),
        ("metrics: 127.0.0.1:8809", "`metrics` and `admin` are both 127.0.0.1:8809"),
        ("metrics: 9464", "did you mean `127.0.0.1:9464`"),
        ("metrics: localhost:9464", "did you mean `127.0.0.1:9464`"),
    ] {
        assert!(problems(top, &["/mcp"]).contains(other), "{top}: {}", problems(top, &["/mcp"]));
    }
}

#[test]
fn a_health_path_is_no_route() {
    for (top, paths) in [
        ("health: /healthz", &["/mcp"][..]),
        ("health: off", &["/healthz"]),
        ("health: /mcp/health", &["/mcp"]),
    ] {
        assert_eq!(problems(top, paths), "", "{top}");
    }
    for (top, paths, why) in [
        ("health: /mcp", &["/mcp"][..], "which is also the path of a route (`/mcp`)"),
        ("health: /mcp/", &["/a", "/mcp"], "which is also the path of a route (`/mcp`)"),
        ("health: /mcp", &["/mcp/"], "which is also the path of a route (`/mcp/`)"),
        ("health: healthz", &["/mcp"], "did you mean `/healthz`?"),
        ("health: '/a b'", &["/mcp"], "is not a path"),
        ("health: /.well-known/health", &["/mcp"], "/.well-known/"),
    ] {
        assert!(problems(top, paths).contains(why), "{top}: {}", problems(top, paths));
    }
}
