//! Parsers of single values: durations, sizes, addresses, names. File and command line share them, so that
//! both accept the same values.

use super::{LogFormat, StoreConfig};
use crate::policy::Mode;
use http::{HeaderName, HeaderValue, Uri};
use std::{net::SocketAddr, time::Duration};

/// An invalid value; the text is the problem message with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub String);

type Result<T> = std::result::Result<T, InvalidValue>;

/// Maximum duration. Longer ones are probably mistakes, and could overflow a timestamp.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Maximum length of a token name, in bytes: the name is a part of every access log line of its client.
const MAX_TOKEN_NAME: usize = 64;

/// Units of durations, in milliseconds.
const DURATION_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of sizes, in bytes.
const SIZE_UNITS: [(&str, u64); 8] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(InvalidValue(text.into()))
}

/// Parses a duration: `250ms`, `5s`, `1.5s`, `10m`, `1h30m`, `7d`, or `0`. At most 366 days, with a
/// resolution of 1 ms.
///
/// # Errors
/// A message if the text is not a duration, or out of range.
pub fn duration(text: &str) -> Result<Duration> {
    let invalid_duration = || {
        invalid(format!(
            "`{text}` is not a duration; write a number and ms, s, m, h or d, as in `250ms` or `5s`"
        ))
    };
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return invalid_duration();
    }
    if rest.parse::<f64>().is_ok() {
        return invalid(format!("`{text}` has no unit; did you mean `{text}s` or `{text}ms`?"));
    }
    let mut millis = 0f64;
    while !rest.is_empty() {
        let number_ends = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_ends);
        let unit_ends = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_ends);
        let (Ok(number), Some((_, factor))) =
            (number.parse::<f64>(), DURATION_UNITS.iter().find(|(name, _)| *name == unit))
        else {
            return invalid_duration();
        };
        #[expect(clippy::cast_precision_loss, reason = "the factors are small")]
        {
            millis += number * *factor as f64;
        }
        rest = tail;
    }
    if millis.fract() != 0.0 {
        return invalid(format!("`{text}` is finer than 1ms, the smallest unit of a duration"));
    }
    if millis > MAX_DURATION.as_millis() as f64 {
        return invalid(format!("`{text}` is longer than 366 days, the longest duration"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, not negative and below a year"
    )]
    Ok(Duration::from_millis(millis as u64))
}

/// Formats a duration so that [`duration`] parses it: `1h30m`, `5s`, `250ms`, `0`.
pub fn show_duration(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0".to_owned();
    }
    let mut text = String::new();
    for (unit, factor) in DURATION_UNITS {
        if millis >= factor {
            text += &format!("{}{unit}", millis / factor);
            millis %= factor;
        }
    }
    text
}

/// Parses a number of processes, at least one.
///
/// # Errors
/// The text is not such a number.
pub fn instances(text: &str) -> Result<usize> {
    match text.trim().parse() {
        Ok(count @ 1..) => Ok(count),
        Ok(_) | Err(_) => {
            invalid(format!("`{text}` is not a number of processes; write a whole number of at least 1"))
        }
    }
}

