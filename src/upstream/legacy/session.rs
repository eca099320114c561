//! One session with a server, and the calls in flight in it.
//!
//! `attribution` assigns messages to the calls.

use bytes::Bytes;
use foldhash::fast::RandomState;
use futures_util::{StreamExt, future::BoxFuture, stream};
use http::HeaderValue;
use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    attribution::NO_CALL,
    call_client::CallClient,
    listeners::{BroadcastListener, BroadcastListeners, ListenerCensus},
    mailbox::{CallMessage, SessionMailbox},
    message,
    outbound::{OutboundMessage, OutboundQueue, QUEUE_WAIT, QueuedMessage, RETRY_PAUSES},
    request::CallRequest,
    server::{OpenSessionGuard, ServerContext},
};
use crate::{
    dialect::legacy,
    protocol::{Frame, RequestId, code::INTERNAL_ERROR},
    runtime::{Clock, Mutex},
    telemetry::{Limit, MessageUndelivered, metrics},
    upstream::{
        CallAnchor, CallError, Deferral, UpstreamDescription,
        changes::ChangeNotifier,
        transport::{RetryOnLoss, Transport, TransportSession},
    },
};

/// A session with a legacy server, or its equivalent with a server without sessions.
pub(super) struct UpstreamSession<W: Transport> {
    pub(super) server: Arc<ServerContext<W>>,
    /// Greater than the numbers of all earlier sessions.
    pub(super) number: u64,
    pub(super) description: Arc<UpstreamDescription>,
    pub(super) transport: Arc<W::Session>,
    /// Owner to inform of the session's end. Unset, or dropped, when no caller can use another session.
    owner: Option<Weak<dyn SessionOwner<W>>>,
    /// Receives the change notifications of the session's server.
    pub(super) notifier: ChangeNotifier,
    /// Listeners that could be served in the session when it was opened.
    pub(super) listeners_at_start: ListenerCensus,
    pub(super) state: Mutex<SessionState>,
    /// Cancelled when the session closes; stops the reader of its GET stream.
    pub(super) stop_reader: CancellationToken,
    /// Whether no message can arrive outside the stream of a call's own response.
    has_no_off_stream: AtomicBool,
    /// Whether the session was used since the last [`UpstreamSession::take_used`].
    was_used: AtomicBool,
    /// Whether a legacy client opened the session: the proxy does not end the session, and messages outside
    /// calls are for the client.
    pub(super) is_client_session: bool,
    /// Id of a client's session, by which the client's calls find the same queue.
    client_id: Option<HeaderValue>,
    /// Message queue of a session of the proxy, once a message was queued.
    queue: OnceLock<Arc<OutboundQueue>>,
    /// State of a resumed call's stream; `None` unless the session was resumed for a call.
    resuming_stream: Option<Box<ResumingStream>>,
    /// Counts a session of the proxy.
    _counted: Option<OpenSessionGuard>,
}

/// Stream of a resumed call.
struct ResumingStream {
    /// Last event id that the previous process received.
    last_event: Option<String>,
    /// Cancelled once the server has sent an event after `last_event`.
    resumed: CancellationToken,
}

/// Time for which a response waits for the stream of its call to be resumed. Until a server has written to
/// the new stream, the server may have registered neither stream, and would lose messages that it sends then,
/// even the call's result.
const RESUME_WAIT: Duration = Duration::from_secs(2);

