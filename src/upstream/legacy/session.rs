//! One session with a server, and the calls in flight on it.
//!
//! Which call something belongs to that arrives in it is told in `attribution`.

use bytes::Bytes;
use foldhash::fast::RandomState;
use futures_util::{StreamExt, future::BoxFuture, stream};
use http::HeaderValue;
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    attribution::OF_NO_CALL,
    listeners::{BroadcastListener, BroadcastListeners, ListenerCensus},
    mailbox::{CallMessage, SessionMailbox},
    message,
    outbound::{OutboundMessage, OutboundQueue, PAUSES, QueuedMessage, TURN},
    reports::ChangeNotifier,
    request::CallRequest,
    server::{OpenSessionGuard, ServerContext},
};
use crate::{
    dialect::legacy,
    protocol::{Frame, RequestId},
    runtime::{Clock, Mutex},
    telemetry::{MessageUndelivered, metrics},
    upstream::{
        CallAnchor, CallError, Deferral, UpstreamDescription,
        transport::{RetryOnLoss, Transport, TransportSession},
    },
};

/// A session, or what stands for one with a server that has none.
pub(super) struct UpstreamSession<W: Transport> {
    pub(super) server: Arc<ServerContext<W>>,
    /// Greater than those of all sessions that were made before.
    pub(super) number: u64,
    pub(super) description: Arc<UpstreamDescription>,
    pub(super) transport: Arc<W::Line>,
    /// Whom to tell when it ends; gone when nobody is left who could use another.
    owner: Option<Weak<dyn SessionOwner<W>>>,
    pub(super) reports: ChangeNotifier,
    /// Who there was that could be served in it, when it began.
    pub(super) census: ListenerCensus,
    pub(super) state: Mutex<SessionState>,
    /// Stops the reader of what is said beside calls.
    pub(super) over: CancellationToken,
    /// Nothing can arrive outside a call's own response.
    deaf: AtomicBool,
    /// Used since [`UpstreamSession::take_used`] was last asked.
    used: AtomicBool,
    /// Somebody can be asked in it.
    is_askable: bool,
    /// A client of the older era has opened it, and goes on using it: it is not ours to end, and
    /// what is said in it is for the client to hear.
    pub(super) is_clients: bool,
    /// The id of a client's session, by which its calls find the same queue.
    client_id: Option<HeaderValue>,
    /// What is queued in a session of ours, once something is.
    queue: OnceLock<Arc<OutboundQueue>>,
    /// Of one whose call the process before this one has made.
    resuming: Option<Box<ResumingStream>>,
    /// Where it is ours.
    _counted: Option<OpenSessionGuard>,
}

/// The stream of a call that is taken up.
struct ResumingStream {
    /// The last event that is known.
    behind: Option<String>,
    /// The server has said something in it.
    resumed: CancellationToken,
}

/// How long the answer to a question waits for the stream of its call to be taken up. Until a server has written to
/// the new stream it may have registered neither, and what it says then, in either, is lost: the call would end, and
/// nobody hear of it.
const TAKING_UP: Duration = Duration::from_secs(2);

/// The lock guards a few lines each time. It is never held while waiting; where both are needed,
/// the group's lock is taken first.
#[derive(Default)]
pub(super) struct SessionState {
    pub(super) calls: HashMap<u64, InFlightCall, RandomState>,
    /// Calls that may be asked and have left without their ends. The server may still be at them, so what it
    /// asks or says without naming a call may be meant for one of those, whoever else is in flight.
    pub(super) abandoned: HashSet<u64, RandomState>,
    /// Others that have left so. Nothing that names no call is for those; a server that answers none of many is given up.
    pub(super) unanswered: HashSet<u64, RandomState>,
    /// The server's questions outside any call that were put to a client, until the server has their answers.
    pub(super) unattributed: Vec<UnattributedRequest>,
    /// Everybody who still needs the session: calls, and farewells under way.
    holds: usize,
    /// No new calls; closed when the last stay ends.
    retired: bool,
    /// The server has ended it, or it has been closed: nothing more to say to it.
    pub(super) ended: bool,
    /// When a call in it was last cancelled.
    pub(super) cancelled_at: Option<Instant>,
    /// Another process goes on with a call in it: it is not ours to end.
    is_released: bool,
}

