//! Forwards the input requests of a server during a call to the client, and the client's responses to the
//! server.

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

/// How often a server may end one call with `input_required`, so that a server cannot keep a call alive
/// forever.
const MAX_RETRIES: usize = 64;

// === impl CallForm ===

impl CallForm {
    /// The caller and the tool, for metrics and taps that show the open input requests of the call.
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
            // A resumed stream may repeat an input request.
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
                        // The request is relayed without being tracked: the client responds on its stream.
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

    /// Reserves space in the task quotas for a call that waits for a retry, because a parked call counts as a
    /// task.
    fn park(&mut self) -> Result<(), TaskAdmissionError> {
        let is_task =
            matches!(self.exchange.phase(), ExchangePhase::CommittingHandle | ExchangePhase::Deferred);
        let CallForm::Canonical(canonical) = &self.form else { return Ok(()) };
        let principal = canonical.caller.principal;
        // A call whose task is being stored has the space of its record.
        if !is_task && self.detached().parked.is_none() && self.detached().storing.is_none() {
            self.detached().parked = Some(self.shared.ledger.reserve(principal)?);
        }
        Ok(())
    }

    /// Handles a failure to store the task. Input requests that arrived meanwhile need space in the quotas:
    /// if no `reservation` was returned, space is reserved, or the requests are refused.
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
            // The server has ended the call and waits for no response that could be refused: the call ends.
            let error = ErrorObject::new(code::BUSY, no_room.to_string());
            return self.end(CallEnd::Refused(error, RequestOutcome::ProxyFailed));
        }
        self.detached().pending_retry = Some(Box::new((turned_over, answers)));
        self.exchange.handle_input_required(asks, self.shared.clock.now());
    }

    /// Makes the call again at the server, with all the input responses.
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

    /// Handles a response of a task's client to the input request `key`. `was_elsewhere` is whether the
    /// response arrived by another way than the stream on which the input request was sent: then the request
    /// is cancelled on that stream.
    pub(super) fn handle_response(&mut self, key: &str, outcome: Result<Bytes, Bytes>, was_elsewhere: bool) {
        let Some(held) = &mut self.detached else { return };
        let Some(ask) = held.open_requests.by_key(key) else { return };
        self.span.event("deferral.question.answered", &[("deferral.question.key", key)]);
        let recorded =
            held.open_requests.get(ask).filter(|open| open.is_recorded).map(|open| open.id.clone());
        let place = held.streams.as_mut().and_then(|lines| lines.close_request(ask));
        // The input request may have been sent on two streams and answered on one.
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

    /// Sends a response to the server, or keeps it until the call is made again.
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
            // The retry gets its reply when the call is closed.
            return self.detached().waiters.push(waiter);
        }
        let mut answered = BTreeSet::new();
        for ask in self.detached().open_requests.ids() {
            let Some(open) = self.detached().open_requests.get(ask) else { continue };
            let (Some(answer), ServerRequest::Canonical(request)) = (answers.take(&open.key), &open.asked)
            else {
                continue;
            };
            // An invalid response leaves its input request open, which is sent to the client again.
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

    /// Expires an input request of the task that has had no response in time. The request is first removed
    /// from the record, then the server is notified; the task continues.
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

    /// Completes the expiry of an input request that the record does not contain any more: notifies the
    /// server and the client, and writes a status message.
    pub(super) fn handle_expired(&mut self, ask: InputNumber, key: &str) {
        let Some(open) = self.withdraw_request(ask, "there was no response in time") else { return };
        self.span.event("deferral.question.lapsed", &[("deferral.question.key", key)]);
        Limit::Park.record_hit();
        open.decline(&self.shared.route.path);
        let park = self.shared.route.input_policy.park.as_secs();
        let message = format!("no response to {key} within {park} s (questions.park)");
        self.queue_write(task::TaskEvent::Progressed { message }, WriteFollowUp::Nothing);
    }

    /// Refuses an input request that no waiting client can receive, by the capabilities that they declared,
    /// unless the request has been sent to a client before.
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
            // The request is being recorded: the waiting clients check again once it is.
            Some(_) | None => {}
        }
    }

    /// Completes the refusal of an input request that no waiting client can receive, once it is removed from
    /// the record: sends the server an error.
    pub(super) fn refused_as_undeclared(&mut self, ask: InputNumber) {
        let Some(open) = self.withdraw_request(ask, NOT_DECLARED) else { return };
        self.span.event("deferral.question.refused", &[("deferral.question.key", &open.key)]);
        let declined = open.asked.kind().and_then(|kind| elicit::cancelled_response(kind).ok());
        if let (AnswerTarget::Retry(key), Some((_, answers)), Some(declined)) =
            (&open.target, self.detached().pending_retry.as_deref_mut(), declined)
        {
            // A repeated call cannot contain errors as input responses: send a declined response.
            answers.insert(key.clone(), declined);
        }
        open.refuse(&self.shared.route.path, code::METHOD_NOT_FOUND, NOT_DECLARED);
        self.exchange.handle_input_answered(ask);
    }

    /// Relays an input request to the waiting client, on the stream of the call itself.
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

    /// Places an input request in the task: first in its record, then on a stream of the client. Refuses a
    /// request that the client cannot receive.
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
            // The request was closed meanwhile: cancelled by the server, or answered on the stream of the
            // call.
            Ok(UpdateOutcome::Applied { .. }) if !is_open => self.write_withdrawal(key),
            Ok(UpdateOutcome::Applied { .. }) => {
                held.open_requests.mark_recorded(ask);
                self.send_in_task(ask);
            }
            Err(full @ StoreError::Full(_)) => {
                held.open_requests.refuse(ask, code::BUSY, &full.to_string());
                self.exchange.handle_input_answered(ask);
            }
            // The task has ended, so that no client will receive the request.
            Ok(UpdateOutcome::Refused(_) | UpdateOutcome::Unknown) => held.open_requests.decline(ask),
            // The proxy is shutting down. The next process may resume the call, and then receives the request
            // again.
            Err(StoreError::Exists | StoreError::Unavailable(_)) => {}
        }
    }

    /// Queues a recorded input request for the streams of the task. If the request was relayed on the stream
    /// of the call itself, its response belongs to the task from now on, and the request is sent again only
    /// if the client has disconnected, or to a request that waits for the result.
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

    /// Closes an input request to which the client has responded on the stream of the call itself.
    fn close_answered(&mut self, ask: InputNumber) {
        let Some(open) = self.detached().open_requests.close(ask) else { return };
        self.exchange.handle_input_answered(ask);
        if open.is_recorded {
            self.write_withdrawal(open.key);
        }
        open.target.withdraw();
    }

    /// Sends the queued input requests of the task on its streams, to clients that can receive them.
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

    /// Closes an input request, and cancels it for the client on the stream on which it was sent in the task.
    /// Returns the request; the caller notifies the server.
    fn withdraw_request(&mut self, ask: InputNumber, reason: &str) -> Option<OpenRequest> {
        let held = self.detached();
        let place = held.streams.as_mut().and_then(|lines| lines.close_request(ask));
        let open = held.open_requests.close(ask)?;
        if let (Some(line), Some(lines)) = (place, &mut held.streams) {
            lines.send_on(line, cancelled_notification(held.registration.id(), &open.key, reason));
        }
        Some(open)
    }

    /// Closes all open input requests, and cancels them for the client. Returns them; dropping them refuses
    /// them at the server.
    pub(super) fn withdraw_all(&mut self, reason: &str) -> Vec<OpenRequest> {
        let Some(held) = &mut self.detached else { return Vec::new() };
        // Requests whose responses were relayed must not be refused.
        held.open_requests.close_answered_inline();
        let asks = held.open_requests.ids();
        asks.into_iter().filter_map(|ask| self.withdraw_request(ask, reason)).collect()
    }

    /// Replies to all waiting requests with the open input requests, as an `input_required` result. The call
    /// is parked already, so that a disconnect of these clients does not cancel it.
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

/// The method of an input request; empty if it is not a request.
fn method_of(asked: &ServerRequest) -> String {
    match asked {
        ServerRequest::Canonical(request) => request.kind().method().to_string(),
        ServerRequest::Native(frame) => match frame.kind() {
            Kind::Request { method, .. } => method.to_string(),
            Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => String::new(),
        },
    }
}

/// The SSE event that cancels an input request for the client to which it was sent in the task.
fn cancelled_notification(task: &TaskId, key: &str, reason: &str) -> Bytes {
    sse::message(&legacy::cancelled_notification(&offer::input_request_id(task, key), reason))
}
