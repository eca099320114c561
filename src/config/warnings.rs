//! What is allowed and yet probably not meant.

use super::{
    file::{DEFAULT_PATH, File, Route, Set},
    problem::{At, Problem},
    values::show_duration,
};
use crate::{policy::SHORTEST_RETENTION, protocol::capability};
use serde_json::Value;
use std::time::Duration;

/// Doubts about a configuration that may well be free of problems.
pub(super) fn about(file: &File) -> Vec<Problem> {
    let Set::To(routes) = &file.routes else { return Vec::new() };
    let all = |route| unknown_capabilities(route).into_iter().chain(gone_soon(route));
    let mut doubts: Vec<_> = routes.value.iter().flat_map(all).collect();
    if is_exposed(file) {
        doubts.extend(routes.value.iter().filter_map(one_caller));
    }
    doubts
}

/// Rules that require what the specification does not know: a client may have such a capability, but
/// most have not.
fn unknown_capabilities(route: &At<Route>) -> Vec<Problem> {
    let Set::To(tools) = &route.value.tools else { return Vec::new() };
    let doubts = tools.value.iter().filter_map(|tool| {
        let Set::To(At { place, value: Value::Object(required) }) = &tool.value.requires else { return None };
        let is_known = |name: &String| capability::OF_CLIENTS.iter().any(|(known, _)| known == name);
        let unknown = required.keys().find(|name| !is_known(name))?;
        let message = format!(
            "warning: `{unknown}` is no capability of the specification; clients that do not declare it are refused"
        );
        Some(Problem::new(*place, message))
    });
    doubts.collect()
}

/// A client that is away for less than this, or asks no more often, is nothing unusual.
const SOON: Duration = Duration::from_secs(60);

/// Results that are gone before a client may come for them.
fn gone_soon(route: &At<Route>) -> Vec<Problem> {
    let written = |set: &Set<Duration>| match set {
        Set::To(at) => Some(At::new(at.place, at.value)),
        Set::Unset | Set::Wrong => None,
    };
    let retention = match &route.value.defer {
        Set::To(defer) => written(&defer.value.retention).map(|at| ("retention", at)),
        Set::Unset | Set::Wrong => None,
    };
    let max_ttl = match &route.value.tasks {
        Set::To(tasks) => written(&tasks.value.max_ttl).map(|at| ("max_ttl", at)),
        Set::Unset | Set::Wrong => None,
    };
    let soon = [retention, max_ttl].into_iter().flatten().filter(|(_, at)| at.value < SOON);
    soon.map(|(key, At { place, value })| {
        let shown = show_duration(value);
        let kept = match value < SHORTEST_RETENTION {
            true => format!("counts as {}", show_duration(SHORTEST_RETENTION)),
            false => "is short".to_owned(),
        };
        let message = format!(
            "warning: `{key}` ({shown}) {kept}: the result of a task is gone so long after its end, whether it \
             was fetched or not; a client that is away for a moment, or asks less often than it is told to, \
             never sees it"
        );
        Problem::new(place, message)
    })
    .collect()
}

/// Whether clients come from elsewhere: what listens to this machine alone is one person's.
fn is_exposed(file: &File) -> bool {
    let listens = match &file.listen {
        Set::To(addresses) => {
            addresses.value.iter().any(|address| !address.value.ip().to_canonical().is_loopback())
        }
        Set::Unset | Set::Wrong => false,
    };
    // Behind a proxy on the same machine.
    listens || matches!(file.public_url, Set::To(_))
}

/// A route on which nobody has thought of what tells its callers apart. Writing the default down is
/// a way of saying that it is meant.
fn one_caller(route: &At<Route>) -> Option<Problem> {
    let path = match (&route.value.principal, &route.value.path) {
        (Set::To(_) | Set::Wrong, _) | (Set::Unset, Set::Wrong) => return None,
        (Set::Unset, Set::To(path)) => &path.value,
        (Set::Unset, Set::Unset) => DEFAULT_PATH,
    };
    let message = format!(
        "warning: on `{path}` all callers without `Authorization` count as one, also those that show a cookie or an \
         API key: they share one quota, and a task's id is all it takes to use it; name the header that tells them \
         apart, as in `principal: {{ header: X-Api-Key }}`, or write `principal: authorization` if every caller \
         sends that"
    );
    Some(Problem::new(route.place, message))
}
