//! Drives calls: the one loop that joins an [`Exchange`] to a server, to clients and to the store.
//!
//! A [`Driver`] is one call in flight. While its client waits it is polled in place, by the connection that
//! the client came in on ([`Attended`]); when it asks something that sends the client away, or becomes a
//! task, the same driver moves to a runtime task of its own, so that no departure can cut a step in half,
//! and so that it outlives the request that brought it. What a held call needs beside (`held`) is absent
//! until then: its questions (`book`; `questions` takes them to the client and back), and who hears of it
//! (`audience`).
//!
//! A call has one of two forms. Where the eras of client and server differ it is `canonical`, in the words
//! of 2026-07-28; where they are the same it is `native`, and what the server says stays as it is.
//!
//! The commit point of a task is the moment a client's socket takes the handle ([`Commit`](super::Commit)).

mod anchored;
mod attended;
mod audience;
mod book;
mod canonical;
mod held;
mod native;
mod questions;
mod record_writes;
mod span;
mod taken_up;
#[cfg(test)]
mod tests;
mod writes;

pub(super) use attended::Attended;
pub(super) use native::Native;
pub(super) use span::CallSpan;
pub use taken_up::Left;
pub(super) use taken_up::take_up;

use super::{
    Item,
    admission::{Dequeued, LimitedCall},
    input_requests,
    ledger::{Custody, NoRoom},
    observed_call::ObservedCall,
    reply::CallEnd,
    shared::Shared,
    switchboard::{CallCancelled, Control, Local, Mail, Request, Waiter},
};
use crate::{
    bridge::{
        Action, Exchange,
        exchange::{Deadlines, Manner, Phase},
    },
    dialect::{Call, modern},
    policy::{Mode, ToolPolicy},
    protocol::{Frame, InputResponses, Kind, status_message},
    runtime::{or_never, reached},
    task::{By, Cause, Record, TaskId, View},
    telemetry::Limit,
    upstream::{self, CallError, Description, Event, Replies},
};
use audience::{Lines, OnLines};
use book::MAX_OPEN;
use canonical::Canonical;
use futures_util::{StreamExt, future::BoxFuture};
use held::Held;
use record_writes::{AfterWrite, WriteResult};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What a task shows while its call waits for a permit, and once it has one.
const QUEUED: &str = "queued: as many calls run as may at a time (concurrency)";
const DEQUEUED: &str = "running";

/// One call in flight.
pub(super) struct Driver {
    shared: Arc<Shared>,
    exchange: Exchange<CallEnd>,
    /// Dropping it cancels the call at the server.
    replies: Option<Replies>,
    /// How often the server has turned it over.
    turns: usize,
    policy: ToolPolicy,
    /// What somebody else than the connection of its client holds.
    held: Option<Box<Held>>,
    form: Form,
    span: CallSpan,
    /// Where its calls are limited.
    limits: Option<Box<LimitedCall>>,
    /// While the call waits in a queue of ours.
    dequeued: Option<Dequeued>,
    /// Whether it would become a task is only observed.
    observed: Option<Box<ObservedCall>>,
}

/// In which words a call is made, and its client spoken to.
enum Form {
    Canonical(Canonical),
    Native(Box<Native>),
}

/// What comes of a call in a legacy client's own session.
pub(super) struct NativeReplies {
    pub(super) replies: Replies,
    pub(super) span: CallSpan,
    pub(super) limits: Option<Box<LimitedCall>>,
    pub(super) dequeued: Option<Dequeued>,
}

/// What happened next.
enum Happening {
    Stored(Option<Custody>),
    /// A change of the task's record is stored, or cannot be.
    Written(AfterWrite, WriteResult),
    /// A client whose channel was full has taken a message, or has left.
    Sent,
    Departed(usize),
    Committed(bool),
    Told(Control),
    Lines(OnLines),
    /// The task's record.
    Changed,
    Server(Event),
    Due,
    /// Something of it may be written now.
    WriteDue,
    /// The call waits no longer in a queue of ours: it is made.
    Dequeued,
    /// Where the call can be taken up.
    Moved(Box<upstream::Anchor>),
    Draining,
    Stopping,
    TooLate,
}

