//! One session with a server, and the calls in flight on it.
//!
//! Which call something belongs to that arrives in it is told in `attribution`.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method as HttpMethod, header};
use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    CallError, ClientSession, Deferral, Description,
    exchange::Request,
    group::Group,
    hop,
    http1::{self, Answering, Reuse},
    mailbox::{Mailbox, Said},
    message,
    reports::Reports,
    server::{self, Server},
    telling::Errand,
};
use crate::{
    dialect::legacy,
    protocol::{Id, Revision, headers},
    runtime::{Mutex, MutexGuard},
};

/// A session, or what stands for one with a server that has none.
pub(super) struct Session {
    pub(super) server: Arc<Server>,
    pub(super) description: Arc<Description>,
    headers: Headers,
    /// Whom to tell when it ends; gone when nobody is left who could use another.
    pub(super) group: Weak<Group>,
    pub(super) reports: Reports,
    inside: Mutex<Inside>,
    /// Stops the reader of the GET stream.
    pub(super) over: CancellationToken,
    /// The server has no GET stream, so that nothing can arrive outside a call's own response.
    deaf: AtomicBool,
    /// Used since [`Session::was_used`] was last asked.
    used: AtomicBool,
    /// The server has served a call in it.
    has_served: AtomicBool,
    /// A client of the older era has opened it, and goes on using it: it is not ours to end, and
    /// what is said in it is for the client to hear.
    is_clients: bool,
}

/// How the session's messages are sent: their header lines, made once.
struct Headers {
    /// Where they go: the server's own path, or that with what the client has added.
    path: String,
    /// Of every POST.
    posting: Vec<u8>,
    /// Of what has no body.
    bodiless: Vec<u8>,
    /// Which names are in `posting`.
    names: HeaderMap,
    has_id: bool,
}

/// The lock guards a few lines each time. It is never held while waiting; where both are needed,
/// the group's lock is taken first.
#[derive(Default)]
pub(super) struct Inside {
    pub(super) calls: HashMap<u64, InFlight>,
    /// A call that may be asked has left without its end. The server may still be at it, so what it
    /// asks or says without naming a call may be meant for that one, whoever else is in flight.
    pub(super) abandoned: bool,
    /// Everybody who still needs the session: calls, and farewells under way.
    stays: usize,
    /// No new calls; closed when the last stay ends.
    retired: bool,
    /// The server has ended it, or it has been closed: nothing more to say to it.
    ended: bool,
    /// Resolves when what was last to be told in the background has been told.
    told: Option<oneshot::Receiver<()>>,
}

/// A call whose answer is awaited.
pub(super) struct InFlight {
    pub(super) mailbox: Arc<Mailbox>,
    /// The server may ask the client something while it serves this.
    pub(super) may_be_asked: bool,
    /// Whether it has become a task, where it can.
    deferral: Option<Deferral>,
    /// No other call that may be asked is on this session.
    pub(super) exclusive: bool,
    /// The server's questions that were put to this call, until the server has their answers.
    pub(super) questions: Vec<Id>,
}

/// Keeps a session open. A call's stay also keeps it in the session's table.
pub(super) struct Stay {
    session: Arc<Session>,
    call: Option<u64>,
}

/// How long a message waits for those before it: a server that takes none holds up none.
const TURN: Duration = Duration::from_secs(1);

/// Calls of a session that are cancelled at the same time when it is closed.
const AT_ONCE: usize = 32;

// === impl Session ===

impl Session {
    /// A session whose handshake is done; `posting` are the headers of [`Server::posting`].
    pub(super) fn new(
        server: Arc<Server>,
        group: &Arc<Group>,
        description: Description,
        mut posting: HeaderMap,
        id: Option<HeaderValue>,
    ) -> Result<Self, CallError> {
        let version = HeaderValue::from_str(&description.version)
            .map_err(|_| CallError::Invalid("its protocol version is not a header value".to_owned()))?;
        posting.insert(&headers::PROTOCOL_VERSION, version);
        let has_id = id.is_some();
        if let Some(id) = id {
            posting.insert(&headers::SESSION_ID, id);
        }
        let headers = Headers::new(posting, has_id, &server.path);
        let (group, reports) = (Arc::downgrade(group), group.reports.clone());
        let session = Self::at(server, headers, description, group, reports);
        session.server.describes_itself(&session.description);
        Ok(session)
    }

