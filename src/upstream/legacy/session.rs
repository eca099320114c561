//! One session with a server, and the calls in flight in it.
//!
//! `attribution` assigns messages to the calls.

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

/// A session, or its equivalent with a server without sessions.
pub(super) struct UpstreamSession<W: Transport> {
    pub(super) server: Arc<ServerContext<W>>,
    /// Greater than the numbers of all earlier sessions.
    pub(super) number: u64,
    pub(super) description: Arc<UpstreamDescription>,
    pub(super) transport: Arc<W::Line>,
    /// Owner to inform of the session's end; dropped when no caller can use another session.
    owner: Option<Weak<dyn SessionOwner<W>>>,
    pub(super) reports: ChangeNotifier,
    /// Listeners that could be served in the session at its start.
    pub(super) census: ListenerCensus,
    pub(super) state: Mutex<SessionState>,
    /// Stops the reader of the GET stream.
    pub(super) over: CancellationToken,
    /// Whether no message can arrive outside a call's own response.
    deaf: AtomicBool,
    /// Whether the session was used since the last [`UpstreamSession::take_used`].
    used: AtomicBool,
    /// Whether its clients accept input requests.
    is_askable: bool,
    /// Whether a legacy client opened the session: the proxy does not end it, and messages outside calls are
    /// the client's.
    pub(super) is_clients: bool,
    /// Id of a client's session, by which its calls find the same queue.
    client_id: Option<HeaderValue>,
    /// Queue of a session of the proxy, once a message was queued.
    queue: OnceLock<Arc<OutboundQueue>>,
    /// State of a resumed call's stream.
    resuming: Option<Box<ResumingStream>>,
    /// Counts a session of the proxy.
    _counted: Option<OpenSessionGuard>,
}

/// Stream of a resumed call.
struct ResumingStream {
    /// Last known event id.
    behind: Option<String>,
    /// Cancelled once the server has sent an event after it.
    resumed: CancellationToken,
}

/// Time for which a response waits for its call's stream to be resumed. Until a server has written to the new
/// stream it may have registered neither stream, and a message sent then would be lost, even the call's
/// result.
const TAKING_UP: Duration = Duration::from_secs(2);

/// Locked for a few statements only, never while waiting; the pool's lock is taken first.
#[derive(Default)]
pub(super) struct SessionState {
    pub(super) calls: HashMap<u64, InFlightCall, RandomState>,
    /// Abandoned calls that may receive requests. The server may still execute them, so a request or message
    /// without a call may belong to one of them.
    pub(super) abandoned: HashSet<u64, RandomState>,
    /// Other abandoned calls, which messages without a call cannot belong to; a server that leaves many
    /// unanswered is given up.
    pub(super) unanswered: HashSet<u64, RandomState>,
    /// Open requests of the server outside calls that were sent to a client.
    pub(super) unattributed: Vec<UnattributedRequest>,
    /// Number of users of the session: calls, and messages being sent.
    holds: usize,
    /// No new calls; closed when the last hold is dropped.
    retired: bool,
    /// The server has ended the session, or it has been closed: nothing more is sent in it.
    pub(super) ended: bool,
    /// Time of the last cancellation in it.
    pub(super) cancelled_at: Option<Instant>,
    /// Another process continues a call in it: it must not be ended.
    is_released: bool,
}

/// A call in flight.
pub(super) struct InFlightCall {
    pub(super) mailbox: Arc<SessionMailbox>,
    /// Whether the server may send requests to the client during the call.
    pub(super) may_be_asked: bool,
    /// Deferral state, for a call that may become a task.
    deferral: Option<Deferral>,
    /// Whether no other call that may receive requests is in the session.
    pub(super) exclusive: bool,
    /// Open requests of the server in this call.
    pub(super) requests: Vec<RequestId>,
    /// Requests that were open when the call was resumed. The server may send them again, because they may
    /// follow the last known event, and they may be answered by then.
    pub(super) known: Box<[RequestId]>,
}

/// A request of the server outside calls.
pub(super) struct UnattributedRequest {
    /// Id at the server.
    pub(super) theirs: RequestId,
    /// Id at the client that got it.
    pub(super) own: RequestId,
    pub(super) client: Weak<dyn BroadcastListener>,
}

