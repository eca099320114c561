//! The registry of the calls that run in this process, and their mailboxes.

use super::{ReplyItem, tasks::watchers::InputFilter};
use crate::{
    dialect::Call,
    protocol::{Capabilities, InputResponses, RequestId},
    runtime::{Mutex, random},
    task::TaskId,
};
use bytes::Bytes;
use dashmap::DashMap;
use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::sync::mpsc;

/// The calls that run in this process, each with a mailbox for messages to its driver.
pub struct CallRegistry {
    /// The id of this process, drawn at random at each start.
    pub(super) node: u64,
    /// The mailbox of each call, by its id. A sharded map.
    mailboxes: DashMap<TaskId, Arc<CallMailbox>>,
}

/// The mailbox of one call. Not a tokio channel: those allocate 800 bytes up front, and nearly every call
/// receives nothing.
#[derive(Default)]
struct CallMailbox(Mutex<MailboxState>);

#[derive(Default)]
struct MailboxState {
    /// The unread messages, in order.
    commands: VecDeque<CallCommand>,
    /// Slots reserved for messages whose changes are being stored.
    reserved: usize,
    /// Whether a call that is being resumed has not read the task record yet. Such a call sees changes in the
    /// record, and ignores messages about input requests that the record does not contain.
    is_unread: bool,
    /// The call receives no more messages.
    is_closed: bool,
    waker: Option<Waker>,
}

/// Messages that may wait for one call, including reserved slots; [`MailboxFull`] beyond. A cancellation is
/// always accepted.
const MAILBOX_CAPACITY: usize = 64;

/// A slot for one message in a call's mailbox, reserved before the message's change is stored; released when
/// dropped. `None` if the call was not registered in this process.
pub(super) struct MailboxPermit(Option<Arc<CallMailbox>>);

/// The mailbox of a call is full ([`MAILBOX_CAPACITY`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MailboxFull;

/// A command to the driver of a running call.
pub(super) enum CallCommand {
    /// Handle this message.
    Message(MailboxMessage),
    /// Attach this client request to the call, so that it receives the call's messages or result.
    Attach(LocalRequest),
}

/// A message to a running call. It consists of plain data, without channels or other values of this process,
/// so that it could be stored with the task record or come from another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MailboxMessage {
    /// Input responses of the task's client, by key.
    Responses(Vec<(String, Bytes)>),
    /// One response of the client in its JSON-RPC form: a result or an error.
    RawResponse(String, Result<Bytes, Bytes>),
    /// No client that waits for the result has declared the capability for the input request with this key.
    Undeclared(String),
    /// The input requests with these keys were sent to a client that waited with a ticket. The client will
    /// call again with input responses.
    Sent(Vec<String>),
    /// The call is cancelled.
    Cancelled(CancelTarget),
}

/// The object of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CancelTarget {
    /// The client's own request, which has not become a task (2025-11-25, *Cancellation*).
    Request,
    /// The task; its record is cancelled.
    Task,
}

/// A request of this process that is attached to the call.
pub(super) enum LocalRequest {
    /// A retry of the client.
    Retry(Box<RetryRequest>),
    /// A request that waits for the result of the task: the channel for messages of the call (SSE events),
    /// and which input requests the client can receive (`None` for all).
    ResultWaiter(mpsc::Sender<Bytes>, Option<InputFilter>),
}

/// A client request that waits for the response of its call.
pub(super) struct CallWaiter {
    /// How to reply to the request.
    pub(super) target: ReplyTarget,
    /// The channel for the call's notifications and its reply.
    pub(super) items: mpsc::Sender<ReplyItem>,
}

/// The data needed to reply to a request.
pub(super) enum ReplyTarget {
    /// A request of 2026-07-28. The capabilities in this request decide whether its reply may be a task
    /// handle, and which input requests its reply may contain.
    Canonical { call: Box<Call>, capabilities: Arc<Capabilities> },
    /// A request of a legacy revision, answered under this id.
    Native(RequestId),
}

/// A client's second request for a parked call, after an `input_required` result (2026-07-28).
pub(super) struct RetryRequest {
    /// The second request, which waits for the response of the call.
    pub(super) waiter: CallWaiter,
    /// The input responses of the client, by key.
    pub(super) responses: InputResponses,
    /// The threshold, counted from this request; `None` if the call may not become a task.
    pub(super) defer_after: Option<Duration>,
}

/// The registration of a running call; removed when dropped.
pub(super) struct CallRegistration {
    registry: Arc<CallRegistry>,
    id: TaskId,
    mailbox: Arc<CallMailbox>,
}