    /// The session of a client of the older era, by what its requests carry.
    pub(super) fn of_client(server: Arc<Server>, session: &ClientSession) -> Self {
        let ClientSession { query, headers } = session;
        let mut bodiless = headers.clone();
        bodiless.remove(header::CONTENT_TYPE);
        bodiless.remove(header::ACCEPT);
        let headers = Headers {
            path: hop::with_query(&server.path, query.as_deref()).into_owned(),
            posting: hop::lines(&server.host, server.via.value(), headers),
            bodiless: hop::lines(&server.host, server.via.value(), &bodiless),
            names: headers.clone(),
            has_id: headers.contains_key(&headers::SESSION_ID),
        };
        let session = Self::at(server, headers, Description::unknown(), Weak::new(), Reports::default());
        // Its GET stream is read by the client.
        session.deaf.store(true, Ordering::Relaxed);
        Self { is_clients: true, ..session }
    }

    fn at(
        server: Arc<Server>,
        headers: Headers,
        description: Description,
        group: Weak<Group>,
        reports: Reports,
    ) -> Self {
        let over = server.closing.child_token();
        Self {
            server,
            description: Arc::new(description),
            headers,
            group,
            reports,
            inside: Mutex::default(),
            over,
            deaf: AtomicBool::new(false),
            used: AtomicBool::new(true),
            has_served: AtomicBool::new(false),
            is_clients: false,
        }
    }

    /// Whether what is said in it is for a client of the older era to hear.
    pub(super) fn is_clients(&self) -> bool {
        self.is_clients
    }

    /// Waits for the GET stream that the client has asked for before it called.
    pub(super) async fn wait_for_stream(&self) {
        if let Some(id) = self.headers.names.get(&headers::SESSION_ID) {
            self.server.order.wait(id).await;
        }
    }

    pub(super) fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call before it is sent, so that nothing can arrive for it unseen. `None` where the
    /// session has ended: the server has been told so, or will be, and is sent nothing behind that.
    pub(super) fn enter(
        self: &Arc<Self>,
        request: &Request,
        mailbox: &Arc<Mailbox>,
        exclusive: bool,
    ) -> Option<Stay> {
        let call = InFlight {
            mailbox: mailbox.clone(),
            may_be_asked: request.method.may_ask(),
            deferral: request.deferral.clone(),
            exclusive,
            questions: Vec::new(),
        };
        self.used.store(true, Ordering::Relaxed);
        let mut inside = self.inside();
        // Under the lock: whoever ends the session says so here, and cancels the calls that are in it then.
        if inside.ended && !self.is_clients {
            return None;
        }
        inside.calls.insert(request.id, call);
        inside.stays += 1;
        Some(Stay { session: self.clone(), call: Some(request.id) })
    }

    /// Keeps the session open for something that is no call.
    pub(super) fn stay(self: &Arc<Self>) -> Stay {
        self.inside().stays += 1;
        Stay { session: self.clone(), call: None }
    }

    fn send(&self, method: &HttpMethod, lines: &[u8], further: &[u8], body: Bytes) -> Answering {
        self.server.client.send(method, &self.headers.path, lines, further, body, Reuse::Any)
    }

    fn send_in_passing(&self, method: &HttpMethod, lines: &[u8], body: Bytes, reuse: Reuse) -> Answering {
        self.server.client.send_in_passing(method, &self.headers.path, lines, &[], body, reuse)
    }

