//! A server of the older era, over whatever transport carries its messages ([`Wire`]).
//!
//! [`Legacy`] keeps a `group` of sessions for each caller (`groups`). Reading order: `exchange` is one call from its
//! first poll to its last event, and where what the server says is raised; `group` says which session it goes
//! to; `session` is one session and the calls in flight on it, `attribution` whose is what arrives there;
//! `handshake` opens one, `check` finds out whether its server still has it; `telling` is what a server is told beside calls; `server` is the server as a whole,
//! `reports` what it says of its own accord. A call that is made for a client in its own session
//! ([`Upstream::call_in`]) is an `exchange` like any other; what is said of it elsewhere is told to
//! `off_stream`.

mod answer;
mod attribution;
mod audience;
mod check;
mod exchange;
mod group;
mod groups;
mod handshake;
mod hosted;
mod mailbox;
mod message;
mod off_stream;
#[cfg(test)]
mod over_lines;
mod reports;
mod request;
#[cfg(test)]
mod schedules;
mod server;
mod session;
mod subscribe;
mod telling;

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::HeaderMap;
use std::sync::{Arc, Weak};
use tokio::sync::{broadcast, oneshot};

use super::{
    Anchor, Answer, CallError, Calls, Change, ClientSession, Config, Deferral, Description, Document, Event,
    Forward, Forwarded, Health, Identity, Known, NativeCall, NotStarted, OriginRequest, Outgoing,
    ProcessTable, Replies, Report, ServerUrl, Subscription, TakenUp, Upstream,
    wire::{Again, Line, TakenUpOn, Wire},
    work::Work,
};
use crate::{
    dialect::{Call, Credentials, Further, Principal, raise},
    protocol::{Id, Method, headers::SESSION_ID},
    runtime::Net,
};
use answer::Reply;
use bytes::Bytes;
use exchange::Exchange;
use group::Group;
use groups::Groups;
use hosted::Sessions;
use request::Request;
use server::Server;
use session::Session;
use telling::OutboundQueue;

pub use off_stream::OffStream;
pub use reports::Changes;

pub(crate) use attribution::only_one;

/// One server of the older era. Cheap to clone; all clones are the same.
pub struct Legacy<W: Wire>(Arc<Groups<W>>);

// === impl Legacy ===

impl<W: Wire> Clone for Legacy<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Wire> Legacy<W> {
    /// A server at the end of this wire.
    pub(in crate::upstream) fn over(wire: W, route: &str, config: Config, work: Work, net: &Net) -> Self {
        let server = Arc::new(Server::new(wire, route, config, work));
        let hosted = (!W::IS_HTTP).then(|| Arc::new(Sessions::new(server.clone())));
        let groups = Arc::new(Groups::new(server, hosted));
        if let Some(room) = net.room() {
            let keeper: Weak<Groups<W>> = Arc::downgrade(&groups);
            room.ask(keeper);
        }
        Self(groups)
    }

    /// The session of a call that the process before this one has made, and what becomes of that call.
    fn taken_up(&self, caller: &Identity, anchor: &Anchor) -> TakenUpOn<Session<W>, W> {
        let server = self.0.server.clone();
        let (line, answer) = server.wire.take_up(&caller.credentials, anchor)?;
        Some((Arc::new(Session::taken_up(server, line, anchor)), answer))
    }

    /// The session that a client has opened itself.
    fn joined(&self, session: &ClientSession) -> Option<Arc<Session<W>>> {
        let line = self.0.server.wire.join(session)?;
        let id = session.headers.get(&SESSION_ID).cloned();
        Some(Arc::new(Session::of_client(self.0.server.clone(), line, id)))
    }

    /// What is queued in the session that this request ends, if it ends one.
    fn queued_before(&self, request: &Forward) -> Option<Arc<OutboundQueue>> {
        let session = request.headers.get(&SESSION_ID).filter(|_| request.method == http::Method::DELETE)?;
        self.0.server.client_queues.get(session)
    }

    /// Forwards a request behind what is queued. As work of its own: a client that leaves meanwhile has ended its
    /// session all the same.
    async fn forward_behind(
        server: Arc<Server<W>>,
        queue: Arc<OutboundQueue>,
        request: Forward,
    ) -> Result<Forwarded, CallError> {
        let (sender, forwarded) = oneshot::channel();
        let work = server.work.clone();
        work.spawn(async move {
            queue.flush().await;
            let _ = sender.send(server.wire.forward(request).await);
        });
        forwarded.await.unwrap_or(Err(CallError::Closing))
    }
}

impl<W: Wire> Calls for Group<W> {
    fn call(self: Arc<Self>, id: u64, call: &Call, deferral: Option<Deferral>) -> Replies {
        // What may become a task is watched: its progress is shown in the task's status message.
        let wants_progress = call.progress_token.is_some() || deferral.is_some();
        let request = Request {
            id,
            method: call.method.clone(),
            body: raise::request(call, id, wants_progress),
            headers: call.headers.clone(),
            deferral,
            timeout: None,
        };
        self.audience.is_joined_by_another();
        Exchange::new(self, request).boxed()
    }
}

impl<W: Wire> Upstream for Legacy<W> {
    fn call(&self, call: Outgoing) -> Replies {
        let Outgoing { id, call, caller, deferral } = call;
        self.0.group(&caller).call(id, &call, deferral)
    }