// === impl CallRegistry ===

impl Default for CallRegistry {
    fn default() -> Self {
        Self { node: u64::from_be_bytes(random()), mailboxes: DashMap::new() }
    }
}

impl CallRegistry {
    /// Registers a call under a random id, which cannot be guessed.
    pub(super) fn register(self: &Arc<Self>) -> CallRegistration {
        self.insert_mailbox(TaskId::from_entropy(random()), CallMailbox::default())
    }

    /// Registers a call that is to be resumed. The caller registers the call before it reads the task record,
    /// so that each change is either in the record or in the mailbox, and then calls
    /// [`CallRegistration::begin_reading`].
    pub(super) fn register_for_resumption(self: &Arc<Self>, id: TaskId) -> CallRegistration {
        let state = MailboxState { is_unread: true, ..MailboxState::default() };
        self.insert_mailbox(id, CallMailbox(state.into()))
    }

    fn insert_mailbox(self: &Arc<Self>, id: TaskId, mailbox: CallMailbox) -> CallRegistration {
        let mailbox = Arc::new(mailbox);
        self.mailboxes.insert(id.clone(), Arc::clone(&mailbox));
        CallRegistration { registry: Arc::clone(self), id, mailbox }
    }

    /// Reserves a slot for one message to a call. A call that is not registered here always has a slot.
    ///
    /// # Errors
    /// [`MailboxFull`].
    pub(super) fn reserve(&self, id: &TaskId) -> Result<MailboxPermit, MailboxFull> {
        let reserved = self.mailbox(id);
        if let Some(mailbox) = &reserved {
            let mut state = mailbox.0.lock();
            state.check_capacity()?;
            state.reserved += 1;
        }
        Ok(MailboxPermit(reserved))
    }

    /// Delivers a message to a call. Its slot is reserved, unless it is a cancellation; a cancellation that
    /// waits already has no further effect. Returns whether the call runs in this process.
    pub(super) fn deliver(&self, id: &TaskId, message: MailboxMessage) -> bool {
        self.mailbox(id).is_some_and(|mailbox| {
            let mut state = mailbox.0.lock();
            let is_duplicate = matches!(message, MailboxMessage::Cancelled(_))
                && state
                    .commands
                    .iter()
                    .any(|command| matches!(command, CallCommand::Message(waiting) if *waiting == message));
            if !is_duplicate && !state.is_closed {
                state.push(CallCommand::Message(message));
            }
            !state.is_closed
        })
    }

    /// Attaches a client request to a call. Returns false if the call does not run in this process.
    ///
    /// # Errors
    /// [`MailboxFull`].
    pub(super) fn attach(&self, id: &TaskId, request: LocalRequest) -> Result<bool, MailboxFull> {
        let Some(mailbox) = self.mailbox(id) else { return Ok(false) };
        let mut state = mailbox.0.lock();
        if state.is_closed {
            return Ok(false);
        }
        state.check_capacity()?;
        state.push(CallCommand::Attach(request));
        Ok(true)
    }

    fn mailbox(&self, id: &TaskId) -> Option<Arc<CallMailbox>> {
        self.mailboxes.get(id).map(|mailbox| Arc::clone(&mailbox))
    }
}

// === impl MailboxPermit ===

impl MailboxPermit {
    /// Whether the call is registered and reads its mailbox: then a message reaches the call even if the task
    /// record does not contain the change.
    pub(super) fn has_reader(&self) -> bool {
        self.0.as_ref().is_some_and(|mailbox| !mailbox.0.lock().is_unread)
    }
}

impl Drop for MailboxPermit {
    fn drop(&mut self) {
        if let Some(mailbox) = &self.0 {
            mailbox.0.lock().reserved -= 1;
        }
    }
}

// === impl CallMailbox ===

