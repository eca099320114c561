//! Equality of JSON values, independent of their spelling.
//!
//! A client that retries a request may serialize it anew. [`canonicalize`] gives two texts the same bytes
//! exactly if they mean the same value:
//!
//! - spacing and the order of an object's keys do not matter;
//! - strings are compared by their characters, whether escaped or not (half of a surrogate pair is a
//!   character of its own);
//! - numbers are compared by value, exactly and at any size: `1`, `1.0` and `10e-1` are one number, `-0` is
//!   `0`, and `9007199254740993` is not `9007199254740992`;
//! - where a key is repeated, each occurrence counts, in order.
//!
//! Nothing is rounded, so different values never become equal.

/// Maximum nesting of a JSON text that is compared by value. Deeper values are compared byte for byte, so
/// that recursion cannot exhaust the stack, whatever the depth limit of the message.
pub const MAX_DEPTH: usize = 128;

/// Returns the canonical form of a JSON text: opaque bytes, for comparing and hashing. Text that is not valid
/// JSON equals only itself.
pub fn canonicalize(json: &[u8]) -> Vec<u8> {
    let mut reader = Canonicalizer { json, at: 0 };
    let mut out = Vec::with_capacity(json.len() + json.len() / 4 + 8);
    if reader.value(MAX_DEPTH, &mut out).and_then(|()| reader.expect_end()).is_none() {
        out.clear();
        write_tagged(b'?', json, &mut out);
    }
    out
}

/// Whether two JSON texts are the same value.
pub fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one == other || canonicalize(one) == canonicalize(other)
}

/// Whether a JSON number has no fraction: `5`, `5.0` and `5e3`, but not `5.5`.
pub fn is_integer(number: &[u8]) -> bool {
    // An exponent that does not fit an `i64` is assumed to be positive.
    ExactDecimal::read(number).is_none_or(|decimal| decimal.exponent >= 0)
}

/// Walks a JSON text and writes its canonical form. Every method returns `None` if the text is not JSON.
struct Canonicalizer<'a> {
    json: &'a [u8],
    at: usize,
}

/// A number as an integer times a power of ten.
struct ExactDecimal {
    is_negative: bool,
    /// The significant digits in ASCII, without zeros at either end; empty for zero.
    digits: Vec<u8>,
    exponent: i64,
}

// === impl Canonicalizer ===

impl<'a> Canonicalizer<'a> {
    /// Writes one value, with `levels` of nesting left.
    fn value(&mut self, levels: usize, out: &mut Vec<u8>) -> Option<()> {
        match self.peek()? {
            b'{' | b'[' if levels == 0 => {
                let from = self.at;
                self.skip_value()?;
                write_tagged(b'?', &self.json[from..self.at], out);
            }
            b'{' => self.object(levels - 1, out)?,
            b'[' => self.array(levels - 1, out)?,
            b'"' => self.string(out)?,
            b't' => self.literal(b"true", out)?,
            b'f' => self.literal(b"false", out)?,
            b'n' => self.literal(b"null", out)?,
            _ => self.number(out)?,
        }
        Some(())
    }

    fn object(&mut self, levels: usize, out: &mut Vec<u8>) -> Option<()> {
        out.push(b'{');
        let base = out.len();
        // The key range and the end of the value of each member.
        let mut members = Vec::new();
        self.at += 1;
        let mut has_more = self.peek()? != b'}';
        if !has_more {
            self.at += 1;
        }
        while has_more {
            let from = out.len();
            if self.peek()? != b'"' {
                return None;
            }
            self.string(out)?;
            let key = from..out.len();
            self.expect(b':')?;
            self.value(levels, out)?;
            members.push((key, out.len()));
            has_more = self.take_separator(b'}')?;
        }
        if !members.is_sorted_by_key(|(key, _)| &out[key.clone()]) {
            members.sort_by(|(one, _), (other, _)| out[one.clone()].cmp(&out[other.clone()]));
            let mut sorted = Vec::with_capacity(out.len() - base);
            for (key, end) in members {
                sorted.extend_from_slice(&out[key.start..end]);
            }
            out.truncate(base);
            out.append(&mut sorted);
        }
        out.push(b'}');
        Some(())
    }

