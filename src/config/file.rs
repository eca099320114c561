//! The keys of the file, each in one place: its name, its description, what it may be, its default, and what it
//! sets.
//!
//! The descriptions are what `deferral check --schema` shows, the defaults those of the parts themselves. What
//! only shows when keys are looked at together is judged by `together`.

use super::{
    At, Config, Connections, LogFormat, Place, RouteConfig, Store,
    kind::{
        Unsolicited, addresses, admin, count, duration, duration_or_off, inherit, instances, key_source, log,
        mode, path, pattern, principal, requires, size, some_duration, start, store, string, text,
        token_source, tool_errors, truth, unsolicited, url, variables,
    },
    secret,
    section::{Section, Set, list, mapping},
    together, values,
};
use crate::{
    front,
    policy::{self, Access, Defer, Held, LegacyTasks, PrincipalSource, Questions, Quotas, Resume, ToolRule},
    upstream,
};
use std::{path::Path, sync::Arc, time::Duration};

pub const DEFAULT_LISTEN: &str = "127.0.0.1:8808";
pub const DEFAULT_PATH: &str = "/mcp";
const DEFAULT_ADMIN: &str = "127.0.0.1:8809";
const DEFAULT_DRAIN: Duration = Duration::from_secs(30);

/// What `limits` sets.
pub(super) struct Limits {
    front: front::Limits,
    upstream: upstream::Limits,
    quotas: Quotas,
    connections: Connections,
}

/// What `timeouts` sets.
pub(super) struct Timeouts {
    front: front::Timeouts,
    pub(super) upstream: upstream::Timeouts,
    keep_alive: Duration,
}

/// A route as it is written; `None` of what is wrong with it.
pub(super) struct Route {
    pub(super) path: Option<At<String>>,
    pub(super) config: Option<RouteConfig>,
}

/// The whole file. `folder` is what relative paths are relative to; `look` whether certificates are looked at.
pub(super) fn file(s: &mut Section<'_, '_>, folder: &Path, look: bool) -> Config {
    let listen = s
        .key(
            "listen",
            "Where clients come in: an IP address with a port, or a list of them. Port 0 takes a free one.",
        )
        .at(addresses(), vec![At::unwritten(DEFAULT_LISTEN.parse().expect("the default is an address"))]);
    let admin = s
        .key("admin", "Where the operator's listener is, or `off`.")
        .at(admin(), Some(DEFAULT_ADMIN.parse().expect("the default is an address")));
    together::listeners(&listen, &admin, s);
    let limits = s.key("limits", "How much of everything there may be.").section("`limits`", limits);
    let timeouts = s.key("timeouts", "How long to wait for what.").section("`timeouts`", timeouts);
    let public_url = s
        .key(
            "public_url",
            "The scheme and host under which clients know the proxy, where something stands in front of it.",
        )
        .set(url(values::public_url));
    // Clients come from elsewhere, or something on the same machine stands in front of us: else they are one
    // person's.
    let is_exposed = matches!(public_url, Set::To(_))
        || listen.value.iter().any(|address| !address.value.ip().to_canonical().is_loopback());
    let access = s.key("access", "Who may come in.").section("`access`", |s| access(s, folder));
    // To those who need a token nothing is open.
    let is_exposed = is_exposed && !access.needs_token;
    let routes = s.key("routes", "The endpoints of the proxy and the servers behind them.").required(
        list(mapping("a route", |s| Some(route(s, &limits, &timeouts, is_exposed, folder, look)))).some(),
    );
    Config {
        admin: admin.value,
        store: s
            .key("store", "Where tasks are kept. With `memory` they end with the process.")
            .or(store(), Store::Memory),
        quotas: limits.quotas,
        state_keys: s
            .key(
                "request_state",
                "What the `requestState`s of questions are sealed with. Left out, a key is made at start: the \
                 states end with the process, and no other process understands them.",
            )
            .section("`request_state`", |s| state_keys(s, folder)),
        connections: limits.connections,
        drain: s
            .key("drain", "How long calls in flight may go on after the signal to stop.")
            .or(duration(), DEFAULT_DRAIN),
        log: s.key("log", "How the log is written, on the standard error.").or(log(), LogFormat::Text),
        routes: together::routes(routes, s),
        front: front::Config {
            listen: listen.value.into_iter().map(|address| address.value).collect(),
            tls: s.key("tls", "Serve HTTPS.").section("`tls`", |s| tls(s, folder, look)),
            access: access.access,
            tokens: access.tokens,
            limits: limits.front,
            timeouts: timeouts.front,
            public_url: public_url.given(),
        },
    }
}

