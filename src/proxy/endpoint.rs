//! One route at work.

use super::{
    Item, Items, Ledger, Passage, Passed, Reply, Service, Switchboard,
    admission::Gates,
    answers::extension,
    catalogues::Catalogues,
    conversation::Conversation,
    drive::Attended,
    legacy,
    listen::Listening,
    reply::{self, CallEnd},
    server_profile::ServerProfile,
    session::{self, Sessions},
    shared::{Lasting, Shared},
    ticket_call::TicketCall,
    tickets,
};
use crate::{
    bridge::{describe, resume::Keyring},
    dialect::{Call, Caller, Credentials},
    policy::Route,
    protocol::{Method, frame::on_one_line, input::request_state},
    runtime::{Clock, Drain, Stopping, Striped, Work},
    telemetry::trace::Tracer,
    upstream::{CallError, Document, Identity, OriginRequest, ServerUrl, Upstream},
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::{HeaderMap, Uri, header::VIA};
use std::{
    future::Future,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};
use tokio::time::sleep;

/// A route, the server behind it, and the tasks of all routes.
#[derive(Clone)]
pub struct Endpoint {
    shared: Arc<Shared>,
    /// The same for the calls, each of which has it for as long as it lasts: once they begin.
    for_calls: Arc<OnceLock<Striped<Arc<Shared>>>>,
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
        let (in_hand, stopping) = stopping.part();
        let (listening, closing) = closing.part();
        let lasting = Lasting {
            upstream,
            ledger,
            switchboard,
            clock,
            tracer: Tracer::default(),
            stopping,
            overdue,
            closing,
            arrivals: Drain::new(),
            in_hand,
            listening,
            former: Vec::new(),
            catalogues: Catalogues::default(),
            server_profile: ServerProfile::default(),
            minted: Arc::default(),
            sessions: Sessions::default(),
            absent: Arc::default(),
            gates: Gates::default(),
        };
        Self::of(Shared { route, keyring, limiters: None, lasting: Arc::new(lasting) })
    }

    fn of(shared: Shared) -> Self {
        Self { shared: Arc::new(shared), for_calls: Arc::default() }
    }

    /// The same, with spans of its calls.
    ///
    /// # Panics
    /// Where it is shared already.
    pub fn traced(mut self, tracer: Tracer) -> Self {
        self.lasting().tracer = tracer;
        self
    }

    /// The same, in the place of another with another server: who has a session there goes on in it for as long
    /// as that is kept ([`Endpoint::retire`]).
    ///
    /// # Panics
    /// Where it is shared already.
    pub fn in_place_of(mut self, other: &Self) -> Self {
        let before = &other.shared.lasting;
        let former = before.former.iter().filter(|former| former.strong_count() > 0);
        let former = [Arc::downgrade(before)].into_iter().chain(former.cloned()).collect();
        let lasting = self.lasting();
        lasting.former = former;
        lasting.absent = Arc::clone(&before.absent);
        self
    }

    fn lasting(&mut self) -> &mut Lasting {
        let shared = Arc::get_mut(&mut self.shared).expect("it is new");
        Arc::get_mut(&mut shared.lasting).expect("it is new")
    }

    /// The same route with the same server, by another configuration. What has begun goes on by the one before.
    pub fn renewed(&self, route: Arc<Route>, keyring: Arc<Keyring>) -> Self {
        Self::of(Shared { route, keyring, limiters: None, lasting: Arc::clone(&self.shared.lasting) })
    }

    /// The configuration is in force: the limits of calls are its own from now on, also for those that wait. With the first
    /// call at the latest.
    pub fn takes_effect(&self) {
        self.shared();
    }

    /// Lets go of a server that is not in the configuration any more: clients go on in their sessions with it for
    /// this long, and calls and tasks until they end; those of a server that `ends` with that time not beyond it.
    pub async fn retire(self, after: Duration, ends: bool) {
        let lasting = Arc::clone(&self.shared.lasting);
        drop(self);
        sleep(after).await;
        lasting.arrivals.0.over().await;
        if !ends {
            lasting.in_hand.over().await;
        }
        lasting.listening.tell();
        lasting.upstream.close().await;
    }

    /// What a call has for as long as it lasts.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        let for_calls = || {
            let limiters = self.shared.gates.limiters(&self.shared.route);
            Striped::of(|| Arc::new(Shared { limiters: limiters.clone(), ..self.shared.copy() }))
        };
        self.for_calls.get_or_init(for_calls).mine()
    }

    /// The former server in a session with which a legacy client asks, if there is one.
    fn where_its_session_is(&self, passage: &Passage) -> Option<Arc<Shared>> {
        let mut former = self.shared.former.iter().filter_map(Weak::upgrade).peekable();
        former.peek()?;
        let session = session::Key::of(passage.principal, &passage.headers)?;
        if self.shared.sessions.presence.knows(session) {
            return None;
        }
        let lasting = former.find(|lasting| lasting.sessions.presence.knows(session))?;
        Some(Arc::new(Shared { lasting, ..self.shared().copy() }))
    }
}