/// Owner of an identity's sessions.
pub(super) trait SessionOwner<W: Transport>: Send + Sync {
    /// Removes a session that has ended or takes no more calls.
    fn remove(self: Arc<Self>, session: &Arc<UpstreamSession<W>>);

    /// Uses the session for lists, after it reported a change.
    fn use_for_lists(&self, session: &Arc<UpstreamSession<W>>);

    /// Update notifications for all resources subscribed in the session.
    fn resource_updates(&self, session: &Arc<UpstreamSession<W>>) -> Vec<Frame>;

    /// Listeners for messages outside calls.
    fn listeners(&self) -> &BroadcastListeners;

    /// Serves the queue after a session may have become available.
    fn serve_queue(self: Arc<Self>);

    /// Waits until another session serves the listeners, or none can be opened now.
    fn wait_for_successor(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

/// Keeps a session open. A call's hold also registers it in the session.
pub(super) struct SessionHold<W: Transport> {
    pub(super) session: Arc<UpstreamSession<W>>,
    call: Option<u64>,
}

/// Limit of abandoned calls in a session that is kept.
const ABANDONED: usize = 256;

/// Limit of concurrent cancellations when a session is closed.
const AT_ONCE: usize = 32;

// === impl UpstreamSession ===

impl<W: Transport> UpstreamSession<W> {
    /// A session that was opened.
    pub(super) fn new(
        server: Arc<ServerContext<W>>,
        description: UpstreamDescription,
        line: W::Line,
        is_askable: bool,
        owner: Weak<dyn SessionOwner<W>>,
        reports: ChangeNotifier,
    ) -> Self {
        let session = Self {
            is_askable,
            reports,
            census: owner.upgrade().map(|owner| owner.listeners().census()).unwrap_or_default(),
            _counted: Some(server.count_session()),
            ..Self::with_owner(server, description, Arc::new(line), Some(owner))
        };
        session.server.set_description(&session.description);
        session
    }

    /// Session of a previous process's call.
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

    /// Notes an event of the call's stream.
    pub(super) fn note_event(&self, event: Option<&str>) {
        if let Some(resuming) = self.resuming.as_ref().filter(|resuming| resuming.behind.as_deref() != event)
        {
            resuming.resumed.cancel();
        }
    }

    /// Waits until the call's stream is resumed, up to a limit.
    async fn wait_resumed(&self) {
        let Some(resuming) = &self.resuming else { return };
        tokio::select! {
            _ = timeout(TAKING_UP, resuming.resumed.cancelled()) => {}
            () = self.server.work.closing.cancelled() => {}
        }
    }

    /// Session of a legacy client, with its id if there is one.
    pub(super) fn of_client(server: Arc<ServerContext<W>>, line: W::Line, id: Option<HeaderValue>) -> Self {
        let session = Self::with_owner(server, UpstreamDescription::unknown(), Arc::new(line), None);
        // The client reads the messages outside calls.
        session.deaf.store(true, Ordering::Relaxed);
        Self { is_clients: true, client_id: id, ..session }
    }

    fn with_owner(
        server: Arc<ServerContext<W>>,
        description: UpstreamDescription,
        line: Arc<W::Line>,
        owner: Option<Weak<dyn SessionOwner<W>>>,
    ) -> Self {
        Self {
            over: server.work.closing.child_token(),
            number: server.next_session(),
            server,
            description: Arc::new(description),
            transport: line,
            owner,
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

    /// Registers a call before it is sent, so that no message for it is missed. `None` if the session has
    /// ended: its end has been or will be sent, and nothing may follow it.
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
        let mut state = self.state.lock();
        // Under the lock: the end of the session is set here before its calls are cancelled.
        if state.ended && !self.is_clients {
            return None;
        }
        if call.may_be_asked && !exclusive {
            // The call shares the session now, whatever was assumed: requests cannot be attributed.
            state.calls.values_mut().for_each(|other| other.exclusive = false);
        }
        state.calls.insert(request.id, call);
        state.holds += 1;
        Some(SessionHold { session: self.clone(), call: Some(request.id) })
    }

    /// Restores the requests that were open when the call was resumed.
    pub(super) fn restore_requests(&self, call: u64, open: &[RequestId]) {
        if let Some(call) = self.state.lock().calls.get_mut(&call) {
            call.requests.extend_from_slice(open);
            call.known = open.into();
        }
    }

    /// Keeps the session open for something other than a call.
    fn hold(self: &Arc<Self>) -> SessionHold<W> {
        self.state.lock().holds += 1;
        SessionHold { session: self.clone(), call: None }
    }

    /// Responds to a request of the server in this call, in the background.
    pub(super) fn answer_later(self: &Arc<Self>, call: u64, id: RequestId, outcome: &Result<Bytes, Bytes>) {
        let body = message::response(&id, outcome);
        self.hold().send_in_turn(OutboundMessage::Response { call, id }, body);
    }

    /// Responds to a request of the server outside calls, in the background. A server that sends requests
    /// faster than it reads the responses does not get all of them.
    pub(super) fn respond_later(self: &Arc<Self>, id: &RequestId, outcome: &Result<Bytes, Bytes>) {
        self.send_later(message::response(id, outcome));
    }

    /// Sends a message in the background. Dropped if too many are waiting.
    pub(super) fn send_later(self: &Arc<Self>, body: Bytes) {
        if let Some(outbound) = self.server.outbound.best_effort() {
            self.hold().send_in_turn(outbound, body);
        }
    }

    /// Cancels a call of the session's client, in the background.
    pub(super) fn cancel_later(self: &Arc<Self>, call: &RequestId, reason: &str) {
        self.hold().send_in_turn(OutboundMessage::Cancel, legacy::cancelled_notification(call, reason));
    }

    /// Removes an answered or cancelled request. Returns the mailbox of its call, if that is still in flight.
    pub(super) fn finish_request(&self, call: u64, id: &RequestId) -> Option<Arc<SessionMailbox>> {
        let mut state = self.state.lock();
        if call == OF_NO_CALL {
            state.take_unattributed(id);
        }
        let call = state.calls.get_mut(&call)?;
        if let Some(at) = call.requests.iter().position(|question| question == id) {
            call.requests.swap_remove(at);
        }
        Some(call.mailbox.clone())
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Relaxed)
    }

    /// Marks that no message can arrive outside a call's own response: calls that are answered off-stream
    /// will not complete.
    pub(super) fn set_deaf(&self) {
        self.deaf.store(true, Ordering::Relaxed);
        let calls: Vec<_> = self.state.lock().calls.values().map(|call| call.mailbox.clone()).collect();
        for mailbox in calls {
            mailbox.session_ended();
        }
        // Requests arrive on the calls' streams only: queued calls can share the session.
        if let Some(owner) = self.owner() {
            owner.serve_queue();
        }
    }

    /// Sends the notifications that may have been missed: every list whose changes the server reports may
    /// have changed.
    pub(super) fn notify_gap(self: &Arc<Self>) {
        let Some(owner) = self.owner() else { return };
        for notice in
            self.description.reported_lists().map(message::list_changed).chain(owner.resource_updates(self))
        {
            self.receive_off_stream(notice);
        }
    }

    /// Whether the session has users and has not ended.
    pub(super) fn is_needed(&self) -> bool {
        let state = self.state.lock();
        state.holds > 0 && !state.ended
    }

    /// Whether a call that may receive requests is in flight.
    pub(super) fn may_be_asked(&self) -> bool {
        self.state.lock().calls.values().any(|call| call.may_be_asked)
    }

    /// Number of calls in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().calls.len()
    }

    /// Whether a task that may receive requests is in flight.
    pub(super) fn has_task(&self) -> bool {
        self.state.lock().calls.values().any(|call| call.may_be_asked && call.is_task())
    }

    /// Whether a call that may receive requests and is not a task is in flight.
    pub(super) fn has_waited_call(&self) -> bool {
        self.state.lock().calls.values().any(|call| call.may_be_asked && !call.is_task())
    }

    /// Whether all calls in flight that may receive requests are tasks, and there is one.
    pub(super) fn is_held_by_tasks(&self) -> bool {
        let state = self.state.lock();
        let mut askable = state.calls.values().filter(|call| call.may_be_asked).peekable();
        askable.peek().is_some() && askable.all(InFlightCall::is_task)
    }

    /// Whether all calls ever made in it are of one client, so that requests of an abandoned call are that
    /// client's. Takes the listeners' lock, and may drop a listener: do not hold the session's lock.
    pub(super) fn is_of_one_client(&self) -> bool {
        self.owner().is_some_and(|owner| owner.listeners().sole_listener(self.census).is_some())
    }

    /// Returns whether the session was used since the last query.
    pub(super) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed) | (self.state.lock().holds > 0)
    }

    /// Stops giving it new calls. Those in flight continue.
    pub(super) fn retire(self: &Arc<Self>) {
        if self.is_clients {
            return;
        }
        let close = {
            let mut state = self.state.lock();
            state.retired = true;
            state.holds == 0 && !std::mem::replace(&mut state.ended, true)
        };
        if let Some(owner) = self.owner() {
            owner.remove(self);
        }
        if close {
            let session = self.clone();
            self.server.work.spawn(async move { session.close_after_successor().await });
        }
    }

    /// Marks the session as lost at the server. Calls answered off-stream fail.
    pub(super) fn mark_ended(self: &Arc<Self>) {
        let calls: Vec<_> = {
            let mut state = self.state.lock();
            state.retired = true;
            state.ended = true;
            state.calls.values().map(|call| call.mailbox.clone()).collect()
        };
        self.over.cancel();
        self.cancel_unattributed();
        self.reports.notify_all_changed();
        if let Some(owner) = self.owner() {
            owner.listeners().notify_lists_changed(&self.description);
            owner.remove(self);
        }
        for mailbox in calls {
            mailbox.session_ended();
        }
    }

    /// Cancels its calls and ends the session, if the server survives that.
    pub(super) async fn close(self: Arc<Self>) {
        let (calls, known) = {
            let mut state = self.state.lock();
            state.retired = true;
            let known = !std::mem::replace(&mut state.ended, true);
            (std::mem::take(&mut state.calls), known)
        };
        for call in calls.values() {
            call.mailbox.push(CallMessage::Lost(CallError::Closing));
        }
        if known {
            let cancelling = stream::iter(calls.into_keys()).for_each_concurrent(AT_ONCE, |id| {
                let session = self.clone();
                async move { session.cancel_on_close(id).await }
            });
            // The cancellations, and messages queued before, are sent before the session ends, within a time
            // limit.
            let _ = tokio::join!(timeout(TURN, cancelling), self.flush());
            self.close_at_server().await;
        }
    }

    async fn cancel_on_close(&self, call: u64) {
        let _permit = self.server.outbound.acquire_one().await;
        // A server that does not read it sees the session or the connection end.
        let _ = self
            .transport
            .send_message(message::cancelled(call, "the proxy is shutting down"), RetryOnLoss::No)
            .await;
    }

    /// Waits until the queue has been sent, at most for [`TURN`].
    async fn flush(&self) {
        if let Some(queue) = self.queue.get() {
            queue.flush().await;
        }
    }

    /// Queues a message after the earlier ones.
    fn enqueue(&self) -> QueuedMessage {
        match &self.client_id {
            Some(id) => self.server.client_queues.enqueue(id),
            None => self.queue.get_or_init(Arc::default).enqueue(),
        }
    }

    /// Closes the session once another one serves its listeners.
    async fn close_after_successor(&self) {
        if let Some(owner) = self.owner() {
            tokio::select! {
                () = owner.wait_for_successor() => {}
                // No other session can be opened before this one is closed.
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
        let _permit = self.server.outbound.acquire_one().await;
        self.transport.close().await;
    }

    /// Cancels the open requests outside calls at their clients.
    fn cancel_unattributed(&self) {
        let questions = std::mem::take(&mut self.state.lock().unattributed);
        questions.iter().for_each(|question| question.cancel("the session with the server ended"));
    }

    /// Sends a message, with retries. A response that cannot be delivered fails its call.
    async fn send_outbound(&self, outbound: OutboundMessage, body: Bytes) {
        if let OutboundMessage::Response { .. } = outbound {
            self.wait_resumed().await;
        }
        let since = self.server.clock.now();
        let outcome = self.send_with_retries(&outbound, body).await;
        if let (OutboundMessage::Cancel, Ok(())) = (&outbound, &outcome) {
            metrics::record_cancel(&self.server.route, self.server.clock.now() - since);
        }
        if let Err(lost) = &outcome {
            MessageUndelivered { what: outbound.describe(), error: lost }.emit();
        }
        let OutboundMessage::Response { call, id } = outbound else { return };
        let asked = self.finish_request(call, &id);
        if let (Some(mailbox), Err(lost)) = (asked, outcome) {
            mailbox.push(CallMessage::Lost(CallError::ResponseUndelivered(lost.to_string())));
        }
    }

    async fn send_with_retries(&self, outbound: &OutboundMessage, body: Bytes) -> Result<(), CallError> {
        for pause in PAUSES {
            match self.send_once(outbound, body.clone()).await {
                Err(lost) if lost.is_transient() => {}
                other => return other,
            }
            if !pause.is_zero() {
                tokio::select! {
                    () = sleep(pause) => {}
                    // At shutdown there is no time to wait.
                    () = self.server.work.closing.cancelled() => {}
                }
            }
        }
        self.send_once(outbound, body).await
    }

    async fn send_once(&self, outbound: &OutboundMessage, body: Bytes) -> Result<(), CallError> {
        let _permits = self.server.outbound.acquire(outbound).await;
        self.transport.send_message(body, RetryOnLoss::Yes).await
    }
}

// === impl InFlightCall ===

impl InFlightCall {
    fn is_task(&self) -> bool {
        self.deferral.as_ref().is_some_and(Deferral::is_deferred)
    }
}

// === impl SessionHold ===

impl<W: Transport> SessionHold<W> {
    /// Ends the call. Returns whether it was still in flight: the first caller with `true` reports the
    /// result.
    pub(super) fn finish(&mut self) -> bool {
        let Some(call) = self.call.take() else { return false };
        self.session.state.lock().calls.remove(&call).is_some()
    }

    /// Abandons the call: the server may still execute it. Messages without a call are not delivered in this
    /// session from now on, and no further call is sent in it. Returns whether the call was still in flight,
    /// as [`SessionHold::finish`].
    pub(super) fn abandon(&mut self) -> bool {
        let Some(call) = self.call.take() else { return false };
        let was_in_flight = {
            let mut state = self.session.state.lock();
            state.calls.remove(&call).map(|in_flight| {
                let left = match in_flight.may_be_asked {
                    true => &mut state.abandoned,
                    false => &mut state.unanswered,
                };
                left.insert(call);
                (in_flight.may_be_asked, left.len())
            })
        };
        let Some((may_be_asked, left)) = was_in_flight else { return false };
        // If the clients accept no input requests, an abandoned call cannot reach another one. Nor can it
        // before the server's first request, which retires the session.
        let is_trusted = !may_be_asked
            || !self.session.is_askable
            || self.session.server.request_placement.can_share_sessions()
            || self.session.is_of_one_client();
        if !(W::IS_COSTLY && is_trusted && left < ABANDONED) {
            self.session.retire();
        }
        true
    }

    /// Releases the call to another process: it is not cancelled, and the session stays.
    pub(super) fn release(&mut self) {
        self.session.state.lock().is_released = true;
        self.finish();
    }

    /// Cancels the call at the server, and gives the session no further ones: the call may continue in it
    /// (WIRE, B 4: with some servers a cancelled request ends the session).
    pub(super) fn cancel(mut self, reason: &'static str) {
        let Some(call) = self.call else { return };
        self.session.state.lock().cancelled_at = Some(self.session.server.clock.now());
        if self.abandon() {
            self.send_in_turn(OutboundMessage::Cancel, message::cancelled(call, reason));
        }
    }

    /// Sends a message in the background, after those queued before it. Servers on the Python SDK lose the
    /// session if the response to a request arrives while they cancel the request's call; after the
    /// cancellation it is harmless.
    fn send_in_turn(self, outbound: OutboundMessage, body: Bytes) {
        let mut queued = self.session.enqueue();
        let server = self.session.server.clone();
        server.work.spawn(async move {
            queued.wait_turn().await;
            self.session.send_outbound(outbound, body).await;
            drop(queued);
        });
    }
}

impl<W: Transport> Drop for SessionHold<W> {
    fn drop(&mut self) {
        self.finish();
        let close = {
            let mut state = self.session.state.lock();
            state.holds -= 1;
            state.retired && state.holds == 0 && !std::mem::replace(&mut state.ended, true)
        };
        if close {
            let session = self.session.clone();
            self.session.server.work.spawn(async move { session.close_after_successor().await });
        }
    }
}
