//! The answer to a legacy client's request as it goes by.
//!
//! The server's bytes go on as they come. What is put between its events keeps the client waiting
//! ([`Ladder`]), or is what the session is told on the stream it listens on. A stream that ends without
//! the response would leave released clients waiting (`WIRE`, B 1, rule 20): it gets the error as
//! its last event, unless the client has taken back what it asked ([`Ended`]). One that the server has
//! ended, and whose events have ids, is the client's to take up ([`Unfinished`]); one that has broken is
//! taken up here, because only the server can say whether there is more to come.

use super::{
    edited::Edited,
    ended::Ended,
    heard::Heard,
    late::{self, Body},
    residents::Theirs,
    streams::{Key, Stream as Listening},
    unfinished::{Place, Unfinished},
};
use crate::{
    dialect::{
        Principal,
        legacy::{self, Answers},
    },
    protocol::{
        ErrorObject, Id,
        headers::{LAST_EVENT_ID, SESSION_ID},
        sse, tool_result,
        watch::{Gist, Glance},
    },
    proxy::{
        Account, Ladder, Passage, Piece, Rung, Then,
        endpoint::Shared,
        reply::{lost_error, outcome_of},
    },
    runtime::Stopping,
    telemetry::Outcome,
    upstream::{self, Anchor, Forward, Interest, Lost, Purpose},
};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Method};
use smallvec::SmallVec;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// One answer as it goes by.
pub(super) struct Going {
    pub(super) body: Body,
    /// What is watched of an event stream.
    pub(super) answers: Option<Answers>,
    /// What a document is.
    pub(super) document: Glance,
    /// Those that wait for a document of which nothing has come yet.
    pub(super) unsaid: SmallVec<[Id; 1]>,
    pub(super) outcome: Outcome,
    pub(super) timing: Timing,
    pub(super) ladder: Ladder,
    /// For a call that has a deadline.
    pub(super) giving_up: Option<Box<GivingUp>>,
    /// What is changed of the answer.
    pub(super) edited: Option<Box<Edited>>,
    /// What is taken out of a session's own stream.
    pub(super) heard: Option<Box<Heard>>,
    /// The client's own call that it answers.
    pub(super) call: Option<Theirs>,
    /// The session listens on it, and we may have something to say.
    pub(super) listening: Option<Box<Listening>>,
    pub(super) owing: Owing,
    /// The stream has ended without a response, and it is not yet known what that means.
    pub(super) fate: Option<Fate>,
    /// Our own end of it. Made when it is first waited for: most answers are there.
    pub(super) stop: Option<BoxFuture<'static, ()>>,
    pub(super) stopping: Stopping,
    pub(super) over: bool,
}

/// How long the server has been waited for.
pub(super) struct Timing {
    pub(super) shared: Arc<Shared>,
    pub(super) began: Instant,
    /// A stopping proxy waits for it; not where the client only listens.
    pub(super) _work: Option<TaskTrackerToken>,
}

/// What a stream means that has ended without a response, as soon as that is known.
pub(super) type Fate = BoxFuture<'static, Settled>;

/// What becomes of the requests that were not answered.
pub(super) enum Settled {
    /// The server goes on with it.
    GoesOn(upstream::Passing),
    /// These are owed an answer, of which there may be none, and this is why they get no other.
    Owed(SmallVec<[Id; 1]>, Lost),
}

/// To whom an answer is owed: who asked, in which session.
#[derive(Clone)]
pub(super) struct Owing {
    ended: Arc<Ended>,
    unfinished: Arc<Unfinished>,
    principal: Principal,
    session: Option<HeaderValue>,
    /// What was asked.
    asked: SmallVec<[Id; 1]>,
    /// The client has come back for it, behind this event.
    resumed: Option<HeaderValue>,
}

/// What it takes to give up a call that takes too long.
pub(super) struct GivingUp {
    query: Option<String>,
    /// The client's own: the server is told in the client's session.
    headers: HeaderMap,
    requests: SmallVec<[Id; 1]>,
    interest: Interest,
}

// === impl Going ===

impl Going {
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

