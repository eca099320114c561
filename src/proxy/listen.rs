//! One `subscriptions/listen` stream: the subscribed notifications, collected from all sessions of the
//! principal with the server, and from the principal's tasks.

use super::{
    CallReply, ReplyItem,
    answers::{POLLS_LIMIT_KEY, TaskRefusal, extension, look_up_task},
    reply::{self, CallEnd, call_reply::ReplySource},
    route_context::RouteContext,
    tasks::{
        persist::STORE_RETRY_DELAY,
        principal_limits::ListenPermit,
        watchers::{TaskWatcher, WatcherKind},
    },
};
use crate::{
    bridge::{
        describe::has_flag,
        listen::{
            SubscriptionFilter, acknowledged_message, closing_messages, subscription_meta,
            tagged_notification,
        },
    },
    dialect::{Call, Caller, modern},
    protocol::{ListKind, Method, frame::to_single_line},
    runtime::wait_until,
    task::{self, Record, TaskId, view},
    telemetry::{Limit, RequestOutcome},
    upstream::{CallerIdentity, ChangeNotification, Subscription, UpstreamDescription},
};
use http::StatusCode;
use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::broadcast::{Receiver, error::RecvError};

/// How long the notification of a list change is delayed, so that the reports of several sessions are merged
/// into one. No change is lost: a report after the notification causes another notification.
const MERGE_WINDOW: Duration = Duration::from_millis(50);

/// Resources that one stream may subscribe to; further ones are left out of the acknowledged filter. Each
/// subscription costs a sequential request to the server, and lives as long as the stream.
const MAX_RESOURCES: usize = 1000;

/// Tasks that one stream may follow; further ones are left out of the acknowledged filter. Each task costs a
/// look-up, which counts as a `tasks/get`.
const MAX_TASKS: usize = 1000;

/// One `subscriptions/listen` request and its stream of notifications.
pub(super) struct ListenStream {
    shared: Arc<RouteContext>,
    call: Arc<Call>,
    caller: Caller,
    state: ListenState,
    outgoing: VecDeque<ReplyItem>,
}

enum ListenState {
    Fresh,
    Open(Box<ActiveListen>),
    Ended,
}

struct ActiveListen {
    server: Arc<UpstreamDescription>,
    filter: SubscriptionFilter,
    reports: Receiver<ChangeNotification>,
    tasks: TaskWatcher,
    /// Tasks whose notifications are due. Notifications are rendered one at a time, when the client reads:
    /// each may contain a result of megabytes.
    due_tasks: VecDeque<TaskId>,
    /// When to load the due tasks again after a failure of the store.
    store_retry_at: Option<Instant>,
    /// Lists that have changed, and when to notify the client.
    changed_lists: PendingListChanges,
    /// Keeps the resources subscribed at the server.
    _subscriptions: Vec<Subscription>,
    /// The permit for this stream.
    _permit: ListenPermit,
}

#[derive(Default)]
struct PendingListChanges {
    lists: BTreeSet<ListKind>,
    notify_at: Option<Instant>,
}

// === impl ListenStream ===

impl ListenStream {
    /// Creates the stream for a `subscriptions/listen` request; the first poll subscribes.
    pub(super) fn new(shared: Arc<RouteContext>, call: Arc<Call>, caller: Caller) -> Self {
        Self { shared, call, caller, state: ListenState::Fresh, outgoing: VecDeque::new() }
    }

    /// Opens the stream: subscribes at the server, and queues the acknowledgement and the tasks that are due.
    ///
    /// # Errors
    /// The reply that refuses the subscription.
    async fn open(&mut self) -> Result<(), Box<CallReply>> {
        let requested = SubscriptionFilter::read(self.call.params.as_ref())
            .map_err(|error| Box::new(reply::invalid_params(&self.call, error.to_string())))?;
        // Tasks extension, *Task Status Notifications*.
        if !requested.task_ids.is_empty() && !self.caller.capabilities.declares_tasks() {
            return Err(Box::new(reply::tasks_required_refusal(&self.call)));
        }
        let permit = self.shared.ledger.principal_limits.load().try_listen(self.caller.principal);
        let permit = permit.ok_or_else(|| {
            let error = reply::rate_limit_error("limits.listens_per_principal");
            Box::new(reply::refuse(&self.call, StatusCode::TOO_MANY_REQUESTS, &error))
        })?;
        let identity = CallerIdentity::from_caller(&self.caller);
        // Subscribed before the server is described: no change is missed.
        let reports = self.shared.upstream.watch(self.caller.principal).subscribe();
        let server = self.shared.upstream.describe(&identity).await.map_err(|call_error| {
            Box::new(reply::call_end_reply(&self.call, &self.shared.route, CallEnd::Lost(call_error), None))
        })?;
        // Checked before anything is subscribed at the server.
        let records = self.find_tasks(&requested.task_ids).await?;
        let (filter, subscriptions) = self.accept_filter(requested, &records, &identity, &server).await;
        self.outgoing.push_back(ReplyItem::Notification(acknowledged_message(&self.call.id, &filter)));
        let tasks = records.iter().map(|record| record.id.clone()).collect();
        let tasks = self.shared.ledger.bus.watch(tasks, WatcherKind::Stream);
        let tasks = tasks.expect("only requests that wait for a result are bounded");
        // Changes before the subscription are not repeated, except for ended tasks: a client would otherwise
        // wait for their end for ever.
        let mut due = VecDeque::new();
        for record in &records {
            let current = self.shared.ledger.load(&record.id).await;
            let current = current.map_err(|_| Box::new(reply::store_failed_reply(&self.call)))?;
            due.extend(
                current.filter(|current| is_actionable(&current.state)).map(|current| current.id.clone()),
            );
        }
        let changed = PendingListChanges::default();
        self.state = ListenState::Open(Box::new(ActiveListen {
            server,
            filter,
            reports,
            tasks,
            due_tasks: due,
            store_retry_at: None,
            changed_lists: changed,
            _subscriptions: subscriptions,
            _permit: permit,
        }));
        Ok(())
    }

