//! A server as the proxy's upstream shows it: sessions and transports are behind that, and not in here.
//!
//! It goes on with a call whatever becomes of the proxy. What it says is numbered, and where it keeps its events
//! whoever takes the call up hears what followed. It counts what it is told, and answers for nothing.

use bytes::Bytes;
use deferral::internals::{
    dialect::{CallResponse, Principal},
    protocol::{Frame, InputRequest, Method, Payload, RequestId},
    upstream::{
        ApplyReload, CallAnchor, CallError, CallResumption, CallerIdentity, ChangeNotifier, Config, Deferral,
        OutgoingCall, PendingServerRequest, ReadyServer, Responder, ResumedCall, ServerRequest, Subscription,
        Upstream, UpstreamDescription, UpstreamEvent, UpstreamEvents, UpstreamSetupError, UpstreamStatus,
    },
};
use futures_util::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, pending, ready},
    stream,
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::time::sleep;

/// What a server is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// It gives its events ids, and keeps them.
    pub(super) keeps_events: bool,
    /// The first of them comes before it has said anything.
    pub(super) primes: bool,
    /// How long an answer takes to it.
    pub(super) answers_take: Duration,
}

/// The server; clones are the same.
#[derive(Clone)]
pub(super) struct Server {
    kind: Kind,
    calls: Arc<Mutex<BTreeMap<usize, Served>>>,
    /// The proxy is being killed: what it drops it has not let go of.
    is_left: Arc<AtomicBool>,
}

/// One call, as the server has it.
#[derive(Default)]
pub(super) struct Served {
    /// Of its request.
    id: u64,
    pub(super) times_called: usize,
    said: Vec<Said>,
    pub(super) questions: Vec<Put>,
    /// How many cancellations it received.
    pub(super) cancelled: usize,
    /// How it ended.
    pub(super) end: Option<Word>,
    /// It has lost what it kept of the call.
    pub(super) has_forgotten: bool,
    /// Answers that are on their way.
    pub(super) under_way: usize,
    listener: Option<Waker>,
}

/// A question.
#[derive(Default)]
pub(super) struct Put {
    /// What came back, each once.
    pub(super) answers: BTreeSet<String>,
    /// It was withdrawn or refused.
    pub(super) is_over: bool,
}

/// What it has said of a call, in order.
#[derive(Clone, Copy, Debug)]
enum Said {
    Progress,
    Question(usize),
    Withdrawn(usize),
    End(Word),
}

/// The last thing it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Result,
    ToolError,
    Error,
    /// Its connection broke for good.
    Lost,
}

/// The error of a call that failed.
pub(super) const ERROR: i64 = -32050;

// === impl Server ===

impl Server {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, calls: Arc::default(), is_left: Arc::default() }
    }

    pub(super) fn calls(&self) -> MutexGuard<'_, BTreeMap<usize, Served>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reports(&self, call: usize) {
        self.says(call, Said::Progress);
    }

    pub(super) fn asks(&self, call: usize) {
        let number = {
            let mut calls = self.calls();
            let questions = &mut calls.get_mut(&call).expect("it was called").questions;
            questions.push(Put::default());
            questions.len() - 1
        };
        self.says(call, Said::Question(number));
    }

    pub(super) fn withdraws(&self, call: usize, question: usize) {
        self.calls().get_mut(&call).expect("it was called").questions[question].is_over = true;
        self.says(call, Said::Withdrawn(question));
    }

    pub(super) fn ends(&self, call: usize, word: Word) {
        self.calls().get_mut(&call).expect("it was called").end = Some(word);
        self.says(call, Said::End(word));
    }

    /// Calls that were cancelled while a request still waits for them.
    pub(super) fn listened_to_in_vain(&self) -> Vec<usize> {
        let calls = self.calls();
        let is_one =
            |served: &Served| served.end.is_none() && served.cancelled > 0 && served.listener.is_some();
        calls.iter().filter(|(_, served)| is_one(served)).map(|(call, _)| *call).collect()
    }

    fn says(&self, call: usize, said: Said) {
        let mut calls = self.calls();
        let served = calls.get_mut(&call).expect("it was called");
        served.said.push(said);
        served.listener.take().into_iter().for_each(Waker::wake);
    }

    /// The proxy is killed by this: no message in flight arrives.
    pub(super) fn is_left_by(&self, kill: impl FnOnce()) {
        self.is_left.store(true, Ordering::Relaxed);
        kill();
        self.is_left.store(false, Ordering::Relaxed);
        for served in self.calls().values_mut() {
            served.listener = None;
            served.under_way = 0;
        }
    }

    fn cancelled(&self, call: usize) {
        if let Some(served) = self.calls().get_mut(&call) {
            served.cancelled += 1;
        }
    }

    fn way(&self, call: usize, id: &RequestId) -> Way {
        let number =
            id.to_string().trim_matches('"').rsplit('-').next().and_then(|number| number.parse().ok());
        Way { server: self.clone(), call, question: number.expect("an id of ours"), is_open: true }
    }
}