    /// What we have to say to a session that listens.
    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let Some(listening) = &mut self.listening else { return Poll::Pending };
        // It lives as long as the stream itself.
        listening.told().poll_recv(cx).map(|told| told.expect("its sender is kept where it was opened"))
    }

    /// What we have to say between two events of the server's.
    fn poll_said(&mut self, cx: &mut Context<'_>) -> Poll<Piece> {
        let may_speak = self.answers.as_ref().is_some_and(Answers::is_between_events);
        let told = if may_speak { self.poll_told(cx) } else { Poll::Pending };
        let bytes = match told {
            Poll::Ready(bytes) => {
                self.ladder.bytes();
                bytes
            }
            Poll::Pending => match ready!(self.ladder.poll(cx, &*self.timing.shared.clock, may_speak)) {
                Rung::Progress(message) => legacy::event(&message),
                Rung::Comment => sse::KEEP_ALIVE,
                Rung::Deadline => return Poll::Ready(self.give_up()),
            },
        };
        Poll::Ready(Piece { bytes, account: None, then: Then::More })
    }

    /// A piece of the server's.
    fn piece(&mut self, bytes: Bytes) -> Piece {
        let mut account = None;
        self.ladder.bytes();
        if !bytes.is_empty() {
            self.unsaid.clear();
        }
        if let Some(answers) = &mut self.answers {
            let waited = answers.are_due();
            answers.see(&bytes);
            for message in answers.take_heard() {
                self.ladder.message(&message);
            }
            if waited && !answers.are_due() {
                let said = answers.said();
                self.body.answered();
                self.ladder.answered();
                self.owing.answered();
                self.call_ended();
                self.outcome = match said {
                    Some(Gist::Error) => self.owing.of_error(),
                    // Most write it last, so that this piece has it.
                    Some(_) | None if tool_result::shows_error(&bytes) => Outcome::ToolError,
                    Some(_) | None => self.outcome,
                };
                account = Some(self.timing.account(self.outcome));
            }
        } else if self.outcome == Outcome::Result {
            self.document.see(&bytes);
            if self.document.gist() == Some(Gist::Error) {
                self.outcome = self.owing.of_error();
            } else if tool_result::shows_error(&bytes) {
                self.outcome = Outcome::ToolError;
            }
        }
        // Who writes a body of known length does not ask for more once it is there.
        match self.body.is_over() && self.answers.as_ref().is_none_or(|answers| !answers.are_due()) {
            true => {
                self.call_ended();
                Piece { bytes, ..self.end(self.outcome) }
            }
            false => Piece { bytes, account, then: Then::More },
        }
    }

    /// The server has answered.
    fn call_ended(&mut self) {
        if let Some(call) = &mut self.call {
            call.answered();
        }
    }

    /// The end of it, because of this.
    fn end_for(&mut self, outcome: Outcome, error: &ErrorObject) -> Piece {
        let piece = self.end(outcome);
        let reason = Account::failed(outcome, error).reason;
        Piece { account: piece.account.map(|account| Account { reason, ..account }), ..piece }
    }

    /// The end of it, and all is said.
    fn end(&mut self, outcome: Outcome) -> Piece {
        self.over = true;
        Piece { bytes: Bytes::new(), account: Some(self.timing.account(outcome)), then: Then::End }
    }

    /// The server's end of it, or another. `None` where it leaves something unsaid, and what that means
    /// is still to be found out.
    fn ended(&mut self, lost: Option<Lost>) -> Option<Piece> {
        let outcome = lost.as_ref().map_or(self.outcome, outcome_of);
        let Some(answers) = self.answers.as_ref().filter(|answers| answers.are_due()) else {
            if lost.is_none() {
                self.call_ended();
            }
            return Some(match (&lost, &self.answers) {
                (None, None) if !self.unsaid.is_empty() => {
                    let lost = late::empty();
                    let error = lost_error(&lost);
                    let bytes = legacy::refusal(&self.unsaid, &error);
                    Piece { bytes, ..self.end_for(outcome_of(&lost), &error) }
                }
                (None, _) => self.end(outcome),
                // Nobody waits on a stream of events.
                (Some(lost), Some(_)) => self.end_for(outcome, &lost_error(lost)),
                // A document that is cut off must not look whole.
                (Some(lost), None) => Piece { then: Then::Break, ..self.end_for(outcome, &lost_error(lost)) },
            });
        };
        let taken_up = match &lost {
            // The server has ended it, or its client is to go to the next of us: the client goes on where
            // it was.
            None | Some(Lost::Closing) if answers.is_resumable() => {
                self.body.release();
                self.leave();
                return Some(self.end(self.outcome));
            }
            Some(Lost::Broken(_)) => anchor(answers).map(|from| self.body.go_on(from)),
            None | Some(_) => None,
        };
        let (owing, waiting) = (self.owing.clone(), answers.waiting());
        let stopping = self.stopping.clone();
        let lost = lost.unwrap_or_else(|| Lost::Broken("the answer ended without a response".to_owned()));
        self.fate = Some(
            async move {
                let taken_up = async {
                    let Some(taken_up) = taken_up else { return Err(lost) };
                    // Not for a client that has taken it back, and does not wait.
                    match owing.owed(waiting.clone()).await.is_empty() {
                        true => Err(lost),
                        false => taken_up.await,
                    }
                };
                let taken_up = tokio::select! {
                    biased;
                    taken_up = taken_up => taken_up,
                    () = stopping.stopped() => Err(Lost::Closing),
                };
                match taken_up {
                    Ok(body) => Settled::GoesOn(body),
                    Err(lost) => Settled::Owed(owing.owed(waiting.clone()).await, lost),
                }
            }
            .boxed(),
        );
        None
    }

    /// Who comes back for what the stream has left unanswered is to hear what becomes of it.
    fn leave(&self) {
        if let Some(answers) = &self.answers
            && let Some((last_id, _)) = answers.anchor()
            && answers.are_due()
        {
            self.owing.leave(last_id, &answers.waiting());
        }
    }

    /// Waits until it is known what the end of the stream means. `None` where it goes on, and there is
    /// nothing to be said of that.
    fn poll_fate(&mut self, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        let Some(fate) = &mut self.fate else { return Poll::Pending };
        let settled = ready!(fate.poll_unpin(cx));
        self.fate = None;
        Poll::Ready(match (settled, &mut self.answers) {
            (Settled::GoesOn(body), Some(answers)) => {
                self.body = Body::Here(body);
                if let Some(edited) = &mut self.edited {
                    edited.forget();
                }
                let void = Bytes::from_static(answers.void());
                answers.see(&void);
                (!void.is_empty()).then_some(Piece { bytes: void, account: None, then: Then::More })
            }
            (Settled::GoesOn(_) | Settled::Owed(..), None) => Some(self.end(self.outcome)),
            (Settled::Owed(owed, _), Some(_)) if owed.is_empty() => Some(self.end(Outcome::Departed)),
            (Settled::Owed(owed, lost), Some(answers)) => {
                answers.only(owed);
                // Of a proxy that stops, the server is still at it, and hears so when we go.
                if !matches!(lost, Lost::Closing) {
                    self.body.answered();
                }
                let error = lost_error(&lost);
                let bytes = answers.last_words(&error);
                self.owing.answered();
                Some(Piece { bytes, ..self.end_for(outcome_of(&lost), &error) })
            }
        })
    }

    /// The client has waited long enough.
    fn give_up(&mut self) -> Piece {
        if let Some(giving_up) = self.giving_up.take() {
            giving_up.tell(&self.timing.shared);
        }
        self.body.answered();
        let error = self.ladder.overdue();
        let bytes = self.answers.as_ref().map(|answers| answers.last_words(&error));
        // There is no place for an error in a document that has begun.
        let then = if bytes.is_some() { Then::End } else { Then::Break };
        Piece { bytes: bytes.unwrap_or_default(), then, ..self.end_for(Outcome::UpstreamFailed, &error) }
    }

    /// Whether it is time to end it ourselves.
    fn poll_stop(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let stop = self.stop.get_or_insert_with(|| {
            let stopping = self.stopping.clone();
            async move { stopping.stopped().await }.boxed()
        });
        stop.poll_unpin(cx)
    }
}

