//! A call that is becoming a task, and then is one: driven by a runtime task of its own.
//!
//! The client may still be attached: until the handle is given, what the server says on the way
//! goes to it, and if the task cannot be stored the call simply stays synchronous. The commit point
//! is the moment the client's socket takes the handle ([`Commit`]).

use super::{
    Commit, Item,
    attended::{reached, refuse_question},
    endpoint::Shared,
    reply::{self, Verdict, Word},
};
use crate::{
    bridge::{Action, Exchange, describe::server_info_meta, raise},
    dialect::{Call, Caller},
    protocol::{ErrorObject, code},
    task::{self, Record, TaskId, view},
    upstream::{Description, Event, Lost, Replies},
};
use futures_util::{StreamExt, future::BoxFuture};
use serde_json::Value;
use std::{
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

/// Progress is written to the task at most this often: a store write each.
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

/// What a runtime task owns of a deferred call.
pub(super) struct Deferred {
    pub(super) shared: Arc<Shared>,
    pub(super) call: Call,
    pub(super) caller: Caller,
    pub(super) exchange: Exchange<Word>,
    /// Dropping it cancels the call at the server.
    pub(super) replies: Option<Replies>,
    pub(super) server: Arc<Description>,
    pub(super) retention: Duration,
    pub(super) refused: Option<Value>,
    /// Where the client hears from us, for as long as it waits.
    pub(super) items: Option<mpsc::Sender<Item>>,
}

/// What is being waited for beside the server.
struct Waits {
    id: TaskId,
    storing: Option<BoxFuture<'static, bool>>,
    committed: Option<oneshot::Receiver<()>>,
    cancelled: oneshot::Receiver<()>,
    progress: Progress,
}

/// The latest word on progress, and when it may be written.
#[derive(Default)]
struct Progress {
    message: Option<String>,
    not_before: Option<Instant>,
}

/// What happened next.
enum Happening {
    Stored(bool),
    Departed,
    Committed,
    Cancelled,
    ProgressDue,
    Server(Event),
    Stopping,
}

// === impl Deferred ===

impl Deferred {
    /// Begins with `first`, which the exchange had asked for when it was handed over.
    pub(super) fn spawn(self, first: Action<Word>) {
        let stopping = self.shared.stopping.clone();
        stopping.spawn(self.run(first));
    }

    async fn run(mut self, first: Action<Word>) {
        let id = self.shared.tasks.new_id();
        let mut waits = Waits {
            cancelled: self.shared.tasks.park(&id),
            id,
            storing: None,
            committed: None,
            progress: Progress::default(),
        };
        self.carry_out(first, &mut waits).await;
        loop {
            while let Some(action) = self.exchange.poll_action() {
                self.carry_out(action, &mut waits).await;
            }
            if self.exchange.is_done() {
                break;
            }
            match self.wait(&mut waits).await {
                Happening::Stored(stored) => {
                    waits.storing = None;
                    self.exchange.handle_stored(stored);
                }
                Happening::Departed => self.exchange.handle_departed(),
                Happening::Committed => self.exchange.handle_committed(),
                Happening::Cancelled => self.exchange.handle_cancelled(),
                Happening::ProgressDue => self.write_progress(&mut waits).await,
                Happening::Server(event) => self.heard(event, &mut waits).await,
                Happening::Stopping => self.exchange.handle_final(Word::Lost(Lost::Closing)),
            }
        }
        self.shared.tasks.unpark(&waits.id);
    }

    async fn wait(&mut self, waits: &mut Waits) -> Happening {
        let attended = self.exchange.is_attended();
        let awaits_server = self.exchange.awaits_server();
        tokio::select! {
            // What the client did comes first: a word for somebody who has left, or has cancelled,
            // is for nobody.
            biased;
            stored = maybe(&mut waits.storing) => Happening::Stored(stored),
            committed = maybe_received(&mut waits.committed) => {
                waits.committed = None;
                if committed { Happening::Committed } else { Happening::Departed }
            }
            () = closed(self.items.as_ref()), if attended => Happening::Departed,
            _ = &mut waits.cancelled, if !attended => Happening::Cancelled,
            event = next(&mut self.replies), if awaits_server => Happening::Server(event),
            () = reached(waits.progress.due()) => Happening::ProgressDue,
            () = self.shared.overdue.stopped(), if awaits_server => Happening::Stopping,
        }
    }

    async fn carry_out(&mut self, action: Action<Word>, waits: &mut Waits) {
        match action {
            Action::Store => waits.storing = Some(self.store(waits.id.clone())),
            Action::ReplyTask => self.give_handle(waits).await,
            Action::Reply(word) => {
                let reply = reply::to_client(
                    &self.call,
                    &self.shared.route,
                    &self.server,
                    word,
                    self.refused.as_ref(),
                );
                self.tell(reply.into()).await;
            }
            Action::Settle(word) => self.settle(word, &waits.id).await,
            Action::Forget => self.shared.tasks.forget(&waits.id).await,
            Action::CancelUpstream => self.replies = None,
        }
    }

    /// Stores the task, unless a quota is full.
    fn store(&self, id: TaskId) -> BoxFuture<'static, bool> {
        let now = self.shared.clock.timestamp();
        let tool = self.call.target.clone().unwrap_or_default();
        let record = Record::new(id, self.shared.owner(&self.caller), tool, self.retention, now);
        let tasks = Arc::clone(&self.shared.tasks);
        Box::pin(async move { tasks.admit(record).await })
    }

    async fn give_handle(&mut self, waits: &mut Waits) {
        let Some(record) = self.shared.tasks.load(&waits.id).await else {
            // Stored a moment ago; only a store in trouble loses it.
            self.exchange.handle_departed();
            return;
        };
        let created = view::created(
            &record,
            self.shared.clock.timestamp(),
            self.shared.tasks.poll_bounds(),
            Some(&server_info_meta(&self.server.server_info)),
        );
        let (confirm, committed) = oneshot::channel();
        waits.committed = Some(committed);
        let reply = reply::handle(&self.call, &created, waits.id.clone(), Commit(confirm));
        self.tell(reply.into()).await;
        // The connection is given back as soon as it has the handle.
        self.items = None;
    }

    async fn heard(&mut self, event: Event, waits: &mut Waits) {
        match event {
            Event::Notice(frame) if self.exchange.is_attended() => {
                if let Some(notice) = raise::notice(&self.call, &frame) {
                    self.tell(Item::Notice(notice)).await;
                }
            }
            Event::Notice(frame) => {
                if let Some(message) = raise::progress_message(&frame) {
                    waits.progress.message = Some(message);
                    waits.progress.not_before.get_or_insert_with(|| self.shared.clock.now());
                }
            }
            Event::Question(question) => refuse_question(&self.caller, question, &mut self.refused),
            Event::Withdrawn { .. } => {}
            Event::Final(frame) => self.exchange.handle_final(Word::Said(frame)),
            Event::Lost(lost) => self.exchange.handle_final(Word::Lost(lost)),
        }
    }

    async fn write_progress(&mut self, waits: &mut Waits) {
        let Some(message) = waits.progress.message.take() else { return };
        waits.progress.not_before = Some(self.shared.clock.now() + PROGRESS_PERIOD);
        self.shared.tasks.apply(&waits.id, task::Event::Progressed { message }).await;
    }

    async fn settle(&mut self, word: Word, id: &TaskId) {
        // The upstream stream has ended: let its connection go before anything else.
        self.replies = None;
        let verdict =
            reply::verdict(&self.call, &self.shared.route, &self.server, word, self.refused.as_ref());
        let limit = self.shared.tasks.result_limit();
        let event = match verdict {
            Verdict::Result(result) if result.len() > limit => {
                let error = ErrorObject::new(
                    code::RESULT_TOO_LARGE,
                    format!(
                        "the result is {} bytes; the proxy keeps at most {limit} (limits.stored_result_bytes)",
                        result.len()
                    ),
                );
                failed(&error)
            }
            Verdict::Result(result) => task::Event::Returned { result },
            Verdict::Error(error, _) => failed(&error),
        };
        self.shared.tasks.apply(id, event).await;
    }

    /// Gives the client something. That it has left is noticed elsewhere.
    async fn tell(&mut self, item: Item) {
        if let Some(items) = &self.items {
            let _ = items.send(item).await;
        }
    }
}

