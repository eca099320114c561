//! The answer to a legacy client's request as it goes by: what [`Relay`] decides is carried out here.
//!
//! The server's body is read, its bytes are edited where they have to be, and what is said of it is kept:
//! for the log, for who comes back (`requester`), and for the session that listens.

use super::{
    deferred_head::{self, Body},
    sent::Sent,
    session_stream::SessionStream,
};
use crate::{
    bridge::{
        deny,
        relay::{Action, Loss, Phase, Relay, Said, Verdict},
    },
    protocol::{ErrorObject, Frame, Id, sse::Editor},
    proxy::{
        AccessSummary, Piece, Then,
        keep_alive::Timer,
        reply::{lost_error, outcome_of},
    },
    telemetry::{Limit, Outcome},
    upstream::CallError,
};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, future::BoxFuture};
use http::HeaderValue;
use smallvec::SmallVec;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// One answer as it goes by.
pub(super) struct Relaying {
    pub(super) sent: Sent,
    relay: Relay<CallError>,
    body: Body,
    /// What is said of it in the log, as far as is known.
    outcome: Outcome,
    timer: Timer,
    /// Takes denied tools out of a list, before anything else is changed.
    hiding: Option<Box<Editor>>,
    pub(super) changes: Changes,
    /// To whom an answer is owed, while that is found out.
    settling: Option<BoxFuture<'static, SmallVec<[Id; 1]>>>,
    /// Our own end of it. Made when it is first waited for: most answers are there.
    stop: Option<BoxFuture<'static, ()>>,
}

/// What a response becomes, or nothing where it stays as it is. The second is the session that the
/// answer names.
pub(in crate::proxy) type Edit = Box<dyn FnMut(&Frame, Option<&HeaderValue>) -> Option<Bytes> + Send>;

/// An event stream whose response is changed as it goes by.
pub(super) struct Edited {
    pub(super) edit: Edit,
    pub(super) in_session: Option<HeaderValue>,
    pub(super) editor: Editor,
}

/// What does not pass as it comes.
pub(super) enum Changes {
    None,
    /// One message is changed.
    Edited(Box<Edited>),
    /// The session listens on it: something is taken out, and we may have something to say.
    OfSession(Box<SessionStream>),
}

// === impl Relaying ===

impl Relaying {
    pub(super) fn new(
        sent: Sent,
        relay: Relay<CallError>,
        body: Body,
        outcome: Outcome,
        timer: Timer,
    ) -> Self {
        Self {
            sent,
            relay,
            body,
            outcome,
            timer,
            hiding: None,
            changes: Changes::None,
            settling: None,
            stop: None,
        }
    }

    /// Tools that are denied are taken out of every list on it. `limit` is for one event, in bytes.
    pub(super) fn hides_tools(&mut self, limit: usize) {
        self.hiding = Some(Box::new(Editor::of_all(limit)));
    }

    /// Tells the relay the next thing that happens.
    fn poll_next_event(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.relay.phase() {
            Phase::Flowing => match self.body.poll_chunk(cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    let bytes = self.edit(bytes);
                    self.relay.handle_chunk(bytes, self.body.is_over());
                }
                Poll::Ready(Some(Err(lost))) => {
                    self.sent.is_lost(&lost);
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
                    if let Changes::Edited(edited) = &mut self.changes {
                        edited.editor.begin_event();
                    }
                    self.hiding.iter_mut().for_each(|editor| editor.begin_event());
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
            let stopping = self.sent.stopping.clone();
            async move { stopping.stopped().await }.boxed()
        });
        if stop.poll_unpin(cx).is_ready() {
            self.relay.handle_stopping();
            return Poll::Ready(());
        }
        if self.relay.may_speak()
            && let Changes::OfSession(session) = &mut self.changes
            && let Poll::Ready(told) = session.stream.told.poll_recv(cx)
        {
            // It lives as long as the stream itself.
            self.relay.handle_own(told.expect("its sender is kept where it was opened"));
            return Poll::Ready(());
        }
        let clock = &self.sent.shared.clock;
        let Some(due) = self.relay.poll_timeout(|| clock.now()) else { return Poll::Pending };
        ready!(self.timer.poll_until(cx, due));
        // The timer may be a little ahead.
        self.relay.handle_timeout(clock.now().max(due));
        Poll::Ready(())
    }

