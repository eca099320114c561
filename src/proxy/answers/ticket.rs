//! Answers of the tools that take tickets: `deferral_result`, `deferral_cancel`.
//!
//! They are tools to the client, so whatever it hears is a tool's result, and what is wrong with a ticket is told to
//! the model: a JSON-RPC error would be shown to nobody.

use super::TaskRefusal;
use crate::{
    bridge::ticket::{self as tool, ToolNames, Wanted},
    dialect::Principal,
    protocol::{ErrorObject, InputRequest, Method, Payload, code},
    proxy::{
        AccessSummary, Commit,
        hub::Listener,
        input_requests::NOT_DECLARED,
        keep::STORE_PAUSE,
        shared::Shared,
        switchboard::{Local, Mail},
        tickets::{self, Ticketing},
    },
    runtime::{or_never, reached},
    task::{Canceller, Owner, Record, State, TaskId, view::ticket},
    telemetry::Outcome,
};
use bytes::Bytes;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, time::sleep_until};

/// Messages that wait for a client that waits for a result.
const WAITING: usize = 64;

/// What a call of one of the tools comes to.
pub(in crate::proxy) enum Answer {
    /// A result of ours, and what the access line says of it.
    Said(Value, AccessSummary),
    /// The same, about this call.
    About(Arc<Record>, Value, AccessSummary),
    /// The result is waited for.
    Waits(Box<Watch>),
}

/// Somebody who asks with a ticket.
pub(in crate::proxy) struct Holder<'a> {
    pub(in crate::proxy) owner: Owner,
    pub(in crate::proxy) principal: Principal,
    pub(in crate::proxy) names: &'a Arc<ToolNames>,
    /// How long the result is waited for.
    pub(in crate::proxy) wait: Duration,
    /// It can be told what the call says meanwhile.
    pub(in crate::proxy) hears: bool,
}

/// A client that waits for the result of its call.
pub(in crate::proxy) struct Watch {
    shared: Arc<Shared>,
    pub(in crate::proxy) ticketing: Ticketing,
    task: TaskId,
    changes: Listener,
    /// What the call has to say meanwhile: events, as they stand on a stream. `None` once it has no more.
    told: Option<mpsc::Receiver<Bytes>>,
    until: Instant,
    /// What it has been told of the progress.
    message: Option<String>,
    /// When the store is asked again, which has failed.
    store_again: Option<Instant>,
    last: Arc<Record>,
}

/// What happens next to a call that is waited for.
pub(in crate::proxy) enum Next {
    /// The call says something: an event.
    Said(Bytes),
    /// It has come further.
    Progress(String),
    /// It asks something.
    Asked(Arc<Record>),
    /// It has ended: fetched once its client has the result.
    Ended(Arc<Record>, Commit),
    /// It runs on, and is not waited for any more.
    Runs(Arc<Record>),
    /// Its result was kept for as long as results are.
    Gone,
    Closing,
}

/// What a call of one of the tools comes to.
pub(in crate::proxy) async fn answer(
    shared: &Arc<Shared>,
    holder: Holder<'_>,
    wanted: Wanted,
    params: Option<&Payload>,
) -> Answer {
    let names = holder.names;
    let Some(ticket) = tool::argument(params) else {
        let name = match wanted {
            Wanted::Result => &names.result,
            Wanted::Cancel => &names.cancel,
        };
        return Answer::Said(ticket::missing(name), AccessSummary::of(Outcome::Refused));
    };
    // What opens to no task is looked up all the same: it counts as a miss.
    let task = tickets::task_of(shared, &ticket);
    let named = task.as_ref().map(TaskId::as_str);
    let found = super::look_up(shared, &Method::ToolsCall, named, &holder.owner, holder.principal).await;
    let record = match found {
        Ok(record) => record,
        Err(why) => return refused(why),
    };
    match wanted {
        Wanted::Cancel => cancel(shared, &record, names).await,
        Wanted::Result => match Watch::begin(shared, &holder, record) {
            Some(watch) => Answer::Waits(Box::new(watch)),
            None => refused(TaskRefusal::Busy),
        },
    }
}

async fn cancel(shared: &Shared, record: &Arc<Record>, names: &ToolNames) -> Answer {
    let said = |result, status| {
        let origin = record.trace.clone();
        let account = AccessSummary { shown: Some(status), origin, ..AccessSummary::default() };
        Answer::About(Arc::clone(record), result, account)
    };
    match super::cancel(&shared.ledger, &shared.switchboard, &record.id, Canceller::Client).await {
        Ok(Some(cancelled)) => said(ticket::cancelled(&record.tool), cancelled.state.status()),
        Ok(None) => match shared.ledger.load(&record.id).await {
            Ok(Some(ended)) => said(ticket::over(&ended, &names.result), ended.state.status()),
            Ok(None) => refused(TaskRefusal::Unknown),
            Err(error) => refused(error.into()),
        },
        Err(error) => refused(error.into()),
    }
}

/// The model is told what is wrong, and whether its ticket is.
fn refused(why: TaskRefusal) -> Answer {
    let outcome = match why {
        TaskRefusal::Unknown => {
            return Answer::Said(ticket::unknown(), AccessSummary::of(Outcome::Refused));
        }
        TaskRefusal::TooMany(_) | TaskRefusal::Busy => Outcome::Refused,
        TaskRefusal::StoreFull(_) | TaskRefusal::StoreFailed => Outcome::ProxyFailed,
    };
    let error = why.error("the ticket is not known");
    Answer::Said(ticket::busy(&error.message()), AccessSummary::failed(outcome, &error))
}

