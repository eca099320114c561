//! The queue of changes of a task's record.

use crate::{
    bridge::exchange::InputNumber,
    runtime::or_pending,
    store::{StoreError, UpdateOutcome},
};
use futures_util::future::BoxFuture;
use std::collections::VecDeque;

/// Changes that are queued, the first of them being stored. The server is not read while there are [`MAX_OPEN`], so
/// that one that asks and withdraws in a loop cannot fill it.
///
/// [`MAX_OPEN`]: super::open_requests::MAX_OPEN
#[derive(Default)]
pub(super) struct RecordWrites(VecDeque<(WriteFollowUp, BoxFuture<'static, WriteResult>)>);

/// What became of a change. [`UpdateOutcome::Unknown`] also stands for a change of something else than the record.
pub(super) type WriteResult = Result<UpdateOutcome, StoreError>;

/// What follows once a change is stored, or cannot be.
pub(super) enum WriteFollowUp {
    Nothing,
    /// An input request is in the record: it is sent.
    InputRequested {
        ask: InputNumber,
        key: String,
    },
    /// An input request that the server has withdrawn is no longer in it.
    Withdrawn {
        key: String,
    },
    /// An input request that nobody answered in time is no longer in it: it is declined.
    TimedOut {
        ask: InputNumber,
        key: String,
    },
    Progress {
        message: String,
    },
    /// The server has the answers under these keys.
    Delivered {
        keys: Vec<String>,
    },
    /// The anchor is written, from which the call can be resumed (`has_event`).
    Anchor {
        has_event: bool,
    },
}

// === impl RecordWrites ===

impl RecordWrites {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, after: WriteFollowUp, write: BoxFuture<'static, WriteResult>) {
        self.0.push_back((after, write));
    }

    /// Whether progress is being written, or will be.
    pub(super) fn has_progress(&self) -> bool {
        self.any_write(|after| matches!(after, WriteFollowUp::Progress { .. }))
    }

    /// Whether an anchor is being written, or will be.
    pub(super) fn has_anchor(&self) -> bool {
        self.any_write(|after| matches!(after, WriteFollowUp::Anchor { .. }))
    }

    /// Whether an input request is being written, or will be.
    pub(super) fn has_input_request(&self) -> bool {
        self.any_write(|after| matches!(after, WriteFollowUp::InputRequested { .. }))
    }

    /// Whether it is being written, or will be, that answers are delivered.
    pub(super) fn has_delivered(&self) -> bool {
        self.any_write(|after| matches!(after, WriteFollowUp::Delivered { .. }))
    }

    fn any_write(&self, is_one: impl Fn(&WriteFollowUp) -> bool) -> bool {
        self.0.iter().any(|(after, _)| is_one(after))
    }

    /// Resolves with the next change that is stored, or cannot be. Cancel safe.
    pub(super) async fn next(&mut self) -> (WriteFollowUp, WriteResult) {
        let result = or_pending(self.0.front_mut().map(|(_, write)| write)).await;
        let (after, _) = self.0.pop_front().expect("its first change was awaited");
        if self.0.is_empty() {
            // Room for the next ones would be kept for as long as a task takes.
            self.0 = VecDeque::new();
        }
        (after, result)
    }
}
