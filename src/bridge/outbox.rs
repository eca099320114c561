//! Where a legacy client hears what its task has to say.
//!
//! A task of 2025-11-25 has no connection of its own. What the server asks while it works is put on
//! the stream that its client's session listens on, if there is one; otherwise on a `tasks/result`
//! that waits (2025-11-25, *Tasks, Input Required Status*). Never on both, for then it would be
//! asked twice; and not on `tasks/result` alone, as some clients call that only when the task has
//! ended (`WIRE`, B 1, rule 3). A question whose stream is gone before it was answered is put
//! again, on whatever there is next.
//!
//! An [`Outbox`] decides and carries nothing: streams and questions are numbers here.

use std::collections::{BTreeMap, BTreeSet};

/// A stream to the client, by number.
pub type LineId = u64;

/// A question of the server, by number within its task.
pub type Ask = u32;

/// What a task has to say, and where it can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outbox {
    /// The stream that the session listens on.
    listening: Option<LineId>,
    /// Requests that wait for the result, the last one last.
    waiting: BTreeSet<LineId>,
    /// The questions that are open, each with where it has been put.
    open: BTreeMap<Ask, Option<LineId>>,
}

// === impl Outbox ===

impl Outbox {
    /// The session listens on this stream now, or on none.
    pub fn handle_listening(&mut self, line: Option<LineId>) {
        if let Some(gone) = std::mem::replace(&mut self.listening, line).filter(|gone| Some(*gone) != line) {
            self.forget(gone);
        }
    }

    /// A request waits for the result.
    pub fn handle_waiting(&mut self, line: LineId) {
        self.waiting.insert(line);
    }

    /// It no longer does.
    pub fn handle_left(&mut self, line: LineId) {
        if self.waiting.remove(&line) {
            self.forget(line);
        }
    }

    /// The server asks something.
    pub fn handle_question(&mut self, ask: Ask) {
        self.open.entry(ask).or_default();
    }

    /// It has been answered or withdrawn. Gives where it had been put, if it had.
    pub fn handle_closed(&mut self, ask: Ask) -> Option<LineId> {
        self.open.remove(&ask).flatten()
    }

    /// Where something can be said now: the session's own stream first, then the request that waits
    /// last.
    pub fn line(&self) -> Option<LineId> {
        self.listening.or_else(|| self.waiting.last().copied())
    }

    /// The next question to put, and where. It counts as put; where that fails, the line is gone.
    pub fn poll_put(&mut self) -> Option<(Ask, LineId)> {
        let line = self.line()?;
        let (ask, place) = self.open.iter_mut().find(|(_, place)| place.is_none())?;
        *place = Some(line);
        Some((*ask, line))
    }

    fn forget(&mut self, gone: LineId) {
        for place in self.open.values_mut().filter(|place| **place == Some(gone)) {
            *place = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn puts(outbox: &mut Outbox) -> Vec<(Ask, LineId)> {
        std::iter::from_fn(|| outbox.poll_put()).collect()
    }

    #[test]
    fn a_question_is_put_where_the_session_listens() {
        let mut outbox = Outbox::default();
        outbox.handle_waiting(1);
        outbox.handle_listening(Some(2));
        outbox.handle_question(0);
        assert_eq!(puts(&mut outbox), [(0, 2)]);
        assert_eq!(puts(&mut outbox), [], "once");
        assert_eq!(outbox.handle_closed(0), Some(2));
    }

    #[test]
    fn where_nobody_listens_it_waits_for_a_request_for_the_result() {
        let mut outbox = Outbox::default();
        outbox.handle_question(0);
        assert_eq!(puts(&mut outbox), []);
        outbox.handle_waiting(7);
        assert_eq!(puts(&mut outbox), [(0, 7)]);
        outbox.handle_listening(Some(8));
        assert_eq!(puts(&mut outbox), [], "not on both");
        outbox.handle_question(1);
        assert_eq!(puts(&mut outbox), [(1, 8)]);
    }

    #[test]
    fn a_question_whose_stream_is_gone_is_put_again_on_the_next() {
        let mut outbox = Outbox::default();
        outbox.handle_listening(Some(1));
        outbox.handle_question(0);
        outbox.handle_question(1);
        assert_eq!(puts(&mut outbox), [(0, 1), (1, 1)]);
        outbox.handle_closed(1);
        outbox.handle_listening(None);
        assert_eq!(puts(&mut outbox), []);
        outbox.handle_waiting(2);
        assert_eq!(puts(&mut outbox), [(0, 2)]);
        outbox.handle_left(2);
        outbox.handle_listening(Some(3));
        assert_eq!(puts(&mut outbox), [(0, 3)]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Listening(Option<LineId>),
        Waiting(LineId),
        Left(LineId),
        Question(Ask),
        Closed(Ask),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            proptest::option::of(0..4u64).prop_map(Step::Listening),
            (10..14u64).prop_map(Step::Waiting),
            (10..14u64).prop_map(Step::Left),
            (0..4u32).prop_map(Step::Question),
            (0..4u32).prop_map(Step::Closed),
        ]
    }

    proptest! {
        #[test]
        fn an_open_question_is_on_one_living_stream_if_there_is_any(steps in proptest::collection::vec(step(), 0..60)) {
            let mut outbox = Outbox::default();
            let (mut living, mut open) = (BTreeSet::new(), BTreeSet::new());
            // Where each question is, as its client sees it.
            let mut seen: BTreeMap<Ask, LineId> = BTreeMap::new();
            let mut listening = None;
            for step in steps {
                match step {
                    Step::Listening(line) => {
                        outbox.handle_listening(line);
                        if let Some(old) = listening.take() { living.remove(&old); }
                        listening = line;
                        living.extend(line);
                    }
                    Step::Waiting(line) => { outbox.handle_waiting(line); living.insert(line); }
                    Step::Left(line) => { outbox.handle_left(line); living.remove(&line); }
                    Step::Question(ask) => { outbox.handle_question(ask); open.insert(ask); }
                    Step::Closed(ask) => {
                        prop_assert_eq!(outbox.handle_closed(ask).is_some(), seen.get(&ask).is_some_and(|line| living.contains(line)));
                        open.remove(&ask);
                        seen.remove(&ask);
                    }
                }
                seen.retain(|_, line| living.contains(line));
                while let Some((ask, line)) = outbox.poll_put() {
                    prop_assert!(living.contains(&line) && open.contains(&ask));
                    prop_assert!(seen.insert(ask, line).is_none(), "asked twice");
                }
                prop_assert!(living.is_empty() || seen.len() == open.len(), "somebody could be asked");
            }
        }
    }
}
