//! Who holds which call in this process, and how it is told something.

use super::Item;
use crate::{
    dialect::Call,
    protocol::{Capabilities, Id, InputResponses},
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
use tokio::sync::{Semaphore, mpsc};

/// The calls that are held in this process.
pub struct Switchboard {
    /// Which process this is: drawn anew at each start.
    pub(super) node: u64,
    /// How to tell them something. Sharded.
    lines: DashMap<TaskId, Arc<Line>>,
}

/// What one call is told. No channel of tokio's: those set room aside, 800 bytes at least, and nearly every call
/// is told nothing.
struct Line {
    /// For what it has not heard. Closed when it listens no more.
    room: Semaphore,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    waiting: VecDeque<Control>,
    listener: Option<Waker>,
}

/// What a call may have been told and not heard; whoever tells more waits until it has listened.
const WAITING: usize = 8;

/// What a held call can be told.
pub(super) enum Control {
    Mail(Mail),
    Local(Local),
}

/// What is plain data: it could be kept with the task's record, or come from another process. No channel
/// and nothing else that lives here only has a place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mail {
    /// The task's client answered these questions, by key.
    Answered(Vec<(String, Bytes)>),
    /// The client answered this question, as JSON-RPC has it: a result or an error.
    Replied(String, Result<Bytes, Bytes>),
    /// The client took its own request back, which is no task yet.
    TakenBack,
    /// The task was cancelled, and its record says so.
    Cancelled,
}

/// What attaches a request of this process to the call.
pub(super) enum Local {
    /// Its client came back.
    Retry(Box<Retry>),
    /// A request waits for the result, and can be told things meanwhile.
    Waiting(mpsc::Sender<Bytes>),
}

/// A request that waits for its call.
pub(super) struct Waiter {
    pub(super) request: Request,
    pub(super) items: mpsc::Sender<Item>,
}

/// What must be known of a request to answer it.
pub(super) enum Request {
    /// Of 2026-07-28. What was declared with this very request says whether it may be answered with a task's
    /// handle, and what it may be asked.
    Canonical { call: Box<Call>, capabilities: Arc<Capabilities> },
    /// Of an older revision, answered under this id.
    Native(Id),
}

/// A client of 2026-07-28 that comes back.
pub(super) struct Retry {
    pub(super) waiter: Waiter,
    pub(super) answers: InputResponses,
    /// The threshold as it is for this request.
    pub(super) defer_after: Option<Duration>,
}

/// A place among the held calls, given back when dropped.
pub(super) struct Hold {
    switchboard: Arc<Switchboard>,
    id: TaskId,
    line: Arc<Line>,
}

// === impl Switchboard ===

impl Default for Switchboard {
    fn default() -> Self {
        Self { node: u64::from_be_bytes(random()), lines: DashMap::new() }
    }
}

impl Switchboard {
    /// A place for a call that is to be held, under an id that nobody can guess.
    pub(super) fn hold(self: &Arc<Self>) -> Hold {
        self.hold_as(TaskId::from_entropy(random()))
    }

    /// A place for a call that has its id.
    pub(super) fn hold_as(self: &Arc<Self>, id: TaskId) -> Hold {
        let line = Arc::new(Line { room: Semaphore::new(WAITING), told: Mutex::default() });
        self.lines.insert(id.clone(), Arc::clone(&line));
        Hold { switchboard: Arc::clone(self), id, line }
    }

    /// Delivers mail to a call; says whether it is held here.
    pub(super) async fn post(&self, id: &TaskId, mail: Mail) -> bool {
        self.tell(id, Control::Mail(mail)).await
    }

    /// Attaches a request to a call; says whether it is held here.
    pub(super) async fn attach(&self, id: &TaskId, local: Local) -> bool {
        self.tell(id, Control::Local(local)).await
    }

    async fn tell(&self, id: &TaskId, control: Control) -> bool {
        let Some(line) = self.lines.get(id).map(|line| Arc::clone(&line)) else { return false };
        line.tell(control).await
    }
}

// === impl Line ===

impl Line {
    /// Says whether the call still listens.
    async fn tell(&self, control: Control) -> bool {
        let Ok(room) = self.room.acquire().await else { return false };
        let listener = {
            let mut told = self.told.lock();
            // Under the lock: what is told before the call has closed is given back to it.
            if self.room.is_closed() {
                return false;
            }
            room.forget();
            told.waiting.push_back(control);
            told.listener.take()
        };
        listener.into_iter().for_each(Waker::wake);
        true
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Control> {
        let mut told = self.told.lock();
        if let Some(control) = told.waiting.pop_front() {
            self.room.add_permits(1);
            return Poll::Ready(control);
        }
        told.listener = Some(cx.waker().clone());
        Poll::Pending
    }

    fn close(&self) -> VecDeque<Control> {
        self.room.close();
        std::mem::take(&mut self.told.lock().waiting)
    }
}

// === impl Hold ===

impl Hold {
    /// Names the call, and the task it may become.
    pub(super) fn id(&self) -> &TaskId {
        &self.id
    }

