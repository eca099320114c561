//! The tools that take tickets: `deferral_result`, `deferral_cancel`.
//!
//! To the client they are tools, so every response is a tool result, and an invalid ticket is explained to
//! the model: clients do not show it JSON-RPC errors.

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

/// Messages that are buffered for a client that waits for a result.
const MESSAGE_BUFFER: usize = 64;

/// The answer to a call of one of the tools.
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
}

/// The wait of a client for the result of its call.
pub(in crate::proxy) struct ResultWatch {
    shared: Arc<RouteContext>,
    pub(in crate::proxy) ticketing: TicketOptions,
    task: TaskId,
    changes: TaskWatcher,
    /// Messages of the call meanwhile, as SSE events. `None` after the last one.
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
            ticket::missing_ticket(name),
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
        Ok(Some(cancelled)) => respond(ticket::cancelled(&record.tool), cancelled.state.status()),
        Ok(None) => match shared.ledger.load(&record.id).await {
            Ok(Some(ended)) => respond(ticket::already_ended(&ended, &names.result), ended.state.status()),
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

// === impl ResultWatch ===

impl ResultWatch {
    /// `None` if the maximum number of requests already waits for the task.
    fn begin(shared: &Arc<RouteContext>, holder: &TicketCaller<'_>, record: Arc<Record>) -> Option<Self> {
        // Watch first, then load the record: no change is missed in between.
        let changes = shared.ledger.watchers.wait_for(&record.id)?;
        let receiver = match holder.accepts_messages && !record.state.is_ended() {
            true => {
                let (sender, receiver) = mpsc::channel(MESSAGE_BUFFER);
                // The call is unknown only if it ended in this moment.
                shared.call_registry.attach(&record.id, LocalRequest::ResultWaiter(sender)).ok()?;
                Some(receiver)
            }
            false => None,
        };
        Some(Self {
            ticketing: TicketOptions { names: Arc::clone(holder.names), wait: holder.wait },
            task: record.id.clone(),
            changes,
            messages: receiver,
            until: shared.clock.now() + holder.wait,
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
        if let TaskState::InputRequired { .. } = record.state {
            return Some(WatchEvent::InputRequired(record));
        }
        let message =
            record.message.clone().filter(|message| Some(message) != self.last_progress.as_ref())?;
        self.last_progress = Some(message.clone());
        Some(WatchEvent::Progress(message))
    }

    /// Declines input requests that this client has no capability for (`can`): no other client waits for the
    /// result. Returns whether there were any.
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
