//! Chooses the stream on which a legacy client receives the messages of its task.
//!
//! A task of 2025-11-25 has no connection of its own. The server's input requests are sent on the GET stream
//! of the client's session, if it is open; otherwise on the response of a waiting `tasks/result` (2025-11-25,
//! *Tasks, Input Required Status*). An input request is never sent on both, because the client would receive
//! it twice; and not only on `tasks/result`, which some clients call only once the task has ended. An
//! input request whose stream broke before the response is sent again on the next stream.
//!
//! A [`TaskOutbox`] is a pure state machine: streams and input requests are represented by numbers.

use std::collections::{BTreeMap, BTreeSet};

/// The number of a stream to the client.
pub type StreamId = u64;

/// The number of an input request within its task.
pub type InputNumber = u32;

/// The open input requests of a task, and the streams for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskOutbox {
    /// The open GET stream of the session.
    get_stream: Option<StreamId>,
    /// The streams of waiting `tasks/result` requests; the largest number is the latest request.
    result_streams: BTreeSet<StreamId>,
    /// The open input requests, each with the stream on which it was sent; `None` if it is still to be sent.
    open: BTreeMap<InputNumber, Option<StreamId>>,
}

// === impl TaskOutbox ===

impl TaskOutbox {
    /// Handles a change of the session's GET stream; `None` if it was closed.
    pub fn handle_get_stream(&mut self, stream: Option<StreamId>) {
        if let Some(closed) = std::mem::replace(&mut self.get_stream, stream)
            .filter(|closed_stream| Some(*closed_stream) != stream)
        {
            self.requeue_sent_on(closed);
        }
    }

    /// Handles a new `tasks/result` request that waits on this stream.
    pub fn handle_result_request(&mut self, stream: StreamId) {
        self.result_streams.insert(stream);
    }

    /// Handles the end of a `tasks/result` request: the input requests that were sent on its stream are sent
    /// again elsewhere.
    pub fn handle_result_disconnect(&mut self, stream: StreamId) {
        if self.result_streams.remove(&stream) {
            self.requeue_sent_on(stream);
        }
    }

    /// Handles a new input request of the server.
    pub fn handle_input_request(&mut self, input: InputNumber) {
        self.open.entry(input).or_default();
    }

    /// Handles an input request that was answered or withdrawn. Returns the stream on which it was sent;
    /// `None` if it was not sent.
    pub fn handle_input_closed(&mut self, input: InputNumber) -> Option<StreamId> {
        self.open.remove(&input).flatten()
    }

    /// Returns the stream for messages of the task: the session's GET stream, else that of the latest waiting
    /// `tasks/result`; `None` if neither is open.
    pub fn current_stream(&self) -> Option<StreamId> {
        self.get_stream.or_else(|| self.result_streams.last().copied())
    }

    /// Returns the next input request to send and its stream, and records it as sent. A stream of a
    /// `tasks/result` request is used only if `can_deliver` allows the input request there. If the send
    /// fails, the stream must be reported as closed.
    pub fn poll_delivery(
        &mut self,
        can_deliver: impl Fn(InputNumber, StreamId) -> bool,
    ) -> Option<(InputNumber, StreamId)> {
        let Self { get_stream, result_streams, open } = self;
        open.iter_mut().filter(|(_, sent_on)| sent_on.is_none()).find_map(|(input, delivery_stream)| {
            let find_result_stream =
                || result_streams.iter().rev().copied().find(|stream| can_deliver(*input, *stream));
            let stream = get_stream.or_else(find_result_stream)?;
            *delivery_stream = Some(stream);
            Some((*input, stream))
        })
    }

    /// Whether this input request has been sent on a stream that is still open.
    pub fn is_sent(&self, input: InputNumber) -> bool {
        self.open.get(&input).is_some_and(Option::is_some)
    }

