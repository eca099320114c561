//! A legacy client's request on its way to a legacy server, and the beginning of the answer.
//!
//! Bytes go by as they come; what is added is what keeps a client from waiting for ever. A server
//! that fails a request with an HTTP error, or that cannot be reached, would leave released
//! clients waiting (`WIRE`, B 1, rule 19): they get the JSON-RPC error in a 200. So would an event
//! stream that ends without the response (`going`).
//!
//! A server may say nothing at all until it is done, and then answer with JSON. It is waited for as
//! long as a client can be expected to wait in silence; then, if the client takes event streams, one
//! is begun for it, and what the server says comes on that (`late`). Nobody else's answer is begun
//! before its server's: what a handshake, a list or a notification is answered with may be a status.

use super::{
    edited::{self, Edit, Edited},
    event_stream,
    going::{GivingUp, Going, Owing, Timing},
    heard::Heard,
    late::{self, Body},
    residents::Theirs,
    streams::Key,
};
use crate::{
    bridge::offer,
    dialect::legacy::{self, Answers, Message, Post},
    protocol::{
        ErrorObject, Fault, Frame, Heartbeat, Id, Kind, Method as Asked, Revision,
        accept::{EVENT_STREAM, accepts},
        headers::{LAST_EVENT_ID, SESSION_ID},
        meta, tool_result,
        watch::{Gist, Glance},
    },
    proxy::{
        Account, Ladder, Passage, Passed, Passing,
        endpoint::Shared,
        ladder::Beginning,
        reply::{lost_error, outcome_of},
    },
    runtime::Stopping,
    telemetry::Outcome,
    upstream::{ClientSession, Forward, Forwarded, Lost, Purpose},
};
use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture};
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use smallvec::SmallVec;
use std::sync::Arc;

/// A JSON answer of at most this length is passed on whole, so that one that breaks off is still
/// a clear error. A longer one, or one of unknown length, is passed as it comes.
const WHOLE: u64 = 64 << 10;

/// How an answer is passed on.
struct Terms {
    /// The requests that it answers.
    waiting: SmallVec<[Id; 1]>,
    edit: Option<Edit>,
    /// The session that listens on it, and whether it goes on where another stream broke.
    listens: Option<Listens>,
    /// The client's own call that it answers.
    call: Option<Theirs>,
    ladder: Ladder,
    owing: Owing,
    giving_up: Option<Box<GivingUp>>,
    stopping: Stopping,
}

/// A session that listens.
struct Listens {
    key: Key,
    /// It goes on where another stream broke.
    resumed: bool,
    session: ClientSession,
}

/// Passes one request on, and gives what the client is answered with.
pub(super) async fn pass(shared: Arc<Shared>, passage: Passage, edit: Option<Edit>) -> Passed {
    if passage.post.messages.contains(&Message::Notification(Asked::Cancelled))
        && let Some(key) = Key::of(passage.principal, &passage.headers)
    {
        legacy::cancels(&passage.body).iter().for_each(|id| shared.ended.cancel(key, id));
    }
    exchange(shared, passage, edit).await
}

/// Sends one request on, and gives what comes back.
pub(super) async fn exchange(shared: Arc<Shared>, passage: Passage, edit: Option<Edit>) -> Passed {
    let began = shared.clock.now();
    let is_call = passage.post.may_ask();
    let ladder = match is_call {
        true => Ladder::new(shared.route.held, heartbeat(&shared, &passage), began),
        false => Ladder::of_comments(passage.keep_alive, began),
    };
    let may_begin = is_call && edit.is_none() && may_begin(&passage);
    let mut owing = Owing::of(&shared, &passage);
    let left = owing.comes_back(&passage);
    let giving_up = if is_call { GivingUp::of(&shared, &passage) } else { None };
    let Passage { principal, method, query, headers, body, post, keep_alive: _ } = passage;
    let waiting = if left.is_empty() { post.waiting() } else { left };
    // A client that only listens can listen elsewhere; one that waits for an answer is waited for.
    let (stopping, work) = match method {
        Method::GET => (shared.closing.clone(), None),
        _ => (shared.overdue.clone(), Some(shared.stopping.work())),
    };
    let purpose = purpose(&method, &post, &waiting);
    // Where tasks are made for the session they may have something to say on it.
    let is_known = matches!(purpose, Purpose::Listen | Purpose::Call)
        && shared.route.has_tasks()
        && shared.knows_tasks(principal, &headers);
    let key = is_known.then(|| Key::of(principal, &headers)).flatten();
    let (listens, call) = match (key, purpose) {
        (Some(key), Purpose::Listen) => {
            let session = ClientSession { query: query.clone(), headers: headers.clone() };
            (Some(Listens { key, resumed: headers.contains_key(&LAST_EVENT_ID), session }), None)
        }
        (Some(key), _) => (None, Some(Theirs::new(&shared, key))),
        (None, _) => (None, None),
    };
    let interest = giving_up.as_ref().map(|giving_up| giving_up.interest());
    let calls = if is_call { waiting.clone() } else { SmallVec::new() };
    let forward = Forward { method, query, headers, body, purpose, calls, interest };
    let mut forwarding = shared.upstream.forward(forward);
    let timing = Timing { began, shared, _work: work };
    let mut terms = Terms { waiting, edit, listens, call, ladder, owing, giving_up, stopping };
    let forwarded = tokio::select! {
        // An answer that is there is passed on, whatever else is due.
        biased;
        forwarded = &mut forwarding => forwarded,
        () = terms.stopping.stopped() => Err(Lost::Closing),
        beginning = terms.ladder.beginning(may_begin), if is_call => return match beginning {
            Beginning::Due => begin(forwarding, terms, timing),
            Beginning::Deadline => give_up(terms, &timing),
        },
    };
    match forwarded {
        forwarded if terms.owing.resumed().is_some() => Box::pin(take_up(forwarded, terms, timing)).await,
        Ok(forwarded) => answer(forwarded, terms, timing).await,
        Err(lost) => {
            if matches!(lost, Lost::Unreachable(_) | Lost::ConnectTimeout(_)) {
                // The server never had it.
                terms.call.iter_mut().for_each(Theirs::answered);
            }
            Box::pin(refused(&terms.waiting, &lost, &terms.owing, &timing)).await
        }
    }
}

