//! What all sessions with one legacy server share, and what is known of its ways.

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

/// What all sessions with one server share.
pub(super) struct ServerContext<W> {
    /// The route it is for, by which it is known to operators.
    pub(super) route: Arc<str>,
    pub(super) config: SwapCell<Config>,
    pub(super) transport: Arc<W>,
    pub(super) request_placement: RequestPlacement,
    /// What the server said of itself last. Locked to put it in or to look at it.
    description: Mutex<Option<Arc<UpstreamDescription>>>,
    /// Which revision it is offered first.
    pub(super) offer: RememberedOffer,
    /// What is told the server beside calls.
    pub(super) outbound: OutboundLimiter,
    /// What is queued in the sessions of clients.
    pub(super) client_queues: Arc<ClientQueues>,
    /// Bytes that the identities with sessions keep together.
    pub(super) identity_bytes: Arc<AtomicUsize>,
    pub(super) work: BackgroundTasks,
    pub(super) clock: SystemClock,
    /// Sessions that are open.
    sessions: Arc<AtomicUsize>,
    /// Sessions that have been made: the number of the next.
    made: AtomicU64,
    /// When a session was last checked by a `ping`.
    checked: Mutex<Option<Instant>>,
}

/// A session that is open; counted until it is dropped.
pub(super) struct OpenSessionGuard(Arc<AtomicUsize>);

/// Where a server has been seen to ask its questions. Learned for the server as a whole: it is a
/// habit of its code.
#[derive(Debug, Default)]
pub(super) struct RequestPlacement {
    on_stream: AtomicBool,
    off_stream: AtomicBool,
    /// Sessions are shared until it has been seen off a call's stream.
    is_trusted: bool,
    /// Cancelled with the first question on a call's own stream.
    shown: CancellationToken,
}

/// How often at most a session with one server is checked by a `ping`.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

// === impl Server ===

impl Drop for OpenSessionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<W: Transport> ServerContext<W> {
    /// How it is, for operators.
    pub(super) fn health(&self) -> UpstreamHealth {
        UpstreamHealth {
            is_up: self.transport.is_up(),
            failure: self.transport.failure(),
            sessions: self.sessions.load(Ordering::Relaxed),
        }
    }

    pub(super) fn new(wire: W, route: &str, config: Config, work: BackgroundTasks) -> Self {
        Self {
            route: route.into(),
            outbound: OutboundLimiter::new(config.limits.messages),
            client_queues: Arc::default(),
            config: config.into(),
            transport: Arc::new(wire),
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

    /// A number for a session, greater than those of all before it.
    pub(super) fn next_session(&self) -> u64 {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that the next session has at least.
    pub(super) fn sessions_made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Whether a session may be checked by a `ping` now: once in [`CHECK_PERIOD`]. Counts as checked then.
    pub(super) fn claim_check(&self) -> bool {
        let now = self.clock.now();
        let mut checked = self.checked.lock();
        let is_due = checked.is_none_or(|last| now.saturating_duration_since(last) >= CHECK_PERIOD);
        if is_due {
            *checked = Some(now);
        }
        is_due
    }

    /// One more session is open.
    pub(super) fn count_session(&self) -> OpenSessionGuard {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        OpenSessionGuard(Arc::clone(&self.sessions))
    }

    /// An id for a request of our own.
    pub(super) fn next_id(&self) -> u64 {
        own_ids::next()
    }

    /// The server has said something of itself.
    pub(super) fn set_description(&self, description: &Arc<UpstreamDescription>) {
        *self.description.lock() = Some(Arc::clone(description));
    }

    /// What the server said of itself last.
    pub(super) fn last_description(&self) -> Option<Arc<UpstreamDescription>> {
        self.description.lock().clone()
    }
}

// === impl Asks ===

impl RequestPlacement {
    /// A question came on the stream of the call it belongs to.
    pub(super) fn note_on_stream(&self) {
        if !self.on_stream.load(Ordering::Relaxed) {
            self.on_stream.store(true, Ordering::Relaxed);
            self.shown.cancel();
        }
    }

    /// Resolves when it has been seen to ask on the stream of the call it belongs to.
    pub(super) async fn wait_on_stream(&self) {
        self.shown.cancelled().await;
    }

    /// A question came elsewhere. This outweighs all that came on a call's stream: once is enough
    /// to need a session for each call.
    pub(super) fn note_off_stream(&self) {
        self.off_stream.store(true, Ordering::Relaxed);
    }

    /// Whether its questions name their call, or are taken to, so that calls can share a session.
    pub(super) fn can_share_sessions(&self) -> bool {
        (self.is_trusted || self.on_stream.load(Ordering::Relaxed))
            && !self.off_stream.load(Ordering::Relaxed)
    }
}
