//! Calls of the tools that take a ticket, by clients of 2026-07-28 without the tasks extension.
//!
//! Input requests of the running call use the form of 2026-07-28: the waiting call of the ticket tool ends
//! with an `input_required` result, and its client retries with the responses (*Multi Round-Trip Requests*).
//! The ticket identifies the running call, so that no `requestState` is needed.

use super::tool_call::{ResultWatch, TicketCaller, TicketToolAnswer, WatchEvent, call_ticket_tool};
use crate::{
    bridge::elicit,
    dialect::{Call, Caller, modern},
    protocol::{ErrorObject, Frame, InputRequest, ProgressHeartbeat},
    proxy::{
        CallReply, ReplyItem, answers::extension, reply, reply::call_reply::ReplySource,
        route_context::RouteContext, tasks::watchers::InputFilter, tickets,
    },
    task::{Record, view},
    telemetry::RequestOutcome,
    upstream::CallError,
};
use http::StatusCode;
use serde_json::Value;
use std::sync::Arc;

/// One call of a ticket tool (`deferral_result` or `deferral_cancel`) by a client of 2026-07-28.
pub(in crate::proxy) struct TicketToolCall {
    shared: Arc<RouteContext>,
    call: Arc<Call>,
    caller: Caller,
    stage: TicketStage,
}

enum TicketStage {
    Fresh,
    /// The client waits for the result; with the generator of progress notifications, if it requested them.
    Waiting(Box<ResultWatch>, Option<ProgressHeartbeat>),
    Ended,
}

// === impl TicketToolCall ===

impl TicketToolCall {
    /// Creates the reply source for a call of a ticket tool; the first poll serves the call.
    pub(in crate::proxy) fn new(shared: Arc<RouteContext>, call: Arc<Call>, caller: Caller) -> Self {
        Self { shared, call, caller, stage: TicketStage::Fresh }
    }

    /// Serves the call. Returns `None` if it has to wait for the result.
    async fn begin(&mut self) -> Option<CallReply> {
        let (shared, call, caller) = (&self.shared, &self.call, &self.caller);
        let tool = call.target.as_deref().unwrap_or_default();
        let Some((action, names)) = tickets::modern_ticket_action(shared, call, caller, tool) else {
            return Some(self.result_reply(view::ticket::unknown_ticket_result()));
        };
        let ticket_caller = TicketCaller {
            owner: shared.task_owner(caller),
            principal: caller.principal,
            names: &names,
            wait: tickets::result_wait(shared, tickets::modern_eligibility(shared, call, caller)),
            accepts_messages: false,
            input_filter: input_filter(caller),
        };
        match call_ticket_tool(shared, ticket_caller, action, call.params.as_ref()).await {
            TicketToolAnswer::Result(result, summary) => {
                Some(CallReply { summary, ..self.result_reply(result) })
            }
            TicketToolAnswer::CallResult(record, result, summary) => {
                Some(CallReply { summary, ..self.call_result_reply(&record, result) })
            }
            TicketToolAnswer::Pending(watch) => {
                let has_responses =
                    call.params.as_ref().is_some_and(|params| params.get("inputResponses").is_some());
                if has_responses
                    && let Err(refusal) = extension::receive_responses(shared, call, watch.record()).await
                {
                    return Some(*refusal);
                }
                let heartbeat = call.progress_token.clone().map(|token| ProgressHeartbeat::new(token, true));
                self.stage = TicketStage::Waiting(watch, heartbeat);
                None
            }
        }
    }

    /// A reply with a tool result of the proxy, and the server info of the route.
    fn result_reply(&self, result: Value) -> CallReply {
        reply::result_reply(
            &self.call,
            &modern::complete_result(result, &self.shared.server_description().server_info),
        )
    }

    /// A reply with a tool result of the proxy about a task, and the server info of that task.
    fn call_result_reply(&self, record: &Record, result: Value) -> CallReply {
        reply::result_reply(
            &self.call,
            &modern::complete_result(result, &self.shared.task_server_info(record)),
        )
    }

