//! From the configuration as written to the one that is meant: defaults filled in, parts put where
//! they belong, and what only shows when the parts are looked at together.

use super::{
    Config, Connections, LogFormat, RouteConfig, Store,
    file::{self, DEFAULT_ADMIN, DEFAULT_DRAIN, DEFAULT_LISTEN, DEFAULT_PATH, File, Set},
    problem::{At, Place, Problem},
    secret::{self, KeySource},
    values,
};
use crate::{front, policy, upstream};
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

/// Fills in and judges. `folder` is what relative paths are relative to. What could not be read
/// has been reported already and is not reported again; the result is only good without problems.
pub(super) fn resolve(file: File, folder: &Path, problems: &mut Vec<Problem>) -> Config {
    let limits = file.limits.or_default();
    let timeouts = file.timeouts.or_default();
    let listen = listen(file.listen, problems);
    let admin = admin(file.admin, &listen, problems);
    let quotas = quotas(&limits, problems);
    Config {
        admin,
        store: file.store.or(Store::Memory),
        quotas,
        state_keys: state_keys(file.request_state, folder, problems),
        connections: Connections {
            clients: written(&limits.connections),
            servers: written(&limits.upstream_connections),
        },
        drain: file.drain.or(DEFAULT_DRAIN),
        log: file.log.or(LogFormat::Text),
        routes: routes(file.routes, &limits, &timeouts, problems),
        front: front::Config {
            listen: listen.into_iter().map(|address| address.value).collect(),
            tls: tls(file.tls, folder, problems),
            access: access(file.access.or_default()),
            limits: front_limits(&limits, problems),
            timeouts: front_timeouts(&timeouts),
            public_url: file.public_url.given(),
        },
    }
}

fn listen(written: Set<Vec<At<SocketAddr>>>, problems: &mut Vec<Problem>) -> Vec<At<SocketAddr>> {
    let addresses = match written {
        Set::To(At { place, value }) if value.is_empty() => {
            problems.push(Problem::new(place, "`listen` names no address; remove it for the default"));
            return value;
        }
        Set::To(At { value, .. }) => value,
        Set::Unset | Set::Wrong => {
            vec![At::new(Place::Whole, DEFAULT_LISTEN.parse().expect("the default is an address"))]
        }
    };
    for (index, address) in addresses.iter().enumerate() {
        // Port 0 is another port each time.
        let again = addresses[..index].iter().any(|other| other.value == address.value);
        if again && address.value.port() != 0 {
            problems.push(Problem::new(address.place, format!("`{}` is listed twice", address.value)));
        }
    }
    addresses
}

fn admin(
    written: Set<Option<SocketAddr>>,
    listen: &[At<SocketAddr>],
    problems: &mut Vec<Problem>,
) -> Option<SocketAddr> {
    let place = written.place();
    let address = written.or_else(|| Some(DEFAULT_ADMIN.parse().expect("the default is an address")))?;
    if address.port() != 0
        && let Some(same) = listen.iter().find(|other| other.value == address)
    {
        problems.push(Problem::new(
            place.unwrap_or(same.place),
            format!("`admin` and `listen` are both {address}; choose another port for one of them, or set `admin: off`"),
        ));
    }
    Some(address)
}

fn tls(written: Set<file::Tls>, folder: &Path, problems: &mut Vec<Problem>) -> Option<front::TlsPaths> {
    let Set::To(At { place, value: tls }) = written else { return None };
    for (key, unset) in [("cert", tls.cert.is_unset()), ("key", tls.key.is_unset())] {
        if unset {
            problems.push(Problem::new(place, format!("`tls` has no `{key}`; name a PEM file")));
        }
    }
    Some(front::TlsPaths { cert: folder.join(tls.cert.given()?), key: folder.join(tls.key.given()?) })
}

