//! One HTTP request of a legacy client, passed on as it is.
//!
//! The client's session is the server's own, so the request goes on with its own headers but those
//! of the hop, and the answer comes back as it comes, a chunk at a time.
//!
//! A departure is no cancel (2025-11-25, *Sending Messages to the Server*). A server sees its
//! connection with us, not the client's: closed in the middle of a call, many take it for one. So
//! what a client has sent is sent to the end, and what it waits for is read to its end, by work of
//! our own if the client has left. Nobody hears what is read then; it is the server that keeps it
//! for a client that resumes with `Last-Event-ID`.
//!
//! An answer whose connection breaks is taken up here, behind the last event ([`Passing::go_on`]): the
//! client cannot know whether its server is still there, and some never ask.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use http_body::Body;
use smallvec::SmallVec;
use std::{
    borrow::Cow,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Sleep, sleep, timeout};

use super::{
    Lost,
    client::{self, Answering, Reuse},
    connection::Incoming,
    messages,
    peer::{self, Peer},
    resume::{self, Refused},
    root_cause,
};
use crate::{
    dialect::legacy,
    protocol::{
        ErrorObject, Frame, Id, Kind, accept,
        headers::{LAST_EVENT_ID, SESSION_ID},
    },
};

/// A request as the client sent it.
#[derive(Debug)]
pub struct Forward {
    pub method: Method,
    /// The query of the URL that the client called.
    pub query: Option<String>,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub purpose: Purpose,
    /// The calls in it: where the proxy ends before they do, the server is told that they are cancelled.
    pub calls: SmallVec<[Id; 1]>,
    /// Says later that the answer is not wanted after all; none where that cannot happen.
    pub interest: Option<Interest>,
}

/// Whether an answer is still wanted. A departure says nothing of that; a cancelled call's answer is
/// not worth a connection that may stay busy for as long as a call may take. Clones speak of the same
/// answer.
#[derive(Clone, Debug, Default)]
pub struct Interest(Arc<AtomicBool>);

/// What a request is for, as far as passing it on goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To hear what the server says: GET.
    Listen,
    /// To hear what follows in an answer that has broken off: GET. A server that cannot be reached may be
    /// about to come back, and is asked again for a while.
    Resume,
    /// To say that the handshake is over: the client will listen now, if it does at all.
    Begin,
    /// To have something done during which the server may ask.
    Call,
    /// To be answered with something that can be asked for twice.
    Ask,
    /// To be answered otherwise: what it does, nobody here knows.
    Once,
    /// To tell something, or to end the session.
    Tell,
}

/// The answer as the server gives it.
#[derive(Debug)]
pub struct Forwarded {
    pub status: StatusCode,
    /// Without those of the hop.
    pub headers: HeaderMap,
    pub body: Passing,
    /// For one message of it, in bytes, where it has to be held ([`super::Limits::result_bytes`]).
    pub limit: usize,
}

/// The body of an answer, as it comes.
pub struct Passing {
    /// `None` once it has been given away.
    body: Option<Incoming>,
    rest: Rest,
}

/// What becomes of an answer whose client leaves.
struct Rest {
    peer: Arc<Peer>,
    wanted: Wanted,
    interest: Option<Interest>,
    /// When time is up, and what is to be said of it then; `None` for what has no time.
    due: Option<(Pin<Box<Sleep>>, Lost)>,
    /// How more is asked for, and told, in the client's name; `None` where neither can be.
    way: Option<Arc<Way>>,
    /// How often it was taken up where it broke; `None` for what cannot be.
    taken_up: Option<u32>,
    /// The calls that it answers.
    calls: SmallVec<[Id; 1]>,
}

/// How something else is said to the server in the client's name.
struct Way {
    /// With the client's query, where it has one.
    path: Option<String>,
    /// The header lines of the request that is answered.
    lines: Vec<u8>,
    /// There is a session that the server can have lost.
    in_session: bool,
}

