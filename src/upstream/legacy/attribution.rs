//! Attribution of messages in a session to calls.
//!
//! Everything on a call's own stream belongs to the call. On the GET stream, progress names its call and a
//! response its request; an input request, a log message and an unknown message name none, and belong to the
//! only call that they can belong to, or to none: after a call was abandoned, the only remaining one may not
//! be the one that is meant. An input request that may belong to another client is rejected, never guessed.
//! Messages about the server as a whole are [`ChangeNotification`]s.

use bytes::Bytes;
use std::{sync::Arc, time::Instant};

use super::{
    call_client::CallClient,
    listeners::BroadcastListener,
    mailbox::CallMessage,
    message,
    responder::SessionResponder,
    session::{AbandonedCall, InFlightCall, OpenRequest, SessionState, UnattributedRequest, UpstreamSession},
};
use crate::{
    protocol::{
        Frame, Kind, ListKind, Method, Payload, RequestId,
        code::{INTERNAL_ERROR, METHOD_NOT_FOUND},
        frame::to_single_line,
    },
    runtime::Clock,
    telemetry::{InputRequestRefused, metrics::InputRequestOutcome},
    upstream::{CallError, ChangeNotification, own_ids::is_answer_to, transport::Transport},
};

/// Limit of open requests of a server in one call, including those whose responses are in flight. A call with
/// more fails, because each request costs its message. The same number may be open outside calls; further
/// ones are rejected.
const MAX_OPEN_REQUESTS: usize = 256;

/// Limit of a resource update notification, in bytes: it holds little more than the URI.
const MAX_UPDATE_BYTES: usize = 64 << 10;

/// What a message that names no call belongs to.
enum RequestTarget {
    /// The call with this number.
    Call(u64),
    /// A legacy client's session; the newest of its calls in flight, if there is one.
    Session(Arc<CallClient>, Option<u64>),
    /// No call: none is in flight, and none was abandoned.
    NoCall,
    /// Several clients are possible, for this reason.
    Unknown(&'static str),
}

/// Stands for the call's id in a request of the server outside calls.
pub(super) const NO_CALL: u64 = 0;

// === impl UpstreamSession ===

impl<W: Transport> UpstreamSession<W> {
    /// Delivers a message of the GET stream.
    pub(super) fn receive_off_stream(self: &Arc<Self>, frame: Frame) {
        match frame.kind() {
            Kind::Request { id, method, .. } => match method {
                Method::Ping => self.respond_later(id, &Ok(Bytes::from_static(b"{}"))),
                Method::Elicit | Method::CreateMessage | Method::RootsList => {
                    let (id, method) = (id.clone(), method.clone());
                    self.attribute(frame, &id, &method);
                }
                _ => self.respond_later(id, &unknown_method(method)),
            },
            Kind::Notification { method: Method::ResourceUpdated, params }
                if is_update_too_large(params.as_ref()) =>
            {
                tracing::debug!("a resource update notification is too large and was dropped");
            }
            Kind::Notification { method, params } => match change_notification(method, params.as_ref()) {
                Some(change) => {
                    self.broadcast(&frame);
                    self.send_change(change);
                }
                None => self.deliver_notification(frame),
            },
            Kind::Success { id, .. } | Kind::Failure { id: Some(id), .. } => {
                let call = id.echoed_number().and_then(|id| {
                    // Later messages are not for this call, even if its response has not been read yet.
                    Some(self.note_answered(id)?.mailbox)
                });
                match call {
                    Some(mailbox) => mailbox.push(CallMessage::Response(frame)),
                    None => tracing::debug!(%id, "a response without a request"),
                }
            }
            Kind::Failure { id: None, .. } => {}
        }
    }

    /// Fails a call whose response is too large.
    pub(super) fn fail_too_large(&self, call: u64) {
        self.fail_call(call, CallError::TooLarge { limit: self.server.config.load().limits.result_bytes });
    }

    /// Fails a call whose response is invalid.
    pub(super) fn fail_invalid(&self, call: u64, why: String) {
        self.fail_call(call, CallError::Invalid(why));
    }