    fn array(&mut self, levels: usize, out: &mut Vec<u8>) -> Option<()> {
        out.push(b'[');
        self.at += 1;
        let mut has_more = self.peek()? != b']';
        if !has_more {
            self.at += 1;
        }
        while has_more {
            self.value(levels, out)?;
            has_more = self.take_separator(b']')?;
        }
        out.push(b']');
        Some(())
    }

    /// Writes a string by its characters. Half of a surrogate pair becomes the three bytes that UTF-8 would
    /// give it, which occur in no other way.
    fn string(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let mut decoded = Vec::new();
        self.at += 1;
        loop {
            let rest = &self.json[self.at..];
            let run = memchr::memchr2(b'"', b'\\', rest)?;
            decoded.extend_from_slice(&rest[..run]);
            self.at += run + 1;
            if rest[run] == b'"' {
                write_tagged(b'"', &decoded, out);
                return Some(());
            }
            let escape = *self.json.get(self.at)?;
            self.at += 1;
            decoded.push(match escape {
                b'"' | b'\\' | b'/' => escape,
                b'b' => 0x08,
                b'f' => 0x0c,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'u' => {
                    self.unicode(&mut decoded)?;
                    continue;
                }
                _ => return None,
            });
        }
    }

    /// Decodes the digits after `\u`: one character, or the first half of a surrogate pair with the second
    /// half behind it.
    fn unicode(&mut self, decoded: &mut Vec<u8>) -> Option<()> {
        let mut unit = self.four_digits()?;
        if (0xd800..0xdc00).contains(&unit) && self.json[self.at..].starts_with(b"\\u") {
            let after_first = self.at;
            self.at += 2;
            match self.four_digits()? {
                second @ 0xdc00..0xe000 => unit = 0x10000 + ((unit - 0xd800) << 10) + (second - 0xdc00),
                _ => self.at = after_first,
            }
        }
        match char::from_u32(unit) {
            Some(char) => decoded.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            None => {
                let low = |shift: u32| 0x80 | u8::try_from((unit >> shift) & 0x3f).expect("six bits");
                decoded.extend_from_slice(&[0xed, low(6), low(0)]);
            }
        }
        Some(())
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.json.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |unit, digit| Some(unit * 16 + char::from(*digit).to_digit(16)?))
    }

    fn number(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let rest = &self.json[self.at..];
        let length = rest
            .iter()
            .position(|byte| !matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
            .unwrap_or(rest.len());
        if length == 0 {
            return None;
        }
        let token = &rest[..length];
        self.at += length;
        match ExactDecimal::read(token) {
            Some(decimal) => decimal.write(out),
            None => write_tagged(b'?', token, out),
        }
        Some(())
    }

    fn literal(&mut self, word: &[u8], out: &mut Vec<u8>) -> Option<()> {
        self.json[self.at..].starts_with(word).then(|| {
            self.at += word.len();
            out.push(word[0]);
        })
    }

    /// Skips a value without parsing it.
    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match *self.json.get(self.at)? {
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                b'"' => {
                    self.at += 1;
                    loop {
                        self.at += memchr::memchr2(b'"', b'\\', self.json.get(self.at..)?)?;
                        if self.json[self.at] == b'"' {
                            break;
                        }
                        self.at += 2;
                    }
                }
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Takes a comma or `close`; returns whether it was a comma.
    fn take_separator(&mut self, close: u8) -> Option<bool> {
        let byte = self.peek()?;
        self.at += 1;
        match byte {
            b',' => Some(true),
            _ => (byte == close).then_some(false),
        }
    }

    /// Skips `byte`, which must be the next one after white space.
    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while matches!(self.json.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.json.get(self.at).copied()
    }

    /// Checks that only white space is left.
    fn expect_end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }
}

// === impl ExactDecimal ===

