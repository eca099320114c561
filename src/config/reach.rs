//! The keys of `upstream` that say how a server at a URL is reached: with which headers, with whose certificates, and
//! by which proxy.

use super::{
    At,
    kind::{doubt_literal_secret, key_place, or_variable, source, string, text, truth},
    problem::{Place, Problem},
    section::{Kind, Report, Section, Set, leaf, mapping},
    surroundings::Surroundings,
    together::private_key,
    values::{self, Invalid},
    yaml::{Entry, Node, Scalar, Value},
};
use crate::upstream::{self, NoProxy, Proxy, Tls, TlsError, TlsFiles};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use rustls_pki_types::ServerName;
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// What is written of it.
pub(super) struct Written {
    pub(super) headers: Set<HeaderMap>,
    pub(super) tls: Set<Tls>,
    /// `None` for `off`.
    pub(super) proxy: Set<Option<Proxy>>,
    pub(super) forwarded: Set<bool>,
}

/// Headers by which a server knows all callers as one.
const WHO_CALLS: [HeaderName; 2] = [header::AUTHORIZATION, header::COOKIE];

pub(super) fn written(s: &mut Section<'_, '_>, around: Surroundings<'_>) -> Written {
    let headers = s.key(
        "headers",
        "Headers set on every request to the server, replacing the client's: each a string, or a secret \
         (`{ file: PATH }`, `{ env: NAME }`). With `Authorization` or `Cookie` the server cannot tell \
         clients apart.",
    );
    let headers = headers.set(headers_kind(around));
    let tls = s.key("tls", "TLS with the server.");
    let tls = tls.set(mapping("`tls`", move |s| tls_of(s, around)));
    let proxy = s.key(
        "proxy",
        "HTTP proxy for connections to the server, or `off`: a CONNECT tunnel for `https://`, plain \
         requests for `http://`. Default: the environment variables HTTPS_PROXY, HTTP_PROXY, ALL_PROXY \
         and NO_PROXY.",
    );
    let proxy = proxy.set(proxy_kind());
    let forwarded = s.key(
        "forwarded",
        "Append the client's address, scheme and host to the `Forwarded` header (RFC 7239) of requests to the server.",
    );
    Written { headers, tls, proxy, forwarded: forwarded.with_default("false").set(truth()) }
}

