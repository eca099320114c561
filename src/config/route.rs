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
    let written =
        s.key("upstream", "The server.").required(mapping("`upstream`", |s| Some(server(s, around))));
    let timeout = s
        .key(
            "timeout",
            "The longest time of a call, from when it begins, the handshake and waiting for a session included. Then it is cancelled, and it or its task fails with \
             `-31003`. Left out: `timeouts.call`, which it outweighs.",
        )
        .set(some_duration())
        .given();
    let limits = call_limits(
        s,
        "Calls of the route's tools at the server at a time, of all callers. Further ones wait, those of each caller in turn: at \
         most `limits.queue` of one caller, and at most `timeouts.queue` unless they have become tasks; then `-31006`. Left out: no limit.",
        "Calls of the route's tools by one caller in a minute. A further one is refused (`-31006`, `Retry-After`). Left out: no limit.",
    );
    let (defer, rolled_out) = s.key("defer", "When a `tools/call` becomes a task.").section("`defer`", defer);
    let rules = s
        .key("tools", "What is different for some tools. The first rule that matches holds.")
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
        .key("held", "What a client gets that waits for a slow call without a task.")
        .section("`held`", |s| held(s, &defer, &tools, (timeouts.keep_alive, of_route)));
    for after in tickets_of_tools {
        together::ticket(&after, held.deadline, of_route, s);
    }
    let has_times = held.ticket.is_some()
        || tools.iter().any(|rule: &ToolRule| matches!(rule.ticket, TicketAfter::After(_)));
    let tickets = s
        .key(
            "tickets",
            "Tickets for clients that know no tasks: the model fetches the result with a tool of ours.",
        )
        .section("`tickets`", |s| tickets(s, has_times));
    let principal = caller(s, name.as_ref().filter(|_| is_exposed));
    if principal == PrincipalSource::Authorization && !needs_token {
        rollout::doubt_anonymous(rolled_out.iter().chain(&rollouts_of_tools), s);
    }
    let forward = s
        .key("forward", "Headers that sessions with the server are chosen by, beside those that are anyway: only those that pass with one request \
             alone need to be named (`User-Agent`, `Accept-Language`, `X-Request-Id`, trace headers). All pass to the server.")
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
        tickets,
        questions: s
            .key("questions", "Questions that the server asks during a call.")
            .section("`questions`", questions),
        forward: together::once(forward, s, |name| format!("`{name}` is listed twice")),
        // A key of `upstream`.
        forwarded: false,
        response_headers: s
            .key("response", "Responses to clients of the route.")
            .section("`response`", |s| {
                s.key(
                    "headers",
                    "Headers of every response of the route, errors of the proxy's own included: names and values. They take the \
                     place of the server's own of these names.",
                )
                .or(response_headers(), Vec::new())
            }),
        empty_contents_is_error: s
            .key(
                "empty_contents_is_error",
                "Answer a `resources/read` that found nothing with an error instead of an empty list.",
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
    match s.key("path", "The path that clients use.").with_default(DEFAULT_PATH).set(path()) {
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

fn defer(s: &mut Section<'_, '_>) -> (Defer, Option<At<Arc<Rollout>>>) {
    let defaults = Defer::default();
    let retention = s
        .key(
            "retention",
            "How long the result of a finished task stays, at least a second. A task that works is kept whatever \
             this is.",
        )
        .at(duration(), defaults.retention);
    together::gone_soon("retention", &retention, s);
    let rollout = rollout::rollout(s);
    let defer = Defer {
        mode: s.key("mode", "Which calls become tasks.").or(mode(), defaults.mode),
        after: s
            .key("after", "How long a call may run before it becomes a task.")
            .or(duration(), defaults.after),
        retention: retention.value,
        rollout: rollout.as_ref().map(|rollout| Arc::clone(&rollout.value)),
    };
    (defer, rollout)
}

/// A rule of a tool, on a route of this mode.
fn tool(s: &mut Section<'_, '_>, inherited: Mode) -> Option<At<ToolRule>> {
    let matches =
        s.key("match", "The tool's name; `*` stands for any characters, `?` for one.").required(pattern());
    if matches.is_unset() {
        s.wrong(s.place, "the rule has no `match`; name the tool, or `*` for every one");
    }
    let mode = s
        .key(
            "mode",
            "Which calls become tasks, or `deny`: the tool is left out of `tools/list`, and its calls are refused as those \
             of an unknown tool. The route's mode, where it is left out.",
        )
        .set(tool_mode());
    let after = s
        .key("after", "How long a call may run before it becomes a task; the route's, where it is left out.")
        .set(duration());
    let ticket = ticket_after(
        s,
        "How long a call may run before a client that knows no tasks is answered with a ticket, or `off`; the \
         route's (`held.ticket`), where it is left out.",
    );
    let rollout = rollout::rollout(s);
    let keys = s.key("keys", "Names for the questions the tool asks, in their order.").list(text());
    let keys = together::once(keys, s, |key| {
        format!("the key `{key}` is listed twice; each question needs its own")
    });
    let requires = s
        .key("requires", "What a client must declare to call the tool, such as `{ sampling: {} }`.")
        .set(requires());
    let timeout = s
        .key(
            "timeout",
            "The longest time of a call, from when it begins, the handshake and waiting for a session included. Then it is cancelled, and it or its task fails with \
             `-31003`. The route's, where it is left out.",
        )
        .set(some_duration())
        .given();
    let limits = call_limits(
        s,
        "Calls of these tools together at the server at a time, of all callers, within the route's limit. Further ones wait as the \
         route's do. Left out: the route's limit alone.",
        "Calls of these tools together by one caller in a minute, within the route's limit. Left out: the route's limit alone.",
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
            "How long a client waits at most, or `off`. Then it gets an error, and the call is cancelled.",
        )
        .at(duration_or_off(), defaults.deadline);
    together::deadline(&deadline, defer, tools, call, s);
    let ticket = s
        .key(
            "ticket",
            "How long a `tools/call` may run before a client that knows no tasks is answered with a ticket, with \
             which its model fetches the result, or `off`.",
        )
        .at(duration_or_off(), defaults.ticket);
    together::ticket(&ticket, deadline.value, call, s);
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
                "Give the events of answers ids, and keep them. Answers whose server gives ids are left as they are.",
            )
            .or(truth(), defaults.mint),
        keep: s
            .key("keep", "How long an answer is kept after its end.")
            .or(some_duration(), defaults.keep),
        wait: s
            .key(
                "wait",
                "How long a call that the process before this one has made waits for its caller, without whose \
                 credentials it cannot be taken up. Needs a store that lasts.",
            )
            .or(some_duration(), defaults.wait),
        bytes: s
            .key("bytes", "Bytes of one answer that are kept: the latest.")
            .or(size(1), defaults.bytes),
        streams: s
            .key("streams", "Answers that are kept at a time. Further ones go without ids.")
            .or(count(1), defaults.streams),
    }
}