/// Reads the keys. Each that is wrong is a problem of its own.
fn state_keys(
    written: Set<file::RequestStateSection>,
    folder: &Path,
    problems: &mut Vec<Problem>,
) -> Vec<secret::Key> {
    let Set::To(At { place, value: section }) = written else { return Vec::new() };
    let sources = match section.keys {
        Set::To(keys) if keys.value.is_empty() => {
            problems.push(Problem::new(
                keys.place,
                "`keys` names no key; without `request_state` one is made at start",
            ));
            return Vec::new();
        }
        Set::To(keys) => keys.value,
        Set::Unset => {
            problems.push(Problem::new(
                place,
                "`request_state` has no `keys`; add some, as in `keys: [{ env: STATE_KEY }]`",
            ));
            return Vec::new();
        }
        Set::Wrong => return Vec::new(),
    };
    let mut keys: Vec<At<secret::Key>> = Vec::with_capacity(sources.len());
    for At { place, value: source } in sources {
        let source = match source {
            KeySource::File(path) => KeySource::File(folder.join(path)),
            KeySource::Env(name) => KeySource::Env(name),
        };
        match source.read() {
            Err(values::Invalid(message)) => problems.push(Problem::new(place, message)),
            Ok(key) => {
                if let Some(first) = keys.iter().find(|first| first.value == key) {
                    let message =
                        format!("this key is listed already{}; remove one of the two", line(first.place));
                    problems.push(Problem::new(place, message));
                }
                keys.push(At::new(place, key));
            }
        }
    }
    keys.into_iter().map(|key| key.value).collect()
}

/// Whether TLS can be served with the files that are named: a problem where each was written.
pub(super) fn certificates(file: &File, folder: &Path, problems: &mut Vec<Problem>) {
    let Set::To(At { place, value: tls }) = &file.tls else { return };
    let (Set::To(cert), Set::To(key)) = (&tls.cert, &tls.key) else { return };
    let paths = front::TlsPaths { cert: folder.join(&cert.value), key: folder.join(&key.value) };
    if let Err(error) = paths.check() {
        let place = match &error {
            front::TlsError::Cert { .. } | front::TlsError::NoCert { .. } => cert.place,
            front::TlsError::Key { .. } => key.place,
            front::TlsError::Pair { .. } => *place,
        };
        problems.push(Problem::new(place, error.to_string()));
    }
}

fn access(written: file::Access) -> policy::Access {
    let values = |list: Set<Vec<At<String>>>| list.or_default().into_iter().map(|at| at.value).collect();
    policy::Access { hosts: values(written.hosts), origins: values(written.origins) }
}

fn routes(
    written: Set<Vec<At<file::Route>>>,
    limits: &file::Limits,
    timeouts: &file::Timeouts,
    problems: &mut Vec<Problem>,
) -> Vec<RouteConfig> {
    let none = |place| {
        Problem::new(place, "no route; add one, as in `routes: [{ upstream: { url: \"http://…\" } }]`")
    };
    let routes = match written {
        Set::To(At { place, value }) => {
            if value.is_empty() {
                problems.push(none(place));
            }
            value
        }
        Set::Unset => {
            problems.push(none(Place::Whole));
            return Vec::new();
        }
        Set::Wrong => return Vec::new(),
    };
    distinct_paths(&routes, problems);
    routes.into_iter().filter_map(|written| route(written, limits, timeouts, problems)).collect()
}

fn distinct_paths(routes: &[At<file::Route>], problems: &mut Vec<Problem>) {
    let mut known: Vec<(Place, &str)> = Vec::with_capacity(routes.len());
    for At { place, value } in routes {
        let (place, path) = match &value.path {
            Set::To(path) => (path.place, &*path.value),
            Set::Unset => (*place, DEFAULT_PATH),
            Set::Wrong => continue,
        };
        if let Some((first, _)) = known.iter().find(|(_, other)| *other == path) {
            problems.push(Problem::new(
                place,
                format!("the path `{path}` is already a route{}; give this one another", line(*first)),
            ));
        }
        known.push((place, path));
    }
}

fn route(
    At { place, value: written }: At<file::Route>,
    limits: &file::Limits,
    timeouts: &file::Timeouts,
    problems: &mut Vec<Problem>,
) -> Option<RouteConfig> {
    let url = upstream_url(place, written.upstream, problems);
    let defer = written.defer.or_default();
    let defaults = policy::Defer::default();
    let questions = written.questions.or_default();
    let after = longest_threshold(&defer, &written.tools);
    let path: Arc<str> = match written.path {
        Set::To(path) => path.value.into(),
        Set::Unset => DEFAULT_PATH.into(),
        Set::Wrong => return None,
    };
    let route = policy::Route {
        path,
        defer: policy::Defer {
            mode: defer.mode.or(defaults.mode),
            after: defer.after.or(defaults.after),
            retention: defer.retention.or(defaults.retention),
        },
        tools: tools(written.tools.or_default(), problems),
        principal: match written.principal.or(file::Principal::Authorization) {
            file::Principal::Authorization => policy::PrincipalSource::Authorization,
            file::Principal::Header(name) => policy::PrincipalSource::Header(name),
        },
        resume: resume(written.resume.or_default()),
        legacy_tasks: legacy_tasks(written.tasks.or_default(), problems),
        held: held(&written.held.or_default(), after, timeouts, problems),
        questions: policy::Questions {
            settle: questions.settle.or(policy::Questions::default().settle),
            park: questions.park.or(policy::Questions::default().park),
        },
        forward: forward(written.forward.or_default(), problems),
        empty_contents_is_error: written.empty_contents_is_error.or(false),
    };
    Some(RouteConfig {
        route,
        upstream: upstream::Config {
            url: url?,
            timeouts: upstream_timeouts(timeouts),
            limits: upstream_limits(limits),
        },
    })
}

