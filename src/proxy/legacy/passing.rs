//! A legacy client's request on its way to a legacy server, and the answer on its way back.
//!
//! Bytes go by as they come; what is added is what keeps a client from waiting for ever. A server
//! that fails a request with an HTTP error, or that cannot be reached, would leave released
//! clients waiting (`WIRE`, B 1, rule 19): they get the JSON-RPC error in a 200. So would an event
//! stream that ends without the response, unless it can be resumed: it gets the error as its last
//! event (rule 20). A stream that the server has begun and then is silent on gets a comment now
//! and then; a JSON answer that has not begun gets nothing, for it is the server's choice which of
//! the two it gives.

use super::{
    edited::{self, Edit, Edited},
    knows_tasks,
    streams::{Key, Stream as Listening},
};
use crate::{
    dialect::legacy::{self, Answers},
    protocol::{
        ErrorObject, Fault, Id,
        headers::{LAST_EVENT_ID, SESSION_ID},
        sse,
        watch::{Gist, Glance},
    },
    proxy::{
        Account, Passage, Passed, Passing, Piece, Then,
        endpoint::Shared,
        reply::{lost_error, outcome_of},
    },
    runtime::Stopping,
    telemetry::Outcome,
    upstream::{self, Forward, Forwarded, Lost, Purpose},
};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture};
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use smallvec::SmallVec;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::time::{Sleep, sleep};

/// A JSON answer of at most this length is passed on whole, so that one that breaks off is still
/// a clear error. A longer one, or one of unknown length, is passed as it comes.
const WHOLE: u64 = 64 << 10;

