//! A call that becomes a task without its client having asked for one (SEP-2229, draft).
//!
//! Only for clients that the operator named: others would not understand the answer. The call is made
//! as one that is a task already, in the client's own session, but its client waits. What the server
//! says on the way goes to it, its questions as they are; an answer before the threshold is a plain
//! answer, also to a client that did ask for a task. At the threshold it is a task, and the client is
//! given it as the call's result. So it is at once where the client leaves: a departure is no cancel,
//! and it will find its task in `tasks/list`.
//!
//! The answer's events are ours: they have no ids, and cannot be resumed.

use super::{
    augmented::InSession,
    document,
    plain::Asked,
    run::{Earlier, MAX_OPEN},
};
use crate::{
    dialect::legacy,
    policy::Mode,
    protocol::{ErrorObject, Frame, Id, Kind, Method, code, splice::Patch, sse},
    proxy::{
        Account, Passage, Passed, Passing, Piece, Then,
        attended::reached,
        endpoint::Shared,
        reply::{lost_error, outcome_of},
    },
    telemetry::Outcome,
    upstream::{Event, Lost, Question},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use std::time::{Duration, Instant};
use tokio::{sync::mpsc, time::timeout};

/// What the client is told.
enum Said {
    /// A message on the way.
    Word(Bytes),
    /// The response.
    Last(Bytes, Account),
}

/// The call, until it is answered or a task.
struct Attended {
    call: InSession,
    id: Id,
    client: mpsc::Sender<Said>,
    /// When it becomes a task; `None` where there is no room for one.
    due: Option<Instant>,
    began: Instant,
    /// What the server has asked, and the client may still have to answer.
    asked: Vec<(Option<Asked>, Question)>,
}

/// Messages that wait for a client that reads slowly, before the server is kept waiting.
const WAITING: usize = 16;

/// Whether a call may become a task unasked.
pub(super) fn may_be(shared: &Shared, passage: &Passage, mode: Mode) -> bool {
    mode.makes_tasks() && is_named(shared, passage) && shared.knows_tasks(passage.principal, &passage.headers)
}

/// Whether the operator has named the client as one that understands an unasked task.
pub(super) fn is_named(shared: &Shared, passage: &Passage) -> bool {
    shared.route.legacy_tasks.unsolicited.holds_for(&passage.headers, || passage.principal.to_string())
}

/// Makes the call, and waits with its client.
pub(super) async fn begin(call: InSession, id: Id, keep_alive: Duration) -> Passed {
    let shared = call.shared.clone();
    let treatment = shared.route.treatment(&call.tool);
    let after = if treatment.mode == Mode::Always { Duration::ZERO } else { treatment.after };
    let began = shared.clock.now();
    let (client, mut said) = mpsc::channel(WAITING);
    let attended =
        Attended { call, id: id.clone(), client, due: Some(began + after), began, asked: Vec::new() };
    // On its own from the start: whether its client stays must not matter to it.
    shared.stopping.spawn(attended.run());
    let first = match timeout(keep_alive, said.recv()).await {
        Ok(Some(Said::Last(body, account))) => return document(body, account),
        Ok(Some(Said::Word(message))) => piece(sse::message(&message)),
        Ok(None) => {
            let error = ErrorObject::new(code::INTERNAL_ERROR, "the call was given up");
            return super::refusal(&id, &error);
        }
        Err(_silence) => piece(sse::KEEP_ALIVE),
    };
    let rest = stream::unfold(Some((said, keep_alive)), next);
    let pieces = stream::once(std::future::ready(first)).chain(rest).boxed();
    Passed { status: StatusCode::OK, headers: super::event_stream(), body: Passing::Pieces(pieces) }
}

/// What is still to come, and the next of it.
type Rest = Option<(mpsc::Receiver<Said>, Duration)>;

async fn next(rest: Rest) -> Option<(Piece, Rest)> {
    let (mut said, keep_alive) = rest?;
    Some(match timeout(keep_alive, said.recv()).await {
        Ok(Some(Said::Word(message))) => (piece(sse::message(&message)), Some((said, keep_alive))),
        Ok(Some(Said::Last(body, account))) => {
            (Piece { bytes: sse::message(&body), account: Some(account), then: Then::End }, None)
        }
        Ok(None) => (Piece { bytes: Bytes::new(), account: None, then: Then::Break }, None),
        Err(_silence) => (piece(sse::KEEP_ALIVE), Some((said, keep_alive))),
    })
}

fn piece(bytes: Bytes) -> Piece {
    Piece { bytes, account: None, then: Then::More }
}

// === impl Attended ===

impl Attended {
    async fn run(mut self) {
        loop {
            let overdue = self.call.shared.overdue.clone();
            tokio::select! {
                // A result that is there at the threshold is a result: a task would only cost a poll.
                biased;
                event = self.call.replies.next() => {
                    let event = event.unwrap_or(Event::Lost(Lost::SessionEnded));
                    if self.heard(event).await {
                        return;
                    }
                }
                () = self.client.closed(), if self.due.is_some() => match self.defer().await {
                    Some(attended) => self = attended,
                    None => return,
                },
                () = reached(self.due) => match self.defer().await {
                    Some(attended) => self = attended,
                    None => return,
                },
                () = overdue.stopped() => {
                    return self.last(&Err(lost_error(&Lost::Closing)), Outcome::ProxyFailed).await;
                }
            }
        }
    }

    /// Makes it a task and holds it to its end; gives it back where there is no room for one.
    async fn defer(self) -> Option<Self> {
        let Self { call, id, client, began, asked, .. } = self;
        let is_lost = client.is_closed();
        match call.into_task().await {
            Ok((run, created)) => {
                let account =
                    Account { outcome: Outcome::Task, task: Some(run.id().clone()), ..Account::default() };
                // A client that has left finds it by itself.
                let _ = client.send(Said::Last(legacy::success(&id, &created), account)).await;
                drop(client);
                let earlier = asked.into_iter().map(|(asked, question)| Earlier { asked, question, is_lost });
                run.having_asked(earlier.collect()).run().await;
                None
            }
            Err((call, _)) => Some(Self { call, id, client, due: None, began, asked }),
        }
    }

    /// What the server said, for the client. Whether it was the last.
    async fn heard(&mut self, event: Event) -> bool {
        let message = match event {
            Event::Notice(frame) => {
                let is_progress = matches!(frame.kind(), Kind::Notification { method: Method::Progress, .. });
                if is_progress && !self.call.wants_progress {
                    return false;
                }
                frame.as_bytes().clone()
            }
            // Put as it is: the client's answer finds the server by itself.
            Event::Question(question) => {
                let message = question.frame.as_bytes().clone();
                self.asked(question);
                message
            }
            Event::Withdrawn { id } => {
                self.forget(|question| *question == id);
                legacy::cancelled(&id, "the server took it back")
            }
            Event::Final(frame) => {
                self.last(&Ok(frame), Outcome::Result).await;
                return true;
            }
            Event::Lost(lost) => {
                self.last(&Err(lost_error(&lost)), outcome_of(&lost)).await;
                return true;
            }
        };
        // That the client has left is noticed elsewhere.
        let _ = self.client.send(Said::Word(crate::protocol::frame::on_one_line(message))).await;
        false
    }

    /// Remembers what the server asks: the call may become a task before it is answered.
    fn asked(&mut self, question: Question) {
        let Kind::Request { id, .. } = question.frame.kind() else { return };
        let shared = &self.call.shared;
        let asked = self.call.session.map(|session| Asked::new(shared, session, id));
        if self.asked.len() >= MAX_OPEN {
            let (open, answered) = std::mem::take(&mut self.asked)
                .into_iter()
                .partition(|(asked, _)| asked.as_ref().is_some_and(Asked::is_open));
            self.asked = open;
            drop_answered(answered);
        }
        match self.asked.len() < MAX_OPEN {
            true => self.asked.push((asked, question)),
            // It is the client's to answer, whatever becomes of the call.
            false => question.answer.withdrawn(),
        }
    }

    /// Nothing more is to be done here about these questions.
    fn forget(&mut self, fits: impl Fn(&Id) -> bool) {
        let (over, open) = std::mem::take(&mut self.asked)
            .into_iter()
            .partition(|(_, question)| matches!(question.frame.kind(), Kind::Request { id, .. } if fits(id)));
        self.asked = open;
        drop_answered(over);
    }

    /// The response, as the server gave it but for its id, or an error of ours.
    async fn last(&mut self, word: &Result<Frame, ErrorObject>, outcome: Outcome) {
        self.forget(|_| true);
        let is_result = word.as_ref().is_ok_and(|frame| matches!(frame.kind(), Kind::Success { .. }));
        if let Some(session) = self.call.session.filter(|_| !is_result) {
            // Else a client whose calls are all answered here would never hear that it is gone.
            self.call.shared.sessions.doubt(session);
        }
        let (body, outcome) = match word {
            Ok(frame) => match frame.kind() {
                Kind::Success { id, .. } => (self.answer(frame, id), outcome),
                Kind::Failure { id: Some(id), .. } => (self.answer(frame, id), Outcome::ServerError),
                Kind::Failure { id: None, error } => {
                    let error = ErrorObject::from_raw(error.clone());
                    (legacy::refusal(std::slice::from_ref(&self.id), &error), Outcome::ServerError)
                }
                Kind::Request { .. } | Kind::Notification { .. } => return,
            },
            Err(error) => (legacy::refusal(std::slice::from_ref(&self.id), error), outcome),
        };
        let upstream = self.call.shared.clock.now().saturating_duration_since(self.began);
        let reason = word.as_ref().err().and_then(|error| Account::failed(outcome, error).reason);
        let account = Account { outcome, reason, upstream, ..Account::default() };
        let _ = self.client.send(Said::Last(crate::protocol::frame::on_one_line(body), account)).await;
    }

    fn answer(&self, frame: &Frame, id: &Id) -> Bytes {
        let mut patch = Patch::new(frame.as_bytes().clone());
        patch.replace(id.as_bytes(), self.id.as_bytes().clone());
        patch.apply()
    }
}

/// Whoever answers these does so elsewhere.
fn drop_answered(asked: Vec<(Option<Asked>, Question)>) {
    asked.into_iter().for_each(|(_, question)| question.answer.withdrawn());
}
