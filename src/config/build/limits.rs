//! The keys of `limits` and `timeouts`.

use crate::{
    config::schema::{SectionReader, count, positive_duration, show_size, size},
    front,
    policy::{TaskQuotas, WaitPolicy},
    upstream,
};
use std::time::Duration;

/// Configured connection limits. Limits that are not set are derived from the limit of open files
/// ([`crate::runtime::DescriptorShares`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The limit of client connections (`limits.connections`); `None` if it is not set.
    pub clients: Option<usize>,
    /// The limit of connections to servers (`limits.upstream_connections`); `None` if it is not set.
    pub servers: Option<usize>,
}

/// The values of the keys of `limits`, by the part that they apply to.
pub(super) struct LimitKeys {
    pub(super) front: front::ClientLimits,
    pub(super) upstream: upstream::UpstreamLimits,
    pub(super) quotas: TaskQuotas,
    pub(super) connections: ConnectionLimits,
}

/// The values of the keys of `timeouts`, by the part that they apply to.
pub(super) struct TimeoutKeys {
    pub(super) front: front::ClientTimeouts,
    pub(super) upstream: upstream::UpstreamTimeouts,
    /// Silence on a response after which an SSE comment is sent.
    pub(super) keep_alive: Duration,
}

/// Reads `limits`.
pub(super) fn read_limits(s: &mut SectionReader<'_, '_>) -> LimitKeys {
    s.key("limits", "Resource limits.").read_section("`limits`", |s| {
        let (front, connections) = read_client_limits(s);
        LimitKeys { front, upstream: read_upstream_limits(s), quotas: read_quotas(s), connections }
    })
}

/// Reads the limits of clients, and of all connections.
fn read_client_limits(s: &mut SectionReader<'_, '_>) -> (front::ClientLimits, ConnectionLimits) {
    let defaults = front::ClientLimits::default();
    let body_bytes = s
        .key("body_bytes", "Maximum size of a request body. A larger one gets 413.")
        .read_or(size(1), defaults.body_bytes);
    let clients = s
        .key(
            "connections",
            "Maximum concurrent client connections. Further ones wait to be accepted. Default: `10000`, or a third of the file descriptors that the process may open, if that is less.",
        )
        .read_spanned_or(count(1), defaults.connections);
    let servers = s
        .key(
            "upstream_connections",
            "Maximum concurrent connections to servers, of all routes together. Calls that need one more wait, at most `timeouts.connect`; then `-31006`. Default: `20000`, or two thirds of the file descriptors that the process may open, if that is less.",
        )
        .read_spanned_or(count(1), upstream::DEFAULT_MAX_CONNECTIONS);
    let front = front::ClientLimits {
        body_bytes,
        body_memory: read_body_memory(s, body_bytes),
        // The minimum is the smallest buffer that the HTTP parser can have.
        header_bytes: s
            .key("header_bytes", "Maximum size of a request head. A larger one gets 431.")
            .read_or(size(8 << 10), defaults.header_bytes),
        // The headers that a browser adds on its own must fit.
        headers: s.key("headers", "Maximum number of headers of a request. A request with more gets 431.").read_or(count(32), defaults.headers),
        connections: clients.value,
        pending_connections: s
            .key(
                "pending_connections",
                "Maximum connections from one address (IPv6: from one /64) that have not completed a request yet, \
                 at most half of `connections`. Beyond it the one that has waited longest is closed.",
            )
            .read_or(count(1), defaults.pending_connections),
        calls: s
            .key("calls", "Maximum requests of clients in flight, of any kind, not counting tasks. Further ones get 503.")
            .read_or(count(1), defaults.calls),
        streams: s
            .key("streams", "Maximum concurrent streams of one HTTP/2 connection. The client queues further requests.")
            .read_or(count(1), defaults.streams),
        // The members of the protocol itself need about eight levels.
        depth: s
            .key("depth", "Maximum nesting depth of the JSON of a message. A deeper message gets 400.")
            .read_or(count(16), defaults.depth),
    };
    let connections =
        ConnectionLimits { clients: clients.explicit().copied(), servers: servers.explicit().copied() };
    (front, connections)
}

