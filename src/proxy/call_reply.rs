//! What goes back to a client for one call.

use super::AccessSummary;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{HeaderMap, StatusCode};
use std::{fmt, future::Future};
use tokio::sync::oneshot;

/// What goes back to a client for one call, in order; [`ReplyItem::Reply`] is the last. Dropping the
/// stream before that means the client has left.
pub type ReplyStream = BoxStream<'static, ReplyItem>;

/// What a client is told, one message after another.
pub(super) trait ReplySource: Send + 'static {
    /// The next message. Dropping the future in between loses nothing but the wait.
    fn next(&mut self) -> impl Future<Output = Option<ReplyItem>> + Send;
}

/// One message for the client.
#[derive(Debug)]
pub enum ReplyItem {
    /// A notification: a whole JSON-RPC message on one line.
    Notification(Bytes),
    /// The same with the end of a task, to be confirmed once the client's socket has taken it.
    TaskEnd(Bytes, DeliveryCommit),
    /// The response.
    Reply(CallReply),
}

/// The response to one call.
#[derive(Debug)]
pub struct CallReply {
    /// For a client that has not been sent anything yet; a stream that has begun is 200 for good.
    pub status: StatusCode,
    /// Further headers, under the same condition (`WWW-Authenticate`).
    pub headers: HeaderMap,
    /// A whole JSON-RPC message on one line.
    pub body: Bytes,
    /// To be confirmed once the client's socket has taken the body.
    pub commit: Option<DeliveryCommit>,
    pub account: AccessSummary,
}

/// A task handle, or the end of a task, on its way to the client. Dropped without being confirmed, the client has
/// disconnected before it had that: a call without a handle is cancelled, an end has not been fetched.
pub struct DeliveryCommit(Box<dyn FnOnce() + Send + Sync>);

// === impl Commit ===

impl DeliveryCommit {
    /// Runs `confirmed` once it is confirmed.
    pub fn new(confirmed: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Box::new(confirmed))
    }

    /// One that resolves a receiver: with an error where it is dropped.
    pub fn channel() -> (Self, oneshot::Receiver<()>) {
        let (confirm, confirmed) = oneshot::channel();
        // The receiver is gone only where the task has ended already.
        let confirm = Self::new(move || {
            let _ = confirm.send(());
        });
        (confirm, confirmed)
    }

    /// The last byte has reached the client's socket.
    pub fn confirm(self) {
        (self.0)();
    }
}

impl fmt::Debug for DeliveryCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Commit")
    }
}
