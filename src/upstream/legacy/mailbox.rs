//! Mailbox of a call for messages outside its own response.

use std::{
    collections::VecDeque,
    task::{Context, Poll, Waker},
};

use crate::{
    protocol::{Frame, RequestId},
    runtime::Mutex,
    upstream::{CallError, Responder},
};

/// A message of a legacy server for one call, in the server's revision.
pub(super) enum CallMessage {
    /// Notification during the call.
    Notification(Frame),
    /// A request of the server, with its responder.
    Request(Frame, Box<dyn Responder>),
    /// The server cancelled its request with this id.
    RequestCancelled(RequestId),
    /// Response to the call; no further message will follow.
    Response(Frame),
    /// The call failed without a response; no further message will follow.
    Lost(CallError),
}

/// Messages for one call, delivered by the reader of the session's GET stream.
#[derive(Default)]
pub(super) struct SessionMailbox(Mutex<MailboxContents>);

#[derive(Default)]
struct MailboxContents {
    messages: VecDeque<CallMessage>,
    /// Bytes of the notifications and requests.
    bytes: usize,
    /// Last message: most calls get no other, and need no queue.
    last: Option<Box<CallMessage>>,
    reader: Option<Waker>,
    /// Whether the last message has been delivered.
    is_complete: bool,
    /// Whether the session has ended, or has no GET stream: no more messages will be delivered.
    is_ended: bool,
}

/// Limit of unread notifications of a call; further ones are dropped. At worst, each call in flight costs
/// this many messages.
const MAX_NOTIFICATIONS: usize = 256;
/// Limit of the bytes of a call's unread notifications and requests. Requests above it are rejected; a single
/// larger message is kept alone.
const MAX_BYTES: usize = 4 << 20;

// === impl CallMessage ===

impl CallMessage {
    /// Bytes that count towards the limit.
    fn weight(&self) -> usize {
        match self {
            Self::Notification(frame) | Self::Request(frame, _) => frame.as_bytes().len(),
            Self::RequestCancelled(_) | Self::Response(_) | Self::Lost(_) => 0,
        }
    }
}

// === impl SessionMailbox ===

impl SessionMailbox {
    /// Delivers a message. Only notifications are ever dropped. Everything is bounded: notifications by
    /// number and bytes, requests by the open requests of a call and by bytes, cancellations by being kept
    /// once each, and nothing follows the last message.
    pub(super) fn push(&self, message: CallMessage) {
        let dropped = self.modify(|contents| {
            let must_drop = match &message {
                CallMessage::Notification(_) => {
                    contents.messages.len() >= MAX_NOTIFICATIONS || contents.is_full_for(&message)
                }
                // Dropping it rejects the request.
                CallMessage::Request(..) => contents.is_full_for(&message),
                CallMessage::RequestCancelled(id) => contents
                    .messages
                    .iter()
                    .any(|message| matches!(message, CallMessage::RequestCancelled(other) if other == id)),
                CallMessage::Response(_) | CallMessage::Lost(_) => false,
            };
            if contents.is_complete || must_drop {
                return Some(message);
            }
            match message {
                CallMessage::Response(_) | CallMessage::Lost(_) => {
                    (contents.last, contents.is_complete) = (Some(Box::new(message)), true);
                }
                CallMessage::Notification(_)
                | CallMessage::Request(..)
                | CallMessage::RequestCancelled(_) => {
                    contents.bytes += message.weight();
                    contents.messages.push_back(message);
                }
            }
            None
        });
        // Outside the lock: a dropped responder rejects its request.
        drop(dropped);
    }

    /// Marks that the session has ended, or has no GET stream. The stream of the call's own response may
    /// still deliver messages.
    pub(super) fn mark_session_ended(&self) {
        self.modify(|contents| contents.is_ended = true);
    }

    /// Whether no more messages will be delivered.
    pub(super) fn is_ended(&self) -> bool {
        self.0.lock().is_ended
    }

    fn modify<T>(&self, modify: impl FnOnce(&mut MailboxContents) -> T) -> T {
        let (result, reader) = {
            let mut contents = self.0.lock();
            (modify(&mut contents), contents.reader.take())
        };
        if let Some(reader) = reader {
            reader.wake();
        }
        result
    }

    /// Polls the next message.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<CallMessage> {
        let mut contents = self.0.lock();
        if let Some(message) = contents.messages.pop_front() {
            contents.bytes -= message.weight();
            return Poll::Ready(message);
        }
        if let Some(last) = contents.last.take() {
            return Poll::Ready(*last);
        }
        match &mut contents.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

// === impl MailboxContents ===

impl MailboxContents {
    fn is_full_for(&self, message: &CallMessage) -> bool {
        self.bytes > 0 && self.bytes + message.weight() > MAX_BYTES
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

    /// Counts dropped responders.
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
    fn unread_requests_are_bounded_in_bytes_and_the_others_rejected() {
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
    fn unread_notifications_are_bounded_in_bytes() {
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
        while let Poll::Ready(message) = mailbox.poll(cx) {
            assert!(matches!(message, CallMessage::Notification(_)));
        }
        // A single larger message is kept.
        for _ in 0..2 {
            mailbox.push(notification(MAX_BYTES));
        }
        assert_eq!((kept(), mailbox.poll(cx).is_ready(), mailbox.0.lock().bytes), (1, true, 0));
    }

    #[test]
    fn a_repeated_cancellation_is_kept_once() {
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
