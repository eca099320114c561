//! Request ids: exactly as a peer sent them, and the proxy's own on each hop.

use bytes::Bytes;
use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
};

/// A JSON-RPC request id as the raw JSON token that was sent: a string with its quotes and escapes, or a
/// number with its spelling (`9007199254740993` and `1.0` are preserved).
///
/// Ids are equal if their values are (JSON-RPC 2.0, *Response object*: `id` "MUST be the same as the value"),
/// in any spelling: `1.0`, `1e0` and `1`; `"a\/b"` and `"a/b"`. A number and a string are never equal.
#[derive(Clone)]
pub struct RequestId(Bytes);

/// Maximum digits of an integer id that is normalized to plain digits: more than any finite double has.
const MAX_PLAIN_DIGITS: usize = 400;

// === impl RequestId ===

impl RequestId {
    /// Wraps a raw JSON token; `None` if it is neither a string nor a number.
    pub fn from_token(token: Bytes) -> Option<Self> {
        matches!(token.first(), Some(b'"' | b'-' | b'0'..=b'9')).then_some(Self(token))
    }

    /// Creates an id of the proxy: a plain integer.
    pub fn from_number(number: u64) -> Self {
        Self(Bytes::copy_from_slice(itoa::Buffer::new().format(number).as_bytes()))
    }

    /// The raw JSON token.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// A copy in an allocation of its own, which does not keep the message alive.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// The canonical form of the id as bytes: two ids are equal exactly if these bytes are. Mostly the token
    /// itself.
    pub fn canonical_value(&self) -> Cow<'_, [u8]> {
        match self.0.first() {
            Some(b'"') if memchr::memchr(b'\\', &self.0).is_none() => Cow::Borrowed(&self.0),
            Some(b'"') => match serde_json::from_slice::<String>(&self.0) {
                // The quotes distinguish the string `"1"` from the number `1`.
                Ok(text) => Cow::Owned([b"\"", text.as_bytes(), b"\""].concat()),
                // A lone surrogate cannot be decoded, and has no other spelling that is compared.
                Err(_) => Cow::Borrowed(&self.0),
            },
            _ => normalize_number(&self.0).unwrap_or(Cow::Borrowed(&self.0)),
        }
    }

    /// The number, if the id is an integer that fits a `u64`, as ids of the proxy are.
    pub fn as_number(&self) -> Option<u64> {
        if self.0.first() == Some(&b'"') {
            return None;
        }
        parse_u64(&self.0)
    }

    /// The number of a request id or progress token of the proxy that a peer sent back. The proxy sends only
    /// numbers, but some servers return them as strings, and some as `1.0`. `None` if the proxy cannot have
    /// sent it.
    pub fn echoed_number(&self) -> Option<u64> {
        match self.0.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) {
            Some(text) => text.iter().all(u8::is_ascii_digit).then(|| parse_u64(text))?,
            None => self.as_number(),
        }
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || self.canonical_value() == other.canonical_value()
    }
}

impl Eq for RequestId {}

impl Hash for RequestId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canonical_value().hash(state);
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({})", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// The value of an integer that is not negative and fits a `u64`.
fn parse_u64(token: &[u8]) -> Option<u64> {
    let is_plain = !token.is_empty() && token.iter().all(u8::is_ascii_digit);
    let whole = if is_plain { Cow::Borrowed(token) } else { normalize_number(token)? };
    std::str::from_utf8(&whole).ok()?.parse().ok()
}

