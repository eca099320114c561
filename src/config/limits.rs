//! The keys of `limits` and `timeouts`.

use super::{
    Connections,
    kind::{count, size, some_duration},
    section::Section,
    together,
};
use crate::{
    front,
    policy::{Held, Quotas},
    upstream,
};
use std::time::Duration;

/// What `limits` sets.
pub(super) struct Limits {
    pub(super) front: front::Limits,
    pub(super) upstream: upstream::Limits,
    pub(super) quotas: Quotas,
    pub(super) connections: Connections,
}

/// What `timeouts` sets.
pub(super) struct Timeouts {
    pub(super) front: front::Timeouts,
    pub(super) upstream: upstream::Timeouts,
    pub(super) keep_alive: Duration,
}

pub(super) fn limits(s: &mut Section<'_, '_>) -> Limits {
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
        pending_connections: s
            .key(
                "pending_connections",
                "Connections from one address (of IPv6: from one /64) that have not completed a request yet, at most half \
                 of `connections`. For a further one the one that has waited the longest is closed.",
            )
            .or(count(1), defaults.pending_connections),
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
    let mut number = |name, about, least, default| s.key(name, about).or(count(least), default);
    upstream::Limits {
        sessions: number(
            "sessions",
            "Sessions with one server for one caller and what it declares. Calls that need one more wait.",
            1,
            defaults.sessions,
        ),
        task_sessions: number(
            "task_sessions",
            "Sessions that tasks hold beside `sessions`, so that they keep no calls waiting. A task beyond them \
                 counts as a call.",
            0,
            defaults.task_sessions,
        ),
        queue: number(
            "queue",
            "Calls of one caller, with what it declares, that wait for a session with one server. A further one \
                 is refused.",
            0,
            defaults.queue,
        ),
        messages: number(
            "messages",
            "Messages on their way to one server at a time that are no calls: answers to what it asks, its pings \
                 among it, and cancellations. Further ones wait.",
            1,
            defaults.messages,
        ),
        identities: number(
            "identities",
            "Callers, each with what it declares, whose sessions with one server are kept. For a further one \
                 those of the caller that has called least lately are closed.",
            1,
            defaults.identities,
        ),
        departed: number(
            "departed",
            "Calls of legacy clients that left, whose answers are read on so that the server does not take the \
                 departure for a cancel. Further ones are closed.",
            0,
            defaults.departed,
        ),
        client_sessions: number(
            "client_sessions",
            "Sessions of legacy clients with one server that is a process. For a further one those end that nobody \
                 has used for the longest; where all are in use it is refused.",
            1,
            defaults.client_sessions,
        ),
        identity_bytes: s
            .key(
                "identity_bytes",
                "Bytes of what those callers declare and are known by. Beyond it likewise.",
            )
            .or(size(1), defaults.identity_bytes),
        result_bytes: s
            .key("result_bytes", "Bytes of one message of a server. A larger one fails its call.")
            .or(size(1), defaults.result_bytes),
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

pub(super) fn timeouts(s: &mut Section<'_, '_>) -> Timeouts {
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
