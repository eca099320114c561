//! `/routes`: the routes, and the state of their servers.

use crate::{policy, telemetry::metrics, upstream::Upstream};
use bytes::Bytes;
use serde::Serialize;
use std::sync::Arc;

/// A served route and its server, for the admin listener.
#[derive(Clone)]
pub struct RouteEntry {
    pub route: Arc<policy::Route>,
    /// The URL without possible secrets, or the name of the program.
    pub server: String,
    pub upstream: Arc<dyn Upstream>,
}

#[derive(Serialize)]
struct RouteView<'a> {
    path: &'a str,
    mode: &'a str,
    after_ms: u128,
    ticket_ms: Option<u128>,
    /// The rollout, as in `25% by principal`; `None` if there is none.
    rollout: Option<String>,
    tools: Vec<ToolRuleView<'a>>,
    server: &'a str,
    is_up: Option<bool>,
    /// Why the server is down.
    failure: Option<String>,
    sessions: usize,
    children: Option<usize>,
    in_flight: u64,
}

/// A tool rule; absent settings are those of the route.
#[derive(Serialize)]
struct ToolRuleView<'a> {
    r#match: &'a str,
    mode: &'a str,
    after_ms: u128,
    rollout: Option<String>,
}

/// Returns the routes, and the state of their servers, as JSON.
pub(super) fn routes_json(routes: &[RouteEntry]) -> Bytes {
    let views: Vec<_> = routes.iter().map(route_view).collect();
    serde_json::to_vec(&views).expect("it is written to memory").into()
}

fn route_view(RouteEntry { route, server, upstream }: &RouteEntry) -> RouteView<'_> {
    let (defer, status) = (&route.defer, upstream.status());
    RouteView {
        path: &route.path,
        mode: defer.mode.as_str(),
        after_ms: defer.after.as_millis(),
        ticket_ms: route.wait_policy.ticket_after.map(|ticket| ticket.as_millis()),
        rollout: defer.rollout.as_ref().map(ToString::to_string),
        tools: route.tools.iter().map(|rule| tool_rule_view(rule, defer)).collect(),
        server,
        failure: status.failure.filter(|_| status.is_up == Some(false)).map(|error| error.to_string()),
        is_up: status.is_up,
        sessions: status.sessions,
        children: upstream.processes().map(|processes| processes.running.len()),
        in_flight: metrics::requests_in_flight(&route.path),
    }
}

fn tool_rule_view<'a>(rule: &'a policy::ToolRule, route_defer: &policy::DeferPolicy) -> ToolRuleView<'a> {
    ToolRuleView {
        r#match: rule.matches.as_str(),
        mode: rule.mode.unwrap_or(route_defer.mode).as_str(),
        after_ms: rule.after.unwrap_or(route_defer.after).as_millis(),
        rollout: rule.rollout.as_ref().or(route_defer.rollout.as_ref()).map(ToString::to_string),
    }
}
