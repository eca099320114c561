//! Serves the ticket tools `deferral_result` and `deferral_cancel`.
//!
//! Every response is a tool result. An invalid ticket is explained in the text of the result, because clients
//! do not show JSON-RPC errors to the model.

use crate::{
    bridge::ticket::{self as tool, TicketAction, TicketOptions, TicketToolNames},
    dialect::Principal,
    protocol::{InputRequest, Method, Payload},
    proxy::{
        AccessSummary, DeliveryCommit,
        answers::{self, TaskRefusal},
        call_registry::MailboxMessage,
        route_context::RouteContext,
        tasks::{
            persist::STORE_RETRY_DELAY,
            watchers::{InputFilter, TaskWatcher, WatcherKind},
        },
    },
    runtime::{or_pending, wait_until},
    store::{LoadedTask, ProcessId},
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

/// The answer to a call of a ticket tool.
pub(in crate::proxy) enum TicketToolAnswer {
    /// A tool result of the proxy, and the summary for the access log.
    Result(Value, AccessSummary),
    /// A tool result of the proxy about this task, and the summary for the access log.
    CallResult(Arc<Record>, Value, AccessSummary),
    /// The client has to wait for the result of the deferred call.
    Pending(Box<ResultWatch>),
}

/// A caller that presents a ticket.
pub(in crate::proxy) struct TicketCaller<'a> {
    /// The owner of the tasks that the caller may fetch.
    pub(in crate::proxy) owner: TaskPrincipal,
    pub(in crate::proxy) principal: Principal,
    /// The names under which the caller has the ticket tools.
    pub(in crate::proxy) names: &'a Arc<TicketToolNames>,
    /// How long the call of the result tool waits for the result.
    pub(in crate::proxy) wait: Duration,
    /// Whether the caller can receive messages of the deferred call while it waits.
    pub(in crate::proxy) accepts_messages: bool,
    /// The input requests that the caller can receive.
    pub(in crate::proxy) input_filter: InputFilter,
}

/// A client's wait for the result of its deferred call, by a call of the result tool.
pub(in crate::proxy) struct ResultWatch {
    shared: Arc<RouteContext>,
    /// The options for a new ticket, if the wait ends without a result.
    pub(in crate::proxy) ticket_options: TicketOptions,
    task: TaskId,
    /// The process that owns the task, as last loaded.
    owner: ProcessId,
    changes: TaskWatcher,
    /// Whether the client can receive messages of the deferred call while it waits.
    accepts_messages: bool,
    /// The input requests that the client can receive.
    input_filter: InputFilter,
    /// Messages of the deferred call (SSE events); `None` while the call does not run in this process.
    messages: Option<mpsc::Receiver<Bytes>>,
    /// When the wait ends.
    deadline: Instant,
    /// The last progress message that was sent.
    last_progress: Option<String>,
    /// When to load the record again, after a failure of the store or at once.
    store_retry_at: Option<Instant>,
    /// The record as last loaded.
    record: Arc<Record>,
}

/// The next event while a client waits for the result of a deferred call.
pub(in crate::proxy) enum WatchEvent {
    /// A message of the call for the client: an SSE event.
    Message(Bytes),
    /// The call has a new progress message.
    Progress(String),
    /// The call has open input requests.
    InputRequired(Arc<Record>),
    /// The call has ended; the result counts as fetched once the commit is confirmed.
    Ended(Arc<Record>, DeliveryCommit),
    /// The wait is over, and the call still runs.
    StillRunning(Arc<Record>),
    /// The retention of the result is over.
    Expired,
    /// The proxy shuts down, and its tasks are lost.
    Closing,
}

