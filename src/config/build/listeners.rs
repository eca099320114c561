//! The keys of the client listeners: `listen`, `public_url`, `health`; and `metrics`.

use super::route::{RouteKeys, parse_path};
use crate::{
    admin,
    config::schema::{
        SectionReader, Setting, SpannedValue, ValueResult, addresses, invalid, or_off, url, values,
    },
    policy,
};
use http::{Uri, uri::PathAndQuery};
use serde_json::json;
use std::{net::SocketAddr, sync::Arc};

/// The default address of the client listener.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8808";

/// Reads `listen`: at least one address, each once.
pub(super) fn read_listen(s: &mut SectionReader<'_, '_>) -> Vec<SpannedValue<SocketAddr>> {
    let default = SpannedValue::default_value(DEFAULT_LISTEN.parse().expect("the default is an address"));
    let SpannedValue { span, value: listen } = s
        .key(
            "listen",
            "Addresses to listen on: an IP address with a port, or a list of them. Port 0 picks a free port.",
        )
        .read_spanned_or(addresses(), vec![default]);
    if listen.is_empty() {
        s.add_problem(span, "`listen` is empty; add an address, or remove the key for the default");
    }
    // Addresses with port 0 are never the same: each gets a port of its own.
    let with_port = listen.iter().filter(|address| address.value.port() != 0).cloned().collect();
    s.reject_repeated(with_port, |address, _| format!("`{address}` is listed twice; remove one of the two"));
    listen
}

/// Reads `metrics`, which must not be the address of another listener. `None` if it is off.
pub(super) fn read_metrics(
    s: &mut SectionReader<'_, '_>,
    listen: &[SpannedValue<SocketAddr>],
    admin: Option<&admin::Config>,
) -> Option<SocketAddr> {
    let address = json!({ "type": "string", "examples": ["0.0.0.0:9464", "off"] });
    let metrics = s
        .key("metrics", "Listen address for Prometheus: serves `/metrics` over plain HTTP without a token, and nothing else; or `off`. The admin listener serves `/metrics` as well.")
        .with_default("off")
        .read(or_off(address, values::address_or_off));
    let Setting::Valid(SpannedValue { span, value: Some(address) }) = metrics else { return None };
    let listens = listen.iter().map(|other| ("listen", other.value));
    for (name, other) in listens.chain(admin.map(|admin| ("admin", admin.listen))) {
        // Addresses with port 0 are never the same: each gets a port of its own.
        if address.port() != 0 && other == address {
            s.add_problem(
                span,
                format!("`metrics` and `{name}` are both {address}; choose another port for one of them"),
            );
        }
    }
    Some(address)
}

/// Reads `public_url`.
pub(super) fn read_public_url(s: &mut SectionReader<'_, '_>) -> Setting<Uri> {
    s.key("public_url", "Scheme and host by which clients reach the proxy, if a load balancer or another proxy is in front of it, as in `https://mcp.example.com`. The proxy puts it into the OAuth metadata that it sends to clients, in place of the `Host` of each request. If it is set, clients count as being on other machines, even if `listen` is on loopback (`upstream.shared`). If requests arrive with this host in `Host`, it must also be listed in `access.hosts`.")
        .read(url(parse_public_url))
}

/// Parses the public URL of the proxy: scheme and host, with an optional port.
fn parse_public_url(text: &str) -> ValueResult<Uri> {
    let url = values::http_url(text)
        .or_else(|error| invalid(error.0.replace("a URL that the proxy can call", "a public URL")))?;
    match url.path_and_query().map(PathAndQuery::as_str) {
        None | Some("/") => Ok(url),
        Some(_) => invalid(format!(
            "`{text}` has a path; write scheme and host only, as in `https://mcp.example.com`"
        )),
    }
}

/// Reads `health`, which must not be the path of a route. `None` if health checks are off.
pub(super) fn read_health_path(s: &mut SectionReader<'_, '_>, routes: &[RouteKeys]) -> Option<Arc<str>> {
    let path = json!({ "type": "string", "examples": ["/healthz", "off"] });
    let health = s
        .key("health", "Path on the client listeners that responds to GET like `/ready` of the admin listener (200 or 503), without a token; or `off`.")
        .with_default("off")
        .read(or_off(path, |text| match text {
            "off" => Ok(None),
            text => parse_path(text).map(Some),
        }));
    let Setting::Valid(SpannedValue { span, value: Some(path) }) = health else { return None };
    let paths = routes.iter().filter_map(|route| route.path.as_ref());
    if let Some(route) = paths.map(|route| &route.value).find(|route| policy::is_same_path(route, &path)) {
        s.add_problem(
            span,
            format!("`health` is `{path}`, which is also the path of a route (`{route}`); choose another"),
        );
    }
    Some(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_url_has_no_path() {
        assert!(parse_public_url("https://mcp.example.com").is_ok());
        assert!(parse_public_url("https://mcp.example.com/x").unwrap_err().0.contains("has a path"));
        for text in ["mcp.example.com", "ftp://mcp.example.com", "https://a@mcp.example.com", "http://"] {
            let message = parse_public_url(text).unwrap_err().0;
            assert!(message.starts_with(&format!("`{text}` is not a public URL; ")), "{message}");
        }
    }
}
