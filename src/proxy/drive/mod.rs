//! Drives calls: the one loop that joins an [`Exchange`] to a server, to clients and to the store.
//!
//! A [`CallDriver`] is one call in flight. While its client waits it is polled in place, by the connection that
//! the client came in on ([`InlineCall`]); when it asks something that sends the client away, or becomes a
//! task, the same driver moves to a runtime task of its own, so that no departure can cut a step in half,
//! and so that it outlives the request that brought it. What a held call needs beside (`detached`) is absent
//! until then: its questions (`open_requests`; `questions` takes them to the client and back), and who hears of it
//! (`delivery`).
//!
//! A call has one of two forms. Where the eras of client and server differ it is `canonical`, in the words
//! of 2026-07-28; where they are the same it is `native`, and what the server says stays as it is.
//!
//! The commit point of a task is the moment a client's socket takes the handle ([`DeliveryCommit`](super::DeliveryCommit)).

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
pub(super) use resumed::resume_call;
pub(super) use span::CallSpan;

use super::{
    ReplyItem,
    admission::{DequeueSignal, LimitedCall},
    call_registry::{CallCommand, CallWaiter, CancelTarget, LocalRequest, MailboxMessage, ReplyTarget},
    input_requests,
    ledger::{TaskAdmissionError, TaskLease},
    observed_call::ObservedCall,
    reply::CallEnd,
    route_context::RouteContext,
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
    task::{Record, TaskCause, TaskId, TaskTrigger, TaskView},
    telemetry::Limit,
    upstream::{self, CallError, UpstreamDescription, UpstreamEvent, UpstreamEvents},
};
use canonical::CanonicalForm;
use delivery::{TaskStreamEvent, TaskStreams};
use detached::DetachedState;
use futures_util::{StreamExt, future::BoxFuture};
use open_requests::MAX_OPEN;
use record_writes::{WriteFollowUp, WriteResult};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What a task shows while its call waits for a permit, and once it has one.
const QUEUED_MESSAGE: &str = "queued: as many calls run as may at a time (concurrency)";
const RUNNING_MESSAGE: &str = "running";

/// One call in flight.
pub(super) struct CallDriver {
    shared: Arc<RouteContext>,
    exchange: Exchange<CallEnd>,
    /// Dropping it cancels the call at the server.
    replies: Option<UpstreamEvents>,
    /// How often the server has turned it over.
    retries: usize,
    policy: ToolPolicy,
    /// What somebody else than the connection of its client holds.
    detached: Option<Box<DetachedState>>,
    form: CallForm,
    span: CallSpan,
    /// Where its calls are limited.
    limits: Option<Box<LimitedCall>>,
    /// While the call waits in a queue of ours.
    dequeued: Option<DequeueSignal>,
    /// Whether it would become a task is only observed.
    observed: Option<Box<ObservedCall>>,
}

/// In which words a call is made, and its client spoken to.
enum CallForm {
    Canonical(CanonicalForm),
    Native(Box<NativeForm>),
}

/// What comes of a call in a legacy client's own session.
pub(super) struct NativeReplies {
    pub(super) replies: UpstreamEvents,
    pub(super) span: CallSpan,
    pub(super) limits: Option<Box<LimitedCall>>,
    pub(super) dequeued: Option<DequeueSignal>,
}

/// What happened next.
enum DriverEvent {
    Stored(Option<TaskLease>),
    /// A change of the task's record is stored, or cannot be.
    Written(WriteFollowUp, WriteResult),
    /// A client whose channel was full has taken a message, or has left.
    Sent,
    ClientDisconnected(usize),
    Committed(bool),
    Received(CallCommand),
    Streams(TaskStreamEvent),
    /// The task's record.
    RecordChanged,
    Server(UpstreamEvent),
    Due,
    /// Something of it may be written now.
    WriteDue,
    /// The call waits no longer in a queue of ours: it is made.
    Dequeued,
    /// Where the call can be taken up.
    ResumePoint(Box<upstream::CallAnchor>),
    Draining,
    Stopping,
    Overdue,
}

/// What makes a call one to be held.
enum DetachReason {
    /// Its exchange wants a task.
    Store,
    /// The server asked something that can be put to the client.
    InputRequest(UpstreamEvent),
}

// === impl Driver ===