    /// Fails a call that the server has finished: nothing is cancelled, and no requests of it follow.
    fn fail_call(&self, call: u64, lost: CallError) {
        if let Some(in_flight) = self.note_answered(call) {
            in_flight.mailbox.push(CallMessage::Lost(lost));
        }
    }

    /// Notes that the server has finished a call, and removes it if it is in flight. If it was abandoned (some
    /// servers answer a cancelled call), it sends no more requests, and calls of other clients may use the
    /// session now.
    fn note_answered(&self, call: u64) -> Option<InFlightCall> {
        let (was_abandoned, in_flight) = {
            let mut state = self.state.lock();
            (state.mark_answered(call), state.calls.remove(&call))
        };
        if was_abandoned && let Some(owner) = self.owner() {
            owner.serve_queue();
        }
        in_flight
    }

    /// Delivers an input request to the call that it can only belong to; else to the legacy session to which
    /// all calls belong, as on a direct connection; else rejects it.
    fn attribute(self: &Arc<Self>, frame: Frame, id: &RequestId, method: &Method) {
        // Count the request even if it cannot be attributed.
        self.server.request_placement.note_off_stream();
        let target = self.state.lock().request_target();
        let is_sent = match target {
            RequestTarget::Call(call) => return self.request_in_call(call, frame, id),
            RequestTarget::Session(client, newest) => match (client.session(), newest) {
                (Some(client), newest) if client.is_listening() || newest.is_none() => {
                    self.request_client(client, &frame, id)
                }
                (_, Some(call)) => return self.request_in_call(call, frame, id),
                (_, None) => Err("the session of the call has ended"),
            },
            RequestTarget::NoCall => {
                let client =
                    self.owner().and_then(|owner| owner.listeners().sole_listener(self.listeners_at_start));
                client.map_or(Err("no call is in flight"), |client| self.request_client(client, &frame, id))
            }
            RequestTarget::Unknown(reason) => Err(reason),
        };
        if let Err(reason) = is_sent {
            let (route, outcome) = (&self.server.route, InputRequestOutcome::Refused);
            InputRequestRefused { route, method: method.as_str(), reason, outcome }.emit();
            self.respond_later(id, &message::refusal(INTERNAL_ERROR, "cannot be attributed to one call"));
        }
    }

    /// Delivers an input request to a call in flight.
    fn request_in_call(self: &Arc<Self>, call: u64, frame: Frame, id: &RequestId) {
        let now = self.server.clock.now();
        let noted = {
            let mut state = self.state.lock();
            state.calls.get_mut(&call).map(|call| (call.mailbox.clone(), call.note_request(id, now)))
        };
        match noted {
            Some((mailbox, Ok(()))) => mailbox.push(self.request_message(call, frame, id)),
            Some((mailbox, Err(lost))) => mailbox.push(CallMessage::Lost(lost)),
            // It has ended in this moment.
            None => self.respond_later(id, &message::refusal(INTERNAL_ERROR, "its call has ended")),
        }
    }

    /// Sends an input request to a client outside its calls.
    ///
    /// # Errors
    /// The reason why the request is not sent: too many are open.
    fn request_client(
        self: &Arc<Self>,
        client: Arc<dyn BroadcastListener>,
        frame: &Frame,
        id: &RequestId,
    ) -> Result<(), &'static str> {
        let (server_id, client_id) = (id.detached(), client.next_request_id());
        let request = UnattributedRequest {
            server_id: server_id.clone(),
            client_id: client_id.clone(),
            since: self.server.clock.now(),
            client: Arc::downgrade(&client),
        };
        {
            let mut state = self.state.lock();
            // The request would never be cancelled.
            if state.is_ended {
                return Ok(());
            }
            if state.unattributed.len() >= MAX_OPEN_REQUESTS {
                return Err("too many input requests are open");
            }
            state.unattributed.push(request);
        }
        client.send_request(
            client_id,
            frame,
            Box::new(SessionResponder::new(self.clone(), NO_CALL, server_id)),
        );
        Ok(())
    }