    /// The caller's tasks among `ids`, in their current state; each once.
    ///
    /// If the caller reaches its limit on polls, only the tasks found before are followed. The
    /// acknowledgement does not contain the others, and the client can subscribe to them later.
    ///
    /// # Errors
    /// The refusal, if the caller has reached the limit on polls with the first task, or the limit on misses,
    /// or if the store fails.
    async fn find_tasks(&self, ids: &[String]) -> Result<Vec<Arc<Record>>, Box<CallReply>> {
        let (owner, principal) = (self.shared.task_owner(&self.caller), self.caller.principal);
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        for id in ids.iter().filter(|id| seen.insert(id.as_str())).take(MAX_TASKS) {
            match look_up_task(&self.shared, &Method::Listen, Some(id), &owner, principal).await {
                Ok(record) => found.push(record),
                Err(TaskRefusal::Unknown) => {}
                Err(TaskRefusal::TooMany(limit)) if limit == POLLS_LIMIT_KEY && !found.is_empty() => {
                    Limit::PollsPerSecond.record_hit();
                    break;
                }
                Err(refusal) => return Err(Box::new(extension::refusal_reply(&self.call, refusal))),
            }
        }
        Ok(found)
    }

    /// Subscribes at the server to the requested resources. Returns the part of the filter that can be
    /// served, given the server's capabilities, and the subscriptions.
    async fn accept_filter(
        &self,
        requested: SubscriptionFilter,
        records: &[Arc<Record>],
        identity: &CallerIdentity,
        server: &UpstreamDescription,
    ) -> (SubscriptionFilter, Vec<Subscription>) {
        let declares = |member, flag| has_flag(&server.capabilities, member, flag);
        let (mut uris, mut subscriptions) = (Vec::new(), Vec::new());
        if declares("resources", "subscribe") {
            let mut seen = HashSet::new();
            let requested_uris =
                requested.resource_subscriptions.into_iter().filter(|uri| seen.insert(uri.clone()));
            for uri in requested_uris.take(MAX_RESOURCES) {
                match self.shared.upstream.subscribe(identity, &uri).await {
                    Ok(subscription) => {
                        subscriptions.push(subscription);
                        uris.push(uri);
                    }
                    Err(error) => tracing::warn!(%error, "a resource could not be subscribed"),
                }
            }
        }
        let filter = SubscriptionFilter {
            tools_list_changed: requested.tools_list_changed && declares("tools", "listChanged"),
            prompts_list_changed: requested.prompts_list_changed && declares("prompts", "listChanged"),
            resources_list_changed: requested.resources_list_changed && declares("resources", "listChanged"),
            resource_subscriptions: uris,
            task_ids: records.iter().map(|record| record.id.as_str().to_owned()).collect(),
        };
        (filter, subscriptions)
    }

    /// Waits for one event of an open stream, and queues the messages or tasks that follow from it.
    async fn handle_next_event(&mut self) {
        let ListenState::Open(open) = &mut self.state else { return };
        tokio::select! {
            report = open.reports.recv() => match report {
                Ok(report) => self.handle_report(report),
                // Reports were lost: all subscribed lists may have changed.
                Err(RecvError::Lagged(_)) => {
                    let lists = ListKind::ALL.into_iter().filter(|list| open.filter.includes_list(*list));
                    open.changed_lists.add(lists, self.shared.clock.now() + MERGE_WINDOW);
                }
                Err(RecvError::Closed) => self.end(),
            },
            ids = open.tasks.changed() => open.due_tasks.extend(ids),
            // The next iteration retries the due tasks.
            () = wait_until(open.store_retry_at) => open.store_retry_at = None,
            () = wait_until(open.changed_lists.notify_at) => {
                let lists = std::mem::take(&mut open.changed_lists).lists;
                let notification = |list: ListKind| ReplyItem::Notification(tagged_notification(&self.call.id, &list.changed_notification(), None));
                self.outgoing.extend(lists.into_iter().map(notification));
            }
            () = self.shared.closing.stopped() => self.end(),
        }
    }

