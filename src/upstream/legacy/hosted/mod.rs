//! The sessions of legacy clients (2025-03-26 to 2025-11-25) in front of a server that is not spoken to over HTTP.
//!
//! Such a server knows no HTTP requests and no session ids, so what a client sends cannot be passed on as it is.
//! Here it is answered as a well-behaved server of Streamable HTTP would: a POST, a GET and a DELETE are served
//! ([`Sessions::serve`]), and everything above [`Upstream::forward`](crate::upstream::Upstream::forward) works as it
//! does where the server does so itself.
//!
//! A client's session is kept here (`session`); its calls are made in the sessions of the pool, with whoever
//! declares the same (`call`; `group` beside this folder says which, and `attribution` whose a question is).
//! Ids and progress tokens are its own in what it sees, and ours in what the server sees (`words`). `answer` is
//! what a POST is answered with, `stream` the session's GET stream, and `begin` its handshake.
//!
//! A session outlives the child that served it: the next call starts another, with what the client declared, and
//! what it subscribed to is subscribed again.

mod answer;
mod begin;
mod call;
mod session;
mod stream;
#[cfg(test)]
mod tests;
mod words;

use bytes::Bytes;
use dashmap::DashMap;
use http::{HeaderMap, HeaderValue, Method as Verb, StatusCode, header};
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

use super::{exchange::Exchange, group::Group, request::Request, server::Server};
use crate::{
    dialect::{Further, Principal, legacy},
    protocol::{
        ErrorObject, Frame, FrameError, Id, Kind, Messages, Method,
        accept::{EVENT_STREAM, JSON, accepts},
        code,
        headers::SESSION_ID,
    },
    runtime::resize,
    telemetry::Limit,
    upstream::{
        CallError, ClientSession, Deferral, Identity, Limits, NativeCall,
        forward::{Forward, Forwarded, Interest, Passing},
        wire::Wire,
    },
};
use answer::{Answering, Document, Events};
use session::Hosted;

pub(super) use call::HostedCall;

/// The sessions of legacy clients with one server.
pub(super) struct Sessions<W: Wire> {
    server: Arc<Server<W>>,
    table: DashMap<HeaderValue, Arc<Hosted<W>>>,
    /// Places for calls that go on after their client left.
    departed: Arc<Semaphore>,
}

/// Gives the sessions of the pool for what a client declares.
type Groups<'a, W> = &'a (dyn Fn(&Identity) -> Arc<Group<W>> + Sync);

/// Why a request is not answered as it asks.
enum NotServed {
    /// This is its answer.
    Refused(StatusCode, ErrorObject),
    Lost(CallError),
}

/// Messages of one batch (2025-03-26).
const BATCH: usize = 100;

// === impl Sessions ===

impl<W: Wire> Sessions<W> {
    pub(super) fn new(server: Arc<Server<W>>) -> Self {
        let departed = server.config.now().limits.departed.min(Semaphore::MAX_PERMITS);
        Self { server, table: DashMap::new(), departed: Arc::new(Semaphore::new(departed)) }
    }

    /// From now on these limits hold.
    pub(super) fn bound_by(&self, limits: &Limits) {
        resize(&self.departed, self.server.config.now().limits.departed, limits.departed);
    }

    /// Answers one HTTP request of a client.
    ///
    /// # Errors
    /// What became of the one call in it before anything was said, or of the start of a server.
    pub(super) async fn serve(
        &self,
        request: Forward,
        groups: Groups<'_, W>,
    ) -> Result<Forwarded, CallError> {
        if self.server.work.is_closing() {
            return Err(CallError::Closing);
        }
        let answer = match request.method {
            Verb::POST => self.post(request, groups).await,
            Verb::GET => self.listen(&request, groups),
            Verb::DELETE => self.end(&request),
            _ => Err(refused(StatusCode::METHOD_NOT_ALLOWED, "only POST, GET and DELETE are served")),
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(NotServed::Refused(status, error)) => Ok(self.document(status, legacy::refusal(&[], &error))),
            Err(NotServed::Lost(lost)) => Err(lost),
        }
    }

    async fn post(&self, request: Forward, groups: Groups<'_, W>) -> Result<Forwarded, NotServed> {
        let messages = read(&request.body)?;
        if let [message] = &messages[..]
            && let Kind::Request { id, method: Method::Initialize, params } = message.kind()
        {
            return Ok(self.begin(request.principal, id, params.as_ref(), groups).await?);
        }
        let session = self.find(request.principal, &request.headers)?;
        let group = session.group(groups);
        let is_batch = request.body.trim_ascii_start().starts_with(b"[");
        let takes_events = accepts(&request.headers, EVENT_STREAM);
        let mut answers = Vec::new();
        for message in messages {
            answers.extend(self.hear(&session, &group, message, &request, takes_events).await?);
        }
        match answers.pop() {
            None => Ok(self.nothing(StatusCode::ACCEPTED)),
            Some(answer) if answers.is_empty() && !is_batch => Ok(self.one(answer, takes_events).await?),
            Some(last) => {
                answers.push(last);
                Ok(self.events(Events::of(answers)))
            }
        }
    }