impl Service for Endpoint {
    fn route(&self) -> &Arc<Route> {
        &self.shared.route
    }

    fn call(&self, call: Arc<Call>, caller: Caller) -> Items {
        let shared = Arc::clone(self.shared());
        shared.absent.is_here(caller.principal, || caller.credentials.clone());
        if call.method == Method::ToolsCall
            && tickets::wanted_by(&shared, &call, &caller, call.target.as_deref().unwrap_or_default())
                .is_some()
        {
            return each(TicketCall::new(shared, call, caller));
        }
        if shared.stopping.is_stopped() && begins_something(&call) {
            return once(async move { reply::stopping(&call) });
        }
        match call.method {
            Method::Discover => once(async move {
                let _work = shared.stopping.work();
                discover(&shared, &call, &caller).await
            }),
            Method::TasksGet | Method::TasksUpdate | Method::TasksCancel => {
                once(async move { extension::serve(&shared, &call, &caller).await })
            }
            Method::Listen => each(Listening::new(shared, call, caller)),
            _ => each(Attended::new(shared, call, caller)),
        }
    }

    fn is_reachable(&self) -> bool {
        self.shared.upstream.health().is_up == Some(true)
    }

    fn leads_back(&self, headers: &HeaderMap) -> bool {
        // Most requests have passed nobody.
        headers.contains_key(VIA) && self.shared.upstream.has_sent(headers)
    }

    fn arriving(&self) -> Option<Work> {
        Some(self.shared.arrivals.1.work())
    }

    fn pass(&self, passage: Passage) -> BoxFuture<'static, Passed> {
        self.shared.absent.is_here(passage.principal, || self.shared.credentials(&passage.headers));
        let shared = self.where_its_session_is(&passage).unwrap_or_else(|| Arc::clone(self.shared()));
        legacy::pass(shared, passage).boxed()
    }

    fn metadata<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<Document, CallError>> {
        self.shared.upstream.fetch(path, credentials)
    }

    fn url(&self) -> Option<&Uri> {
        self.shared.upstream.address().map(ServerUrl::uri)
    }

    fn passes_authorization(&self) -> bool {
        self.shared.upstream.passes_authorization()
    }

    fn ask_origin(&self, request: OriginRequest) -> BoxFuture<'static, Result<Document, CallError>> {
        self.shared.upstream.ask_origin(request)
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

/// A conversation as a stream; dropping it drops the conversation. A generator: `stream::unfold` would move the
/// conversation, a kilobyte, into each of its steps and out again.
fn each(mut conversation: impl Conversation) -> Items {
    async_stream::stream! {
        while let Some(item) = conversation.next().await {
            yield item;
        }
    }
    .boxed()
}

async fn discover(shared: &Shared, call: &Call, caller: &Caller) -> Reply {
    match shared.upstream.describe(&Identity::of(caller)).await {
        Ok(server) => {
            let result = describe::discover(describe::About {
                capabilities: &server.capabilities,
                server_info: &server.server_info,
                instructions: server.instructions.as_ref(),
            });
            reply::success(call, &on_one_line(result.into()))
        }
        Err(lost) => reply::to_client(call, &shared.route, CallEnd::Lost(lost), None),
    }
}
