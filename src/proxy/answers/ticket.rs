//! The tools that take tickets: `deferral_result`, `deferral_cancel`.
//!
//! To the client they are tools, so every response is a tool result, and an invalid ticket is explained to
//! the model: clients do not show it JSON-RPC errors.

use super::TaskRefusal;
use crate::{
    bridge::ticket::{self as tool, TicketAction, TicketToolNames},
    dialect::Principal,
    protocol::{InputRequest, Method, Payload},
    proxy::{
        AccessSummary, DeliveryCommit,
        call_registry::{MailboxFull, MailboxMessage},
        persist::STORE_RETRY_DELAY,
        route_context::RouteContext,
        task_watchers::{Askable, TaskWatcher},
        tickets::{self, TicketOptions},
    },
    runtime::{or_pending, wait_until},
    task::{Canceller, Record, TaskId, TaskPrincipal, TaskState, view::ticket},
    telemetry::RequestOutcome,
};
use bytes::Bytes;
use serde_json::Value;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, time::sleep_until};

/// Serves a call of one of the tools.
pub(in crate::proxy) enum TicketToolAnswer {
    /// A result of the proxy, and its summary in the access log.
    Result(Value, AccessSummary),
    /// The same, about this task.
    CallResult(Arc<Record>, Value, AccessSummary),
    /// The client waits for the result.
    Pending(Box<ResultWatch>),
}

/// A caller that presents a ticket.
pub(in crate::proxy) struct TicketCaller<'a> {
    pub(in crate::proxy) owner: TaskPrincipal,
    pub(in crate::proxy) principal: Principal,
    pub(in crate::proxy) names: &'a Arc<TicketToolNames>,
    /// How long the call waits for the result.
    pub(in crate::proxy) wait: Duration,
    /// Whether the caller can receive messages of the call meanwhile.
    pub(in crate::proxy) accepts_messages: bool,
    /// What it can be asked, as far as is known.
    pub(in crate::proxy) askable: Askable,
}

/// The wait of a client for the result of its call.
pub(in crate::proxy) struct ResultWatch {
    shared: Arc<RouteContext>,
    pub(in crate::proxy) ticketing: TicketOptions,
    task: TaskId,
    changes: TaskWatcher,
    /// Whether the caller can receive messages of the call meanwhile.
    hears: bool,
    askable: Askable,
    /// What the call has to say meanwhile: events, as they stand on a stream. `Missing` while it is not held here.
    messages: Option<mpsc::Receiver<Bytes>>,
    until: Instant,
    /// The last progress message that was sent.
    last_progress: Option<String>,
    /// When to retry the store after a failure.
    store_retry_at: Option<Instant>,
    last: Arc<Record>,
}

/// The next event of an awaited call.
pub(in crate::proxy) enum WatchEvent {
    /// A message of the call: an SSE event.
    Message(Bytes),
    /// A new progress message.
    Progress(String),
    /// The call has open input requests.
    InputRequired(Arc<Record>),
    /// The call has ended; the result counts as fetched once its client has it.
    Ended(Arc<Record>, DeliveryCommit),
    /// The call still runs, and the wait is over.
    StillRunning(Arc<Record>),
    /// The retention of the result is over.
    Expired,
    Closing,
}

/// Serves a call of one of the tools.
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
            ticket::missing_ticket_result(name),
            AccessSummary::of(RequestOutcome::Refused),
        );
    };
    // An invalid ticket is looked up as well, so that it counts as a miss.
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
    let respond = |result, status| {
        let origin = record.trace.clone();
        let account = AccessSummary { shown: Some(status), origin, ..AccessSummary::default() };
        TicketToolAnswer::CallResult(Arc::clone(record), result, account)
    };
    match super::cancel(&shared.ledger, &shared.call_registry, &record.id, Canceller::Client).await {
        Ok(Some(cancelled)) => respond(ticket::cancelled_result(&record.tool), cancelled.state.status()),
        Ok(None) => match shared.ledger.load(&record.id).await {
            Ok(Some(ended)) => {
                respond(ticket::already_ended_result(&ended, &names.result), ended.state.status())
            }
            Ok(None) => refused(TaskRefusal::Unknown),
            Err(error) => refused(error.into()),
        },
        Err(error) => refused(error.into()),
    }
}

/// The result that explains to the model whether the ticket is invalid or the proxy is busy.
fn refused(why: TaskRefusal) -> TicketToolAnswer {
    let outcome = match why {
        TaskRefusal::Unknown => {
            return TicketToolAnswer::Result(
                ticket::unknown_ticket_result(),
                AccessSummary::of(RequestOutcome::Refused),
            );
        }
        TaskRefusal::TooMany(_) | TaskRefusal::Busy => RequestOutcome::Refused,
        TaskRefusal::StoreFull(_) | TaskRefusal::StoreFailed => RequestOutcome::ProxyFailed,
    };
    let error = why.error("the ticket is not known");
    TicketToolAnswer::Result(ticket::busy_result(&error.message()), AccessSummary::failed(outcome, &error))
}

