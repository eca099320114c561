//! Legacy clients in front of a legacy server.
//!
//! What they send is passed on, and what the server says comes back as it is (`passing`; `going` is one
//! answer on its way, `late` one that had to be begun without the server, `ended` knows to whom none is
//! owed any more, `unfinished` who may come back for one, `farewell` ends sessions, and `minted` gives events
//! ids where the server gives none).
//! Where the server has no tasks of its own, some messages leave that road, because tasks of 2025-11-25
//! are made here: `offering` adds them to what the server says of itself, which `edited` puts into its
//! answers; `judged` refuses what must not reach the server in any shape; `augmented` makes a call a
//! task, in the client's own session (`unsolicited` only once it turns out to be slow, and `plain` knows
//! what was asked before), `run` holds it, and `requests` answers for it, in sessions that are there
//! (`sessions`) and of that revision (`revisions`). `residents` knows the calls of a session, and so what
//! tasks still need it and whose a question is that came on the session's own stream (`heard`).
//! What a task has to say reaches its client on the stream that the session listens on (`streams`), or
//! while it waits for the result; `across` says it where the eras meet.
//!
//! A client of another revision, or one whose server has tasks, notices nothing of all this.

mod across;
mod augmented;
mod edited;
mod ended;
mod farewell;
mod going;
mod heard;
mod judged;
mod late;
mod minted;
mod offering;
mod passing;
mod plain;
mod requests;
mod residents;
mod revisions;
mod run;
mod sessions;
mod streams;
mod unfinished;
mod unsolicited;

pub use edited::Edited;
pub use minted::{Entry, Minter};

pub(super) use across::Across;
pub(super) use ended::Ended;
pub(super) use minted::Minted;
pub(super) use offering::Offering;
pub(super) use plain::Plain;
pub(super) use residents::Residents;
pub(super) use revisions::Revisions;
pub(super) use sessions::Sessions;
pub(super) use streams::Streams;
pub(super) use unfinished::Unfinished;

use super::{
    Account, Passage, Passed, Passing,
    endpoint::Shared,
    reply::{self, stopping_error},
};
use crate::{
    bridge::offer::{self, Wish},
    dialect::{
        Principal,
        legacy::{self, Message},
    },
    policy::Mode,
    protocol::{ErrorObject, Frame, Id, Kind, Method, code},
    task::{Owner, Scope},
    telemetry::Outcome,
    upstream::ClientSession,
};
use augmented::InSession;
use bytes::Bytes;
use edited::Edit;
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER},
};
use plain::Whose;
use sessions::Watched;
use std::sync::Arc;

/// What a request means to us.
enum Road {
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
        false => Road::Passes(None),
    };
    match road {
        Road::Passes(edit) => {
            if let Some(resumed) = minted::resume(&shared, &passage) {
                return resumed;
            }
            let watched = Watched::of(&passage);
            let kept = minted::terms(&shared, &passage);
            let passed = passing::pass(Arc::clone(&shared), passage, edit).await;
            shared.sessions.saw(&watched, &passed);
            match kept {
                Some(terms) => minted::keep(&shared, terms, passed),
                None => passed,
            }
        }
        Road::Ends(passed) => passed,
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
    let account = Account { outcome: Outcome::ProxyFailed, ..Account::default() };
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
    if judged::may_refuse(shared, passage) {
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
            mode == Mode::Required || unsolicited::may_be(shared, passage, mode) || may_wish(passage)
        }
        [Message::Response(Some(id))] => run::is_ours(id) || !shared.plain.is_empty(),
        _ => false,
    }
}

/// Whether a call could have `params.task`.
fn may_wish(passage: &Passage) -> bool {
    memchr::memmem::find(&passage.body, b"\"task\"").is_some()
}

