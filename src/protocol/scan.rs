//! Reads JSON once: whether it is valid, how deep it goes, and where members stand.
//!
//! The grammar is that of RFC 8259; that the text is UTF-8 is for the caller to see. Nothing recurses, so no
//! nesting is too deep to be read, and what is read of it is linear in the bytes.

use smallvec::SmallVec;
use std::{borrow::Cow, ops::Range};

/// Where the members of one object stand in its bytes, in their order.
pub(super) type MemberList = SmallVec<[MemberSpan; 8]>;

/// Where a member stands. Half the size of two `IdRange<usize>`: no message is larger than 4 GiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberSpan {
    /// Where the key begins, behind its quote.
    key: u32,
    /// Twice its length, and one more where it has escapes.
    spelling: u32,
    value: (u32, u32),
}

/// A key between its quotes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberKey<'a> {
    spelled: &'a [u8],
    /// Hardly any is, so most are compared as they stand.
    is_escaped: bool,
}

/// Stands somewhere in some JSON. Whatever reads gives `Missing` where the grammar is broken, and stops there.
#[derive(Debug)]
pub(super) struct JsonScanner<'a> {
    json: &'a [u8],
    at: usize,
    /// Brackets that are open.
    depth: usize,
    deepest: usize,
    /// What is known of all the bytes: that they are ASCII, that none is a control character.
    is_ascii: bool,
    is_printable: bool,
}

/// The brackets that are open, a bit each: whether it is an object's.
#[derive(Default)]
struct BracketStack {
    levels: u32,
    /// Of the innermost; the last is the lowest bit.
    innermost: u64,
    /// Of those before, 64 together.
    outer: Vec<u64>,
}

/// Eight times the same byte.
const fn repeat_byte(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

// === impl Member ===

impl MemberSpan {
    /// Its key, in the object's bytes.
    pub(super) fn key(self, object: &[u8]) -> MemberKey<'_> {
        let length = (self.spelling / 2) as usize;
        MemberKey { spelled: &object[self.key_start()..][..length], is_escaped: self.spelling % 2 == 1 }
    }

    /// Where its key begins, behind the quote.
    pub(super) fn key_start(self) -> usize {
        self.key as usize
    }

    pub(super) fn value(self) -> Range<usize> {
        self.value.0 as usize..self.value.1 as usize
    }
}

// === impl Key ===

impl<'a> MemberKey<'a> {
    /// Whether it is this one.
    pub(super) fn is(self, key: &str) -> bool {
        match self.is_escaped {
            false => self.spelled == key.as_bytes(),
            true => self.decoded() == key,
        }
    }

    /// Whether a reader that does not care for case takes it for `name` ([`is_like`]).
    pub(super) fn is_like(self, name: &str) -> bool {
        match self.is_escaped || !self.spelled.is_ascii() {
            false => self.spelled.eq_ignore_ascii_case(name.as_bytes()),
            true => is_like(&self.decoded(), name),
        }
    }

    /// Whether two are the same.
    pub(super) fn is_same(self, other: MemberKey<'_>) -> bool {
        match self.is_escaped || other.is_escaped {
            false => self.spelled == other.spelled,
            true => self.decoded() == other.decoded(),
        }
    }

    /// As it is meant, its escapes resolved.
    pub(super) fn decoded(self) -> Cow<'a, str> {
        if !self.is_escaped {
            return String::from_utf8_lossy(self.spelled);
        }
        let quoted = [b"\"", self.spelled, b"\""].concat();
        // Half a character means nothing, and stands for itself.
        serde_json::from_slice(&quoted).map_or_else(|_| String::from_utf8_lossy(self.spelled), Cow::Owned)
    }
}

// === impl Scan ===

impl<'a> JsonScanner<'a> {
    /// Stands before the first value.
    pub(super) fn new(json: &'a [u8]) -> Self {
        let mut scan = Self { json, at: 0, depth: 0, deepest: 0, is_ascii: false, is_printable: false };
        scan.skip_whitespace();
        scan
    }

    /// The same, of bytes that are all to be read. They are looked over once before, many at a time, so that of most
    /// less has to be asked when they are read.
    pub(super) fn prescanned(json: &'a [u8]) -> Self {
        let (all, least) =
            json.iter().fold((0, u8::MAX), |(all, least), &byte| (all | byte, least.min(byte)));
        Self { is_ascii: all < 0x80, is_printable: least >= b' ', ..Self::new(json) }
    }

