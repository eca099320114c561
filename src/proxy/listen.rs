//! One `subscriptions/listen` stream: what its client asked to hear of, gathered from all of the
//! principal's sessions with the server and from the tasks.

use super::{
    Item, Reply,
    answers::{TaskRefusal, extension, look_up},
    conversation::Conversation,
    hub::Listener,
    keep::STORE_PAUSE,
    limits::Place,
    reply::{self, CallEnd},
    shared::Shared,
};
use crate::{
    bridge::{
        describe::declares_flag,
        listen::{Filter, acknowledged, ended, subscription_meta, tagged},
    },
    dialect::{Call, Caller, modern},
    protocol::{List, Method, frame::on_one_line},
    runtime::reached,
    task::{self, Record, TaskId, view},
    telemetry::Outcome,
    upstream::{Description, Identity, Report, Subscription},
};
use http::StatusCode;
use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::broadcast::{Receiver, error::RecvError};

/// How long a change of a list is held back so that all sessions that report it are heard as one.
/// Nothing is lost by it: what comes after the notice begins a new one.
const MERGE: Duration = Duration::from_millis(50);

/// Resources that one stream may subscribe to; further ones are not honoured, as the acknowledgement
/// says. Each is a request to the server, one after the other, and is kept for as long as the stream.
const MAX_RESOURCES: usize = 1000;

/// Tasks that one stream may follow; further ones are not honoured, as the acknowledgement says. Each is looked up,
/// and counts as a `tasks/get` does.
const MAX_TASKS: usize = 1000;

/// One client's subscription.
pub(super) struct Listening {
    shared: Arc<Shared>,
    call: Arc<Call>,
    caller: Caller,
    state: State,
    outgoing: VecDeque<Item>,
}

enum State {
    Fresh,
    Open(Box<Open>),
    Ended,
}

struct Open {
    server: Arc<Description>,
    filter: Filter,
    reports: Receiver<Report>,
    tasks: Listener,
    /// Tasks that are to be told of. Written one at a time, when the client has room: each may hold
    /// a result of megabytes.
    due: VecDeque<TaskId>,
    /// When the store is asked again for them, which has failed.
    store_again: Option<Instant>,
    /// Lists that have changed, and when that is told.
    changed: Changed,
    /// Keeps the resources subscribed at the server.
    _subscriptions: Vec<Subscription>,
    /// One of the streams that its principal may have.
    _place: Place,
}

#[derive(Default)]
struct Changed {
    lists: BTreeSet<List>,
    tell_at: Option<Instant>,
}

// === impl Listening ===

impl Listening {
    pub(super) fn new(shared: Arc<Shared>, call: Arc<Call>, caller: Caller) -> Self {
        Self { shared, call, caller, state: State::Fresh, outgoing: VecDeque::new() }
    }

    async fn open(&mut self) -> Result<(), Box<Reply>> {
        let asked = Filter::read(self.call.params.as_ref())
            .map_err(|error| Box::new(reply::invalid_params(&self.call, error.to_string())))?;
        // Tasks extension, *Task Status Notifications*.
        if !asked.task_ids.is_empty() && !self.caller.capabilities.declares_tasks() {
            return Err(Box::new(reply::tasks_required(&self.call)));
        }
        let place = self.shared.ledger.limits.now().admits_listener(self.caller.principal);
        let place = place.ok_or_else(|| {
            let error = reply::too_many("limits.listens_per_principal");
            Box::new(reply::refuse(&self.call, StatusCode::TOO_MANY_REQUESTS, &error))
        })?;
        let identity = Identity::of(&self.caller);
        // Watched from before the server is asked anything: no change is missed.
        let reports = self.shared.upstream.watch(self.caller.principal);
        let server = self.shared.upstream.describe(&identity).await.map_err(|lost| {
            Box::new(reply::to_client(&self.call, &self.shared.route, CallEnd::Lost(lost), None))
        })?;
        // Before anything is subscribed at the server: who names tasks of nobody is told so.
        let records = self.tasks(&asked.task_ids).await?;
        let (filter, subscriptions) = self.honour(asked, &records, &identity, &server).await;
        self.outgoing.push_back(Item::Notification(acknowledged(&self.call.id, &filter)));
        let tasks = self.shared.ledger.hub.listen(records.iter().map(|record| record.id.clone()).collect());
        // What happened before the subscription is not told again, but a client that waits for a
        // task's end would wait for ever if it has ended already.
        let mut due = VecDeque::new();
        for record in &records {
            let now = self.shared.ledger.load(&record.id).await;
            let now = now.map_err(|_| Box::new(reply::store_failed(&self.call)))?;
            due.extend(now.filter(|now| wants_attention(&now.state)).map(|now| now.id.clone()));
        }
        let changed = Changed::default();
        self.state = State::Open(Box::new(Open {
            server,
            filter,
            reports,
            tasks,
            due,
            store_again: None,
            changed,
            _subscriptions: subscriptions,
            _place: place,
        }));
        Ok(())
    }

