//! Questions that are put to a client as the server asked them, in a call that is no task yet.
//!
//! The client's answer has the server's own id and passes like anything else. Where the call has become
//! a task meanwhile, the question is the task's, and so is the answer: therefore it is known which of
//! them are open.

use super::{
    SessionKey,
    request_map::{RequestMap, RequestRegistration},
};
use crate::{protocol::RequestId, task::TaskId};
use dashmap::Entry;

/// The questions that are open, by session and the server's id.
pub(in crate::proxy) type RelayedInputRequests = RequestMap<ResponseOwner>;

/// One such question. Dropped, it is not open any more.
pub(in crate::proxy) type RelayedInputRequest = RequestRegistration<ResponseOwner>;

/// Who waits for the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum ResponseOwner {
    /// The call: the answer passes.
    Call,
    /// The task that the call has become, which knows the question by this key.
    Task(TaskId, String),
}

// === impl RelayedQuestions ===

impl RelayedInputRequests {
    /// The client answers a question. One of a call is open no more: the answer passes. That of a task is
    /// until its record knows the answer ([`RelayedInputRequests::remove`]), which may have to be given again.
    pub(in crate::proxy) fn response_owner(
        &self,
        session: SessionKey,
        id: &RequestId,
    ) -> Option<ResponseOwner> {
        let Entry::Occupied(open) = self.0.entry((session, id.clone())) else { return None };
        match open.get() {
            ResponseOwner::Call => Some(open.remove()),
            whose @ ResponseOwner::Task(..) => Some(whose.clone()),
        }
    }

    /// The answer of a task's client has been kept: the question is open no more.
    pub(in crate::proxy) fn remove(&self, session: SessionKey, id: &RequestId) {
        self.0.remove(&(session, id.clone()));
    }
}

// === impl RelayedQuestion ===

impl RelayedInputRequest {
    pub(in crate::proxy) fn is_open(&self) -> bool {
        self.map.0.contains_key(&self.key)
    }

    /// The answer is the task's from now on. Not where it has passed already.
    pub(in crate::proxy) fn assign_to_task(&self, task: &TaskId, key: &str) -> bool {
        let Some(mut whose) = self.map.0.get_mut(&self.key) else { return false };
        *whose = ResponseOwner::Task(task.clone(), key.to_owned());
        true
    }
}
