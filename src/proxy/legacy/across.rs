//! A modern client's task as a legacy client meets it, where the operator lets the eras meet.
//!
//! Such a task belongs to no session, so what it asks is put to legacy clients that wait for its
//! result. Whoever answers first, in whichever era, has answered.

use super::{run::question_id, streams::next_line};
use crate::{
    bridge::{
        Outbox, offer,
        outbox::{Ask, Line},
    },
    dialect::legacy,
    protocol::{InputRequest, sse},
    task::TaskId,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// Legacy clients that wait for the result of a modern client's task.
#[derive(Default)]
pub(in crate::proxy) struct Across {
    waiting: Vec<(Line, mpsc::Sender<Bytes>)>,
    outbox: Outbox,
    /// The keys of the questions that the outbox knows.
    known: BTreeMap<Ask, String>,
}

// === impl Across ===

impl Across {
    /// One more waits.
    pub(in crate::proxy) fn waits(&mut self, tell: mpsc::Sender<Bytes>) {
        let line = next_line();
        self.waiting.push((line, tell));
        self.outbox.handle_waiting(line);
    }

    /// A question was answered here: there is nothing to take back.
    pub(in crate::proxy) fn answered(&mut self, key: &str) {
        let ask = self.known.iter().find(|(_, known)| *known == key).map(|(ask, _)| *ask);
        if let Some(ask) = ask {
            self.known.remove(&ask);
            self.outbox.handle_closed(ask);
        }
    }

    /// Puts what is open, and takes back what no longer is.
    pub(in crate::proxy) fn put<'a>(
        &mut self,
        task: &TaskId,
        open: impl Iterator<Item = (Ask, &'a str, &'a InputRequest)>,
    ) {
        let open: BTreeMap<_, _> = open.map(|(ask, key, request)| (ask, (key, request))).collect();
        let over: Vec<_> = self.known.keys().filter(|ask| !open.contains_key(ask)).copied().collect();
        for ask in over {
            let (place, key) = (self.outbox.handle_closed(ask), self.known.remove(&ask));
            if let (Some(line), Some(key)) = (place, key) {
                let taken_back = legacy::cancelled(&question_id(task, &key), "it is answered, or over");
                self.tell(line, sse::message(&taken_back));
            }
        }
        for (ask, (key, _)) in &open {
            if !self.known.contains_key(ask) {
                self.known.insert(*ask, (*key).to_owned());
                self.outbox.handle_question(*ask);
            }
        }
        while let Some((ask, line)) = self.outbox.poll_put() {
            let Some((key, request)) = open.get(&ask) else { continue };
            let message = offer::asked(request, &question_id(task, key), task.as_str());
            if !self.tell(line, sse::message(&message)) {
                self.waiting.retain(|(waiting, _)| *waiting != line);
                self.outbox.handle_left(line);
            }
        }
    }

    fn tell(&self, line: Line, event: Bytes) -> bool {
        let waiting = self.waiting.iter().find(|(waiting, _)| *waiting == line);
        waiting.is_some_and(|(_, tell)| tell.try_send(event).is_ok())
    }
}
