//! A single-pass JSON scanner: validity, depth, and positions of members.
//!
//! The grammar is that of RFC 8259; the caller checks that the text is UTF-8. Nothing recurses, so no nesting
//! is too deep, and the time is linear in the bytes.

use smallvec::SmallVec;
use std::{borrow::Cow, ops::Range};

/// The positions of the members of one object in its bytes, in order.
pub(super) type MemberList = SmallVec<[MemberSpan; 8]>;

/// The position of one member. Half the size of two `Range<usize>`: no message is larger than 4 GiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberSpan {
    /// The position of the key, behind its opening quote.
    key: u32,
    /// Twice the length of the key, plus one if the key has escapes.
    spelling: u32,
    /// The start and the end of the value.
    value: (u32, u32),
}

/// A key between its quotes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberKey<'a> {
    spelled: &'a [u8],
    /// The key has escapes. Rarely set, so most keys are compared as they are spelled.
    is_escaped: bool,
}

/// A cursor in a JSON text. Every method that reads returns `None` and stops where the grammar is broken.
#[derive(Debug)]
pub(super) struct JsonScanner<'a> {
    json: &'a [u8],
    at: usize,
    /// The number of open brackets.
    depth: usize,
    deepest: usize,
    /// All bytes are ASCII; `false` if this was not determined.
    is_ascii: bool,
    /// No byte is a control character; `false` if this was not determined.
    is_printable: bool,
}

/// The open brackets, one bit each: 1 for an object.
#[derive(Default)]
struct BracketStack {
    levels: u32,
    /// The innermost levels; the lowest bit is the last.
    innermost: u64,
    /// The levels around those, 64 in each word.
    outer: Vec<u64>,
}

/// A word of eight bytes that all equal `byte`.
const fn repeat_byte(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

// === impl MemberSpan ===

impl MemberSpan {
    /// The key; `object` is the bytes of the object.
    pub(super) fn key(self, object: &[u8]) -> MemberKey<'_> {
        let length = (self.spelling / 2) as usize;
        MemberKey { spelled: &object[self.key_start()..][..length], is_escaped: self.spelling % 2 == 1 }
    }

    /// The position of the key, behind its opening quote.
    pub(super) fn key_start(self) -> usize {
        self.key as usize
    }

    /// The range of the value in the bytes of the object.
    pub(super) fn value(self) -> Range<usize> {
        self.value.0 as usize..self.value.1 as usize
    }
}

// === impl MemberKey ===

impl<'a> MemberKey<'a> {
    /// Whether the key is equal to `key`.
    pub(super) fn is(self, key: &str) -> bool {
        match self.is_escaped {
            false => self.spelled == key.as_bytes(),
            true => self.decoded() == key,
        }
    }

    /// Whether a reader that ignores case reads it as `name` ([`is_like`]).
    pub(super) fn is_like(self, name: &str) -> bool {
        match self.is_escaped || !self.spelled.is_ascii() {
            false => self.spelled.eq_ignore_ascii_case(name.as_bytes()),
            true => is_like(&self.decoded(), name),
        }
    }

    /// Whether two keys are equal.
    pub(super) fn is_same(self, other: MemberKey<'_>) -> bool {
        match self.is_escaped || other.is_escaped {
            false => self.spelled == other.spelled,
            true => self.decoded() == other.decoded(),
        }
    }

    /// The key with its escapes decoded.
    pub(super) fn decoded(self) -> Cow<'a, str> {
        if !self.is_escaped {
            return String::from_utf8_lossy(self.spelled);
        }
        let quoted = [b"\"", self.spelled, b"\""].concat();
        // A lone surrogate cannot be decoded, so such a key is compared as it is spelled.
        serde_json::from_slice(&quoted).map_or_else(|_| String::from_utf8_lossy(self.spelled), Cow::Owned)
    }
}

// === impl JsonScanner ===

