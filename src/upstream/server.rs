//! One server: how it is reached, and what is known of its ways.

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Method as HttpMethod, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use std::{
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{runtime::Handle, sync::Semaphore, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    CallError, Config, Description, NotStarted,
    http1::{Answering, HttpClient, Incoming, Reuse},
    message,
    stream_before_call::InOrder,
    telling::Errands,
    via::Via,
};
use crate::{
    dialect::Credentials,
    protocol::{ErrorObject, Frame, Kind},
    runtime::{Net, spawn_on},
};

/// What all sessions with one server share.
pub(super) struct Server {
    pub(super) config: Config,
    pub(super) client: HttpClient,
    /// The path of the MCP endpoint, its query included.
    pub(super) path: String,
    /// `Host`, as the URL has it.
    pub(super) host: HeaderValue,
    /// What our requests say of having passed here.
    pub(super) via: Via,
    /// Places for answers that are read on after their client left.
    pub(super) departed: Arc<Semaphore>,
    /// GET streams of legacy clients that are about to be opened.
    pub(super) order: InOrder,
    pub(super) asks: Asks,
    /// What the server said of itself last. Locked to put it in or to look at it.
    described: Mutex<Option<Arc<Description>>>,
    /// What is told the server beside calls.
    pub(super) errands: Errands,
    /// Bytes that the identities with sessions keep together.
    pub(super) identity_bytes: Arc<AtomicUsize>,
    own_ids: AtomicU64,
    /// Work that outlives a call: cancellations, answers, farewells.
    work: TaskTracker,
    runtime: Handle,
    /// Set when the house closes.
    pub(super) closing: CancellationToken,
}

/// Where a server has been seen to ask its questions. Learned for the server as a whole: it is a
/// habit of its code.
#[derive(Debug, Default)]
pub(super) struct Asks {
    on_stream: AtomicBool,
    off_stream: AtomicBool,
    /// Cancelled with the first question on a call's own stream.
    shown: CancellationToken,
}

/// Our own requests are numbered from here: far above any call's id, and still exact in a double.
const OWN_IDS: u64 = 1 << 52;
/// How much of an error's body is read.
pub(super) const ERROR_BODY: usize = 64 << 10;
/// How long an error's body is waited for.
pub(super) const ERROR_BODY_TIME: Duration = Duration::from_secs(10);
/// How much of a text is repeated in an error.
const DETAIL_CHARS: usize = 200;

// === impl Server ===

impl Server {
    /// # Errors
    /// [`NotStarted`] where the URL cannot be spoken to.
    pub(super) fn new(config: Config, net: &Net) -> Result<Self, NotStarted> {
        let client = HttpClient::new(config.url.clone(), config.timeouts.connect, net)?;
        let path = config.url.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let host = config.url.authority().map(|authority| {
            let whole = authority.as_str();
            whole.rsplit_once('@').map_or(whole, |(_, host)| host)
        });
        let host = host
            .and_then(|host| HeaderValue::from_str(host).ok())
            .ok_or_else(|| NotStarted::NoHost(config.url.clone()))?;
        let runtime = Handle::try_current().map_err(|_| NotStarted::NoRuntime)?;
        let departed = Arc::new(Semaphore::new(config.limits.departed.min(Semaphore::MAX_PERMITS)));
        let errands = Errands::new(config.limits.messages);
        Ok(Self {
            departed,
            errands,
            order: InOrder::default(),
            config,
            client,
            path,
            host,
            via: Via::new(),
            asks: Asks::default(),
            described: Mutex::default(),
            identity_bytes: Arc::default(),
            own_ids: AtomicU64::new(OWN_IDS),
            work: TaskTracker::new(),
            runtime,
            closing: CancellationToken::new(),
        })
    }

    /// An id for a request of our own.
    pub(super) fn next_id(&self) -> u64 {
        self.own_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The server has said something of itself.
    pub(super) fn describes_itself(&self, description: &Arc<Description>) {
        *self.described.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(description));
    }

    /// What the server said of itself last.
    pub(super) fn described(&self) -> Option<Arc<Description>> {
        self.described.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What every request of a caller carries.
    pub(super) fn headers(&self, credentials: &Credentials) -> HeaderMap {
        let mut headers = credentials.headers().clone();
        headers.insert(header::HOST, self.host.clone());
        headers.insert(header::VIA, self.via.value().clone());
        headers.insert(header::USER_AGENT, HeaderValue::from_static(message::USER_AGENT));
        headers
    }

    /// What every message of a caller carries.
    pub(super) fn posting(&self, credentials: &Credentials) -> HeaderMap {
        let mut headers = self.headers(credentials);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers
    }

    /// Sends one request to the MCP endpoint, with header lines made before.
    pub(super) fn send(&self, method: &HttpMethod, lines: &[u8], further: &[u8], body: Bytes) -> Answering {
        self.client.send(method, &self.path, lines, further, body, Reuse::Any)
    }

    /// Waits for an answer that is not worth more than its status. Bounded by the first-byte timeout.
    pub(super) async fn taken(&self, answering: Answering) -> Result<http::Response<Incoming>, CallError> {
        let limit = self.config.timeouts.first_byte;
        timeout(limit, answering).await.unwrap_or(Err(CallError::FirstByteTimeout(limit)))
    }

    /// Spawns work that [`Server::settle`] waits for. May be called from a destructor on any thread.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        spawn_on(self.work.track_future(work), &self.runtime);
    }

    /// Reads an answer's rest, so that its connection can serve the next request; in the background
    /// where it is not there yet. Mostly it is.
    pub(super) fn drain_later(&self, mut rest: Incoming) {
        if rest.is_end_stream() {
            return;
        }
        match rest.frame().now_or_never() {
            Some(None | Some(Err(_))) => {}
            Some(Some(Ok(_))) | None => self.spawn(drain(rest)),
        }
    }

    /// Waits until all spawned work has ended.
    pub(super) async fn settle(&self) {
        self.work.close();
        self.work.wait().await;
    }
}

// === impl Asks ===

impl Asks {
    /// A question came on the stream of the call it belongs to.
    pub(super) fn saw_on_stream(&self) {
        if !self.on_stream.load(Ordering::Relaxed) {
            self.on_stream.store(true, Ordering::Relaxed);
            self.shown.cancel();
        }
    }

    /// Resolves when it has been seen to ask on the stream of the call it belongs to.
    pub(super) async fn shown(&self) {
        self.shown.cancelled().await;
    }

    /// A question came elsewhere. This outweighs all that came on a call's stream: once is enough
    /// to need a session for each call.
    pub(super) fn saw_off_stream(&self) {
        self.off_stream.store(true, Ordering::Relaxed);
    }

    /// Whether its questions name their call, so that calls can share a session.
    pub(super) fn tells_apart(&self) -> bool {
        self.on_stream.load(Ordering::Relaxed) && !self.off_stream.load(Ordering::Relaxed)
    }
}

/// A whole body of at most `limit` bytes.
///
/// # Errors
/// [`CallError::TooLarge`] and [`CallError::Broken`].
pub(super) async fn whole(body: Incoming, limit: usize) -> Result<Bytes, CallError> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(CallError::TooLarge { limit }),
        Err(error) => Err(CallError::Broken(error.to_string())),
    }
}

