//! State shared by all sessions with one legacy server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use super::{
    negotiation::RememberedOffer,
    outbound::{ClientQueues, OutboundLimiter},
};
use crate::{
    runtime::{Clock, Mutex, SwapCell, SystemClock},
    upstream::{
        Config, UpstreamDescription, UpstreamStatus, background::BackgroundTasks, own_ids,
        transport::Transport,
    },
};

/// State shared by all sessions with one legacy server.
pub(super) struct ServerContext<W> {
    /// Route of the server, its name for operators.
    pub(super) route: Arc<str>,
    pub(super) config: SwapCell<Config>,
    pub(super) transport: Arc<W>,
    /// Streams on which the server has sent its requests.
    pub(super) request_placement: RequestPlacement,
    /// Description from the last handshake; `None` before the first.
    description: Mutex<Option<Arc<UpstreamDescription>>>,
    /// Revision to offer first in a handshake.
    pub(super) remembered_offer: RememberedOffer,
    /// Limits of messages outside calls.
    pub(super) outbound: OutboundLimiter,
    /// Queued messages in sessions that clients opened.
    pub(super) client_queues: Arc<ClientQueues>,
    /// Bytes that identities with session pools keep, in total.
    pub(super) identity_bytes: Arc<AtomicUsize>,
    pub(super) work: BackgroundTasks,
    pub(super) clock: SystemClock,
    /// Number of open sessions.
    open_sessions: Arc<AtomicUsize>,
    /// Number of sessions created so far, which is the number of the next one.
    created_sessions: AtomicU64,
    /// Time of the last check by a `ping`.
    last_check: Mutex<Option<Instant>>,
}

/// Counts an open session until dropped.
pub(super) struct OpenSessionGuard(Arc<AtomicUsize>);

/// Streams on which the server has sent its requests so far. Learned for the whole server, because its code
/// determines the choice.
#[derive(Debug, Default)]
pub(super) struct RequestPlacement {
    seen_on_stream: AtomicBool,
    seen_off_stream: AtomicBool,
    /// Whether sessions are shared until a request of the server arrives outside a call's stream.
    is_sharing_default: bool,
    /// Cancelled at the first request on a call's own stream.
    on_stream_seen: CancellationToken,
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
    /// What is known of the server, with the number of its open sessions.
    pub(super) fn status(&self) -> UpstreamStatus {
        let last_attempt = self.transport.last_attempt();
        UpstreamStatus {
            is_up: last_attempt.as_ref().map(Result::is_ok),
            failure: last_attempt.and_then(Result::err),
            sessions: self.open_sessions.load(Ordering::Relaxed),
            takes_turns: W::IS_COSTLY,
            description: self.description.lock().clone(),
        }
    }

    /// Creates the state for a server that is reached over `transport`.
    pub(super) fn new(transport: W, route: &str, config: Config, work: BackgroundTasks) -> Self {
        Self {
            route: route.into(),
            outbound: OutboundLimiter::new(config.limits.messages),
            client_queues: Arc::default(),
            config: config.into(),
            transport: Arc::new(transport),
            request_placement: RequestPlacement {
                is_sharing_default: W::IS_COSTLY,
                ..RequestPlacement::default()
            },
            description: Mutex::default(),
            remembered_offer: RememberedOffer::default(),
            identity_bytes: Arc::default(),
            work,
            clock: SystemClock::new(),
            open_sessions: Arc::default(),
            created_sessions: AtomicU64::new(0),
            last_check: Mutex::default(),
        }
    }

    /// Number for a new session, greater than all earlier ones.
    pub(super) fn next_session(&self) -> u64 {
        self.created_sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// Lower bound of the next session's number.
    pub(super) fn sessions_created(&self) -> u64 {
        self.created_sessions.load(Ordering::Relaxed)
    }

    /// Claims the next check by a `ping`: returns `true` at most once in `CHECK_PERIOD`.
    pub(super) fn claim_check(&self) -> bool {
        let now = self.clock.now();
        let mut last_check = self.last_check.lock();
        let is_due = last_check.is_none_or(|at| now.saturating_duration_since(at) >= CHECK_PERIOD);
        if is_due {
            *last_check = Some(now);
        }
        is_due
    }

    /// Counts an open session until the returned guard is dropped.
    pub(super) fn count_session(&self) -> OpenSessionGuard {
        self.open_sessions.fetch_add(1, Ordering::Relaxed);
        OpenSessionGuard(Arc::clone(&self.open_sessions))
    }

    /// Returns a new id for a request of the proxy.
    pub(super) fn next_id(&self) -> u64 {
        own_ids::next_in_pool()
    }

    /// Stores the description from a handshake.
    pub(super) fn set_description(&self, description: &Arc<UpstreamDescription>) {
        *self.description.lock() = Some(Arc::clone(description));
    }
}

// === impl RequestPlacement ===

impl RequestPlacement {
    /// Notes a request of the server on the stream of its call.
    pub(super) fn note_on_stream(&self) {
        if !self.seen_on_stream.load(Ordering::Relaxed) {
            self.seen_on_stream.store(true, Ordering::Relaxed);
            self.on_stream_seen.cancel();
        }
    }

    /// Resolves once a request of the server has arrived on the stream of its call.
    pub(super) async fn wait_on_stream(&self) {
        self.on_stream_seen.cancelled().await;
    }

    /// Notes a request of the server outside its call's stream. One such request outweighs all others: from
    /// then on calls need exclusive sessions.
    pub(super) fn note_off_stream(&self) {
        self.seen_off_stream.store(true, Ordering::Relaxed);
    }

    /// Whether calls can share a session: the server's requests arrive, or are assumed to arrive, on their
    /// calls' streams.
    pub(super) fn can_share_sessions(&self) -> bool {
        (self.is_sharing_default || self.seen_on_stream.load(Ordering::Relaxed))
            && !self.seen_off_stream.load(Ordering::Relaxed)
    }
}
