//! Questions that are put to a client as the server asked them, in a call that is no task yet.
//!
//! The client's answer has the server's own id and passes like anything else. Where the call has become
//! a task meanwhile, the question is the task's, and so is the answer: therefore it is known which of
//! them are open.

use super::streams::Key;
use crate::{protocol::Id, proxy::endpoint::Shared, task::TaskId};
use dashmap::DashMap;
use std::sync::Arc;

/// The questions that are open, by session and the server's id.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Plain {
    open: DashMap<(Key, Id), Whose>,
}

/// Who waits for the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The call: the answer passes.
    Call,
    /// The task that the call has become, which knows the question by this key.
    Task(TaskId, String),
}

/// One such question. Dropped, it is not open any more.
pub(super) struct Asked {
    shared: Arc<Shared>,
    name: (Key, Id),
}

// === impl Plain ===

impl Plain {
    /// Whether there are any. Cheap.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The client answers a question: it is open no more.
    pub(super) fn answered(&self, session: Key, id: &Id) -> Option<Whose> {
        self.open.remove(&(session, id.clone())).map(|(_, whose)| whose)
    }
}

// === impl Asked ===

impl Asked {
    pub(super) fn new(shared: &Arc<Shared>, session: Key, id: &Id) -> Self {
        let name = (session, id.detached());
        shared.plain.open.insert(name.clone(), Whose::Call);
        Self { shared: Arc::clone(shared), name }
    }

    pub(super) fn is_open(&self) -> bool {
        self.shared.plain.open.contains_key(&self.name)
    }

    /// The answer is the task's from now on. Not where it has passed already.
    pub(super) fn hand_over(&self, task: &TaskId, key: &str) -> bool {
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
