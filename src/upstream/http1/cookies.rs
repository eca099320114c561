//! Cookies of a session that the proxy owns (RFC 6265): load balancers use them to keep a session at one
//! replica.
//!
//! A jar serves one session with one server, so cookies never reach another caller; `Domain` and `Path` only
//! decide whether a cookie is accepted and sent. Cookies of the client are sent in addition.

use bytes::Bytes;
use cookie::Cookie;
use http::{HeaderMap, Uri, header::SET_COOKIE};

use crate::{
    protocol::Timestamp,
    runtime::{Clock, Mutex, SystemClock},
};

/// Cookies of one session of the proxy with a server.
#[derive(Debug)]
pub(in crate::upstream) struct CookieJar {
    host: String,
    /// Whether the server is reached over TLS.
    is_encrypted: bool,
    clock: SystemClock,
    /// Cookies in the order in which they were set. Locked for a few statements only.
    cookies: Mutex<Vec<StoredCookie>>,
}

#[derive(Debug)]
struct StoredCookie {
    name: String,
    value: String,
    path: String,
    /// Whether the cookie is sent over TLS only.
    is_secure: bool,
    expires: Option<Timestamp>,
}

/// Limit of cookies in a session; a further one replaces the oldest. The memory of a session is at most this
/// times [`MAX_COOKIE_BYTES`].
const MAX_COOKIES: usize = 32;
/// Limit of name and value of a cookie, in bytes; a larger one is ignored (RFC 6265, 6.1).
const MAX_COOKIE_BYTES: usize = 4 << 10;

// === impl CookieJar ===

impl CookieJar {
    /// Creates an empty jar for a session with the server of this URL.
    pub(in crate::upstream) fn new(server: &Uri) -> Self {
        Self {
            host: server.host().unwrap_or_default().to_ascii_lowercase(),
            is_encrypted: server.scheme_str() == Some("https"),
            clock: SystemClock::new(),
            cookies: Mutex::default(),
        }
    }

    /// Stores, replaces or removes the cookies that a response to a request for this path names in
    /// `Set-Cookie`.
    pub(super) fn store(&self, headers: &HeaderMap, path: &str) {
        let mut values = headers.get_all(SET_COOKIE).iter().peekable();
        if values.peek().is_none() {
            return;
        }
        let now = self.clock.timestamp();
        let mut cookies = self.cookies.lock();
        for value in values {
            let Some(cookie) = value.to_str().ok().and_then(|value| Cookie::parse(value).ok()) else {
                continue;
            };
            if !self.is_for_this_host(&cookie)
                || cookie.name().len() + cookie.value().len() > MAX_COOKIE_BYTES
            {
                continue;
            }
            let stored = StoredCookie {
                name: cookie.name().to_owned(),
                value: cookie.value().to_owned(),
                path: cookie
                    .path()
                    .filter(|path| path.starts_with('/'))
                    .unwrap_or_else(|| default_path(path))
                    .to_owned(),
                is_secure: cookie.secure() == Some(true),
                expires: expiry(&cookie, now),
            };
            cookies.retain(|other| other.name != stored.name || other.path != stored.path);
            if !stored.is_expired(now) {
                if cookies.len() == MAX_COOKIES {
                    cookies.remove(0);
                }
                cookies.push(stored);
            }
        }
    }