/// Where an answer broke.
#[derive(Clone, Debug)]
pub struct Anchor {
    /// The id of the last event that had one.
    pub last_id: HeaderValue,
    /// How long the server wants to be left alone before it is asked for more.
    pub retry: Option<Duration>,
}

/// How much the rest of an answer is wanted when nobody listens any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// It is read to its end, so that the server is not disturbed at what the client asked.
    AtAnyPrice,
    /// It is read if that is quick, so that its connection can serve the next request.
    IfQuick,
    No,
}

/// Waits for the head of an answer.
struct Asking {
    /// `None` once the head is here.
    asked: Option<Answering>,
    rest: Option<Rest>,
}

/// What is quick.
const QUICK: Duration = Duration::from_secs(1);

/// Sends a request on, and waits for the head of its answer.
pub(super) async fn forward(peer: Arc<Peer>, request: Forward) -> Result<Forwarded, Lost> {
    if peer.closing.is_cancelled() {
        return Err(Lost::Closing);
    }
    let Forward { method, query, headers, body, purpose, calls, interest } = request;
    let limits = peer.config.timeouts;
    let due = match purpose {
        // For as long as the client likes.
        Purpose::Listen | Purpose::Resume => None,
        Purpose::Call | Purpose::Ask | Purpose::Once => Some((limits.call, Lost::CallTimeout(limits.call))),
        Purpose::Begin | Purpose::Tell => {
            Some((limits.first_byte, Lost::FirstByteTimeout(limits.first_byte)))
        }
    };
    let session = headers.get(&SESSION_ID).cloned();
    let opening = match (purpose, &session) {
        (Purpose::Listen | Purpose::Resume, Some(session)) => Some(peer.order.opens(session)),
        (Purpose::Call, Some(session)) => {
            peer.order.wait(session).await;
            None
        }
        (
            Purpose::Listen
            | Purpose::Resume
            | Purpose::Begin
            | Purpose::Call
            | Purpose::Ask
            | Purpose::Once
            | Purpose::Tell,
            _,
        ) => None,
    };
    let way = Arc::new(Way {
        path: query.map(|query| with_query(&peer.path, Some(&query)).into_owned()),
        lines: lines(&peer, &headers),
        in_session: session.is_some(),
    });
    drop(headers);
    let wanted = match purpose {
        Purpose::Listen | Purpose::Resume => Wanted::No,
        // Also what is only told must reach the server.
        Purpose::Begin | Purpose::Call | Purpose::Ask | Purpose::Once | Purpose::Tell => Wanted::AtAnyPrice,
    };
    let due = due.map(|(limit, lost)| (Box::pin(sleep(limit)), lost));
    let for_calls = (!calls.is_empty()).then(|| way.clone());
    let rest = Rest { peer: peer.clone(), wanted, interest, due, way: for_calls, taken_up: None, calls };
    let (response, mut rest) = match purpose {
        Purpose::Resume => (persist(&peer, &way).await?, rest),
        _ => ask(&method, &way, body, rest, purpose).await?,
    };
    drop(opening);
    if !matches!(purpose, Purpose::Call | Purpose::Ask | Purpose::Once) {
        rest.due = None;
        rest.soften();
    }
    if let (Purpose::Begin, Some(session)) = (purpose, session) {
        peer.order.begins(&session, |expiry| peer.spawn(expiry));
    }
    let (head, body) = response.into_parts();
    let answers = matches!(purpose, Purpose::Call | Purpose::Ask | Purpose::Once | Purpose::Resume);
    if answers && messages::is_events(&head.headers) {
        rest.way = Some(way);
        rest.taken_up = Some(0);
    }
    let limit = rest.peer.config.limits.result_bytes;
    let body = Passing { body: Some(body), rest };
    Ok(Forwarded { status: head.status, headers: without_hop(head.headers), body, limit })
}