    /// Marks the input requests that were sent on a closed stream as still to be sent.
    fn requeue_sent_on(&mut self, closed: StreamId) {
        for sent_on in self.open.values_mut().filter(|place| **place == Some(closed)) {
            *sent_on = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn deliver_all(outbox: &mut TaskOutbox) -> Vec<(InputNumber, StreamId)> {
        std::iter::from_fn(|| outbox.poll_delivery(|_, _| true)).collect()
    }

    #[test]
    fn an_input_request_goes_to_the_stream_that_the_session_listens_on() {
        let mut outbox = TaskOutbox::default();
        outbox.handle_result_request(1);
        outbox.handle_get_stream(Some(2));
        outbox.handle_input_request(0);
        assert_eq!(deliver_all(&mut outbox), [(0, 2)]);
        assert_eq!(deliver_all(&mut outbox), [], "once");
        assert_eq!(outbox.handle_input_closed(0), Some(2));
    }

    #[test]
    fn without_a_listen_stream_an_input_request_waits_for_a_result_request() {
        let mut outbox = TaskOutbox::default();
        outbox.handle_input_request(0);
        assert_eq!(deliver_all(&mut outbox), []);
        outbox.handle_result_request(7);
        assert_eq!(deliver_all(&mut outbox), [(0, 7)]);
        outbox.handle_get_stream(Some(8));
        assert_eq!(deliver_all(&mut outbox), [], "not on both");
        outbox.handle_input_request(1);
        assert_eq!(deliver_all(&mut outbox), [(1, 8)]);
    }

    #[test]
    fn an_input_request_whose_stream_broke_is_sent_again_on_the_next() {
        let mut outbox = TaskOutbox::default();
        outbox.handle_get_stream(Some(1));
        outbox.handle_input_request(0);
        outbox.handle_input_request(1);
        assert_eq!(deliver_all(&mut outbox), [(0, 1), (1, 1)]);
        outbox.handle_input_closed(1);
        outbox.handle_get_stream(None);
        assert_eq!(deliver_all(&mut outbox), []);
        outbox.handle_result_request(2);
        assert_eq!(deliver_all(&mut outbox), [(0, 2)]);
        outbox.handle_result_disconnect(2);
        outbox.handle_get_stream(Some(3));
        assert_eq!(deliver_all(&mut outbox), [(0, 3)]);
    }

    #[test]
    fn a_question_waits_for_a_request_whose_client_can_be_asked_and_keeps_no_other_from_its_own() {
        let mut outbox = TaskOutbox::default();
        outbox.handle_input_request(0);
        outbox.handle_input_request(1);
        outbox.handle_result_request(7);
        outbox.handle_result_request(8);
        let can = |ask, line| ask == 1 || line == 9;
        assert_eq!(outbox.poll_delivery(can), Some((1, 8)));
        assert_eq!(outbox.poll_delivery(can), None);
        assert!(outbox.is_sent(1) && !outbox.is_sent(0));
        outbox.handle_result_request(9);
        assert_eq!(outbox.poll_delivery(can), Some((0, 9)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Listening(Option<StreamId>),
        Waiting(StreamId),
        Left(StreamId),
        Question(InputNumber),
        Closed(InputNumber),
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
            let mut outbox = TaskOutbox::default();
            let (mut living, mut open) = (BTreeSet::new(), BTreeSet::new());
            // The stream of each input request, from the client's point of view.
            let mut seen: BTreeMap<InputNumber, StreamId> = BTreeMap::new();
            let mut listening = None;
            for step in steps {
                match step {
                    Step::Listening(line) => {
                        outbox.handle_get_stream(line);
                        if let Some(old) = listening.take() { living.remove(&old); }
                        listening = line;
                        living.extend(line);
                    }
                    Step::Waiting(line) => { outbox.handle_result_request(line); living.insert(line); }
                    Step::Left(line) => { outbox.handle_result_disconnect(line); living.remove(&line); }
                    Step::Question(ask) => { outbox.handle_input_request(ask); open.insert(ask); }
                    Step::Closed(ask) => {
                        prop_assert_eq!(outbox.handle_input_closed(ask).is_some(), seen.get(&ask).is_some_and(|line| living.contains(line)));
                        open.remove(&ask);
                        seen.remove(&ask);
                    }
                }
                seen.retain(|_, line| living.contains(line));
                while let Some((ask, line)) = outbox.poll_delivery(|_, _| true) {
                    prop_assert!(living.contains(&line) && open.contains(&ask));
                    prop_assert!(seen.insert(ask, line).is_none(), "asked twice");
                }
                prop_assert!(living.is_empty() || seen.len() == open.len(), "somebody could be asked");
            }
        }
    }
}
