//! The configuration as it was written: what is there and where, nothing filled in.
//!
//! The doc comments of these types are the descriptions in `deferral check --schema`, and their
//! `default`s come from the parts themselves. The readers at the end go on after a problem, so
//! that one run reports everything.

use super::{
    LogFormat,
    problem::{At, Place, Problem, nearest},
    schema::{self, OneOrMany, optional, required},
    secret::{self, KeySource},
    values::{self, Invalid, show_duration, show_size},
    yaml::{self, Node, Scalar, Value},
};
use crate::{
    front,
    policy::{self, Defer, Mode, Pattern, Quotas},
    upstream,
};
use http::{HeaderName, Uri};
use schemars::JsonSchema;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

pub const DEFAULT_LISTEN: &str = "127.0.0.1:8808";
pub const DEFAULT_ADMIN: &str = "127.0.0.1:8809";
pub const DEFAULT_PATH: &str = "/mcp";
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(30);

/// A setting: not written, written but wrong (and reported), or written.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Set<T> {
    #[default]
    Unset,
    Wrong,
    To(At<T>),
}

/// The configuration of deferral, a proxy for MCP servers.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(rename = "deferral", deny_unknown_fields, transform = required(&["routes"]))]
pub struct File {
    /// Where clients come in: an IP address with a port, or a list of them. Port 0 takes a free one.
    #[schemars(with = "OneOrMany<schema::Address>", extend("default" = DEFAULT_LISTEN))]
    pub listen: Set<Vec<At<SocketAddr>>>,
    /// Serve HTTPS.
    #[schemars(with = "Tls")]
    pub tls: Set<Tls>,
    /// Where the operator's listener is, or `off`.
    #[schemars(with = "schema::Admin", extend("default" = DEFAULT_ADMIN))]
    pub admin: Set<Option<SocketAddr>>,
    /// Where tasks are kept. With `memory` they end with the process.
    #[schemars(with = "schema::Store", extend("default" = "memory"))]
    pub store: Set<Store>,
    /// The endpoints of the proxy and the servers behind them.
    #[schemars(with = "Vec<Route>", length(min = 1))]
    pub routes: Set<Vec<At<Route>>>,
    /// What the `requestState`s of questions are sealed with. Left out, a key is made at start: the
    /// states end with the process, and no other process understands them.
    #[schemars(with = "RequestStateSection")]
    pub request_state: Set<RequestStateSection>,
    /// Which hosts and origins may come in.
    #[schemars(with = "Access")]
    pub access: Set<Access>,
    /// How much of everything there may be.
    #[schemars(with = "Limits")]
    pub limits: Set<Limits>,
    /// How long to wait for what.
    #[schemars(with = "Timeouts")]
    pub timeouts: Set<Timeouts>,
    /// How long calls in flight may go on after the signal to stop.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(DEFAULT_DRAIN)))]
    pub drain: Set<Duration>,
    /// How the log is written, on the standard error.
    #[schemars(with = "schema::Log", extend("default" = "text"))]
    pub log: Set<LogFormat>,
    /// The scheme and host under which clients know the proxy, where something stands in front of it.
    #[schemars(with = "schema::Url")]
    pub public_url: Set<Uri>,
}

/// A certificate and its key, as PEM files; relative paths are relative to the configuration file.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = required(&["cert", "key"]))]
pub struct Tls {
    /// The certificate chain, the server's own first.
    #[schemars(with = "String")]
    pub cert: Set<PathBuf>,
    /// The private key of the first certificate.
    #[schemars(with = "String")]
    pub key: Set<PathBuf>,
}

/// Where tasks are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    Memory,
    Disk(PathBuf),
    Redis(String),
}