    /// What goes on of the server's next bytes.
    fn edit(&mut self, bytes: Bytes) -> Bytes {
        let is_over = self.body.is_over();
        let bytes = match &mut self.hiding {
            None => bytes,
            Some(editor) => {
                let route = &self.sent.shared.route;
                let seen = editor.feed(bytes, |list| deny::hide(list, |tool| route.denies(tool)));
                let rest = if is_over { editor.rest() } else { Bytes::new() };
                if rest.is_empty() { seen } else { [seen, rest].concat().into() }
            }
        };
        let (bytes, rest) = match &mut self.changes {
            Changes::None => return bytes,
            Changes::Edited(edited) => {
                let Edited { edit, in_session, editor } = &mut **edited;
                let bytes = editor.feed(bytes, |response| edit(response, in_session.as_ref()));
                (bytes, is_over.then(|| editor.rest()))
            }
            Changes::OfSession(session) => (session.feed(bytes), is_over.then(|| session.rest())),
        };
        let rest = rest.unwrap_or_default();
        if rest.is_empty() { bytes } else { [bytes, rest].concat().into() }
    }

    /// Carries out one action; gives what there is to be sent of it.
    fn carry_out(&mut self, action: Action<CallError>) -> Option<Piece> {
        match action {
            Action::Send(bytes) => return Some(Piece::of(bytes)),
            Action::Answered(bytes, said) => {
                let account = Some(self.answered(said));
                return Some(Piece { account, ..Piece::of(bytes) });
            }
            Action::End(bytes, verdict) => {
                return Some(Piece::last(bytes, self.end(verdict)));
            }
            Action::Break(verdict) => {
                let account = Some(self.end(verdict));
                return Some(Piece { account, then: Then::Break, ..Piece::end() });
            }
            Action::Settle(waiting) => {
                let asked = Arc::clone(&self.sent.requester.asked);
                self.settling = Some(async move { asked.owed(waiting).await }.boxed());
            }
            Action::TakeUp(from) => {
                if let Some(body) = self.body.here() {
                    body.take_up(from);
                }
            }
            Action::Leave(behind, waiting) => {
                self.sent.requester.leave(&behind, self.relay.earlier_ids(), &waiting);
            }
            Action::Release => self.body.here().into_iter().for_each(|body| body.release()),
            Action::Cancel => {
                if let Some(body) = self.body.here() {
                    body.cancel("the proxy is shutting down");
                }
            }
            Action::GiveUp => {
                self.sent.give_up();
                self.body.answered();
            }
        }
        None
    }

    /// All that was asked has been answered.
    fn answered(&mut self, said: Said) -> AccessSummary {
        self.body.answered();
        self.sent.requester.answered();
        self.sent.is_over();
        self.outcome = match said {
            Said::Plain => self.outcome,
            Said::Error => self.sent.requester.of_error(),
            Said::ToolError => Outcome::ToolError,
        };
        self.sent.account(self.outcome)
    }

    fn end(&mut self, verdict: Verdict<CallError>) -> AccessSummary {
        let (outcome, error) = match verdict {
            Verdict::Said(said) => return self.answered(said),
            Verdict::Left => return self.sent.account(self.outcome),
            Verdict::Departed => return self.sent.account(Outcome::Departed),
            Verdict::Lost(lost) => {
                // Of a proxy that stops, the server is still at it, and hears so when it is left.
                if !lost.is_closing() {
                    self.body.answered();
                }
                self.sent.requester.answered();
                (outcome_of(&lost), lost.error())
            }
            Verdict::Overdue(error) => {
                Limit::HeldDeadline.hit();
                (Outcome::UpstreamFailed, error)
            }
        };
        self.sent.account(outcome).because(&error)
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
