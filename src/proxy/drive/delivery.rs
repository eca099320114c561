//! Delivery of a call's messages: to requests that wait for it, and to the streams of a task's client.

use crate::{
    bridge::{TaskOutbox, exchange::InputNumber, outbox::StreamId},
    protocol::sse,
    proxy::{
        ReplyItem,
        call_registry::CallWaiter,
        session::{StreamFollower, next_stream_id},
        task_watchers::Askable,
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
    waiting: Vec<WaitingLine>,
    /// SSE events for streams whose channel is full, in order. The server is not read meanwhile, so that a
    /// client that reads more slowly than its server sends loses nothing.
    unsent: VecDeque<(StreamId, Bytes)>,
    /// When the first unsent event is dropped, together with its stream.
    drop_at: Option<Instant>,
    /// Input requests that the client already has; sent again only to a new waiter.
    withheld: Vec<InputNumber>,
}

/// A request that waits for the result of the task, as a stream for messages of the task.
struct WaitingLine {
    line: StreamId,
    sender: mpsc::Sender<Bytes>,
    /// The input requests that the client can receive; `None` for all.
    askable: Option<Askable>,
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
    pub(super) fn holds_up(&self, waiters: &[CallWaiter]) -> bool {
        let is_slow =
            |waiter: &CallWaiter| self.0.iter().any(|(sender, _)| sender.same_channel(&waiter.items));
        !self.is_empty() && waiters.iter().all(is_slow)
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
    pub(super) async fn flush(mut self) {
        while !self.is_empty() {
            self.flush_one().await;
        }
    }

    /// Waits until any full channel has space, and sends its next message; drops the messages of a
    /// disconnected client. Never resolves if there are no messages. Cancel safe.
    pub(super) async fn flush_one(&mut self) {
        if self.0.is_empty() {
            return pending().await;
        }
        let room = self.0.iter().map(|(sender, _)| Box::pin(sender.clone().reserve_owned()));
        let (permit, at, _) = select_all(room).await;
        let (_, items) = &mut self.0[at];
        match (permit, items.pop_front()) {
            (Ok(permit), Some(item)) => drop(permit.send(item)),
            (Ok(_) | Err(_), _) => items.clear(),
        }
        if items.is_empty() {
            self.0.swap_remove(at);
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
        [only] => {
            only.items.closed().await;
            0
        }
        many => select_all(many.iter().map(|one| Box::pin(one.items.closed()))).await.1,
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
        let full = self.blocked_sender(now);
        tokio::select! {
            biased;
            () = or_pending(self.streams.as_mut().map(StreamFollower::changed)) => TaskStreamEvent::ListenChanged,
            who = any_waiter_closed(&self.waiting) => TaskStreamEvent::WaiterClosed(who),
            permit = reserve_slot(full, self.drop_at) => TaskStreamEvent::Writable(permit),
        }
    }

    /// Handles an event. Returns whether a stream is gone: no other waiting client may be able to receive the
    /// input requests that were sent on it. `is_open` is whether an input request is still open.
    pub(super) fn handle(
        &mut self,
        happening: TaskStreamEvent,
        is_open: impl Fn(InputNumber) -> bool,
    ) -> bool {
        let is_gone = matches!(happening, TaskStreamEvent::WaiterClosed(_) | TaskStreamEvent::Writable(None));
        self.apply(happening);
        self.withheld.retain(|ask| is_open(*ask));
        is_gone
    }

    fn apply(&mut self, happening: TaskStreamEvent) {
        match happening {
            TaskStreamEvent::ListenChanged => {
                let line = self.streams.as_ref().and_then(StreamFollower::current_stream);
                self.outbox.handle_get_stream(line);
            }
            TaskStreamEvent::WaiterClosed(who) => {
                let gone = self.waiting.swap_remove(who);
                self.outbox.handle_result_disconnect(gone.line);
            }
            TaskStreamEvent::Writable(permit) => {
                self.drop_at = None;
                let Some((line, event)) = self.unsent.pop_front() else { return };
                match permit {
                    Some(permit) => drop(permit.send(event)),
                    None => self.remove_stream(line),
                }
            }
        }
    }

    /// Adds a request that waits for the result, and queues the withheld input requests for it: its client
    /// does not have them, or tolerates a repetition. `is_open` is whether an input request is still open.
    pub(super) fn add_waiter(
        &mut self,
        sender: mpsc::Sender<Bytes>,
        askable: Option<Askable>,
        is_open: impl Fn(InputNumber) -> bool,
    ) {
        let line = next_stream_id();
        self.waiting.push(WaitingLine { line, sender, askable });
        self.outbox.handle_result_request(line);
        for ask in std::mem::take(&mut self.withheld).into_iter().filter(|ask| is_open(*ask)) {
            self.outbox.handle_input_request(ask);
        }
    }

    /// Queues an input request. If the client already has it (`has_it`), it is sent only to a new waiting
    /// request.
    pub(super) fn queue_request(&mut self, ask: InputNumber, has_it: bool) {
        match has_it {
            true => self.withheld.push(ask),
            false => self.outbox.handle_input_request(ask),
        }
    }

    /// Sends the queued input requests: `message` renders one, and `can` is whether a waiting client can
    /// receive it.
    pub(super) fn send_queued(
        &mut self,
        message: impl Fn(InputNumber) -> Option<Bytes>,
        can: impl Fn(InputNumber, &Askable) -> bool,
    ) {
        loop {
            let Self { outbox, waiting, .. } = &mut *self;
            let able = |ask, line| {
                let waits = waiting.iter().find(|waits| waits.line == line);
                waits.and_then(|waits| waits.askable.as_ref()).is_none_or(|askable| can(ask, askable))
            };
            let Some((ask, line)) = outbox.poll_delivery(able) else { return };
            let Some(message) = message(ask) else { continue };
            if !self.send_on(line, sse::message(&message)) {
                self.remove_stream(line);
            }
        }
    }

    /// Whether an input request has been sent on a stream that is still open.
    pub(super) fn is_put(&self, ask: InputNumber) -> bool {
        self.outbox.is_sent(ask)
    }

    /// Closes an input request. Returns the stream on which it was sent.
    pub(super) fn close_request(&mut self, ask: InputNumber) -> Option<StreamId> {
        self.outbox.handle_input_closed(ask)
    }

    /// Sends a JSON-RPC message on the current stream; drops it if there is none.
    pub(super) fn send(&mut self, message: &[u8]) {
        if let Some(line) = self.outbox.current_stream()
            && !self.send_on(line, sse::message(message))
        {
            self.remove_stream(line);
        }
    }

    /// Sends an SSE event on this stream, or queues it if the channel is full. Returns false if the stream is
    /// closed.
    pub(super) fn send_on(&mut self, line: StreamId, event: Bytes) -> bool {
        let Some(sender) = self.sender(line) else { return false };
        let event = match self.unsent.iter().any(|(full, _)| *full == line) {
            true => event,
            false => match sender.try_send(event) {
                Ok(()) => return true,
                Err(TrySendError::Full(event)) => event,
                Err(TrySendError::Closed(_)) => return false,
            },
        };
        self.unsent.push_back((line, event));
        true
    }

    /// Whether unsent events wait for a full stream: then the server is not read.
    pub(super) fn has_backlog(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.blocked_sender(now).is_some()
    }

    /// The channel of a stream; `None` if the stream is closed.
    fn sender(&self, line: StreamId) -> Option<mpsc::Sender<Bytes>> {
        match self.waiting.iter().find(|waiting| waiting.line == line) {
            Some(waiting) => Some(waiting.sender.clone()),
            None => self.streams.as_ref()?.sender(line),
        }
    }

    /// The channel that the first unsent event waits for; `None` if there is no unsent event. Drops events
    /// for closed streams, and starts the stall timeout.
    fn blocked_sender(&mut self, now: impl FnOnce() -> Instant) -> Option<mpsc::Sender<Bytes>> {
        loop {
            let (line, _) = self.unsent.front()?;
            if let Some(sender) = self.sender(*line) {
                self.drop_at.get_or_insert_with(|| now() + STALL_TIMEOUT);
                return Some(sender);
            }
            // The stream is closed. Its input requests are sent again on another stream.
            self.unsent.pop_front();
            self.drop_at = None;
        }
    }

    /// Removes a stream that is closed or stalled.
    fn remove_stream(&mut self, line: StreamId) {
        self.unsent.retain(|(full, _)| *full != line);
        match self.waiting.iter().position(|waits| waits.line == line) {
            Some(at) => {
                self.waiting.swap_remove(at);
                self.outbox.handle_result_disconnect(line);
            }
            None => self.outbox.handle_get_stream(None),
        }
    }
}

/// Waits for a slot in the full channel. `None` if the channel is closed, or has no space by the time
/// `give_up`.
async fn reserve_slot(
    full: Option<mpsc::Sender<Bytes>>,
    give_up: Option<Instant>,
) -> Option<OwnedPermit<Bytes>> {
    let Some(full) = full else { return pending().await };
    tokio::select! {
        permit = full.reserve_owned() => permit.ok(),
        () = wait_until(give_up) => None,
    }
}

/// Waits until a request that waits for the result disconnects, and returns its index.
async fn any_waiter_closed(waiting: &[WaitingLine]) -> usize {
    if waiting.is_empty() {
        return pending().await;
    }
    select_all(waiting.iter().map(|waiting| Box::pin(waiting.sender.closed()))).await.1
}