fn purpose(method: &Method, post: &Post, waiting: &[Id]) -> Purpose {
    match *method {
        Method::GET if waiting.is_empty() => Purpose::Listen,
        Method::GET => Purpose::Resume,
        _ if post.may_ask() => Purpose::Call,
        _ if !waiting.is_empty() && post.messages.iter().all(may_be_asked_twice) => Purpose::Ask,
        _ if !waiting.is_empty() => Purpose::Once,
        // Alone: what else is told may not be told twice.
        _ if post.begins() && post.messages.len() == 1 => Purpose::Begin,
        _ => Purpose::Tell,
    }
}

fn may_be_asked_twice(message: &Message) -> bool {
    match message {
        Message::Request { method, .. } => method.is_repeatable(),
        Message::Notification(_) | Message::Response(_) => false,
    }
}

/// Whether an event stream can be begun for the client before its server begins: it waits for one
/// response, and takes event streams.
fn may_begin(passage: &Passage) -> bool {
    passage.post.messages.len() == 1 && accepts(&passage.headers, EVENT_STREAM)
}

/// For a client that gave its one call a progress token.
fn heartbeat(shared: &Shared, passage: &Passage) -> Option<Heartbeat> {
    shared.route.held.progress?;
    memchr::memmem::find(&passage.body, meta::PROGRESS_TOKEN.as_bytes())?;
    let frame = Frame::parse(passage.body.clone()).ok()?;
    let Kind::Request { params, .. } = frame.kind() else { return None };
    let token = Id::from_token(offer::progress_token(params.as_ref()?)?)?;
    // Only from 2025-06-18 on do clients name their revision, and only the oldest of all knows no
    // message.
    let speaks = legacy::revision(&passage.headers) != Some(Revision::V2024_11_05);
    Some(Heartbeat::new(token.detached().as_bytes().clone(), speaks))
}

/// Begins an answer whose server has not.
fn begin(forwarding: BoxFuture<'static, Result<Forwarded, Lost>>, terms: Terms, timing: Timing) -> Passed {
    let Terms { waiting, edit: _, listens: _, call, ladder, owing, giving_up, stopping } = terms;
    let id = waiting.first().expect("a call has an id").clone();
    let going = Going {
        body: Body::late(forwarding, id, owing.clone()),
        answers: Some(answers(waiting, &ladder, 0)),
        document: Glance::default(),
        unsaid: SmallVec::new(),
        outcome: Outcome::Result,
        ladder,
        giving_up,
        edited: None,
        heard: None,
        call,
        listening: None,
        timing,
        owing,
        fate: None,
        stop: None,
        stopping,
        over: false,
    };
    Passed { status: StatusCode::OK, headers: event_stream(), body: Passing::Pieces(going.boxed()) }
}

/// `limit` is for one message of a batch's answer, in bytes.
fn answers(waiting: SmallVec<[Id; 1]>, ladder: &Ladder, limit: usize) -> Answers {
    let answers = Answers::to(waiting, limit);
    if ladder.wants_messages() { answers.listening() } else { answers }
}

