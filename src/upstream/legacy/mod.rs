//! A legacy server, over any [`Transport`].
//!
//! [`LegacyUpstream`] keeps a `pool` of sessions for each caller (`pools`). Begin with `exchange`, one call
//! from its first poll to its last event, where messages are translated; then `pool`, which leases it a
//! session; `session`, one session and the calls in flight in it; `attribution` of messages to calls.
//! `handshake` opens a session, `check` finds out whether its server still knows it; `outbound` sends
//! messages outside calls; `server` has the state of the whole server, `reports` its change notifications. A
//! call in a client's own session ([`HttpRelay::call_in`]) is an `exchange` as well; messages for it outside
//! its stream go to `off_stream`.

mod attribution;
mod call_client;
mod check;
mod emulated;
mod exchange;
mod handshake;
mod listeners;
mod mailbox;
mod message;
mod negotiation;
mod off_stream;
mod outbound;
#[cfg(test)]
mod over_lines;
mod pool;
mod pools;
mod request;
mod responder;
#[cfg(test)]
mod schedules;
mod server;
mod session;
mod subscribe;

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

use super::{
    ApplyReload, CallAnchor, CallError, CallResumption, CallTarget, CallerIdentity, ChangeNotifier,
    ClientSession, Config, Deferral, HttpOrigin, HttpRelay, HttpRequest, HttpResponse, NativeCall,
    OffStreamCall, OutgoingCall, ProcessTable, ReadyServer, Responder, ResumedCall, Subscription, Upstream,
    UpstreamDescription, UpstreamEvent, UpstreamEvents, UpstreamSetupError, UpstreamStatus,
    background::BackgroundTasks,
    deferral::DeferralObserver,
    transport::{ResumedSession, RetryOnLoss, SessionKind, Transport, TransportSession},
};
use crate::{
    dialect::{Call, Credentials, ExtraHeaders, Principal, translate},
    protocol::{Method, RequestId, headers::SESSION_ID},
    runtime::Network,
};
use bytes::Bytes;
use call_client::CallClient;
use emulated::EmulatedSessions;
use exchange::CallExchange;
use outbound::OutboundQueue;
use pool::SessionPool;
use pools::SessionPools;
use request::CallRequest;
use responder::SessionResponder;
use server::ServerContext;
use session::UpstreamSession;

pub(crate) use attribution::sole_call;

/// An [`Upstream`] for a legacy server. Clones share its sessions.
pub struct LegacyUpstream<W: Transport>(Arc<SessionPools<W>>);

// === impl LegacyUpstream ===

impl<W: Transport> Clone for LegacyUpstream<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Transport> LegacyUpstream<W> {
    /// Creates an upstream over this transport.
    pub(in crate::upstream) fn with_transport(
        transport: W,
        route: &str,
        config: Config,
        work: BackgroundTasks,
        net: &Network,
    ) -> Self {
        let server = Arc::new(ServerContext::new(transport, route, config, work));
        let emulated =
            (W::SESSIONS == SessionKind::Process).then(|| Arc::new(EmulatedSessions::new(server.clone())));
        let pools = Arc::new(SessionPools::new(server, emulated));
        if let Some(limiter) = net.limiter() {
            let reclaimer: Weak<SessionPools<W>> = Arc::downgrade(&pools);
            limiter.register_reclaimer(reclaimer);
        }
        Self(pools)
    }

    /// Resumes the session in which a previous process made a call, and returns it with the handle of the
    /// call, if the call can be resumed.
    fn resume_session(
        &self,
        caller: &CallerIdentity,
        anchor: &CallAnchor,
    ) -> ResumedSession<UpstreamSession<W>, W> {
        let server = self.0.server.clone();
        let (transport, handle) = server.transport.resume_session(&caller.credentials, anchor)?;
        Some((Arc::new(UpstreamSession::resumed(server, transport, anchor)), handle))
    }

    /// Attaches to a session that a client opened.
    fn client_session(&self, session: &ClientSession) -> Option<Arc<UpstreamSession<W>>> {
        let transport = self.0.server.transport.join_client_session(session)?;
        let id = session.headers.get(&SESSION_ID).cloned();
        Some(Arc::new(UpstreamSession::opened_by_client(self.0.server.clone(), transport, id)))
    }

