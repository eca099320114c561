//! Drives calls: the loop that connects an [`Exchange`], the state machine of a call, to a server, to clients
//! and to the store.
//!
//! A [`CallDriver`] is one call in flight. While its client waits, the driver is polled in place by the
//! client's connection ([`InlineCall`]). When the client is sent an `input_required` result, or when the call
//! becomes a task, the same driver moves to a runtime task of its own, so that no disconnect can interrupt a
//! step and the driver outlives the client's request. Only then does the call have the state in `detached`:
//! its open input requests (`open_requests`; `questions` forwards them to the client, and responses back),
//! and the recipients of its messages (`delivery`).
//!
//! The messages of a call have one of two forms. If the eras of client and server differ, the form is
//! `canonical`, that of 2026-07-28. If both are legacy, the form is `native`, and the server's messages stay
//! unchanged.
//!
//! The commit point of a task is the moment when its handle has been written to a client's socket
//! ([`DeliveryCommit`](super::DeliveryCommit)).

mod anchor_state;
mod canonical;
mod delivery;
mod detached;
mod inline;
mod native;
mod open_requests;
mod questions;
mod record_writes;
mod resumed;
mod span;
#[cfg(test)]
mod tests;
mod writes;

pub(super) use inline::InlineCall;
pub(super) use native::NativeForm;
pub use resumed::RestoredInput;
pub(super) use resumed::{Resumption, resume_call};
pub(super) use span::CallSpan;

use super::{
    ReplyItem,
    admission::{DequeueSignal, LimitedCall},
    call_registry::{CallCommand, CallWaiter, CancelTarget, LocalRequest, MailboxMessage, ReplyTarget},
    input_requests,
    observed_call::ObservedCall,
    reply::CallEnd,
    route_context::RouteContext,
    tasks::{TaskAdmissionError, ledger::TaskLease, watchers::WatcherKind},
};
use crate::{
    bridge::{
        Exchange, ExchangeAction,
        exchange::{CallDeadlines, ExchangePhase, InputDelivery},
    },
    dialect::{Call, modern},
    policy::{Mode, ToolPolicy},
    protocol::{ClockReading, Frame, InputResponses, Kind, status_message},
    runtime::{or_pending, wait_until},
    store::UpdateOutcome,
    task::{Record, TaskCause, TaskId, TaskTrigger, TaskView},
    telemetry::Limit,
    upstream::{self, CallError, UpstreamDescription, UpstreamEvent, UpstreamEvents},
};
use canonical::CanonicalForm;
use delivery::{TaskStreamEvent, TaskStreams};
use detached::{DetachedState, Stored};
use futures_util::{StreamExt, future::BoxFuture};
use open_requests::MAX_OPEN;
use record_writes::{WriteFollowUp, WriteResult};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The status message of a task while its call waits for a concurrency permit.
const QUEUED_MESSAGE: &str = "queued: all permits are in use (concurrency)";
/// The status message of a task once its queued call has a permit.
const RUNNING_MESSAGE: &str = "running";

/// One call in flight.
pub(super) struct CallDriver {
    shared: Arc<RouteContext>,
    /// The state machine of the call.
    exchange: Exchange<CallEnd>,
    /// The upstream events of the call; dropping the stream cancels the call at the server. `None` while the
    /// server has no call.
    replies: Option<UpstreamEvents>,
    /// The number of `input_required` results of the server.
    retries: usize,
    /// The policy for the called tool.
    policy: ToolPolicy,
    /// The state of a detached call; `None` while the call is polled in place.
    detached: Option<Box<DetachedState>>,
    form: CallForm,
    span: CallSpan,
    /// The limits of the call; `None` if there are none.
    limits: Option<Box<LimitedCall>>,
    /// Resolves when the call leaves the proxy's queue; `None` if the call is not queued.
    dequeued: Option<DequeueSignal>,
    /// Set if the call is only observed and never becomes a task.
    observed: Option<Box<ObservedCall>>,
}

/// The form of a call's messages.
enum CallForm {
    /// The form of 2026-07-28: the eras of client and server differ.
    Canonical(CanonicalForm),
    /// Legacy messages, unchanged: both sides are legacy.
    Native(Box<NativeForm>),
}

/// The upstream events of a call in a legacy client's own session, with the state that belongs to the sent
/// call.
pub(super) struct NativeReplies {
    pub(super) replies: UpstreamEvents,
    pub(super) span: CallSpan,
    /// The limits of the call; `None` if there are none.
    pub(super) limits: Option<Box<LimitedCall>>,
    /// Resolves when the call leaves the proxy's queue; `None` if the call is not queued.
    pub(super) dequeued: Option<DequeueSignal>,
}

/// An event of any call, whether polled in place or detached.
enum DriveEvent {
    /// An event of the server.
    Server(UpstreamEvent),
    /// A deadline is due.
    Due,
    /// The call has left the proxy's queue and is sent.
    Dequeued,
    /// Shutdown has begun, and the call may become a task.
    Draining,
    /// The drain time is over.
    Overdue,
}

