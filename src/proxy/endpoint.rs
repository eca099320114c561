//! One route at work.

use super::{
    Item, Items, Ledger, Passage, Passed, Reply, Service, Switchboard,
    answers::extension,
    catalogues::Catalogues,
    drive::Attended,
    legacy::{
        self, Ended, Minted, Offering, Plain, Residents, Revisions, Sessions, Streams, Unfinished, Waiting,
    },
    listen::Listening,
    reply::{self, Word},
};
use crate::{
    bridge::{Catalogue, describe, resume::Keyring},
    dialect::{Call, Caller, Credentials},
    policy::Route,
    protocol::{Method, input::request_state, method::Needs},
    runtime::{Clock, Stopping},
    task::{Owner, Scope},
    upstream::{CallError, Description, Document, Identity, Upstream},
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::{HeaderMap, header::VIA};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// A route, the server behind it, and the tasks of all routes.
#[derive(Clone)]
pub struct Endpoint {
    shared: Arc<Shared>,
}

/// What every call on a route needs.
pub(super) struct Shared {
    pub(super) route: Arc<Route>,
    pub(super) upstream: Arc<dyn Upstream>,
    /// The tasks of all routes.
    pub(super) ledger: Arc<Ledger>,
    /// The calls that are held in this process.
    pub(super) switchboard: Arc<Switchboard>,
    pub(super) clock: Arc<dyn Clock>,
    /// Begins when the proxy is told to stop: new calls are refused. Knows who is at work.
    pub(super) stopping: Stopping,
    /// Begins when the time to end by itself is over.
    pub(super) overdue: Stopping,
    /// Begins when nobody works any more: who only listens is told that it is over.
    pub(super) closing: Stopping,
    /// Seals and opens `requestState`.
    pub(super) keyring: Arc<Keyring>,
    catalogues: Catalogues,
    /// What is known of the tasks of the server's own.
    pub(super) offering: Offering,
    /// Answers whose events got their ids here.
    pub(super) minted: Arc<Minted>,
    /// The sessions of legacy clients that are there.
    pub(super) sessions: Arc<Sessions>,
    /// Those of them that are of 2025-11-25.
    pub(super) revisions: Revisions,
    /// Those of them in which calls of ours are in flight.
    pub(super) residents: Residents,
    /// What legacy clients are asked in calls that are no tasks yet.
    pub(super) plain: Plain,
    /// The calls of legacy clients that may become tasks unasked.
    pub(super) waiting: Waiting,
    /// The streams on which legacy sessions listen.
    pub(super) streams: Arc<Streams>,
    /// What legacy clients have taken back.
    pub(super) ended: Arc<Ended>,
    /// What streams have left unanswered whose clients may come back.
    pub(super) unfinished: Arc<Unfinished>,
}

/// Ids of our own hop: unique in the process, so that a late message can be taken for no other's.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Whether such an id has been given.
pub(super) fn was_given(id: u64) -> bool {
    id < NEXT_ID.load(Ordering::Relaxed)
}

// === impl Endpoint ===

impl Endpoint {
    /// `stopping` tells that no new call is to begin, `overdue` that the time of those that have begun
    /// is over, `closing` that there is nothing left to listen for.
    pub fn new(
        route: Arc<Route>,
        upstream: Arc<dyn Upstream>,
        ledger: Arc<Ledger>,
        switchboard: Arc<Switchboard>,
        clock: Arc<dyn Clock>,
        keyring: Arc<Keyring>,
        [stopping, overdue, closing]: [Stopping; 3],
    ) -> Self {
        let catalogues = Catalogues::default();
        Self {
            shared: Arc::new(Shared {
                route,
                upstream,
                ledger,
                switchboard,
                clock,
                stopping,
                overdue,
                closing,
                keyring,
                catalogues,
                offering: Offering::default(),
                minted: Arc::default(),
                sessions: Arc::default(),
                revisions: Revisions::default(),
                residents: Residents::default(),
                plain: Plain::default(),
                waiting: Waiting::default(),
                streams: Arc::default(),
                ended: Arc::default(),
                unfinished: Arc::default(),
            }),
        }
    }
}

impl Service for Endpoint {
    fn route(&self) -> &Arc<Route> {
        &self.shared.route
    }

    fn call(&self, call: Call, caller: Caller) -> Items {
        let shared = Arc::clone(&self.shared);
        if shared.stopping.is_stopped() && begins_something(&call) {
            return once(async move { reply::stopping(&call) });
        }
        match call.method {
            Method::Discover => once(async move {
                let _work = shared.stopping.work();
                shared.discover(&call, &caller).await
            }),
            Method::TasksGet | Method::TasksUpdate | Method::TasksCancel => {
                once(async move { extension::serve(&shared, &call, &caller).await })
            }
            Method::Listen => each(Listening::new(shared, call, caller)),
            _ => each(Attended::new(shared, call, caller)),
        }
    }

    fn leads_back(&self, headers: &HeaderMap) -> bool {
        // Most requests have passed nobody.
        headers.contains_key(VIA) && self.shared.upstream.has_sent(headers)
    }

    fn pass(&self, passage: Passage) -> BoxFuture<'static, Passed> {
        legacy::pass(Arc::clone(&self.shared), passage).boxed()
    }

    fn metadata<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<Document, CallError>> {
        self.shared.upstream.fetch(path, credentials)
    }
}

