//! Start by an MCP host as a stdio server, in a terminal, and by environment variables alone.

use super::{signal, text};
use crate::support::program::{interrupt, where_it_listens};
use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

const IN_FRONT_OF_A_COMMAND: [&str; 6] = ["--listen", "127.0.0.1:0", "--admin", "off", "--", "cat"];

/// A proxy in front of a command, on any port.
fn proxy(stdin: impl Into<Stdio>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
    command.args(IN_FRONT_OF_A_COMMAND);
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// What it has written to standard error when it ends, and its exit code.
fn ended(mut child: Child) -> (String, Option<i32>) {
    let mut said = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("text");
    (said, child.wait().expect("it ends").code())
}

#[test]
fn a_host_that_starts_it_as_a_stdio_server_gets_the_http_address() {
    for message in [
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#,
        r#"{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{}}"#,
    ] {
        let mut child = proxy(Stdio::piped());
        let mut stdin = child.stdin.take().expect("it is piped");
        writeln!(stdin, "{message}").expect("it is read");
        let address = where_it_listens(&mut child);
        let (said, code) = ended(child);
        assert!(
            said.contains("the proxy serves HTTP") && said.contains(&format!("http://{address}/mcp")),
            "{said}"
        );
        assert_eq!(code, Some(2));
        drop(stdin);
    }
}

#[test]
fn whatever_else_is_on_its_standard_input_is_ignored() {
    let (read, mut write) = std::io::pipe().expect("a pipe");
    write.write_all(b"y\n\n{\"level\":\"info\",\"method\":\"initialize\"}\nno newline").expect("it has room");
    drop(write);
    let in_terminal = in_terminal().args(IN_FRONT_OF_A_COMMAND).spawn().expect("the program starts");
    for mut child in [proxy(Stdio::null()), proxy(read), in_terminal] {
        let address = where_it_listens(&mut child);
        TcpStream::connect(address).expect("it serves");
        assert_eq!(child.try_wait().expect("it can be asked"), None);
        interrupt(&child);
        assert_eq!(ended(child).1, Some(0));
    }
}

/// The program with a new terminal as its standard input, which it holds open itself.
fn in_terminal() -> Command {
    const EXEC: &str = "import os, sys; ours, theirs = os.openpty(); os.dup2(theirs, 0); os.set_inheritable(ours, True); os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = Command::new("python3");
    command.args(["-c", EXEC, env!("CARGO_BIN_EXE_deferral")]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_terminal_that_closes_ends_what_was_started_in_it_without_a_file_and_nothing_else() {
    let mut child = in_terminal().args(IN_FRONT_OF_A_COMMAND).spawn().expect("the program starts");
    where_it_listens(&mut child);
    signal(&child, "-HUP");
    assert_eq!(ended(child).1, Some(0));

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("deferral.yaml");
    std::fs::write(&file, "listen: 127.0.0.1:0\nadmin: off\nroutes: [{ upstream: { command: [cat] } }]\n")
        .expect("written");
    let configured = in_terminal().arg("--config").arg(&file).spawn().expect("the program starts");
    for mut child in [configured, proxy(Stdio::null())] {
        where_it_listens(&mut child);
        signal(&child, "-HUP");
        // It reads again, and says so before anything else.
        let mut said = Vec::new();
        let stderr = child.stderr.as_mut().expect("it is piped");
        while memchr::memmem::find(&said, b"event=config_reloaded").is_none() {
            let mut byte = [0];
            stderr.read_exact(&mut byte).expect("it goes on");
            said.push(byte[0]);
        }
        interrupt(&child);
        assert_eq!(ended(child).1, Some(0));
    }
}

#[test]
fn an_environment_alone_configures_it_and_what_is_wrong_with_a_variable_names_it() {
    let with = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
            .envs([("DEFERRAL_LISTEN", "127.0.0.1:0"), ("DEFERRAL_ADMIN", "off")])
            .envs(variables.iter().copied());
        command.spawn().expect("the program starts")
    };
    let mut child = with(&[
        ("DEFERRAL_UPSTREAM", "http://127.0.0.1:1/mcp"),
        ("DEFERRAL_LOG", "json"),
        ("DEFERRAL_MODE", "observe"),
    ]);
    where_it_listens(&mut child);
    interrupt(&child);
    let (said, code) = ended(child);
    assert_eq!(code, Some(0));
    let started = said.lines().find(|line| line.contains("started")).expect("it says what it serves");
    assert!(
        started.starts_with('{') && started.contains("observe") && started.contains("http://127.0.0.1:1/mcp"),
        "{started}"
    );
    for (variables, problem) in [
        (
            &[("DEFERRAL_UPSTREAM", "http://a/"), ("DEFERRAL_LISTEN", "nowhere")][..],
            "DEFERRAL_LISTEN: `nowhere`",
        ),
        (&[("DEFERRAL_UPSTREAM", "ftp://a/")], "DEFERRAL_UPSTREAM: `ftp://a/`"),
        (&[], "error: no server is configured"),
    ] {
        let output = with(variables).wait_with_output().expect("it ends");
        assert!(text(&output.stderr).contains(problem), "{output:?}");
        assert_eq!(output.status.code(), Some(2));
    }
}
