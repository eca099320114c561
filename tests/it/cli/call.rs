//! `deferral call` against the demo: results, tasks, input requests, interrupts.

use super::{BOOKED, Demo, Serving, curl, deferral, text};
use crate::support::program::interrupt;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

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
fn call_prints_results_on_stdout_and_progress_on_stderr() {
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
fn the_exit_code_of_call_shows_the_outcome() {
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
    // Its terminal was closed: nothing is cancelled.
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
fn input_requests_are_prompted_on_the_call_and_in_its_task() {
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
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "Nothing was booked.\n"));
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
fn without_a_terminal_no_capabilities_are_declared() {
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
fn an_input_request_without_an_answer_ends_the_call_and_its_task() {
    let demo = Demo::start();
    let output = demo.call_typing(&["book_table", r#"{"seconds":1.3}"#, "--ask"], "2026-08-01\n");
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("error: standard input ended before every input request was answered"), "{said}");
    let task = said.split("task ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a handle");
    assert_eq!(demo.status(task), "cancelled");
}

#[test]
fn ctrl_c_while_an_input_request_is_open_cancels() {
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
