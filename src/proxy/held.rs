//! A call that is held: it has asked its client something, or is becoming a task, or is one.
//!
//! A runtime task of its own drives it, so that no departure can cut a step in half, and so that it
//! outlives the request that brought it. Clients attach to it and leave it: the one that made the
//! call, the same one coming back with answers ([`Control::Retry`]), and nobody once it is a task.
//! While somebody is attached, what the server says on the way goes to them.
//!
//! The commit point of a task is the moment a client's socket takes the handle ([`Commit`]).

use super::{
    Commit, Item,
    asking::{self, Asked},
    attended::{Server, reached},
    endpoint::Shared,
    keep::STORE_PAUSE,
    legacy::Across,
    reply::{self, Verdict, Word},
    tasks::{Control, Hold, Parked},
};
use crate::{
    bridge::{
        Action, Exchange,
        elicit::{self, Keys},
        exchange::{Ask, Phase},
        offer, raise,
        resume::{Binding, CallId, Resumes, State},
    },
    dialect::{Call, Caller},
    policy::Treatment,
    protocol::{
        Capabilities, ErrorObject, Id, code,
        input::{InputRequest, InputResponses},
    },
    runtime::random,
    store::{StoreError, Updated},
    task::{self, Record},
    telemetry::QuestionRefused,
    upstream::{Answer, Deferral, Event, Identity, Lost, Question, Replies},
};
use bytes::Bytes;
use futures_util::{
    StreamExt,
    future::{BoxFuture, select_all},
};
use http::StatusCode;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

/// Progress is written to the task at most this often: a store write each.
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

/// Questions one call may have open at a time; a server that asks more is answered with an error.
const MAX_OPEN: usize = 64;

/// A held call and everything that is known of it.
pub(super) struct Held {
    shared: Arc<Shared>,
    /// Without its bytes: what is left to know of it once it has been sent.
    call: Call,
    caller: Caller,
    server: Server,
    treatment: Treatment,
    /// Ties a retry to this very request of this caller.
    binding: Binding,
    exchange: Exchange<Word>,
    /// Dropping it cancels the call at the server.
    replies: Option<Replies>,
    /// Tells the upstream when the call has become a task.
    deferral: Option<Deferral>,
    /// What the server asked and could not have, if anything.
    refused: Option<Value>,
    attached: Vec<Attached>,
    questions: Questions,
    hold: Hold,
    /// From its first question until it is a task.
    parked: Option<Parked>,
    storing: Option<BoxFuture<'static, bool>>,
    committed: Option<oneshot::Receiver<()>>,
    progress: Progress,
    /// Legacy clients that wait for the result, where eras meet.
    across: Option<Box<Across>>,
}

/// What a call brings along when it is handed over.
pub(super) struct HandedOver {
    pub(super) call: Call,
    pub(super) caller: Caller,
    pub(super) server: Server,
    pub(super) treatment: Treatment,
    pub(super) exchange: Exchange<Word>,
    pub(super) replies: Replies,
    pub(super) refused: Option<Value>,
    /// Answers that came with the call itself, before anything was asked.
    pub(super) supplied: InputResponses,
    pub(super) deferral: Option<Deferral>,
    /// Where the client hears from us.
    pub(super) items: mpsc::Sender<Item>,
    /// What made the call one to be held.
    pub(super) first: First,
}

/// What made a call one to be held.
pub(super) enum First {
    /// Its exchange wants a task.
    Store,
    /// The server asked something that can be put to the client.
    Question(Question),
}

/// A client that waits on its own request.
pub(super) struct Attached {
    pub(super) call: Call,
    /// What was declared with this very request: whether it may be answered with a task's handle, and
    /// what it may be asked.
    pub(super) capabilities: Arc<Capabilities>,
    pub(super) items: mpsc::Sender<Item>,
}

