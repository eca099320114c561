//! The keys of a route.

use super::{
    defer::read_defer,
    header_names,
    held::{CallTimeLimit, read_held},
    limits::{LimitKeys, TimeoutKeys},
    rollout::check_rollouts,
    server::read_upstream,
    tasks::read_legacy_tasks,
    tickets::read_tickets,
    tools::{read_call_limits, read_tools},
};
use crate::{
    config::schema::{
        LoadContext, SectionReader, Setting, SourceSpan, SpannedValue, ValueResult, ValueType, boolean,
        count, duration, headers, invalid, list, mapping, positive_duration, size, string, values,
    },
    policy::{
        self, CallLimits, CallQueue, InputPolicy, PrincipalSource, ResponseHeaders, ResumePolicy, TicketAfter,
    },
    upstream,
};
use http::{HeaderName, HeaderValue};
use serde_json::json;
use std::time::Duration;

/// The default path of a route.
pub const DEFAULT_PATH: &str = "/mcp";

/// A route and its server.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    /// The path and the policies of the route.
    pub route: policy::Route,
    /// The URL of the server, or the command that starts it.
    pub server: upstream::UpstreamTarget,
    /// Limits, timeouts, headers and TLS of the connections to the server.
    pub upstream: upstream::Config,
}

/// The values of the keys of a route; fields that are invalid are `None`.
pub(super) struct RouteKeys {
    pub(super) path: Option<SpannedValue<String>>,
    pub(super) config: Option<RouteConfig>,
}

/// What applies to all routes.
#[derive(Clone, Copy)]
pub(super) struct RouteContext<'a> {
    pub(super) limits: &'a LimitKeys,
    pub(super) timeouts: &'a TimeoutKeys,
    /// Whether remote clients can connect without a token.
    pub(super) is_exposed: bool,
    /// Whether clients need a token.
    pub(super) needs_token: bool,
    pub(super) load: LoadContext<'a>,
}

const NO_ROUTES: &str = "no route; add one, as in `routes: [{ upstream: { url: \"http://…\" } }]`";

/// Reads `routes`, of which each has its own path.
pub(super) fn read_routes(s: &mut SectionReader<'_, '_>, context: RouteContext<'_>) -> Vec<RouteKeys> {
    let route = mapping("a route", move |s| Some(read_route(s, context)));
    let routes = s
        .key("routes", "Routes: paths of the proxy and the servers behind them. To be left out if `--upstream` or a command names the server.")
        .read_required(list(route).non_empty(NO_ROUTES));
    if routes.is_unset() {
        s.add_problem(SourceSpan::Whole, NO_ROUTES);
    }
    let routes: Vec<RouteKeys> =
        routes.ok().unwrap_or_default().into_iter().map(|route| route.value).collect();
    s.reject_repeated(routes.iter().filter_map(|route| route.path.clone()).collect(), |path, line| {
        format!("the path `{path}` is already a route{line}; choose another")
    });
    routes
}

fn read_route(s: &mut SectionReader<'_, '_>, context: RouteContext<'_>) -> RouteKeys {
    let (upstream_limits, timeouts) = (context.limits.upstream, context.timeouts);
    let path = read_path(s);
    let server = s
        .key("upstream", "The server behind the route: its `url`, or the `command` that starts it.")
        .read_required(mapping("`upstream`", |s| read_upstream(s, context.is_exposed, context.load)));
    if server.is_unset() {
        s.add_problem(s.span, "the route has no `upstream`; add `upstream: { url: \"http://…\" }`");
    }
    let call_limit = read_call_timeout(s, timeouts);
    let limits = read_route_limits(s);
    let (defer, rollout) = read_defer(s);
    let tools = read_tools(s, defer.mode, &limits);
    let wait_policy = read_held(s, &defer, &tools, timeouts.keep_alive, call_limit);
    let has_times = wait_policy.ticket_after.is_some()
        || tools.iter().any(|rule| matches!(rule.value.ticket, TicketAfter::After(_)));
    let tickets = read_tickets(s, has_times);
    let principal = read_principal(s, path.as_ref().filter(|_| context.is_exposed));
    let needs_credentials = principal == PrincipalSource::Authorization && !context.needs_token;
    check_rollouts(rollout.as_ref(), &defer, &tools, needs_credentials, s);
    let tools: Vec<_> = tools.into_iter().map(|rule| rule.value).collect();
    // The connection to the server gets the longest timeout of all tools; calls with a shorter timeout end
    // earlier.
    let longest = tools.iter().filter_map(|rule| rule.timeout).fold(call_limit.limit, Duration::max);
    let route = policy::Route {
        path: path.as_ref().map_or(DEFAULT_PATH, |path| &path.value).into(),
        defer,
        tools,
        limits,
        queue: CallQueue { length: upstream_limits.queue, max_wait: timeouts.upstream.queue },
        timeout: (call_limit.limit < longest).then_some(call_limit.limit),
        principal,
        resume: read_resume(s),
        legacy_tasks: read_legacy_tasks(s),
        wait_policy,
        tickets,
        input_policy: read_questions(s),
        session_headers: read_session_headers(s),
        // `forwarded` is set below, from a key of `upstream`.
        adds_forwarded_header: false,
        response_headers: s
            .key("response", "Responses to clients of the route.")
            .read_section("`response`", read_response_headers),
        empty_contents_is_error: s
            .key(
                "empty_contents_is_error",
                "Respond to a `resources/read` that found nothing with an error instead of an empty list.",
            )
            .read_or(boolean(), false),
    };
    let config = server.ok().map(|(server, connection)| {
        let route = policy::Route { adds_forwarded_header: connection.forwarded, ..route };
        let turn = route.input_policy.turn;
        let timeouts = upstream::UpstreamTimeouts { call: longest, turn, ..timeouts.upstream };
        let upstream = upstream::Config { timeouts, limits: upstream_limits, ..connection };
        RouteConfig { route, server, upstream }
    });
    RouteKeys { path, config }
}

