//! Watchers of tasks: clients and calls that are notified when a task changes.

use crate::{
    protocol::{InputRequest, Method},
    runtime::Mutex,
    task::TaskId,
};
use bytes::Bytes;
use dashmap::DashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Notifies watchers of changed tasks. A change is a flag, not a queued message: a slow watcher costs one
/// entry for each task, and never misses the latest state.
#[derive(Debug, Default)]
pub(in crate::proxy) struct TaskWatchers {
    subscribers: DashMap<TaskId, Vec<Arc<TaskSubscriber>>>,
}

/// Decides which input requests of a server a client can receive, by the capabilities that the client
/// declared: a function of the request's method and params.
#[derive(Clone)]
pub(in crate::proxy) struct InputFilter(Arc<IsDeclared>);

type IsDeclared = dyn Fn(&Method, Option<&Bytes>) -> bool + Send + Sync;

/// The state of one watcher.
#[derive(Debug)]
struct TaskSubscriber {
    kind: WatcherKind,
    /// Watched tasks that have changed since the last notification.
    changed: Mutex<Vec<TaskId>>,
    notify: Notify,
}

/// The kind of a watcher.
#[derive(Debug)]
pub(in crate::proxy) enum WatcherKind {
    /// A client with a stream of its own.
    Stream,
    /// A request that waits for the result. At most [`WAITERS_PER_TASK`] may watch one task.
    Waiter {
        /// Which input requests the client can receive; given if the client has a ticket, and may receive only
        /// those whose capability it declared.
        input_filter: Option<InputFilter>,
    },
    /// The call of the task itself, which does not count as a watcher.
    OwnCall,
}

/// Requests that may wait for the result of one task. Each costs a few KiB, and every change of the task
/// wakes all of them.
pub(in crate::proxy) const WAITERS_PER_TASK: usize = 64;

/// A subscription to changes of some tasks; ends when dropped.
#[derive(Debug)]
pub(in crate::proxy) struct TaskWatcher {
    watchers: Arc<TaskWatchers>,
    subscriber: Arc<TaskSubscriber>,
    ids: Vec<TaskId>,
}

// === impl TaskWatchers ===

impl TaskWatchers {
    /// Watches these tasks. `None` if [`WAITERS_PER_TASK`] requests already wait for the result of one.
    pub(in crate::proxy) fn watch(
        self: &Arc<Self>,
        ids: Vec<TaskId>,
        kind: WatcherKind,
    ) -> Option<TaskWatcher> {
        let subscriber = Arc::new(TaskSubscriber { kind, changed: Mutex::default(), notify: Notify::new() });
        let watcher = TaskWatcher { watchers: Arc::clone(self), subscriber, ids };
        for id in &watcher.ids {
            let mut subscribers = self.subscribers.entry(id.clone()).or_default();
            let waiters = subscribers.iter().filter(|other| other.is_waiter()).count();
            if watcher.subscriber.is_waiter() && waiters >= WAITERS_PER_TASK {
                return None;
            }
            subscribers.push(Arc::clone(&watcher.subscriber));
        }
        Some(watcher)
    }

    /// The number of client requests that watch or await a task.
    pub(in crate::proxy) fn watcher_count(&self, id: &TaskId) -> usize {
        self.subscribers.get(id).map_or(0, |subscribers| {
            subscribers.iter().filter(|other| !matches!(other.kind, WatcherKind::OwnCall)).count()
        })
    }

    /// Notifies all watchers of a task of a change that clients can see.
    pub(in crate::proxy) fn notify(&self, id: &TaskId) {
        self.wake(id, |_| true);
    }

    /// Wakes the requests that wait for the result of a task, so that they attach to its call, or check again
    /// which input requests they can receive.
    pub(in crate::proxy) fn wake_waiters(&self, id: &TaskId) {
        self.wake(id, TaskSubscriber::is_waiter);
    }

    fn wake(&self, id: &TaskId, should_wake: impl Fn(&TaskSubscriber) -> bool) {
        let Some(subscribers) = self.subscribers.get(id) else { return };
        for subscriber in subscribers.value().iter().filter(|subscriber| should_wake(subscriber)) {
            let mut changed = subscriber.changed.lock();
            if !changed.contains(id) {
                changed.push(id.clone());
            }
            drop(changed);
            subscriber.notify.notify_one();
        }
    }
}

// === impl InputFilter ===

impl InputFilter {
    /// Creates it from a function that returns whether the client has the capability for a request with this
    /// method and these params.
    pub(in crate::proxy) fn new(
        is_declared: impl Fn(&Method, Option<&Bytes>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(is_declared))
    }

    /// Whether the client can receive this input request.
    pub(in crate::proxy) fn allows(&self, request: &InputRequest) -> bool {
        self.allows_method(&request.kind().method(), request.params().as_ref())
    }