/// One endpoint of the proxy and the server behind it.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = required(&["upstream"]))]
pub struct Route {
    /// The path that clients use.
    #[schemars(with = "schema::Path", extend("default" = DEFAULT_PATH))]
    pub path: Set<String>,
    /// The server.
    #[schemars(with = "Upstream")]
    pub upstream: Set<Upstream>,
    /// When a `tools/call` becomes a task.
    #[schemars(with = "DeferSection")]
    pub defer: Set<DeferSection>,
    /// What is different for some tools. The first rule that matches holds.
    #[schemars(with = "Vec<Tool>")]
    pub tools: Set<Vec<At<Tool>>>,
    /// What a caller is: its `Authorization`, or a header that something trusted sets. A task belongs
    /// to the caller that made it.
    #[schemars(with = "schema::Principal", extend("default" = "authorization"))]
    pub principal: Set<Principal>,
    /// Further headers by which the server knows the caller; they are passed on to it.
    #[schemars(with = "Vec<String>")]
    pub forward: Set<Vec<At<HeaderName>>>,
    /// Questions that the server asks during a call.
    #[schemars(with = "QuestionsSection")]
    pub questions: Set<QuestionsSection>,
    /// Answer a `resources/read` that found nothing with an error instead of an empty list.
    #[schemars(with = "bool", extend("default" = false))]
    pub empty_contents_is_error: Set<bool>,
}

/// The server behind a route; one of the two.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional, extend("minProperties" = 1, "maxProperties" = 1))]
pub struct Upstream {
    /// Its MCP endpoint, over Streamable HTTP.
    #[schemars(with = "schema::Url")]
    pub url: Set<Uri>,
    /// The command that starts it, for a server that speaks over stdio. Not served yet.
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub command: Set<Vec<String>>,
}

/// When a `tools/call` becomes a task.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
pub struct DeferSection {
    /// Which calls become tasks.
    #[schemars(with = "schema::ModeName", extend("default" = Defer::default().mode.as_str()))]
    pub mode: Set<Mode>,
    /// How long a call may run before it becomes a task.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(Defer::default().after)))]
    pub after: Set<Duration>,
    /// How long the result of a finished task stays.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(Defer::default().retention)))]
    pub retention: Set<Duration>,
}

/// What is different for the tools that match.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = required(&["match"]))]
pub struct Tool {
    /// The tool's name; `*` stands for any characters, `?` for one.
    #[schemars(rename = "match", with = "String", length(min = 1))]
    pub matches: Set<Pattern>,
    /// Which calls become tasks; the route's, where it is left out.
    #[schemars(with = "schema::ModeName")]
    pub mode: Set<Mode>,
    /// How long a call may run before it becomes a task; the route's, where it is left out.
    #[schemars(with = "schema::Duration")]
    pub after: Set<Duration>,
    /// Names for the questions the tool asks, in their order.
    #[schemars(with = "Vec<String>")]
    pub keys: Set<Vec<At<String>>>,
    /// What a client must declare to call the tool, such as `{ sampling: {} }`.
    #[schemars(with = "schema::Requires")]
    pub requires: Set<serde_json::Value>,
}

/// What a caller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    Authorization,
    Header(HeaderName),
}

/// Questions that the server asks during a call.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
pub struct QuestionsSection {
    /// How long to wait for further questions after the first, so that they are put together.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(policy::Questions::default().settle)))]
    pub settle: Set<Duration>,
    /// How long an unanswered question may wait before its call is given up.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(policy::Questions::default().park)))]
    pub park: Set<Duration>,
}

/// What the `requestState`s of questions are sealed with.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = required(&["keys"]))]
pub struct RequestStateSection {
    /// Where the keys are, each 32 bytes as 64 hex digits or base64. The first seals, each opens: to
    /// change keys, put the new one first, and take the old one out later than `park`. Replicas share
    /// theirs.
    #[schemars(with = "Vec<schema::KeySource>", length(min = 1))]
    pub keys: Set<Vec<At<KeySource>>>,
}

/// Which hosts and origins may come in; `localhost` and IP addresses may always be named as host.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
pub struct Access {
    /// Host names that clients may use, or `*` for every one.
    #[schemars(with = "Vec<String>")]
    pub hosts: Set<Vec<At<String>>>,
    /// Origins whose pages may call, or `*` for every one.
    #[schemars(with = "Vec<String>")]
    pub origins: Set<Vec<At<String>>>,
}

