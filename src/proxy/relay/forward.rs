//! A legacy client's request on its way to a legacy server, and the beginning of the answer.
//!
//! Bytes go by as they come; what is added is what keeps a client from waiting for ever. A server
//! that fails a request with an HTTP error, or that cannot be reached, would leave released
//! clients waiting (`WIRE`, B 1, rule 19): they get the JSON-RPC error in a 200. So would an event
//! stream that ends without the response (`relay`).
//!
//! A server may say nothing at all until it is done, and then answer with JSON. It is waited for as
//! long as a client can be expected to wait in silence; then, if the client takes event streams, one
//! is begun for it, and what the server says comes on that (`deferred_head`). Nobody else's answer is begun
//! before its server's: what a handshake, a list or a notification is answered with may be a status.

use super::{
    answer::{GivingUp, Owing, Relaying, Timing},
    deferred_head::{self, Body},
    session_stream::Heard,
    sse_edit::{self, Edit, Edited},
};
use crate::{
    bridge::{Relay, offer},
    dialect::{
        ambiguous::is_batch,
        legacy::{self, Answers, Message, Post},
    },
    policy::{Silence, silence::Beginning},
    protocol::{
        ErrorObject, Fault, Frame, Heartbeat, Id, Kind, Method as Asked,
        accept::{EVENT_STREAM, accepts},
        glance::{Gist, Glance},
        headers::{LAST_EVENT_ID, SESSION_ID},
        meta, tool_result,
    },
    proxy::{
        AccessSummary, KeepAlive, Passage, Passed, Passing,
        passage::event_stream,
        reply::{lost_error, outcome_of},
        session::{Client, Key, TheirCall},
        shared::Shared,
    },
    runtime::Stopping,
    telemetry::Outcome,
    upstream::{CallError, Forward, Forwarded, Interest, Purpose},
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
    call: Option<Arc<TheirCall>>,
    ladder: KeepAlive,
    owing: Owing,
    giving_up: Option<Box<GivingUp>>,
    stopping: Stopping,
}

/// A session that listens.
struct Listens {
    key: Key,
    /// It goes on where another stream broke.
    resumed: bool,
}

/// Passes one request on, and gives what the client is answered with.
pub(in crate::proxy) async fn pass(
    shared: Arc<Shared>,
    client: Client,
    passage: Passage,
    edit: Option<Edit>,
) -> Passed {
    if passage.post.messages.contains(&Message::Notification(Asked::Cancelled))
        && let Some(key) = client.session
    {
        legacy::cancels(&passage.body).into_iter().for_each(|id| shared.sessions.ended.cancel(key, id));
    }
    exchange(shared, client, passage, edit).await
}

