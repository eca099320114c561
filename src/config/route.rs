//! The keys of a route.

use super::{
    At, RouteConfig,
    file::DEFAULT_PATH,
    kind::{
        Unsolicited, count, duration, duration_or_off, mode, path, pattern, principal, requires,
        response_headers, size, some_duration, string, text, tool_errors, tool_mode, truth, unsolicited,
    },
    limits::{Limits, Timeouts},
    rollout,
    section::{Section, Set, mapping},
    server::server,
    surroundings::Surroundings,
    tickets::{after as ticket_after, tickets},
    together, values,
};
use crate::{
    policy::{
        self, CallLimits, CallQueue, Defer, Held, LegacyTasks, Mode, PrincipalSource, Questions, Resume,
        Rollout, TicketAfter, ToolRule,
    },
    upstream,
};
use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

/// A route as it is written; `None` of what is wrong with it.
pub(super) struct Route {
    pub(super) path: Option<At<String>>,
    pub(super) config: Option<RouteConfig>,
}

pub(super) fn route(
    s: &mut Section<'_, '_>,
    limits: &Limits,
    timeouts: &Timeouts,
    is_exposed: bool,
    needs_token: bool,
    around: Surroundings<'_>,
) -> Route {
    let (name, limits_of_server) = (name(s), limits.upstream);
    let written = s
        .key("upstream", "The server behind the route: `url` or `command`.")
        .required(mapping("`upstream`", |s| Some(server(s, around))));
    let timeout = s
        .key(
            "timeout",
            "Longest duration of a call, including the handshake and the wait for a session. Then it is \
             cancelled, and it or its task fails with `-31003`. Overrides `timeouts.call`, which is the \
             default.",
        )
        .set(some_duration())
        .given();
    let limits = call_limits(
        s,
        "Concurrent calls of the route's tools at the server, of all principals together. Further calls \
         wait, principals in turn: at most `limits.queue` of one principal, and at most `timeouts.queue` unless \
         they have become tasks; then `-31006`. Default: no limit.",
        "Calls of the route's tools by one principal per minute. A further one is refused (`-31006`, `Retry-After`). Default: no limit.",
    );
    let (defer, rolled_out) = s.key("defer", "When a `tools/call` becomes a task.").section("`defer`", defer);
    let rules = s
        .key("tools", "Per-tool overrides. First match wins.")
        .list(mapping("a tool rule", |s| Some(tool(s, defer.mode))));
    let tickets_of_tools = together::tickets_of_tools(&rules);
    together::call_limits(&rules, &limits, s);
    let rollouts_of_tools = rollout::of_tools(&rules);
    let tools = together::tools(rules, s);
    // A server is held to the longest time of all; a call whose own is shorter ends before.
    let of_route = together::CallTime::of(timeout, timeouts);
    let longest = tools.iter().filter_map(|rule| rule.timeout).fold(of_route.time, Duration::max);
    rollout::pointless(rolled_out.as_ref(), &defer, &tools, s);
    let held = s
        .key("held", "Clients that wait for a slow call without a task: keep-alive, deadline, ticket.")
        .section("`held`", |s| held(s, &defer, &tools, (timeouts.keep_alive, of_route)));
    for after in tickets_of_tools {
        together::ticket(&after, held.deadline, of_route, s);
    }
    let has_times = held.ticket.is_some()
        || tools.iter().any(|rule: &ToolRule| matches!(rule.ticket, TicketAfter::After(_)));
    let tickets = s
        .key(
            "tickets",
            "Tickets, for clients without task support: their model fetches the result of a slow call with a tool of the proxy.",
        )
        .section("`tickets`", |s| tickets(s, has_times));
    let principal = caller(s, name.as_ref().filter(|_| is_exposed));
    if principal == PrincipalSource::Authorization && !needs_token {
        rollout::doubt_anonymous(rolled_out.iter().chain(&rollouts_of_tools), s);
    }
    let forward = s
        .key(
            "forward",
            "Request headers that select the upstream session in addition to those that do by \
             default. Needed only for headers that are exempt by default: `User-Agent`, \
             `Accept-Language`, `X-Request-Id`, trace headers. All headers are forwarded to the server in \
             any case.",
        )
        .list(string(values::forwarded_header));
    let server = together::server(written, is_exposed, around, s);
    let route = policy::Route {
        path: name.as_ref().map_or(DEFAULT_PATH, |path| &path.value).into(),
        defer,
        tools,
        limits,
        queue: CallQueue { length: limits_of_server.queue, patience: timeouts.upstream.queue },
        timeout: (of_route.time < longest).then_some(of_route.time),
        principal,
        resume: s
            .key(
                "resume",
                "Resumption of interrupted SSE responses by legacy clients, if the server sets no event \
                 ids.",
            )
            .section("`resume`", resume),
        legacy_tasks: s
            .key(
                "tasks",
                "Tasks of revision 2025-11-25, for clients of that revision whose server does not support them.",
            )
            .section("`tasks`", legacy_tasks),
        held,
        tickets,
        questions: s
            .key("questions", "Input requests of the server during a call: elicitation, sampling, roots.")
            .section("`questions`", questions),
        forward: together::once(forward, s, |name| format!("`{name}` is listed twice; remove one of the two")),
        // A key of `upstream`.
        forwarded: false,
        response_headers: s
            .key("response", "Responses to clients of the route.")
            .section("`response`", |s| {
                s.key(
                    "headers",
                    "Headers set on every response of the route, including the proxy's own errors: names \
                     and values. They replace the server's headers of the same name.",
                )
                .or(response_headers(), Vec::new())
            }),
        empty_contents_is_error: s
            .key(
                "empty_contents_is_error",
                "Respond to a `resources/read` that found nothing with an error instead of an empty list.",
            )
            .or(truth(), false),
    };
    let config = server.map(|(server, reached)| {
        let route = policy::Route { forwarded: reached.forwarded, ..route };
        let timeouts = upstream::Timeouts { call: longest, ..timeouts.upstream };
        let upstream = upstream::Config { timeouts, limits: limits_of_server, ..reached };
        RouteConfig { route, server, upstream }
    });
    Route { path: name, config }
}

