//! The sessions of one identity: how they are opened, which is the list session, which are let go.
//!
//! Where a server's questions name their call, or nobody can be asked, all calls share one
//! session: the *list session*, the first that was opened. Else each call that may be asked leases
//! a session for itself (`leases`), so that a question on that session's GET stream can only be about it.
//! `seats` is who has which.

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

/// The sessions opened on behalf of one identity.
pub(super) struct SessionPool<W: Transport> {
    pub(super) identity: CallerIdentity,
    /// What it counts towards the limit of bytes, for as long as anybody has it.
    _weight: IdentityWeight,
    server: Arc<ServerContext<W>>,
    /// Whether this client can be asked anything at all.
    askable: bool,
    /// What the sessions of this principal report.
    pub(super) reports: ChangeNotifier,
    pub(super) subscriptions: ResourceSubscriptions<W>,
    /// The hosted sessions whose calls are made here.
    pub(super) listeners: BroadcastListeners,
    /// When it was last asked for, counted in such askings.
    pub(super) used: AtomicU64,
    state: Mutex<PoolState<W>>,
    /// The session in which a call was refused that another had refused before, and when.
    refused_again: Mutex<Option<(u64, Instant)>>,
}

/// Bytes that an identity keeps, counted together with all others.
struct IdentityWeight {
    bytes: usize,
    all: Arc<AtomicUsize>,
    _counted: [UsageGuard; 2],
}

/// How often its credentials are kept: by themselves, and as the names and lines of the messages of its first session,
/// with a body and without.
const CREDENTIALS: usize = 4;
/// What an identity costs beside what it declares and is known by, in bytes.
const IDENTITY: usize = 512;
/// How long a refused call is not made again in a fresh session after that was in vain.
const REFUSED_AGAIN: Duration = Duration::from_secs(1);
/// The pause before a session for those who listen is tried again. Doubles each time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

// === impl Weight ===

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

