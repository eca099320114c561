//! One session with a server, and the calls in flight on it.
//!
//! What arrives outside a call's own response names no call. It belongs to the only call it can
//! belong to, or to none ([`Session::hear`]).

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method as HttpMethod, header};
use hyper_util::client::legacy::ResponseFuture;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{
    Description, Event, Lost, Question, Report, Request,
    answer::Reply,
    group::Group,
    mailbox::Mailbox,
    message,
    peer::{self, Peer},
};
use crate::{
    protocol::{
        Frame, Id, Kind, Method, Revision,
        code::{INTERNAL_ERROR, METHOD_NOT_FOUND},
        headers,
        splice::Object,
    },
    telemetry::QuestionRefused,
};

/// A session, or what stands for one with a server that has none.
pub(super) struct Session {
    pub(super) peer: Arc<Peer>,
    pub(super) description: Arc<Description>,
    /// What every message of the session carries.
    headers: HeaderMap,
    /// Whom to tell when it ends; gone when nobody is left who could use another.
    group: Weak<Group>,
    reports: broadcast::Sender<Report>,
    inside: Mutex<Inside>,
    /// Stops the reader of the GET stream.
    pub(super) over: CancellationToken,
    /// The server has no GET stream, so that nothing can arrive outside a call's own response.
    deaf: AtomicBool,
    /// Used since [`Session::was_used`] was last asked.
    used: AtomicBool,
}

/// The lock guards a few lines each time. It is never held while waiting; where both are needed,
/// the group's lock is taken first.
#[derive(Default)]
struct Inside {
    calls: HashMap<u64, InFlight>,
    /// Everybody who still needs the session: calls, and farewells under way.
    stays: usize,
    /// No new calls; closed when the last stay ends.
    retired: bool,
    /// The server has ended it, or it has been closed: nothing more to say to it.
    ended: bool,
}

/// A call whose answer is awaited.
struct InFlight {
    mailbox: Arc<Mailbox>,
    /// The server may ask the client something while it serves this.
    may_be_asked: bool,
    /// No other call that may be asked is on this session.
    exclusive: bool,
    /// The server's questions that were put to this call.
    questions: Vec<Id>,
}

/// Keeps a session open. A call's stay also keeps it in the session's table.
pub(super) struct Stay {
    session: Arc<Session>,
    call: Option<u64>,
}

/// What to do with a frame that names no call.
enum Verdict {
    Nothing,
    Reply(Id, Result<Bytes, Bytes>),
    Report(Report),
}

// === impl Session ===

impl Session {
    /// A session whose handshake is done; `headers` are those of [`Peer::headers`].
    pub(super) fn new(
        peer: Arc<Peer>,
        group: &Arc<Group>,
        description: Description,
        mut headers: HeaderMap,
        id: Option<HeaderValue>,
    ) -> Result<Self, Lost> {
        let version = HeaderValue::from_str(&description.version)
            .map_err(|_| Lost::Invalid("its protocol version is not a header value".to_owned()))?;
        headers.insert(&headers::PROTOCOL_VERSION, version);
        if let Some(id) = id {
            headers.insert(&headers::SESSION_ID, id);
        }
        let over = peer.closing.child_token();
        Ok(Self {
            peer,
            description: Arc::new(description),
            headers,
            group: Arc::downgrade(group),
            reports: group.reports.clone(),
            inside: Mutex::default(),
            over,
            deaf: AtomicBool::new(false),
            used: AtomicBool::new(true),
        })
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call before it is sent, so that nothing can arrive for it unseen.
    pub(super) fn enter(
        self: &Arc<Self>,
        request: &Request,
        mailbox: &Arc<Mailbox>,
        exclusive: bool,
    ) -> Stay {
        let call = InFlight {
            mailbox: mailbox.clone(),
            may_be_asked: request.method.may_ask(),
            exclusive,
            questions: Vec::new(),
        };
        self.used.store(true, Ordering::Relaxed);
        let mut inside = self.inside();
        inside.calls.insert(request.id, call);
        inside.stays += 1;
        Stay { session: self.clone(), call: Some(request.id) }
    }

    /// Keeps the session open for something that is no call.
    pub(super) fn stay(self: &Arc<Self>) -> Stay {
        self.inside().stays += 1;
        Stay { session: self.clone(), call: None }
    }

    /// Sends a call.
    pub(super) fn post(&self, body: Bytes, further: &HeaderMap) -> ResponseFuture {
        let mut headers = self.posting();
        for (name, value) in further {
            if is_passed_on(name) && !self.headers.contains_key(name) {
                headers.append(name, value.clone());
            }
        }
        self.peer.send(HttpMethod::POST, headers, body)
    }

    /// Sends a notification or a response.
    pub(super) async fn tell(&self, body: Bytes) -> Result<(), Lost> {
        let response = self.peer.tell(HttpMethod::POST, self.posting(), body).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            peer::drain(body).await;
            return Ok(());
        }
        Err(peer::refused(head.status, &head.headers, &peer::error_body(body).await))
    }