async fn answer(forwarded: Forwarded, terms: Terms, timing: Timing) -> Passed {
    let Terms { waiting, mut edit, listens, mut call, ladder, owing, giving_up, stopping } = terms;
    let status = forwarded.status;
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED
        || status.is_server_error() && !waiting.is_empty()
    {
        return Box::pin(refused_by(forwarded, &waiting, &owing, &timing)).await;
    }
    let is_events = forwarded.is_events();
    let in_session = forwarded.headers.get(&SESSION_ID).cloned();
    if forwarded.headers.contains_key(CONTENT_ENCODING) {
        // What cannot be read is left alone.
        edit = None;
    }
    if let Some(edit) = edit.as_mut().filter(|_| !is_events && status.is_success()) {
        let (mut headers, limit) = (forwarded.headers.clone(), forwarded.limit);
        return match forwarded.whole(limit).await {
            Ok(body) => {
                call.iter_mut().for_each(Theirs::answered);
                let body = edited::document(body, edit, in_session.as_ref());
                headers.insert(CONTENT_LENGTH, body.len().into());
                whole(status, headers, body, &owing, &timing)
            }
            Err(lost) => Box::pin(refused(&waiting, &lost, &owing, &timing)).await,
        };
    }
    // One that is only taken (202) is answered on the session's own stream.
    let is_answer = !waiting.is_empty() && status.is_success() && status != StatusCode::ACCEPTED;
    if !is_events && is_answer && forwarded.body.is_over() {
        return Box::pin(refused(&waiting, &late::empty(), &owing, &timing)).await;
    }
    if !is_events && !waiting.is_empty() && forwarded.body.length().is_some_and(|length| length <= WHOLE) {
        let headers = forwarded.headers.clone();
        return match forwarded.whole(WHOLE as usize).await {
            Ok(body) => {
                call.iter_mut().for_each(Theirs::answered);
                whole(status, headers, body, &owing, &timing)
            }
            Err(lost) => Box::pin(refused(&waiting, &lost, &owing, &timing)).await,
        };
    }
    let Forwarded { mut headers, body, limit, .. } = forwarded;
    if body.is_over() {
        call.iter_mut().for_each(Theirs::answered);
        return whole(status, headers, Bytes::new(), &owing, &timing);
    }
    let edited = edit.filter(|_| is_events && status.is_success());
    if is_events {
        // Comments of ours come between its events, and perhaps an error behind them.
        headers.remove(CONTENT_LENGTH);
    }
    let listens = listens.filter(|_| is_events && status.is_success());
    let (listening, heard) = match listens {
        Some(Listens { key, resumed, session }) => {
            let shared = &timing.shared;
            let heard = Heard::new(shared, key, session, limit);
            (Some(Box::new(shared.streams.open(key, resumed))), Some(Box::new(heard)))
        }
        None => (None, None),
    };
    let going = Going {
        body: Body::Here(body),
        unsaid: if is_answer && !is_events { waiting.clone() } else { SmallVec::new() },
        answers: is_events.then(|| {
            let mut answers = answers(waiting, &ladder, limit);
            if let Some(last_id) = owing.resumed() {
                answers.go_on_after(last_id.as_bytes());
            }
            answers
        }),
        document: Glance::default(),
        outcome: match outcome(status) {
            Outcome::ServerError => owing.of_error(),
            outcome => outcome,
        },
        ladder,
        giving_up,
        edited: edited.map(|edit| Box::new(Edited::new(edit, in_session, limit))),
        heard,
        call,
        listening,
        timing,
        owing,
        fate: None,
        stop: None,
        stopping,
        over: false,
    };
    Passed { status, headers, body: Passing::Pieces(going.boxed()) }
}

/// The client has come back for the rest of an answer. Where there is none it is told on an event stream:
/// an HTTP error would answer nothing, and some clients would wait for ever.
async fn take_up(forwarded: Result<Forwarded, Lost>, terms: Terms, timing: Timing) -> Passed {
    let lost = match forwarded {
        Ok(forwarded) if forwarded.status.is_success() && forwarded.is_events() => {
            return answer(forwarded, terms, timing).await;
        }
        // It may come back with others.
        Ok(forwarded) if matches!(forwarded.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            return answer(forwarded, Terms { waiting: SmallVec::new(), ..terms }, timing).await;
        }
        Ok(forwarded) => forwarded.not_taken_up(terms.owing.is_in_session()).await,
        // With the next of us.
        Err(Lost::Closing) => return untold(&Lost::Closing, &timing),
        Err(lost) => lost.when_resuming(),
    };
    let owed = terms.owing.owed(terms.waiting).await;
    terms.owing.answered();
    if owed.is_empty() {
        return unanswered(&timing);
    }
    let (error, outcome) = (lost_error(&lost), outcome_of(&lost));
    let account = Account { reason: Account::failed(outcome, &error).reason, ..timing.account(outcome) };
    let body = Passing::Whole(Answers::to(owed, 0).last_words(&error), account);
    Passed { status: StatusCode::OK, headers: event_stream(), body }
}