fn failed(error: &ErrorObject) -> task::Event {
    task::Event::Failed { error: error.as_bytes().clone(), message: Some(error.message()) }
}

// === impl Progress ===

impl Progress {
    fn due(&self) -> Option<Instant> {
        self.message.as_ref().and(self.not_before)
    }
}

async fn maybe(future: &mut Option<BoxFuture<'static, bool>>) -> bool {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

async fn maybe_received(receiver: &mut Option<oneshot::Receiver<()>>) -> bool {
    match receiver {
        Some(receiver) => receiver.await.is_ok(),
        None => pending().await,
    }
}

async fn closed(items: Option<&mpsc::Sender<Item>>) {
    match items {
        Some(items) => items.closed().await,
        None => pending().await,
    }
}

async fn next(replies: &mut Option<Replies>) -> Event {
    match replies {
        Some(replies) => replies.next().await.unwrap_or(Event::Lost(Lost::SessionEnded)),
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_due_only_when_there_is_something_to_write() {
        let clock = crate::runtime::SystemClock::new();
        let now = crate::runtime::Clock::now(&clock);
        let mut progress = Progress { message: None, not_before: Some(now) };
        assert_eq!(progress.due(), None);
        progress.message = Some("half".into());
        assert_eq!(progress.due(), Some(now));
    }
}