/// The shortest form of a number: an integer as its digits, without a fraction or an exponent; any other
/// number as its digits and an exponent. `None` if the token is no number, or if its exponent does not fit.
fn normalize_number(token: &[u8]) -> Option<Cow<'_, [u8]>> {
    let (sign, digits) = match token.strip_prefix(b"-") {
        Some(digits) => (&b"-"[..], digits),
        None => (&b""[..], token),
    };
    if digits == b"0" {
        return Some(Cow::Borrowed(digits));
    }
    if digits.iter().all(u8::is_ascii_digit) && digits.first().is_some_and(|&first| first != b'0') {
        return Some(Cow::Borrowed(token));
    }
    let (mantissa, exponent) = match memchr::memchr2(b'e', b'E', digits) {
        Some(at) => {
            let exponent = std::str::from_utf8(&digits[at + 1..]).ok()?;
            (&digits[..at], exponent.strip_prefix('+').unwrap_or(exponent).parse::<i32>().ok()?)
        }
        None => (digits, 0),
    };
    let (whole, fraction) = match memchr::memchr(b'.', mantissa) {
        Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
        None => (mantissa, &b""[..]),
    };
    let mut significant = [whole, fraction].concat();
    if significant.is_empty() || !significant.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut exponent = i64::from(exponent) - i64::try_from(fraction.len()).ok()?;
    let zeros = significant.iter().rev().take_while(|&&digit| digit == b'0').count();
    significant.truncate(significant.len() - zeros);
    exponent += i64::try_from(zeros).ok()?;
    let leading = significant.iter().take_while(|&&digit| digit == b'0').count();
    significant.drain(..leading);
    if significant.is_empty() {
        return Some(Cow::Borrowed(b"0"));
    }
    Some(Cow::Owned(match usize::try_from(exponent) {
        Ok(zeros) if significant.len() + zeros <= MAX_PLAIN_DIGITS => {
            significant.resize(significant.len() + zeros, b'0');
            [sign, &significant].concat()
        }
        _ => [sign, &significant, b"e", exponent.to_string().as_bytes()].concat(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn id(token: &str) -> RequestId {
        RequestId::from_token(Bytes::copy_from_slice(token.as_bytes())).expect(token)
    }

    #[test]
    fn only_strings_and_numbers_are_ids() {
        for good in ["0", "-1", "9007199254740993", "1.0", r#""x\n""#] {
            assert_eq!(id(good).as_bytes(), good.as_bytes());
        }
        for bad in ["null", "true", "{}", "[]", ""] {
            assert!(RequestId::from_token(Bytes::copy_from_slice(bad.as_bytes())).is_none(), "{bad}");
        }
    }

    #[test]
    fn our_own_ids_come_back_as_numbers() {
        assert_eq!(RequestId::from_number(u64::MAX).as_number(), Some(u64::MAX));
        assert_eq!(RequestId::from_number(0).as_bytes(), "0");
        assert_eq!(id("\"7\"").as_number(), None);
        for seven in ["7", "7.0", "7e0", "70E-1", "0.7e+1", "\"7\""] {
            assert_eq!(id(seven).echoed_number(), Some(7), "{seven}");
        }
        for other in ["7.5", "-7", "\"\"", "\"x\"", "\"7", "7e99", "1e99999999999", "\"7.0\"", "\"-7\""] {
            assert_eq!(id(other).echoed_number(), None, "{other}");
        }
    }

    #[test]
    fn ids_are_equal_where_their_values_are() {
        let same: [&[&str]; 7] = [
            &["1", "1.0", "1e0", "10e-1", "0.1E+1"],
            &["0", "-0", "0.00", "0e5"],
            &["-120", "-1.2e2", "-120.0"],
            &["1.5", "15e-1", "1.50"],
            &["1e300", "10e299"],
            &[r#""a/b""#, r#""a\/b""#, r#""\u0061/b""#],
            &[r#""1""#],
        ];
        for (at, group) in same.iter().enumerate() {
            for one in *group {
                assert_eq!(HashSet::from([id(one), id(group[0])]).len(), 1, "{one}");
                for other in same.iter().enumerate().filter(|(other, _)| *other != at).flat_map(|(_, g)| *g) {
                    assert_ne!(id(one), id(other), "{one} and {other}");
                }
            }
        }
        assert_ne!(id("9007199254740993"), id("9007199254740992"), "no double is made of it");
        assert_ne!(id(r#""\ud800""#), id(r#""\ud801""#), "half of a pair is only itself");
    }

    proptest! {
        #[test]
        fn a_number_is_equal_to_itself_in_any_spelling(value in any::<i32>(), zeros in 0usize..5, shift in 0usize..9) {
            let plain = value.to_string();
            let moved = format!("{value}{}e-{shift}", "0".repeat(shift));
            let spelled = format!("{plain}.{}", "0".repeat(zeros + 1));
            prop_assert_eq!(&id(&moved), &id(&plain));
            prop_assert_eq!(&id(&spelled), &id(&plain));
        }

        #[test]
        fn whatever_stands_there_is_equal_to_itself(token in "[-0-9.eE+\"\\\\]{1,12}") {
            if let Some(id) = RequestId::from_token(token.into()) {
                prop_assert_eq!(HashSet::from([id.clone(), id]).len(), 1);
            }
        }
    }
}
