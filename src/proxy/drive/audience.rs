//! Who hears what becomes of a call: requests that wait for it, and streams on which a task is heard.

use crate::{
    bridge::{Outbox, exchange::Ask, outbox::LineId},
    protocol::sse,
    proxy::{
        Item,
        session::{Follower, next_line},
        switchboard::Waiter,
    },
    runtime::{or_never, reached},
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
pub(super) struct Lines {
    outbox: Outbox,
    /// The streams of the session, where it has an id.
    streams: Option<Follower>,
    /// Requests for the result that wait.
    waiting: Vec<(LineId, mpsc::Sender<Bytes>)>,
    /// What is to be said on lines that are full, in its order. The server is not read meanwhile, as on
    /// the direct way: a client that reads more slowly than its server speaks loses nothing.
    unsaid: VecDeque<(LineId, Bytes)>,
    /// When the first of it is given up, and its line with it.
    give_up: Option<Instant>,
    /// What is asked, and is not put before somebody new waits: its client still has it.
    unput: Vec<Ask>,
}

/// What happened on the lines.
pub(super) enum OnLines {
    /// The session may listen on another stream.
    Streams,
    /// A request for the result has left.
    Left(usize),
    /// A line that was full takes one more message, or nothing any more.
    Room(Option<OwnedPermit<Bytes>>),
}

/// How long a client may take none of what its task has to say before it is taken for one that does
/// not listen there: so long may it hold up its own call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Messages for requests whose channels are full, each request's in their order. The server is not read meanwhile, so
/// that there are never many.
#[derive(Default)]
pub(super) struct UnsentItems(Vec<(mpsc::Sender<Item>, VecDeque<Item>)>);

// === impl UnsentItems ===

impl UnsentItems {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends the client something, now or once it has room. That it has left is noticed elsewhere.
    pub(super) fn send(&mut self, waiter: &Waiter, item: Item) {
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
pub(super) async fn any_left(waiters: &[Waiter]) -> usize {
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

impl Lines {
    /// The lines of a task whose session, if it has an id, is followed.
    pub(super) fn new(streams: Option<Follower>) -> Self {
        Self { streams, ..Self::default() }
    }

    /// Waits for something to happen on them.
    pub(super) async fn happens(&mut self, now: impl FnOnce() -> Instant) -> OnLines {
        let full = self.full(now);
        tokio::select! {
            biased;
            () = or_never(self.streams.as_mut().map(Follower::changed)) => OnLines::Streams,
            who = any_gone(&self.waiting) => OnLines::Left(who),
            permit = room(full, self.give_up) => OnLines::Room(permit),
        }
    }

    pub(super) fn handle(&mut self, happening: OnLines, is_open: impl Fn(Ask) -> bool) {
        match happening {
            OnLines::Streams => {
                let line = self.streams.as_ref().and_then(Follower::line);
                self.outbox.handle_listening(line);
            }
            OnLines::Left(who) => {
                let (line, _) = self.waiting.swap_remove(who);
                self.outbox.handle_left(line);
            }
            OnLines::Room(permit) => {
                self.give_up = None;
                let Some((line, event)) = self.unsaid.pop_front() else { return };
                match permit {
                    Some(permit) => drop(permit.send(event)),
                    None => self.gone(line),
                }
            }
        }
        self.unput.retain(|ask| is_open(*ask));
    }

    /// One more request waits for the result. Whoever asks for it does not have what was asked before, or
    /// will not mind to be asked again.
    pub(super) fn waits(&mut self, tell: mpsc::Sender<Bytes>, is_open: impl Fn(Ask) -> bool) {
        let line = next_line();
        self.waiting.push((line, tell));
        self.outbox.handle_waiting(line);
        for ask in std::mem::take(&mut self.unput).into_iter().filter(|ask| is_open(*ask)) {
            self.outbox.handle_question(ask);
        }
    }

    /// A question is to be put; only to somebody new, where the client has it already.
    pub(super) fn ask(&mut self, ask: Ask, has_it: bool) {
        match has_it {
            true => self.unput.push(ask),
            false => self.outbox.handle_question(ask),
        }
    }

    /// Puts what has not been put yet, each as `message` has it.
    pub(super) fn put(&mut self, message: impl Fn(Ask) -> Option<Bytes>) {
        while let Some((ask, line)) = self.outbox.poll_put() {
            let Some(message) = message(ask) else { continue };
            if !self.tell(line, sse::message(&message)) {
                self.gone(line);
            }
        }
    }

    /// A question is answered or over. Gives where it was put, if it was.
    pub(super) fn close(&mut self, ask: Ask) -> Option<LineId> {
        self.outbox.handle_closed(ask)
    }

    /// Says something where it can be heard now, if it can.
    pub(super) fn say(&mut self, message: &[u8]) {
        if let Some(line) = self.outbox.line()
            && !self.tell(line, sse::message(message))
        {
            self.gone(line);
        }
    }

    /// Says something on this line. Whether it is, or will be, said.
    pub(super) fn tell(&mut self, line: LineId, event: Bytes) -> bool {
        let Some(sender) = self.sender(line) else { return false };
        let event = match self.unsaid.iter().any(|(full, _)| *full == line) {
            true => event,
            false => match sender.try_send(event) {
                Ok(()) => return true,
                Err(TrySendError::Full(event)) => event,
                Err(TrySendError::Closed(_)) => return false,
            },
        };
        self.unsaid.push_back((line, event));
        true
    }

    /// Whether something waits for a line that is full: then the server is not read.
    pub(super) fn is_full(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.full(now).is_some()
    }

    fn sender(&self, line: LineId) -> Option<mpsc::Sender<Bytes>> {
        match self.waiting.iter().find(|(waiting, _)| *waiting == line) {
            Some((_, tell)) => Some(tell.clone()),
            None => self.streams.as_ref()?.sender(line),
        }
    }

    /// The line that the first of what is unsaid waits for.
    fn full(&mut self, now: impl FnOnce() -> Instant) -> Option<mpsc::Sender<Bytes>> {
        loop {
            let (line, _) = self.unsaid.front()?;
            if let Some(sender) = self.sender(*line) {
                self.give_up.get_or_insert_with(|| now() + PATIENCE);
                return Some(sender);
            }
            // What was on it is put again where it matters.
            self.unsaid.pop_front();
            self.give_up = None;
        }
    }

    /// A line that takes nothing any more.
    fn gone(&mut self, line: LineId) {
        self.unsaid.retain(|(full, _)| *full != line);
        match self.waiting.iter().position(|(waiting, _)| *waiting == line) {
            Some(at) => {
                self.waiting.swap_remove(at);
                self.outbox.handle_left(line);
            }
            None => self.outbox.handle_listening(None),
        }
    }
}

/// Room for one more message on a line that is full; nothing where it takes none in time.
async fn room(full: Option<mpsc::Sender<Bytes>>, give_up: Option<Instant>) -> Option<OwnedPermit<Bytes>> {
    let Some(full) = full else { return pending().await };
    tokio::select! {
        permit = full.reserve_owned() => permit.ok(),
        () = reached(give_up) => None,
    }
}

/// Which of those who wait for the result has left.
async fn any_gone(waiting: &[(LineId, mpsc::Sender<Bytes>)]) -> usize {
    if waiting.is_empty() {
        return pending().await;
    }
    select_all(waiting.iter().map(|(_, tell)| Box::pin(tell.closed()))).await.1
}