/// Reads the path of a route; `None` if it is invalid.
fn read_path(s: &mut SectionReader<'_, '_>) -> Option<SpannedValue<String>> {
    let path = s
        .key("path", "Exact path that clients use; each route has its own.")
        .with_default(DEFAULT_PATH)
        .read(ValueType::text(json!({ "type": "string", "pattern": "^/" }), parse_path));
    match path {
        Setting::Valid(path) => Some(path),
        Setting::Unset => Some(SpannedValue::new(s.span, DEFAULT_PATH.to_owned())),
        Setting::Invalid => None,
    }
}

/// Parses a path of the client listeners.
pub(super) fn parse_path(text: &str) -> ValueResult<String> {
    if !text.starts_with('/') {
        return invalid(format!("a path begins with `/`; did you mean `/{text}`?"));
    }
    if text.contains(['?', '#']) || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return invalid(format!("`{text}` is not a path; remove `?`, `#` and spaces"));
    }
    if text.starts_with("/.well-known/") {
        return invalid(format!(
            "`{text}` cannot be a route; `/.well-known/` is for the metadata of the routes"
        ));
    }
    Ok(text.to_owned())
}

fn read_call_timeout(s: &mut SectionReader<'_, '_>, timeouts: &TimeoutKeys) -> CallTimeLimit {
    let timeout = s
        .key("timeout", "Maximum duration of a call, including the handshake and the wait for a session; after that it is cancelled, and it or its task fails with `-31003`. Default: `timeouts.call`.")
        .read(positive_duration());
    CallTimeLimit::for_route(timeout.ok(), timeouts)
}

fn read_route_limits(s: &mut SectionReader<'_, '_>) -> CallLimits {
    read_call_limits(
        s,
        "Maximum concurrent calls of the route's tools at the server, of all principals together. Further calls wait, and are served in turn by principal. At most `limits.queue` calls of one principal wait, each at most `timeouts.queue` unless it has become a task. Calls beyond that number, and calls that waited longer, fail with `-31006`. Default: no limit.",
        "Maximum calls of the route's tools by one principal per minute. A further one is refused (`-31006`, \
         `Retry-After`). Default: no limit.",
    )
}

/// Reads `principal`. `exposed_path` is the path of the route if remote clients can reach it: there all
/// clients without `Authorization` would be one principal. Writing the default turns the warning off.
fn read_principal(
    s: &mut SectionReader<'_, '_>,
    exposed_path: Option<&SpannedValue<String>>,
) -> PrincipalSource {
    let principal = s
        .key("principal", "What identifies the principal of a request, on whose behalf it is made: `authorization`, the value of its `Authorization` header (a refreshed OAuth token is another principal), or `{ header: NAME }`. With `access.tokens`, the name of the token takes the place of `authorization`; with a header, the principal is the pair of both. Requests without the value are one principal, `anonymous`. Tasks, sessions and quotas belong to a principal.")
        .with_default("authorization")
        .read(principal_type());
    if let (Some(SpannedValue { value: path, .. }), Setting::Unset) = (exposed_path, &principal) {
        let message = format!(
            "on `{path}` all clients without `Authorization` are one principal, also those that send a cookie \
             or an API key: they share one quota, and the id of a task is all it takes to use it; name the \
             header that tells them apart, as in `principal: {{ header: X-Api-Key }}`, or write `principal: \
             authorization` if every client sends that"
        );
        s.warn(s.span, message);
    }
    principal.ok().unwrap_or(PrincipalSource::Authorization)
}