/// How much of everything there may be.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
pub struct Limits {
    /// Bytes of one request's body. Beyond it: 413.
    #[schemars(with = "schema::Size", extend("default" = show_size(front::Limits::default().body_bytes)))]
    pub body_bytes: Set<usize>,
    /// Bytes of one request's head. Beyond it: 431.
    #[schemars(with = "schema::Size", extend("default" = show_size(front::Limits::default().header_bytes)))]
    pub header_bytes: Set<usize>,
    /// Headers of one request. Beyond it: 431.
    #[schemars(with = "schema::Count", extend("default" = front::Limits::default().headers))]
    pub headers: Set<usize>,
    /// Connections of clients at a time. Further ones wait to be accepted.
    #[schemars(with = "schema::Count", extend("default" = front::Limits::default().connections))]
    pub connections: Set<usize>,
    /// Calls in flight at a time, tasks not counted. Beyond it: 503.
    #[schemars(with = "schema::Count", extend("default" = front::Limits::default().calls))]
    pub calls: Set<usize>,
    /// Calls in flight on one HTTP/2 connection. The client queues further ones.
    #[schemars(with = "schema::Count", extend("default" = front::Limits::default().streams))]
    pub streams: Set<u32>,
    /// How deep the JSON of a message may be nested.
    #[schemars(with = "schema::Count", extend("default" = front::Limits::default().depth))]
    pub depth: Set<usize>,
    /// Sessions with one server for one caller and what it declares. Calls that need one more wait.
    #[schemars(with = "schema::Count", extend("default" = upstream::Limits::default().sessions))]
    pub sessions: Set<usize>,
    /// Callers, each with what it declares, whose sessions with one server are kept. For a further one
    /// those of the caller that has called least lately are closed.
    #[schemars(with = "schema::Count", extend("default" = upstream::Limits::default().identities))]
    pub identities: Set<usize>,
    /// Bytes of one message of a server. A larger one fails its call.
    #[schemars(with = "schema::Size", extend("default" = show_size(upstream::Limits::default().result_bytes)))]
    pub result_bytes: Set<usize>,
    /// Calls of legacy clients that left, whose answers are read on so that the server does not take
    /// the departure for a cancel. Further ones are closed.
    #[schemars(with = "schema::Count", extend("default" = upstream::Limits::default().departed))]
    pub departed: Set<usize>,
    /// Tasks in all. Beyond it calls stay synchronous.
    #[schemars(with = "schema::Count", extend("default" = Quotas::default().tasks))]
    pub tasks: Set<usize>,
    /// Tasks of one caller, ended ones that are still kept included. Beyond it its calls stay synchronous.
    #[schemars(with = "schema::Count", extend("default" = Quotas::default().tasks_per_principal))]
    pub tasks_per_principal: Set<usize>,
    /// Bytes of task results kept in all. Beyond it calls stay synchronous.
    #[schemars(with = "schema::Size", extend("default" = show_size(Quotas::default().stored_bytes)))]
    pub stored_bytes: Set<usize>,
    /// Bytes of one task's result. A larger one fails its task.
    #[schemars(with = "schema::Size", extend("default" = show_size(Quotas::default().stored_result_bytes)))]
    pub stored_result_bytes: Set<usize>,
    /// `tasks/*` calls of one caller in a second.
    #[schemars(with = "schema::Count", extend("default" = Quotas::default().polls_per_second))]
    pub polls_per_second: Set<u32>,
    /// Look-ups of unknown tasks by one caller in a minute.
    #[schemars(with = "schema::Count", extend("default" = Quotas::default().misses_per_minute))]
    pub misses_per_minute: Set<u32>,
    /// Open `subscriptions/listen` streams of one caller.
    #[schemars(with = "schema::Count", extend("default" = Quotas::default().listens_per_principal))]
    pub listens_per_principal: Set<usize>,
    /// The shortest `pollIntervalMs` that a task asks its client to keep.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(Quotas::default().poll_interval.0)))]
    pub poll_interval_min: Set<Duration>,
    /// The longest `pollIntervalMs` that a task asks its client to keep.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(Quotas::default().poll_interval.1)))]
    pub poll_interval_max: Set<Duration>,
}

