//! Answers of the tools that take tickets: `deferral_result`, `deferral_cancel`.
//!
//! They are tools to the client, so whatever it hears is a tool's result, and what is wrong with a ticket is told to
//! the model: a JSON-RPC error would be shown to nobody.

use super::TaskRefusal;
use crate::{
    bridge::ticket::{self as tool, TicketAction, TicketToolNames},
    dialect::Principal,
    protocol::{ErrorObject, InputRequest, Method, Payload, code},
    proxy::{
        AccessSummary, DeliveryCommit,
        call_registry::{LocalRequest, MailboxMessage},
        input_requests::NOT_DECLARED,
        persist::STORE_RETRY_DELAY,
        route_context::RouteContext,
        task_watchers::TaskWatcher,
        tickets::{self, TicketOptions},
    },
    runtime::{or_pending, wait_until},
    task::{Canceller, Record, TaskId, TaskPrincipal, TaskState, view::ticket},
    telemetry::RequestOutcome,
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
const MESSAGE_BUFFER: usize = 64;

/// What a call of one of the tools comes to.
pub(in crate::proxy) enum TicketToolAnswer {
    /// A result of ours, and what the access line says of it.
    Result(Value, AccessSummary),
    /// The same, about this call.
    CallResult(Arc<Record>, Value, AccessSummary),
    /// The result is waited for.
    Pending(Box<ResultWatch>),
}

/// Somebody who asks with a ticket.
pub(in crate::proxy) struct TicketCaller<'a> {
    pub(in crate::proxy) owner: TaskPrincipal,
    pub(in crate::proxy) principal: Principal,
    pub(in crate::proxy) names: &'a Arc<TicketToolNames>,
    /// How long the result is waited for.
    pub(in crate::proxy) wait: Duration,
    /// It can be told what the call says meanwhile.
    pub(in crate::proxy) accepts_messages: bool,
}

/// A client that waits for the result of its call.
pub(in crate::proxy) struct ResultWatch {
    shared: Arc<RouteContext>,
    pub(in crate::proxy) ticketing: TicketOptions,
    task: TaskId,
    changes: TaskWatcher,
    /// What the call has to say meanwhile: events, as they stand on a stream. `Missing` once it has no more.
    messages: Option<mpsc::Receiver<Bytes>>,
    until: Instant,
    /// What it has been told of the progress.
    last_progress: Option<String>,
    /// When the store is asked again, which has failed.
    store_retry_at: Option<Instant>,
    last: Arc<Record>,
}

/// What happens next to a call that is waited for.
pub(in crate::proxy) enum WatchEvent {
    /// The call says something: an event.
    Message(Bytes),
    /// It has come further.
    Progress(String),
    /// It asks something.
    InputRequired(Arc<Record>),
    /// It has ended: fetched once its client has the result.
    Ended(Arc<Record>, DeliveryCommit),
    /// It runs on, and is not waited for any more.
    StillRunning(Arc<Record>),
    /// Its result was kept for as long as results are.
    Expired,
    Closing,
}

/// What a call of one of the tools comes to.
pub(in crate::proxy) async fn call_ticket_tool(
    shared: &Arc<RouteContext>,
    holder: TicketCaller<'_>,
    wanted: TicketAction,
    params: Option<&Payload>,
) -> TicketToolAnswer {
    let names = holder.names;
    let Some(ticket) = tool::ticket_argument(params) else {
        let name = match wanted {
            TicketAction::Result => &names.result,
            TicketAction::Cancel => &names.cancel,
        };
        return TicketToolAnswer::Result(
            ticket::missing_ticket(name),
            AccessSummary::of(RequestOutcome::Refused),
        );
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
        TicketAction::Cancel => cancel(shared, &record, names).await,
        TicketAction::Result => match ResultWatch::begin(shared, &holder, record) {
            Some(watch) => TicketToolAnswer::Pending(Box::new(watch)),
            None => refused(TaskRefusal::Busy),
        },
    }
}

async fn cancel(shared: &RouteContext, record: &Arc<Record>, names: &TicketToolNames) -> TicketToolAnswer {
    let said = |result, status| {
        let origin = record.trace.clone();
        let account = AccessSummary { shown: Some(status), origin, ..AccessSummary::default() };
        TicketToolAnswer::CallResult(Arc::clone(record), result, account)
    };
    match super::cancel(&shared.ledger, &shared.call_registry, &record.id, Canceller::Client).await {
        Ok(Some(cancelled)) => said(ticket::cancelled(&record.tool), cancelled.state.status()),
        Ok(None) => match shared.ledger.load(&record.id).await {
            Ok(Some(ended)) => said(ticket::already_ended(&ended, &names.result), ended.state.status()),
            Ok(None) => refused(TaskRefusal::Unknown),
            Err(error) => refused(error.into()),
        },
        Err(error) => refused(error.into()),
    }
}

/// The model is told what is wrong, and whether its ticket is.
fn refused(why: TaskRefusal) -> TicketToolAnswer {
    let outcome = match why {
        TaskRefusal::Unknown => {
            return TicketToolAnswer::Result(
                ticket::unknown_ticket(),
                AccessSummary::of(RequestOutcome::Refused),
            );
        }
        TaskRefusal::TooMany(_) | TaskRefusal::Busy => RequestOutcome::Refused,
        TaskRefusal::StoreFull(_) | TaskRefusal::StoreFailed => RequestOutcome::ProxyFailed,
    };
    let error = why.error("the ticket is not known");
    TicketToolAnswer::Result(ticket::busy(&error.message()), AccessSummary::failed(outcome, &error))
}