/// Parses a size: `4MiB`, `64KiB`, `1.5GiB`, `10MB`, or a number of bytes.
///
/// # Errors
/// The text is not a size, or out of range.
pub fn size(text: &str) -> Result<usize> {
    let trimmed = text.trim();
    let unit_at = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(unit_at);
    let unit = unit.trim();
    let factor = if unit.is_empty() {
        Some(1)
    } else {
        SIZE_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor)
    };
    let (Ok(number), Some(factor)) = (number.parse::<f64>(), factor) else {
        return invalid(format!(
            "`{text}` is not a size; write bytes, or a number and KiB, MiB or GiB, as in `4MiB`"
        ));
    };
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    let bytes = number * factor as f64;
    if bytes.fract() != 0.0 || bytes >= 9e15 {
        return invalid(format!("`{text}` is not a whole number of bytes within the memory of this machine"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    usize::try_from(bytes as u64)
        .or_else(|_| invalid(format!("`{text}` is more than this machine can address")))
}

/// Formats a size so that [`size`] parses it, in the largest binary unit that divides it.
pub fn show_size(bytes: usize) -> String {
    for (unit, factor) in &SIZE_UNITS[..3] {
        let factor = usize::try_from(*factor).expect("a unit fits a word");
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    bytes.to_string()
}

/// Parses a listen address. Host names are rejected, because they could resolve to several addresses.
///
/// # Errors
/// The text is not an address; the message suggests the likely one.
pub fn address(text: &str) -> Result<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let problem = format!("`{text}` is not an address");
    if text.contains("://") {
        return invalid(format!("{problem}; leave the scheme out, as in `127.0.0.1:8808`"));
    }
    if text.parse::<std::net::IpAddr>().is_ok() {
        return invalid(format!("{problem}; the port is missing, as in `127.0.0.1:8808` or `[::1]:8808`"));
    }
    let port = text.rsplit(':').next().unwrap_or_default();
    if port.is_empty() || !port.chars().all(|c| c.is_ascii_digit()) {
        return invalid(format!("{problem}; write an IP address and a port, as in `127.0.0.1:8808`"));
    }
    if port.parse::<u16>().is_err() {
        return invalid(format!("{problem}; ports end at 65535"));
    }
    match text.rsplit_once(':').map_or("", |(host, _)| host) {
        "localhost" => invalid(format!("{problem}; did you mean `127.0.0.1:{port}`?")),
        "" | "*" => invalid(format!(
            "{problem}; did you mean `127.0.0.1:{port}` (this machine only) or `0.0.0.0:{port}` (every interface)?"
        )),
        _ => invalid(format!("{problem}; write an IP address and a port, as in `0.0.0.0:{port}`")),
    }
}

/// Parses the address of the admin listener; `None` for `off`.
///
/// # Errors
/// The same as for [`address`].
pub fn admin(text: &str) -> Result<Option<SocketAddr>> {
    if text == "off" {
        return Ok(None);
    }
    address(text).map(Some).map_err(|InvalidValue(text)| {
        // A message that suggests an address needs no further alternative.
        InvalidValue(if text.ends_with('?') { text } else { format!("{text}; or `off`") })
    })
}

/// Parses the path of health checks on the client listeners; `None` for `off`.
///
/// # Errors
/// The same as for [`path`].
pub fn health(text: &str) -> Result<Option<String>> {
    if text == "off" {
        return Ok(None);
    }
    path(text).map(Some)
}

/// Parses the URL of a server's MCP endpoint.
///
/// # Errors
/// The text is not an absolute HTTP URL, or has a user, password or fragment.
pub fn upstream_url(text: &str) -> Result<Uri> {
    let problem = format!("`{text}` is not a URL that the proxy can call");
    if text.contains('#') {
        return invalid(format!("{problem}; remove the fragment (`#…`)"));
    }
    if !text.contains("://") && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[') {
        return invalid(format!("{problem}; it has no scheme, did you mean `http://{text}`?"));
    }
    let Ok(uri) = text.parse::<Uri>() else {
        return invalid(format!("{problem}; write it as in `http://127.0.0.1:9000/mcp`"));
    };
    match uri.scheme_str() {
        Some("http" | "https") => {}
        Some(scheme) => return invalid(format!("{problem}; the scheme must be http or https, not {scheme}")),
        None => {
            return invalid(format!(
                "{problem}; write it with its scheme, as in `http://127.0.0.1:9000/mcp`"
            ));
        }
    }
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => invalid(format!(
            "{problem}; remove the user and password: the server gets the credentials of each client"
        )),
        Some(authority) if authority.host().is_empty() => invalid(format!("{problem}; it has no host")),
        // The crate `http` accepts an invalid port as part of the authority.
        Some(authority) if authority.port_u16().is_none() && has_port(authority.as_str()) => {
            invalid(format!("{problem}; its port is not a number from 1 to 65535"))
        }
        Some(_) => Ok(uri),
        None => invalid(format!("{problem}; it has no host")),
    }
}

fn has_port(authority: &str) -> bool {
    authority.rsplit(']').next().is_some_and(|rest| rest.contains(':'))
}

/// Parses the public URL of the proxy: scheme and host, with an optional port.
///
/// # Errors
/// The same as for [`upstream_url`]; a path or query is invalid as well.
pub fn public_url(text: &str) -> Result<Uri> {
    let uri = upstream_url(text).map_err(|InvalidValue(text)| {
        InvalidValue(text.replace("a URL that the proxy can call", "a public URL"))
    })?;
    match uri.path_and_query().map(http::uri::PathAndQuery::as_str) {
        None | Some("/") => Ok(uri),
        Some(_) => invalid(format!(
            "`{text}` has a path; write scheme and host only, as in `https://mcp.example.com`"
        )),
    }
}

/// Parses the path of a route.
///
/// # Errors
/// The text is not an absolute path, or is reserved.
pub fn path(text: &str) -> Result<String> {
    if !text.starts_with('/') {
        return invalid(format!("a path begins with `/`; did you mean `/{text}`?"));
    }
    if text.contains(['?', '#']) || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return invalid(format!("`{text}` is not a path; remove `?`, `#` and spaces"));
    }
    if text.starts_with("/.well-known/") {
        return invalid(format!(
            "`{text}` cannot be a route; `/.well-known/` is for the metadata of the routes"
        ));
    }
    Ok(text.to_owned())
}

