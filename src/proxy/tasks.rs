//! The tasks of all routes: answered from the store, wherever their calls are held.

use super::{Reply, held::Retry, hub::Hub, keep::NO_ROOM_BYTES, limits::Limits, reply};
use crate::{
    bridge::{describe::server_info_meta, elicit},
    dialect::{Call, Caller, Principal},
    policy::Quotas,
    protocol::{
        ErrorObject, Method, code,
        frame::on_one_line,
        input::{InputRequest, InputResponses},
    },
    runtime::{Clock, random},
    store::{self, Place, Store, StoreError, Updated, Version},
    task::{Effect, Event, Owner, PollBounds, Record, State, TaskId, view},
    telemetry::{LookupFailed, QuotaFull, StoreFailed, TaskTransition},
    upstream::Description,
};
use bytes::Bytes;
use dashmap::DashMap;
use http::StatusCode;
use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::{Notify, mpsc};

/// The tasks, and the calls this process holds for them.
pub struct Tasks {
    store: Arc<dyn Store>,
    quotas: Quotas,
    clock: Arc<dyn Clock>,
    pub(super) limits: Limits,
    pub(super) hub: Arc<Hub>,
    /// The calls held here. Sharded.
    held: DashMap<TaskId, Here>,
    /// How many calls of each principal have asked a question and are no task yet.
    parked: DashMap<Principal, usize>,
    parked_in_all: AtomicUsize,
    /// Bytes of results that a failing store has not taken.
    aside: AtomicUsize,
    /// Tasks that have ended, and nobody has fetched how: a proxy that stops waits for that. Its size is
    /// bounded with the number of tasks.
    unfetched: DashMap<TaskId, ()>,
    /// Told whenever there is one less of them.
    fetched: Notify,
}

/// What is known of a call that is held here.
struct Here {
    /// How to tell it something.
    tell: mpsc::Sender<Control>,
    /// Its record as it was last kept, once it is a task: while the store does not answer, this does.
    last: Option<(Version, Arc<Record>)>,
    /// Something of it is not kept yet, because the store did not take it.
    waits: bool,
}

/// A call that has asked a question and is no task yet; counts against the quotas until dropped.
pub(super) struct Parked {
    tasks: Arc<Tasks>,
    principal: Principal,
}

/// Bytes that wait for a store that fails; given back when dropped.
pub(super) struct Aside<'a> {
    tasks: &'a Tasks,
    bytes: usize,
}

/// Why a call cannot be held for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoRoom {
    /// The name of the limit in the configuration.
    #[error("no room for one more task; the limit is {0}")]
    Full(&'static str),
    #[error("the task store does not answer; try again")]
    StoreFailed,
}

/// Why there is no task to speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotFound {
    /// The caller has met this limit.
    TooMany(&'static str),
    /// It is not there, or not the caller's.
    Unknown,
    StoreFailed,
}

/// What a held call can be told.
pub(super) enum Control {
    /// Its client came back.
    Retry(Box<Retry>),
    /// The task's client answered these questions, by key.
    Answered(Vec<(String, Bytes)>),
    /// The client answered this question, as JSON-RPC has it: a result or an error.
    Replied(String, Result<Bytes, Bytes>),
    /// A request waits for the result, and can be told things meanwhile.
    Waiting(mpsc::Sender<Bytes>),
    /// The task was cancelled, and its record says so.
    Cancelled,
}

/// A place among the held calls, given back when dropped.
pub(super) struct Hold {
    tasks: Arc<Tasks>,
    id: TaskId,
    control: mpsc::Receiver<Control>,
}

/// The status message of a task whose store does not take what has become of it.
const WAITS_FOR_STORE: &str = "the call has gone on, which cannot be shown before the task store takes it";

/// Why a task failed that the proxy no longer holds.
const LOST: &str = "the proxy lost hold of the call; its outcome is unknown";

/// What everybody hears of a task that is not there, or not theirs.
const NOT_FOUND: &str = "Task not found";

// === impl Tasks ===

