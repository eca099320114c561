//! `Via` entry of requests to a server (RFC 9110, 7.6.3).
//!
//! A proxy whose upstream leads back to itself would forward each request in a loop until no descriptor is
//! left. Each upstream therefore has a unique `Via` entry, and a request that carries it has passed here
//! before.

use http::{HeaderMap, HeaderValue, header::VIA};

use crate::runtime::random;

/// `Via` entry of requests to one server.
#[derive(Clone, Debug)]
pub(super) struct Via(pub(super) HeaderValue);

/// Prefix of each entry; the remainder is random, so that two proxies in a row are not taken for a loop.
const ENTRY_PREFIX: &str = "1.1 deferral-";

// === impl Via ===

impl Via {
    /// Creates a unique entry.
    pub(super) fn new() -> Self {
        let entry = format!("{ENTRY_PREFIX}{:016x}", u64::from_be_bytes(random()));
        Self(HeaderValue::try_from(entry).expect("visible ASCII is a header value"))
    }

    /// Whether a request with these headers has passed this upstream before.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        let own_entry = self.0.as_bytes();
        let lines = headers.get_all(VIA).iter();
        // A comment may follow each entry.
        lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b',')).any(|entry| {
            let suffix = entry.trim_ascii_start().strip_prefix(own_entry);
            suffix.is_some_and(|suffix| {
                suffix.is_empty() || suffix.starts_with(b" ") || suffix.starts_with(b"\t")
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_entry_is_found_in_via() {
        let (ours, other) = (Via::new(), Via::new());
        let (us, them) = (ours.0.to_str().expect("text"), other.0.to_str().expect("text"));
        for (lines, found) in [
            (vec![], false),
            (vec![us.to_owned()], true),
            (vec![them.to_owned()], false),
            (vec![format!("1.0 fred, {them} (x),{us} (deferral)"), "2 gateway".to_owned()], true),
            (vec![them.to_owned(), us.to_owned()], true),
            (vec![format!("{us}0"), format!("0{us}")], false),
        ] {
            let mut passed = HeaderMap::new();
            for line in &lines {
                passed.append(VIA, HeaderValue::try_from(line).expect("a value"));
            }
            assert_eq!(ours.is_in(&passed), found, "{lines:?}");
        }
    }
}