    /// Returns the request head with the session's cookies added. A client's cookie with the name of a
    /// session cookie is omitted: it belongs to another session.
    pub(super) fn add_to(&self, head: &Bytes, path: &str) -> Bytes {
        let now = self.clock.timestamp();
        let cookies = self.cookies.lock();
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let must_send = |cookie: &&StoredCookie| {
            !cookie.is_expired(now)
                && (self.is_encrypted || !cookie.is_secure)
                && is_path_covered(&cookie.path, path)
        };
        let mut own_cookies: Vec<_> = cookies.iter().filter(must_send).collect();
        if own_cookies.is_empty() {
            return head.clone();
        }
        // Longer paths first (RFC 6265, 5.4).
        own_cookies.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len()));
        let lines = head.split_inclusive(|&byte| byte == b'\n');
        let (client_lines, other_lines): (Vec<_>, Vec<_>) =
            lines.partition(|line| cookie_header_value(line).is_some());
        let mut pairs: Vec<&[u8]> = Vec::new();
        for pair in client_lines
            .into_iter()
            .filter_map(cookie_header_value)
            .flat_map(|value| value.split(|&byte| byte == b';'))
        {
            let name = pair.split(|&byte| byte == b'=').next().unwrap_or_default().trim_ascii();
            if !own_cookies.iter().any(|cookie| cookie.name.as_bytes() == name) {
                pairs.push(pair.trim_ascii());
            }
        }
        let own_pairs: Vec<_> =
            own_cookies.iter().map(|cookie| format!("{}={}", cookie.name, cookie.value)).collect();
        pairs.extend(own_pairs.iter().map(String::as_bytes));
        let mut new_head = Vec::with_capacity(head.len() + 64);
        let Some((empty_line, other_lines)) = other_lines.split_last() else { return head.clone() };
        other_lines.iter().for_each(|line| new_head.extend_from_slice(line));
        new_head.extend_from_slice(b"cookie: ");
        new_head.extend_from_slice(&pairs.join(&b"; "[..]));
        new_head.extend_from_slice(b"\r\n");
        new_head.extend_from_slice(empty_line);
        Bytes::from(new_head)
    }

    /// Whether a cookie is for this server (RFC 6265, 5.1.3).
    fn is_for_this_host(&self, cookie: &Cookie<'_>) -> bool {
        let Some(domain) = cookie.domain() else { return true };
        let domain = domain.trim_start_matches('.').to_ascii_lowercase();
        let prefix = self.host.strip_suffix(&domain);
        domain.is_empty()
            || prefix.is_some_and(|prefix| {
                prefix.is_empty() || prefix.ends_with('.') && self.host.parse::<std::net::IpAddr>().is_err()
            })
    }
}

// === impl StoredCookie ===

