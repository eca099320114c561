//! A driven call in its client's own words: both sides are of an older revision, so that what either says
//! passes as it is, but for the ids and the tasks that are ours.
//!
//! A question gets an id that names its task and its key once it is put in the task, so that the client's
//! answer, which comes as a POST of its own, finds the call without anything being kept.

use super::{
    audience::Lines,
    book::{OpenQuestion, Put},
    canonical::{failed, kept},
};
use crate::{
    bridge::offer,
    dialect::legacy,
    policy::ToolPolicy,
    protocol::{
        ErrorObject, Frame, Id, InputKind, InputRequest, Kind, Method, Timestamp, frame::on_one_line,
        splice::Patch, status_message,
    },
    proxy::{
        AccessSummary, Reply,
        reply::{CallEnd, lost_error, outcome_of},
        session::{Key, OurCall, Whose},
        shared::Shared,
        tickets::Ticketing,
    },
    task::{
        self, Owner, Record, TaskId, View,
        view::experimental::{self, Reader},
    },
    telemetry::Outcome,
    upstream::{Asked, CallError, Deferral},
};
use bytes::Bytes;
use http::StatusCode;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What is known of such a call.
pub(in crate::proxy) struct Native {
    pub(in crate::proxy) owner: Owner,
    /// The client's session, where it has an id.
    pub(in crate::proxy) session: Option<Key>,
    pub(in crate::proxy) tool: String,
    /// How long the client wants the task to be kept.
    pub(in crate::proxy) ttl: Option<Duration>,
    /// Whether the client wants to hear of progress; else the token is ours.
    pub(in crate::proxy) wants_progress: bool,
    /// How the task is shown.
    pub(in crate::proxy) view: View,
    /// Who is told that it is one.
    pub(in crate::proxy) reader: Reader,
    /// How its client is given a ticket, if that is how.
    pub(in crate::proxy) ticketing: Option<Ticketing>,
    /// What was last said of the progress, where the ticket is to say it.
    pub(in crate::proxy) said: Option<String>,
    /// Tells the upstream that the call has become a task.
    pub(in crate::proxy) deferral: Deferral,
    /// Its client shows credentials.
    pub(in crate::proxy) needs_credentials: bool,
    /// Given back after the replies.
    pub(in crate::proxy) _in_flight: Option<OurCall>,
    pub(in crate::proxy) began: Instant,
    /// What the client has been told of the status.
    pub(in crate::proxy) told: &'static str,
}

// === impl Native ===

impl Native {
    /// Whether its client can be asked this inside a task, as far as is known: whoever holds a ticket knows no task, and
    /// declines nothing that it is not asked.
    pub(super) fn can_be_asked(&self, shared: &Shared, asked: &Asked) -> bool {
        let Asked::Native(frame) = asked else { return true };
        let Kind::Request { method, params, .. } = frame.kind() else { return true };
        let known = self.session.filter(|_| self.view == View::Ticket);
        let known = known.and_then(|session| shared.sessions.holders.client(session));
        known.is_none_or(|client| client.can_be_asked(method, params.as_deref()))
    }

    /// Something the server tells, for a client that waits for the call itself.
    pub(super) fn on_the_way(&self, frame: &Frame) -> Option<Bytes> {
        let is_progress = matches!(frame.kind(), Kind::Notification { method: Method::Progress, .. });
        (!is_progress || self.wants_progress).then(|| as_it_is(frame))
    }

    /// The same for a client that has a task, and is somewhere else by now.
    pub(super) fn in_task(&self, frame: &Frame, task: &TaskId) -> Option<Bytes> {
        let Kind::Notification { method, .. } = frame.kind() else { return None };
        if self.view == View::Ticket {
            // Its token was that of a request that has been answered.
            return status_message::of_progress(frame).is_none().then(|| as_it_is(frame));
        }
        if status_message::of_progress(frame).is_some() && !self.wants_progress {
            return None;
        }
        Some(match method {
            // They are about the server, not about the call.
            Method::ToolsListChanged
            | Method::PromptsListChanged
            | Method::ResourcesListChanged
            | Method::ResourceUpdated => as_it_is(frame),
            _ => offer::related(frame, task.as_str(), None),
        })
    }

    pub(super) fn record(&self, id: TaskId, shared: &Shared, policy: &ToolPolicy, now: Timestamp) -> Record {
        let most = shared.route.legacy_tasks.max_ttl;
        let retention = self.ttl.map_or(policy.retention, |ttl| ttl.min(most));
        let mut record = Record::new(id, self.owner.clone(), self.tool.clone(), retention, now);
        (record.view, record.raised, record.message) = (self.view, false, self.said.clone());
        record.waited = shared.clock.now().saturating_duration_since(self.began);
        record
    }

    /// A task as its client first hears of it: a `CreateTaskResult`.
    pub(super) fn created(shared: &Shared, record: &Record, reader: Reader) -> Vec<u8> {
        let immediate = shared.route.legacy_tasks.immediate_response.as_deref();
        let (now, terms) = (shared.clock.timestamp(), shared.legacy_terms());
        experimental::created(record, now, terms, reader, immediate)
    }

    /// The handle, for a client that waits for the call itself.
    pub(super) fn handle(&self, shared: &Shared, id: &Id, record: &Record) -> Reply {
        let result = match &self.ticketing {
            Some(ticketing) => ticketing.running(shared, record).to_string().into_bytes(),
            None => Self::created(shared, record, self.reader),
        };
        let body = legacy::success(id, &result);
        let mut reply = Reply::new(StatusCode::OK, body, Outcome::Task);
        reply.account.task = Some(record.id.clone());
        reply
    }