fn legacy_tasks(written: file::TasksSection, problems: &mut Vec<Problem>) -> policy::LegacyTasks {
    let defaults = policy::LegacyTasks::default();
    policy::LegacyTasks {
        max_ttl: written.max_ttl.or(defaults.max_ttl),
        errors_complete: match written.tool_errors.given() {
            Some(file::ToolErrors::Completed) => true,
            Some(file::ToolErrors::Failed) => false,
            None => defaults.errors_complete,
        },
        immediate_response: written.immediate_response.given().or(defaults.immediate_response),
        across_eras: written.across_eras.or(defaults.across_eras),
        unsolicited: unsolicited(written.unsolicited, problems),
    }
}

fn unsolicited(written: Set<file::Unsolicited>, problems: &mut Vec<Problem>) -> policy::Unsolicited {
    let Set::To(At { place, value }) = written else { return policy::Unsolicited::default() };
    let signs = match value {
        file::Unsolicited::Never => return policy::Unsolicited::Nobody,
        file::Unsolicited::Always => return policy::Unsolicited::Everybody,
        file::Unsolicited::To(signs) => signs,
    };
    if signs.is_empty() {
        problems.push(Problem::new(place, "`unsolicited` names nobody; write `never` if that is meant"));
    }
    let mut known: Vec<At<policy::ClientMatch>> = Vec::with_capacity(signs.len());
    for sign in signs {
        if let Some(first) = known.iter().find(|first| first.value == sign.value) {
            let message = format!("this sign is listed already{}; remove one of the two", line(first.place));
            problems.push(Problem::new(sign.place, message));
        }
        known.push(sign);
    }
    policy::Unsolicited::Some(known.into_iter().map(|sign| sign.value).collect())
}

fn resume(written: file::ResumeSection) -> policy::Resume {
    let defaults = policy::Resume::default();
    policy::Resume {
        mint: written.mint.or(defaults.mint),
        keep: written.keep.or(defaults.keep),
        bytes: written.bytes.or(defaults.bytes),
        streams: written.streams.or(defaults.streams),
    }
}

/// The longest that a call of the route may run before it becomes a task; nothing where none does.
fn longest_threshold(defer: &file::DeferSection, tools: &Set<Vec<At<file::Tool>>>) -> Duration {
    let tools = match tools {
        Set::To(tools) => &tools.value[..],
        Set::Unset | Set::Wrong => &[],
    };
    let defaults = policy::Defer::default();
    let route = (defer.mode.copied_or(defaults.mode), defer.after.copied_or(defaults.after));
    let tools =
        tools.iter().map(|tool| (tool.value.mode.copied_or(route.0), tool.value.after.copied_or(route.1)));
    let waits = tools.chain([route]).filter(|(mode, _)| match mode {
        policy::Mode::Auto | policy::Mode::Required => true,
        policy::Mode::Always | policy::Mode::Never | policy::Mode::Observe => false,
    });
    waits.map(|(_, after)| after).max().unwrap_or_default()
}

fn held(
    written: &file::HeldSection,
    after: Duration,
    timeouts: &file::Timeouts,
    problems: &mut Vec<Problem>,
) -> policy::Held {
    let defaults = policy::Held::default();
    let held = policy::Held {
        progress: written.progress.copied_or(defaults.progress),
        comments: written.comments.copied_or(timeouts.keep_alive.copied_or(defaults.comments)),
        deadline: written.deadline.copied_or(defaults.deadline),
    };
    let call = timeouts.call.copied_or(upstream::Timeouts::default().call);
    if let (Set::To(written), Some(deadline)) = (&written.deadline, held.deadline) {
        let shown = values::show_duration(deadline);
        let message = match () {
            () if deadline >= call => format!(
                "`deadline` ({shown}) would never be reached: `timeouts.call` ({}) ends every call before; raise that \
                 or lower this",
                values::show_duration(call)
            ),
            () if deadline <= after => format!(
                "`deadline` ({shown}) would end calls before they become tasks (`after` is {}); raise this or lower that",
                values::show_duration(after)
            ),
            () => return held,
        };
        problems.push(Problem::new(written.place, message));
    }
    held
}

