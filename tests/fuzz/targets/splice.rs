//! Members of an object, changed in place: what is not named keeps its bytes, and a change can be taken back.

use bytes::Bytes;
use deferral::internals::protocol::splice::{BytesPatch, JsonObject, ObjectEdit};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

const NEW: &[u8] = b"{\"new\":[]}";

/// `json` is the object, or something that is none.
pub fn target(json: &[u8]) {
    let bytes = Bytes::copy_from_slice(json);
    let read = JsonObject::read(&bytes);
    let Ok(Members(members)) = serde_json::from_slice::<Members>(json) else {
        // Of what is no JSON some members may be found; that is all there is to it.
        if let Ok(object) = read {
            drop(object.repeated_key());
            assert!(object.members().all(|(_, value)| is_within(&value, &bytes)));
        }
        return;
    };
    let object = read.expect("serde_json reads an object");
    let found: Vec<_> = object
        .members()
        .map(|(key, value)| {
            assert!(is_within(&value, &bytes), "a copy");
            (key.into_owned(), String::from_utf8(value.to_vec()).expect("JSON is UTF-8"))
        })
        .collect();
    assert_eq!(found, members);
    let mut keys: Vec<&str> = members.iter().map(|(key, _)| key.as_str()).collect();
    keys.sort_unstable();
    let is_repeated = keys.windows(2).any(|pair| pair[0] == pair[1]);
    assert_eq!(object.repeated_key().is_some(), is_repeated);
    keys.dedup();

    for key in &keys {
        let last = members.iter().rev().find(|(name, _)| name == key).expect("one of them");
        assert_eq!(object.get(key).as_deref(), Some(last.1.as_bytes()));
        replaced(&object, key, &members);
        removed(&object, &[key], &members);
        nested(&object, key);
    }
    let some: Vec<&str> = keys.iter().copied().step_by(2).collect();
    removed(&object, &some, &members);
    removed(&object, &keys, &members);
    added(&object, &keys);
    assert_eq!(ObjectEdit::new(&object).apply(), bytes);
}

fn read(bytes: &Bytes) -> Vec<(String, String)> {
    serde_json::from_slice::<Members>(bytes).unwrap_or_else(|error| panic!("{bytes:?}: {error}")).0
}

fn set(object: &JsonObject, key: &str, value: impl Into<Bytes>) -> Bytes {
    let mut edit = ObjectEdit::new(object);
    edit.set(key, value);
    edit.apply()
}

fn replaced(object: &JsonObject, key: &str, members: &[(String, String)]) {
    let once = set(object, key, NEW);
    let wanted: Vec<_> = members
        .iter()
        .map(|(name, value)| match name == key {
            true => (name.clone(), String::from_utf8(NEW.to_vec()).expect("UTF-8")),
            false => (name.clone(), value.clone()),
        })
        .collect();
    assert_eq!(read(&once), wanted);
    let again = JsonObject::read(&once).expect("an object");
    assert_eq!(set(&again, key, NEW), once, "twice is once");
    // Of one that is there twice, both got the same value.
    if members.iter().filter(|(name, _)| name == key).count() == 1 {
        assert_eq!(set(&again, key, object.get(key).expect("it is there")), *object.as_bytes());
    }
}

fn removed(object: &JsonObject, keys: &[&str], members: &[(String, String)]) {
    let remove = |object: &JsonObject| {
        let mut edit = ObjectEdit::new(object);
        for key in keys {
            edit.remove(key);
        }
        (edit.leaves_empty(), edit.apply())
    };
    let (leaves_nothing, once) = remove(object);
    let wanted: Vec<_> = members.iter().filter(|(name, _)| !keys.contains(&name.as_str())).cloned().collect();
    assert_eq!(read(&once), wanted);
    assert_eq!(leaves_nothing, wanted.is_empty());
    assert_eq!(remove(&JsonObject::read(&once).expect("an object")).1, once, "twice is once");
}

fn added(object: &JsonObject, keys: &[&str]) {
    let key =
        (0..).map(|n| format!("new {n}")).find(|key| !keys.contains(&key.as_str())).expect("one is free");
    let once = set(object, &key, NEW);
    let mut edit = ObjectEdit::new(object);
    edit.set_if_absent(&key, NEW);
    assert_eq!(edit.apply(), once);
    let more = JsonObject::read(&once).expect("an object");
    assert_eq!(more.get(&key).as_deref(), Some(NEW));
    let mut edit = ObjectEdit::new(&more);
    edit.remove(&key);
    assert_eq!(edit.apply(), *object.as_bytes(), "taken back");
}

/// A change within a member, by way of the whole.
fn nested(object: &JsonObject, key: &str) {
    let Ok(inner) = JsonObject::read(&object.get(key).expect("it is there")) else { return };
    let mut patch = BytesPatch::new(object.as_bytes().clone());
    let mut edit = ObjectEdit::new(&inner);
    edit.set("new", NEW);
    let alone = {
        let mut edit = ObjectEdit::new(&inner);
        edit.set("new", NEW);
        edit.apply()
    };
    edit.add_to(&mut patch);
    let whole = patch.apply();
    let whole = JsonObject::read(&whole).expect("an object");
    assert_eq!(whole.get(key), Some(alone));
}

fn is_within(part: &Bytes, whole: &Bytes) -> bool {
    part.is_empty() || whole.as_ptr_range().contains(&part.as_ptr())
}

/// The members of an object as serde_json finds them, repeated ones included.
struct Members(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    members.push((key, value.get().to_owned()));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Each)
    }
}