impl Tasks {
    pub fn new(store: Arc<dyn Store>, quotas: Quotas, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            store,
            limits: Limits::new(&quotas),
            quotas,
            clock,
            hub: Arc::new(Hub::default()),
            held: DashMap::new(),
            parked: DashMap::new(),
            parked_in_all: AtomicUsize::new(0),
            aside: AtomicUsize::new(0),
            unfetched: DashMap::new(),
            fetched: Notify::new(),
        })
    }

    /// The tasks whose calls this process holds.
    pub fn working(&self) -> usize {
        self.held.iter().filter(|here| here.last.is_some()).count()
    }

    /// The results that have been kept and not been fetched by anybody.
    pub fn unfetched(&self) -> usize {
        self.unfetched.len()
    }

    /// Resolves when every result that there is has been fetched or has outlived its time.
    pub async fn all_fetched(&self) {
        loop {
            let fetched = self.fetched.notified();
            if self.unfetched.is_empty() {
                return;
            }
            fetched.await;
        }
    }

    /// Somebody was shown the task: if that was its result, it need not be waited for.
    pub(super) fn shown(&self, record: &Record) {
        if record.state.is_ended() {
            self.fetched(&record.id);
        }
    }

    /// The task's result has been fetched, or is there no more.
    pub(super) fn fetched(&self, id: &TaskId) {
        if self.unfetched.remove(id).is_some() {
            self.fetched.notify_waiters();
        }
    }

    /// A place for a call that is to be held, under an id that nobody can guess.
    pub(super) fn hold(self: &Arc<Self>) -> Hold {
        let id = TaskId::from_entropy(random());
        // A few: whoever tells more waits until the call has listened.
        let (tell, control) = mpsc::channel(8);
        self.held.insert(id.clone(), Here { tell, last: None, waits: false });
        Hold { tasks: Arc::clone(self), id, control }
    }

    /// Tells a held call something; says whether there was one.
    pub(super) async fn tell(&self, id: &TaskId, control: Control) -> bool {
        let Some(tell) = self.held.get(id).map(|here| here.tell.clone()) else { return false };
        tell.send(control).await.is_ok()
    }

    pub(super) fn poll_bounds(&self) -> PollBounds {
        self.quotas.poll_interval
    }

    pub(super) fn result_limit(&self) -> usize {
        self.quotas.stored_result_bytes
    }

    /// Stores a new task. Nothing that runs is evicted for it. A call that is `parked` takes the place
    /// it has.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub(super) async fn admit(&self, record: Record, parked: bool) -> Result<(), NoRoom> {
        let principal = principal_of(&record.owner.principal);
        self.has_room(principal, usize::from(parked)).await?;
        let (id, tool, record) = (record.id.clone(), record.tool.clone(), Arc::new(record));
        match self.store.insert(Arc::clone(&record)).await {
            Ok(()) => {
                self.note(Version::FIRST, &record);
                TaskTransition { task: &id, tool: &tool, principal: &principal, from: "call", to: "working" }
                    .emit();
                Ok(())
            }
            Err(error) => Err(self.no_room("storing a task", &error)),
        }
    }

    /// Counts one more call that waits for its client's answers.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub(super) async fn park(self: &Arc<Self>, principal: Principal) -> Result<Parked, NoRoom> {
        match self.has_room(principal, 0).await {
            // No task needs to be kept for it: the calls that wait still count.
            Ok(()) | Err(NoRoom::StoreFailed) => {}
            Err(full @ NoRoom::Full(_)) => return Err(full),
        }
        *self.parked.entry(principal).or_default() += 1;
        self.parked_in_all.fetch_add(1, Ordering::Relaxed);
        Ok(Parked { tasks: Arc::clone(self), principal })
    }

    /// Whether a principal may have one more task, or one more call that waits for answers: both
    /// hold a call at the server for as long as the client likes. `places` of those that wait are
    /// those of the asker.
    async fn has_room(&self, principal: Principal, places: usize) -> Result<(), NoRoom> {
        let usage = match self.store.usage(principal.as_bytes()).await {
            Ok(usage) => usage,
            Err(error) => return Err(self.no_room("counting tasks", &error)),
        };
        let parked = self.parked.get(&principal).map_or(0, |count| *count).saturating_sub(places);
        let parked_in_all = self.parked_in_all.load(Ordering::Relaxed).saturating_sub(places);
        let full = [
            (
                "limits.tasks_per_principal",
                usage.tasks_of_principal + parked,
                self.quotas.tasks_per_principal,
            ),
            ("limits.tasks", usage.tasks + parked_in_all, self.quotas.tasks),
            ("limits.stored_bytes", usage.stored_bytes, self.quotas.stored_bytes),
            (
                "limits.stored_bytes_per_principal",
                usage.stored_bytes_of_principal,
                self.quotas.stored_bytes_per_principal,
            ),
        ];
        match full.into_iter().find(|(_, used, limit)| used >= limit) {
            None => Ok(()),
            Some((limit, ..)) => {
                QuotaFull { limit, principal: &principal }.emit();
                Err(NoRoom::Full(limit))
            }
        }
    }

    fn no_room(&self, doing: &str, error: &StoreError) -> NoRoom {
        self.failed(doing, error);
        NoRoom::StoreFailed
    }

    /// So much of a result waits for a store that fails. Little enough always may.
    ///
    /// # Errors
    /// The limit where that is too much, as it is kept in memory meanwhile.
    pub(super) fn set_aside(&self, bytes: usize) -> Result<Aside<'_>, StoreError> {
        let aside = Aside { tasks: self, bytes };
        let before = self.aside.fetch_add(bytes, Ordering::Relaxed);
        match bytes > NO_ROOM_BYTES && before.saturating_add(bytes) > self.quotas.stored_bytes {
            true => Err(StoreError::Full("limits.stored_bytes")),
            false => Ok(aside),
        }
    }

    /// Says so in the log. That there is no room is no failure, and is said where it is felt.
    fn failed(&self, doing: &str, error: &StoreError) {
        match error {
            StoreError::Full(_) => {}
            StoreError::Exists | StoreError::Unavailable(_) => StoreFailed { doing, error }.emit(),
        }
    }

    /// A limit on what is kept has been met by a task.
    pub(super) fn is_full(&self, id: &TaskId, limit: &str) {
        let owner = self.last_kept(id).map_or([0; 16], |record| record.owner.principal);
        QuotaFull { limit, principal: &principal_of(&owner) }.emit();
    }

    /// The record as it is kept. What is held here is known while the store does not answer, too.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub(super) async fn load(&self, id: &TaskId) -> Result<Option<Arc<Record>>, StoreError> {
        match self.store.load(id).await {
            Ok(found) => Ok(found.map(|(_, record)| record)),
            Err(error) => {
                self.failed("loading a task", &error);
                self.last_kept(id).map(Some).ok_or(error)
            }
        }
    }

    /// The record of a task that is held here, as it was last kept.
    pub(super) fn last_kept(&self, id: &TaskId) -> Option<Arc<Record>> {
        let here = self.held.get(id)?;
        here.last.as_ref().map(|(_, record)| Arc::clone(record))
    }

    /// Remembers what has been kept of a task that is held here.
    fn note(&self, version: Version, record: &Arc<Record>) {
        if let Some(mut here) = self.held.get_mut(&record.id)
            // Of two changes the later may be noted first.
            && here.last.as_ref().is_none_or(|(known, _)| *known < version)
        {
            here.last = Some((version, Arc::clone(record)));
        }
    }

    /// Whether something of a held task waits for the store.
    pub(super) fn set_waits(&self, id: &TaskId, waits: bool) {
        if let Some(mut here) = self.held.get_mut(id) {
            here.waits = waits;
        }
    }

    /// Forgets a task whose handle nobody has. Where the store fails, the sweeper finds it later: a task
    /// that works and is held by nobody.
    pub(super) async fn forget(&self, id: &TaskId) {
        match self.store.remove(id).await {
            Ok(()) => {
                self.fetched(id);
                if let Some(mut here) = self.held.get_mut(id) {
                    here.last = None;
                }
            }
            Err(error) => self.failed("forgetting a task", &error),
        }
    }

    /// Applies `event`, says so in the log where the status changed, and tells the listeners.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then: nothing has changed.
    pub(super) async fn change(&self, id: &TaskId, event: &Event) -> Result<Updated, StoreError> {
        let is_result = matches!(event, Event::Returned { .. } | Event::Failed { .. });
        if is_result {
            // Before anybody can fetch it.
            self.unfetched.insert(id.clone(), ());
        }
        let updated = store::update(&*self.store, id, event, self.clock.timestamp()).await;
        if is_result && !matches!(updated, Ok(Updated::Done { .. })) {
            self.fetched(id);
        }
        let updated = updated.inspect_err(|error| self.failed("updating a task", error))?;
        if let Updated::Done { before, after, version, effects } = &updated {
            self.note(*version, after);
            let (from, to) = (before.state.status(), after.state.status());
            if from != to {
                TaskTransition {
                    task: id,
                    tool: &after.tool,
                    principal: &principal_of(&after.owner.principal),
                    from,
                    to,
                }
                .emit();
            }
            if effects.contains(&Effect::Announce) {
                self.hub.announce(id);
            }
        }
        Ok(updated)
    }

    /// `tasks/get` (tasks extension, *Task Polling*). Every result says who the server is (2026-07-28,
    /// *Base Protocol, `_meta`*).
    pub(super) async fn get(
        &self,
        call: &Call,
        owner: &Owner,
        caller: &Caller,
        server: &Description,
    ) -> Reply {
        let record = match self.find(call, owner, caller).await {
            Ok(record) => record,
            Err(reply) => return *reply,
        };
        let about = server_info_meta(&server.server_info);
        let (now, bounds) = (self.clock.timestamp(), self.quotas.poll_interval);
        let view = view::extension::detailed(&record, now, bounds, Some(&about));
        let mut reply = reply::success(call, &on_one_line(view.into()));
        self.shown(&record);
        // The audit trail of retrievals is in the access line.
        reply.account.shown = Some(record.state.status());
        reply
    }

    /// `tasks/update` (tasks extension, *Task Update Requests*): acknowledged; answers to what is
    /// not asked, or no longer, are ignored. One that is no answer to its question leaves it open, and
    /// is refused by its key; those beside it are given to the server all the same.
    pub(super) async fn update(
        &self,
        call: &Call,
        owner: &Owner,
        caller: &Caller,
        server: &Description,
    ) -> Reply {
        let record = match self.find(call, owner, caller).await {
            Ok(record) => record,
            Err(reply) => return *reply,
        };
        let Checked { answers, unfit } = match checked_answers(call, &record) {
            Ok(checked) => checked,
            Err(error) => return reply::refuse(call, StatusCode::OK, &error),
        };
        let effects = match self.change(&record.id, &Event::Answered { answers }).await {
            Ok(Updated::Done { effects, .. }) => effects,
            Ok(Updated::Refused(_) | Updated::Unknown) => Vec::new(),
            // What is not kept is not acknowledged: the client answers again.
            Err(_) => return reply::internal(call, &NoRoom::StoreFailed.to_string()),
        };
        let answered: Vec<_> = effects
            .into_iter()
            .filter_map(|effect| match effect {
                Effect::AnswerUpstream { key, response } => Some((key, response)),
                Effect::CancelUpstream | Effect::Announce => None,
            })
            .collect();
        if !answered.is_empty() {
            // Gone only where the call ended in this moment.
            self.tell(&record.id, Control::Answered(answered)).await;
        }
        match unfit {
            None => acknowledged(call, server),
            Some(error) => reply::refuse(call, StatusCode::OK, &error),
        }
    }

    /// `tasks/cancel` (tasks extension, *Task Cancellation*): acknowledged also where the task has
    /// ended; the server is told where it has not.
    pub(super) async fn cancel(
        &self,
        call: &Call,
        owner: &Owner,
        caller: &Caller,
        server: &Description,
    ) -> Reply {
        let record = match self.find(call, owner, caller).await {
            Ok(record) => record,
            Err(reply) => return *reply,
        };
        match self.change(&record.id, &Event::Cancelled).await {
            Ok(Updated::Done { effects, .. }) if effects.contains(&Effect::CancelUpstream) => {
                // Gone only where the call ended in this moment.
                self.tell(&record.id, Control::Cancelled).await;
            }
            Ok(Updated::Done { .. } | Updated::Refused(_) | Updated::Unknown) => {}
            // What is not kept is not acknowledged, and the server not told: the client cancels again.
            Err(_) => return reply::internal(call, &NoRoom::StoreFailed.to_string()),
        }
        acknowledged(call, server)
    }

    /// The task a call names, if it is there and its caller's.
    async fn find(&self, call: &Call, owner: &Owner, caller: &Caller) -> Result<Arc<Record>, Box<Reply>> {
        // Before the id is looked at (tasks extension, *Protocol Errors*).
        if !caller.capabilities.declares_tasks() {
            return Err(Box::new(reply::tasks_required(call)));
        }
        let id = call.target.as_deref();
        self.look_up(&call.method, id, owner, caller.principal).await.map_err(|missing| {
            Box::new(match missing {
                NotFound::TooMany(limit) => too_many(call, limit),
                NotFound::StoreFailed => reply::internal(call, &NoRoom::StoreFailed.to_string()),
                NotFound::Unknown => {
                    let error = ErrorObject::new(code::INVALID_PARAMS, NOT_FOUND);
                    reply::refuse(call, StatusCode::OK, &error)
                }
            })
        })
    }

    /// The task of this name, if it is there and its owner asks.
    ///
    /// # Errors
    /// [`NotFound`]: the same for what is not there and for what is not the owner's.
    pub(super) async fn look_up(
        &self,
        method: &Method,
        id: Option<&str>,
        owner: &Owner,
        principal: Principal,
    ) -> Result<Arc<Record>, NotFound> {
        if !self.limits.admits_poll(principal) {
            return Err(NotFound::TooMany("limits.polls_per_second"));
        }
        let found = match id.and_then(TaskId::parse) {
            None => None,
            Some(id) => self.load(&id).await.map_err(|_| NotFound::StoreFailed)?,
        };
        let now = self.clock.timestamp();
        let reason = match found {
            Some(record) if !owner.owns(&record) => "foreign",
            Some(record) if record.is_expired(now) => "expired",
            Some(record) => return Ok(self.as_it_stands(record)),
            None => "unknown",
        };
        LookupFailed { method: method.as_str(), principal: &principal, reason }.emit();
        if !self.limits.admits_miss(principal) {
            return Err(NotFound::TooMany("limits.misses_per_minute"));
        }
        Err(NotFound::Unknown)
    }

    /// The record with a word on why it stands still, where the call has gone on and the store has not.
    fn as_it_stands(&self, record: Arc<Record>) -> Arc<Record> {
        let waits = || self.held.get(&record.id).is_some_and(|here| here.waits);
        if record.state.is_ended() || !waits() {
            return record;
        }
        Arc::new(Record { message: Some(WAITS_FOR_STORE.to_owned()), ..Record::clone(&record) })
    }

    /// One page of an owner's tasks, the oldest first, and whether there are more.
    ///
    /// # Errors
    /// [`NotFound`].
    pub(super) async fn page(
        &self,
        owner: &Owner,
        after: Option<&Place>,
        size: usize,
        principal: Principal,
    ) -> Result<(Vec<Arc<Record>>, bool), NotFound> {
        if !self.limits.admits_poll(principal) {
            return Err(NotFound::TooMany("limits.polls_per_second"));
        }
        let mut found = self.store.list(owner, after, size + 1).await.map_err(|error| {
            self.failed("listing tasks", &error);
            NotFound::StoreFailed
        })?;
        let more = found.len() > size;
        found.truncate(size);
        Ok((found, more))
    }

    /// The owner's tasks among `ids`, as they are now; each once, however often it is named.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub(super) async fn of(&self, owner: &Owner, ids: &[String]) -> Result<Vec<Arc<Record>>, StoreError> {
        let mut found = Vec::new();
        let mut named = HashSet::new();
        let ids = ids.iter().filter_map(|id| TaskId::parse(id));
        for id in ids.filter(|id| named.insert(id.clone())) {
            if let Some(record) = self.load(&id).await?
                && owner.owns(&record)
                && !record.is_expired(self.clock.timestamp())
            {
                found.push(record);
            }
        }
        Ok(found)
    }

    /// Renews what works and forgets what has outlived its time. What works and is held by nobody has
    /// lost its call: it ends. Called now and then.
    pub(super) async fn sweep(&self, batch: usize) -> Result<usize, StoreError> {
        let now = self.clock.timestamp();
        let due = self.store.due(now, batch).await?;
        for id in &due {
            let Some((_, record)) = self.store.load(id).await? else { continue };
            if record.is_expired(now) {
                self.store.remove(id).await?;
                self.fetched(id);
                tracing::debug!(target: "deferral::task", event = "forgotten", task = %id);
            } else if self.held.contains_key(id) {
                self.change(id, &Event::Renewed).await?;
            } else {
                // A call leaves its place only once its end is kept, so this one is not at work anywhere.
                let error = ErrorObject::new(code::OUTCOME_UNKNOWN, LOST);
                let message = Some(LOST.to_owned());
                self.change(id, &Event::Failed { error: error.as_bytes().clone(), message }).await?;
            }
        }
        self.limits.forget_silent();
        Ok(due.len())
    }
}