impl Upstream for Server {
    fn call(&self, OutgoingCall { id, call, deferral, .. }: OutgoingCall) -> UpstreamEvents {
        if call.method == Method::ToolsList {
            return stream::iter([response(r#"{"tools":[]}"#)]).boxed();
        }
        let number = number(call.target.as_deref());
        let mut calls = self.calls();
        let served = calls.entry(number).or_default();
        served.times_called += 1;
        served.id = id;
        Connection::new(self, number, 0, deferral, &[]).boxed()
    }

    fn describe(&self, _: &CallerIdentity) -> BoxFuture<'_, Result<Arc<UpstreamDescription>, CallError>> {
        let capabilities = Payload::read(Bytes::from_static(br#"{"tools":{}}"#));
        ready(Ok(Arc::new(UpstreamDescription { capabilities, ..UpstreamDescription::unknown() }))).boxed()
    }

    fn ready_server(&self, _: &CallerIdentity) -> Option<ReadyServer> {
        None
    }

    fn status(&self) -> UpstreamStatus {
        UpstreamStatus::default()
    }

    fn watch(&self, _: Principal) -> ChangeNotifier {
        ChangeNotifier::default()
    }

    fn subscribe<'a>(
        &'a self,
        _: &'a CallerIdentity,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Subscription, CallError>> {
        pending().boxed()
    }

    fn prepare_reload(&self, _: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        Ok(Box::new(|| {}))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    fn resumption(&self) -> Option<&dyn CallResumption> {
        Some(self)
    }
}

impl CallResumption for Server {
    fn resume_call(
        &self,
        _: &CallerIdentity,
        anchor: &CallAnchor,
        open: Vec<RequestId>,
        deferral: Deferral,
    ) -> Option<ResumedCall> {
        let number = number(Some(&anchor.session));
        let at = anchor.last_event.as_ref()?.parse().expect("an id of ours");
        let ways = open.iter().map(|id| -> Box<dyn Responder> { Box::new(self.way(number, id)) }).collect();
        let replies = match self.calls()[&number].has_forgotten {
            true => stream::iter([UpstreamEvent::Lost(CallError::SessionEnded)]).boxed(),
            false => Connection::new(self, number, at, Some(deferral), &open).boxed(),
        };
        Some(ResumedCall { replies, open_requests: ways, off_stream: None })
    }

    fn cancel_at(&self, _: &CallerIdentity, anchor: &CallAnchor) -> BoxFuture<'_, bool> {
        let number = number(Some(&anchor.session));
        let cancelled = move |()| {
            self.cancelled(number);
            true
        };
        sleep(self.kind.answers_take).map(cancelled).boxed()
    }
}

/// The number of a call, which its tool is named for, and its session.
fn number(tool: Option<&str>) -> usize {
    tool.and_then(|tool| tool.strip_prefix('t')?.parse().ok()).expect("a tool of ours")
}

fn response(result: &str) -> UpstreamEvent {
    let message = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{result}}}"#);
    UpstreamEvent::Final(CallResponse::relayed(Frame::parse(message.into()).expect("a response")))
}

/// The stream of one call's events, from some event on.
struct Connection {
    server: Server,
    call: usize,
    /// How much was said on it.
    at: usize,
    /// The last resume point of the call.
    told: Option<usize>,
    deferral: Option<Deferral>,
    /// Input requests that the resumed call knows of.
    known: Vec<usize>,
    is_over: bool,
}

// === impl Connection ===

impl Connection {
    fn new(server: &Server, call: usize, at: usize, deferral: Option<Deferral>, known: &[RequestId]) -> Self {
        let known = known.iter().map(|id| server.way(call, id).forgotten()).collect();
        Self { server: server.clone(), call, at, told: None, deferral, known, is_over: false }
    }

