//! Who listens to which task.

use crate::{runtime::Mutex, task::TaskId};
use dashmap::DashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Tells listeners which of their tasks have changed. A change is not queued but remembered, so a
/// slow listener costs a bit for each task and never misses the latest state.
#[derive(Debug, Default)]
pub(super) struct TaskWatchers {
    subscribers: DashMap<TaskId, Vec<Arc<TaskSubscriber>>>,
}

/// One listener's end.
#[derive(Debug, Default)]
struct TaskSubscriber {
    kind: SubscriberKind,
    changed: Mutex<Vec<TaskId>>,
    notify: Notify,
}

/// Who listens to a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SubscriberKind {
    /// A client, on a stream of its own.
    #[default]
    Stream,
    /// A request that waits for the result.
    Waiter,
    /// The call of the task itself.
    OwnCall,
}

/// Requests that may wait for the result of one task. Each costs some KiB, and a change of the task wakes all.
pub(super) const WAITERS_PER_TASK: usize = 64;

/// A subscription to some tasks; dropping it ends it.
#[derive(Debug)]
pub(super) struct TaskWatcher {
    watchers: Arc<TaskWatchers>,
    subscriber: Arc<TaskSubscriber>,
    ids: Vec<TaskId>,
}

// === impl Hub ===

impl TaskWatchers {
    /// A client listens.
    pub(super) fn watch(self: &Arc<Self>, ids: Vec<TaskId>) -> TaskWatcher {
        self.subscribe(ids, Arc::default())
    }

    /// The task's own call listens.
    pub(super) fn watch_own(self: &Arc<Self>, id: TaskId) -> TaskWatcher {
        self.subscribe(vec![id], TaskSubscriber::new(SubscriberKind::OwnCall))
    }

    /// A request waits for the result of a task; `Missing` where [`WAITERS_PER_TASK`] do already.
    pub(super) fn wait_for(self: &Arc<Self>, id: &TaskId) -> Option<TaskWatcher> {
        let ear = TaskSubscriber::new(SubscriberKind::Waiter);
        let mut ears = self.subscribers.entry(id.clone()).or_default();
        let waiters = ears.iter().filter(|ear| ear.kind == SubscriberKind::Waiter).count();
        if waiters >= WAITERS_PER_TASK {
            return None;
        }
        ears.push(Arc::clone(&ear));
        drop(ears);
        Some(TaskWatcher { watchers: Arc::clone(self), subscriber: ear, ids: vec![id.clone()] })
    }

    fn subscribe(self: &Arc<Self>, ids: Vec<TaskId>, ear: Arc<TaskSubscriber>) -> TaskWatcher {
        for id in &ids {
            self.subscribers.entry(id.clone()).or_default().push(Arc::clone(&ear));
        }
        TaskWatcher { watchers: Arc::clone(self), subscriber: ear, ids }
    }

    /// How many clients listen to a task.
    pub(super) fn watcher_count(&self, id: &TaskId) -> usize {
        self.subscribers
            .get(id)
            .map_or(0, |ears| ears.iter().filter(|ear| ear.kind != SubscriberKind::OwnCall).count())
    }

    /// Something a client can see has changed.
    pub(super) fn notify(&self, id: &TaskId) {
        let Some(ears) = self.subscribers.get(id) else { return };
        for ear in ears.value() {
            let mut changed = ear.changed.lock();
            if !changed.contains(id) {
                changed.push(id.clone());
            }
            drop(changed);
            ear.notify.notify_one();
        }
    }
}

// === impl Subscriber ===

impl TaskSubscriber {
    fn new(kind: SubscriberKind) -> Arc<Self> {
        Arc::new(Self { kind, ..Self::default() })
    }
}

// === impl Listener ===

impl TaskWatcher {
    /// The tasks that have changed since the last time, at least one.
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
            self.watchers.subscribers.remove_if_mut(id, |_, ears| {
                ears.retain(|ear| !Arc::ptr_eq(ear, &self.subscriber));
                ears.is_empty()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_listens_to_its_own_task_is_nobody_who_waits() {
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
    fn only_so_many_requests_wait_for_one_task() {
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
    async fn a_listener_hears_of_its_tasks_once_for_many_changes() {
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
