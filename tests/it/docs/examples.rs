//! `examples/`: the server and the clients without packages run against each other. `tests/interop/snippets.py` runs the others.

use super::{
    commands::{program, said},
    root, text,
};
use crate::support::program::interrupt;
use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    path::Path,
    process::{Command, Stdio},
};

/// The files, and what runs each.
const RUN_BY: [(&str, &str); 4] = [
    ("slow_server.py", "tests/it/docs/examples.rs"),
    ("client.sh", "tests/it/docs/examples.rs"),
    ("client.mjs", "tests/it/docs/examples.rs"),
    ("client.py", "tests/interop/snippets.py"),
];

#[test]
fn every_example_is_listed_with_what_runs_it() {
    let entries = fs::read_dir(root().join("examples")).expect("there is a folder");
    let mut files: BTreeSet<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().expect("a name")).collect();
    files.remove("README.md");
    assert_eq!(files, RUN_BY.iter().map(|(file, _)| (*file).to_owned()).collect());
    let page = text(Path::new("examples/README.md"));
    for (file, by) in RUN_BY {
        let row = page.lines().find(|line| line.starts_with(&format!("| [`{file}`]({file})")));
        assert!(row.is_some_and(|row| row.ends_with(&format!("| `{by}` |"))), "{file} is run by {by}");
        assert!(text(Path::new(by)).contains(file), "{by} does not run {file}");
    }
}

#[test]
fn the_clients_follow_a_task_of_the_slow_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = root().join("examples");
    let server = examples.join("slow_server.py").display().to_string();
    let flags = ["--listen", "127.0.0.1:0", "--admin", "off", "--after", "100ms", "--", "python3", &server];
    let mut proxy = program(folder.path(), &flags)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let url = said(&mut proxy, "listening on ").trim_start_matches("listening on ").to_owned();
    for [runs, file] in [["sh", "client.sh"], ["node", "client.mjs"]] {
        let done = Command::new(runs).arg(examples.join(file)).args([&url, "0.5"]).output();
        let output = match done {
            Ok(output) => output,
            // A machine that builds this need not have Node.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                continue;
            }
        };
        let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        // Nor curl.
        if err.contains("curl: not found") || err.contains("curl: command not found") {
            continue;
        }
        assert!(output.status.success(), "{file}: {err}");
        assert!(
            out.contains("the call became the task") && out.contains("counted 0.5 s"),
            "{file}: {out}{err}"
        );
    }
    interrupt(&proxy);
    assert_eq!(proxy.wait().expect("it ends").code(), Some(0));
}
