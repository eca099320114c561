//! The table of endpoints: method, path, authorization and handler.

use super::{
    events,
    gate::RequiredAccess,
    health, metrics, page, processes,
    response::{AdminResponse, json, problem, text},
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
        handler: |_, _| Box::pin(async { fixed(health::live()) }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/ready",
        requires: RequiredAccess::Probe,
        handler: |parts, _| Box::pin(async move { fixed(parts.ready()) }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/metrics",
        requires: RequiredAccess::Read,
        handler: |parts, _| {
            Box::pin(async move {
                let written = metrics::prometheus_text(&parts.servers, &parts.ledger).await;
                text(StatusCode::OK, telemetry::metrics::TEXT, written)
            })
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/tools",
        requires: RequiredAccess::Read,
        handler: |parts, _| {
            Box::pin(async move { json(StatusCode::OK, metrics::tools(parts.events.started())) })
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/limits",
        requires: RequiredAccess::Read,
        handler: |parts, _| {
            Box::pin(async move { json(StatusCode::OK, metrics::limits(&parts.ledger).await) })
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/tasks",
        requires: RequiredAccess::Read,
        handler: |parts, asked| Box::pin(async move { tasks::page(&parts, &asked.query).await }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/tasks/{task}",
        requires: RequiredAccess::Read,
        handler: |parts, asked| {
            Box::pin(async move { tasks::show_task(&parts, &asked.path_parameters[0]).await })
        },
    },
    AdminEndpoint {
        method: Method::POST,
        path: "/tasks/{task}/cancel",
        requires: RequiredAccess::Change,
        handler: |parts, asked| {
            Box::pin(async move { tasks::cancel(&parts, &asked.path_parameters[0]).await })
        },
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/routes",
        requires: RequiredAccess::Read,
        handler: |parts, _| Box::pin(async move { json(StatusCode::OK, routes::shown(&parts.routes)) }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/config",
        requires: RequiredAccess::Read,
        handler: |parts, _| Box::pin(async move { json(StatusCode::OK, parts.settings.clone()) }),
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
        handler: |parts, _| Box::pin(async move { events::stream(&parts) }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/history",
        requires: RequiredAccess::Read,
        handler: |parts, _| Box::pin(async move { parts.history.answer() }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/tap",
        // The tap changes nothing, but shows confidential data.
        requires: RequiredAccess::Change,
        handler: |parts, asked| Box::pin(async move { tap::stream(&parts, &asked.query) }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/processes",
        requires: RequiredAccess::Read,
        handler: |parts, _| Box::pin(async move { json(StatusCode::OK, processes::shown(&parts.servers)) }),
    },
    AdminEndpoint {
        method: Method::POST,
        path: "/session",
        // The endpoint takes a one-time code instead of a token.
        requires: RequiredAccess::Probe,
        handler: |parts, asked| Box::pin(async move { token_endpoints::session(&parts, &asked.body) }),
    },
    AdminEndpoint {
        method: Method::GET,
        path: "/token",
        requires: RequiredAccess::Read,
        handler: |parts, asked| Box::pin(async move { token_endpoints::token_file(&parts, &asked.query) }),
    },
    file("/", |_, _| Box::pin(async { page::INDEX.answer() })),
    file("/app.js", |_, _| Box::pin(async { page::SCRIPT.answer() })),
    file("/style.css", |_, _| Box::pin(async { page::STYLE.answer() })),
    file("/icon.svg", |_, _| Box::pin(async { page::ICON.answer() })),
    file("/uplot.js", |_, _| Box::pin(async { page::PLOT.answer() })),
    file("/uplot.css", |_, _| Box::pin(async { page::PLOT_STYLE.answer() })),
];

/// Creates the endpoint of a file of the page. The file requires no token; the data that the page requests
/// does.
const fn file(
    path: &'static str,
    answer: fn(Arc<AdminParts>, AdminRequest) -> BoxFuture<'static, AdminResponse>,
) -> AdminEndpoint {
    AdminEndpoint { method: Method::GET, path, requires: RequiredAccess::Probe, handler: answer }
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
pub(super) fn find(
    method: &Method,
    path: &str,
) -> Result<(&'static AdminEndpoint, AdminRequest), Box<AdminResponse>> {
    let there: Vec<_> =
        ENDPOINTS.iter().filter_map(|served| Some((served, match_path(served.path, path)?))).collect();
    if there.is_empty() {
        let paths: Vec<_> = ENDPOINTS.iter().map(|served| served.path).collect();
        let error = format!("nothing is served at `{path}`; served here: {}", paths.join(", "));
        return Err(Box::new(problem(StatusCode::NOT_FOUND, &error)));
    }
    let allowed: Vec<_> = there.iter().flat_map(|(served, _)| methods(&served.method)).copied().collect();
    let wanted = if *method == Method::HEAD { &Method::GET } else { method };
    match there.into_iter().find(|(served, _)| served.method == wanted) {
        Some((served, named)) => {
            Ok((served, AdminRequest { path_parameters: named, query: String::new(), body: Bytes::new() }))
        }
        None => Err(Box::new(not_allowed(path, &allowed.join(", ")))),
    }
}

fn not_allowed(path: &str, allowed: &str) -> AdminResponse {
    let error = format!("`{path}` allows only {allowed}");
    let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, &error);
    let allowed = HeaderValue::from_str(allowed).expect("method names are valid header values");
    answer.headers_mut().insert(ALLOW, allowed);
    answer
}

fn methods(served: &Method) -> &'static [&'static str] {
    if *served == Method::GET { &["GET", "HEAD"] } else { &["POST"] }
}

/// Returns the values of the path parameters, if the path matches the pattern.
fn match_path(pattern: &str, path: &str) -> Option<Vec<String>> {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    let mut named = Vec::new();
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(named),
            (Some(wanted), Some(given)) if wanted.starts_with('{') && !given.is_empty() => {
                named.push(given.to_owned());
            }
            (Some(wanted), Some(given)) if wanted == given => {}
            (None | Some(_), _) => return None,
        }
    }
}

fn fixed((status, body): (StatusCode, Bytes)) -> AdminResponse {
    json(status, body)
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