fn upstream_url(
    place: Place,
    written: Set<file::Upstream>,
    problems: &mut Vec<Problem>,
) -> Option<http::Uri> {
    let At { place, value: upstream } = match written {
        Set::To(upstream) => upstream,
        Set::Unset => {
            problems.push(Problem::new(
                place,
                "the route has no `upstream`; add `upstream: { url: \"http://…\" }`",
            ));
            return None;
        }
        Set::Wrong => return None,
    };
    match (upstream.url, upstream.command) {
        (Set::Unset, Set::Unset) => {
            problems.push(Problem::new(place, "`upstream` names no server; give it a `url`"));
            None
        }
        (Set::To(_), Set::To(command)) => {
            problems.push(Problem::new(
                command.place,
                "`upstream` has both `url` and `command`; keep one of the two",
            ));
            None
        }
        (Set::Unset, Set::To(command)) => {
            problems.push(Problem::new(command.place, NO_STDIO));
            None
        }
        (url, Set::Unset | Set::Wrong) => url.given(),
        (Set::Wrong, Set::To(_)) => None,
    }
}

/// Said of `command:` and of `-- CMD` alike.
const NO_STDIO: &str = "servers over stdio are not served by this version; run the server over Streamable HTTP and give its `url`";

fn tools(written: Vec<At<file::Tool>>, problems: &mut Vec<Problem>) -> Vec<policy::ToolRule> {
    let mut earlier: Vec<At<policy::Pattern>> = Vec::new();
    let mut rules = Vec::with_capacity(written.len());
    for At { place, value: tool } in written {
        let matches = match tool.matches {
            Set::To(matches) => matches,
            Set::Unset => {
                problems.push(Problem::new(
                    place,
                    "the rule has no `match`; name the tool, or `*` for every one",
                ));
                continue;
            }
            Set::Wrong => continue,
        };
        if let Some(first) = earlier.iter().find(|first| covers(&first.value, &matches.value)) {
            let (this, that) = (matches.value.as_str(), first.value.as_str());
            let message = if this == that {
                format!(
                    "`{this}` has a rule already{}; the first one holds, so this one never would",
                    line(first.place)
                )
            } else {
                format!(
                    "this rule never holds: `{that}`{} matches all of `{this}`; put this one first",
                    line(first.place)
                )
            };
            problems.push(Problem::new(matches.place, message));
        }
        rules.push(policy::ToolRule {
            matches: matches.value.clone(),
            mode: tool.mode.given(),
            after: tool.after.given(),
            keys: keys(tool.keys.or_default(), problems).into(),
            requires: tool.requires.given().map(Arc::new),
        });
        earlier.push(matches);
    }
    rules
}

/// Whether `first` surely matches every name that `second` does.
///
/// A pattern of plain characters and `*` that matches the other's own text matches whatever its
/// wildcards stand for, as only a `*` can have taken them. A `?` could take a `*` for one character,
/// so such patterns are only compared as they are.
fn covers(first: &policy::Pattern, second: &policy::Pattern) -> bool {
    first == second || (!first.as_str().contains('?') && first.matches(second.as_str()))
}

fn keys(written: Vec<At<String>>, problems: &mut Vec<Problem>) -> Vec<String> {
    let mut keys: Vec<String> = Vec::with_capacity(written.len());
    for key in written {
        if keys.contains(&key.value) {
            problems.push(Problem::new(
                key.place,
                format!("the key `{}` is listed twice; each question needs its own", key.value),
            ));
        }
        keys.push(key.value);
    }
    keys
}

fn forward(written: Vec<At<http::HeaderName>>, problems: &mut Vec<Problem>) -> Vec<http::HeaderName> {
    let mut headers = Vec::with_capacity(written.len());
    for header in written {
        if headers.contains(&header.value) {
            problems.push(Problem::new(header.place, format!("`{}` is listed twice", header.value)));
        }
        headers.push(header.value);
    }
    headers
}

/// What was written, where anything was.
fn written(count: &Set<usize>) -> Option<usize> {
    match count {
        Set::To(At { value, .. }) => Some(*value),
        Set::Unset | Set::Wrong => None,
    }
}