impl CallMailbox {
    /// Returns the next message, or registers the waker for it.
    fn poll(&self, cx: &Context<'_>) -> Poll<CallCommand> {
        let mut state = self.0.lock();
        if let Some(command) = state.pop() {
            return Poll::Ready(command);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Refuses further messages. Returns the unread ones.
    fn close(&self) -> VecDeque<CallCommand> {
        let mut state = self.0.lock();
        state.is_closed = true;
        std::mem::take(&mut state.commands)
    }
}

// === impl MailboxState ===

impl MailboxState {
    /// # Errors
    /// [`MailboxFull`] if there is no free slot.
    fn check_capacity(&self) -> Result<(), MailboxFull> {
        if self.commands.len() + self.reserved < MAILBOX_CAPACITY { Ok(()) } else { Err(MailboxFull) }
    }

    fn pop(&mut self) -> Option<CallCommand> {
        let command = self.commands.pop_front();
        if self.commands.is_empty() {
            // An empty queue would keep its capacity for as long as the task runs.
            self.commands = VecDeque::new();
        }
        command
    }

    fn push(&mut self, command: CallCommand) {
        self.commands.push_back(command);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

// === impl CallRegistration ===

impl CallRegistration {
    /// The id of the call, and of the task that it may become.
    pub(super) fn id(&self) -> &TaskId {
        &self.id
    }

    /// Marks the task record of a resumed call as read. From now on the call reads its mailbox.
    pub(super) fn begin_reading(&self) {
        self.mailbox.0.lock().is_unread = false;
    }

    /// Waits for the next message. Cancel safe.
    pub(super) async fn receive(&mut self) -> CallCommand {
        poll_fn(|cx| self.mailbox.poll(cx)).await
    }

    /// Returns the next message without waiting, if there is one.
    pub(super) fn try_receive(&mut self) -> Option<CallCommand> {
        self.mailbox.0.lock().pop()
    }

    /// Closes the mailbox. Returns the unread messages.
    pub(super) fn close(&mut self) -> VecDeque<CallCommand> {
        self.mailbox.close()
    }
}

impl Drop for CallRegistration {
    fn drop(&mut self) {
        self.registry.mailboxes.remove(&self.id);
        drop(self.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Serializes a message as another process could send it. Every variant of the enum must have such a
    /// form.
    fn serialize(mail: &MailboxMessage) -> Vec<u8> {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("JSON is text");
        let value = match mail {
            MailboxMessage::Responses(answers) => {
                json!({ "answered": answers.iter().map(|(key, answer)| (key, text(answer))).collect::<Vec<_>>() })
            }
            MailboxMessage::RawResponse(key, Ok(result)) => json!({ "replied": key, "result": text(result) }),
            MailboxMessage::RawResponse(key, Err(error)) => json!({ "replied": key, "error": text(error) }),
            MailboxMessage::Undeclared(key) => json!({ "undeclared": key }),
            MailboxMessage::Sent(keys) => json!({ "sent": keys }),
            MailboxMessage::Cancelled(CancelTarget::Request) => json!("request cancelled"),
            MailboxMessage::Cancelled(CancelTarget::Task) => json!("task cancelled"),
        };
        value.to_string().into_bytes()
    }

    fn deserialize(bytes: &[u8]) -> MailboxMessage {
        let value: Value = serde_json::from_slice(bytes).expect("JSON");
        let text = |value: &Value| Bytes::from(value.as_str().expect("text").to_owned());
        let key = |value: &Value| value.as_str().expect("a key").to_owned();
        match &value {
            Value::String(word) if word == "task cancelled" => MailboxMessage::Cancelled(CancelTarget::Task),
            Value::String(_) => MailboxMessage::Cancelled(CancelTarget::Request),
            about if about["answered"].is_array() => {
                let answers = about["answered"].as_array().expect("a list").iter();
                MailboxMessage::Responses(answers.map(|pair| (key(&pair[0]), text(&pair[1]))).collect())
            }
            about if about["undeclared"].is_string() => MailboxMessage::Undeclared(key(&about["undeclared"])),
            about if about["sent"].is_array() => {
                MailboxMessage::Sent(about["sent"].as_array().expect("a list").iter().map(key).collect())
            }
            about if about["error"].is_null() => {
                MailboxMessage::RawResponse(key(&about["replied"]), Ok(text(&about["result"])))
            }
            about => MailboxMessage::RawResponse(key(&about["replied"]), Err(text(&about["error"]))),
        }
    }

    #[tokio::test]
    async fn mailbox_messages_survive_serialization() {
        let switchboard = Arc::new(CallRegistry::default());
        let mut hold = switchboard.register();
        let raw = |text: &'static str| Bytes::from_static(text.as_bytes());
        for mail in [
            MailboxMessage::Responses(vec![
                ("a".into(), raw(r#"{"action":"accept"}"#)),
                ("b".into(), raw("{ }")),
            ]),
            MailboxMessage::RawResponse("a".into(), Ok(raw(r#"{"roots":[]}"#))),
            MailboxMessage::RawResponse("b".into(), Err(raw(r#"{"code":-1,"message":"\u00e9"}"#))),
            MailboxMessage::Undeclared("a".into()),
            MailboxMessage::Sent(vec!["a".into(), "b".into()]),
            MailboxMessage::Cancelled(CancelTarget::Request),
            MailboxMessage::Cancelled(CancelTarget::Task),
        ] {
            assert!(switchboard.deliver(hold.id(), deserialize(&serialize(&mail))));
            let CallCommand::Message(received) = hold.receive().await else { panic!("no mail") };
            assert_eq!(received, mail);
        }
    }

    #[tokio::test]
    async fn a_full_mailbox_refuses_messages_except_a_cancellation() {
        let switchboard = Arc::new(CallRegistry::default());
        let mut hold = switchboard.register();
        let id = hold.id().clone();
        let attach = || switchboard.attach(&id, LocalRequest::ResultWaiter(mpsc::channel(1).0, None));
        let reserved: Vec<_> =
            (0..MAILBOX_CAPACITY / 2).map(|_| switchboard.reserve(&id).expect("room")).collect();
        for _ in 0..MAILBOX_CAPACITY / 2 {
            assert_eq!(attach(), Ok(true));
        }
        assert_eq!((attach(), switchboard.reserve(&id).err()), (Err(MailboxFull), Some(MailboxFull)));
        // A client may cancel the same request any number of times.
        for _ in 0..1000 {
            assert!(switchboard.deliver(&id, MailboxMessage::Cancelled(CancelTarget::Request)));
        }
        assert!(switchboard.deliver(&id, MailboxMessage::Cancelled(CancelTarget::Task)));
        for _room in reserved {
            assert!(switchboard.deliver(&id, MailboxMessage::RawResponse("a".into(), Ok(Bytes::new()))));
        }
        assert_eq!(hold.mailbox.0.lock().commands.len(), MAILBOX_CAPACITY + 2);
        for _ in 0..3 {
            hold.receive().await;
        }
        assert_eq!(attach(), Ok(true), "there is room again");
    }

    #[tokio::test]
    async fn a_call_resumed_while_a_response_is_stored_receives_it() {
        let switchboard = Arc::new(CallRegistry::default());
        let id = TaskId::from_entropy([1; 16]);
        let _room = switchboard.reserve(&id).expect("room");
        let mut hold = switchboard.register_for_resumption(id.clone());
        assert!(switchboard.deliver(&id, MailboxMessage::RawResponse("a".into(), Ok(Bytes::new()))));
        assert!(
            matches!(hold.receive().await, CallCommand::Message(MailboxMessage::RawResponse(key, _)) if key == "a")
        );
    }

    #[tokio::test]
    async fn a_mailbox_is_read_only_once_its_call_has_begun() {
        let registry = Arc::new(CallRegistry::default());
        let id = TaskId::from_entropy([1; 16]);
        let is_read = || registry.reserve(&id).expect("room").has_reader();
        assert!(!is_read(), "it is not held here");
        let hold = registry.register_for_resumption(id.clone());
        assert!(!is_read());
        hold.begin_reading();
        assert!(is_read());
    }

    #[tokio::test]
    async fn unused_slots_are_released() {
        let switchboard = Arc::new(CallRegistry::default());
        let hold = switchboard.register();
        for _ in 0..1000 {
            drop(switchboard.reserve(hold.id()).expect("room"));
        }
    }

    #[tokio::test]
    async fn a_closed_call_receives_no_more_and_returns_what_it_has_not_read() {
        let switchboard = Arc::new(CallRegistry::default());
        let mut hold = switchboard.register();
        let id = hold.id().clone();
        let _room = switchboard.reserve(&id).expect("room");
        let cancel = |target| switchboard.deliver(&id, MailboxMessage::Cancelled(target));
        assert!(cancel(CancelTarget::Task));
        let rest = Vec::from(hold.close());
        assert!(matches!(rest[..], [CallCommand::Message(MailboxMessage::Cancelled(CancelTarget::Task))]));
        assert!(!switchboard.deliver(&id, MailboxMessage::RawResponse("a".into(), Ok(Bytes::new()))));
        assert!(!cancel(CancelTarget::Request));
        assert_eq!(switchboard.attach(&id, LocalRequest::ResultWaiter(mpsc::channel(1).0, None)), Ok(false));
        assert!(hold.close().is_empty());
        drop(hold);
        assert!(!cancel(CancelTarget::Task));
        assert!(switchboard.mailboxes.is_empty(), "nothing is left of a call that is held no more");
    }
}