// === impl ResultWatch ===

impl ResultWatch {
    /// `None` if the maximum number of requests already waits for the task.
    fn begin(shared: &Arc<RouteContext>, holder: &TicketCaller<'_>, record: Arc<Record>) -> Option<Self> {
        // Watch first, then load the record: no change is missed in between.
        let askable = holder.askable.clone();
        let changes = shared.ledger.watchers.wait_for(&record.id, Some(askable.clone()))?;
        let receiver = match holder.accepts_messages && !record.state.is_ended() {
            true => super::attach(shared, &record.id, Some(askable.clone())).ok()?,
            false => None,
        };
        Some(Self {
            ticketing: TicketOptions { names: Arc::clone(holder.names), wait: holder.wait },
            task: record.id.clone(),
            changes,
            messages: receiver,
            until: shared.clock.now() + holder.wait,
            hears: holder.accepts_messages,
            askable,
            last_progress: record.message.clone(),
            // Load the record first.
            store_retry_at: Some(shared.clock.now()),
            last: record,
            shared: Arc::clone(shared),
        })
    }

    /// Waits for the next event. Cancel safe.
    pub(in crate::proxy) async fn next(&mut self) -> WatchEvent {
        loop {
            tokio::select! {
                // Messages that precede the end are sent before it. The time limit comes first: a call that
                // always has a message must not hold its client longer.
                biased;
                () = sleep_until(self.until.into()) => return WatchEvent::StillRunning(Arc::clone(&self.last)),
                () = self.shared.overdue.stopped() => match self.shared.ledger.outlives() {
                    // The next process accepts the ticket. An error would make the model repeat the call.
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

    /// Loads the record after a possible change.
    async fn read_record(&mut self) -> Option<WatchEvent> {
        // Set before the load: if this future is dropped, the consumed change notification is not lost.
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
                // Messages that preceded the end are sent before it.
                self.store_retry_at = Some(self.shared.clock.now());
                return Some(WatchEvent::Message(event));
            }
            let commit = self.shared.ledger.delivery(&record.id);
            return Some(WatchEvent::Ended(record, commit));
        }
        if self.hears && self.messages.is_none() {
            // The call may have been resumed since.
            let askable = Some(self.askable.clone());
            self.messages = super::attach(&self.shared, &self.task, askable).ok().flatten();
        }
        if let TaskState::InputRequired { .. } = record.state {
            return Some(WatchEvent::InputRequired(record));
        }
        let message =
            record.message.clone().filter(|message| Some(message) != self.last_progress.as_ref())?;
        self.last_progress = Some(message.clone());
        Some(WatchEvent::Progress(message))
    }

    /// What the call asks and this client can be asked. The rest is left to others that wait; where none of them can be
    /// asked it either, the call is told so.
    pub(in crate::proxy) fn requests(&mut self, record: &Record) -> Vec<(String, InputRequest)> {
        let TaskState::InputRequired { outstanding } = &record.state else { return Vec::new() };
        let request =
            |(key, raw): (&String, &Bytes)| Some((key.clone(), InputRequest::from_raw(raw.clone())?));
        let (own, others): (Vec<_>, Vec<_>) =
            outstanding.iter().filter_map(request).partition(|(_, request)| self.askable.allows(request));
        for (key, request) in others {
            if !self.changes.another_can_be_asked(&record.id, &request)
                && self.send(record, MailboxMessage::Undeclared(key)).is_err()
            {
                self.store_retry_at = Some(self.shared.clock.now() + STORE_RETRY_DELAY);
            }
        }
        own
    }

    /// The client is sent these input requests, and its answers are awaited: nobody who waits meanwhile refuses them.
    pub(in crate::proxy) fn sends(&self, record: &Record, requests: &[(String, InputRequest)]) {
        let keys = requests.iter().map(|(key, _)| key.clone()).collect();
        // A call that takes no more has enough to do; they may be refused then.
        let _ = self.send(record, MailboxMessage::Sent(keys));
    }

    fn send(&self, record: &Record, mail: MailboxMessage) -> Result<(), MailboxFull> {
        self.shared.call_registry.reserve(&record.id).map(|room| room.send(mail))
    }

    /// The result that reports that the call still runs.
    pub(in crate::proxy) fn running_result(&self, record: &Record) -> Value {
        self.ticketing.running(&self.shared, record)
    }

    /// The record as it was last loaded.
    pub(in crate::proxy) fn record(&self) -> &Record {
        &self.last
    }
}

/// Resolves when the record may have changed, or when the store is to be retried.
async fn record_changed(changes: &TaskWatcher, again: Option<Instant>) {
    tokio::select! {
        _ = changes.changed() => {}
        () = wait_until(again) => {}
    }
}