    /// Queues the notification of a change at the server, if the client has subscribed to it.
    fn handle_report(&mut self, report: ChangeNotification) {
        let ListenState::Open(open) = &mut self.state else { return };
        let ActiveListen { filter, changed_lists: changed, .. } = &mut **open;
        match report {
            ChangeNotification::ListChanged(list) if filter.includes_list(list) => {
                changed.add([list], self.shared.clock.now() + MERGE_WINDOW);
            }
            ChangeNotification::ResourceUpdated { uri, params } if filter.includes_resource(&uri) => {
                let notification =
                    tagged_notification(&self.call.id, &Method::ResourceUpdated, Some(&params));
                self.outgoing.push_back(ReplyItem::Notification(notification));
            }
            ChangeNotification::ListChanged(_) | ChangeNotification::ResourceUpdated { .. } => {}
        }
    }

    /// Queues the notification of the task that is due first. Returns whether there was one.
    async fn notify_due(&mut self) -> bool {
        let ListenState::Open(open) = &mut self.state else { return false };
        let Some(id) = open.due_tasks.front() else { return false };
        if open.store_retry_at.is_some_and(|retry_at| retry_at > self.shared.clock.now()) {
            return false;
        }
        let Ok(record) = self.shared.ledger.load(id).await else {
            // The task stays due: a client that waits for the notification may not poll.
            open.store_retry_at = Some(self.shared.clock.now() + STORE_RETRY_DELAY);
            return false;
        };
        open.store_retry_at = None;
        open.due_tasks.pop_front();
        self.outgoing.extend(record.map(|record| self.task_notification(&record)));
        true
    }

    /// The notification of a task's status; with a delivery commit if the task has ended.
    fn task_notification(&self, record: &Record) -> ReplyItem {
        let commit = self.shared.ledger.record_shown(record);
        let params = view::extension::notification_params(
            record,
            self.shared.clock.timestamp(),
            self.shared.ledger.quotas().poll_interval,
            Some(&subscription_meta(&self.call.id)),
        );
        let message = modern::notification(&Method::TasksNotification, &params);
        match commit {
            Some(commit) => ReplyItem::TaskEnd(message, commit),
            None => ReplyItem::Notification(message),
        }
    }

    /// Ends the subscription on the proxy's side (2026-07-28, *Graceful Closure*).
    fn end(&mut self) {
        let ListenState::Open(open) = &self.state else { return };
        let (cancelled, result) = closing_messages(&self.call.id, &open.server.server_info);
        let result = to_single_line(result);
        self.outgoing.push_back(ReplyItem::Notification(cancelled));
        self.outgoing.push_back(ReplyItem::Reply(CallReply::new(
            StatusCode::OK,
            result,
            RequestOutcome::Result,
        )));
        self.state = ListenState::Ended;
    }
}

impl ReplySource for ListenStream {
    /// The next message for the client.
    async fn next(&mut self) -> Option<ReplyItem> {
        loop {
            if let Some(item) = self.outgoing.pop_front() {
                return Some(item);
            }
            match &mut self.state {
                ListenState::Ended => return None,
                ListenState::Fresh => {
                    if let Err(reply) = self.open().await {
                        self.state = ListenState::Ended;
                        return Some(ReplyItem::Reply(*reply));
                    }
                }
                ListenState::Open(_) => {
                    if !self.notify_due().await {
                        self.handle_next_event().await;
                    }
                }
            }
        }
    }
}

// === impl PendingListChanges ===

impl PendingListChanges {
    /// Adds changed lists. The notification is due at this time, or earlier if one is pending already.
    fn add(&mut self, lists: impl IntoIterator<Item = ListKind>, notify_at: Instant) {
        self.lists.extend(lists);
        self.notify_at.get_or_insert(notify_at);
    }
}

/// Whether the state needs an action of the client: to respond, or to fetch the result.
fn is_actionable(state: &task::TaskState) -> bool {
    match state {
        task::TaskState::Working => false,
        task::TaskState::InputRequired { .. }
        | task::TaskState::Completed { .. }
        | task::TaskState::Failed { .. }
        | task::TaskState::Cancelled => true,
    }
}
