//! Edits of object members that preserve all other bytes.
//!
//! A [`JsonObject`] has the positions of its members in the buffer it was read from. An [`ObjectEdit`]
//! collects the changes of one object; a [`BytesPatch`] collects the edits of nested objects that share a
//! buffer and applies them in one pass. The key order, spacing and number spelling of everything that no edit
//! names are preserved.

use super::scan::{JsonScanner, MemberList, MemberSpan, unescaped};
use bytes::Bytes;
use serde_json::value::RawValue;
use smallvec::SmallVec;
use std::{borrow::Cow, collections::HashSet, ops::Range};

/// A JSON object with the positions of its members, one level deep.
#[derive(Clone, Debug)]
pub struct JsonObject {
    bytes: Bytes,
    members: MemberList,
}

/// Error: the bytes are not a JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a JSON object")]
pub struct NotAnObject;

/// Changes of one object, which are collected and then applied together.
#[derive(Debug)]
pub struct ObjectEdit<'a> {
    object: &'a JsonObject,
    /// The change of each member, in their order.
    changes: SmallVec<[MemberChange; 8]>,
    /// The new values of replaced members.
    values: SmallVec<[Bytes; 1]>,
    /// The members to add: JSON text, separated by commas.
    added: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum MemberChange {
    Keep,
    /// The index of the new value.
    Replace(u32),
    Remove,
}

/// Edits of one buffer, applied together.
#[derive(Debug)]
pub struct BytesPatch {
    base: Bytes,
    edits: SmallVec<[(Range<usize>, Bytes); 8]>,
}

/// The raw items of an array, sharing its allocation; `None` for any other value.
pub fn array_items(array: &Bytes) -> Option<Vec<Bytes>> {
    let items: Vec<&RawValue> = serde_json::from_slice(array).ok()?;
    Some(items.into_iter().map(|item| array.slice_ref(item.get().as_bytes())).collect())
}

// === impl JsonObject ===

impl JsonObject {
    /// Reads the object in `bytes`, in one pass, and without an allocation for up to eight members.
    ///
    /// # Errors
    /// [`NotAnObject`] if the bytes are no object.
    pub fn read(bytes: &Bytes) -> Result<Self, NotAnObject> {
        let mut scan = JsonScanner::prescanned(bytes);
        let mut members = MemberList::new();
        let read = scan.object(0, &mut members, |scan, _| scan.value());
        read.filter(|()| scan.is_at_end()).ok_or(NotAnObject)?;
        Ok(Self { bytes: bytes.clone(), members })
    }

    /// Wraps an object whose members have been located before.
    pub(super) fn from_members(bytes: Bytes, members: MemberList) -> Self {
        Self { bytes, members }
    }

    /// The raw JSON value of a member, sharing the object's allocation; the last one, if the key is repeated.
    pub fn get(&self, key: &str) -> Option<Bytes> {
        Some(self.bytes.slice(self.find(key)?.value()))
    }

    /// The raw value of a member, borrowed.
    pub fn raw(&self, key: &str) -> Option<&[u8]> {
        Some(&self.bytes[self.find(key)?.value()])
    }

    fn find(&self, key: &str) -> Option<&MemberSpan> {
        self.members.iter().rev().find(|member| self.has_key(member, key))
    }

    /// The raw value of a member, if the key occurs once.
    pub fn get_unique(&self, key: &str) -> Option<Bytes> {
        let mut found = self.members.iter().filter(|member| self.has_key(member, key));
        let member = found.next()?;
        found.next().is_none().then(|| self.bytes.slice(member.value()))
    }

    /// The decoded value of a member; `None` if it is missing or no string.
    pub fn string(&self, key: &str) -> Option<String> {
        let value = self.raw(key)?;
        match unescaped(value) {
            Some(text) => Some(text.to_owned()),
            None => serde_json::from_slice(value).ok(),
        }
    }

    /// Whether the object has a member with this key.
    pub fn contains(&self, key: &str) -> bool {
        self.members.iter().any(|member| self.has_key(member, key))
    }

    /// Keys and raw values in the order they were written.
    pub fn members(&self) -> impl Iterator<Item = (Cow<'_, str>, Bytes)> {
        self.members.iter().map(|member| (self.key(member), self.bytes.slice(member.value())))
    }