/// Serves a call of a ticket tool with these params.
pub(in crate::proxy) async fn call_ticket_tool(
    shared: &Arc<RouteContext>,
    caller: TicketCaller<'_>,
    action: TicketAction,
    params: Option<&Payload>,
) -> TicketToolAnswer {
    let names = caller.names;
    let Some(ticket) = tool::ticket_argument(params) else {
        let name = match action {
            TicketAction::Result => &names.result,
            TicketAction::Cancel => &names.cancel,
        };
        return TicketToolAnswer::Result(
            ticket::missing_ticket_result(name),
            AccessSummary::new(RequestOutcome::Refused),
        );
    };
    // The look-up is made for an invalid ticket as well, so that it counts as a miss.
    let task = super::task_of_ticket(shared, &ticket);
    let task_id = task.as_ref().map(TaskId::as_str);
    let found =
        answers::look_up_task(shared, &Method::ToolsCall, task_id, &caller.owner, caller.principal).await;
    let record = match found {
        Ok(record) => record,
        Err(refusal) => return refusal_answer(refusal),
    };
    match action {
        TicketAction::Cancel => cancel_task(shared, &record, names).await,
        TicketAction::Result => match ResultWatch::begin(shared, &caller, record) {
            Some(watch) => TicketToolAnswer::Pending(Box::new(watch)),
            None => refusal_answer(TaskRefusal::Busy),
        },
    }
}

/// Answers a call of the cancel tool.
async fn cancel_task(
    shared: &RouteContext,
    record: &Arc<Record>,
    names: &TicketToolNames,
) -> TicketToolAnswer {
    let respond = |result, status| {
        let origin = record.trace.clone();
        let summary = AccessSummary { shown_status: Some(status), origin, ..AccessSummary::default() };
        TicketToolAnswer::CallResult(Arc::clone(record), result, summary)
    };
    match answers::cancel_task(&shared.ledger, &record.id, Canceller::Client).await {
        Ok(Some(cancelled)) => respond(ticket::cancelled_result(&record.tool), cancelled.state.status()),
        Ok(None) => match shared.ledger.load(&record.id).await {
            Ok(Some(ended)) => {
                respond(ticket::already_ended_result(&ended, &names.result), ended.state.status())
            }
            Ok(None) => refusal_answer(TaskRefusal::Unknown),
            Err(error) => refusal_answer(error.into()),
        },
        Err(error) => refusal_answer(error.into()),
    }
}

/// The tool result that explains to the model why the ticket cannot be used: it is invalid, or the proxy is
/// busy.
fn refusal_answer(refusal: TaskRefusal) -> TicketToolAnswer {
    let outcome = match refusal {
        TaskRefusal::Unknown => {
            return TicketToolAnswer::Result(
                ticket::unknown_ticket_result(),
                AccessSummary::new(RequestOutcome::Refused),
            );
        }
        TaskRefusal::TooMany(_) | TaskRefusal::Busy => RequestOutcome::Refused,
        TaskRefusal::StoreFull(_) | TaskRefusal::StoreFailed => RequestOutcome::ProxyFailed,
    };
    let error = refusal.error("the ticket is not known");
    TicketToolAnswer::Result(ticket::busy_result(&error.message()), AccessSummary::failed(outcome, &error))
}

// === impl ResultWatch ===