    /// Whether the client can receive a request with this method and these params.
    pub(in crate::proxy) fn allows_method(&self, method: &Method, params: Option<&Bytes>) -> bool {
        (self.0)(method, params)
    }
}

impl std::fmt::Debug for InputFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Askable")
    }
}

// === impl TaskSubscriber ===

impl TaskSubscriber {
    fn is_waiter(&self) -> bool {
        matches!(self.kind, WatcherKind::Waiter { .. })
    }

    /// The input requests that the client can receive; `None` unless it waits with a ticket.
    fn input_filter(&self) -> Option<&InputFilter> {
        match &self.kind {
            WatcherKind::Waiter { input_filter } => input_filter.as_ref(),
            WatcherKind::Stream | WatcherKind::OwnCall => None,
        }
    }
}

// === impl TaskWatcher ===

impl TaskWatcher {
    /// Waits until a watched task changes. Returns the changed tasks, at least one. Cancel safe.
    pub(in crate::proxy) async fn changed(&self) -> Vec<TaskId> {
        loop {
            let changed = std::mem::take(&mut *self.subscriber.changed.lock());
            if !changed.is_empty() {
                return changed;
            }
            self.subscriber.notify.notified().await;
        }
    }

    /// Whether another request that waits with a ticket for the same task can receive this input request.
    pub(in crate::proxy) fn another_can_receive(&self, id: &TaskId, request: &InputRequest) -> bool {
        let can_receive = |subscriber: &Arc<TaskSubscriber>| {
            !Arc::ptr_eq(subscriber, &self.subscriber)
                && subscriber.input_filter().is_some_and(|filter| filter.allows(request))
        };
        self.watchers.subscribers.get(id).is_some_and(|subscribers| subscribers.iter().any(can_receive))
    }
}

impl Drop for TaskWatcher {
    fn drop(&mut self) {
        for id in &self.ids {
            self.watchers.subscribers.remove_if_mut(id, |_, subscribers| {
                subscribers.retain(|subscriber| !Arc::ptr_eq(subscriber, &self.subscriber));
                subscribers.is_empty()
            });
            if self.subscriber.input_filter().is_some() {
                // Only this client may have had the capability for an open input request: the others check
                // again, and the request is refused.
                self.watchers.wake(id, |other| other.input_filter().is_some());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITER: WatcherKind = WatcherKind::Waiter { input_filter: None };

    fn watch(hub: &Arc<TaskWatchers>, task: &TaskId, kind: WatcherKind) -> TaskWatcher {
        hub.watch(vec![task.clone()], kind).expect("room")
    }

    #[test]
    fn the_own_call_of_a_task_does_not_count_as_a_watcher() {
        let hub = Arc::new(TaskWatchers::default());
        let task = TaskId::from_entropy([1; 16]);
        let own = watch(&hub, &task, WatcherKind::OwnCall);
        assert_eq!(hub.watcher_count(&task), 0);
        let client = watch(&hub, &task, WatcherKind::Stream);
        assert_eq!(hub.watcher_count(&task), 1);
        drop((own, client));
        assert!(hub.subscribers.is_empty());
    }

    #[test]
    fn waiting_requests_of_one_task_are_bounded() {
        let hub = Arc::new(TaskWatchers::default());
        let [task, other] = [1, 2].map(|n| TaskId::from_entropy([n; 16]));
        let mut waiters: Vec<_> = (0..WAITERS_PER_TASK).map(|_| watch(&hub, &task, WAITER)).collect();
        assert!(hub.watch(vec![task.clone()], WAITER).is_none());
        let others = (
            watch(&hub, &task, WatcherKind::Stream),
            watch(&hub, &task, WatcherKind::OwnCall),
            hub.watch(vec![other], WAITER),
        );
        assert!(others.2.is_some(), "other tasks are not concerned");
        waiters.pop();
        waiters.extend(hub.watch(vec![task], WAITER));
        assert_eq!(waiters.len(), WAITERS_PER_TASK, "there is room again");
        drop((waiters, others));
        assert!(hub.subscribers.is_empty());
    }

    #[tokio::test]
    async fn a_watcher_is_notified_once_for_many_changes() {
        let hub = Arc::new(TaskWatchers::default());
        let [a, b] = [1, 2].map(|n| TaskId::from_entropy([n; 16]));
        let listener = watch(&hub, &a, WatcherKind::Stream);
        hub.notify(&a);
        hub.notify(&b);
        hub.notify(&a);
        assert_eq!(listener.changed().await, std::slice::from_ref(&a));
        assert!(futures_util::FutureExt::now_or_never(listener.changed()).is_none());
        drop(listener);
        assert!(hub.subscribers.is_empty(), "nothing is left of a listener that is gone");
    }
}
