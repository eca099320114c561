//! The messages that a client receives for one call.

use crate::proxy::AccessSummary;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{HeaderMap, StatusCode};
use std::{fmt, future::Future};
use tokio::sync::oneshot;

/// The messages for one call, in order; [`ReplyItem::Reply`] is the last. The client has disconnected if the
/// stream is dropped before it.
pub type ReplyStream = BoxStream<'static, ReplyItem>;

/// A source of the messages for one call.
pub(in crate::proxy) trait ReplySource: Send + 'static {
    /// The next message. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Option<ReplyItem>> + Send;
}

/// One message of a call for its client.
#[derive(Debug)]
pub enum ReplyItem {
    /// A notification: a complete JSON-RPC message on one line.
    Notification(Bytes),
    /// A notification that a task has ended. The commit is confirmed once the bytes are written to the
    /// client's socket.
    TaskEnd(Bytes, DeliveryCommit),
    /// The response to the request; the last message.
    Reply(CallReply),
}

/// The response to one call.
#[derive(Debug)]
pub struct CallReply {
    /// The HTTP status. It applies only if nothing has been sent yet: the status of an event stream that has
    /// begun is 200.
    pub status: StatusCode,
    /// Additional response headers (`WWW-Authenticate`, `Retry-After`), under the same condition.
    pub headers: HeaderMap,
    /// A complete JSON-RPC message on one line.
    pub body: Bytes,
    /// For a task handle or the end of a task: confirmed once the body is written to the client's socket.
    pub commit: Option<DeliveryCommit>,
    /// The summary for the access log.
    pub summary: AccessSummary,
}

/// Confirms delivery of a task handle, or of the end of a task. A commit that is dropped without confirmation
/// means that the client disconnected before delivery: a call whose handle was not delivered is cancelled,
/// and a result stays unfetched.
pub struct DeliveryCommit(Box<dyn FnOnce() + Send + Sync>);

// === impl DeliveryCommit ===

impl DeliveryCommit {
    /// Creates a commit that runs `on_confirm` when delivery is on_confirm.
    pub fn new(on_confirm: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Box::new(on_confirm))
    }

    /// Creates a commit and a receiver that resolves on confirmation, or with an error if the commit is
    /// dropped without one.
    pub fn channel() -> (Self, oneshot::Receiver<()>) {
        let (confirm, confirmed) = oneshot::channel();
        // The receiver is gone only if the task has already ended.
        let confirm = Self::new(move || {
            let _ = confirm.send(());
        });
        (confirm, confirmed)
    }

    /// Confirms delivery; called when the last byte has been written to the client's socket.
    pub fn confirm(self) {
        (self.0)();
    }
}

impl fmt::Debug for DeliveryCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Commit")
    }
}