/// The source of the principal: `authorization`, or a header.
fn principal_type() -> ValueType<'static, PrincipalSource> {
    let header = mapping("`principal`", |s| {
        let header = s
            .key("header", "Request header whose value names the principal. Only a trusted proxy in front should be able to set it: a client that reaches the listener directly could choose any value.")
            .read_required(string(values::header));
        if header.is_unset() {
            s.add_problem(s.span, "`principal` names no header; add one, as in `{ header: X-User }`");
        }
        header.ok().map(PrincipalSource::Header)
    });
    let authorization = ValueType::scalar(json!({ "const": "authorization" }), |text| match text {
        "authorization" => Ok(PrincipalSource::Authorization),
        _ => invalid(format!("unknown principal `{text}`; use authorization or {{ header: X-User }}")),
    });
    authorization.or_mapping(header)
}

/// Reads `forward`: headers that are not forwarded anyway, and do not belong to the connection or the
/// protocol.
fn read_session_headers(s: &mut SectionReader<'_, '_>) -> Vec<HeaderName> {
    let forward = s
        .key("forward", "Does not control forwarding. By default requests that differ in any header use different sessions with the server, except for headers that vary from request to request: `User-Agent`, `Accept-Language`, `Forwarded`, `X-Forwarded-*`, request ids such as `X-Request-Id`, and trace headers such as `traceparent`. List one of these here if the server tells clients apart by it.")
        .read_list(string(header_names::forwarded_header));
    s.reject_repeated(forward, |name, _| format!("`{name}` is listed twice; remove one of the two"))
}

fn read_response_headers(s: &mut SectionReader<'_, '_>) -> ResponseHeaders {
    let value = string(|text| {
        let text = values::header_value(text)?;
        Ok(HeaderValue::from_str(&text).expect("the header value has been validated"))
    });
    s.key("headers", "Headers set on every response of the route, including the proxy's own errors: names and values. They replace the server's headers of the same name.")
        .read(headers(header_names::response_header, value))
        .ok()
        .unwrap_or_default()
        .into_iter()
        .map(|(name, value)| (name, value.value))
        .collect()
}

/// Reads `questions`.
fn read_questions(s: &mut SectionReader<'_, '_>) -> InputPolicy {
    s.key("questions", "Input requests of the server during a call: elicitation, sampling, roots.")
        .read_section("`questions`", read_input_policy)
}

fn read_input_policy(s: &mut SectionReader<'_, '_>) -> InputPolicy {
    let defaults = InputPolicy::default();
    InputPolicy {
        settle: s
            .key("settle", "How long the proxy waits for further input requests after the first one, so that the client gets them together.")
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

/// Reads `resume`.
fn read_resume(s: &mut SectionReader<'_, '_>) -> ResumePolicy {
    s.key("resume", "Resumption of interrupted calls: SSE responses to legacy clients, and calls of the previous process after a restart.")
        .read_section("`resume`", read_resume_policy)
}

fn read_resume_policy(s: &mut SectionReader<'_, '_>) -> ResumePolicy {
    let defaults = ResumePolicy::default();
    ResumePolicy {
        assigns_event_ids: s
            .key("mint", "Whether the proxy adds ids to the SSE events of responses, and buffers the events, so that clients can resume a broken response. Responses in which the server sets ids are not changed.")
            .read_or(boolean(), defaults.assigns_event_ids),
        keep_for: s
            .key("keep", "How long a response is buffered after its end. Like `bytes` and `streams`, it has an effect only with `mint: true`.")
            .read_or(positive_duration(), defaults.keep_for),
        credentials_timeout: s
            .key("wait", "Maximum time that a call of the previous process waits after a restart for a request of its client, whose credentials are needed to resume it. Then it fails with `-31002`. Requires a store on disk.")
            .read_or(positive_duration(), defaults.credentials_timeout),
        max_bytes: s
            .key("bytes", "Maximum size of the buffer of one response. Beyond it the oldest events are dropped.")
            .read_or(size(1), defaults.max_bytes),
        max_streams: s
            .key("streams", "Maximum number of buffered responses. Further ones get no event ids.")
            .read_or(count(1), defaults.max_streams),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absolute_and_not_reserved() {
        assert!(parse_path("/mcp").is_ok());
        assert_eq!(parse_path("mcp").unwrap_err().0, "a path begins with `/`; did you mean `/mcp`?");
        assert!(parse_path("/a b").is_err() && parse_path("/a?b").is_err());
        assert!(parse_path("/.well-known/x").is_err());
    }
}
