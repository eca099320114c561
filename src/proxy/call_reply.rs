//! The messages that a client receives for one call.

use super::AccessSummary;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{HeaderMap, StatusCode};
use std::{fmt, future::Future};
use tokio::sync::oneshot;

/// The messages for one call, in order; [`ReplyItem::Reply`] is the last. The client has disconnected if the
/// stream is dropped before it.
pub type ReplyStream = BoxStream<'static, ReplyItem>;

/// A source of the messages for one call.
pub(super) trait ReplySource: Send + 'static {
    /// The next message. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Option<ReplyItem>> + Send;
}

/// One message for the client.
#[derive(Debug)]
pub enum ReplyItem {
    /// A notification: a complete JSON-RPC message on one line.
    Notification(Bytes),
    /// A notification with the end of a task; the commit is confirmed once the client's socket has taken it.
    TaskEnd(Bytes, DeliveryCommit),
    /// The response.
    Reply(CallReply),
}

/// The response to one call.
#[derive(Debug)]
pub struct CallReply {
    /// Applies if nothing has been sent yet; a stream that has begun stays 200.
    pub status: StatusCode,
    /// Further headers, under the same condition (`WWW-Authenticate`).
    pub headers: HeaderMap,
    /// A complete JSON-RPC message on one line.
    pub body: Bytes,
    /// Confirmed once the client's socket has taken the body.
    pub commit: Option<DeliveryCommit>,
    pub account: AccessSummary,
}

/// Confirms delivery of a task handle, or of the end of a task. If it is dropped without confirmation, the
/// client has disconnected before delivery: a call without a handle is cancelled, and a result stays
/// unfetched.
pub struct DeliveryCommit(Box<dyn FnOnce() + Send + Sync>);

// === impl DeliveryCommit ===

impl DeliveryCommit {
    /// Runs `confirmed` on confirmation.
    pub fn new(confirmed: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Box::new(confirmed))
    }

    /// A commit that resolves the receiver on confirmation, or with an error if it is dropped.
    pub fn channel() -> (Self, oneshot::Receiver<()>) {
        let (confirm, confirmed) = oneshot::channel();
        // The receiver is gone only if the task has already ended.
        let confirm = Self::new(move || {
            let _ = confirm.send(());
        });
        (confirm, confirmed)
    }

    /// Called when the last byte has reached the client's socket.
    pub fn confirm(self) {
        (self.0)();
    }
}

impl fmt::Debug for DeliveryCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Commit")
    }
}