/// Calls and requests of a session. Locked for a few statements only, never while waiting; the pool's lock is
/// taken first.
#[derive(Default)]
pub(super) struct SessionState {
    /// Calls in flight, by the proxy's id.
    pub(super) calls: HashMap<u64, InFlightCall, RandomState>,
    /// Abandoned calls that may receive requests. The server may still execute them, so a request or message
    /// that names no call may belong to one of them.
    pub(super) abandoned: Vec<AbandonedCall>,
    /// Whether the clients of some abandoned calls are not recorded any more.
    pub(super) has_forgotten_clients: bool,
    /// Open requests of the server outside calls that were sent to a client.
    pub(super) unattributed: Vec<UnattributedRequest>,
    /// Number of [`SessionHold`]s: calls, and messages being sent.
    holds: usize,
    /// Whether the session takes no new calls; closed when the last hold is dropped.
    is_retired: bool,
    /// Whether the server has ended the session, or the session has been closed: nothing more is sent in it.
    pub(super) is_ended: bool,
    /// Time of the last cancellation in the session; `None` if there was none.
    pub(super) cancelled_at: Option<Instant>,
    /// Whether another process continues a call in the session, which must not be ended then.
    is_released: bool,
}

/// A call that was cancelled or given up, and that the server has not answered.
pub(super) struct AbandonedCall {
    pub(super) call: u64,
    pub(super) client: Option<Arc<CallClient>>,
}

/// A request of the server in a call, until it is answered.
pub(super) struct OpenRequest {
    pub(super) id: RequestId,
    pub(super) since: Instant,
}

/// A call in flight.
pub(super) struct InFlightCall {
    pub(super) mailbox: Arc<SessionMailbox>,
    /// Whether the server may send requests to the client during the call.
    pub(super) can_receive_input: bool,
    /// Deferral state, for a call that may become a task.
    deferral: Option<Deferral>,
    /// Client of the call, in a session that several clients may share.
    pub(super) client: Option<Arc<CallClient>>,
    /// Whether no other call that may receive requests is in the session.
    pub(super) is_exclusive: bool,
    /// Open requests of the server in this call.
    pub(super) requests: Vec<OpenRequest>,
    /// Requests that were open when the call was resumed. The server may send them again, because they may
    /// follow the last known event; they may have been answered by then.
    pub(super) restored: Box<[RequestId]>,
}

/// A request of the server outside calls.
pub(super) struct UnattributedRequest {
    /// Id assigned by the server.
    pub(super) server_id: RequestId,
    /// Id under which the client received the request.
    pub(super) client_id: RequestId,
    pub(super) since: Instant,
    /// Client that received the request.
    pub(super) client: Weak<dyn BroadcastListener>,
}

/// Owner of an identity's sessions: its pool.
pub(super) trait SessionOwner<W: Transport>: Send + Sync {
    /// Removes a session that has ended or takes no more calls.
    fn remove(self: Arc<Self>, session: &Arc<UpstreamSession<W>>);

    /// Makes the session the list session, after the session reported a change.
    fn use_for_lists(&self, session: &Arc<UpstreamSession<W>>);

    /// Update notifications for all resources subscribed in the session, for the case that some were missed.
    fn resource_updates(&self, session: &Arc<UpstreamSession<W>>) -> Vec<Frame>;

    /// Listeners for messages outside calls in the owner's sessions.
    fn listeners(&self) -> &BroadcastListeners;

    /// Serves the queue of calls after a session may have become available.
    fn serve_queue(self: Arc<Self>);

