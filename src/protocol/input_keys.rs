//! The keys of `inputRequests` (2026-07-28, *Multi Round-Trip Requests*).

use super::InputKind;
use std::collections::{BTreeSet, VecDeque};

/// Assigns a key to each input request of one call. Each execution of the call assigns the same keys in the
/// same order, because a client may send responses with the first request, before any input request.
///
/// The names that an operator configured come first, in their order, for any kind; then follow
/// `elicitation-1`, `sampling-1`, `roots-1`, `elicitation-2`, counted by kind. No key is assigned twice, even
/// after its response: a task's keys must be unique for its whole life (tasks extension, *Task Update
/// Requests*).
#[derive(Clone, Debug, Default)]
pub struct InputKeys {
    /// Configured names that are not assigned yet.
    unused: VecDeque<String>,
    /// All configured names and used keys, which are not generated again.
    reserved: BTreeSet<String>,
    /// The counters of generated keys: elicitation, sampling, roots, URLs.
    counts: [u32; 4],
}

// === impl InputKeys ===

impl InputKeys {
    /// Creates the keys of a call with these configured names. A repeated name counts once.
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let mut keys = Self::default();
        for name in names.into_iter().map(Into::into) {
            if keys.reserved.insert(name.clone()) {
                keys.unused.push_back(name);
            }
        }
        keys
    }

    /// Marks a key as assigned to an earlier input request of the same call.
    pub fn mark_used(&mut self, key: &str) {
        self.unused.retain(|name| name != key);
        self.reserved.insert(key.to_owned());
    }

    /// Assigns the key of the next input request.
    pub fn next_key(&mut self, kind: InputKind) -> String {
        let slot = match kind {
            InputKind::Elicitation => 0,
            InputKind::Sampling => 1,
            InputKind::Roots => 2,
        };
        self.unused.pop_front().unwrap_or_else(|| self.next_numbered(slot, kind.as_str()))
    }

    /// Assigns the key (`url-1` and so on) of the next URL that must be visited before the call is sent
    /// again. Never a configured name and never a key of [`InputKeys::next_key`]: the response is sent with
    /// the new call, and must not match that call's own first input request.
    pub fn next_url_key(&mut self) -> String {
        self.next_numbered(3, "url")
    }

    /// The next unused key `PREFIX-NUMBER`; `slot` selects the counter.
    fn next_numbered(&mut self, slot: usize, prefix: &str) -> String {
        loop {
            self.counts[slot] += 1;
            let key = format!("{prefix}-{}", self.counts[slot]);
            if !self.reserved.contains(&key) {
                return key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [InputKind; 3] = InputKind::ALL;

    #[test]
    fn chosen_names_come_first_and_then_each_kind_is_counted() {
        let [ask, sample, roots] = KINDS;
        let mut keys = InputKeys::new(["user_name", "elicitation-1", "user_name"]);
        let given: Vec<_> = [sample, ask, ask, sample, roots, ask, sample]
            .into_iter()
            .map(|kind| keys.next_key(kind))
            .collect();
        assert_eq!(
            given,
            [
                "user_name",
                "elicitation-1",
                "elicitation-2",
                "sampling-1",
                "roots-1",
                "elicitation-3",
                "sampling-2"
            ]
        );
    }

    proptest! {
        #[test]
        fn no_key_is_given_twice_and_the_same_call_gets_the_same(
            names in prop::collection::vec("(elicitation|sampling|roots|url)-[1-4]|[a-c]", 0..6),
            // The last slot counts URLs.
            asked in prop::collection::vec(0usize..4, 0..16),
        ) {
            let run = || {
                let mut keys = InputKeys::new(names.clone());
                asked.iter().map(|&at| match KINDS.get(at) {
                    Some(kind) => keys.next_key(*kind),
                    None => keys.next_url_key(),
                }).collect::<Vec<_>>()
            };
            let given = run();
            prop_assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len(), "{:?}", given);
            prop_assert_eq!(run(), given);
        }
    }
}