/// What makes a call one to be held.
enum First {
    /// Its exchange wants a task.
    Store,
    /// The server asked something that can be put to the client.
    Asked(Event),
}

// === impl Driver ===

impl Driver {
    /// A call of a client of 2026-07-28, to be polled in place.
    fn in_place(
        shared: &Arc<Shared>,
        canonical: Canonical,
        replies: Replies,
        policy: ToolPolicy,
        (defer_after, now): (Option<Duration>, Instant),
        span: CallSpan,
    ) -> Self {
        let deadlines = deadlines(shared, defer_after, canonical.view());
        Self {
            exchange: Exchange::new(Manner::Rounds, deadlines, now),
            shared: Arc::clone(shared),
            replies: Some(replies),
            turns: 0,
            policy,
            held: None,
            form: Form::Canonical(canonical),
            span,
            limits: None,
            dequeued: None,
            observed: None,
        }
    }

    /// It becomes no task, and is logged where it would have.
    fn is_observed(&mut self, observed: Box<ObservedCall>) {
        let (after, began) = observed.threshold();
        self.exchange.observe(after, began);
        self.observed = Some(observed);
    }

    /// A call in a legacy client's own session, which waits for it on its stream: a task after this long.
    pub(super) fn on_stream(
        shared: &Arc<Shared>,
        native: Native,
        replies: NativeReplies,
        defer_after: Duration,
        waiter: Waiter,
    ) -> Box<Self> {
        let (deadlines, began) = (deadlines(shared, Some(defer_after), native.view), native.began);
        let manner = match native.view {
            View::Ticket => Manner::Ticket,
            View::Extension | View::Experimental => Manner::Stream,
        };
        let mut driver = Self::native(shared, native, replies, Exchange::new(manner, deadlines, began));
        driver.held().waiters.push(waiter);
        driver
    }

    /// A call in a legacy client's own session that is a task before it is made. Gives what the client is told
    /// of it.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was sent.
    pub(super) async fn of_a_task(
        shared: &Arc<Shared>,
        native: Native,
        replies: NativeReplies,
    ) -> Result<(Box<Self>, Vec<u8>), NoRoom> {
        let exchange = Exchange::of_a_task(Manner::Stream, deadlines(shared, None, View::Experimental));
        let reader = native.reader;
        let mut driver = Self::native(shared, native, replies, exchange);
        let record = driver.record(By::Request);
        let created = Native::created(shared, &record, reader);
        // The stream of replies does nothing until it is polled.
        driver.held().task = Some(shared.ledger.admit(record, false).await?);
        driver.becomes_task();
        Ok((driver, created))
    }

    fn native(
        shared: &Arc<Shared>,
        native: Native,
        replies: NativeReplies,
        exchange: Exchange<CallEnd>,
    ) -> Box<Self> {
        let policy = shared.route.treatment(&native.tool);
        let NativeReplies { replies, span, limits, dequeued } = replies;
        Box::new(Self {
            held: Some(Held::new(shared, &policy, InputResponses::default())),
            shared: Arc::clone(shared),
            exchange,
            replies: Some(replies),
            turns: 0,
            policy,
            form: Form::Native(Box::new(native)),
            span,
            limits,
            dequeued,
            observed: None,
        })
    }

    /// From here on somebody else than the connection of its client holds it: `waiter` hears what comes.
    fn hold(mut self, waiter: Waiter, first: First) {
        if let Form::Canonical(canonical) = &mut self.form {
            canonical.hold(&self.shared);
            let supplied = std::mem::take(&mut canonical.supplied).detached();
            let mut held = Held::new(&self.shared, &self.policy, supplied);
            held.waiters.push(waiter);
            self.held = Some(held);
        }
        let shared = Arc::clone(&self.shared);
        let mut driver = Box::new(self);
        match first {
            First::Store => driver.held().storing = Some(driver.store()),
            First::Asked(event) => driver.heard(event),
        }
        shared.stopping.spawn(driver.run());
    }

    /// The call has ended.
    fn ends(&mut self, word: CallEnd) {
        self.span.ends(&word);
        self.exchange.handle_final(word);
    }

