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
    reports::ChangeNotifier,
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
    askable: bool,
    /// Change notifications of this principal's sessions.
    pub(super) reports: ChangeNotifier,
    pub(super) subscriptions: ResourceSubscriptions<W>,
    /// Emulated sessions that make their calls here.
    pub(super) listeners: BroadcastListeners,
    /// Logical time of the last use.
    pub(super) used: AtomicU64,
    state: Mutex<PoolState<W>>,
    /// Session in which a call was refused again after another session had refused it, and the time.
    refused_again: Mutex<Option<(u64, Instant)>>,
}

/// Bytes that an identity keeps, counted with all others.
struct IdentityWeight {
    bytes: usize,
    all: Arc<AtomicUsize>,
    _counted: [UsageGuard; 2],
}

/// Copies of an identity's credentials: its own, and the header names and lines of its first session, with a
/// body and without.
const CREDENTIALS: usize = 4;
/// Cost of an identity beside what it declares and is identified by, in bytes.
const IDENTITY: usize = 512;
/// Time for which a refused call is not retried in a new session after that failed.
const REFUSED_AGAIN: Duration = Duration::from_secs(1);
/// Pause before a session for listeners is tried again. Doubles each time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

// === impl IdentityWeight ===

impl IdentityWeight {
    fn of(identity: &CallerIdentity, all: &Arc<AtomicUsize>) -> Self {
        let known_by =
            identity.credentials.retained_bytes() * CREDENTIALS + identity.client_info.retained_bytes();
        let bytes = IDENTITY + known_by + identity.capabilities.retained_bytes();
        all.fetch_add(bytes, Ordering::Relaxed);
        let counted = [Limit::Identities.take(1), Limit::IdentityBytes.take(bytes)];
        Self { bytes, all: Arc::clone(all), _counted: counted }
    }
}

impl Drop for IdentityWeight {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// === impl SessionPool ===

impl<W: Transport> SessionPool<W> {
    pub(super) fn new(
        server: Arc<ServerContext<W>>,
        identity: CallerIdentity,
        reports: ChangeNotifier,
    ) -> Self {
        Self {
            askable: identity.capabilities.can_receive_input_requests(),
            _weight: IdentityWeight::of(&identity, &server.identity_bytes),
            identity,
            server,
            reports,
            subscriptions: ResourceSubscriptions::default(),
            listeners: BroadcastListeners::default(),
            used: AtomicU64::new(0),
            state: Mutex::default(),
            refused_again: Mutex::default(),
        }
    }

    /// Notes that a new session refused the call as well: the session is not the reason.
    pub(super) fn note_repeated_refusal(&self, session: &UpstreamSession<W>) {
        *self.refused_again.lock() = Some((session.number, self.server.clock.now()));
    }

    /// Whether a call refused in this session may be retried in a new one: not within [`REFUSED_AGAIN`] after
    /// a retry that failed in a session as new as this one.
    pub(super) fn can_retry(&self, session: &UpstreamSession<W>) -> bool {
        self.refused_again.lock().is_none_or(|(number, at)| {
            session.number < number || self.server.clock.now().saturating_duration_since(at) >= REFUSED_AGAIN
        })
    }

    pub(super) fn server(&self) -> &Arc<ServerContext<W>> {
        &self.server
    }

    /// Whether all input requests that the caller declares may be sent here.
    pub(super) fn covers(&self, caller: &CallerIdentity) -> bool {
        self.identity.capabilities.covers(&caller.capabilities)
    }

    /// The list session; opened once for all concurrent callers.
    ///
    /// # Errors
    /// The error of opening. The next caller tries again.
    pub(super) async fn list_session(self: &Arc<Self>) -> Result<Arc<UpstreamSession<W>>, CallError> {
        let opening = {
            let mut state = self.state.lock();
            if self.server.work.is_closing() {
                return Err(CallError::Closing);
            }
            if let Some(lists) = &state.lists {
                return Ok(lists.clone());
            }
            state.opening.get_or_insert_with(|| self.clone().open_list_session()).clone()
        };
        opening.await
    }

    /// Description of the server from the list session, if it is open.
    pub(super) fn known_description(&self) -> Option<Arc<UpstreamDescription>> {
        let state = self.state.lock();
        let lists = state.lists.as_ref().filter(|_| !self.server.work.is_closing())?;
        Some(lists.description.clone())
    }

    /// Opens the list session in a background task: other callers still need a handshake whose first caller
    /// was dropped, and it would leave a session at the server.
    fn open_list_session(self: Arc<Self>) -> OpeningSession<W> {
        let (sender, opened) = oneshot::channel();
        let server = self.server.clone();
        server.work.spawn(async move {
            let insert = |state: &mut PoolState<W>, session: &Arc<UpstreamSession<W>>| {
                state.opening = None;
                state.lists = Some(session.clone());
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
            opened = handshake::open(&self.server, &self.identity, self.clone(), &self.reports) => opened?,
            // Fail waiting calls at once, not when the server answers.
            () = self.server.work.closing.cancelled() => return Err(CallError::Closing),
        };
        let is_late = {
            let mut state = self.state.lock();
            // Under the lock: shutdown sets the flag before it takes the sessions from here.
            let is_late = self.server.work.is_closing();
            if !is_late {
                insert(&mut state, &session);
            }
            is_late
        };
        if is_late {
            session.close().await;
            return Err(CallError::Closing);
        }
        if let Some(level) = self.listeners.level() {
            session.send_later(message::set_level(self.server.next_id(), level));
        }
        Ok(session)
    }

    /// Sends a message in every session.
    pub(super) fn send_to_all(&self, body: impl Fn() -> Bytes) {
        let all: Vec<_> = self.state.lock().all.iter().map(|pooled| pooled.session.clone()).collect();
        all.iter().for_each(|session| session.send_later(body()));
    }

    /// Removes a session that has ended or takes no more calls.
    pub(super) fn remove(self: &Arc<Self>, session: &Arc<UpstreamSession<W>>) {
        let is_unwatched = {
            let mut state = self.state.lock();
            state.retire(session);
            if state.lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, session)) {
                // The oldest remaining one; without one, a session is opened when needed.
                state.lists = state.all.first().map(|pooled| pooled.session.clone());
            }
            state.lists.is_none()
        };
        if is_unwatched {
            self.reopen_for_listeners();
        }
        self.subscriptions.move_from(self, session);
        self.serve_queue();
    }