/// Sends a request and waits for the head of its answer. What may be sent twice is, where its connection
/// breaks: a server closes idle ones, and the request may be on its way just then.
async fn ask(
    method: &Method,
    way: &Way,
    body: Bytes,
    rest: Rest,
    purpose: Purpose,
) -> Result<(http::Response<Incoming>, Rest), Lost> {
    let twice = may_repeat(purpose);
    let reuse = if twice { Reuse::Any } else { Reuse::Proven };
    let again = twice.then(|| body.clone());
    let answering = match purpose {
        Purpose::Tell => way.send_in_passing(&rest.peer, method, body),
        _ => way.send(&rest.peer, method, reuse, body),
    };
    let rest = match (Asking { asked: Some(answering), rest: Some(rest) }.await, again) {
        (Err((Lost::Broken(_), rest)), Some(body)) => {
            let answering = way.send(&rest.peer, method, reuse, body);
            Asking { asked: Some(answering), rest: Some(rest) }.await
        }
        (answer, _) => answer,
    };
    rest.map_err(|(lost, _)| lost)
}

/// Asks for the rest of an answer, more than once where the server cannot be reached. What it is refused
/// with at last is the answer.
async fn persist(peer: &Peer, way: &Way) -> Result<http::Response<Incoming>, Lost> {
    let attempt = || async {
        match way.send(peer, &Method::GET, Reuse::Any, Bytes::new()).await {
            Ok(response) if resume::is_for_now(response.status()) => Err(Refused::ForNow(Ok(response))),
            Ok(response) => Ok(response),
            Err(lost) => Err(Refused::ForNow(Err(lost))),
        }
    };
    resume::persist(None, attempt).await.or_else(|refused| refused)
}

/// Whether a request may be sent twice.
fn may_repeat(purpose: Purpose) -> bool {
    match purpose {
        Purpose::Listen | Purpose::Resume | Purpose::Begin | Purpose::Ask => true,
        Purpose::Call | Purpose::Once | Purpose::Tell => false,
    }
}

/// The path of the server with the client's query behind its own. What the operator has written into
/// the URL is not the client's to say again: of two values of a name some servers take the last.
pub(super) fn with_query<'a>(path: &'a str, query: Option<&str>) -> Cow<'a, str> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return path.into() };
    let Some((_, own)) = path.split_once('?') else { return format!("{path}?{query}").into() };
    let own: Vec<_> = names(own).collect();
    let mut whole = path.to_owned();
    for pair in query.split('&').filter(|pair| !names(pair).any(|name| own.contains(&name))) {
        whole.push('&');
        whole.push_str(pair);
    }
    whole.into()
}

/// The names in a query as the most generous reader takes them: with `;` between pairs too, escapes
/// decoded, and in small letters.
fn names(query: &str) -> impl Iterator<Item = Vec<u8>> {
    query.split(['&', ';']).filter(|pair| !pair.is_empty()).map(|pair| {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name).as_bytes();
        let digit = |at: usize| name.get(at).and_then(|&byte| char::from(byte).to_digit(16));
        let mut decoded = Vec::with_capacity(name.len());
        let mut at = 0;
        while let Some(&byte) = name.get(at) {
            let escaped = (byte == b'%').then(|| Some(digit(at + 1)? * 16 + digit(at + 2)?)).flatten();
            let byte = match escaped {
                Some(byte) => u8::try_from(byte).expect("two hexadecimal digits make a byte"),
                None if byte == b'+' => b' ',
                None => byte,
            };
            decoded.push(byte.to_ascii_lowercase());
            at += if escaped.is_some() { 3 } else { 1 };
        }
        decoded
    })
}

