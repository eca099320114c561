//! Sessions of one identity: opening, the list session, closing.
//!
//! If the server's requests name their call, or the client accepts none, all calls share one session: the
//! *list session*, the first one opened. Else each call that may receive requests leases a session of its own
//! (`leases`), so that a request on that session's GET stream can only belong to it. `pooled_sessions` has
//! the sessions and the queue. Begin with `leases`.

mod leases;
mod pooled_sessions;

use leases::PoolState;
pub(super) use leases::SessionLease;
pub(super) use pooled_sessions::LeaseHolder;
use pooled_sessions::OpeningSession;

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, time::sleep};

use super::{
    handshake,
    listeners::BroadcastListeners,
    message,
    server::ServerContext,
    session::{SessionOwner, UpstreamSession},
    subscribe::ResourceSubscriptions,
};
use crate::{
    protocol::Frame,
    runtime::{Clock, Mutex},
    telemetry::{Limit, UsageGuard},
    upstream::{
        CallError, CallerIdentity, UpstreamDescription,
        changes::ChangeNotifier,
        transport::{IdleRounds, Transport},
    },
};

/// Sessions opened on behalf of one identity.
pub(super) struct SessionPool<W: Transport> {
    pub(super) identity: CallerIdentity,
    /// Bytes counted towards `limits.identity_bytes` while the pool exists.
    _weight: IdentityWeight,
    server: Arc<ServerContext<W>>,
    /// Whether the client accepts any input requests.
    accepts_input: bool,
    /// Change notifications of this principal's sessions.
    pub(super) notifier: ChangeNotifier,
    pub(super) subscriptions: ResourceSubscriptions<W>,
    /// Emulated sessions that make their calls here.
    pub(super) listeners: BroadcastListeners,
    /// Logical time of the last use, by the clock of the pools.
    pub(super) last_used: AtomicU64,
    state: Mutex<PoolState<W>>,
    /// Number of the last session that refused a call after another session had refused the same call, and
    /// the time of that refusal.
    last_repeated_refusal: Mutex<Option<(u64, Instant)>>,
}

/// Bytes that an identity keeps, counted in the total of the server until dropped.
struct IdentityWeight {
    bytes: usize,
    total: Arc<AtomicUsize>,
    _counted: [UsageGuard; 2],
}

/// Number of copies of an identity's credentials: its own, and the header names and lines of its first
/// session, with a body and without.
const CREDENTIAL_COPIES: usize = 4;
/// Fixed cost of an identity in bytes, without its credentials, client info and capabilities.
const IDENTITY_BYTES: usize = 512;
/// Time for which refused calls are not retried in new sessions after such a retry was refused.
const RETRY_COOLDOWN: Duration = Duration::from_secs(1);
/// Pause before a session for listeners is opened again. Doubles after each failure, up to
/// [`MAX_REOPEN_PAUSE`].
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
const MAX_REOPEN_PAUSE: Duration = Duration::from_secs(30);

// === impl IdentityWeight ===

impl IdentityWeight {
    fn new(identity: &CallerIdentity, total: &Arc<AtomicUsize>) -> Self {
        let identified_by =
            identity.credentials.retained_bytes() * CREDENTIAL_COPIES + identity.client_info.retained_bytes();
        let bytes = IDENTITY_BYTES + identified_by + identity.capabilities.retained_bytes();
        total.fetch_add(bytes, Ordering::Relaxed);
        let counted = [Limit::Identities.acquire(1), Limit::IdentityBytes.acquire(bytes)];
        Self { bytes, total: Arc::clone(total), _counted: counted }
    }
}

impl Drop for IdentityWeight {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// === impl SessionPool ===

impl<W: Transport> SessionPool<W> {
    /// Creates the pool of this identity, without a session.
    pub(super) fn new(
        server: Arc<ServerContext<W>>,
        identity: CallerIdentity,
        notifier: ChangeNotifier,
    ) -> Self {
        Self {
            accepts_input: identity.capabilities.can_receive_input_requests(),
            _weight: IdentityWeight::new(&identity, &server.identity_bytes),
            identity,
            server,
            notifier,
            subscriptions: ResourceSubscriptions::default(),
            listeners: BroadcastListeners::default(),
            last_used: AtomicU64::new(0),
            state: Mutex::default(),
            last_repeated_refusal: Mutex::default(),
        }
    }

    /// Notes that a new session refused the call as well: the session was not the reason.
    pub(super) fn note_repeated_refusal(&self, session: &UpstreamSession<W>) {
        *self.last_repeated_refusal.lock() = Some((session.number, self.server.clock.now()));
    }

    /// Whether a call refused in this session may be retried in a new one: not within the cooldown after a
    /// retry was refused in a session as new as this one.
    pub(super) fn can_retry(&self, session: &UpstreamSession<W>) -> bool {
        self.last_repeated_refusal.lock().is_none_or(|(number, at)| {
            session.number < number || self.server.clock.now().saturating_duration_since(at) >= RETRY_COOLDOWN
        })
    }

    /// State shared by all sessions with the server.
    pub(super) fn server(&self) -> &Arc<ServerContext<W>> {
        &self.server
    }