/// The same client, coming back.
pub(super) struct Retry {
    pub(super) attached: Attached,
    pub(super) answers: InputResponses,
    /// The threshold as it is for this request.
    pub(super) defer_after: Option<Duration>,
}

/// What the server has asked and not yet been told.
struct Questions {
    keys: Keys,
    next: Ask,
    round: u32,
    open: BTreeMap<Ask, Open>,
    supplied: InputResponses,
}

struct Open {
    key: String,
    request: InputRequest,
    /// The server's id for it.
    id: Id,
    answer: Box<dyn Answer>,
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
    Departed(usize),
    Committed(bool),
    Told(Option<Control>),
    Due,
    ProgressDue,
    Server(Event),
    Stopping,
    TooLate,
}

// === impl Held ===

impl Held {
    /// Takes a call over and drives it to its end.
    pub(super) fn take_over(shared: &Arc<Shared>, handed: HandedOver) {
        let HandedOver {
            call,
            caller,
            server,
            treatment,
            exchange,
            replies,
            refused,
            supplied,
            deferral,
            items,
            first,
        } = handed;
        let binding = asking::binding(shared, &caller, &call);
        // Its bytes may be megabytes, and have been sent.
        let call = call.without_bytes();
        let attached = Attached { call: call.clone(), capabilities: Arc::clone(&caller.capabilities), items };
        let held = Self {
            hold: shared.tasks.hold(),
            questions: Questions {
                keys: Keys::new(treatment.keys.iter().cloned()),
                next: 0,
                round: 0,
                open: BTreeMap::new(),
                supplied: supplied.detached(),
            },
            shared: Arc::clone(shared),
            call,
            caller,
            server,
            treatment,
            binding,
            exchange,
            replies: Some(replies),
            deferral,
            refused,
            attached: vec![attached],
            parked: None,
            storing: None,
            committed: None,
            progress: Progress::default(),
            across: None,
        };
        shared.stopping.spawn(Box::new(held).run(first));
    }

    /// Takes itself in a box: what an `async fn` takes by value it keeps twice.
    async fn run(mut self: Box<Self>, first: First) {
        // Boxed, all but the wait: that is what a task is in for hours, and its size is what a task costs.
        match first {
            First::Store => self.storing = Some(self.store()),
            First::Question(question) => Box::pin(self.asked(question)).await,
        }
        loop {
            while let Some(action) = self.exchange.poll_action() {
                Box::pin(self.carry_out(action)).await;
            }
            if self.exchange.is_done() {
                return Box::pin(self.close()).await;
            }
            self.put_across();
            let happening = self.wait().await;
            Box::pin(self.handle(happening)).await;
        }
    }

    /// Whoever came back in this very moment is answered, too.
    async fn close(mut self: Box<Self>) {
        for told in self.hold.close().await {
            match told {
                Control::Retry(retry) => self.turn_away(retry.attached).await,
                Control::Answered(_) | Control::Replied(..) | Control::Waiting(_) | Control::Cancelled => {}
            }
        }
    }

    async fn wait(&mut self) -> Happening {
        let phase = self.exchange.phase();
        let attended = self.exchange.is_attended();
        let awaits_server = self.exchange.awaits_server();
        tokio::select! {
            // What the client did comes first: a word for somebody who has left, or has cancelled,
            // is for nobody.
            biased;
            stored = maybe(&mut self.storing) => Happening::Stored(stored),
            committed = maybe_received(&mut self.committed) => Happening::Committed(committed),
            who = any_closed(&self.attached), if attended => Happening::Departed(who),
            told = self.hold.told() => Happening::Told(told),
            event = next(&mut self.replies), if awaits_server => Happening::Server(event),
            () = reached(self.exchange.poll_timeout()) => Happening::Due,
            () = reached(self.progress.due()) => Happening::ProgressDue,
            () = self.shared.overdue.stopped(), if phase == Phase::Parked => Happening::Stopping,
            () = self.shared.overdue.stopped(), if awaits_server => Happening::TooLate,
        }
    }

