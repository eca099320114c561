//! The table of endpoints: method, path, authorization and handler.

use super::{
    events,
    gate::RequiredAccess,
    health, metrics, page, processes,
    response::{AdminResponse, error_response, json_response, text_response},
    routes,
    server::AdminParts,
    tap, tasks, token_endpoints,
};
use crate::telemetry;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, StatusCode, header::ALLOW};
use std::sync::Arc;

/// An endpoint of the admin listener.
pub(super) struct AdminEndpoint {
    /// The method; for GET, also HEAD is served.
    pub(super) method: Method,
    /// The path pattern; a segment in braces is a parameter.
    path: &'static str,
    pub(super) requires: RequiredAccess,
    pub(super) handler: fn(Arc<AdminParts>, AdminRequest) -> BoxFuture<'static, AdminResponse>,
}

/// The parts of an admitted request that handlers use.
pub(super) struct AdminRequest {
    /// Values of the path parameters, in order.
    pub(super) path_parameters: Vec<String>,
    /// The query without `?`, not decoded.
    pub(super) query: String,
    pub(super) body: Bytes,
}

/// All endpoints, in the order of error messages.
pub(super) static ENDPOINTS: &[AdminEndpoint] = &[
    AdminEndpoint {
        method: Method::GET,
        path: "/live",
        requires: RequiredAccess::Probe,
        handler: |_, _| Box::pin(async { respond_with_json(health::liveness()) }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/ready",
        requires: RequiredAccess::Probe,
        handler: |parts, _| Box::pin(async move { respond_with_json(parts.ready()) }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/metrics",
        requires: RequiredAccess::Read,
        handler: |parts, _| {
            Box::pin(async move {
                let written = metrics::prometheus_text(&parts.servers, &parts.ledger).await;
                text_response(StatusCode::OK, telemetry::metrics::TEXT_FORMAT, written)
            })
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/tools",
        requires: RequiredAccess::Read,
        handler: |parts, _| {
            Box::pin(
                async move { json_response(StatusCode::OK, metrics::tools_json(parts.events.started())) },
            )
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/limits",
        requires: RequiredAccess::Read,
        handler: |parts, _| {
            Box::pin(async move { json_response(StatusCode::OK, metrics::limits_json(&parts.ledger).await) })
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/tasks",
        requires: RequiredAccess::Read,
        handler: |parts, request| {
            Box::pin(async move { tasks::respond_with_page(&parts, &request.query).await })
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/tasks/{task}",
        requires: RequiredAccess::Read,
        handler: |parts, request| {
            Box::pin(async move { tasks::show_task(&parts, &request.path_parameters[0]).await })
        },
    },
    AdminEndpoint {
        method: Method::POST,
        path: "/tasks/{task}/cancel",
        requires: RequiredAccess::Change,
        handler: |parts, request| {
            Box::pin(async move { tasks::cancel(&parts, &request.path_parameters[0]).await })
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/routes",
        requires: RequiredAccess::Read,
        handler: |parts, _| {
            Box::pin(async move { json_response(StatusCode::OK, routes::routes_json(&parts.routes)) })
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/config",
        requires: RequiredAccess::Read,
        handler: |parts, _| Box::pin(async move { json_response(StatusCode::OK, parts.settings.clone()) }),
    },
    AdminEndpoint {
        method: Method::POST,
        path: "/reload",
        requires: RequiredAccess::Change,
        handler: |parts, _| Box::pin(async move { parts.reloads.respond().await }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/events",
        requires: RequiredAccess::Read,
        handler: |parts, _| Box::pin(async move { events::open_stream(&parts) }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/history",
        requires: RequiredAccess::Read,
        handler: |parts, _| Box::pin(async move { parts.history.respond() }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/tap",
        // The tap changes nothing, but shows confidential data.
        requires: RequiredAccess::Change,
        handler: |parts, request| Box::pin(async move { tap::open_stream(&parts, &request.query) }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/processes",
        requires: RequiredAccess::Read,
        handler: |parts, _| {
            Box::pin(async move { json_response(StatusCode::OK, processes::processes_json(&parts.servers)) })
        },
    },
    AdminEndpoint {
        method: Method::POST,
        path: "/session",
        // The endpoint takes a one-time code instead of a token.
        requires: RequiredAccess::Probe,
        handler: |parts, request| {
            Box::pin(async move { token_endpoints::redeem_code(&parts, &request.body) })
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/token",
        requires: RequiredAccess::Read,
        handler: |parts, request| {
            Box::pin(async move { token_endpoints::token_file(&parts, &request.query) })
        },
    },
    page_file("/", |_, _| Box::pin(async { page::INDEX.respond() })),
    page_file("/app.js", |_, _| Box::pin(async { page::SCRIPT.respond() })),
    page_file("/style.css", |_, _| Box::pin(async { page::STYLE.respond() })),
    page_file("/icon.svg", |_, _| Box::pin(async { page::ICON.respond() })),
    page_file("/uplot.js", |_, _| Box::pin(async { page::PLOT.respond() })),
    page_file("/uplot.css", |_, _| Box::pin(async { page::PLOT_STYLE.respond() })),
];

/// Creates the endpoint of a file of the page. The file requires no token; the data that the page requests
/// does.
const fn page_file(
    path: &'static str,
    handler: fn(Arc<AdminParts>, AdminRequest) -> BoxFuture<'static, AdminResponse>,
) -> AdminEndpoint {
    AdminEndpoint { method: Method::GET, path, requires: RequiredAccess::Probe, handler }
}

// === impl AdminEndpoint ===

impl AdminEndpoint {
    /// Whether the endpoint is a health check, which is served also if all other connections are in use.
    pub(super) fn is_probe(&self) -> bool {
        matches!(self.path, "/live" | "/ready")
    }
}

/// Finds the endpoint of a request. The returned [`AdminRequest`] has the path parameters only.
///
/// # Errors
/// A response that lists the available paths or methods.
pub(super) fn find_endpoint(
    method: &Method,
    path: &str,
) -> Result<(&'static AdminEndpoint, AdminRequest), Box<AdminResponse>> {
    let matching: Vec<_> =
        ENDPOINTS.iter().filter_map(|served| Some((served, match_path(served.path, path)?))).collect();
    if matching.is_empty() {
        let paths: Vec<_> = ENDPOINTS.iter().map(|served| served.path).collect();
        let error = format!("nothing is served at `{path}`; served here: {}", paths.join(", "));
        return Err(Box::new(error_response(StatusCode::NOT_FOUND, &error)));
    }
    let allowed: Vec<_> =
        matching.iter().flat_map(|(served, _)| allowed_methods(&served.method)).copied().collect();
    let effective_method = if *method == Method::HEAD { &Method::GET } else { method };
    match matching.into_iter().find(|(served, _)| served.method == effective_method) {
        Some((endpoint, path_parameters)) => {
            Ok((endpoint, AdminRequest { path_parameters, query: String::new(), body: Bytes::new() }))
        }
        None => Err(Box::new(method_not_allowed(path, &allowed.join(", ")))),
    }
}

fn method_not_allowed(path: &str, allowed: &str) -> AdminResponse {
    let error = format!("`{path}` allows only {allowed}");
    let mut response = error_response(StatusCode::METHOD_NOT_ALLOWED, &error);
    let allowed = HeaderValue::from_str(allowed).expect("method names are valid header values");
    response.headers_mut().insert(ALLOW, allowed);
    response
}

fn allowed_methods(method: &Method) -> &'static [&'static str] {
    if *method == Method::GET { &["GET", "HEAD"] } else { &["POST"] }
}

/// Returns the values of the path parameters, if the path matches the pattern.
fn match_path(pattern: &str, path: &str) -> Option<Vec<String>> {
    let (mut pattern_segments, mut path_segments) = (pattern.split('/'), path.split('/'));
    let mut parameters = Vec::new();
    loop {
        match (pattern_segments.next(), path_segments.next()) {
            (None, None) => return Some(parameters),
            (Some(expected), Some(segment)) if expected.starts_with('{') && !segment.is_empty() => {
                parameters.push(segment.to_owned());
            }
            (Some(expected), Some(segment)) if expected == segment => {}
            (None | Some(_), _) => return None,
        }
    }
}

fn respond_with_json((status, body): (StatusCode, Bytes)) -> AdminResponse {
    json_response(status, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_patterns_segment_by_segment() {
        for (pattern, path, named) in [
            ("/tasks", "/tasks", Some(&[][..])),
            ("/tasks/{task}", "/tasks/ab12", Some(&["ab12"])),
            ("/tasks/{task}/cancel", "/tasks/ab12/cancel", Some(&["ab12"])),
            ("/tasks", "/tasks/", None),
            ("/tasks/{task}", "/tasks/", None),
            ("/tasks/{task}", "/tasks", None),
            ("/tasks/{task}", "/tasks/a/b", None),
            ("/", "/", Some(&[])),
            ("/", "/x", None),
        ] {
            assert_eq!(
                match_path(pattern, path).as_deref(),
                named
                    .map(|named| { named.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>() })
                    .as_deref(),
                "{pattern} {path}"
            );
        }
    }
}
