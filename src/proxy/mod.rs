//! Carries out what [`bridge`](crate::bridge) decides: joins calls to servers, stores and clocks.
//!
//! An [`Endpoint`] is one route at work. Its [`Service::call`] gives a stream of [`Item`]s that is
//! polled in place by whoever writes them to the client, so that a fast call costs no spawn and no
//! store access (`attended`). When a call becomes a task, or its server asks something, the very
//! same upstream stream moves to a runtime task of its own (`held`), and [`Tasks`] answers for it
//! from the store.

mod asking;
mod attended;
mod catalogues;
mod endpoint;
mod held;
mod hub;
mod limits;
mod listen;
mod reply;
mod sweep;
mod tasks;

pub use endpoint::Endpoint;
pub use tasks::Tasks;

use crate::{
    dialect::{Call, Caller, Credentials},
    policy::Route,
    task::TaskId,
    telemetry::Outcome,
    upstream::{Document, Lost},
};
use bytes::Bytes;
use futures_util::{future::BoxFuture, stream::BoxStream};
use http::{HeaderMap, StatusCode};
use std::{sync::Arc, time::Duration};
use tokio::sync::oneshot;

/// What goes back to a client for one call, in order; [`Item::Reply`] is the last. Dropping the
/// stream before that means the client has left.
pub type Items = BoxStream<'static, Item>;

/// One message for the client.
#[derive(Debug)]
pub enum Item {
    /// A notification: a whole JSON-RPC message on one line.
    Notice(Bytes),
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
    pub account: Account,
}

/// What the access line says of a call.
#[derive(Clone, Debug, Default)]
pub struct Account {
    pub outcome: Outcome,
    pub task: Option<TaskId>,
    /// The status of the task that was shown.
    pub shown: Option<&'static str>,
    /// Time spent waiting for the server.
    pub upstream: Duration,
}

/// A task handle on its way to the client. The task lives from the moment this is confirmed;
/// dropped without that, the client has left before it had the handle, and the call is cancelled.
#[derive(Debug)]
pub struct Commit(pub oneshot::Sender<()>);

/// One route at work: what the front hands its calls to.
pub trait Service: Send + Sync + 'static {
    fn route(&self) -> &Arc<Route>;

    /// Serves one call. Everything happens as the stream is polled.
    fn call(&self, call: Call, caller: Caller) -> Items;

    /// Fetches protected-resource metadata of the server behind this route, as it is.
    fn metadata<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<Document, Lost>>;
}

// === impl Commit ===

impl Commit {
    /// The handle has reached the client's socket.
    pub fn confirm(self) {
        // The other side is gone only where the task has ended already.
        let _ = self.0.send(());
    }
}