    async fn handle(&mut self, happening: Happening) {
        let now = self.shared.clock.now();
        match happening {
            Happening::Stored(stored) => {
                self.storing = None;
                self.exchange.handle_stored(stored, now);
            }
            Happening::Departed(who) => {
                self.attached.swap_remove(who);
                if self.attached.is_empty() {
                    self.exchange.handle_departed();
                }
            }
            Happening::Committed(committed) => {
                self.committed = None;
                if committed { self.exchange.handle_committed() } else { self.exchange.handle_departed() }
            }
            Happening::Told(Some(Control::Retry(retry))) => self.came_back(*retry).await,
            Happening::Told(Some(Control::Answered(answers))) => {
                for (key, response) in answers {
                    self.questions.answer(&key, response);
                }
            }
            Happening::Told(Some(Control::Replied(key, outcome))) => {
                if let Some(across) = &mut self.across {
                    across.answered(&key);
                }
                self.questions.reply(&key, outcome);
            }
            Happening::Told(Some(Control::Waiting(tell))) => {
                self.across.get_or_insert_default().waits(tell);
            }
            // Nobody can tell us anything any more: only where the map of held calls is gone.
            Happening::Told(Some(Control::Cancelled) | None) => self.exchange.handle_cancelled(),
            Happening::Due => self.exchange.handle_timeout(now),
            Happening::ProgressDue => self.write_progress().await,
            Happening::Server(event) => self.heard(event).await,
            Happening::Stopping => self.exchange.handle_stopping(now),
            Happening::TooLate => self.exchange.handle_final(Word::Lost(Lost::Closing)),
        }
    }

    async fn carry_out(&mut self, action: Action<Word>) {
        match action {
            Action::Reply(word) => self.reply(&word).await,
            Action::Ask(asks) => self.ask(&asks).await,
            Action::Store => self.storing = Some(self.store()),
            Action::ReplyTask => {
                // It counts as a task from here on.
                self.parked = None;
                if let Some(deferral) = self.deferral.take() {
                    self.shared.upstream.deferred(&Identity::of(&self.caller), &deferral);
                }
                self.give_handle().await;
            }
            Action::AskInTask(ask) => self.ask_in_task(ask).await,
            Action::WithdrawInTask(ask) => {
                if let Some(key) = self.questions.withdraw(ask) {
                    let event = task::Event::Withdrawn { key };
                    // Refused where it has been answered or the task has ended meanwhile.
                    let _ = self.hold.keep(event, &self.shared.overdue).await;
                }
            }
            Action::Decline(ask) => self.questions.decline(ask),
            Action::Settle(word) => self.settle(word).await,
            Action::Forget => self.shared.tasks.forget(self.hold.id()).await,
            Action::CancelUpstream => {
                self.replies = None;
                // Refused only then: a server may be killed by an answer to what it is about to hear
                // is cancelled.
                self.questions.open.clear();
            }
        }
    }

    /// What the server said.
    async fn heard(&mut self, event: Event) {
        match event {
            Event::Notice(frame) => {
                if let Some(message) = raise::progress_message(&frame)
                    && !self.exchange.is_attended()
                {
                    self.progress.message = Some(message);
                    self.progress.not_before.get_or_insert_with(|| self.shared.clock.now());
                }
                for attached in &self.attached {
                    if let Some(notice) = raise::notice(&attached.call, &frame) {
                        attached.tell(Item::Notice(notice)).await;
                    }
                }
            }
            Event::Question(question) => self.asked(question).await,
            Event::Withdrawn { id } => {
                if let Some(ask) = self.questions.find(&id) {
                    self.exchange.handle_withdrawn(ask);
                    if matches!(self.exchange.phase(), Phase::Inline | Phase::Parked | Phase::Deferring) {
                        self.questions.withdraw(ask);
                    }
                }
            }
            Event::Final(frame) => self.exchange.handle_final(Word::Said(frame)),
            Event::Lost(lost) => self.exchange.handle_final(Word::Lost(lost)),
        }
    }

