//! Watchers of tasks.

use crate::{runtime::Mutex, task::TaskId};
use dashmap::DashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Notifies watchers of changed tasks. A change is a flag, not a queued message: a slow watcher costs one
/// entry for each task, and never misses the latest state.
#[derive(Debug, Default)]
pub(super) struct TaskWatchers {
    subscribers: DashMap<TaskId, Vec<Arc<TaskSubscriber>>>,
}

/// The receiving end of one watcher.
#[derive(Debug, Default)]
struct TaskSubscriber {
    kind: SubscriberKind,
    changed: Mutex<Vec<TaskId>>,
    notify: Notify,
}

/// The kind of a subscriber.
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

/// Requests that may wait for the result of one task. Each costs some KiB, and a change of the task wakes
/// all.
pub(super) const WAITERS_PER_TASK: usize = 64;

/// A subscription to some tasks; dropping it ends it.
#[derive(Debug)]
pub(super) struct TaskWatcher {
    watchers: Arc<TaskWatchers>,
    subscriber: Arc<TaskSubscriber>,
    ids: Vec<TaskId>,
}

// === impl TaskWatchers ===

impl TaskWatchers {
    /// Subscribes a client.
    pub(super) fn watch(self: &Arc<Self>, ids: Vec<TaskId>) -> TaskWatcher {
        self.subscribe(ids, Arc::default())
    }

    /// Subscribes the task's own call.
    pub(super) fn watch_own(self: &Arc<Self>, id: TaskId) -> TaskWatcher {
        self.subscribe(vec![id], TaskSubscriber::new(SubscriberKind::OwnCall))
    }

    /// Subscribes a request that waits for the result of a task; `None` if there are [`WAITERS_PER_TASK`].
    pub(super) fn wait_for(self: &Arc<Self>, id: &TaskId) -> Option<TaskWatcher> {
        let subscriber = TaskSubscriber::new(SubscriberKind::Waiter);
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

    /// The number of clients that watch a task.
    pub(super) fn watcher_count(&self, id: &TaskId) -> usize {
        self.subscribers.get(id).map_or(0, |subscribers| {
            subscribers.iter().filter(|other| other.kind != SubscriberKind::OwnCall).count()
        })
    }

    /// Notifies watchers of a change that clients can see.
    pub(super) fn notify(&self, id: &TaskId) {
        let Some(subscribers) = self.subscribers.get(id) else { return };
        for subscriber in subscribers.value() {
            let mut changed = subscriber.changed.lock();
            if !changed.contains(id) {
                changed.push(id.clone());
            }
            drop(changed);
            subscriber.notify.notify_one();
        }
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
    /// Waits for changes. Returns the changed tasks, at least one.
    pub(super) async fn changed(&self) -> Vec<TaskId> {
        loop {
            let changed = std::mem::take(&mut *self.subscriber.changed.lock());
            if !changed.is_empty() {
                return changed;
            }
            self.subscriber.notify.notified().await;
        }
    }
}

impl Drop for TaskWatcher {
    fn drop(&mut self) {
        for id in &self.ids {
            self.watchers.subscribers.remove_if_mut(id, |_, subscribers| {
                subscribers.retain(|subscriber| !Arc::ptr_eq(subscriber, &self.subscriber));
                subscribers.is_empty()
            });
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
        let mut waiters: Vec<_> = (0..WAITERS_PER_TASK).map(|_| hub.wait_for(&task).expect("room")).collect();
        assert!(hub.wait_for(&task).is_none());
        let others = (hub.watch(vec![task.clone()]), hub.watch_own(task.clone()), hub.wait_for(&other));
        assert!(others.2.is_some(), "other tasks are not concerned");
        waiters.pop();
        waiters.extend(hub.wait_for(&task));
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
