//! The program as a child process.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command},
};

/// Where a program that was just started listens, once it does: it says so on its standard output, which is piped.
pub(crate) fn where_it_listens(child: &mut Child) -> SocketAddr {
    let mut said = String::new();
    BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut said).expect("a line");
    let addr = said.strip_prefix("listening on http://").and_then(|url| url.split('/').next()?.parse().ok());
    addr.unwrap_or_else(|| panic!("it says {said:?}"))
}

/// What the program writes to its standard error for operators, once it is ready.
#[derive(Debug, Default)]
pub(crate) struct ReadyLines {
    /// The address of the page.
    pub(crate) url: String,
    /// The file with the token that was made, or why there is none.
    pub(crate) token_place: String,
}

// === impl ReadyLines ===

impl ReadyLines {
    /// Reads up to the last of the two; what else is written meanwhile goes to `log`.
    pub(crate) fn read(
        lines: impl Iterator<Item = std::io::Result<String>>,
        mut log: impl FnMut(String),
    ) -> Self {
        let mut ready = Self::default();
        for line in lines {
            let line = line.expect("text");
            if let Some(url) = line.strip_prefix("admin: ") {
                ready.url = url.to_owned();
            } else if let Some(place) = line.strip_prefix("admin token: ") {
                ready.token_place = place.to_owned();
                return ready;
            } else {
                log(line);
            }
        }
        panic!("it does not say where operators find it: {ready:?}")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let address = self.url.trim_start_matches("http://").trim_end_matches('/');
        address.parse().unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The token in the file.
    pub(crate) fn token(&self) -> String {
        let text = std::fs::read_to_string(&self.token_place);
        text.unwrap_or_else(|error| panic!("{error}: {self:?}")).trim().to_owned()
    }
}

/// Sends it what Ctrl-C does.
pub(crate) fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill is there");
    assert!(sent.success());
}
