//! HTTP proxy between this process and servers. A server with TLS is reached through a tunnel (CONNECT; RFC
//! 9110, 9.3.6), so that the proxy sees neither requests nor callers. Requests to a server without TLS are
//! sent to the proxy with their whole URL (RFC 9112, 3.2.2), as curl does, because many proxies open tunnels
//! to port 443 only.

use bytes::BytesMut;
use futures_util::{FutureExt, future::BoxFuture};
use http::{StatusCode, Uri, header::PROXY_AUTHORIZATION, uri::Authority};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use std::{fmt, io, net::IpAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::head::{HeadReader, write_header_line};
use crate::{
    runtime::{NetworkConnector, NetworkStream},
    upstream::root_cause,
};

/// An HTTP forward proxy. Displayed without its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// URL of the proxy: scheme `http`, host and port.
    address: Uri,
    /// Header line `Proxy-Authorization`; empty without credentials.
    authorization: Vec<u8>,
}

/// Error for a text that is not a usable proxy URL. Does not display the text, which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyUrlError {
    #[error("the value is not a proxy URL; write it as in `http://proxy.example.com:3128`")]
    Unreadable,
    #[error(
        "the proxy URL has the scheme `{0}`, and only `http` is supported; write it as in `http://proxy.example.com:3128`"
    )]
    Scheme(String),
}

// === impl Proxy ===

impl Proxy {
    /// Parses the URL of a proxy, with its credentials if it has any.
    ///
    /// # Errors
    /// [`ProxyUrlError`]
    pub fn parse(url: &str) -> Result<Self, ProxyUrlError> {
        let server = Uri::from_static("https://server");
        let proxy = Matcher::builder().all(url.to_owned()).build().intercept(&server);
        Self::from_intercept(&proxy.ok_or(ProxyUrlError::Unreadable)?)
    }

    fn from_intercept(proxy: &Intercept) -> Result<Self, ProxyUrlError> {
        match proxy.uri().scheme_str() {
            Some("http") => {
                let mut authorization = Vec::new();
                if let Some(credentials) = proxy.basic_auth() {
                    write_header_line(&mut authorization, &PROXY_AUTHORIZATION, credentials);
                }
                Ok(Self { address: proxy.uri().clone(), authorization })
            }
            scheme => Err(ProxyUrlError::Scheme(scheme.unwrap_or_default().to_owned())),
        }
    }

    /// Whether requests to this server bypass the proxy: `no_proxy` lists it, or it is on this machine. The
    /// entries are host names (which include their subdomains), addresses, networks and `*`, each with or
    /// without a port.
    pub fn is_bypassed(server: &Uri, no_proxy: &str) -> bool {
        let host = server.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_local = host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        let port = port_or_default(server);
        let hosts = no_proxy.split([',', ' ']).filter_map(|entry| match entry.rsplit_once(':') {
            // The last part of an IPv6 address is not a port.
            Some((host, _)) if host.contains(':') && !host.ends_with(']') => Some(entry),
            Some((host, entry_port)) => (entry_port.parse() == Ok(port)).then_some(host),
            None => Some(entry),
        });
        let hosts = hosts.map(|entry| {
            let entry = entry.trim_start_matches('[').trim_end_matches(']');
            // A name covers its subdomains already.
            entry.strip_prefix("*.").unwrap_or(entry)
        });
        let matcher =
            Matcher::builder().all("http://proxy".to_owned()).no(hosts.collect::<Vec<_>>().join(","));
        is_local || matcher.build().intercept(server).is_none()
    }

