//! Checks of the host and origin of requests.
//!
//! A web page can make a browser send requests to a server on the user's own machine (DNS rebinding). The
//! checks of `Host` and `Origin` prevent such requests (2026-07-28, *Streamable HTTP, Security*).

use crate::protocol::{
    headers::to_text_lossy,
    request_head::{HostName, host_name},
};
use http::{
    HeaderMap, Uri,
    header::{HOST, ORIGIN},
};

/// The host names that requests may address, and the web origins whose pages may send requests (`access`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessPolicy {
    /// Allowed host names in addition to `localhost` and IP addresses, which are always allowed because a
    /// rebinding attack needs a name. `*` allows every host.
    pub hosts: Vec<String>,
    /// Allowed origins, such as `https://app.example.com`, in addition to the origins on `hosts`, `localhost`
    /// and loopback addresses. `*` allows every origin.
    pub origins: Vec<String>,
}

/// Proof that the `Host` and the `Origin` of a request were checked; only [`AccessPolicy`] can create one.
#[derive(Clone, Copy, Debug)]
pub struct AccessProof(());

/// The reason why a request is denied, with the host or origin that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessDenial {
    #[error(
        "host `{0}` is not served here; to serve it, start with `--host {name}` or add `{name}` to access.hosts of the configuration",
        name = without_port(.0)
    )]
    /// The host of the request is not served.
    Host(String),
    #[error(
        "origin `{0}` may not call this server; to let it, add `{0}` to access.origins of the configuration"
    )]
    /// The origin of the request is not allowed.
    Origin(String),
}

// === impl AccessDenial ===

impl AccessDenial {
    /// Returns the denied host and the denied origin; exactly one of them is present.
    pub fn denied_values(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::Host(host) => (Some(host), None),
            Self::Origin(origin) => (None, Some(origin)),
        }
    }
}

// === impl AccessPolicy ===

impl AccessPolicy {
    /// Checks every host and origin in the head of a request, even if there are several, so that an attacker
    /// gains nothing by adding an allowed one.
    ///
    /// # Errors
    /// [`AccessDenial`], whose text names the denied value and the setting that would allow it.
    pub fn check_head(&self, uri: &Uri, headers: &HeaderMap) -> Result<AccessProof, AccessDenial> {
        let mut checked = self.check(uri.authority().map(|authority| authority.as_str()), None)?;
        for host in headers.get_all(HOST) {
            checked = self.check(Some(&to_text_lossy(host)), None)?;
        }
        for origin in headers.get_all(ORIGIN) {
            checked = self.check(None, Some(&to_text_lossy(origin)))?;
        }
        Ok(checked)
    }

    /// Checks the host and the origin of a request. `host` is the authority (HTTP/2) or the `Host` header; a
    /// request without a host is allowed, because no browser sends such a request.
    ///
    /// # Errors
    /// [`AccessDenial`], as for [`AccessPolicy::check_head`].
    pub fn check(&self, host: Option<&str>, origin: Option<&str>) -> Result<AccessProof, AccessDenial> {
        if let Some(host) = host
            && !self.is_served_host(host)
        {
            return Err(AccessDenial::Host(host.to_owned()));
        }
        match origin {
            Some(origin) if !self.is_allowed_origin(origin) => Err(AccessDenial::Origin(origin.to_owned())),
            _ => Ok(AccessProof(())),
        }
    }

    fn is_served_host(&self, authority: &str) -> bool {
        match host_name(authority) {
            None => false,
            Some(HostName::Address(_)) => true,
            Some(HostName::Name(name)) => {
                name.eq_ignore_ascii_case("localhost")
                    || self.hosts.iter().any(|host| host == "*" || host.eq_ignore_ascii_case(name))
            }
        }
    }