/// Reads `body_memory`, which must hold at least one body. A large body may take seven eighths of it.
fn read_body_memory(s: &mut SectionReader<'_, '_>, body_bytes: usize) -> usize {
    let written = s
        .key("body_memory", "Maximum size of all request bodies in memory together, including those of calls in flight. Further requests get 503.")
        .read_spanned_or(size(1), front::ClientLimits::default().body_memory);
    let required = body_bytes.saturating_add(body_bytes / 7).saturating_add(1);
    let memory = if written.is_written() { written.value } else { written.value.max(required) };
    if memory < required && body_bytes > front::SMALL_BODY || memory < body_bytes {
        s.add_problem(
            written.span,
            format!(
                "a body of `body_bytes` ({}) does not fit into `body_memory` ({}); raise `body_memory` to \
                 at least {required}, or lower `body_bytes`",
                show_size(body_bytes),
                show_size(memory)
            ),
        );
    }
    memory
}

fn read_upstream_limits(s: &mut SectionReader<'_, '_>) -> upstream::UpstreamLimits {
    let defaults = upstream::UpstreamLimits::default();
    let mut number =
        |name, description, minimum, default| s.key(name, description).read_or(count(minimum), default);
    upstream::UpstreamLimits {
        sessions: number(
            "sessions",
            "Maximum sessions of one session pool. Calls that need one more wait (`limits.queue`).",
            1,
            defaults.sessions,
        ),
        task_sessions: number(
            "task_sessions",
            "Maximum sessions of one session pool that tasks use in addition to `limits.sessions`, so that tasks do not delay calls. A further task uses a session of `limits.sessions`, as a call does.",
            0,
            defaults.task_sessions,
        ),
        queue: number(
            "queue",
            "Maximum calls that wait for a session of one session pool (a process of a stdio server included), or of one principal that wait for `concurrency`. A further one is refused (`-31006`).",
            0,
            defaults.queue,
        ),
        messages: number(
            "messages",
            "Maximum messages in transit to one server other than calls: responses to its requests, pings \
                 included, and cancellations. Further ones wait.",
            1,
            defaults.messages,
        ),
        identities: number(
            "identities",
            "Maximum session pools for one server. When another one is needed, the one that has been unused for the longest time is closed; pools in use are not closed, so the number can be exceeded.",
            1,
            defaults.identities,
        ),
        departed: number(
            "departed",
            "Maximum calls of disconnected legacy clients that continue at a server over HTTP: the proxy reads their responses to the end. Beyond it the connection to the server is closed, which the server may take for a cancellation.",
            0,
            defaults.departed,
        ),
        client_sessions: number(
            "client_sessions",
            "Maximum sessions of legacy clients with one stdio server. When another one is needed, the one that has been unused for the longest time is ended; if all are in use, it is refused (`-31006`).",
            1,
            defaults.client_sessions,
        ),
        identity_bytes: s
            .key(
                "identity_bytes",
                "Maximum total size of the client capabilities and headers that identify the session pools of one server. When another pool is needed, the one that has been unused for the longest time is closed.",
            )
            .read_or(size(1), defaults.identity_bytes),
        result_bytes: s
            .key("result_bytes", "Maximum size of one message from a server. A larger one fails its call (`-31005`).")
            .read_or(size(1), defaults.result_bytes),
    }
}

fn read_quotas(s: &mut SectionReader<'_, '_>) -> TaskQuotas {
    let defaults = TaskQuotas::default();
    TaskQuotas {
        tasks: s.key("tasks", "Maximum tasks in total, including finished ones within their retention. Beyond it no further call becomes a task.").read_or(count(0), defaults.tasks),
        tasks_per_principal: s
            .key(
                "tasks_per_principal",
                "Maximum tasks of one principal, including finished ones within their retention. Beyond it no further call of this principal becomes a task.",
            )
            .read_or(count(0), defaults.tasks_per_principal),
        stored_bytes: s
            .key(
                "stored_bytes",
                "Maximum size of all stored task results together. Beyond it no further call becomes a task, and a result that does not fit fails its task (`-31005`).",
            )
            .read_or(size(0), defaults.stored_bytes),
        stored_bytes_per_principal: s
            .key(
                "stored_bytes_per_principal",
                "Maximum size of the stored task results of one principal. Beyond it no further call of this principal becomes a task, and a result that does not fit fails its task (`-31005`).",
            )
            .read_or(size(0), defaults.stored_bytes_per_principal),
        stored_result_bytes: s
            .key("stored_result_bytes", "Maximum size of one task result. A larger one fails its task (`-31005`).")
            .read_or(size(0), defaults.stored_result_bytes),
        polls_per_second: s
            .key("polls_per_second", "Maximum `tasks/*` requests of one principal per second. Further ones are refused (`-31006`).")
            .read_or(count(1), defaults.polls_per_second),
        misses_per_minute: s
            .key("misses_per_minute", "Maximum requests of one principal for unknown tasks per minute. Further ones are refused (`-31006`).")
            .read_or(count(1), defaults.misses_per_minute),
        listens_per_principal: s
            .key("listens_per_principal", "Maximum open `subscriptions/listen` streams of one principal. Further ones are refused (`-31006`).")
            .read_or(count(0), defaults.listens_per_principal),
        poll_interval: read_poll_interval(s, defaults.poll_interval),
    }
}

