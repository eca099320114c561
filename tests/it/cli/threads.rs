//! The threads that serve calls.

use super::text;
use std::process::Command;

const THREADS: &str = "TOKIO_WORKER_THREADS";

#[test]
fn an_invalid_number_of_threads_is_an_error() {
    for wrong in ["0", "-1", "two", "1.5"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
        command.args(["--upstream", "http://127.0.0.1:1/mcp", "--listen", "127.0.0.1:0"]).env(THREADS, wrong);
        let ended = command.output().expect("the program starts");
        let said = format!(
            "error: the environment variable `{THREADS}` is {wrong:?}; it must be a number of threads, at least 1\n"
        );
        assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(2), &*said));
    }
}

/// Counted from `/proc`.
#[cfg(target_os = "linux")]
mod counted {
    use super::THREADS;
    use crate::support::program::{interrupt, where_it_listens};
    use std::{
        fs,
        process::{Command, Stdio},
        thread,
    };

    /// How many threads serve calls where this is asked for, if anything is.
    fn threads_where(asked: Option<&str>) -> usize {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
        command.args(["--upstream", "http://127.0.0.1:1/mcp", "--listen", "127.0.0.1:0", "--admin", "off"]);
        command.env_remove(THREADS).envs(asked.map(|asked| (THREADS, asked)));
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program starts");
        where_it_listens(&mut child);
        let names = || {
            let threads = fs::read_dir(format!("/proc/{}/task", child.id())).expect("it runs");
            threads.map(|task| {
                fs::read_to_string(task.expect("it runs").path().join("comm")).unwrap_or_default()
            })
        };
        // One that has only just begun still has the name of the whole.
        while names().filter(|name| name == "deferral\n").count() > 1 {
            thread::yield_now();
        }
        let count = names().filter(|name| name == "tokio-rt-worker\n").count();
        interrupt(&child);
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
        count
    }

    #[test]
    fn there_is_one_thread_for_two_cores_or_the_configured_number() {
        let cores = thread::available_parallelism().expect("the system knows").get();
        let usual = (cores / 2).max(1);
        for (asked, threads) in [(None, usual), (Some(""), usual), (Some("1"), 1), (Some("5"), 5)] {
            assert_eq!(threads_where(asked), threads, "{asked:?}");
        }
    }
}