impl ExactDecimal {
    /// Parses a number; `None` if the text is no number, or if its exponent does not fit an `i64`.
    fn read(token: &[u8]) -> Option<Self> {
        let (is_negative, rest) = match token.strip_prefix(b"-") {
            Some(rest) => (true, rest),
            None => (false, token),
        };
        let (mantissa, exponent) = match memchr::memchr2(b'e', b'E', rest) {
            Some(at) => (&rest[..at], std::str::from_utf8(&rest[at + 1..]).ok()?.parse().ok()?),
            None => (rest, 0i64),
        };
        let (whole, fraction) = match memchr::memchr(b'.', mantissa) {
            Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
            None => (mantissa, &[][..]),
        };
        let mut digits = [whole, fraction].concat();
        if whole.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let mut exponent = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        let significant = digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
        exponent = exponent.checked_add(i64::try_from(digits.len() - significant).ok()?)?;
        digits.truncate(significant);
        let leading = digits.iter().take_while(|digit| **digit == b'0').count();
        digits.drain(..leading);
        if digits.is_empty() {
            return Some(Self { is_negative: false, digits, exponent: 0 });
        }
        Some(Self { is_negative, digits, exponent })
    }

    /// Writes the sign, the significant digits and the exponent, which are unique for each value.
    fn write(&self, out: &mut Vec<u8>) {
        out.push(if self.is_negative { b'-' } else { b'+' });
        out.extend_from_slice(&self.digits);
        out.push(b'e');
        out.extend_from_slice(itoa::Buffer::new().format(self.exponent).as_bytes());
        out.push(b';');
    }
}