/// One answer as it goes by.
struct Going {
    body: upstream::Passing,
    /// What is watched of an event stream.
    answers: Option<Answers>,
    /// What a document is.
    document: Glance,
    outcome: Outcome,
    timing: Timing,
    silence: Silence,
    /// What is changed of the answer.
    edited: Option<Box<Edited>>,
    /// The session listens on it, and we may have something to say.
    listening: Option<Box<Listening>>,
    /// The stream broke off, its client could resume it, and this tells whether the server is there.
    broke: Option<(Lost, BoxFuture<'static, bool>)>,
    /// Our own end of it. Made when it is first waited for: most answers are there.
    stop: Option<BoxFuture<'static, ()>>,
    stopping: Stopping,
    over: bool,
}

/// How long the server has been waited for.
struct Timing {
    shared: Arc<Shared>,
    began: Instant,
}

/// When an event stream has been silent for too long.
struct Silence {
    limit: Duration,
    /// Made when it is first waited for, too.
    timer: Option<Pin<Box<Sleep>>>,
    broken: bool,
}

/// Passes one request on, and gives what the client is answered with.
pub(super) async fn pass(shared: Arc<Shared>, passage: Passage, edit: Option<Edit>) -> Passed {
    let Passage { principal, method, query, headers, body, post, keep_alive } = passage;
    let waiting = post.waiting();
    // A client that only listens can listen elsewhere; one that waits for an answer is waited for.
    let stopping = match method {
        Method::GET => shared.stopping.clone(),
        _ => shared.overdue.clone(),
    };
    let purpose = match method {
        Method::GET => Purpose::Listen,
        _ if post.may_ask() => Purpose::Call,
        _ if !waiting.is_empty() => Purpose::Ask,
        _ if post.begins() => Purpose::Begin,
        _ => Purpose::Tell,
    };
    // Where tasks are made for the session they may have something to say on it.
    let listens = purpose == Purpose::Listen && knows_tasks(&headers) && shared.route.has_tasks();
    let listens = Key::of(principal, &headers).filter(|_| listens);
    let listens = listens.map(|key| (key, headers.contains_key(&LAST_EVENT_ID)));
    let request = Forward { method, query, headers, body, purpose };
    let timing = Timing { began: shared.clock.now(), shared };
    let forwarded = tokio::select! {
        forwarded = timing.shared.upstream.forward(request) => forwarded,
        () = stopping.stopped() => Err(Lost::Closing),
    };
    match forwarded {
        Ok(forwarded) => {
            let terms = Terms { waiting, edit, listens, keep_alive, stopping };
            answer(forwarded, terms, timing).await
        }
        Err(lost) => refused(&waiting, &lost, &timing),
    }
}

/// How an answer is passed on.
struct Terms {
    /// The requests that it answers.
    waiting: SmallVec<[Id; 1]>,
    edit: Option<Edit>,
    /// The session that listens on it, and whether it goes on where another stream broke.
    listens: Option<(Key, bool)>,
    keep_alive: Duration,
    stopping: Stopping,
}

async fn answer(forwarded: Forwarded, terms: Terms, timing: Timing) -> Passed {
    let Terms { waiting, mut edit, listens, keep_alive, stopping } = terms;
    let status = forwarded.status;
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED
        || status.is_server_error() && !waiting.is_empty()
    {
        return match forwarded.error().await {
            Ok(error) => failed(&waiting, &error, Outcome::UpstreamFailed, &timing),
            Err(lost) => refused(&waiting, &lost, &timing),
        };
    }
    let is_events = forwarded.is_events();
    let in_session = forwarded.headers.contains_key(&SESSION_ID);
    if forwarded.headers.contains_key(CONTENT_ENCODING) {
        // What cannot be read is left alone.
        edit = None;
    }
    if let Some(edit) = edit.as_mut().filter(|_| !is_events && status.is_success()) {
        let (mut headers, limit) = (forwarded.headers.clone(), forwarded.limit);
        return match forwarded.whole(limit).await {
            Ok(body) => {
                let body = edited::document(body, edit, in_session);
                headers.insert(CONTENT_LENGTH, body.len().into());
                whole(status, headers, body, &timing)
            }
            Err(lost) => refused(&waiting, &lost, &timing),
        };
    }
    if !is_events && !waiting.is_empty() && forwarded.body.length().is_some_and(|length| length <= WHOLE) {
        let headers = forwarded.headers.clone();
        return match forwarded.whole(WHOLE as usize).await {
            Ok(body) => whole(status, headers, body, &timing),
            Err(lost) => refused(&waiting, &lost, &timing),
        };
    }
    let Forwarded { mut headers, body, limit, .. } = forwarded;
    if body.is_over() {
        return whole(status, headers, Bytes::new(), &timing);
    }
    let edited = edit.filter(|_| is_events && status.is_success());
    if edited.is_some() {
        headers.remove(CONTENT_LENGTH);
    }
    let listens = listens.filter(|_| is_events && status.is_success());
    let going = Going {
        body,
        answers: is_events.then(|| Answers::to(waiting, limit)),
        document: Glance::default(),
        outcome: outcome(status),
        silence: Silence { limit: keep_alive, timer: None, broken: false },
        edited: edited.map(|edit| Box::new(Edited::new(edit, in_session, limit))),
        listening: listens.map(|(key, resumed)| Box::new(timing.shared.streams.open(key, resumed))),
        timing,
        broke: None,
        stop: None,
        stopping,
        over: false,
    };
    Passed { status, headers, body: Passing::Pieces(going.boxed()) }
}

fn outcome(status: StatusCode) -> Outcome {
    match status {
        _ if status.is_server_error() => Outcome::UpstreamFailed,
        _ if status.is_client_error() => Outcome::ServerError,
        _ => Outcome::Result,
    }
}

/// An answer that is there.
fn whole(status: StatusCode, headers: HeaderMap, body: Bytes, timing: &Timing) -> Passed {
    let outcome = match Glance::of(&body) {
        Some(Gist::Error) if status.is_success() => Outcome::ServerError,
        Some(_) | None => outcome(status),
    };
    Passed { status, headers, body: Passing::Whole(body, timing.account(outcome)) }
}

/// There will be no answer, and this is why.
fn refused(waiting: &[Id], lost: &Lost, timing: &Timing) -> Passed {
    let mut passed = failed(waiting, &lost_error(lost), outcome_of(lost), timing);
    // Nothing waits for a response: it is the transport's to tell.
    if waiting.is_empty() {
        passed.status = match lost.fault() {
            Fault::Client => StatusCode::BAD_REQUEST,
            Fault::Server => StatusCode::BAD_GATEWAY,
            Fault::Proxy => StatusCode::SERVICE_UNAVAILABLE,
        };
    }
    passed
}

/// The error for each request that waits.
fn failed(waiting: &[Id], error: &ErrorObject, outcome: Outcome, timing: &Timing) -> Passed {
    let body = legacy::refusal(waiting, error);
    let headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CONTENT_LENGTH, body.len().into()),
    ]);
    Passed { status: StatusCode::OK, headers, body: Passing::Whole(body, timing.account(outcome)) }
}

// === impl Going ===

impl Going {
    /// What goes on of the server's next bytes.
    fn edit(&mut self, bytes: Bytes) -> Bytes {
        let Some(edited) = &mut self.edited else { return bytes };
        let bytes = edited.feed(bytes);
        if !self.body.is_over() {
            return bytes;
        }
        let rest = edited.rest();
        if rest.is_empty() { bytes } else { [bytes, rest].concat().into() }
    }

