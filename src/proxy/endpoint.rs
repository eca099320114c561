//! One route at work.

use super::{
    Item, Items, Ledger, Passage, Passed, Reply, Service, Switchboard,
    absent::Absent,
    answers::extension,
    catalogues::Catalogues,
    conversation::Conversation,
    drive::Attended,
    legacy,
    listen::Listening,
    reply::{self, CallEnd},
    server_profile::ServerProfile,
    session::Sessions,
    shared::Shared,
    ticket_call::TicketCall,
    tickets,
};
use crate::{
    bridge::{describe, resume::Keyring},
    dialect::{Call, Caller, Credentials},
    policy::Route,
    protocol::{Method, frame::on_one_line, input::request_state},
    runtime::{Clock, Stopping},
    telemetry::trace::Tracer,
    upstream::{CallError, Document, Identity, Upstream},
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::{HeaderMap, header::VIA};
use std::{future::Future, sync::Arc};

/// A route, the server behind it, and the tasks of all routes.
#[derive(Clone)]
pub struct Endpoint {
    shared: Arc<Shared>,
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
        Self {
            shared: Arc::new(Shared {
                route,
                upstream,
                ledger,
                switchboard,
                clock,
                tracer: Tracer::default(),
                stopping,
                overdue,
                closing,
                keyring,
                catalogues: Catalogues::default(),
                server_profile: ServerProfile::default(),
                minted: Arc::default(),
                sessions: Sessions::default(),
                absent: Absent::default(),
            }),
        }
    }

    /// The same, with spans of its calls.
    ///
    /// # Panics
    /// Where it is shared already.
    pub fn traced(mut self, tracer: Tracer) -> Self {
        Arc::get_mut(&mut self.shared).expect("it is new").tracer = tracer;
        self
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Service for Endpoint {
    fn route(&self) -> &Arc<Route> {
        &self.shared.route
    }

    fn call(&self, call: Call, caller: Caller) -> Items {
        let shared = Arc::clone(&self.shared);
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

    fn leads_back(&self, headers: &HeaderMap) -> bool {
        // Most requests have passed nobody.
        headers.contains_key(VIA) && self.shared.upstream.has_sent(headers)
    }

    fn pass(&self, passage: Passage) -> BoxFuture<'static, Passed> {
        self.shared.absent.is_here(passage.principal, || self.shared.credentials(&passage.headers));
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

/// A conversation as a stream; dropping it drops the conversation. No `async` closure: what one takes by value it
/// keeps twice.
fn each(conversation: impl Conversation) -> Items {
    stream::unfold(conversation, |mut conversation| async move {
        let item = conversation.next().await?;
        Some((item, conversation))
    })
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