impl StoredCookie {
    fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// Expiry of a cookie; `Max-Age` takes precedence over `Expires` (RFC 6265, 5.3).
fn expiry(cookie: &Cookie<'_>, now: Timestamp) -> Option<Timestamp> {
    let millis = match (cookie.max_age(), cookie.expires_datetime()) {
        (Some(age), _) => i128::from(now.as_millis()) + age.whole_milliseconds(),
        (None, Some(expires)) => expires.unix_timestamp_nanos() / 1_000_000,
        (None, None) => return None,
    };
    Some(Timestamp::from_millis(u64::try_from(millis.max(0)).unwrap_or(u64::MAX)))
}

/// Path of a cookie without one (RFC 6265, 5.1.4).
fn default_path(request: &str) -> &str {
    let path = request.split_once('?').map_or(request, |(path, _)| path);
    match path.rfind('/') {
        Some(index) if index > 0 => &path[..index],
        _ => "/",
    }
}

/// Whether a cookie with the path `cookie` is sent with a request for `request` (RFC 6265, 5.1.4).
fn is_path_covered(cookie: &str, request: &str) -> bool {
    let remainder = request.strip_prefix(cookie);
    remainder
        .is_some_and(|remainder| remainder.is_empty() || cookie.ends_with('/') || remainder.starts_with('/'))
}

/// Value of a header line, if the header is `Cookie`.
fn cookie_header_value(line: &[u8]) -> Option<&[u8]> {
    let (name, value) = (line.get(..7)?, line.get(7..)?);
    name.eq_ignore_ascii_case(b"cookie:").then(|| value.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jar(url: &'static str, set: &[&str], path: &str) -> CookieJar {
        let jar = CookieJar::new(&Uri::from_static(url));
        let mut headers = HeaderMap::new();
        for value in set {
            headers.append(SET_COOKIE, value.parse().expect("a header value"));
        }
        jar.store(&headers, path);
        jar
    }

    fn sent(jar: &CookieJar, client: Option<&str>, path: &str) -> Vec<String> {
        let own = client.map_or(String::new(), |client| format!("Cookie: {client}\r\n"));
        let head = Bytes::from(format!("POST {path} HTTP/1.1\r\nhost: a\r\n{own}\r\n"));
        let head = String::from_utf8(jar.add_to(&head, path).to_vec()).expect("text");
        assert!(head.ends_with("\r\n\r\n") && head.matches("\r\n\r\n").count() == 1, "{head:?}");
        head.lines()
            .filter(|line| line.to_ascii_lowercase().starts_with("cookie: "))
            .map(|line| line[8..].to_owned())
            .collect()
    }

    #[test]
    fn a_session_sends_its_cookies_beside_those_of_its_client() {
        let set = ["AWSALB=one; Path=/", "AWSALBCORS=one; Path=/; SameSite=None; Secure", "a=b"];
        let plain = jar("http://h/mcp", &set, "/mcp");
        assert_eq!(sent(&plain, None, "/mcp"), ["AWSALB=one; a=b"], "what is secure goes over TLS only");
        assert_eq!(sent(&plain, Some("mine=1; AWSALB=other"), "/mcp?x=1"), ["mine=1; AWSALB=one; a=b"]);
        let encrypted = jar("https://h/mcp", &set, "/mcp");
        assert_eq!(sent(&encrypted, None, "/mcp"), ["AWSALB=one; AWSALBCORS=one; a=b"]);
        let none = jar("http://h/mcp", &[], "/mcp");
        assert_eq!(sent(&none, Some("mine=1"), "/mcp"), ["mine=1"], "the client's own goes on as it is");
    }

    #[test]
    fn a_cookie_is_replaced_removed_and_kept_to_its_host_and_path() {
        for (set, path, expected) in [
            (vec!["a=1", "a=2"], "/mcp", vec!["a=2"]),
            (vec!["a=1", "a=; Max-Age=0"], "/mcp", vec![]),
            (vec!["a=1", "a=x; Expires=Thu, 01 Jan 1970 00:00:00 GMT"], "/mcp", vec![]),
            (vec!["a=1; Max-Age=3600"], "/mcp", vec!["a=1"]),
            (vec!["a=1; Domain=example.com"], "/mcp", vec!["a=1"]),
            (vec!["a=1; Domain=.tools.example.com"], "/mcp", vec!["a=1"]),
            (vec!["a=1; Domain=other.example.com"], "/mcp", vec![]),
            (vec!["a=1; Domain=ample.com"], "/mcp", vec![]),
            (vec!["a=1; Path=/mcp"], "/mcp/x", vec!["a=1"]),
            (vec!["a=1; Path=/mcp"], "/mcpx", vec![]),
            (vec!["a=1; Path=/", "b=2; Path=/mcp"], "/mcp", vec!["b=2; a=1"]),
            (vec!["no cookie at all", "=x", ""], "/mcp", vec![]),
        ] {
            let jar = jar("https://tools.example.com/mcp", &set, "/mcp");
            assert_eq!(sent(&jar, None, path), expected, "{set:?} {path}");
        }
    }

    #[test]
    fn a_server_cannot_fill_memory_with_cookies() {
        let many: Vec<_> = (0..MAX_COOKIES * 4).map(|n| format!("c{n}=x")).collect();
        let jar = jar("http://h/", &many.iter().map(String::as_str).collect::<Vec<_>>(), "/");
        assert_eq!(jar.cookies.lock().len(), MAX_COOKIES);
        assert!(
            sent(&jar, None, "/")[0].contains(&format!("c{}=x", MAX_COOKIES * 4 - 1)),
            "the newest are kept"
        );
        let large = format!("l={}", "x".repeat(MAX_COOKIE_BYTES));
        let mut headers = HeaderMap::new();
        headers.append(SET_COOKIE, large.parse().expect("a header value"));
        jar.store(&headers, "/");
        assert!(!sent(&jar, None, "/")[0].contains("l="));
    }
}
