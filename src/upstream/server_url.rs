//! URL of a server, and the text that is displayed for it.
//!
//! A URL may hold a secret: in its query, in its user, or in the value of an environment variable
//! (`https://host/${KEY}`). The log, `/routes`, errors and traces show [`ServerUrl::shown`], never the URL
//! itself.

use http::Uri;
use std::{fmt, sync::Arc};

/// MCP endpoint of a server over HTTP.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl {
    uri: Uri,
    shown: Arc<str>,
    /// Host for display, without brackets.
    host: Arc<str>,
    /// Port; `None` if it comes from a variable.
    port: Option<u16>,
}

// === impl ServerUrl ===

impl ServerUrl {
    /// Creates a URL that is displayed as `shown`: the configured text with its variables, without literal
    /// secrets. `host` is the host in that text, and `has_literal_port` whether no variable is part of host
    /// and port.
    pub fn new(uri: Uri, shown: &str, host: &str, has_literal_port: bool) -> Self {
        let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let port = has_literal_port.then(|| uri.port_u16().unwrap_or(default_port));
        Self { uri, shown: shown.into(), host: host.into(), port }
    }

    /// URL for requests. May hold a secret, so it must not be logged.
    pub const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// URL for display: variables by name, without user and literal query.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Host and port for display, as connection errors name them.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.to_string() };
        match self.port {
            Some(_) => match self.uri.port_u16() {
                Some(port) => format!("{host}:{port}"),
                None => host,
            },
            None => host,
        }
    }

    /// Whether an environment variable is part of the URL, so that its displayed text differs from the URL.
    pub fn has_variables(&self) -> bool {
        self.shown.contains("${")
    }

    /// Host for display, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port for display; `None` if an environment variable provides the port or the host.
    pub const fn port(&self) -> Option<u16> {
        self.port
    }
}

impl From<Uri> for ServerUrl {
    /// Creates a URL without variables. Its displayed text omits user and query, which may hold secrets.
    fn from(uri: Uri) -> Self {
        let scheme = uri.scheme_str().unwrap_or_default();
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let shown = format!("{scheme}://{authority}{}", uri.path());
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        Self::new(uri, &shown, &host, true)
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
