//! A proxy between us and servers: an HTTP proxy that is asked for a tunnel (CONNECT; RFC 9110, 9.3.6), for servers
//! with TLS and without alike, so that it sees neither what is asked nor who asks.

use futures_util::{FutureExt, TryFutureExt, future::BoxFuture};
use http::{HeaderValue, Uri, uri::Authority};
use hyper_util::{
    client::{
        legacy::connect::proxy::Tunnel,
        proxy::matcher::{Intercept, Matcher},
    },
    rt::TokioIo,
};
use std::{fmt, net::IpAddr};
use tower_service::Service;

use crate::{
    runtime::{Connector, Stream},
    upstream::root_cause,
};

/// A proxy between us and servers. It is shown without its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// `http`, host and port.
    address: Uri,
    /// `Proxy-Authorization`.
    credentials: Option<HeaderValue>,
}

/// A text that names no proxy that can be used. It is not shown: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoProxy {
    #[error("it is not the URL of a proxy; write it as in `http://proxy.example.com:3128`")]
    Unreadable,
    #[error(
        "a proxy is spoken to over HTTP alone, and this one has `{0}`; write it as in `http://proxy.example.com:3128`"
    )]
    Scheme(String),
}

// === impl Proxy ===

impl Proxy {
    /// The proxy of this URL, with the credentials that it has.
    ///
    /// # Errors
    /// [`NoProxy`]
    pub fn at(url: &str) -> Result<Self, NoProxy> {
        let server = Uri::from_static("https://server");
        let named = Matcher::builder().all(url.to_owned()).build().intercept(&server);
        Self::of(&named.ok_or(NoProxy::Unreadable)?)
    }

    fn of(named: &Intercept) -> Result<Self, NoProxy> {
        match named.uri().scheme_str() {
            Some("http") => {
                Ok(Self { address: named.uri().clone(), credentials: named.basic_auth().cloned() })
            }
            scheme => Err(NoProxy::Scheme(scheme.unwrap_or_default().to_owned())),
        }
    }

    /// Whether this server is spoken to directly by `NO_PROXY`, which has names, with all that end in them,
    /// addresses, networks and `*`, each with a port behind it or without. What is on this machine always is.
    pub fn spares(server: &Uri, no_proxy: &str) -> bool {
        let host = server.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_local = host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        let port = port(server);
        let of_this_port = no_proxy.split([',', ' ']).filter_map(|entry| match entry.rsplit_once(':') {
            // The last part of an address of IPv6 is no port.
            Some((host, _)) if host.contains(':') && !host.ends_with(']') => Some(entry),
            Some((host, of)) => (of.parse() == Ok(port)).then_some(host),
            None => Some(entry),
        });
        let of_this_port = of_this_port.map(|entry| {
            let entry = entry.trim_start_matches('[').trim_end_matches(']');
            // The names below one are meant by its name already.
            entry.strip_prefix("*.").unwrap_or(entry)
        });
        let matcher =
            Matcher::builder().all("http://proxy".to_owned()).no(of_this_port.collect::<Vec<_>>().join(","));
        is_local || matcher.build().intercept(server).is_none()
    }

    /// A connection to a server, through it.
    ///
    /// # Errors
    /// Why there is none, with the name of the proxy.
    pub(super) fn connect(
        &self,
        tcp: &Connector,
        server: &Uri,
    ) -> BoxFuture<'static, Result<Stream, String>> {
        let tcp = tcp.clone();
        let direct = tower::service_fn(move |proxy: Uri| tcp.clone().connect(proxy).map_ok(TokioIo::new));
        let mut tunnel = Tunnel::new(self.address.clone(), direct);
        if let Some(credentials) = &self.credentials {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        // A tunnel is to a port, which the URL need not have.
        let host = server.host().unwrap_or_default();
        let to = format!("{host}:{}", port(server)).parse::<Authority>().map(Uri::from);
        let proxy = self.to_string();
        async move {
            let to = to.map_err(|error| error.to_string())?;
            let connected = tunnel.call(to).await;
            connected
                .map(TokioIo::into_inner)
                .map_err(|error| format!("by the proxy {proxy}: {}", root_cause(&error)))
        }
        .boxed()
    }
}

fn port(server: &Uri) -> u16 {
    let own = if server.scheme_str() == Some("https") { 443 } else { 80 };
    server.port_u16().unwrap_or(own)
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.address.authority().map_or("", Authority::as_str))
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_named_by_a_url_and_its_password_is_not_shown() {
        for (url, shown) in [
            ("http://proxy:3128", "http://proxy:3128"),
            ("proxy:3128", "http://proxy:3128"),
            ("http://proxy/", "http://proxy"),
            ("http://me:hunter2@proxy:1", "http://proxy:1"),
            ("http://[::1]:3128", "http://[::1]:3128"),
        ] {
            let proxy = Proxy::at(url).expect(url);
            assert_eq!(
                (proxy.to_string(), format!("{proxy:?}")),
                (shown.to_owned(), format!("Proxy({shown})"))
            );
        }
        let basic = Proxy::at("http://me:hunter%202@proxy").expect("it is one").credentials;
        assert_eq!(basic.expect("there are some"), "Basic bWU6aHVudGVyIDI=");
        assert_eq!(Proxy::at("socks5://me:hunter2@proxy"), Err(NoProxy::Scheme("socks5".to_owned())));
        assert_eq!(Proxy::at("https://proxy"), Err(NoProxy::Scheme("https".to_owned())));
        for url in ["", "ftp://proxy", "http://", "a b", "/proxy"] {
            assert_eq!(Proxy::at(url), Err(NoProxy::Unreadable), "{url}");
        }
        assert_ne!(Proxy::at("http://a:b@proxy"), Proxy::at("http://a:c@proxy"));
    }

    #[test]
    fn some_servers_are_spared_by_name_address_network_and_port() {
        for (no_proxy, server, spared) in [
            ("", "https://a.example.com/", false),
            ("example.com", "https://a.example.com/", true),
            (".example.com", "https://A.Example.com/", true),
            ("*.example.com", "https://a.example.com/", true),
            ("example.com", "https://notexample.com/", false),
            ("x, example.com ,y", "http://example.com/", true),
            ("x example.com", "http://example.com/", true),
            ("*", "https://a.example.com/", true),
            ("10.0.0.0/8", "http://10.1.2.3:9000/", true),
            ("10.0.0.0/8", "http://11.1.2.3:9000/", false),
            ("10.1.2.3", "http://10.1.2.3/", true),
            ("fd00::/8", "http://[fd00::1]:9000/", true),
            ("[fd00::1]:9000", "http://[fd00::1]:9000/", true),
            ("[fd00::1]:9001", "http://[fd00::1]:9000/", false),
            ("fd00::1", "http://[fd00::1]:9000/", true),
            ("example.com:443", "https://example.com/mcp", true),
            ("example.com:443", "http://example.com/mcp", false),
            ("example.com:8443", "https://a.example.com:8443/", true),
            ("example.com:8443", "https://a.example.com/", false),
            // What is on this machine is never spoken to by way of another.
            ("", "http://localhost:9000/", true),
            ("", "http://LocalHost/", true),
            ("", "http://127.8.8.8/", true),
            ("", "http://[::1]:9000/", true),
            ("", "http://[::ffff:127.0.0.1]/", true),
            ("", "http://localhost.example.com/", false),
        ] {
            assert_eq!(
                Proxy::spares(&server.parse().expect("a URL"), no_proxy),
                spared,
                "{no_proxy:?} {server}"
            );
        }
    }
}
