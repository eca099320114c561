//! The keys of `upstream`: the server's address, or the command that starts it.

use super::{
    At,
    kind::{inherit, instances, some_duration, start, text, truth, url, variables},
    section::{Section, Set, list},
    together, values,
};
use crate::upstream;
use std::path::Path;

/// The server's URL, or the command that starts it and what goes with that.
pub(super) fn server(s: &mut Section<'_, '_>, folder: &Path) -> together::Server {
    s.either(&[&["url"], &["command"]]);
    let url = s.key("url", "Its MCP endpoint, over Streamable HTTP.").set(url(values::upstream_url));
    let words = s
        .key("command", "The command that starts it, with its arguments: a server over stdio.")
        .set(list(text()).some());
    let mut with_command = Vec::new();
    let started = started(s, folder, &mut with_command);
    let shared = s
        .key(
            "shared",
            "Whether clients from elsewhere may use the command. To it all of them are one: each may do whatever it \
             can do with the files and the credentials it has.",
        )
        .with_default("false")
        .set(truth());
    let is_shared = given("shared", shared, &mut with_command).unwrap_or(false);
    let command = match words {
        Set::Unset => Set::Unset,
        Set::Wrong => Set::Wrong,
        Set::To(At { place, value: words }) => {
            let words = words.into_iter().map(|word| word.value).collect();
            Set::To(At::new(place, upstream::Command { words, ..started }))
        }
    };
    together::Server { url, command, with_command, is_shared }
}

/// How a command is started, whose words are elsewhere. The keys that are written go to `written`.
fn started(s: &mut Section<'_, '_>, folder: &Path, written: &mut Vec<At<&'static str>>) -> upstream::Command {
    let defaults = upstream::Command::new(Vec::new());
    let env = s.key("env", "Variables that the command gets, beside those it inherits.").set(variables());
    let inherit = s
        .key(
            "inherit_env",
            "What of the proxy's environment the command gets: `all`, `safe` (what the SDKs' own clients pass on: \
             HOME, LOGNAME, PATH, SHELL, TERM, USER), or a list of names beside the safe ones.",
        )
        .with_default("safe")
        .set(inherit());
    let cwd = s.key("cwd", "The folder the command runs in; relative to this file's.").set(text());
    let start = s
        .key("start", "When the command is started: `lazy`, with the first call, or `eager`, with the proxy.")
        .with_default("lazy")
        .set(start());
    let start_timeout = s
        .key("start_timeout", "How long the command may take to answer `initialize`.")
        .with_default(&values::show_duration(defaults.start_timeout))
        .set(some_duration());
    let instances = s
        .key(
            "instances",
            "Processes at a time. Callers that declare the same share one; `{ per: caller }` gives each caller its \
             own, for a server that keeps what belongs to one.",
        )
        .set(instances());
    upstream::Command {
        env: given("env", env, written).unwrap_or_default(),
        inherit: given("inherit_env", inherit, written).unwrap_or_default(),
        folder: given("cwd", cwd, written).map(|path| folder.join(path)),
        start: given("start", start, written).unwrap_or_default(),
        start_timeout: given("start_timeout", start_timeout, written).unwrap_or(defaults.start_timeout),
        instances: given("instances", instances, written).unwrap_or(defaults.instances),
        ..defaults
    }
}

/// What is written under a key. Where something is, the key goes to `written`.
fn given<T>(key: &'static str, set: Set<T>, written: &mut Vec<At<&'static str>>) -> Option<T> {
    if let Set::To(At { place, .. }) = &set {
        written.push(At::new(*place, key));
    }
    set.given()
}
