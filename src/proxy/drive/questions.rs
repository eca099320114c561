//! What a server asks in the middle of a call, on its way to the client and back.

use super::{
    Driver, Form, Held, QUEUED,
    book::{MAX_OPEN, OpenQuestion, Way},
    canonical, native,
    record_writes::{AfterWrite, WriteResult},
};
use crate::{
    bridge::{
        elicit,
        exchange::{Ask, Phase},
        offer,
    },
    dialect::{Principal, legacy},
    protocol::{ErrorObject, Kind, code, sse},
    proxy::{
        hub::WAITERS_PER_TASK,
        input_requests::{self, NOT_DECLARED},
        ledger::NoRoom,
        reply::CallEnd,
        switchboard::{Request, Retry},
    },
    store::{StoreError, Updated},
    task::{self, TaskId, View},
    telemetry::{CallOrigin, Limit, Outcome},
    upstream::{Asked, CallError, Question, TurnedOver},
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// How often a server may turn one call over.
const MAX_TURNS: usize = 64;

// === impl Form ===

impl Form {
    /// The caller and the tool, for taps that show the input requests of the call.
    fn origin(&self) -> CallOrigin {
        match self {
            Self::Canonical(canonical) => CallOrigin {
                principal: canonical.caller.principal.to_string(),
                tool: canonical.call.target.clone().unwrap_or_default(),
            },
            Self::Native(native) => CallOrigin {
                principal: Principal::from_bytes(native.owner.principal).to_string(),
                tool: native.tool.clone(),
            },
        }
    }
}

// === impl Driver ===

impl Driver {
    /// The server asks something: it is refused, answered from what came along, or put to the client.
    pub(super) fn asked(&mut self, question: Question) {
        let now = self.shared.clock.now();
        let Some(held) = &mut self.held else { return };
        let phase = self.exchange.phase();
        let is_task = matches!(phase, Phase::Handing | Phase::Deferred);
        if is_task && held.book.by_id(&question.id).is_some() {
            // A stream that is taken up may bring it twice.
            return question.answer.withdrawn();
        }
        let question = match &mut self.form {
            Form::Canonical(canonical) => match canonical.may_be_put(&self.shared.route.path, question) {
                Some(question) => question,
                None => return,
            },
            Form::Native(_) => {
                if !is_task && !held.book.has_room(&question.asked) {
                    for ask in held.book.close_answered_elsewhere() {
                        self.exchange.handle_answered(ask);
                    }
                    if !held.book.has_room(&question.asked) {
                        // It is the client's to answer on its stream, whatever becomes of the call.
                        question.answer.withdrawn();
                        let Asked::Native(frame) = &question.asked else { return };
                        return held.tell_all(&native::as_it_is(frame));
                    }
                }
                question
            }
        };
        if !held.book.has_room(&question.asked) {
            return question.refuse(
                &self.shared.route.path,
                code::INTERNAL_ERROR,
                "too many questions are open in one call",
            );
        }
        let Question { asked, id, answer } = question;
        let method = method_of(&asked);
        let origin = self.form.origin();
        let (ask, supplied) = held.book.take_in(asked, Some(id), Way::Answer(answer), origin);
        if let Some(open) = held.book.get(ask) {
            self.span.asked(&open.key, &method);
        }
        if let Some(supplied) = supplied {
            held.book.answer(ask, Ok(supplied));
            return;
        }
        match self.park() {
            Ok(()) => self.exchange.handle_question(ask, now),
            Err(no_room) => self.held().book.refuse(ask, code::INTERNAL_ERROR, &no_room.to_string()),
        }
    }

    /// Makes room for a client that is to come back with answers: it counts as a task does.
    fn park(&mut self) -> Result<(), NoRoom> {
        let is_task = matches!(self.exchange.phase(), Phase::Handing | Phase::Deferred);
        let Form::Canonical(canonical) = &self.form else { return Ok(()) };
        let principal = canonical.caller.principal;
        if !is_task && self.held().parked.is_none() {
            self.held().parked = Some(self.shared.ledger.reserve(principal)?);
        }
        Ok(())
    }

    /// The server asks, and ends the call with that.
    pub(super) fn turned_over(&mut self, mut turned_over: TurnedOver) {
        self.replies = None;
        self.turns += 1;
        let asked = std::mem::take(&mut turned_over.asked);
        let invalid = |why: String| CallEnd::Lost(CallError::Invalid(why));
        let end = match &self.form {
            Form::Native(_) => {
                Some(invalid("it turns a call over, for which its revision has no words".into()))
            }
            _ if self.turns > MAX_TURNS => {
                Some(invalid(format!("it turned the call over more than {MAX_TURNS} times")))
            }
            _ if asked.len() > MAX_OPEN => {
                let count = asked.len();
                Some(invalid(format!("it asks {count} things at once; one call may ask {MAX_OPEN}")))
            }
            Form::Canonical(canonical) => canonical.lacks(asked.iter().map(|(_, request)| request)),
        };
        if let Some(end) = end {
            return self.ends(end);
        }
        let (mut asks, mut answers) = (BTreeSet::new(), BTreeMap::new());
        for (theirs, request) in asked {
            let way = Way::Turn(theirs.clone());
            let method = request.kind().method();
            let origin = self.form.origin();
            let (ask, supplied) = self.held().book.take_in(Asked::Canonical(request), None, way, origin);
            if let Some(key) = self.held().book.get(ask).map(|open| open.key.clone()) {
                self.span.asked(&key, method.as_str());
            }
            match supplied {
                Some(answer) => {
                    self.held().book.close(ask);
                    answers.insert(theirs, answer);
                }
                None => drop(asks.insert(ask)),
            }
        }
        if !asks.is_empty()
            && let Err(no_room) = self.park()
        {
            // Nothing is in flight to which a question could be refused: the call ends.
            let error = ErrorObject::new(code::BUSY, no_room.to_string());
            return self.ends(CallEnd::Refused(error, Outcome::ProxyFailed));
        }
        self.held().turned_over = Some(Box::new((turned_over, answers)));
        self.exchange.handle_turn_over(asks, self.shared.clock.now());
    }

    /// Everything is answered for which the server turned the call over: it is made again.
    pub(super) fn turn(&mut self) {
        if let Some((turned_over, answers)) = self.held().turned_over.take().map(|boxed| *boxed) {
            let replies = (turned_over.again)(answers);
            let (replies, dequeued) = match &self.limits {
                Some(limits) => limits.limit_again(replies, &self.shared.clock),
                None => (replies, None),
            };
            (self.replies, self.dequeued) = (Some(replies), dequeued);
            if self.dequeued.is_some() {
                self.shows(QUEUED, self.shared.clock.now());
            }
        }
    }

    /// A task's client answered, and the record knows. Where the question stands on a stream it is taken back
    /// there, unless it was answered there.
    pub(super) fn answered(&mut self, key: &str, outcome: Result<Bytes, Bytes>, was_elsewhere: bool) {
        let Some(held) = &mut self.held else { return };
        let Some(ask) = held.book.by_key(key) else { return };
        self.span.event("deferral.question.answered", &[("deferral.question.key", key)]);
        let recorded = held.book.get(ask).filter(|open| open.is_recorded).map(|open| open.id.clone());
        let place = held.lines.as_mut().and_then(|lines| lines.close(ask));
        // It may stand in two places, and has been answered in one.
        let was_elsewhere =
            was_elsewhere || held.book.get(ask).is_some_and(OpenQuestion::was_answered_elsewhere);
        if let (Some(line), true, Some(lines)) = (place, was_elsewhere, &mut held.lines) {
            lines.tell(line, taken_back(held.hold.id(), key, "it has been answered"));
        }
        self.close_with(ask, outcome);
        self.exchange.handle_answered(ask);
        if let Some(id) = recorded {
            self.answers(id, key.to_owned());
        }
    }

    /// Gives a question its answer.
    fn close_with(&mut self, ask: Ask, outcome: Result<Bytes, Bytes>) {
        let Held { book, turned_over, .. } = self.held();
        if let (Some((key, answer)), Some((_, answers))) =
            (book.answer(ask, outcome), turned_over.as_deref_mut())
        {
            answers.insert(key, answer);
        }
    }

    /// The client came back with some answers, or with none.
    pub(super) fn came_back(&mut self, retry: Retry) {
        let Retry { waiter, mut answers, defer_after } = retry;
        match self.exchange.phase() {
            Phase::Deferred => return self.turn_away(waiter),
            Phase::Handing => return self.hand_over_to(waiter),
            Phase::Inline | Phase::Parked | Phase::Deferring | Phase::Abandoned | Phase::Done => {}
        }
        if self.held().waiters.len() >= WAITERS_PER_TASK {
            if let Request::Canonical { call, .. } = &waiter.request {
                let refused = input_requests::too_many(call);
                self.held().unsent.send(&waiter, refused.into());
            }
            return;
        }
        if matches!(self.exchange.phase(), Phase::Abandoned | Phase::Done) {
            // It is turned away once nothing of the call is left.
            return self.held().waiters.push(waiter);
        }
        let mut answered = BTreeSet::new();
        for ask in self.held().book.asks() {
            let Some(open) = self.held().book.get(ask) else { continue };
            let (Some(answer), Asked::Canonical(request)) = (answers.take(&open.key), &open.asked) else {
                continue;
            };
            // What is not an answer to its question leaves it open, and it is asked again.
            if let Ok(answer) = elicit::check_answer(request, &answer) {
                let key = open.key.clone();
                self.span.event("deferral.question.answered", &[("deferral.question.key", &key)]);
                self.close_with(ask, Ok(answer));
                answered.insert(ask);
            }
        }
        self.held().waiters.push(waiter);
        self.exchange.handle_retry(&answered, defer_after, self.shared.clock.now());
    }

    /// The server took a question back.
    pub(super) fn withdraw(&mut self, ask: Ask) {
        let why = "the server took it back";
        let is_task = matches!(self.exchange.phase(), Phase::Handing | Phase::Deferred);
        let Some(open) = self.take_back(ask, why) else { return };
        self.span.event("deferral.question.withdrawn", &[("deferral.question.key", &open.key)]);
        if let (Some(_), Some(id), false) = (&open.put, &open.id, is_task) {
            self.held().tell_all(&legacy::cancelled(id, why));
        }
        open.way.withdrawn();
        if is_task && open.is_recorded {
            self.is_taken_back(open.key);
        }
    }

    /// Nobody has answered an input request of the task in time: the server is told, and the task goes on.
    pub(super) fn lapse(&mut self, ask: Ask) {
        let held = self.held();
        let Some(open) = held.book.get(ask).filter(|open| !open.was_answered_elsewhere()) else { return };
        let key = open.key.clone();
        match open.is_recorded {
            true => {
                let event = task::Event::Withdrawn { key: key.clone() };
                self.write(event, AfterWrite::Lapsed { ask, key });
            }
            false => self.lapsed(ask, &key),
        }
    }

    /// The record does not have it, or has it no longer.
    pub(super) fn lapsed(&mut self, ask: Ask, key: &str) {
        let Some(open) = self.take_back(ask, "nobody answered it in time") else { return };
        self.span.event("deferral.question.lapsed", &[("deferral.question.key", key)]);
        Limit::Park.hit();
        open.decline(&self.shared.route.path);
        let park = self.shared.route.questions.park.as_secs();
        let message = format!("nobody answered {key} within {park} s (questions.park)");
        self.write(task::Event::Progressed { message }, AfterWrite::Nothing);
    }

    /// Puts a question where the call itself is answered: its stream.
    pub(super) fn ask_on_stream(&mut self, ask: Ask) {
        let Form::Native(native) = &self.form else { return };
        let (shared, session) = (&self.shared, native.session);
        let Some(held) = &mut self.held else { return };
        let Some(open) = held.book.get_mut(ask).filter(|open| open.put.is_none()) else { return };
        let (Asked::Native(frame), Some(id)) = (&open.asked, &open.id) else { return };
        let message = native::as_it_is(frame);
        open.put = Some(native::put(shared, session, id));
        held.tell_all(&message);
    }

    /// Puts an input request inside the task: into its record, and then to a client that listens.
    pub(super) fn ask_in_task(&mut self, ask: Ask) {
        let Some(held) = &mut self.held else { return };
        let Some(open) = held.book.get(ask) else { return };
        if open.was_answered_elsewhere() {
            return self.answered_on_its_stream(ask);
        }
        if let Form::Native(native) = &self.form
            && open.put.is_none()
            && !native.can_be_asked(&self.shared, &open.asked)
        {
            held.book.refuse(ask, code::METHOD_NOT_FOUND, NOT_DECLARED);
            return self.exchange.handle_answered(ask);
        }
        let key = open.key.clone();
        let request = match &open.asked {
            Asked::Canonical(request) => Some(request.as_bytes().clone()),
            Asked::Native(frame) => native::recorded(frame),
        };
        match request {
            Some(request) => {
                let event = task::Event::Asked { key: key.clone(), request };
                self.write(event, AfterWrite::Asked { ask, key });
            }
            None => self.put_in_task(ask),
        }
    }

    /// The record has an input request, or could not take it.
    pub(super) fn recorded(&mut self, ask: Ask, key: String, result: WriteResult) {
        let Some(held) = &mut self.held else { return };
        let is_open = held.book.get(ask).is_some();
        match result {
            // The server has withdrawn it meanwhile, or it was answered on its stream.
            Ok(Updated::Done { .. }) if !is_open => self.is_taken_back(key),
            Ok(Updated::Done { .. }) => {
                held.book.is_recorded(ask);
                self.put_in_task(ask);
            }
            Err(full @ StoreError::Full(_)) => {
                held.book.refuse(ask, code::BUSY, &full.to_string());
                self.exchange.handle_answered(ask);
            }
            // The task has ended: nobody will see it.
            Ok(Updated::Refused(_) | Updated::Unknown) => held.book.decline(ask),
            // The proxy ends. The call may be left to the next process, which receives it again.
            Err(StoreError::Exists | StoreError::Unavailable(_)) => {}
        }
    }

    /// Puts an input request to a client that listens to the task. One that stands on the stream of the call itself is
    /// the task's from now on; it is put again where the client cannot answer it there any more, or asks for it.
    fn put_in_task(&mut self, ask: Ask) {
        let has_left = self.exchange.has_left();
        let Some(held) = &mut self.held else { return };
        let Some(open) = held.book.get_mut(ask) else { return };
        let relayed = open.put.as_ref().and_then(|put| put.relayed.as_ref());
        if relayed.is_some_and(|relayed| !relayed.hand_over(held.hold.id(), &open.key)) {
            return self.answered_on_its_stream(ask);
        }
        let has_it = relayed.is_some() && !has_left;
        if let Some(lines) = &mut held.lines {
            lines.ask(ask, has_it);
        }
    }

    /// The answer to an input request has passed on the stream of the call itself.
    fn answered_on_its_stream(&mut self, ask: Ask) {
        let Some(open) = self.held().book.close(ask) else { return };
        self.exchange.handle_answered(ask);
        if open.is_recorded {
            self.is_taken_back(open.key);
        }
        open.way.withdrawn();
    }

    /// Puts the task's questions to legacy clients that can hear them.
    pub(super) fn put(&mut self) {
        let Some(Held { book, lines: Some(lines), hold, .. }) = self.held.as_deref_mut() else { return };
        let id = hold.id();
        let knows = !matches!(&self.form, Form::Native(native) if native.view == View::Ticket);
        lines.put(|ask| book.get(ask).map(|open| native::put_in_task(open, id, knows)));
    }

    /// Closes a question that the client need not answer any more, and tells it so where it was put in the
    /// task.
    fn take_back(&mut self, ask: Ask, reason: &str) -> Option<OpenQuestion> {
        let held = self.held();
        let place = held.lines.as_mut().and_then(|lines| lines.close(ask));
        let open = held.book.close(ask)?;
        if let (Some(line), Some(lines)) = (place, &mut held.lines) {
            lines.tell(line, taken_back(held.hold.id(), &open.key, reason));
        }
        Some(open)
    }

    pub(super) fn take_back_all(&mut self, reason: &str) -> Vec<OpenQuestion> {
        let Some(held) = &mut self.held else { return Vec::new() };
        // Their answers have passed: nothing is left to be refused.
        held.book.close_answered_elsewhere();
        let asks = held.book.asks();
        asks.into_iter().filter_map(|ask| self.take_back(ask, reason)).collect()
    }

    /// Answers everybody who waits with the questions that are open, and lets them go: the call is
    /// parked already, so that their leaving is no departure.
    pub(super) fn ask(&mut self, asks: &BTreeSet<Ask>) {
        let Form::Canonical(canonical) = &self.form else { return };
        let Some(held) = &mut self.held else { return };
        held.book.round += 1;
        let open = || asks.iter().filter_map(|ask| held.book.get(*ask));
        let result = canonical.input_required(&self.shared, held.hold.id(), held.book.round, open());
        let replies: Vec<_> = std::mem::take(&mut held.waiters)
            .into_iter()
            .filter_map(|waiter| Some((canonical::asked(&waiter.request, open(), &result)?, waiter)))
            .collect();
        for (reply, waiter) in replies {
            held.unsent.send(&waiter, reply.into());
        }
    }
}

/// What a question is called.
fn method_of(asked: &Asked) -> String {
    match asked {
        Asked::Canonical(request) => request.kind().method().to_string(),
        Asked::Native(frame) => match frame.kind() {
            Kind::Request { method, .. } => method.to_string(),
            Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => String::new(),
        },
    }
}

/// A question is taken back that was put in the task.
fn taken_back(task: &TaskId, key: &str, reason: &str) -> Bytes {
    sse::message(&legacy::cancelled(&offer::question_id(task, key), reason))
}