impl<'a> JsonScanner<'a> {
    /// Starts at the first value.
    pub(super) fn new(json: &'a [u8]) -> Self {
        let mut scan = Self { json, at: 0, depth: 0, deepest: 0, is_ascii: false, is_printable: false };
        scan.skip_whitespace();
        scan
    }

    /// Starts at the first value of bytes that will all be read. One vectorized pass collects properties of
    /// all bytes, so that most checks can be skipped later.
    pub(super) fn prescanned(json: &'a [u8]) -> Self {
        let (union, minimum) =
            json.iter().fold((0, u8::MAX), |(union, minimum), &byte| (union | byte, minimum.min(byte)));
        Self { is_ascii: union < 0x80, is_printable: minimum >= b' ', ..Self::new(json) }
    }

    /// The number of bytes read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Whether `read`, bytes of this text, are UTF-8.
    pub(super) fn is_utf8(&self, read: &[u8]) -> bool {
        self.is_ascii || std::str::from_utf8(read).is_ok()
    }

    /// The maximum number of brackets that have been open at a time.
    pub(super) fn deepest(&self) -> usize {
        self.deepest
    }

    /// The next byte.
    pub(super) fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    /// Whether nothing but white space is left.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.skip_whitespace();
        self.at == self.json.len()
    }

    /// Reads one object and records the positions of its members, relative to `start`. `value` gets each key
    /// and reads the value.
    pub(super) fn object(
        &mut self,
        start: usize,
        members: &mut MemberList,
        mut value: impl FnMut(&mut Self, MemberKey<'a>) -> Option<()>,
    ) -> Option<()> {
        let offset = |at: usize| u32::try_from(at - start).ok();
        if !self.open_bracket(b'{', b'}')? {
            return Some(());
        }
        loop {
            let from = self.at + 1;
            let key = self.key()?;
            let doubled_length = u32::try_from(key.spelled.len()).ok()?.checked_mul(2)?;
            let (key_start, spelling, from) =
                (offset(from)?, doubled_length + u32::from(key.is_escaped), self.at);
            value(self, key)?;
            members.push(MemberSpan { key: key_start, spelling, value: (offset(from)?, offset(self.at)?) });
            if self.close_or_next(b'}')? {
                return Some(());
            }
        }
    }

    /// Reads one value of any type.
    pub(super) fn value(&mut self) -> Option<()> {
        let mut open = BracketStack::default();
        loop {
            let has_opened = match self.peek()? {
                b'"' => self.string().map(|_| false)?,
                b'{' => self.open_bracket(b'{', b'}')? && open.push(true),
                b'[' => self.open_bracket(b'[', b']')? && open.push(false),
                _ => self.scalar().map(|()| false)?,
            };
            if !has_opened {
                loop {
                    if open.levels == 0 {
                        return Some(());
                    }
                    if !self.close_or_next(if open.is_object() { b'}' } else { b']' })? {
                        break;
                    }
                    open.pop();
                }
            }
            if open.is_object() {
                self.key()?;
            }
        }
    }

    /// Reads an opening bracket; returns whether an element follows. If not, the closing bracket has been
    /// read, too.
    fn open_bracket(&mut self, open: u8, close: u8) -> Option<bool> {
        self.take(open)?;
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        self.skip_whitespace();
        let is_empty = self.peek()? == close;
        if is_empty {
            self.at += 1;
            self.depth -= 1;
        }
        Some(!is_empty)
    }

    /// Reads the closing bracket or the comma after a value; returns whether it was the closing bracket.
    fn close_or_next(&mut self, close: u8) -> Option<bool> {
        self.skip_whitespace();
        if self.peek()? == close {
            self.at += 1;
            self.depth -= 1;
            return Some(true);
        }
        self.take(b',')?;
        self.skip_whitespace();
        Some(false)
    }

    /// Reads a key and its colon.
    fn key(&mut self) -> Option<MemberKey<'a>> {
        let start = self.at + 1;
        let is_escaped = self.string()?;
        let spelled = &self.json[start..self.at - 1];
        self.skip_whitespace();
        self.take(b':')?;
        self.skip_whitespace();
        Some(MemberKey { spelled, is_escaped })
    }

    /// Reads a string; returns whether it has escapes.
    fn string(&mut self) -> Option<bool> {
        self.take(b'"')?;
        let mut is_escaped = false;
        loop {
            let rest = &self.json[self.at..];
            self.at += match self.is_printable {
                true => memchr::memchr2(b'"', b'\\', rest)?,
                false => plain_prefix(rest),
            };
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(is_escaped);
                }
                b'\\' => {
                    is_escaped = true;
                    self.at += match self.json.get(self.at + 1)? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
                        b'u' if self
                            .json
                            .get(self.at + 2..self.at + 6)?
                            .iter()
                            .all(u8::is_ascii_hexdigit) =>
                        {
                            6
                        }
                        _ => return None,
                    };
                }
                _control => return None,
            }
        }
    }

    /// Reads a number, `true`, `false` or `null`.
    fn scalar(&mut self) -> Option<()> {
        let word: &[u8] = match self.peek()? {
            b't' => b"true",
            b'f' => b"false",
            b'n' => b"null",
            _ => return self.number(),
        };
        self.json[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn number(&mut self) -> Option<()> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// Reads at least one digit.
    fn digits(&mut self) -> Option<()> {
        let count = self.json[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        (count > 0).then_some(())
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn skip_whitespace(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }
}

// === impl BracketStack ===

impl BracketStack {
    /// Opens a bracket. Always returns true, so that a caller can chain it.
    fn push(&mut self, is_object: bool) -> bool {
        if self.levels > 0 && self.levels.is_multiple_of(u64::BITS) {
            self.outer.push(self.innermost);
        }
        self.innermost = self.innermost << 1 | u64::from(is_object);
        self.levels += 1;
        true
    }

    fn pop(&mut self) {
        self.levels -= 1;
        self.innermost >>= 1;
        if self.levels > 0 && self.levels.is_multiple_of(u64::BITS) {
            self.innermost = self.outer.pop().expect("there are more");
        }
    }

    fn is_object(&self) -> bool {
        self.innermost & 1 == 1
    }
}

/// The contents of a JSON string without escapes.
pub(super) fn unescaped(value: &[u8]) -> Option<&str> {
    let text = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    memchr::memchr(b'\\', text).is_none().then(|| std::str::from_utf8(text).ok())?
}

/// Whether a reader that ignores case reads `key` as `name`. Go's `encoding/json` also accepts the two
/// letters outside ASCII that fold to an ASCII letter.
pub fn is_like(key: &str, name: &str) -> bool {
    key.eq_ignore_ascii_case(name)
        || !key.is_ascii() && key.to_lowercase().to_uppercase() == name.to_ascii_uppercase()
}

/// The number of bytes before the first quote, backslash or control character. Looks at eight bytes at a
/// time.
fn plain_prefix(json: &[u8]) -> usize {
    // Sets the highest bit of each byte of `word` that is less than `byte`.
    let flag_less = |word: u64, byte| word.wrapping_sub(repeat_byte(byte));
    let mut at = 0;
    let (chunks, rest) = json.as_chunks();
    for chunk in chunks {
        let word = u64::from_le_bytes(*chunk);
        let found = flag_less(word, b' ')
            | flag_less(word ^ repeat_byte(b'"'), 1)
            | flag_less(word ^ repeat_byte(b'\\'), 1);
        // The first match is exact; later ones may be false, because the subtraction borrows from them.
        let found = found & !word & repeat_byte(0x80);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + rest.iter().take_while(|byte| **byte >= b' ' && !matches!(byte, b'"' | b'\\')).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::value::RawValue;
    use std::collections::BTreeMap;

    /// The key of an object with one member.
    fn key_of(object: &str) -> MemberKey<'_> {
        let mut members = MemberList::new();
        JsonScanner::new(object.as_bytes())
            .object(0, &mut members, |scan, _| scan.value())
            .expect("an object");
        members[0].key(object.as_bytes())
    }

    /// The result of both ways of reading.
    fn is_valid(json: &[u8]) -> bool {
        let [carefully, quickly] = [JsonScanner::new, JsonScanner::prescanned].map(|scan| {
            let mut scan = scan(json);
            scan.value().is_some() && scan.is_at_end()
        });
        assert_eq!(carefully, quickly, "{json:?}");
        carefully
    }

    #[test]
    fn the_grammar_is_that_of_json() {
        for json in [
            "0",
            "-0.5e+10",
            "1E9",
            " true ",
            "null",
            "[]",
            "{}",
            "[1,[2,{}]]",
            r#"{"a":{"b":[]},"":""}"#,
            r#""\u00e9\"\\\/\b\f\n\r\t""#,
            "\"\u{7f}é\"",
            r#""\ud800""#,
        ] {
            assert!(is_valid(json.as_bytes()), "{json}");
        }
        for json in [
            "",
            "01",
            "-",
            "1.",
            ".5",
            "1e",
            "+1",
            "tru",
            "nul",
            "[1,]",
            "[,]",
            "{,}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            "{1:2}",
            "[1}",
            "[",
            "\"",
            "\"\u{1f}\"",
            r#""\x""#,
            r#""\u12g4""#,
            "1 2",
            "]",
            "\"a\nb\"",
        ] {
            assert!(!is_valid(json.as_bytes()), "{json}");
        }
    }

    #[test]
    fn the_depth_is_measured() {
        for (json, depth) in [("1", 0), ("[]", 1), (r#"{"a":[{"b":"[[["}],"c":[[]]}"#, 3), ("[[],[[]]]", 3)] {
            let mut scan = JsonScanner::new(json.as_bytes());
            assert_eq!((scan.value(), scan.deepest()), (Some(()), depth), "{json}");
        }
        let deep = "[".repeat(1 << 20) + &"]".repeat(1 << 20);
        assert!(is_valid(deep.as_bytes()));
    }

    proptest! {
        #[test]
        fn what_is_valid_here_is_for_serde_json(json in "[\\[\\]{}\",:0-2eE.+\\-tfn \\\\ua-f\n]{0,14}") {
            let read: Result<&RawValue, _> = serde_json::from_str(&json);
            prop_assert_eq!(is_valid(json.as_bytes()), read.is_ok(), "{}", json);
        }

        #[test]
        fn a_key_is_what_it_means(spelled in r#"([ab]|\\\\(u0061|n|\\\\)){0,5}"#, key in "[ab\n\\\\]{0,5}") {
            let means: String = serde_json::from_str(&format!("\"{spelled}\"")).expect("a string");
            let object = format!("{{\"{spelled}\":1}}");
            let read = key_of(&object);
            prop_assert_eq!(read.decoded(), means.as_str());
            for key in [&key, &means] {
                prop_assert_eq!(read.is(key), means == **key, "{} {}", spelled, key);
                let plainly = serde_json::to_string(&BTreeMap::from([(key, 1)])).expect("it is written to memory");
                prop_assert_eq!(read.is_same(key_of(&plainly)), means == **key, "{} {}", spelled, key);
            }
        }

        #[test]
        fn a_string_ends_at_its_first_quote(before in "[ -!#-\\[\\]-~é]{0,40}", after in any::<Vec<u8>>()) {
            for stop in [&b"\""[..], b"\\", b"\n", b"\0"] {
                let json = [before.as_bytes(), stop, &after].concat();
                prop_assert_eq!(plain_prefix(&json), before.len());
            }
        }
    }
}
