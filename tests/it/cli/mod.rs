//! What people type, and what they read: the program itself.

mod call_legacy;
mod completions;
mod configuration;
mod exit_codes;
mod explain;
mod file_descriptors;
mod report;
mod service_manager;
mod start_environment;
mod threads;
mod untrusted_servers;

use crate::support::program::{interrupt, where_it_listens};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdout, Command, Output, Stdio},
};

fn deferral(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deferral")).args(words).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("output is text")
}

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name).to_str().expect("a plain path").to_owned()
}

#[test]
fn check_says_ok_and_how_many_routes_there_are() {
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
fn without_a_server_the_ways_to_name_one_are_shown() {
    let output = deferral(&[]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    for way in ["deferral --upstream ", "deferral --config "] {
        assert!(said.contains(way), "{said}");
    }
}

#[test]
fn what_is_not_there_is_not_offered() {
    let schema = deferral(&["check", "--schema"]);
    let nothing = deferral(&[]);
    let help = deferral(&["serve", "--help"]);
    let store = deferral(&["--upstream", "http://x/", "--store", "tape"]);
    let said = [&schema.stdout, &nothing.stderr, &help.stdout, &store.stderr].map(|bytes| text(bytes));
    for word in ["supervise", "redis"] {
        assert!(!said.iter().any(|said| said.contains(word)), "{word}: {said:#?}");
    }
    assert!(said[3].contains("use memory"), "{}", said[3]);
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
fn a_flag_that_cannot_be_used_says_why_and_exits_with_2() {
    for (words, part) in [
        (&["--upstream", "127.0.0.1:9000/mcp"][..], "did you mean `http://127.0.0.1:9000/mcp`?"),
        (&["--upstream", "http://x/", "--listen", "localhost:1"], "did you mean `127.0.0.1:1`?"),
        (&["--upstream", "http://x/", "--after", "5"], "did you mean `5s` or `5ms`?"),
        (&["--upstream", "http://x/", "--mode", "maybe"], "use auto, never, always, required, observe or"),
        (&["--upstream", "http://x/", "--tool", "x"], "write PATTERN=MODE"),
        (
            &["--upstream", "http://x/", "--store", "disk:"],
            "'--store <STORE>': `disk:` names no folder; write it as in `disk:./data`",
        ),
        (&["--", "no-such-program", "x"], "-- CMD: `no-such-program` is not found in PATH ("),
        (&["--listen", "0.0.0.0:0", "--", "sh"], "write `shared: true` under `upstream` (`--shared`)"),
        (&["--shared", "--upstream", "http://x/"], "required"),
        (&["--upstream", "http://x/", "--", "python"], "has both"),
        (&["--config", "no/such.yaml"], "no/such.yaml: cannot be read"),
        (&["--upstream", "http://x/", "--host", "http://mcp"], "write a host name only"),
        (&["--nonsense"], "unexpected argument"),
        (&["check"], "Usage"),
    ] {
        let output = deferral(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains(part), "{words:?}: {said}");
    }
}

/// `deferral demo` at work, with everything it has said.
struct Demo {
    child: Child,
    said: BufReader<ChildStdout>,
    /// Of the proxy.
    url: String,
    /// Of the server behind it.
    server: String,
}

impl Demo {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args(["demo", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let said = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut demo = Self { child, said, url: String::new(), server: String::new() };
        let last = |line: String| line.split_whitespace().last().expect("a URL").to_owned();
        demo.server = last(demo.until("A legacy server").pop().expect("a line"));
        demo.url = last(demo.until("The proxy in front of it:").pop().expect("a line"));
        demo
    }

    /// The lines up to one that has this in it.
    fn until(&mut self, part: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.said.read_line(&mut line).expect("it can be read");
            assert!(read > 0, "it ended before it said {part:?}: {lines:#?}");
            let found = line.contains(part);
            lines.push(line);
            if found {
                return lines;
            }
        }
    }

    fn call(&self, words: &[&str]) -> Output {
        deferral(&[&["call", &self.url], words].concat())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does what `curl` would do with the words of a command, taken apart by a real shell.
fn curl(command: &str) -> serde_json::Value {
    let script = format!("curl() {{ printf '%s\\0' \"$@\"; }}\n{command}");
    let words = Command::new("sh").args(["-c", &script]).output().expect("a shell is there").stdout;
    let words: Vec<_> = text(&words).split_terminator('\0').collect();
    let mut request = http::Request::post(words[1]);
    let mut body = String::new();
    for pair in words[2..].chunks(2) {
        match pair {
            ["-H", header] => {
                let (name, value) = header.split_once(": ").expect("a header");
                request = request.header(name, value);
            }
            ["-d", data] => body = (*data).to_owned(),
            other => panic!("{other:?}"),
        }
    }
    let request = request.body(Full::new(Bytes::from(body))).expect("a request");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let response = client.request(request).await.expect("an answer");
        assert_eq!(response.headers()["content-type"], "application/json");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        serde_json::from_slice(&body).expect("JSON")
    })
}

#[test]
fn the_demo_shows_a_task_and_prints_commands_that_work() {
    let mut demo = Demo::start();
    let story = demo.until("Try it from another terminal").concat();
    for part in [
        "result: Hello, Ada!",
        "handle of task ",
        "tasks/get: working",
        "tasks/get: completed",
        "elicitation-1 asks: For which date",
        "result: A table for 4 on 2026-08-01, on the terrace is yours.",
    ] {
        assert!(story.contains(part), "{part}: {story}");
    }
    let hints = demo.until("Serving until Ctrl-C.").concat();
    let commands: Vec<_> = hints.split("\n\n").filter(|part| part.trim_start().starts_with("curl")).collect();
    let [list, call, get] = commands[..] else { panic!("three commands: {hints}") };
    assert_eq!(curl(list)["result"]["tools"][1]["name"], "report");
    let handle = curl(call);
    assert_eq!(handle["result"]["resultType"], "task");
    let shown = handle["result"]["taskId"].as_str().expect("an id");
    let theirs =
        story.split("handle of task ").nth(1).and_then(|rest| rest.split(' ').next()).expect("an id");
    assert_eq!(curl(get)["result"]["status"], "completed");
    assert_eq!(curl(&get.replace(theirs, shown))["result"]["status"], "working");
    let (_, page) = hints.split_once("in a browser:").expect("an address of the page");
    let operators = page.trim().lines().next().expect("an address").trim().trim_end_matches('/');
    let listed =
        Command::new(env!("CARGO_BIN_EXE_deferral")).args(["tasks", "list", "--admin", operators]).output();
    let listed = text(&listed.expect("it runs").stdout).to_owned();
    assert!(listed.lines().any(|line| line.contains("report") && line.contains("working")), "{listed}");
    interrupt(&demo.child);
    assert_eq!(demo.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn call_prints_results_on_stdout_and_the_way_there_on_stderr() {
    let demo = Demo::start();
    let output = demo.call(&["greet", r#"{"name":"Ada"}"#]);
    assert_eq!(
        (output.status.code(), text(&output.stdout), text(&output.stderr)),
        (Some(0), "Hello, Ada!\n", "")
    );

    let output = demo.call(&["report", r#"{"seconds":1.6}"#]);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "The report is done. It took 1.6 s.\n")
    );
    let said = text(&output.stderr);
    for part in ["writing the report (0.5/1.6)\n", "task ", "working\n", "completed\n"] {
        assert!(said.contains(part), "{part}: {said}");
    }

    let output = demo.call(&["report", r#"{"seconds":1.6}"#, "--no-tasks", "--json"]);
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(result["content"][0]["text"], "The report is done. It took 1.6 s.");
    assert!(!text(&output.stderr).contains("task "), "{}", text(&output.stderr));
}

#[test]
fn call_tells_by_its_exit_code_how_it_ended() {
    let demo = Demo::start();
    let output = demo.call(&["greet"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), "name must be a string\n"));
    let output = demo.call(&["nobody"]);
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(2), "error: unknown tool nobody (-32602)\n")
    );
    let output = demo.call(&["report", "--timeout", "100ms"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no result within 100ms; the call was cancelled"));
    let output = demo.call(&["greet", "[]"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("not an object"));
    let url = demo.url.clone();
    drop(demo);
    let output = deferral(&["call", &url, "greet"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot be reached"), "{}", text(&output.stderr));
}

#[test]
fn ctrl_c_cancels_the_task() {
    let demo = Demo::start();
    let mut call = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(["call", &demo.url, "report", r#"{"seconds":600}"#])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(call.stderr.take().expect("it is piped")).lines();
    let handle = lines.by_ref().map(|line| line.expect("a line")).find(|line| line.starts_with("task "));
    let handle = handle.expect("a handle").split(' ').nth(1).expect("an id").to_owned();
    interrupt(&call);
    assert_eq!(call.wait().expect("it ends").code(), Some(130));
    assert_eq!(demo.status(&handle), "cancelled");
}

#[test]
fn a_name_that_is_given_by_host_is_served_and_another_is_told_how() {
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
fn the_handle_that_is_printed_goes_on_with_its_task() {
    let demo = Demo::start();
    let mut call = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(["call", &demo.url, "report", r#"{"seconds":2}"#])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(call.stderr.take().expect("it is piped")).lines();
    let handle = lines.by_ref().map(|line| line.expect("a line")).find(|line| line.starts_with("task "));
    let handle = handle.expect("a handle").split(' ').nth(1).expect("an id").to_owned();
    // Its terminal was closed: nobody cancels.
    call.kill().expect("it runs");
    call.wait().expect("it ends");
    let output = demo.call(&["--task", &handle]);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "The report is done. It took 2 s.\n"),
        "{}",
        text(&output.stderr)
    );
    let output = demo.call(&["--task", "nobody"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: "), "{}", text(&output.stderr));
    for words in [&["report", "--task", "x"][..], &["--task", "x", "--no-tasks"]] {
        assert!(text(&demo.call(words).stderr).contains("Usage: "), "{words:?}");
    }
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

#[test]
fn serve_says_where_it_listens_and_ends_when_told() {
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

impl Demo {
    /// A call whose standard input is this text.
    fn call_typing(&self, words: &[&str], typed: &str) -> Output {
        let mut call = self.begin(words);
        // It may end before it has read everything.
        let _ = call.stdin.take().expect("it is piped").write_all(typed.as_bytes());
        call.wait_with_output().expect("it ends")
    }

    fn begin(&self, words: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args([&["call", &self.url], words].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    }
}

const BOOKED: &str = "A table for 4 on 2026-08-01, on the terrace is yours.\n";

#[test]
fn a_person_is_asked_on_the_call_and_in_its_task() {
    let demo = Demo::start();
    let typed = "tomorrow\n2026-08-01\n4\n2\n\n";
    for (arguments, in_task) in [("{}", false), (r#"{"seconds":1.3}"#, true)] {
        let output = demo.call_typing(&["book_table", arguments, "--ask"], typed);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), BOOKED), "{said}");
        for part in [
            &format!("book_table at {} (elicitation-1) requests input:", demo.url),
            "For which date, and for how many people?",
            "Date must be a date, as in 2026-07-28.",
            "[2] >",
            "2  On the terrace",
            "Where to sit: On the terrace",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(said.contains("input_required\n"), in_task, "{said}");
    }
    let output = demo.call_typing(&["book_table", "--ask"], "/decline\n");
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "Nothing was booked, as you wished.\n")
    );
}

#[test]
fn answers_can_be_given_by_option() {
    let demo = Demo::start();
    let answer = r#"elicitation-1={"date":"2026-08-01","party":4,"seat":"outside"}"#;
    for arguments in ["{}", r#"{"seconds":1.3}"#] {
        let output = demo.call(&["book_table", arguments, "--answer", answer]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), BOOKED));
    }
    let output = demo.call(&["book_table", "--answer", "elicitation-1=cancel", "--answer", "other=accept"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "Nothing was booked.\n"));
    assert_eq!(
        text(&output.stderr),
        "note: no input request had the key `other`; its --answer was not used\n"
    );
    let output = demo.call(&["book_table", "--answer", "elicitation-1={}"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`content.date` is required"), "{}", text(&output.stderr));
    let output = demo.call(&["book_table", r#"{"seconds":1.3}"#, "--answer", "other={}"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(
        said.contains("no answers are available\n  elicitation-1 (elicitation/create): For which date"),
        "{said}"
    );
    let task = said.split("task ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a handle");
    assert_eq!(demo.status(task), "cancelled");
}

#[test]
fn where_nobody_can_be_asked_nobody_is() {
    let demo = Demo::start();
    for words in [&["book_table"][..], &["book_table", "--no-ask"], &["book_table", "--root", "file:///a"]] {
        let output = demo.call(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(
            text(&output.stdout).contains("your client does not support elicitation"),
            "{}",
            text(&output.stdout)
        );
    }
}

#[test]
fn a_question_without_an_answer_ends_the_call_and_its_task() {
    let demo = Demo::start();
    let output = demo.call_typing(&["book_table", r#"{"seconds":1.3}"#, "--ask"], "2026-08-01\n");
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("error: standard input ended before every input request was answered"), "{said}");
    let task = said.split("task ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a handle");
    assert_eq!(demo.status(task), "cancelled");
}

#[test]
fn ctrl_c_while_a_question_is_open_cancels() {
    let demo = Demo::start();
    for (arguments, in_task) in [("{}", false), (r#"{"seconds":1.3}"#, true)] {
        let mut call = demo.begin(&["book_table", arguments, "--ask"]);
        let mut said = String::new();
        let mut stderr = BufReader::new(call.stderr.take().expect("it is piped"));
        while !said.contains("Date (") {
            assert!(stderr.read_line(&mut said).expect("it can be read") > 0, "{said}");
        }
        // The standard input stays open: the read that waits for a line must not keep it.
        let _typing = call.stdin.take();
        interrupt(&call);
        assert_eq!(call.wait().expect("it ends").code(), Some(130), "{said}");
        if in_task {
            let task = said.split("task ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a handle");
            assert_eq!(demo.status(task), "cancelled");
        }
    }
}

impl Demo {
    /// What `tasks/get` says of a task.
    fn status(&self, task: &str) -> String {
        let get = format!(
            r#"curl -s {} -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tasks/get' -H 'Mcp-Name: {task}' -d '{{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{{"taskId":"{task}","_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{"extensions":{{"io.modelcontextprotocol/tasks":{{}}}}}}}}}}}}'"#,
            self.url
        );
        curl(&get)["result"]["status"].as_str().expect("a status").to_owned()
    }
}

/// A proxy with a configuration of its own in front of some server.
struct Serving {
    child: Child,
    url: String,
}

impl Serving {
    fn start(config: &Path, key: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args(["--config", config.to_str().expect("a plain path")])
            .env("STATE_KEY", key)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut said).expect("a line");
        let url = said.trim().strip_prefix("listening on ").expect("where it listens").to_owned();
        Self { child, url }
    }

    /// `tools/call` of `book_table` with a state, or without one.
    fn book(&self, state: Option<&str>) -> serde_json::Value {
        let state = state.map(|state| format!(r#","requestState":"{state}""#)).unwrap_or_default();
        curl(&format!(
            r#"curl -s {} -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tools/call' -H 'Mcp-Name: book_table' -d '{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"book_table"{state},"_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{"elicitation":{{}}}}}}}}}}'"#,
            self.url
        ))
    }
}

impl Serving {
    /// Whether the connection ends with what is answered on it.
    fn lets_go(&self) -> bool {
        let answer = http_get(&self.url);
        answer.to_ascii_lowercase().contains("\r\nconnection: close\r\n")
    }
}

/// The head of the answer to a GET that asks for nothing.
fn http_get(url: &str) -> String {
    let (address, path) = url.strip_prefix("http://").and_then(|url| url.split_once('/')).expect("a URL");
    let mut socket = TcpStream::connect(address).expect("it listens");
    write!(socket, "GET /{path} HTTP/1.1\r\nhost: {address}\r\n\r\n").expect("it is read");
    let mut head = String::new();
    let mut lines = BufReader::new(socket);
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(lines.read_line(&mut head).expect("a head"), 0, "{head}");
    }
    head
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends the process a signal.
fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill is there");
    assert!(sent.success());
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
fn ctrl_c_that_waits_says_what_for_and_that_another_one_ends_it() {
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
fn until_others_have_had_notice_of_its_end_new_calls_are_served_and_connections_let_go() {
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

/// A proxy that answers slow calls of clients that know no tasks with tickets.
fn giving_tickets(demo: &Demo, folder: &Path) -> Serving {
    let path = folder.join("deferral.yaml");
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: off\nroutes: [{{ upstream: {{ url: '{}' }}, held: {{ ticket: 100ms }}, tickets: {{ for: [{{ client: 'deferral-*' }}] }} }}]\n",
        demo.server
    );
    std::fs::write(&path, text).unwrap();
    Serving::start(&path, "")
}

#[test]
fn a_call_that_wants_no_task_is_followed_by_its_ticket() {
    let demo = Demo::start();
    let folder = tempfile::tempdir().unwrap();
    let proxy = giving_tickets(&demo, folder.path());
    for protocol in ["2026-07-28", "2025-11-25", "2025-06-18"] {
        let words =
            ["call", &proxy.url, "report", r#"{"seconds":0.6}"#, "--no-tasks", "--protocol", protocol];
        let output = deferral(&words);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(text(&output.stdout).contains("The report is done"), "{output:?}");
        assert!(text(&output.stderr).contains("ticket tk_"), "{protocol}: {output:?}");
        let shown = deferral(&[&words[..], &["--ticket"]].concat());
        assert_eq!(shown.status.code(), Some(0));
        assert!(text(&shown.stdout).contains("deferral_result"), "{shown:?}");
    }
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
            .starts_with("the call that `requestState` belongs to is not held by this process")
    );
    assert_eq!(message(&three.book(Some(state))), "`requestState` is not one of this server's");
    // The first key seals.
    let asked = two.book(None);
    let state = asked["result"]["requestState"].as_str().expect("a state");
    assert_eq!(message(&one.book(Some(state))), "`requestState` is not one of this server's");
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
