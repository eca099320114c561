//! The keys of `upstream` for a server at a URL: headers, TLS and proxy.

use super::{header_names::sent_header, tls::private_key};
use crate::{
    config::schema::{
        DiagnosticSink, LoadContext, SectionReader, Setting, SourceSpan, SpannedValue, ValueResult,
        ValueType, boolean, headers, invalid, key_location, mapping, or_off, secret_source, string, text,
        values, warn_literal_secret,
    },
    upstream::{self, Proxy, ProxyUrlError, TlsError, TlsFiles, UpstreamTls},
};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use rustls_pki_types::ServerName;
use serde_json::json;
use std::sync::Arc;

/// The values of the keys of `upstream` that apply to a server at a URL.
pub(super) struct HttpUpstreamKeys {
    pub(super) headers: Setting<HeaderMap>,
    pub(super) tls: Setting<UpstreamTls>,
    /// The HTTP proxy for connections to the server; `None` for `off`.
    pub(super) proxy: Setting<Option<Proxy>>,
    /// Whether the `Forwarded` header is appended.
    pub(super) forwarded: Setting<bool>,
}

/// Keys of `upstream` that apply to a URL only.
pub(super) const HTTP_KEYS: [&str; 4] = ["headers", "tls", "proxy", "forwarded"];

/// Headers by which a server identifies the client. If the proxy sets them, all clients look the same to the
/// server.
const IDENTITY_HEADERS: [HeaderName; 2] = [header::AUTHORIZATION, header::COOKIE];

/// Reads the keys of `upstream` that apply to a server at a URL.
pub(super) fn read_http_upstream_keys(
    s: &mut SectionReader<'_, '_>,
    context: LoadContext<'_>,
) -> HttpUpstreamKeys {
    HttpUpstreamKeys {
        headers: s
            .key("headers", "Headers set on every request to the server, replacing the client's: each a string, or a secret (`{ file: PATH }`, `{ env: NAME }`). With an `Authorization` or `Cookie` here the server cannot tell clients apart (see `shared`).")
            .read(headers_type(context)),
        tls: s
            .key("tls", "TLS of connections to the server: its authorities, the proxy's client certificate, the server name.")
            .read(mapping("`tls`", move |s| read_tls(s, context))),
        proxy: s
            .key("proxy", "HTTP proxy for connections to the server (a CONNECT tunnel for `https://`, plain requests for `http://`), or `off`. Default: the environment variables HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.")
            .read(proxy_type()),
        forwarded: s
            .key("forwarded", "Append the client's address, scheme and host to the `Forwarded` header (RFC 7239) of requests to the server.")
            .with_default("false")
            .read(boolean()),
    }
}

/// The type of `headers`: a mapping of names to values, or to the sources of secrets.
fn headers_type(context: LoadContext<'_>) -> ValueType<'_, HeaderMap> {
    let secret = secret_source("a header", "the value").and_then(move |source, node, report| {
        Some((report.accept(node.span, source.read_header(context))?, false))
    });
    let literal = string(values::header_value).and_then(|text, node, _| {
        let mut value = HeaderValue::from_str(&text).expect("the header value has been validated");
        value.set_sensitive(true);
        Some((value, node.interpolation().is_none()))
    });
    headers(sent_header, literal.or_mapping(secret)).and_then(|headers, _, report| {
        let read = |(name, SpannedValue { span, value: (value, is_literal) })| {
            if is_literal {
                warn_literal_credentials(&name, span, report);
            }
            (name, value)
        };
        Some(headers.into_iter().map(read).collect())
    })
}

/// Warns of literal credentials in the file, which is printed, copied and put under version control.
fn warn_literal_credentials(name: &HeaderName, span: SourceSpan, report: &mut DiagnosticSink) {
    if let (SourceSpan::File { .. }, true) = (span, is_credential_header(name)) {
        let message = format!(
            "the value of `{name}` is in a file that is printed, copied and put under version control; name \
             its source: `{{ file: PATH }}` or `{{ env: NAME }}`, or set an environment variable and write \
             `${{NAME}}` instead"
        );
        report.warn(span, message);
    }
}

/// Whether a header carries a secret, judging by its name.
fn is_credential_header(name: &HeaderName) -> bool {
    let is_named = |part: &&str| name.as_str().contains(*part);
    [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE].contains(name)
        || ["api-key", "apikey", "api_key", "secret", "password"].iter().any(is_named)
        || name.as_str().ends_with("token")
}

fn read_tls(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> Option<UpstreamTls> {
    let ca = s.key("ca", "PEM file of the certificate authorities that the server's certificate is verified against. Default: those of the system.");
    let ca = ca.read(text());
    let cert = s.key("cert", "PEM file of the client certificate for the server, with its intermediates.");
    let cert = cert.read(text());
    let key = s
        .key("key", "Private key of the client certificate: its PEM file, or `{ env: NAME }`.")
        .read(key_location());
    let name =
        s.key("server_name", "Server name for SNI and certificate verification. Default: the host of `url`.");
    let name = name.read(string(parse_server_name));
    match (&cert, &key) {
        (Setting::Valid(cert), Setting::Unset) => {
            s.add_problem(cert.span, "`cert` has no `key`; add `key`, the file of its private key")
        }
        (Setting::Unset, Setting::Valid(key)) => {
            s.add_problem(key.span, "`key` has no `cert`; add `cert`, the file of its certificate")
        }
        _ => {}
    }
    if ca.is_unset() && cert.is_unset() && key.is_unset() && name.is_unset() {
        s.add_problem(s.span, "`tls` is empty; add `ca`, `cert` and `key`, or `server_name`");
        return None;
    }
    let file = |set: &Setting<String>| match set {
        Setting::Valid(SpannedValue { span, value }) => Ok(Some((*span, context.folder.join(value)))),
        Setting::Unset => Ok(None),
        Setting::Invalid => Err(()),
    };
    let (Ok(ca), Ok(cert)) = (file(&ca), file(&cert)) else { return None };
    let key = match key {
        Setting::Unset => None,
        written => Some(private_key(written, context, s)?),
    };
    let identity = match (&cert, &key) {
        (Some((_, cert)), Some(key)) => Some((cert.clone(), key.value.clone())),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => return None,
    };
    let name = match name {
        Setting::Valid(name) => Some(name.value),
        Setting::Unset => None,
        Setting::Invalid => return None,
    };
    let span_of = |file: &Option<_>| file.as_ref().map(|(span, _)| *span);
    let spans = (span_of(&ca), span_of(&cert), key.map(|key| key.span));
    match UpstreamTls::read(TlsFiles { ca: ca.map(|(_, path)| path), identity, name }) {
        Ok(tls) => Some(tls),
        Err(error) => {
            let span = match &error {
                TlsError::Authorities { .. } => spans.0,
                TlsError::Certificate { .. } | TlsError::Pair { .. } => spans.1,
                TlsError::Key { .. } => spans.2,
            };
            s.add_problem(span.unwrap_or(s.span), error.to_string());
            None
        }
    }
}

fn parse_server_name(text: &str) -> ValueResult<ServerName<'static>> {
    ServerName::try_from(text.to_owned()).or_else(|_| {
        invalid(format!("`{text}` is not a server name; write a host name only, as in `tools.example.com`"))
    })
}

/// The type of `proxy`: the URL of a proxy, which may contain a password and is not shown, or `off`.
fn proxy_type() -> ValueType<'static, Option<Proxy>> {
    let url = json!({ "type": "string", "pattern": "^(off|http://.+)$", "examples": ["http://proxy.example.com:3128", "off"] });
    let proxy = or_off(url, |text| match text {
        "off" => Ok(None),
        text => Proxy::parse(text).map(Some).or_else(|why| invalid(format!("{why}; or write `off`"))),
    });
    proxy.and_then(|proxy, node, report| {
        warn_literal_secret(node, report);
        Some(proxy)
    })
}

