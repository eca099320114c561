//! State shared by all sessions with one legacy server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use super::outbound::{ClientQueues, OutboundLimiter};
use crate::{
    runtime::{Clock, Mutex, SwapCell, SystemClock},
    upstream::{
        Config, UpstreamDescription, UpstreamHealth, background::BackgroundTasks,
        negotiation::RememberedOffer, own_ids, transport::Transport,
    },
};

/// State shared by all sessions with one server.
pub(super) struct ServerContext<W> {
    /// Route of the server, its name for operators.
    pub(super) route: Arc<str>,
    pub(super) config: SwapCell<Config>,
    pub(super) transport: Arc<W>,
    pub(super) request_placement: RequestPlacement,
    /// Last description of the server.
    description: Mutex<Option<Arc<UpstreamDescription>>>,
    /// Revision to offer first.
    pub(super) offer: RememberedOffer,
    /// Limits of messages outside calls.
    pub(super) outbound: OutboundLimiter,
    /// Queued messages in clients' own sessions.
    pub(super) client_queues: Arc<ClientQueues>,
    /// Bytes kept by identities with sessions.
    pub(super) identity_bytes: Arc<AtomicUsize>,
    pub(super) work: BackgroundTasks,
    pub(super) clock: SystemClock,
    /// Number of open sessions.
    sessions: Arc<AtomicUsize>,
    /// Number of sessions created so far: the number of the next.
    made: AtomicU64,
    /// Time of the last check by a `ping`.
    checked: Mutex<Option<Instant>>,
}

/// Counts an open session until dropped.
pub(super) struct OpenSessionGuard(Arc<AtomicUsize>);

/// Streams on which the server has sent its requests. Learned for the whole server, because its code
/// determines it.
#[derive(Debug, Default)]
pub(super) struct RequestPlacement {
    on_stream: AtomicBool,
    off_stream: AtomicBool,
    /// Whether sessions are shared until a request arrives outside a call's stream.
    is_trusted: bool,
    /// Cancelled at the first request on a call's own stream.
    shown: CancellationToken,
}

/// Lower bound of the time between two checks by a `ping`.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

// === impl OpenSessionGuard ===

impl Drop for OpenSessionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<W: Transport> ServerContext<W> {
    /// State of the server, for operators.
    pub(super) fn health(&self) -> UpstreamHealth {
        UpstreamHealth {
            is_up: self.transport.is_up(),
            failure: self.transport.failure(),
            sessions: self.sessions.load(Ordering::Relaxed),
        }
    }

    pub(super) fn new(transport: W, route: &str, config: Config, work: BackgroundTasks) -> Self {
        Self {
            route: route.into(),
            outbound: OutboundLimiter::new(config.limits.messages),
            client_queues: Arc::default(),
            config: config.into(),
            transport: Arc::new(transport),
            request_placement: RequestPlacement { is_trusted: W::IS_COSTLY, ..RequestPlacement::default() },
            description: Mutex::default(),
            offer: RememberedOffer::default(),
            identity_bytes: Arc::default(),
            work,
            clock: SystemClock::new(),
            sessions: Arc::default(),
            made: AtomicU64::new(0),
            checked: Mutex::default(),
        }
    }

    /// Number for a new session, greater than all earlier ones.
    pub(super) fn next_session(&self) -> u64 {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    /// Lower bound of the next session's number.
    pub(super) fn sessions_made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Claims a check by a `ping`: returns `true` once in [`CHECK_PERIOD`].
    pub(super) fn claim_check(&self) -> bool {
        let now = self.clock.now();
        let mut checked = self.checked.lock();
        let is_due = checked.is_none_or(|last| now.saturating_duration_since(last) >= CHECK_PERIOD);
        if is_due {
            *checked = Some(now);
        }
        is_due
    }

    /// Counts an open session.
    pub(super) fn count_session(&self) -> OpenSessionGuard {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        OpenSessionGuard(Arc::clone(&self.sessions))
    }

    /// Id for a request of the proxy.
    pub(super) fn next_id(&self) -> u64 {
        own_ids::next()
    }

    /// Stores the description from a handshake.
    pub(super) fn set_description(&self, description: &Arc<UpstreamDescription>) {
        *self.description.lock() = Some(Arc::clone(description));
    }

    /// Last description of the server.
    pub(super) fn last_description(&self) -> Option<Arc<UpstreamDescription>> {
        self.description.lock().clone()
    }
}

// === impl RequestPlacement ===

impl RequestPlacement {
    /// Notes a request on the stream of its call.
    pub(super) fn note_on_stream(&self) {
        if !self.on_stream.load(Ordering::Relaxed) {
            self.on_stream.store(true, Ordering::Relaxed);
            self.shown.cancel();
        }
    }

    /// Resolves once a request has arrived on the stream of its call.
    pub(super) async fn wait_on_stream(&self) {
        self.shown.cancelled().await;
    }

    /// Notes a request outside its call's stream. It outweighs all others: one is enough to require exclusive
    /// sessions.
    pub(super) fn note_off_stream(&self) {
        self.off_stream.store(true, Ordering::Relaxed);
    }

    /// Whether calls can share a session: the server's requests arrive, or are assumed to arrive, on their
    /// calls' streams.
    pub(super) fn can_share_sessions(&self) -> bool {
        (self.is_trusted || self.on_stream.load(Ordering::Relaxed))
            && !self.off_stream.load(Ordering::Relaxed)
    }
}