/// An event of a detached call.
enum DetachedEvent {
    /// An event that calls polled in place have as well.
    Drive(DriveEvent),
    /// The new task is stored, or storing it has failed.
    Stored(Stored),
    /// A queued change of the task record is stored, or has failed.
    Written(WriteFollowUp, WriteResult),
    /// An unsent message was passed to a client whose channel was full, or the client has disconnected.
    Sent,
    /// The client of the waiting request with this index has disconnected.
    ClientDisconnected(usize),
    /// A client has the task's handle (true), or all clients that were sent it have disconnected (false).
    Committed(bool),
    /// A message arrived in the call's mailbox.
    Received(CallCommand),
    /// An event of the task's streams.
    Streams(TaskStreamEvent),
    /// The task record has changed.
    RecordChanged,
    /// A pending write of progress or of the anchor is due.
    WriteDue,
    /// The position from which the call can be resumed has changed.
    ResumePoint(Box<upstream::CallAnchor>),
}

/// The reason why a call is detached.
enum DetachReason {
    /// The exchange requests an action that only a detached call can carry out.
    Action(ExchangeAction<CallEnd>),
    /// The server sent this input request, which can be forwarded to the client.
    InputRequest(UpstreamEvent),
}

// === impl CallDriver ===

impl CallDriver {
    /// Creates the driver of a call of a client of 2026-07-28 that is polled in place. `defer_after` is the
    /// threshold, if the call may become a task; it counts from `now`.
    fn inline(
        shared: &Arc<RouteContext>,
        canonical: CanonicalForm,
        replies: UpstreamEvents,
        policy: ToolPolicy,
        (defer_after, now): (Option<Duration>, Instant),
        span: CallSpan,
    ) -> Self {
        let deadlines = deadlines(shared, defer_after, canonical.view());
        Self {
            exchange: Exchange::new(InputDelivery::RoundTrips, deadlines, now),
            shared: Arc::clone(shared),
            replies: Some(replies),
            retries: 0,
            policy,
            detached: None,
            form: CallForm::Canonical(canonical),
            span,
            limits: None,
            dequeued: None,
            observed: None,
        }
    }

    /// Makes the call an observed one: it never becomes a task, and is logged if it would have become one.
    fn observe(&mut self, observed: Box<ObservedCall>) {
        let (after, began) = observed.threshold();
        self.exchange.observe(after, began);
        self.observed = Some(observed);
    }

    /// Creates the driver of a call in a legacy client's own session, whose client waits for it as `waiter`.
    /// The call becomes a task after `defer_after`.
    pub(super) fn on_stream(
        shared: &Arc<RouteContext>,
        native: NativeForm,
        replies: NativeReplies,
        defer_after: Duration,
        waiter: CallWaiter,
    ) -> Box<Self> {
        let (deadlines, began) = (deadlines(shared, Some(defer_after), native.view), native.began);
        let input_delivery = match native.view {
            TaskView::Ticket => InputDelivery::Ticket,
            TaskView::Extension | TaskView::Experimental => InputDelivery::Stream,
        };
        let mut driver =
            Self::native(shared, native, replies, Exchange::new(input_delivery, deadlines, began));
        driver.detached().waiters.push(waiter);
        driver
    }

    /// Creates the driver of a call in a legacy client's own session that is a task before it is sent, and
    /// stores the task. Also returns the `CreateTaskResult` for the client.
    ///
    /// # Errors
    /// [`TaskAdmissionError`]: the call was not sent.
    pub(super) async fn as_task(
        shared: &Arc<RouteContext>,
        native: NativeForm,
        replies: NativeReplies,
    ) -> Result<(Box<Self>, Vec<u8>), TaskAdmissionError> {
        let exchange =
            Exchange::stored_task(InputDelivery::Stream, deadlines(shared, None, TaskView::Experimental));
        let reader = native.result_format;
        let mut driver = Self::native(shared, native, replies, exchange);
        let record = driver.task_record(TaskTrigger::Request);
        let task_result = NativeForm::task_result(shared, &record, reader);
        // The call is not sent before `replies` is polled.
        driver.detached().lease = Some(shared.ledger.admit(record).await?);
        driver.become_task();
        Ok((driver, task_result))
    }

    fn native(
        shared: &Arc<RouteContext>,
        native: NativeForm,
        replies: NativeReplies,
        exchange: Exchange<CallEnd>,
    ) -> Box<Self> {
        let policy = shared.route.tool_policy(&native.tool);
        let NativeReplies { replies, span, limits, dequeued } = replies;
        Box::new(Self {
            detached: Some(DetachedState::new(shared, &policy, InputResponses::default())),
            shared: Arc::clone(shared),
            exchange,
            replies: Some(replies),
            retries: 0,
            policy,
            form: CallForm::Native(Box::new(native)),
            span,
            limits,
            dequeued,
            observed: None,
        })
    }