/// Whether a call is a new one: not about a task, nor one that its client comes back to.
fn begins_something(call: &Call) -> bool {
    match call.method {
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel | Method::Listen => false,
        // What is wrong with a state is said where it is opened.
        _ => matches!(request_state(call.params.as_ref()), Ok(None)),
    }
}

fn once(reply: impl Future<Output = Reply> + Send + 'static) -> Items {
    stream::once(reply.map(Item::Reply)).boxed()
}

/// What a client is told, one message after another.
pub(super) trait Conversation: Send + 'static {
    /// The next message. Dropping the future in between loses nothing but the wait.
    fn next(&mut self) -> impl Future<Output = Option<Item>> + Send;
}

/// A conversation as a stream; dropping it drops the conversation.
fn each(conversation: impl Conversation) -> Items {
    stream::unfold(conversation, async |mut conversation| {
        let item = conversation.next().await?;
        Some((item, conversation))
    })
    .boxed()
}

// === impl Shared ===

impl Shared {
    pub(super) fn next_id(&self) -> u64 {
        NEXT_ID.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn owner(&self, caller: &Caller) -> Owner {
        Owner {
            principal: *caller.principal.as_bytes(),
            route: Arc::clone(&self.route.path),
            scope: Scope::Principal,
        }
    }

    /// The server as it described itself last. It is not asked: what is said of a task must not wait
    /// for it.
    pub(super) fn server(&self) -> Arc<Description> {
        self.upstream.described().unwrap_or_else(|| Arc::new(Description::unknown()))
    }

    /// Whether the server declared what a method needs. What it did not declare is not served
    /// (2026-07-28, *Discovery*): its own error would have any code.
    pub(super) fn serves(&self, method: &Method, server: &Description) -> bool {
        let needs = method.modern().unwrap_or(Needs::Nothing);
        describe::declares(&server.capabilities, needs)
    }

    /// The tools of the server as this caller sees them, or nothing where they cannot be listed.
    pub(super) async fn catalogue(&self, caller: &Caller) -> Option<Arc<Catalogue>> {
        self.catalogues.get(&*self.upstream, caller, &*self.clock, || self.next_id()).await
    }

    async fn discover(&self, call: &Call, caller: &Caller) -> Reply {
        match self.upstream.describe(&Identity::of(caller)).await {
            Ok(server) => {
                let result = describe::discover(describe::Handshake {
                    capabilities: &server.capabilities,
                    server_info: &server.server_info,
                    instructions: server.instructions.as_ref(),
                });
                reply::success(call, &crate::protocol::frame::on_one_line(result.into()))
            }
            Err(lost) => reply::to_client(call, &self.route, &Description::unknown(), Word::Lost(lost), None),
        }
    }
}
