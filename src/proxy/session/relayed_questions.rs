//! Questions that are put to a client as the server asked them, in a call that is no task yet.
//!
//! The client's answer has the server's own id and passes like anything else. Where the call has become
//! a task meanwhile, the question is the task's, and so is the answer: therefore it is known which of
//! them are open.

use super::{
    Key,
    by_request::{ByRequest, Registered},
};
use crate::{protocol::Id, task::TaskId};
use dashmap::Entry;

/// The questions that are open, by session and the server's id.
pub(in crate::proxy) type RelayedQuestions = ByRequest<Whose>;

/// One such question. Dropped, it is not open any more.
pub(in crate::proxy) type RelayedQuestion = Registered<Whose>;

/// Who waits for the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Whose {
    /// The call: the answer passes.
    Call,
    /// The task that the call has become, which knows the question by this key.
    Task(TaskId, String),
}

// === impl RelayedQuestions ===

impl RelayedQuestions {
    /// The client answers a question. One of a call is open no more: the answer passes. That of a task is
    /// until its record knows the answer ([`RelayedQuestions::settled`]), which may have to be given again.
    pub(in crate::proxy) fn answered(&self, session: Key, id: &Id) -> Option<Whose> {
        let Entry::Occupied(open) = self.0.entry((session, id.clone())) else { return None };
        match open.get() {
            Whose::Call => Some(open.remove()),
            whose @ Whose::Task(..) => Some(whose.clone()),
        }
    }

    /// The answer of a task's client has been kept: the question is open no more.
    pub(in crate::proxy) fn settled(&self, session: Key, id: &Id) {
        self.0.remove(&(session, id.clone()));
    }
}

// === impl RelayedQuestion ===

impl RelayedQuestion {
    pub(in crate::proxy) fn is_open(&self) -> bool {
        self.of.0.contains_key(&self.name)
    }

    /// The answer is the task's from now on. Not where it has passed already.
    pub(in crate::proxy) fn hand_over(&self, task: &TaskId, key: &str) -> bool {
        let Some(mut whose) = self.of.0.get_mut(&self.name) else { return false };
        *whose = Whose::Task(task.clone(), key.to_owned());
        true
    }
}
