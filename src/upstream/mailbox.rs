//! Where a call finds what arrives for it outside its own response.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use super::Event;

/// One call's events, put there by whoever reads the session's GET stream.
#[derive(Debug, Default)]
pub(super) struct Mailbox(Mutex<Contents>);

#[derive(Debug, Default)]
struct Contents {
    events: VecDeque<Event>,
    reader: Option<Waker>,
    /// The session has ended, or has no stream of its own: nothing more will come.
    ended: bool,
}

/// Notifications kept for a call that does not fetch them; further ones are dropped. Costs this
/// many messages for each call in flight, in the worst case.
const KEPT: usize = 256;

// === impl Mailbox ===

impl Mailbox {
    /// Delivers an event. Only notifications are ever dropped: all else is bounded by the call.
    pub(super) fn push(&self, event: Event) {
        self.change(|contents| {
            if contents.events.len() < KEPT || !matches!(event, Event::Notice(_)) {
                contents.events.push_back(event);
            }
        });
    }

    /// The session has ended, or has no stream of its own, so nothing more will come. A call that reads its own response may
    /// still hear from that.
    pub(super) fn session_ended(&self) {
        self.change(|contents| contents.ended = true);
    }

    /// Whether nothing more will come.
    pub(super) fn is_ended(&self) -> bool {
        self.contents().ended
    }

    fn change(&self, change: impl FnOnce(&mut Contents)) {
        let reader = {
            let mut contents = self.contents();
            change(&mut contents);
            contents.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// The next event; else the task is woken when there is one.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Event> {
        let mut contents = self.contents();
        if let Some(event) = contents.events.pop_front() {
            return Poll::Ready(event);
        }
        match &mut contents.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn contents(&self) -> std::sync::MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
