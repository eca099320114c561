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
    /// The call's last event is among them, or has been fetched.
    is_complete: bool,
    /// The session has ended, or has no stream of its own: nothing more will come.
    ended: bool,
}

/// Notifications kept for a call that does not fetch them; further ones are dropped. Costs this
/// many messages for each call in flight, in the worst case.
const KEPT: usize = 256;

// === impl Mailbox ===

impl Mailbox {
    /// Delivers an event. Only notifications are ever lost. All is bounded: they by number, questions by how
    /// many a call may have open, each is taken back once, and nothing follows the call's last event.
    pub(super) fn push(&self, event: Event) {
        let dropped = self.change(|contents| {
            let is_needless = match &event {
                Event::Notification(_) => contents.events.len() >= KEPT,
                Event::Withdrawn { id } => {
                    let same = |event: &Event| matches!(event, Event::Withdrawn { id: other } if other == id);
                    contents.events.iter().any(same)
                }
                Event::Question(_) | Event::TurnOver(_) | Event::Final(_) | Event::Lost(_) => false,
            };
            if contents.is_complete || is_needless {
                return Some(event);
            }
            contents.is_complete = matches!(event, Event::Final(_) | Event::TurnOver(_) | Event::Lost(_));
            contents.events.push_back(event);
            None
        });
        // Outside the lock: a question that is dropped refuses itself.
        drop(dropped);
    }

    /// The session has ended, or has no stream of its own, so nothing more will come. A call that reads its
    /// own response may still hear from that.
    pub(super) fn session_ended(&self) {
        self.change(|contents| contents.ended = true);
    }

    /// Whether nothing more will come.
    pub(super) fn is_ended(&self) -> bool {
        self.contents().ended
    }

    fn change<T>(&self, change: impl FnOnce(&mut Contents) -> T) -> T {
        let (changed, reader) = {
            let mut contents = self.contents();
            (change(&mut contents), contents.reader.take())
        };
        if let Some(reader) = reader {
            reader.wake();
        }
        changed
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{protocol::Id, upstream::CallError};

    #[test]
    fn what_a_server_says_again_and_again_to_a_call_that_does_not_fetch_it_is_kept_once() {
        let mailbox = Mailbox::default();
        for _ in 0..1000 {
            mailbox.push(Event::Withdrawn { id: Id::from_number(3) });
        }
        assert_eq!(mailbox.contents().events.len(), 1);
        for _ in 0..1000 {
            mailbox.push(Event::Lost(CallError::SessionEnded));
            mailbox.push(Event::Withdrawn { id: Id::from_number(4) });
        }
        assert_eq!(mailbox.contents().events.len(), 2, "nothing follows the last event");
    }
}
