//! Changes a member of an object and leaves the other bytes alone.
//!
//! An [`Object`] knows where its members stand in the buffer it was read from. An [`Edit`] collects
//! what is to change in one object; a [`Patch`] collects the edits of nested objects that share a
//! buffer and applies them in one pass. Key order, spacing and number spelling of everything that
//! is not named by an edit are kept.

use bytes::Bytes;
use smallvec::SmallVec;
use std::{borrow::Cow, collections::HashSet, ops::Range};

/// A JSON object whose members have been located, one level deep.
#[derive(Clone, Debug)]
pub struct Object {
    bytes: Bytes,
    members: SmallVec<[Member; 8]>,
}

/// Where a member stands in the object's bytes. Half the size of two `Range<usize>`: no message is
/// larger than 4 GiB.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// The key between its quotes, as it is spelled.
    key: (u32, u32),
    value: (u32, u32),
}

/// The bytes are not a JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a JSON object")]
pub struct NotAnObject;

/// What is to change in one object.
#[derive(Debug)]
pub struct Edit<'a> {
    object: &'a Object,
    /// One for each member: left alone, replaced, or removed.
    fates: SmallVec<[Fate; 8]>,
    added: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Fate {
    Kept,
    Replaced(Bytes),
    Removed,
}

/// Edits to one buffer, applied together.
#[derive(Debug)]
pub struct Patch {
    base: Bytes,
    edits: SmallVec<[(Range<usize>, Bytes); 8]>,
}

// === impl Object ===

impl Object {
    /// Locates the members of the object that `bytes` holds: one pass, no allocation for up to
    /// eight members, and no validation. The bytes are a part of a message that was parsed
    /// ([`super::Frame::parse`] validates all of it); of anything else some members may be found in
    /// what is no JSON, and nothing worse happens.
    ///
    /// # Errors
    /// [`NotAnObject`] where the bytes are another JSON value, or none.
    pub fn read(bytes: &Bytes) -> Result<Self, NotAnObject> {
        let members = locate(bytes).ok_or(NotAnObject)?;
        Ok(Self { bytes: bytes.clone(), members })
    }

    /// The raw value of a member, sharing the object's allocation. The last one, if it is repeated.
    pub fn get(&self, key: &str) -> Option<Bytes> {
        let member = self.members.iter().rev().find(|member| self.is(member, key))?;
        Some(self.bytes.slice(member.value()))
    }

    /// The value of a member that is a string.
    pub fn string(&self, key: &str) -> Option<String> {
        serde_json::from_slice(&self.get(key)?).ok()
    }

    pub fn contains(&self, key: &str) -> bool {
        self.members.iter().any(|member| self.is(member, key))
    }

    /// Keys and raw values in the order they were written.
    pub fn members(&self) -> impl Iterator<Item = (Cow<'_, str>, Bytes)> {
        self.members.iter().map(|member| (self.key(member), self.bytes.slice(member.value())))
    }

    /// A key that occurs twice. Two readers may disagree on which counts, so what decides on such
    /// an object refuses it.
    pub fn repeated(&self) -> Option<Cow<'_, str>> {
        // A client chooses how many there are: comparing each with each would let it hold a core.
        if self.members.len() > 16 {
            let mut seen = HashSet::with_capacity(self.members.len());
            let repeated = self.members.iter().find(|member| !seen.insert(self.key(member)));
            return repeated.map(|member| self.key(member));
        }
        let seen = |at: usize| {
            let key = self.key(&self.members[at]);
            self.members[..at].iter().any(|other| self.is(other, &key))
        };
        (1..self.members.len()).find(|&at| seen(at)).map(|at| self.key(&self.members[at]))
    }

    /// The object's own bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// A key as it is meant, its escapes resolved.
    fn key(&self, member: &Member) -> Cow<'_, str> {
        let spelled = &self.bytes[member.key()];
        if memchr::memchr(b'\\', spelled).is_none() {
            return String::from_utf8_lossy(spelled);
        }
        let quoted = &self.bytes[member.key.0 as usize - 1..=member.key.1 as usize];
        let meant: Option<String> = serde_json::from_slice(quoted).ok();
        meant.map_or_else(|| String::from_utf8_lossy(spelled), Cow::Owned)
    }

    fn is(&self, member: &Member, key: &str) -> bool {
        let spelled = &self.bytes[member.key()];
        // Hardly any key is spelled with escapes, and those that are take the longer way: how they are spelled
        // may be what another means.
        match memchr::memchr(b'\\', spelled) {
            None => spelled == key.as_bytes(),
            Some(_) => self.key(member) == key,
        }
    }

    /// Where the bracket is that opens it.
    fn opening(&self) -> usize {
        skip_space(&self.bytes, 0)
    }

    /// Where the key of a member begins, with its quote.
    fn key_start(&self, at: usize) -> usize {
        self.members[at].key.0 as usize - 1
    }
}

