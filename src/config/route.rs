//! The keys of a route.

use super::{
    RouteConfig, SpannedValue, cross_checks,
    environment::LoadContext,
    file::DEFAULT_PATH,
    limits::{LimitKeys, TimeoutKeys},
    rollout,
    section::{SectionReader, Setting, mapping},
    server::read_upstream,
    tickets::{read_ticket_after as ticket_after, read_tickets},
    value_types::{
        UnsolicitedSetting, boolean, count, duration, duration_or_off, mode, path, pattern,
        positive_duration, principal, requires, response_headers, size, string, text, tool_errors, tool_mode,
        unsolicited,
    },
    values,
};
use crate::{
    policy::{
        self, CallLimits, CallQueue, DeferPolicy, InputPolicy, LegacyTaskPolicy, Mode, PrincipalSource,
        ResumePolicy, Rollout, TicketAfter, ToolRule, WaitPolicy,
    },
    upstream,
};
use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

/// The values of the keys of a route; fields that are invalid are `None`.
pub(super) struct Route {
    pub(super) path: Option<SpannedValue<String>>,
    pub(super) config: Option<RouteConfig>,
}

/// Reads a route. `is_exposed` is set if remote clients can connect without a token, `needs_token` if clients
/// need a token.
pub(super) fn read_route(
    s: &mut SectionReader<'_, '_>,
    limits: &LimitKeys,
    timeouts: &TimeoutKeys,
    is_exposed: bool,
    needs_token: bool,
    context: LoadContext<'_>,
) -> Route {
    let (route_path, upstream_limits) = (read_path(s), limits.upstream);
    let written = s
        .key("upstream", "The server behind the route: its `url`, or the `command` that starts it.")
        .read_required(mapping("`upstream`", |s| Some(read_upstream(s, context))));
    let timeout = s
        .key(
            "timeout",
            "Maximum duration of a call, including the handshake and the wait for a session; after that it is cancelled, and it or its task fails with `-31003`. Default: `timeouts.call`.",
        )
        .read(positive_duration())
        .ok();
    let limits = read_call_limits(
        s,
        "Maximum concurrent calls of the route's tools at the server, of all principals together. Further \
         calls wait, and are served in turn by principal. At most `limits.queue` calls of one principal wait, \
         each at most `timeouts.queue` unless it has become a task. Calls beyond that number, and calls that \
         waited longer, fail with `-31006`. Default: no limit.",
        "Maximum calls of the route's tools by one principal per minute. A further one is refused (`-31006`, \
         `Retry-After`). Default: no limit.",
    );
    let (defer, route_rollout) = s
        .key("defer", "Which `tools/call` requests become tasks, and when.")
        .read_section("`defer`", read_defer);
    let rules = s
        .key("tools", "Per-tool overrides. First match wins.")
        .read_list(mapping("a tool rule", |s| Some(read_tool_rule(s, defer.mode))));
    let tool_tickets = cross_checks::tool_ticket_times(&rules);
    cross_checks::check_call_limits(&rules, &limits, s);
    let tool_rollouts = rollout::tool_rollouts(&rules);
    let tools = cross_checks::check_tool_rules(rules, s);
    // The connection to the server gets the longest timeout of all tools; calls with a shorter timeout end
    // earlier.
    let call_limit = cross_checks::CallTimeLimit::for_route(timeout, timeouts);
    let longest = tools.iter().filter_map(|rule| rule.timeout).fold(call_limit.limit, Duration::max);
    rollout::reject_ineffective(route_rollout.as_ref(), &defer, &tools, s);
    let wait_policy = s
        .key("held", "Clients that wait for a slow call without a task: keep-alive, deadline, ticket.")
        .read_section("`held`", |s| read_wait_policy(s, &defer, &tools, (timeouts.keep_alive, call_limit)));
    for after in tool_tickets {
        cross_checks::check_ticket(&after, wait_policy.deadline, call_limit, s);
    }
    let has_times = wait_policy.ticket_after.is_some()
        || tools.iter().any(|rule: &ToolRule| matches!(rule.ticket, TicketAfter::After(_)));
    let tickets = s
        .key(
            "tickets",
            "Details of tickets. A ticket is enabled by `held.ticket`, by the `ticket` of a tool, or by `tickets.for[].after`. It is the response to a slow call without task support: a text that tells the model to fetch the result with the tool `deferral_result`. Where tickets are enabled, the proxy adds that tool and `deferral_cancel` to the tool list.",
        )
        .read_section("`tickets`", |s| read_tickets(s, has_times));
    let principal = read_principal(s, route_path.as_ref().filter(|_| is_exposed));
    if principal == PrincipalSource::Authorization && !needs_token {
        rollout::warn_anonymous(route_rollout.iter().chain(&tool_rollouts), s);
    }
    let forward = s
        .key(
            "forward",
            "Does not control forwarding. By default requests that differ in any header use different sessions with the server, except for headers that vary from request to request: `User-Agent`, `Accept-Language`, `Forwarded`, `X-Forwarded-*`, request ids such as `X-Request-Id`, and trace headers such as `traceparent`. List one of these here if the server tells clients apart by it.",
        )
        .read_list(string(values::forwarded_header));
    let server = cross_checks::check_server(written, is_exposed, context, s);
    let route = policy::Route {
        path: route_path.as_ref().map_or(DEFAULT_PATH, |path| &path.value).into(),
        defer,
        tools,
        limits,
        queue: CallQueue { length: upstream_limits.queue, max_wait: timeouts.upstream.queue },
        timeout: (call_limit.limit < longest).then_some(call_limit.limit),
        principal,
        resume: s
            .key(
                "resume",
                "Resumption of interrupted calls: SSE responses to legacy clients, and calls of the previous process after a restart.",
            )
            .read_section("`resume`", read_resume),
        legacy_tasks: s
            .key(
                "tasks",
                "Tasks of revision 2025-11-25, which the proxy offers to clients of that revision if the server does not support them.",
            )
            .read_section("`tasks`", read_legacy_tasks),
        wait_policy,
        tickets,
        input_policy: s
            .key("questions", "Input requests of the server during a call: elicitation, sampling, roots.")
            .read_section("`questions`", read_input_policy),
        session_headers: cross_checks::reject_repeated(forward, s, |name| format!("`{name}` is listed twice; remove one of the two")),
        // `forwarded` is set below, from a key of `upstream`.
        adds_forwarded_header: false,
        response_headers: s
            .key("response", "Responses to clients of the route.")
            .read_section("`response`", |s| {
                s.key(
                    "headers",
                    "Headers set on every response of the route, including the proxy's own errors: names \
                     and values. They replace the server's headers of the same name.",
                )
                .read_or(response_headers(), Vec::new())
            }),
        empty_contents_is_error: s
            .key(
                "empty_contents_is_error",
                "Respond to a `resources/read` that found nothing with an error instead of an empty list.",
            )
            .read_or(boolean(), false),
    };
    let config = server.map(|(server, connection)| {
        let route = policy::Route { adds_forwarded_header: connection.forwarded, ..route };
        let turn = route.input_policy.turn;
        let timeouts = upstream::UpstreamTimeouts { call: longest, turn, ..timeouts.upstream };
        let upstream = upstream::Config { timeouts, limits: upstream_limits, ..connection };
        RouteConfig { route, server, upstream }
    });
    Route { path: route_path, config }
}