/// Relative paths are relative to `folder`.
fn tls(s: &mut Section<'_, '_>, folder: &Path, look: bool) -> Option<front::TlsPaths> {
    let cert = s.key("cert", "The certificate chain, the server's own first.").required(text());
    let key = s.key("key", "The private key of the first certificate.").required(text());
    for (key, unset) in [("cert", cert.is_unset()), ("key", key.is_unset())] {
        if unset && s.is_written() {
            s.wrong(s.place, format!("`tls` has no `{key}`; name a PEM file"));
        }
    }
    let (Set::To(cert), Set::To(key)) = (cert, key) else { return None };
    let paths = front::TlsPaths { cert: folder.join(cert.value), key: folder.join(key.value) };
    if look && let Err(error) = paths.check() {
        let place = match &error {
            front::TlsError::Cert { .. } | front::TlsError::NoCert { .. } => cert.place,
            front::TlsError::Key { .. } => key.place,
            front::TlsError::Pair { .. } => s.place,
        };
        s.wrong(place, error.to_string());
    }
    Some(paths)
}

fn state_keys(s: &mut Section<'_, '_>, folder: &Path) -> Vec<secret::Key> {
    let keys = s
        .key(
            "keys",
            "Where the keys are, each 32 bytes as 64 hex digits or base64. The first seals, each opens: to change \
             keys, put the new one first, and take the old one out later than `park`. Replicas share theirs.",
        )
        .required(list(key_source()).some());
    together::keys(keys, folder, s)
}

/// What `access` sets.
struct WhoMayComeIn {
    access: Access,
    tokens: policy::Tokens,
    /// Whether `tokens` is written, be it right or wrong.
    needs_token: bool,
}

/// `localhost` and IP addresses may always be named as host.
fn access(s: &mut Section<'_, '_>, folder: &Path) -> WhoMayComeIn {
    let hosts = s.key("hosts", "Host names that clients may use, or `*` for every one.");
    let hosts = hosts.list(string(values::host));
    let origins = s.key("origins", "Origins whose pages may call, or `*` for every one.");
    let origins = origins.list(string(values::origin));
    let plain = |list: Vec<At<String>>| list.into_iter().map(|at| at.value).collect();
    let tokens = s
        .key(
            "tokens",
            "The tokens by which clients are known (`Authorization: Bearer`), each in a file or a variable. A caller is \
             then the token's name; somebody may have several, the new one beside the old. Left out, nobody is asked \
             for one.",
        )
        .set(list(token_source()).some());
    WhoMayComeIn {
        access: Access { hosts: plain(hosts), origins: plain(origins) },
        needs_token: !tokens.is_unset(),
        tokens: together::tokens(tokens, folder, s),
    }
}