/// A call whose answer is awaited.
pub(super) struct InFlightCall {
    pub(super) mailbox: Arc<SessionMailbox>,
    /// The server may ask the client something while it serves this.
    pub(super) may_be_asked: bool,
    /// Whether it has become a task, where it can.
    deferral: Option<Deferral>,
    /// No other call that may be asked is on this session.
    pub(super) exclusive: bool,
    /// The server's questions that were put to this call, until the server has their answers.
    pub(super) requests: Vec<RequestId>,
    /// Those that were put to it before it was taken up. A server may say them again, as they may stand behind the
    /// event that is the last that is known, and they may have been answered by then.
    pub(super) known: Box<[RequestId]>,
}

/// A question outside any call.
pub(super) struct UnattributedRequest {
    /// Its id at the server.
    pub(super) theirs: RequestId,
    /// Its id at the client that it was put to.
    pub(super) own: RequestId,
    pub(super) client: Weak<dyn BroadcastListener>,
}

/// Who keeps the sessions of somebody, and hears what becomes of each.
pub(super) trait SessionOwner<W: Transport>: Send + Sync {
    /// It has ended, or is to take no more calls.
    fn remove(self: Arc<Self>, session: &Arc<UpstreamSession<W>>);

    /// It has reported a change of what is listed.
    fn use_for_lists(&self, session: &Arc<UpstreamSession<W>>);

    /// That each of the resources that are subscribed in it has changed.
    fn resource_updates(&self, session: &Arc<UpstreamSession<W>>) -> Vec<Frame>;

    /// Who else hears what is said in it.
    fn listeners(&self) -> &BroadcastListeners;

    /// Something may be free that somebody waits for.
    fn serve_queue(self: Arc<Self>);