    /// Queue of the session that this request ends, if it is a DELETE.
    fn queue_before_delete(&self, request: &HttpRequest) -> Option<Arc<OutboundQueue>> {
        let session = request.headers.get(&SESSION_ID).filter(|_| request.method == http::Method::DELETE)?;
        self.0.server.client_queues.get(session)
    }

    /// Forwards a request after the queue of its session. In a background task: a client that disconnects
    /// meanwhile has ended its session all the same.
    async fn forward_after_queue(
        server: Arc<ServerContext<W>>,
        queue: Arc<OutboundQueue>,
        request: HttpRequest,
    ) -> Result<HttpResponse, CallError> {
        let (sender, forwarded) = oneshot::channel();
        let work = server.work.clone();
        work.spawn(async move {
            queue.flush().await;
            let _ = sender.send(server.transport.forward(request).await);
        });
        forwarded.await.unwrap_or(Err(CallError::Closing))
    }
}

impl<W: Transport> CallTarget for SessionPool<W> {
    fn call(
        self: Arc<Self>,
        id: u64,
        call: &Call,
        (principal, credentials): (Principal, &Credentials),
        deferral: Option<Deferral>,
    ) -> UpstreamEvents {
        // A call that may become a task needs progress for the task's status message.
        let wants_progress = call.progress_token.is_some() || deferral.is_some();
        let request = CallRequest {
            id,
            method: call.method.clone(),
            body: translate::translate_request(call, id, wants_progress),
            headers: call.headers.clone(),
            deferral,
            client: CallClient::of_call(&*self.server().transport, id, principal, credentials, call),
            timeout: None,
        };
        self.listeners.mark_shared();
        CallExchange::new(self, request).boxed()
    }
}

impl<W: Transport> Upstream for LegacyUpstream<W> {
    fn call(&self, call: OutgoingCall) -> UpstreamEvents {
        let OutgoingCall { id, call, caller, deferral } = call;
        self.0.pool(&caller).call(id, &call, (caller.principal, &caller.credentials), deferral)
    }

    fn describe(
        &self,
        caller: &CallerIdentity,
    ) -> BoxFuture<'_, Result<Arc<UpstreamDescription>, CallError>> {
        let pool = self.0.pool(caller);
        async move { Ok(pool.list_session().await?.description.clone()) }.boxed()
    }

    /// Reads only: another session is evicted when a further one is opened, not here.
    fn ready_server(&self, caller: &CallerIdentity) -> Option<ReadyServer> {
        let pool = self.0.find(caller)?;
        Some(ReadyServer { description: pool.known_description()?, calls: pool })
    }

    fn status(&self) -> UpstreamStatus {
        self.0.server.status()
    }

    fn watch(&self, principal: Principal) -> ChangeNotifier {
        self.0.notifier(principal)
    }

    fn subscribe<'a>(
        &'a self,
        caller: &'a CallerIdentity,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Subscription, CallError>> {
        let pool = self.0.pool(caller);
        async move {
            let guard = subscribe::subscribe(pool, uri).await.map_err(CallError::from)?;
            Ok(Box::new(guard) as Subscription)
        }
        .boxed()
    }

    fn http_relay(&self) -> Option<&dyn HttpRelay> {
        Some(self)
    }

    fn http_origin(&self) -> Option<&dyn HttpOrigin> {
        self.0.server.transport.http_origin()
    }

    fn resumption(&self) -> Option<&dyn CallResumption> {
        self.0.emulated.is_none().then_some(self as &dyn CallResumption)
    }

    fn processes(&self) -> Option<ProcessTable> {
        self.0.server.transport.processes()
    }

    fn prepare_reload(&self, config: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        let apply_transport = self.0.server.transport.prepare_reload(config)?;
        let (pools, limits) = (Arc::clone(&self.0), self.0.server.transport.limits(config.limits));
        let config = Config { limits, ..config.clone() };
        Ok(Box::new(move || {
            apply_transport();
            if let Some(emulated) = &pools.emulated {
                emulated.set_limits(&config.limits);
            }
            let old_limit = pools.server.config.load().limits.messages;
            pools.server.outbound.set_limit(old_limit, config.limits.messages);
            pools.server.remembered_offer.clear();
            pools.server.config.set(config);
        }))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close().boxed()
    }
}

