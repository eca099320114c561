//! Values that select by name: patterns, and matches of clients.

use super::header_names::client_match_header;
use crate::{
    config::schema::{
        SectionReader, Setting, SpannedValue, ValueResult, ValueType, invalid, non_empty_string, string,
        values,
    },
    policy::{ClientMatch, NamePattern},
};
use serde_json::json;

/// A pattern for names, with `*` and `?`.
pub(super) fn pattern() -> ValueType<'static, NamePattern> {
    non_empty_string(parse_pattern)
}

/// Parses a pattern for tool names.
///
/// # Errors
/// The pattern is empty, and would match nothing.
pub fn parse_pattern(text: &str) -> ValueResult<NamePattern> {
    match text {
        "" => invalid("an empty pattern matches no tool; use `*` to match every tool"),
        text => Ok(NamePattern::new(text)),
    }
}

/// Reads a client match: a header with a given value, or a principal. Unset if none of its keys is written.
pub(super) fn read_client_match(s: &mut SectionReader<'_, '_>) -> Setting<ClientMatch> {
    let header = s
        .key("header", "Header by which these clients are recognised, together with `value`.")
        .read(string(client_match_header));
    let value = s.key("value", "Value of the header.").read(string(values::header_value));
    let principal = s
        .key("principal", "Principal, as 16 hex digits: the field `principal` of the access log, which is there also if the token has a name. The digits stay the same after a restart with the same store key.")
        .read(ValueType::text(json!({ "type": "string", "pattern": "^[0-9a-f]{16}$" }), parse_principal));
    let message = match (header, value, principal) {
        (Setting::Unset, Setting::Unset, Setting::Unset) => return Setting::Unset,
        (Setting::Invalid, ..) | (_, Setting::Invalid, _) | (.., Setting::Invalid) => {
            return Setting::Invalid;
        }
        (Setting::Valid(SpannedValue { span, value: header }), Setting::Valid(value), Setting::Unset) => {
            return Setting::Valid(SpannedValue::new(span, ClientMatch::Header(header, value.value)));
        }
        (Setting::Unset, Setting::Unset, Setting::Valid(SpannedValue { span, value })) => {
            return Setting::Valid(SpannedValue::new(span, ClientMatch::Principal(value)));
        }
        (Setting::Valid(_), Setting::Unset, Setting::Unset) => {
            "the client match has no `value` for its `header`; add one"
        }
        (Setting::Unset, Setting::Valid(_), Setting::Unset) => {
            "the client match has no `header` for its `value`; add one"
        }
        (Setting::Valid(_), _, Setting::Valid(_)) | (_, Setting::Valid(_), Setting::Valid(_)) => {
            "the client match has both a header and `principal`; write two entries, either is enough"
        }
    };
    s.add_problem(s.span, message);
    Setting::Invalid
}

/// Parses a principal as shown in the access log.
fn parse_principal(text: &str) -> ValueResult<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_is_16_hex_digits() {
        assert_eq!(parse_principal("0F3c000000000000").as_deref(), Ok("0f3c000000000000"));
        assert!(parse_principal("0f3c").is_err() && parse_principal("0g3c000000000000").is_err());
        assert!(parse_principal("anonymous").unwrap_err().0.contains("unsolicited: always"));
    }
}
