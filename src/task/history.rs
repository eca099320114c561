//! How a task came to be, and what has become of it since: for operators, who ask why.
//!
//! It is kept with the task, so it is there after a restart. Nothing is decided by it.

use crate::protocol::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a call became a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCause {
    pub by: TaskTrigger,
    /// The mode that held for its tool, as the configuration spells it.
    pub mode: String,
    /// The threshold that held for its tool; of a ticket the time after which its client was answered with one.
    #[serde(rename = "after_ms", with = "millis")]
    pub after: Duration,
    /// The pattern of the tool's rule that set what counted of them; `Missing` where no rule did: a setting of the route, or
    /// of who holds the ticket.
    #[serde(default)]
    pub rule: Option<String>,
    /// The rollout that let its caller in, as in `25% by principal`; `Missing` where it holds for everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<String>,
}

/// What made a task of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskTrigger {
    /// It had run for as long as the threshold.
    Threshold,
    /// Its mode is `always`.
    Mode,
    /// Its client asked for a task (2025-11-25, `params.task`).
    Request,
    /// It had run for as long as its client may wait without a ticket.
    Ticket,
    /// Its client left, and is owed what comes of it.
    Departure,
    /// The proxy was told to stop, and the next one can go on with it.
    Stop,
}

/// What has become of a task, the oldest first. Changes of one kind that follow each other are one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskHistory(Vec<HistoryEntry>);

/// Changes of one kind, with nothing between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub what: HistoryKind,
    /// The first of them.
    pub at: Timestamp,
    /// The last, and how many there were, where there was more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Repeats>,
}

/// More of the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeats {
    pub until: Timestamp,
    /// With the first.
    pub times: u32,
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryKind {
    /// The server said how far it is.
    Progressed,
    /// The server asked something.
    Asked,
    /// The server took a question back, or nobody waits for its answer any more.
    Withdrawn,
    /// The client answered.
    Answered,
    /// The tool gave its result.
    Completed,
    /// The tool gave a result that says that it failed.
    ToolFailed,
    /// The call ended in an error.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// Entries that were left out here, as there were too many.
    Omitted,
}

/// Entries of one task. The first half and the last of them are kept; each takes some 80 bytes where it is written down.
pub const ENTRIES: usize = 32;

// === impl Life ===

impl TaskHistory {
    /// In order.
    pub fn entries(&self) -> &[HistoryEntry] {
        &self.0
    }

    /// The same, and this at `now`.
    #[must_use]
    pub fn with(&self, what: HistoryKind, now: Timestamp) -> Self {
        let mut moments = self.0.clone();
        match moments.last_mut() {
            Some(last) if last.what == what => last.extend(now, 1),
            _ => moments.push(HistoryEntry { what, at: now, again: None }),
        }
        if moments.len() > ENTRIES {
            // The entry in the middle stands for itself and the one behind it.
            let next = moments.remove(ENTRIES / 2 + 1);
            let middle = &mut moments[ENTRIES / 2];
            let Repeats { until, times } = next.repeats();
            middle.what = HistoryKind::Omitted;
            middle.extend(until, times);
        }
        Self(moments)
    }
}

// === impl Moment ===

impl HistoryEntry {
    fn extend(&mut self, until: Timestamp, more: u32) {
        let times = self.repeats().times.saturating_add(more);
        self.again = Some(Repeats { until, times });
    }

    /// The last of them, and how many there are.
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
        let mut life = TaskHistory::default();
        for millis in 1..=9 {
            life = life.with(HistoryKind::Progressed, at(millis));
        }
        life = life.with(HistoryKind::Completed, at(10));
        let again = Some(Repeats { until: at(9), times: 9 });
        let progressed = HistoryEntry { what: HistoryKind::Progressed, at: at(1), again };
        assert_eq!(
            life.entries(),
            [progressed, HistoryEntry { what: HistoryKind::Completed, at: at(10), again: None }]
        );
    }

    proptest! {
        #[test]
        fn however_much_happens_the_first_and_the_last_are_there_and_all_are_counted(
            kinds in prop::collection::vec(0..4_usize, 0..500),
        ) {
            let what = [HistoryKind::Progressed, HistoryKind::Asked, HistoryKind::Answered, HistoryKind::Withdrawn];
            let mut life = TaskHistory::default();
            for (now, kind) in kinds.iter().enumerate() {
                life = life.with(what[*kind], at(now as u64));
            }
            let moments = life.entries();
            prop_assert!(moments.len() <= ENTRIES, "{}", moments.len());
            let counted: u32 = moments.iter().map(|moment| moment.repeats().times).sum();
            prop_assert_eq!(counted as usize, kinds.len());
            prop_assert!(moments.is_sorted_by_key(|moment| moment.at));
            if let (Some(first), Some(last)) = (kinds.first(), kinds.last()) {
                prop_assert_eq!(moments[0].what, what[*first]);
                prop_assert_eq!(moments[moments.len() - 1].what, what[*last]);
            }
            prop_assert!(moments.iter().filter(|moment| moment.what == HistoryKind::Omitted).count() <= 1);
        }
    }
}
