//! The media types that a client accepts, parsed in full (RFC 9110, 12.5.1).
//!
//! `Accept` is a list of media ranges, each with a weight. The most specific range that covers a media type
//! decides, whatever its weight: `*/*, text/event-stream;q=0` accepts everything but event streams.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
};

pub const JSON: &str = "application/json";
pub const EVENT_STREAM: &str = "text/event-stream";

/// The response headers of an event stream. `X-Accel-Buffering: no` makes intermediaries forward each event
/// at once (2026-07-28, *Streamable HTTP, Receiving Messages*).
pub fn event_stream_headers() -> HeaderMap {
    HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM)),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ])
}

/// How specifically a range names a media type, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RangeSpecificity {
    /// `*/*`
    Anything,
    /// `text/*`
    Type,
    /// `text/event-stream`
    Exact,
}

/// Whether the `Accept` headers admit `media` (`type/subtype`). Wildcards and `q=0` count; case does not. A
/// request without the header admits everything (RFC 9110, 12.5.1).
///
/// Several header lines form one list. A header that is present but names nothing admits nothing. Parameters
/// of a range other than its weight (`;charset=utf-8`) are ignored: `media` has none, and a client that sends
/// one still means the media type. A range that cannot be parsed admits nothing.
pub fn accepts(headers: &HeaderMap, media: &str) -> bool {
    let ranges = headers.get_all(ACCEPT).iter().flat_map(|line| split(line.as_bytes(), b','));
    // Of two equally specific ranges, the one that admits `media` wins.
    match ranges.filter_map(|range| match_range(range, media)).max() {
        Some((_, admits)) => admits,
        None => !headers.contains_key(ACCEPT),
    }
}

/// Whether the `Accept` headers admit both `application/json` and `text/event-stream`: a server may respond
/// to a POST in either (2026-07-28, *Streamable HTTP, Sending Messages*).
pub fn accepts_both(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(ACCEPT).iter();
    // The value that nearly every client sends, in the two orders in use.
    if let (Some(line), None) = (lines.next(), lines.next())
        && (line == "application/json, text/event-stream" || line == "text/event-stream, application/json")
    {
        return true;
    }
    accepts(headers, JSON) && accepts(headers, EVENT_STREAM)
}

/// Whether a `Content-Type` is `media`, ignoring its parameters.
pub fn is_media(content_type: Option<&HeaderValue>, media: &str) -> bool {
    let essence = content_type.and_then(|value| value.as_bytes().split(|&byte| byte == b';').next());
    essence.is_some_and(|essence| essence.trim_ascii().eq_ignore_ascii_case(media.as_bytes()))
}

/// How specifically a range covers `media`, and whether it admits it; `None` if it does not cover `media`.
fn match_range(range: &[u8], media: &str) -> Option<(RangeSpecificity, bool)> {
    let mut parts = split(range, b';').map(<[u8]>::trim_ascii);
    let name = parts.next()?;
    let (kind, _) = media.split_once('/')?;
    let specificity = if name == b"*/*" {
        RangeSpecificity::Anything
    } else if name.eq_ignore_ascii_case(media.as_bytes()) {
        RangeSpecificity::Exact
    } else if name.strip_suffix(b"/*")?.eq_ignore_ascii_case(kind.as_bytes()) {
        RangeSpecificity::Type
    } else {
        return None;
    };
    let weight = parts.find_map(|part| match part {
        [b'q' | b'Q', b'=', weight @ ..] => Some(weight),
        _ => None,
    });
    Some((specificity, weight.is_none_or(is_positive_weight)))
}

/// Whether a weight is above zero. A weight is `0` or `1` with up to three decimals (RFC 9110, 12.4.2); any
/// other text counts as zero.
fn is_positive_weight(weight: &[u8]) -> bool {
    let (whole, decimals) = match weight {
        [whole] | [whole, b'.'] => (whole, &[][..]),
        [whole, b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return false,
    };
    match whole {
        b'0' => decimals.iter().all(u8::is_ascii_digit) && decimals.iter().any(|&digit| digit != b'0'),
        b'1' => decimals.iter().all(|&digit| digit == b'0'),
        _ => false,
    }
}

/// Splits at `separator`, except within a quoted string.
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |&byte| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => return byte == separator && !is_quoted,
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&'static str]) -> HeaderMap {
        lines.iter().map(|line| (ACCEPT, HeaderValue::from_static(line))).collect()
    }

    #[test]
    fn a_request_without_the_header_takes_everything_and_an_empty_one_nothing() {
        assert!(accepts(&HeaderMap::new(), JSON));
        for lines in [&[""][..], &[" , ,"], &["", ""]] {
            assert!(!accepts(&headers(lines), JSON), "{lines:?}");
        }
    }

    #[test]
    fn ranges_weights_and_parameters_decide_what_is_taken() {
        for (line, json, stream) in [
            ("application/json, text/event-stream", true, true),
            ("text/event-stream,application/json", true, true),
            ("application/json", true, false),
            ("Application/JSON;charset=utf-8", true, false),
            ("*/*", true, true),
            ("text/*", false, true),
            ("TEXT/*;q=0.1", false, true),
            ("text/html", false, false),
            ("text/event-streams, application/jsonp", false, false),
            ("text", false, false),
            ("*", false, false),
            ("*/json", false, false),
            ("application/json;q=0", false, false),
            ("application/json ; Q=0.000 , */* ; q=0.5", false, true),
            ("*/*, text/*;q=0", true, false),
            ("*/*;q=0, text/event-stream", false, true),
            ("text/*;q=0, text/event-stream;q=0.001, */*", true, true),
            ("application/json;q=0, application/json", true, false),
            ("application/json;q=1.000", true, false),
            ("application/json;q=1.", true, false),
            ("application/json;q=2", false, false),
            ("application/json;q=0.0001", false, false),
            ("application/json;q=1.5", false, false),
            ("application/json;q=.5", false, false),
            ("application/json;q=", false, false),
            ("application/json;q=0.x", false, false),
            (r#"text/html;x="a, application/json, b""#, false, false),
            (r#"text/html;x="\", */*", application/json"#, true, false),
            (r#"application/json;x=";q=0""#, true, false),
        ] {
            let headers = headers(&[line]);
            assert_eq!(accepts(&headers, JSON), json, "{line}");
            assert_eq!(accepts(&headers, EVENT_STREAM), stream, "{line}");
            assert_eq!(accepts_both(&headers), json && stream, "{line}");
        }
    }

    #[test]
    fn several_lines_are_one_list() {
        let headers = headers(&["application/json", "text/event-stream;q=0, */*;q=0.1"]);
        assert!(accepts(&headers, JSON));
        assert!(!accepts(&headers, EVENT_STREAM));
        assert!(accepts(&headers, "image/png"));
        let usual = "application/json, text/event-stream";
        for (lines, both) in
            [(&[usual, usual][..], true), (&[usual, "text/event-stream;q=0"], true), (&[], true)]
        {
            assert_eq!(accepts_both(&self::headers(lines)), both, "{lines:?}");
        }
        assert!(!accepts_both(&self::headers(&["application/json", "text/html"])));
    }

    #[test]
    fn a_content_type_is_compared_without_its_parameters() {
        let is_json = |value| is_media(Some(&HeaderValue::from_static(value)), JSON);
        assert!(is_json("application/json"));
        assert!(is_json("Application/Json ; charset=utf-8"));
        for other in
            ["", "text/plain", "application/json-seq", "text/plain; application/json", "application/*"]
        {
            assert!(!is_json(other), "{other}");
        }
        assert!(!is_media(None, JSON));
    }
}
