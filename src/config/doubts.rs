//! What is allowed and yet probably not meant.

use super::{
    file::{DEFAULT_PATH, File, Route, Set},
    problem::{At, Problem},
};

/// Doubts about a configuration that may well be free of problems.
pub(super) fn about(file: &File) -> Vec<Problem> {
    let Set::To(routes) = &file.routes else { return Vec::new() };
    if !is_exposed(file) {
        return Vec::new();
    }
    routes.value.iter().filter_map(one_caller).collect()
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
