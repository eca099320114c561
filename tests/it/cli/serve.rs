//! `deferral serve`: start, signals, shutdown, keys of `requestState`.

use super::{Demo, Serving, signal, text};
use crate::support::program::{interrupt, where_it_listens};
use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    process::{Command, Stdio},
};

#[test]
fn a_host_name_of_the_option_is_served_and_another_gets_the_fix() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(["--upstream", "http://127.0.0.1:1/mcp", "--listen", "127.0.0.1:0", "--admin", "off"])
        .args(["--host", "proxy", "--host", "mcp.example.com"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let address = where_it_listens(&mut child);
    let ask = |host: &str| {
        let mut socket = TcpStream::connect(address).expect("it listens");
        write!(socket, "DELETE /nowhere HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
            .expect("it reads");
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut socket, &mut answer).expect("it answers");
        answer
    };
    for host in ["proxy", "proxy:8808", "MCP.example.com", "localhost"] {
        let answer = ask(host);
        assert!(answer.starts_with("HTTP/1.1 404 "), "{host}: {answer}");
    }
    let answer = ask("other:8808");
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("start with `--host other`"), "{answer}");
    interrupt(&child);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn serve_prints_its_addresses_and_ends_on_sigterm() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(["--upstream", "http://127.0.0.1:1/mcp", "--listen", "127.0.0.1:0", "--admin", "off"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut said = String::new();
    BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut said).expect("a line");
    let url = said.trim().strip_prefix("listening on ").expect("where it listens").to_owned();
    assert!(url.starts_with("http://127.0.0.1:") && url.ends_with("/mcp") && !url.contains(":0/"), "{url}");
    interrupt(&child);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_hangup_ends_nothing_and_a_second_signal_ends_everything_at_once() {
    let demo = Demo::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deferral.yaml");
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: off\ndrain: 1h\nroutes: [{{ upstream: {{ url: '{}' }} }}]\n",
        demo.server
    );
    std::fs::write(&path, text).unwrap();
    let mut proxy = Serving::start(&path, "");
    signal(&proxy.child, "-HUP");
    // A call that waits for its client's answers: the proxy waits for it.
    assert_eq!(proxy.book(None)["result"]["resultType"], "input_required");
    assert_eq!(proxy.child.try_wait().expect("it can be asked"), None);
    signal(&proxy.child, "-TERM");
    let refused = || proxy.book(None)["error"]["code"] == -31007;
    while !refused() {}
    signal(&proxy.child, "-HUP");
    assert!(refused());
    assert_eq!(proxy.child.try_wait().expect("it can be asked"), None, "an hour is not over");
    signal(&proxy.child, "-TERM");
    assert_eq!(proxy.child.wait().expect("it ends").code(), Some(1));
}

#[test]
fn ctrl_c_during_a_drain_prints_what_it_waits_for() {
    let demo = Demo::start();
    let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(["--upstream", &demo.server, "--listen", "127.0.0.1:0", "--admin", "off"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let url = format!("http://{}/mcp", where_it_listens(&mut child));
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let mut proxy = Serving { child, url };
    assert_eq!(proxy.book(None)["result"]["resultType"], "input_required");
    interrupt(&proxy.child);
    let said = lines.find_map(|line| line.ok().filter(|line| line.starts_with("stopping: ")));
    let said = said.expect("it says so");
    assert!(
        said.starts_with("stopping: waiting for 1 call, up to ")
            && said.ends_with("; press Ctrl-C again to exit at once"),
        "{said}"
    );
    interrupt(&proxy.child);
    assert_eq!(proxy.child.wait().expect("it ends").code(), Some(1));
}

#[test]
fn until_the_notice_is_over_new_calls_are_served_and_connections_closed() {
    let demo = Demo::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deferral.yaml");
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: off\ndrain: {{ notice: 1h }}\nroutes: [{{ upstream: {{ url: '{}' }} }}]\n",
        demo.server
    );
    std::fs::write(&path, text).unwrap();
    let mut proxy = Serving::start(&path, "");
    assert!(!proxy.lets_go());
    signal(&proxy.child, "-TERM");
    while !proxy.lets_go() {}
    assert_eq!(proxy.book(None)["result"]["resultType"], "input_required");
    assert_eq!(proxy.child.try_wait().expect("it can be asked"), None, "an hour is not over");
    signal(&proxy.child, "-TERM");
    assert_eq!(proxy.child.wait().expect("it ends").code(), Some(1));
}

#[test]
fn replicas_that_share_a_key_understand_each_others_states() {
    let demo = Demo::start();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("old.key"), "11".repeat(32)).unwrap();
    let config = |keys: &str| {
        let path = folder.path().join(format!("{}.yaml", keys.len()));
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: off\nrequest_state: {{ keys: [{keys}] }}\nroutes: [{{ upstream: {{ url: '{}' }} }}]\n",
            demo.server
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    let (old, rotated) = (config("{ file: old.key }"), config("{ env: STATE_KEY }, { file: old.key }"));
    let one = Serving::start(&old, "");
    let two = Serving::start(&rotated, &"22".repeat(32));
    let three = Serving::start(&config("{ env: STATE_KEY }"), &"33".repeat(32));
    let asked = one.book(None);
    let state = asked["result"]["requestState"].as_str().expect("a state");
    let message =
        |answer: &serde_json::Value| answer["error"]["message"].as_str().expect("an error").to_owned();
    // The call itself is held by one process.
    assert!(
        message(&two.book(Some(state)))
            .starts_with("the call that `requestState` belongs to does not run in this process")
    );
    assert_eq!(message(&three.book(Some(state))), "`requestState` was not issued by this server");
    // The first key seals.
    let asked = two.book(None);
    let state = asked["result"]["requestState"].as_str().expect("a state");
    assert_eq!(message(&one.book(Some(state))), "`requestState` was not issued by this server");
    assert_eq!(two.book(Some(state))["result"]["resultType"], "input_required");
}

#[test]
fn a_key_that_cannot_be_used_keeps_the_proxy_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deferral.yaml");
    std::fs::write(
        &path,
        "routes: [{ upstream: { url: 'http://x' } }]\nrequest_state: { keys: [{ env: STATE_KEY }] }\n",
    )
    .unwrap();
    let path = path.to_str().unwrap();
    for words in [&["check", "--config", path][..], &["--config", path]] {
        let output = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args(words)
            .env("STATE_KEY", "c2VjcmV0IHNlY3JldA==")
            .output()
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output.stderr);
        assert!(said.contains(":2:25: the environment variable `STATE_KEY` has 13 bytes;"), "{said}");
        assert!(!said.contains("c2VjcmV0"), "{said}");
    }
}