    /// Moves the call to a runtime task of its own, which reason handles the reason `reason`. `waiter` receives
    /// the call's messages.
    fn detach(mut self, waiter: CallWaiter, reason: DetachReason) {
        if let CallForm::Canonical(canonical) = &mut self.form {
            canonical.detach(&self.shared);
            let supplied = std::mem::take(&mut canonical.supplied).detached();
            let mut detached = DetachedState::new(&self.shared, &self.policy, supplied);
            detached.waiters.push(waiter);
            self.detached = Some(detached);
        }
        let shared = Arc::clone(&self.shared);
        let mut driver = Box::new(self);
        match reason {
            DetachReason::Action(action) => driver.carry_out(action),
            DetachReason::InputRequest(event) => driver.handle_server_event(event),
        }
        shared.stopping.spawn(driver.run());
    }

    /// Records the end of the upstream call.
    fn end(&mut self, end: CallEnd) {
        self.span.record_end(&end);
        self.exchange.handle_final(end);
    }

    /// Makes the call a task, once the task is stored.
    fn become_task(&mut self) {
        // An observed call can become a task by a retry, if the configuration has changed meanwhile.
        if let Some(mut observed) = self.observed.take() {
            observed.set_would_defer(false);
        }
        if let Some(detached) = &mut self.detached {
            self.span.record_task(detached.registration.id());
            detached.lease.iter_mut().for_each(TaskLease::mark_created);
        }
        self.start_task();
    }

    /// Starts delivery of the task's messages to a legacy client.
    fn start_task(&mut self) {
        let (CallForm::Native(native), Some(detached)) = (&mut self.form, &mut self.detached) else { return };
        native.deferral.mark_deferred();
        native.stream_opening = native.ensure_stream_is_read(&self.shared);
        detached.streams = Some(Box::new(native.follow_streams(&self.shared)));
        let task = detached.registration.id().clone();
        detached.record_watcher =
            self.shared.ledger.bus.watch(vec![task], WatcherKind::OwnCall).map(Box::new);
    }

    /// Waits, for a short time at most, until the GET stream of the client's session is open: the server's
    /// first message may be an input request on that stream. Called before the call is sent.
    pub(super) async fn wait_until_listening(&mut self) {
        if let CallForm::Native(native) = &mut self.form
            && let Some(opening) = native.stream_opening.take()
        {
            opening.wait().await;
        }
    }

    /// The id of a detached call, and of the task that the call may become.
    pub(super) fn id(&self) -> &TaskId {
        self.detached.as_ref().expect("only a detached call has an id").registration.id()
    }

    /// Runs the loop of a detached call until its end. `self` is boxed, because an `async fn` stores
    /// arguments that are passed by value twice.
    pub(super) async fn run(mut self: Box<Self>) {
        loop {
            while let Some(action) = self.exchange.poll_action() {
                self.carry_out(action);
            }
            self.discard_abandoned_task();
            if self.exchange.is_done() {
                if self.detached().writes.is_empty() {
                    return Box::pin(self.close()).await;
                }
            } else {
                self.send_queued_requests();
                // Never after the end of the task, which needs no anchor.
                if self.exchange.is_outcome_open() && self.has_changed_requests() {
                    self.queue_anchor();
                }
            }
            match self.next_event().await {
                // Boxed, because this branch is rare and the size of the loop's future is the memory cost of
                // each task.
                DetachedEvent::Drive(DriveEvent::Overdue) if self.can_be_released() => {
                    Box::pin(self.release_or_end_call()).await
                }
                event => self.handle(event),
            }
        }
    }

    /// Waits for the next event of a call that is polled in place.
    async fn next_inline_event(&mut self) -> DriveEvent {
        let (due, _) = self.next_due();
        let Self { shared, exchange, replies, dequeued, .. } = self;
        let is_read = exchange.is_awaiting_server();
        next_drive_event(shared, exchange, (replies, dequeued), is_read, due).await
    }

    /// Waits for the next event of a detached call.
    async fn next_event(&mut self) -> DetachedEvent {
        let (due, is_write_due) = self.next_due();
        let has_waiting_client = self.exchange.has_waiting_client();
        let Self { shared, exchange, replies, dequeued, detached, form, .. } = self;
        let clock = &shared.clock;
        // The server is not read while the clients do not read their messages.
        let is_read = exchange.is_awaiting_server()
            && detached.as_mut().is_none_or(|detached| {
                // The messages of a task go to the task's streams, not to waiting requests.
                (!has_waiting_client || !detached.unsent.are_all_blocked(&detached.waiters))
                    && detached.writes.len() < MAX_OPEN
                    && detached.streams.as_mut().is_none_or(|streams| !streams.has_backlog(|| clock.now()))
            });
        let (detached, deferral, now) = (detached.as_deref_mut(), form.deferral(), || clock.now());
        tokio::select! {
            // Handle client events first: a message to a client that disconnected or cancelled would be
            // dropped.
            biased;
            event = or_pending(detached.map(|call| call.next_event(has_waiting_client, deferral, now))) => event,
            event = next_drive_event(shared, exchange, (replies, dequeued), is_read, due) => match event {
                DriveEvent::Due if is_write_due => DetachedEvent::WriteDue,
                event => DetachedEvent::Drive(event),
            },
        }
    }

