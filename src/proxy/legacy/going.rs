//! The answer to a legacy client's request as it goes by.
//!
//! The server's bytes go on as they come. What is put between its events keeps the client waiting
//! ([`Ladder`]), or is what the session is told on the stream it listens on. A stream that ends without
//! the response would leave released clients waiting (`WIRE`, B 1, rule 20): it gets the error as
//! its last event, unless it can be resumed, or the client has taken back what it asked ([`Ended`]).

use super::{
    edited::Edited,
    ended::Ended,
    heard::Heard,
    late::Body,
    residents::Theirs,
    streams::{Key, Stream as Listening},
};
use crate::{
    dialect::{
        Principal,
        legacy::{self, Answers},
    },
    protocol::{
        ErrorObject, Id,
        headers::SESSION_ID,
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
    upstream::{Forward, Interest, Lost, Purpose},
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

/// What a stream means that has ended without a response.
pub(super) struct Fate {
    lost: Lost,
    settled: BoxFuture<'static, Settled>,
}

/// What becomes of the requests that were not answered.
enum Settled {
    /// The client goes on where it was.
    Resumes,
    /// These are owed an answer; there may be none.
    Owed(SmallVec<[Id; 1]>),
}

/// To whom an answer is owed: who asked, in which session.
#[derive(Clone)]
pub(super) struct Owing {
    ended: Arc<Ended>,
    principal: Principal,
    session: Option<HeaderValue>,
    /// What was asked.
    asked: SmallVec<[Id; 1]>,
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
        if let Some(answers) = &mut self.answers {
            let waited = !answers.waiting().is_empty();
            answers.see(&bytes);
            for message in answers.take_heard() {
                self.ladder.message(&message);
            }
            if waited && answers.waiting().is_empty() {
                let said = answers.said();
                self.body.answered();
                self.ladder.answered();
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
        match self.body.is_over() && self.answers.as_ref().is_none_or(|answers| answers.waiting().is_empty())
        {
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
        let Some(answers) = self.answers.as_ref().filter(|answers| !answers.waiting().is_empty()) else {
            // Nobody waits on a stream of events; a document that is cut off must not look whole.
            if lost.is_none() {
                self.call_ended();
            }
            let then = match (&lost, &self.answers) {
                (None, _) | (Some(_), Some(_)) => Then::End,
                (Some(_), None) => Then::Break,
            };
            let end = match &lost {
                Some(lost) => self.end_for(outcome, &lost_error(lost)),
                None => self.end(outcome),
            };
            return Some(Piece { then, ..end });
        };
        // The client goes on where it was, and finds the rest with the server. One whose server has
        // died will not, and some clients would wait for ever.
        let resumes = match &lost {
            None | Some(Lost::Closing) if answers.is_resumable() => return Some(self.end(self.outcome)),
            Some(Lost::Broken(_)) => answers.is_resumable().then(|| self.body.is_server_there()),
            None | Some(_) => None,
        };
        let (owing, waiting) = (self.owing.clone(), answers.waiting().into());
        let settled = async move {
            let resumes = match resumes {
                Some(is_there) => is_there.await,
                None => false,
            };
            match resumes {
                true => Settled::Resumes,
                false => Settled::Owed(owing.owed(waiting).await),
            }
        };
        let lost = lost.unwrap_or_else(|| Lost::Broken("the answer ended without a response".to_owned()));
        self.fate = Some(Fate { lost, settled: settled.boxed() });
        None
    }

    /// Waits until it is known what the end of the stream means.
    fn poll_fate(&mut self, cx: &mut Context<'_>) -> Poll<Piece> {
        let Some(fate) = &mut self.fate else { return Poll::Pending };
        let settled = ready!(fate.settled.poll_unpin(cx));
        let fate = self.fate.take().expect("it is waited for");
        Poll::Ready(match (settled, &mut self.answers) {
            (Settled::Resumes, _) | (Settled::Owed(_), None) => self.end(self.outcome),
            (Settled::Owed(owed), Some(_)) if owed.is_empty() => self.end(Outcome::Departed),
            (Settled::Owed(owed), Some(answers)) => {
                answers.retain(|id| owed.contains(id));
                self.body.answered();
                let error = lost_error(&fate.lost);
                let bytes = answers.last_words(&error);
                Piece { bytes, ..self.end_for(outcome_of(&fate.lost), &error) }
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
                return this.poll_fate(cx).map(Some);
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
            principal: passage.principal,
            session: passage.headers.get(&SESSION_ID).cloned(),
            asked: passage.post.waiting(),
        }
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
                    interest: None,
                });
                // Where it cannot be told, there is nobody to tell that.
                drop(told.await);
            }
        });
    }
}
