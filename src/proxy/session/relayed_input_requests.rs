//! Input requests that are sent to a client unchanged, during a call that is not a task yet.
//!
//! The client's response has the server's own request id and is relayed. If the call has become a task
//! meanwhile, the input request and its response belong to the task; therefore open input requests are
//! tracked.

use super::{
    SessionKey,
    request_map::{RequestMap, RequestRegistration},
};
use crate::{protocol::RequestId, task::TaskId};
use dashmap::Entry;

/// The open input requests that were relayed to clients, by session and the server's request id.
pub(in crate::proxy) type RelayedInputRequests = RequestMap<ResponseOwner>;

/// The registration of one open input request; closed when dropped.
pub(in crate::proxy) type RelayedInputRequest = RequestRegistration<ResponseOwner>;

/// The owner of the client's response to a relayed input request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum ResponseOwner {
    /// The call: the response is relayed.
    Call,
    /// The task that the call has become, with the key of the input request.
    Task(TaskId, String),
}

// === impl RelayedInputRequests ===

impl RelayedInputRequests {
    /// Returns the task that owns a client's response to the input request with this id, and the key of the
    /// input request. If the owner is a call, closes the input request, because the response is relayed now.
    /// The input request of a task stays open until the response is stored
    /// ([`RelayedInputRequests::remove`]), because the client may have to send the response again.
    pub(in crate::proxy) fn owner_task(
        &self,
        session: SessionKey,
        id: &RequestId,
    ) -> Option<(TaskId, String)> {
        let Entry::Occupied(open) = self.0.entry((session, id.clone())) else { return None };
        if let ResponseOwner::Task(task, key) = open.get() {
            return Some((task.clone(), key.clone()));
        }
        open.remove();
        None
    }

    /// Closes the input request of a task; called once the response is stored.
    pub(in crate::proxy) fn remove(&self, session: SessionKey, id: &RequestId) {
        self.0.remove(&(session, id.clone()));
    }
}

// === impl RelayedInputRequest ===

impl RelayedInputRequest {
    /// Whether the client has not responded yet.
    pub(in crate::proxy) fn is_open(&self) -> bool {
        self.map.0.contains_key(&self.key)
    }

    /// Makes the task the owner of the response. Returns false if the response was relayed already.
    pub(in crate::proxy) fn assign_to_task(&self, task: &TaskId, key: &str) -> bool {
        let Some(mut owner) = self.map.0.get_mut(&self.key) else { return false };
        *owner = ResponseOwner::Task(task.clone(), key.to_owned());
        true
    }
}