    /// Whether all input requests that the caller declares may be sent here.
    pub(super) fn covers(&self, caller: &CallerIdentity) -> bool {
        self.identity.capabilities.covers(&caller.capabilities)
    }

    /// Returns the list session. Opens it if necessary, once for all concurrent callers.
    ///
    /// # Errors
    /// The error of opening. The next caller tries again.
    pub(super) async fn list_session(self: &Arc<Self>) -> Result<Arc<UpstreamSession<W>>, CallError> {
        let opening = {
            let mut state = self.state.lock();
            if self.server.work.is_closing() {
                return Err(CallError::Closing);
            }
            if let Some(list_session) = &state.list_session {
                return Ok(list_session.clone());
            }
            state.opening.get_or_insert_with(|| self.clone().open_list_session()).clone()
        };
        opening.await
    }

    /// Description of the server from the list session; `None` unless that is open.
    pub(super) fn known_description(&self) -> Option<Arc<UpstreamDescription>> {
        let state = self.state.lock();
        let list_session = state.list_session.as_ref().filter(|_| !self.server.work.is_closing())?;
        Some(list_session.description.clone())
    }

    /// Opens the list session in a background task: other callers still need a handshake whose first caller
    /// was dropped, and it would leave a session at the server.
    fn open_list_session(self: Arc<Self>) -> OpeningSession<W> {
        let (sender, opened) = oneshot::channel();
        let server = self.server.clone();
        server.work.spawn(async move {
            let insert = |state: &mut PoolState<W>, session: &Arc<UpstreamSession<W>>| {
                state.opening = None;
                state.list_session = Some(session.clone());
                state.insert(session, None);
            };
            let outcome = self.open(insert).await;
            match &outcome {
                Ok(session) => self.subscriptions.resubscribe(&self, session),
                Err(_) => self.state.lock().opening = None,
            }
            // Calls queued behind the opening can proceed now.
            self.serve_queue();
            let _ = sender.send(outcome);
        });
        opened.map(|outcome| outcome.unwrap_or(Err(CallError::Closing))).boxed().shared()
    }

    /// Opens a session, and adds it with `insert`.
    async fn open(
        self: &Arc<Self>,
        insert: impl FnOnce(&mut PoolState<W>, &Arc<UpstreamSession<W>>),
    ) -> Result<Arc<UpstreamSession<W>>, CallError> {
        let session = tokio::select! {
            opened = handshake::open(&self.server, &self.identity, self.clone(), &self.notifier) => opened?,
            // Fail waiting calls at once, not when the server answers.
            () = self.server.work.closing.cancelled() => return Err(CallError::Closing),
        };
        let is_closing = {
            let mut state = self.state.lock();
            // Under the lock: shutdown sets the flag before it takes the sessions from here.
            let is_closing = self.server.work.is_closing();
            if !is_closing {
                insert(&mut state, &session);
            }
            is_closing
        };
        if is_closing {
            session.close().await;
            return Err(CallError::Closing);
        }
        if let Some(level) = self.listeners.lowest_level() {
            session.send_later(message::set_level(self.server.next_id(), level));
        }
        Ok(session)
    }

    /// Sends a message in every session of the pool, in the background. `body` is called once for each.
    pub(super) fn send_to_all(&self, body: impl Fn() -> Bytes) {
        let sessions: Vec<_> = self.state.lock().all.iter().map(|pooled| pooled.session.clone()).collect();
        sessions.iter().for_each(|session| session.send_later(body()));
    }