    /// Takes one message of a client's; gives what answers it, where it is a request.
    async fn hear(
        &self,
        session: &Arc<Hosted<W>>,
        group: &Arc<Group<W>>,
        message: Frame,
        request: &Forward,
        takes_events: bool,
    ) -> Result<Option<Answering<W>>, CallError> {
        let (id, method, params) = match message.kind() {
            Kind::Request { id, method, params } => (id, method, params.as_ref()),
            Kind::Notification { method, params } => {
                session.told(group, method, params.as_ref(), &message);
                return Ok(None);
            }
            Kind::Success { id, result } => {
                session.answered(id, Ok(Bytes::clone(result)));
                return Ok(None);
            }
            Kind::Failure { id, error } => {
                id.iter().for_each(|id| session.answered(id, Err(error.clone())));
                return Ok(None);
            }
        };
        let outcome = match method {
            Method::Ping => Ok(()),
            Method::SetLevel => session.set_level(group, params),
            Method::ResourcesSubscribe => session.subscribe(group, params).await?,
            Method::ResourcesUnsubscribe => session.unsubscribe(params),
            Method::Initialize => {
                Err(ErrorObject::new(code::INVALID_REQUEST, "the session has been initialized"))
            }
            // There are none: those of a server that many share would be everybody's.
            method if method.is_about_legacy_tasks() => {
                Err(ErrorObject::new(code::METHOD_NOT_FOUND, "the server has no tasks of its own"))
            }
            _ => return Ok(Some(self.begin_call(session, group, &message, request, takes_events))),
        };
        let response = match outcome {
            Ok(()) => legacy::success(id, b"{}"),
            Err(error) => legacy::refusal(std::slice::from_ref(id), &error),
        };
        Ok(Some(Answering::there(response)))
    }

    fn begin_call(
        &self,
        session: &Arc<Hosted<W>>,
        group: &Arc<Group<W>>,
        message: &Frame,
        request: &Forward,
        takes_events: bool,
    ) -> Answering<W> {
        let Kind::Request { id, method, .. } = message.kind() else { unreachable!("it is a request") };
        let number = self.server.next_id();
        let (body, token) = words::request(message, number);
        let call = Request {
            id: number,
            method: method.clone(),
            body,
            headers: Further::default(),
            deferral: None,
            timeout: request.timeout,
        };
        let call = HostedCall::new(session, Exchange::native(group.clone(), call), token);
        let interest: Option<Arc<dyn Interest>> = request.interest.clone();
        Answering::begun(call, id.detached(), number, interest, (&self.server, &self.departed), takes_events)
    }

    /// The answer to one request: its response alone, if nothing comes before that, else a stream of events.
    async fn one(&self, mut answering: Answering<W>, takes_events: bool) -> Result<Forwarded, CallError> {
        match answering.next().await {
            Some(said) => {
                let said = said?;
                if answering.is_over() || !takes_events {
                    return Ok(self.document(StatusCode::OK, said));
                }
                Ok(self.events(Events::begun(said, answering)))
            }
            // The client has taken it back.
            None => Ok(self.events(Events::<W>::of(Vec::new()))),
        }
    }

    fn listen(&self, request: &Forward, groups: Groups<'_, W>) -> Result<Forwarded, NotServed> {
        let session = self.find(request.principal, &request.headers)?;
        if !accepts(&request.headers, EVENT_STREAM) {
            return Err(refused(StatusCode::NOT_ACCEPTABLE, "what is heard here is text/event-stream"));
        }
        Ok(self.events(session.listen(session.group(groups), &request.headers)))
    }

    /// The client ends its session.
    fn end(&self, request: &Forward) -> Result<Forwarded, NotServed> {
        let session = self.find(request.principal, &request.headers)?;
        self.table.remove(&session.id);
        session.end();
        Ok(self.nothing(StatusCode::OK))
    }

    /// A call in a client's session that is a task, or may become one. It counts as one.
    pub(super) fn call_in(
        &self,
        session: &ClientSession,
        call: NativeCall,
        groups: Groups<'_, W>,
    ) -> Option<HostedCall<W>> {
        let session = self.find(session.principal, &session.headers).ok()?;
        let NativeCall { id, method, body, .. } = call;
        let (body, token) = match Frame::parse(body.clone()) {
            Ok(message) => words::request(&message, id),
            Err(_) => (body, None),
        };
        let deferral = Deferral::default();
        deferral.comes();
        let request = Request {
            id,
            method,
            body,
            headers: Further::default(),
            deferral: Some(deferral),
            timeout: None,
        };
        Some(HostedCall::new(&session, Exchange::native(session.group(groups), request), token))
    }

    /// Nobody waits for these of a client's calls any more.
    pub(super) fn cancel_in(&self, session: &ClientSession, calls: &[Id]) {
        if let Ok(session) = self.find(session.principal, &session.headers) {
            calls.iter().for_each(|call| session.cancel(call));
        }
    }

