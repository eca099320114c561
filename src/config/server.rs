//! The keys of `upstream`: the server's address, or the command that starts it.

use super::{
    At, Place,
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
    let command = s
        .key("command", "The command that starts it, with its arguments: a server over stdio.")
        .set(list(text()).some());
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
    let folder_ = s.key("cwd", "The folder the command runs in; relative to this file's.").set(text());
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
    let shared = s
        .key(
            "shared",
            "Whether clients from elsewhere may use the command. To it all of them are one: each may do whatever it \
             can do with the files and the credentials it has.",
        )
        .with_default("false")
        .set(truth());
    let with_command = [
        ("env", place(&env)),
        ("inherit_env", place(&inherit)),
        ("cwd", place(&folder_)),
        ("start", place(&start)),
        ("start_timeout", place(&start_timeout)),
        ("instances", place(&instances)),
        ("shared", place(&shared)),
    ];
    let with_command =
        with_command.into_iter().filter_map(|(key, place)| Some(At::new(place?, key))).collect();
    let command = match command {
        Set::Unset => Set::Unset,
        Set::Wrong => Set::Wrong,
        Set::To(At { place, value: words }) => Set::To(At::new(
            place,
            upstream::Command {
                words: words.into_iter().map(|word| word.value).collect(),
                env: env.given().unwrap_or_default(),
                inherit: inherit.given().unwrap_or_default(),
                folder: folder_.given().map(|path| folder.join(path)),
                start: start.given().unwrap_or_default(),
                start_timeout: start_timeout.given().unwrap_or(defaults.start_timeout),
                instances: instances.given().unwrap_or(defaults.instances),
                ..defaults
            },
        )),
    };
    together::Server { url, command, with_command, is_shared: shared.given().unwrap_or(false) }
}

/// Where it was written, if it was.
fn place<T>(set: &Set<T>) -> Option<Place> {
    match set {
        Set::To(at) => Some(at.place),
        Set::Unset | Set::Wrong => None,
    }
}