impl Stream for Going {
    type Item = Piece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        loop {
            if this.fate.is_some() {
                match ready!(this.poll_fate(cx)) {
                    Some(piece) => return Poll::Ready(Some(piece)),
                    None => continue,
                }
            }
            let ended = match this.body.poll_chunk(cx) {
                Poll::Ready(Some(Ok(bytes))) => match this.edit(bytes) {
                    // More of the event is to come.
                    bytes if bytes.is_empty() && !this.body.is_over() => continue,
                    bytes => Some(this.piece(bytes)),
                },
                Poll::Ready(Some(Err(lost))) => this.ended(Some(lost)),
                Poll::Ready(None) => this.ended(None),
                Poll::Pending if this.poll_stop(cx).is_ready() => this.ended(Some(Lost::Closing)),
                Poll::Pending => Some(ready!(this.poll_said(cx))),
            };
            if let Some(piece) = ended {
                return Poll::Ready(Some(piece));
            }
        }
    }
}

impl Drop for Going {
    /// The client may have left.
    fn drop(&mut self) {
        if !self.over {
            self.leave();
        }
    }
}

/// Where an event stream can be taken up by us.
fn anchor(answers: &Answers) -> Option<Anchor> {
    let (last_id, retry) = answers.anchor()?;
    Some(Anchor { last_id: HeaderValue::from_bytes(last_id).ok()?, retry })
}