// === impl Member ===

impl Member {
    fn key(self) -> Range<usize> {
        self.key.0 as usize..self.key.1 as usize
    }

    fn value(self) -> Range<usize> {
        self.value.0 as usize..self.value.1 as usize
    }
}

/// The members of the object that `json` is, or nothing where it is none.
fn locate(json: &[u8]) -> Option<SmallVec<[Member; 8]>> {
    let place = |at: usize| u32::try_from(at).ok();
    let mut members = SmallVec::new();
    let mut at = skip_space(json, 0);
    if *json.get(at)? != b'{' {
        return None;
    }
    at = skip_space(json, at + 1);
    while *json.get(at)? != b'}' {
        if *json.get(at)? != b'"' {
            return None;
        }
        let key_end = end_of_string(json, at)?;
        let key = (place(at + 1)?, place(key_end)?);
        at = skip_space(json, key_end + 1);
        if *json.get(at)? != b':' {
            return None;
        }
        at = skip_space(json, at + 1);
        let value_end = end_of_value(json, at)?;
        members.push(Member { key, value: (place(at)?, place(value_end)?) });
        at = skip_space(json, value_end);
        match json.get(at)? {
            b',' => at = skip_space(json, at + 1),
            b'}' => {}
            _ => return None,
        }
    }
    (skip_space(json, at + 1) == json.len()).then_some(members)
}

