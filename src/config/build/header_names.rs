//! Names of headers that a key accepts, and why it does not accept others.

use crate::config::schema::{ValueResult, invalid, values::header};
use http::HeaderName;

/// Parses the name of a header that selects upstream sessions (`forward`).
pub(super) fn forwarded_header(text: &str) -> ValueResult<HeaderName> {
    let name = header(text)?;
    match name.as_str() {
        "authorization" | "cookie" => invalid(format!("`{text}` selects the session in any case; remove it")),
        "host" | "connection" | "content-length" | "content-type" | "accept" | "transfer-encoding" | "te"
        | "trailer" | "upgrade" | "keep-alive" | "proxy-connection" | "origin" | "last-event-id" => {
            invalid(format!("`{text}` belongs to the connection and cannot be forwarded; remove it"))
        }
        mcp if mcp.starts_with("mcp-") => {
            invalid(format!("`{text}` belongs to the protocol, and the proxy sets it itself; remove it"))
        }
        _ => Ok(name),
    }
}

/// Parses the name of a header that can be set on every response of a route.
pub(super) fn response_header(text: &str) -> ValueResult<HeaderName> {
    let name = header(text)?;
    let reason = match name.as_str() {
        "connection" | "keep-alive" | "te" | "trailer" | "transfer-encoding" | "upgrade" | "date" => {
            "belongs to the connection"
        }
        name if name.starts_with("proxy-") => "belongs to the connection",
        name if name.starts_with("content-") && name != "content-security-policy" => "describes the body",
        "allow" | "last-event-id" | "location" | "retry-after" | "vary" | "www-authenticate" => {
            "determines how the response is handled"
        }
        name if name.starts_with("mcp-") => "belongs to the protocol",
        name if name.starts_with("access-control-") => "is set according to `access.origins`",
        _ => return Ok(name),
    };
    invalid(format!("`{text}` {reason}, and cannot be set for every response; remove it"))
}

/// Parses the name of a header of an export request.
pub(super) fn export_header(text: &str) -> ValueResult<HeaderName> {
    match text.to_ascii_lowercase().as_str() {
        // API keys are sent in these headers.
        "authorization" | "cookie" => header(text),
        _ => forwarded_header(text),
    }
}

/// Parses the name of a header that can be set on every request to a server.
pub(super) fn sent_header(text: &str) -> ValueResult<HeaderName> {
    let name = header(text)?;
    match name.as_str() {
        "host"
        | "connection"
        | "te"
        | "trailer"
        | "transfer-encoding"
        | "upgrade"
        | "keep-alive"
        | "proxy-connection"
        | "proxy-authenticate"
        | "proxy-authorization"
        | "expect"
        | "via"
        | "accept"
        | "accept-encoding"
        | "origin" => {
            invalid(format!("`{text}` belongs to the connection, and the proxy sets it itself; remove it"))
        }
        content if content.starts_with("content-") => {
            invalid(format!("`{text}` belongs to the body of each request; remove it"))
        }
        mcp if mcp.starts_with("mcp-") || mcp == "last-event-id" => {
            invalid(format!("`{text}` belongs to the protocol, and the proxy sets it itself; remove it"))
        }
        "traceparent" | "tracestate" | "baggage" => {
            invalid(format!("`{text}` belongs to the trace of each request; remove it"))
        }
        _ => Ok(name),
    }
}

/// Parses the name of a header by which clients are recognised.
pub(super) fn client_match_header(text: &str) -> ValueResult<HeaderName> {
    let name = header(text)?;
    match name.as_str() {
        "authorization" | "cookie" | "proxy-authorization" => invalid(format!(
            "`{text}` carries a secret, which must not be written here; use `principal`, as the access log shows it"
        )),
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_connection_and_credentials_are_rejected() {
        assert!(forwarded_header("X-Tenant").is_ok());
        assert!(forwarded_header("Authorization").unwrap_err().0.contains("selects the session in any case"));
        assert!(forwarded_header("Mcp-Name").is_err() && forwarded_header("a b").is_err());
        assert!(client_match_header("X-Takes-Tasks").is_ok() && client_match_header("Cookie").is_err());
    }
}
