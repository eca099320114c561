//! Protection of the admin address against web pages.
//!
//! A page of another site must not read or cancel tasks through an operator's browser. Allowed hosts are
//! `localhost`, IP addresses, and the names in `access.hosts`. A `*` there does not count, because a page can
//! give any name an address of this machine (DNS rebinding). `access.origins` applies to clients only: an
//! origin must have the same host as the request.

use super::listener::PeerAddress;
use crate::{
    policy::{AccessDenial, AccessPolicy},
    protocol::headers::{forwarded_for, to_text_lossy},
    telemetry::AccessDenied,
};
use http::{
    HeaderMap, HeaderName, Uri,
    header::{HOST, ORIGIN},
    request::Parts,
};

/// Hosts and origins that are allowed on the admin address.
#[derive(Clone, Debug)]
pub struct OperatorAccess(AccessPolicy);

/// Reason to refuse a request that a web page may have caused.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrowserRefusal {
    #[error(transparent)]
    Denied(#[from] AccessDenial),
    #[error(
        "cross-site requests are refused (`Sec-Fetch-Site: cross-site`); type the address of the admin page into the browser"
    )]
    CrossSite,
}

// === impl BrowserRefusal ===

impl BrowserRefusal {
    /// Logs the refusal and where the request came from.
    pub(super) fn log(&self, head: &Parts) {
        let page = head.headers.get(ORIGIN).map(to_text_lossy);
        let (host, origin) = match self {
            Self::Denied(denied) => denied.denied_values(),
            Self::CrossSite => (None, page.as_deref()),
        };
        let client = head.extensions.get().and_then(|PeerAddress(address)| *address);
        let forwarded = forwarded_for(&head.headers);
        AccessDenied { listener: "admin", client, forwarded: forwarded.as_deref(), host, origin }.emit();
    }
}

/// Header of a browser: the relation between the page that sent the request and this address.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

// === impl OperatorAccess ===

impl OperatorAccess {
    /// Derives the allowed hosts from the access control for clients.
    pub fn from_client_access(clients: &AccessPolicy) -> Self {
        let hosts = clients.hosts.iter().filter(|host| *host != "*").cloned().collect();
        Self(AccessPolicy { hosts, origins: Vec::new() })
    }

    /// Checks the host and the origin of a request.
    ///
    /// # Errors
    /// [`BrowserRefusal`] names what is not allowed.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), BrowserRefusal> {
        let is_cross_site = |site| to_text_lossy(site).trim().eq_ignore_ascii_case("cross-site");
        if headers.get_all(SEC_FETCH_SITE).iter().any(is_cross_site) {
            return Err(BrowserRefusal::CrossSite);
        }
        self.0.check(uri.authority().map(|authority| authority.as_str()), None)?;
        for host in headers.get_all(HOST) {
            self.0.check(Some(&to_text_lossy(host)), None)?;
        }
        // The host has been checked, so pages of the same host are allowed.
        let own_host = headers.get(HOST).map(|host| to_text_lossy(host).into_owned());
        for origin in headers.get_all(ORIGIN) {
            let origin = to_text_lossy(origin);
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            let is_same_host = authority
                .zip(own_host.as_deref())
                .is_some_and(|(page, host)| page.eq_ignore_ascii_case(host));
            if !is_same_host {
                self.0.check(None, Some(&origin))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn checked(access: &AccessPolicy, headers: &[(&'static str, &'static str)]) -> Result<(), String> {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let checked = OperatorAccess::from_client_access(access).check(&Uri::from_static("/tasks"), &all);
        checked.map_err(|why| why.to_string())
    }

    #[test]
    fn a_client_wildcard_does_not_apply_to_the_admin_address() {
        let open = AccessPolicy {
            hosts: vec!["*".into()],
            origins: vec!["*".into(), "https://app.example.com".into()],
        };
        for (host, origin) in [
            ("rebound.evil.example", None),
            ("localhost.evil.example", None),
            ("localhost:8809", Some("https://evil.example")),
            ("localhost:8809", Some("https://app.example.com")),
            ("localhost:8809", Some("null")),
        ] {
            let origin = origin.map(|origin| ("origin", origin));
            let headers: Vec<_> = [("host", host)].into_iter().chain(origin).collect();
            assert!(checked(&open, &headers).is_err(), "{headers:?}");
        }
        assert!(checked(&open, &[("host", "localhost"), ("host", "rebound.evil.example")]).is_err());
    }

    #[test]
    fn the_admin_address_accepts_ip_addresses_localhost_and_configured_names() {
        let access =
            AccessPolicy { hosts: vec!["*".into(), "admin.example.com".into()], origins: Vec::new() };
        for headers in [
            &[("host", "127.0.0.1:8809")][..],
            &[("host", "[::1]:8809"), ("origin", "http://[::1]:8809")],
            &[("host", "localhost:8809"), ("origin", "http://localhost:8809")],
            &[("host", "admin.example.com:8809"), ("origin", "https://admin.example.com:8809")],
            // On an address that is not on loopback, the page's own requests have that address as origin.
            &[("host", "10.0.0.7:8809"), ("origin", "https://10.0.0.7:8809")],
            &[],
        ] {
            assert_eq!(checked(&access, headers), Ok(()), "{headers:?}");
        }
        assert!(checked(&access, &[("host", "10.0.0.7:8809"), ("origin", "https://10.0.0.8:8809")]).is_err());
    }

    #[test]
    fn cross_site_requests_are_refused() {
        for (site, is_ours) in [
            ("cross-site", false),
            ("Cross-Site", false),
            ("same-origin", true),
            ("same-site", true),
            ("none", true),
        ] {
            let headers = [("host", "localhost"), ("sec-fetch-site", site)];
            assert_eq!(checked(&AccessPolicy::default(), &headers).is_ok(), is_ours, "{site}");
        }
        let both = [("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")];
        assert!(checked(&AccessPolicy::default(), &both).is_err_and(|why| why.contains("cross-site")));
    }
}
