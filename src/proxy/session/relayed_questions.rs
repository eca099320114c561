//! Questions that are put to a client as the server asked them, in a call that is no task yet.
//!
//! The client's answer has the server's own id and passes like anything else. Where the call has become
//! a task meanwhile, the question is the task's, and so is the answer: therefore it is known which of
//! them are open.

use super::streams::Key;
use crate::{protocol::Id, proxy::shared::Shared, task::TaskId};
use dashmap::{DashMap, Entry};
use std::sync::Arc;

/// The questions that are open, by session and the server's id.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Plain {
    open: DashMap<(Key, Id), Whose>,
}

/// Who waits for the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Whose {
    /// The call: the answer passes.
    Call,
    /// The task that the call has become, which knows the question by this key.
    Task(TaskId, String),
}

/// One such question. Dropped, it is not open any more.
pub(in crate::proxy) struct Asked {
    shared: Arc<Shared>,
    name: (Key, Id),
}

// === impl Plain ===

impl Plain {
    /// Whether there are any. Cheap.
    pub(in crate::proxy) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The client answers a question. One of a call is open no more: the answer passes. That of a task is
    /// until its record knows the answer ([`Plain::settled`]), which may have to be given again.
    pub(in crate::proxy) fn answered(&self, session: Key, id: &Id) -> Option<Whose> {
        let Entry::Occupied(open) = self.open.entry((session, id.clone())) else { return None };
        match open.get() {
            Whose::Call => Some(open.remove()),
            whose @ Whose::Task(..) => Some(whose.clone()),
        }
    }

    /// The answer of a task's client has been kept: the question is open no more.
    pub(in crate::proxy) fn settled(&self, session: Key, id: &Id) {
        self.open.remove(&(session, id.clone()));
    }
}

// === impl Asked ===

impl Asked {
    pub(in crate::proxy) fn new(shared: &Arc<Shared>, session: Key, id: &Id) -> Self {
        let name = (session, id.detached());
        shared.plain.open.insert(name.clone(), Whose::Call);
        Self { shared: Arc::clone(shared), name }
    }

    pub(in crate::proxy) fn is_open(&self) -> bool {
        self.shared.plain.open.contains_key(&self.name)
    }

    /// The answer is the task's from now on. Not where it has passed already.
    pub(in crate::proxy) fn hand_over(&self, task: &TaskId, key: &str) -> bool {
        let Some(mut whose) = self.shared.plain.open.get_mut(&self.name) else { return false };
        *whose = Whose::Task(task.clone(), key.to_owned());
        true
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.shared.plain.open.remove(&self.name);
    }
}
