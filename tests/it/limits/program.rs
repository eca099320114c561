//! Harness: the program in front of a server; its memory and descriptors are read.

use crate::support::{legacy_server::LegacyServer, modern_client::Client, program::where_it_listens};
use http::Method;
use serde_json::json;
use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};
use tempfile::TempDir;

pub(crate) struct Program {
    child: Child,
    pub(crate) addr: SocketAddr,
    /// For operators.
    pub(crate) admin: SocketAddr,
    /// The log's pipe, which only a test reads.
    pub(crate) log: Option<ChildStderr>,
    _folder: TempDir,
}

/// Where a log goes that no test looks at.
pub(crate) enum Log {
    Nowhere,
    Piped,
    /// A disk on which there is no room.
    Full,
}

/// Where this process's proxies listen for operators: it is written in a log, which is not always there to be read. An address of
/// this machine that no other process takes; a test has one proxy.
fn for_operators() -> SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 + high, middle, low], 8809))
}

// === impl Program ===

impl Program {
    /// In front of this server, with these members beside the routes.
    pub(crate) fn start(server: &LegacyServer, top: &[&str], log: Log) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deferral.yaml");
        let admin = for_operators();
        let top: String = top.iter().map(|member| format!("{member}\n")).collect();
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: {admin}\n{top}routes: [{{ upstream: {{ url: \"{}\" }} }}]\n",
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
                Log::Full => fs::File::options().write(true).open("/dev/full").expect("it is there").into(),
            })
            .spawn()
            .expect("the program starts");
        let addr = where_it_listens(&mut child);
        let log = child.stderr.take();
        Self { child, addr, admin, log, _folder: folder }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.addr)
    }

    /// The value of this metric.
    pub(crate) async fn count(&self, name: &str) -> u64 {
        let mut request = Client::new(self.admin).with("host", "localhost").spelled("", None, String::new());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = "/metrics".parse().expect("a path");
        let answer = Client::new(self.admin).send_request(request).await.answer().await;
        let line = answer.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{}", answer.body)).parse().expect("a number")
    }

    /// Whether a new caller is served.
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