async fn road(shared: &Arc<Shared>, passage: &Passage) -> Road {
    if let Some(refusal) = judged::refuse(shared, passage).await {
        return Road::Ends(refusal);
    }
    let client = Client::of(shared, passage);
    match &passage.post.messages[..] {
        [Message::Request { method: Method::Initialize, .. }] => {
            Road::Passes(Some(offering::handshake(Arc::clone(shared), &passage.body, client.principal)))
        }
        [Message::Request { method: Method::ToolsList, .. }] if shared.offers_tasks(passage).await => {
            Road::Passes(Some(offering::tools(Arc::clone(shared))))
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
            Road::Ends(match shared.refuses(passage, client.session).await {
                Some(refusal) => refusal,
                None => requests::serve(shared, passage, &client, method, id, target.as_deref()).await,
            })
        }
        [Message::Response(Some(id))] => match run::asked(id) {
            Some((task, key)) => Road::Ends(requests::answered(shared, passage, &client, &task, key).await),
            None => match client.session.and_then(|session| shared.plain.answered(session, id)) {
                Some(Whose::Task(task, key)) => {
                    Road::Ends(requests::answered(shared, passage, &client, &task, key).await)
                }
                Some(Whose::Call) | None => Road::Passes(None),
            },
        },
        _ => Road::Passes(None),
    }
}

/// A `tools/call`: plain, or one that wants to be a task.
async fn call(shared: &Arc<Shared>, passage: &Passage, client: &Client, id: &Id, tool: &str) -> Road {
    let Ok(frame) = Frame::parse(passage.body.clone()) else { return Road::Passes(None) };
    let Kind::Request { params: Some(params), .. } = frame.kind() else { return Road::Passes(None) };
    let wish = match shared.knows_tasks(passage.principal, &passage.headers) {
        true => offer::wish(params),
        // A receiver that knows no tasks ignores what it is asked of them.
        false => Ok(None),
    };
    let mode = shared.route.treatment(tool).mode;
    let unsolicited = unsolicited::may_be(shared, passage, mode);
    let passes = matches!(wish, Ok(None)) && mode != Mode::Required && !unsolicited;
    if passes || shared.server_has_tasks(passage).await {
        return Road::Passes(None);
    }
    let refuse = |code, message: String| Road::Ends(refusal(id, &ErrorObject::new(code, message)));
    let wish = match wish {
        Err(wrong) => return refuse(code::INVALID_PARAMS, wrong.to_string()),
        Ok(None) if unsolicited => Wish { ttl: None },
        // 2025-11-25, *Tasks, Tool-Level Negotiation*.
        Ok(None) => {
            return refuse(
                code::METHOD_NOT_FOUND,
                format!("the tool {tool} runs as a task only: call it with params.task (2025-11-25)"),
            );
        }
        Ok(Some(_)) if !mode.makes_tasks() => {
            return refuse(
                code::METHOD_NOT_FOUND,
                format!("the tool {tool} does not run as a task: call it without params.task"),
            );
        }
        Ok(Some(wish)) => wish,
    };
    if let Some(refusal) = shared.refuses(passage, client.session).await {
        return Road::Ends(refusal);
    }
    let call = InSession::new(shared, passage, client, &frame, tool, wish);
    Road::Ends(match unsolicited {
        true => unsolicited::begin(call, id.clone(), passage.keep_alive).await,
        false => augmented::begin(call, id).await,
    })
}

/// Who speaks, and in which session.
struct Client {
    principal: Principal,
    owner: Owner,
    /// The session's name among those that listen; none where it has no id.
    session: Option<streams::Key>,
}

impl Client {
    fn of(shared: &Shared, passage: &Passage) -> Self {
        let principal = passage.principal;
        let session = streams::Key::of(principal, &passage.headers);
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
    fn is_told_apart(&self) -> bool {
        self.session.is_some() || !self.principal.is_anonymous()
    }
}

/// The client's session, as calls in it are made.
fn session(passage: &Passage) -> ClientSession {
    ClientSession { query: passage.query.clone(), headers: passage.headers.clone() }
}

/// A result of ours.
fn success(id: &Id, result: &[u8], account: Account) -> Passed {
    document(legacy::success(id, result), account)
}

/// A refusal of ours.
fn refusal(id: &Id, error: &ErrorObject) -> Passed {
    let body = legacy::refusal(std::slice::from_ref(id), error);
    document(body, Account::failed(Outcome::Refused, error))
}

/// A refusal that answers no request.
fn refusal_for_none(status: StatusCode, error: &ErrorObject) -> Passed {
    let account = Account::failed(Outcome::Refused, error);
    Passed { status, ..document(legacy::refusal(&[], error), account) }
}

fn document(body: Bytes, account: Account) -> Passed {
    let headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CONTENT_LENGTH, body.len().into()),
    ]);
    Passed { status: StatusCode::OK, headers, body: Passing::Whole(body, account) }
}

/// The head of an event stream of ours.
fn event_stream() -> HeaderMap {
    HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ])
}