impl ResultWatch {
    /// Starts to wait. `None` if the maximum number of requests already waits for the task.
    fn begin(shared: &Arc<RouteContext>, caller: &TicketCaller<'_>, record: Arc<Record>) -> Option<Self> {
        // Watch first, then load the record: no change is missed in between.
        let input_filter = caller.input_filter.clone();
        let kind = WatcherKind::Waiter { input_filter: Some(input_filter.clone()) };
        let changes = shared.ledger.bus.watch(vec![record.id.clone()], kind)?;
        let receiver = match caller.accepts_messages && !record.state.is_ended() {
            true => answers::attach_waiter(shared, &record.id, Some(input_filter.clone())).ok()?,
            false => None,
        };
        Some(Self {
            ticket_options: TicketOptions { names: Arc::clone(caller.names), wait: caller.wait },
            task: record.id.clone(),
            changes,
            messages: receiver,
            deadline: shared.clock.now() + caller.wait,
            accepts_messages: caller.accepts_messages,
            input_filter,
            last_progress: record.message.clone(),
            // The record is loaded first, because it may have changed since the look-up.
            store_retry_at: Some(shared.clock.now()),
            owner: shared.ledger.process(),
            record,
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
                () = sleep_until(self.deadline.into()) => return WatchEvent::StillRunning(Arc::clone(&self.record)),
                () = self.shared.overdue.stopped() => match self.shared.ledger.is_durable() {
                    // The next process accepts the ticket. An error would make the model repeat the call.
                    true => return WatchEvent::StillRunning(Arc::clone(&self.record)),
                    false => return WatchEvent::Closing,
                },
                event = or_pending(self.messages.as_mut().map(mpsc::Receiver::recv)) => match event {
                    Some(event) => return WatchEvent::Message(event),
                    None => self.messages = None,
                },
                () = wait_for_record_change(&self.changes, self.store_retry_at) => {
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
        let Ok(found) = self.shared.ledger.load_task(&self.task).await else {
            self.store_retry_at = Some(self.shared.clock.now() + STORE_RETRY_DELAY);
            return None;
        };
        self.store_retry_at = None;
        let Some(LoadedTask { record, ownership, .. }) = found else { return Some(WatchEvent::Expired) };
        self.owner = ownership.owner;
        let record = self.shared.ledger.with_unstored_message(record);
        self.record = Arc::clone(&record);
        if record.state.is_ended() {
            if let Some(Ok(event)) = self.messages.as_mut().map(mpsc::Receiver::try_recv) {
                // Messages that preceded the end are sent before it.
                self.store_retry_at = Some(self.shared.clock.now());
                return Some(WatchEvent::Message(event));
            }
            let commit = self.shared.ledger.delivery_commit(&record.id);
            return Some(WatchEvent::Ended(record, commit));
        }
        if self.accepts_messages && self.messages.is_none() {
            // The call may have been resumed since.
            let input_filter = Some(self.input_filter.clone());
            self.messages = answers::attach_waiter(&self.shared, &self.task, input_filter).ok().flatten();
        }
        if let TaskState::InputRequired { .. } = record.state {
            return Some(WatchEvent::InputRequired(record));
        }
        let message =
            record.message.clone().filter(|message| Some(message) != self.last_progress.as_ref())?;
        self.last_progress = Some(message.clone());
        Some(WatchEvent::Progress(message))
    }

    /// Returns the open input requests of the task, with their keys, that this client can receive. The others
    /// are left to other waiting clients. An input request that no waiting client can receive is reported to
    /// the call, which refuses it.
    pub(in crate::proxy) fn receivable_requests(&mut self, record: &Record) -> Vec<(String, InputRequest)> {
        let TaskState::InputRequired { outstanding } = &record.state else { return Vec::new() };
        let request =
            |(key, raw): (&String, &Bytes)| Some((key.clone(), InputRequest::from_raw(raw.clone())?));
        let (receivable, others): (Vec<_>, Vec<_>) = outstanding
            .iter()
            .filter_map(request)
            .partition(|(_, request)| self.input_filter.allows(request));
        for (key, request) in others {
            if !self.changes.another_can_receive(&record.id, &request)
                && !self.send_to_call(MailboxMessage::Undeclared(key))
            {
                self.store_retry_at = Some(self.shared.clock.now() + STORE_RETRY_DELAY);
            }
        }
        receivable
    }

    /// Reports to the call that these input requests are being sent to this client, whose retry is awaited,
    /// so that they are not refused when no other waiting client can receive them. They may be refused if the
    /// call does not receive this report.
    pub(in crate::proxy) fn report_sent(&self, requests: &[(String, InputRequest)]) {
        let keys = requests.iter().map(|(key, _)| key.clone()).collect();
        if !self.send_to_call(MailboxMessage::Sent(keys)) {
            tracing::debug!(target: "deferral::task", event = "sent_unreported", task = %self.task.tag());
        }
    }

    /// Sends a message to the task's call. Returns whether the call receives it: its mailbox has a slot, and
    /// the owner of the task can be reached.
    fn send_to_call(&self, message: MailboxMessage) -> bool {
        let ledger = &self.shared.ledger;
        let permit = ledger.call_registry.reserve(&self.task);
        permit.is_ok_and(|_permit| ledger.bus.post(&self.task, self.owner, message).is_ok())
    }

    /// The tool result for a call that still runs: the ticket, and the text for the model.
    pub(in crate::proxy) fn running_result(&self, record: &Record) -> Value {
        super::running_result(&self.shared, record, &self.ticket_options)
    }

    /// The task record as last loaded.
    pub(in crate::proxy) fn record(&self) -> &Record {
        &self.record
    }
}

/// Resolves when the record may have changed, or at the time `retry_at` of the next attempt to load it.
async fn wait_for_record_change(changes: &TaskWatcher, retry_at: Option<Instant>) {
    tokio::select! {
        _ = changes.changed() => {}
        () = wait_until(retry_at) => {}
    }
}
