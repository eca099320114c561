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
        input_requests::{self, CAPABILITY_NOT_DECLARED},
        reply::CallEnd,
        tasks::{TaskAdmissionError, reservations::Reservation, watchers::WAITERS_PER_TASK},
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
    fn call_origin(&self) -> CallOrigin {
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
    pub(super) fn handle_input_request(&mut self, pending: PendingServerRequest) {
        let now = self.shared.clock.now();
        let Some(detached) = &mut self.detached else { return };
        let phase = self.exchange.phase();
        let is_task = matches!(phase, ExchangePhase::CommittingHandle | ExchangePhase::Deferred);
        if is_task && detached.open_requests.find_by_id(&pending.id).is_some() {
            // A resumed stream may repeat an input request.
            return pending.responder.discard();
        }
        let pending = match &mut self.form {
            CallForm::Canonical(canonical) => {
                match canonical.accept_request(&self.shared.route.path, pending) {
                    Some(pending) => pending,
                    None => return,
                }
            }
            CallForm::Native(_) => {
                if !is_task && !detached.open_requests.has_capacity_for(&pending.request) {
                    for input in detached.open_requests.close_answered_inline() {
                        self.exchange.handle_input_answered(input);
                    }
                    if !detached.open_requests.has_capacity_for(&pending.request) {
                        // The request is relayed without being tracked: the client responds on its stream.
                        pending.responder.discard();
                        let ServerRequest::Native(frame) = &pending.request else { return };
                        return detached.send_to_waiters(&native::unchanged_message(frame));
                    }
                }
                pending
            }
        };
        if !detached.open_requests.has_capacity_for(&pending.request) {
            return pending.refuse(
                &self.shared.route.path,
                code::INTERNAL_ERROR,
                "too many input requests are open in one call",
            );
        }
        let PendingServerRequest { request: server_request, id, responder } = pending;
        let method = request_method(&server_request);
        let origin = self.form.call_origin();
        let (input, supplied) =
            detached.open_requests.insert(server_request, Some(id), AnswerTarget::Direct(responder), origin);
        if let Some(open) = detached.open_requests.get(input) {
            self.span.record_input_request(&open.key, &method);
        }
        if let Some(supplied) = supplied {
            detached.open_requests.respond(input, Ok(supplied));
            return;
        }
        match self.reserve_parked() {
            Ok(()) => self.exchange.handle_input_request(input, now),
            Err(quota_error) => {
                self.detached().open_requests.refuse(input, code::INTERNAL_ERROR, &quota_error.to_string())
            }
        }
    }

    /// Reserves space in the task quotas for a call that waits for a retry, because a parked call counts as a
    /// task.
    fn reserve_parked(&mut self) -> Result<(), TaskAdmissionError> {
        let is_task =
            matches!(self.exchange.phase(), ExchangePhase::CommittingHandle | ExchangePhase::Deferred);
        let CallForm::Canonical(canonical) = &self.form else { return Ok(()) };
        let principal = canonical.caller.principal;
        // A call whose task is being stored has the space of its record.
        if !is_task && self.detached().reservation.is_none() && self.detached().storing.is_none() {
            self.detached().reservation = Some(self.shared.ledger.reserve(principal)?);
        }
        Ok(())
    }

    /// Handles a failure to store the task. Input requests that arrived meanwhile need space in the quotas:
    /// if no `reservation` was returned, space is reserved, or the requests are refused.
    pub(super) fn handle_not_stored(&mut self, reservation: Option<Reservation>) {
        self.detached().reservation = reservation;
        let inputs = self.detached().open_requests.numbers();
        if !inputs.is_empty()
            && let Err(quota_error) = self.reserve_parked()
        {
            for input in inputs {
                self.detached().open_requests.refuse(input, code::INTERNAL_ERROR, &quota_error.to_string());
                self.exchange.handle_input_answered(input);
            }
        }
    }

    /// Handles an `input_required` result of the server, which ends the call.
    pub(super) fn handle_input_required(&mut self, mut input_required: InputRequired) {
        self.replies = None;
        self.retries += 1;
        let requests = std::mem::take(&mut input_required.requests);
        let invalid = |reason: String| CallEnd::Lost(CallError::Invalid(reason));
        let end = match &self.form {
            CallForm::Native(_) => {
                Some(invalid("it returned input_required, which its revision does not define".into()))
            }
            _ if self.retries > MAX_RETRIES => {
                Some(invalid(format!("it returned input_required more than {MAX_RETRIES} times")))
            }
            _ if requests.len() > MAX_OPEN => {
                let count = requests.len();
                Some(invalid(format!(
                    "it sent {count} input requests at once; the limit for one call is {MAX_OPEN}"
                )))
            }
            CallForm::Canonical(canonical) => {
                canonical.end_if_undeclared(requests.iter().map(|(_, request)| request))
            }
        };
        if let Some(end) = end {
            return self.end(end);
        }
        let (mut inputs, mut responses) = (BTreeSet::new(), BTreeMap::new());
        for (server_key, request) in requests {
            let target = AnswerTarget::Retry(server_key.clone());
            let method = request.kind().method();
            let origin = self.form.call_origin();
            let (input, supplied) =
                self.detached().open_requests.insert(ServerRequest::Canonical(request), None, target, origin);
            if let Some(key) = self.detached().open_requests.get(input).map(|open| open.key.clone()) {
                self.span.record_input_request(&key, method.as_str());
            }
            match supplied {
                Some(response) => {
                    self.detached().open_requests.close(input);
                    responses.insert(server_key, response);
                }
                None => drop(inputs.insert(input)),
            }
        }
        if !inputs.is_empty()
            && let Err(quota_error) = self.reserve_parked()
        {
            // The server has ended the call and waits for no response that could be refused: the call ends.
            let error = ErrorObject::new(code::BUSY, quota_error.to_string());
            return self.end(CallEnd::Refused(error, RequestOutcome::ProxyFailed));
        }
        self.detached().pending_retry = Some(Box::new((input_required, responses)));
        self.exchange.handle_input_required(inputs, self.shared.clock.now());
    }

    /// Makes the call again at the server, with all the input responses.
    pub(super) fn retry_call(&mut self) {
        if let Some((input_required, responses)) = self.detached().pending_retry.take().map(|boxed| *boxed) {
            let replies = (input_required.retry)(responses);
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

    /// Handles a response of a task's client to the input request `key`. `arrived_elsewhere` is whether the
    /// response arrived by another way than the stream on which the input request was sent: then the request
    /// is cancelled on that stream.
    pub(super) fn handle_response(
        &mut self,
        key: &str,
        outcome: Result<Bytes, Bytes>,
        arrived_elsewhere: bool,
    ) {
        let Some(detached) = &mut self.detached else { return };
        let Some(input) = detached.open_requests.find_by_key(key) else { return };
        self.span.add_event("deferral.question.answered", &[("deferral.question.key", key)]);
        let recorded_id =
            detached.open_requests.get(input).filter(|open| open.is_recorded).map(|open| open.id.clone());
        let sent_on = detached.streams.as_mut().and_then(|streams| streams.close_request(input));
        // The input request may have been sent on two streams and answered on one.
        let arrived_elsewhere = arrived_elsewhere
            || detached.open_requests.get(input).is_some_and(OpenRequest::is_answered_inline);
        if let (Some(stream), true, Some(streams)) = (sent_on, arrived_elsewhere, &mut detached.streams) {
            streams.send_on(
                stream,
                cancelled_notification(detached.registration.id(), key, "it has been answered"),
            );
        }
        self.send_response(input, outcome);
        self.exchange.handle_input_answered(input);
        if let Some(id) = recorded_id {
            self.record_sent_response(id, key.to_owned());
        }
    }

    /// Sends a response to the server, or keeps it until the call is made again.
    fn send_response(&mut self, input: InputNumber, outcome: Result<Bytes, Bytes>) {
        let DetachedState { open_requests, pending_retry, .. } = self.detached();
        if let (Some((key, response)), Some((_, responses))) =
            (open_requests.respond(input, outcome), pending_retry.as_deref_mut())
        {
            responses.insert(key, response);
        }
    }

    /// Handles a retry of the client, with or without input responses.
    pub(super) fn receive_retry(&mut self, retry: RetryRequest) {
        let RetryRequest { waiter, mut responses, defer_after } = retry;
        match self.exchange.phase() {
            ExchangePhase::Deferred => return self.reply_to_late_retry(waiter),
            ExchangePhase::CommittingHandle => return self.send_handle_to(waiter),
            ExchangePhase::Inline
            | ExchangePhase::Parked
            | ExchangePhase::Deferring
            | ExchangePhase::Abandoned
            | ExchangePhase::Done => {}
        }
        if self.detached().waiters.len() >= WAITERS_PER_TASK {
            if let ReplyTarget::Canonical { call, .. } = &waiter.target {
                let refusal = input_requests::queue_full_reply(call);
                self.detached().unsent.send(&waiter, refusal.into());
            }
            return;
        }
        if matches!(self.exchange.phase(), ExchangePhase::Abandoned | ExchangePhase::Done) {
            // The retry gets its reply when the call is closed.
            return self.detached().waiters.push(waiter);
        }
        let mut answered = BTreeSet::new();
        for input in self.detached().open_requests.numbers() {
            let Some(open) = self.detached().open_requests.get(input) else { continue };
            let (Some(response), ServerRequest::Canonical(request)) =
                (responses.take(&open.key), &open.request)
            else {
                continue;
            };
            // An invalid response leaves its input request open, which is sent to the client again.
            if let Ok(checked) = elicit::check_input_response(request, &response) {
                let key = open.key.clone();
                self.span.add_event("deferral.question.answered", &[("deferral.question.key", &key)]);
                self.send_response(input, Ok(checked));
                answered.insert(input);
            }
        }
        self.detached().waiters.push(waiter);
        self.exchange.handle_retry(&answered, defer_after, self.shared.clock.now());
    }

    /// Handles the cancellation of an input request by the server.
    pub(super) fn handle_withdrawn(&mut self, input: InputNumber) {
        let reason = "the server cancelled it";
        let is_task =
            matches!(self.exchange.phase(), ExchangePhase::CommittingHandle | ExchangePhase::Deferred);
        let Some(open) = self.withdraw_request(input, reason) else { return };
        self.span.add_event("deferral.question.withdrawn", &[("deferral.question.key", &open.key)]);
        if let (Some(_), Some(id), false) = (&open.inline, &open.id, is_task) {
            self.detached().send_to_waiters(&legacy::cancelled_notification(id, reason));
        }
        open.target.withdraw();
        if is_task && open.is_recorded {
            self.queue_withdrawal(open.key);
        }
    }

    /// Expires an input request of the task that has had no response in time. The request is first removed
    /// from the record, then the server is notified; the task continues.
    pub(super) fn expire_request(&mut self, input: InputNumber) {
        let detached = self.detached();
        let Some(open) = detached.open_requests.get(input).filter(|open| !open.is_answered_inline()) else {
            return;
        };
        let key = open.key.clone();
        match open.is_recorded {
            true => {
                let event = task::TaskEvent::InputWithdrawn { key: key.clone() };
                self.queue_write(event, WriteFollowUp::TimedOut { input, key });
            }
            false => self.handle_expired(input, &key),
        }
    }

    /// Completes the expiry of an input request that the record does not contain any more: notifies the
    /// server and the client, and writes a status message.
    pub(super) fn handle_expired(&mut self, input: InputNumber, key: &str) {
        let Some(open) = self.withdraw_request(input, "there was no response in time") else { return };
        self.span.add_event("deferral.question.lapsed", &[("deferral.question.key", key)]);
        Limit::Park.record_hit();
        open.decline(&self.shared.route.path);
        let park = self.shared.route.input_policy.park.as_secs();
        let message = format!("no response to {key} within {park} s (questions.park)");
        self.queue_write(task::TaskEvent::Progressed { message }, WriteFollowUp::Nothing);
    }

    /// Refuses an input request that no waiting client can receive, by the capabilities that they declared,
    /// unless the request has been sent to a client before.
    pub(super) fn refuse_undeclared(&mut self, key: String) {
        let DetachedState { open_requests, streams, .. } = self.detached();
        let Some(input) = open_requests.find_by_key(&key) else { return };
        let is_sent = streams.as_ref().is_some_and(|streams| streams.is_sent(input));
        match open_requests.get(input) {
            Some(open) if is_sent || open.is_sent || open.is_answered_inline() => {}
            Some(open) if open.is_recorded => {
                let event = task::TaskEvent::InputWithdrawn { key };
                self.queue_write(event, WriteFollowUp::Undeclared { input });
            }
            // The request is being recorded: the waiting clients check again once it is.
            Some(_) | None => {}
        }
    }

    /// Completes the refusal of an input request that no waiting client can receive, once it is removed from
    /// the record: sends the server an error.
    pub(super) fn handle_undeclared_removed(&mut self, input: InputNumber) {
        let Some(open) = self.withdraw_request(input, CAPABILITY_NOT_DECLARED) else { return };
        self.span.add_event("deferral.question.refused", &[("deferral.question.key", &open.key)]);
        let cancelled = open.request.kind().and_then(|kind| elicit::cancelled_response(kind).ok());
        if let (AnswerTarget::Retry(key), Some((_, responses)), Some(cancelled)) =
            (&open.target, self.detached().pending_retry.as_deref_mut(), cancelled)
        {
            // A repeated call cannot contain errors as input responses: send a declined response.
            responses.insert(key.clone(), cancelled);
        }
        open.refuse(&self.shared.route.path, code::METHOD_NOT_FOUND, CAPABILITY_NOT_DECLARED);
        self.exchange.handle_input_answered(input);
    }

    /// Relays an input request to the waiting client, on the stream of the call itself.
    pub(super) fn send_inline(&mut self, input: InputNumber) {
        let CallForm::Native(native) = &self.form else { return };
        let (shared, session) = (&self.shared, native.session);
        let Some(detached) = &mut self.detached else { return };
        let Some(open) = detached.open_requests.get_mut(input).filter(|open| open.inline.is_none()) else {
            return;
        };
        let (ServerRequest::Native(frame), Some(id)) = (&open.request, &open.id) else { return };
        let message = native::unchanged_message(frame);
        open.inline = Some(native::register_inline(shared, session, id));
        detached.send_to_waiters(&message);
    }

    /// Places an input request in the task: first in its record, then on a stream of the client. Refuses a
    /// request that the client cannot receive.
    pub(super) fn add_to_task(&mut self, input: InputNumber) {
        let Some(detached) = &mut self.detached else { return };
        let Some(open) = detached.open_requests.get(input) else { return };
        if open.is_answered_inline() {
            return self.close_answered(input);
        }
        if let CallForm::Native(native) = &self.form
            && open.inline.is_none()
            && !native.can_receive(&self.shared, &open.request)
        {
            detached.open_requests.refuse(input, code::METHOD_NOT_FOUND, CAPABILITY_NOT_DECLARED);
            return self.exchange.handle_input_answered(input);
        }
        let key = open.key.clone();
        let request = match &open.request {
            ServerRequest::Canonical(request) => Some(request.as_bytes().clone()),
            ServerRequest::Native(frame) => native::recordable_request(frame),
        };
        match request {
            Some(request) => {
                let event = task::TaskEvent::InputRequested { key: key.clone(), request };
                self.queue_write(event, WriteFollowUp::InputRequested { input, key });
            }
            None => self.send_in_task(input),
        }
    }

    /// Handles the result of adding an input request to the record.
    pub(super) fn handle_recorded(&mut self, input: InputNumber, key: String, result: WriteResult) {
        let Some(detached) = &mut self.detached else { return };
        let is_open = detached.open_requests.get(input).is_some();
        match result {
            // The request was closed meanwhile: cancelled by the server, or answered on the stream of the
            // call.
            Ok(UpdateOutcome::Applied { .. }) if !is_open => self.queue_withdrawal(key),
            Ok(UpdateOutcome::Applied { .. }) => {
                detached.open_requests.mark_recorded(input);
                self.send_in_task(input);
            }
            Err(full @ StoreError::Full(_)) => {
                detached.open_requests.refuse(input, code::BUSY, &full.to_string());
                self.exchange.handle_input_answered(input);
            }
            // The task has ended, so that no client will receive the request.
            Ok(UpdateOutcome::Refused(_) | UpdateOutcome::Unknown) => detached.open_requests.decline(input),
            // The proxy is shutting down. The next process may resume the call, and then receives the request
            // again.
            Err(StoreError::Exists | StoreError::Unavailable(_)) => {}
        }
    }

    /// Queues a recorded input request for the streams of the task. If the request was relayed on the stream
    /// of the call itself, its response belongs to the task from now on, and the request is sent again only
    /// if the client has disconnected, or to a request that waits for the result.
    fn send_in_task(&mut self, input: InputNumber) {
        let has_disconnected = self.exchange.has_disconnected();
        let Some(detached) = &mut self.detached else { return };
        let Some(open) = detached.open_requests.get_mut(input) else { return };
        let relayed = open.inline.as_ref().and_then(|inline| inline.relayed.as_ref());
        if relayed.is_some_and(|relayed| !relayed.assign_to_task(detached.registration.id(), &open.key)) {
            return self.close_answered(input);
        }
        let has_it = relayed.is_some() && !has_disconnected;
        if let Some(streams) = &mut detached.streams {
            streams.queue_input_request(input, has_it);
        }
    }

    /// Closes an input request to which the client has responded on the stream of the call itself.
    fn close_answered(&mut self, input: InputNumber) {
        let Some(open) = self.detached().open_requests.close(input) else { return };
        self.exchange.handle_input_answered(input);
        if open.is_recorded {
            self.queue_withdrawal(open.key);
        }
        open.target.withdraw();
    }

    /// Sends the queued input requests of the task on its streams, to clients that can receive them.
    pub(super) fn send_queued_requests(&mut self) {
        let Some(DetachedState { open_requests, streams: Some(streams), registration, .. }) =
            self.detached.as_deref_mut()
        else {
            return;
        };
        let id = registration.id();
        let knows_task = !matches!(&self.form, CallForm::Native(native) if native.view == TaskView::Ticket);
        streams.send_queued_requests(
            |input| open_requests.get(input).map(|open| native::task_request(open, id, knows_task)),
            |input, filter| open_requests.get(input).is_some_and(|open| open.can_be_sent_to(filter)),
        );
    }

    /// Closes an input request, and cancels it for the client on the stream on which it was sent in the task.
    /// Returns the request; the caller notifies the server.
    fn withdraw_request(&mut self, input: InputNumber, reason: &str) -> Option<OpenRequest> {
        let detached = self.detached();
        let sent_on = detached.streams.as_mut().and_then(|streams| streams.close_request(input));
        let open = detached.open_requests.close(input)?;
        if let (Some(stream), Some(streams)) = (sent_on, &mut detached.streams) {
            streams.send_on(stream, cancelled_notification(detached.registration.id(), &open.key, reason));
        }
        Some(open)
    }

    /// Closes all open input requests, and cancels them for the client. Returns them; dropping them refuses
    /// them at the server.
    pub(super) fn withdraw_all_requests(&mut self, reason: &str) -> Vec<OpenRequest> {
        let Some(detached) = &mut self.detached else { return Vec::new() };
        // Requests whose responses were relayed must not be refused.
        detached.open_requests.close_answered_inline();
        let inputs = detached.open_requests.numbers();
        inputs.into_iter().filter_map(|input| self.withdraw_request(input, reason)).collect()
    }

    /// Replies to all waiting requests with the open input requests, as an `input_required` result. The call
    /// is parked already, so that a disconnect of these clients does not cancel it.
    pub(super) fn send_input_required(&mut self, inputs: &BTreeSet<InputNumber>) {
        let CallForm::Canonical(canonical) = &self.form else { return };
        let Some(detached) = &mut self.detached else { return };
        detached.open_requests.round += 1;
        let open = || inputs.iter().filter_map(|input| detached.open_requests.get(*input));
        let result = canonical.input_required(
            &self.shared,
            detached.registration.id(),
            detached.open_requests.round,
            open(),
        );
        let replies: Vec<_> = std::mem::take(&mut detached.waiters)
            .into_iter()
            .filter_map(|waiter| {
                Some((canonical::input_required_reply(&waiter.target, open(), &result)?, waiter))
            })
            .collect();
        for (reply, waiter) in replies {
            detached.unsent.send(&waiter, reply.into());
        }
    }
}

/// The method of an input request; empty if it is not a request.
fn request_method(server_request: &ServerRequest) -> String {
    match server_request {
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