    fn event(&mut self, said: Said) -> Option<UpstreamEvent> {
        let call = self.call;
        Some(match said {
            Said::Progress => {
                let params =
                    json!({ "progressToken": 0, "progress": self.at, "message": format!("at {}", self.at) });
                let notice =
                    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
                UpstreamEvent::Notification(Frame::parse(notice.to_string().into()).expect("a message"))
            }
            Said::Question(question) if self.known.contains(&question) => return None,
            Said::Question(question) => {
                let schema = json!({ "type": "object", "properties": {} });
                let params = json!({ "message": words(call, question), "requestedSchema": schema });
                let raw = json!({ "method": "elicitation/create", "params": params }).to_string();
                let id = id(call, question);
                let answer = Box::new(self.server.way(call, &id));
                let asked = ServerRequest::Canonical(InputRequest::from_raw(raw.into()).expect("a question"));
                UpstreamEvent::ServerRequest(PendingServerRequest { request: asked, id, responder: answer })
            }
            Said::Withdrawn(question) => UpstreamEvent::RequestCancelled { id: id(call, question) },
            Said::End(word) => {
                self.is_over = true;
                match word {
                    Word::Result => response(&result(call, false)),
                    Word::ToolError => response(&result(call, true)),
                    Word::Error => {
                        let message =
                            json!({ "jsonrpc": "2.0", "id": 0, "error": { "code": ERROR, "message": "no" } });
                        let frame = Frame::parse(message.to_string().into()).expect("a response");
                        UpstreamEvent::Final(CallResponse::relayed(frame))
                    }
                    Word::Lost => UpstreamEvent::Lost(CallError::Broken("by the test".to_owned())),
                }
            }
        })
    }

    /// As the proxy's own upstream does it: not before everything that is there has been heard.
    fn tell_where(&mut self, id: u64) {
        let Kind { keeps_events, primes, .. } = self.server.kind;
        let Some(deferral) = self.deferral.as_ref().filter(|deferral| deferral.needs_anchor()) else {
            return;
        };
        if self.told != Some(self.at) {
            self.told = Some(self.at);
            deferral.set_anchor(CallAnchor {
                session: format!("t{}", self.call),
                revision: "2025-11-25".to_owned(),
                call: id,
                last_event: (keeps_events && (primes || self.at > 0)).then(|| self.at.to_string()),
                server_info: String::new(),
                is_clients: false,
            });
        }
    }
}

/// What a question says.
pub(super) fn words(call: usize, question: usize) -> String {
    format!("q{call}-{question}")
}

/// The result of a call.
pub(super) fn result(call: usize, is_error: bool) -> String {
    let content = json!([{ "type": "text", "text": format!("of {call}") }]);
    json!({ "resultType": "complete", "content": content, "isError": is_error }).to_string()
}

fn id(call: usize, question: usize) -> RequestId {
    RequestId::from_token(format!("\"{}\"", words(call, question)).into()).expect("a token")
}

impl Stream for Connection {
    type Item = UpstreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<UpstreamEvent>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            let server = self.server.clone();
            let mut calls = server.calls();
            let served = calls.get_mut(&self.call).expect("it was called");
            let Some(said) = served.said.get(self.at).copied() else {
                served.listener = Some(cx.waker().clone());
                let id = served.id;
                drop(calls);
                self.tell_where(id);
                return Poll::Pending;
            };
            drop(calls);
            self.at += 1;
            if let Some(event) = self.event(said) {
                return Poll::Ready(Some(event));
            }
        }
    }
}

impl Drop for Connection {
    /// Dropping it cancels the call, unless the whole process ends.
    fn drop(&mut self) {
        let is_released = self.deferral.as_ref().is_some_and(Deferral::is_released);
        if !self.is_over && !is_released && !self.server.is_left.load(Ordering::Relaxed) {
            self.server.cancelled(self.call);
        }
    }
}

/// The way of an answer to the server.
struct Way {
    server: Server,
    call: usize,
    question: usize,
    is_open: bool,
}

// === impl Way ===

impl Way {
    fn forgotten(mut self) -> usize {
        self.is_open = false;
        self.question
    }

    fn put(server: &Server, call: usize, question: usize, change: impl FnOnce(&mut Put)) {
        if let Some(served) = server.calls().get_mut(&call) {
            change(&mut served.questions[question]);
        }
    }
}

impl Responder for Way {
    fn respond(mut self: Box<Self>, outcome: Result<Bytes, Bytes>) {
        self.is_open = false;
        let (server, call, question) = (self.server.clone(), self.call, self.question);
        let answer = match outcome {
            Ok(answer) => String::from_utf8_lossy(&answer).into_owned(),
            Err(_) => return Self::put(&server, call, question, |put| put.is_over = true),
        };
        server.calls().get_mut(&call).expect("it was called").under_way += 1;
        tokio::spawn(async move {
            sleep(server.kind.answers_take).await;
            server.calls().get_mut(&call).expect("it was called").under_way -= 1;
            Self::put(&server, call, question, |put| {
                put.answers.insert(answer);
            });
        });
    }

    fn discard(mut self: Box<Self>) {
        self.is_open = false;
    }
}

impl Drop for Way {
    /// Without an answer the question is refused, unless the whole process ends.
    fn drop(&mut self) {
        if self.is_open && !self.server.is_left.load(Ordering::Relaxed) {
            Self::put(&self.server, self.call, self.question, |put| put.is_over = true);
        }
    }
}