// === impl Watch ===

impl ResultWatch {
    /// `Missing` where as many requests wait for the task as may.
    fn begin(shared: &Arc<RouteContext>, holder: &TicketCaller<'_>, record: Arc<Record>) -> Option<Self> {
        // Before the record is looked at again: nothing may be missed in between.
        let changes = shared.ledger.watchers.wait_for(&record.id)?;
        let told = match holder.accepts_messages && !record.state.is_ended() {
            true => {
                let (tell, told) = mpsc::channel(MESSAGE_BUFFER);
                // Not held only where the call ended in this moment.
                shared.call_registry.attach(&record.id, LocalRequest::ResultWaiter(tell)).ok()?;
                Some(told)
            }
            false => None,
        };
        Some(Self {
            ticketing: TicketOptions { names: Arc::clone(holder.names), wait: holder.wait },
            task: record.id.clone(),
            changes,
            messages: told,
            until: shared.clock.now() + holder.wait,
            last_progress: record.message.clone(),
            // The record is looked at first.
            store_retry_at: Some(shared.clock.now()),
            last: record,
            shared: Arc::clone(shared),
        })
    }

    /// Waits for one thing to happen. Dropping the future in between loses nothing but the wait.
    pub(in crate::proxy) async fn next(&mut self) -> WatchEvent {
        loop {
            tokio::select! {
                // What was said before the end is heard before it; but a call that always has something to say does not
                // hold its client for longer than that.
                biased;
                () = sleep_until(self.until.into()) => return WatchEvent::StillRunning(Arc::clone(&self.last)),
                () = self.shared.overdue.stopped() => match self.shared.ledger.outlives() {
                    // The next process knows the ticket. An error would have the model make the call again.
                    true => return WatchEvent::StillRunning(Arc::clone(&self.last)),
                    false => return WatchEvent::Closing,
                },
                event = or_pending(self.messages.as_mut().map(mpsc::Receiver::recv)) => match event {
                    Some(event) => return WatchEvent::Message(event),
                    None => self.messages = None,
                },
                () = record_changed(&self.changes, self.store_retry_at) => {
                    if let Some(next) = self.read_record().await {
                        return next;
                    }
                }
            }
        }
    }

    /// Looks at the record, where something may have changed in it.
    async fn read_record(&mut self) -> Option<WatchEvent> {
        // Whoever gives this wait up has heard of the change, and would not hear of it again.
        self.store_retry_at = Some(self.shared.clock.now());
        let Ok(found) = self.shared.ledger.load(&self.task).await else {
            self.store_retry_at = Some(self.shared.clock.now() + STORE_RETRY_DELAY);
            return None;
        };
        self.store_retry_at = None;
        let Some(record) = found else { return Some(WatchEvent::Expired) };
        let record = self.shared.ledger.with_store_status(record);
        self.last = Arc::clone(&record);
        if record.state.is_ended() {
            if let Some(Ok(event)) = self.messages.as_mut().map(mpsc::Receiver::try_recv) {
                // What was said on the way to the end is heard before it.
                self.store_retry_at = Some(self.shared.clock.now());
                return Some(WatchEvent::Message(event));
            }
            let commit = self.shared.ledger.delivery(&record.id);
            return Some(WatchEvent::Ended(record, commit));
        }
        if let TaskState::InputRequired { .. } = record.state {
            return Some(WatchEvent::InputRequired(record));
        }
        let message =
            record.message.clone().filter(|message| Some(message) != self.last_progress.as_ref())?;
        self.last_progress = Some(message.clone());
        Some(WatchEvent::Progress(message))
    }

    /// Declines what the call asks and this client `can` not be asked: nobody else waits for the result. Whether there
    /// was anything.
    pub(in crate::proxy) async fn decline_undeclared(
        &mut self,
        record: &Record,
        can: impl Fn(&Method, Option<&Bytes>) -> bool,
    ) -> bool {
        let TaskState::InputRequired { outstanding } = &record.state else { return false };
        let is_declined = |raw: &Bytes| {
            let request = InputRequest::from_raw(raw.clone());
            request.is_some_and(|request| !can(&request.kind().method(), request.params().as_ref()))
        };
        let declined: Vec<_> =
            outstanding.iter().filter(|(_, raw)| is_declined(raw)).map(|(key, _)| key.clone()).collect();
        for key in &declined {
            let refusal = ErrorObject::new(code::METHOD_NOT_FOUND, NOT_DECLARED);
            let answers = BTreeMap::from([(key.clone(), Err(refusal.as_bytes().clone()))]);
            let answered = super::deliver_responses(&self.shared, &record.id, answers, |answered, room| {
                if let Some((key, refusal)) = answered.into_iter().next() {
                    room.send(MailboxMessage::RawResponse(key, refusal));
                }
            });
            if answered.await.is_err() {
                self.store_retry_at = Some(self.shared.clock.now() + STORE_RETRY_DELAY);
            }
        }
        !declined.is_empty()
    }

    /// The result that says that the call still runs.
    pub(in crate::proxy) fn running_result(&self, record: &Record) -> Value {
        self.ticketing.running(&self.shared, record)
    }

    /// The record as it was last seen.
    pub(in crate::proxy) fn record(&self) -> &Record {
        &self.last
    }
}

/// Resolves when the record may have changed, or is to be looked at again.
async fn record_changed(changes: &TaskWatcher, again: Option<Instant>) {
    tokio::select! {
        _ = changes.changed() => {}
        () = wait_until(again) => {}
    }
}
