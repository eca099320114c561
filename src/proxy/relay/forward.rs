//! A legacy client's request on its way to a legacy server, and the beginning of the answer.
//!
//! Bytes go by as they come; what is added is what keeps a client from waiting for ever (`sent`; an event stream
//! that ends without the response is the business of `answer`).
//!
//! A server may say nothing at all until it is done, and then answer with JSON. It is waited for as
//! long as a client can be expected to wait in silence; then, if the client takes event streams, one
//! is begun for it, and what the server says comes on that (`deferred_head`). Nobody else's answer is begun
//! before its server's: what a handshake, a list or a notification is answered with may be a status.

use super::{
    answer::{Changes, Edit, Edited, Relaying},
    deferred_head::{self, Body},
    requester::Requester,
    sent::{Sent, outcome, untold},
    session_stream::SessionStream,
};
use crate::{
    bridge::{Relay, deny, offer},
    dialect::legacy::{Answers, Message, Post},
    policy::{Route, Silence, silence::Beginning},
    protocol::{
        self, Frame, Heartbeat, Id,
        accept::{EVENT_STREAM, accepts},
        headers::{LAST_EVENT_ID, SESSION_ID},
        sse::Editor,
    },
    proxy::{
        KeepAlive, Passage, Passed, Passing,
        admission::{Permits, Turn},
        drive::CallSpan,
        observed_call::ObservedCall,
        passage::events,
        reply::{lost_error, outcome_of},
        session::{Asked, Client, Key, TheirCall},
        shared::Shared,
    },
    runtime::Mutex,
    telemetry::{Limit, Outcome},
    upstream::{self, CallError, Forward, Forwarded, Interest, Purpose, ReadingOn, Upstream},
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use http::{
    HeaderMap, Method, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH},
};
use smallvec::SmallVec;
use std::{future::Future, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// A JSON answer of at most this length is passed on whole, so that one that breaks off is still
/// a clear error. A longer one, or one of unknown length, is passed as it comes.
const WHOLE: u64 = 64 << 10;

/// How an answer is passed on.
struct Terms {
    sent: Sent,
    /// The requests that it answers.
    waiting: SmallVec<[Id; 1]>,
    edit: Option<Edit>,
    /// Its answer may hold a list of tools, of which some are denied.
    hides: bool,
    listens: Option<Listens>,
    ladder: KeepAlive,
}

/// A session that listens on the answer.
struct Listens {
    key: Key,
    /// It goes on where another stream broke.
    resumed: bool,
}

/// Passes one request on, and gives what the client is answered with. Not itself asynchronous: what waits for a
/// call holds nothing of its request.
pub(in crate::proxy) fn pass(
    shared: Arc<Shared>,
    client: Client,
    passage: Passage,
    edit: Option<Edit>,
    (turn, observed): (Option<Turn>, Option<Box<ObservedCall>>),
) -> impl Future<Output = Passed> {
    takes_back(&shared, &client, &passage);
    let began = shared.clock.now();
    let is_call = passage.post.may_ask();
    let ladder = match is_call {
        true => KeepAlive::new(shared.route.held, heartbeat(&shared, &client, &passage), began),
        false => KeepAlive::of_comments(passage.keep_alive, began),
    };
    let mut requester = Requester::of(&shared.sessions, &client, &passage);
    let left = requester.comes_back(&passage);
    let may_begin = (is_call && edit.is_none() || left.len() == 1) && may_begin(&passage);
    let has_deadline = is_call && shared.route.held.deadline.is_some();
    let giving_up = has_deadline.then(|| Box::new(passage.session()));
    let token = passage.params().and_then(offer::progress_token).and_then(Id::from_token);
    let hides = shared.route.denies_tools() && may_list(&passage);
    let (span, passage) = traced(&shared, passage);
    let Passage {
        principal,
        standing: _,
        method,
        query,
        headers,
        body,
        message: _,
        post,
        keep_alive: _,
        trace: _,
    } = passage;
    let waiting = if left.is_empty() { post.waiting() } else { left };
    // A client that only listens can listen elsewhere; one that waits for an answer is waited for.
    let (stopping, work) = match method {
        Method::GET => (shared.closing.clone(), None),
        _ => (shared.overdue.clone(), Some(shared.stopping.work())),
    };
    let purpose = purpose(&method, &post, &waiting);
    let is_handshake = purpose == Purpose::Begin
        || matches!(&post.messages[..], [Message::Request { method: protocol::Method::Initialize, .. }]);
    let resumed = headers.contains_key(&LAST_EVENT_ID);
    let (listens, call) = in_session(&shared, &client, purpose, &waiting, &requester, resumed);
    if let Some(key) = client.session {
        waiting.iter().chain(&token).for_each(|id| shared.sessions.client_ids.mark_used(key, id));
    }
    let is_answered = method == Method::POST && !waiting.is_empty();
    let interest = is_answered.then(|| -> Arc<dyn Interest> {
        match &call {
            Some(call) => call.clone(),
            None => requester.asked.clone(),
        }
    });
    let calls = if is_call { waiting.clone() } else { SmallVec::new() };
    let timeout = call_timeout(&shared.route, &post);
    let forward = Forward { principal, method, query, headers, body, purpose, calls, interest, timeout };
    let forwarding = match (turn, requester.reader()) {
        (Some(turn), _) => in_turn(Arc::clone(&shared.upstream), forward, turn, Arc::clone(&requester.asked)),
        (None, None) => shared.upstream.forward(forward),
        (None, Some(asked)) => {
            let shared = Arc::clone(&shared);
            let resuming = async move {
                asked.reading_on.end().await;
                shared.upstream.forward(forward).await
            };
            resuming.boxed()
        }
    };
    let is_waited_for = is_call || requester.resumed.is_some();
    let (span, observed) = (Mutex::new(span), Mutex::new(observed));
    let sent = Sent {
        shared,
        began,
        _work: work,
        requester,
        is_handshake,
        call,
        giving_up,
        stopping,
        span,
        observed,
    };
    let terms = Box::new(Terms { sent, waiting, edit, hides, listens, ladder });
    wait(forwarding, terms, is_waited_for, may_begin)
}

/// How long the calls of a request may take at the server, where that is not what the server is held to.
fn call_timeout(route: &Route, post: &Post) -> Option<Duration> {
    if !route.has_timeouts() || !post.may_ask() {
        return None;
    }
    let mut calls = post.calls().map(|tool| route.call_timeout(tool)).peekable();
    if calls.peek().is_none() {
        return route.timeout;
    }
    // A batch has the time of the longest of its calls.
    calls.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// Forwards calls once it is their turn, and holds their permits for as long as the server is at them, whether or not
/// their client stays. Calls that are cancelled in the queue are never sent.
fn in_turn(
    upstream: Arc<dyn Upstream>,
    mut forward: Forward,
    turn: Turn,
    asked: Arc<Asked>,
) -> BoxFuture<'static, Result<Forwarded, CallError>> {
    let is_through = turn.is_through();
    if !is_through {
        asked.enter_queue();
    }
    async move {
        let permits = tokio::select! {
            biased;
            () = asked.lost().cancelled(), if !is_through => return Err(CallError::SessionEnded),
            permits = turn.wait(|| false) => permits?,
        };
        if !is_through && !asked.leave_queue() {
            return Err(CallError::SessionEnded);
        }
        let interest: Arc<dyn Interest> = asked;
        let interest = forward.interest.take().unwrap_or(interest);
        forward.interest = Some(Arc::new(Permitted { interest, _permits: permits }));
        upstream.forward(forward).await
    }
    .boxed()
}

/// Who waits for the answer to calls that hold permits.
struct Permitted {
    interest: Arc<dyn Interest>,
    _permits: Permits,
}

impl Interest for Permitted {
    fn lost(&self) -> &CancellationToken {
        self.interest.lost()
    }

    fn answered(&self) {
        self.interest.answered();
    }

    fn reading_on(&self) -> &ReadingOn {
        self.interest.reading_on()
    }
}

/// The request as its server is sent it, and the span of the server's call, where it is traced: both name it. A
/// notification has none, nor has a batch.
fn traced(shared: &Shared, mut passage: Passage) -> (CallSpan, Passage) {
    let span = match &passage.post.messages[..] {
        [Message::Request { id, method, target }] => {
            // A process is sent one of ours, which is chosen where it is written.
            let id = shared.upstream.address().map(|_| id);
            CallSpan::begin(shared, passage.trace.as_deref(), (method, target.as_deref()), id)
        }
        _ => CallSpan::default(),
    };
    if let Some(context) = span.context() {
        context.put_in_headers(&mut passage.headers);
        if let Some(named) = passage.message.as_ref().and_then(|message| context.put_in(message)) {
            passage.body = named;
        }
    }
    (span, passage)
}

/// Waits for the server to begin its answer, or, where `may_begin`, until one is begun for it.
async fn wait(
    mut forwarding: BoxFuture<'static, Result<Forwarded, CallError>>,
    mut terms: Box<Terms>,
    is_waited_for: bool,
    may_begin: bool,
) -> Passed {
    let forwarded = tokio::select! {
        // An answer that is there is passed on, whatever else is due.
        biased;
        forwarded = &mut forwarding => forwarded,
        () = terms.sent.stopping.stopped() => Err(CallError::Closing),
        beginning = terms.ladder.beginning(may_begin), if is_waited_for => return match beginning {
            Beginning::Due => begin(forwarding, *terms),
            Beginning::Deadline => give_up(&mut terms),
        },
    };
    match forwarded {
        forwarded if terms.sent.requester.resumed.is_some() => Box::pin(take_up(forwarded, terms)).await,
        Ok(forwarded) => answer(forwarded, terms).await,
        Err(lost) => {
            terms.sent.is_lost(&lost);
            Box::pin(terms.sent.refused(&terms.waiting, &lost)).await
        }
    }
}

/// The client may take requests back.
fn takes_back(shared: &Shared, client: &Client, passage: &Passage) {
    if let Some(key) = client.session {
        for id in passage.post.cancels() {
            shared.sessions.ended.cancel(key, id.clone());
            shared.sessions.in_flight.cancel(key);
        }
    }
}

/// What the request is to its session, where tasks are made for that: they may have something to say on it.
fn in_session(
    shared: &Shared,
    client: &Client,
    purpose: Purpose,
    waiting: &SmallVec<[Id; 1]>,
    requester: &Requester,
    resumed: bool,
) -> (Option<Listens>, Option<Arc<TheirCall>>) {
    let has_tasks = || shared.route.has_tasks() && client.knows_tasks() || shared.route.has_tickets();
    let key = client.session.filter(|_| has_tasks());
    match (key, purpose) {
        (Some(key), Purpose::Listen) => (Some(Listens { key, resumed }), None),
        (Some(key), Purpose::Call | Purpose::Resume) => {
            let (in_flight, comes_back) = (&shared.sessions.in_flight, purpose == Purpose::Resume);
            (None, Some(in_flight.begin_theirs(key, waiting.clone(), comes_back, &requester.asked)))
        }
        (Some(_), Purpose::Begin | Purpose::Ask | Purpose::Once | Purpose::Tell) | (None, _) => (None, None),
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

/// Whether a list of tools may be in the answer: it is asked for, or a stream that could hold one is opened.
fn may_list(passage: &Passage) -> bool {
    let lists =
        |message: &Message| matches!(message, Message::Request { method: protocol::Method::ToolsList, .. });
    passage.method == Method::GET || passage.post.messages.iter().any(lists)
}

fn may_be_asked_twice(message: &Message) -> bool {
    match message {
        Message::Request { method, .. } => method.is_repeatable(),
        Message::Notification(_) | Message::Cancelled(_) | Message::Response(_) => false,
    }
}

/// Whether an event stream can be begun for the client before its server begins: it waits for one
/// response, or comes back for the rest of an answer, and takes event streams.
fn may_begin(passage: &Passage) -> bool {
    // A batch is answered with one, which is no message of an event stream.
    passage.post.messages.len() <= 1 && !passage.post.is_batch && accepts(&passage.headers, EVENT_STREAM)
}

/// For a client that gave its one call a progress token.
fn heartbeat(shared: &Shared, client: &Client, passage: &Passage) -> Option<Heartbeat> {
    shared.route.held.progress?;
    let token = Id::from_token(offer::progress_token(passage.params()?)?)?;
    Some(Heartbeat::new(token.detached().as_bytes().clone(), client.hears_messages()))
}

/// Begins an answer whose server has not.
fn begin(forwarding: BoxFuture<'static, Result<Forwarded, CallError>>, terms: Terms) -> Passed {
    let Terms { sent, waiting, edit: _, hides, listens: _, ladder } = terms;
    let id = waiting.first().expect("a call has an id").clone();
    let body = Body::late(forwarding, id, sent.requester.clone());
    let (silence, timer) = ladder.into_parts();
    let relay = Relay::of_events(answers(waiting, &silence, &sent.requester, 0), silence);
    let mut relaying = Relaying::new(sent, relay, body, Outcome::Result, timer);
    if hides {
        // What its server holds an event to is not known before it has begun.
        relaying.hides_tools(upstream::Limits::default().result_bytes);
    }
    events(Passing::Pieces(relaying.boxed()))
}

/// `limit` is for one message of a batch's answer, in bytes.
fn answers(waiting: SmallVec<[Id; 1]>, silence: &Silence, requester: &Requester, limit: usize) -> Answers {
    let mut answers = Answers::to(waiting, limit);
    if silence.wants_messages() {
        answers = answers.listening();
    }
    if let Some(last_id) = &requester.resumed {
        answers.go_on_after(last_id.as_bytes());
    }
    answers
}

/// The server has begun its answer.
async fn answer(forwarded: Forwarded, mut terms: Box<Terms>) -> Passed {
    let status = forwarded.status;
    let is_waited_for = !terms.waiting.is_empty();
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED
        || status.is_server_error() && is_waited_for
    {
        terms.sent.is_lost(&CallError::Status { status, detail: String::new(), retry_after: None });
        return Box::pin(terms.sent.refused_by(forwarded, &terms.waiting)).await;
    }
    if forwarded.headers.contains_key(CONTENT_ENCODING) {
        // What cannot be read is left alone.
        (terms.edit, terms.hides) = (None, false);
    }
    // One that is only taken (202) is answered on the session's own stream.
    let is_answer = is_waited_for && status.is_success() && status != StatusCode::ACCEPTED;
    if is_answer && forwarded.body.is_over() && terms.sent.requester.resumed.is_none() {
        return Box::pin(terms.sent.refused(&terms.waiting, &deferred_head::empty())).await;
    }
    let limit = match terms.edit.is_some() || terms.hides {
        true if status.is_success() => Some(forwarded.limit),
        true | false => {
            let is_short = forwarded.body.length().is_some_and(|length| length <= WHOLE);
            (is_waited_for && is_short).then_some(WHOLE as usize)
        }
    };
    match limit.filter(|_| !forwarded.is_events()) {
        Some(limit) => {
            let (status, headers) = (forwarded.status, forwarded.headers.clone());
            document(status, headers, forwarded.whole(limit), is_answer, terms).await
        }
        None => go_by(forwarded, is_answer, *terms),
    }
}

/// One document, which is read to its end before it is passed on.
async fn document(
    status: StatusCode,
    mut headers: HeaderMap,
    body: impl Future<Output = Result<Bytes, CallError>>,
    is_answer: bool,
    mut terms: Box<Terms>,
) -> Passed {
    let body = tokio::select! {
        biased;
        body = body => body,
        () = terms.sent.stopping.stopped() => Err(CallError::Closing),
        _deadline = terms.ladder.beginning(false) => return give_up(&mut terms),
    };
    let body = match body {
        Ok(body) => {
            terms.sent.is_over();
            body
        }
        Err(lost) => return Box::pin(terms.sent.refused(&terms.waiting, &lost)).await,
    };
    if body.is_empty() && is_answer {
        return Box::pin(terms.sent.refused(&terms.waiting, &deferred_head::empty())).await;
    }
    if !status.is_success() || terms.edit.is_none() && !terms.hides {
        return terms.sent.whole(status, headers, body);
    }
    let mut body = body;
    if terms.hides {
        let route = &terms.sent.shared.route;
        let listed = Frame::parse(body.clone()).ok();
        body = listed.and_then(|list| deny::hide(&list, |tool| route.denies(tool))).unwrap_or(body);
    }
    if let Some(mut edit) = terms.edit {
        let in_session = headers.get(&SESSION_ID).cloned();
        let edited = Frame::parse(body.clone()).ok().and_then(|frame| edit(&frame, in_session.as_ref()));
        body = edited.unwrap_or(body);
    }
    headers.insert(CONTENT_LENGTH, body.len().into());
    terms.sent.whole(status, headers, body)
}

/// An answer that goes by as it comes.
fn go_by(forwarded: Forwarded, is_answer: bool, terms: Terms) -> Passed {
    let is_events = forwarded.is_events();
    let Forwarded { status, mut headers, body, limit } = forwarded;
    let Terms { sent, waiting, edit, hides, listens, ladder } = terms;
    // As long as nothing of it has been sent, an error can take its place: of any length, and to be read.
    let may_be_replaced =
        is_answer && !headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(CONTENT_ENCODING);
    if body.is_over() {
        sent.is_over();
        return sent.whole(status, headers, Bytes::new());
    }
    let outcome = match outcome(status) {
        Outcome::ServerError => sent.requester.of_error(),
        outcome => outcome,
    };
    let (silence, timer) = ladder.into_parts();
    let relay = match is_events {
        true => Relay::of_events(answers(waiting, &silence, &sent.requester, limit), silence),
        false => {
            let unsaid = if may_be_replaced { waiting } else { SmallVec::new() };
            Relay::of_document(unsaid, outcome == Outcome::Result, silence)
        }
    };
    let mut relaying = Relaying::new(sent, relay, Body::Here(body), outcome, timer);
    if is_events {
        // Comments of ours come between its events, and perhaps an error behind them.
        headers.remove(CONTENT_LENGTH);
    }
    if is_events && status.is_success() {
        if hides {
            relaying.hides_tools(limit);
        }
        relaying.changes = match (edit, listens) {
            (Some(edit), _) => {
                let in_session = headers.get(&SESSION_ID).cloned();
                Changes::Edited(Box::new(Edited { edit, in_session, editor: Editor::new(limit) }))
            }
            (None, Some(Listens { key, resumed })) => {
                let shared = &relaying.sent.shared;
                let of = (&shared.route.path, &shared.sessions);
                Changes::OfSession(Box::new(SessionStream::open(of, key, resumed, limit)))
            }
            (None, None) => Changes::None,
        };
    }
    Passed { status, headers, body: Passing::Pieces(relaying.boxed()) }
}

/// The client has come back for the rest of an answer. Where there is none it is told on an event stream:
/// an HTTP error would answer nothing, and some clients would wait for ever.
async fn take_up(forwarded: Result<Forwarded, CallError>, mut terms: Box<Terms>) -> Passed {
    let lost = match forwarded {
        Ok(forwarded) if forwarded.status.is_success() && forwarded.is_events() => {
            return answer(forwarded, terms).await;
        }
        // It may come back with others.
        Ok(forwarded) if matches!(forwarded.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            terms.waiting.clear();
            return answer(forwarded, terms).await;
        }
        Ok(forwarded) => forwarded.not_taken_up(terms.sent.requester.is_in_session()).await,
        // With the next of us.
        Err(lost @ CallError::Closing) => return untold(&lost, terms.sent.account(outcome_of(&lost))),
        Err(lost) => lost.when_resuming(),
    };
    let Terms { sent, waiting, .. } = *terms;
    let owed = sent.requester.asked.owed(waiting).await;
    sent.requester.answered();
    if owed.is_empty() {
        return sent.unanswered();
    }
    let error = lost_error(&lost);
    let account = sent.account(outcome_of(&lost)).because(&error);
    events(Passing::Whole(Answers::to(owed, 0).last_words(&error), account))
}

/// The client has waited long enough, and nothing has begun.
fn give_up(terms: &mut Terms) -> Passed {
    terms.sent.give_up();
    Limit::HeldDeadline.hit();
    terms.sent.failed(&terms.waiting, &terms.ladder.overdue(), Outcome::UpstreamFailed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dialect::Principal, protocol::Messages};
    use http::HeaderValue;

    #[test]
    fn a_stream_is_begun_for_one_message_and_not_for_a_batch_of_one() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;
        let begins = |body: &str, accept: &'static str| {
            let body = Bytes::copy_from_slice(body.as_bytes());
            may_begin(&Passage {
                standing: Default::default(),
                principal: Principal::from_bytes([1; 16]),
                method: Method::POST,
                query: None,
                headers: HeaderMap::from_iter([(http::header::ACCEPT, HeaderValue::from_static(accept))]),
                post: Post::read(&mut Messages::of(body.clone())).expect("a message"),
                message: None,
                body,
                keep_alive: Duration::ZERO,
                trace: None,
            })
        };
        let both = "application/json, text/event-stream";
        assert!(begins(call, both));
        assert!(!begins(call, "application/json"));
        assert!(!begins(&format!(" [{call}]"), both), "it is answered with a batch");
        assert!(!begins(&format!("[{call},{call}]"), both));
    }
}