    /// Waits until there is another session for those who listen, or it is clear that there is none yet.
    fn wait_for_successor(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

/// Keeps a session open. A call's stay also keeps it in the session's table.
pub(super) struct SessionHold<W: Transport> {
    pub(super) session: Arc<UpstreamSession<W>>,
    call: Option<u64>,
}

/// Calls that may have left a session without their ends, where it is kept for others.
const ABANDONED: usize = 256;

/// Calls of a session that are cancelled at the same time when it is closed.
const AT_ONCE: usize = 32;

// === impl Session ===

impl<W: Transport> UpstreamSession<W> {
    /// A session that has been opened.
    pub(super) fn new(
        server: Arc<ServerContext<W>>,
        description: UpstreamDescription,
        line: W::Line,
        is_askable: bool,
        keeper: Weak<dyn SessionOwner<W>>,
        reports: ChangeNotifier,
    ) -> Self {
        let session = Self {
            is_askable,
            reports,
            census: keeper.upgrade().map(|keeper| keeper.listeners().census()).unwrap_or_default(),
            _counted: Some(server.count_session()),
            ..Self::with_owner(server, description, Arc::new(line), Some(keeper))
        };
        session.server.set_description(&session.description);
        session
    }

    /// The session that the process before this one has used for a call.
    pub(super) fn resumed(server: Arc<ServerContext<W>>, line: Arc<W::Line>, anchor: &CallAnchor) -> Self {
        let description = UpstreamDescription {
            version: anchor.revision.clone(),
            server_info: Bytes::copy_from_slice(anchor.server_info.as_bytes()),
            ..UpstreamDescription::unknown()
        };
        let session = Self::with_owner(server, description, line, None);
        session.deaf.store(anchor.is_clients, Ordering::Relaxed);
        let client_id = anchor.is_clients.then(|| HeaderValue::from_str(&anchor.session).ok()).flatten();
        let resuming =
            ResumingStream { behind: anchor.last_event.clone(), resumed: CancellationToken::new() };
        Self { is_clients: anchor.is_clients, client_id, resuming: Some(Box::new(resuming)), ..session }
    }

    /// The stream of a call in it has come to this event.
    pub(super) fn note_event(&self, event: Option<&str>) {
        if let Some(resuming) = self.resuming.as_ref().filter(|resuming| resuming.behind.as_deref() != event)
        {
            resuming.resumed.cancel();
        }
    }

    /// Waits until the stream of the call is taken up, but no longer than that may take.
    async fn wait_resumed(&self) {
        let Some(resuming) = &self.resuming else { return };
        tokio::select! {
            _ = timeout(TAKING_UP, resuming.resumed.cancelled()) => {}
            () = self.server.work.closing.cancelled() => {}
        }
    }

    /// The session of a client of the older era, which has this id where it has one.
    pub(super) fn of_client(server: Arc<ServerContext<W>>, line: W::Line, id: Option<HeaderValue>) -> Self {
        let session = Self::with_owner(server, UpstreamDescription::unknown(), Arc::new(line), None);
        // What is said there beside calls is heard by the client.
        session.deaf.store(true, Ordering::Relaxed);
        Self { is_clients: true, client_id: id, ..session }
    }

    fn with_owner(
        server: Arc<ServerContext<W>>,
        description: UpstreamDescription,
        line: Arc<W::Line>,
        keeper: Option<Weak<dyn SessionOwner<W>>>,
    ) -> Self {
        Self {
            over: server.work.closing.child_token(),
            number: server.next_session(),
            server,
            description: Arc::new(description),
            transport: line,
            owner: keeper,
            reports: ChangeNotifier::default(),
            census: ListenerCensus::default(),
            state: Mutex::default(),
            deaf: AtomicBool::new(false),
            used: AtomicBool::new(true),
            is_askable: true,
            is_clients: false,
            client_id: None,
            queue: OnceLock::new(),
            resuming: None,
            _counted: None,
        }
    }

    pub(super) fn owner(&self) -> Option<Arc<dyn SessionOwner<W>>> {
        self.owner.as_ref()?.upgrade()
    }

    /// Registers a call before it is sent, so that nothing can arrive for it unseen. `Missing` where the
    /// session has ended: the server has been told so, or will be, and is sent nothing behind that.
    pub(super) fn register_call(
        self: &Arc<Self>,
        request: &CallRequest,
        mailbox: &Arc<SessionMailbox>,
        exclusive: bool,
    ) -> Option<SessionHold<W>> {
        let call = InFlightCall {
            mailbox: mailbox.clone(),
            may_be_asked: request.method.can_request_input(),
            deferral: request.deferral.clone(),
            exclusive,
            requests: Vec::new(),
            known: Box::default(),
        };
        self.used.store(true, Ordering::Relaxed);
        let mut inside = self.state.lock();
        // Under the lock: whoever ends the session says so here, and cancels the calls that are in it then.
        if inside.ended && !self.is_clients {
            return None;
        }
        if call.may_be_asked && !exclusive {
            // It is beside others, then, whatever they were promised: nothing can be told to be theirs.
            inside.calls.values_mut().for_each(|other| other.exclusive = false);
        }
        inside.calls.insert(request.id, call);
        inside.holds += 1;
        Some(SessionHold { session: self.clone(), call: Some(request.id) })
    }

    /// These questions were put to a call before it was taken up.
    pub(super) fn restore_requests(&self, call: u64, open: &[RequestId]) {
        if let Some(call) = self.state.lock().calls.get_mut(&call) {
            call.requests.extend_from_slice(open);
            call.known = open.into();
        }
    }

    /// Keeps the session open for something that is no call.
    fn hold(self: &Arc<Self>) -> SessionHold<W> {
        self.state.lock().holds += 1;
        SessionHold { session: self.clone(), call: None }
    }

    /// Answers, in the background, a question that the server asked in the course of this call.
    pub(super) fn answer_later(self: &Arc<Self>, call: u64, id: RequestId, outcome: &Result<Bytes, Bytes>) {
        let body = message::response(&id, outcome);
        self.hold().send_in_turn(OutboundMessage::Response { call, id }, body);
    }

    /// Answers, in the background, a request of the server that concerns no call. One that asks faster
    /// than it takes the answers does not get them all.
    pub(super) fn respond_later(self: &Arc<Self>, id: &RequestId, outcome: &Result<Bytes, Bytes>) {
        self.send_later(message::response(id, outcome));
    }

    /// Tells the server something, in the background. One that does not take what it is told is not told all.
    pub(super) fn send_later(self: &Arc<Self>, body: Bytes) {
        if let Some(courtesy) = self.server.outbound.best_effort() {
            self.hold().send_in_turn(courtesy, body);
        }
    }

    /// Tells the server, in the background, that nobody waits any more for a call that its client has made.
    pub(super) fn cancel_later(self: &Arc<Self>, call: &RequestId, reason: &str) {
        self.hold().send_in_turn(OutboundMessage::Cancel, legacy::cancelled_notification(call, reason));
    }

    /// A question is over, be it answered or taken back. Gives the call that it was put to, if that is
    /// still in flight.
    pub(super) fn finish_request(&self, call: u64, id: &RequestId) -> Option<Arc<SessionMailbox>> {
        let mut inside = self.state.lock();
        if call == OF_NO_CALL {
            inside.take_unattributed(id);
        }
        let call = inside.calls.get_mut(&call)?;
        if let Some(at) = call.requests.iter().position(|question| question == id) {
            call.requests.swap_remove(at);
        }
        Some(call.mailbox.clone())
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Relaxed)
    }

    /// Nothing is heard outside a call's own response, or not any more: calls that wait for an answer outside their own
    /// response wait in vain.
    pub(super) fn set_deaf(&self) {
        self.deaf.store(true, Ordering::Relaxed);
        let calls: Vec<_> = self.state.lock().calls.values().map(|call| call.mailbox.clone()).collect();
        for mailbox in calls {
            mailbox.session_ended();
        }
        // Nothing can be asked where it could not be told apart: who waits for a session can share it.
        if let Some(keeper) = self.owner() {
            keeper.serve_queue();
        }
    }

    /// What was said beside calls for a while was not heard: whatever the server says it reports may have changed.
    pub(super) fn notify_gap(self: &Arc<Self>) {
        let Some(keeper) = self.owner() else { return };
        for notice in
            self.description.reported_lists().map(message::list_changed).chain(keeper.resource_updates(self))
        {
            self.receive_off_stream(notice);
        }
    }

    /// Whether somebody still needs it, who has to be told when it is closed.
    pub(super) fn is_needed(&self) -> bool {
        let inside = self.state.lock();
        inside.holds > 0 && !inside.ended
    }

    /// Whether a call is in flight on it that the server may ask something.
    pub(super) fn may_be_asked(&self) -> bool {
        self.state.lock().calls.values().any(|call| call.may_be_asked)
    }

    /// Calls that are in flight on it.
    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().calls.len()
    }