    /// The earlier of the deadlines of the exchange and of pending writes, and whether it is that of the
    /// writes. If they are equal, that of the exchange precedes.
    fn next_due(&self) -> (Option<Instant>, bool) {
        let due = self.exchange.poll_timeout();
        let detached = self.detached.as_ref().filter(|_| self.exchange.is_outcome_open());
        match detached.and_then(|detached| detached.write_due()) {
            Some(write_due) if due.is_none_or(|due| write_due < due) => (Some(write_due), true),
            _ => (due, false),
        }
    }

    /// Handles an event of a detached call.
    fn handle(&mut self, event: DetachedEvent) {
        let now = self.shared.clock.now();
        self.stop_making_tasks();
        self.exchange.observe_time(now);
        match event {
            DetachedEvent::Stored(stored) => {
                let is_stored = stored.is_ok();
                let detached = self.detached();
                detached.storing = None;
                match stored {
                    Ok(task) => detached.lease = Some(task),
                    Err(reservation) => self.handle_not_stored(reservation),
                }
                self.exchange.handle_stored(is_stored, now);
            }
            DetachedEvent::Written(follow_up, result) => self.handle_written(follow_up, result),
            DetachedEvent::Sent => {}
            DetachedEvent::ClientDisconnected(index) => {
                self.detached().waiters.swap_remove(index);
                if self.detached().waiters.is_empty() {
                    self.exchange.handle_disconnect();
                }
            }
            DetachedEvent::Committed(true) => {
                self.detached().delivery_receivers.clear();
                self.exchange.handle_committed();
            }
            DetachedEvent::Committed(false) => self.exchange.handle_disconnect(),
            DetachedEvent::Received(command) => self.receive(command),
            DetachedEvent::Streams(stream_event) => {
                let DetachedState { open_requests, streams, .. } = self.detached();
                let is_stream_gone = streams.as_mut().is_some_and(|streams| {
                    streams.handle(stream_event, |input| open_requests.get(input).is_some())
                });
                if is_stream_gone {
                    // The remaining waiting requests check whether their clients can receive the input
                    // requests that were sent to the disconnected client.
                    self.shared.ledger.watchers.wake_waiters(self.id());
                }
            }
            DetachedEvent::RecordChanged => self.send_status(),
            DetachedEvent::WriteDue => self.queue_due_writes(now),
            DetachedEvent::ResumePoint(anchor) => self.set_resume_point(anchor),
            DetachedEvent::Drive(DriveEvent::Server(event)) => self.handle_server_event(event),
            DetachedEvent::Drive(DriveEvent::Due) => self.handle_due(now),
            DetachedEvent::Drive(DriveEvent::Dequeued) => self.set_status_message(RUNNING_MESSAGE, now),
            DetachedEvent::Drive(DriveEvent::Draining) => self.exchange.handle_drain(now),
            DetachedEvent::Drive(DriveEvent::Overdue) if self.exchange.phase() == ExchangePhase::Parked => {
                self.exchange.handle_shutdown(now)
            }
            DetachedEvent::Drive(DriveEvent::Overdue) => self.end(CallEnd::Lost(CallError::Closing)),
        }
    }

    /// Queues the pending writes that are due: of progress, and of the anchor.
    fn queue_due_writes(&mut self, now: Instant) {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        if is_due(self.detached().progress.due()) {
            self.queue_progress();
        }
        if is_due(self.detached().anchor.as_ref().and_then(|anchor_state| anchor_state.due())) {
            self.queue_anchor();
        }
    }

    /// Prevents the call from becoming a task once the route makes no more tasks. Called before an event is
    /// handled, so that a threshold that is reached at the same time has no effect.
    fn stop_making_tasks(&mut self) {
        if !self.shared.can_make_tasks() {
            self.exchange.handle_tasks_disabled();
        }
    }