/// What came with a `tasks/update`.
#[derive(Default)]
struct Checked {
    /// The answers as the server may have them, without those to what is not asked.
    answers: BTreeMap<String, Bytes>,
    /// What is to be said of those that are no answers to their questions.
    unfit: Option<ErrorObject>,
}

/// The answers of a `tasks/update`.
///
/// # Errors
/// `-32602` where they cannot be read: then nothing is answered.
fn checked_answers(call: &Call, record: &Record) -> Result<Checked, ErrorObject> {
    let wrong = |message: String| ErrorObject::new(code::INVALID_PARAMS, message);
    let answers = InputResponses::read(call.params.as_ref())
        .map_err(|error| wrong(error.to_string()))?
        .ok_or_else(|| wrong("params.inputResponses is required".into()))?;
    let State::InputRequired { outstanding } = &record.state else { return Ok(Checked::default()) };
    let mut checked = Checked::default();
    let mut unfit = Vec::new();
    for (key, answer) in answers.iter() {
        let Some(question) = outstanding.get(key).and_then(|raw| InputRequest::from_raw(raw.clone())) else {
            continue;
        };
        match elicit::check_answer(&question, answer) {
            // A slice of the request, which would keep all of it.
            Ok(answer) => {
                checked.answers.insert(key.to_owned(), Bytes::copy_from_slice(&answer));
            }
            Err(error) => unfit.push(format!("the answer under `{key}` does not fit: {error}")),
        }
    }
    if !unfit.is_empty() {
        let rest = if checked.answers.is_empty() { "" } else { "; the other answers were taken" };
        checked.unfit = Some(wrong(format!("{}{rest}", unfit.join("; "))));
    }
    Ok(checked)
}