fn front_limits(written: &file::Limits, problems: &mut Vec<Problem>) -> front::Limits {
    let defaults = front::Limits::default();
    let body_bytes = written.body_bytes.copied_or(defaults.body_bytes);
    // Of the memory for bodies a large one may take seven eighths.
    let needed = body_bytes.saturating_add(body_bytes / 7).saturating_add(1);
    let body_memory = written.body_memory.copied_or(defaults.body_memory.max(needed));
    if body_memory < needed && body_bytes > front::SMALL_BODY || body_memory < body_bytes {
        let place = written.body_memory.place().or_else(|| written.body_bytes.place());
        problems.push(Problem::new(
            place.unwrap_or(Place::Whole),
            format!(
                "a body of `body_bytes` ({}) would never fit into `body_memory` ({}); raise that to {needed} at least, \
                 or lower this",
                values::show_size(body_bytes),
                values::show_size(body_memory)
            ),
        ));
    }
    front::Limits {
        body_bytes,
        body_memory,
        header_bytes: written.header_bytes.copied_or(defaults.header_bytes),
        headers: written.headers.copied_or(defaults.headers),
        connections: written.connections.copied_or(defaults.connections),
        calls: written.calls.copied_or(defaults.calls),
        streams: written.streams.copied_or(defaults.streams),
        depth: written.depth.copied_or(defaults.depth),
    }
}

fn front_timeouts(written: &file::Timeouts) -> front::Timeouts {
    let defaults = front::Timeouts::default();
    front::Timeouts {
        read_headers: written.read_headers.copied_or(defaults.read_headers),
        read_body: written.read_body.copied_or(defaults.read_body),
        idle: written.idle_connection.copied_or(defaults.idle),
        write: written.write.copied_or(defaults.write),
    }
}

fn upstream_limits(written: &file::Limits) -> upstream::Limits {
    let defaults = upstream::Limits::default();
    upstream::Limits {
        sessions: written.sessions.copied_or(defaults.sessions),
        task_sessions: written.task_sessions.copied_or(defaults.task_sessions),
        queue: written.queue.copied_or(defaults.queue),
        messages: written.messages.copied_or(defaults.messages),
        identities: written.identities.copied_or(defaults.identities),
        identity_bytes: written.identity_bytes.copied_or(defaults.identity_bytes),
        result_bytes: written.result_bytes.copied_or(defaults.result_bytes),
        departed: written.departed.copied_or(defaults.departed),
    }
}

fn upstream_timeouts(written: &file::Timeouts) -> upstream::Timeouts {
    let defaults = upstream::Timeouts::default();
    upstream::Timeouts {
        connect: written.connect.copied_or(defaults.connect),
        first_byte: written.first_byte.copied_or(defaults.first_byte),
        idle: written.idle.copied_or(defaults.idle),
        call: written.call.copied_or(defaults.call),
        queue: written.queue.copied_or(defaults.queue),
    }
}

fn quotas(written: &file::Limits, problems: &mut Vec<Problem>) -> policy::Quotas {
    let defaults = policy::Quotas::default();
    let least = written.poll_interval_min.copied_or(defaults.poll_interval.0);
    let greatest = written.poll_interval_max.copied_or(defaults.poll_interval.1);
    if least > greatest {
        let place = written.poll_interval_min.place().or_else(|| written.poll_interval_max.place());
        problems.push(Problem::new(
            place.unwrap_or(Place::Whole),
            format!("`poll_interval_min` ({least:?}) is more than `poll_interval_max` ({greatest:?})"),
        ));
    }
    policy::Quotas {
        tasks_per_principal: written.tasks_per_principal.copied_or(defaults.tasks_per_principal),
        tasks: written.tasks.copied_or(defaults.tasks),
        stored_bytes: written.stored_bytes.copied_or(defaults.stored_bytes),
        stored_bytes_per_principal: written
            .stored_bytes_per_principal
            .copied_or(defaults.stored_bytes_per_principal),
        stored_result_bytes: written.stored_result_bytes.copied_or(defaults.stored_result_bytes),
        polls_per_second: written.polls_per_second.copied_or(defaults.polls_per_second),
        misses_per_minute: written.misses_per_minute.copied_or(defaults.misses_per_minute),
        listens_per_principal: written.listens_per_principal.copied_or(defaults.listens_per_principal),
        poll_interval: (least, greatest),
    }
}

/// ` (line 7)`, where it was written in the file.
fn line(place: Place) -> String {
    match place {
        Place::File { line, .. } => format!(" (line {line})"),
        Place::Flag(flag) => format!(" ({flag})"),
        Place::Whole => String::new(),
    }
}