// === impl Timing ===

impl Timing {
    pub(super) fn account(&self, outcome: Outcome) -> Account {
        let upstream = self.shared.clock.now().saturating_duration_since(self.began);
        Account { outcome, upstream, ..Account::default() }
    }
}

// === impl Owing ===

impl Owing {
    pub(super) fn of(shared: &Shared, passage: &Passage) -> Self {
        Self {
            ended: Arc::clone(&shared.ended),
            unfinished: Arc::clone(&shared.unfinished),
            principal: passage.principal,
            session: passage.headers.get(&SESSION_ID).cloned(),
            asked: passage.post.waiting(),
            resumed: None,
        }
    }

    /// What the request comes back for, where it does, and where that is known: what a stream has left
    /// unanswered.
    pub(super) fn comes_back(&mut self, passage: &Passage) -> SmallVec<[Id; 1]> {
        let Some(last_id) = passage.headers.get(&LAST_EVENT_ID).filter(|_| passage.method == Method::GET)
        else {
            return SmallVec::new();
        };
        let left = self.unfinished.left(self.place(last_id.as_bytes()));
        if !left.is_empty() {
            self.resumed = Some(last_id.clone());
            self.asked.clone_from(&left);
        }
        left
    }

    pub(super) fn is_in_session(&self) -> bool {
        self.session.is_some()
    }

    /// Behind which event the client has come back.
    pub(super) fn resumed(&self) -> Option<&HeaderValue> {
        self.resumed.as_ref()
    }

    /// The stream ends here, or its client leaves, and these are not answered.
    fn leave(&self, last_id: &[u8], waiting: &[Id]) {
        self.unfinished.leave(self.place(last_id), waiting);
    }

    /// All has been answered.
    pub(super) fn answered(&self) {
        if let Some(last_id) = &self.resumed {
            self.unfinished.finish(self.place(last_id.as_bytes()));
        }
    }

    fn place(&self, last_id: &[u8]) -> Place {
        Place::of(self.principal, self.session.as_ref(), last_id)
    }

    /// Whether the client has taken back what it asked, or has ended its session: what the server says
    /// of it is for nobody.
    pub(super) fn is_taken_back(&self) -> bool {
        self.key().is_some_and(|key| self.ended.is_over(key, &self.asked))
    }

    /// What an error of the server means.
    pub(super) fn of_error(&self) -> Outcome {
        if self.is_taken_back() { Outcome::Departed } else { Outcome::ServerError }
    }

    fn key(&self) -> Option<Key> {
        let headers = self.session.iter().map(|session| (SESSION_ID.clone(), session.clone())).collect();
        Key::of(self.principal, &headers)
    }

    /// Those of the requests that the client still wants answered.
    pub(super) async fn owed(&self, waiting: SmallVec<[Id; 1]>) -> SmallVec<[Id; 1]> {
        match self.key() {
            Some(key) => self.ended.owed(key, waiting).await,
            None => waiting,
        }
    }
}

// === impl GivingUp ===

impl GivingUp {
    /// For a call on a route that has a deadline.
    pub(super) fn of(shared: &Shared, passage: &Passage) -> Option<Box<Self>> {
        shared.route.held.deadline?;
        Some(Box::new(Self {
            query: passage.query.clone(),
            headers: passage.headers.clone(),
            requests: passage.post.waiting(),
            interest: Interest::default(),
        }))
    }

    /// To be said of the answer when it is asked for.
    pub(super) fn interest(&self) -> Interest {
        self.interest.clone()
    }

    /// Tells the server that the calls are cancelled (2025-11-25, *Cancellation*). What it still says
    /// of them is not waited for.
    pub(super) fn tell(self, shared: &Arc<Shared>) {
        let Self { query, headers, requests, interest } = self;
        interest.lose();
        let server = Arc::clone(&shared.upstream);
        shared.stopping.spawn(async move {
            for request in requests {
                let told = server.forward(Forward {
                    method: Method::POST,
                    query: query.clone(),
                    headers: headers.clone(),
                    body: legacy::cancelled(&request, "it took longer than the proxy lets a client wait"),
                    purpose: Purpose::Tell,
                    calls: SmallVec::new(),
                    interest: None,
                });
                // Where it cannot be told, there is nobody to tell that.
                drop(told.await);
            }
        });
    }
}
