//! Whose is it? What arrives in a session, and to which call it belongs.
//!
//! On a call's own stream everything is that call's. On the GET stream progress names its call, a
//! response its request; a question, a log message and what is unknown name nothing, and belong to
//! the only call they can belong to, or to none: where a call has left without its end, the only one
//! that is left may still not be the one that is meant. A question is never put to somebody it may not
//! be meant for: it is refused. What concerns the server as a whole is a [`Report`].

use bytes::Bytes;
use std::sync::Arc;

use super::{
    answer::Reply,
    mailbox::Said,
    message,
    session::{InFlight, Inside, OfNoCall, Session},
};
use crate::{
    protocol::{
        Frame, Id, Kind, List, Method, Payload,
        code::{INTERNAL_ERROR, METHOD_NOT_FOUND},
    },
    telemetry::{QuestionRefused, metrics::QuestionOutcome},
    upstream::{
        CallError, Report,
        wire::{Wire, is_ours},
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

impl<W: Wire> Session<W> {
    /// Takes what arrived on the GET stream to where it belongs.
    pub(super) fn hear(self: &Arc<Self>, frame: Frame) {
        match frame.kind() {
            Kind::Request { id, method, .. } => match method {
                Method::Ping => self.respond_later(id, &Ok(Bytes::from_static(b"{}"))),
                Method::Elicit | Method::CreateMessage | Method::RootsList => {
                    let (id, method) = (id.clone(), method.clone());
                    self.attribute(frame, &id, &method);
                }
                _ => self.respond_later(id, &unknown(method)),
            },
            Kind::Notification { method: Method::ResourceUpdated, params }
                if is_too_large(params.as_ref()) =>
            {
                tracing::debug!("a resource is said to have changed in too many words");
            }
            Kind::Notification { method, params } => match report(method, params.as_ref()) {
                Some(report) => {
                    self.is_overheard(&frame);
                    self.report(report);
                }
                None => self.notify(frame),
            },
            Kind::Success { id, .. } | Kind::Failure { id: Some(id), .. } => {
                let call = id.came_back().and_then(|id| {
                    let mut inside = self.inside.lock();
                    // Some servers answer what was cancelled: it is over then, and asks nothing more.
                    inside.is_answered(id);
                    // What follows is not for it, though nobody may have fetched this yet.
                    Some(inside.calls.remove(&id)?.mailbox)
                });
                match call {
                    Some(mailbox) => mailbox.push(Said::Response(frame)),
                    None => tracing::debug!(%id, "a response to nothing that was asked"),
                }
            }
            Kind::Failure { id: None, .. } => {}
        }
    }

    /// The answer to this call is not kept.
    pub(super) fn hear_too_large(&self, call: u64) {
        self.is_answered_in_vain(
            call,
            CallError::TooLarge { limit: self.server.config.now().limits.result_bytes },
        );
    }

    /// The answer to this call is none that could be given to anybody.
    pub(super) fn hear_invalid(&self, call: u64, why: String) {
        self.is_answered_in_vain(call, CallError::Invalid(why));
    }

    /// The server is done with this call: there is nothing to cancel, and it asks nothing more.
    fn is_answered_in_vain(&self, call: u64, lost: CallError) {
        let in_flight = {
            let mut inside = self.inside.lock();
            inside.is_answered(call);
            inside.calls.remove(&call)
        };
        if let Some(in_flight) = in_flight {
            in_flight.mailbox.push(Said::Lost(lost));
        }
    }

    /// Gives a question to the one call it can belong to, or refuses it.
    fn attribute(self: &Arc<Self>, frame: Frame, id: &Id, method: &Method) {
        // Seen to ask here, whether or not it can be told on whose behalf.
        self.server.asks.saw_off_stream();
        let is_own = self.what_is_left_is_its_own();
        let (asked, is_of_no_call, is_abandoned) = {
            let mut inside = self.inside.lock();
            let abandoned = !inside.abandoned.is_empty() && !is_own;
            let is_of_no_call = !abandoned && !inside.calls.values().any(|call| call.may_be_asked);
            let candidates = inside.calls.iter_mut().filter(|(_, call)| call.may_be_asked);
            let asked = only_one(candidates, || abandoned)
                .map(|(number, call)| (*number, call.mailbox.clone(), call.note(id)));
            (asked, is_of_no_call, abandoned)
        };
        match asked {
            Ok((_, mailbox, Err(lost))) => mailbox.push(Said::Lost(lost)),
            Ok((call, mailbox, Ok(()))) => mailbox.push(self.asks(call, frame, id)),
            Err(_) if is_of_no_call && self.asks_the_only_client(&frame, id) => {}
            Err(reason) => {
                let (route, outcome) = (&self.server.route, QuestionOutcome::Refused);
                QuestionRefused { route, method: method.as_str(), reason, outcome }.emit();
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
    fn what_is_left_is_its_own(&self) -> bool {
        // Mostly nothing has left, and it need not be asked who there is.
        let some_left = !self.inside.lock().abandoned.is_empty();
        some_left && self.is_of_one_client()
    }

    /// Puts a question that is asked outside any call to the client that alone can be meant, where there is one.
    fn asks_the_only_client(self: &Arc<Self>, frame: &Frame, id: &Id) -> bool {
        let only = self.keeper().and_then(|keeper| keeper.audience().only(self.census));
        let Some(client) = only else { return false };
        let (theirs, own) = (id.detached(), client.next_question());
        let question = OfNoCall { theirs: theirs.clone(), own: own.clone(), client: Arc::downgrade(&client) };
        {
            let mut inside = self.inside.lock();
            // Nobody would take it back any more.
            if inside.ended {
                return true;
            }
            if inside.of_no_call.len() >= QUESTIONS {
                return false;
            }
            inside.of_no_call.push(question);
        }
        client.asked(own, frame, Box::new(Reply::new(self.clone(), OF_NO_CALL, theirs)));
        true
    }

    /// Those hear it who hear what is said beside calls.
    fn is_overheard(&self, frame: &Frame) {
        if let Some(keeper) = self.keeper() {
            keeper.audience().hears(frame);
        }
    }

    /// A request of the server that is known to be of this call. `None` of one that it had before it was taken up.
    pub(super) fn put(self: &Arc<Self>, call: u64, id: Id, frame: Frame) -> Option<Said> {
        let noted = match self.inside.lock().calls.get_mut(&call) {
            Some(call) if call.known.contains(&id) => return None,
            Some(call) => call.note(&id),
            None => Ok(()),
        };
        Some(match noted {
            Ok(()) => self.asks(call, frame, &id),
            Err(lost) => Said::Lost(lost),
        })
    }

    fn asks(self: &Arc<Self>, call: u64, frame: Frame, id: &Id) -> Said {
        Said::Request(frame, Box::new(Reply::new(self.clone(), call, id.detached())))
    }

    /// Gives a notification to the call it names, or to the only one there is, or where there is none to those who
    /// hear what is said beside calls; else drops it.
    fn notify(&self, frame: Frame) {
        let Kind::Notification { method, params } = frame.kind() else { return };
        let is_own = self.what_is_left_is_its_own();
        let mut inside = self.inside.lock();
        let (mailbox, said) = match method {
            Method::Cancelled => {
                let Some(id) = cancelled_id(params.as_ref()) else { return };
                let Some(call) = inside.calls.values().find(|call| call.questions.contains(&id)) else {
                    let question = inside.take_of_no_call(&id);
                    drop(inside);
                    if let Some(question) = question {
                        question.is_taken_back("the server has taken it back");
                    }
                    return;
                };
                (call.mailbox.clone(), Said::Withdrawn(id))
            }
            Method::Progress => {
                let Some(call) = progress_token(params.as_ref()).and_then(|token| inside.calls.get(&token))
                else {
                    return;
                };
                (call.mailbox.clone(), Said::Notification(frame))
            }
            _ if !inside.abandoned.is_empty() && !is_own => return,
            _ => {
                let mut calls = inside.calls.values();
                let only = match (calls.next(), inside.calls.len()) {
                    (Some(call), 1) => call,
                    (None, _) => {
                        drop(inside);
                        return self.is_overheard(&frame);
                    }
                    _ => match inside.calls.values().find(|call| call.exclusive) {
                        Some(call) => call,
                        None => return,
                    },
                };
                (only.mailbox.clone(), Said::Notification(frame))
            }
        };
        drop(inside);
        mailbox.push(said);
    }

    /// What a call's own stream says. In a client's own session all of it is the client's, but for
    /// the server's asking whether anybody is there.
    pub(super) fn hear_on_stream(self: &Arc<Self>, call: u64, frame: Frame) -> Option<Said> {
        match frame.kind() {
            Kind::Request { id, method, .. } => match method {
                Method::Ping => {
                    self.respond_later(id, &Ok(Bytes::from_static(b"{}")));
                    None
                }
                Method::Elicit | Method::CreateMessage | Method::RootsList => {
                    self.server.asks.saw_on_stream();
                    self.put(call, id.clone(), frame)
                }
                _ if self.is_clients => self.put(call, id.clone(), frame),
                _ => {
                    self.respond_later(id, &unknown(method));
                    None
                }
            },
            Kind::Notification { method: Method::Cancelled, params } => {
                cancelled_id(params.as_ref()).map(Said::Withdrawn)
            }
            Kind::Notification { .. } if self.is_clients => Some(Said::Notification(frame)),
            Kind::Notification { method: Method::ResourceUpdated, params }
                if is_too_large(params.as_ref()) =>
            {
                None
            }
            Kind::Notification { method, params } => match report(method, params.as_ref()) {
                Some(report) => {
                    self.report(report);
                    None
                }
                None => Some(Said::Notification(frame)),
            },
            Kind::Success { id, .. } if is_ours(id, call) => Some(Said::Response(frame)),
            Kind::Failure { id: Some(id), .. } if is_ours(id, call) => Some(Said::Response(frame)),
            // An error of the transport: it answers the exchange it came in (WIRE, B 4).
            Kind::Failure { id: None, .. } => Some(Said::Response(frame)),
            Kind::Failure { id: Some(id), .. } if id.as_bytes() == &br#""server-error""#[..] => {
                Some(Said::Response(frame))
            }
            Kind::Success { id, .. } | Kind::Failure { id: Some(id), .. } => {
                tracing::debug!(%id, "a response to another request");
                None
            }
        }
    }

    fn report(self: &Arc<Self>, report: Report) {
        if !matches!(report, Report::ResourceUpdated { .. })
            && let Some(keeper) = self.keeper()
        {
            keeper.lists_from(self);
        }
        self.reports.send(report);
    }
}

// === impl Inside ===

impl Inside {
    /// This call is over at the server, if it had left without its end.
    fn is_answered(&mut self, call: u64) {
        let _ = self.abandoned.remove(&call) || self.unanswered.remove(&call);
    }

    /// Takes out a question outside any call, which is over.
    pub(super) fn take_of_no_call(&mut self, id: &Id) -> Option<OfNoCall> {
        let at = self.of_no_call.iter().position(|question| question.theirs == *id)?;
        Some(self.of_no_call.swap_remove(at))
    }
}

// === impl OfNoCall ===

impl OfNoCall {
    /// It is over at the server: the client is told.
    pub(super) fn is_taken_back(&self, reason: &str) {
        if let Some(client) = self.client.upgrade() {
            client.withdrawn(&self.own, reason);
        }
    }
}

// === impl InFlight ===

impl InFlight {
    /// Remembers a question that is put to the call.
    ///
    /// # Errors
    /// [`CallError::Invalid`] where there are too many.
    fn note(&mut self, id: &Id) -> Result<(), CallError> {
        if self.questions.len() >= QUESTIONS {
            let why = format!("it asked more than {QUESTIONS} questions at a time in one call");
            return Err(CallError::Invalid(why));
        }
        self.questions.push(id.detached());
        Ok(())
    }
}

/// The one call that may be meant by what names none. Being the only one in flight proves nothing where
/// another has left without its end: the server may still be at that.
///
/// # Errors
/// Why it cannot be told.
pub(crate) fn only_one<C>(
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

fn unknown(method: &Method) -> Result<Bytes, Bytes> {
    message::refusal(METHOD_NOT_FOUND, &format!("{method} is not served here"))
}

/// What a notification reports of the server as a whole.
fn report(method: &Method, params: Option<&Payload>) -> Option<Report> {
    match method {
        Method::ResourceUpdated => {
            let uri = params?.string("uri")?;
            // It may be kept for long: not with the line that it came in.
            Some(Report::ResourceUpdated { uri, params: Bytes::copy_from_slice(params?) })
        }
        _ => List::of_change(method).map(Report::ListChanged),
    }
}

pub(super) fn cancelled_id(params: Option<&Payload>) -> Option<Id> {
    Id::from_token(params?.get("requestId")?)
}

fn progress_token(params: Option<&Payload>) -> Option<u64> {
    Id::from_token(params?.get("progressToken")?)?.came_back()
}