/// Parses a header name.
///
/// # Errors
/// The text is not a valid header name.
pub fn header(text: &str) -> Result<HeaderName> {
    HeaderName::from_bytes(text.as_bytes())
        .or_else(|_| invalid(format!("`{text}` is not a valid header name")))
}

/// Parses the name of a header that selects upstream sessions (`forward`).
///
/// # Errors
/// The header is forwarded anyway, or belongs to the connection or the protocol.
pub fn forwarded_header(text: &str) -> Result<HeaderName> {
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
///
/// # Errors
/// The header belongs to the connection, the body or the protocol.
pub fn response_header(text: &str) -> Result<HeaderName> {
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
///
/// # Errors
/// The header belongs to the connection.
pub fn forwarded_name(text: &str) -> Result<HeaderName> {
    match text.to_ascii_lowercase().as_str() {
        // API keys are sent in these headers.
        "authorization" | "cookie" => header(text),
        _ => forwarded_header(text),
    }
}

/// Parses the name of a header that can be set on every request to a server.
///
/// # Errors
/// The header is set individually for each request.
pub fn sent_header(text: &str) -> Result<HeaderName> {
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
///
/// # Errors
/// The value of the header would be a secret in the file.
pub fn client_match_header(text: &str) -> Result<HeaderName> {
    let name = header(text)?;
    match name.as_str() {
        "authorization" | "cookie" | "proxy-authorization" => invalid(format!(
            "`{text}` carries a secret, which must not be written here; use `principal`, as the access log shows it"
        )),
        _ => Ok(name),
    }
}

/// Parses a header value.
///
/// # Errors
/// The text is not a valid header value.
pub fn header_value(text: &str) -> Result<String> {
    let is_value = !text.is_empty() && text.trim() == text && HeaderValue::from_str(text).is_ok();
    match is_value && text.is_ascii() {
        true => Ok(text.to_owned()),
        false => invalid("must be a valid header value: visible ASCII, without spaces around it"),
    }
}

/// Parses a principal as shown in the access log.
///
/// # Errors
/// The text is not 16 hex digits.
pub fn principal(text: &str) -> Result<String> {
    let is_principal = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match (is_principal, text) {
        (true, _) => Ok(text.to_ascii_lowercase()),
        (false, "anonymous") => {
            invalid("`anonymous` means all clients without credentials; use `unsolicited: always` for them")
        }
        (false, _) => invalid(format!(
            "`{text}` is not a principal; write the 16 hex digits that the access log shows, in quotes"
        )),
    }
}

/// Parses a host name that clients may use, or `*`.
///
/// # Errors
/// The text is more than a host name.
pub fn host(text: &str) -> Result<String> {
    let is_host =
        !text.is_empty() && !text.contains(['/', ':', '@']) && !text.chars().any(char::is_whitespace);
    if is_host && (text == "*" || !text.contains('*')) {
        return Ok(text.to_owned());
    }
    invalid(format!(
        "`{text}` is not a host; write a host name only, as in `mcp.example.com`, or `*` for any"
    ))
}

/// Parses the name of a token, which is shown in the log.
///
/// # Errors
/// The name is too long, or has other characters.
pub fn token_name(text: &str) -> Result<String> {
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    match (1..=MAX_TOKEN_NAME).contains(&text.len()) && text.bytes().all(is_name_byte) {
        true => Ok(text.to_owned()),
        false => invalid(format!(
            "must be 1 to {MAX_TOKEN_NAME} letters, digits, `.`, `_`, `-` or `@`, as in `alice`"
        )),
    }
}

/// Parses the origin of web pages that may send requests, or `*`.
///
/// # Errors
/// The text is not an origin.
pub fn origin(text: &str) -> Result<String> {
    let is_origin = text.split_once("://").is_some_and(|(scheme, authority)| {
        !scheme.is_empty()
            && !authority.is_empty()
            && !authority.contains(['/', '*', '?', '#', '@'])
            && !authority.chars().any(char::is_whitespace)
    });
    if is_origin || text == "*" {
        return Ok(text.to_owned());
    }
    invalid(format!(
        "`{text}` is not an origin; write scheme and host, as in `https://app.example.com`, or `*` for any"
    ))
}

/// Parses a pattern for tool names.
///
/// # Errors
/// The pattern is empty, and would match nothing.
pub fn pattern(text: &str) -> Result<crate::policy::NamePattern> {
    if text.is_empty() {
        return invalid("an empty pattern matches no tool; use `*` to match every tool");
    }
    Ok(crate::policy::NamePattern::new(text))
}

/// Parses the mode of a route.
///
/// # Errors
/// The mode is unknown, or is `deny`, which applies to tools only.
pub fn mode(text: &str) -> Result<Mode> {
    match tool_mode(text)? {
        Mode::Deny => invalid(
            "`deny` applies to tools, not to a route; write it for a tool, as in `tools: [{ match: \
             delete_*, mode: deny }]` (`--tool 'delete_*=deny'`), or remove the route",
        ),
        mode => Ok(mode),
    }
}

/// Parses the mode of a tool.
///
/// # Errors
/// The mode is unknown.
pub fn tool_mode(text: &str) -> Result<Mode> {
    text.parse().map_err(|error: crate::policy::threshold::UnknownMode| InvalidValue(error.to_string()))
}

/// Parses the task store.
///
/// # Errors
/// The store is unknown.
pub fn store(text: &str) -> Result<StoreConfig> {
    match text {
        "memory" => Ok(StoreConfig::Memory),
        _ => match text.strip_prefix("disk:") {
            Some("") => invalid(format!("`{text}` names no folder; write it as in `disk:./data`")),
            Some(path) => Ok(StoreConfig::Disk { path: path.into(), key: None, max_bytes: None }),
            None => invalid(format!(
                "there is no store `{text}` in this version; use memory (tasks end with the process) or disk:PATH"
            )),
        },
    }
}

/// Parses the log format.
///
/// # Errors
/// The format is unknown.
pub fn log(text: &str) -> Result<LogFormat> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => invalid(format!("unknown log format `{text}`; use text or json")),
    }
}

/// Parses the log level, a filter of `tracing`.
///
/// # Errors
/// The filter is invalid.
pub fn log_level(text: &str) -> Result<String> {
    match crate::telemetry::log::check_filter(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => invalid(format!(
            "`{text}` is not a log level: {error}; write error, warn, info, debug or trace, or a filter, for example `info,deferral::access=warn`"
        )),
    }
}

/// Parses `required` as true, `ignored` as false.
///
/// # Errors
/// The text is neither.
pub fn required(text: &str) -> Result<bool> {
    match text {
        "required" => Ok(true),
        "ignored" => Ok(false),
        _ => invalid(format!("unknown value `{text}`; use required or ignored")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read_and_shown() {
        for (text, millis) in [
            ("250ms", 250),
            ("5s", 5_000),
            ("1.5s", 1_500),
            ("10m", 600_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", "5", "5 s", "s", "5x", "-5s", "1.2.3s", "5sec", "ms5", "0.5ms", "367d", "1e3s", "5s,"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(duration("5").unwrap_err().0, "`5` has no unit; did you mean `5s` or `5ms`?");
    }

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("4MiB", 4 << 20),
            ("64 KiB", 64 << 10),
            ("1.5GiB", 3 << 29),
            ("10MB", 10_000_000),
            ("7B", 7),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "4mib", "4 M", "-1", "1.5", "0.3KiB", "99999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn formatted_values_are_parsed_back(millis in 0u64..=31_622_400_000, bytes in 0usize..1 << 40) {
            let shown = Duration::from_millis(millis);
            prop_assert_eq!(duration(&show_duration(shown)), Ok(shown));
            prop_assert_eq!(size(&show_size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn an_invalid_address_is_rejected_with_a_suggestion() {
        assert!(address("127.0.0.1:0").is_ok());
        assert!(address("[::]:8808").is_ok());
        for (text, part) in [
            ("localhost:8808", "did you mean `127.0.0.1:8808`?"),
            (":8808", "`0.0.0.0:8808` (every interface)"),
            ("8808", "did you mean `127.0.0.1:8808`"),
            ("127.0.0.1", "the port is missing"),
            ("::1", "the port is missing"),
            ("127.0.0.1:99999", "ports end at 65535"),
            ("http://127.0.0.1:1", "leave the scheme out"),
            ("example.com:80", "write an IP address"),
            ("", "write an IP address"),
        ] {
            let InvalidValue(message) = address(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
        assert_eq!(admin("off"), Ok(None));
        assert!(admin("no").unwrap_err().0.ends_with("or `off`"));
    }

    #[test]
    fn a_server_url_is_http_without_credentials() {
        assert!(upstream_url("http://127.0.0.1:9000/mcp").is_ok());
        assert!(upstream_url("https://[::1]/mcp?x=1").is_ok());
        for (text, part) in [
            ("127.0.0.1:9000/mcp", "did you mean `http://127.0.0.1:9000/mcp`?"),
            ("localhost", "no scheme"),
            ("/mcp", "with its scheme"),
            ("ftp://x/", "not ftp"),
            ("http://u:p@x/", "remove the user"),
            ("http://x/#f", "fragment"),
            ("http://x:99999/", "port"),
            ("http://", "as in"),
            ("http:///mcp", "as in"),
        ] {
            let InvalidValue(message) = upstream_url(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
        assert!(public_url("https://mcp.example.com").is_ok());
        assert!(public_url("https://mcp.example.com/x").unwrap_err().0.contains("has a path"));
        for text in ["mcp.example.com", "ftp://mcp.example.com", "https://a@mcp.example.com", "http://"] {
            let InvalidValue(message) = public_url(text).unwrap_err();
            assert!(message.starts_with(&format!("`{text}` is not a public URL; ")), "{message}");
        }
    }

    #[test]
    fn names_are_checked_for_what_they_are() {
        assert!(path("/mcp").is_ok());
        assert_eq!(path("mcp").unwrap_err().0, "a path begins with `/`; did you mean `/mcp`?");
        assert!(path("/a b").is_err() && path("/a?b").is_err() && path("/.well-known/x").is_err());
        assert!(forwarded_header("X-Tenant").is_ok());
        assert!(forwarded_header("Authorization").unwrap_err().0.contains("selects the session in any case"));
        assert!(forwarded_header("Mcp-Name").is_err() && forwarded_header("a b").is_err());
        assert!(client_match_header("X-Takes-Tasks").is_ok() && client_match_header("Cookie").is_err());
        assert!(header_value("1").is_ok() && header_value("a b").is_ok());
        assert!(header_value("").is_err() && header_value(" 1").is_err() && header_value("é").is_err());
        assert_eq!(principal("0F3c000000000000").as_deref(), Ok("0f3c000000000000"));
        assert!(principal("0f3c").is_err() && principal("0g3c000000000000").is_err());
        assert!(principal("anonymous").unwrap_err().0.contains("unsolicited: always"));
        assert!(host("mcp.example.com").is_ok() && host("*").is_ok());
        assert!(host("https://x").is_err() && host("x:80").is_err() && host("*.x").is_err());
        assert!(origin("https://app.example.com:8443").is_ok() && origin("*").is_ok());
        assert!(origin("app.example.com").is_err() && origin("https://x/").is_err());
    }
}
