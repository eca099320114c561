//! The answer to a legacy client's request as it goes by: what [`Relay`] decides is carried out here.
//!
//! The server's body is read, its bytes are edited where they have to be, and what is said of it is kept:
//! for the log, for who comes back ([`Unfinished`]), and for the session that listens.

use super::{
    deferred_head::{self, Body},
    session_stream::Heard,
    sse_edit::Edited,
};
use crate::{
    bridge::relay::{Action, Loss, Phase, Relay, Said, Verdict},
    dialect::{Principal, legacy::Anchor},
    protocol::{ErrorObject, Id, headers::LAST_EVENT_ID},
    proxy::{
        AccessSummary, Passage, Piece, Then,
        keep_alive::Timer,
        reply::{lost_error, outcome_of},
        session::{Asked, Client, Left, Place, Sessions, Stream as Listening, TheirCall, Unfinished},
        shared::Shared,
    },
    runtime::Stopping,
    telemetry::Outcome,
    upstream::{CallError, ClientSession, Interest},
};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, future::BoxFuture};
use http::{HeaderValue, Method};
use smallvec::SmallVec;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// One answer as it goes by.
pub(in crate::proxy) struct Relaying {
    pub(in crate::proxy) relay: Relay<CallError>,
    pub(in crate::proxy) body: Body,
    /// What is said of it in the log, as far as is known.
    pub(in crate::proxy) outcome: Outcome,
    pub(in crate::proxy) timing: Timing,
    pub(in crate::proxy) timer: Timer,
    /// For a call that has a deadline.
    pub(in crate::proxy) giving_up: Option<Box<GivingUp>>,
    /// What is changed of the answer.
    pub(in crate::proxy) edited: Option<Box<Edited>>,
    /// What is taken out of a session's own stream.
    pub(in crate::proxy) heard: Option<Box<Heard>>,
    /// The client's own call that it answers.
    pub(in crate::proxy) call: Option<Arc<TheirCall>>,
    /// The session listens on it, and we may have something to say.
    pub(in crate::proxy) listening: Option<Box<Listening>>,
    pub(in crate::proxy) owing: Owing,
    /// To whom an answer is owed, while that is found out.
    pub(in crate::proxy) settling: Option<BoxFuture<'static, SmallVec<[Id; 1]>>>,
    /// Our own end of it. Made when it is first waited for: most answers are there.
    pub(in crate::proxy) stop: Option<BoxFuture<'static, ()>>,
    pub(in crate::proxy) stopping: Stopping,
}

/// How long the server has been waited for.
pub(in crate::proxy) struct Timing {
    pub(in crate::proxy) shared: Arc<Shared>,
    pub(in crate::proxy) began: Instant,
    /// A stopping proxy waits for it; not where the client only listens.
    pub(in crate::proxy) _work: Option<TaskTrackerToken>,
}

/// To whom an answer is owed: who asked, in which session.
#[derive(Clone)]
pub(in crate::proxy) struct Owing {
    asked: Arc<Asked>,
    unfinished: Arc<Unfinished>,
    principal: Principal,
    /// The client has come back for it, behind this event.
    resumed: Option<HeaderValue>,
}

/// What it takes to give up a call that takes too long.
pub(in crate::proxy) struct GivingUp {
    /// The client's own: the server is told there.
    session: ClientSession,
    asked: Arc<Asked>,
}

// === impl Relaying ===

