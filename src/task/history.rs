//! The cause and the history of a task, for operators.
//!
//! Both are stored with the task, so they are available after a restart. No decision depends on them.

use crate::protocol::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a call became a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCause {
    /// The trigger of the task.
    pub by: TaskTrigger,
    /// The mode of the tool, as written in the configuration.
    pub mode: String,
    /// The threshold of the tool; for a ticket, the time after which the client got the ticket.
    #[serde(rename = "after_ms", with = "millis")]
    pub after: Duration,
    /// The pattern of the tool's rule that set the mode or the time; `None` if no rule did: a setting of the
    /// route, or of a ticket holder.
    #[serde(default)]
    pub rule: Option<String>,
    /// The rollout that included the caller, as in `25% by principal`; `None` without a rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<String>,
}

/// The event or setting that made a call a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskTrigger {
    /// The call had run as long as the threshold.
    Threshold,
    /// The mode of the tool is `always`.
    Mode,
    /// The client requested a task (2025-11-25, `params.task`).
    Request,
    /// The call had run for the ticket time, after which its client gets a ticket.
    Ticket,
    /// The client disconnected, and is owed the result.
    Departure,
    /// The proxy is shutting down, and the next process can resume the task.
    Stop,
}

/// The history of a task, the oldest entry first. Consecutive changes of one kind are merged into one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskHistory(Vec<HistoryEntry>);

/// An entry of the history: one change, or consecutive changes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The kind of the change.
    pub what: HistoryKind,
    /// The time of the first change.
    pub at: Timestamp,
    /// The repetitions of the change; `None` if there was a single change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Repeats>,
}

/// The repetitions of a change in one history entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeats {
    /// The time of the last change.
    pub until: Timestamp,
    /// The number of changes, including the first.
    pub times: u32,
}

/// The kind of a change to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryKind {
    /// The server reported progress.
    Progressed,
    /// The server sent an input request.
    Asked,
    /// The server withdrew an input request, or no client can answer it any more.
    Withdrawn,
    /// The client sent an input response.
    Answered,
    /// The tool returned its result.
    Completed,
    /// The tool returned a result with `isError: true`.
    ToolFailed,
    /// The call ended in an error.
    Failed,
    /// The task was cancelled.
    Cancelled,
    /// Several entries that were merged into this one, because the history was too long.
    Omitted,
}

/// The maximum number of history entries of one task. The first half and the last half are kept, and those
/// between are merged. A stored entry takes about 80 bytes.
pub const MAX_ENTRIES: usize = 32;

// === impl TaskHistory ===

impl TaskHistory {
    /// Returns the entries, the oldest first.
    pub fn entries(&self) -> &[HistoryEntry] {
        &self.0
    }

    /// Returns the history with one more change at `now`, merged with the last entry if both are of one kind.
    #[must_use]
    pub fn with_change(&self, kind: HistoryKind, now: Timestamp) -> Self {
        let mut entries = self.0.clone();
        match entries.last_mut() {
            Some(last) if last.what == kind => last.extend(now, 1),
            _ => entries.push(HistoryEntry { what: kind, at: now, again: None }),
        }
        if entries.len() > MAX_ENTRIES {
            // The middle entry and the next one are merged.
            let next = entries.remove(MAX_ENTRIES / 2 + 1);
            let middle = &mut entries[MAX_ENTRIES / 2];
            let Repeats { until, times } = next.repeats();
            middle.what = HistoryKind::Omitted;
            middle.extend(until, times);
        }
        Self(entries)
    }
}

// === impl HistoryEntry ===

impl HistoryEntry {
    /// Adds `count` changes, the last at `until`.
    fn extend(&mut self, until: Timestamp, count: u32) {
        let times = self.repeats().times.saturating_add(count);
        self.again = Some(Repeats { until, times });
    }

    /// Returns the time of the last change and the number of changes; a single change counts as one.
    pub fn repeats(&self) -> Repeats {
        self.again.unwrap_or(Repeats { until: self.at, times: 1 })
    }
}

mod millis {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn what_repeats_is_one_entry_with_its_first_and_its_last() {
        let mut history = TaskHistory::default();
        for millis in 1..=9 {
            history = history.with_change(HistoryKind::Progressed, at(millis));
        }
        history = history.with_change(HistoryKind::Completed, at(10));
        let again = Some(Repeats { until: at(9), times: 9 });
        let progressed = HistoryEntry { what: HistoryKind::Progressed, at: at(1), again };
        assert_eq!(
            history.entries(),
            [progressed, HistoryEntry { what: HistoryKind::Completed, at: at(10), again: None }]
        );
    }

    proptest! {
        #[test]
        fn a_long_history_keeps_the_first_and_the_last_entries_and_counts_all(
            kinds in prop::collection::vec(0..4_usize, 0..500),
        ) {
            let what = [HistoryKind::Progressed, HistoryKind::Asked, HistoryKind::Answered, HistoryKind::Withdrawn];
            let mut history = TaskHistory::default();
            for (now, kind) in kinds.iter().enumerate() {
                history = history.with_change(what[*kind], at(now as u64));
            }
            let entries = history.entries();
            prop_assert!(entries.len() <= MAX_ENTRIES, "{}", entries.len());
            let counted: u32 = entries.iter().map(|moment| moment.repeats().times).sum();
            prop_assert_eq!(counted as usize, kinds.len());
            prop_assert!(entries.is_sorted_by_key(|moment| moment.at));
            if let (Some(first), Some(last)) = (kinds.first(), kinds.last()) {
                prop_assert_eq!(entries[0].what, what[*first]);
                prop_assert_eq!(entries[entries.len() - 1].what, what[*last]);
            }
            prop_assert!(entries.iter().filter(|moment| moment.what == HistoryKind::Omitted).count() <= 1);
        }
    }
}