    /// Whether a call is in flight on it that the server may ask something, and that is a task.
    pub(super) fn has_task(&self) -> bool {
        self.state.lock().calls.values().any(|call| call.may_be_asked && call.is_task())
    }

    /// The same, and that is none.
    pub(super) fn has_waited_call(&self) -> bool {
        self.state.lock().calls.values().any(|call| call.may_be_asked && !call.is_task())
    }

    /// Whether all calls in flight on it that the server may ask something are tasks, and there is one.
    pub(super) fn is_held_by_tasks(&self) -> bool {
        let inside = self.state.lock();
        let mut askable = inside.calls.values().filter(|call| call.may_be_asked).peekable();
        askable.peek().is_some() && askable.all(InFlightCall::is_task)
    }

    /// Whether all that was ever called in it was called by one client: what is left of a call of its is nobody
    /// else's. It takes the audience's lock, and may drop the last of a listener: not under the session's.
    pub(super) fn is_of_one_client(&self) -> bool {
        self.owner().is_some_and(|keeper| keeper.listeners().sole_listener(self.census).is_some())
    }

    /// Whether it has been in use since this was last asked.
    pub(super) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed) | (self.state.lock().holds > 0)
    }

    /// No new calls from here on. Those in flight go on.
    pub(super) fn retire(self: &Arc<Self>) {
        if self.is_clients {
            return;
        }
        let close = {
            let mut inside = self.state.lock();
            inside.retired = true;
            inside.holds == 0 && !std::mem::replace(&mut inside.ended, true)
        };
        if let Some(keeper) = self.owner() {
            keeper.remove(self);
        }
        if close {
            let session = self.clone();
            self.server.work.spawn(async move { session.close_after_successor().await });
        }
    }

    /// The server no longer knows it. Calls that wait for an answer outside their own response wait
    /// in vain.
    pub(super) fn mark_ended(self: &Arc<Self>) {
        let calls: Vec<_> = {
            let mut inside = self.state.lock();
            inside.retired = true;
            inside.ended = true;
            inside.calls.values().map(|call| call.mailbox.clone()).collect()
        };
        self.over.cancel();
        self.cancel_unattributed();
        self.reports.notify_all_changed();
        if let Some(keeper) = self.owner() {
            keeper.listeners().notify_lists_changed(&self.description);
            keeper.remove(self);
        }
        for mailbox in calls {
            mailbox.session_ended();
        }
    }

    /// Cancels what is in flight and ends the session, as far as the server survives that.
    pub(super) async fn close(self: Arc<Self>) {
        let (calls, known) = {
            let mut inside = self.state.lock();
            inside.retired = true;
            let known = !std::mem::replace(&mut inside.ended, true);
            (std::mem::take(&mut inside.calls), known)
        };
        for call in calls.values() {
            call.mailbox.push(CallMessage::Lost(CallError::Closing));
        }
        if known {
            let cancelling = stream::iter(calls.into_keys()).for_each_concurrent(AT_ONCE, |id| {
                let session = self.clone();
                async move { session.cancel_on_close(id).await }
            });
            // The server has these, and whatever was queued before, before the session ends. One that takes none of them
            // holds up no end.
            let _ = tokio::join!(timeout(TURN, cancelling), self.flush());
            self.close_at_server().await;
        }
    }

    async fn cancel_on_close(&self, call: u64) {
        let _place = self.server.outbound.acquire_one().await;
        // A server that does not take it sees the session end, or the connection.
        let _ = self
            .transport
            .send_message(message::cancelled(call, "the proxy is shutting down"), RetryOnLoss::No)
            .await;
    }

    /// Waits until what is queued has been sent, at most for [`TURN`].
    async fn flush(&self) {
        if let Some(queue) = self.queue.get() {
            queue.flush().await;
        }
    }

    /// Queues a message behind those that are to be sent before it.
    fn enqueue(&self) -> QueuedMessage {
        match &self.client_id {
            Some(id) => self.server.client_queues.enqueue(id),
            None => self.queue.get_or_init(Arc::default).enqueue(),
        }
    }

    /// Says goodbye, but not before another session hears what somebody listens for.
    async fn close_after_successor(&self) {
        if let Some(keeper) = self.owner() {
            tokio::select! {
                () = keeper.wait_for_successor() => {}
                // There is no place for another but its own.
                () = self.server.transport.eviction_failed() => {}
            }
        }
        self.close_at_server().await;
    }

    async fn close_at_server(&self) {
        self.over.cancel();
        if self.state.lock().is_released {
            return;
        }
        self.cancel_unattributed();
        let _place = self.server.outbound.acquire_one().await;
        self.transport.close().await;
    }

    /// What was asked in it outside any call is answered by nobody any more.
    fn cancel_unattributed(&self) {
        let questions = std::mem::take(&mut self.state.lock().unattributed);
        questions.iter().for_each(|question| question.cancel("the server is no longer there"));
    }

    /// Tells the server something, again where it was not taken. If it cannot be told, whom it
    /// concerns hears of it.
    async fn send_outbound(&self, errand: OutboundMessage, body: Bytes) {
        if let OutboundMessage::Response { .. } = errand {
            self.wait_resumed().await;
        }
        let since = self.server.clock.now();
        let outcome = self.send_with_retries(&errand, body).await;
        if let (OutboundMessage::Cancel, Ok(())) = (&errand, &outcome) {
            metrics::record_cancel(&self.server.route, self.server.clock.now() - since);
        }
        if let Err(lost) = &outcome {
            MessageUndelivered { what: errand.describe(), error: lost }.emit();
        }
        let OutboundMessage::Response { call, id } = errand else { return };
        let asked = self.finish_request(call, &id);
        if let (Some(mailbox), Err(lost)) = (asked, outcome) {
            mailbox.push(CallMessage::Lost(CallError::ResponseUndelivered(lost.to_string())));
        }
    }

    async fn send_with_retries(&self, errand: &OutboundMessage, body: Bytes) -> Result<(), CallError> {
        for pause in PAUSES {
            match self.send_once(errand, body.clone()).await {
                Err(lost) if lost.is_transient() => {}
                other => return other,
            }
            if !pause.is_zero() {
                tokio::select! {
                    () = sleep(pause) => {}
                    // There is no time left to wait.
                    () = self.server.work.closing.cancelled() => {}
                }
            }
        }
        self.send_once(errand, body).await
    }

    async fn send_once(&self, errand: &OutboundMessage, body: Bytes) -> Result<(), CallError> {
        let _places = self.server.outbound.acquire(errand).await;
        self.transport.send_message(body, RetryOnLoss::Yes).await
    }
}