/// The header lines of a request: the client's own but those of its hop, with the server's name.
pub(super) fn lines(peer: &Peer, headers: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::with_capacity(64 + headers.len() * 48);
    client::line(&mut lines, &header::HOST, &peer.host);
    let named = named_by_connection(headers);
    for (name, value) in headers {
        if !is_of_hop(name) && !is_of_front(name) && !named.contains(name) {
            client::line(&mut lines, name, value);
        }
    }
    // Behind those it has passed before.
    client::line(&mut lines, &header::VIA, peer.via.value());
    lines
}

/// The headers of an answer but those of its hop.
fn without_hop(mut headers: HeaderMap) -> HeaderMap {
    // A length beside a coding does not count (RFC 9112, 6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in named_by_connection(&headers).iter().chain(&OF_HOP) {
        headers.remove(name);
    }
    headers
}

/// Headers that speak of one connection (RFC 9110, 7.6.1), and those a proxy answers for itself.
const OF_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

fn is_of_hop(name: &HeaderName) -> bool {
    OF_HOP.contains(name)
}

/// What our own front has dealt with. An encoded answer could not be watched as it goes by.
fn is_of_front(name: &HeaderName) -> bool {
    [header::HOST, header::ORIGIN, header::CONTENT_LENGTH, header::EXPECT, header::ACCEPT_ENCODING]
        .contains(name)
}

/// The headers that `Connection` declares to be of this hop. A session is not among them whatever
/// it says: without its id a request means another thing.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(','));
    names
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| !name.as_str().starts_with("mcp-") && *name != header::AUTHORIZATION)
        .collect()
}

// === impl Interest ===

impl Interest {
    /// The answer is read to its end only if that is quick, once it is dropped.
    pub fn lose(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_lost(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Forwarded ===

impl Forwarded {
    /// Whether the answer is an event stream that can be read as it goes by.
    pub fn is_events(&self) -> bool {
        messages::is_events(&self.headers) && !self.headers.contains_key(header::CONTENT_ENCODING)
    }

    /// The whole body, of at most `limit` bytes.
    ///
    /// # Errors
    /// [`Lost::TooLarge`] and [`Lost::Broken`]; [`Lost::CallTimeout`] where it is due.
    pub async fn whole(self, limit: usize) -> Result<Bytes, Lost> {
        let mut body = self.body;
        let mut whole = BytesMut::new();
        while let Some(chunk) = poll_fn(|cx| body.poll_chunk(cx)).await {
            let chunk = chunk?;
            if whole.len() + chunk.len() > limit {
                return Err(Lost::TooLarge { limit });
            }
            // The usual case, one chunk, is not copied.
            if whole.is_empty() && body.is_over() {
                return Ok(chunk);
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    }

    /// What it means that a client is answered like this that has come back for the rest of an answer.
    /// `in_session` is whether it named a session.
    pub async fn not_taken_up(mut self, in_session: bool) -> Lost {
        self.body.rest.soften();
        let (status, headers) = (self.status, std::mem::take(&mut self.headers));
        let body = timeout(peer::ERROR_BODY_TIME, self.whole(peer::ERROR_BODY)).await;
        resume::refusal(status, &headers, &body.unwrap_or(Ok(Bytes::new())).unwrap_or_default(), in_session)
    }

    /// What an HTTP error says: a JSON-RPC error, or what else it means.
    pub async fn error(mut self) -> Result<ErrorObject, Lost> {
        self.body.rest.soften();
        let (status, headers) = (self.status, std::mem::take(&mut self.headers));
        // Where it does not come, the status says enough.
        let body = timeout(peer::ERROR_BODY_TIME, self.whole(peer::ERROR_BODY)).await;
        let body = body.unwrap_or(Ok(Bytes::new())).unwrap_or_default();
        if !status.is_redirection()
            && let Ok(frame) = Frame::parse(body.clone())
            && let Kind::Failure { error, .. } = frame.kind()
        {
            return Ok(ErrorObject::from_raw(error.clone()));
        }
        Err(peer::refused(status, &headers, &body))
    }
}

// === impl Passing ===

impl Passing {
    /// The next chunk.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Lost>>> {
        loop {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
                return self.rest.poll_due(cx).map(|lost| Some(Err(lost)));
            };
            return Poll::Ready(match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => Some(Ok(chunk)),
                    Err(_trailers) => continue,
                },
                Some(Err(error)) => {
                    self.body = None;
                    Some(Err(Lost::Broken(root_cause(&error))))
                }
                None => {
                    self.body = None;
                    None
                }
            });
        }
    }

    /// Whether there is nothing more to come.
    pub fn is_over(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    /// How many bytes are still to come, where that is known.
    pub fn length(&self) -> Option<u64> {
        self.body.as_ref().map_or(Some(0), |body| body.size_hint().exact())
    }

    /// Takes up an event stream that broke: what it gives from then on follows the last event. Waits as
    /// long as the server wants, and asks one that cannot be reached for a while.
    ///
    /// # Errors
    /// [`Lost::SessionEnded`] or [`Lost::Broken`] where the server has nothing more to give;
    /// [`Lost::CallTimeout`] where the answer is due.
    pub async fn go_on(mut self, from: Anchor) -> Result<Self, Lost> {
        let (Some(way), Some(times)) = (&self.rest.way, self.rest.taken_up) else {
            return Err(Lost::Invalid("it is no event stream".to_owned()).when_resuming());
        };
        self.rest.taken_up = Some(times.saturating_add(1));
        let lines = way.going_on(&from.last_id);
        let asking = Way { path: way.path.clone(), lines, in_session: way.in_session };
        let peer = self.rest.peer.clone();
        let taken_up = async {
            sleep(resume::first_pause(from.retry, times)).await;
            resume::persist(from.retry, || asking.rest(&peer)).await
        };
        let body = tokio::select! {
            body = taken_up => body?,
            lost = poll_fn(|cx| self.rest.poll_due(cx)) => return Err(lost),
        };
        self.body = Some(body);
        // The server keeps the rest for a client that leaves now.
        self.rest.wanted = Wanted::No;
        Ok(self)
    }

    /// Everything that was asked has been answered: the rest need not be read at any price.
    pub fn answered(&mut self) {
        self.rest.soften();
    }

    /// The client goes on with it by itself: it is dropped without a word to the server, which keeps the
    /// rest for it.
    pub fn release(&mut self) {
        self.rest.wanted = Wanted::No;
    }
}

impl fmt::Debug for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passing").field("wanted", &self.rest.wanted).finish_non_exhaustive()
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            self.rest.read_on(drain(body));
        }
    }
}