/// How long to wait for what.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
pub struct Timeouts {
    /// For a connection to a server, TLS included.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(upstream::Timeouts::default().connect)))]
    pub connect: Set<Duration>,
    /// For the first byte of a server's answer to what is not a call, such as a list.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(upstream::Timeouts::default().first_byte)))]
    pub first_byte: Set<Duration>,
    /// For the next byte of a server's answer to what is not a call.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(upstream::Timeouts::default().idle)))]
    pub idle: Set<Duration>,
    /// For a call as a whole.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(upstream::Timeouts::default().call)))]
    pub call: Set<Duration>,
    /// For the head of a client's request.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(front::Timeouts::default().read_headers)))]
    pub read_headers: Set<Duration>,
    /// For the body of a client's request.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(front::Timeouts::default().read_body)))]
    pub read_body: Set<Duration>,
    /// For the next request on a client's connection. Then it is closed.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(front::Timeouts::default().idle)))]
    pub idle_connection: Set<Duration>,
    /// For a client to take any of the bytes that wait for it. Then its connection is closed. A
    /// client that reads slowly, or to whom there is nothing to say, is let be.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(front::Timeouts::default().write)))]
    pub write: Set<Duration>,
    /// How long an answer may be silent before comments keep its connection open.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(front::Config::default().keep_alive)))]
    pub keep_alive: Set<Duration>,
}

// === impl Set ===

impl<T> Set<T> {
    /// What was written, if it can be used.
    pub fn given(self) -> Option<T> {
        match self {
            Self::To(at) => Some(at.value),
            Self::Unset | Self::Wrong => None,
        }
    }

    pub fn or(self, default: T) -> T {
        self.given().unwrap_or(default)
    }

    pub fn or_else(self, default: impl FnOnce() -> T) -> T {
        self.given().unwrap_or_else(default)
    }

    pub fn or_default(self) -> T
    where
        T: Default,
    {
        self.given().unwrap_or_default()
    }

    /// As [`Set::or`], leaving the setting where it is.
    pub fn copied_or(&self, default: T) -> T
    where
        T: Copy,
    {
        match self {
            Self::To(at) => at.value,
            Self::Unset | Self::Wrong => default,
        }
    }

    pub const fn is_unset(&self) -> bool {
        matches!(self, Self::Unset)
    }

    /// Where it was written, if it can be used.
    pub fn place(&self) -> Option<Place> {
        match self {
            Self::To(at) => Some(at.place),
            Self::Unset | Self::Wrong => None,
        }
    }

    /// Takes the place of what was there before, if it says anything.
    pub fn overlay(&mut self, over: Self) {
        if !over.is_unset() {
            *self = over;
        }
    }
}

impl<T> From<At<T>> for Set<T> {
    fn from(at: At<T>) -> Self {
        Self::To(at)
    }
}

// === reading ===

type Problems = Vec<Problem>;

const TOP: &str = "the file";

/// Reads the text of a configuration file. What is wrong is added to `problems`; the rest is
/// there all the same, so that it can be judged too.
pub(super) fn read(text: &str, problems: &mut Problems) -> File {
    let before = problems.len();
    match yaml::parse(text, problems) {
        Some(node) => file(&node, problems).unwrap_or_default(),
        None if problems.len() == before => {
            problems.push(Problem::new(Place::START, "the file is empty; it needs at least one route"));
            // Reported once: not also as routes that are missing.
            File { routes: Set::Wrong, ..File::default() }
        }
        None => File { routes: Set::Wrong, ..File::default() },
    }
}

fn file(node: &Node, problems: &mut Problems) -> Option<File> {
    let Some(mut top) = Section::open(node, TOP, problems) else {
        return Some(File { routes: Set::Wrong, ..File::default() });
    };
    let file = File {
        listen: top.set("listen", |node, problems| match node.value {
            Value::List(_) => list(node, problems, |node, problems| leaf(node, problems, values::address)),
            _ => leaf(node, problems, values::address).map(|address| vec![At::new(node.place, address)]),
        }),
        tls: top.set("tls", tls),
        // YAML 1.1 takes a bare `off` for false; whoever wrote `false` meant the same.
        admin: top.set("admin", |node, problems| match node.scalar() {
            Some(Scalar::Bool(false)) => Some(None),
            _ => leaf(node, problems, values::admin),
        }),
        store: top.set("store", store),
        routes: top.set("routes", |node, problems| list(node, problems, route)),
        request_state: top.set("request_state", request_state),
        access: top.set("access", access),
        limits: top.set("limits", limits),
        timeouts: top.set("timeouts", timeouts),
        drain: top.set("drain", duration),
        log: top.set("log", |node, problems| leaf(node, problems, values::log)),
        public_url: top.set("public_url", |node, problems| leaf(node, problems, values::public_url)),
    };
    top.close();
    Some(file)
}

