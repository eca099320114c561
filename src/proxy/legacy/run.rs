//! A call that is a task of 2025-11-25, from the moment it is stored to its end.
//!
//! What the server says on the call's stream is the client's to hear: it goes where the [`Outbox`] says,
//! with the task it belongs to. A question gets an id that names its task and its key, so that the
//! client's answer, which comes as a POST of its own, finds the call without anything being kept.

use super::{
    augmented::InSession,
    plain::Asked,
    residents::Resident,
    streams::{self, Follower},
};
use crate::{
    bridge::{
        Outbox,
        elicit::Keys,
        offer,
        outbox::{Ask, Line},
        raise,
    },
    dialect::legacy,
    protocol::{ErrorObject, Frame, Id, InputKind, InputRequest, Kind, Method, code, frame, sse},
    proxy::{
        attended::reached,
        endpoint::Shared,
        keep::STORE_PAUSE,
        reply::lost_error,
        tasks::{Control, Hold},
    },
    store::{StoreError, Updated},
    task::{self, TaskId, view::experimental},
    telemetry::QuestionRefused,
    upstream::{Answer, Event, Lost, Question, Replies},
};
use bytes::Bytes;
use futures_util::{StreamExt, future::select_all};
use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{self, OwnedPermit, error::TrySendError};

/// Progress is written to the task at most this often: a store write each.
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

/// How long a client may take none of what its task has to say before it is taken for one that does
/// not listen there: so long may it hold up its own call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Questions one call may have open at a time; a server that asks more is answered with an error.
pub(super) const MAX_OPEN: usize = 64;

/// The ids of questions that are put to clients begin with this; servers count.
const PREFIX: &str = "deferral:";

/// A call that is held, and everything that is known of it.
pub(super) struct Run {
    shared: Arc<Shared>,
    hold: Hold,
    /// Dropping it cancels the call at the server.
    replies: Replies,
    /// Whether the client wants to hear of progress; else the token is ours.
    wants_progress: bool,
    keys: Keys,
    next: Ask,
    open: BTreeMap<Ask, Open>,
    outbox: Outbox,
    /// The streams of the session, where it has an id.
    streams: Option<Follower>,
    waiting: Vec<(Line, mpsc::Sender<Bytes>)>,
    /// What is to be said on lines that are full, in its order. The server is not read meanwhile, as on
    /// the direct way: a client that reads more slowly than its server speaks loses nothing.
    unsaid: VecDeque<(Line, Bytes)>,
    /// When the first of it is given up, and its line with it.
    give_up: Option<Instant>,
    /// What the client has been told of the status.
    told: &'static str,
    progress: Option<String>,
    not_before: Option<Instant>,
    /// What was asked before there was a task.
    earlier: Vec<Earlier>,
    /// Of that, what the client still has.
    unput: Vec<Ask>,
    /// Given back after the replies.
    _resident: Option<Resident>,
}

/// A question that was put to the client as it is, before there was a task.
pub(super) struct Earlier {
    /// None where the session has no id, so that its answer cannot be told.
    pub(super) asked: Option<Asked>,
    pub(super) question: Question,
    /// The client has left since, and cannot answer it any more where it was put.
    pub(super) is_lost: bool,
}

/// A question that has not been answered.
struct Open {
    /// Names it within its task.
    key: String,
    /// Whether the record speaks of it.
    is_recorded: bool,
    /// The server's id for it.
    id: Id,
    /// The request as it is put to the client.
    message: Bytes,
    answer: Box<dyn Answer>,
    /// It was put to the client before there was a task, and may be answered there.
    plain: Option<Asked>,
}

/// What happened next.
enum Happening {
    Server(Event),
    Told(Option<Control>),
    Streams,
    Left(usize),
    /// A line that was full takes one more message, or nothing any more.
    Room(Option<OwnedPermit<Bytes>>),
    Changed,
    ProgressDue,
    TooLate,
}