/// Sends one request on, and gives what comes back.
pub(in crate::proxy) async fn exchange(
    shared: Arc<Shared>,
    client: Client,
    passage: Passage,
    edit: Option<Edit>,
) -> Passed {
    let began = shared.clock.now();
    let is_call = passage.post.may_ask();
    let ladder = match is_call {
        true => KeepAlive::new(shared.route.held, heartbeat(&shared, &client, &passage), began),
        false => KeepAlive::of_comments(passage.keep_alive, began),
    };
    let mut owing = Owing::of(&shared.sessions, &client, &passage);
    let left = owing.comes_back(&passage);
    let may_begin = (is_call && edit.is_none() || left.len() == 1) && may_begin(&passage);
    let giving_up = if is_call { GivingUp::of(&shared, &passage, owing.asked()) } else { None };
    let Passage { principal: _, method, query, headers, body, post, keep_alive: _ } = passage;
    let waiting = if left.is_empty() { post.waiting() } else { left };
    // A client that only listens can listen elsewhere; one that waits for an answer is waited for.
    let (stopping, work) = match method {
        Method::GET => (shared.closing.clone(), None),
        _ => (shared.overdue.clone(), Some(shared.stopping.work())),
    };
    let purpose = purpose(&method, &post, &waiting);
    // Where tasks are made for the session they may have something to say on it.
    let is_known = matches!(purpose, Purpose::Listen | Purpose::Call | Purpose::Resume)
        && shared.route.has_tasks()
        && client.knows_tasks();
    let key = client.session.filter(|_| is_known);
    let (listens, call) = match (key, purpose) {
        (Some(key), Purpose::Listen) => {
            (Some(Listens { key, resumed: headers.contains_key(&LAST_EVENT_ID) }), None)
        }
        (Some(key), _) => {
            let comes_back = purpose == Purpose::Resume;
            (
                None,
                Some(shared.sessions.in_flight.begin_theirs(key, waiting.clone(), comes_back, owing.asked())),
            )
        }
        (None, _) => (None, None),
    };
    let interest = is_call.then(|| -> Arc<dyn Interest> {
        match &call {
            Some(call) => call.clone(),
            None => owing.asked().clone(),
        }
    });
    let calls = if is_call { waiting.clone() } else { SmallVec::new() };
    let forward = Forward { method, query, headers, body, purpose, calls, interest };
    let mut forwarding = shared.upstream.forward(forward);
    let timing = Timing { began, shared, _work: work };
    let is_waited_for = is_call || owing.resumed().is_some();
    let mut terms = Terms { waiting, edit, listens, call, ladder, owing, giving_up, stopping };
    let forwarded = tokio::select! {
        // An answer that is there is passed on, whatever else is due.
        biased;
        forwarded = &mut forwarding => forwarded,
        () = terms.stopping.stopped() => Err(CallError::Closing),
        beginning = terms.ladder.beginning(may_begin), if is_waited_for => return match beginning {
            Beginning::Due => begin(forwarding, terms, timing),
            Beginning::Deadline => give_up(&mut terms, &timing),
        },
    };
    match forwarded {
        forwarded if terms.owing.resumed().is_some() => Box::pin(take_up(forwarded, terms, timing)).await,
        Ok(forwarded) => answer(forwarded, terms, timing).await,
        Err(lost) => {
            if !lost.leaves_it_running() {
                terms.call.iter().for_each(|call| call.answered());
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
/// response, or comes back for the rest of an answer, and takes event streams.
fn may_begin(passage: &Passage) -> bool {
    // A batch is answered with one, which is no message of an event stream.
    passage.post.messages.len() <= 1 && !is_batch(&passage.body) && accepts(&passage.headers, EVENT_STREAM)
}

/// For a client that gave its one call a progress token.
fn heartbeat(shared: &Shared, client: &Client, passage: &Passage) -> Option<Heartbeat> {
    shared.route.held.progress?;
    memchr::memmem::find(&passage.body, meta::PROGRESS_TOKEN.as_bytes())?;
    let frame = Frame::parse(passage.body.clone()).ok()?;
    let Kind::Request { params, .. } = frame.kind() else { return None };
    let token = Id::from_token(offer::progress_token(params.as_ref()?)?)?;
    Some(Heartbeat::new(token.detached().as_bytes().clone(), client.hears_messages()))
}

/// Begins an answer whose server has not.
fn begin(
    forwarding: BoxFuture<'static, Result<Forwarded, CallError>>,
    terms: Terms,
    timing: Timing,
) -> Passed {
    let id = terms.waiting.first().expect("a call has an id").clone();
    let body = Body::late(forwarding, id, terms.owing.clone());
    let relaying = relaying(body, Outcome::Result, terms, timing, |waiting, silence, owing| {
        Relay::of_events(answers(waiting, &silence, owing, 0), silence)
    });
    Passed { status: StatusCode::OK, headers: event_stream(), body: Passing::Pieces(relaying.boxed()) }
}

/// An answer that goes by.
fn relaying(
    body: Body,
    outcome: Outcome,
    terms: Terms,
    timing: Timing,
    relay: impl FnOnce(SmallVec<[Id; 1]>, Silence, &Owing) -> Relay<CallError>,
) -> Relaying {
    let Terms { waiting, edit: _, listens: _, call, ladder, owing, giving_up, stopping } = terms;
    let (silence, timer) = ladder.into_parts();
    Relaying {
        relay: relay(waiting, silence, &owing),
        body,
        outcome,
        timing,
        timer,
        giving_up,
        edited: None,
        heard: None,
        call,
        listening: None,
        owing,
        settling: None,
        stop: None,
        stopping,
    }
}

/// `limit` is for one message of a batch's answer, in bytes.
fn answers(waiting: SmallVec<[Id; 1]>, silence: &Silence, owing: &Owing, limit: usize) -> Answers {
    let mut answers = Answers::to(waiting, limit);
    if silence.wants_messages() {
        answers = answers.listening();
    }
    if let Some(last_id) = owing.resumed() {
        answers.go_on_after(last_id.as_bytes());
    }
    answers
}

/// A whole body, or what the client is answered with where it is not to wait for it any longer.
async fn read(
    forwarded: Forwarded,
    limit: usize,
    terms: &mut Terms,
    timing: &Timing,
) -> Result<Bytes, Passed> {
    let body = tokio::select! {
        biased;
        body = forwarded.whole(limit) => body,
        () = terms.stopping.stopped() => Err(CallError::Closing),
        _deadline = terms.ladder.beginning(false) => return Err(give_up(terms, timing)),
    };
    match body {
        Ok(body) => {
            terms.call.iter().for_each(|call| call.answered());
            Ok(body)
        }
        Err(lost) => Err(Box::pin(refused(&terms.waiting, &lost, &terms.owing, timing)).await),
    }
}

async fn answer(forwarded: Forwarded, mut terms: Terms, timing: Timing) -> Passed {
    let status = forwarded.status;
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED
        || status.is_server_error() && !terms.waiting.is_empty()
    {
        if !(CallError::Status { status, detail: String::new() }).leaves_it_running() {
            terms.call.iter().for_each(|call| call.answered());
        }
        return Box::pin(refused_by(forwarded, &terms.waiting, &terms.owing, &timing)).await;
    }
    let is_events = forwarded.is_events();
    let in_session = forwarded.headers.get(&SESSION_ID).cloned();
    if forwarded.headers.contains_key(CONTENT_ENCODING) {
        // What cannot be read is left alone.
        terms.edit = None;
    }
    // One that is only taken (202) is answered on the session's own stream.
    let is_waited_for = !terms.waiting.is_empty();
    let is_answer = is_waited_for && status.is_success() && status != StatusCode::ACCEPTED;
    if is_answer && forwarded.body.is_over() && terms.owing.resumed().is_none() {
        return Box::pin(refused(&terms.waiting, &deferred_head::empty(), &terms.owing, &timing)).await;
    }
    if let Some(mut edit) = terms.edit.take_if(|_| !is_events && status.is_success()) {
        let (mut headers, limit) = (forwarded.headers.clone(), forwarded.limit);
        return match read(forwarded, limit, &mut terms, &timing).await {
            Ok(body) if body.is_empty() && is_answer => {
                Box::pin(refused(&terms.waiting, &deferred_head::empty(), &terms.owing, &timing)).await
            }
            Ok(body) => {
                let body = sse_edit::document(body, &mut edit, in_session.as_ref());
                headers.insert(CONTENT_LENGTH, body.len().into());
                whole(status, headers, body, &terms.owing, &timing)
            }
            Err(passed) => passed,
        };
    }
    if !is_events && is_waited_for && forwarded.body.length().is_some_and(|length| length <= WHOLE) {
        let headers = forwarded.headers.clone();
        return match read(forwarded, WHOLE as usize, &mut terms, &timing).await {
            Ok(body) => whole(status, headers, body, &terms.owing, &timing),
            Err(passed) => passed,
        };
    }
    let Forwarded { mut headers, body, limit, .. } = forwarded;
    // As long as nothing of it has been sent, an error can take its place: of any length, and to be read.
    let may_be_replaced =
        is_answer && !headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(CONTENT_ENCODING);
    if body.is_over() {
        terms.call.iter().for_each(|call| call.answered());
        return whole(status, headers, Bytes::new(), &terms.owing, &timing);
    }
    if is_events {
        // Comments of ours come between its events, and perhaps an error behind them.
        headers.remove(CONTENT_LENGTH);
    }
    let edit = terms.edit.take_if(|_| is_events && status.is_success());
    let listens = terms.listens.take_if(|_| is_events && status.is_success());
    let outcome = match outcome(status) {
        Outcome::ServerError => terms.owing.of_error(),
        outcome => outcome,
    };
    let mut relaying =
        relaying(Body::Here(body), outcome, terms, timing, |waiting, silence, owing| match is_events {
            true => Relay::of_events(answers(waiting, &silence, owing, limit), silence),
            false => {
                let unsaid = if may_be_replaced { waiting } else { SmallVec::new() };
                Relay::of_document(unsaid, outcome == Outcome::Result, silence)
            }
        });
    relaying.edited = edit.map(|edit| Box::new(Edited::new(edit, in_session, limit)));
    if let Some(Listens { key, resumed }) = listens {
        let sessions = &relaying.timing.shared.sessions;
        relaying.heard = Some(Box::new(Heard::new(&sessions.in_flight, key, limit)));
        relaying.listening = Some(Box::new(sessions.streams.open(key, resumed)));
    }
    Passed { status, headers, body: Passing::Pieces(relaying.boxed()) }
}

/// The client has come back for the rest of an answer. Where there is none it is told on an event stream:
/// an HTTP error would answer nothing, and some clients would wait for ever.
async fn take_up(forwarded: Result<Forwarded, CallError>, terms: Terms, timing: Timing) -> Passed {
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
        Err(CallError::Closing) => return untold(&CallError::Closing, &timing),
        Err(lost) => lost.when_resuming(),
    };
    let owed = terms.owing.asked().owed(terms.waiting).await;
    terms.owing.answered();
    if owed.is_empty() {
        return unanswered(&timing);
    }
    let (error, outcome) = (lost_error(&lost), outcome_of(&lost));
    let account =
        AccessSummary { reason: AccessSummary::failed(outcome, &error).reason, ..timing.account(outcome) };
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
        Outcome::ServerError if owing.asked().is_taken_back() => (Outcome::Departed, None),
        Outcome::ServerError => (outcome, Some(in_numbers(status, &body).into())),
        _ => (outcome, None),
    };
    let account = AccessSummary { reason, ..timing.account(outcome) };
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
    match &owing.asked().owed(waiting.into()).await[..] {
        [] if !waiting.is_empty() => unanswered(timing),
        owed => failed(owed, &error, Outcome::UpstreamFailed, timing),
    }
}

/// There will be no answer, and this is why.
async fn refused(waiting: &[Id], lost: &CallError, owing: &Owing, timing: &Timing) -> Passed {
    if waiting.is_empty() {
        return untold(lost, timing);
    }
    let owed = owing.asked().owed(waiting.into()).await;
    if owed.is_empty() {
        return unanswered(timing);
    }
    failed(&owed, &lost_error(lost), outcome_of(lost), timing)
}

/// The server cannot be reached to be told what nobody waits for an answer to.
pub(in crate::proxy) fn unreachable(shared: &Arc<Shared>, lost: &CallError) -> Passed {
    let timing = Timing { began: shared.clock.now(), shared: Arc::clone(shared), _work: None };
    untold(lost, &timing)
}

/// Nothing waits for a response: it is the transport's to tell.
fn untold(lost: &CallError, timing: &Timing) -> Passed {
    let status = match lost.fault() {
        Fault::Client => StatusCode::BAD_REQUEST,
        Fault::Server => StatusCode::BAD_GATEWAY,
        Fault::Proxy => StatusCode::SERVICE_UNAVAILABLE,
    };
    Passed { status, ..failed(&[], &lost_error(lost), outcome_of(lost), timing) }
}

/// The client has waited long enough, and nothing has begun.
fn give_up(terms: &mut Terms, timing: &Timing) -> Passed {
    if let Some(giving_up) = terms.giving_up.take() {
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
    let account =
        AccessSummary { reason: AccessSummary::failed(outcome, error).reason, ..timing.account(outcome) };
    Passed { status: StatusCode::OK, headers, body: Passing::Whole(body, account) }
}

/// The client has taken back what it asked: its stream just ends.
fn unanswered(timing: &Timing) -> Passed {
    let body = Passing::Whole(Bytes::new(), timing.account(Outcome::Departed));
    Passed { status: StatusCode::OK, headers: event_stream(), body }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Principal;
    use http::HeaderValue;
    use std::time::Duration;

    #[test]
    fn a_stream_is_begun_for_one_message_and_not_for_a_batch_of_one() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;
        let begins = |body: &str, accept: &'static str| {
            let body = Bytes::copy_from_slice(body.as_bytes());
            may_begin(&Passage {
                principal: Principal::from_bytes([1; 16]),
                method: Method::POST,
                query: None,
                headers: HeaderMap::from_iter([(http::header::ACCEPT, HeaderValue::from_static(accept))]),
                post: Post::read(&body).expect("a message"),
                body,
                keep_alive: Duration::ZERO,
            })
        };
        let both = "application/json, text/event-stream";
        assert!(begins(call, both));
        assert!(!begins(call, "application/json"));
        assert!(!begins(&format!(" [{call}]"), both), "it is answered with a batch");
        assert!(!begins(&format!("[{call},{call}]"), both));
    }
}