    /// What we have to say to a session that listens.
    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let Some(listening) = &mut self.listening else { return Poll::Pending };
        // It lives as long as the stream itself.
        listening.told().poll_recv(cx).map(|told| told.expect("its sender is kept where it was opened"))
    }

    /// A piece of the server's.
    fn piece(&mut self, bytes: Bytes) -> Piece {
        let mut account = None;
        if let Some(answers) = &mut self.answers {
            let waited = !answers.waiting().is_empty();
            answers.see(&bytes);
            self.silence.broken = true;
            if waited && answers.waiting().is_empty() {
                self.body.answered();
                if answers.said() == Some(Gist::Error) {
                    self.outcome = Outcome::ServerError;
                }
                account = Some(self.timing.account(self.outcome));
            }
        } else if self.outcome == Outcome::Result {
            self.document.see(&bytes);
            if self.document.gist() == Some(Gist::Error) {
                self.outcome = Outcome::ServerError;
            }
        }
        // Who writes a body of known length does not ask for more once it is there.
        match self.body.is_over() && self.answers.as_ref().is_none_or(|answers| answers.waiting().is_empty())
        {
            true => Piece { bytes, ..self.end() },
            false => Piece { bytes, account, then: Then::More },
        }
    }

    /// The server's end of it, and all is said.
    fn end(&mut self) -> Piece {
        self.over = true;
        let account = Some(self.timing.account(self.outcome));
        Piece { bytes: Bytes::new(), account, then: Then::End }
    }

    /// Whether a client that is left here could go on where it was.
    fn could_resume(&self) -> bool {
        self.answers.as_ref().is_some_and(|answers| !answers.waiting().is_empty() && answers.is_resumable())
    }

    /// Waits until it is known what a stream that broke off means: one whose server has died will
    /// not be resumed, and some clients would wait for ever.
    fn poll_broke(&mut self, cx: &mut Context<'_>) -> Poll<Piece> {
        let Some((_, is_there)) = &mut self.broke else { return Poll::Pending };
        let is_there = ready!(is_there.poll_unpin(cx));
        let (lost, _) = self.broke.take().expect("it is waited for");
        Poll::Ready(match is_there {
            true => self.ended(Some(lost)),
            false => self.unsaid(&lost),
        })
    }

    /// The end of it, be it the server's or another, that may leave something unsaid.
    fn ended(&mut self, lost: Option<Lost>) -> Piece {
        self.over = true;
        let Some(answers) = self.answers.as_ref().filter(|answers| !answers.waiting().is_empty()) else {
            // Nobody waits on a stream of events; a document that is cut off must not look whole.
            let then = match (&lost, &self.answers) {
                (None, _) | (Some(_), Some(_)) => Then::End,
                (Some(_), None) => Then::Break,
            };
            let outcome = lost.as_ref().map_or(self.outcome, outcome_of);
            return Piece { bytes: Bytes::new(), account: Some(self.timing.account(outcome)), then };
        };
        // The client goes on where it was, and finds the rest with the server.
        let resumes = match &lost {
            None | Some(Lost::Broken(_) | Lost::Closing) => answers.is_resumable(),
            Some(_) => false,
        };
        if resumes {
            return Piece {
                bytes: Bytes::new(),
                account: Some(self.timing.account(self.outcome)),
                then: Then::End,
            };
        }
        self.unsaid(&lost.unwrap_or_else(|| Lost::Broken("the answer ended without a response".to_owned())))
    }

    /// The end of an event stream that is not resumed: an error for what was left unsaid.
    fn unsaid(&mut self, lost: &Lost) -> Piece {
        self.over = true;
        self.body.answered();
        let bytes = self.answers.as_ref().map(|answers| answers.last_words(&lost_error(lost)));
        Piece {
            bytes: bytes.unwrap_or_default(),
            account: Some(self.timing.account(outcome_of(lost))),
            then: Then::End,
        }
    }

    /// Whether it is time to end it ourselves.
    fn poll_stop(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let stop = self.stop.get_or_insert_with(|| {
            let stopping = self.stopping.clone();
            async move { stopping.stopped().await }.boxed()
        });
        stop.poll_unpin(cx)
    }
}

impl Stream for Going {
    type Item = Piece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        if this.broke.is_some() {
            return this.poll_broke(cx).map(Some);
        }
        loop {
            return Poll::Ready(Some(match this.body.poll_chunk(cx) {
                Poll::Ready(Some(Ok(bytes))) => match this.edit(bytes) {
                    // More of the event is to come.
                    bytes if bytes.is_empty() && !this.body.is_over() => continue,
                    bytes => this.piece(bytes),
                },
                Poll::Ready(Some(Err(lost @ Lost::Broken(_)))) if this.could_resume() => {
                    this.broke = Some((lost, this.body.is_server_there()));
                    ready!(this.poll_broke(cx))
                }
                Poll::Ready(Some(Err(lost))) => this.ended(Some(lost)),
                Poll::Ready(None) => this.ended(None),
                Poll::Pending if this.poll_stop(cx).is_ready() => this.ended(Some(Lost::Closing)),
                Poll::Pending => {
                    if !this.answers.as_ref().is_some_and(Answers::is_between_events) {
                        return Poll::Pending;
                    }
                    match this.poll_told(cx) {
                        Poll::Ready(bytes) => {
                            this.silence.broken = true;
                            Piece { bytes, account: None, then: Then::More }
                        }
                        Poll::Pending => {
                            ready!(this.silence.poll_overdue(cx));
                            Piece { bytes: sse::KEEP_ALIVE, account: None, then: Then::More }
                        }
                    }
                }
            }));
        }
    }
}

// === impl Timing ===

impl Timing {
    fn account(&self, outcome: Outcome) -> Account {
        let upstream = self.shared.clock.now().saturating_duration_since(self.began);
        Account { outcome, upstream, ..Account::default() }
    }
}

// === impl Silence ===

impl Silence {
    /// Resolves each time it has lasted too long.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.broken) {
            self.timer = None;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        ready!(timer.as_mut().poll(cx));
        self.timer = None;
        Poll::Ready(())
    }
}