fn tls(node: &Node, problems: &mut Problems) -> Option<Tls> {
    let mut section = Section::open(node, "`tls`", problems)?;
    let tls = Tls { cert: section.set("cert", file_path), key: section.set("key", file_path) };
    section.close();
    Some(tls)
}

fn store(node: &Node, problems: &mut Problems) -> Option<Store> {
    if !matches!(node.value, Value::Map(_)) {
        return leaf(node, problems, |text| match text {
            "memory" => Ok(Store::Memory),
            _ => Err(Invalid(format!(
                "unknown store `{text}`; use memory, {{ disk: PATH }} or {{ redis: URL }}"
            ))),
        });
    }
    let mut section = Section::open(node, "`store`", problems)?;
    let disk = section.set("disk", file_path);
    let redis = section.set("redis", text);
    section.close();
    match (disk, redis) {
        (Set::To(disk), Set::Unset) => Some(Store::Disk(disk.value)),
        (Set::Unset, Set::To(redis)) => Some(Store::Redis(redis.value)),
        (Set::Unset, Set::Unset) | (Set::Wrong, _) | (_, Set::Wrong) => None,
        (Set::To(_), Set::To(_)) => {
            problems
                .push(Problem::new(node.place, "`store` has both `disk` and `redis`; keep one of the two"));
            None
        }
    }
}

fn route(node: &Node, problems: &mut Problems) -> Option<Route> {
    let mut section = Section::open(node, "a route", problems)?;
    let route = Route {
        path: section.set("path", |node, problems| leaf(node, problems, values::path)),
        upstream: section.set("upstream", upstream_section),
        defer: section.set("defer", defer),
        tools: section.set("tools", |node, problems| list(node, problems, tool)),
        principal: section.set("principal", principal),
        forward: section.set("forward", |node, problems| {
            list(node, problems, |node, problems| leaf(node, problems, values::forwarded_header))
        }),
        questions: section.set("questions", questions),
        empty_contents_is_error: section.set("empty_contents_is_error", truth),
    };
    section.close();
    Some(route)
}

fn upstream_section(node: &Node, problems: &mut Problems) -> Option<Upstream> {
    let mut section = Section::open(node, "`upstream`", problems)?;
    let upstream = Upstream {
        url: section.set("url", |node, problems| leaf(node, problems, values::upstream_url)),
        command: section.set("command", |node, problems| {
            let words = list(node, problems, text)?;
            Some(words.into_iter().map(|word| word.value).collect())
        }),
    };
    section.close();
    Some(upstream)
}

fn defer(node: &Node, problems: &mut Problems) -> Option<DeferSection> {
    let mut section = Section::open(node, "`defer`", problems)?;
    let defer = DeferSection {
        mode: section.set("mode", |node, problems| leaf(node, problems, values::mode)),
        after: section.set("after", duration),
        retention: section.set("retention", duration),
    };
    section.close();
    Some(defer)
}

fn tool(node: &Node, problems: &mut Problems) -> Option<Tool> {
    let mut section = Section::open(node, "a tool rule", problems)?;
    let tool = Tool {
        matches: section.set("match", |node, problems| leaf(node, problems, values::pattern)),
        mode: section.set("mode", |node, problems| leaf(node, problems, values::mode)),
        after: section.set("after", duration),
        keys: section.set("keys", |node, problems| list(node, problems, text)),
        requires: section.set("requires", requires),
    };
    section.close();
    Some(tool)
}