    /// The server asks something: it is refused, answered from what came along, or put to the client.
    async fn asked(&mut self, question: Question) {
        let Some(asked) = asking::may_be_put(&self.caller, question, &mut self.refused) else { return };
        if self.questions.open.len() >= MAX_OPEN {
            return asked.refuse("too many questions are open in one call");
        }
        let Some(ask) = self.questions.take_in(asked) else { return };
        let is_task = matches!(self.exchange.phase(), Phase::Handing | Phase::Deferred);
        if self.parked.is_none() && !is_task {
            match self.shared.tasks.park(self.caller.principal).await {
                Ok(parked) => self.parked = Some(parked),
                Err(no_room) => return self.questions.refuse(ask, &no_room.to_string()),
            }
        }
        self.exchange.handle_question(ask, self.shared.clock.now());
    }

    /// The client came back with some answers, or with none.
    async fn came_back(&mut self, retry: Retry) {
        let Retry { attached, mut answers, defer_after } = retry;
        if matches!(self.exchange.phase(), Phase::Handing | Phase::Deferred | Phase::Abandoned) {
            return self.turn_away(attached).await;
        }
        let mut answered = BTreeSet::new();
        let asks: Vec<_> = self.questions.open.keys().copied().collect();
        for ask in asks {
            let Some(open) = self.questions.open.get(&ask) else { continue };
            let Some(answer) = answers.take(&open.key) else { continue };
            // What is not an answer to its question leaves it open, and it is asked again.
            if let Ok(answer) = elicit::check_answer(&open.request, &answer) {
                self.questions.answer_ask(ask, answer);
                answered.insert(ask);
            }
        }
        self.attached.push(attached);
        self.exchange.handle_retry(&answered, defer_after, self.shared.clock.now());
    }

    /// Answers a client that came back too late to wait for the call itself.
    async fn turn_away(&mut self, attached: Attached) {
        let declares_tasks = attached.capabilities.declares_tasks();
        let id = self.hold.id();
        let reply =
            asking::too_late(&self.shared, &attached.call, &self.server.known(), id, declares_tasks).await;
        attached.tell(reply.into()).await;
    }

    /// Answers everybody who waits with the questions that are open, and lets them go: the call is
    /// parked already, so that their leaving is no departure.
    async fn ask(&mut self, asks: &BTreeSet<Ask>) {
        self.questions.round += 1;
        let state = State {
            resumes: Resumes::Parked(CallId::from_entropy(self.hold.id().entropy())),
            round: self.questions.round,
            // A little longer than the call is parked, so that a late client hears that it is gone.
            expires: self.shared.clock.timestamp() + self.shared.route.questions.park * 2,
            binding: self.binding,
        };
        let sealed = self.shared.keyring.seal(&state, random());
        let open = asks.iter().filter_map(|ask| self.questions.open.get(ask));
        let questions: Vec<_> = open.map(|open| (open.key.as_str(), &open.request)).collect();
        let result = elicit::input_required(questions, &sealed, &self.server.known().server_info);
        for attached in std::mem::take(&mut self.attached) {
            let reply = match attached.lacks(asks.iter().filter_map(|ask| self.questions.open.get(ask))) {
                None => reply::input_required(&attached.call, &result),
                // 2026-07-28, *MRTR, Server Requirements*: nothing that was not declared.
                Some(missing) => {
                    reply::refuse(&attached.call, StatusCode::BAD_REQUEST, &raise::question_refused(&missing))
                }
            };
            attached.tell(reply.into()).await;
        }
    }

    /// Puts the task's questions to legacy clients that wait for its result.
    fn put_across(&mut self) {
        let Some(across) = &mut self.across else { return };
        let open = self.questions.open.iter();
        across.put(self.hold.id(), open.map(|(ask, open)| (*ask, &*open.key, &open.request)));
    }