impl Relaying {
    /// Tells the relay the next thing that happens.
    fn poll_next_event(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.relay.phase() {
            Phase::Flowing => match self.body.poll_chunk(cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    let bytes = self.edit(bytes);
                    self.relay.handle_chunk(bytes, self.body.is_over());
                }
                Poll::Ready(Some(Err(lost))) => {
                    if !lost.leaves_it_running() {
                        self.call.iter().for_each(|call| call.answered());
                    }
                    self.relay.handle_end(Some(lost));
                }
                Poll::Ready(None) => self.relay.handle_end(None),
                Poll::Pending => ready!(self.poll_own(cx)),
            },
            Phase::Settling => {
                let Some(settling) = &mut self.settling else { return Poll::Ready(()) };
                let owed = ready!(settling.poll_unpin(cx));
                self.settling = None;
                self.relay.handle_owed(owed);
            }
            Phase::TakingUp => match self.body.poll_taken_up(cx) {
                Poll::Ready(outcome) => {
                    // The event comes again that has not ended.
                    self.edited.iter_mut().for_each(|edited| edited.forget());
                    self.relay.handle_taken_up(outcome);
                }
                Poll::Pending => ready!(self.poll_own(cx)),
            },
            Phase::Over => {}
        }
        Poll::Ready(())
    }

    /// Waits for what happens here while the server says nothing: our own end, something to say to a session
    /// that listens, the time.
    fn poll_own(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let stop = self.stop.get_or_insert_with(|| {
            let stopping = self.stopping.clone();
            async move { stopping.stopped().await }.boxed()
        });
        if stop.poll_unpin(cx).is_ready() {
            self.relay.handle_stopping();
            return Poll::Ready(());
        }
        if self.relay.may_speak()
            && let Some(listening) = &mut self.listening
            && let Poll::Ready(told) = listening.told().poll_recv(cx)
        {
            // It lives as long as the stream itself.
            self.relay.handle_own(told.expect("its sender is kept where it was opened"));
            return Poll::Ready(());
        }
        let clock = &self.timing.shared.clock;
        let Some(due) = self.relay.poll_timeout(clock.now()) else { return Poll::Pending };
        ready!(self.timer.poll_until(cx, due));
        // The timer may be a little ahead.
        self.relay.handle_timeout(clock.now().max(due));
        Poll::Ready(())
    }

    /// What goes on of the server's next bytes.
    fn edit(&mut self, bytes: Bytes) -> Bytes {
        let is_over = self.body.is_over();
        let (bytes, rest) = match (&mut self.edited, &mut self.heard) {
            (None, None) => return bytes,
            (Some(edited), _) => (edited.feed(bytes), if is_over { edited.rest() } else { Bytes::new() }),
            (None, Some(heard)) => (heard.feed(bytes), if is_over { heard.rest() } else { Bytes::new() }),
        };
        if rest.is_empty() { bytes } else { [bytes, rest].concat().into() }
    }

    /// Carries out one action; gives what there is to be sent of it.
    fn carry_out(&mut self, action: Action<CallError>) -> Option<Piece> {
        match action {
            Action::Send(bytes) => return Some(Piece { bytes, account: None, then: Then::More }),
            Action::Answered(bytes, said) => {
                let account = Some(self.answered(said));
                return Some(Piece { bytes, account, then: Then::More });
            }
            Action::End(bytes, verdict) => {
                return Some(Piece { bytes, account: Some(self.end(verdict)), then: Then::End });
            }
            Action::Break(verdict) => {
                let account = Some(self.end(verdict));
                return Some(Piece { bytes: Bytes::new(), account, then: Then::Break });
            }
            Action::Settle(waiting) => {
                let asked = Arc::clone(self.owing.asked());
                self.settling = Some(async move { asked.owed(waiting).await }.boxed());
            }
            Action::TakeUp(from) => self.body.take_up(from),
            Action::Leave(behind, waiting) => self.owing.leave(&behind, waiting),
            Action::Release => self.body.release(),
            Action::Cancel => self.body.cancel("the proxy is shutting down"),
            Action::GiveUp => {
                if let Some(giving_up) = self.giving_up.take() {
                    giving_up.tell(&self.timing.shared);
                }
                self.body.answered();
            }
        }
        None
    }

    /// All that was asked has been answered.
    fn answered(&mut self, said: Said) -> AccessSummary {
        self.body.answered();
        self.owing.answered();
        self.call.iter().for_each(|call| call.answered());
        self.outcome = match said {
            Said::Plain => self.outcome,
            Said::Error => self.owing.of_error(),
            Said::ToolError => Outcome::ToolError,
        };
        self.timing.account(self.outcome)
    }

    fn end(&mut self, verdict: Verdict<CallError>) -> AccessSummary {
        let (outcome, error) = match verdict {
            Verdict::Said(said) => return self.answered(said),
            Verdict::Left => return self.timing.account(self.outcome),
            Verdict::Departed => return self.timing.account(Outcome::Departed),
            Verdict::Lost(lost) => {
                // Of a proxy that stops, the server is still at it, and hears so when it is left.
                if !lost.is_closing() {
                    self.body.answered();
                }
                self.owing.answered();
                (outcome_of(&lost), lost.error())
            }
            Verdict::Overdue(error) => (Outcome::UpstreamFailed, error),
        };
        let reason = AccessSummary::failed(outcome, &error).reason;
        AccessSummary { reason, ..self.timing.account(outcome) }
    }
}