/// Headers: a mapping of names to values, or to where those are.
fn headers_kind(around: Surroundings<'_>) -> Kind<'_, HeaderMap> {
    let Kind { schema: elsewhere, read: where_it_is, .. } = mapping("a header", |s| source(s, "the value"));
    let value = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => {
            let value = where_it_is(node, report)?.header(around);
            value.map_err(|Invalid(message)| report.problems.push(Problem::new(node.place, message))).ok()
        }
        Value::List(_) | Value::Scalar { .. } => leaf(node, report, |text| {
            values::header_value(text)?;
            let mut value = HeaderValue::from_str(text).expect("it can be said by a header");
            value.set_sensitive(true);
            Ok(value)
        }),
    };
    let read = move |node: &Node, report: &mut Report| {
        let Value::Map(entries) = &node.value else {
            let message = format!("must be a mapping (`NAME: value`), not {}", node.what());
            report.problems.push(Problem::new(node.place, message));
            return None;
        };
        let mut headers = HeaderMap::new();
        let (mut names, before) = (Vec::new(), report.problems.len());
        for Entry { key, key_place, node } in entries {
            let name = values::sent_header(key).and_then(|name| match names.contains(&name) {
                true => Err(Invalid(format!(
                    "`{key}` is listed twice, with different capitalisation; remove one of the two"
                ))),
                false => Ok(name),
            });
            let name =
                name.map_err(|Invalid(message)| report.problems.push(Problem::new(*key_place, message))).ok();
            names.extend(name.clone());
            let known = report.problems.len();
            let value = value(node, report);
            for Problem { message, .. } in &mut report.problems[known..] {
                if message.starts_with("must ") {
                    message.insert_str(0, &format!("the header `{key}` "));
                }
            }
            if let (Some(name), Some(value)) = (name, value) {
                doubt_literal(&name, node, report);
                headers.insert(name, value);
            }
        }
        (report.problems.len() == before).then_some(headers)
    };
    let schema = move || {
        let value = json!({ "anyOf": [{ "type": "string" }, elsewhere()] });
        json!({ "type": "object", "additionalProperties": value })
    };
    Kind { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// Warns of credentials that stand in the file, which is printed, copied and put under version control.
fn doubt_literal(name: &HeaderName, node: &Node, report: &mut Report) {
    let is_literal = node.characters().is_some() && node.given().is_none();
    if let (Place::File { .. }, true, true) = (node.place, is_literal, holds_credentials(name)) {
        let message = format!(
            "warning: the value of `{name}` is in a file that is printed, copied and put under version \
             control; name its source: `{{ file: PATH }}` or `{{ env: NAME }}`, or set an environment \
             variable and write `${{NAME}}` instead"
        );
        report.doubts.push(Problem::new(node.place, message));
    }
}

/// Whether the value of a header is a secret, by its name.
fn holds_credentials(name: &HeaderName) -> bool {
    let is_named = |part: &&str| name.as_str().contains(*part);
    [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE].contains(name)
        || ["api-key", "apikey", "api_key", "secret", "password"].iter().any(is_named)
        || name.as_str().ends_with("token")
}

fn tls_of(s: &mut Section<'_, '_>, around: Surroundings<'_>) -> Option<Tls> {
    let ca = s.key("ca", "PEM file of the certificate authorities that the server's certificate is verified against. Default: those of the system.");
    let ca = ca.set(text());
    let cert = s.key("cert", "PEM file of the client certificate for the server, with its intermediates.");
    let cert = cert.set(text());
    let key = s
        .key("key", "Private key of the client certificate: its PEM file, or `{ env: NAME }`.")
        .set(key_place());
    let name =
        s.key("server_name", "Server name for SNI and certificate verification. Default: the host of `url`.");
    let name = name.set(string(server_name));
    match (&cert, &key) {
        (Set::To(cert), Set::Unset) => {
            s.wrong(cert.place, "`cert` has no `key`; add `key`, the file of its private key")
        }
        (Set::Unset, Set::To(key)) => {
            s.wrong(key.place, "`key` has no `cert`; add `cert`, the file of its certificate")
        }
        _ => {}
    }
    if ca.is_unset() && cert.is_unset() && key.is_unset() && name.is_unset() {
        s.wrong(s.place, "`tls` is empty; add `ca`, `cert` and `key`, or `server_name`");
        return None;
    }
    let file = |set: &Set<String>| match set {
        Set::To(At { place, value }) => Ok(Some((*place, around.folder.join(value)))),
        Set::Unset => Ok(None),
        Set::Wrong => Err(()),
    };
    let (Ok(ca), Ok(cert)) = (file(&ca), file(&cert)) else { return None };
    let key = match key {
        Set::Unset => None,
        written => Some(private_key(written, around, s)?),
    };
    let identity = match (&cert, &key) {
        (Some((_, cert)), Some(key)) => Some((cert.clone(), key.value.clone())),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => return None,
    };
    let name = match name {
        Set::To(name) => Some(name.value),
        Set::Unset => None,
        Set::Wrong => return None,
    };
    let path = |file: &Option<_>| file.as_ref().map(|(place, _)| *place);
    let places = (path(&ca), path(&cert), key.map(|key| key.place));
    match Tls::read(TlsFiles { ca: ca.map(|(_, path)| path), identity, name }) {
        Ok(tls) => Some(tls),
        Err(error) => {
            let place = match &error {
                TlsError::Authorities { .. } => places.0,
                TlsError::Certificate { .. } | TlsError::Pair { .. } => places.1,
                TlsError::Key { .. } => places.2,
            };
            s.wrong(place.unwrap_or(s.place), error.to_string());
            None
        }
    }
}

fn server_name(text: &str) -> Result<ServerName<'static>, Invalid> {
    ServerName::try_from(text.to_owned()).map_err(|_| {
        Invalid(format!("`{text}` is not a server name; write a host name only, as in `tools.example.com`"))
    })
}

/// The URL of a proxy, which may hold a password and is not shown, or `off`.
fn proxy_kind() -> Kind<'static, Option<Proxy>> {
    let read = |node: &Node, report: &mut Report| match node.scalar() {
        Some(Scalar::Bool(false)) => Some(None),
        _ => {
            doubt_literal_secret(node, report);
            leaf(node, report, |text| match text {
                "off" => Ok(None),
                text => {
                    let proxy = Proxy::at(text).map(Some);
                    proxy.map_err(|why| Invalid(format!("{why}; or write `off`")))
                }
            })
        }
    };
    let schema = || {
        let url = json!({ "type": "string", "pattern": "^(off|http://.+)$", "examples": ["http://proxy.example.com:3128", "off"] });
        or_variable(json!({ "anyOf": [url, { "const": false }] }))
    };
    Kind { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// The proxy that the environment names for this server, as curl and others read it: in capitals first, then in small
/// letters. What `HTTP_PROXY` says does not count where `REQUEST_METHOD` is set: in a CGI program it is a header of
/// some request.
///
/// # Errors
/// Names the variable that names no proxy.
fn in_environment(url: &Uri, around: Surroundings<'_>) -> Result<Option<Proxy>, Invalid> {
    let of = |name: &'static str| {
        let value = around.environment.text(name).map(str::trim).filter(|value| !value.is_empty());
        value.map(|value| (name, value))
    };
    let first = |names: &[&'static str]| names.iter().find_map(|name| of(name));
    let named = match url.scheme_str() {
        Some("https") => first(&["HTTPS_PROXY", "https_proxy"]),
        _ if of("REQUEST_METHOD").is_some() => of("http_proxy"),
        _ => first(&["HTTP_PROXY", "http_proxy"]),
    };
    let Some((name, value)) = named.or_else(|| first(&["ALL_PROXY", "all_proxy"])) else { return Ok(None) };
    let spared = first(&["NO_PROXY", "no_proxy"]).map_or("", |(_, spared)| spared);
    if Proxy::spares(url, spared) {
        return Ok(None);
    }
    Proxy::at(value).map(Some).map_err(|why: NoProxy| {
        Invalid(format!(
            "the environment variable `{name}` cannot be used: {why}; or write `proxy: off` under `upstream`"
        ))
    })
}

// === impl Written ===

impl Written {
    /// Where the keys are that were written.
    pub(super) fn keys(&self) -> Vec<At<&'static str>> {
        fn key<T>(name: &'static str, set: &Set<T>) -> Option<At<&'static str>> {
            match set {
                Set::To(At { place, .. }) => Some(At::new(*place, name)),
                Set::Unset | Set::Wrong => None,
            }
        }
        let keys = [
            key("headers", &self.headers),
            key("tls", &self.tls),
            key("proxy", &self.proxy),
            key("forwarded", &self.forwarded),
        ];
        keys.into_iter().flatten().collect()
    }

    /// Whether the server knows all callers as one by what is written; by which header, and where.
    pub(super) fn makes_one(&self) -> Option<At<&HeaderName>> {
        let Set::To(At { place, value: headers }) = &self.headers else { return None };
        WHO_CALLS.iter().find(|name| headers.contains_key(*name)).map(|name| At::new(*place, name))
    }

    /// How the server at this URL is spoken to.
    pub(super) fn to(
        self,
        url: &At<upstream::ServerUrl>,
        around: Surroundings<'_>,
        s: &mut Section<'_, '_>,
    ) -> upstream::Config {
        let is_plain = url.value.uri().scheme_str() == Some("http");
        if let (Set::To(At { place, .. }), true) = (&self.tls, is_plain) {
            s.wrong(
                *place,
                "`tls` needs a `url` with `https`, and this one has `http`; change the `url`, or remove `tls`",
            );
        }
        let proxy = match self.proxy {
            Set::To(proxy) => proxy.value,
            Set::Wrong => None,
            Set::Unset => in_environment(url.value.uri(), around).unwrap_or_else(|Invalid(message)| {
                s.wrong(url.place, message);
                None
            }),
        };
        upstream::Config {
            headers: Arc::new(self.headers.given().unwrap_or_default()),
            tls: self.tls.given().map(Arc::new),
            proxy: proxy.map(Arc::new),
            forwarded: self.forwarded.given().unwrap_or_default(),
            ..upstream::Config::default()
        }
    }
}