    /// Sends a call.
    pub(super) fn post(&self, body: Bytes, further: &HeaderMap) -> Answering {
        let mut lines = Vec::new();
        for (name, value) in further {
            if is_passed_on(name) && !self.headers.names.contains_key(name) {
                http1::line(&mut lines, name, value);
            }
        }
        let Headers { path, posting, .. } = &self.headers;
        self.server.client.send(&HttpMethod::POST, path, posting, &lines, body, Reuse::Proven)
    }

    /// Sends a notification or a response.
    pub(super) async fn tell(&self, body: Bytes, reuse: Reuse) -> Result<(), CallError> {
        let posted = self.send_in_passing(&HttpMethod::POST, &self.headers.posting, body, reuse);
        let response = self.server.taken(posted).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            // The status is the whole answer. What a server leaves open behind it (a 202 whose body
            // has neither length nor end) keeps nobody waiting.
            self.server.drain_later(body);
            return Ok(());
        }
        Err(server::refused(head.status, &head.headers, &server::error_body(body).await))
    }

    /// Answers, in the background, a question that the server asked in the course of this call.
    pub(super) fn answer_later(self: &Arc<Self>, call: u64, id: Id, outcome: &Result<Bytes, Bytes>) {
        let body = message::response(&id, outcome);
        self.stay().tell_in_turn(Errand::Answer { call, id }, body);
    }

    /// Answers, in the background, a request of the server that concerns no call. One that asks faster
    /// than it takes the answers does not get them all.
    pub(super) fn respond_later(self: &Arc<Self>, id: &Id, outcome: &Result<Bytes, Bytes>) {
        if let Some(courtesy) = self.server.errands.courtesy() {
            self.stay().tell_in_turn(courtesy, message::response(id, outcome));
        }
    }

    /// Tells the server, in the background, that nobody waits any more for a call that its client has made.
    pub(super) fn cancel_later(self: &Arc<Self>, call: &Id, reason: &str) {
        self.stay().tell_in_turn(Errand::Cancel, legacy::cancelled(call, reason));
    }

    /// A question is over, be it answered or taken back. Gives the call that it was put to, if that is
    /// still in flight.
    pub(super) fn was_answered(&self, call: u64, id: &Id) -> Option<Arc<Mailbox>> {
        let mut inside = self.inside();
        let call = inside.calls.get_mut(&call)?;
        if let Some(at) = call.questions.iter().position(|question| question == id) {
            call.questions.swap_remove(at);
        }
        Some(call.mailbox.clone())
    }

    /// Opens a stream of what the server says of its own accord, or takes up a broken one.
    pub(super) fn get(&self, last_id: Option<&str>) -> Answering {
        let mut lines = b"accept: text/event-stream\r\n".to_vec();
        // An id that is no header value cannot be named; the stream then begins anew.
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            http1::line(&mut lines, &headers::LAST_EVENT_ID, &id);
        }
        self.send(&HttpMethod::GET, &self.headers.bodiless, &lines, Bytes::new())
    }

    /// Whether the server gave it an id, and so can lose it.
    pub(super) fn has_id(&self) -> bool {
        self.headers.has_id
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Relaxed)
    }

    /// There is no GET stream, or none any more: calls that wait for an answer outside their own
    /// response wait in vain.
    pub(super) fn set_deaf(&self) {
        self.deaf.store(true, Ordering::Relaxed);
        let calls: Vec<_> = self.inside().calls.values().map(|call| call.mailbox.clone()).collect();
        for mailbox in calls {
            mailbox.session_ended();
        }
        // Nothing can be asked where it could not be told apart: who waits for a session can share it.
        if let Some(group) = self.group.upgrade() {
            group.pass_on();
        }
    }

    /// Whether a call is in flight on it that the server may ask something.
    pub(super) fn may_be_asked(&self) -> bool {
        self.inside().calls.values().any(|call| call.may_be_asked)
    }

    /// Whether all calls in flight on it that the server may ask something are tasks, and there is one.
    pub(super) fn is_kept_by_tasks(&self) -> bool {
        let inside = self.inside();
        let mut asked = inside.calls.values().filter(|call| call.may_be_asked).peekable();
        asked.peek().is_some() && asked.all(|call| call.deferral.as_ref().is_some_and(Deferral::has_come))
    }

    /// The server serves a call in it.
    pub(super) fn serves(&self) {
        if !self.has_served.load(Ordering::Relaxed) {
            self.has_served.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the server has served a call in it, so that it was there once.
    pub(super) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// Whether it has been in use since this was last asked.
    pub(super) fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed) | (self.inside().stays > 0)
    }

    /// No new calls from here on. Those in flight go on.
    pub(super) fn retire(self: &Arc<Self>) {
        if self.is_clients {
            return;
        }
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
            self.server.spawn(async move { session.depart().await });
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
        self.reports.is_lost();
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
            call.mailbox.push(Said::Lost(CallError::Closing));
        }
        if known {
            let cancelled = stream::iter(calls.keys()).for_each_concurrent(AT_ONCE, async |id| {
                let _place = self.server.errands.place().await;
                // A server that does not take it sees the session end, or the connection.
                let cancelled = message::cancelled(*id, "the proxy is shutting down");
                let _ = self.tell(cancelled, Reuse::Proven).await;
            });
            cancelled.await;
            self.bid_farewell().await;
        }
    }

    /// Says goodbye, but not before another session hears what somebody listens for.
    async fn depart(&self) {
        if let Some(group) = self.group.upgrade() {
            group.has_successor().await;
        }
        self.bid_farewell().await;
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
        let _place = self.server.errands.place().await;
        let Headers { bodiless, .. } = &self.headers;
        let told = self.send_in_passing(&HttpMethod::DELETE, bodiless, Bytes::new(), Reuse::Proven);
        match self.server.taken(told).await {
            Ok(response) => self.server.drain_later(response.into_body()),
            Err(lost) => tracing::debug!(error = %lost, "the end of a session could not be told"),
        }
    }
}

