//! Carries out what [`bridge`](crate::bridge) decides: joins calls to servers, stores and clocks.
//!
//! An [`Endpoint`] is one route at work. Its [`Service::call`] gives a stream of [`Item`]s that is
//! polled in place by whoever writes them to the client, so that a fast call costs no spawn and no
//! store access (`drive`). When a call becomes a task, or its server asks something, the very
//! same driver moves to a runtime task of its own, and `answers` speaks for it
//! from the store.
//!
//! A legacy client in front of a legacy server needs none of this: its requests are passed on
//! ([`Service::pass`], `relay`), but for what concerns the tasks of 2025-11-25 (`legacy`). What is known of
//! its session is in `session`.

mod answers;
mod catalogues;
mod drive;
mod endpoint;
mod hub;
mod ids;
mod input_requests;
mod keep;
mod keep_alive;
mod ledger;
mod legacy;
mod limits;
mod listen;
mod passage;
mod recent;
pub mod relay;
mod reply;
mod server_profile;
mod session;
mod shared;
mod sweep;
mod switchboard;

pub use crate::policy::KeepAliveStep;
pub use endpoint::Endpoint;
pub use keep_alive::KeepAlive;
pub use ledger::{Ledger, NoRoom};
pub use passage::{Passage, Passed, Passing, Piece, Pieces, Then};
pub use switchboard::Switchboard;

use crate::{
    dialect::{Call, Caller, Credentials},
    policy::Route,
    protocol::ErrorObject,
    task::TaskId,
    telemetry::Outcome,
    upstream::{CallError, Document},
};
use bytes::Bytes;
use futures_util::{future::BoxFuture, stream::BoxStream};
use http::{HeaderMap, StatusCode};
use std::{future::Future, sync::Arc, time::Duration};
use tokio::sync::oneshot;

/// What goes back to a client for one call, in order; [`Item::Reply`] is the last. Dropping the
/// stream before that means the client has left.
pub type Items = BoxStream<'static, Item>;

/// What a client is told, one message after another.
trait Conversation: Send + 'static {
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

/// What the access line says of a call.
#[derive(Clone, Debug, Default)]
pub struct AccessSummary {
    pub outcome: Outcome,
    /// Why, where it is no result.
    pub reason: Option<Box<str>>,
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

    /// Passes one request of a legacy client on to its session at the server.
    fn pass(&self, passage: Passage) -> BoxFuture<'static, Passed>;

    /// Whether a request with these headers has passed this route before: its server leads back here.
    fn leads_back(&self, headers: &HeaderMap) -> bool {
        let _ = headers;
        false
    }

    /// Fetches protected-resource metadata of the server behind this route, as it is.
    fn metadata<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<Document, CallError>>;
}

// === impl AccessSummary ===

impl AccessSummary {
    pub fn of(outcome: Outcome) -> Self {
        Self { outcome, ..Self::default() }
    }

    /// A call that came to nothing, and why.
    pub fn failed(outcome: Outcome, error: &ErrorObject) -> Self {
        Self::of(outcome).because(error)
    }

    /// Of a server's error its code is said and not its words, which may hold what it was asked about.
    pub fn because(self, error: &ErrorObject) -> Self {
        let reason = match self.outcome {
            Outcome::ServerError => format!("error {}", error.code()),
            Outcome::Result
            | Outcome::ToolError
            | Outcome::Task
            | Outcome::InputRequired
            | Outcome::Refused
            | Outcome::UpstreamFailed
            | Outcome::ProxyFailed
            | Outcome::Departed => error.message(),
        };
        Self { reason: Some(reason.into()), ..self }
    }
}

// === impl Commit ===

impl Commit {
    /// The handle has reached the client's socket.
    pub fn confirm(self) {
        // The other side is gone only where the task has ended already.
        let _ = self.0.send(());
    }
}