impl Stream for Relaying {
    type Item = Piece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        let this = &mut *self;
        loop {
            while let Some(action) = this.relay.poll_action() {
                if let Some(piece) = this.carry_out(action) {
                    return Poll::Ready(Some(piece));
                }
            }
            if this.relay.phase() == Phase::Over {
                return Poll::Ready(None);
            }
            ready!(this.poll_next_event(cx));
        }
    }
}

impl Drop for Relaying {
    /// The client may have left.
    fn drop(&mut self) {
        self.relay.handle_departed();
        while let Some(action) = self.relay.poll_action() {
            drop(self.carry_out(action));
        }
    }
}

impl Loss for CallError {
    fn is_break(&self) -> bool {
        matches!(self, Self::Broken(_))
    }

    fn is_closing(&self) -> bool {
        matches!(self, Self::Closing)
    }

    fn error(&self) -> ErrorObject {
        lost_error(self)
    }

    fn unanswered() -> Self {
        Self::Broken("the answer ended without a response".to_owned())
    }

    fn empty() -> Self {
        deferred_head::empty()
    }

    fn closing() -> Self {
        Self::Closing
    }
}

// === impl Timing ===

impl Timing {
    pub(in crate::proxy) fn account(&self, outcome: Outcome) -> AccessSummary {
        let upstream = self.shared.clock.now().saturating_duration_since(self.began);
        AccessSummary { outcome, upstream, ..AccessSummary::default() }
    }
}

// === impl Owing ===

impl Owing {
    pub(in crate::proxy) fn of(sessions: &Sessions, client: &Client, passage: &Passage) -> Self {
        Self {
            asked: Asked::new(&sessions.ended, client.session, passage.post.waiting()),
            unfinished: Arc::clone(&sessions.unfinished),
            principal: client.principal,
            resumed: None,
        }
    }

    /// What the request comes back for, where it does, and where that is known: what a stream has left
    /// unanswered.
    pub(in crate::proxy) fn comes_back(&mut self, passage: &Passage) -> SmallVec<[Id; 1]> {
        let last_id = passage.headers.get(&LAST_EVENT_ID).filter(|_| passage.method == Method::GET);
        let left = last_id.and_then(|last_id| self.unfinished.left(self.place(last_id.as_bytes())));
        let Some(Left { waiting, asked }) = left else { return SmallVec::new() };
        self.resumed = last_id.cloned();
        self.asked = asked;
        waiting
    }

    pub(in crate::proxy) fn asked(&self) -> &Arc<Asked> {
        &self.asked
    }

    pub(in crate::proxy) fn is_in_session(&self) -> bool {
        self.asked.key().is_some()
    }

    /// Behind which event the client has come back.
    pub(in crate::proxy) fn resumed(&self) -> Option<&HeaderValue> {
        self.resumed.as_ref()
    }

    /// The stream ends here, or its client leaves, and these are not answered.
    fn leave(&self, behind: &Anchor, waiting: SmallVec<[Id; 1]>) {
        self.unfinished.leave(self.place(behind.last_id.as_bytes()), waiting, Arc::clone(&self.asked));
    }

    /// All has been answered.
    pub(in crate::proxy) fn answered(&self) {
        if let Some(last_id) = &self.resumed {
            self.unfinished.finish(self.place(last_id.as_bytes()));
        }
    }

    fn place(&self, last_id: &[u8]) -> Place {
        Place::of(self.principal, self.asked.key(), last_id)
    }

    /// What an error of the server means.
    pub(in crate::proxy) fn of_error(&self) -> Outcome {
        if self.asked.is_taken_back() { Outcome::Departed } else { Outcome::ServerError }
    }
}

// === impl GivingUp ===

impl GivingUp {
    /// For a call on a route that has a deadline.
    pub(in crate::proxy) fn of(shared: &Shared, passage: &Passage, asked: &Arc<Asked>) -> Option<Box<Self>> {
        shared.route.held.deadline?;
        Some(Box::new(Self { session: passage.session(), asked: Arc::clone(asked) }))
    }

    /// Tells the server that the calls are cancelled (2025-11-25, *Cancellation*). What it still says
    /// of them is not waited for.
    pub(in crate::proxy) fn tell(self, shared: &Arc<Shared>) {
        let Self { session, asked } = self;
        if asked.lose() {
            let reason = "it took longer than the proxy lets a client wait";
            shared.upstream.cancel_in(session, asked.ids(), reason);
        }
    }
}
