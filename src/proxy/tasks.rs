//! The tasks of all routes: answered from the store, wherever their calls are held.

use super::{Reply, hub::Hub, limits::Limits, reply};
use crate::{
    dialect::{Call, Caller, Principal},
    policy::Quotas,
    protocol::{ErrorObject, Timestamp, code, splice::Object},
    runtime::{Clock, random},
    store::{self, Store, StoreError, Updated},
    task::{Effect, Event, Owner, Record, State, TaskId, view},
    telemetry::{LookupFailed, QuotaFull, StoreFailed, TaskRead, TaskTransition},
};
use bytes::Bytes;
use dashmap::DashMap;
use http::StatusCode;
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::oneshot;

/// The tasks, and the calls this process holds for them.
pub struct Tasks {
    store: Arc<dyn Store>,
    quotas: Quotas,
    clock: Arc<dyn Clock>,
    pub(super) limits: Limits,
    pub(super) hub: Arc<Hub>,
    /// The calls that are tasks now, by whom to tell of a cancel. Sharded.
    parked: DashMap<TaskId, oneshot::Sender<()>>,
}

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
            parked: DashMap::new(),
        })
    }

    /// The calls held by this process that are tasks now.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    pub(super) fn new_id(&self) -> TaskId {
        TaskId::from_entropy(random())
    }

    pub(super) fn poll_bounds(&self) -> view::PollBounds {
        self.quotas.poll_interval
    }

    pub(super) fn result_limit(&self) -> usize {
        self.quotas.stored_result_bytes
    }

    /// Holds a call that becomes the task `id`; resolves when the task is cancelled.
    pub(super) fn park(&self, id: &TaskId) -> oneshot::Receiver<()> {
        let (cancel, cancelled) = oneshot::channel();
        self.parked.insert(id.clone(), cancel);
        cancelled
    }

    pub(super) fn unpark(&self, id: &TaskId) {
        self.parked.remove(id);
    }

    /// Stores a new task; says whether it did. Where a quota is full, or the store fails, the call
    /// stays synchronous: nothing that runs is evicted.
    pub(super) async fn admit(&self, record: Record) -> bool {
        let principal = record.owner.principal;
        let usage = match self.store.usage(&principal).await {
            Ok(usage) => usage,
            Err(error) => return self.failed("counting tasks", &error),
        };
        let full = [
            ("limits.tasks_per_principal", usage.tasks_of_principal, self.quotas.tasks_per_principal),
            ("limits.tasks", usage.tasks, self.quotas.tasks),
            ("limits.stored_bytes", usage.stored_bytes, self.quotas.stored_bytes),
        ];
        if let Some((limit, ..)) = full.into_iter().find(|(_, used, limit)| used >= limit) {
            QuotaFull { limit, principal: &shown(&principal) }.emit();
            return false;
        }
        let (id, tool) = (record.id.clone(), record.tool.clone());
        match self.store.insert(Arc::new(record)).await {
            Ok(()) => {
                TaskTransition {
                    task: &id,
                    tool: &tool,
                    principal: &shown(&principal),
                    from: "call",
                    to: "working",
                }
                .emit();
                true
            }
            Err(error) => self.failed("storing a task", &error),
        }
    }

    fn failed(&self, doing: &str, error: &StoreError) -> bool {
        StoreFailed { doing, error }.emit();
        false
    }

    pub(super) async fn load(&self, id: &TaskId) -> Option<Arc<Record>> {
        match self.store.load(id).await {
            Ok(found) => found.map(|(_, record)| record),
            Err(error) => {
                self.failed("loading a task", &error);
                None
            }
        }
    }

    /// Forgets a task whose handle nobody has.
    pub(super) async fn forget(&self, id: &TaskId) {
        if let Err(error) = self.store.remove(id).await {
            self.failed("forgetting a task", &error);
        }
    }

    /// Something happened to a task that this process holds.
    pub(super) async fn apply(&self, id: &TaskId, event: Event) -> Vec<Effect> {
        match self.change(id, &event, self.clock.timestamp()).await {
            Ok(Updated::Done { effects, .. }) => effects,
            Ok(Updated::Refused(_) | Updated::Unknown) => Vec::new(),
            Err(error) => {
                self.failed("updating a task", &error);
                Vec::new()
            }
        }
    }

    /// Applies `event`, says so in the log where the status changed, and tells the listeners.
    async fn change(&self, id: &TaskId, event: &Event, now: Timestamp) -> Result<Updated, StoreError> {
        let updated = store::update(&*self.store, id, event, now).await?;
        if let Updated::Done { before, after, effects } = &updated {
            let (from, to) = (before.state.status(), after.state.status());
            if from != to {
                TaskTransition {
                    task: id,
                    tool: &after.tool,
                    principal: &shown(&after.owner.principal),
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

    /// `tasks/get` (tasks extension, *Task Polling*).
    pub(super) async fn get(&self, call: &Call, owner: &Owner, caller: &Caller) -> Reply {
        let record = match self.find(call, owner, caller).await {
            Ok(record) => record,
            Err(reply) => return *reply,
        };
        let status = record.state.status();
        TaskRead { task: &record.id, principal: &caller.principal, status }.emit();
        reply::success(
            call,
            &view::detailed(&record, self.clock.timestamp(), self.quotas.poll_interval, None),
        )
    }

    /// `tasks/update` (tasks extension, *Task Update Requests*): acknowledged; answers to what is
    /// not asked, or no longer, are ignored.
    pub(super) async fn update(&self, call: &Call, owner: &Owner, caller: &Caller) -> Reply {
        let record = match self.find(call, owner, caller).await {
            Ok(record) => record,
            Err(reply) => return *reply,
        };
        let answers = match input_responses(call) {
            Ok(answers) => answers,
            Err(error) => return reply::refuse(call, StatusCode::OK, &error),
        };
        self.apply(&record.id, Event::Answered { answers }).await;
        acknowledged(call)
    }

    /// `tasks/cancel` (tasks extension, *Task Cancellation*): acknowledged also where the task has
    /// ended; the server is told where it has not.
    pub(super) async fn cancel(&self, call: &Call, owner: &Owner, caller: &Caller) -> Reply {
        let record = match self.find(call, owner, caller).await {
            Ok(record) => record,
            Err(reply) => return *reply,
        };
        let effects = self.apply(&record.id, Event::Cancelled).await;
        if effects.contains(&Effect::CancelUpstream)
            && let Some((_, cancel)) = self.parked.remove(&record.id)
        {
            // Gone only where the call ended in this moment.
            let _ = cancel.send(());
        }
        acknowledged(call)
    }

    /// The task a call names, if it is there and its caller's.
    async fn find(&self, call: &Call, owner: &Owner, caller: &Caller) -> Result<Arc<Record>, Box<Reply>> {
        // Before the id is looked at (tasks extension, *Protocol Errors*).
        if !caller.capabilities.declares_tasks() {
            return Err(Box::new(reply::tasks_required(call)));
        }
        if !self.limits.admits_poll(caller.principal) {
            return Err(Box::new(too_many(call, "limits.polls_per_second")));
        }
        let id = call.target.as_deref().and_then(TaskId::parse);
        let found = match &id {
            None => None,
            Some(id) => match self.store.load(id).await {
                Ok(found) => found.map(|(_, record)| record),
                Err(error) => {
                    self.failed("loading a task", &error);
                    return Err(Box::new(reply::internal(call, "the task store does not answer; try again")));
                }
            },
        };
        let now = self.clock.timestamp();
        let reason = match found {
            Some(record) if owner.claim(&record).is_none() => "foreign",
            Some(record) if record.is_expired(now) => "expired",
            Some(record) => return Ok(record),
            None => "unknown",
        };
        LookupFailed { method: call.method.as_str(), principal: &caller.principal, reason }.emit();
        if !self.limits.admits_miss(caller.principal) {
            return Err(Box::new(too_many(call, "limits.misses_per_minute")));
        }
        let error = ErrorObject::new(code::INVALID_PARAMS, NOT_FOUND);
        Err(Box::new(reply::refuse(call, StatusCode::OK, &error)))
    }

    /// The owner's tasks among `ids`, as they are now.
    pub(super) async fn of(&self, owner: &Owner, ids: &[String]) -> Vec<Arc<Record>> {
        let mut found = Vec::new();
        for id in ids.iter().filter_map(|id| TaskId::parse(id)) {
            if let Some(record) = self.load(&id).await
                && owner.claim(&record).is_some()
                && !record.is_expired(self.clock.timestamp())
            {
                found.push(record);
            }
        }
        found
    }

    /// Renews what works and forgets what has outlived its time. Called now and then.
    pub(super) async fn sweep(&self, batch: usize) -> Result<usize, StoreError> {
        let now = self.clock.timestamp();
        let due = self.store.due(now, batch).await?;
        for id in &due {
            let Some((_, record)) = self.store.load(id).await? else { continue };
            if record.is_expired(now) {
                self.store.remove(id).await?;
                tracing::debug!(target: "deferral::task", event = "forgotten", task = %id);
            } else {
                store::update(&*self.store, id, &Event::Renewed, now).await?;
            }
        }
        self.limits.forget_silent();
        Ok(due.len())
    }
}

/// `inputResponses` of a `tasks/update`: an object; its values are raw.
fn input_responses(call: &Call) -> Result<BTreeMap<String, Bytes>, ErrorObject> {
    let wrong = || ErrorObject::new(code::INVALID_PARAMS, "params.inputResponses must be an object");
    let params = call.params.as_ref().and_then(|raw| Object::read(raw).ok()).ok_or_else(wrong)?;
    let responses = params.get("inputResponses").ok_or_else(wrong)?;
    let responses = Object::read(&responses).map_err(|_| wrong())?;
    Ok(responses.members().map(|(key, value)| (key.to_owned(), Bytes::copy_from_slice(&value))).collect())
}

fn acknowledged(call: &Call) -> Reply {
    reply::success(call, br#"{"resultType":"complete"}"#)
}

/// A caller has met one of its limits, which is named.
pub(super) fn too_many(call: &Call, limit: &str) -> Reply {
    let error = ErrorObject::new(code::BUSY, format!("too many requests; the limit is {limit}"));
    reply::refuse(call, StatusCode::TOO_MANY_REQUESTS, &error)
}

fn shown(principal: &[u8; 16]) -> Principal {
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