// === impl Headers ===

impl Headers {
    fn new(posting: HeaderMap, has_id: bool, path: &str) -> Self {
        let mut bodiless = posting.clone();
        bodiless.remove(header::CONTENT_TYPE);
        bodiless.remove(header::ACCEPT);
        Self {
            path: path.to_owned(),
            posting: http1::lines(&posting),
            bodiless: http1::lines(&bodiless),
            names: posting,
            has_id,
        }
    }
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

    /// The call leaves without its end: the server may still be at it. Nothing that names no call is
    /// given to anybody in this session from now on, and no further call is sent in it. Whether the
    /// call had still been in flight, as in [`Stay::finish`].
    pub(super) fn abandon(&mut self) -> bool {
        let Some(call) = self.call.take() else { return false };
        let was_in_flight = {
            let mut inside = self.session.inside();
            let left = inside.calls.remove(&call);
            inside.abandoned |= left.as_ref().is_some_and(|call| call.may_be_asked);
            left.is_some()
        };
        if was_in_flight {
            self.session.retire();
        }
        was_in_flight
    }

    /// Tells the server that nobody waits for this call any more, and keeps the session from
    /// further ones: what is left of the call may go on in it (WIRE, B 4: with some servers a
    /// cancelled request ends the session).
    pub(super) fn cancel(mut self, reason: &'static str) {
        let Some(call) = self.call else { return };
        if self.abandon() {
            self.tell_in_turn(Errand::Cancel, message::cancelled(call, reason));
        }
    }

    /// Sends a message in the background, after those that were to be sent before it. Servers on the
    /// Python SDK lose the whole session if the answer to a question comes while they cancel the call
    /// that asked; behind the cancellation it does no harm.
    fn tell_in_turn(self, errand: Errand, body: Bytes) {
        let (done, told) = oneshot::channel::<()>();
        let before = self.session.inside().told.replace(told);
        let server = self.session.server.clone();
        server.spawn(async move {
            if let Some(before) = before {
                let _ = timeout(TURN, before).await;
            }
            self.session.run_errand(errand, body).await;
            drop(done);
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
            self.session.server.spawn(async move { session.depart().await });
        }
    }
}
