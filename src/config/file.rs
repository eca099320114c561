//! The configuration as it was written: what is there and where, nothing filled in.
//!
//! The doc comments of these types are the descriptions in `deferral check --schema`, and their
//! `default`s come from the parts themselves. `read` fills them.

use super::{
    LogFormat, Store,
    problem::{At, Place},
    schema::{self, OneOrMany, optional, required},
    secret::KeySource,
    values::{show_duration, show_size},
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
    /// Tasks of 2025-11-25, for clients of that revision in front of a server that has none.
    #[schemars(with = "TasksSection")]
    pub tasks: Set<TasksSection>,
    /// What a client gets that waits for a slow call without a task.
    #[schemars(with = "HeldSection")]
    pub held: Set<HeldSection>,
    /// Whether a client of an older revision can take up an answer where it broke, although the server
    /// gives its events no ids.
    #[schemars(with = "ResumeSection")]
    pub resume: Set<ResumeSection>,
    /// Answer a `resources/read` that found nothing with an error instead of an empty list.
    #[schemars(with = "bool", extend("default" = false))]
    pub empty_contents_is_error: Set<bool>,
}

/// The server behind a route.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional, extend("minProperties" = 1, "maxProperties" = 1))]
pub struct Upstream {
    /// Its MCP endpoint, over Streamable HTTP.
    #[schemars(with = "schema::Url")]
    pub url: Set<Uri>,
    /// The command that starts it, for a server that speaks over stdio. Understood so that it can be
    /// said that none is served; not offered.
    #[schemars(skip)]
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
    /// How long the result of a finished task stays, at least a second. A task that works is kept whatever
    /// this is.
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

/// Tasks of 2025-11-25, for clients of that revision in front of a server that has none.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
pub struct TasksSection {
    /// The longest time that a client can have its result kept, at least a second. A task that works is
    /// kept whatever this is.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(policy::LegacyTasks::default().max_ttl)))]
    pub max_ttl: Set<Duration>,
    /// What a task becomes whose tool returned an error: `failed`, as the revision has it, or
    /// `completed`, for clients that drop the result of a failed task.
    #[schemars(with = "schema::ToolErrors", extend("default" = "failed"))]
    pub tool_errors: Set<ToolErrors>,
    /// What a model may go on with while a task works.
    #[schemars(with = "String", length(min = 1))]
    pub immediate_response: Set<String>,
    /// Let a caller find in one era the tasks that it made in the other. Never holds for callers
    /// without credentials.
    #[schemars(with = "bool", extend("default" = policy::LegacyTasks::default().across_eras))]
    pub across_eras: Set<bool>,
    /// Who may be given a task without having asked for one (SEP-2229, draft): `never`, `always`, or
    /// a list of what such clients are known by. Clients that do not understand it break.
    #[schemars(with = "schema::Unsolicited", extend("default" = "never"))]
    pub unsolicited: Set<Unsolicited>,
}

/// What a task becomes whose tool returned an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolErrors {
    Failed,
    Completed,
}

/// Who may be given a task without having asked for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsolicited {
    Never,
    Always,
    To(Vec<At<policy::ClientMatch>>),
}

/// What a client gets that waits for a slow call without a task.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
pub struct HeldSection {
    /// After how much silence a client that gave a progress token is told that the call still runs,
    /// or `off`.
    #[schemars(with = "schema::DurationOrOff", extend("default" = policy::Held::default().progress.map(show_duration)))]
    pub progress: Set<Option<Duration>>,
    /// After how much silence a comment keeps the connection open; `timeouts.keep_alive`, where it is
    /// left out.
    #[schemars(with = "schema::Duration")]
    pub comments: Set<Duration>,
    /// How long a client waits at most, or `off`. Then it gets an error, and the call is cancelled.
    #[schemars(with = "schema::DurationOrOff", extend("default" = "off"))]
    pub deadline: Set<Option<Duration>>,
}

