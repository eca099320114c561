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
#[derive(Debug, Default)]
struct TaskSubscriber {
    kind: SubscriberKind,
    /// The input requests that the client can receive; `None` unless it waits with a ticket.
    input_filter: Option<InputFilter>,
    /// Watched tasks that have changed since the last notification.
    changed: Mutex<Vec<TaskId>>,
    notify: Notify,
}

/// The kind of a watcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SubscriberKind {
    /// A client with a stream of its own.
    #[default]
    Stream,
    /// A request that waits for the result.
    Waiter,
    /// The call of the task itself.
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
    /// Subscribes a client's stream to these tasks.
    pub(in crate::proxy) fn watch(self: &Arc<Self>, ids: Vec<TaskId>) -> TaskWatcher {
        self.subscribe(ids, Arc::default())
    }

    /// Subscribes the driver of the task's own call, which does not count as a watcher.
    pub(in crate::proxy) fn watch_own(self: &Arc<Self>, id: TaskId) -> TaskWatcher {
        self.subscribe(vec![id], TaskSubscriber::new(SubscriberKind::OwnCall))
    }

    /// Subscribes a request that waits for the result of a task; `None` if [`WAITERS_PER_TASK`] requests
    /// already wait. `input_filter` is given if the client may receive only input requests whose capability it
    /// declared.
    pub(in crate::proxy) fn watch_result(
        self: &Arc<Self>,
        id: &TaskId,
        input_filter: Option<InputFilter>,
    ) -> Option<TaskWatcher> {
        let subscriber = Arc::new(TaskSubscriber {
            kind: SubscriberKind::Waiter,
            input_filter,
            ..TaskSubscriber::default()
        });
        let mut subscribers = self.subscribers.entry(id.clone()).or_default();
        let waiters = subscribers.iter().filter(|other| other.kind == SubscriberKind::Waiter).count();
        if waiters >= WAITERS_PER_TASK {
            return None;
        }
        subscribers.push(Arc::clone(&subscriber));
        drop(subscribers);
        Some(TaskWatcher { watchers: Arc::clone(self), subscriber, ids: vec![id.clone()] })
    }

    fn subscribe(self: &Arc<Self>, ids: Vec<TaskId>, subscriber: Arc<TaskSubscriber>) -> TaskWatcher {
        for id in &ids {
            self.subscribers.entry(id.clone()).or_default().push(Arc::clone(&subscriber));
        }
        TaskWatcher { watchers: Arc::clone(self), subscriber, ids }
    }

    /// The number of client requests that watch or await a task.
    pub(in crate::proxy) fn watcher_count(&self, id: &TaskId) -> usize {
        self.subscribers.get(id).map_or(0, |subscribers| {
            subscribers.iter().filter(|other| other.kind != SubscriberKind::OwnCall).count()
        })
    }

    /// Notifies all watchers of a task of a change that clients can see.
    pub(in crate::proxy) fn notify(&self, id: &TaskId) {
        self.wake(id, |_| true);
    }

    /// Wakes the requests that wait for the result of a task, so that they attach to its call, or check again
    /// which input requests they can receive.
    pub(in crate::proxy) fn wake_waiters(&self, id: &TaskId) {
        self.wake(id, |subscriber| subscriber.kind == SubscriberKind::Waiter);
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
    fn new(kind: SubscriberKind) -> Arc<Self> {
        Arc::new(Self { kind, ..Self::default() })
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
                && subscriber.input_filter.as_ref().is_some_and(|filter| filter.allows(request))
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
            if self.subscriber.input_filter.is_some() {
                // Only this client may have had the capability for an open input request: the others check
                // again, and the request is refused.
                self.watchers.wake(id, |other| other.input_filter.is_some());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_call_of_a_task_does_not_count_as_a_watcher() {
        let hub = Arc::new(TaskWatchers::default());
        let task = TaskId::from_entropy([1; 16]);
        let own = hub.watch_own(task.clone());
        assert_eq!(hub.watcher_count(&task), 0);
        let client = hub.watch(vec![task.clone()]);
        assert_eq!(hub.watcher_count(&task), 1);
        drop((own, client));
        assert!(hub.subscribers.is_empty());
    }

    #[test]
    fn waiting_requests_of_one_task_are_bounded() {
        let hub = Arc::new(TaskWatchers::default());
        let [task, other] = [1, 2].map(|n| TaskId::from_entropy([n; 16]));
        let mut waiters: Vec<_> =
            (0..WAITERS_PER_TASK).map(|_| hub.watch_result(&task, None).expect("room")).collect();
        assert!(hub.watch_result(&task, None).is_none());
        let others =
            (hub.watch(vec![task.clone()]), hub.watch_own(task.clone()), hub.watch_result(&other, None));
        assert!(others.2.is_some(), "other tasks are not concerned");
        waiters.pop();
        waiters.extend(hub.watch_result(&task, None));
        assert_eq!(waiters.len(), WAITERS_PER_TASK, "there is room again");
        drop((waiters, others));
        assert!(hub.subscribers.is_empty());
    }

    #[tokio::test]
    async fn a_watcher_is_notified_once_for_many_changes() {
        let hub = Arc::new(TaskWatchers::default());
        let [a, b] = [1, 2].map(|n| TaskId::from_entropy([n; 16]));
        let listener = hub.watch(vec![a.clone()]);
        hub.notify(&a);
        hub.notify(&b);
        hub.notify(&a);
        assert_eq!(listener.changed().await, std::slice::from_ref(&a));
        assert!(futures_util::FutureExt::now_or_never(listener.changed()).is_none());
        drop(listener);
        assert!(hub.subscribers.is_empty(), "nothing is left of a listener that is gone");
    }
}