fn principal(node: &Node, problems: &mut Problems) -> Option<Principal> {
    if !matches!(node.value, Value::Map(_)) {
        return leaf(node, problems, |text| match text {
            "authorization" => Ok(Principal::Authorization),
            _ => {
                Err(Invalid(format!("unknown principal `{text}`; use authorization or {{ header: X-User }}")))
            }
        });
    }
    let mut section = Section::open(node, "`principal`", problems)?;
    let header = section.set("header", |node, problems| leaf(node, problems, values::header));
    section.close();
    if header.is_unset() {
        problems.push(Problem::new(node.place, "`principal` names no header, as in `{ header: X-User }`"));
    }
    header.given().map(Principal::Header)
}

fn questions(node: &Node, problems: &mut Problems) -> Option<QuestionsSection> {
    let mut section = Section::open(node, "`questions`", problems)?;
    let questions =
        QuestionsSection { settle: section.set("settle", duration), park: section.set("park", duration) };
    section.close();
    Some(questions)
}

fn request_state(node: &Node, problems: &mut Problems) -> Option<RequestStateSection> {
    let mut section = Section::open(node, "`request_state`", problems)?;
    let keys = section.set("keys", |node, problems| list(node, problems, key_source));
    section.close();
    Some(RequestStateSection { keys })
}

fn key_source(node: &Node, problems: &mut Problems) -> Option<KeySource> {
    if !matches!(node.value, Value::Map(_)) {
        // Not shown: it may be a key.
        problems.push(Problem::new(
            node.place,
            "a key is not written here; say where it is: `{ file: PATH }` or `{ env: NAME }`",
        ));
        return None;
    }
    let mut section = Section::open(node, "a key", problems)?;
    let file = section.set("file", |node, problems| {
        leaf(node, problems, |text| match text {
            "" => Err(Invalid("must not be empty".to_owned())),
            text if secret::is_key(text) => {
                Err(Invalid("must name a file that holds the key, not be the key".to_owned()))
            }
            text => Ok(PathBuf::from(text)),
        })
    });
    let env = section.set("env", |node, problems| {
        leaf(node, problems, |text| match text {
            "" => Err(Invalid("must not be empty".to_owned())),
            text if secret::is_key(text) => {
                Err(Invalid("must name a variable that holds the key, not be the key".to_owned()))
            }
            text if text.contains(['=', '\0']) => {
                Err(Invalid("must be the name of an environment variable, which has no `=`".to_owned()))
            }
            text => Ok(text.to_owned()),
        })
    });
    section.close();
    match (file, env) {
        (Set::To(file), Set::Unset) => Some(KeySource::File(file.value)),
        (Set::Unset, Set::To(env)) => Some(KeySource::Env(env.value)),
        (Set::Wrong, _) | (_, Set::Wrong) => None,
        (Set::Unset, Set::Unset) => {
            problems.push(Problem::new(node.place, "the key has neither `file` nor `env`; give it one"));
            None
        }
        (Set::To(_), Set::To(_)) => {
            problems.push(Problem::new(node.place, "the key has both `file` and `env`; keep one of the two"));
            None
        }
    }
}

fn access(node: &Node, problems: &mut Problems) -> Option<Access> {
    let mut section = Section::open(node, "`access`", problems)?;
    let access = Access {
        hosts: section.set("hosts", |node, problems| {
            list(node, problems, |node, problems| leaf(node, problems, values::host))
        }),
        origins: section.set("origins", |node, problems| {
            list(node, problems, |node, problems| leaf(node, problems, values::origin))
        }),
    };
    section.close();
    Some(access)
}

