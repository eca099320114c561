//! Whose is it? What arrives in a session, and to which call it belongs.
//!
//! On a call's own stream everything is that call's. On the GET stream progress names its call, a
//! response its request; a question, a log message and what is unknown name nothing, and belong to
//! the only call they can belong to, or to none: where a call has left without its end, the only one
//! that is left may still not be the one that is meant. A question is never put to somebody it may not
//! be meant for: it is refused. What concerns the server as a whole is a [`ChangeNotification`].

use bytes::Bytes;
use std::sync::Arc;

use super::{
    mailbox::CallMessage,
    message,
    responder::SessionResponder,
    session::{InFlightCall, SessionState, UnattributedRequest, UpstreamSession},
};
use crate::{
    protocol::{
        Frame, Kind, ListKind, Method, Payload, RequestId,
        code::{INTERNAL_ERROR, METHOD_NOT_FOUND},
    },
    telemetry::{InputRequestRefused, metrics::InputRequestOutcome},
    upstream::{
        CallError, ChangeNotification,
        transport::{Transport, is_answer_to},
    },
};

/// Questions that one call may have at a time, those whose answers are on their way to the server
/// included. A server that asks more fails its call: each costs its message. As many may be outside any call; further
/// ones are refused.
const QUESTIONS: usize = 256;

/// Bytes of what a server may say of a change of a resource: where that is, and little else.
const UPDATE: usize = 64 << 10;

/// Stands for the call of a question that was asked outside any.
pub(super) const OF_NO_CALL: u64 = 0;

// === impl Session ===