    /// Handles a command from the call's mailbox.
    fn receive(&mut self, command: CallCommand) {
        match command {
            CallCommand::Attach(LocalRequest::Retry(retry)) => self.receive_retry(*retry),
            CallCommand::Message(MailboxMessage::Responses(responses)) => {
                for (key, response) in responses {
                    self.handle_response(&key, Ok(response), true);
                }
            }
            CallCommand::Message(MailboxMessage::RawResponse(key, outcome)) => {
                self.handle_response(&key, outcome, false);
            }
            CallCommand::Message(MailboxMessage::Undeclared(key)) => self.refuse_undeclared(key),
            CallCommand::Message(MailboxMessage::Sent(keys)) => {
                keys.iter().for_each(|key| self.detached().open_requests.mark_sent(key));
            }
            CallCommand::Attach(LocalRequest::ResultWaiter(sender, input_filter)) => {
                let DetachedState { open_requests, streams, .. } = self.detached();
                let create_streams = || {
                    let mut streams = TaskStreams::default();
                    // Without streams so far, the client of the task is of the other era, and no input
                    // request has been sent on a stream.
                    open_requests
                        .numbers()
                        .into_iter()
                        .for_each(|input| streams.queue_input_request(input, false));
                    Box::new(streams)
                };
                streams
                    .get_or_insert_with(create_streams)
                    .add_waiter(sender, input_filter, |input| open_requests.get(input).is_some());
            }
            CallCommand::Message(MailboxMessage::Cancelled(CancelTarget::Request)) => {
                self.span.add_event("deferral.call.taken_back", &[]);
                self.exchange.handle_request_cancelled();
            }
            CallCommand::Message(MailboxMessage::Cancelled(CancelTarget::Task)) => {
                self.span.add_event("deferral.task.cancelled", &[]);
                self.exchange.handle_task_cancelled();
            }
        }
    }

    /// Carries out an action of the exchange.
    fn carry_out(&mut self, action: ExchangeAction<CallEnd>) {
        match action {
            ExchangeAction::Reply(end) => {
                // The upstream stream has ended: release its connection first.
                self.replies = None;
                self.reply(&end);
            }
            ExchangeAction::RequestInput(inputs) => self.send_input_required(&inputs),
            ExchangeAction::RequestOnStream(input) => self.send_inline(input),
            ExchangeAction::Store => {
                let storing = self.store();
                self.detached().storing = Some(storing);
            }
            ExchangeAction::ReplyTask => {
                // The reservation is replaced by the task.
                self.detached().reservation = None;
                self.become_task();
                self.send_handle();
            }
            ExchangeAction::RequestInTask(input) => self.add_to_task(input),
            ExchangeAction::Withdraw(input) => self.handle_withdrawn(input),
            ExchangeAction::Decline(input) => self.detached().open_requests.decline(input),
            ExchangeAction::ExpireInput(input) => self.expire_request(input),
            ExchangeAction::RetryUpstream => self.retry_call(),
            ExchangeAction::StoreResult(end) => self.store_end(end),
            ExchangeAction::RemoveTask => self.queue_discard(),
            ExchangeAction::CancelUpstream => {
                self.send_status();
                let open = self.withdraw_all_requests("the task has ended");
                self.replies = None;
                // Dropping the input requests refuses them. This follows the cancellation, because some
                // servers fail on a response just before a cancellation.
                drop(open);
            }
        }
    }

    /// If the call was abandoned while its task is being stored, lets the ledger discard the task once it is
    /// stored.
    fn discard_abandoned_task(&mut self) {
        if self.exchange.phase() != ExchangePhase::Abandoned {
            return;
        }
        let ledger = Arc::clone(&self.shared.ledger);
        let detached = self.detached();
        if let Some(storing) = detached.storing.take() {
            let discarded = ledger.discard_once_stored(storing);
            let discard_write = async move {
                discarded.await;
                Ok(UpdateOutcome::Unknown)
            };
            detached.writes.push(WriteFollowUp::Nothing, Box::pin(discard_write));
            self.exchange.handle_stored(false, self.shared.clock.now());
        }
    }

    /// Closes the mailbox after the end of the call, and replies to retries that have arrived too late.
    async fn close(mut self: Box<Self>) {
        let unsent = std::mem::take(&mut self.detached().unsent);
        if !unsent.is_empty() {
            self.shared.stopping.spawn(unsent.send_all());
        }
        self.record_fate();
        self.send_status();
        let open = self.withdraw_all_requests("the task has ended");
        self.replies = None;
        drop(open);
        // Only after the end of the call, because no client may receive the handle of a discarded task.
        let mut late_waiters = std::mem::take(&mut self.detached().waiters);
        for command in self.detached().registration.close() {
            if let CallCommand::Attach(LocalRequest::Retry(retry)) = command {
                late_waiters.push(retry.waiter);
            }
        }
        late_waiters.into_iter().for_each(|waiter| self.reply_to_late_retry(waiter));
        self.remove_cancelled_anchor().await;
    }