/// Reads the path of a route; `None` if it is invalid.
fn read_path(s: &mut SectionReader<'_, '_>) -> Option<SpannedValue<String>> {
    match s
        .key("path", "Exact path that clients use; each route has its own.")
        .with_default(DEFAULT_PATH)
        .read(path())
    {
        Setting::Valid(path) => Some(path),
        Setting::Unset => Some(SpannedValue::new(s.span, DEFAULT_PATH.to_owned())),
        Setting::Invalid => None,
    }
}

/// Reads `principal`. `exposed_path` is the path of the route if remote clients can reach it.
fn read_principal(
    s: &mut SectionReader<'_, '_>,
    exposed_path: Option<&SpannedValue<String>>,
) -> PrincipalSource {
    let principal = s
        .key(
            "principal",
            "What identifies the principal of a request, on whose behalf it is made: `authorization`, the value of its `Authorization` header (a refreshed OAuth token is another principal), or `{ header: NAME }`. With `access.tokens`, the name of the token takes the place of `authorization`; with a header, the principal is the pair of both. Requests without the value are one principal, `anonymous`. Tasks, sessions and quotas belong to a principal.",
        )
        .with_default("authorization")
        .read(principal());
    if let (Some(path), Setting::Unset) = (exposed_path, &principal) {
        cross_checks::warn_single_principal(&path.value, s);
    }
    principal.ok().unwrap_or(PrincipalSource::Authorization)
}

fn read_defer(s: &mut SectionReader<'_, '_>) -> (DeferPolicy, Option<SpannedValue<Arc<Rollout>>>) {
    let defaults = DeferPolicy::default();
    let retention = s
        .key(
            "retention",
            "How long the result of a finished task is kept, at least 1s. A task that is working is kept \
             in any case.",
        )
        .read_spanned_or(duration(), defaults.retention);
    cross_checks::warn_short_retention("retention", &retention, s);
    let rollout = rollout::read_rollout(
        s,
        "Share of principals whose calls become tasks, as in `25%`; or a mapping with more options. The \
         others are treated as in mode `observe`. Default: `100%`.",
    );
    let defer = DeferPolicy {
        mode: s.key("mode", "`auto`: a call with task support that is still running at `after` becomes a task (one with `params.task` at once). `always`: a call with task support becomes a task at once. `required`: as `auto`, and calls without task support are refused (`-32021`, legacy: `-32601`). `never`: no call becomes a task. `observe`: as `never`, but the log and the metrics record which calls would have become tasks. Only `auto` and `always` give tickets.").read_or(mode(), defaults.mode),
        after: s
            .key("after", "Threshold: how long a call may run before it becomes a task.")
            .read_or(duration(), defaults.after),
        retention: retention.value,
        rollout: rollout.as_ref().map(|rollout| Arc::clone(&rollout.value)),
    };
    (defer, rollout)
}