    /// Removes a session that has ended or takes no more calls.
    pub(super) fn remove(self: &Arc<Self>, session: &Arc<UpstreamSession<W>>) {
        let has_no_sessions = {
            let mut state = self.state.lock();
            state.retire(session);
            if state.list_session.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, session)) {
                // Promote the oldest remaining session; without one, a session is opened when needed.
                state.list_session = state.all.first().map(|pooled| pooled.session.clone());
            }
            state.list_session.is_none()
        };
        if has_no_sessions {
            self.reopen_for_listeners();
        }
        self.subscriptions.move_from(self, session);
        self.serve_queue();
    }

    /// Whether a session must be opened for listeners. Not if a session costs a process and a session of
    /// another set of capabilities already reports to the listeners.
    fn needs_listening_session(&self) -> bool {
        self.notifier.has_listeners() && !(W::IS_COSTLY && self.notifier.reporting_sessions() > 0)
    }

    /// Opens a session for listeners after the last one ended.
    fn reopen_for_listeners(self: &Arc<Self>) {
        self.notifier.mark_tools_changed();
        if !self.needs_listening_session() || self.server.work.is_closing() {
            return;
        }
        let pool = self.clone();
        self.server.work.spawn(async move {
            let closing = pool.server.work.closing.clone();
            let mut pause = REOPEN_PAUSE;
            while pool.needs_listening_session() && pool.list_session().await.is_err() {
                tokio::select! {
                    () = closing.cancelled() => return,
                    () = sleep(pause) => pause = (pause * 2).min(MAX_REOPEN_PAUSE),
                }
            }
        });
    }

    /// Closes sessions that have been unused for long. Called once a minute. `has_listeners` says whether
    /// change notifications have listeners.
    pub(super) fn sweep(&self, has_listeners: bool) {
        let mut expired = Vec::new();
        let IdleRounds { list_session: list_rounds, other_sessions: other_rounds } =
            self.server.transport.idle_rounds();
        {
            let mut state = self.state.lock();
            let PoolState { all, list_session: lists, .. } = &mut *state;
            let has_other_reporters = W::IS_COSTLY && self.notifier.reporting_sessions() > all.len();
            let is_needed = has_listeners && !has_other_reporters || !self.subscriptions.is_empty();
            all.retain_mut(|pooled| {
                let in_use = pooled.session.take_used() || !pooled.holders.is_empty();
                pooled.idle_sweeps = if in_use { 0 } else { pooled.idle_sweeps + 1 };
                let is_lists = lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, &pooled.session));
                let is_kept = match is_lists {
                    true => is_needed || pooled.idle_sweeps < list_rounds,
                    false => pooled.idle_sweeps < other_rounds,
                };
                if !is_kept {
                    expired.push(pooled.session.clone());
                }
                is_kept
            });
            let is_expired =
                |session: &Arc<UpstreamSession<W>>| expired.iter().any(|other| Arc::ptr_eq(other, session));
            if lists.as_ref().is_some_and(is_expired) {
                *lists = all.first().map(|pooled| pooled.session.clone());
            }
        }
        for session in expired {
            session.retire();
        }
    }

    /// Whether the pool has no sessions, calls or queue.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        let is_vacant = state.all.is_empty() && !state.has_retiring();
        is_vacant && state.opening.is_none() && state.opening_for.is_empty() && state.queue.is_empty()
    }

    /// Whether the sessions can be closed without losing a call or subscription. Only valid while no other
    /// reference to the pool exists, so that nothing can start.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        let has_no_waiters =
            state.opening.is_none() && state.opening_for.is_empty() && state.queue.is_empty();
        has_no_waiters
            && !state.has_retiring()
            && self.subscriptions.is_empty()
            && state.all.iter().all(|pooled| pooled.holders.is_empty())
    }

    /// A session that no call uses or waits for, if the pool has others; the only one is closed with the pool
    /// ([`SessionPool::is_idle`]).
    pub(super) fn unused_session(&self) -> Option<Arc<UpstreamSession<W>>> {
        let state = self.state.lock();
        let has_others = state.all.len() > 1 && !state.has_waiters();
        let unused = state.all.iter().filter(|_| has_others).find(|pooled| pooled.is_unused())?;
        Some(unused.session.clone())
    }

    /// A session that no call will use: cancelled calls keep it from all, and no legacy session claims it.
    pub(super) fn spare_session(&self) -> Option<Arc<UpstreamSession<W>>> {
        let state = self.state.lock();
        let is_spare = |pooled: &&pooled_sessions::PooledSession<W>| {
            pooled.is_unused() && pooled.is_unclaimed() && pooled.session.has_only_abandoned()
        };
        let spare = state.all.iter().filter(|_| !state.has_waiters()).find(is_spare)?;
        Some(spare.session.clone())
    }

    /// Whether each session is used by a task.
    pub(super) fn is_held_by_tasks(&self) -> bool {
        self.state.lock().all.iter().all(pooled_sessions::PooledSession::has_task)
    }

    /// Whether no session was used in a whole round of [`SessionPool::sweep`].
    pub(super) fn is_quiet(&self) -> bool {
        self.state.lock().all.iter().all(|pooled| pooled.idle_sweeps > 0)
    }

    /// Removes all sessions and returns them for closing, and fails the queued calls.
    pub(super) fn close(&self) -> Vec<Arc<UpstreamSession<W>>> {
        let mut state = self.state.lock();
        let queue = std::mem::take(&mut state.queue);
        let sessions = state.take_all();
        drop(state);
        drop(queue);
        sessions
    }
}

impl<W: Transport> SessionOwner<W> for SessionPool<W> {
    fn remove(self: Arc<Self>, session: &Arc<UpstreamSession<W>>) {
        Self::remove(&self, session);
    }

    /// Makes the session the list session: other sessions may not know of the change.
    fn use_for_lists(&self, session: &Arc<UpstreamSession<W>>) {
        let mut state = self.state.lock();
        if state.all.iter().any(|pooled| Arc::ptr_eq(&pooled.session, session)) {
            state.list_session = Some(session.clone());
        }
    }

    fn resource_updates(&self, session: &Arc<UpstreamSession<W>>) -> Vec<Frame> {
        self.subscriptions.update_notifications(session)
    }

    fn listeners(&self) -> &BroadcastListeners {
        &self.listeners
    }

    fn serve_queue(self: Arc<Self>) {
        Self::serve_queue(&self);
    }

    fn wait_for_successor(self: Arc<Self>) -> BoxFuture<'static, ()> {
        async move {
            if self.needs_listening_session() {
                // `reopen_for_listeners` handles a failure.
                let _ = self.list_session().await;
            }
        }
        .boxed()
    }
}