    /// Handles an event of the server.
    fn handle_server_event(&mut self, event: UpstreamEvent) {
        match event {
            UpstreamEvent::Notification(frame) => self.handle_notification(&frame),
            UpstreamEvent::ServerRequest(pending) => self.handle_input_request(pending),
            UpstreamEvent::RequestCancelled { id } => {
                if let Some(input) = self.detached().open_requests.find_by_id(&id) {
                    self.exchange.handle_input_withdrawn(input);
                }
            }
            UpstreamEvent::InputRequired(input_required) => self.handle_input_required(input_required),
            UpstreamEvent::Final(response) => self.end(CallEnd::Response(response)),
            UpstreamEvent::Lost(call_error) => self.end(CallEnd::Lost(call_error)),
        }
    }

    /// Forwards a notification of the server to the waiting clients or to the task's streams, and remembers
    /// progress.
    fn handle_notification(&mut self, frame: &Frame) {
        let (now, has_waiting_client) = (self.shared.clock.now(), self.exchange.has_waiting_client());
        if let Some(message) = status_message::from_progress(frame)
            && !has_waiting_client
        {
            let progress = &mut self.detached().progress;
            progress.message = Some(message);
            progress.not_before.get_or_insert(now);
        }
        let Some(detached) = &mut self.detached else { return };
        match &mut self.form {
            CallForm::Canonical(canonical) => {
                if has_waiting_client {
                    canonical.remember_progress(frame);
                }
                for waiter in &detached.waiters {
                    if let ReplyTarget::Canonical { call, .. } = &waiter.target
                        && let Some(notice) = modern::translate_notification(call, frame)
                    {
                        detached.unsent.send(waiter, ReplyItem::Notification(notice));
                    }
                }
            }
            CallForm::Native(native) if has_waiting_client => {
                if native.view == TaskView::Ticket
                    && let Some(progress) = status_message::from_progress(frame)
                {
                    native.progress = Some(progress);
                }
                if let Some(message) = native.inline_message(frame) {
                    detached.send_to_waiters(&message);
                }
            }
            CallForm::Native(native) => {
                if let (Some(streams), Some(message)) =
                    (&mut detached.streams, native.task_message(frame, detached.registration.id()))
                {
                    streams.send(&message);
                }
            }
        }
    }

    /// Sets the status message of the task, unless the server has sent a newer one.
    fn set_status_message(&mut self, message: &str, now: Instant) {
        let has_waiting_client = self.exchange.has_waiting_client();
        let Some(detached) = self.detached.as_mut().filter(|_| !has_waiting_client) else { return };
        detached.progress.message.get_or_insert_with(|| message.to_owned());
        detached.progress.not_before.get_or_insert(now);
    }