    /// Whether a session must be opened for listeners. Not if a session costs a process and one of another
    /// set of capabilities reports to them.
    fn needs_listening_session(&self) -> bool {
        self.reports.has_listeners() && !(W::IS_COSTLY && self.reports.reporting_sessions() > 0)
    }

    /// Opens a session for listeners after the last one ended.
    fn reopen_for_listeners(self: &Arc<Self>) {
        self.reports.mark_tools_changed();
        if !self.needs_listening_session() || self.server.work.is_closing() {
            return;
        }
        let pool = self.clone();
        self.server.work.spawn(async move {
            let closing = pool.server.work.closing.clone();
            let mut pause = PAUSE;
            while pool.needs_listening_session() && pool.list_session().await.is_err() {
                tokio::select! {
                    () = closing.cancelled() => return,
                    () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                }
            }
        });
    }

    /// Closes sessions that have been unused for long. Called once a minute. `watched` is whether there are
    /// listeners for change notifications.
    pub(super) fn sweep(&self, watched: bool) {
        let mut quiet = Vec::new();
        let IdleRounds { lists: lists_for, others: others_for } = self.server.transport.idle_rounds();
        {
            let mut state = self.state.lock();
            let PoolState { all, lists, .. } = &mut *state;
            let others_report = W::IS_COSTLY && self.reports.reporting_sessions() > all.len();
            let needed = watched && !others_report || !self.subscriptions.is_empty();
            all.retain_mut(|pooled| {
                let in_use = pooled.holder.is_some() || pooled.session.take_used();
                pooled.quiet = if in_use { 0 } else { pooled.quiet + 1 };
                let is_lists = lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, &pooled.session));
                let is_kept = match is_lists {
                    true => needed || pooled.quiet < lists_for,
                    false => pooled.quiet < others_for,
                };
                if !is_kept {
                    quiet.push(pooled.session.clone());
                }
                is_kept
            });
            let gone =
                |session: &Arc<UpstreamSession<W>>| quiet.iter().any(|quiet| Arc::ptr_eq(quiet, session));
            if lists.as_ref().is_some_and(gone) {
                *lists = all.first().map(|pooled| pooled.session.clone());
            }
        }
        for session in quiet {
            session.retire();
        }
    }

    /// Whether the pool has no sessions, calls or queue.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        let is_vacant = state.all.is_empty() && !state.has_leaving();
        is_vacant && state.opening.is_none() && state.opening_for.is_empty() && state.queue.is_empty()
    }

    /// Whether the sessions can be closed without losing a call or subscription. Only valid while no other
    /// reference to the pool exists, so that nothing can start.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        let at_rest = state.opening.is_none() && state.opening_for.is_empty() && state.queue.is_empty();
        at_rest
            && !state.has_leaving()
            && self.subscriptions.is_empty()
            && state.all.iter().all(|pooled| pooled.holder.is_none())
    }

    /// A session that no call uses or waits for, if the pool has others; the only one is closed with the pool
    /// ([`SessionPool::is_idle`]).
    pub(super) fn unused_session(&self) -> Option<Arc<UpstreamSession<W>>> {
        let state = self.state.lock();
        let is_wanted = state.opening.is_some() || !state.opening_for.is_empty() || !state.queue.is_empty();
        let is_unused = |pooled: &&pooled_sessions::PooledSession<W>| {
            pooled.holder.is_none() && !pooled.session.is_needed()
        };
        let spare = state.all.iter().filter(|_| !is_wanted && state.all.len() > 1).find(is_unused)?;
        Some(spare.session.clone())
    }

    /// Whether each session has a task.
    pub(super) fn is_held_by_tasks(&self) -> bool {
        self.state.lock().all.iter().all(pooled_sessions::PooledSession::has_task)
    }

    /// Whether no session was used in a whole round of [`SessionPool::sweep`].
    pub(super) fn is_quiet(&self) -> bool {
        self.state.lock().all.iter().all(|pooled| pooled.quiet > 0)
    }

    /// Removes all sessions, and fails the queue.
    pub(super) fn close(&self) -> Vec<Arc<UpstreamSession<W>>> {
        let mut state = self.state.lock();
        let queue = std::mem::take(&mut state.queue);
        let all = state.take_all();
        drop(state);
        drop(queue);
        all
    }
}

impl<W: Transport> SessionOwner<W> for SessionPool<W> {
    fn remove(self: Arc<Self>, session: &Arc<UpstreamSession<W>>) {
        Self::remove(&self, session);
    }

    /// Other sessions may not know of the change.
    fn use_for_lists(&self, session: &Arc<UpstreamSession<W>>) {
        let mut state = self.state.lock();
        if state.all.iter().any(|pooled| Arc::ptr_eq(&pooled.session, session)) {
            state.lists = Some(session.clone());
        }
    }

    fn resource_updates(&self, session: &Arc<UpstreamSession<W>>) -> Vec<Frame> {
        self.subscriptions.updates(session)
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