fn route(
    s: &mut Section<'_, '_>,
    limits: &Limits,
    timeouts: &Timeouts,
    is_exposed: bool,
    folder: &Path,
    look: bool,
) -> Route {
    let written = s.key("path", "The path that clients use.").with_default(DEFAULT_PATH).set(path());
    let name = match written {
        Set::To(path) => Some(path),
        Set::Unset => Some(At::new(s.place, DEFAULT_PATH.to_owned())),
        Set::Wrong => None,
    };
    let written =
        s.key("upstream", "The server.").required(mapping("`upstream`", |s| Some(server(s, folder))));
    let defer = s.key("defer", "When a `tools/call` becomes a task.").section("`defer`", defer);
    let rules = s
        .key("tools", "What is different for some tools. The first rule that matches holds.")
        .list(mapping("a tool rule", |s| Some(tool(s))));
    let tools = together::tools(rules, s);
    let held = s
        .key("held", "What a client gets that waits for a slow call without a task.")
        .section("`held`", |s| held(s, &defer, &tools, timeouts));
    let principal = caller(s, name.as_ref().filter(|_| is_exposed));
    let forward = s
        .key("forward", "Further headers by which the server knows the caller; they are passed on to it.")
        .list(string(values::forwarded_header));
    let server = together::server(written, is_exposed, look, s);
    let route = policy::Route {
        path: name.as_ref().map_or(DEFAULT_PATH, |path| &path.value).into(),
        defer,
        tools,
        principal,
        resume: s
            .key(
                "resume",
                "Whether a client of an older revision can take up an answer where it broke, although the server \
                 gives its events no ids.",
            )
            .section("`resume`", resume),
        legacy_tasks: s
            .key(
                "tasks",
                "Tasks of 2025-11-25, for clients of that revision in front of a server that has none.",
            )
            .section("`tasks`", legacy_tasks),
        held,
        questions: s
            .key("questions", "Questions that the server asks during a call.")
            .section("`questions`", questions),
        forward: together::once(forward, s, |name| format!("`{name}` is listed twice")),
        empty_contents_is_error: s
            .key(
                "empty_contents_is_error",
                "Answer a `resources/read` that found nothing with an error instead of an empty list.",
            )
            .or(truth(), false),
    };
    let upstream = upstream::Config { timeouts: timeouts.upstream, limits: limits.upstream };
    Route { path: name, config: server.map(|server| RouteConfig { route, server, upstream }) }
}

/// What a caller is, on a route of this path, if that is open to clients from elsewhere.
fn caller(s: &mut Section<'_, '_>, exposed: Option<&At<String>>) -> PrincipalSource {
    let principal = s
        .key(
            "principal",
            "What a caller is: its `Authorization`, or a header that something trusted sets. A task belongs to the \
             caller that made it.",
        )
        .with_default("authorization")
        .set(principal());
    if let (Some(path), Set::Unset) = (exposed, &principal) {
        together::one_caller(&path.value, s);
    }
    principal.given().unwrap_or(PrincipalSource::Authorization)
}

