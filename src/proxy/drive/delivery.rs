//! Who hears what becomes of a call: requests that wait for it, and streams on which a task is heard.

use crate::{
    bridge::{TaskOutbox, exchange::InputNumber, outbox::StreamId},
    protocol::sse,
    proxy::{
        ReplyItem,
        call_registry::CallWaiter,
        session::{StreamFollower, next_stream_id},
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

/// The streams on which a legacy client hears what a task has to say, and what has been put on which.
#[derive(Default)]
pub(super) struct TaskStreams {
    outbox: TaskOutbox,
    /// The streams of the session, where it has an id.
    streams: Option<StreamFollower>,
    /// Requests for the result that wait.
    waiting: Vec<(StreamId, mpsc::Sender<Bytes>)>,
    /// What is to be said on lines that are full, in its order. The server is not read meanwhile, as on
    /// the direct way: a client that reads more slowly than its server speaks loses nothing.
    unsent: VecDeque<(StreamId, Bytes)>,
    /// When the first of it is given up, and its line with it.
    drop_at: Option<Instant>,
    /// What is asked, and is not put before somebody new waits: its client still has it.
    withheld: Vec<InputNumber>,
}

/// What happened on the lines.
pub(super) enum TaskStreamEvent {
    /// The session may listen on another stream.
    ListenChanged,
    /// A request for the result has left.
    WaiterClosed(usize),
    /// A line that was full takes one more message, or nothing any more.
    Writable(Option<OwnedPermit<Bytes>>),
}

/// How long a client may take none of what its task has to say before it is taken for one that does
/// not listen there: so long may it hold up its own call.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages for requests whose channels are full, each request's in their order. The server is not read meanwhile, so
/// that there are never many.
#[derive(Default)]
pub(super) struct UnsentItems(Vec<(mpsc::Sender<ReplyItem>, VecDeque<ReplyItem>)>);

// === impl UnsentItems ===

impl UnsentItems {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends the client something, now or once it has room. That it has left is noticed elsewhere.
    pub(super) fn send(&mut self, waiter: &CallWaiter, item: ReplyItem) {
        if let Some((_, items)) = self.0.iter_mut().find(|(sender, _)| sender.same_channel(&waiter.items)) {
            return items.push_back(item);
        }
        if let Err(TrySendError::Full(item)) = waiter.items.try_send(item) {
            self.0.push((waiter.items.clone(), VecDeque::from([item])));
        }
    }

    /// Sends one of them as soon as its client has room; drops those of a client that has left. Cancel safe.
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

/// Which of those who wait has left.
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

// === impl Lines ===

impl TaskStreams {
    /// The lines of a task whose session, if it has an id, is followed.
    pub(super) fn new(streams: Option<StreamFollower>) -> Self {
        Self { streams, ..Self::default() }
    }

    /// Waits for something to happen on them.
    pub(super) async fn next_event(&mut self, now: impl FnOnce() -> Instant) -> TaskStreamEvent {
        let full = self.blocked_sender(now);
        tokio::select! {
            biased;
            () = or_pending(self.streams.as_mut().map(StreamFollower::changed)) => TaskStreamEvent::ListenChanged,
            who = any_waiter_closed(&self.waiting) => TaskStreamEvent::WaiterClosed(who),
            permit = reserve_slot(full, self.drop_at) => TaskStreamEvent::Writable(permit),
        }
    }

    pub(super) fn handle(&mut self, happening: TaskStreamEvent, is_open: impl Fn(InputNumber) -> bool) {
        match happening {
            TaskStreamEvent::ListenChanged => {
                let line = self.streams.as_ref().and_then(StreamFollower::current_stream);
                self.outbox.handle_listen_stream(line);
            }
            TaskStreamEvent::WaiterClosed(who) => {
                let (line, _) = self.waiting.swap_remove(who);
                self.outbox.handle_result_disconnect(line);
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
        self.withheld.retain(|ask| is_open(*ask));
    }

    /// One more request waits for the result. Whoever asks for it does not have what was asked before, or
    /// will not mind to be asked again.
    pub(super) fn add_waiter(&mut self, tell: mpsc::Sender<Bytes>, is_open: impl Fn(InputNumber) -> bool) {
        let line = next_stream_id();
        self.waiting.push((line, tell));
        self.outbox.handle_result_request(line);
        for ask in std::mem::take(&mut self.withheld).into_iter().filter(|ask| is_open(*ask)) {
            self.outbox.handle_input_request(ask);
        }
    }

    /// A question is to be put; only to somebody new, where the client has it already.
    pub(super) fn queue_request(&mut self, ask: InputNumber, has_it: bool) {
        match has_it {
            true => self.withheld.push(ask),
            false => self.outbox.handle_input_request(ask),
        }
    }

    /// Puts what has not been put yet, each as `message` has it.
    pub(super) fn send_queued(&mut self, message: impl Fn(InputNumber) -> Option<Bytes>) {
        while let Some((ask, line)) = self.outbox.poll_delivery() {
            let Some(message) = message(ask) else { continue };
            if !self.send_on(line, sse::message(&message)) {
                self.remove_stream(line);
            }
        }
    }

    /// A question is answered or over. Gives where it was put, if it was.
    pub(super) fn close_request(&mut self, ask: InputNumber) -> Option<StreamId> {
        self.outbox.handle_input_closed(ask)
    }

    /// Says something where it can be heard now, if it can.
    pub(super) fn send(&mut self, message: &[u8]) {
        if let Some(line) = self.outbox.current_stream()
            && !self.send_on(line, sse::message(message))
        {
            self.remove_stream(line);
        }
    }

    /// Says something on this line. Whether it is, or will be, said.
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

    /// Whether something waits for a line that is full: then the server is not read.
    pub(super) fn has_backlog(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.blocked_sender(now).is_some()
    }

    fn sender(&self, line: StreamId) -> Option<mpsc::Sender<Bytes>> {
        match self.waiting.iter().find(|(waiting, _)| *waiting == line) {
            Some((_, tell)) => Some(tell.clone()),
            None => self.streams.as_ref()?.sender(line),
        }
    }

    /// The line that the first of what is unsaid waits for.
    fn blocked_sender(&mut self, now: impl FnOnce() -> Instant) -> Option<mpsc::Sender<Bytes>> {
        loop {
            let (line, _) = self.unsent.front()?;
            if let Some(sender) = self.sender(*line) {
                self.drop_at.get_or_insert_with(|| now() + STALL_TIMEOUT);
                return Some(sender);
            }
            // What was on it is put again where it matters.
            self.unsent.pop_front();
            self.drop_at = None;
        }
    }

    /// A line that takes nothing any more.
    fn remove_stream(&mut self, line: StreamId) {
        self.unsent.retain(|(full, _)| *full != line);
        match self.waiting.iter().position(|(waiting, _)| *waiting == line) {
            Some(at) => {
                self.waiting.swap_remove(at);
                self.outbox.handle_result_disconnect(line);
            }
            None => self.outbox.handle_listen_stream(None),
        }
    }
}

/// Room for one more message on a line that is full; nothing where it takes none in time.
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

/// Which of those who wait for the result has left.
async fn any_waiter_closed(waiting: &[(StreamId, mpsc::Sender<Bytes>)]) -> usize {
    if waiting.is_empty() {
        return pending().await;
    }
    select_all(waiting.iter().map(|(_, tell)| Box::pin(tell.closed()))).await.1
}