    /// The response, as the server gave it but for its id, or an error of ours.
    pub(super) fn reply(&self, shared: &Shared, id: &Id, word: &CallEnd) -> Option<Reply> {
        let answer = |frame: &Frame, theirs: &Id| {
            let mut patch = Patch::new(frame.as_bytes().clone());
            patch.replace(theirs.as_bytes(), id.as_bytes().clone());
            patch.apply()
        };
        let refusal = |error: &ErrorObject| legacy::refusal(std::slice::from_ref(id), error);
        let (body, account) = match word {
            CallEnd::Said(response) => match response.frame().kind() {
                Kind::Success { id, .. } => (answer(response.frame(), id), AccessSummary::default()),
                Kind::Failure { id: Some(id), .. } => {
                    (answer(response.frame(), id), AccessSummary::of(Outcome::ServerError))
                }
                Kind::Failure { id: None, error } => {
                    (refusal(&ErrorObject::from_raw(error.clone())), AccessSummary::of(Outcome::ServerError))
                }
                Kind::Request { .. } | Kind::Notification { .. } => return None,
            },
            CallEnd::Lost(lost) => {
                let error = lost_error(lost);
                (refusal(&error), AccessSummary::failed(outcome_of(lost), &error))
            }
            CallEnd::Refused(error, outcome) => (refusal(error), AccessSummary::failed(*outcome, error)),
        };
        let upstream = shared.clock.now().saturating_duration_since(self.began);
        let mut reply = Reply::new(StatusCode::OK, on_one_line(body), account.outcome);
        reply.account = AccessSummary { upstream, ..account };
        Some(reply)
    }

    /// What the call came to, exactly as the server said it.
    pub(super) fn settled(&self, shared: &Shared, word: &CallEnd) -> task::Event {
        let event = match word {
            CallEnd::Said(response) => match response.frame().kind() {
                Kind::Success { result, .. } => {
                    kept(result.len(), shared.ledger.quotas().stored_result_bytes, || {
                        // In memory of its own: a slice would keep the server's whole message alive.
                        on_one_line(Bytes::copy_from_slice(result))
                    })
                }
                Kind::Failure { error, .. } => failed(&ErrorObject::from_raw(Bytes::copy_from_slice(error))),
                Kind::Request { .. } | Kind::Notification { .. } => {
                    failed(&lost_error(&CallError::Invalid("it is not a response".to_owned())))
                }
            },
            CallEnd::Lost(lost) => failed(&lost_error(lost)),
            CallEnd::Refused(error, _) => failed(error),
        };
        if matches!(event, task::Event::Failed { .. }) {
            self.doubt(shared);
        }
        event
    }

    /// The call has come to nothing, perhaps because the session is gone: else a client whose calls are all
    /// answered here would never hear of that.
    pub(super) fn doubt(&self, shared: &Shared) {
        if let Some(session) = self.session {
            shared.sessions.presence.doubt(session);
        }
    }

    /// Where the client hears of its task.
    pub(super) fn lines(&self, shared: &Shared) -> Lines {
        Lines::new(self.session.map(|session| shared.sessions.streams.follow(session)))
    }

    /// What the client is to hear of the status, if it has changed
    /// (2025-11-25, *Tasks, Task Status Notification*).
    pub(super) fn status(&mut self, shared: &Shared, task: &TaskId) -> Option<Bytes> {
        let record = shared.ledger.last_kept(task).filter(|record| record.view != View::Ticket)?;
        let terms = shared.legacy_terms();
        let status = experimental::status(&record, terms.tool_errors);
        if std::mem::replace(&mut self.told, status) == status {
            return None;
        }
        let shown = experimental::shown(&record, shared.clock.timestamp(), terms);
        Some(legacy::notification(&Method::TaskStatus, &shown))
    }
}

/// A message of the server's for its client.
pub(super) fn as_it_is(frame: &Frame) -> Bytes {
    on_one_line(frame.as_bytes().clone())
}

/// Remembers a question that is put on the stream of the call itself: its answer may come once the call is a
/// task.
pub(super) fn put(shared: &Arc<Shared>, session: Option<Key>, id: &Id) -> Put {
    let questions = &shared.sessions.questions;
    Put { relayed: session.map(|session| questions.register(session, id, Whose::Call)) }
}

/// A question as the record keeps it; what the revision has no word for is put all the same.
pub(super) fn recorded(frame: &Frame) -> Option<Bytes> {
    let Kind::Request { method, params, .. } = frame.kind() else { return None };
    let kind = InputKind::of(method)?;
    Some(InputRequest::new(kind, params.as_deref()).as_bytes().clone())
}

/// A question as it is put in the task. `knows` is whether its client knows that there is one.
pub(super) fn put_in_task(open: &OpenQuestion, task: &TaskId, knows: bool) -> Bytes {
    let id = offer::question_id(task, &open.key);
    let named = knows.then(|| task.as_str());
    match &open.asked {
        Asked::Canonical(request) => offer::asked(request, &id, named),
        Asked::Native(frame) => match named {
            Some(named) => offer::related(frame, named, Some(&id)),
            None => offer::renamed(frame, &id),
        },
    }
}