impl<W: Transport> UpstreamSession<W> {
    /// Takes what arrived on the GET stream to where it belongs.
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
                if is_too_large(params.as_ref()) =>
            {
                tracing::debug!("a resource is said to have changed in too many words");
            }
            Kind::Notification { method, params } => match change_notification(method, params.as_ref()) {
                Some(report) => {
                    self.broadcast(&frame);
                    self.send_report(report);
                }
                None => self.deliver_notification(frame),
            },
            Kind::Success { id, .. } | Kind::Failure { id: Some(id), .. } => {
                let call = id.echoed_number().and_then(|id| {
                    let mut inside = self.state.lock();
                    // Some servers answer what was cancelled: it is over then, and asks nothing more.
                    inside.mark_answered(id);
                    // What follows is not for it, though nobody may have fetched this yet.
                    Some(inside.calls.remove(&id)?.mailbox)
                });
                match call {
                    Some(mailbox) => mailbox.push(CallMessage::Response(frame)),
                    None => tracing::debug!(%id, "a response to nothing that was asked"),
                }
            }
            Kind::Failure { id: None, .. } => {}
        }
    }

    /// The answer to this call is not kept.
    pub(super) fn fail_too_large(&self, call: u64) {
        self.fail_call(call, CallError::TooLarge { limit: self.server.config.load().limits.result_bytes });
    }

    /// The answer to this call is none that could be given to anybody.
    pub(super) fn fail_invalid(&self, call: u64, why: String) {
        self.fail_call(call, CallError::Invalid(why));
    }

    /// The server is done with this call: there is nothing to cancel, and it asks nothing more.
    fn fail_call(&self, call: u64, lost: CallError) {
        let in_flight = {
            let mut inside = self.state.lock();
            inside.mark_answered(call);
            inside.calls.remove(&call)
        };
        if let Some(in_flight) = in_flight {
            in_flight.mailbox.push(CallMessage::Lost(lost));
        }
    }

    /// Gives a question to the one call it can belong to, or refuses it.
    fn attribute(self: &Arc<Self>, frame: Frame, id: &RequestId, method: &Method) {
        // Seen to ask here, whether or not it can be told on whose behalf.
        self.server.request_placement.note_off_stream();
        let is_own = self.has_one_client_left();
        let (asked, is_of_no_call, is_abandoned) = {
            let mut inside = self.state.lock();
            let abandoned = !inside.abandoned.is_empty() && !is_own;
            let is_of_no_call = !abandoned && !inside.calls.values().any(|call| call.may_be_asked);
            let candidates = inside.calls.iter_mut().filter(|(_, call)| call.may_be_asked);
            let asked = sole_call(candidates, || abandoned)
                .map(|(number, call)| (*number, call.mailbox.clone(), call.note_request(id)));
            (asked, is_of_no_call, abandoned)
        };
        match asked {
            Ok((_, mailbox, Err(lost))) => mailbox.push(CallMessage::Lost(lost)),
            Ok((call, mailbox, Ok(()))) => mailbox.push(self.request_message(call, frame, id)),
            Err(_) if is_of_no_call && self.request_sole_client(&frame, id) => {}
            Err(reason) => {
                let (route, outcome) = (&self.server.route, InputRequestOutcome::Refused);
                InputRequestRefused { route, method: method.as_str(), reason, outcome }.emit();
                if W::IS_COSTLY && is_abandoned {
                    // It was kept because nothing had been asked; nobody could be in this one any more.
                    self.retire();
                }
                self.respond_later(id, &message::refusal(INTERNAL_ERROR, "cannot be attributed to one call"));
            }
        }
    }

    /// Whether calls have left without their ends, and all of them are of the one client that there is: what names no
    /// call is that client's, whichever it is of. What leaves after this is not looked at.
    fn has_one_client_left(&self) -> bool {
        // Mostly nothing has left, and it need not be asked who there is.
        let some_left = !self.state.lock().abandoned.is_empty();
        some_left && self.is_of_one_client()
    }

    /// Puts a question that is asked outside any call to the client that alone can be meant, where there is one.
    fn request_sole_client(self: &Arc<Self>, frame: &Frame, id: &RequestId) -> bool {
        let only = self.owner().and_then(|keeper| keeper.listeners().sole_listener(self.census));
        let Some(client) = only else { return false };
        let (theirs, own) = (id.detached(), client.next_request_id());
        let question =
            UnattributedRequest { theirs: theirs.clone(), own: own.clone(), client: Arc::downgrade(&client) };
        {
            let mut inside = self.state.lock();
            // Nobody would take it back any more.
            if inside.ended {
                return true;
            }
            if inside.unattributed.len() >= QUESTIONS {
                return false;
            }
            inside.unattributed.push(question);
        }
        client.send_request(own, frame, Box::new(SessionResponder::new(self.clone(), OF_NO_CALL, theirs)));
        true
    }

    /// Those hear it who hear what is said beside calls.
    fn broadcast(&self, frame: &Frame) {
        if let Some(keeper) = self.owner() {
            keeper.listeners().notify(frame);
        }
    }

    /// A request of the server that is known to be of this call. `Missing` of one that it had before it was taken up.
    pub(super) fn note_request(
        self: &Arc<Self>,
        call: u64,
        id: RequestId,
        frame: Frame,
    ) -> Option<CallMessage> {
        let noted = match self.state.lock().calls.get_mut(&call) {
            Some(call) if call.known.contains(&id) => return None,
            Some(call) => call.note_request(&id),
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

    /// Gives a notification to the call it names, or to the only one there is, or where there is none to those who
    /// hear what is said beside calls; else drops it.
    fn deliver_notification(&self, frame: Frame) {
        let Kind::Notification { method, params } = frame.kind() else { return };
        let is_own = self.has_one_client_left();
        let mut inside = self.state.lock();
        let (mailbox, said) = match method {
            Method::Cancelled => {
                let Some(id) = cancelled_id(params.as_ref()) else { return };
                let Some(call) = inside.calls.values().find(|call| call.requests.contains(&id)) else {
                    let question = inside.take_unattributed(&id);
                    drop(inside);
                    if let Some(question) = question {
                        question.cancel("the server has taken it back");
                    }
                    return;
                };
                (call.mailbox.clone(), CallMessage::RequestCancelled(id))
            }
            Method::Progress => {
                let Some(call) = progress_token(params.as_ref()).and_then(|token| inside.calls.get(&token))
                else {
                    return;
                };
                (call.mailbox.clone(), CallMessage::Notification(frame))
            }
            _ if !inside.abandoned.is_empty() && !is_own => return,
            _ => {
                let mut calls = inside.calls.values();
                let only = match (calls.next(), inside.calls.len()) {
                    (Some(call), 1) => call,
                    (None, _) => {
                        drop(inside);
                        return self.broadcast(&frame);
                    }
                    _ => match inside.calls.values().find(|call| call.exclusive) {
                        Some(call) => call,
                        None => return,
                    },
                };
                (only.mailbox.clone(), CallMessage::Notification(frame))
            }
        };
        drop(inside);
        mailbox.push(said);
    }

    /// What a call's own stream says. In a client's own session all of it is the client's, but for
    /// the server's asking whether anybody is there.
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
                _ if self.is_clients => self.note_request(call, id.clone(), frame),
                _ => {
                    self.respond_later(id, &unknown_method(method));
                    None
                }
            },
            Kind::Notification { method: Method::Cancelled, params } => {
                cancelled_id(params.as_ref()).map(CallMessage::RequestCancelled)
            }
            Kind::Notification { .. } if self.is_clients => Some(CallMessage::Notification(frame)),
            Kind::Notification { method: Method::ResourceUpdated, params }
                if is_too_large(params.as_ref()) =>
            {
                None
            }
            Kind::Notification { method, params } => match change_notification(method, params.as_ref()) {
                Some(report) => {
                    self.send_report(report);
                    None
                }
                None => Some(CallMessage::Notification(frame)),
            },
            Kind::Success { id, .. } if is_answer_to(id, call) => Some(CallMessage::Response(frame)),
            Kind::Failure { id: Some(id), .. } if is_answer_to(id, call) => {
                Some(CallMessage::Response(frame))
            }
            // An error of the transport: it answers the exchange it came in (WIRE, B 4).
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

    fn send_report(self: &Arc<Self>, report: ChangeNotification) {
        if !matches!(report, ChangeNotification::ResourceUpdated { .. })
            && let Some(keeper) = self.owner()
        {
            keeper.use_for_lists(self);
        }
        self.reports.send(report);
    }
}