// === impl Group ===

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

    /// A call that one session has refused was refused again in a fresh one: it is not the session that it is refused
    /// for.
    pub(super) fn note_repeated_refusal(&self, session: &UpstreamSession<W>) {
        *self.refused_again.lock() = Some((session.number, self.server.clock.now()));
    }

    /// Whether a call that was refused in this session may be made once more in a fresh one. Not where that has been in
    /// vain within [`REFUSED_AGAIN`], and the session is as fresh as the one of then.
    pub(super) fn can_retry(&self, session: &UpstreamSession<W>) -> bool {
        self.refused_again.lock().is_none_or(|(number, at)| {
            session.number < number || self.server.clock.now().saturating_duration_since(at) >= REFUSED_AGAIN
        })
    }

    pub(super) fn server(&self) -> &Arc<ServerContext<W>> {
        &self.server
    }

    /// Whether somebody can be asked here all that they declare.
    pub(super) fn covers(&self, caller: &CallerIdentity) -> bool {
        self.identity.capabilities.covers(&caller.capabilities)
    }

    /// The list session; opens it, once for all who ask at the same time.
    ///
    /// # Errors
    /// What became of opening it. It is tried again by whoever asks next.
    pub(super) async fn list_session(self: &Arc<Self>) -> Result<Arc<UpstreamSession<W>>, CallError> {
        let opening = {
            let mut seats = self.state.lock();
            if self.server.work.is_closing() {
                return Err(CallError::Closing);
            }
            if let Some(lists) = &seats.lists {
                return Ok(lists.clone());
            }
            seats.opening.get_or_insert_with(|| self.clone().open_list_session()).clone()
        };
        opening.await
    }

    /// What the server said of itself in the list session, if there is one.
    pub(super) fn known_description(&self) -> Option<Arc<UpstreamDescription>> {
        let seats = self.state.lock();
        let lists = seats.lists.as_ref().filter(|_| !self.server.work.is_closing())?;
        Some(lists.description.clone())
    }

    /// Opens the list session in a task of its own: a handshake that its first caller abandons is
    /// still wanted by the others, and would leave a session behind at the server.
    fn open_list_session(self: Arc<Self>) -> OpeningSession<W> {
        let (sender, opened) = oneshot::channel();
        let server = self.server.clone();
        server.work.spawn(async move {
            let seat = |seats: &mut PoolState<W>, session: &Arc<UpstreamSession<W>>| {
                seats.opening = None;
                seats.lists = Some(session.clone());
                seats.insert(session, None);
            };
            let outcome = self.open(seat).await;
            match &outcome {
                Ok(session) => self.subscriptions.resubscribe(&self, session),
                Err(_) => self.state.lock().opening = None,
            }
            // Whoever queued behind this can go on now.
            self.serve_queue();
            let _ = sender.send(outcome);
        });
        opened.map(|outcome| outcome.unwrap_or(Err(CallError::Closing))).boxed().shared()
    }

    /// Opens a session, which `insert` takes in.
    async fn open(
        self: &Arc<Self>,
        seat: impl FnOnce(&mut PoolState<W>, &Arc<UpstreamSession<W>>),
    ) -> Result<Arc<UpstreamSession<W>>, CallError> {
        let session = tokio::select! {
            opened = handshake::open(&self.server, &self.identity, self.clone(), &self.reports) => opened?,
            // Whoever waits for it is told at once, not when the server answers.
            () = self.server.work.closing.cancelled() => return Err(CallError::Closing),
        };
        let is_late = {
            let mut seats = self.state.lock();
            // Under the lock: whoever closes the others says so first, and looks for them here then.
            let is_late = self.server.work.is_closing();
            if !is_late {
                seat(&mut seats, &session);
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

    /// Tells the server something in every session.
    pub(super) fn send_to_all(&self, body: impl Fn() -> Bytes) {
        let all: Vec<_> = self.state.lock().all.iter().map(|seat| seat.session.clone()).collect();
        all.iter().for_each(|session| session.send_later(body()));
    }

    /// Takes a session out: it has ended, or is to take no more calls.
    pub(super) fn remove(self: &Arc<Self>, session: &Arc<UpstreamSession<W>>) {
        let nobody_hears = {
            let mut seats = self.state.lock();
            seats.retire(session);
            if seats.lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, session)) {
                // The oldest of the others; what is left of none opens one when it is needed.
                seats.lists = seats.all.first().map(|seat| seat.session.clone());
            }
            seats.lists.is_none()
        };
        if nobody_hears {
            self.reopen_for_listeners();
        }
        self.subscriptions.move_from(self, session);
        self.serve_queue();
    }

    /// Whether another session is to be opened for those who listen. What is costly is not, where one of another set of
    /// capabilities hears for them, too.
    fn needs_listening_session(&self) -> bool {
        self.reports.has_listeners() && !(W::IS_COSTLY && self.reports.reporting_sessions() > 0)
    }

    /// No session is left: where somebody listens, another is opened for that.
    fn reopen_for_listeners(self: &Arc<Self>) {
        self.reports.mark_tools_changed();
        if !self.needs_listening_session() || self.server.work.is_closing() {
            return;
        }
        let group = self.clone();
        self.server.work.spawn(async move {
            let closing = group.server.work.closing.clone();
            let mut pause = PAUSE;
            while group.needs_listening_session() && group.list_session().await.is_err() {
                tokio::select! {
                    () = closing.cancelled() => return,
                    () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                }
            }
        });
    }

    /// Closes what has not been used for long. Called once a minute. `watched` is whether
    /// somebody waits for reports.
    pub(super) fn sweep(&self, watched: bool) {
        let mut quiet = Vec::new();
        let IdleRounds { lists: lists_for, others: others_for } = self.server.transport.idle_rounds();
        {
            let mut seats = self.state.lock();
            let PoolState { all, lists, .. } = &mut *seats;
            let others_hear = W::IS_COSTLY && self.reports.reporting_sessions() > all.len();
            let needed = watched && !others_hear || !self.subscriptions.is_empty();
            all.retain_mut(|seat| {
                let in_use = seat.holder.is_some() || seat.session.take_used();
                seat.quiet = if in_use { 0 } else { seat.quiet + 1 };
                let is_lists = lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, &seat.session));
                let stays = match is_lists {
                    true => needed || seat.quiet < lists_for,
                    false => seat.quiet < others_for,
                };
                if !stays {
                    quiet.push(seat.session.clone());
                }
                stays
            });
            let gone =
                |session: &Arc<UpstreamSession<W>>| quiet.iter().any(|quiet| Arc::ptr_eq(quiet, session));
            if lists.as_ref().is_some_and(gone) {
                *lists = all.first().map(|seat| seat.session.clone());
            }
        }
        for session in quiet {
            session.retire();
        }
    }

    /// Whether nothing is left that anybody could miss.
    pub(super) fn is_empty(&self) -> bool {
        let seats = self.state.lock();
        let is_vacant = seats.all.is_empty() && !seats.has_leaving();
        is_vacant && seats.opening.is_none() && seats.opening_for.is_empty() && seats.queue.is_empty()
    }

    /// Whether its sessions can be closed without anybody's call or subscription being lost. Only
    /// where nobody else holds the group, so that nothing can begin meanwhile.
    pub(super) fn is_idle(&self) -> bool {
        let seats = self.state.lock();
        let at_rest = seats.opening.is_none() && seats.opening_for.is_empty() && seats.queue.is_empty();
        at_rest
            && !seats.has_leaving()
            && self.subscriptions.is_empty()
            && seats.all.iter().all(|seat| seat.holder.is_none())
    }

    /// One of its sessions that no call uses or waits for, where it has others; what it has alone goes with the group
    /// ([`SessionPool::is_idle`]).
    pub(super) fn unused_session(&self) -> Option<Arc<UpstreamSession<W>>> {
        let seats = self.state.lock();
        let is_wanted = seats.opening.is_some() || !seats.opening_for.is_empty() || !seats.queue.is_empty();
        let is_unused =
            |seat: &&pooled_sessions::PooledSession<W>| seat.holder.is_none() && !seat.session.is_needed();
        let spare = seats.all.iter().filter(|_| !is_wanted && seats.all.len() > 1).find(is_unused)?;
        Some(spare.session.clone())
    }

    /// Whether a task is in each of its sessions.
    pub(super) fn is_held_by_tasks(&self) -> bool {
        self.state.lock().all.iter().all(pooled_sessions::PooledSession::has_task)
    }

    /// Whether its sessions have not been used in a whole round of [`SessionPool::sweep`].
    pub(super) fn is_quiet(&self) -> bool {
        self.state.lock().all.iter().all(|seat| seat.quiet > 0)
    }

    /// Takes all sessions out, for good; who waits is told.
    pub(super) fn close(&self) -> Vec<Arc<UpstreamSession<W>>> {
        let mut seats = self.state.lock();
        let queue = std::mem::take(&mut seats.queue);
        let all = seats.take_all();
        drop(seats);
        drop(queue);
        all
    }
}

impl<W: Transport> SessionOwner<W> for SessionPool<W> {
    fn remove(self: Arc<Self>, session: &Arc<UpstreamSession<W>>) {
        Self::remove(&self, session);
    }

    /// Others may not know of the change.
    fn use_for_lists(&self, session: &Arc<UpstreamSession<W>>) {
        let mut seats = self.state.lock();
        if seats.all.iter().any(|seat| Arc::ptr_eq(&seat.session, session)) {
            seats.lists = Some(session.clone());
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
                // Whether it works is seen to by `reopen_for_listeners`.
                let _ = self.list_session().await;
            }
        }
        .boxed()
    }
}