// === impl InFlight ===

impl InFlightCall {
    fn is_task(&self) -> bool {
        self.deferral.as_ref().is_some_and(Deferral::is_deferred)
    }
}

// === impl Stay ===

impl<W: Transport> SessionHold<W> {
    /// The call has ended. Whether it had still been in flight: whoever hears `true` says what is
    /// to be said about it, and nobody else does.
    pub(super) fn finish(&mut self) -> bool {
        let Some(call) = self.call.take() else { return false };
        self.session.state.lock().calls.remove(&call).is_some()
    }

    /// The call leaves without its end: the server may still be at it. Nothing that names no call is
    /// given to anybody in this session from now on, and no further call is sent in it. Whether the
    /// call had still been in flight, as in [`SessionHold::finish`].
    pub(super) fn abandon(&mut self) -> bool {
        let Some(call) = self.call.take() else { return false };
        let was_in_flight = {
            let mut inside = self.session.state.lock();
            inside.calls.remove(&call).map(|in_flight| {
                let left = match in_flight.may_be_asked {
                    true => &mut inside.abandoned,
                    false => &mut inside.unanswered,
                };
                left.insert(call);
                (in_flight.may_be_asked, left.len())
            })
        };
        let Some((may_be_asked, left)) = was_in_flight else { return false };
        // Where nobody can be asked, what is left of a call can be put to nobody else. Nor is it where the server
        // asks for the first time: the session is given up then.
        let is_trusted = !may_be_asked
            || !self.session.is_askable
            || self.session.server.request_placement.can_share_sessions()
            || self.session.is_of_one_client();
        if !(W::IS_COSTLY && is_trusted && left < ABANDONED) {
            self.session.retire();
        }
        true
    }