// === impl Aside ===

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        self.tasks.aside.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// === impl Parked ===

impl Drop for Parked {
    fn drop(&mut self) {
        self.tasks.parked_in_all.fetch_sub(1, Ordering::Relaxed);
        self.tasks.parked.remove_if_mut(&self.principal, |_, count| {
            *count -= 1;
            *count == 0
        });
    }
}

// === impl Hold ===

impl Hold {
    /// Names the call, and the task it may become.
    pub(super) fn id(&self) -> &TaskId {
        &self.id
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// The next thing the call is told.
    pub(super) async fn told(&mut self) -> Option<Control> {
        self.control.recv().await
    }

    /// Nothing more is told to the call. Gives what it was told and has not heard.
    pub(super) async fn close(&mut self) -> Vec<Control> {
        self.control.close();
        let mut rest = Vec::new();
        while let Some(told) = self.control.recv().await {
            rest.push(told);
        }
        rest
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.tasks.held.remove(&self.id);
    }
}

fn acknowledged(call: &Call, server: &Description) -> Reply {
    let about = server_info_meta(&server.server_info);
    let result = [br#"{"resultType":"complete","_meta":"#, &*about, b"}"].concat();
    reply::success(call, &on_one_line(result.into()))
}

/// A caller has met one of its limits, which is named.
pub(super) fn too_many(call: &Call, limit: &str) -> Reply {
    let error = ErrorObject::new(code::BUSY, format!("too many requests; the limit is {limit}"));
    reply::refuse(call, StatusCode::TOO_MANY_REQUESTS, &error)
}

fn principal_of(principal: &[u8; 16]) -> Principal {
    Principal::from_bytes(*principal)
}

/// The status word of a state that has not ended, for those who must act on it.
pub(super) fn wants_attention(state: &State) -> bool {
    match state {
        State::Working => false,
        State::InputRequired { .. } | State::Completed { .. } | State::Failed { .. } | State::Cancelled => {
            true
        }
    }
}