    /// Starts to store the task, unless a quota is full. The returned future resolves with the outcome.
    fn store(&mut self) -> BoxFuture<'static, Stored> {
        let record = self.task_record(self.task_trigger());
        let ledger = Arc::clone(&self.shared.ledger);
        let parked = self.detached().reservation.take();
        Box::pin(async move {
            match parked {
                Some(reservation) => ledger.admit_parked(record, reservation).await.map_err(Some),
                None => ledger.admit(record).await.map_err(|_no_room| None),
            }
        })
    }

    /// The record of the task that the call becomes; `trigger` is the reason.
    fn task_record(&self, trigger: TaskTrigger) -> Record {
        let (shared, policy) = (&self.shared, &self.policy);
        let ClockReading { time: now, offset } = shared.clock.reading();
        let mut record = match &self.form {
            CallForm::Canonical(canonical) => canonical.task_record(self.id().clone(), shared, policy, now),
            CallForm::Native(native) => native.task_record(self.id().clone(), shared, policy, now),
        };
        let (route, tool) = (&shared.route, &*record.tool);
        let ticket = self.exchange.threshold().filter(|_| trigger == TaskTrigger::Ticket);
        let rule = match (trigger, ticket) {
            (TaskTrigger::Ticket, Some(after)) => route.ticket_rule(tool, after),
            (TaskTrigger::Threshold | TaskTrigger::Stop | TaskTrigger::Ticket, _) => {
                route.threshold_rule(tool)
            }
            (TaskTrigger::Mode | TaskTrigger::Request | TaskTrigger::Departure, _) => route.mode_rule(tool),
        };
        let rule = rule.map(|pattern| pattern.as_str().to_owned());
        let rollout = route.rollout_of_tool(tool).map(ToString::to_string);
        let after = ticket.unwrap_or(policy.after);
        let mode = policy.mode.as_str().to_owned();
        record.clock_offset = offset;
        record.trace = self.span.origin();
        if let Some(server) = self.server_description() {
            record.set_server_info(&server.server_info);
        }
        if self.dequeued.is_some() {
            record.message = Some(QUEUED_MESSAGE.to_owned());
        }
        record.cause = Some(Arc::new(TaskCause { by: trigger, mode, after, rule, rollout }));
        record
    }

    /// The reason why the call becomes a task now.
    fn task_trigger(&self) -> TaskTrigger {
        let view = match &self.form {
            CallForm::Canonical(canonical) => canonical.view(),
            CallForm::Native(native) => native.view,
        };
        match () {
            () if view == TaskView::Ticket => TaskTrigger::Ticket,
            () if self.policy.mode == Mode::Always => TaskTrigger::Mode,
            () if self.exchange.has_disconnected() => TaskTrigger::Departure,
            () if self.shared.stopping.is_stopped() => TaskTrigger::Stop,
            () => TaskTrigger::Threshold,
        }
    }

    /// Replies to all waiting requests with the end of the call.
    fn reply(&mut self, end: &CallEnd) {
        let Some(detached) = &mut self.detached else { return };
        let waiters = std::mem::take(&mut detached.waiters);
        match &self.form {
            CallForm::Canonical(canonical) => {
                for waiter in waiters {
                    let ReplyTarget::Canonical { call, .. } = &waiter.target else { continue };
                    let mut reply = canonical.reply(&self.shared, call, end.clone());
                    reply.summary.origin = self.span.origin_for(call);
                    if let Some(observed) = &mut self.observed {
                        observed.record_outcome(reply.summary.outcome);
                    }
                    detached.unsent.send(&waiter, reply.into());
                }
            }
            CallForm::Native(native) => {
                if !matches!(end, CallEnd::Response(response) if matches!(response.frame().kind(), Kind::Success { .. }))
                {
                    native.remove_presence(&self.shared);
                }
                // The input requests were relayed on the stream of the call, where the client responds to
                // them.
                detached.open_requests.close_all().into_iter().for_each(|open| open.target.withdraw());
                for waiter in waiters {
                    let ReplyTarget::Native(id) = &waiter.target else { continue };
                    let Some(reply) = native.reply(&self.shared, id, end) else { continue };
                    detached.unsent.send(&waiter, reply.into());
                }
            }
        }
    }

    /// Replies to all waiting requests with the handle of the task.
    fn send_handle(&mut self) {
        let Some(detached) = &mut self.detached else { return };
        let record =
            self.shared.ledger.last_stored(detached.registration.id()).expect("it was stored a moment ago");
        let waiters = std::mem::take(&mut detached.waiters);
        match &mut self.form {
            CallForm::Canonical(canonical) => {
                let task_result = canonical.defer_and_create_result(&self.shared, &record);
                for waiter in waiters {
                    let ReplyTarget::Canonical { call, capabilities } = &waiter.target else { continue };
                    let is_ticket = canonical.ticket_options.is_some();
                    let (mut reply, committed) = canonical::handle_reply(
                        call,
                        capabilities,
                        &task_result,
                        detached.registration.id(),
                        is_ticket,
                    );
                    detached.delivery_receivers.extend(committed);
                    reply.summary.origin = self.span.origin_for(call);
                    detached.unsent.send(&waiter, reply.into());
                }
                if detached.delivery_receivers.is_empty() {
                    // No waiting client supports tasks. The errors in their replies say how to get the task.
                    self.exchange.handle_committed();
                }
            }
            CallForm::Native(native) => {
                for waiter in waiters {
                    let ReplyTarget::Native(id) = &waiter.target else { continue };
                    detached.unsent.send(&waiter, native.handle_reply(&self.shared, id, &record).into());
                }
            }
        }
    }

    /// Replies with the handle of the task to a retry that arrived while the handle is being delivered.
    fn send_handle_to(&mut self, waiter: CallWaiter) {
        let (CallForm::Canonical(canonical), Some(detached)) = (&self.form, &mut self.detached) else {
            return;
        };
        let ReplyTarget::Canonical { call, capabilities } = &waiter.target else { return };
        let Some(record) = self.shared.ledger.last_stored(detached.registration.id()) else { return };
        let task_result = canonical.task_result(&self.shared, &record);
        let is_ticket = canonical.ticket_options.is_some();
        let (mut reply, committed) =
            canonical::handle_reply(call, capabilities, &task_result, detached.registration.id(), is_ticket);
        detached.delivery_receivers.extend(committed);
        reply.summary.origin = self.span.origin_for(call);
        detached.unsent.send(&waiter, reply.into());
    }

    /// Replies to a retry that arrived too late to wait for the call: with the task, or with an error.
    fn reply_to_late_retry(&mut self, waiter: CallWaiter) {
        let (CallForm::Canonical(canonical), Some(detached)) = (&self.form, &self.detached) else { return };
        let ReplyTarget::Canonical { call, capabilities } = &waiter.target else { return };
        let (call, declares_tasks) = (Call::clone(call), capabilities.declares_tasks());
        let (shared, server, id) =
            (Arc::clone(&self.shared), canonical.server.description(), detached.registration.id().clone());
        // Spawned, because loading the record may take long.
        self.shared.stopping.spawn(async move {
            let reply =
                input_requests::late_retry_reply(&shared, &call, &server, (&id, true), declares_tasks).await;
            let _ = waiter.items.send(reply.into()).await;
        });
    }

    /// Queues the write of the call's end into the task record.
    fn store_end(&mut self, end: CallEnd) {
        // The upstream stream has ended: release its connection first.
        self.replies = None;
        let event = match &self.form {
            CallForm::Canonical(canonical) => canonical.end_event(&self.shared, end),
            CallForm::Native(native) => native.end_event(&self.shared, &end),
        };
        self.span.record_task_end(&event);
        self.queue_description();
        self.queue_write(event, WriteFollowUp::Nothing);
    }

    /// The description of the call's server, if it is known.
    fn server_description(&self) -> Option<Arc<UpstreamDescription>> {
        match &self.form {
            CallForm::Canonical(canonical) if canonical.server.is_known() => {
                Some(canonical.server.description())
            }
            CallForm::Canonical(_) | CallForm::Native(_) => self.shared.upstream.status().description,
        }
    }

    /// Handles a deadline of the exchange, and counts a parked call that expires without a retry.
    fn handle_due(&mut self, now: Instant) {
        let was_parked = self.exchange.phase() == ExchangePhase::Parked;
        self.exchange.handle_timeout(now);
        if was_parked && self.exchange.is_done() {
            Limit::Park.record_hit();
        }
    }

    /// Notifies a legacy client of the task's status, if it has changed.
    fn send_status(&mut self) {
        let (CallForm::Native(native), Some(detached)) = (&mut self.form, &mut self.detached) else { return };
        if let (Some(streams), Some(message)) =
            (&mut detached.streams, native.status_notification(&self.shared, detached.registration.id()))
        {
            streams.send(&message);
        }
    }

    /// The state of a detached call.
    ///
    /// # Panics
    /// If the call is polled in place.
    fn detached(&mut self) -> &mut DetachedState {
        self.detached.as_mut().expect("only a detached call reaches this")
    }
}