// === impl Way ===

impl Way {
    fn send(&self, peer: &Peer, method: &Method, reuse: Reuse, body: Bytes) -> Answering {
        let path = self.path.as_deref().unwrap_or(&peer.path);
        peer.client.send(method, path, &self.lines, &[], body, reuse)
    }

    fn send_in_passing(&self, peer: &Peer, method: &Method, body: Bytes) -> Answering {
        let path = self.path.as_deref().unwrap_or(&peer.path);
        peer.client.send_in_passing(method, path, &self.lines, &[], body)
    }

    /// Tells the server that these calls are cancelled (2025-11-25, *Cancellation*).
    async fn cancel(&self, peer: &Peer, calls: &[Id]) {
        for call in calls {
            let cancelled = legacy::cancelled(call, "the proxy is shutting down");
            // One that does not take it sees the connection break.
            let told = peer.taken(self.send_in_passing(peer, &Method::POST, cancelled)).await;
            drop(told);
        }
    }

    /// The header lines of the GET that asks for what followed this event.
    fn going_on(&self, last_id: &HeaderValue) -> Vec<u8> {
        let mut lines = Vec::with_capacity(self.lines.len());
        for header in self.lines.split_inclusive(|&byte| byte == b'\n') {
            let name = header.split(|&byte| byte == b':').next().unwrap_or_default();
            let replaced = [&header::CONTENT_TYPE, &header::ACCEPT, &LAST_EVENT_ID];
            if !replaced.iter().any(|replaced| replaced.as_str().as_bytes() == name) {
                lines.extend_from_slice(header);
            }
        }
        client::line(&mut lines, &header::ACCEPT, &HeaderValue::from_static(accept::EVENT_STREAM));
        client::line(&mut lines, &LAST_EVENT_ID, last_id);
        lines
    }