fn outcome(status: StatusCode) -> Outcome {
    match status {
        _ if status.is_server_error() => Outcome::UpstreamFailed,
        _ if status.is_client_error() => Outcome::ServerError,
        _ => Outcome::Result,
    }
}

/// An answer that is there.
fn whole(status: StatusCode, headers: HeaderMap, body: Bytes, owing: &Owing, timing: &Timing) -> Passed {
    let outcome = match Glance::of(&body) {
        Some(Gist::Error) if status.is_success() => Outcome::ServerError,
        Some(Gist::Result) if status.is_success() && tool_result::shows_error(&body) => Outcome::ToolError,
        Some(_) | None => outcome(status),
    };
    let (outcome, reason) = match outcome {
        Outcome::ServerError if owing.is_taken_back() => (Outcome::Departed, None),
        Outcome::ServerError => (outcome, Some(in_numbers(status, &body).into())),
        _ => (outcome, None),
    };
    let account = Account { reason, ..timing.account(outcome) };
    Passed { status, headers, body: Passing::Whole(body, account) }
}

/// What an error of the server is, without its words.
fn in_numbers(status: StatusCode, body: &Bytes) -> String {
    let code = Frame::parse(body.clone()).ok().and_then(|frame| match frame.kind() {
        Kind::Failure { error, .. } => Some(ErrorObject::from_raw(error.clone()).code()),
        Kind::Request { .. } | Kind::Notification { .. } | Kind::Success { .. } => None,
    });
    match (status.is_success(), code) {
        (true, Some(code)) => format!("error {code}"),
        (false, Some(code)) => format!("HTTP {}, error {code}", status.as_u16()),
        (_, None) => format!("HTTP {}", status.as_u16()),
    }
}

/// The server has refused, by an HTTP error.
async fn refused_by(forwarded: Forwarded, waiting: &[Id], owing: &Owing, timing: &Timing) -> Passed {
    let error = match forwarded.error().await {
        Ok(error) => error,
        Err(lost) => return refused(waiting, &lost, owing, timing).await,
    };
    match &owing.owed(waiting.into()).await[..] {
        [] if !waiting.is_empty() => unanswered(timing),
        owed => failed(owed, &error, Outcome::UpstreamFailed, timing),
    }
}

/// There will be no answer, and this is why.
async fn refused(waiting: &[Id], lost: &Lost, owing: &Owing, timing: &Timing) -> Passed {
    if waiting.is_empty() {
        return untold(lost, timing);
    }
    let owed = owing.owed(waiting.into()).await;
    if owed.is_empty() {
        return unanswered(timing);
    }
    failed(&owed, &lost_error(lost), outcome_of(lost), timing)
}

/// The server cannot be reached to be told what nobody waits for an answer to.
pub(super) fn unreachable(shared: &Arc<Shared>, lost: &Lost) -> Passed {
    let timing = Timing { began: shared.clock.now(), shared: Arc::clone(shared), _work: None };
    untold(lost, &timing)
}

/// Nothing waits for a response: it is the transport's to tell.
fn untold(lost: &Lost, timing: &Timing) -> Passed {
    let status = match lost.fault() {
        Fault::Client => StatusCode::BAD_REQUEST,
        Fault::Server => StatusCode::BAD_GATEWAY,
        Fault::Proxy => StatusCode::SERVICE_UNAVAILABLE,
    };
    Passed { status, ..failed(&[], &lost_error(lost), outcome_of(lost), timing) }
}

/// The client has waited long enough, and nothing has begun.
fn give_up(terms: Terms, timing: &Timing) -> Passed {
    if let Some(giving_up) = terms.giving_up {
        giving_up.tell(&timing.shared);
    }
    failed(&terms.waiting, &terms.ladder.overdue(), Outcome::UpstreamFailed, timing)
}

/// The error for each request that waits.
fn failed(waiting: &[Id], error: &ErrorObject, outcome: Outcome, timing: &Timing) -> Passed {
    let body = legacy::refusal(waiting, error);
    let headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CONTENT_LENGTH, body.len().into()),
    ]);
    let account = Account { reason: Account::failed(outcome, error).reason, ..timing.account(outcome) };
    Passed { status: StatusCode::OK, headers, body: Passing::Whole(body, account) }
}

/// The client has taken back what it asked: its stream just ends.
fn unanswered(timing: &Timing) -> Passed {
    let body = Passing::Whole(Bytes::new(), timing.account(Outcome::Departed));
    Passed { status: StatusCode::OK, headers: event_stream(), body }
}