// === impl Watch ===

impl Watch {
    /// `None` where as many requests wait for the task as may.
    fn begin(shared: &Arc<Shared>, holder: &Holder<'_>, record: Arc<Record>) -> Option<Self> {
        // Before the record is looked at again: nothing may be missed in between.
        let changes = shared.ledger.hub.wait_for(&record.id)?;
        let told = match holder.hears && !record.state.is_ended() {
            true => {
                let (tell, told) = mpsc::channel(WAITING);
                // Not held only where the call ended in this moment.
                shared.switchboard.attach(&record.id, Local::Waiting(tell)).ok()?;
                Some(told)
            }
            false => None,
        };
        Some(Self {
            ticketing: Ticketing { names: Arc::clone(holder.names), wait: holder.wait },
            task: record.id.clone(),
            changes,
            told,
            until: shared.clock.now() + holder.wait,
            message: record.message.clone(),
            // The record is looked at first.
            store_again: Some(shared.clock.now()),
            last: record,
            shared: Arc::clone(shared),
        })
    }

    /// Waits for one thing to happen. Dropping the future in between loses nothing but the wait.
    pub(in crate::proxy) async fn next(&mut self) -> Next {
        loop {
            tokio::select! {
                // What was said before the end is heard before it; but a call that always has something to say does not
                // hold its client for longer than that.
                biased;
                () = sleep_until(self.until.into()) => return Next::Runs(Arc::clone(&self.last)),
                () = self.shared.overdue.stopped() => match self.shared.ledger.outlives() {
                    // The next process knows the ticket. An error would have the model make the call again.
                    true => return Next::Runs(Arc::clone(&self.last)),
                    false => return Next::Closing,
                },
                event = or_never(self.told.as_mut().map(mpsc::Receiver::recv)) => match event {
                    Some(event) => return Next::Said(event),
                    None => self.told = None,
                },
                () = changed(&self.changes, self.store_again) => {
                    if let Some(next) = self.look().await {
                        return next;
                    }
                }
            }
        }
    }

    /// Looks at the record, where something may have changed in it.
    async fn look(&mut self) -> Option<Next> {
        // Whoever gives this wait up has heard of the change, and would not hear of it again.
        self.store_again = Some(self.shared.clock.now());
        let Ok(found) = self.shared.ledger.load(&self.task).await else {
            self.store_again = Some(self.shared.clock.now() + STORE_PAUSE);
            return None;
        };
        self.store_again = None;
        let Some(record) = found else { return Some(Next::Gone) };
        let record = self.shared.ledger.as_it_stands(record);
        self.last = Arc::clone(&record);
        if record.state.is_ended() {
            if let Some(Ok(event)) = self.told.as_mut().map(mpsc::Receiver::try_recv) {
                // What was said on the way to the end is heard before it.
                self.store_again = Some(self.shared.clock.now());
                return Some(Next::Said(event));
            }
            let commit = self.shared.ledger.delivery(&record.id);
            return Some(Next::Ended(record, commit));
        }
        if let State::InputRequired { .. } = record.state {
            return Some(Next::Asked(record));
        }
        let message = record.message.clone().filter(|message| Some(message) != self.message.as_ref())?;
        self.message = Some(message.clone());
        Some(Next::Progress(message))
    }

    /// Declines what the call asks and this client `can` not be asked: nobody else waits for the result. Whether there
    /// was anything.
    pub(in crate::proxy) async fn decline(
        &mut self,
        record: &Record,
        can: impl Fn(&Method, Option<&Bytes>) -> bool,
    ) -> bool {
        let State::InputRequired { outstanding } = &record.state else { return false };
        let is_declined = |raw: &Bytes| {
            let request = InputRequest::from_raw(raw.clone());
            request.is_some_and(|request| !can(&request.kind().method(), request.params().as_ref()))
        };
        let declined: Vec<_> =
            outstanding.iter().filter(|(_, raw)| is_declined(raw)).map(|(key, _)| key.clone()).collect();
        for key in &declined {
            let refusal = ErrorObject::new(code::METHOD_NOT_FOUND, NOT_DECLARED);
            let answers = BTreeMap::from([(key.clone(), Err(refusal.as_bytes().clone()))]);
            let answered = super::answer(&self.shared, &record.id, answers, |answered, room| {
                if let Some((key, refusal)) = answered.into_iter().next() {
                    room.send(Mail::Replied(key, refusal));
                }
            });
            if answered.await.is_err() {
                self.store_again = Some(self.shared.clock.now() + STORE_PAUSE);
            }
        }
        !declined.is_empty()
    }

    /// The result that says that the call still runs.
    pub(in crate::proxy) fn running(&self, record: &Record) -> Value {
        self.ticketing.running(&self.shared, record)
    }

    /// The record as it was last seen.
    pub(in crate::proxy) fn record(&self) -> &Record {
        &self.last
    }
}

/// Resolves when the record may have changed, or is to be looked at again.
async fn changed(changes: &Listener, again: Option<Instant>) {
    tokio::select! {
        _ = changes.changed() => {}
        () = reached(again) => {}
    }
}
