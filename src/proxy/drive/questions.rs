//! Input requests of a server during a call: their way to the client and back.

use super::{
    CallDriver, CallForm, DetachedState, QUEUED_MESSAGE, canonical, native,
    open_requests::{AnswerTarget, MAX_OPEN, OpenRequest},
    record_writes::{WriteFollowUp, WriteResult},
};
use crate::{
    bridge::{
        elicit,
        exchange::{ExchangePhase, InputNumber},
        offer,
    },
    dialect::{Principal, legacy},
    protocol::{ErrorObject, Kind, code, sse},
    proxy::{
        call_registry::{ReplyTarget, RetryRequest},
        input_requests::{self, NOT_DECLARED},
        ledger::TaskAdmissionError,
        reply::CallEnd,
        reservations::Reservation,
        task_watchers::WAITERS_PER_TASK,
    },
    store::{StoreError, UpdateOutcome},
    task::{self, TaskId, TaskView},
    telemetry::{CallOrigin, Limit, RequestOutcome},
    upstream::{CallError, InputRequired, PendingServerRequest, ServerRequest},
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// How often a server may end one call with `input_required`.
const MAX_RETRIES: usize = 64;

// === impl CallForm ===

impl CallForm {
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

// === impl CallDriver ===

impl CallDriver {
    /// Handles an input request of the server: refuses it, answers it from the responses that came with the
    /// call, or forwards it to the client.
    pub(super) fn handle_input_request(&mut self, question: PendingServerRequest) {
        let now = self.shared.clock.now();
        let Some(held) = &mut self.detached else { return };
        let phase = self.exchange.phase();
        let is_task = matches!(phase, ExchangePhase::CommittingHandle | ExchangePhase::Deferred);
        if is_task && held.open_requests.by_id(&question.id).is_some() {
            // A resumed stream may repeat it.
            return question.responder.discard();
        }
        let question = match &mut self.form {
            CallForm::Canonical(canonical) => {
                match canonical.accept_request(&self.shared.route.path, question) {
                    Some(question) => question,
                    None => return,
                }
            }
            CallForm::Native(_) => {
                if !is_task && !held.open_requests.has_room(&question.request) {
                    for ask in held.open_requests.close_answered_inline() {
                        self.exchange.handle_input_answered(ask);
                    }
                    if !held.open_requests.has_room(&question.request) {
                        // The client answers it on its stream, whatever becomes of the call.
                        question.responder.discard();
                        let ServerRequest::Native(frame) = &question.request else { return };
                        return held.send_to_waiters(&native::verbatim(frame));
                    }
                }
                question
            }
        };
        if !held.open_requests.has_room(&question.request) {
            return question.refuse(
                &self.shared.route.path,
                code::INTERNAL_ERROR,
                "too many input requests are open in one call",
            );
        }
        let PendingServerRequest { request: asked, id, responder: answer } = question;
        let method = method_of(&asked);
        let origin = self.form.origin();
        let (ask, supplied) =
            held.open_requests.insert(asked, Some(id), AnswerTarget::Direct(answer), origin);
        if let Some(open) = held.open_requests.get(ask) {
            self.span.record_input_request(&open.key, &method);
        }
        if let Some(supplied) = supplied {
            held.open_requests.answer(ask, Ok(supplied));
            return;
        }
        match self.park() {
            Ok(()) => self.exchange.handle_input_request(ask, now),
            Err(no_room) => {
                self.detached().open_requests.refuse(ask, code::INTERNAL_ERROR, &no_room.to_string())
            }
        }
    }

    /// Reserves space for a call that waits for a retry: it counts as a task.
    fn park(&mut self) -> Result<(), TaskAdmissionError> {
        let is_task =
            matches!(self.exchange.phase(), ExchangePhase::CommittingHandle | ExchangePhase::Deferred);
        let CallForm::Canonical(canonical) = &self.form else { return Ok(()) };
        let principal = canonical.caller.principal;
        // While it is being stored it has the room of its record.
        if !is_task && self.detached().parked.is_none() && self.detached().storing.is_none() {
            self.detached().parked = Some(self.shared.ledger.reserve(principal)?);
        }
        Ok(())
    }

    /// The call is no task, as its record could not be stored: what was asked meanwhile needs room of its own.
    pub(super) fn not_stored(&mut self, reservation: Option<Reservation>) {
        self.detached().parked = reservation;
        let asks = self.detached().open_requests.ids();
        if !asks.is_empty()
            && let Err(no_room) = self.park()
        {
            for ask in asks {
                self.detached().open_requests.refuse(ask, code::INTERNAL_ERROR, &no_room.to_string());
                self.exchange.handle_input_answered(ask);
            }
        }
    }

    /// Handles an `input_required` result of the server, which ends the call.
    pub(super) fn handle_input_required(&mut self, mut turned_over: InputRequired) {
        self.replies = None;
        self.retries += 1;
        let asked = std::mem::take(&mut turned_over.requests);
        let invalid = |why: String| CallEnd::Lost(CallError::Invalid(why));
        let end = match &self.form {
            CallForm::Native(_) => {
                Some(invalid("it returned input_required, which its revision does not define".into()))
            }
            _ if self.retries > MAX_RETRIES => {
                Some(invalid(format!("it returned input_required more than {MAX_RETRIES} times")))
            }
            _ if asked.len() > MAX_OPEN => {
                let count = asked.len();
                Some(invalid(format!(
                    "it sent {count} input requests at once; the limit for one call is {MAX_OPEN}"
                )))
            }
            CallForm::Canonical(canonical) => {
                canonical.end_if_undeclared(asked.iter().map(|(_, request)| request))
            }
        };
        if let Some(end) = end {
            return self.end(end);
        }
        let (mut asks, mut answers) = (BTreeSet::new(), BTreeMap::new());
        for (theirs, request) in asked {
            let way = AnswerTarget::Retry(theirs.clone());
            let method = request.kind().method();
            let origin = self.form.origin();
            let (ask, supplied) =
                self.detached().open_requests.insert(ServerRequest::Canonical(request), None, way, origin);
            if let Some(key) = self.detached().open_requests.get(ask).map(|open| open.key.clone()) {
                self.span.record_input_request(&key, method.as_str());
            }
            match supplied {
                Some(answer) => {
                    self.detached().open_requests.close(ask);
                    answers.insert(theirs, answer);
                }
                None => drop(asks.insert(ask)),
            }
        }
        if !asks.is_empty()
            && let Err(no_room) = self.park()
        {
            // No request is in flight that could be refused: the call ends.
            let error = ErrorObject::new(code::BUSY, no_room.to_string());
            return self.end(CallEnd::Refused(error, RequestOutcome::ProxyFailed));
        }
        self.detached().pending_retry = Some(Box::new((turned_over, answers)));
        self.exchange.handle_input_required(asks, self.shared.clock.now());
    }

    /// Makes the call again with all the input responses.
    pub(super) fn retry_call(&mut self) {
        if let Some((turned_over, answers)) = self.detached().pending_retry.take().map(|boxed| *boxed) {
            let replies = (turned_over.retry)(answers);
            let (replies, dequeued) = match &self.limits {
                Some(limits) => limits.limit_resent_replies(replies, &self.shared.clock),
                None => (replies, None),
            };
            (self.replies, self.dequeued) = (Some(replies), dequeued);
            if self.dequeued.is_some() {
                self.set_status_message(QUEUED_MESSAGE, self.shared.clock.now());
            }
        }
    }

    /// Handles a response of a task's client that the record holds. If the input request was sent on another
    /// stream, it is cancelled there.
    pub(super) fn handle_response(&mut self, key: &str, outcome: Result<Bytes, Bytes>, was_elsewhere: bool) {
        let Some(held) = &mut self.detached else { return };
        let Some(ask) = held.open_requests.by_key(key) else { return };
        self.span.event("deferral.question.answered", &[("deferral.question.key", key)]);
        let recorded =
            held.open_requests.get(ask).filter(|open| open.is_recorded).map(|open| open.id.clone());
        let place = held.streams.as_mut().and_then(|lines| lines.close_request(ask));
        // It may have been sent on two streams and answered on one.
        let was_elsewhere =
            was_elsewhere || held.open_requests.get(ask).is_some_and(OpenRequest::is_answered_inline);
        if let (Some(line), true, Some(lines)) = (place, was_elsewhere, &mut held.streams) {
            lines.send_on(line, cancelled_notification(held.registration.id(), key, "it has been answered"));
        }
        self.answer_request(ask, outcome);
        self.exchange.handle_input_answered(ask);
        if let Some(id) = recorded {
            self.record_sent_response(id, key.to_owned());
        }
    }

    /// Passes the response to its target.
    fn answer_request(&mut self, ask: InputNumber, outcome: Result<Bytes, Bytes>) {
        let DetachedState { open_requests: book, pending_retry: turned_over, .. } = self.detached();
        if let (Some((key, answer)), Some((_, answers))) =
            (book.answer(ask, outcome), turned_over.as_deref_mut())
        {
            answers.insert(key, answer);
        }
    }

    /// Handles a retry of the client, with or without input responses.
    pub(super) fn receive_retry(&mut self, retry: RetryRequest) {
        let RetryRequest { waiter, mut answers, defer_after } = retry;
        match self.exchange.phase() {
            ExchangePhase::Deferred => return self.refuse_late(waiter),
            ExchangePhase::CommittingHandle => return self.send_handle_to(waiter),
            ExchangePhase::Inline
            | ExchangePhase::Parked
            | ExchangePhase::Deferring
            | ExchangePhase::Abandoned
            | ExchangePhase::Done => {}
        }
        if self.detached().waiters.len() >= WAITERS_PER_TASK {
            if let ReplyTarget::Canonical { call, .. } = &waiter.target {
                let refused = input_requests::queue_full_reply(call);
                self.detached().unsent.send(&waiter, refused.into());
            }
            return;
        }
        if matches!(self.exchange.phase(), ExchangePhase::Abandoned | ExchangePhase::Done) {
            // Answered once the call has ended completely.
            return self.detached().waiters.push(waiter);
        }
        let mut answered = BTreeSet::new();
        for ask in self.detached().open_requests.ids() {
            let Some(open) = self.detached().open_requests.get(ask) else { continue };
            let (Some(answer), ServerRequest::Canonical(request)) = (answers.take(&open.key), &open.asked)
            else {
                continue;
            };
            // An invalid response leaves its input request open, and it is sent again.
            if let Ok(answer) = elicit::check_input_response(request, &answer) {
                let key = open.key.clone();
                self.span.event("deferral.question.answered", &[("deferral.question.key", &key)]);
                self.answer_request(ask, Ok(answer));
                answered.insert(ask);
            }
        }
        self.detached().waiters.push(waiter);
        self.exchange.handle_retry(&answered, defer_after, self.shared.clock.now());
    }

    /// Handles the cancellation of an input request by the server.
    pub(super) fn handle_withdrawn(&mut self, ask: InputNumber) {
        let why = "the server cancelled it";
        let is_task =
            matches!(self.exchange.phase(), ExchangePhase::CommittingHandle | ExchangePhase::Deferred);
        let Some(open) = self.withdraw_request(ask, why) else { return };
        self.span.event("deferral.question.withdrawn", &[("deferral.question.key", &open.key)]);
        if let (Some(_), Some(id), false) = (&open.inline, &open.id, is_task) {
            self.detached().send_to_waiters(&legacy::cancelled_notification(id, why));
        }
        open.target.withdraw();
        if is_task && open.is_recorded {
            self.write_withdrawal(open.key);
        }
    }

    /// Expires an input request of the task without a response: the server is notified, and the task
    /// continues.
    pub(super) fn expire_request(&mut self, ask: InputNumber) {
        let held = self.detached();
        let Some(open) = held.open_requests.get(ask).filter(|open| !open.is_answered_inline()) else {
            return;
        };
        let key = open.key.clone();
        match open.is_recorded {
            true => {
                let event = task::TaskEvent::InputWithdrawn { key: key.clone() };
                self.queue_write(event, WriteFollowUp::TimedOut { ask, key });
            }
            false => self.handle_expired(ask, &key),
        }
    }

    /// Completes the expiry once the record does not hold the request.
    pub(super) fn handle_expired(&mut self, ask: InputNumber, key: &str) {
        let Some(open) = self.withdraw_request(ask, "there was no response in time") else { return };
        self.span.event("deferral.question.lapsed", &[("deferral.question.key", key)]);
        Limit::Park.record_hit();
        open.decline(&self.shared.route.path);
        let park = self.shared.route.input_policy.park.as_secs();
        let message = format!("no response to {key} within {park} s (questions.park)");
        self.queue_write(task::TaskEvent::Progressed { message }, WriteFollowUp::Nothing);
    }

    /// Nobody who waits for the result of the call can be asked this, by what they declared: the server is told, unless
    /// somebody has been asked already.
    pub(super) fn undeclared(&mut self, key: String) {
        let DetachedState { open_requests: book, streams: lines, .. } = self.detached();
        let Some(ask) = book.by_key(&key) else { return };
        let is_asked = lines.as_ref().is_some_and(|lines| lines.is_put(ask));
        match book.get(ask) {
            Some(open) if is_asked || open.mark_sent || open.is_answered_inline() => {}
            Some(open) if open.is_recorded => {
                let event = task::TaskEvent::InputWithdrawn { key };
                self.queue_write(event, WriteFollowUp::Undeclared { ask });
            }
            // Its record is being stored: those who wait look again once it is.
            Some(_) | None => {}
        }
    }

    /// The record does not have it any longer: the server is refused it.
    pub(super) fn refused_as_undeclared(&mut self, ask: InputNumber) {
        let Some(open) = self.withdraw_request(ask, NOT_DECLARED) else { return };
        self.span.event("deferral.question.refused", &[("deferral.question.key", &open.key)]);
        let declined = open.asked.kind().and_then(|kind| elicit::cancelled_response(kind).ok());
        if let (AnswerTarget::Retry(key), Some((_, answers)), Some(declined)) =
            (&open.target, self.detached().pending_retry.as_deref_mut(), declined)
        {
            // There are no errors among the answers of a retry.
            answers.insert(key.clone(), declined);
        }
        open.refuse(&self.shared.route.path, code::METHOD_NOT_FOUND, NOT_DECLARED);
        self.exchange.handle_input_answered(ask);
    }

    /// Sends an input request on the stream of the call itself.
    pub(super) fn send_inline(&mut self, ask: InputNumber) {
        let CallForm::Native(native) = &self.form else { return };
        let (shared, session) = (&self.shared, native.session);
        let Some(held) = &mut self.detached else { return };
        let Some(open) = held.open_requests.get_mut(ask).filter(|open| open.inline.is_none()) else { return };
        let (ServerRequest::Native(frame), Some(id)) = (&open.asked, &open.id) else { return };
        let message = native::verbatim(frame);
        open.inline = Some(native::register_inline(shared, session, id));
        held.send_to_waiters(&message);
    }

    /// Adds an input request to the task: first to its record, then to a listening client.
    pub(super) fn add_to_task(&mut self, ask: InputNumber) {
        let Some(held) = &mut self.detached else { return };
        let Some(open) = held.open_requests.get(ask) else { return };
        if open.is_answered_inline() {
            return self.close_answered(ask);
        }
        if let CallForm::Native(native) = &self.form
            && open.inline.is_none()
            && !native.can_be_asked(&self.shared, &open.asked)
        {
            held.open_requests.refuse(ask, code::METHOD_NOT_FOUND, NOT_DECLARED);
            return self.exchange.handle_input_answered(ask);
        }
        let key = open.key.clone();
        let request = match &open.asked {
            ServerRequest::Canonical(request) => Some(request.as_bytes().clone()),
            ServerRequest::Native(frame) => native::recordable_request(frame),
        };
        match request {
            Some(request) => {
                let event = task::TaskEvent::InputRequested { key: key.clone(), request };
                self.queue_write(event, WriteFollowUp::InputRequested { ask, key });
            }
            None => self.send_in_task(ask),
        }
    }

    /// Handles the result of adding an input request to the record.
    pub(super) fn handle_recorded(&mut self, ask: InputNumber, key: String, result: WriteResult) {
        let Some(held) = &mut self.detached else { return };
        let is_open = held.open_requests.get(ask).is_some();
        match result {
            // The server has cancelled it meanwhile, or it was answered on the stream of the call.
            Ok(UpdateOutcome::Applied { .. }) if !is_open => self.write_withdrawal(key),
            Ok(UpdateOutcome::Applied { .. }) => {
                held.open_requests.mark_recorded(ask);
                self.send_in_task(ask);
            }
            Err(full @ StoreError::Full(_)) => {
                held.open_requests.refuse(ask, code::BUSY, &full.to_string());
                self.exchange.handle_input_answered(ask);
            }
            // The task has ended: no client will see the request.
            Ok(UpdateOutcome::Refused(_) | UpdateOutcome::Unknown) => held.open_requests.decline(ask),
            // The proxy is shutting down. The next process may resume the call and receives the request
            // again.
            Err(StoreError::Exists | StoreError::Unavailable(_)) => {}
        }
    }

    /// Sends an input request to a listening client of the task. A request on the stream of the call itself
    /// belongs to the task from now on; it is sent again if the client cannot answer it there any more, or
    /// asks for it.
    fn send_in_task(&mut self, ask: InputNumber) {
        let has_left = self.exchange.has_disconnected();
        let Some(held) = &mut self.detached else { return };
        let Some(open) = held.open_requests.get_mut(ask) else { return };
        let relayed = open.inline.as_ref().and_then(|put| put.relayed.as_ref());
        if relayed.is_some_and(|relayed| !relayed.assign_to_task(held.registration.id(), &open.key)) {
            return self.close_answered(ask);
        }
        let has_it = relayed.is_some() && !has_left;
        if let Some(lines) = &mut held.streams {
            lines.queue_request(ask, has_it);
        }
    }

    /// Closes an input request whose response was relayed on the stream of the call itself.
    fn close_answered(&mut self, ask: InputNumber) {
        let Some(open) = self.detached().open_requests.close(ask) else { return };
        self.exchange.handle_input_answered(ask);
        if open.is_recorded {
            self.write_withdrawal(open.key);
        }
        open.target.withdraw();
    }

    /// Sends the queued input requests of the task to legacy clients that can receive them.
    pub(super) fn send_queued_requests(&mut self) {
        let Some(DetachedState { open_requests: book, streams: Some(lines), registration: hold, .. }) =
            self.detached.as_deref_mut()
        else {
            return;
        };
        let id = hold.id();
        let knows = !matches!(&self.form, CallForm::Native(native) if native.view == TaskView::Ticket);
        lines.send_queued(
            |ask| book.get(ask).map(|open| native::task_request(open, id, knows)),
            |ask, askable| book.get(ask).is_some_and(|open| open.can_be_put_to(askable)),
        );
    }

    /// Closes an input request, and cancels it on the stream on which it was sent in the task.
    fn withdraw_request(&mut self, ask: InputNumber, reason: &str) -> Option<OpenRequest> {
        let held = self.detached();
        let place = held.streams.as_mut().and_then(|lines| lines.close_request(ask));
        let open = held.open_requests.close(ask)?;
        if let (Some(line), Some(lines)) = (place, &mut held.streams) {
            lines.send_on(line, cancelled_notification(held.registration.id(), &open.key, reason));
        }
        Some(open)
    }

    pub(super) fn withdraw_all(&mut self, reason: &str) -> Vec<OpenRequest> {
        let Some(held) = &mut self.detached else { return Vec::new() };
        // Their responses were relayed: nothing is left to refuse.
        held.open_requests.close_answered_inline();
        let asks = held.open_requests.ids();
        asks.into_iter().filter_map(|ask| self.withdraw_request(ask, reason)).collect()
    }

    /// Sends the open input requests to all waiters as an `input_required` result. The call is parked
    /// already, so that their disconnect is not a cancellation.
    pub(super) fn send_input_required(&mut self, asks: &BTreeSet<InputNumber>) {
        let CallForm::Canonical(canonical) = &self.form else { return };
        let Some(held) = &mut self.detached else { return };
        held.open_requests.round += 1;
        let open = || asks.iter().filter_map(|ask| held.open_requests.get(*ask));
        let result =
            canonical.input_required(&self.shared, held.registration.id(), held.open_requests.round, open());
        let replies: Vec<_> = std::mem::take(&mut held.waiters)
            .into_iter()
            .filter_map(|waiter| {
                Some((canonical::input_required_reply(&waiter.target, open(), &result)?, waiter))
            })
            .collect();
        for (reply, waiter) in replies {
            held.unsent.send(&waiter, reply.into());
        }
    }
}

/// The method of the request.
fn method_of(asked: &ServerRequest) -> String {
    match asked {
        ServerRequest::Canonical(request) => request.kind().method().to_string(),
        ServerRequest::Native(frame) => match frame.kind() {
            Kind::Request { method, .. } => method.to_string(),
            Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => String::new(),
        },
    }
}

/// The cancellation of an input request that was sent in the task.
fn cancelled_notification(task: &TaskId, key: &str, reason: &str) -> Bytes {
    sse::message(&legacy::cancelled_notification(&offer::input_request_id(task, key), reason))
}
