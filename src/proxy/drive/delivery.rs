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

/// The streams on which a legacy client receives the messages of a task, and which input request was sent on
/// which.
#[derive(Default)]
pub(super) struct TaskStreams {
    outbox: TaskOutbox,
    /// The GET streams of the session, if it has an id.
    streams: Option<StreamFollower>,
    /// Requests that wait for the result.
    waiting: Vec<WaitingLine>,
    /// Messages for full streams, in order. The server is not read meanwhile, as in a direct connection: a
    /// client that reads more slowly than its server sends loses nothing.
    unsent: VecDeque<(StreamId, Bytes)>,
    /// When the first of them is dropped, together with its stream.
    drop_at: Option<Instant>,
    /// Input requests that the client already has; sent again only to a new waiter.
    withheld: Vec<InputNumber>,
}

/// A request for the result that waits.
struct WaitingLine {
    line: StreamId,
    sender: mpsc::Sender<Bytes>,
    /// What its client can be asked, where that counts.
    askable: Option<Askable>,
}

/// An event on the streams.
pub(super) enum TaskStreamEvent {
    /// The session may listen on another stream.
    ListenChanged,
    /// A request for the result has disconnected.
    WaiterClosed(usize),
    /// A full stream takes one more message, or no more.
    Writable(Option<OwnedPermit<Bytes>>),
}

/// How long a client may take none of its task's messages before its stream is dropped. A stalled client
/// blocks its own call for this long.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages for requests with full channels, in order for each request. The server is not read meanwhile, so
/// that there are never many.
#[derive(Default)]
pub(super) struct UnsentItems(Vec<(mpsc::Sender<ReplyItem>, VecDeque<ReplyItem>)>);

/// Messages that wait for one request, beside those in its channel.
const MAX_UNSENT: usize = 64;

// === impl UnsentItems ===

impl UnsentItems {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether none of these requests takes what it is sent, so that the server is not to be read.
    pub(super) fn holds_up(&self, waiters: &[CallWaiter]) -> bool {
        let is_slow =
            |waiter: &CallWaiter| self.0.iter().any(|(sender, _)| sender.same_channel(&waiter.items));
        !self.is_empty() && waiters.iter().all(is_slow)
    }

    /// Sends a message, now or once the channel has space. A disconnect is detected elsewhere.
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

    /// Sends all of them, each as soon as its client has room. Ends with the connections of those clients at the latest,
    /// which are closed when their clients do not read (`timeouts.write`).
    pub(super) async fn flush(mut self) {
        while !self.is_empty() {
            self.flush_one().await;
        }
    }

    /// Sends one of them once its channel has space; drops those of a disconnected client. Cancel safe.
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

/// The index of a waiter that has disconnected.
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
    /// The streams of a task; `streams` are those of its session, if it has an id.
    pub(super) fn new(streams: Option<StreamFollower>) -> Self {
        Self { streams, ..Self::default() }
    }

    /// Waits for the next event.
    pub(super) async fn next_event(&mut self, now: impl FnOnce() -> Instant) -> TaskStreamEvent {
        let full = self.blocked_sender(now);
        tokio::select! {
            biased;
            () = or_pending(self.streams.as_mut().map(StreamFollower::changed)) => TaskStreamEvent::ListenChanged,
            who = any_waiter_closed(&self.waiting) => TaskStreamEvent::WaiterClosed(who),
            permit = reserve_slot(full, self.drop_at) => TaskStreamEvent::Writable(permit),
        }
    }

    /// Whether a client that was told what the task has to say is gone: what it was asked may be put to nobody else.
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

    /// Adds a request that waits for the result. It does not have the withheld input requests, or tolerates
    /// them again.
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

    /// Queues an input request; only for a new waiter, if the client already has it.
    pub(super) fn queue_request(&mut self, ask: InputNumber, has_it: bool) {
        match has_it {
            true => self.withheld.push(ask),
            false => self.outbox.handle_input_request(ask),
        }
    }

    /// Puts what has not been put yet, each as `message` has it, and only to a client that `can` be asked it.
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

    /// Whether a question has been put to a client.
    pub(super) fn is_put(&self, ask: InputNumber) -> bool {
        self.outbox.is_sent(ask)
    }

    /// Closes an input request. Returns the stream on which it was sent.
    pub(super) fn close_request(&mut self, ask: InputNumber) -> Option<StreamId> {
        self.outbox.handle_input_closed(ask)
    }

    /// Sends a message on the current stream, if there is one.
    pub(super) fn send(&mut self, message: &[u8]) {
        if let Some(line) = self.outbox.current_stream()
            && !self.send_on(line, sse::message(message))
        {
            self.remove_stream(line);
        }
    }

    /// Sends a message on this stream. Returns whether it is sent or queued.
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

    /// Whether messages wait for a full stream: then the server is not read.
    pub(super) fn has_backlog(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.blocked_sender(now).is_some()
    }

    fn sender(&self, line: StreamId) -> Option<mpsc::Sender<Bytes>> {
        match self.waiting.iter().find(|waiting| waiting.line == line) {
            Some(waiting) => Some(waiting.sender.clone()),
            None => self.streams.as_ref()?.sender(line),
        }
    }

    /// The stream that the first unsent message waits for.
    fn blocked_sender(&mut self, now: impl FnOnce() -> Instant) -> Option<mpsc::Sender<Bytes>> {
        loop {
            let (line, _) = self.unsent.front()?;
            if let Some(sender) = self.sender(*line) {
                self.drop_at.get_or_insert_with(|| now() + STALL_TIMEOUT);
                return Some(sender);
            }
            // Its input requests are sent again on another stream.
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

/// A slot in a full stream; none if it takes no message in time.
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

/// The index of a request for the result that has disconnected.
async fn any_waiter_closed(waiting: &[WaitingLine]) -> usize {
    if waiting.is_empty() {
        return pending().await;
    }
    select_all(waiting.iter().map(|waiting| Box::pin(waiting.sender.closed()))).await.1
}
