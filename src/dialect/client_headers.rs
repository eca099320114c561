//! Classifies the headers of clients: which are forwarded to the server, and which distinguish sessions. The
//! same rule holds for all revisions.
//!
//! A legacy client's message is relayed with all headers except those of the hop. For a client of 2026-07-28
//! the proxy writes messages of its own in a session that it opens. There, headers that describe one message
//! are the proxy's own, too, and the other headers are part of the key that selects a session, because a
//! server may identify the caller by any of them.

use http::{
    HeaderMap, HeaderName,
    header::{AUTHORIZATION, CONNECTION, COOKIE},
};

/// How far a header of a client's request is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderScope {
    /// Not forwarded: the header describes one connection (RFC 9110, 7.6.1), or the proxy itself has handled
    /// it. `accept-encoding` is included, because a response with a content coding could be neither read nor
    /// observed.
    Hop,
    /// Forwarded with a relayed message only: the header describes a body, or belongs to the protocol of one
    /// revision.
    Message,
    /// Forwarded with the request that contained the header, which does not identify the caller.
    Request,
    /// Forwarded with each message of the upstream session; only requests with equal headers of this scope
    /// share a session.
    Session,
}

// === impl HeaderScope ===

impl HeaderScope {
    /// Returns the scope of the header of this name.
    pub fn for_header(name: &HeaderName) -> Self {
        let name = name.as_str();
        // Matches the first letter first, because this function runs for each header of each request.
        match name.as_bytes().first() {
            Some(b'a') => match name {
                "accept" => Self::Message,
                "accept-encoding" => Self::Hop,
                "accept-language" => Self::Request,
                _ => Self::Session,
            },
            Some(b'b') if matches!(name, "b3" | "baggage") => Self::Request,
            Some(b'c') => match name {
                "connection" | "content-length" => Self::Hop,
                "cf-ray" => Self::Request,
                _ if name.starts_with("content-") => Self::Message,
                _ => Self::Session,
            },
            Some(b'd') if name == "date" => Self::Request,
            Some(b'e') => match name {
                "expect" => Self::Hop,
                "elastic-apm-traceparent" => Self::Request,
                _ => Self::Session,
            },
            Some(b'f') if matches!(name, "forwarded" | "fly-request-id") => Self::Request,
            Some(b'g') if name == "grpc-trace-bin" => Self::Request,
            Some(b'h') if name == "host" => Self::Hop,
            Some(b'i') if name == "idempotency-key" => Self::Request,
            Some(b'k') if name == "keep-alive" => Self::Hop,
            Some(b'l') if name == "last-event-id" => Self::Message,
            Some(b'm') if name.starts_with("mcp-param-") => Self::Request,
            Some(b'm') if name.starts_with("mcp-") => Self::Message,
            Some(b'n') if name == "newrelic" => Self::Request,
            Some(b'o') if name == "origin" => Self::Hop,
            Some(b'p') if name.starts_with("proxy-") => Self::Hop,
            Some(b's') if name == "sentry-trace" => Self::Request,
            Some(b't') => match name {
                "te" | "trailer" | "transfer-encoding" => Self::Hop,
                "traceparent" | "tracestate" => Self::Request,
                _ => Self::Session,
            },
            Some(b'u') => match name {
                "upgrade" => Self::Hop,
                "user-agent" | "uber-trace-id" => Self::Request,
                _ => Self::Session,
            },
            Some(b'x') => match name {
                "x-request-id"
                | "x-correlation-id"
                | "x-request-start"
                | "x-trace-id"
                | "x-amzn-trace-id"
                | "x-amz-cf-id"
                | "x-cloud-trace-context"
                | "x-azure-ref"
                | "x-vercel-id"
                | "x-ot-span-context" => Self::Request,
                _ if name.starts_with("x-b3-") || name.starts_with("x-datadog-") => Self::Request,
                _ => Self::Session,
            },
            _ => Self::Session,
        }
    }

    /// Whether headers of this scope are forwarded with a relayed message.
    pub fn is_relayed(self) -> bool {
        self != Self::Hop
    }
}