/// Whether a client of an older revision can take up an answer where it broke, although the server gives
/// its events no ids.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
pub struct ResumeSection {
    /// Give the events of answers ids, and keep them. Answers whose server gives ids are left as they
    /// are.
    #[schemars(with = "bool", extend("default" = false))]
    pub mint: Set<bool>,
    /// How long an answer is kept after its end.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(policy::Resume::default().keep)))]
    pub keep: Set<Duration>,
    /// Bytes of one answer that are kept: the latest.
    #[schemars(with = "schema::Size", extend("default" = show_size(policy::Resume::default().bytes)))]
    pub bytes: Set<usize>,
    /// Answers that are kept at a time. Further ones go without ids.
    #[schemars(with = "usize", range(min = 1), extend("default" = policy::Resume::default().streams))]
    pub streams: Set<usize>,
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
    /// Bytes of all requests' bodies in memory, those of calls in flight included. Beyond it: 503.
    #[schemars(with = "schema::Size", extend("default" = show_size(front::Limits::default().body_memory)))]
    pub body_memory: Set<usize>,
    /// Bytes of one request's head. Beyond it: 431.
    #[schemars(with = "schema::Size", extend("default" = show_size(front::Limits::default().header_bytes)))]
    pub header_bytes: Set<usize>,
    /// Headers of one request. Beyond it: 431.
    #[schemars(with = "schema::Count", extend("default" = front::Limits::default().headers))]
    pub headers: Set<usize>,
    /// Connections of clients at a time. Further ones wait to be accepted. Where nothing is written and the
    /// system allows the process too few descriptors, it is a third of those.
    #[schemars(with = "schema::Count", extend("default" = front::Limits::default().connections))]
    pub connections: Set<usize>,
    /// Connections to servers at a time, of all routes. Calls that need one more wait, at most
    /// `timeouts.connect`; then `-31006`. Where nothing is written and the system allows the process too
    /// few descriptors, it is two thirds of those.
    #[schemars(with = "schema::Count", extend("default" = upstream::CONNECTIONS))]
    pub upstream_connections: Set<usize>,
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
    /// Sessions that tasks hold beside `sessions`, so that they keep no calls waiting. A task beyond
    /// them counts as a call.
    #[schemars(with = "schema::Count", extend("default" = upstream::Limits::default().task_sessions))]
    pub task_sessions: Set<usize>,
    /// Calls of one caller, with what it declares, that wait for a session with one server. A further
    /// one is refused.
    #[schemars(with = "schema::Count", extend("default" = upstream::Limits::default().queue))]
    pub queue: Set<usize>,
    /// Messages on their way to one server at a time that are no calls: answers to what it asks, its
    /// pings among it, and cancellations. Further ones wait.
    #[schemars(with = "schema::Count", extend("default" = upstream::Limits::default().messages))]
    pub messages: Set<usize>,
    /// Callers, each with what it declares, whose sessions with one server are kept. For a further one
    /// those of the caller that has called least lately are closed.
    #[schemars(with = "schema::Count", extend("default" = upstream::Limits::default().identities))]
    pub identities: Set<usize>,
    /// Bytes of what those callers declare and are known by. Beyond it likewise.
    #[schemars(with = "schema::Size", extend("default" = show_size(upstream::Limits::default().identity_bytes)))]
    pub identity_bytes: Set<usize>,
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
    /// Bytes of task results kept in all. Beyond it calls stay synchronous, and a result that does not fit
    /// fails its task.
    #[schemars(with = "schema::Size", extend("default" = show_size(Quotas::default().stored_bytes)))]
    pub stored_bytes: Set<usize>,
    /// Bytes of task results kept for one caller, with the same effect for it alone.
    #[schemars(with = "schema::Size", extend("default" = show_size(Quotas::default().stored_bytes_per_principal)))]
    pub stored_bytes_per_principal: Set<usize>,
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
    /// For a session with a server, where `limits.sessions` are busy. A call that has become a task
    /// meanwhile waits on.
    #[schemars(with = "schema::Duration", extend("default" = show_duration(upstream::Timeouts::default().queue)))]
    pub queue: Set<Duration>,
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
    #[schemars(with = "schema::Duration", extend("default" = show_duration(policy::Held::default().comments)))]
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
