//! Carries out what [`bridge`](crate::bridge) decides: joins calls to servers, stores and clocks.
//!
//! An [`Endpoint`] is one route at work. Its [`Service::call`] gives a stream of [`Item`]s that is
//! polled in place by whoever writes them to the client, so that a fast call costs no spawn and no
//! store access (`drive`). When a call becomes a task, or its server asks something, the very
//! same driver moves to a runtime task of its own, and `answers` speaks for it
//! from the store.
//!
//! A legacy client in front of a legacy server needs none of this: its requests are passed on
//! ([`Service::pass`], `legacy`), but for what concerns the tasks of 2025-11-25.

mod answers;
mod catalogues;
mod drive;
mod endpoint;
mod hub;
mod input_requests;
mod keep;
mod keep_alive;
mod ledger;
pub mod legacy;
mod limits;
mod listen;
mod recent;
mod reply;
mod sweep;
mod switchboard;

pub use crate::policy::KeepAliveStep;
pub use endpoint::Endpoint;
pub use keep_alive::KeepAlive;
pub use ledger::{Ledger, NoRoom};
pub use switchboard::Switchboard;

use crate::{
    dialect::{Call, Caller, Credentials, Principal, legacy::Post},
    policy::Route,
    protocol::ErrorObject,
    task::TaskId,
    telemetry::Outcome,
    upstream::{CallError, Document},
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

/// One HTTP request of a legacy client.
#[derive(Debug)]
pub struct Passage {
    pub principal: Principal,
    pub method: http::Method,
    /// The query of the URL that was called.
    pub query: Option<String>,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// What the body holds, as far as it could be read.
    pub post: Post,
    /// After this much silence an event stream that the server has begun gets a comment.
    pub keep_alive: Duration,
}

/// What a legacy client is answered with.
pub struct Passed {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Passing,
}

/// The body of a legacy client's answer.
pub enum Passing {
    /// It is there, or there is none.
    Whole(Bytes, AccessSummary),
    /// It is still coming.
    Pieces(Pieces),
}

/// A body as it comes. Dropping the stream before its end means the client has left, which
/// cancels nothing.
pub type Pieces = BoxStream<'static, Piece>;

/// The next of a body.
#[derive(Debug)]
pub struct Piece {
    pub bytes: Bytes,
    /// Once all that was asked has been answered, with this piece or before.
    pub account: Option<AccessSummary>,
    pub then: Then,
}

/// What follows a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    More,
    /// The body ends.
    End,
    /// The body breaks off: the client must not take it for whole.
    Break,
}

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
    /// A call that came to nothing, and why. Of a server's error its code is said and not its words,
    /// which may hold what it was asked about.
    pub fn failed(outcome: Outcome, error: &ErrorObject) -> Self {
        let reason = match outcome {
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
        Self { outcome, reason: Some(reason.into()), ..Self::default() }
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
