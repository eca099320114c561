//! The queue of changes of a task record.

use crate::{
    bridge::exchange::InputNumber,
    runtime::or_pending,
    store::{StoreError, UpdateOutcome},
};
use futures_util::future::BoxFuture;
use std::collections::VecDeque;

/// Queued changes, the first of them being stored. The server is not read while there are [`MAX_OPEN`], so
/// that a server that sends and cancels requests in a loop cannot fill it.
///
/// [`MAX_OPEN`]: super::open_requests::MAX_OPEN
#[derive(Default)]
pub(super) struct RecordWrites(VecDeque<(WriteFollowUp, BoxFuture<'static, WriteResult>)>);

/// The outcome of a change. [`UpdateOutcome::Unknown`] also stands for a change outside the record.
pub(super) type WriteResult = Result<UpdateOutcome, StoreError>;

/// What follows once a change is stored, or has failed.
pub(super) enum WriteFollowUp {
    Nothing,
    /// An input request is in the record: send it.
    InputRequested {
        ask: InputNumber,
        key: String,
    },
    /// An input request that the server cancelled is removed from the record.
    Withdrawn {
        key: String,
    },
    /// An expired input request is removed from the record: decline it.
    TimedOut {
        ask: InputNumber,
        key: String,
    },
    /// An input request that nobody who waits can be asked is no longer in it: it is refused.
    Undeclared {
        ask: InputNumber,
    },
    Progress {
        message: String,
    },
    /// The server has the responses under these keys.
    Delivered {
        keys: Vec<String>,
    },
    /// The anchor is written; the call can be resumed from it if `has_event`.
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

    /// Whether a write of progress is queued.
    pub(super) fn has_progress(&self) -> bool {
        self.any_write(|after| matches!(after, WriteFollowUp::Progress { .. }))
    }

    /// Whether a write of the anchor is queued.
    pub(super) fn has_anchor(&self) -> bool {
        self.any_write(|after| matches!(after, WriteFollowUp::Anchor { .. }))
    }

    /// Whether a write of an input request is queued.
    pub(super) fn has_input_request(&self) -> bool {
        self.any_write(|after| matches!(after, WriteFollowUp::InputRequested { .. }))
    }

    /// Whether a write of delivered responses is queued.
    pub(super) fn has_delivered(&self) -> bool {
        self.any_write(|after| matches!(after, WriteFollowUp::Delivered { .. }))
    }

    fn any_write(&self, is_one: impl Fn(&WriteFollowUp) -> bool) -> bool {
        self.0.iter().any(|(after, _)| is_one(after))
    }

    /// Resolves with the next change that is stored or has failed. Cancel safe.
    pub(super) async fn next(&mut self) -> (WriteFollowUp, WriteResult) {
        let result = or_pending(self.0.front_mut().map(|(_, write)| write)).await;
        let (after, _) = self.0.pop_front().expect("its first change was awaited");
        if self.0.is_empty() {
            // An empty queue would keep its capacity for as long as the task runs.
            self.0 = VecDeque::new();
        }
        (after, result)
    }
}