/// Reads a tool rule. `route_mode` is the mode of the route.
fn read_tool_rule(s: &mut SectionReader<'_, '_>, route_mode: Mode) -> Option<SpannedValue<ToolRule>> {
    let matches =
        s.key("match", "Name of the tool; `*` matches any characters, `?` one.").read_required(pattern());
    if matches.is_unset() {
        s.add_problem(s.span, "the rule has no `match`; add the name of a tool, or `*` for all");
    }
    let mode = s
        .key(
            "mode",
            "As `defer.mode`, or `deny`: the tool is hidden from `tools/list`, and its calls are refused like those of an unknown tool. Default: the route's mode.",
        )
        .read(tool_mode());
    let after = s
        .key("after", "Threshold: how long a call may run before it becomes a task. Default: the route's.")
        .read(duration());
    let ticket = ticket_after(
        s,
        "How long a call of these tools may run before a client without task support gets a ticket, or `off`. \
         Default: the route's (`held.ticket`).",
    );
    let rollout = rollout::read_rollout(
        s,
        "Share of principals for whose calls of the tool the mode applies, as in `25%`; or a mapping with \
         more options. Default: the route's (`defer.rollout`).",
    );
    let keys = s.key("keys", "Names of the tool's input requests, in the order in which the tool sends them: the keys of `inputRequests` and `inputResponses`. Default: kind and number, as in `elicitation-1`.").read_list(text());
    let keys = cross_checks::reject_repeated(keys, s, |key| {
        format!("the key `{key}` is listed twice; each input request needs its own")
    });
    let requires = s
        .key(
            "requires",
            "Capabilities that a client must declare to call the tool, as in `{ sampling: {} }`. Calls of other clients are refused (`-32021`).",
        )
        .read(requires());
    let timeout = s
        .key(
            "timeout",
            "Maximum duration of a call, including the handshake and the wait for a session; after that it is cancelled, and it or its task fails with `-31003`. Default: the route's.",
        )
        .read(positive_duration())
        .ok();
    let limits = read_call_limits(
        s,
        "Maximum concurrent calls of these tools at the server, of all principals together, in addition to \
         the route's limit. Further calls wait as for the route's limit. Default: no limit of their own.",
        "Maximum calls of these tools by one principal per minute, in addition to the route's limit. Default: \
         no limit of their own.",
    );
    let Setting::Valid(SpannedValue { span, value: matches }) = matches else { return None };
    let (mode, after, requires) = (mode.ok(), after.ok(), requires.ok().map(Arc::new));
    rollout::reject_ineffective_tool_rollout(rollout.as_ref(), mode.unwrap_or(route_mode), s);
    let rollout = rollout.map(|rollout| rollout.value);
    let keys = keys.into();
    Some(SpannedValue::new(
        span,
        ToolRule { matches, mode, after, rollout, ticket, limits, timeout, keys, requires },
    ))
}

/// Reads `concurrency` and `calls_per_minute`, whose descriptions are the parameters.
fn read_call_limits(
    s: &mut SectionReader<'_, '_>,
    concurrency_description: &'static str,
    rate_description: &'static str,
) -> CallLimits {
    let concurrency = s.key("concurrency", concurrency_description).read(count::<usize>(1)).ok();
    let calls_per_minute = s.key("calls_per_minute", rate_description).read(count::<u32>(1)).ok();
    CallLimits {
        concurrency: concurrency.and_then(NonZeroUsize::new),
        calls_per_minute: calls_per_minute.and_then(NonZeroU32::new),
    }
}

fn read_input_policy(s: &mut SectionReader<'_, '_>) -> InputPolicy {
    let defaults = InputPolicy::default();
    InputPolicy {
        settle: s
            .key(
                "settle",
                "How long the proxy waits for further input requests after the first one, so that the client gets them together.",
            )
            .read_or(duration(), defaults.settle),
        park: s
            .key("park", "Maximum time for the client to respond to an input request; after that its call is cancelled. In a task of a stdio server only the input request ends: the proxy answers it with an error, and the task goes on, so that the process is free for other calls.")
            .read_or(duration(), defaults.park),
        turn: s
            .key(
                "turn",
                "Maximum time that an unanswered input request of a stdio server keeps clients of other principals \
                 waiting for the process, if no other process is free for them; after that the proxy answers it \
                 with an error. While nobody waits, only `park` applies.",
            )
            .read_or(duration(), defaults.turn),
    }
}