/// The server's URL, or the command that starts it and what goes with that.
fn server(s: &mut Section<'_, '_>, folder: &Path) -> together::Server {
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

fn defer(s: &mut Section<'_, '_>) -> Defer {
    let defaults = Defer::default();
    let retention = s
        .key(
            "retention",
            "How long the result of a finished task stays, at least a second. A task that works is kept whatever \
             this is.",
        )
        .at(duration(), defaults.retention);
    together::gone_soon("retention", &retention, s);
    Defer {
        mode: s.key("mode", "Which calls become tasks.").or(mode(), defaults.mode),
        after: s
            .key("after", "How long a call may run before it becomes a task.")
            .or(duration(), defaults.after),
        retention: retention.value,
    }
}

fn tool(s: &mut Section<'_, '_>) -> Option<At<ToolRule>> {
    let matches =
        s.key("match", "The tool's name; `*` stands for any characters, `?` for one.").required(pattern());
    if matches.is_unset() {
        s.wrong(s.place, "the rule has no `match`; name the tool, or `*` for every one");
    }
    let mode = s.key("mode", "Which calls become tasks; the route's, where it is left out.").set(mode());
    let after = s
        .key("after", "How long a call may run before it becomes a task; the route's, where it is left out.")
        .set(duration());
    let keys = s.key("keys", "Names for the questions the tool asks, in their order.").list(text());
    let keys = together::once(keys, s, |key| {
        format!("the key `{key}` is listed twice; each question needs its own")
    });
    let requires = s
        .key("requires", "What a client must declare to call the tool, such as `{ sampling: {} }`.")
        .set(requires());
    let Set::To(At { place, value: matches }) = matches else { return None };
    let (mode, after, requires) = (mode.given(), after.given(), requires.given().map(Arc::new));
    Some(At::new(place, ToolRule { matches, mode, after, keys: keys.into(), requires }))
}

fn questions(s: &mut Section<'_, '_>) -> Questions {
    let defaults = Questions::default();
    Questions {
        settle: s
            .key(
                "settle",
                "How long to wait for further questions after the first, so that they are put together.",
            )
            .or(duration(), defaults.settle),
        park: s
            .key("park", "How long an unanswered question may wait before its call is given up; in front of a process, also before \
                 a task goes on without its answer, because others wait for the process.")
            .or(duration(), defaults.park),
    }
}

fn legacy_tasks(s: &mut Section<'_, '_>) -> LegacyTasks {
    let defaults = LegacyTasks::default();
    let max_ttl = s
        .key(
            "max_ttl",
            "The longest time that a client can have its result kept, at least a second. A task that works is kept \
             whatever this is.",
        )
        .at(some_duration(), defaults.max_ttl);
    together::gone_soon("max_ttl", &max_ttl, s);
    let unsolicited = s
        .key(
            "unsolicited",
            "Who may be given a task without having asked for one (SEP-2229, draft): `never`, `always`, or a list of \
             what such clients are known by. Clients that do not understand it break.",
        )
        .at(unsolicited(), Unsolicited::Never);
    LegacyTasks {
        max_ttl: max_ttl.value,
        errors_complete: s
            .key(
                "tool_errors",
                "What a task becomes whose tool returned an error: `failed`, as the revision has it, or `completed`, \
                 for clients that drop the result of a failed task.",
            )
            .or(tool_errors(), defaults.errors_complete),
        immediate_response: s
            .key("immediate_response", "What a model may go on with while a task works.")
            .set(text())
            .given(),
        across_eras: s
            .key(
                "across_eras",
                "Let a caller find in one era the tasks that it made in the other. Never holds for callers without \
                 credentials.",
            )
            .or(truth(), defaults.across_eras),
        unsolicited: together::unsolicited(unsolicited, s),
    }
}

fn held(s: &mut Section<'_, '_>, defer: &Defer, tools: &[ToolRule], timeouts: &Timeouts) -> Held {
    let defaults = Held::default();
    let deadline = s
        .key(
            "deadline",
            "How long a client waits at most, or `off`. Then it gets an error, and the call is cancelled.",
        )
        .at(duration_or_off(), defaults.deadline);
    together::deadline(&deadline, defer, tools, timeouts, s);
    Held {
        progress: s
            .key(
                "progress",
                "After how much silence a client that gave a progress token is told that the call still runs, or \
                 `off`.",
            )
            .or(duration_or_off(), defaults.progress),
        comments: s
            .key(
                "comments",
                "After how much silence a comment keeps the connection open; `timeouts.keep_alive`, where it is left \
                 out.",
            )
            .set(some_duration())
            .given()
            .unwrap_or(timeouts.keep_alive),
        deadline: deadline.value,
    }
}

fn resume(s: &mut Section<'_, '_>) -> Resume {
    let defaults = Resume::default();
    Resume {
        mint: s
            .key(
                "mint",
                "Give the events of answers ids, and keep them. Answers whose server gives ids are left as they are.",
            )
            .or(truth(), defaults.mint),
        keep: s
            .key("keep", "How long an answer is kept after its end.")
            .or(some_duration(), defaults.keep),
        bytes: s
            .key("bytes", "Bytes of one answer that are kept: the latest.")
            .or(size(1), defaults.bytes),
        streams: s
            .key("streams", "Answers that are kept at a time. Further ones go without ids.")
            .or(count(1), defaults.streams),
    }
}

fn limits(s: &mut Section<'_, '_>) -> Limits {
    let defaults = front::Limits::default();
    let body_bytes =
        s.key("body_bytes", "Bytes of one request's body. Beyond it: 413.").at(size(1), defaults.body_bytes);
    let body_memory = s
        .key(
            "body_memory",
            "Bytes of all requests' bodies in memory, those of calls in flight included. Beyond it: 503.",
        )
        .at(size(1), defaults.body_memory);
    let clients = s
        .key(
            "connections",
            "Connections of clients at a time. Further ones wait to be accepted. Where nothing is written and the \
             system allows the process too few descriptors, it is a third of those.",
        )
        .at(count(1), defaults.connections);
    let servers = s
        .key(
            "upstream_connections",
            "Connections to servers at a time, of all routes. Calls that need one more wait, at most \
             `timeouts.connect`; then `-31006`. Where nothing is written and the system allows the process too few \
             descriptors, it is two thirds of those.",
        )
        .at(count(1), upstream::CONNECTIONS);
    let front = front::Limits {
        body_memory: together::body_memory(&body_bytes, &body_memory, s),
        body_bytes: body_bytes.value,
        // The HTTP parser's own buffer is no smaller.
        header_bytes: s
            .key("header_bytes", "Bytes of one request's head. Beyond it: 431.")
            .or(size(8 << 10), defaults.header_bytes),
        // What a browser sends of its own accord must fit.
        headers: s.key("headers", "Headers of one request. Beyond it: 431.").or(count(32), defaults.headers),
        connections: clients.value,
        calls: s
            .key("calls", "Calls in flight at a time, tasks not counted. Beyond it: 503.")
            .or(count(1), defaults.calls),
        streams: s
            .key("streams", "Calls in flight on one HTTP/2 connection. The client queues further ones.")
            .or(count(1), defaults.streams),
        // The protocol's own members need about eight.
        depth: s.key("depth", "How deep the JSON of a message may be nested.").or(count(16), defaults.depth),
    };
    let connections =
        Connections { clients: clients.written().copied(), servers: servers.written().copied() };
    Limits { front, upstream: upstream_limits(s), quotas: quotas(s), connections }
}

fn upstream_limits(s: &mut Section<'_, '_>) -> upstream::Limits {
    let defaults = upstream::Limits::default();
    upstream::Limits {
        sessions: s
            .key(
                "sessions",
                "Sessions with one server for one caller and what it declares. Calls that need one more wait.",
            )
            .or(count(1), defaults.sessions),
        task_sessions: s
            .key(
                "task_sessions",
                "Sessions that tasks hold beside `sessions`, so that they keep no calls waiting. A task beyond them \
                 counts as a call.",
            )
            .or(count(0), defaults.task_sessions),
        queue: s
            .key(
                "queue",
                "Calls of one caller, with what it declares, that wait for a session with one server. A further one \
                 is refused.",
            )
            .or(count(0), defaults.queue),
        messages: s
            .key(
                "messages",
                "Messages on their way to one server at a time that are no calls: answers to what it asks, its pings \
                 among it, and cancellations. Further ones wait.",
            )
            .or(count(1), defaults.messages),
        identities: s
            .key(
                "identities",
                "Callers, each with what it declares, whose sessions with one server are kept. For a further one \
                 those of the caller that has called least lately are closed.",
            )
            .or(count(1), defaults.identities),
        identity_bytes: s
            .key(
                "identity_bytes",
                "Bytes of what those callers declare and are known by. Beyond it likewise.",
            )
            .or(size(1), defaults.identity_bytes),
        result_bytes: s
            .key("result_bytes", "Bytes of one message of a server. A larger one fails its call.")
            .or(size(1), defaults.result_bytes),
        departed: s
            .key(
                "departed",
                "Calls of legacy clients that left, whose answers are read on so that the server does not take the \
                 departure for a cancel. Further ones are closed.",
            )
            .or(count(0), defaults.departed),
        client_sessions: s
            .key(
                "client_sessions",
                "Sessions of legacy clients with one server that is a process. For a further one those end that nobody \
                 has used for the longest; where all are in use it is refused.",
            )
            .or(count(1), defaults.client_sessions),
    }
}

fn quotas(s: &mut Section<'_, '_>) -> Quotas {
    let defaults = Quotas::default();
    let least = s
        .key("poll_interval_min", "The shortest `pollIntervalMs` that a task asks its client to keep.")
        .at(some_duration(), defaults.poll_interval.0);
    let greatest = s
        .key("poll_interval_max", "The longest `pollIntervalMs` that a task asks its client to keep.")
        .at(some_duration(), defaults.poll_interval.1);
    together::poll_interval(&least, &greatest, s);
    Quotas {
        tasks: s.key("tasks", "Tasks in all. Beyond it calls stay synchronous.").or(count(0), defaults.tasks),
        tasks_per_principal: s
            .key(
                "tasks_per_principal",
                "Tasks of one caller, ended ones that are still kept included. Beyond it its calls stay synchronous.",
            )
            .or(count(0), defaults.tasks_per_principal),
        stored_bytes: s
            .key(
                "stored_bytes",
                "Bytes of task results kept in all. Beyond it calls stay synchronous, and a result that does not fit \
                 fails its task.",
            )
            .or(size(0), defaults.stored_bytes),
        stored_bytes_per_principal: s
            .key(
                "stored_bytes_per_principal",
                "Bytes of task results kept for one caller, with the same effect for it alone.",
            )
            .or(size(0), defaults.stored_bytes_per_principal),
        stored_result_bytes: s
            .key("stored_result_bytes", "Bytes of one task's result. A larger one fails its task.")
            .or(size(0), defaults.stored_result_bytes),
        polls_per_second: s
            .key("polls_per_second", "`tasks/*` calls of one caller in a second.")
            .or(count(1), defaults.polls_per_second),
        misses_per_minute: s
            .key("misses_per_minute", "Look-ups of unknown tasks by one caller in a minute.")
            .or(count(1), defaults.misses_per_minute),
        listens_per_principal: s
            .key("listens_per_principal", "Open `subscriptions/listen` streams of one caller.")
            .or(count(0), defaults.listens_per_principal),
        poll_interval: (least.value, greatest.value),
    }
}

fn timeouts(s: &mut Section<'_, '_>) -> Timeouts {
    let front = front::Timeouts::default();
    let upstream = upstream::Timeouts::default();
    let mut time = |name, about, default| s.key(name, about).or(some_duration(), default);
    Timeouts {
        upstream: upstream::Timeouts {
            connect: time("connect", "For a connection to a server, TLS included.", upstream.connect),
            first_byte: time(
                "first_byte",
                "For the first byte of a server's answer to what is not a call, such as a list.",
                upstream.first_byte,
            ),
            idle: time(
                "idle",
                "For the next byte of a server's answer to what is not a call.",
                upstream.idle,
            ),
            call: time("call", "For a call as a whole.", upstream.call),
            queue: time(
                "queue",
                "For a session with a server, where `limits.sessions` are busy. A call that has become a task \
                 meanwhile waits on.",
                upstream.queue,
            ),
            idle_session: time(
                "idle_session",
                "For the next use of a legacy client's session with a server that is a process. Then it ends, within a \
                 minute.",
                upstream.idle_session,
            ),
        },
        front: front::Timeouts {
            read_headers: time("read_headers", "For the head of a client's request.", front.read_headers),
            read_body: time("read_body", "For the body of a client's request.", front.read_body),
            idle: time(
                "idle_connection",
                "For the next request on a client's connection. Then it is closed.",
                front.idle,
            ),
            write: time(
                "write",
                "For a client to take any of the bytes that wait for it. Then its connection is closed. A client that \
                 reads slowly, or to whom there is nothing to say, is let be.",
                front.write,
            ),
        },
        keep_alive: time(
            "keep_alive",
            "How long an answer may be silent before comments keep its connection open.",
            Held::default().comments,
        ),
    }
}