    /// The reply with the end of the task: the response that the deferred call itself would have had.
    fn ended_reply(&self, record: &Record, result_tool: &str) -> CallReply {
        let mut reply = match view::ticket::call_outcome(record, true) {
            Some(view::ticket::CallOutcome::Result(result)) => reply::result_reply(&self.call, &result),
            Some(view::ticket::CallOutcome::Error(error)) => {
                let mut refusal = reply::refuse(&self.call, StatusCode::OK, &ErrorObject::from_raw(error));
                refusal.summary.outcome = RequestOutcome::ServerError;
                refusal
            }
            Some(view::ticket::CallOutcome::Cancelled) | None => {
                self.call_result_reply(record, view::ticket::already_ended_result(record, result_tool))
            }
        };
        reply.summary.shown_status = Some(record.state.status());
        reply.summary.origin = record.trace.clone();
        reply
    }

    /// The `input_required` reply with these input requests, for all of which the client has the
    /// capabilities. Its `requestState` is the ticket.
    fn input_required_reply(&self, record: &Record, requests: &[(String, InputRequest)]) -> CallReply {
        let entries = requests.iter().map(|(key, request)| (key.as_str(), request));
        let ticket = self.shared.keyring.seal_ticket(&record.id);
        let result = elicit::input_required_result(entries, &ticket, &self.shared.task_server_info(record));
        reply::input_required_reply(&self.call, &result)
    }
}

impl ReplySource for TicketToolCall {
    async fn next(&mut self) -> Option<ReplyItem> {
        if matches!(self.stage, TicketStage::Fresh)
            && let Some(reply) = self.begin().await
        {
            self.stage = TicketStage::Ended;
            return Some(reply.into());
        }
        loop {
            let TicketStage::Waiting(watch, heartbeat) = &mut self.stage else { return None };
            let reply = match watch.next().await {
                WatchEvent::Message(_) => continue,
                WatchEvent::Progress(message) => {
                    match heartbeat.as_mut().and_then(|beat| beat.beat_with_message(&message)) {
                        Some(beat) => return Some(ReplyItem::Notification(beat)),
                        None => continue,
                    }
                }
                WatchEvent::InputRequired(record) => {
                    let requests = watch.receivable_requests(&record);
                    if requests.is_empty() {
                        continue;
                    }
                    watch.report_sent(&requests);
                    self.input_required_reply(&record, &requests)
                }
                WatchEvent::Ended(record, commit) => {
                    let names = Arc::clone(&watch.ticket_options.names);
                    CallReply { commit: Some(commit), ..self.ended_reply(&record, &names.result) }
                }
                WatchEvent::StillRunning(record) => {
                    let running = watch.running_result(&record);
                    let mut reply = self.call_result_reply(&record, running);
                    reply.summary.shown_status = Some(record.state.status());
                    reply.summary.origin = record.trace.clone();
                    reply
                }
                WatchEvent::Expired => self.result_reply(view::ticket::unknown_ticket_result()),
                WatchEvent::Closing => {
                    let error = reply::record_call_error(&CallError::Closing);
                    reply::refuse(&self.call, StatusCode::OK, &error)
                }
            };
            self.stage = TicketStage::Ended;
            return Some(reply.into());
        }
    }
}

/// The input requests that the caller can receive, by the capabilities in its current request.
fn input_filter(caller: &Caller) -> InputFilter {
    let declared = Arc::clone(&caller.capabilities);
    InputFilter::new(move |method, params| declared.missing_for(method, params).is_none())
}

/// Adds the ticket tools to the reply to `tools/list`, if the caller is eligible for tickets.
pub(in crate::proxy) fn add_ticket_tools(
    shared: &RouteContext,
    call: &Call,
    caller: &Caller,
    reply: &mut CallReply,
) {
    let Some(grant) = tickets::modern_eligibility(shared, call, caller) else { return };
    let tool_list = Frame::parse(reply.body.clone()).ok();
    if let Some(edited) = tool_list.and_then(|tool_list| {
        tickets::edit_tool_list(shared, &tool_list, (grant, &caller.rollout_membership), |_| true)
    }) {
        reply.body = edited;
    }
}