    fn becomes_task(&mut self) {
        // Its retry may: by the configuration of then.
        if let Some(mut observed) = self.observed.take() {
            observed.decide(false);
        }
        if let Some(held) = &mut self.held {
            self.span.becomes(held.hold.id());
            held.task.iter_mut().for_each(Custody::begin);
        }
        self.is_task();
    }

    /// The call is a task from here on: a legacy client hears of it where it listens.
    fn is_task(&mut self) {
        let (Form::Native(native), Some(held)) = (&self.form, &mut self.held) else { return };
        native.deferral.comes();
        held.lines = Some(Box::new(native.lines(&self.shared)));
        held.changes = Some(Box::new(self.shared.ledger.hub.listen_to_own(held.hold.id().clone())));
    }

    /// Names the call, and the task it may become.
    pub(super) fn id(&self) -> &TaskId {
        self.held.as_ref().expect("only a held call has an id").hold.id()
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
                if self.held().is_flushed() {
                    return Box::pin(self.close()).await;
                }
            } else {
                self.put();
                // Never behind the end of the task, which needs none.
                if self.exchange.is_unsettled() && self.has_new_questions() {
                    self.write_anchor();
                }
            }
            match self.wait().await {
                // Boxed: the wait is what a task is in for hours, and its size is what a task costs.
                Happening::TooLate if self.can_be_released() => Box::pin(self.release_or_end()).await,
                happening => self.handle(happening),
            }
        }
    }

    /// Waits for one thing to happen to the call: the only place where one is waited for.
    async fn wait(&mut self) -> Happening {
        let is_parked = self.exchange.phase() == Phase::Parked;
        let is_attended = self.exchange.is_attended();
        let clock = &self.shared.clock;
        // The server is not read while a client does not take what it has sent.
        let is_read = self.exchange.awaits_server()
            && self.held.as_mut().is_none_or(|held| {
                // In a task the server's messages go to the lines.
                (held.unsent.is_empty() || !is_attended)
                    && held.writes.len() < MAX_OPEN
                    && held.lines.as_mut().is_none_or(|lines| !lines.is_full(|| clock.now()))
            });
        // In memory a task would be gone with the process: none is made (`stop_making_tasks`), and the result that there
        // may still be goes to a client that waits for it.
        let drains = self.exchange.may_defer() && self.shared.ledger.outlives();
        // Boxed: seldom wanted, and its size is what each call costs.
        let draining = drains.then(|| Box::pin(self.shared.stopping.stopped()));
        let write_due = self.held.as_ref().filter(|_| self.exchange.is_unsettled());
        let write_due = write_due.and_then(|held| held.write_due());
        let deferral = self.form.deferral();
        let now = || clock.now();
        let held = self.held.as_deref_mut();
        tokio::select! {
            // What the client did comes first: a word for somebody who has left, or has cancelled, is for
            // nobody. A result that is there at the deadline is a result: a handle would only cost a poll.
            biased;
            // Nothing while the call is polled in place: its client leaves by dropping it.
            happening = or_never(held.map(|held| held.happens(is_attended, deferral, now))) => happening,
            happening = dequeued(&mut self.dequeued) => happening,
            event = next(&mut self.replies), if is_read => Happening::Server(event),
            happening = due(self.exchange.poll_timeout(), write_due) => happening,
            () = or_never(draining) => Happening::Draining,
            // What is left of the call is dropped with it, which cancels it at the server.
            () = self.shared.overdue.stopped(), if is_parked || self.exchange.is_unsettled() => match is_parked {
                true => Happening::Stopping,
                false => Happening::TooLate,
            },
        }
    }

    fn handle(&mut self, happening: Happening) {
        let now = self.shared.clock.now();
        self.stop_making_tasks();
        self.exchange.pass_time(now);
        match happening {
            Happening::Stored(task) => {
                let is_stored = task.is_some();
                let held = self.held();
                (held.storing, held.task) = (None, task);
                self.exchange.handle_stored(is_stored, now);
            }
            Happening::Written(after, result) => self.written(after, result),
            Happening::Sent => {}
            Happening::Departed(who) => {
                self.held().waiters.swap_remove(who);
                if self.held().waiters.is_empty() {
                    self.exchange.handle_departed();
                }
            }
            Happening::Committed(true) => {
                self.held().committed.clear();
                self.exchange.handle_committed();
            }
            Happening::Committed(false) => self.exchange.handle_departed(),
            Happening::Told(control) => self.told(control),
            Happening::Lines(happening) => {
                let Held { book, lines, .. } = self.held();
                if let Some(lines) = lines {
                    lines.handle(happening, |ask| book.get(ask).is_some());
                }
            }
            Happening::Changed => self.tell_status(),
            Happening::Server(event) => self.heard(event),
            Happening::Due => self.due(now),
            Happening::WriteDue => {
                let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
                if is_due(self.held().progress.due()) {
                    self.write_progress();
                }
                if is_due(self.held().anchored.as_ref().and_then(|anchored| anchored.due())) {
                    self.write_anchor();
                }
            }
            Happening::Dequeued => self.shows(DEQUEUED, now),
            Happening::Moved(anchor) => self.moved(anchor),
            Happening::Draining => self.exchange.handle_draining(now),
            Happening::Stopping => self.exchange.handle_stopping(now),
            Happening::TooLate => self.ends(CallEnd::Lost(CallError::Closing)),
        }
    }

    /// Holds the call to a plain answer where no task is made any more. Called before an event is handled: a
    /// threshold that passes in the same moment is none.
    fn stop_making_tasks(&mut self) {
        if !self.shared.makes_tasks() {
            self.exchange.handle_no_more_tasks();
        }
    }

    /// The call received something.
    fn told(&mut self, control: Control) {
        match control {
            Control::Local(Local::Retry(retry)) => self.came_back(*retry),
            Control::Mail(Mail::Answered(answers)) => {
                for (key, response) in answers {
                    self.answered(&key, Ok(response), true);
                }
            }
            Control::Mail(Mail::Replied(key, outcome)) => {
                self.answered(&key, outcome, false);
            }
            Control::Local(Local::Waiting(tell)) => {
                let Held { book, lines, .. } = self.held();
                let fresh = || {
                    let mut lines = Lines::default();
                    // A task of the other era, which has been asking nobody here so far.
                    book.asks().into_iter().for_each(|ask| lines.ask(ask, false));
                    Box::new(lines)
                };
                lines.get_or_insert_with(fresh).waits(tell, |ask| book.get(ask).is_some());
            }
            Control::Mail(Mail::Cancelled(CallCancelled::Request)) => {
                self.span.event("deferral.call.taken_back", &[]);
                self.exchange.handle_taken_back();
            }
            Control::Mail(Mail::Cancelled(CallCancelled::Task)) => {
                self.span.event("deferral.task.cancelled", &[]);
                self.exchange.handle_cancelled();
            }
        }
    }

    fn carry_out(&mut self, action: Action<CallEnd>) {
        match action {
            Action::Reply(word) => {
                // The upstream stream has ended: let its connection go before anything else.
                self.replies = None;
                self.reply(&word);
            }
            Action::Ask(asks) => self.ask(&asks),
            Action::AskOnStream(ask) => self.ask_on_stream(ask),
            Action::Store => self.held().storing = Some(self.store()),
            Action::ReplyTask => {
                // It counts as a task from here on.
                self.held().parked = None;
                self.becomes_task();
                self.give_handle();
            }
            Action::AskInTask(ask) => self.ask_in_task(ask),
            Action::Withdraw(ask) => self.withdraw(ask),
            Action::Decline(ask) => self.held().book.decline(ask),
            Action::Lapse(ask) => self.lapse(ask),
            Action::Turn => self.turn(),
            Action::Settle(word) => self.settle(word),
            Action::Forget => self.forget(),
            Action::CancelUpstream => {
                self.tell_status();
                let open = self.take_back_all("the task has ended");
                self.replies = None;
                // Refused only then: a server may be killed by an answer to what it is about to hear is
                // cancelled.
                drop(open);
            }
        }
    }

    /// Leaves a task that nobody needs to the ledger, which forgets it once it is stored.
    fn abandon(&mut self) {
        if self.exchange.phase() != Phase::Abandoned {
            return;
        }
        let held = self.held();
        if let Some(storing) = held.storing.take() {
            // Its room in the quotas is its own until then.
            let reservation = held.parked.take();
            self.shared.ledger.forget_once_stored(storing, reservation);
            self.exchange.handle_stored(false, self.shared.clock.now());
        }
    }

    /// Whoever came back in this very moment is answered, too.
    async fn close(mut self: Box<Self>) {
        self.settles_fate();
        self.tell_status();
        let open = self.take_back_all("the task has ended");
        self.replies = None;
        drop(open);
        // Only now: of a task that was forgotten nobody may be given the handle.
        let mut late = std::mem::take(&mut self.held().waiters);
        for control in self.held().hold.close() {
            if let Control::Local(Local::Retry(retry)) = control {
                late.push(retry.waiter);
            }
        }
        late.into_iter().for_each(|waiter| self.turn_away(waiter));
        self.let_go().await;
    }

    /// What the server said.
    fn heard(&mut self, event: Event) {
        match event {
            Event::Notification(frame) => self.notified(&frame),
            Event::Asked(question) => self.asked(question),
            Event::Withdrawn { id } => {
                if let Some(ask) = self.held().book.by_id(&id) {
                    self.exchange.handle_withdrawn(ask);
                }
            }
            Event::TurnOver(turned_over) => self.turned_over(turned_over),
            Event::Final(response) => self.ends(CallEnd::Said(response)),
            Event::Lost(lost) => self.ends(CallEnd::Lost(lost)),
        }
    }

    fn notified(&mut self, frame: &Frame) {
        let (now, is_attended) = (self.shared.clock.now(), self.exchange.is_attended());
        if let Some(message) = status_message::of_progress(frame)
            && !is_attended
        {
            let progress = &mut self.held().progress;
            progress.message = Some(message);
            progress.not_before.get_or_insert(now);
        }
        let Some(held) = &mut self.held else { return };
        match &mut self.form {
            Form::Canonical(canonical) => {
                if is_attended {
                    canonical.hears(frame);
                }
                for waiter in &held.waiters {
                    if let Request::Canonical { call, .. } = &waiter.request
                        && let Some(notice) = modern::notice(call, frame)
                    {
                        held.unsent.send(waiter, Item::Notification(notice));
                    }
                }
            }
            Form::Native(native) if is_attended => {
                if native.view == View::Ticket
                    && let Some(said) = status_message::of_progress(frame)
                {
                    native.said = Some(said);
                }
                if let Some(message) = native.on_the_way(frame) {
                    held.tell_all(&message);
                }
            }
            Form::Native(native) => {
                if let (Some(lines), Some(message)) = (&mut held.lines, native.in_task(frame, held.hold.id()))
                {
                    lines.say(&message);
                }
            }
        }
    }

    /// The task shows this from now on, unless the server has said something since.
    fn shows(&mut self, message: &str, now: Instant) {
        let is_attended = self.exchange.is_attended();
        let Some(held) = self.held.as_mut().filter(|_| !is_attended) else { return };
        held.progress.message.get_or_insert_with(|| message.to_owned());
        held.progress.not_before.get_or_insert(now);
    }

    /// Stores the task, unless a quota is full.
    fn store(&self) -> BoxFuture<'static, Option<Custody>> {
        let record = self.record(self.cause());
        let ledger = Arc::clone(&self.shared.ledger);
        let parked = self.held.as_ref().is_some_and(|held| held.parked.is_some());
        Box::pin(async move { ledger.admit(record, parked).await.ok() })
    }

    /// The task that the call may become.
    fn record(&self, by: By) -> Record {
        let (shared, policy, now) = (&self.shared, &self.policy, self.shared.clock.timestamp());
        let mut record = match &self.form {
            Form::Canonical(canonical) => canonical.record(self.id().clone(), shared, policy, now),
            Form::Native(native) => native.record(self.id().clone(), shared, policy, now),
        };
        let (route, tool) = (&shared.route, &*record.tool);
        let ticket = self.exchange.threshold().filter(|_| by == By::Ticket);
        let rule = match (by, ticket) {
            (By::Ticket, Some(after)) => route.ticket_rule(tool, after),
            (By::Threshold | By::Stop | By::Ticket, _) => route.threshold_rule(tool),
            (By::Mode | By::Request | By::Departure, _) => route.mode_rule(tool),
        };
        let rule = rule.map(|pattern| pattern.as_str().to_owned());
        let rollout = route.rollout(tool).map(ToString::to_string);
        let after = ticket.unwrap_or(policy.after);
        let mode = policy.mode.as_str().to_owned();
        record.trace = self.span.origin();
        if let Some(server) = self.server() {
            record.set_server_info(&server.server_info);
        }
        if self.dequeued.is_some() {
            record.message = Some(QUEUED.to_owned());
        }
        record.cause = Some(Arc::new(Cause { by, mode, after, rule, rollout }));
        record
    }

    /// What makes a task of the call at this moment.
    fn cause(&self) -> By {
        let view = match &self.form {
            Form::Canonical(canonical) => canonical.view(),
            Form::Native(native) => native.view,
        };
        match () {
            () if view == View::Ticket => By::Ticket,
            () if self.policy.mode == Mode::Always => By::Mode,
            () if self.exchange.has_left() => By::Departure,
            () if self.shared.stopping.is_stopped() => By::Stop,
            () => By::Threshold,
        }
    }

    /// Answers everybody who waits with the server's word.
    fn reply(&mut self, word: &CallEnd) {
        let Some(held) = &mut self.held else { return };
        let waiters = std::mem::take(&mut held.waiters);
        match &self.form {
            Form::Canonical(canonical) => {
                for waiter in waiters {
                    let Request::Canonical { call, .. } = &waiter.request else { continue };
                    let mut reply = canonical.reply(&self.shared, call, word.clone());
                    reply.account.origin = self.span.origin_for(call);
                    if let Some(observed) = &mut self.observed {
                        observed.answered(reply.account.outcome);
                    }
                    held.unsent.send(&waiter, reply.into());
                }
            }
            Form::Native(native) => {
                if !matches!(word, CallEnd::Said(said) if matches!(said.frame().kind(), Kind::Success { .. }))
                {
                    native.doubt(&self.shared);
                }
                // Whoever answers these does so on the stream.
                held.book.close_all().into_iter().for_each(|open| open.way.withdrawn());
                for waiter in waiters {
                    let Request::Native(id) = &waiter.request else { continue };
                    let Some(reply) = native.reply(&self.shared, id, word) else { continue };
                    held.unsent.send(&waiter, reply.into());
                }
            }
        }
    }

    /// Gives everybody who waits the handle of the task.
    fn give_handle(&mut self) {
        let Some(held) = &mut self.held else { return };
        let record = self.shared.ledger.last_kept(held.hold.id()).expect("it was stored a moment ago");
        let waiters = std::mem::take(&mut held.waiters);
        match &mut self.form {
            Form::Canonical(canonical) => {
                let created = canonical.created(&self.shared, &record);
                for waiter in waiters {
                    let Request::Canonical { call, capabilities } = &waiter.request else { continue };
                    let is_ticket = canonical.ticketing.is_some();
                    let (mut reply, committed) =
                        canonical::handle(call, capabilities, &created, held.hold.id(), is_ticket);
                    held.committed.extend(committed);
                    reply.account.origin = self.span.origin_for(call);
                    held.unsent.send(&waiter, reply.into());
                }
                if held.committed.is_empty() {
                    // None of them can be given it. They were told how to come back for it.
                    self.exchange.handle_committed();
                }
            }
            Form::Native(native) => {
                for waiter in waiters {
                    let Request::Native(id) = &waiter.request else { continue };
                    held.unsent.send(&waiter, native.handle(&self.shared, id, &record).into());
                }
            }
        }
    }

    /// Gives a client the handle that came back before the first one has it.
    fn hand_over_to(&mut self, waiter: Waiter) {
        let (Form::Canonical(canonical), Some(held)) = (&self.form, &mut self.held) else { return };
        let Request::Canonical { call, capabilities } = &waiter.request else { return };
        let Some(record) = self.shared.ledger.last_kept(held.hold.id()) else { return };
        let created = canonical.shown(&self.shared, &record);
        let is_ticket = canonical.ticketing.is_some();
        let (mut reply, committed) =
            canonical::handle(call, capabilities, &created, held.hold.id(), is_ticket);
        held.committed.extend(committed);
        reply.account.origin = self.span.origin_for(call);
        held.unsent.send(&waiter, reply.into());
    }

    /// Answers a client that came back too late to wait for the call itself.
    fn turn_away(&mut self, waiter: Waiter) {
        let (Form::Canonical(canonical), Some(held)) = (&self.form, &self.held) else { return };
        let Request::Canonical { call, capabilities } = &waiter.request else { return };
        let (call, declares_tasks) = (Call::clone(call), capabilities.declares_tasks());
        let (shared, server, id) =
            (Arc::clone(&self.shared), canonical.server.known(), held.hold.id().clone());
        // On its own: the record is loaded, which may take long.
        self.shared.stopping.spawn(async move {
            let reply = input_requests::too_late(&shared, &call, &server, (&id, true), declares_tasks).await;
            let _ = waiter.items.send(reply.into()).await;
        });
    }

    fn settle(&mut self, word: CallEnd) {
        // The upstream stream has ended: let its connection go before anything else.
        self.replies = None;
        let event = match &self.form {
            Form::Canonical(canonical) => canonical.settled(&self.shared, word),
            Form::Native(native) => native.settled(&self.shared, &word),
        };
        self.span.settled(&event);
        self.describe();
        self.write(event, AfterWrite::Nothing);
    }

    /// The server of the call, if it has described itself.
    fn server(&self) -> Option<Arc<Description>> {
        match &self.form {
            Form::Canonical(canonical) if canonical.server.is_known() => Some(canonical.server.known()),
            Form::Canonical(_) | Form::Native(_) => self.shared.upstream.described(),
        }
    }

    /// The time has come for something, if only for a client that was asked and did not come back.
    fn due(&mut self, now: Instant) {
        let was_parked = self.exchange.phase() == Phase::Parked;
        self.exchange.handle_timeout(now);
        if was_parked && self.exchange.is_done() {
            Limit::Park.hit();
        }
    }

    /// Tells a client that hears of its task that the status has changed.
    fn tell_status(&mut self) {
        let (Form::Native(native), Some(held)) = (&mut self.form, &mut self.held) else { return };
        if let (Some(lines), Some(message)) = (&mut held.lines, native.status(&self.shared, held.hold.id())) {
            lines.say(&message);
        }
    }

    fn held(&mut self) -> &mut Held {
        self.held.as_mut().expect("what is in place is held before it comes to this")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(observed) = &mut self.observed {
            // Its client may have disconnected.
            if !self.exchange.is_done() {
                self.exchange.pass_time(self.shared.clock.now());
            }
            observed.decide(self.exchange.would_defer());
        }
    }
}

fn deadlines(shared: &Shared, defer_after: Option<Duration>, view: View) -> Deadlines {
    let questions = &shared.route.questions;
    // Whoever holds a ticket may never come back, and sees no task that waits for an answer.
    let turn = (shared.upstream.takes_turns() || view == View::Ticket).then_some(questions.park);
    Deadlines { defer_after, settle: questions.settle, park: questions.park, turn }
}

/// What is due first, if anything ever is: the exchange's own time, where both are at once.
async fn due(exchange: Option<Instant>, write: Option<Instant>) -> Happening {
    match (exchange, write) {
        (exchange, Some(write)) if exchange.is_none_or(|exchange| write < exchange) => {
            reached(Some(write)).await;
            Happening::WriteDue
        }
        (exchange, _) => {
            reached(exchange).await;
            Happening::Due
        }
    }
}

async fn dequeued(waits: &mut Option<Dequeued>) -> Happening {
    let _ = or_never(waits.as_mut()).await;
    *waits = None;
    Happening::Dequeued
}

async fn next(replies: &mut Option<Replies>) -> Event {
    or_never(replies.as_mut().map(StreamExt::next)).await.unwrap_or(Event::Lost(CallError::SessionEnded))
}
