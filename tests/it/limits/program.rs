//! The program itself at work in front of a server, to look at what it takes.

use crate::support::{clients::Client, servers::LegacyServer};
use serde_json::json;
use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};
use tempfile::TempDir;

pub(crate) struct Program {
    child: Child,
    pub(crate) addr: SocketAddr,
    /// Where its log goes. Nobody reads it unless a test does.
    pub(crate) log: Option<ChildStderr>,
    _folder: TempDir,
}

/// Where a log goes that no test looks at.
pub(crate) enum Log {
    Nowhere,
    Piped,
}

// === impl Program ===

impl Program {
    /// In front of this server, with these members beside the routes.
    pub(crate) fn start(server: &LegacyServer, top: &[&str], log: Log) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deferral.yaml");
        let top: String = top.iter().map(|member| format!("{member}\n")).collect();
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: \"off\"\n{top}routes: [{{ upstream: {{ url: \"{}\" }} }}]\n",
            server.url()
        );
        fs::write(&path, text).expect("it can be written");
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .arg("--config")
            .arg(&path)
            .env_remove("DEFERRAL_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(match log {
                Log::Nowhere => Stdio::null(),
                Log::Piped => Stdio::piped(),
            })
            .spawn()
            .expect("the program starts");
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut said).expect("a line");
        let addr = said.trim().strip_prefix("listening on http://").and_then(|url| url.strip_suffix("/mcp"));
        let addr = addr.unwrap_or_else(|| panic!("it says {said:?}")).parse().expect("an address");
        let log = child.stderr.take();
        Self { child, addr, log, _folder: folder }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.addr)
    }

    /// Whether a caller whom nobody knows is served.
    pub(crate) async fn serves(&self, token: &str) -> bool {
        let answer = self.client().bearing(token).ask("tools/list", json!({})).await;
        answer.status == 200 && answer.result()["tools"].is_array()
    }

    /// What it has in memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.status("VmRSS:")
    }

    /// What it has asked the system for, whether or not it has used it yet, in bytes.
    pub(crate) fn reserved(&self) -> usize {
        self.status("VmData:")
    }

    fn status(&self, of: &str) -> usize {
        let status = fs::read_to_string(self.of_process("status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(of)).expect("it has memory");
        let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kilobytes << 10
    }

    /// The descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(self.of_process("fd")).expect("it runs").count()
    }

    fn of_process(&self, file: &str) -> std::path::PathBuf {
        Path::new("/proc").join(self.child.id().to_string()).join(file)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