    async fn ask_in_task(&mut self, ask: Ask) {
        let Some(open) = self.questions.open.get(&ask) else { return };
        let event = task::Event::Asked { key: open.key.clone(), request: open.request.as_bytes().clone() };
        match self.hold.keep(event, &self.shared.overdue).await {
            Ok(Updated::Done { .. }) => {}
            Err(full @ StoreError::Full(_)) => self.questions.refuse(ask, &full.to_string()),
            // The task has ended, or the proxy does: nobody will see the question.
            Ok(Updated::Refused(_) | Updated::Unknown) | Err(_) => self.questions.decline(ask),
        }
    }

    async fn reply(&mut self, word: &Word) {
        // The upstream stream has ended: let its connection go before anything else.
        self.replies = None;
        for attached in std::mem::take(&mut self.attached) {
            let reply = asking::again(
                &self.shared,
                &self.caller,
                &attached.call,
                &self.server.known(),
                || self.binding,
                word,
            )
            .unwrap_or_else(|| {
                reply::to_client(
                    &attached.call,
                    &self.shared.route,
                    &self.server.known(),
                    word.clone(),
                    self.refused.as_ref(),
                )
            });
            attached.tell(reply.into()).await;
        }
    }

    /// Stores the task, unless a quota is full.
    fn store(&self) -> BoxFuture<'static, bool> {
        let now = self.shared.clock.timestamp();
        let tool = self.call.target.clone().unwrap_or_default();
        let owner = self.shared.owner(&self.caller);
        let record = Record::new(self.hold.id().clone(), owner, tool, self.treatment.retention, now);
        let tasks = Arc::clone(&self.shared.tasks);
        let parked = self.parked.is_some();
        Box::pin(async move { tasks.admit(record, parked).await.is_ok() })
    }

    async fn give_handle(&mut self) {
        let record = self.shared.tasks.last_kept(self.hold.id()).expect("it was stored a moment ago");
        // A task that was made before its session was open: another may have been.
        let server = if self.server.is_known() { self.server.known() } else { self.shared.server() };
        let created = asking::created(&self.shared, &record, &server);
        let (confirm, committed) = oneshot::channel();
        let mut commit = Some(Commit(confirm));
        self.committed = Some(committed);
        for attached in std::mem::take(&mut self.attached) {
            let reply = if attached.capabilities.declares_tasks() {
                reply::handle(&attached.call, &created, self.hold.id().clone(), commit.take())
            } else {
                asking::became_a_task(&attached.call)
            };
            attached.tell(reply.into()).await;
        }
    }

    async fn write_progress(&mut self) {
        let Some(message) = self.progress.message.take() else { return };
        let event = task::Event::Progressed { message: message.clone() };
        let kept = self.shared.tasks.change(self.hold.id(), &event).await;
        let pause = if kept.is_ok() { PROGRESS_PERIOD } else { STORE_PAUSE };
        self.progress.not_before = Some(self.shared.clock.now() + pause);
        if kept.is_err() {
            // Nobody has heard of it yet, and it is the latest.
            self.progress.message = Some(message);
        }
    }

    async fn settle(&mut self, word: Word) {
        // The upstream stream has ended: let its connection go before anything else.
        self.replies = None;
        let verdict =
            reply::verdict(&self.call, &self.shared.route, &self.server.known(), word, self.refused.as_ref());
        let limit = self.shared.tasks.result_limit();
        let event = match verdict {
            Verdict::Result(result) if result.len() > limit => failed(&ErrorObject::new(
                code::RESULT_TOO_LARGE,
                format!(
                    "the result is {} bytes; the proxy keeps at most {limit} (limits.stored_result_bytes)",
                    result.len()
                ),
            )),
            Verdict::Result(result) => task::Event::Returned { result },
            Verdict::Error(error, _) => failed(&error),
        };
        // Refused where the task was cancelled in this moment.
        let _ = self.hold.keep(event, &self.shared.overdue).await;
    }
}