    /// Sends a notification or a response in the background. A server that does not take it has
    /// nothing to be told about that.
    pub(super) fn tell_later(self: &Arc<Self>, body: Bytes) {
        let stay = self.stay();
        self.peer.spawn(async move {
            if let Err(lost) = stay.session.tell(body).await {
                tracing::debug!(error = %lost, "a message to the server was not taken");
            }
        });
    }

    fn posting(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers
    }

    /// Opens a stream of what the server says of its own accord, or takes up a broken one.
    pub(super) fn get(&self, last_id: Option<&str>) -> ResponseFuture {
        let mut headers = self.headers.clone();
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        // An id that is no header value cannot be named; the stream then begins anew.
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(&headers::LAST_EVENT_ID, id);
        }
        self.peer.send(HttpMethod::GET, headers, Bytes::new())
    }

    /// Whether the server gave it an id, and so can lose it.
    pub(super) fn has_id(&self) -> bool {
        self.headers.contains_key(&headers::SESSION_ID)
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Relaxed)
    }

    pub(super) fn set_deaf(&self) {
        self.deaf.store(true, Ordering::Relaxed);
    }

    /// Whether it has been in use since this was last asked.
    pub(super) fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed) | (self.inside().stays > 0)
    }

    /// No new calls from here on. Those in flight go on.
    pub(super) fn retire(self: &Arc<Self>) {
        let close = {
            let mut inside = self.inside();
            inside.retired = true;
            inside.stays == 0 && !std::mem::replace(&mut inside.ended, true)
        };
        if let Some(group) = self.group.upgrade() {
            group.remove(self);
        }
        if close {
            let session = self.clone();
            self.peer.spawn(async move { session.bid_farewell().await });
        }
    }

    /// The server no longer knows it. Calls that wait for an answer outside their own response wait
    /// in vain.
    pub(super) fn ended(self: &Arc<Self>) {
        let calls: Vec<_> = {
            let mut inside = self.inside();
            inside.retired = true;
            inside.ended = true;
            inside.calls.values().map(|call| call.mailbox.clone()).collect()
        };
        self.over.cancel();
        if let Some(group) = self.group.upgrade() {
            group.remove(self);
        }
        for mailbox in calls {
            mailbox.session_ended();
        }
    }

    /// Cancels what is in flight and ends the session, as far as the server survives that.
    pub(super) async fn close(self: Arc<Self>) {
        let (calls, known) = {
            let mut inside = self.inside();
            inside.retired = true;
            let known = !std::mem::replace(&mut inside.ended, true);
            (std::mem::take(&mut inside.calls), known)
        };
        for call in calls.values() {
            call.mailbox.push(Event::Lost(Lost::Closing));
        }
        if known {
            for id in calls.keys() {
                let _ = self.tell(message::cancelled(*id, "the proxy is shutting down")).await;
            }
            self.bid_farewell().await;
        }
    }

    /// Says DELETE. Servers on the Python SDK before 2025-06-18 fail all their sessions for ever
    /// after one (WIRE, B 1.5), so they are left to forget the session by themselves.
    async fn bid_farewell(&self) {
        self.over.cancel();
        let survives = Revision::parse(&self.description.version)
            .is_none_or(|revision| revision >= Revision::V2025_06_18);
        if !survives || !self.has_id() {
            return;
        }
        match self.peer.tell(HttpMethod::DELETE, self.headers.clone(), Bytes::new()).await {
            Ok(response) => peer::drain(response.into_body()).await,
            Err(lost) => tracing::debug!(error = %lost, "the end of a session could not be told"),
        }
    }

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
                let call = id.as_number().and_then(|id| Some(self.inside().calls.get(&id)?.mailbox.clone()));
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

    /// What a call's own stream says.
    pub(super) fn hear_on_stream(self: &Arc<Self>, call: u64, frame: Frame) -> Option<Event> {
        match frame.kind() {
            Kind::Request { id, method, .. } => match method {
                Method::Ping => {
                    self.tell_later(message::response(id, &Ok(Bytes::from_static(b"{}"))));
                    None
                }
                Method::Elicit | Method::CreateMessage | Method::RootsList => {
                    self.peer.asks.saw_on_stream();
                    let id = id.clone();
                    if let Some(call) = self.inside().calls.get_mut(&call) {
                        call.questions.push(id.clone());
                    }
                    Some(Event::Question(self.question(frame, id)))
                }
                _ => {
                    self.tell_later(message::response(id, &unknown(method)));
                    None
                }
            },
            Kind::Notification { method: Method::Cancelled, params } => {
                cancelled_id(params.as_ref()).map(|id| Event::Withdrawn { id })
            }
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
        // Nobody may be listening.
        let _ = self.reports.send(report);
    }
}