// === impl Inside ===

impl SessionState {
    /// This call is over at the server, if it had left without its end.
    fn mark_answered(&mut self, call: u64) {
        let _ = self.abandoned.remove(&call) || self.unanswered.remove(&call);
    }

    /// Takes out a question outside any call, which is over.
    pub(super) fn take_unattributed(&mut self, id: &RequestId) -> Option<UnattributedRequest> {
        let at = self.unattributed.iter().position(|question| question.theirs == *id)?;
        Some(self.unattributed.swap_remove(at))
    }
}

// === impl OfNoCall ===

impl UnattributedRequest {
    /// It is over at the server: the client is told.
    pub(super) fn cancel(&self, reason: &str) {
        if let Some(client) = self.client.upgrade() {
            client.cancel_request(&self.own, reason);
        }
    }
}

// === impl InFlight ===

impl InFlightCall {
    /// Remembers a question that is put to the call.
    ///
    /// # Errors
    /// [`CallError::Invalid`] where there are too many.
    fn note_request(&mut self, id: &RequestId) -> Result<(), CallError> {
        if self.requests.len() >= QUESTIONS {
            let why = format!("it asked more than {QUESTIONS} questions at a time in one call");
            return Err(CallError::Invalid(why));
        }
        self.requests.push(id.detached());
        Ok(())
    }
}

/// The one call that may be meant by what names none. Being the only one in flight proves nothing where
/// another has left without its end: the server may still be at that.
///
/// # Errors
/// Why it cannot be told.
pub(crate) fn sole_call<C>(
    mut in_flight: impl Iterator<Item = C>,
    is_abandoned: impl FnOnce() -> bool,
) -> Result<C, &'static str> {
    match (in_flight.next(), in_flight.next()) {
        (Some(_), None) if is_abandoned() => Err("a call has left the session without its end"),
        (Some(call), None) => Ok(call),
        (None, _) => Err("no call is in flight"),
        (Some(_), Some(_)) => Err("several calls are in flight"),
    }
}

/// Whether what is said of a resource is more than is kept for those who listen, hundreds of times.
fn is_too_large(params: Option<&Payload>) -> bool {
    params.is_some_and(|params| params.len() > UPDATE)
}

fn unknown_method(method: &Method) -> Result<Bytes, Bytes> {
    message::refusal(METHOD_NOT_FOUND, &format!("{method} is not served here"))
}

/// What a notification reports of the server as a whole.
fn change_notification(method: &Method, params: Option<&Payload>) -> Option<ChangeNotification> {
    match method {
        Method::ResourceUpdated => {
            let uri = params?.string("uri")?;
            // It may be kept for long: not with the line that it came in.
            Some(ChangeNotification::ResourceUpdated { uri, params: Bytes::copy_from_slice(params?) })
        }
        _ => ListKind::from_change(method).map(ChangeNotification::ListChanged),
    }
}

pub(super) fn cancelled_id(params: Option<&Payload>) -> Option<RequestId> {
    RequestId::from_token(params?.get("requestId")?)
}

fn progress_token(params: Option<&Payload>) -> Option<u64> {
    RequestId::from_token(params?.get("progressToken")?)?.echoed_number()
}