fn failed(error: &ErrorObject) -> task::Event {
    task::Event::Failed { error: error.as_bytes().clone(), message: Some(error.message()) }
}

// === impl Attached ===

impl Attached {
    /// Gives the client something. That it has left is noticed elsewhere.
    async fn tell(&self, item: Item) {
        let _ = self.items.send(item).await;
    }

    /// What a client would have had to declare with this request to be asked all of these.
    fn lacks<'a>(&self, mut questions: impl Iterator<Item = &'a Open>) -> Option<Value> {
        questions.find_map(|open| {
            let request = &open.request;
            self.capabilities.missing_for(&request.kind().method(), request.params().as_ref())
        })
    }
}

// === impl Questions ===

impl Questions {
    /// Gives a question its key. One that was answered beforehand is answered at once; otherwise
    /// it is open, under the number that is returned.
    fn take_in(&mut self, asked: Asked) -> Option<Ask> {
        let Asked { request, id, answer } = asked;
        let key = self.keys.give(request.kind());
        if let Some(supplied) = self.supplied.take(&key)
            && let Ok(supplied) = elicit::check_answer(&request, &supplied)
        {
            answer.send(Ok(supplied));
            return None;
        }
        let ask = self.next;
        self.next += 1;
        self.open.insert(ask, Open { key, request, id, answer });
        Some(ask)
    }

    fn find(&self, id: &Id) -> Option<Ask> {
        self.open.iter().find(|(_, open)| open.id == *id).map(|(ask, _)| *ask)
    }

    fn answer(&mut self, key: &str, response: Bytes) {
        self.reply(key, Ok(response));
    }

    /// The client answered as JSON-RPC has it: with a result or an error.
    fn reply(&mut self, key: &str, outcome: Result<Bytes, Bytes>) {
        let ask = self.open.iter().find(|(_, open)| open.key == key).map(|(ask, _)| *ask);
        if let Some(open) = ask.and_then(|ask| self.open.remove(&ask)) {
            open.answer.send(outcome.map(|result| offer::unrelated(&result)));
        }
    }

    fn answer_ask(&mut self, ask: Ask, response: Bytes) {
        if let Some(open) = self.open.remove(&ask) {
            open.answer.send(Ok(response));
        }
    }

    /// A question that cannot be put to the client after all.
    fn refuse(&mut self, ask: Ask, reason: &str) {
        if let Some(Open { request, id, answer, .. }) = self.open.remove(&ask) {
            Asked { request, id, answer }.refuse(reason);
        }
    }

    /// The server took a question back; gives the key it had.
    fn withdraw(&mut self, ask: Ask) -> Option<String> {
        let open = self.open.remove(&ask)?;
        open.answer.withdrawn();
        Some(open.key)
    }

    /// Nobody answers any more: the server is told so in the way of the question.
    fn decline(&mut self, ask: Ask) {
        let Some(Open { request, answer, .. }) = self.open.remove(&ask) else { return };
        let method = request.kind().method();
        QuestionRefused { method: method.as_str(), reason: "nobody answered" }.emit();
        answer.send(elicit::cancelled_answer(request.kind()).map_err(|error| error.as_bytes().clone()));
    }
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

/// Which of those who wait has left.
async fn any_closed(attached: &[Attached]) -> usize {
    match attached {
        [] => pending().await,
        [only] => {
            only.items.closed().await;
            0
        }
        many => select_all(many.iter().map(|one| Box::pin(one.items.closed()))).await.1,
    }
}

async fn next(replies: &mut Option<Replies>) -> Event {
    match replies {
        Some(replies) => replies.next().await.unwrap_or(Event::Lost(Lost::SessionEnded)),
        None => pending().await,
    }
}