    fn is_allowed_origin(&self, origin: &str) -> bool {
        if self.origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin)) {
            return true;
        }
        // Pages on the configured hosts and on this machine are allowed. Any other address may serve an
        // untrusted page.
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        if !is_scheme(scheme) {
            return false;
        }
        match host_name(authority) {
            None => false,
            Some(HostName::Address(address)) => {
                let is_configured = |host: &String| host.trim_matches(['[', ']']).parse() == Ok(address);
                address.is_loopback() || self.hosts.iter().any(is_configured)
            }
            Some(HostName::Name(name)) => {
                name.eq_ignore_ascii_case("localhost")
                    || self.hosts.iter().any(|host| host != "*" && host.eq_ignore_ascii_case(name))
            }
        }
    }
}

/// Whether a URI scheme is valid (RFC 3986, section 3.1).
fn is_scheme(scheme: &str) -> bool {
    let is_scheme_char = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(is_scheme_char)
}

/// Returns an authority without its port, as host names are written in the configuration.
fn without_port(authority: &str) -> &str {
    authority.rsplit_once(':').map_or(authority, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_addresses_are_served_by_default() {
        let access = AccessPolicy::default();
        for host in ["localhost", "LOCALHOST:8808", "127.0.0.1:1", "[::1]:80", "[::1]", "10.0.0.7:8808"] {
            assert!(access.check(Some(host), None).is_ok(), "{host}");
        }
        assert!(access.check(None, None).is_ok());
        assert_eq!(
            access.check(Some("evil.example.com"), None).unwrap_err(),
            AccessDenial::Host("evil.example.com".into())
        );
        assert!(access.check(Some("localhost.evil.example.com"), None).is_err());
        assert!(access.check(Some("127.0.0.1.evil.example.com:80"), None).is_err());
        for odd in ["[::1].evil.example", "[::1].evil.example:80", "localhost:80@evil.example", "::1", ""] {
            assert!(access.check(Some(odd), None).is_err(), "{odd}");
        }
        let open = AccessPolicy { hosts: vec!["*".into()], origins: Vec::new() };
        assert!(open.check(Some("localhost:80@evil.example"), None).is_err(), "it is no host at all");
    }

    #[test]
    fn host_and_origin_are_each_checked_alone() {
        let access = AccessPolicy::default();
        assert!(access.check(Some("localhost"), Some("http://localhost:3000")).is_ok());
        assert!(access.check(Some("localhost"), Some("http://[::1]:3000")).is_ok());
        for origin in [
            "http://evil.example.com",
            "null",
            "http://203.0.113.9",
            "http://localhost.evil.example.com",
            "http://localhost:80@evil.example",
            "http://localhost@evil.example",
            "http://[::1].evil.example",
            "http://[::1]@evil.example",
            "http://localhost/.evil.example",
            "http://localhost#.evil.example",
            "http://localhost\\.evil.example",
            "http://localhost http://evil.example",
            "http://evil.example://localhost",
            "://localhost",
            "localhost",
        ] {
            assert!(
                matches!(access.check(Some("localhost"), Some(origin)), Err(AccessDenial::Origin(_))),
                "{origin}"
            );
        }
        assert!(matches!(
            access.check(Some("evil.example.com"), Some("http://localhost")),
            Err(AccessDenial::Host(_))
        ));
    }

    #[test]
    fn named_hosts_and_origins_are_admitted() {
        let access = AccessPolicy {
            hosts: vec!["mcp.example.com".into()],
            origins: vec!["https://app.example.com".into()],
        };
        assert!(access.check(Some("MCP.example.com:443"), Some("https://mcp.example.com")).is_ok());
        assert!(access.check(Some("mcp.example.com"), Some("https://app.example.com")).is_ok());
        assert!(access.check(Some("mcp.example.com"), Some("http://app.example.com")).is_err());
        let open = AccessPolicy { hosts: vec!["*".into()], origins: vec!["*".into()] };
        assert!(open.check(Some("a.example"), Some("http://b.example")).is_ok());
    }
}
