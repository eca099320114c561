//! Configurations: whatever is written, each problem has a place and says something, and what `check` accepts
//! starts.

use deferral::internals::{app, config, runtime::Network};
use std::path::Path;

/// Relative paths begin here, so no file that a configuration names is there.
const FOLDER: &str = "/nonexistent/deferral.yaml";

/// `yaml` is the file.
pub fn target(yaml: &[u8]) {
    let Ok(text) = std::str::from_utf8(yaml) else { return };
    // A device may be named for a key, and keep its reader waiting.
    if ["..", "/dev", "/proc"].iter().any(|path| text.contains(path)) {
        return;
    }
    match config::parse(Path::new(FOLDER), text) {
        // `check` also reads certificates, which are not there; and the system's own are slow to read.
        Ok(config) if config.front.tls.is_some() || text.contains("https") => {}
        Ok(config) => starts(config),
        Err(problems) => {
            let text = text.replace("\r\n", "\n").replace('\r', "\n");
            let lines: Vec<&str> = text.lines().collect();
            for line in problems.to_string().split(FOLDER).skip(1) {
                if line.starts_with(": no route;") {
                    // What is nowhere has no place.
                    continue;
                }
                let mut parts = line.strip_prefix(':').expect("a colon").splitn(3, ':');
                let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok());
                let place = number().zip(number());
                let (row, column) = place.unwrap_or_else(|| panic!("no place: {problems}"));
                assert!(row >= 1 && row <= lines.len() + 1, "line {row} of {}: {problems}", lines.len());
                let length = lines.get(row - 1).map_or(0, |line| line.chars().count());
                assert!(column >= 1 && column <= length + 2, "column {column} of {length}: {problems}");
                assert!(parts.next().is_some_and(|said| said.len() > 5), "{problems}");
            }
        }
    }
}

fn starts(config: config::Config) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // The operator's address is the system's also where the rest is on pipes.
        let config = config::Config { admin: None, ..config };
        let running = app::start_on(config, &Network::Pipes(Default::default()));
        if let Err(error) = running {
            panic!("`check` accepts what does not start: {error}");
        }
    });
}
