//! Messages about tasks between the processes that share a store.

use super::watchers::{TaskWatcher, TaskWatchers, WatcherKind};
use crate::{
    proxy::call_registry::{CallRegistry, MailboxMessage},
    store::ProcessId,
    task::TaskId,
};
use std::sync::Arc;

/// Carries messages about tasks between processes. The record in the store is authoritative: a change is
/// stored before its message is posted, and the next owner of a task reads what the former one did not
/// receive.
pub(in crate::proxy) trait TaskBus: Send + Sync {
    /// Posts a message to the call of a task, which the process `owner` runs. Messages other than
    /// cancellations need a slot ([`CallRegistry::reserve`]), held until this returns.
    ///
    /// # Errors
    /// [`DeliveryError`]: the call does not receive the message.
    fn post(&self, task: &TaskId, owner: ProcessId, message: MailboxMessage) -> Result<(), DeliveryError>;

    /// Notifies the watchers of a task, in every process, of a change that clients can see.
    fn notify(&self, task: &TaskId);

    /// Watches changes of these tasks, whichever process makes them. `None` if the kind is bounded, and the
    /// maximum number of watchers exists.
    fn watch(&self, tasks: Vec<TaskId>, kind: WatcherKind) -> Option<TaskWatcher>;
}

/// Why a message did not reach the call of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::proxy) enum DeliveryError {
    #[error("the process that owns the task cannot be reached")]
    OwnerUnreachable,
    #[error("the call has ended, or is yet to be resumed")]
    NoCall,
}

/// The bus of a store that one process uses at a time.
pub(in crate::proxy) struct LocalBus {
    pub(super) process: ProcessId,
    pub(super) call_registry: Arc<CallRegistry>,
    pub(super) watchers: Arc<TaskWatchers>,
}

impl TaskBus for LocalBus {
    fn post(&self, task: &TaskId, owner: ProcessId, message: MailboxMessage) -> Result<(), DeliveryError> {
        if owner != self.process {
            return Err(DeliveryError::OwnerUnreachable);
        }
        self.call_registry.deliver(task, message).then_some(()).ok_or(DeliveryError::NoCall)
    }

    fn notify(&self, task: &TaskId) {
        self.watchers.notify(task);
    }

    fn watch(&self, tasks: Vec<TaskId>, kind: WatcherKind) -> Option<TaskWatcher> {
        self.watchers.watch(tasks, kind)
    }
}

// === impl DeliveryError ===

impl DeliveryError {
    /// Logs a message that is not lost: its change is in the record, which the next owner of the task reads.
    pub(in crate::proxy) fn log(self, task: &TaskId) {
        tracing::debug!(target: "deferral::task", event = "undelivered", task = %task.tag(), error = %self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proxy::call_registry::CancelTarget,
        store::{MemoryStore, Store},
    };

    #[test]
    fn a_message_reaches_only_a_call_of_its_owner() {
        let store = MemoryStore::default();
        let bus =
            LocalBus { process: store.process(), call_registry: Arc::default(), watchers: Arc::default() };
        let call = bus.call_registry.register();
        let post = |task, owner| bus.post(task, owner, MailboxMessage::Cancelled(CancelTarget::Task));
        assert_eq!(post(call.id(), bus.process), Ok(()));
        let other = store.restarted().process();
        assert_eq!(post(call.id(), other), Err(DeliveryError::OwnerUnreachable));
        let unknown = TaskId::from_entropy([1; 16]);
        assert_eq!(post(&unknown, bus.process), Err(DeliveryError::NoCall));
    }
}