impl CallDriver {
    /// A call of a client of 2026-07-28, to be polled in place.
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

    /// It becomes no task, and is logged where it would have.
    fn observe(&mut self, observed: Box<ObservedCall>) {
        let (after, began) = observed.threshold();
        self.exchange.observe(after, began);
        self.observed = Some(observed);
    }

    /// A call in a legacy client's own session, which waits for it on its stream: a task after this long.
    pub(super) fn on_stream(
        shared: &Arc<RouteContext>,
        native: NativeForm,
        replies: NativeReplies,
        defer_after: Duration,
        waiter: CallWaiter,
    ) -> Box<Self> {
        let (deadlines, began) = (deadlines(shared, Some(defer_after), native.view), native.began);
        let manner = match native.view {
            TaskView::Ticket => InputDelivery::Ticket,
            TaskView::Extension | TaskView::Experimental => InputDelivery::Stream,
        };
        let mut driver = Self::native(shared, native, replies, Exchange::new(manner, deadlines, began));
        driver.detached().waiters.push(waiter);
        driver
    }

    /// A call in a legacy client's own session that is a task before it is made. Gives what the client is told
    /// of it.
    ///
    /// # Errors
    /// [`TaskAdmissionError`]: nothing was sent.
    pub(super) async fn as_task(
        shared: &Arc<RouteContext>,
        native: NativeForm,
        replies: NativeReplies,
    ) -> Result<(Box<Self>, Vec<u8>), TaskAdmissionError> {
        let exchange =
            Exchange::stored_task(InputDelivery::Stream, deadlines(shared, None, TaskView::Experimental));
        let reader = native.reader;
        let mut driver = Self::native(shared, native, replies, exchange);
        let record = driver.record(TaskTrigger::Request);
        let created = NativeForm::create_result(shared, &record, reader);
        // The stream of replies does nothing until it is polled.
        driver.detached().lease = Some(shared.ledger.admit(record, false).await?);
        driver.become_task();
        Ok((driver, created))
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

    /// From here on somebody else than the connection of its client holds it: `waiter` hears what comes.
    fn detach(mut self, waiter: CallWaiter, first: DetachReason) {
        if let CallForm::Canonical(canonical) = &mut self.form {
            canonical.detach(&self.shared);
            let supplied = std::mem::take(&mut canonical.supplied).detached();
            let mut held = DetachedState::new(&self.shared, &self.policy, supplied);
            held.waiters.push(waiter);
            self.detached = Some(held);
        }
        let shared = Arc::clone(&self.shared);
        let mut driver = Box::new(self);
        match first {
            DetachReason::Store => driver.detached().storing = Some(driver.store()),
            DetachReason::InputRequest(event) => driver.handle_server_event(event),
        }
        shared.stopping.spawn(driver.run());
    }

    /// The call has ended.
    fn end(&mut self, word: CallEnd) {
        self.span.record_end(&word);
        self.exchange.handle_final(word);
    }

    fn become_task(&mut self) {
        // Its retry may: by the configuration of then.
        if let Some(mut observed) = self.observed.take() {
            observed.set_would_defer(false);
        }
        if let Some(held) = &mut self.detached {
            self.span.record_task(held.registration.id());
            held.lease.iter_mut().for_each(TaskLease::begin);
        }
        self.start_task();
    }

    /// The call is a task from here on: a legacy client hears of it where it listens.
    fn start_task(&mut self) {
        let (CallForm::Native(native), Some(held)) = (&self.form, &mut self.detached) else { return };
        native.deferral.mark_deferred();
        held.streams = Some(Box::new(native.streams(&self.shared)));
        held.changes = Some(Box::new(self.shared.ledger.watchers.watch_own(held.registration.id().clone())));
    }

    /// Names the call, and the task it may become.
    pub(super) fn id(&self) -> &TaskId {
        self.detached.as_ref().expect("only a held call has an id").registration.id()
    }

    /// The loop of a call that is held. Takes itself in a box: what an `async fn` takes by value it keeps
    /// twice.
    pub(super) async fn run(mut self: Box<Self>) {
        loop {
            while let Some(action) = self.exchange.poll_action() {
                self.carry_out(action);
            }
            self.abandon();
            if self.exchange.is_done() {
                if self.detached().is_flushed() {
                    return Box::pin(self.close()).await;
                }
            } else {
                self.send_queued_requests();
                // Never behind the end of the task, which needs none.
                if self.exchange.is_unsettled() && self.has_new_questions() {
                    self.write_anchor();
                }
            }
            match self.next_event().await {
                // Boxed: the wait is what a task is in for hours, and its size is what a task costs.
                DriverEvent::Overdue if self.can_be_released() => Box::pin(self.release_or_end()).await,
                happening => self.handle(happening),
            }
        }
    }

    /// Waits for one thing to happen to the call: the only place where one is waited for.
    async fn next_event(&mut self) -> DriverEvent {
        let is_parked = self.exchange.phase() == ExchangePhase::Parked;
        let is_attended = self.exchange.has_waiting_client();
        let clock = &self.shared.clock;
        // The server is not read while a client does not take what it has sent.
        let is_read = self.exchange.awaits_server()
            && self.detached.as_mut().is_none_or(|held| {
                // In a task the server's messages go to the lines.
                (held.unsent.is_empty() || !is_attended)
                    && held.writes.len() < MAX_OPEN
                    && held.streams.as_mut().is_none_or(|lines| !lines.has_backlog(|| clock.now()))
            });
        // In memory a task would be gone with the process: none is made (`stop_making_tasks`), and the result that there
        // may still be goes to a client that waits for it.
        let drains = self.exchange.can_defer() && self.shared.ledger.outlives();
        // Boxed: seldom wanted, and its size is what each call costs.
        let draining = drains.then(|| Box::pin(self.shared.stopping.stopped()));
        let write_due = self.detached.as_ref().filter(|_| self.exchange.is_unsettled());
        let write_due = write_due.and_then(|held| held.write_due());
        let deferral = self.form.deferral();
        let now = || clock.now();
        let held = self.detached.as_deref_mut();
        tokio::select! {
            // What the client did comes first: a word for somebody who has left, or has cancelled, is for
            // nobody. A result that is there at the deadline is a result: a handle would only cost a poll.
            biased;
            // Nothing while the call is polled in place: its client leaves by dropping it.
            happening = or_pending(held.map(|held| held.next_event(is_attended, deferral, now))) => happening,
            happening = wait_dequeued(&mut self.dequeued) => happening,
            event = next_reply(&mut self.replies), if is_read => DriverEvent::Server(event),
            happening = next_due(self.exchange.poll_timeout(), write_due) => happening,
            () = or_pending(draining) => DriverEvent::Draining,
            // What is left of the call is dropped with it, which cancels it at the server.
            () = self.shared.overdue.stopped(), if is_parked || self.exchange.is_unsettled() => match is_parked {
                true => DriverEvent::Stopping,
                false => DriverEvent::Overdue,
            },
        }
    }

    fn handle(&mut self, happening: DriverEvent) {
        let now = self.shared.clock.now();
        self.stop_making_tasks();
        self.exchange.observe_time(now);
        match happening {
            DriverEvent::Stored(task) => {
                let is_stored = task.is_some();
                let held = self.detached();
                (held.storing, held.lease) = (None, task);
                self.exchange.handle_stored(is_stored, now);
            }
            DriverEvent::Written(after, result) => self.handle_written(after, result),
            DriverEvent::Sent => {}
            DriverEvent::ClientDisconnected(who) => {
                self.detached().waiters.swap_remove(who);
                if self.detached().waiters.is_empty() {
                    self.exchange.handle_disconnect();
                }
            }
            DriverEvent::Committed(true) => {
                self.detached().committed.clear();
                self.exchange.handle_committed();
            }
            DriverEvent::Committed(false) => self.exchange.handle_disconnect(),
            DriverEvent::Received(control) => self.receive(control),
            DriverEvent::Streams(happening) => {
                let DetachedState { open_requests: book, streams: lines, .. } = self.detached();
                if let Some(lines) = lines {
                    lines.handle(happening, |ask| book.get(ask).is_some());
                }
            }
            DriverEvent::RecordChanged => self.send_status(),
            DriverEvent::Server(event) => self.handle_server_event(event),
            DriverEvent::Due => self.handle_due(now),
            DriverEvent::WriteDue => {
                let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
                if is_due(self.detached().progress.due()) {
                    self.write_progress();
                }
                if is_due(self.detached().anchor.as_ref().and_then(|anchored| anchored.due())) {
                    self.write_anchor();
                }
            }
            DriverEvent::Dequeued => self.set_status_message(RUNNING_MESSAGE, now),
            DriverEvent::ResumePoint(anchor) => self.set_resume_point(anchor),
            DriverEvent::Draining => self.exchange.handle_drain(now),
            DriverEvent::Stopping => self.exchange.handle_shutdown(now),
            DriverEvent::Overdue => self.end(CallEnd::Lost(CallError::Closing)),
        }
    }

    /// Holds the call to a plain answer where no task is made any more. Called before an event is handled: a
    /// threshold that passes in the same moment is none.
    fn stop_making_tasks(&mut self) {
        if !self.shared.makes_tasks() {
            self.exchange.handle_tasks_disabled();
        }
    }

    /// The call received something.
    fn receive(&mut self, control: CallCommand) {
        match control {
            CallCommand::Attach(LocalRequest::Retry(retry)) => self.receive_retry(*retry),
            CallCommand::Message(MailboxMessage::Responses(answers)) => {
                for (key, response) in answers {
                    self.handle_response(&key, Ok(response), true);
                }
            }
            CallCommand::Message(MailboxMessage::RawResponse(key, outcome)) => {
                self.handle_response(&key, outcome, false);
            }
            CallCommand::Attach(LocalRequest::ResultWaiter(tell)) => {
                let DetachedState { open_requests: book, streams: lines, .. } = self.detached();
                let fresh = || {
                    let mut lines = TaskStreams::default();
                    // A task of the other era, which has been asking nobody here so far.
                    book.ids().into_iter().for_each(|ask| lines.queue_request(ask, false));
                    Box::new(lines)
                };
                lines.get_or_insert_with(fresh).add_waiter(tell, |ask| book.get(ask).is_some());
            }
            CallCommand::Message(MailboxMessage::Cancelled(CancelTarget::Request)) => {
                self.span.event("deferral.call.taken_back", &[]);
                self.exchange.handle_request_cancelled();
            }
            CallCommand::Message(MailboxMessage::Cancelled(CancelTarget::Task)) => {
                self.span.event("deferral.task.cancelled", &[]);
                self.exchange.handle_task_cancelled();
            }
        }
    }

    fn carry_out(&mut self, action: ExchangeAction<CallEnd>) {
        match action {
            ExchangeAction::Reply(word) => {
                // The upstream stream has ended: let its connection go before anything else.
                self.replies = None;
                self.reply(&word);
            }
            ExchangeAction::RequestInput(asks) => self.send_input_required(&asks),
            ExchangeAction::RequestOnStream(ask) => self.send_inline(ask),
            ExchangeAction::Store => self.detached().storing = Some(self.store()),
            ExchangeAction::ReplyTask => {
                // It counts as a task from here on.
                self.detached().parked = None;
                self.become_task();
                self.send_handle();
            }
            ExchangeAction::RequestInTask(ask) => self.add_to_task(ask),
            ExchangeAction::Withdraw(ask) => self.handle_withdrawn(ask),
            ExchangeAction::Decline(ask) => self.detached().open_requests.decline(ask),
            ExchangeAction::ExpireInput(ask) => self.expire_request(ask),
            ExchangeAction::RetryUpstream => self.retry_call(),
            ExchangeAction::StoreResult(word) => self.settle(word),
            ExchangeAction::RemoveTask => self.discard_task(),
            ExchangeAction::CancelUpstream => {
                self.send_status();
                let open = self.withdraw_all("the task has ended");
                self.replies = None;
                // Refused only then: a server may be killed by an answer to what it is about to hear is
                // cancelled.
                drop(open);
            }
        }
    }

    /// Leaves a task that nobody needs to the ledger, which forgets it once it is stored.
    fn abandon(&mut self) {
        if self.exchange.phase() != ExchangePhase::Abandoned {
            return;
        }
        let held = self.detached();
        if let Some(storing) = held.storing.take() {
            // Its room in the quotas is its own until then.
            let reservation = held.parked.take();
            self.shared.ledger.discard_once_stored(storing, reservation);
            self.exchange.handle_stored(false, self.shared.clock.now());
        }
    }

    /// Whoever came back in this very moment is answered, too.
    async fn close(mut self: Box<Self>) {
        self.record_fate();
        self.send_status();
        let open = self.withdraw_all("the task has ended");
        self.replies = None;
        drop(open);
        // Only now: of a task that was forgotten nobody may be given the handle.
        let mut late = std::mem::take(&mut self.detached().waiters);
        for control in self.detached().registration.close() {
            if let CallCommand::Attach(LocalRequest::Retry(retry)) = control {
                late.push(retry.waiter);
            }
        }
        late.into_iter().for_each(|waiter| self.refuse_late(waiter));
        self.release_anchor().await;
    }

    /// What the server said.
    fn handle_server_event(&mut self, event: UpstreamEvent) {
        match event {
            UpstreamEvent::Notification(frame) => self.handle_notification(&frame),
            UpstreamEvent::ServerRequest(question) => self.handle_input_request(question),
            UpstreamEvent::RequestCancelled { id } => {
                if let Some(ask) = self.detached().open_requests.by_id(&id) {
                    self.exchange.handle_input_withdrawn(ask);
                }
            }
            UpstreamEvent::InputRequired(turned_over) => self.handle_input_required(turned_over),
            UpstreamEvent::Final(response) => self.end(CallEnd::Response(response)),
            UpstreamEvent::Lost(lost) => self.end(CallEnd::Lost(lost)),
        }
    }

    fn handle_notification(&mut self, frame: &Frame) {
        let (now, is_attended) = (self.shared.clock.now(), self.exchange.has_waiting_client());
        if let Some(message) = status_message::of_progress(frame)
            && !is_attended
        {
            let progress = &mut self.detached().progress;
            progress.message = Some(message);
            progress.not_before.get_or_insert(now);
        }
        let Some(held) = &mut self.detached else { return };
        match &mut self.form {
            CallForm::Canonical(canonical) => {
                if is_attended {
                    canonical.note_progress(frame);
                }
                for waiter in &held.waiters {
                    if let ReplyTarget::Canonical { call, .. } = &waiter.target
                        && let Some(notice) = modern::notification_for(call, frame)
                    {
                        held.unsent.send(waiter, ReplyItem::Notification(notice));
                    }
                }
            }
            CallForm::Native(native) if is_attended => {
                if native.view == TaskView::Ticket
                    && let Some(said) = status_message::of_progress(frame)
                {
                    native.progress = Some(said);
                }
                if let Some(message) = native.inline_message(frame) {
                    held.send_to_waiters(&message);
                }
            }
            CallForm::Native(native) => {
                if let (Some(lines), Some(message)) =
                    (&mut held.streams, native.task_message(frame, held.registration.id()))
                {
                    lines.send(&message);
                }
            }
        }
    }

    /// The task shows this from now on, unless the server has said something since.
    fn set_status_message(&mut self, message: &str, now: Instant) {
        let is_attended = self.exchange.has_waiting_client();
        let Some(held) = self.detached.as_mut().filter(|_| !is_attended) else { return };
        held.progress.message.get_or_insert_with(|| message.to_owned());
        held.progress.not_before.get_or_insert(now);
    }

    /// Stores the task, unless a quota is full.
    fn store(&self) -> BoxFuture<'static, Option<TaskLease>> {
        let record = self.record(self.cause());
        let ledger = Arc::clone(&self.shared.ledger);
        let parked = self.detached.as_ref().is_some_and(|held| held.parked.is_some());
        Box::pin(async move { ledger.admit(record, parked).await.ok() })
    }