    /// How many bytes have been read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Whether some of the bytes are text.
    pub(super) fn is_text(&self, read: &[u8]) -> bool {
        self.is_ascii || std::str::from_utf8(read).is_ok()
    }

    /// The most brackets that have been open at a time.
    pub(super) fn deepest(&self) -> usize {
        self.deepest
    }

    /// What comes next.
    pub(super) fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    /// Whether nothing is left but space.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.skip_whitespace();
        self.at == self.json.len()
    }

    /// Reads one object, and puts down where its members stand, counted from `start`. `value` is told each key, and
    /// reads the value.
    pub(super) fn object(
        &mut self,
        start: usize,
        members: &mut MemberList,
        mut value: impl FnMut(&mut Self, MemberKey<'a>) -> Option<()>,
    ) -> Option<()> {
        let place = |at: usize| u32::try_from(at - start).ok();
        if !self.open_bracket(b'{', b'}')? {
            return Some(());
        }
        loop {
            let from = self.at + 1;
            let key = self.key()?;
            let twice = u32::try_from(key.spelled.len()).ok()?.checked_mul(2)?;
            let (key_start, spelling, from) = (place(from)?, twice + u32::from(key.is_escaped), self.at);
            value(self, key)?;
            members.push(MemberSpan { key: key_start, spelling, value: (place(from)?, place(self.at)?) });
            if self.close_or_next(b'}')? {
                return Some(());
            }
        }
    }

    /// Reads one value, whatever it is.
    pub(super) fn value(&mut self) -> Option<()> {
        let mut open = BracketStack::default();
        loop {
            let goes_deeper = match self.peek()? {
                b'"' => self.string().map(|_| false)?,
                b'{' => self.open_bracket(b'{', b'}')? && open.push(true),
                b'[' => self.open_bracket(b'[', b']')? && open.push(false),
                _ => self.scalar().map(|()| false)?,
            };
            if !goes_deeper {
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

    /// Reads an opening bracket. Whether something stands behind it: else its closing one has been read, too.
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

    /// Reads what follows a value in brackets: the closing one, or a comma before the next.
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

    /// Whether anything in it is escaped.
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

    /// Reads a number, or one of the three words.
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

    /// At least one.
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

// === impl Brackets ===

impl BracketStack {
    /// Always true: now something is open.
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

/// What a value says that is a string without escapes.
pub(super) fn unescaped(value: &[u8]) -> Option<&str> {
    let text = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    memchr::memchr(b'\\', text).is_none().then(|| std::str::from_utf8(text).ok())?
}

/// Whether a reader that does not care for case takes `key` for `name`. Go's also takes the two
/// letters beyond ASCII that fold to one within.
pub fn is_like(key: &str, name: &str) -> bool {
    key.eq_ignore_ascii_case(name)
        || !key.is_ascii() && key.to_lowercase().to_uppercase() == name.to_ascii_uppercase()
}

/// How many bytes come before one that means something in a string, or must not be there: a quote, a backslash or
/// a control character. Eight are looked at together.
fn plain_prefix(json: &[u8]) -> usize {
    // Borrows the highest bit of each byte that is less; of zero, if it is one less.
    let less = |word: u64, byte| word.wrapping_sub(repeat_byte(byte));
    let mut at = 0;
    let (chunks, rest) = json.as_chunks();
    for chunk in chunks {
        let word = u64::from_le_bytes(*chunk);
        let found = less(word, b' ') | less(word ^ repeat_byte(b'"'), 1) | less(word ^ repeat_byte(b'\\'), 1);
        // Which byte is the first is exact; those behind it may be told wrongly, as they are borrowed from.
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

    /// The key of an object of one member.
    fn key_of(object: &str) -> MemberKey<'_> {
        let mut members = MemberList::new();
        JsonScanner::new(object.as_bytes())
            .object(0, &mut members, |scan, _| scan.value())
            .expect("an object");
        members[0].key(object.as_bytes())
    }

    /// As both ways of reading find.
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
    fn it_is_known_how_deep_it_went() {
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
