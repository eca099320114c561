//! Parsers of single values: durations, sizes, addresses, names. File and command line share them, so that
//! both accept the same values.

use super::problem::{InvalidValue, ValueResult, invalid};
use http::{HeaderName, HeaderValue, Uri};
use std::{net::SocketAddr, time::Duration};

/// Maximum duration. Longer ones are probably mistakes, and could overflow a timestamp.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 60 * 60);

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

/// Parses a duration: `250ms`, `5s`, `1.5s`, `10m`, `1h30m`, `7d`, or `0`. At most 366 days, with a
/// resolution of 1 ms.
///
/// # Errors
/// A message if the text is not a duration, or out of range.
pub fn duration(text: &str) -> ValueResult<Duration> {
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

/// Parses a size: `4MiB`, `64KiB`, `1.5GiB`, `10MB`, or a number of bytes.
///
/// # Errors
/// The text is not a size, or out of range.
pub fn size(text: &str) -> ValueResult<usize> {
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
pub fn address(text: &str) -> ValueResult<SocketAddr> {
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

/// Parses an address; `None` for `off`.
///
/// # Errors
/// The same as for [`address`].
pub fn address_or_off(text: &str) -> ValueResult<Option<SocketAddr>> {
    if text == "off" {
        return Ok(None);
    }
    address(text).map(Some).map_err(|InvalidValue(text)| {
        // A message that suggests an address needs no further alternative.
        InvalidValue(if text.ends_with('?') { text } else { format!("{text}; or `off`") })
    })
}

/// Parses the HTTP URL of a server.
///
/// # Errors
/// The text is not an absolute HTTP URL, or has a user, password or fragment.
pub fn http_url(text: &str) -> ValueResult<Uri> {
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

/// Parses the name of an environment variable.
///
/// # Errors
/// The name is empty, or contains a character that cannot be in a name.
pub fn variable_name(text: &str) -> ValueResult<String> {
    match text.is_empty() || text.contains(['=', '\0']) {
        true => invalid("must be the name of an environment variable, which has no `=`"),
        false => Ok(text.to_owned()),
    }
}

fn has_port(authority: &str) -> bool {
    authority.rsplit(']').next().is_some_and(|rest| rest.contains(':'))
}

/// Parses a header name.
///
/// # Errors
/// The text is not a valid header name.
pub fn header(text: &str) -> ValueResult<HeaderName> {
    HeaderName::from_bytes(text.as_bytes())
        .or_else(|_| invalid(format!("`{text}` is not a valid header name")))
}

/// Parses a header value.
///
/// # Errors
/// The text is not a valid header value.
pub fn header_value(text: &str) -> ValueResult<String> {
    let is_value = !text.is_empty() && text.trim() == text && HeaderValue::from_str(text).is_ok();
    match is_value && text.is_ascii() {
        true => Ok(text.to_owned()),
        false => invalid("must be a valid header value: visible ASCII, without spaces around it"),
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
        assert_eq!(address_or_off("off"), Ok(None));
        assert!(address_or_off("no").unwrap_err().0.ends_with("or `off`"));
    }

    #[test]
    fn a_server_url_is_http_without_credentials() {
        assert!(http_url("http://127.0.0.1:9000/mcp").is_ok());
        assert!(http_url("https://[::1]/mcp?x=1").is_ok());
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
            let InvalidValue(message) = http_url(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn header_values_are_visible_ascii() {
        assert!(header("X-Tenant").is_ok() && header("a b").is_err());
        assert!(header_value("1").is_ok() && header_value("a b").is_ok());
        assert!(header_value("").is_err() && header_value(" 1").is_err() && header_value("é").is_err());
    }
}