/// Whether an id is that of a question we have put.
pub(super) fn is_ours(id: &Id) -> bool {
    id.as_bytes().starts_with(br#""deferral:"#)
}

/// The task and the key of a question we have put.
pub(super) fn asked(id: &Id) -> Option<(TaskId, String)> {
    let text: String = serde_json::from_slice(id.as_bytes()).ok()?;
    let (task, key) = text.strip_prefix(PREFIX)?.split_once(':')?;
    Some((TaskId::parse(task)?, key.to_owned()))
}

/// The id under which a question is put.
pub(super) fn question_id(task: &TaskId, key: &str) -> Id {
    let text = serde_json::to_string(&format!("{PREFIX}{}:{key}", task.as_str()));
    Id::from_token(text.expect("a string is written to memory").into()).expect("a string is an id")
}

// === impl Run ===

impl Run {
    /// The call, which is stored as a task and has this hold; `keys` are names for what it asks.
    pub(super) fn new(hold: Hold, call: InSession, keys: &[String]) -> Box<Self> {
        let InSession { shared, session, wants_progress, replies, resident, .. } = call;
        Box::new(Self {
            hold,
            replies,
            wants_progress,
            keys: Keys::new(keys.iter().cloned()),
            next: 0,
            open: BTreeMap::new(),
            outbox: Outbox::default(),
            streams: session.map(|session| shared.streams.follow(session)),
            waiting: Vec::new(),
            unsaid: VecDeque::new(),
            give_up: None,
            told: "working",
            progress: None,
            not_before: None,
            earlier: Vec::new(),
            unput: Vec::new(),
            _resident: resident,
            shared,
        })
    }

    /// The same, which has asked this before it was a task.
    pub(super) fn having_asked(mut self: Box<Self>, earlier: Vec<Earlier>) -> Box<Self> {
        self.earlier = earlier;
        self
    }

    /// The task it is.
    pub(super) fn id(&self) -> &TaskId {
        self.hold.id()
    }

    /// Holds it to its end. In a box, and all but the wait in others: what a task is in for hours is
    /// what it costs.
    pub(super) async fn run(mut self: Box<Self>) {
        let changes = self.shared.tasks.hub.listen(vec![self.hold.id().clone()]);
        if !self.earlier.is_empty() {
            Box::pin(self.take_over()).await;
        }
        let settled = loop {
            self.put();
            let progress_due = self.progress_due();
            let full = self.full();
            let is_read = full.is_none();
            let happening = tokio::select! {
                // What the client did comes first: what is said to somebody who has left is for nobody.
                biased;
                told = self.hold.told() => Happening::Told(told),
                () = streams_changed(&mut self.streams) => Happening::Streams,
                who = any_left(&self.waiting) => Happening::Left(who),
                permit = room(full, self.give_up) => Happening::Room(permit),
                _ = changes.changed() => Happening::Changed,
                event = self.replies.next(), if is_read => {
                    Happening::Server(event.unwrap_or(Event::Lost(Lost::SessionEnded)))
                }
                () = reached(progress_due) => Happening::ProgressDue,
                () = self.shared.overdue.stopped() => Happening::TooLate,
            };
            match happening {
                Happening::Told(Some(Control::Cancelled) | None) => break None,
                Happening::Server(Event::Final(frame)) => break Some(self.returned(&frame)),
                Happening::Server(Event::Lost(lost)) => break Some(failed(&lost_error(&lost))),
                Happening::TooLate => break Some(failed(&lost_error(&Lost::Closing))),
                other => Box::pin(self.handle(other)).await,
            }
        };
        if let Some(event) = settled {
            if let (task::Event::Failed { .. }, Some(streams)) = (&event, &self.streams) {
                // Else a client that only makes tasks would never hear that it is gone.
                self.shared.sessions.doubt(streams.key());
            }
            // Refused where the task was cancelled in this moment.
            let _ = self.hold.keep(event, &self.shared.overdue).await;
        }
        self.tell_status();
        Box::pin(self.close()).await;
    }

    /// Cancels the call where it still runs, and takes back what was asked.
    async fn close(mut self: Box<Self>) {
        let asks: Vec<_> = self.open.keys().copied().collect();
        let open: Vec<_> =
            asks.into_iter().filter_map(|ask| self.take_back(ask, "the task has ended")).collect();
        drop(self.replies);
        // Refused only then: a server may be killed by an answer to what it is about to hear is
        // cancelled.
        drop(open);
        // Whoever answers or waits in this very moment finds the record as it is.
        drop(self.hold.close().await);
    }

    async fn handle(&mut self, happening: Happening) {
        match happening {
            Happening::Server(event) => self.heard(event).await,
            Happening::Told(Some(Control::Replied(key, outcome))) => {
                let is_elsewhere = self.was_answered_elsewhere(&key);
                if let Some(line) = self.answered(&key, outcome)
                    && is_elsewhere
                {
                    // It stands in two places, and has been answered in one.
                    self.tell_cancelled(line, &key, "it has been answered");
                }
            }
            Happening::Told(Some(Control::Answered(answers))) => {
                for (key, result) in answers {
                    // In the other era; here nobody need answer it any more.
                    if let Some(line) = self.answered(&key, Ok(result)) {
                        self.tell_cancelled(line, &key, "it has been answered");
                    }
                }
            }
            Happening::Told(Some(Control::Waiting(tell))) => {
                let line = streams::next_line();
                self.waiting.push((line, tell));
                self.outbox.handle_waiting(line);
                // Whoever asks for them does not have them any more, or will not mind.
                for ask in std::mem::take(&mut self.unput) {
                    if self.open.contains_key(&ask) {
                        self.outbox.handle_question(ask);
                    }
                }
            }
            Happening::Streams => {
                let line = self.streams.as_ref().and_then(Follower::line);
                self.outbox.handle_listening(line);
            }
            Happening::Left(who) => {
                let (line, _) = self.waiting.swap_remove(who);
                self.outbox.handle_left(line);
            }
            Happening::Room(permit) => {
                self.give_up = None;
                let Some((line, event)) = self.unsaid.pop_front() else { return };
                match permit {
                    Some(permit) => drop(permit.send(event)),
                    None => self.gone(line),
                }
            }
            Happening::Changed => self.tell_status(),
            Happening::ProgressDue => {
                let Some(message) = self.progress.take() else { return };
                let event = task::Event::Progressed { message: message.clone() };
                let kept = self.shared.tasks.change(self.hold.id(), &event).await;
                let pause = if kept.is_ok() { PROGRESS_PERIOD } else { STORE_PAUSE };
                self.not_before = Some(self.shared.clock.now() + pause);
                if kept.is_err() {
                    // Nobody has heard of it yet, and it is the latest.
                    self.progress = Some(message);
                }
            }
            // Answered before there was a task; and the end of it all.
            Happening::Told(Some(Control::Retry(_) | Control::Cancelled) | None) | Happening::TooLate => {}
        }
    }

    /// Whether the client has answered this question where it was put before there was a task.
    fn was_answered_elsewhere(&self, key: &str) -> bool {
        let plain = self.open.values().find(|open| open.key == key).and_then(|open| open.plain.as_ref());
        plain.is_some_and(|plain| !plain.is_open())
    }

    /// What the server said.
    async fn heard(&mut self, event: Event) {
        match event {
            Event::Notice(frame) => self.notice(&frame),
            Event::Question(question) => {
                if let Some(ask) = self.asked(question, None).await {
                    self.outbox.handle_question(ask);
                }
            }
            Event::Withdrawn { id } => {
                let ask = self.open.iter().find(|(_, open)| open.id == id).map(|(ask, _)| *ask);
                let Some(ask) = ask else { return };
                if let Some(open) = self.take_back(ask, "the server took it back") {
                    open.answer.withdrawn();
                    if open.is_recorded {
                        let event = task::Event::Withdrawn { key: open.key };
                        // Refused where it has been answered or the task has ended meanwhile.
                        let _ = self.hold.keep(event, &self.shared.overdue).await;
                    }
                }
            }
            Event::Final(_) | Event::Lost(_) => unreachable!("these end the run"),
        }
    }

    /// Something the server tells: it goes to the client, who is somewhere else by now.
    fn notice(&mut self, frame: &Frame) {
        let Kind::Notification { method, .. } = frame.kind() else { return };
        if let Some(message) = raise::progress_message(frame) {
            self.progress = Some(message);
            self.not_before.get_or_insert_with(|| self.shared.clock.now());
            if !self.wants_progress {
                return;
            }
        }
        let message = match method {
            // They are about the server, not about the call.
            Method::ToolsListChanged
            | Method::PromptsListChanged
            | Method::ResourcesListChanged
            | Method::ResourceUpdated => frame::on_one_line(frame.as_bytes().clone()),
            _ => offer::related(frame, self.hold.id().as_str(), None),
        };
        self.say(&message);
    }

    /// What was asked before there was a task is the task's now. It is put again where the client cannot
    /// answer it any more, or asks for it.
    async fn take_over(&mut self) {
        for Earlier { asked, question, is_lost } in std::mem::take(&mut self.earlier) {
            if asked.as_ref().is_some_and(|asked| !asked.is_open()) {
                question.answer.withdrawn();
                continue;
            }
            let is_lost = is_lost || asked.is_none();
            let Some(ask) = self.asked(question, asked).await else { continue };
            match is_lost {
                true => self.outbox.handle_question(ask),
                false => self.unput.push(ask),
            }
        }
    }

    /// The server asks something. It is put to the client as it is, but for its id and the task it
    /// belongs to; what the client can be asked, the server knows from their handshake. Gives the
    /// question, where it is open now and to be put.
    async fn asked(&mut self, question: Question, plain: Option<Asked>) -> Option<Ask> {
        let Question { frame, answer } = question;
        let Kind::Request { id, method, params } = frame.kind() else { return None };
        if self.open.len() >= MAX_OPEN {
            let reason = "too many questions are open in one call";
            QuestionRefused { method: method.as_str(), reason }.emit();
            answer.send(Err(ErrorObject::new(code::INTERNAL_ERROR, reason).as_bytes().clone()));
            return None;
        }
        let ask = self.next;
        self.next += 1;
        let kind = InputKind::of(method);
        let key = kind.map_or_else(|| format!("request-{ask}"), |kind| self.keys.give(kind));
        if let Some(kind) = kind {
            let request = InputRequest::new(kind, params.as_ref()).as_bytes().clone();
            let event = task::Event::Asked { key: key.clone(), request };
            match self.hold.keep(event, &self.shared.overdue).await {
                Ok(Updated::Done { .. }) => {}
                Err(full @ StoreError::Full(_)) => {
                    let reason = full.to_string();
                    QuestionRefused { method: method.as_str(), reason: &reason }.emit();
                    answer.send(Err(ErrorObject::new(code::BUSY, reason).as_bytes().clone()));
                    return None;
                }
                // The task has ended, or the proxy does: nobody will see the question.
                Ok(Updated::Refused(_) | Updated::Unknown) | Err(_) => {
                    drop(answer);
                    return None;
                }
            }
        }
        if plain.as_ref().is_some_and(|plain| !plain.hand_over(self.hold.id(), &key)) {
            // Its answer has passed in this moment.
            answer.withdrawn();
            if kind.is_some() {
                // Refused where the task has ended meanwhile.
                let _ = self.hold.keep(task::Event::Withdrawn { key }, &self.shared.overdue).await;
            }
            return None;
        }
        let put = offer::related(&frame, self.hold.id().as_str(), Some(&question_id(self.hold.id(), &key)));
        let open = Open { key, is_recorded: kind.is_some(), id: id.detached(), message: put, answer, plain };
        self.open.insert(ask, open);
        Some(ask)
    }

    /// The client answered, and the record knows. Gives where the question had been put.
    fn answered(&mut self, key: &str, outcome: Result<Bytes, Bytes>) -> Option<Line> {
        let ask = self.open.iter().find(|(_, open)| open.key == key).map(|(ask, _)| *ask)?;
        let place = self.outbox.handle_closed(ask);
        let open = self.open.remove(&ask)?;
        open.answer.send(outcome.map(|result| offer::unrelated(&result)));
        place
    }

    /// Puts what has not been put yet.
    fn put(&mut self) {
        while let Some((ask, line)) = self.outbox.poll_put() {
            let Some(open) = self.open.get(&ask) else { continue };
            let event = sse::message(&open.message);
            if !self.tell(line, event) {
                self.gone(line);
            }
        }
    }

    /// Closes a question that the client need not answer any more, and tells it so where it was put.
    fn take_back(&mut self, ask: Ask, reason: &str) -> Option<Open> {
        let place = self.outbox.handle_closed(ask);
        let open = self.open.remove(&ask)?;
        if let Some(line) = place {
            self.tell_cancelled(line, &open.key, reason);
        }
        Some(open)
    }

    fn tell_cancelled(&mut self, line: Line, key: &str, reason: &str) {
        let id = question_id(self.hold.id(), key);
        self.tell(line, sse::message(&legacy::cancelled(&id, reason)));
    }

    /// Tells the client, if it can hear, that the status has changed
    /// (2025-11-25, *Tasks, Task Status Notification*).
    fn tell_status(&mut self) {
        let Some(record) = self.shared.tasks.last_kept(self.hold.id()) else { return };
        let terms = self.shared.legacy_terms();
        let status = experimental::status(&record, terms.tool_errors);
        if status == self.told {
            return;
        }
        self.told = status;
        let shown = experimental::shown(&record, self.shared.clock.timestamp(), terms);
        self.say(&legacy::notification(&Method::TaskStatus, &shown));
    }

    /// Says something where it can be heard now, if it can.
    fn say(&mut self, message: &[u8]) {
        if let Some(line) = self.outbox.line()
            && !self.tell(line, sse::message(message))
        {
            self.gone(line);
        }
    }

    /// Whether it is, or will be, said.
    fn tell(&mut self, line: Line, event: Bytes) -> bool {
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

    fn sender(&self, line: Line) -> Option<mpsc::Sender<Bytes>> {
        match self.waiting.iter().find(|(waiting, _)| *waiting == line) {
            Some((_, tell)) => Some(tell.clone()),
            None => self.streams.as_ref()?.sender(line),
        }
    }

    /// The line that the first of what is unsaid waits for.
    fn full(&mut self) -> Option<mpsc::Sender<Bytes>> {
        loop {
            let (line, _) = self.unsaid.front()?;
            if let Some(sender) = self.sender(*line) {
                self.give_up.get_or_insert_with(|| self.shared.clock.now() + PATIENCE);
                return Some(sender);
            }
            // What was on it is put again where it matters.
            self.unsaid.pop_front();
            self.give_up = None;
        }
    }

    /// A line that takes nothing any more.
    fn gone(&mut self, line: Line) {
        self.unsaid.retain(|(full, _)| *full != line);
        match self.waiting.iter().position(|(waiting, _)| *waiting == line) {
            Some(at) => {
                self.waiting.swap_remove(at);
                self.outbox.handle_left(line);
            }
            None => self.outbox.handle_listening(None),
        }
    }

    fn progress_due(&self) -> Option<Instant> {
        self.progress.as_ref().and(self.not_before)
    }

    /// What the call came to, exactly as the server said it.
    fn returned(&self, said: &Frame) -> task::Event {
        match said.kind() {
            Kind::Success { result, .. } => {
                let limit = self.shared.tasks.result_limit();
                match result.len() {
                    // In memory of its own: a slice would keep the server's whole message alive.
                    size if size <= limit => {
                        let result = Bytes::copy_from_slice(result);
                        task::Event::Returned { result: frame::on_one_line(result) }
                    }
                    size => failed(&too_large(size, limit)),
                }
            }
            Kind::Failure { error, .. } => failed(&ErrorObject::from_raw(Bytes::copy_from_slice(error))),
            Kind::Request { .. } | Kind::Notification { .. } => {
                failed(&lost_error(&Lost::Invalid("it is not a response".to_owned())))
            }
        }
    }
}

/// A result that is not kept.
fn too_large(size: usize, limit: usize) -> ErrorObject {
    let words =
        format!("the result is {size} bytes; the proxy keeps at most {limit} (limits.stored_result_bytes)");
    ErrorObject::new(code::RESULT_TOO_LARGE, words)
}

fn failed(error: &ErrorObject) -> task::Event {
    task::Event::Failed { error: error.as_bytes().clone(), message: Some(error.message()) }
}

async fn streams_changed(streams: &mut Option<Follower>) {
    match streams {
        Some(streams) => streams.changed().await,
        None => pending().await,
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
async fn any_left(waiting: &[(Line, mpsc::Sender<Bytes>)]) -> usize {
    if waiting.is_empty() {
        return pending().await;
    }
    select_all(waiting.iter().map(|(_, tell)| Box::pin(tell.closed()))).await.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_its_task_and_its_key() {
        let task = TaskId::from_entropy([7; 16]);
        for key in ["elicitation-1", "a:b", "\"quoted\""] {
            let id = question_id(&task, key);
            assert!(is_ours(&id));
            assert_eq!(asked(&id), Some((task.clone(), key.to_owned())));
        }
        for foreign in ["1", "\"deferral\"", "\"deferral:x:y\"", "\"x\""] {
            let id = Id::from_token(Bytes::from_static(foreign.as_bytes())).expect("an id");
            assert_eq!(asked(&id), None, "{foreign}");
        }
    }
}