    /// Connects to a server: through a tunnel if it has TLS, else to the proxy.
    ///
    /// # Errors
    /// The reason, with the name of the proxy, and the status if it refused a tunnel.
    pub(super) fn connect(
        &self,
        tcp: &NetworkConnector,
        server: &Uri,
    ) -> BoxFuture<'static, Result<NetworkStream, String>> {
        let mut tcp = tcp.clone();
        let (name, address) = (self.to_string(), self.address.clone());
        // A tunnel needs a port, which the URL may omit.
        let is_tunnel = server.scheme_str() == Some("https");
        let tunnel_target =
            is_tunnel.then(|| format!("{}:{}", server.host().unwrap_or_default(), port_or_default(server)));
        let authorization = self.authorization.clone();
        async move {
            let connected = tcp.connect(address).await;
            let stream =
                connected.map_err(|error| format!("through the proxy {name}: {}", root_cause(&*error)))?;
            match tunnel_target {
                None => Ok(stream),
                Some(target) => {
                    let tunnel = open_tunnel(stream, &target, &authorization).await;
                    tunnel.map_err(|reason| format!("through the proxy {name}: {reason}"))
                }
            }
        }
        .boxed()
    }

    /// `Proxy-Authorization` header line for each request, or for opening a tunnel; empty without
    /// credentials.
    pub(super) fn authorization_line(&self) -> &[u8] {
        &self.authorization
    }
}

/// Requests a tunnel to this host and port from a proxy (CONNECT).
async fn open_tunnel(
    mut stream: NetworkStream,
    target: &str,
    authorization: &[u8],
) -> Result<NetworkStream, String> {
    let to_text = |error: io::Error| error.to_string();
    let request = [
        b"CONNECT ",
        target.as_bytes(),
        b" HTTP/1.1\r\nhost: ",
        target.as_bytes(),
        b"\r\n",
        authorization,
        b"\r\n",
    ];
    stream.write_all(&request.concat()).await.map_err(to_text)?;
    stream.flush().await.map_err(to_text)?;
    let (mut reader, mut read) = (HeadReader::default(), BytesMut::new());
    let head = loop {
        if let Some(head) = reader.next(&mut read).map_err(to_text)? {
            break head;
        }
        if stream.read_buf(&mut read).await.map_err(to_text)? == 0 {
            return Err("it closed the connection instead of opening a tunnel".to_owned());
        }
    };
    match head.status() {
        status if !status.is_success() => {
            let hint = if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
                "; write its user and password into its URL"
            } else {
                ""
            };
            Err(format!("it refused a tunnel to {target} with HTTP {status}{hint}"))
        }
        // A TLS server sends nothing first.
        _ if !read.is_empty() => {
            Err(format!("it sent data after its response, before the tunnel to {target} was used"))
        }
        _ => Ok(stream),
    }
}

fn port_or_default(server: &Uri) -> u16 {
    let default_port = if server.scheme_str() == Some("https") { 443 } else { 80 };
    server.port_u16().unwrap_or(default_port)
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
            let proxy = Proxy::parse(url).expect(url);
            assert_eq!(
                (proxy.to_string(), format!("{proxy:?}")),
                (shown.to_owned(), format!("Proxy({shown})"))
            );
        }
        let proxy = Proxy::parse("http://me:hunter%202@proxy").expect("it is one");
        assert_eq!(proxy.authorization_line(), b"proxy-authorization: Basic bWU6aHVudGVyIDI=\r\n");
        assert_eq!(
            Proxy::parse("socks5://me:hunter2@proxy"),
            Err(ProxyUrlError::Scheme("socks5".to_owned()))
        );
        assert_eq!(Proxy::parse("https://proxy"), Err(ProxyUrlError::Scheme("https".to_owned())));
        for url in ["", "ftp://proxy", "http://", "a b", "/proxy"] {
            assert_eq!(Proxy::parse(url), Err(ProxyUrlError::Unreadable), "{url}");
        }
        assert_ne!(Proxy::parse("http://a:b@proxy"), Proxy::parse("http://a:c@proxy"));
    }

    #[test]
    fn servers_are_excluded_by_name_address_network_and_port() {
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
            // Servers on this machine are never reached through a proxy.
            ("", "http://localhost:9000/", true),
            ("", "http://LocalHost/", true),
            ("", "http://127.8.8.8/", true),
            ("", "http://[::1]:9000/", true),
            ("", "http://[::ffff:127.0.0.1]/", true),
            ("", "http://localhost.example.com/", false),
        ] {
            assert_eq!(
                Proxy::is_bypassed(&server.parse().expect("a URL"), no_proxy),
                spared,
                "{no_proxy:?} {server}"
            );
        }
    }
}