/// Writes `kind`, the length and the bytes. The length prefix keeps content from being mistaken for
/// structure.
fn write_tagged(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(bytes.len()).as_bytes());
    out.push(b':');
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    fn assert_same(one: &str, other: &str) {
        assert!(is_equal(one.as_bytes(), other.as_bytes()), "{one} is {other}");
    }

    fn assert_differ(one: &str, other: &str) {
        assert!(!is_equal(one.as_bytes(), other.as_bytes()), "{one} is not {other}");
    }

    #[test]
    fn spacing_and_the_order_of_keys_do_not_matter() {
        assert_same(r#"{"a":1,"b":[true,null]}"#, "{ \"b\" : [ true ,\n null ] ,\t\"a\":1 } ");
        assert_same(r#"{"b":{"y":1,"x":2},"a":[]}"#, r#"{"a":[],"b":{"x":2,"y":1}}"#);
    }

    #[test]
    fn the_order_of_an_array_and_every_value_matter() {
        assert_differ("[1,2]", "[2,1]");
        assert_differ(r#"{"a":1}"#, r#"{"a":2}"#);
        assert_differ(r#"{"a":1}"#, r#"{"b":1}"#);
        assert_differ(r#"{"a":1}"#, r#"{"a":1,"b":null}"#);
        assert_differ("[[],[]]", "[[[]]]");
        assert_differ("\"1\"", "1");
        assert_differ("null", "false");
        assert_differ("{}", "[]");
    }

    #[test]
    fn numbers_are_the_same_by_their_exact_value() {
        for (one, other) in [
            ("1", "1.0"),
            ("1", "10e-1"),
            ("100", "1e2"),
            ("100", "1E+2"),
            ("0.1", "0.10"),
            ("0", "-0.0"),
            ("0", "0e99"),
            ("-2.50", "-25e-1"),
            ("1e400", "10e399"),
        ] {
            assert_same(one, other);
        }
        for (one, other) in [
            ("1", "-1"),
            ("1", "10"),
            ("9007199254740992", "9007199254740993"),
            ("0.1", "0.1000000000000000055511151231257827"),
            ("1e400", "1e401"),
            ("1e99999999999999999999", "1e99999999999999999998"),
        ] {
            assert_differ(one, other);
        }
    }

    #[test]
    fn strings_are_the_same_by_their_characters() {
        assert_same(r#""\u0061\/\n\ud83d\ude00""#, "\"a/\\n\u{1f600}\"");
        assert_same(r#"{"\u0061":1}"#, r#"{"a":1}"#);
        assert_same(r#""\uD800""#, r#""\ud800""#);
        assert_same(r#""\ud800\u0041""#, r#""\ud800A""#);
        assert_differ(r#""\ud800""#, r#""\ud801""#);
        assert_differ(r#""\ud800\udc00""#, r#""\udc00\ud800""#);
        assert_differ(r#""\\u0061""#, r#""a""#);
    }

    #[test]
    fn content_is_not_taken_for_structure() {
        assert_differ(r#"["a","b"]"#, r#"["a\",\"b"]"#);
        assert_differ(r#"["a1:b"]"#, r#"["a","b"]"#);
        assert_differ(r#"{"a":"1:b"}"#, r#"{"a1":"b"}"#);
        assert_differ("[1,2]", "[12]");
        assert_differ("[1,-2]", "[\"1-2\"]");
    }

    #[test]
    fn every_occurrence_of_a_repeated_key_counts() {
        assert_same(r#"{"a":1,"b":0,"a":2}"#, r#"{"a":1,"a":2,"b":0}"#);
        assert_differ(r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#);
        assert_differ(r#"{"a":1,"a":2}"#, r#"{"a":2}"#);
    }

    #[test]
    fn what_cannot_be_followed_is_the_same_only_as_itself() {
        for broken in ["", "{", "{1:2}", "[1,]x", "tru", "\"", "\"\\x\"", "1 2", "\"\\ud8\"", "{\"a\"}"] {
            assert_same(broken, broken);
            assert_differ(broken, &format!("{broken} "));
        }
    }

    #[test]
    fn what_lies_too_deep_is_compared_byte_for_byte() {
        let nested = |depth: usize, inner: &str| {
            format!("{}{inner}{}", "[".repeat(depth), "]".repeat(depth)).into_bytes()
        };
        assert!(is_equal(&nested(MAX_DEPTH, "1 , \"]\""), &nested(MAX_DEPTH, "1,\"]\"")));
        assert!(!is_equal(&nested(MAX_DEPTH + 1, "1 , \"]\""), &nested(MAX_DEPTH + 1, "1,\"]\"")));
        assert!(is_equal(&nested(MAX_DEPTH + 1, " [\"\\\"\"] "), &nested(MAX_DEPTH + 1, " [\"\\\"\"] ")));
        let deep = nested(200_000, "");
        assert!(is_equal(&deep, &deep.clone()));
    }

    #[test]
    fn an_integer_is_one_however_it_is_spelt() {
        for integer in ["0", "-0", "5", "5.0", "5e3", "5.5e1", "-50e-1", "1e400", "123456789012345678901234"]
        {
            assert!(is_integer(integer.as_bytes()), "{integer}");
        }
        for fraction in ["0.5", "-5.25", "55e-1", "1e-400"] {
            assert!(!is_integer(fraction.as_bytes()), "{fraction}");
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            // Never an integer, which `Value` would consider different from the same number with a fraction.
            any::<i32>().prop_map(|n| json!(f64::from(n) + 0.5)),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c]{0,2}", inner, 0..4)
                    .prop_map(|map| Value::from_iter(map.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    /// The value in another spelling: keys in reverse, spaces everywhere, strings escaped.
    fn respelt(value: &Value) -> String {
        let escaped = |text: &str| -> String {
            let units: String = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
            format!("\"{units}\"")
        };
        match value {
            Value::Null | Value::Bool(_) => format!(" {value}\t"),
            Value::Number(number) if number.is_f64() => format!("\n{number}00"),
            Value::Number(number) => format!("{number}.0e0"),
            Value::String(text) => escaped(text),
            Value::Array(items) => {
                format!("[ {} ]", items.iter().map(respelt).collect::<Vec<_>>().join(" ,\r"))
            }
            Value::Object(members) => {
                let members: Vec<_> =
                    members.iter().map(|(k, v)| format!("{} : {}", escaped(k), respelt(v))).rev().collect();
                format!("{{ {} }}", members.join(" , "))
            }
        }
    }

    proptest! {
        #[test]
        fn a_value_is_the_same_in_every_spelling(value in any_value()) {
            let (plain, other) = (value.to_string(), respelt(&value));
            prop_assert!(is_equal(plain.as_bytes(), other.as_bytes()), "{} is {}", plain, other);
        }

        #[test]
        fn different_values_differ(one in any_value(), other in any_value()) {
            prop_assert_eq!(one == other, is_equal(one.to_string().as_bytes(), other.to_string().as_bytes()));
        }

        #[test]
        fn any_bytes_at_all_are_read(bytes in prop::collection::vec(prop::sample::select(&b"{}[]\":,\\u0d8-.e1 tn"[..]), 0..24)) {
            // Any bytes have a canonical form, and always the same one.
            let form = canonicalize(&bytes);
            prop_assert!(is_equal(&bytes, &bytes));
            prop_assert!(form.len() <= bytes.len() * 8 + 64);
        }
    }
}