    /// The task that the call may become.
    fn record(&self, by: TaskTrigger) -> Record {
        let (shared, policy) = (&self.shared, &self.policy);
        let ClockReading { time: now, offset } = shared.clock.reading();
        let mut record = match &self.form {
            CallForm::Canonical(canonical) => canonical.record(self.id().clone(), shared, policy, now),
            CallForm::Native(native) => native.record(self.id().clone(), shared, policy, now),
        };
        let (route, tool) = (&shared.route, &*record.tool);
        let ticket = self.exchange.threshold().filter(|_| by == TaskTrigger::Ticket);
        let rule = match (by, ticket) {
            (TaskTrigger::Ticket, Some(after)) => route.ticket_rule(tool, after),
            (TaskTrigger::Threshold | TaskTrigger::Stop | TaskTrigger::Ticket, _) => {
                route.threshold_rule(tool)
            }
            (TaskTrigger::Mode | TaskTrigger::Request | TaskTrigger::Departure, _) => route.mode_rule(tool),
        };
        let rule = rule.map(|pattern| pattern.as_str().to_owned());
        let rollout = route.rollout(tool).map(ToString::to_string);
        let after = ticket.unwrap_or(policy.after);
        let mode = policy.mode.as_str().to_owned();
        record.clock_offset = offset;
        record.trace = self.span.origin();
        if let Some(server) = self.server() {
            record.set_server_info(&server.server_info);
        }
        if self.dequeued.is_some() {
            record.message = Some(QUEUED_MESSAGE.to_owned());
        }
        record.cause = Some(Arc::new(TaskCause { by, mode, after, rule, rollout }));
        record
    }

