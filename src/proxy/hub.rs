//! Who listens to which task.

use crate::{runtime::Mutex, task::TaskId};
use dashmap::DashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Tells listeners which of their tasks have changed. A change is not queued but remembered, so a
/// slow listener costs a bit for each task and never misses the latest state.
#[derive(Debug, Default)]
pub(super) struct Hub {
    listeners: DashMap<TaskId, Vec<Arc<Subscriber>>>,
}

/// One listener's end.
#[derive(Debug, Default)]
struct Subscriber {
    /// It is the call itself that listens, on behalf of nobody.
    is_own: bool,
    changed: Mutex<Vec<TaskId>>,
    notify: Notify,
}

/// A subscription to some tasks; dropping it ends it.
#[derive(Debug)]
pub(super) struct Listener {
    hub: Arc<Hub>,
    ear: Arc<Subscriber>,
    ids: Vec<TaskId>,
}

// === impl Hub ===

impl Hub {
    /// A client listens.
    pub(super) fn listen(self: &Arc<Self>, ids: Vec<TaskId>) -> Listener {
        self.subscribe(ids, Arc::default())
    }

    /// The task's own call listens.
    pub(super) fn listen_to_own(self: &Arc<Self>, id: TaskId) -> Listener {
        self.subscribe(vec![id], Arc::new(Subscriber { is_own: true, ..Subscriber::default() }))
    }

    fn subscribe(self: &Arc<Self>, ids: Vec<TaskId>, ear: Arc<Subscriber>) -> Listener {
        for id in &ids {
            self.listeners.entry(id.clone()).or_default().push(Arc::clone(&ear));
        }
        Listener { hub: Arc::clone(self), ear, ids }
    }

    /// How many clients listen to a task.
    pub(super) fn listeners_of(&self, id: &TaskId) -> usize {
        self.listeners.get(id).map_or(0, |ears| ears.iter().filter(|ear| !ear.is_own).count())
    }

    /// Something a client can see has changed.
    pub(super) fn announce(&self, id: &TaskId) {
        let Some(ears) = self.listeners.get(id) else { return };
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

// === impl Listener ===

impl Listener {
    /// The tasks that have changed since the last time, at least one.
    pub(super) async fn changed(&self) -> Vec<TaskId> {
        loop {
            let changed = std::mem::take(&mut *self.ear.changed.lock());
            if !changed.is_empty() {
                return changed;
            }
            self.ear.notify.notified().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for id in &self.ids {
            self.hub.listeners.remove_if_mut(id, |_, ears| {
                ears.retain(|ear| !Arc::ptr_eq(ear, &self.ear));
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
        let hub = Arc::new(Hub::default());
        let task = TaskId::from_entropy([1; 16]);
        let own = hub.listen_to_own(task.clone());
        assert_eq!(hub.listeners_of(&task), 0);
        let client = hub.listen(vec![task.clone()]);
        assert_eq!(hub.listeners_of(&task), 1);
        drop((own, client));
        assert!(hub.listeners.is_empty());
    }

    #[tokio::test]
    async fn a_listener_hears_of_its_tasks_once_for_many_changes() {
        let hub = Arc::new(Hub::default());
        let [a, b] = [1, 2].map(|n| TaskId::from_entropy([n; 16]));
        let listener = hub.listen(vec![a.clone()]);
        hub.announce(&a);
        hub.announce(&b);
        hub.announce(&a);
        assert_eq!(listener.changed().await, std::slice::from_ref(&a));
        assert!(futures_util::FutureExt::now_or_never(listener.changed()).is_none());
        drop(listener);
        assert!(hub.listeners.is_empty(), "nothing is left of a listener that is gone");
    }
}