    /// Asks once for the rest of an answer.
    async fn rest(&self, peer: &Peer) -> Result<Incoming, Refused<Lost>> {
        let answer = self.send(peer, &Method::GET, Reuse::Any, Bytes::new()).await;
        let (head, body) = answer.map_err(|lost| Refused::ForNow(lost.when_resuming()))?.into_parts();
        if head.status.is_success() && messages::is_events(&head.headers) {
            return Ok(body);
        }
        let body = peer::error_body(body).await;
        let lost = resume::refusal(head.status, &head.headers, &body, self.in_session);
        Err(if resume::is_for_now(head.status) { Refused::ForNow(lost) } else { Refused::ForGood(lost) })
    }
}

// === impl Rest ===

impl Rest {
    fn soften(&mut self) {
        if self.wanted == Wanted::AtAnyPrice {
            self.wanted = Wanted::IfQuick;
        }
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        let Some((due, lost)) = &mut self.due else { return Poll::Pending };
        ready!(due.as_mut().poll(cx));
        Poll::Ready(lost.clone())
    }

    /// The client has left.
    fn read_on(&mut self, reading: impl Future<Output = ()> + Send + 'static) {
        if self.interest.as_ref().is_some_and(Interest::is_lost) {
            self.soften();
        }
        let peer = &self.peer;
        let (place, due) = match self.wanted {
            Wanted::No => return,
            Wanted::IfQuick => (None, None),
            Wanted::AtAnyPrice => {
                let Ok(place) = peer.departed.clone().try_acquire_owned() else {
                    let limit = peer.config.limits.departed;
                    tracing::warn!(target: "deferral::upstream", event = "departed_full", limit);
                    return;
                };
                (Some(place), self.due.take())
            }
        };
        let closing = peer.closing.clone();
        let is_wanted = self.wanted == Wanted::AtAnyPrice;
        let way = self.way.take().filter(|_| is_wanted);
        let (server, calls) = (peer.clone(), std::mem::take(&mut self.calls));
        peer.spawn(async move {
            let _place = place;
            // Made here: a destructor may run where there is no timer.
            let due = async {
                match due {
                    Some((due, _)) => due.await,
                    None => sleep(QUICK).await,
                }
            };
            tokio::select! {
                () = reading => {}
                () = due => {}
                () = closing.cancelled() => {
                    // The connection breaks, which is no cancel; nobody will hear the answer.
                    if let Some(way) = way {
                        way.cancel(&server, &calls).await;
                    }
                }
            }
        });
    }
}

// === impl Asking ===

impl Future for Asking {
    type Output = Result<(http::Response<Incoming>, Rest), (Lost, Rest)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { asked: Some(answering), rest: Some(rest) } = &mut *self else {
            unreachable!("a head is asked for once")
        };
        let answer = match Pin::new(answering).poll(cx) {
            Poll::Ready(answer) => answer,
            Poll::Pending => Err(ready!(rest.poll_due(cx))),
        };
        self.asked = None;
        let rest = self.rest.take().expect("it was there a moment ago");
        Poll::Ready(match answer {
            Ok(response) => Ok((response, rest)),
            Err(lost) => Err((lost, rest)),
        })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let (Some(answering), Some(mut rest)) = (self.asked.take(), self.rest.take()) else { return };
        rest.read_on(async move {
            if let Ok(response) = answering.await {
                drain(response.into_body()).await;
            }
        });
    }
}

async fn drain(mut body: Incoming) {
    while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
}