    /// What makes a task of the call at this moment.
    fn cause(&self) -> TaskTrigger {
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

    /// Answers everybody who waits with the server's word.
    fn reply(&mut self, word: &CallEnd) {
        let Some(held) = &mut self.detached else { return };
        let waiters = std::mem::take(&mut held.waiters);
        match &self.form {
            CallForm::Canonical(canonical) => {
                for waiter in waiters {
                    let ReplyTarget::Canonical { call, .. } = &waiter.target else { continue };
                    let mut reply = canonical.reply(&self.shared, call, word.clone());
                    reply.account.origin = self.span.origin_for(call);
                    if let Some(observed) = &mut self.observed {
                        observed.record_outcome(reply.account.outcome);
                    }
                    held.unsent.send(&waiter, reply.into());
                }
            }
            CallForm::Native(native) => {
                if !matches!(word, CallEnd::Response(said) if matches!(said.frame().kind(), Kind::Success { .. }))
                {
                    native.forget_presence(&self.shared);
                }
                // Whoever answers these does so on the stream.
                held.open_requests.close_all().into_iter().for_each(|open| open.target.withdraw());
                for waiter in waiters {
                    let ReplyTarget::Native(id) = &waiter.target else { continue };
                    let Some(reply) = native.reply(&self.shared, id, word) else { continue };
                    held.unsent.send(&waiter, reply.into());
                }
            }
        }
    }

    /// Gives everybody who waits the handle of the task.
    fn send_handle(&mut self) {
        let Some(held) = &mut self.detached else { return };
        let record =
            self.shared.ledger.last_stored(held.registration.id()).expect("it was stored a moment ago");
        let waiters = std::mem::take(&mut held.waiters);
        match &mut self.form {
            CallForm::Canonical(canonical) => {
                let created = canonical.create_result(&self.shared, &record);
                for waiter in waiters {
                    let ReplyTarget::Canonical { call, capabilities } = &waiter.target else { continue };
                    let is_ticket = canonical.ticketing.is_some();
                    let (mut reply, committed) = canonical::handle_reply(
                        call,
                        capabilities,
                        &created,
                        held.registration.id(),
                        is_ticket,
                    );
                    held.committed.extend(committed);
                    reply.account.origin = self.span.origin_for(call);
                    held.unsent.send(&waiter, reply.into());
                }
                if held.committed.is_empty() {
                    // None of them can be given it. They were told how to come back for it.
                    self.exchange.handle_committed();
                }
            }
            CallForm::Native(native) => {
                for waiter in waiters {
                    let ReplyTarget::Native(id) = &waiter.target else { continue };
                    held.unsent.send(&waiter, native.handle(&self.shared, id, &record).into());
                }
            }
        }
    }

    /// Gives a client the handle that came back before the first one has it.
    fn send_handle_to(&mut self, waiter: CallWaiter) {
        let (CallForm::Canonical(canonical), Some(held)) = (&self.form, &mut self.detached) else { return };
        let ReplyTarget::Canonical { call, capabilities } = &waiter.target else { return };
        let Some(record) = self.shared.ledger.last_stored(held.registration.id()) else { return };
        let created = canonical.handle_result(&self.shared, &record);
        let is_ticket = canonical.ticketing.is_some();
        let (mut reply, committed) =
            canonical::handle_reply(call, capabilities, &created, held.registration.id(), is_ticket);
        held.committed.extend(committed);
        reply.account.origin = self.span.origin_for(call);
        held.unsent.send(&waiter, reply.into());
    }

    /// Answers a client that came back too late to wait for the call itself.
    fn refuse_late(&mut self, waiter: CallWaiter) {
        let (CallForm::Canonical(canonical), Some(held)) = (&self.form, &self.detached) else { return };
        let ReplyTarget::Canonical { call, capabilities } = &waiter.target else { return };
        let (call, declares_tasks) = (Call::clone(call), capabilities.declares_tasks());
        let (shared, server, id) =
            (Arc::clone(&self.shared), canonical.server.description(), held.registration.id().clone());
        // On its own: the record is loaded, which may take long.
        self.shared.stopping.spawn(async move {
            let reply =
                input_requests::late_retry_reply(&shared, &call, &server, (&id, true), declares_tasks).await;
            let _ = waiter.items.send(reply.into()).await;
        });
    }

    fn settle(&mut self, word: CallEnd) {
        // The upstream stream has ended: let its connection go before anything else.
        self.replies = None;
        let event = match &self.form {
            CallForm::Canonical(canonical) => canonical.end_event(&self.shared, word),
            CallForm::Native(native) => native.end_event(&self.shared, &word),
        };
        self.span.record_task_end(&event);
        self.write_description();
        self.queue_write(event, WriteFollowUp::Nothing);
    }

    /// The server of the call, if it has described itself.
    fn server(&self) -> Option<Arc<UpstreamDescription>> {
        match &self.form {
            CallForm::Canonical(canonical) if canonical.server.is_known() => {
                Some(canonical.server.description())
            }
            CallForm::Canonical(_) | CallForm::Native(_) => self.shared.upstream.last_description(),
        }
    }

    /// The time has come for something, if only for a client that was asked and did not come back.
    fn handle_due(&mut self, now: Instant) {
        let was_parked = self.exchange.phase() == ExchangePhase::Parked;
        self.exchange.handle_timeout(now);
        if was_parked && self.exchange.is_done() {
            Limit::Park.record_hit();
        }
    }

    /// Tells a client that hears of its task that the status has changed.
    fn send_status(&mut self) {
        let (CallForm::Native(native), Some(held)) = (&mut self.form, &mut self.detached) else { return };
        if let (Some(lines), Some(message)) =
            (&mut held.streams, native.status_notification(&self.shared, held.registration.id()))
        {
            lines.send(&message);
        }
    }

    fn detached(&mut self) -> &mut DetachedState {
        self.detached.as_mut().expect("what is in place is held before it comes to this")
    }
}

impl Drop for CallDriver {
    fn drop(&mut self) {
        if let Some(observed) = &mut self.observed {
            // Its client may have disconnected.
            if !self.exchange.is_done() {
                self.exchange.observe_time(self.shared.clock.now());
            }
            observed.set_would_defer(self.exchange.would_defer());
        }
    }
}

fn deadlines(shared: &RouteContext, defer_after: Option<Duration>, view: TaskView) -> CallDeadlines {
    let questions = &shared.route.questions;
    // Whoever holds a ticket may never come back, and sees no task that waits for an answer.
    let turn = (shared.upstream.is_turn_based() || view == TaskView::Ticket).then_some(questions.park);
    CallDeadlines { defer_after, settle: questions.settle, park: questions.park, input_timeout: turn }
}

/// What is due first, if anything ever is: the exchange's own time, where both are at once.
async fn next_due(exchange: Option<Instant>, write: Option<Instant>) -> DriverEvent {
    match (exchange, write) {
        (exchange, Some(write)) if exchange.is_none_or(|exchange| write < exchange) => {
            wait_until(Some(write)).await;
            DriverEvent::WriteDue
        }
        (exchange, _) => {
            wait_until(exchange).await;
            DriverEvent::Due
        }
    }
}

async fn wait_dequeued(waits: &mut Option<DequeueSignal>) -> DriverEvent {
    let _ = or_pending(waits.as_mut()).await;
    *waits = None;
    DriverEvent::Dequeued
}

async fn next_reply(replies: &mut Option<UpstreamEvents>) -> UpstreamEvent {
    or_pending(replies.as_mut().map(StreamExt::next))
        .await
        .unwrap_or(UpstreamEvent::Lost(CallError::SessionEnded))
}