/// Returns the proxy for this server according to the environment, with the usual rules: upper case before
/// lower case. `HTTP_PROXY` is ignored if `REQUEST_METHOD` is set, because in a CGI program it is a request
/// header.
///
/// # Errors
/// A message that names the variable whose value is not a valid proxy.
fn proxy_from_environment(url: &Uri, context: LoadContext<'_>) -> ValueResult<Option<Proxy>> {
    let get = |name: &'static str| {
        let value = context.environment.get_text(name).map(str::trim).filter(|value| !value.is_empty());
        value.map(|value| (name, value))
    };
    let first = |names: &[&'static str]| names.iter().find_map(|name| get(name));
    let variable = match url.scheme_str() {
        Some("https") => first(&["HTTPS_PROXY", "https_proxy"]),
        _ if get("REQUEST_METHOD").is_some() => get("http_proxy"),
        _ => first(&["HTTP_PROXY", "http_proxy"]),
    };
    let Some((name, value)) = variable.or_else(|| first(&["ALL_PROXY", "all_proxy"])) else {
        return Ok(None);
    };
    let no_proxy = first(&["NO_PROXY", "no_proxy"]).map_or("", |(_, value)| value);
    if Proxy::is_bypassed(url, no_proxy) {
        return Ok(None);
    }
    Proxy::parse(value).map(Some).or_else(|why: ProxyUrlError| {
        invalid(format!(
            "the environment variable `{name}` cannot be used: {why}; or write `proxy: off` under `upstream`"
        ))
    })
}

// === impl HttpUpstreamKeys ===

impl HttpUpstreamKeys {
    /// Returns the configured header that makes all clients look the same to the server, if there is one, and
    /// its position.
    pub(super) fn identity_header(&self) -> Option<SpannedValue<&HeaderName>> {
        let Setting::Valid(SpannedValue { span, value: headers }) = &self.headers else { return None };
        IDENTITY_HEADERS
            .iter()
            .find(|name| headers.contains_key(*name))
            .map(|name| SpannedValue::new(*span, name))
    }

    /// Returns the connection settings for the server at this URL.
    pub(super) fn into_config(
        self,
        url: &SpannedValue<upstream::ServerUrl>,
        context: LoadContext<'_>,
        s: &mut SectionReader<'_, '_>,
    ) -> upstream::Config {
        let is_plain = url.value.uri().scheme_str() == Some("http");
        if let (Setting::Valid(SpannedValue { span, .. }), true) = (&self.tls, is_plain) {
            s.add_problem(
                *span,
                "`tls` needs a `url` with `https`, and this one has `http`; change the `url`, or remove `tls`",
            );
        }
        let proxy = match self.proxy {
            Setting::Valid(proxy) => proxy.value,
            Setting::Invalid => None,
            Setting::Unset => s.accept(url.span, proxy_from_environment(url.value.uri(), context)).flatten(),
        };
        upstream::Config {
            headers: Arc::new(self.headers.ok().unwrap_or_default()),
            tls: self.tls.ok().map(Arc::new),
            proxy: proxy.map(Arc::new),
            forwarded: self.forwarded.ok().unwrap_or_default(),
            ..upstream::Config::default()
        }
    }
}
