//! Requests of legacy clients in front of a legacy server: which of them pass, and which are answered here.
//!
//! What they send is passed on, and what the server says comes back as it is ([`relay`]). Where the server has
//! no tasks of its own, some messages leave that road, because tasks of 2025-11-25 are made here:
//! `task_capability` adds them to what the server says of itself; `required` refuses what must not reach the
//! server in any shape; `task_call` makes a call a task, in the client's own session (`unsolicited` only once
//! it turns out to be slow), [`Driver`](super::drive) holds it, and `answers::experimental` answers for it.
//! `farewell` ends sessions. What is known of a session is in [`session`].
//!
//! A client of another revision, or one whose server has tasks, notices nothing of all this.

mod farewell;
mod required;
mod task_call;
mod task_capability;
mod unsolicited;

pub(super) use farewell::end_at_server;
pub(super) use task_capability::Offering;
pub(super) use unsolicited::Waiting;

use super::{
    AccessSummary, Passage, Passed, Passing,
    answers::experimental,
    passage::{document, refusal},
    relay::{self, Edit, event_ids},
    reply::{self, stopping_error},
    session::{self, Watched, relayed_questions::Whose},
    shared::Shared,
};
use crate::{
    bridge::{Drive, NativeCall, Plan, offer, plan_native},
    dialect::{
        Principal,
        legacy::{self, Message},
    },
    policy::Mode,
    protocol::{Frame, Id, Kind, Method},
    task::{Owner, Scope},
    telemetry::Outcome,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use std::sync::Arc;

/// What a request means to us.
enum Disposition {
    /// It goes to the server; of its answer this is changed.
    Passes(Option<Edit>),
    /// It is answered here.
    Ends(Passed),
}

/// Serves one request of a legacy client.
pub(super) async fn pass(shared: Arc<Shared>, passage: Passage) -> Passed {
    if let Some(gone) = farewell::refusal(&shared, &passage) {
        return gone;
    }
    if shared.stopping.is_stopped() && begins_something(&passage) {
        return stopping(&passage);
    }
    // Apart, so that their futures are not a part of every call's.
    if passage.method == http::Method::DELETE {
        return Box::pin(farewell::leave(shared, passage)).await;
    }
    let road = match may_leave(&shared, &passage) {
        true => Box::pin(road(&shared, &passage)).await,
        false => Disposition::Passes(None),
    };
    match road {
        Disposition::Passes(edit) => {
            if let Some(resumed) = event_ids::resume(&shared, &passage) {
                return resumed;
            }
            let watched = Watched::of(&passage);
            let kept = event_ids::terms(&shared, &passage);
            let passed = relay::pass(Arc::clone(&shared), passage, edit).await;
            shared.sessions.saw(&watched, &passed);
            match kept {
                Some(terms) => event_ids::keep(&shared, terms, passed),
                None => passed,
            }
        }
        Disposition::Ends(passed) => passed,
    }
}

/// Whether a request begins something new: neither about a task, nor an answer, nor a sign of life.
fn begins_something(passage: &Passage) -> bool {
    passage.post.messages.iter().any(|message| match message {
        Message::Request { method, .. } => !matches!(
            method,
            Method::TasksGet | Method::TasksResult | Method::TasksCancel | Method::TasksList | Method::Ping
        ),
        _ => false,
    })
}

/// The answer to what is new while the proxy stops; nothing is sent. Another process may take it.
fn stopping(passage: &Passage) -> Passed {
    let body = legacy::refusal(&passage.post.waiting(), &stopping_error());
    let account = AccessSummary { outcome: Outcome::ProxyFailed, ..AccessSummary::default() };
    let mut refused = document(body, account);
    refused.status = StatusCode::SERVICE_UNAVAILABLE;
    refused.headers.insert(RETRY_AFTER, reply::RETRY_AFTER);
    refused
}

/// Whether a request could be one of those that do not simply pass. Cheap: most do.
fn may_leave(shared: &Shared, passage: &Passage) -> bool {
    // What the server says of itself is learned from on any route.
    if let [Message::Request { method: Method::Initialize, .. }] = &passage.post.messages[..] {
        return true;
    }
    if !shared.route.has_tasks() {
        // Nothing is offered, so nothing is understood; but a client that the operator named as one
        // that knows tasks is told that there are none.
        return matches!(&passage.post.messages[..], [Message::Request { method: Method::ToolsCall, .. }])
            && unsolicited::is_named(shared, passage)
            && may_wish(passage);
    }
    if required::may_refuse(shared, passage) {
        return true;
    }
    match &passage.post.messages[..] {
        [Message::Request { method: Method::ToolsList, .. }] => true,
        [
            Message::Request {
                method: Method::TasksGet | Method::TasksResult | Method::TasksCancel | Method::TasksList,
                ..
            },
        ] => true,
        [Message::Request { method: Method::ToolsCall, target, .. }] => {
            let mode = shared.route.treatment(target.as_deref().unwrap_or_default()).mode;
            mode == Mode::Required
                || (mode.makes_tasks() && unsolicited::takes(shared, passage))
                || may_wish(passage)
        }
        [Message::Notification(Method::Cancelled)] => !shared.waiting.is_empty(),
        [Message::Response(Some(id))] => offer::is_ours(id) || !shared.plain.is_empty(),
        _ => false,
    }
}

/// Whether a call could have `params.task`.
fn may_wish(passage: &Passage) -> bool {
    memchr::memmem::find(&passage.body, b"\"task\"").is_some()
}

async fn road(shared: &Arc<Shared>, passage: &Passage) -> Disposition {
    if let Some(refusal) = required::refuse(shared, passage).await {
        return Disposition::Ends(refusal);
    }
    let client = Client::of(shared, passage);
    match &passage.post.messages[..] {
        [Message::Request { method: Method::Initialize, .. }] => Disposition::Passes(Some(
            task_capability::handshake(Arc::clone(shared), &passage.body, client.principal),
        )),
        [Message::Request { method: Method::ToolsList, .. }] if shared.offers_tasks(passage).await => {
            Disposition::Passes(Some(task_capability::tools(Arc::clone(shared))))
        }
        [Message::Request { method: Method::ToolsCall, id, target }] => {
            call(shared, passage, &client, id, target.as_deref().unwrap_or_default()).await
        }
        [Message::Request { method, id, target }]
            if matches!(
                method,
                Method::TasksGet | Method::TasksResult | Method::TasksCancel | Method::TasksList
            ) && shared.offers_tasks(passage).await =>
        {
            Disposition::Ends(match shared.refuses(passage, client.session).await {
                Some(refusal) => refusal,
                None => experimental::serve(shared, passage, &client, method, id, target.as_deref()).await,
            })
        }
        [Message::Notification(Method::Cancelled)] if unsolicited::taken_back(shared, passage).await => {
            Disposition::Ends(Passed {
                status: StatusCode::ACCEPTED,
                headers: HeaderMap::new(),
                body: Passing::Whole(Bytes::new(), AccessSummary::default()),
            })
        }
        [Message::Response(Some(id))] => match offer::question(id) {
            Some((task, key)) => {
                Disposition::Ends(experimental::answered(shared, passage, &client, &task, key).await)
            }
            None => match client.session.and_then(|session| shared.plain.answered(session, id)) {
                Some(Whose::Task(task, key)) => {
                    Disposition::Ends(experimental::answered(shared, passage, &client, &task, key).await)
                }
                Some(Whose::Call) | None => Disposition::Passes(None),
            },
        },
        _ => Disposition::Passes(None),
    }
}

/// A `tools/call`: relayed, or one that is to be a task here.
async fn call(shared: &Arc<Shared>, passage: &Passage, client: &Client, id: &Id, tool: &str) -> Disposition {
    let Ok(frame) = Frame::parse(passage.body.clone()) else { return Disposition::Passes(None) };
    let Kind::Request { params: Some(params), .. } = frame.kind() else { return Disposition::Passes(None) };
    let wish = match shared.knows_tasks(passage.principal, &passage.headers) {
        true => offer::wish(params),
        // A receiver that knows no tasks ignores what it is asked of them.
        false => Ok(None),
    };
    let takes_unasked = unsolicited::takes(shared, passage);
    let plan = plan_native(&NativeCall { tool, wish, takes_unasked }, &shared.route.treatment(tool));
    if plan == Plan::Relay || shared.server_has_tasks(passage).await {
        return Disposition::Passes(None);
    }
    let drive = match plan {
        Plan::Relay => return Disposition::Passes(None),
        Plan::Refuse(error) => return Disposition::Ends(refusal(id, &error)),
        Plan::Drive(drive) => drive,
    };
    if let Some(refusal) = shared.refuses(passage, client.session).await {
        return Disposition::Ends(refusal);
    }
    let ttl = wish.ok().flatten().and_then(|wish| wish.ttl);
    let call = task_call::in_session(shared, passage, client, &frame, tool, ttl);
    Disposition::Ends(match drive {
        Drive::Defer { after } => {
            unsolicited::begin(shared, call, id.clone(), after, passage.keep_alive).await
        }
        Drive::Task | Drive::Hold | Drive::Observe { .. } => task_call::begin(shared, call, id).await,
    })
}

/// Who speaks, and in which session.
pub(super) struct Client {
    pub(super) principal: Principal,
    pub(super) owner: Owner,
    /// The session's name among those that listen; none where it has no id.
    pub(super) session: Option<session::Key>,
}

impl Client {
    fn of(shared: &Shared, passage: &Passage) -> Self {
        let principal = passage.principal;
        let session = session::Key::of(principal, &passage.headers);
        let scope = match &session {
            // Nothing tells them apart but the session.
            Some(session) if principal.is_anonymous() => Scope::Session(session.digest()),
            _ if shared.route.legacy_tasks.across_eras && !principal.is_anonymous() => Scope::Principal,
            _ => Scope::Legacy,
        };
        let owner = Owner { principal: *principal.as_bytes(), route: Arc::clone(&shared.route.path), scope };
        Self { principal, owner, session }
    }

    /// Whether this client's tasks can be told from others', so that they can be listed.
    pub(super) fn is_told_apart(&self) -> bool {
        self.session.is_some() || !self.principal.is_anonymous()
    }
}