/// Removes the headers that `Connection` declares as hop-by-hop (RFC 9110, 7.6.1). Headers that identify the
/// caller, that are in `kept`, or that change the meaning of the message cannot be removed this way: a proxy
/// in front may have added them to a request whose `Connection` the client wrote.
pub fn remove_named_by_connection<'a>(
    headers: &mut HeaderMap,
    kept: impl Iterator<Item = &'a HeaderName> + Clone,
) {
    let is_common =
        |value: &[u8]| value.eq_ignore_ascii_case(b"keep-alive") || value.eq_ignore_ascii_case(b"close");
    if headers.get_all(CONNECTION).iter().all(|value| is_common(value.as_bytes())) {
        return;
    }
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(','));
    let names: Vec<_> = names
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| match HeaderScope::for_header(name) {
            HeaderScope::Hop | HeaderScope::Message => false,
            HeaderScope::Request | HeaderScope::Session => !name.as_str().starts_with("mcp-"),
        })
        .filter(|name| ![AUTHORIZATION, COOKIE].contains(name) && !kept.clone().any(|kept| kept == name))
        .collect();
    for name in names {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn scope(name: &'static str) -> HeaderScope {
        HeaderScope::for_header(&HeaderName::from_static(name))
    }

    #[test]
    fn each_header_has_its_scope() {
        for (scope_of, names) in [
            (
                HeaderScope::Hop,
                &[
                    "connection",
                    "keep-alive",
                    "te",
                    "trailer",
                    "transfer-encoding",
                    "upgrade",
                    "proxy-authorization",
                    "proxy-connection",
                    "host",
                    "origin",
                    "expect",
                    "accept-encoding",
                    "content-length",
                ][..],
            ),
            (
                HeaderScope::Message,
                &[
                    "content-type",
                    "content-encoding",
                    "accept",
                    "mcp-session-id",
                    "mcp-method",
                    "last-event-id",
                ],
            ),
            (
                HeaderScope::Request,
                &[
                    "traceparent",
                    "tracestate",
                    "baggage",
                    "b3",
                    "x-b3-traceid",
                    "x-request-id",
                    "x-correlation-id",
                    "user-agent",
                    "accept-language",
                    "mcp-param-region",
                    "forwarded",
                    "x-amzn-trace-id",
                ],
            ),
            (
                HeaderScope::Session,
                &[
                    "authorization",
                    "cookie",
                    "x-api-key",
                    "x-user",
                    "x-forwarded-for",
                    "via",
                    "sec-fetch-mode",
                    "accept-charset",
                    "b4",
                    "x-b4-x",
                    "proxy",
                    "mc",
                    "telephone",
                    "cache-control",
                ],
            ),
        ] {
            for name in names {
                assert_eq!(scope(name), scope_of, "{name}");
            }
        }
    }

    #[test]
    fn connection_removes_what_it_names_except_headers_that_identify_the_caller() {
        let names = [
            "x-hop",
            "x-user",
            "authorization",
            "cookie",
            "mcp-session-id",
            "mcp-param-a",
            "accept",
            "x-other",
        ];
        let remaining = |connection: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in connection {
                headers.append(CONNECTION, HeaderValue::from_static(value));
            }
            for name in names {
                headers.insert(name, HeaderValue::from_static("1"));
            }
            remove_named_by_connection(&mut headers, [HeaderName::from_static("x-user")].iter());
            names.into_iter().filter(|name| headers.contains_key(*name)).collect::<Vec<_>>()
        };
        for connection in [&[][..], &["Keep-Alive"], &["close"], &["upgrade, HTTP2-Settings", "a b, ,"]] {
            assert_eq!(remaining(connection), names, "{connection:?}");
        }
        let all = "close, X-Hop,x-user , Authorization, cookie, Mcp-Session-Id, mcp-param-a, accept";
        assert_eq!(remaining(&[all]), [&names[1..]].concat());
        assert_eq!(remaining(&["keep-alive", "x-hop", "x-other"]), names[1..7]);
    }
}