/// Reads the bounds of the poll interval. The shortest must not be longer than the longest.
fn read_poll_interval(s: &mut SectionReader<'_, '_>, defaults: (Duration, Duration)) -> (Duration, Duration) {
    let shortest = s
        .key("poll_interval_min", "Shortest `pollIntervalMs` of a task, which tells its client how often to poll. It is a tenth of the time since the status of the task changed, within these bounds.")
        .read_spanned_or(positive_duration(), defaults.0);
    let longest = s
        .key("poll_interval_max", "Longest `pollIntervalMs` of a task.")
        .read_spanned_or(positive_duration(), defaults.1);
    if shortest.value > longest.value {
        let span = if shortest.is_written() { shortest.span } else { longest.span };
        let (shortest, longest) = (shortest.value, longest.value);
        s.add_problem(
            span,
            format!(
                "`poll_interval_min` ({shortest:?}) is more than `poll_interval_max` ({longest:?}); lower it"
            ),
        );
    }
    (shortest.value, longest.value)
}

/// Reads `timeouts`.
pub(super) fn read_timeouts(s: &mut SectionReader<'_, '_>) -> TimeoutKeys {
    s.key("timeouts", "Timeouts.").read_section("`timeouts`", |s| TimeoutKeys {
        upstream: read_upstream_timeouts(s),
        front: read_client_timeouts(s),
        keep_alive: s
            .key("keep_alive", "Time without data on a response after which the proxy sends an SSE comment, to keep the connection open.")
            .read_or(positive_duration(), WaitPolicy::default().comment_after),
    })
}

/// Reads the timeouts of servers.
fn read_upstream_timeouts(s: &mut SectionReader<'_, '_>) -> upstream::UpstreamTimeouts {
    let defaults = upstream::UpstreamTimeouts::default();
    let mut time =
        |name, description, default| s.key(name, description).read_or(positive_duration(), default);
    upstream::UpstreamTimeouts {
        // A key of the route (`questions.turn`).
        turn: defaults.turn,
        connect: time(
            "connect",
            "Maximum time to connect to a server, including TLS; after that the request fails with `-31003`.",
            defaults.connect,
        ),
        first_byte: time(
            "first_byte",
            "Maximum time to the first byte of a server's response to any request other than `tools/call`, `prompts/get` and `resources/read`, such as a list; after that the request fails with `-31003`.",
            defaults.first_byte,
        ),
        idle: time(
            "idle",
            "Maximum time between two bytes of a server's response to any request other than `tools/call`, `prompts/get` and `resources/read`; after that the request fails with `-31003`.",
            defaults.idle,
        ),
        call: time(
            "call",
            "Maximum duration of a `tools/call`, `prompts/get` or `resources/read`; after that it is cancelled and fails with `-31003`.",
            defaults.call,
        ),
        queue: time(
            "queue",
            "Maximum time that a call waits for a session (`limits.sessions`), a process (`upstream.instances`) or its turn (`concurrency`); after that it fails with `-31006`. A call that becomes a task in the meantime keeps waiting.",
            defaults.queue,
        ),
        idle_session: time(
            "idle_session",
            "Maximum time between two requests of a legacy client in its session with a stdio server; after that the session ends, within a minute.",
            defaults.idle_session,
        ),
    }
}

/// Reads the timeouts of clients.
fn read_client_timeouts(s: &mut SectionReader<'_, '_>) -> front::ClientTimeouts {
    let defaults = front::ClientTimeouts::default();
    let mut time =
        |name, description, default| s.key(name, description).read_or(positive_duration(), default);
    front::ClientTimeouts {
        read_headers: time(
            "read_headers",
            "Maximum time for a client to send the head of a request; after that its connection is closed.",
            defaults.read_headers,
        ),
        read_body: time(
            "read_body",
            "Maximum time for a client to send the body of a request; after that the request is refused with 408.",
            defaults.read_body,
        ),
        idle: time(
            "idle_connection",
            "Maximum time between two requests on a client connection; after that it is closed.",
            defaults.idle,
        ),
        write: time(
            "write",
            "Maximum time in which a client reads none of the bytes waiting for it; after that its connection is closed. Slow readers and idle streams are not affected.",
            defaults.write,
        ),
    }
}