/// The path of a route, if it is right.
fn name(s: &mut Section<'_, '_>) -> Option<At<String>> {
    match s.key("path", "Path that clients use.").with_default(DEFAULT_PATH).set(path()) {
        Set::To(path) => Some(path),
        Set::Unset => Some(At::new(s.place, DEFAULT_PATH.to_owned())),
        Set::Wrong => None,
    }
}

/// What a caller is, on a route of this path, if that is open to clients from elsewhere.
fn caller(s: &mut Section<'_, '_>, exposed: Option<&At<String>>) -> PrincipalSource {
    let principal = s
        .key(
            "principal",
            "Principal of a request: its `Authorization` header, or a header that a trusted proxy sets. A \
             task belongs to the principal that made it. With `access.tokens` the principal is the name \
             of the token.",
        )
        .with_default("authorization")
        .set(principal());
    if let (Some(path), Set::Unset) = (exposed, &principal) {
        together::one_caller(&path.value, s);
    }
    principal.given().unwrap_or(PrincipalSource::Authorization)
}

fn defer(s: &mut Section<'_, '_>) -> (Defer, Option<At<Arc<Rollout>>>) {
    let defaults = Defer::default();
    let retention = s
        .key(
            "retention",
            "How long the result of a finished task is kept, at least 1s. A task that is working is kept \
             in any case.",
        )
        .at(duration(), defaults.retention);
    together::gone_soon("retention", &retention, s);
    let rollout = rollout::rollout(s);
    let defer = Defer {
        mode: s.key("mode", "Which calls become tasks.").or(mode(), defaults.mode),
        after: s
            .key("after", "Threshold: how long a call may run before it becomes a task.")
            .or(duration(), defaults.after),
        retention: retention.value,
        rollout: rollout.as_ref().map(|rollout| Arc::clone(&rollout.value)),
    };
    (defer, rollout)
}

/// A rule of a tool, on a route of this mode.
fn tool(s: &mut Section<'_, '_>, inherited: Mode) -> Option<At<ToolRule>> {
    let matches =
        s.key("match", "Name of the tool; `*` matches any characters, `?` one.").required(pattern());
    if matches.is_unset() {
        s.wrong(s.place, "the rule has no `match`; add the name of a tool, or `*` for all");
    }
    let mode = s
        .key(
            "mode",
            "Which calls become tasks, or `deny`: the tool is hidden from `tools/list`, and its calls are \
             refused like those of an unknown tool. Default: the route's mode.",
        )
        .set(tool_mode());
    let after = s
        .key("after", "Threshold: how long a call may run before it becomes a task. Default: the route's.")
        .set(duration());
    let ticket = ticket_after(
        s,
        "How long a call may run before a client without task support gets a ticket, or `off`. Default: \
         the route's (`held.ticket`).",
    );
    let rollout = rollout::rollout(s);
    let keys = s.key("keys", "Keys for the input requests of the tool, in order.").list(text());
    let keys = together::once(keys, s, |key| {
        format!("the key `{key}` is listed twice; each input request needs its own")
    });
    let requires = s
        .key(
            "requires",
            "Capabilities that a client must declare to call the tool, such as `{ sampling: {} }`.",
        )
        .set(requires());
    let timeout = s
        .key(
            "timeout",
            "Longest duration of a call, including the handshake and the wait for a session. Then it is \
             cancelled, and it or its task fails with `-31003`. Default: the route's.",
        )
        .set(some_duration())
        .given();
    let limits = call_limits(
        s,
        "Concurrent calls of these tools at the server, of all principals together, within the route's \
         limit. Further calls wait as for the route's limit. Default: the route's limit only.",
        "Calls of these tools by one principal per minute, within the route's limit. Default: the route's limit only.",
    );
    let Set::To(At { place, value: matches }) = matches else { return None };
    let (mode, after, requires) = (mode.given(), after.given(), requires.given().map(Arc::new));
    rollout::pointless_of_tool(rollout.as_ref(), mode.unwrap_or(inherited), s);
    let rollout = rollout.map(|rollout| rollout.value);
    let keys = keys.into();
    Some(At::new(place, ToolRule { matches, mode, after, rollout, ticket, limits, timeout, keys, requires }))
}