    /// Ends the sessions that have had nothing in flight, and on whose stream nobody has listened, for so many rounds.
    /// Called once a `round`.
    pub(super) fn sweep(&self, round: Duration) {
        // The first round is counted when less than one has passed.
        let enough = self.server.config.now().timeouts.idle_session.as_secs().div_ceil(round.as_secs()) + 1;
        // A session is handed out under its shard's lock, so one that only the table holds is nobody's.
        let gone = self.let_go(|session| u64::from(session.is_quiet_for_another_round()) >= enough);
        (0..gone).for_each(|_| Limit::IdleSession.hit());
    }

    /// Ends those that are nobody's at this moment and are to go; gives how many.
    fn let_go(&self, goes: impl Fn(&Hosted<W>) -> bool) -> usize {
        let mut gone = Vec::new();
        self.table.retain(|_, session| {
            let goes = Arc::strong_count(session) == 1 && goes(session);
            if goes {
                gone.push(session.clone());
            }
            !goes
        });
        gone.iter().for_each(|session| session.end());
        gone.len()
    }

    pub(super) fn close(&self) {
        self.table.iter().for_each(|session| session.end());
        self.table.clear();
    }

    fn find(&self, principal: Principal, headers: &HeaderMap) -> Result<Arc<Hosted<W>>, NotServed> {
        let unnamed = "the request names no session (Mcp-Session-Id): begin one with initialize";
        let id = headers.get(&SESSION_ID).ok_or_else(|| refused(StatusCode::BAD_REQUEST, unnamed))?;
        let session = self.table.get(id).map(|session| session.clone());
        // Somebody else's is as unknown as none.
        let session = session.filter(|session| session.principal == principal);
        let unknown = "the session is not known: begin another with initialize";
        let session = session.ok_or_else(|| refused(StatusCode::NOT_FOUND, unknown))?;
        session.is_used();
        Ok(session)
    }

    fn document(&self, status: StatusCode, body: Bytes) -> Forwarded {
        let headers = HeaderMap::from_iter([
            (header::CONTENT_TYPE, HeaderValue::from_static(JSON)),
            (header::CONTENT_LENGTH, body.len().into()),
        ]);
        self.forwarded(status, headers, Passing::Made(Box::new(Document(Some(body)))))
    }

    fn nothing(&self, status: StatusCode) -> Forwarded {
        self.forwarded(status, HeaderMap::new(), Passing::Made(Box::new(Document(None))))
    }

    fn events(&self, body: impl crate::upstream::forward::AnswerBody + 'static) -> Forwarded {
        let headers = HeaderMap::from_iter([
            (header::CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM)),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        ]);
        self.forwarded(StatusCode::OK, headers, Passing::Made(Box::new(body)))
    }

    fn forwarded(&self, status: StatusCode, headers: HeaderMap, body: Passing) -> Forwarded {
        Forwarded { status, headers, body, limit: self.server.config.now().limits.result_bytes }
    }

    /// Makes room for one more session. Where there are too many, those go that have been quiet for the longest, an
    /// eighth of them at a time, so that it is seldom looked for them.
    fn has_room(&self) -> bool {
        let limit = self.server.config.now().limits.client_sessions;
        if self.table.len() < limit {
            return true;
        }
        let mut quiet: Vec<_> =
            self.table.iter().map(|session| session.quiet_for()).filter(|&rounds| rounds > 0).collect();
        quiet.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(&enough) = quiet.get((limit / 8).min(quiet.len().saturating_sub(1))) {
            let gone = self.let_go(|session| session.quiet_for() >= enough);
            (0..gone).for_each(|_| Limit::ClientSessions.hit());
        }
        self.table.len() < limit
    }
}

// === impl NotServed ===

impl From<CallError> for NotServed {
    fn from(lost: CallError) -> Self {
        Self::Lost(lost)
    }
}

fn refused(status: StatusCode, words: &str) -> NotServed {
    NotServed::Refused(status, ErrorObject::new(code::INVALID_REQUEST, words))
}

/// The messages of a POST.
fn read(body: &Bytes) -> Result<Vec<Frame>, NotServed> {
    let unread = |error: &FrameError| {
        let code = match error {
            FrameError::Syntax(_) => code::PARSE_ERROR,
            FrameError::Id
            | FrameError::Shape { .. }
            | FrameError::Member { .. }
            | FrameError::Depth { .. } => code::INVALID_REQUEST,
        };
        NotServed::Refused(StatusCode::BAD_REQUEST, ErrorObject::new(code, error.to_string()))
    };
    let messages = Messages::of(body.clone()).take(BATCH + 1).collect::<Result<Vec<_>, _>>();
    let messages = messages.map_err(|error| unread(&error))?;
    if messages.is_empty() || messages.len() > BATCH {
        let words = format!("a batch has at least one message, and {BATCH} at most");
        return Err(refused(StatusCode::BAD_REQUEST, &words));
    }
    Ok(messages)
}