impl<W: Transport> HttpRelay for LegacyUpstream<W> {
    fn forward(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, CallError>> {
        match self.0.emulated.clone() {
            None => match self.queue_before_delete(&request) {
                None => self.0.server.transport.forward(request),
                Some(queue) => Self::forward_after_queue(self.0.server.clone(), queue, request).boxed(),
            },
            Some(emulated) => {
                let pools = self.0.clone();
                async move { emulated.serve(request, &|caller| pools.pool(caller)).await }.boxed()
            }
        }
    }

    fn call_in(
        &self,
        session: ClientSession,
        call: NativeCall,
    ) -> (UpstreamEvents, Option<Arc<dyn OffStreamCall>>) {
        if let Some(emulated) = &self.0.emulated {
            return match emulated.call_in(&session, call, &|caller| self.0.pool(caller)) {
                Some(call) => (call.boxed(), None),
                None => (failed_events(CallError::SessionEnded), None),
            };
        }
        let NativeCall { id, method, body, deferral } = call;
        let request = CallRequest {
            id,
            method,
            body,
            headers: ExtraHeaders::default(),
            deferral,
            client: None,
            timeout: None,
        };
        let Some(session) = self.client_session(&session) else {
            return (failed_events(CallError::not_over_http()), None);
        };
        (CallExchange::in_client_session(session.clone(), request).boxed(), Some(session))
    }

    fn cancel_in(&self, session: ClientSession, calls: &[RequestId], reason: &str) {
        if let Some(emulated) = &self.0.emulated {
            return emulated.cancel_in(&session, calls);
        }
        let Some(session) = self.client_session(&session) else { return };
        for call in calls {
            session.cancel_later(call, reason);
        }
    }
}

impl<W: Transport> CallResumption for LegacyUpstream<W> {
    fn resume_call(
        &self,
        caller: &CallerIdentity,
        anchor: &CallAnchor,
        open: Vec<RequestId>,
        deferral: Deferral,
    ) -> Option<ResumedCall> {
        let (session, handle) = self.resume_session(caller, anchor)?;
        let request = CallRequest {
            id: anchor.call,
            method: Method::ToolsCall,
            body: Bytes::new(),
            headers: ExtraHeaders::default(),
            deferral: Some(deferral),
            client: None,
            timeout: None,
        };
        let call = CallExchange::resumed(session.clone(), request, handle?, &open)?;
        if !anchor.is_clients {
            let session = session.clone();
            self.0.server.work.spawn(async move { handshake::listen(&session).await });
        }
        let responder =
            |id| -> Box<dyn Responder> { Box::new(SessionResponder::new(session.clone(), anchor.call, id)) };
        Some(ResumedCall {
            replies: call.boxed(),
            open_requests: open.into_iter().map(responder).collect(),
            off_stream: anchor.is_clients.then(|| session.clone() as Arc<dyn OffStreamCall>),
        })
    }

    fn cancel_at(&self, caller: &CallerIdentity, anchor: &CallAnchor) -> BoxFuture<'_, bool> {
        let resumed = self.resume_session(caller, anchor);
        let call = anchor.call;
        async move {
            let Some((session, _)) = resumed else { return false };
            let cancelled = message::cancelled(call, "the client no longer waits");
            let is_sent = session.transport.send_message(cancelled, RetryOnLoss::Yes).await.is_ok();
            session.retire();
            is_sent
        }
        .boxed()
    }
}

impl<W: Transport> DeferralObserver for SessionPool<W> {
    /// Queued calls may proceed now.
    fn call_deferred(self: Arc<Self>) {
        self.serve_queue();
    }
}

/// Returns the events of a call that cannot be made: one loss.
fn failed_events(error: CallError) -> UpstreamEvents {
    stream::once(std::future::ready(UpstreamEvent::Lost(error))).boxed()
}
