//! Changes a member of an object and leaves the other bytes alone.
//!
//! An [`Object`] knows where its members stand in the buffer it was read from. An [`Edit`] collects
//! what is to change in one object; a [`Patch`] collects the edits of nested objects that share a
//! buffer and applies them in one pass. Key order, spacing and number spelling of everything that
//! is not named by an edit are kept.

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use smallvec::SmallVec;
use std::{borrow::Cow, collections::HashSet, fmt, ops::Range};

/// A JSON object whose members have been located, one level deep.
#[derive(Clone, Debug)]
pub struct Object {
    bytes: Bytes,
    members: SmallVec<[Member; 8]>,
}

#[derive(Clone, Debug)]
struct Member {
    key: Box<str>,
    /// Where the value stands in the object's bytes.
    value: Range<usize>,
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
    /// Locates the members of the object that `bytes` holds.
    ///
    /// # Errors
    /// [`NotAnObject`] where the bytes are another JSON value, or none.
    pub fn read(bytes: &Bytes) -> Result<Self, NotAnObject> {
        let Members(found) = serde_json::from_slice(bytes).map_err(|_| NotAnObject)?;
        let start = bytes.as_ptr() as usize;
        let members = found
            .into_iter()
            .map(|(key, raw)| {
                let from = raw.get().as_ptr() as usize - start;
                Member { key: key.into(), value: from..from + raw.get().len() }
            })
            .collect();
        Ok(Self { bytes: bytes.clone(), members })
    }

    /// The raw value of a member, sharing the object's allocation. The last one, if it is repeated.
    pub fn get(&self, key: &str) -> Option<Bytes> {
        let member = self.members.iter().rev().find(|member| &*member.key == key)?;
        Some(self.bytes.slice(member.value.clone()))
    }

    /// The value of a member that is a string.
    pub fn string(&self, key: &str) -> Option<String> {
        serde_json::from_slice(&self.get(key)?).ok()
    }

    pub fn contains(&self, key: &str) -> bool {
        self.members.iter().any(|member| &*member.key == key)
    }

    /// Keys and raw values in the order they were written.
    pub fn members(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.members.iter().map(|member| (&*member.key, self.bytes.slice(member.value.clone())))
    }

    /// A key that occurs twice. Two readers may disagree on which counts, so what decides on such
    /// an object refuses it.
    pub fn repeated(&self) -> Option<&str> {
        let keys = self.members.iter().map(|member| &*member.key);
        // A client chooses how many there are: comparing each with each would let it hold a core.
        if self.members.len() > 16 {
            let mut seen = HashSet::with_capacity(self.members.len());
            return keys.into_iter().find(|key| !seen.insert(*key));
        }
        keys.enumerate()
            .find(|(at, key)| self.members[..*at].iter().any(|other| *other.key == **key))
            .map(|(_, key)| key)
    }

    /// The object's own bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Where the key of a member begins.
    fn key_start(&self, at: usize) -> usize {
        let after = match at {
            0 => 0,
            _ => self.members[at - 1].value.end,
        };
        after + memchr::memchr(b'"', &self.bytes[after..]).expect("a key is quoted")
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
            if &*member.key == key {
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
            let value = members[at].value.clone();
            match fate {
                Fate::Kept => kept = true,
                Fate::Replaced(with) => {
                    kept = true;
                    patch.push(shift, value, with);
                }
                // With a member before it, its comma goes too; else the comma after it.
                Fate::Removed if kept => {
                    patch.push(shift, members[at - 1].value.end..value.end, Bytes::new())
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
        let at = members.last().map_or(1, |last| last.value.end);
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

/// The members of an object, borrowed, in order.
struct Members<'a>(SmallVec<[(Cow<'a, str>, &'a RawValue); 8]>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = SmallVec::new();
                while let Some(Key(key)) = map.next_key()? {
                    members.push((key, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// A borrowed string: plain `Cow<str>` as a map key would always copy.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

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
        assert_eq!(object(text).repeated(), Some("a"));
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
        assert_eq!(many("k59999").repeated(), Some("k59999"));
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

    proptest! {
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
            let left: Vec<_> = object(&out).members().map(|(k, v)| (k.to_owned(), v)).collect();
            let want: Vec<_> = keys.iter().enumerate().filter(|(_, key)| !gone.contains(key))
                .map(|(n, key)| (key.clone(), Bytes::from(n.to_string()))).collect();
            prop_assert_eq!(left, want, "{} -> {}", text, out);
        }
    }
}