fn skip_space(json: &[u8], mut at: usize) -> usize {
    while matches!(json.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// The index of the quote that ends the string opened at `open`.
fn end_of_string(json: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', json.get(at..)?)?;
        if json[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// The index after the value that begins at `start`.
fn end_of_value(json: &[u8], start: usize) -> Option<usize> {
    match json.get(start)? {
        b'"' => end_of_string(json, start).map(|end| end + 1),
        b'{' | b'[' => {
            let (mut depth, mut at) = (0usize, start);
            loop {
                match json.get(at)? {
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    b'"' => at = end_of_string(json, at)?,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
        _ => {
            let scalar =
                |byte: &u8| !matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' | b'"' | b':');
            let length = json[start..].iter().take_while(|byte| scalar(byte)).count();
            (length > 0).then_some(start + length)
        }
    }
}

// === impl Edit ===

impl<'a> Edit<'a> {
    pub fn new(object: &'a Object) -> Self {
        Self { object, fates: smallvec::smallvec![Fate::Kept; object.members.len()], added: Vec::new() }
    }

    /// Gives `key` the raw JSON `value`: in its place where it exists, at the end where it does not.
    pub fn set(&mut self, key: &str, value: impl Into<Bytes>) -> &mut Self {
        let value = value.into();
        if !self.object.contains(key) {
            if !self.added.is_empty() {
                self.added.push(b',');
            }
            serde_json::to_writer(&mut self.added, key).expect("a string is written to memory");
            self.added.push(b':');
            self.added.extend_from_slice(&value);
            return self;
        }
        self.decide(key, &Fate::Replaced(value))
    }

    /// Gives `key` the raw JSON `value` where the object does not have it yet.
    pub fn set_if_absent(&mut self, key: &str, value: impl Into<Bytes>) -> &mut Self {
        if self.object.contains(key) { self } else { self.set(key, value) }
    }

    /// Takes `key` away, wherever it stands.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.decide(key, &Fate::Removed)
    }

    fn decide(&mut self, key: &str, fate: &Fate) -> &mut Self {
        for (member, slot) in self.object.members.iter().zip(&mut self.fates) {
            if self.object.is(member, key) {
                slot.clone_from(fate);
            }
        }
        self
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.fates.iter().all(|fate| matches!(fate, Fate::Kept))
    }

    /// Whether the object would be left without members.
    pub fn leaves_nothing(&self) -> bool {
        self.added.is_empty() && self.fates.iter().all(|fate| matches!(fate, Fate::Removed))
    }

    /// Adds these edits to `patch`, whose buffer the object is a part of.
    pub fn put(self, patch: &mut Patch) {
        let shift = patch.offset_of(&self.object.bytes);
        let members = &self.object.members;
        let mut kept = false;
        for (at, fate) in self.fates.into_iter().enumerate() {
            let value = members[at].value();
            match fate {
                Fate::Kept => kept = true,
                Fate::Replaced(with) => {
                    kept = true;
                    patch.push(shift, value, with);
                }
                // With a member before it, its comma goes too; else the comma after it.
                Fate::Removed if kept => {
                    patch.push(shift, members[at - 1].value().end..value.end, Bytes::new())
                }
                Fate::Removed => {
                    let next = if at + 1 < members.len() { self.object.key_start(at + 1) } else { value.end };
                    patch.push(shift, self.object.key_start(at)..next, Bytes::new());
                }
            }
        }
        if self.added.is_empty() {
            return;
        }
        let at = members.last().map_or_else(|| self.object.opening() + 1, |last| last.value().end);
        let mut added = self.added;
        if kept {
            added.insert(0, b',');
        }
        patch.push(shift, at..at, added.into());
    }

    /// The object with these edits applied.
    pub fn apply(self) -> Bytes {
        let mut patch = Patch::new(self.object.bytes.clone());
        self.put(&mut patch);
        patch.apply()
    }
}

// === impl Patch ===

impl Patch {
    pub fn new(base: Bytes) -> Self {
        Self { base, edits: SmallVec::new() }
    }

    /// Puts `with` in the place of `part`, which must be a slice of the patch's buffer.
    pub fn replace(&mut self, part: &Bytes, with: Bytes) {
        let from = self.offset_of(part);
        self.push(0, from..from + part.len(), with);
    }

    /// The buffer with all edits applied: one copy, or none where nothing changes.
    pub fn apply(mut self) -> Bytes {
        if self.edits.is_empty() {
            return self.base;
        }
        // Stable: an addition at the place where a removal ends stays behind it.
        self.edits.sort_by_key(|(range, _)| range.start);
        let grown: usize = self.edits.iter().map(|(_, with)| with.len()).sum();
        let mut out = Vec::with_capacity(self.base.len() + grown);
        let mut at = 0;
        for (range, with) in &self.edits {
            out.extend_from_slice(&self.base[at..range.start]);
            out.extend_from_slice(with);
            at = range.end;
        }
        out.extend_from_slice(&self.base[at..]);
        out.into()
    }

    fn push(&mut self, shift: usize, range: Range<usize>, with: Bytes) {
        self.edits.push((range.start + shift..range.end + shift, with));
    }

    fn offset_of(&self, part: &Bytes) -> usize {
        let offset = (part.as_ptr() as usize).wrapping_sub(self.base.as_ptr() as usize);
        assert!(offset + part.len() <= self.base.len(), "the part is a slice of the patched buffer");
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn object(text: &str) -> Object {
        Object::read(&Bytes::copy_from_slice(text.as_bytes())).expect("an object")
    }

    fn edited(text: &str, change: impl FnOnce(&mut Edit<'_>)) -> String {
        let object = object(text);
        let mut edit = Edit::new(&object);
        change(&mut edit);
        String::from_utf8(edit.apply().to_vec()).expect("utf-8")
    }

    #[test]
    fn a_member_is_replaced_in_its_place() {
        assert_eq!(
            edited(r#"{ "a" : 1 , "b":2 }"#, |e| {
                e.set("a", "9");
            }),
            r#"{ "a" : 9 , "b":2 }"#
        );
    }

    #[test]
    fn a_member_is_added_at_the_end() {
        assert_eq!(
            edited(r#"{"a":1 }"#, |e| {
                e.set("b", "2");
            }),
            r#"{"a":1,"b":2 }"#
        );
        assert_eq!(
            edited("{ }", |e| {
                e.set("b", "2").set("c", "3");
            }),
            r#"{"b":2,"c":3 }"#
        );
    }

    #[test]
    fn a_member_is_removed_with_one_comma() {
        assert_eq!(
            edited(r#"{"a":1, "b":2}"#, |e| {
                e.remove("a");
            }),
            r#"{"b":2}"#
        );
        assert_eq!(
            edited(r#"{"a":1, "b":2}"#, |e| {
                e.remove("b");
            }),
            r#"{"a":1}"#
        );
        assert_eq!(
            edited(r#"{"a":1, "b":2, "c":3}"#, |e| {
                e.remove("b");
            }),
            r#"{"a":1, "c":3}"#
        );
        assert_eq!(
            edited(r#"{"a":1}"#, |e| {
                e.remove("a").set("b", "2");
            }),
            r#"{"b":2}"#
        );
    }

    #[test]
    fn a_repeated_member_is_named_and_removed_everywhere() {
        let text = r#"{"a":1,"b":2,"\u0061":3}"#;
        assert_eq!(object(text).repeated().as_deref(), Some("a"));
        assert_eq!(
            edited(text, |e| {
                e.remove("a");
            }),
            r#"{"b":2}"#
        );
    }

    #[test]
    fn a_repeated_member_is_found_among_many() {
        let many = |last: &str| {
            let members: Vec<_> = (0..60_000).map(|n| format!("\"k{n}\":0")).collect();
            object(&format!("{{{},\"{last}\":1}}", members.join(",")))
        };
        assert_eq!(many("k59999").repeated().as_deref(), Some("k59999"));
        assert_eq!(many("other").repeated(), None);
    }

    #[test]
    fn nested_objects_are_patched_in_one_pass() {
        let base = Bytes::from_static(br#"{"id":1,"params":{"x":1e400,"_meta":{"k":1,"z":2}}}"#);
        let outer = Object::read(&base).expect("an object");
        let params = Object::read(&outer.get("params").expect("params")).expect("an object");
        let meta = Object::read(&params.get("_meta").expect("meta")).expect("an object");
        let mut patch = Patch::new(base);
        let mut edit = Edit::new(&meta);
        edit.remove("k").set("t", "7");
        edit.put(&mut patch);
        let mut edit = Edit::new(&outer);
        edit.set("id", "42");
        edit.put(&mut patch);
        assert_eq!(patch.apply(), &br#"{"id":42,"params":{"x":1e400,"_meta":{"z":2,"t":7}}}"#[..]);
    }

    #[test]
    fn an_escaped_key_is_the_key_it_means() {
        let object = object(r#"{"\u0061\"b":1}"#);
        assert_eq!(object.get("a\"b").as_deref(), Some(&b"1"[..]));
        assert_eq!(
            edited(r#"{"\u0061":1,"b":2}"#, |e| {
                e.set("a", "9");
            }),
            r#"{"\u0061":9,"b":2}"#
        );
    }

    #[test]
    fn a_key_is_not_another_whose_escapes_read_like_it() {
        let text = r#"{"\n":1,"\\n":2}"#;
        let read = object(text);
        assert_eq!((read.get("\n"), read.get("\\n")), (Some(Bytes::from("1")), Some(Bytes::from("2"))));
        assert_eq!(object(r#"{"\n":1}"#).get("\\n"), None);
        assert_eq!(read.repeated(), None);
        assert_eq!(
            edited(text, |e| {
                e.remove("\\n");
            }),
            r#"{"\n":1}"#
        );
    }

    #[test]
    fn what_is_no_object_is_none() {
        for text in [
            "",
            " ",
            "[]",
            "1",
            "\"{}\"",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":}",
            "{}x",
            "{a:1}",
            "{\"a\":\"",
            "{\"a\":[}",
        ] {
            assert_eq!(Object::read(&Bytes::from(text)).err(), Some(NotAnObject), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_at_all_are_read_without_harm(bytes in prop::collection::vec(prop::sample::select(&b"{}[]\":,\\u01 \n-.eat"[..]), 0..32)) {
            if let Ok(object) = Object::read(&Bytes::from(bytes)) {
                drop(object.repeated());
                prop_assert!(object.members().count() < 32);
            }
        }

        #[test]
        fn removing_any_members_leaves_the_others(
            keys in prop::collection::vec("[a-e]{1,2}", 0..6),
            gone in prop::collection::vec("[a-e]{1,2}", 0..4),
            pad in "[ \t\n]{0,2}",
        ) {
            let body: Vec<_> = keys.iter().enumerate()
                .map(|(n, key)| format!("{pad}\"{key}\"{pad}:{pad}{n}{pad}")).collect();
            let text = format!("{{{pad}{}}}", body.join(","));
            let out = edited(&text, |e| for key in &gone { e.remove(key); });
            let left: Vec<_> = object(&out).members().map(|(k, v)| (k.into_owned(), v)).collect();
            let want: Vec<_> = keys.iter().enumerate().filter(|(_, key)| !gone.contains(key))
                .map(|(n, key)| (key.clone(), Bytes::from(n.to_string()))).collect();
            prop_assert_eq!(left, want, "{} -> {}", text, out);
        }
    }
}