    fn call_in(&self, session: ClientSession, call: NativeCall) -> (Replies, Option<Arc<dyn OffStream>>) {
        if let Some(hosted) = &self.0.hosted {
            return match hosted.call_in(&session, call, &|caller| self.0.group(caller)) {
                Some(call) => (call.boxed(), None),
                None => (lost(CallError::SessionEnded), None),
            };
        }
        let NativeCall { id, method, body, deferral } = call;
        let request = Request { id, method, body, headers: Further::default(), deferral, timeout: None };
        let Some(session) = self.joined(&session) else {
            return (lost(CallError::not_over_http()), None);
        };
        (Exchange::within(session.clone(), request).boxed(), Some(session))
    }

    fn take_up(
        &self,
        caller: &Identity,
        anchor: &Anchor,
        open: Vec<Id>,
        deferral: Deferral,
    ) -> Option<TakenUp> {
        let (session, answer) = self.taken_up(caller, anchor)?;
        let request = Request {
            id: anchor.call,
            method: Method::ToolsCall,
            body: Bytes::new(),
            headers: Further::default(),
            deferral: Some(deferral),
            timeout: None,
        };
        let call = Exchange::taken_up(session.clone(), request, answer?, &open)?;
        if !anchor.is_clients {
            let session = session.clone();
            self.0.server.work.spawn(async move { handshake::listen(&session).await });
        }
        let way = |id| -> Box<dyn Answer> { Box::new(Reply::new(session.clone(), anchor.call, id)) };
        Some(TakenUp {
            replies: call.boxed(),
            open: open.into_iter().map(way).collect(),
            elsewhere: anchor.is_clients.then(|| session.clone() as Arc<dyn OffStream>),
        })
    }

    fn cancel_at(&self, caller: &Identity, anchor: &Anchor) -> BoxFuture<'_, bool> {
        let taken_up = self.taken_up(caller, anchor);
        let call = anchor.call;
        async move {
            let Some((session, _)) = taken_up else { return false };
            let cancelled = message::cancelled(call, "the client no longer waits");
            let is_told = session.line.tell(cancelled, Again::Yes).await.is_ok();
            session.retire();
            is_told
        }
        .boxed()
    }

    fn cancel_in(&self, session: ClientSession, calls: &[Id], reason: &str) {
        if let Some(hosted) = &self.0.hosted {
            return hosted.cancel_in(&session, calls);
        }
        let Some(session) = self.joined(&session) else { return };
        for call in calls {
            session.cancel_later(call, reason);
        }
    }

    fn deferred(&self, caller: &Identity, deferral: &Deferral) {
        deferral.comes();
        // Somebody may have room now.
        for group in self.0.sharing(caller) {
            group.pass_on();
        }
    }

    fn describe(&self, caller: &Identity) -> BoxFuture<'_, Result<Arc<Description>, CallError>> {
        let group = self.0.group(caller);
        async move { Ok(group.lists().await?.description.clone()) }.boxed()
    }

    /// Only looks: what has to give way to a further session does to whoever then opens it.
    fn known(&self, caller: &Identity) -> Option<Known> {
        let group = self.0.known(caller)?;
        Some(Known { description: group.known_description()?, calls: group })
    }

    fn described(&self) -> Option<Arc<Description>> {
        self.0.server.described()
    }

    fn watch(&self, principal: Principal) -> broadcast::Receiver<Report> {
        self.0.reports(principal).listen()
    }

    fn takes_turns(&self) -> bool {
        W::IS_COSTLY
    }

    fn changes(&self, principal: Principal) -> Changes {
        self.0.reports(principal).changes()
    }

    fn subscribe<'a>(
        &'a self,
        caller: &'a Identity,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Subscription, CallError>> {
        let group = self.0.group(caller);
        async move {
            let guard = subscribe::subscribe(group, uri).await.map_err(CallError::from)?;
            Ok(Box::new(guard) as Subscription)
        }
        .boxed()
    }

    fn fetch<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<Document, CallError>> {
        self.0.server.wire.fetch(path, credentials)
    }

    fn passes_authorization(&self) -> bool {
        self.0.server.wire.passes_authorization()
    }

    fn ask_origin(&self, request: OriginRequest) -> BoxFuture<'static, Result<Document, CallError>> {
        self.0.server.wire.ask_origin(request)
    }

    fn forward(&self, request: Forward) -> BoxFuture<'static, Result<Forwarded, CallError>> {
        match self.0.hosted.clone() {
            None => match self.queued_before(&request) {
                None => self.0.server.wire.forward(request),
                Some(queue) => Self::forward_behind(self.0.server.clone(), queue, request).boxed(),
            },
            Some(hosted) => {
                let groups = self.0.clone();
                async move { hosted.serve(request, &|caller| groups.group(caller)).await }.boxed()
            }
        }
    }

    fn health(&self) -> Health {
        self.0.server.health()
    }

    fn address(&self) -> Option<&ServerUrl> {
        self.0.server.wire.address()
    }

    fn processes(&self) -> Option<ProcessTable> {
        self.0.server.wire.processes()
    }

    fn has_sent(&self, headers: &HeaderMap) -> bool {
        self.0.server.wire.has_sent(headers)
    }

    fn otherwise(&self, config: &Config) -> Result<Change, NotStarted> {
        let wired = self.0.server.wire.otherwise(config)?;
        let (groups, limits) = (Arc::clone(&self.0), self.0.server.wire.limits(config.limits));
        let config = Config { limits, ..config.clone() };
        Ok(Box::new(move || {
            wired();
            if let Some(hosted) = &groups.hosted {
                hosted.bound_by(&config.limits);
            }
            let before = groups.server.config.now().limits.messages;
            groups.server.errands.bound_by(before, config.limits.messages);
            groups.server.offer.forget();
            groups.server.config.set(config);
        }))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close().boxed()
    }
}

/// Of a call that cannot be made.
fn lost(why: CallError) -> Replies {
    stream::once(std::future::ready(Event::Lost(why))).boxed()
}