/// The body of an answer that reports an error; empty where it does not come in time.
pub(super) async fn error_body(body: Incoming) -> Bytes {
    match timeout(ERROR_BODY_TIME, whole(body, ERROR_BODY)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) | Err(_) => Bytes::new(),
    }
}

/// What an HTTP error that is no JSON-RPC message says. 401, and 403 with a challenge, are about
/// credentials (RFC 9110, 11.6.1; RFC 6750, 3.1); without one a 403 is not, and its words are all there
/// is: a server that does not know the name it is called by says so like that. A redirect is not
/// followed, and its target named.
pub(super) fn refused(status: StatusCode, headers: &HeaderMap, body: &Bytes) -> CallError {
    let challenge = headers.get(header::WWW_AUTHENTICATE);
    match (status, challenge) {
        (StatusCode::UNAUTHORIZED, challenge) => {
            return CallError::Unauthorized { status, challenge: challenge.cloned() };
        }
        (StatusCode::FORBIDDEN, Some(challenge)) => {
            return CallError::Unauthorized { status, challenge: Some(challenge.clone()) };
        }
        (StatusCode::FORBIDDEN, None) => {
            let error = Frame::parse(body.clone()).ok().and_then(|frame| match frame.kind() {
                Kind::Failure { error, .. } => Some(ErrorObject::from_raw(Bytes::copy_from_slice(error))),
                Kind::Request { .. } | Kind::Notification { .. } | Kind::Success { .. } => None,
            });
            let words = error.as_ref().map(|error| shown(&error.message()));
            return CallError::Forbidden { detail: words.unwrap_or_else(|| in_words(status, body)), error };
        }
        _ => {}
    }
    let target = headers.get(header::LOCATION).and_then(|target| target.to_str().ok());
    let detail = match target {
        Some(target) if status.is_redirection() => {
            format!("redirected to {target}; name that as the upstream's URL")
        }
        Some(_) | None => in_words(status, body),
    };
    CallError::Status { status, detail }
}

/// What an error's body says, or else its status.
fn in_words(status: StatusCode, body: &Bytes) -> String {
    match std::str::from_utf8(body).map(str::trim) {
        Ok(text) if !text.is_empty() => shown(text),
        Ok(_) | Err(_) => status.canonical_reason().unwrap_or("no reason given").to_owned(),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(DETAIL_CHARS).collect()
}

/// Reads an answer's rest in the background, so that its connection can serve the next request.
/// Gives up soon: a server may leave a stream open for no reason.
async fn drain(mut body: Incoming) {
    let _ = timeout(Duration::from_secs(1), async { while let Some(Ok(_)) = body.frame().await {} }).await;
}
