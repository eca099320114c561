//! What goes back to a client for one call.

use super::AccessSummary;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{HeaderMap, StatusCode};
use std::future::Future;
use tokio::sync::oneshot;

/// What goes back to a client for one call, in order; [`Item::Reply`] is the last. Dropping the
/// stream before that means the client has left.
pub type Items = BoxStream<'static, Item>;

/// What a client is told, one message after another.
pub(super) trait Conversation: Send + 'static {
    /// The next message. Dropping the future in between loses nothing but the wait.
    fn next(&mut self) -> impl Future<Output = Option<Item>> + Send;
}

/// One message for the client.
#[derive(Debug)]
pub enum Item {
    /// A notification: a whole JSON-RPC message on one line.
    Notification(Bytes),
    /// The response.
    Reply(Reply),
}

/// The response to one call.
#[derive(Debug)]
pub struct Reply {
    /// For a client that has not been sent anything yet; a stream that has begun is 200 for good.
    pub status: StatusCode,
    /// Further headers, under the same condition (`WWW-Authenticate`).
    pub headers: HeaderMap,
    /// A whole JSON-RPC message on one line.
    pub body: Bytes,
    /// To be confirmed once the client's socket has taken the body.
    pub commit: Option<Commit>,
    pub account: AccessSummary,
}

/// A task handle on its way to the client. The task lives from the moment this is confirmed;
/// dropped without that, the client has left before it had the handle, and the call is cancelled.
#[derive(Debug)]
pub struct Commit(pub oneshot::Sender<()>);

// === impl Commit ===

impl Commit {
    /// The handle has reached the client's socket.
    pub fn confirm(self) {
        // The other side is gone only where the task has ended already.
        let _ = self.0.send(());
    }
}