    /// The first key that occurs twice, if any. Two readers may disagree on which value counts, so code that
    /// acts on such an object refuses it.
    pub fn repeated_key(&self) -> Option<Cow<'_, str>> {
        // A client chooses the number of members: comparing all pairs would let it occupy a core.
        if self.members.len() > 16 {
            let mut seen = HashSet::with_capacity(self.members.len());
            let repeated = self.members.iter().find(|member| !seen.insert(self.key(member)));
            return repeated.map(|member| self.key(member));
        }
        let is_repeated = |at: usize| {
            let key = self.members[at].key(&self.bytes);
            self.members[..at].iter().any(|other| other.key(&self.bytes).is_same(key))
        };
        (1..self.members.len()).find(|&at| is_repeated(at)).map(|at| self.key(&self.members[at]))
    }

    /// The JSON text of the object.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// A key with its escapes decoded.
    fn key(&self, member: &MemberSpan) -> Cow<'_, str> {
        member.key(&self.bytes).decoded()
    }

    fn has_key(&self, member: &MemberSpan, key: &str) -> bool {
        member.key(&self.bytes).is(key)
    }

    /// The position of the opening bracket.
    fn opening_bracket(&self) -> usize {
        memchr::memchr(b'{', &self.bytes).expect("it is an object")
    }

    /// The position of a member's key, with its quote.
    fn key_start(&self, at: usize) -> usize {
        self.members[at].key_start() - 1
    }
}

// === impl ObjectEdit ===

impl<'a> ObjectEdit<'a> {
    /// Starts without changes.
    pub fn new(object: &'a JsonObject) -> Self {
        let changes = smallvec::smallvec![MemberChange::Keep; object.members.len()];
        Self { object, changes, values: SmallVec::new(), added: Vec::new() }
    }

    /// Sets `key` to the raw JSON `value`: in its place if it exists, else at the end.
    pub fn set(&mut self, key: &str, value: impl Into<Bytes>) -> &mut Self {
        let (value, index) = (value.into(), self.values.len());
        let index = u32::try_from(index).expect("there are fewer members");
        match self.mark(&[key], MemberChange::Replace(index)) {
            true => self.values.push(value),
            false => self.add(key, &value),
        }
        self
    }

    /// Adds `key` with the raw JSON `value`, unless the object has it.
    pub fn set_if_absent(&mut self, key: &str, value: impl Into<Bytes>) -> &mut Self {
        if !self.object.contains(key) {
            self.add(key, &value.into());
        }
        self
    }

    /// Removes `key`, wherever it occurs.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.remove_all(&[key])
    }

    /// Removes each of these keys, wherever it occurs.
    pub fn remove_all(&mut self, keys: &[&str]) -> &mut Self {
        self.mark(keys, MemberChange::Remove);
        self
    }

    /// Marks the members with these keys; returns whether there are any.
    fn mark(&mut self, keys: &[&str], change: MemberChange) -> bool {
        let mut is_found = false;
        for (member, slot) in self.object.members.iter().zip(&mut self.changes) {
            let member = member.key(&self.object.bytes);
            if keys.iter().any(|key| member.is(key)) {
                (*slot, is_found) = (change, true);
            }
        }
        is_found
    }

    fn add(&mut self, key: &str, value: &[u8]) {
        // Reserve space for the key in its quotes, a colon, and a comma on either side.
        self.added.reserve(key.len() + value.len() + 5);
        if !self.added.is_empty() {
            self.added.push(b',');
        }
        serde_json::to_writer(&mut self.added, key).expect("a string is written to memory");
        self.added.push(b':');
        self.added.extend_from_slice(value);
    }

    /// Whether no change has been collected.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changes.iter().all(|change| matches!(change, MemberChange::Keep))
    }

    /// Whether the object would have no members left.
    pub fn leaves_empty(&self) -> bool {
        self.added.is_empty() && self.changes.iter().all(|change| matches!(change, MemberChange::Remove))
    }

    /// Adds these edits to `patch`, whose buffer contains the object.
    pub fn add_to(self, patch: &mut BytesPatch) {
        let base_offset = patch.offset_of(&self.object.bytes);
        let members = &self.object.members;
        let mut has_kept_member = false;
        for (at, change) in self.changes.into_iter().enumerate() {
            let value = members[at].value();
            match change {
                MemberChange::Keep => has_kept_member = true,
                MemberChange::Replace(index) => {
                    has_kept_member = true;
                    patch.push(base_offset, value, self.values[index as usize].clone());
                }
                // Remove the comma before the member if a member stays before it; else the comma after it.
                MemberChange::Remove if has_kept_member => {
                    patch.push(base_offset, members[at - 1].value().end..value.end, Bytes::new())
                }
                MemberChange::Remove => {
                    let next = if at + 1 < members.len() { self.object.key_start(at + 1) } else { value.end };
                    patch.push(base_offset, self.object.key_start(at)..next, Bytes::new());
                }
            }
        }
        if self.added.is_empty() {
            return;
        }
        let at = members.last().map_or_else(|| self.object.opening_bracket() + 1, |last| last.value().end);
        let mut added = self.added;
        if has_kept_member {
            added.insert(0, b',');
        }
        patch.push(base_offset, at..at, added.into());
    }

    /// The object with these edits applied.
    pub fn apply(self) -> Bytes {
        let mut patch = BytesPatch::new(self.object.bytes.clone());
        self.add_to(&mut patch);
        patch.apply()
    }
}