    /// Broadcasts a message outside calls to the listeners.
    fn broadcast(&self, frame: &Frame) {
        if let Some(owner) = self.owner() {
            owner.listeners().notify(frame);
        }
    }

    /// Notes a request of the server in this call, and returns it as a message for the call. `None` if it was
    /// open before the call was resumed.
    pub(super) fn note_request(
        self: &Arc<Self>,
        call: u64,
        id: RequestId,
        frame: Frame,
    ) -> Option<CallMessage> {
        let now = self.server.clock.now();
        let noted = match self.state.lock().calls.get_mut(&call) {
            Some(call) if call.restored.contains(&id) => return None,
            Some(call) => call.note_request(&id, now),
            None => Ok(()),
        };
        Some(match noted {
            Ok(()) => self.request_message(call, frame, &id),
            Err(lost) => CallMessage::Lost(lost),
        })
    }

    fn request_message(self: &Arc<Self>, call: u64, frame: Frame, id: &RequestId) -> CallMessage {
        CallMessage::Request(frame, Box::new(SessionResponder::new(self.clone(), call, id.detached())))
    }

    /// Delivers a notification to the call that it names, or to the only one, or to the legacy session to which
    /// all calls belong; without calls to the listeners; else drops it.
    fn deliver_notification(&self, frame: Frame) {
        let Kind::Notification { method, params } = frame.kind() else { return };
        let mut state = self.state.lock();
        let (mailbox, message) = match method {
            Method::Cancelled => {
                let Some(id) = cancelled_id(params.as_ref()) else { return };
                let Some(call) = state.calls.values().find(|call| call.has_request(&id)) else {
                    let request = state.take_unattributed(&id);
                    drop(state);
                    if let Some(request) = request {
                        request.cancel("the server cancelled it");
                    }
                    return;
                };
                (call.mailbox.clone(), CallMessage::RequestCancelled(id))
            }
            Method::Progress => {
                let Some(call) = progress_token(params.as_ref()).and_then(|token| state.calls.get(&token))
                else {
                    return;
                };
                (call.mailbox.clone(), CallMessage::Notification(frame))
            }
            _ => match state.message_target() {
                RequestTarget::Call(call) => match state.calls.get(&call) {
                    Some(call) => (call.mailbox.clone(), CallMessage::Notification(frame)),
                    None => return,
                },
                RequestTarget::Session(client, newest) => {
                    let newest = newest.and_then(|call| Some(state.calls.get(&call)?.mailbox.clone()));
                    drop(state);
                    match (client.session(), newest) {
                        (Some(client), newest) if client.is_listening() || newest.is_none() => {
                            client.notify(&frame, &to_single_line(frame.as_bytes().clone()));
                        }
                        (_, Some(mailbox)) => mailbox.push(CallMessage::Notification(frame)),
                        (_, None) => {}
                    }
                    return;
                }
                RequestTarget::NoCall => {
                    drop(state);
                    return self.broadcast(&frame);
                }
                RequestTarget::Unknown(_) => return,
            },
        };
        drop(state);
        mailbox.push(message);
    }