    /// Waits until another session serves the listeners, or none can be opened now.
    fn wait_for_successor(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

/// Keeps a session open. A call's hold also registers it in the session.
pub(super) struct SessionHold<W: Transport> {
    pub(super) session: Arc<UpstreamSession<W>>,
    call: Option<u64>,
}

/// Limit of abandoned calls that a session remembers. Further ones of a client that has one there are forgotten
/// without loss; after those of other clients, the session is used by no other client.
const MAX_ABANDONED: usize = 256;

/// Limit of concurrent cancellations when a session is closed.
const MAX_CONCURRENT_CANCELS: usize = 32;

// === impl UpstreamSession ===

impl<W: Transport> UpstreamSession<W> {
    /// A session opened by the proxy.
    pub(super) fn new(
        server: Arc<ServerContext<W>>,
        description: UpstreamDescription,
        transport: W::Session,
        owner: Weak<dyn SessionOwner<W>>,
        notifier: ChangeNotifier,
    ) -> Self {
        let session = Self {
            notifier,
            listeners_at_start: owner.upgrade().map(|owner| owner.listeners().census()).unwrap_or_default(),
            _counted: Some(server.count_session()),
            ..Self::with_owner(server, description, Arc::new(transport), Some(owner))
        };
        session.server.set_description(&session.description);
        session
    }

    /// The session of a call of the previous process. It serves that call only.
    pub(super) fn resumed(
        server: Arc<ServerContext<W>>,
        transport: Arc<W::Session>,
        anchor: &CallAnchor,
    ) -> Self {
        let description = UpstreamDescription {
            version: anchor.revision.clone(),
            server_info: Bytes::copy_from_slice(anchor.server_info.as_bytes()),
            ..UpstreamDescription::unknown()
        };
        let session = Self::with_owner(server, description, transport, None);
        session.has_no_off_stream.store(anchor.is_clients, Ordering::Relaxed);
        let client_id = anchor.is_clients.then(|| HeaderValue::from_str(&anchor.session).ok()).flatten();
        let resuming =
            ResumingStream { last_event: anchor.last_event.clone(), resumed: CancellationToken::new() };
        Self {
            is_client_session: anchor.is_clients,
            client_id,
            resuming_stream: Some(Box::new(resuming)),
            ..session
        }
    }

    /// Notes the last event id of the call's stream: a new one shows that the stream is resumed.
    pub(super) fn note_event(&self, event: Option<&str>) {
        if let Some(resuming) =
            self.resuming_stream.as_ref().filter(|resuming| resuming.last_event.as_deref() != event)
        {
            resuming.resumed.cancel();
        }
    }

    /// Waits until the call's stream is resumed, up to a limit.
    async fn wait_resumed(&self) {
        let Some(resuming) = &self.resuming_stream else { return };
        tokio::select! {
            _ = timeout(RESUME_WAIT, resuming.resumed.cancelled()) => {}
            () = self.server.work.closing.cancelled() => {}
        }
    }

    /// Session of a legacy client, with its id if there is one.
    pub(super) fn opened_by_client(
        server: Arc<ServerContext<W>>,
        transport: W::Session,
        id: Option<HeaderValue>,
    ) -> Self {
        let session = Self::with_owner(server, UpstreamDescription::unknown(), Arc::new(transport), None);
        // The client reads the messages outside calls.
        session.has_no_off_stream.store(true, Ordering::Relaxed);
        Self { is_client_session: true, client_id: id, ..session }
    }

    fn with_owner(
        server: Arc<ServerContext<W>>,
        description: UpstreamDescription,
        transport: Arc<W::Session>,
        owner: Option<Weak<dyn SessionOwner<W>>>,
    ) -> Self {
        Self {
            stop_reader: server.work.closing.child_token(),
            number: server.next_session(),
            server,
            description: Arc::new(description),
            transport,
            owner,
            notifier: ChangeNotifier::default(),
            listeners_at_start: ListenerCensus::default(),
            state: Mutex::default(),
            has_no_off_stream: AtomicBool::new(false),
            was_used: AtomicBool::new(true),
            is_client_session: false,
            client_id: None,
            queue: OnceLock::new(),
            resuming_stream: None,
            _counted: None,
        }
    }

    /// Owner to inform of the session's end, if it still exists.
    pub(super) fn owner(&self) -> Option<Arc<dyn SessionOwner<W>>> {
        self.owner.as_ref()?.upgrade()
    }

    /// Registers a call before it is sent, so that no message for it is missed. `None` if the session has
    /// ended or is being closed: nothing may be sent in it then.
    pub(super) fn register_call(
        self: &Arc<Self>,
        request: &CallRequest,
        mailbox: &Arc<SessionMailbox>,
        is_exclusive: bool,
    ) -> Option<SessionHold<W>> {
        let mut call = InFlightCall {
            mailbox: mailbox.clone(),
            can_receive_input: request.method.can_request_input(),
            deferral: request.deferral.clone(),
            client: request.client.clone(),
            is_exclusive,
            requests: Vec::new(),
            restored: Box::default(),
        };
        self.was_used.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        // Under the lock: the end of the session is set here before its calls are cancelled.
        if state.is_ended && !self.is_client_session {
            return None;
        }
        if call.can_receive_input
            && (!is_exclusive || state.calls.values().any(|other| other.can_receive_input))
        {
            // The call shares the session now, whatever was assumed before: messages without a call cannot be
            // attributed to one any more.
            call.is_exclusive = false;
            state.calls.values_mut().for_each(|other| other.is_exclusive = false);
        }
        state.calls.insert(request.id, call);
        state.holds += 1;
        Some(SessionHold { session: self.clone(), call: Some(request.id) })
    }

    /// Restores the server's requests that were open when the call was resumed.
    pub(super) fn restore_requests(&self, call: u64, open: &[RequestId]) {
        if let Some(call) = self.state.lock().calls.get_mut(&call) {
            let since = self.server.clock.now();
            call.requests.extend(open.iter().map(|id| OpenRequest { id: id.clone(), since }));
            call.restored = open.into();
        }
    }

    /// Keeps the session open for something other than a call.
    fn hold(self: &Arc<Self>) -> SessionHold<W> {
        self.state.lock().holds += 1;
        SessionHold { session: self.clone(), call: None }
    }

    /// Responds to a request of the server during this call, in the background.
    pub(super) fn respond_in_call(
        self: &Arc<Self>,
        call: u64,
        id: RequestId,
        outcome: &Result<Bytes, Bytes>,
    ) {
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
        if let Some(outbound) = self.server.outbound.reserve_best_effort() {
            self.hold().send_in_turn(outbound, body);
        }
    }

    /// Cancels a call of the session's client, in the background.
    pub(super) fn cancel_later(self: &Arc<Self>, call: &RequestId, reason: &str) {
        self.hold().send_in_turn(OutboundMessage::Cancel, legacy::cancelled_notification(call, reason));
    }

    /// Removes an answered or cancelled request of the server. Returns the mailbox of its call, if the call
    /// is still in flight.
    pub(super) fn finish_request(&self, call: u64, id: &RequestId) -> Option<Arc<SessionMailbox>> {
        let mut state = self.state.lock();
        if call == NO_CALL {
            state.take_unattributed(id);
        }
        let call = state.calls.get_mut(&call)?;
        if let Some(index) = call.requests.iter().position(|request| request.id == *id) {
            call.requests.swap_remove(index);
        }
        Some(call.mailbox.clone())
    }

    /// Whether no message can arrive outside the stream of a call's own response.
    pub(super) fn has_no_off_stream(&self) -> bool {
        self.has_no_off_stream.load(Ordering::Relaxed)
    }

    /// Marks that no message can arrive outside the stream of a call's own response: calls answered
    /// off-stream will not complete.
    pub(super) fn set_no_off_stream(&self) {
        self.has_no_off_stream.store(true, Ordering::Relaxed);
        let calls: Vec<_> = self.state.lock().calls.values().map(|call| call.mailbox.clone()).collect();
        for mailbox in calls {
            mailbox.mark_session_ended();
        }
        // Requests arrive on the calls' streams only: queued calls can share the session.
        if let Some(owner) = self.owner() {
            owner.serve_queue();
        }
    }

    /// Sends the notifications that may have been missed: every list whose changes the server reports may
    /// have changed.
    pub(super) fn notify_after_gap(self: &Arc<Self>) {
        let Some(owner) = self.owner() else { return };
        for notification in
            self.description.reported_lists().map(message::list_changed).chain(owner.resource_updates(self))
        {
            self.receive_off_stream(notification);
        }
    }

    /// Whether the session has users, and has not ended.
    pub(super) fn has_users(&self) -> bool {
        let state = self.state.lock();
        state.holds > 0 && !state.is_ended
    }

    /// Whether any call in flight that may receive requests is such a one.
    pub(super) fn any_input_call(&self, is_such: impl Fn(&InFlightCall) -> bool) -> bool {
        self.state.lock().input_calls().any(|(_, call)| is_such(call))
    }

    /// Number of calls in flight.
    pub(super) fn in_flight_count(&self) -> usize {
        self.state.lock().calls.len()
    }

    /// Whether a task that may receive requests is in flight.
    pub(super) fn has_task(&self) -> bool {
        self.state.lock().calls.values().any(|call| call.can_receive_input && call.is_task())
    }

    /// Whether a call that may receive requests and is not a task is in flight.
    pub(super) fn has_non_task_call(&self) -> bool {
        self.state.lock().calls.values().any(|call| call.can_receive_input && !call.is_task())
    }

    /// Whether all calls in flight that may receive requests are tasks, and there is one.
    pub(super) fn has_only_tasks(&self) -> bool {
        let state = self.state.lock();
        let mut input_calls = state.calls.values().filter(|call| call.can_receive_input).peekable();
        input_calls.peek().is_some() && input_calls.all(InFlightCall::is_task)
    }

    /// Whether a call of this client may be made in the session without another client's: every call in flight
    /// that may receive requests, and every abandoned one, is of the same legacy session.
    pub(super) fn is_free_for(&self, client: Option<&CallClient>) -> bool {
        self.state.lock().is_free_for(client)
    }

    /// Whether the session has no calls in flight, and is kept from other clients by abandoned ones.
    pub(super) fn has_only_abandoned(&self) -> bool {
        let state = self.state.lock();
        state.holds == 0 && (!state.abandoned.is_empty() || state.has_forgotten_clients)
    }

    /// Ends the input requests that have been open for this time: the server gets an error, and the client's
    /// call continues as if the server had cancelled the request.
    /// Returns whether there were any.
    pub(super) fn end_overdue_requests(self: &Arc<Self>, turn: Duration) -> bool {
        let Some(opened_before) = self.server.clock.now().checked_sub(turn) else { return false };
        let (in_calls, outside) = {
            let mut state = self.state.lock();
            let mut in_calls = Vec::new();
            for (&number, call) in &mut state.calls {
                let overdue = call.requests.extract_if(.., |request| request.since <= opened_before);
                in_calls.extend(overdue.map(|request| (number, request.id, call.mailbox.clone())));
            }
            let outside = state.unattributed.extract_if(.., |request| request.since <= opened_before);
            (in_calls, outside.collect::<Vec<_>>())
        };
        let has_ended = !in_calls.is_empty() || !outside.is_empty();
        let refusal = || message::refusal(INTERNAL_ERROR, "no response in time, and other clients wait");
        for (call, id, mailbox) in in_calls {
            Limit::Turn.record_hit();
            mailbox.push(CallMessage::RequestCancelled(id.clone()));
            self.respond_in_call(call, id, &refusal());
        }
        for request in outside {
            Limit::Turn.record_hit();
            request.cancel("no response in time, and other clients wait");
            self.respond_in_call(NO_CALL, request.server_id, &refusal());
        }
        has_ended
    }

    /// Whether the server still waits for the response to this request: it was not ended before its client
    /// responded.
    pub(super) fn is_open(&self, call: u64, id: &RequestId) -> bool {
        let state = self.state.lock();
        if call == NO_CALL {
            return state.unattributed.iter().any(|request| request.server_id == *id);
        }
        state.calls.get(&call).is_none_or(|call| call.requests.iter().any(|request| request.id == *id))
    }

    /// Returns whether the session was used since the last query.
    pub(super) fn take_used(&self) -> bool {
        self.was_used.swap(false, Ordering::Relaxed) | (self.state.lock().holds > 0)
    }

    /// Stops giving new calls to the session. Calls in flight continue; the session closes after the last
    /// one.
    pub(super) fn retire(self: &Arc<Self>) {
        if self.is_client_session {
            return;
        }
        let must_close = {
            let mut state = self.state.lock();
            state.is_retired = true;
            state.holds == 0 && !std::mem::replace(&mut state.is_ended, true)
        };
        if let Some(owner) = self.owner() {
            owner.remove(self);
        }
        if must_close {
            let session = self.clone();
            self.server.work.spawn(async move { session.close_after_successor().await });
        }
    }

    /// Marks that the server has ended or forgotten the session. Calls answered off-stream fail.
    pub(super) fn mark_ended(self: &Arc<Self>) {
        let calls: Vec<_> = {
            let mut state = self.state.lock();
            state.is_retired = true;
            state.is_ended = true;
            state.calls.values().map(|call| call.mailbox.clone()).collect()
        };
        self.stop_reader.cancel();
        self.cancel_unattributed();
        self.notifier.notify_all_changed();
        if let Some(owner) = self.owner() {
            owner.listeners().notify_lists_changed(&self.description);
            owner.remove(self);
        }
        for mailbox in calls {
            mailbox.mark_session_ended();
        }
    }

    /// Cancels the calls in flight and ends the session at the server, at most once.
    pub(super) async fn close(self: Arc<Self>) {
        let (calls, must_end) = {
            let mut state = self.state.lock();
            state.is_retired = true;
            let must_end = !std::mem::replace(&mut state.is_ended, true);
            (std::mem::take(&mut state.calls), must_end)
        };
        for call in calls.values() {
            call.mailbox.push(CallMessage::Lost(CallError::Closing));
        }
        if must_end {
            let cancelling =
                stream::iter(calls.into_keys()).for_each_concurrent(MAX_CONCURRENT_CANCELS, |id| {
                    let session = self.clone();
                    async move { session.cancel_on_close(id).await }
                });
            // The cancellations, and messages queued before, are sent before the session ends, within a time
            // limit.
            let _ = tokio::join!(timeout(QUEUE_WAIT, cancelling), self.flush());
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

    /// Waits until the queued messages have been sent or dropped, at most for [`QUEUE_WAIT`].
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
        self.stop_reader.cancel();
        if self.state.lock().is_released {
            return;
        }
        self.cancel_unattributed();
        let _permit = self.server.outbound.acquire_one().await;
        self.transport.close().await;
    }

    /// Cancels the open requests outside calls at their clients.
    fn cancel_unattributed(&self) {
        let requests = std::mem::take(&mut self.state.lock().unattributed);
        requests.iter().for_each(|request| request.cancel("the session with the server ended"));
    }

    /// Sends a message, with retries, and records the outcome. A response that cannot be delivered fails its
    /// call.
    async fn send_outbound(&self, outbound: OutboundMessage, body: Bytes) {
        if let OutboundMessage::Response { .. } = outbound {
            self.wait_resumed().await;
        }
        let started = self.server.clock.now();
        let outcome = self.send_with_retries(&outbound, body).await;
        if let (OutboundMessage::Cancel, Ok(())) = (&outbound, &outcome) {
            metrics::record_cancellation(&self.server.route, self.server.clock.now() - started);
        }
        if let Err(lost) = &outcome {
            MessageUndelivered { what: outbound.describe(), error: lost }.emit();
        }
        let OutboundMessage::Response { call, id } = outbound else { return };
        let mailbox = self.finish_request(call, &id);
        if let (Some(mailbox), Err(lost)) = (mailbox, outcome) {
            mailbox.push(CallMessage::Lost(CallError::ResponseUndelivered(lost.to_string())));
        }
    }

    async fn send_with_retries(&self, outbound: &OutboundMessage, body: Bytes) -> Result<(), CallError> {
        for pause in RETRY_PAUSES {
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

// === impl AbandonedCall ===

impl AbandonedCall {
    /// Stands for the calls of a client that are not recorded one by one. No request has this id.
    const NEVER_ANSWERED: u64 = u64::MAX;
}

// === impl SessionState ===

impl SessionState {
    /// As [`UpstreamSession::is_free_for`].
    fn is_free_for(&self, client: Option<&CallClient>) -> bool {
        let is_same = |other: &Option<Arc<CallClient>>| {
            client.is_some_and(|client| other.as_ref().is_some_and(|other| client.is_same(other)))
        };
        let may_join = client.is_some_and(CallClient::shares_with_itself);
        !self.has_forgotten_clients
            && self.abandoned.iter().all(|abandoned| may_join && is_same(&abandoned.client))
            && self.input_calls().all(|(_, call)| may_join && is_same(&call.client))
    }

    /// The calls in flight that may receive requests.
    pub(super) fn input_calls(&self) -> impl Iterator<Item = (u64, &InFlightCall)> {
        self.calls.iter().filter(|(_, call)| call.can_receive_input).map(|(number, call)| (*number, call))
    }

    fn note_abandoned(&mut self, abandoned: AbandonedCall) {
        if self.abandoned.len() >= MAX_ABANDONED {
            let is_same = |other: &&mut AbandonedCall| match (&other.client, &abandoned.client) {
                (Some(other), Some(client)) => client.is_same(other),
                (None, _) | (_, None) => false,
            };
            match self.abandoned.iter_mut().find(is_same) {
                // It stands for all further ones, whose answers are not recognised.
                Some(other) => other.call = AbandonedCall::NEVER_ANSWERED,
                None => self.has_forgotten_clients = true,
            }
            return;
        }
        self.abandoned.push(abandoned);
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
    /// Ends the call. Returns whether it was still in flight: only the first caller gets `true`, and reports
    /// the result.
    pub(super) fn finish(&mut self) -> bool {
        let Some(call) = self.call.take() else { return false };
        self.session.state.lock().calls.remove(&call).is_some()
    }

    /// Abandons the call: the server may still execute it. Until it is answered, messages that name no call are
    /// delivered only to its own client. A session that costs no process is retired. Returns whether the call
    /// was still in flight.
    pub(super) fn abandon(&mut self) -> bool {
        let Some(call) = self.call.take() else { return false };
        let was_in_flight = {
            let mut state = self.session.state.lock();
            let in_flight = state.calls.remove(&call);
            in_flight.map(|InFlightCall { can_receive_input, client, .. }| {
                if can_receive_input {
                    state.note_abandoned(AbandonedCall { call, client });
                }
            })
        };
        if was_in_flight.is_none() {
            return false;
        }
        if !W::IS_COSTLY {
            self.session.retire();
        }
        true
    }

    /// Releases the call to another process: the call is not cancelled, and the session is not ended.
    pub(super) fn release(&mut self) {
        self.session.state.lock().is_released = true;
        self.finish();
    }

    /// Cancels the call at the server, and gives the session no further ones: the call may continue in it
    /// (with some servers a cancelled request ends the session).
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
        let mut queue_position = self.session.enqueue();
        let server = self.session.server.clone();
        server.work.spawn(async move {
            queue_position.wait_turn().await;
            self.session.send_outbound(outbound, body).await;
            drop(queue_position);
        });
    }
}

impl<W: Transport> Drop for SessionHold<W> {
    fn drop(&mut self) {
        self.finish();
        let (must_close, has_abandoned) = {
            let mut state = self.session.state.lock();
            state.holds -= 1;
            let is_unused = state.holds == 0;
            let must_close = state.is_retired && is_unused && !std::mem::replace(&mut state.is_ended, true);
            let has_abandoned = !state.abandoned.is_empty() || state.has_forgotten_clients;
            (must_close, W::IS_COSTLY && is_unused && !state.is_retired && has_abandoned)
        };
        if has_abandoned && let Some(owner) = self.session.owner() {
            // A waiting call of another client gets a session in its place.
            owner.serve_queue();
        }
        if must_close {
            let session = self.session.clone();
            self.session.server.work.spawn(async move { session.close_after_successor().await });
        }
    }
}