    /// Another process goes on with the call: its server hears nothing, and the session stays.
    pub(super) fn release(&mut self) {
        self.session.state.lock().is_released = true;
        self.finish();
    }

    /// Tells the server that nobody waits for this call any more, and keeps the session from
    /// further ones: what is left of the call may go on in it (WIRE, B 4: with some servers a
    /// cancelled request ends the session).
    pub(super) fn cancel(mut self, reason: &'static str) {
        let Some(call) = self.call else { return };
        self.session.state.lock().cancelled_at = Some(self.session.server.clock.now());
        if self.abandon() {
            self.send_in_turn(OutboundMessage::Cancel, message::cancelled(call, reason));
        }
    }

    /// Sends a message in the background, after those that were to be sent before it. Servers on the
    /// Python SDK lose the whole session if the answer to a question comes while they cancel the call
    /// that asked; behind the cancellation it does no harm.
    fn send_in_turn(self, errand: OutboundMessage, body: Bytes) {
        let mut queued = self.session.enqueue();
        let server = self.session.server.clone();
        server.work.spawn(async move {
            queued.wait_turn().await;
            self.session.send_outbound(errand, body).await;
            drop(queued);
        });
    }
}

impl<W: Transport> Drop for SessionHold<W> {
    fn drop(&mut self) {
        self.finish();
        let close = {
            let mut inside = self.session.state.lock();
            inside.holds -= 1;
            inside.retired && inside.holds == 0 && !std::mem::replace(&mut inside.ended, true)
        };
        if close {
            let session = self.session.clone();
            self.session.server.work.spawn(async move { session.close_after_successor().await });
        }
    }
}