// === impl BytesPatch ===

impl BytesPatch {
    /// Starts without edits of `base`.
    pub fn new(base: Bytes) -> Self {
        Self { base, edits: SmallVec::new() }
    }

    /// Replaces `part`, which must be a slice of the buffer of the patch.
    pub fn replace(&mut self, part: &Bytes, replacement: Bytes) {
        let from = self.offset_of(part);
        self.push(0, from..from + part.len(), replacement);
    }

    /// The buffer with all edits applied: one copy, or none if nothing changes.
    pub fn apply(mut self) -> Bytes {
        if self.edits.is_empty() {
            return self.base;
        }
        // The sort is stable, so an addition at the end of a removed range stays behind it.
        self.edits.sort_by_key(|(range, _)| range.start);
        let inserted_bytes: usize = self.edits.iter().map(|(_, replacement)| replacement.len()).sum();
        let mut out = Vec::with_capacity(self.base.len() + inserted_bytes);
        let mut at = 0;
        for (range, replacement) in &self.edits {
            out.extend_from_slice(&self.base[at..range.start]);
            out.extend_from_slice(replacement);
            at = range.end;
        }
        out.extend_from_slice(&self.base[at..]);
        out.into()
    }

    /// Replaces a range of a part of the buffer that begins at `base_offset`.
    fn push(&mut self, base_offset: usize, range: Range<usize>, replacement: Bytes) {
        self.edits.push((range.start + base_offset..range.end + base_offset, replacement));
    }

    /// The position of `part` in the buffer. Panics if it is no slice of the buffer.
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

    fn object(text: &str) -> JsonObject {
        JsonObject::read(&Bytes::copy_from_slice(text.as_bytes())).expect("an object")
    }

    fn edited(text: &str, change: impl FnOnce(&mut ObjectEdit<'_>)) -> String {
        let object = object(text);
        let mut edit = ObjectEdit::new(&object);
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
    fn a_repeated_member_is_named_and_changed_everywhere() {
        let text = r#"{"a":1,"b":2,"\u0061":3}"#;
        assert_eq!(object(text).repeated_key().as_deref(), Some("a"));
        assert_eq!(
            edited(text, |e| {
                e.remove("a");
            }),
            r#"{"b":2}"#
        );
        assert_eq!(
            edited(text, |e| {
                e.set("a", "9").set("b", "7").set("b", "8");
            }),
            r#"{"a":9,"b":8,"\u0061":9}"#
        );
    }

    #[test]
    fn a_repeated_member_is_found_among_many() {
        let many = |last: &str| {
            let members: Vec<_> = (0..60_000).map(|n| format!("\"k{n}\":0")).collect();
            object(&format!("{{{},\"{last}\":1}}", members.join(",")))
        };
        assert_eq!(many("k59999").repeated_key().as_deref(), Some("k59999"));
        assert_eq!(many("other").repeated_key(), None);
    }

    #[test]
    fn nested_objects_are_patched_in_one_pass() {
        let base = Bytes::from_static(br#"{"id":1,"params":{"x":1e400,"_meta":{"k":1,"z":2}}}"#);
        let outer = JsonObject::read(&base).expect("an object");
        let params = JsonObject::read(&outer.get("params").expect("params")).expect("an object");
        let meta = JsonObject::read(&params.get("_meta").expect("meta")).expect("an object");
        let mut patch = BytesPatch::new(base);
        let mut edit = ObjectEdit::new(&meta);
        edit.remove("k").set("t", "7");
        edit.add_to(&mut patch);
        let mut edit = ObjectEdit::new(&outer);
        edit.set("id", "42");
        edit.add_to(&mut patch);
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
        assert_eq!(read.repeated_key(), None);
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
            assert_eq!(JsonObject::read(&Bytes::from(text)).err(), Some(NotAnObject), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_at_all_are_read_without_harm(bytes in prop::collection::vec(prop::sample::select(&b"{}[]\":,\\u01 \n-.eat"[..]), 0..32)) {
            if let Ok(object) = JsonObject::read(&Bytes::from(bytes)) {
                drop(object.repeated_key());
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
