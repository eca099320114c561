//! Delivery of a call's messages: to requests that wait for it, and to the streams of a task's client.

use crate::{
    bridge::{TaskOutbox, exchange::InputNumber, outbox::StreamId},
    protocol::sse,
    proxy::{
        ReplyItem,
        call_registry::CallWaiter,
        session::{StreamFollower, next_stream_id},
        tasks::watchers::InputFilter,
    },
    runtime::{or_pending, wait_until},
};
use bytes::Bytes;
use futures_util::future::select_all;
use std::{
    collections::VecDeque,
    future::pending,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{self, OwnedPermit, error::TrySendError};

/// The streams on which the client of a task receives the messages of the task, and which input request was
/// sent on which stream.
#[derive(Default)]
pub(super) struct TaskStreams {
    /// Decides which stream gets which input request.
    outbox: TaskOutbox,
    /// The GET streams of the session, if it has an id.
    streams: Option<StreamFollower>,
    /// Requests that wait for the result.
    waiting_requests: Vec<WaitingRequest>,
    /// SSE events for streams whose channel is full, in order. The server is not read meanwhile, so that a
    /// client that reads more slowly than its server sends loses nothing.
    unsent: VecDeque<(StreamId, Bytes)>,
    /// When the first unsent event is dropped, together with its stream.
    stall_deadline: Option<Instant>,
    /// Input requests that the client already has; sent again only to a new waiter.
    withheld: Vec<InputNumber>,
}

/// A request that waits for the result of the task, as a stream for messages of the task.
struct WaitingRequest {
    stream: StreamId,
    sender: mpsc::Sender<Bytes>,
    /// The input requests that the client can receive; `None` for all.
    input_filter: Option<InputFilter>,
}

/// An event of the streams.
pub(super) enum TaskStreamEvent {
    /// The session's current GET stream may have changed.
    ListenChanged,
    /// The waiting request with this index has disconnected.
    WaiterClosed(usize),
    /// The full stream that the first unsent event waits for has space; `None` if it was closed or is
    /// stalled.
    Writable(Option<OwnedPermit<Bytes>>),
}

/// How long a client may not read its task's messages before its stream is dropped. A stalled client blocks
/// its own call for this long.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages for waiting requests whose channels are full, in order for each request.
#[derive(Default)]
pub(super) struct UnsentItems(Vec<(mpsc::Sender<ReplyItem>, VecDeque<ReplyItem>)>);

/// Messages that are kept for one waiting request, in addition to those in its channel; further notifications
/// are dropped.
const MAX_UNSENT: usize = 64;

// === impl UnsentItems ===

impl UnsentItems {
    /// Whether no message waits for any request.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the channels of all these requests are full: then the server is not read.
    pub(super) fn are_all_blocked(&self, waiters: &[CallWaiter]) -> bool {
        let is_blocked =
            |waiter: &CallWaiter| self.0.iter().any(|(sender, _)| sender.same_channel(&waiter.items));
        !self.is_empty() && waiters.iter().all(is_blocked)
    }

    /// Sends a message to a waiting request, now or once its channel has space. Ignores a disconnected
    /// client, which [`any_disconnected`] detects.
    pub(super) fn send(&mut self, waiter: &CallWaiter, item: ReplyItem) {
        if let Some((_, items)) = self.0.iter_mut().find(|(sender, _)| sender.same_channel(&waiter.items)) {
            if items.len() < MAX_UNSENT || !matches!(item, ReplyItem::Notification(_)) {
                items.push_back(item);
            }
            return;
        }
        if let Err(TrySendError::Full(item)) = waiter.items.try_send(item) {
            self.0.push((waiter.items.clone(), VecDeque::from([item])));
        }
    }

    /// Sends all messages, each as soon as its channel has space. Ends at the latest when the clients'
    /// connections are closed because the clients do not read (`timeouts.write`).
    pub(super) async fn send_all(mut self) {
        while !self.is_empty() {
            self.send_one().await;
        }
    }

    /// Waits until any full channel has space, and sends its next message; drops the messages of a
    /// disconnected client. Never resolves if there are no messages. Cancel safe.
    pub(super) async fn send_one(&mut self) {
        if self.0.is_empty() {
            return pending().await;
        }
        let permits = self.0.iter().map(|(sender, _)| Box::pin(sender.clone().reserve_owned()));
        let (permit, index, _) = select_all(permits).await;
        let (_, items) = &mut self.0[index];
        match (permit, items.pop_front()) {
            (Ok(permit), Some(item)) => drop(permit.send(item)),
            (Ok(_) | Err(_), _) => items.clear(),
        }
        if items.is_empty() {
            self.0.swap_remove(index);
        }
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }
}

/// Waits until a waiting request disconnects, and returns its index.
pub(super) async fn any_disconnected(waiters: &[CallWaiter]) -> usize {
    match waiters {
        [] => pending().await,
        [waiter] => {
            waiter.items.closed().await;
            0
        }
        several => select_all(several.iter().map(|waiter| Box::pin(waiter.items.closed()))).await.1,
    }
}

// === impl TaskStreams ===

impl TaskStreams {
    /// Creates the streams of a task. `streams` follows the GET streams of the client's session, if it has an
    /// id.
    pub(super) fn new(streams: Option<StreamFollower>) -> Self {
        Self { streams, ..Self::default() }
    }

    /// Waits for the next event, for [`TaskStreams::handle`].
    pub(super) async fn next_event(&mut self, now: impl FnOnce() -> Instant) -> TaskStreamEvent {
        let blocked = self.blocked_sender(now);
        tokio::select! {
            biased;
            () = or_pending(self.streams.as_mut().map(StreamFollower::changed)) => TaskStreamEvent::ListenChanged,
            index = any_waiter_closed(&self.waiting_requests) => TaskStreamEvent::WaiterClosed(index),
            permit = reserve_slot(blocked, self.stall_deadline) => TaskStreamEvent::Writable(permit),
        }
    }

    /// Handles an event. Returns whether a stream is gone: no other waiting client may be able to receive the
    /// input requests that were sent on it. `is_open` is whether an input request is still open.
    pub(super) fn handle(
        &mut self,
        stream_event: TaskStreamEvent,
        is_open: impl Fn(InputNumber) -> bool,
    ) -> bool {
        let is_stream_gone =
            matches!(stream_event, TaskStreamEvent::WaiterClosed(_) | TaskStreamEvent::Writable(None));
        self.apply(stream_event);
        self.withheld.retain(|input| is_open(*input));
        is_stream_gone
    }

    fn apply(&mut self, stream_event: TaskStreamEvent) {
        match stream_event {
            TaskStreamEvent::ListenChanged => {
                let stream = self.streams.as_ref().and_then(StreamFollower::current_stream);
                self.outbox.handle_get_stream(stream);
            }
            TaskStreamEvent::WaiterClosed(index) => {
                let closed = self.waiting_requests.swap_remove(index);
                self.outbox.handle_result_disconnect(closed.stream);
            }
            TaskStreamEvent::Writable(permit) => {
                self.stall_deadline = None;
                let Some((stream, event)) = self.unsent.pop_front() else { return };
                match permit {
                    Some(permit) => drop(permit.send(event)),
                    None => self.remove_stream(stream),
                }
            }
        }
    }

    /// Adds a request that waits for the result, and queues the withheld input requests for it: its client
    /// does not have them, or tolerates a repetition. `is_open` is whether an input request is still open.
    pub(super) fn add_waiter(
        &mut self,
        sender: mpsc::Sender<Bytes>,
        input_filter: Option<InputFilter>,
        is_open: impl Fn(InputNumber) -> bool,
    ) {
        let stream = next_stream_id();
        self.waiting_requests.push(WaitingRequest { stream, sender, input_filter });
        self.outbox.handle_result_request(stream);
        for input in std::mem::take(&mut self.withheld).into_iter().filter(|input| is_open(*input)) {
            self.outbox.handle_input_request(input);
        }
    }

    /// Queues an input request. If the client already has it (`has_it`), it is sent only to a new waiting
    /// request.
    pub(super) fn queue_input_request(&mut self, input: InputNumber, has_it: bool) {
        match has_it {
            true => self.withheld.push(input),
            false => self.outbox.handle_input_request(input),
        }
    }

    /// Sends the queued input requests: `message` renders one, and `can_receive` is whether a waiting client can_receive
    /// receive it.
    pub(super) fn send_queued_requests(
        &mut self,
        render: impl Fn(InputNumber) -> Option<Bytes>,
        can_receive: impl Fn(InputNumber, &InputFilter) -> bool,
    ) {
        loop {
            let Self { outbox, waiting_requests, .. } = &mut *self;
            let is_able = |input, stream| {
                let waiting_request = waiting_requests.iter().find(|request| request.stream == stream);
                waiting_request
                    .and_then(|request| request.input_filter.as_ref())
                    .is_none_or(|filter| can_receive(input, filter))
            };
            let Some((input, stream)) = outbox.poll_delivery(is_able) else { return };
            let Some(message) = render(input) else { continue };
            if !self.send_on(stream, sse::message(&message)) {
                self.remove_stream(stream);
            }
        }
    }

    /// Whether an input request has been sent on a stream that is still open.
    pub(super) fn is_sent(&self, input: InputNumber) -> bool {
        self.outbox.is_sent(input)
    }

    /// Closes an input request. Returns the stream on which it was sent.
    pub(super) fn close_request(&mut self, input: InputNumber) -> Option<StreamId> {
        self.outbox.handle_input_closed(input)
    }

    /// Sends a JSON-RPC message on the current stream; drops it if there is none.
    pub(super) fn send(&mut self, message: &[u8]) {
        if let Some(stream) = self.outbox.current_stream()
            && !self.send_on(stream, sse::message(message))
        {
            self.remove_stream(stream);
        }
    }

    /// Sends an SSE event on this stream, or queues it if the channel is full. Returns false if the stream is
    /// closed.
    pub(super) fn send_on(&mut self, stream: StreamId, event: Bytes) -> bool {
        let Some(sender) = self.sender(stream) else { return false };
        let event = match self.unsent.iter().any(|(blocked, _)| *blocked == stream) {
            true => event,
            false => match sender.try_send(event) {
                Ok(()) => return true,
                Err(TrySendError::Full(event)) => event,
                Err(TrySendError::Closed(_)) => return false,
            },
        };
        self.unsent.push_back((stream, event));
        true
    }

    /// Whether unsent events wait for a full stream: then the server is not read.
    pub(super) fn has_backlog(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.blocked_sender(now).is_some()
    }

    /// The channel of a stream; `None` if the stream is closed.
    fn sender(&self, stream: StreamId) -> Option<mpsc::Sender<Bytes>> {
        match self.waiting_requests.iter().find(|request| request.stream == stream) {
            Some(request) => Some(request.sender.clone()),
            None => self.streams.as_ref()?.sender(stream),
        }
    }

    /// The channel that the first unsent event waits for; `None` if there is no unsent event. Drops events
    /// for closed streams, and starts the stall timeout.
    fn blocked_sender(&mut self, now: impl FnOnce() -> Instant) -> Option<mpsc::Sender<Bytes>> {
        loop {
            let (stream, _) = self.unsent.front()?;
            if let Some(sender) = self.sender(*stream) {
                self.stall_deadline.get_or_insert_with(|| now() + STALL_TIMEOUT);
                return Some(sender);
            }
            // The stream is closed. Its input requests are sent again on another stream.
            self.unsent.pop_front();
            self.stall_deadline = None;
        }
    }

    /// Removes a stream that is closed or stalled.
    fn remove_stream(&mut self, stream: StreamId) {
        self.unsent.retain(|(blocked, _)| *blocked != stream);
        match self.waiting_requests.iter().position(|request| request.stream == stream) {
            Some(index) => {
                self.waiting_requests.swap_remove(index);
                self.outbox.handle_result_disconnect(stream);
            }
            None => self.outbox.handle_get_stream(None),
        }
    }
}

/// Waits for a slot in the full channel. `None` if the channel is closed, or has no space by the time
/// `deadline`.
async fn reserve_slot(
    blocked: Option<mpsc::Sender<Bytes>>,
    deadline: Option<Instant>,
) -> Option<OwnedPermit<Bytes>> {
    let Some(blocked) = blocked else { return pending().await };
    tokio::select! {
        permit = blocked.reserve_owned() => permit.ok(),
        () = wait_until(deadline) => None,
    }
}

/// Waits until a request that waits for the result disconnects, and returns its index.
async fn any_waiter_closed(waiting: &[WaitingRequest]) -> usize {
    if waiting.is_empty() {
        return pending().await;
    }
    select_all(waiting.iter().map(|request| Box::pin(request.sender.closed()))).await.1
}
