//! Whose is it? What arrives in a session, and to which call it belongs.
//!
//! On a call's own stream everything is that call's. On the GET stream progress names its call, a
//! response its request; a question, a log message and what is unknown name nothing, and belong to
//! the only call they can belong to, or to none. A question is never put to somebody it may not
//! be meant for: it is refused. What concerns the server as a whole is a [`Report`].

use bytes::Bytes;
use std::sync::Arc;

use super::{Event, Question, Report, answer::Reply, message, session::Session};
use crate::{
    protocol::{
        Frame, Id, Kind, Method,
        code::{INTERNAL_ERROR, METHOD_NOT_FOUND},
        splice::Object,
    },
    telemetry::QuestionRefused,
};

/// What to do with a frame that names no call.
enum Verdict {
    Nothing,
    Reply(Id, Result<Bytes, Bytes>),
    Report(Report),
}

// === impl Session ===

impl Session {
    /// Takes what arrived on the GET stream to where it belongs.
    pub(super) fn hear(self: &Arc<Self>, frame: Frame) {
        let verdict = match frame.kind() {
            Kind::Request { id, method, .. } => match method {
                Method::Ping => Verdict::Reply(id.clone(), Ok(Bytes::from_static(b"{}"))),
                Method::Elicit | Method::CreateMessage | Method::RootsList => {
                    let (id, method) = (id.clone(), method.clone());
                    self.attribute(frame, id, &method)
                }
                _ => Verdict::Reply(id.clone(), unknown(method)),
            },
            Kind::Notification { method, params } => match report(method, params.as_ref()) {
                Some(report) => Verdict::Report(report),
                None => {
                    self.notify(frame);
                    Verdict::Nothing
                }
            },
            Kind::Success { id, .. } | Kind::Failure { id: Some(id), .. } => {
                let call = number(id).and_then(|id| Some(self.inside().calls.get(&id)?.mailbox.clone()));
                match call {
                    Some(mailbox) => mailbox.push(Event::Final(frame)),
                    None => tracing::debug!(%id, "a response to nothing that was asked"),
                }
                Verdict::Nothing
            }
            Kind::Failure { id: None, .. } => Verdict::Nothing,
        };
        match verdict {
            Verdict::Nothing => {}
            Verdict::Reply(id, outcome) => self.tell_later(message::response(&id, &outcome)),
            Verdict::Report(report) => self.report(report),
        }
    }

    /// Gives a question to the one call it can belong to, or refuses it.
    fn attribute(self: &Arc<Self>, frame: Frame, id: Id, method: &Method) -> Verdict {
        // Seen to ask here, whether or not it can be told on whose behalf.
        self.peer.asks.saw_off_stream();
        let asked = {
            let mut inside = self.inside();
            let mut candidates: Vec<_> = inside.calls.values_mut().filter(|call| call.may_be_asked).collect();
            match &mut candidates[..] {
                [call] => {
                    call.questions.push(id.clone());
                    Ok(call.mailbox.clone())
                }
                several => Err(several.len()),
            }
        };
        match asked {
            Ok(mailbox) => {
                mailbox.push(Event::Question(self.question(frame, id)));
                Verdict::Nothing
            }
            Err(calls) => {
                let reason = if calls == 0 { "no call is in flight" } else { "several calls are in flight" };
                QuestionRefused { method: method.as_str(), reason }.emit();
                Verdict::Reply(id, message::refusal(INTERNAL_ERROR, "cannot be attributed to one call"))
            }
        }
    }

    /// A request of the server that came on a call's own stream.
    fn put(self: &Arc<Self>, call: u64, id: Id, frame: Frame) -> Event {
        if let Some(call) = self.inside().calls.get_mut(&call) {
            call.questions.push(id.clone());
        }
        Event::Question(self.question(frame, id))
    }

    fn question(self: &Arc<Self>, frame: Frame, id: Id) -> Question {
        Question { frame, answer: Box::new(Reply::new(self.clone(), id)) }
    }