fn read_legacy_tasks(s: &mut SectionReader<'_, '_>) -> LegacyTaskPolicy {
    let defaults = LegacyTaskPolicy::default();
    let max_ttl = s
        .key(
            "max_ttl",
            "Longest retention of a result that a client can request, at least 1s. A task that is working \
             is kept in any case.",
        )
        .read_spanned_or(positive_duration(), defaults.max_ttl);
    cross_checks::warn_short_retention("max_ttl", &max_ttl, s);
    let unsolicited = s
        .key(
            "unsolicited",
            "Clients of 2025-11-25 whose slow calls become tasks although they did not ask for that (SEP-2229, a draft): `never`, `always`, or a list of client matches. Clients that do not expect it fail.",
        )
        .read_spanned_or(unsolicited(), UnsolicitedSetting::Never);
    LegacyTaskPolicy {
        max_ttl: max_ttl.value,
        completes_on_tool_error: s
            .key(
                "tool_errors",
                "Final status of a task whose tool returned an error: `failed`, as the revision \
                 specifies, or `completed`, for clients that drop the result of a failed task.",
            )
            .read_or(tool_errors(), defaults.completes_on_tool_error),
        immediate_response: s
            .key("immediate_response", "Text for the model to continue with while a task is working, which the proxy adds to the response with the handle (`_meta`, `io.modelcontextprotocol/model-immediate-response`). Default: none.")
            .read(text())
            .ok(),
        is_shared_across_eras: s
            .key(
                "across_eras",
                "Whether a principal's modern clients may use the tasks that its legacy clients made, and the other way round. Never applies to clients without credentials.",
            )
            .read_or(boolean(), defaults.is_shared_across_eras),
        unsolicited: cross_checks::check_unsolicited(unsolicited, s),
    }
}

fn read_wait_policy(
    s: &mut SectionReader<'_, '_>,
    defer: &DeferPolicy,
    tools: &[ToolRule],
    (keep_alive, call): (Duration, cross_checks::CallTimeLimit),
) -> WaitPolicy {
    let defaults = WaitPolicy::default();
    let deadline = s
        .key(
            "deadline",
            "How long a client may wait; after that it gets an error (`-31003`), and the call is cancelled. `off`: no limit.",
        )
        .read_spanned_or(duration_or_off(), defaults.deadline);
    cross_checks::check_deadline(&deadline, defer, tools, call, s);
    let ticket = s
        .key(
            "ticket",
            "How long a `tools/call` without task support may run before its client gets a ticket (see `tickets`), or `off`. Set it below the timeout of the client.",
        )
        .read_spanned_or(duration_or_off(), defaults.ticket_after);
    cross_checks::check_ticket(&ticket, deadline.value, call, s);
    WaitPolicy {
        progress_after: s
            .key(
                "progress",
                "Time without a message of the server after which a client that sent a progress token gets a progress notification, or `off`.",
            )
            .read_or(duration_or_off(), defaults.progress_after),
        comment_after: s
            .key(
                "comments",
                "Time without data of the server after which the proxy sends an SSE comment, to keep the connection open. Default: `timeouts.keep_alive`.",
            )
            .read(positive_duration())
            .ok()
            .unwrap_or(keep_alive),
        deadline: deadline.value,
        ticket_after: ticket.value,
    }
}

fn read_resume(s: &mut SectionReader<'_, '_>) -> ResumePolicy {
    let defaults = ResumePolicy::default();
    ResumePolicy {
        assigns_event_ids: s
            .key(
                "mint",
                "Whether the proxy adds ids to the SSE events of responses, and buffers the events, so that clients can resume a broken response. Responses in which the server sets ids are not changed.",
            )
            .read_or(boolean(), defaults.assigns_event_ids),
        keep_for: s
            .key("keep", "How long a response is buffered after its end. Like `bytes` and `streams`, it has an effect only with `mint: true`.")
            .read_or(positive_duration(), defaults.keep_for),
        credentials_timeout: s
            .key(
                "wait",
                "Maximum time that a call of the previous process waits after a restart for a request of its client, whose credentials are needed to resume it. Then it fails with `-31002`. Requires a store on disk.",
            )
            .read_or(positive_duration(), defaults.credentials_timeout),
        max_bytes: s
            .key("bytes", "Maximum size of the buffer of one response. Beyond it the oldest events are dropped.")
            .read_or(size(1), defaults.max_bytes),
        max_streams: s
            .key("streams", "Maximum number of buffered responses. Further ones get no event ids.")
            .read_or(count(1), defaults.max_streams),
    }
}
