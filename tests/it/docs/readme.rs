//! The README's commands work in their order, in a fresh folder, on what the README has started by then. Ports are free
//! ones, as others may have those of the README.

use super::{
    blocks,
    commands::{commands, is_ours, program, said, words},
};
use crate::support::program::interrupt;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    sync::mpsc,
    thread,
};

/// The proxy that the last command has started.
struct Running {
    child: Child,
    /// The endpoint, and the address of operators.
    url: String,
    admin: String,
}

impl Running {
    /// `deferral demo`.
    fn demo(folder: &Path) -> Self {
        let words = ["demo", "--listen", "127.0.0.1:0"];
        let mut child = program(folder, &words).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
        let lines = until(lines, "Serving until Ctrl-C.");
        let url =
            lines.iter().find_map(|line| line.strip_prefix("The proxy in front of it:")).expect("a URL");
        let at = lines.iter().position(|line| line.starts_with("The admin page")).expect("a hint");
        let link = lines[at..].iter().find(|line| line.contains("http://")).expect("a URL");
        Self { child, url: url.trim().to_owned(), admin: base(link) }
    }

    /// A command that serves until SIGTERM.
    fn serving(folder: &Path, words: &[String]) -> Self {
        let server = words.iter().position(|word| word == "--").unwrap_or(words.len());
        let mut all: Vec<_> = words.iter().map(String::as_str).collect();
        all.splice(server..server, ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let mut command = program(folder, &all);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let stderr = child.stderr.take().expect("it is piped");
        let (tell, admin) = mpsc::channel();
        // The log goes on, and must be read.
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if line.contains("http://127.0.0.1:") && !line.contains("deferral:") {
                    let _ = tell.send(base(&line));
                }
            }
        });
        let url = said(&mut child, "listening on ").trim_start_matches("listening on ").to_owned();
        Self { child, url, admin: admin.recv().expect("the address of operators") }
    }

    /// Ends it by Ctrl-C, as the next that is started needs its ports.
    fn stop(mut self) {
        interrupt(&self.child);
        assert_eq!(self.child.wait().expect("it ends").code(), Some(0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines up to one that is this. The rest is read and dropped.
fn until(mut lines: impl Iterator<Item = String> + Send + 'static, last: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines.by_ref() {
        let is_last = line == last;
        found.push(line);
        if is_last {
            thread::spawn(move || lines.for_each(drop));
            return found;
        }
    }
    panic!("it ended before it said {last:?}: {found:#?}");
}

/// The scheme and the address of the first URL in a line.
fn base(line: &str) -> String {
    let at = line.find("http://").expect("a URL");
    let rest = &line[at + "http://".len()..];
    format!("http://{}", rest.split(['/', ' ']).next().expect("an address"))
}

#[test]
fn the_commands_of_the_readme_work_in_their_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut running: Option<Running> = None;
    let (mut ran, mut tasks) = (0, 0);
    for block in blocks(Path::new("README.md")) {
        if block.kind == "yaml" {
            fs::write(folder.path().join("deferral.yaml"), &block.text).expect("it can be written");
        }
        for command in commands(&block) {
            // What is no command of ours is run elsewhere (`commands.rs`).
            let Some(ours) = is_ours(&command).filter(|_| block.kind == "console") else { continue };
            let at = format!("{}:{}: `{command}`", block.page, block.line);
            ran += 1;
            let mut all = words(ours);
            let serves = all[0].starts_with("--");
            if serves || all[0] == "demo" {
                if let Some(before) = running.take() {
                    before.stop();
                }
                running = Some(match serves {
                    true => Running::serving(folder.path(), &all),
                    false => Running::demo(folder.path()),
                });
                continue;
            }
            if let Some(Running { url, admin, .. }) = &running {
                all.iter_mut().for_each(|word| *word = word.replace("http://127.0.0.1:8808/mcp", url));
                if ["tasks", "report", "ready", "explain"].contains(&&*all[0]) {
                    all.extend(["--admin".to_owned(), admin.clone()]);
                }
            }
            let all: Vec<_> = all.iter().map(String::as_str).collect();
            let output = program(folder.path(), &all).output().expect("it runs");
            let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
            assert!(output.status.success() && !out.is_empty(), "{at}: {err}");
            assert!(!err.contains("warning"), "{at}: {err}");
            tasks += usize::from(err.contains("task "));
        }
    }
    if let Some(last) = running {
        last.stop();
    }
    assert!(ran > 10 && tasks == 1, "{ran} ran, {tasks} became tasks");
}

#[test]
fn the_readme_says_in_its_first_lines_what_the_problem_is() {
    let text = super::text(Path::new("README.md"));
    let first: Vec<_> = text.lines().take(6).collect();
    assert!(
        first.join(" ").contains("give up on a tool call") && first.join(" ").contains("60 s"),
        "{first:?}"
    );
    assert!(text.lines().count() < 120, "it is short");
}
