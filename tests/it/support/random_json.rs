//! JSON as text: made at random with odd spelling and spacing, and taken apart without changing it.

use proptest::prelude::*;
use serde::{
    Deserializer as _,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::fmt;

/// A member of an object: its key, and its value as it is spelled.
pub(crate) type Member = (String, String);

/// The members of an object in order, values byte for byte.
pub(crate) fn members(text: &str) -> Vec<Member> {
    struct Members;
    impl<'de> Visitor<'de> for Members {
        type Value = Vec<Member>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                members.push((key, value.get().to_owned()));
            }
            Ok(members)
        }
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let members = json.deserialize_map(Members).unwrap_or_else(|error| panic!("{error}: {text}"));
    json.end().unwrap_or_else(|error| panic!("{error}: {text}"));
    members
}

/// The value of a member, which must be there once.
pub(crate) fn member(text: &str, key: &str) -> Option<String> {
    let mut found = members(text).into_iter().filter(|(k, _)| k == key);
    let value = found.next().map(|(_, value)| value);
    assert!(found.next().is_none(), "{key} occurs twice in {text}");
    value
}

/// Spaces that may stand between tokens. No line breaks: those are an edit of their own.
fn spacing() -> impl Strategy<Value = String> {
    "[ \t]{0,2}"
}

/// An unknown key.
pub(crate) fn unknown_key() -> impl Strategy<Value = String> {
    "x-[a-z]{1,6}"
}

/// Any JSON value, spelled in every odd way.
pub(crate) fn value() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        prop::sample::select(vec![
            "0",
            "-0.0",
            "1e400",
            "1E+2",
            "1.10",
            "12345678901234567890123",
            "9007199254740993",
            "-1e-7",
        ])
        .prop_map(str::to_owned),
        prop::sample::select(vec![
            r#""""#,
            r#""\u0041\n""#,
            r#""\ud83d\ude00 é 世""#,
            r#""a \" , : { } [ ] \\""#,
            r#""io.modelcontextprotocol/protocolVersion""#,
        ])
        .prop_map(str::to_owned),
    ];
    scalar.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..4), spacing())
                .prop_map(|(items, pad)| { format!("[{pad}{}{pad}]", items.join(&format!("{pad},{pad}"))) }),
            prop::collection::vec((unknown_key(), inner), 0..4)
                .prop_flat_map(|members| spacing().prop_map(move |pad| object(&members, &pad))),
        ]
    })
}

/// Unknown members, no key twice.
pub(crate) fn unknown_members() -> impl Strategy<Value = Vec<Member>> {
    prop::collection::vec((unknown_key(), value()), 0..4).prop_map(|mut members| {
        let mut seen = std::collections::HashSet::new();
        members.retain(|(key, _)| seen.insert(key.clone()));
        members
    })
}

/// An object with these members and this spacing.
pub(crate) fn object(members: &[Member], pad: &str) -> String {
    let members: Vec<_> =
        members.iter().map(|(key, value)| format!("{pad}\"{key}\"{pad}:{pad}{value}{pad}")).collect();
    format!("{{{pad}{}}}", members.join(","))
}

/// Known members among unknown ones, in some order, with some spacing.
pub(crate) fn mixed(known: Vec<Member>) -> impl Strategy<Value = String> {
    (unknown_members(), spacing())
        .prop_flat_map(move |(unknown, pad)| {
            let all: Vec<_> = known.iter().cloned().chain(unknown).collect();
            (Just(all).prop_shuffle(), Just(pad))
        })
        .prop_map(|(members, pad)| object(&members, &pad))
}
