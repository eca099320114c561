//! `deferral check`: what it prints, and its exit code.

use super::{deferral, sample, text};

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

#[test]
fn check_prints_ok_and_the_number_of_routes() {
    let path = sample("minimal.yaml");
    let output = deferral(&["check", "--config", &path]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), format!("{path}: ok (1 route)\n"));
}

#[test]
fn check_reports_every_problem_on_stderr_and_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.yaml");
    std::fs::write(&path, "lisen: x\nroutes: [{ upstream: { url: 'ftp://x' } }]\n").unwrap();
    let path = path.to_str().unwrap();
    let output = deferral(&["check", "--config", path]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    let lines: Vec<_> = text(&output.stderr).lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[2], "error: 2 problems in the configuration");
    assert!(lines[0].starts_with(&format!("{path}:1:1: unknown key `lisen`")), "{lines:?}");
    assert!(lines[1].starts_with(&format!("{path}:2:29: `ftp://x`")), "{lines:?}");
}

#[test]
fn check_warns_where_callers_from_elsewhere_are_all_one() {
    const SERVER: &str = "upstream: { url: 'http://127.0.0.1:9000/mcp' }";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deferral.yaml");
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let output = deferral(&["check", "--config", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(!output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    for exposed in
        ["listen: 0.0.0.0:80", "listen: ['127.0.0.1:1', '[::]:80']", "public_url: https://example.com"]
    {
        let text = format!(
            "{exposed}\nroutes:\n  - {{ {SERVER} }}\n  - {{ path: /b, principal: authorization, {SERVER} }}\n  \
             - {{ path: /c, principal: {{ header: X-Api-Key }}, {SERVER} }}\n"
        );
        let said = check(&text);
        let begin = format!("{}:3:5: warning: on `/mcp` all clients without `Authorization`", path.display());
        assert!(said.starts_with(&begin) && said.contains("principal: { header: X-Api-Key }"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for private in ["", "listen: 127.0.0.1:80\n", "listen: '[::1]:80'\n", "listen: '[::ffff:127.0.0.1]:80'\n"]
    {
        assert_eq!(check(&format!("{private}routes: [{{ {SERVER} }}]\n")), "");
    }
}

#[test]
fn check_warns_where_a_rollout_leaves_callers_without_credentials_outside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deferral.yaml");
    std::fs::write(folder.path().join("token"), "a-token-that-is-long-enough-to-be-one").unwrap();
    let check = |top: &str, route: &str| {
        let upstream = "upstream: { url: 'http://127.0.0.1:9000/mcp' }";
        std::fs::write(&path, format!("{top}\nroutes:\n  - {{ {upstream}, {route} }}\n")).unwrap();
        let output = deferral(&["check", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for route in [
        "defer: { rollout: 25% }",
        "principal: authorization, defer: { rollout: { share: 99.9999%, always: [ci] } }",
        "tools: [{ match: x, mode: always, rollout: 1% }]",
    ] {
        let said = check("", route);
        assert!(
            said.contains(": warning: clients without `Authorization` are outside this rollout"),
            "{route}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for route in [
        "principal: { header: X-User }, defer: { rollout: 25% }",
        "defer: { rollout: 100% }",
        "defer: { rollout: 0% }",
        "defer: { rollout: { share: 25%, by: { header: X-Tenant } } }",
        "defer: { rollout: { share: 25%, always: ['anon*'] } }",
    ] {
        assert_eq!(check("", route), "", "{route}");
    }
    assert_eq!(check("access: { tokens: [{ name: a, file: token }] }", "defer: { rollout: 25% }"), "");
}

#[test]
fn check_prints_the_schema() {
    let output = deferral(&["check", "--schema"]);
    assert_eq!(output.status.code(), Some(0));
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(schema["properties"]["routes"].is_object());
}

#[test]
fn check_takes_a_file_by_name_alone_and_from_the_standard_input() {
    let path = sample("minimal.yaml");
    let output = deferral(&["check", &path]);
    assert_eq!(text(&output.stdout), format!("{path}: ok (1 route)\n"), "{}", text(&output.stderr));

    let piped = |words: &[&str], typed: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        child.stdin.take().expect("it is piped").write_all(typed.as_bytes()).expect("it is read");
        child.wait_with_output().expect("it ends")
    };
    let good = std::fs::read_to_string(path).unwrap();
    for words in [&["check", "-"][..], &["check", "--config", "-"]] {
        let output = piped(words, &good);
        assert_eq!(text(&output.stdout), "<stdin>: ok (1 route)\n", "{}", text(&output.stderr));
        let output = piped(words, "lisen: x\nroutes: []\n");
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).starts_with("<stdin>:1:1: unknown key `lisen`"), "{output:?}");
    }
    let output = piped(&["--config", "-"], "lisen: x\nroutes: []\n");
    assert!(text(&output.stderr).starts_with("<stdin>:1:1: unknown key `lisen`"), "{output:?}");
}

#[test]
fn check_doubts_a_capability_that_no_specification_knows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deferral.yaml");
    let text = "routes:\n  - upstream: { url: 'http://x' }\n    tools: [{ match: x, requires: { acme/vault: {} } }]\n";
    std::fs::write(&path, text).unwrap();
    let output = deferral(&["check", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stderr).unwrap();
    let begin = format!("{}:3:35: warning: `acme/vault` is not a capability", path.display());
    assert!(said.starts_with(&begin) && said.lines().count() == 1, "{said}");
}

#[test]
fn check_looks_into_the_certificates_too() {
    let sample = sample("tls.yaml");
    let output = deferral(&["check", "--config", &sample]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("server.crt (tls.cert)"), "{}", text(&output.stderr));
    // Where it was written, also where the proxy is to start.
    for words in [&["check", &sample][..], &["--config", &sample]] {
        let output = deferral(words);
        assert_eq!(output.status.code(), Some(2));
        let begin = format!("{sample}:3:14: cannot read certificates from ");
        assert!(text(&output.stderr).starts_with(&begin), "{}", text(&output.stderr));
    }

    let folder = tempfile::tempdir().unwrap();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/front");
    std::fs::copy(files.join("cert.pem"), folder.path().join("server.crt")).unwrap();
    std::fs::copy(files.join("key.pem"), folder.path().join("server.key")).unwrap();
    let path = folder.path().join("tls.yaml");
    std::fs::copy(&sample, &path).unwrap();
    let output = deferral(&["check", "--config", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}
