//! What is served, in one table: where, to whom, and by what.

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

/// One thing that is served.
pub(super) struct AdminEndpoint {
    pub(super) method: Method,
    /// Segments in braces stand for any one.
    path: &'static str,
    pub(super) requires: RequiredAccess,
    pub(super) handler: fn(Arc<AdminParts>, AdminRequest) -> BoxFuture<'static, AdminResponse>,
}

/// What of a request is left once it is known what it asks for.
pub(super) struct AdminRequest {
    /// What stands in the place of the segments in braces, in their order.
    pub(super) path_parameters: Vec<String>,
    /// What stands behind `?`, as it is written.
    pub(super) query: String,
    pub(super) body: Bytes,
}

/// The table. What begins a line is what people look for.
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
        // It changes nothing, and shows more than others may read.
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
        // It asks for no token: it gives one for a code.
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

/// A file of the page. A browser asks for them without a token, and what they show with one.
const fn file(
    path: &'static str,
    answer: fn(Arc<AdminParts>, AdminRequest) -> BoxFuture<'static, AdminResponse>,
) -> AdminEndpoint {
    AdminEndpoint { method: Method::GET, path, requires: RequiredAccess::Probe, handler: answer }
}

// === impl Served ===

impl AdminEndpoint {
    /// Whether health checks ask for it.
    pub(super) fn is_probe(&self) -> bool {
        matches!(self.path, "/live" | "/ready")
    }
}

/// What a request asks for.
///
/// # Errors
/// An answer that says what there is instead.
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
    let allowed = HeaderValue::from_str(allowed).expect("names of methods");
    answer.headers_mut().insert(ALLOW, allowed);
    answer
}

fn methods(served: &Method) -> &'static [&'static str] {
    if *served == Method::GET { &["GET", "HEAD"] } else { &["POST"] }
}

/// What stands in the place of a pattern's segments in braces, if the path is of that form.
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
    fn a_path_is_of_a_pattern_segment_by_segment() {
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
