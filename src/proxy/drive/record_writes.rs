//! The queue of changes of a task record, which are stored one after the other.

use crate::{
    bridge::exchange::InputNumber,
    runtime::or_pending,
    store::{StoreError, UpdateOutcome},
};
use futures_util::future::BoxFuture;
use std::collections::VecDeque;

/// Queued changes of a task record; the first is being stored. The server is not read while there are
/// [`MAX_OPEN`], so that a server that sends and cancels requests in a loop cannot fill the queue.
///
/// [`MAX_OPEN`]: super::open_requests::MAX_OPEN
#[derive(Default)]
pub(super) struct RecordWrites(VecDeque<(WriteFollowUp, BoxFuture<'static, WriteResult>)>);

/// The outcome of a queued change. A change outside the record, such as of the anchor, has the outcome
/// [`UpdateOutcome::Unknown`].
pub(super) type WriteResult = Result<UpdateOutcome, StoreError>;

/// What follows once a change is stored, or has failed.
pub(super) enum WriteFollowUp {
    Nothing,
    /// The record contains an input request: send it to the client.
    InputRequested {
        input: InputNumber,
        key: String,
    },
    /// An input request that the server cancelled is removed from the record.
    Withdrawn {
        key: String,
    },
    /// An expired input request is removed from the record: decline it at the server.
    TimedOut {
        input: InputNumber,
        key: String,
    },
    /// An input request that no waiting client can receive is removed from the record: refuse it at the
    /// server.
    Undeclared {
        input: InputNumber,
    },
    /// A progress message is stored; if that failed, it is stored later.
    Progress {
        message: String,
    },
    /// Responses that the server has received are removed from the record.
    Delivered {
        keys: Vec<String>,
    },
    /// The anchor is written. `has_event` is whether the call can be resumed from it.
    Anchor {
        has_event: bool,
    },
}

// === impl RecordWrites ===

impl RecordWrites {
    /// Whether no change is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of queued changes, including the one that is being stored.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Queues a change, and what follows from it.
    pub(super) fn push(&mut self, follow_up: WriteFollowUp, write: BoxFuture<'static, WriteResult>) {
        self.0.push_back((follow_up, write));
    }

    /// Whether a write of progress is queued.
    pub(super) fn has_progress(&self) -> bool {
        self.any_write(|follow_up| matches!(follow_up, WriteFollowUp::Progress { .. }))
    }

    /// Whether a write of the anchor is queued.
    pub(super) fn has_anchor(&self) -> bool {
        self.any_write(|follow_up| matches!(follow_up, WriteFollowUp::Anchor { .. }))
    }

    /// Whether a write of an input request is queued.
    pub(super) fn has_input_request(&self) -> bool {
        self.any_write(|follow_up| matches!(follow_up, WriteFollowUp::InputRequested { .. }))
    }

    /// Whether a write of delivered responses is queued.
    pub(super) fn has_delivered(&self) -> bool {
        self.any_write(|follow_up| matches!(follow_up, WriteFollowUp::Delivered { .. }))
    }

    fn any_write(&self, is_match: impl Fn(&WriteFollowUp) -> bool) -> bool {
        self.0.iter().any(|(follow_up, _)| is_match(follow_up))
    }

    /// Waits until the first change is stored or has failed, and removes it. Returns what follows, and the
    /// outcome. Never resolves if the queue is empty. Cancel safe.
    pub(super) async fn next(&mut self) -> (WriteFollowUp, WriteResult) {
        let result = or_pending(self.0.front_mut().map(|(_, write)| write)).await;
        let (follow_up, _) = self.0.pop_front().expect("its first change was awaited");
        if self.0.is_empty() {
            // An empty queue would keep its capacity for as long as the task runs.
            self.0 = VecDeque::new();
        }
        (follow_up, result)
    }
}