    /// Gives a notification to the call it names, or to the only one there is; else drops it.
    fn notify(&self, frame: Frame) {
        let Kind::Notification { method, params } = frame.kind() else { return };
        let inside = self.inside();
        let (mailbox, event) = match method {
            Method::Cancelled => {
                let Some(id) = cancelled_id(params.as_ref()) else { return };
                let Some(call) = inside.calls.values().find(|call| call.questions.contains(&id)) else {
                    return;
                };
                (call.mailbox.clone(), Event::Withdrawn { id })
            }
            Method::Progress => {
                let Some(call) = progress_token(params.as_ref()).and_then(|token| inside.calls.get(&token))
                else {
                    return;
                };
                (call.mailbox.clone(), Event::Notice(frame))
            }
            _ => {
                let mut calls = inside.calls.values();
                let only = match (calls.next(), inside.calls.len()) {
                    (Some(call), 1) => call,
                    _ => match inside.calls.values().find(|call| call.exclusive) {
                        Some(call) => call,
                        None => return,
                    },
                };
                (only.mailbox.clone(), Event::Notice(frame))
            }
        };
        drop(inside);
        mailbox.push(event);
    }

    /// What a call's own stream says. In a client's own session all of it is the client's, but for
    /// the server's asking whether anybody is there.
    pub(super) fn hear_on_stream(self: &Arc<Self>, call: u64, frame: Frame) -> Option<Event> {
        match frame.kind() {
            Kind::Request { id, method, .. } => match method {
                Method::Ping => {
                    self.tell_later(message::response(id, &Ok(Bytes::from_static(b"{}"))));
                    None
                }
                Method::Elicit | Method::CreateMessage | Method::RootsList => {
                    self.peer.asks.saw_on_stream();
                    Some(self.put(call, id.clone(), frame))
                }
                _ if self.is_clients() => Some(self.put(call, id.clone(), frame)),
                _ => {
                    self.tell_later(message::response(id, &unknown(method)));
                    None
                }
            },
            Kind::Notification { method: Method::Cancelled, params } => {
                cancelled_id(params.as_ref()).map(|id| Event::Withdrawn { id })
            }
            Kind::Notification { .. } if self.is_clients() => Some(Event::Notice(frame)),
            Kind::Notification { method, params } => match report(method, params.as_ref()) {
                Some(report) => {
                    self.report(report);
                    None
                }
                None => Some(Event::Notice(frame)),
            },
            Kind::Success { id, .. } if is_ours(id, call) => Some(Event::Final(frame)),
            Kind::Failure { id: Some(id), .. } if is_ours(id, call) => Some(Event::Final(frame)),
            // An error of the transport: it answers the exchange it came in (WIRE, B 4).
            Kind::Failure { id: None, .. } => Some(Event::Final(frame)),
            Kind::Failure { id: Some(id), .. } if id.as_bytes() == &br#""server-error""#[..] => {
                Some(Event::Final(frame))
            }
            Kind::Success { id, .. } | Kind::Failure { id: Some(id), .. } => {
                tracing::debug!(%id, "a response to another request");
                None
            }
        }
    }

    fn report(self: &Arc<Self>, report: Report) {
        if !matches!(report, Report::ResourceUpdated { .. })
            && let Some(group) = self.group.upgrade()
        {
            group.lists_from(self);
        }
        self.reports.send(report);
    }
}

/// Whether a response answers the call with this number.
pub(super) fn is_ours(id: &Id, call: u64) -> bool {
    number(id) == Some(call)
}

/// The number that an id or a token of ours came back as. We send numbers alone, but some servers
/// hand them back as strings.
fn number(id: &Id) -> Option<u64> {
    let token = id.as_bytes();
    let bare = token.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(token);
    std::str::from_utf8(bare).ok()?.parse().ok()
}

fn unknown(method: &Method) -> Result<Bytes, Bytes> {
    message::refusal(METHOD_NOT_FOUND, &format!("{method} is not served here"))
}

/// What a notification reports of the server as a whole.
fn report(method: &Method, params: Option<&Bytes>) -> Option<Report> {
    match method {
        Method::ToolsListChanged => Some(Report::ToolsChanged),
        Method::PromptsListChanged => Some(Report::PromptsChanged),
        Method::ResourcesListChanged => Some(Report::ResourcesChanged),
        Method::ResourceUpdated => {
            let params = params?.clone();
            let uri = Object::read(&params).ok()?.string("uri")?;
            Some(Report::ResourceUpdated { uri, params })
        }
        _ => None,
    }
}

fn cancelled_id(params: Option<&Bytes>) -> Option<Id> {
    Id::from_token(Object::read(params?).ok()?.get("requestId")?)
}

fn progress_token(params: Option<&Bytes>) -> Option<u64> {
    number(&Id::from_token(Object::read(params?).ok()?.get("progressToken")?)?)
}