    /// The caller's tasks among `ids`, as they are now; each once, however often it is named.
    ///
    /// # Errors
    /// The refusal of a caller that has looked up too many tasks, or too many that are not its own, and where the store
    /// fails.
    async fn tasks(&self, ids: &[String]) -> Result<Vec<Arc<Record>>, Box<Reply>> {
        let (owner, principal) = (self.shared.owner(&self.caller), self.caller.principal);
        let mut named = HashSet::new();
        let mut found = Vec::new();
        for id in ids.iter().filter(|id| named.insert(id.as_str())).take(MAX_TASKS) {
            match look_up(&self.shared, &Method::Listen, Some(id), &owner, principal).await {
                Ok(record) => found.push(record),
                Err(TaskRefusal::Unknown) => {}
                Err(refusal) => return Err(Box::new(extension::refused(&self.call, refusal))),
            }
        }
        Ok(found)
    }

    /// What of a filter can be kept, given what the server offers.
    async fn honour(
        &self,
        asked: Filter,
        records: &[Arc<Record>],
        identity: &Identity,
        server: &Description,
    ) -> (Filter, Vec<Subscription>) {
        let offers = |member, flag| declares_flag(&server.capabilities, member, flag);
        let (mut uris, mut subscriptions) = (Vec::new(), Vec::new());
        if offers("resources", "subscribe") {
            let mut named = HashSet::new();
            let wanted = asked.resource_subscriptions.into_iter().filter(|uri| named.insert(uri.clone()));
            for uri in wanted.take(MAX_RESOURCES) {
                match self.shared.upstream.subscribe(identity, &uri).await {
                    Ok(subscription) => {
                        subscriptions.push(subscription);
                        uris.push(uri);
                    }
                    Err(error) => tracing::warn!(%error, "a resource could not be subscribed"),
                }
            }
        }
        let filter = Filter {
            tools_list_changed: asked.tools_list_changed && offers("tools", "listChanged"),
            prompts_list_changed: asked.prompts_list_changed && offers("prompts", "listChanged"),
            resources_list_changed: asked.resources_list_changed && offers("resources", "listChanged"),
            resource_subscriptions: uris,
            task_ids: records.iter().map(|record| record.id.as_str().to_owned()).collect(),
        };
        (filter, subscriptions)
    }

    async fn wait(&mut self) {
        let State::Open(open) = &mut self.state else { return };
        tokio::select! {
            report = open.reports.recv() => match report {
                Ok(report) => self.heard(report),
                // Too many at once to keep: whatever they were, these lists may have changed.
                Err(RecvError::Lagged(_)) => {
                    let lists = List::ALL.into_iter().filter(|list| open.filter.wants_list(*list));
                    open.changed.note(lists, self.shared.clock.now() + MERGE);
                }
                Err(RecvError::Closed) => self.end(),
            },
            ids = open.tasks.changed() => open.due.extend(ids),
            // What is due is looked for anew.
            () = reached(open.store_again) => open.store_again = None,
            () = reached(open.changed.tell_at) => {
                let lists = std::mem::take(&mut open.changed).lists;
                let told = |list: List| Item::Notification(tagged(&self.call.id, &list.changed(), None));
                self.outgoing.extend(lists.into_iter().map(told));
            }
            () = self.shared.closing.stopped() => self.end(),
        }
    }