/// How many calls there may be at a time and in a minute, by these descriptions.
fn call_limits(s: &mut Section<'_, '_>, at_a_time: &'static str, in_a_minute: &'static str) -> CallLimits {
    let concurrency = s.key("concurrency", at_a_time).set(count::<usize>(1)).given();
    let calls_per_minute = s.key("calls_per_minute", in_a_minute).set(count::<u32>(1)).given();
    CallLimits {
        concurrency: concurrency.and_then(NonZeroUsize::new),
        calls_per_minute: calls_per_minute.and_then(NonZeroU32::new),
    }
}

fn questions(s: &mut Section<'_, '_>) -> Questions {
    let defaults = Questions::default();
    Questions {
        settle: s
            .key(
                "settle",
                "How long to wait for further input requests after the first, so that the client gets them together.",
            )
            .or(duration(), defaults.settle),
        park: s
            .key("park", "How long an input request waits for its response. Then its call is cancelled. \
                 With a stdio server it also limits the wait of a task, which then continues without the \
                 response, because other calls wait for the process.")
            .or(duration(), defaults.park),
    }
}

fn legacy_tasks(s: &mut Section<'_, '_>) -> LegacyTasks {
    let defaults = LegacyTasks::default();
    let max_ttl = s
        .key(
            "max_ttl",
            "Longest retention of a result that a client can request, at least 1s. A task that is working \
             is kept in any case.",
        )
        .at(some_duration(), defaults.max_ttl);
    together::gone_soon("max_ttl", &max_ttl, s);
    let unsolicited = s
        .key(
            "unsolicited",
            "Clients that get tasks they did not ask for (SEP-2229, draft): `never`, `always`, or a list \
             of client matches. Clients that do not support this fail.",
        )
        .at(unsolicited(), Unsolicited::Never);
    LegacyTasks {
        max_ttl: max_ttl.value,
        errors_complete: s
            .key(
                "tool_errors",
                "Final status of a task whose tool returned an error: `failed`, as the revision \
                 specifies, or `completed`, for clients that drop the result of a failed task.",
            )
            .or(tool_errors(), defaults.errors_complete),
        immediate_response: s
            .key("immediate_response", "Text for the model to continue with while a task is working.")
            .set(text())
            .given(),
        across_eras: s
            .key(
                "across_eras",
                "Let a principal use in one era (modern, legacy) the tasks that it made in the other. \
                 Never applies to clients without credentials.",
            )
            .or(truth(), defaults.across_eras),
        unsolicited: together::unsolicited(unsolicited, s),
    }
}

fn held(
    s: &mut Section<'_, '_>,
    defer: &Defer,
    tools: &[ToolRule],
    (keep_alive, call): (Duration, together::CallTime),
) -> Held {
    let defaults = Held::default();
    let deadline = s
        .key(
            "deadline",
            "Longest wait of a client, or `off`. Then it gets an error (`-31003`), and the call is cancelled.",
        )
        .at(duration_or_off(), defaults.deadline);
    together::deadline(&deadline, defer, tools, call, s);
    let ticket = s
        .key(
            "ticket",
            "How long a `tools/call` may run before a client without task support gets a ticket, with \
             which its model fetches the result, or `off`.",
        )
        .at(duration_or_off(), defaults.ticket);
    together::ticket(&ticket, deadline.value, call, s);
    Held {
        progress: s
            .key(
                "progress",
                "Silence after which a client that sent a progress token gets a progress notification, or \
                 `off`.",
            )
            .or(duration_or_off(), defaults.progress),
        comments: s
            .key(
                "comments",
                "Silence after which an SSE comment keeps the connection open. Default: \
                 `timeouts.keep_alive`.",
            )
            .set(some_duration())
            .given()
            .unwrap_or(keep_alive),
        deadline: deadline.value,
        ticket: ticket.value,
    }
}

fn resume(s: &mut Section<'_, '_>) -> Resume {
    let defaults = Resume::default();
    Resume {
        mint: s
            .key(
                "mint",
                "Add ids to the events of responses, and buffer them for resumption. Responses in which the server sets ids are not changed.",
            )
            .or(truth(), defaults.mint),
        keep: s
            .key("keep", "How long a response is buffered after its end.")
            .or(some_duration(), defaults.keep),
        wait: s
            .key(
                "wait",
                "How long a call of the previous process waits after a restart for its client, whose \
                 credentials are needed to resume it. Requires a store on disk.",
            )
            .or(some_duration(), defaults.wait),
        bytes: s
            .key("bytes", "Bytes buffered of one response: the latest.")
            .or(size(1), defaults.bytes),
        streams: s
            .key("streams", "Responses buffered at a time. Further ones get no event ids.")
            .or(count(1), defaults.streams),
    }
}