impl Drop for CallDriver {
    fn drop(&mut self) {
        if let Some(observed) = &mut self.observed {
            // Not done means that the client has disconnected: its threshold may have passed since the last
            // event.
            if !self.exchange.is_done() {
                self.exchange.observe_time(self.shared.clock.now());
            }
            observed.set_would_defer(self.exchange.would_defer());
        }
    }
}

/// The time limits of a call on this route; `defer_after` is the threshold, if the call may become a task.
fn deadlines(shared: &RouteContext, defer_after: Option<Duration>, view: TaskView) -> CallDeadlines {
    let questions = &shared.route.input_policy;
    // A client with a ticket may never call again, and does not see that its task waits for input. In a
    // session in which calls take turns, an unanswered input request blocks other calls.
    let input_timeout = (shared.takes_turns || view == TaskView::Ticket).then_some(questions.park);
    CallDeadlines { defer_after, settle: questions.settle, park: questions.park, input_timeout }
}

/// Waits for the next event that does not depend on whether the call is detached. The server is read only if
/// `is_read`. `due` is the next deadline.
fn next_drive_event<'a>(
    shared: &'a RouteContext,
    exchange: &Exchange<CallEnd>,
    (replies, dequeued): (&'a mut Option<UpstreamEvents>, &'a mut Option<DequeueSignal>),
    is_read: bool,
    due: Option<Instant>,
) -> impl Future<Output = DriveEvent> + use<'a> {
    // At the end of the drain time the call ends, which cancels it at the server, or is left to the next
    // process.
    let can_be_overdue = exchange.phase() == ExchangePhase::Parked || exchange.is_outcome_open();
    // With a store in memory a task would be lost with the process. Then shutdown makes no tasks
    // (`stop_making_tasks`), and the waiting client gets the result if it arrives in time.
    let can_drain = exchange.can_defer() && shared.ledger.is_durable();
    // Boxed, because the future is rarely used and its size would be a cost of each call.
    let draining = can_drain.then(|| Box::pin(shared.stopping.stopped()));
    async move {
        tokio::select! {
            // A result at the deadline precedes the threshold: a handle would only cost a poll.
            biased;
            () = wait_dequeued(dequeued) => DriveEvent::Dequeued,
            event = next_reply(replies), if is_read => DriveEvent::Server(event),
            () = wait_until(due) => DriveEvent::Due,
            () = or_pending(draining) => DriveEvent::Draining,
            () = shared.overdue.stopped(), if can_be_overdue => DriveEvent::Overdue,
        }
    }
}

/// Waits until the call leaves the proxy's queue. Never resolves if the call is not queued.
async fn wait_dequeued(signal: &mut Option<DequeueSignal>) {
    let _ = or_pending(signal.as_mut()).await;
    *signal = None;
}

/// Waits for the next event of the server. Never resolves while the server has no call.
async fn next_reply(replies: &mut Option<UpstreamEvents>) -> UpstreamEvent {
    or_pending(replies.as_mut().map(StreamExt::next))
        .await
        .unwrap_or(UpstreamEvent::Lost(CallError::SessionEnded))
}