/// Whether a response answers the call with this number. Some servers hand numbers back as strings.
pub(super) fn is_ours(id: &Id, call: u64) -> bool {
    let token = id.as_bytes();
    let bare = token.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(token);
    std::str::from_utf8(bare).is_ok_and(|text| text.parse() == Ok(call))
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
    Id::from_token(Object::read(params?).ok()?.get("progressToken")?)?.as_number()
}

/// Whether a header of the client may go on to the server. What belongs to the hop, to the
/// session, or is set for every message does not.
fn is_passed_on(name: &HeaderName) -> bool {
    const OURS: [HeaderName; 15] = [
        header::CONNECTION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::PROXY_AUTHORIZATION,
        header::PROXY_AUTHENTICATE,
        header::HOST,
        header::ORIGIN,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::ACCEPT,
        // An encoded answer could not be read.
        header::ACCEPT_ENCODING,
        header::EXPECT,
        header::USER_AGENT,
    ];
    const NAMES: [&str; 7] = [
        "keep-alive",
        "proxy-connection",
        "mcp-session-id",
        "mcp-protocol-version",
        "mcp-method",
        "mcp-name",
        "last-event-id",
    ];
    !OURS.contains(name) && !NAMES.contains(&name.as_str())
}

// === impl Stay ===

impl Stay {
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The call has ended. Whether it had still been in flight: whoever hears `true` says what is
    /// to be said about it, and nobody else does.
    pub(super) fn finish(&mut self) -> bool {
        let Some(call) = self.call.take() else { return false };
        self.session.inside().calls.remove(&call).is_some()
    }

    /// Tells the server that nobody waits for this call any more, and keeps the session from
    /// further ones: what is left of the call may go on in it (WIRE, B 4: with some servers a
    /// cancelled request ends the session).
    pub(super) fn cancel(mut self, reason: &'static str) {
        let Some(call) = self.call else { return };
        if !self.finish() {
            return;
        }
        self.session.retire();
        let peer = self.session.peer.clone();
        peer.spawn(async move {
            if let Err(lost) = self.session.tell(message::cancelled(call, reason)).await {
                tracing::debug!(error = %lost, "a cancellation was not taken");
            }
        });
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.finish();
        let close = {
            let mut inside = self.session.inside();
            inside.stays -= 1;
            inside.retired && inside.stays == 0 && !std::mem::replace(&mut inside.ended, true)
        };
        if close {
            let session = self.session.clone();
            self.session.peer.spawn(async move { session.bid_farewell().await });
        }
    }
}