fn limits(node: &Node, problems: &mut Problems) -> Option<Limits> {
    let mut section = Section::open(node, "`limits`", problems)?;
    let limits = Limits {
        body_bytes: section.set("body_bytes", size(1)),
        // The HTTP parser's own buffer is no smaller.
        header_bytes: section.set("header_bytes", size(8 << 10)),
        // What a browser sends of its own accord must fit.
        headers: section.set("headers", count(32)),
        connections: section.set("connections", count(1)),
        calls: section.set("calls", count(1)),
        streams: section.set("streams", count(1)),
        // The protocol's own members need about eight.
        depth: section.set("depth", count(16)),
        sessions: section.set("sessions", count(1)),
        identities: section.set("identities", count(1)),
        result_bytes: section.set("result_bytes", size(1)),
        departed: section.set("departed", count(0)),
        tasks: section.set("tasks", count(0)),
        tasks_per_principal: section.set("tasks_per_principal", count(0)),
        stored_bytes: section.set("stored_bytes", size(0)),
        stored_result_bytes: section.set("stored_result_bytes", size(0)),
        polls_per_second: section.set("polls_per_second", count(1)),
        misses_per_minute: section.set("misses_per_minute", count(1)),
        listens_per_principal: section.set("listens_per_principal", count(0)),
        poll_interval_min: section.set("poll_interval_min", some_duration),
        poll_interval_max: section.set("poll_interval_max", some_duration),
    };
    section.close();
    Some(limits)
}

fn timeouts(node: &Node, problems: &mut Problems) -> Option<Timeouts> {
    let mut section = Section::open(node, "`timeouts`", problems)?;
    let timeouts = Timeouts {
        connect: section.set("connect", some_duration),
        first_byte: section.set("first_byte", some_duration),
        idle: section.set("idle", some_duration),
        call: section.set("call", some_duration),
        read_headers: section.set("read_headers", some_duration),
        read_body: section.set("read_body", some_duration),
        idle_connection: section.set("idle_connection", some_duration),
        write: section.set("write", some_duration),
        keep_alive: section.set("keep_alive", some_duration),
    };
    section.close();
    Some(timeouts)
}

/// A mapping whose keys are being taken one by one. It learns the keys there are from those asked
/// for, and reports the others when it is closed.
struct Section<'n, 'p> {
    name: &'static str,
    entries: &'n [yaml::Entry],
    known: Vec<&'static str>,
    problems: &'p mut Problems,
}

// === impl Section ===

impl<'n, 'p> Section<'n, 'p> {
    fn open(node: &'n Node, name: &'static str, problems: &'p mut Problems) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            problems.push(Problem::new(
                node.place,
                format!("{name} must be a mapping (`key: value`), not {}", node.what()),
            ));
            return None;
        };
        Some(Self { name, entries, known: Vec::new(), problems })
    }

    fn set<T>(&mut self, key: &'static str, read: impl FnOnce(&Node, &mut Problems) -> Option<T>) -> Set<T> {
        self.known.push(key);
        let Some(entry) = self.entries.iter().find(|entry| entry.key == key) else { return Set::Unset };
        if entry.node.scalar() == Some(Scalar::Null) {
            let message = format!("`{key}` has no value; give it one or remove the line");
            self.problems.push(Problem::new(entry.key_place, message));
            return Set::Wrong;
        }
        let before = self.problems.len();
        let value = read(&entry.node, self.problems);
        // The readers of single values do not know whose value they read.
        for problem in &mut self.problems[before..] {
            if problem.message.starts_with("must ") {
                problem.message.insert_str(0, &format!("`{key}` "));
            }
        }
        match value {
            Some(value) => Set::To(At::new(entry.node.place, value)),
            None => Set::Wrong,
        }
    }

    fn place(&self) -> String {
        if self.name == TOP { "at the top level".to_owned() } else { format!("in {}", self.name) }
    }

    fn close(self) {
        for entry in self.entries.iter().filter(|entry| !self.known.contains(&&*entry.key)) {
            let remedy = match (nearest(&entry.key, self.known.iter().copied()), schema::home(&entry.key)) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, Some(home)) if home.is_empty() => "it belongs to the top level".to_owned(),
                (None, Some(home)) => format!("it belongs under `{home}`"),
                (None, None) => format!("there are {}", self.known.join(", ")),
            };
            let message = format!("unknown key `{}` {}; {remedy}", entry.key, self.place());
            self.problems.push(Problem::new(entry.key_place, message));
        }
    }
}