    fn heard(&mut self, report: Report) {
        let State::Open(open) = &mut self.state else { return };
        let Open { filter, changed, .. } = &mut **open;
        match report {
            Report::ListChanged(list) if filter.wants_list(list) => {
                changed.note([list], self.shared.clock.now() + MERGE);
            }
            Report::ResourceUpdated { uri, params } if filter.wants_resource(&uri) => {
                let notice = tagged(&self.call.id, &Method::ResourceUpdated, Some(&params));
                self.outgoing.push_back(Item::Notification(notice));
            }
            Report::ListChanged(_) | Report::ResourceUpdated { .. } => {}
        }
    }

    /// Prepares the notice of the task that has been due the longest; says whether there was one.
    async fn tell_due(&mut self) -> bool {
        let State::Open(open) = &mut self.state else { return false };
        let Some(id) = open.due.front() else { return false };
        if open.store_again.is_some_and(|again| again > self.shared.clock.now()) {
            return false;
        }
        let Ok(record) = self.shared.ledger.load(id).await else {
            // It is still to be told: a client that waits for it may not ask.
            open.store_again = Some(self.shared.clock.now() + STORE_PAUSE);
            return false;
        };
        open.store_again = None;
        open.due.pop_front();
        self.outgoing.extend(record.map(|record| self.task_notice(&record)));
        true
    }

    fn task_notice(&self, record: &Record) -> Item {
        let commit = self.shared.ledger.shown(record);
        let params = view::extension::notified(
            record,
            self.shared.clock.timestamp(),
            self.shared.ledger.quotas().poll_interval,
            Some(&subscription_meta(&self.call.id)),
        );
        let message = modern::notification(&Method::TasksNotification, &params);
        match commit {
            Some(commit) => Item::TaskEnd(message, commit),
            None => Item::Notification(message),
        }
    }

    /// Ends the subscription of our own accord (2026-07-28, *Graceful Closure*).
    fn end(&mut self) {
        let State::Open(open) = &self.state else { return };
        let (cancelled, result) = ended(&self.call.id, &open.server.server_info);
        let result = on_one_line(result);
        self.outgoing.push_back(Item::Notification(cancelled));
        self.outgoing.push_back(Item::Reply(Reply::new(StatusCode::OK, result, Outcome::Result)));
        self.state = State::Ended;
    }
}

impl Conversation for Listening {
    /// The next message for the client.
    async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.outgoing.pop_front() {
                return Some(item);
            }
            match &mut self.state {
                State::Ended => return None,
                State::Fresh => {
                    if let Err(reply) = self.open().await {
                        self.state = State::Ended;
                        return Some(Item::Reply(*reply));
                    }
                }
                State::Open(_) => {
                    if !self.tell_due().await {
                        self.wait().await;
                    }
                }
            }
        }
    }
}

// === impl Changed ===

impl Changed {
    /// These have changed too, which is told at this time at the latest.
    fn note(&mut self, lists: impl IntoIterator<Item = List>, tell_at: Instant) {
        self.lists.extend(lists);
        self.tell_at.get_or_insert(tell_at);
    }
}

/// Whether whoever follows the task has something to do about its state: answer, or fetch what it came to.
fn wants_attention(state: &task::State) -> bool {
    match state {
        task::State::Working => false,
        task::State::InputRequired { .. }
        | task::State::Completed { .. }
        | task::State::Failed { .. }
        | task::State::Cancelled => true,
    }
}
