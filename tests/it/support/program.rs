//! The program itself, as a test starts it.

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

/// Sends it what Ctrl-C does.
pub(crate) fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill is there");
    assert!(sent.success());
}