/// The items of a list, each with its place. One that is wrong makes the list wrong, after the
/// others were looked at.
fn list<T>(
    node: &Node,
    problems: &mut Problems,
    mut read: impl FnMut(&Node, &mut Problems) -> Option<T>,
) -> Option<Vec<At<T>>> {
    let Value::List(items) = &node.value else {
        problems
            .push(Problem::new(node.place, format!("must be a list (`- …` or `[…]`), not {}", node.what())));
        return None;
    };
    let read: Vec<_> =
        items.iter().map(|item| read(item, problems).map(|value| At::new(item.place, value))).collect();
    read.into_iter().collect()
}

/// A single value, read from its text whatever YAML takes it for.
fn leaf<T>(node: &Node, problems: &mut Problems, read: impl FnOnce(&str) -> Result<T, Invalid>) -> Option<T> {
    let result = match node.text() {
        Some(text) if node.scalar() != Some(Scalar::Null) => read(text),
        _ => Err(Invalid(format!("must be a single value, not {}", node.what()))),
    };
    result.map_err(|Invalid(message)| problems.push(Problem::new(node.place, message))).ok()
}

fn text(node: &Node, problems: &mut Problems) -> Option<String> {
    leaf(node, problems, |text| match text {
        "" => Err(Invalid("must not be empty".to_owned())),
        _ => Ok(text.to_owned()),
    })
}

fn file_path(node: &Node, problems: &mut Problems) -> Option<PathBuf> {
    text(node, problems).map(PathBuf::from)
}

fn truth(node: &Node, problems: &mut Problems) -> Option<bool> {
    if let Some(Scalar::Bool(truth)) = node.scalar() {
        return Some(truth);
    }
    problems.push(Problem::new(node.place, format!("must be true or false, not {}", shown(node))));
    None
}

fn duration(node: &Node, problems: &mut Problems) -> Option<Duration> {
    leaf(node, problems, values::duration)
}

fn some_duration(node: &Node, problems: &mut Problems) -> Option<Duration> {
    leaf(node, problems, |text| match values::duration(text)? {
        Duration::ZERO => Err(Invalid("must be more than 0; leave it out for the default".to_owned())),
        duration => Ok(duration),
    })
}

fn size(least: usize) -> impl FnOnce(&Node, &mut Problems) -> Option<usize> {
    move |node, problems| {
        leaf(node, problems, |text| match values::size(text)? {
            size if size < least => Err(Invalid(format!("must be at least {}", show_size(least)))),
            size => Ok(size),
        })
    }
}

fn count<N: TryFrom<usize>>(least: usize) -> impl FnOnce(&Node, &mut Problems) -> Option<N> {
    move |node, problems| {
        leaf(node, problems, |text| {
            let digits = text.replace('_', "");
            match digits.parse().ok().and_then(|count: usize| Some((count, N::try_from(count).ok()?))) {
                Some((count, _)) if count < least => Err(Invalid(format!("must be at least {least}"))),
                Some((_, count)) => Ok(count),
                None => Err(Invalid(format!("`{text}` is not a count; write a whole number"))),
            }
        })
    }
}

/// An object of objects, as JSON.
fn requires(node: &Node, problems: &mut Problems) -> Option<serde_json::Value> {
    let Value::Map(entries) = &node.value else {
        problems.push(Problem::new(
            node.place,
            format!("must be a mapping of capabilities, as in `{{ sampling: {{}} }}`, not {}", node.what()),
        ));
        return None;
    };
    let mut sound = true;
    for entry in entries.iter().filter(|entry| !matches!(entry.node.value, Value::Map(_))) {
        sound = false;
        problems.push(Problem::new(
            entry.node.place,
            format!("a capability is a mapping; write `{}: {{}}`", entry.key),
        ));
    }
    sound.then(|| json(node))
}

fn json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(entries) => entries.iter().map(|entry| (entry.key.clone(), json(&entry.node))).collect(),
        Value::Scalar { text, .. } => match node.scalar() {
            Some(Scalar::Null) => serde_json::Value::Null,
            Some(Scalar::Bool(truth)) => truth.into(),
            Some(Scalar::Number) => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
            Some(Scalar::Text) | None => text.clone().into(),
        },
    }
}

fn shown(node: &Node) -> String {
    match node.text() {
        Some(text) if !text.is_empty() => format!("`{text}`"),
        _ => node.what().to_owned(),
    }
}