    /// Handles a message on a call's own stream, and returns the message for the call, if it is for the call.
    /// In a client's own session everything but pings is for the client.
    pub(super) fn receive_on_stream(self: &Arc<Self>, call: u64, frame: Frame) -> Option<CallMessage> {
        match frame.kind() {
            Kind::Request { id, method, .. } => match method {
                Method::Ping => {
                    self.respond_later(id, &Ok(Bytes::from_static(b"{}")));
                    None
                }
                Method::Elicit | Method::CreateMessage | Method::RootsList => {
                    self.server.request_placement.note_on_stream();
                    self.note_request(call, id.clone(), frame)
                }
                _ if self.is_client_session => self.note_request(call, id.clone(), frame),
                _ => {
                    self.respond_later(id, &unknown_method(method));
                    None
                }
            },
            Kind::Notification { method: Method::Cancelled, params } => {
                cancelled_id(params.as_ref()).map(CallMessage::RequestCancelled)
            }
            Kind::Notification { .. } if self.is_client_session => Some(CallMessage::Notification(frame)),
            Kind::Notification { method: Method::ResourceUpdated, params }
                if is_update_too_large(params.as_ref()) =>
            {
                None
            }
            Kind::Notification { method, params } => match change_notification(method, params.as_ref()) {
                Some(change) => {
                    self.send_change(change);
                    None
                }
                None => Some(CallMessage::Notification(frame)),
            },
            Kind::Success { id, .. } if is_answer_to(id, call) => Some(CallMessage::Response(frame)),
            Kind::Failure { id: Some(id), .. } if is_answer_to(id, call) => {
                Some(CallMessage::Response(frame))
            }
            // Transport error: it answers the exchange in which it arrived.
            Kind::Failure { id: None, .. } => Some(CallMessage::Response(frame)),
            Kind::Failure { id: Some(id), .. } if id.as_bytes() == &br#""server-error""#[..] => {
                Some(CallMessage::Response(frame))
            }
            Kind::Success { id, .. } | Kind::Failure { id: Some(id), .. } => {
                tracing::debug!(%id, "a response to another request");
                None
            }
        }
    }

    fn send_change(self: &Arc<Self>, change: ChangeNotification) {
        if !matches!(change, ChangeNotification::ResourceUpdated { .. })
            && let Some(owner) = self.owner()
        {
            owner.use_for_lists(self);
        }
        self.notifier.send(change);
    }
}

// === impl SessionState ===

impl SessionState {
    /// Removes a call from the abandoned ones: the server has finished it. Returns whether it was one.
    fn mark_answered(&mut self, call: u64) -> bool {
        let Some(index) = self.abandoned.iter().position(|abandoned| abandoned.call == call) else {
            return false;
        };
        self.abandoned.swap_remove(index);
        true
    }

    /// What an input request without a call belongs to.
    fn request_target(&self) -> RequestTarget {
        self.target_among(self.input_calls())
    }

    /// What another message without a call belongs to.
    fn message_target(&self) -> RequestTarget {
        let calls = || self.calls.iter().map(|(number, call)| (*number, call));
        match calls().find(|(_, call)| call.is_exclusive) {
            Some((number, _)) if !self.has_abandoned() => RequestTarget::Call(number),
            Some(_) | None => self.target_among(calls()),
        }
    }

    /// The target of a message that may belong to one of these calls, or to an abandoned one.
    fn target_among<'a>(&'a self, mut calls: impl Iterator<Item = (u64, &'a InFlightCall)>) -> RequestTarget {
        let Some((first, call)) = calls.next() else {
            if !self.has_abandoned() {
                return RequestTarget::NoCall;
            }
            let client = self.abandoned.first().and_then(|abandoned| abandoned.client.as_ref());
            return match client.filter(|client| client.has_live_session() && self.is_only_client(client)) {
                Some(client) => RequestTarget::Session(Arc::clone(client), None),
                None => RequestTarget::Unknown("a call was abandoned in the session"),
            };
        };
        let mut newest = first;
        let (mut is_sole, mut has_one_client) = (true, true);
        let client = call.client.as_ref();
        for (number, other) in calls {
            is_sole = false;
            newest = newest.max(number);
            has_one_client &= match (client, &other.client) {
                (Some(client), Some(other)) => client.is_same(other),
                (None, _) | (_, None) => false,
            };
        }
        let is_own_abandoned = || client.is_some_and(|client| self.is_only_client(client));
        let session =
            client.filter(|client| client.has_live_session() && has_one_client && is_own_abandoned());
        match (is_sole, self.has_abandoned()) {
            (true, false) => RequestTarget::Call(first),
            (true, true) if session.is_some() => RequestTarget::Call(first),
            (false, _) if let Some(session) = session => {
                RequestTarget::Session(Arc::clone(session), Some(newest))
            }
            (true, true) => RequestTarget::Unknown("a call was abandoned in the session"),
            (false, _) => RequestTarget::Unknown("several calls are in flight"),
        }
    }

    fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty() || self.has_forgotten_clients
    }

    /// Whether all abandoned calls are of this client.
    fn is_only_client(&self, client: &CallClient) -> bool {
        let is_same =
            |abandoned: &AbandonedCall| abandoned.client.as_ref().is_some_and(|other| client.is_same(other));
        !self.has_forgotten_clients && self.abandoned.iter().all(is_same)
    }

    /// Removes and returns the request outside calls with this id at the server.
    pub(super) fn take_unattributed(&mut self, id: &RequestId) -> Option<UnattributedRequest> {
        let index = self.unattributed.iter().position(|request| request.server_id == *id)?;
        Some(self.unattributed.swap_remove(index))
    }
}

// === impl UnattributedRequest ===

impl UnattributedRequest {
    /// Cancels the request at the client.
    pub(super) fn cancel(&self, reason: &str) {
        if let Some(client) = self.client.upgrade() {
            client.cancel_request(&self.client_id, reason);
        }
    }
}

// === impl InFlightCall ===

impl InFlightCall {
    pub(super) fn has_request(&self, id: &RequestId) -> bool {
        self.requests.iter().any(|request| request.id == *id)
    }

    /// Adds an open request to the call.
    ///
    /// # Errors
    /// [`CallError::Invalid`] if there are too many.
    fn note_request(&mut self, id: &RequestId, now: Instant) -> Result<(), CallError> {
        if self.requests.len() >= MAX_OPEN_REQUESTS {
            let why = format!(
                "the server sent more than {MAX_OPEN_REQUESTS} input requests at a time during one call"
            );
            return Err(CallError::Invalid(why));
        }
        self.requests.push(OpenRequest { id: id.detached(), since: now });
        Ok(())
    }
}

/// Returns the only call in flight that a message naming no call can belong to. A single call in flight is
/// not sufficient if another was abandoned (`is_abandoned`): the server may still execute that one.
///
/// # Errors
/// The reason why the message cannot be attributed.
pub(crate) fn sole_call<C>(
    mut calls_in_flight: impl Iterator<Item = C>,
    is_abandoned: impl FnOnce() -> bool,
) -> Result<C, &'static str> {
    match (calls_in_flight.next(), calls_in_flight.next()) {
        (Some(_), None) if is_abandoned() => Err("a call was abandoned in the session"),
        (Some(call), None) => Ok(call),
        (None, _) => Err("no call is in flight"),
        (Some(_), Some(_)) => Err("several calls are in flight"),
    }
}

/// Whether a resource update is too large to be kept for listeners, which may have hundreds.
fn is_update_too_large(params: Option<&Payload>) -> bool {
    params.is_some_and(|params| params.len() > MAX_UPDATE_BYTES)
}

fn unknown_method(method: &Method) -> Result<Bytes, Bytes> {
    message::refusal(METHOD_NOT_FOUND, &format!("{method} is not served here"))
}

/// Change notification in a message, if it is one.
fn change_notification(method: &Method, params: Option<&Payload>) -> Option<ChangeNotification> {
    match method {
        Method::ResourceUpdated => {
            let uri = params?.string("uri")?;
            // Copied, because it may be kept for long, and a slice would keep the whole line.
            Some(ChangeNotification::ResourceUpdated { uri, params: Bytes::copy_from_slice(params?) })
        }
        _ => ListKind::from_changed_notification(method).map(ChangeNotification::ListChanged),
    }
}

/// Id of the request that `notifications/cancelled` with these params cancels.
pub(super) fn cancelled_id(params: Option<&Payload>) -> Option<RequestId> {
    RequestId::from_token(params?.get("requestId")?)
}

fn progress_token(params: Option<&Payload>) -> Option<u64> {
    RequestId::from_token(params?.get("progressToken")?)?.echoed_number()
}
