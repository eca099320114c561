//! Where a call finds what arrives for it outside its own response.

use std::{
    collections::VecDeque,
    task::{Context, Poll, Waker},
};

use crate::{
    protocol::{Frame, RequestId},
    runtime::Mutex,
    upstream::{CallError, Responder},
};

/// What a legacy server has said to one call, in its own words.
pub(super) enum CallMessage {
    Notification(Frame),
    /// A request of the server's, and the way back for its answer.
    Request(Frame, Box<dyn Responder>),
    /// It took a request back.
    RequestCancelled(RequestId),
    Response(Frame),
    /// It will say nothing more.
    Lost(CallError),
}

/// What is said to one call, put there by whoever reads the session's GET stream.
#[derive(Default)]
pub(super) struct SessionMailbox(Mutex<MailboxContents>);

#[derive(Default)]
struct MailboxContents {
    messages: VecDeque<CallMessage>,
    /// Of the notifications and the requests among them.
    bytes: usize,
    /// What nothing follows: most calls hear nothing else, and need no queue.
    last: Option<Box<CallMessage>>,
    reader: Option<Waker>,
    /// The last is here, or has been fetched.
    is_complete: bool,
    /// The session has ended, or has no stream of its own: nothing more will come.
    ended: bool,
}

/// Notifications kept for a call that does not fetch them; further ones are dropped. Costs this
/// many messages for each call in flight, in the worst case.
const KEPT: usize = 256;
/// Bytes of them and of requests, further ones of which are refused; of a larger one nothing is kept beside it.
const KEPT_BYTES: usize = 4 << 20;

// === impl Said ===

impl CallMessage {
    /// Bytes that it counts for.
    fn weight(&self) -> usize {
        match self {
            Self::Notification(frame) | Self::Request(frame, _) => frame.as_bytes().len(),
            Self::RequestCancelled(_) | Self::Response(_) | Self::Lost(_) => 0,
        }
    }
}

// === impl Mailbox ===

impl SessionMailbox {
    /// Delivers something. Only notifications are ever lost. All is bounded: they by number and bytes, questions by
    /// how many a call may have open and by bytes, each is taken back once, and nothing follows the last.
    pub(super) fn push(&self, said: CallMessage) {
        let dropped = self.change(|contents| {
            let is_needless = match &said {
                CallMessage::Notification(_) => {
                    contents.messages.len() >= KEPT || contents.is_full_for(&said)
                }
                // It refuses itself when it is dropped.
                CallMessage::Request(..) => contents.is_full_for(&said),
                CallMessage::RequestCancelled(id) => contents
                    .messages
                    .iter()
                    .any(|said| matches!(said, CallMessage::RequestCancelled(other) if other == id)),
                CallMessage::Response(_) | CallMessage::Lost(_) => false,
            };
            if contents.is_complete || is_needless {
                return Some(said);
            }
            match said {
                CallMessage::Response(_) | CallMessage::Lost(_) => {
                    (contents.last, contents.is_complete) = (Some(Box::new(said)), true);
                }
                CallMessage::Notification(_)
                | CallMessage::Request(..)
                | CallMessage::RequestCancelled(_) => {
                    contents.bytes += said.weight();
                    contents.messages.push_back(said);
                }
            }
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
        self.0.lock().ended
    }

    fn change<T>(&self, change: impl FnOnce(&mut MailboxContents) -> T) -> T {
        let (changed, reader) = {
            let mut contents = self.0.lock();
            (change(&mut contents), contents.reader.take())
        };
        if let Some(reader) = reader {
            reader.wake();
        }
        changed
    }

    /// What comes next; else the task is woken when there is something.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<CallMessage> {
        let mut contents = self.0.lock();
        if let Some(said) = contents.messages.pop_front() {
            contents.bytes -= said.weight();
            return Poll::Ready(said);
        }
        if let Some(last) = contents.last.take() {
            return Poll::Ready(*last);
        }
        match &mut contents.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

// === impl Contents ===

impl MailboxContents {
    fn is_full_for(&self, said: &CallMessage) -> bool {
        self.bytes > 0 && self.bytes + said.weight() > KEPT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    /// Counts those that were dropped.
    struct CountingResponder(Arc<AtomicUsize>);

    impl Responder for CountingResponder {
        fn respond(self: Box<Self>, _: Result<Bytes, Bytes>) {}

        fn discard(self: Box<Self>) {}
    }

    impl Drop for CountingResponder {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn of_questions_that_nobody_fetches_so_many_bytes_are_kept_and_the_others_refused() {
        let (mailbox, refused) = (SessionMailbox::default(), Arc::<AtomicUsize>::default());
        for id in 0..8 {
            let text = format!(
                r#"{{"id":{id},"method":"sampling/createMessage","params":{{"data":"{}"}}}}"#,
                "x".repeat(1 << 20)
            );
            let frame = Frame::parse(text.into()).expect("a message");
            mailbox.push(CallMessage::Request(frame, Box::new(CountingResponder(refused.clone()))));
        }
        assert_eq!((mailbox.0.lock().messages.len(), refused.load(Ordering::Relaxed)), (3, 5));
    }

    #[test]
    fn of_notifications_that_nobody_fetches_so_many_bytes_are_kept() {
        let mailbox = SessionMailbox::default();
        let notification = |bytes: usize| {
            let text = format!(
                r#"{{"method":"notifications/message","params":{{"data":"{}"}}}}"#,
                "x".repeat(bytes)
            );
            CallMessage::Notification(Frame::parse(text.into()).expect("a message"))
        };
        let kept = || mailbox.0.lock().messages.len();
        for _ in 0..8 {
            mailbox.push(notification(1 << 20));
        }
        assert_eq!(kept(), 3, "with what is around it the fourth is too much");
        let cx = &Context::from_waker(Waker::noop());
        while let Poll::Ready(said) = mailbox.poll(cx) {
            assert!(matches!(said, CallMessage::Notification(_)));
        }
        // A single one that is larger is somebody's all the same.
        for _ in 0..2 {
            mailbox.push(notification(KEPT_BYTES));
        }
        assert_eq!((kept(), mailbox.poll(cx).is_ready(), mailbox.0.lock().bytes), (1, true, 0));
    }

    #[test]
    fn what_a_server_says_again_and_again_to_a_call_that_does_not_fetch_it_is_kept_once() {
        let mailbox = SessionMailbox::default();
        for _ in 0..1000 {
            mailbox.push(CallMessage::RequestCancelled(RequestId::from_number(3)));
        }
        assert_eq!(mailbox.0.lock().messages.len(), 1);
        for _ in 0..1000 {
            mailbox.push(CallMessage::Lost(CallError::SessionEnded));
            mailbox.push(CallMessage::RequestCancelled(RequestId::from_number(4)));
        }
        let contents = mailbox.0.lock();
        assert!(contents.messages.len() == 1 && contents.last.is_some(), "nothing follows the last");
    }
}