    /// The next thing the call is told.
    pub(super) async fn told(&mut self) -> Control {
        poll_fn(|cx| self.line.poll(cx)).await
    }

    /// Nothing more is told to the call. Gives what it was told and has not heard.
    pub(super) fn close(&mut self) -> VecDeque<Control> {
        self.line.close()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.switchboard.lines.remove(&self.id);
        drop(self.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, poll};
    use serde_json::{Value, json};
    use std::pin::pin;

    /// Mail as another process could be sent it. A kind that has no such form has no place in it.
    fn written(mail: &Mail) -> Vec<u8> {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("JSON is text");
        let value = match mail {
            Mail::Answered(answers) => {
                json!({ "answered": answers.iter().map(|(key, answer)| (key, text(answer))).collect::<Vec<_>>() })
            }
            Mail::Replied(key, Ok(result)) => json!({ "replied": key, "result": text(result) }),
            Mail::Replied(key, Err(error)) => json!({ "replied": key, "error": text(error) }),
            Mail::TakenBack => json!("taken back"),
            Mail::Cancelled => json!("cancelled"),
        };
        value.to_string().into_bytes()
    }

    fn read(bytes: &[u8]) -> Mail {
        let value: Value = serde_json::from_slice(bytes).expect("JSON");
        let text = |value: &Value| Bytes::from(value.as_str().expect("text").to_owned());
        let key = |value: &Value| value.as_str().expect("a key").to_owned();
        match &value {
            Value::String(word) if word == "cancelled" => Mail::Cancelled,
            Value::String(_) => Mail::TakenBack,
            about if about["answered"].is_array() => {
                let answers = about["answered"].as_array().expect("a list").iter();
                Mail::Answered(answers.map(|pair| (key(&pair[0]), text(&pair[1]))).collect())
            }
            about if about["error"].is_null() => {
                Mail::Replied(key(&about["replied"]), Ok(text(&about["result"])))
            }
            about => Mail::Replied(key(&about["replied"]), Err(text(&about["error"]))),
        }
    }

    #[tokio::test]
    async fn mail_that_was_bytes_on_its_way_tells_a_call_the_same() {
        let switchboard = Arc::new(Switchboard::default());
        let mut hold = switchboard.hold();
        let raw = |text: &'static str| Bytes::from_static(text.as_bytes());
        for mail in [
            Mail::Answered(vec![("a".into(), raw(r#"{"action":"accept"}"#)), ("b".into(), raw("{ }"))]),
            Mail::Replied("a".into(), Ok(raw(r#"{"roots":[]}"#))),
            Mail::Replied("b".into(), Err(raw(r#"{"code":-1,"message":"\u00e9"}"#))),
            Mail::TakenBack,
            Mail::Cancelled,
        ] {
            assert!(switchboard.post(hold.id(), read(&written(&mail))).await);
            let Control::Mail(told) = hold.told().await else { panic!("it is told no mail") };
            assert_eq!(told, mail);
        }
    }

    #[tokio::test]
    async fn whoever_tells_a_call_more_than_there_is_room_for_waits_until_it_has_listened() {
        let switchboard = Arc::new(Switchboard::default());
        let mut hold = switchboard.hold();
        let id = hold.id().clone();
        for _ in 0..WAITING {
            assert_eq!(switchboard.post(&id, Mail::Cancelled).now_or_never(), Some(true));
        }
        let mut one_more = pin!(switchboard.post(&id, Mail::TakenBack));
        assert_eq!(poll!(&mut one_more), Poll::Pending);
        hold.told().await;
        assert!(one_more.await, "there is room");
        // Nobody waits for a call that is held no more.
        let mut too_late = pin!(switchboard.post(&id, Mail::TakenBack));
        assert_eq!(poll!(&mut too_late), Poll::Pending);
        drop(hold);
        assert!(!too_late.await);
    }

    #[tokio::test]
    async fn a_call_that_has_closed_is_told_no_more_and_gives_back_what_it_has_not_heard() {
        let switchboard = Arc::new(Switchboard::default());
        let mut hold = switchboard.hold();
        let id = hold.id().clone();
        assert!(switchboard.post(&id, Mail::Cancelled).await);
        let rest = Vec::from(hold.close());
        assert!(matches!(rest[..], [Control::Mail(Mail::Cancelled)]), "it was told before it closed");
        assert!(!switchboard.post(&id, Mail::TakenBack).await);
        drop(hold);
        assert!(!switchboard.post(&id, Mail::TakenBack).await);
        assert!(switchboard.lines.is_empty(), "nothing is left of a call that is held no more");
    }
}
