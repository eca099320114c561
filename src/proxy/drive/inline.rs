//! A call of a client of 2026-07-28 that waits, polled in place by the client's connection.
//!
//! When the call becomes a task, or its server sends an input request that can be forwarded to the client,
//! the call's [`CallDriver`] moves to a runtime task of its own, and the [`InlineCall`] only forwards its
//! messages. A retry of a parked call connects to that driver at once. A client disconnect drops the
//! [`InlineCall`]: the upstream stream is dropped with it, which cancels the call at the server; after the
//! move, the detached driver sees the closed channel.

use super::{CallDriver, CallForm, CallSpan, CanonicalForm, DetachReason, DriveEvent, canonical::ServerCell};
use crate::{
    bridge::{DriveMode, ExchangeAction, ToolParamHeaders, plan, ticket::TicketOptions},
    dialect::{Call, CallResponse, Caller, modern},
    policy::{Mode, ToolPolicy},
    protocol::{ErrorObject, Frame, InputResponses, Method, code, headers},
    proxy::{
        CallReply, ReplyItem,
        admission::PendingAdmission,
        call_registry::{CallWaiter, ReplyTarget},
        input_requests::{self, CallAttempt},
        observed_call::ObservedCall,
        reply::{self, CallEnd, call_reply::ReplySource},
        route_context::RouteContext,
        tickets,
        tickets::modern_call as ticket_call,
    },
    runtime::{TaskToken, wait_until},
    upstream::{
        CallError, CallTarget, CallerIdentity, Deferral, OutgoingCall, ReadyServer, UpstreamDescription,
        UpstreamEvent, UpstreamEvents, own_ids,
    },
};
use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
    stream,
};
use http::{StatusCode, header};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// One call of a client of 2026-07-28 whose client is connected: the source of its messages for the client.
pub(in crate::proxy) struct InlineCall {
    shared: Arc<RouteContext>,
    call: Arc<Call>,
    caller: Arc<Caller>,
    stage: InlineStage,
    /// Time spent waiting for the server.
    upstream_time: Duration,
    /// Delays shutdown until the call ends, or until a detached driver, which delays it as well, drives the
    /// call.
    work: Option<TaskToken>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the common one, and a box would cost every call"
)]
enum InlineStage {
    /// The call has not been sent.
    Fresh,
    Inline {
        driver: CallDriver,
    },
    /// The call is detached; its messages for the client arrive on the channel.
    Detached {
        items: mpsc::Receiver<ReplyItem>,
        since: Instant,
    },
    /// The reply has been returned.
    Done,
}

/// What is known of the server before a call is sent.
#[derive(Default)]
struct ServerPreparation {
    server: ServerCell,
    /// The target of the call, if it is known without waiting.
    target: Option<Arc<dyn CallTarget>>,
    /// Present if the server is still being described.
    pending: Option<BoxFuture<'static, PrepareResult>>,
}

/// The outcome of [`prepare`]: the description of the server, or the refusal of the call.
type PrepareResult = Result<Arc<UpstreamDescription>, Box<CallReply>>;

// === impl InlineCall ===

impl InlineCall {
    /// Creates the call without sending it; the first poll of its messages sends it.
    pub(in crate::proxy) fn new(shared: Arc<RouteContext>, call: Arc<Call>, caller: Caller) -> Self {
        Self {
            work: Some(shared.stopping.track()),
            shared,
            call,
            caller: Arc::new(caller),
            stage: InlineStage::Fresh,
            upstream_time: Duration::ZERO,
        }
    }

    /// Checks, admits and sends the call, or attaches a retry to its parked call. The threshold counts from
    /// the start of this function. A slow handshake or tool list does not delay the handle: then the call
    /// becomes a task before it is sent.
    ///
    /// # Errors
    /// The reply that refuses the call.
    async fn start(&mut self) -> Result<(), Box<CallReply>> {
        let tool = self.call.target.as_deref().unwrap_or_default();
        let policy = self.shared.route.tool_policy_for(tool, &self.caller.rollout_membership);
        if policy.mode == Mode::Deny && self.call.method == Method::ToolsCall {
            // Refuse before the server is described, which may take long.
            return Err(Box::new(reply::refuse(&self.call, StatusCode::OK, &plan::denied_error(tool))));
        }
        let ticket = tickets::modern_ticket_options(&self.shared, &self.call, &self.caller, &policy);
        let planned = plan(&self.call, &self.caller, &policy, ticket.as_ref().map(|(terms, _)| terms.after));
        let attempt = match self.call.method.can_request_input() {
            true => input_requests::read_attempt(&self.shared, &self.caller, &self.call),
            false => Ok(CallAttempt::Fresh(InputResponses::default())),
        };
        let began = self.shared.clock.now();
        // A retry waits for its parked call, whatever the state of the server.
        let is_retry = matches!(attempt, Ok(CallAttempt::Retry(..)));
        // Observed from here on: the client may disconnect before the call is sent.
        let observed = (matches!(planned, Ok(DriveMode::Observe { .. })) && !is_retry)
            .then(|| ObservedCall::begin(&self.shared, tool, &policy, began));
        let defer_after = match &planned {
            Ok(DriveMode::Defer { after } | DriveMode::Ticket { after }) => Some(*after),
            Ok(DriveMode::Observe { .. } | DriveMode::Inline) | Err(_) => None,
        };
        let preparation = match is_retry {
            // The server was described for the first attempt. It may be gone, which the driver of the parked
            // call detects.
            true => {
                if self.call.method == Method::ToolsCall {
                    // Boxed: only retries need it, and it would enlarge every waiting call.
                    Box::pin(check_param_headers(&self.shared, &self.call, &self.caller)).await?;
                }
                self.upstream_time += self.shared.clock.now() - began;
                ServerPreparation::default()
            }
            false => {
                let due = defer_after.filter(|_| attempt.is_ok()).map(|after| began + after);
                self.prepare_server(began, due).await?
            }
        };
        planned.map_err(|error| Box::new(reply::refuse(&self.call, StatusCode::BAD_REQUEST, &error)))?;
        let supplied = match attempt? {
            CallAttempt::Fresh(responses) => responses,
            CallAttempt::Repeat => InputResponses::default(),
            CallAttempt::Retry(parked_call, responses) => {
                let (shared, caller, call) = (&self.shared, &self.caller, &self.call);
                let resumption =
                    input_requests::resume_parked(shared, caller, call, &parked_call, responses, defer_after);
                let items = Box::pin(resumption).await?;
                self.follow_detached(items);
                return Ok(());
            }
        };
        let ticket_options = ticket.map(|(_, options)| Box::new(options));
        self.send(preparation, supplied, (policy, ticket_options), (defer_after, began), observed)
    }

    /// Describes the server, and checks the call against the server's tools; waits until `due` at most.
    ///
    /// # Errors
    /// The reply that refuses the call.
    async fn prepare_server(
        &mut self,
        began: Instant,
        due: Option<Instant>,
    ) -> Result<ServerPreparation, Box<CallReply>> {
        if let Some(prepared) = self.prepare_cached() {
            return prepared;
        }
        let prepare = prepare(Arc::clone(&self.shared), Arc::clone(&self.call), Arc::clone(&self.caller));
        let mut preparing = prepare.boxed();
        let prepared = tokio::select! {
            biased;
            prepared = &mut preparing => Some(prepared),
            () = wait_until(due) => None,
            () = self.shared.overdue.stopped() => return Err(Box::new(self.closing_reply())),
        };
        self.upstream_time += self.shared.clock.now() - began;
        let mut preparation = ServerPreparation::default();
        match prepared {
            Some(prepared) => preparation.server.set_description(prepared?),
            None => preparation.pending = Some(preparing),
        }
        Ok(preparation)
    }

    /// Admits and sends a call; the call is then polled in place.
    ///
    /// # Errors
    /// The reply that refuses the call.
    fn send(
        &mut self,
        preparation: ServerPreparation,
        supplied: InputResponses,
        (policy, ticket_options): (ToolPolicy, Option<Box<TicketOptions>>),
        (defer_after, began): (Option<Duration>, Instant),
        observed: Option<Box<ObservedCall>>,
    ) -> Result<(), Box<CallReply>> {
        let ServerPreparation { server, target, pending } = preparation;
        let admission = self.admit(self.call.target.as_deref().unwrap_or_default())?;
        let span = CallSpan::begin_for_call(&self.shared, &mut self.call);
        let (shared, call, caller) = (&self.shared, &self.call, &self.caller);
        let deferral = defer_after.map(|_| Deferral::new(self.shared.ledger.is_durable()));
        let replies = match (pending, target) {
            (None, Some(target)) => {
                let identity = (caller.principal, &caller.credentials);
                target.call(own_ids::next_in_pool(), call, identity, deferral.clone())
            }
            (None, None) => shared.upstream.call(outgoing_call(call, caller, deferral.clone())),
            (Some(preparing), _) => {
                call_when_prepared(preparing, shared, call, caller, &server, deferral.clone())
            }
        };
        let tool = call.target.as_deref().unwrap_or_default();
        let can_be_limited = call.method.can_request_input();
        let limits = can_be_limited.then(|| shared.call_limits(tool, caller.principal, deferral.as_ref()));
        let limits = limits.flatten();
        let (replies, dequeued) = match &limits {
            Some(limits) => limits.limit_replies(admission, replies, &shared.clock),
            None => (replies, None),
        };
        let canonical = CanonicalForm {
            call: Arc::clone(call),
            caller: Arc::clone(caller),
            server,
            binding: None,
            missing_capability: None,
            supplied,
            deferral,
            ticket_options,
            progress: None,
            began,
        };
        let mut driver = CallDriver::inline(shared, canonical, replies, policy, (defer_after, began), span);
        (driver.limits, driver.dequeued) = (limits, dequeued);
        if let Some(observed) = observed {
            driver.observe(observed);
        }
        self.stage = InlineStage::Inline { driver };
        Ok(())
    }

    /// Admits the call to the limits of its route and tool. `None` if there are no limits.
    ///
    /// # Errors
    /// The reply that refuses the call.
    fn admit(&self, tool: &str) -> Result<Option<PendingAdmission>, Box<CallReply>> {
        if self.shared.limiters.is_none() || self.call.method != Method::ToolsCall {
            return Ok(None);
        }
        self.shared.admit(std::iter::once(tool), self.caller.principal).map_err(|refusal| {
            let mut reply = reply::refuse(&self.call, StatusCode::OK, &refusal.record_and_build_error());
            reply.headers.extend(refusal.retry_after().map(|wait| (header::RETRY_AFTER, wait)));
            Box::new(reply)
        })
    }

    /// Does the work of [`prepare`] without waiting, which is possible for nearly every call; `None`
    /// otherwise.
    fn prepare_cached(&self) -> Option<Result<ServerPreparation, Box<CallReply>>> {
        let (shared, call, caller) = (&self.shared, &self.call, &self.caller);
        let ReadyServer { description, calls } =
            shared.upstream.ready_server(&CallerIdentity::from_caller(caller))?;
        if call.method == Method::ToolsCall
            && let Err(refusal) = shared.peek_tool_list(caller, |param_headers| {
                param_headers.map_or(Ok(()), |param_headers| compare_param_headers(call, param_headers))
            })?
        {
            return Some(Err(refusal));
        }
        let server = ServerCell::default();
        server.set_description(description);
        Some(Ok(ServerPreparation { server, target: Some(calls), pending: None }))
    }

    /// Waits for one event of the call that is polled in place, and handles it. Returns the resulting message
    /// for the client, if there is one.
    async fn step(&mut self) -> Option<ReplyItem> {
        let InlineStage::Inline { driver } = &mut self.stage else { return None };
        let began = self.shared.clock.now();
        let event = driver.next_inline_event().await;
        let now = self.shared.clock.now();
        self.upstream_time += now - began;
        driver.stop_making_tasks();
        driver.exchange.observe_time(now);
        let CallForm::Canonical(canonical) = &mut driver.form else { return None };
        match event {
            DriveEvent::Server(UpstreamEvent::Notification(frame)) => {
                canonical.remember_progress(&frame);
                return modern::translate_notification(&self.call, &frame).map(ReplyItem::Notification);
            }
            DriveEvent::Server(
                event @ (UpstreamEvent::ServerRequest(_) | UpstreamEvent::InputRequired(_)),
            ) => {
                if let Some(reason) = canonical.detach_reason(&self.shared.route.path, event) {
                    self.detach(reason);
                }
                return None;
            }
            DriveEvent::Server(UpstreamEvent::RequestCancelled { .. }) | DriveEvent::Dequeued => {}
            DriveEvent::Server(UpstreamEvent::Final(response)) => driver.end(CallEnd::Response(response)),
            DriveEvent::Server(UpstreamEvent::Lost(call_error)) => driver.end(CallEnd::Lost(call_error)),
            DriveEvent::Due => driver.exchange.handle_timeout(now),
            DriveEvent::Draining => driver.exchange.handle_drain(now),
            DriveEvent::Overdue => driver.end(CallEnd::Lost(CallError::Closing)),
        }
        match driver.exchange.poll_action()? {
            ExchangeAction::Reply(end) => self.end_reply(end),
            action => {
                self.detach(DetachReason::Action(action));
                None
            }
        }
    }

    /// Ends the stream of messages with the reply for this end of the call.
    fn end_reply(&mut self, end: CallEnd) -> Option<ReplyItem> {
        let InlineStage::Inline { driver } = &mut self.stage else { return None };
        let CallForm::Canonical(canonical) = &driver.form else { return None };
        let mut reply = canonical.reply(&self.shared, &self.call, end);
        if self.call.method == Method::ToolsList {
            ticket_call::add_ticket_tools(&self.shared, &self.call, &self.caller, &mut reply);
        }
        if let Some(observed) = &mut driver.observed {
            observed.record_outcome(reply.summary.outcome);
        }
        Some(self.final_reply(reply))
    }

    /// Moves the call to a runtime task of its own, which first handles the reason for the move.
    fn detach(&mut self, reason: DetachReason) {
        let InlineStage::Inline { driver } = std::mem::replace(&mut self.stage, InlineStage::Done) else {
            return;
        };
        // The buffer is small, so that messages that the client does not read wait at the server.
        let (items, received) = mpsc::channel(8);
        // The request body is not needed any more, and may be megabytes.
        self.call = Arc::new(self.call.without_bytes());
        let (call, capabilities) = (Box::new(Call::clone(&self.call)), Arc::clone(&self.caller.capabilities));
        driver.detach(CallWaiter { target: ReplyTarget::Canonical { call, capabilities }, items }, reason);
        self.follow_detached(received);
    }

    /// Receives the remaining messages from the detached driver.
    fn follow_detached(&mut self, items: mpsc::Receiver<ReplyItem>) {
        self.stage = InlineStage::Detached { items, since: self.shared.clock.now() };
        self.work = None;
    }

    /// The reply to a call that was not sent before the drain time was over.
    fn closing_reply(&self) -> CallReply {
        reply::call_end_reply(&self.call, &self.shared.route, CallEnd::Lost(CallError::Closing), None)
    }

    /// Ends the stream of messages with this reply.
    fn final_reply(&mut self, mut reply: CallReply) -> ReplyItem {
        reply.summary.upstream_time = self.upstream_time;
        self.stage = InlineStage::Done;
        ReplyItem::Reply(reply)
    }
}

impl ReplySource for InlineCall {
    /// The next message for the client. Cancel safe.
    async fn next(&mut self) -> Option<ReplyItem> {
        loop {
            match &mut self.stage {
                InlineStage::Fresh => {
                    if let Err(reply) = self.start().await {
                        return Some(self.final_reply(*reply));
                    }
                }
                InlineStage::Inline { .. } => {
                    if let Some(item) = self.step().await {
                        return Some(item);
                    }
                }
                InlineStage::Detached { items, since } => match items.recv().await {
                    Some(ReplyItem::Reply(reply)) => {
                        self.upstream_time += self.shared.clock.now() - *since;
                        return Some(self.final_reply(reply));
                    }
                    other => return other,
                },
                InlineStage::Done => return None,
            }
        }
    }
}

/// Describes the server, and checks the call against the server's tools; may wait for the server.
async fn prepare(shared: Arc<RouteContext>, call: Arc<Call>, caller: Arc<Caller>) -> PrepareResult {
    let server =
        shared.upstream.describe(&CallerIdentity::from_caller(&caller)).await.map_err(|lost| {
            Box::new(reply::call_end_reply(&call, &shared.route, CallEnd::Lost(lost), None))
        })?;
    if call.method == Method::ToolsCall {
        check_param_headers(&shared, &call, &caller).await?;
    }
    Ok(server)
}

/// The call for the upstream, with a new request id.
fn outgoing_call(call: &Arc<Call>, caller: &Caller, deferral: Option<Deferral>) -> OutgoingCall {
    OutgoingCall {
        id: own_ids::next_in_pool(),
        call: Arc::clone(call),
        caller: CallerIdentity::from_caller(caller),
        deferral,
    }
}

/// The upstream events of a call that becomes a task while its server is still being described: the call is
/// sent once `preparing` resolves. A failed check ends the call.
fn call_when_prepared(
    preparing: BoxFuture<'static, PrepareResult>,
    shared: &Arc<RouteContext>,
    call: &Arc<Call>,
    caller: &Arc<Caller>,
    server: &ServerCell,
    deferral: Option<Deferral>,
) -> UpstreamEvents {
    let (shared, call, caller) = (Arc::clone(shared), Arc::clone(call), Arc::clone(caller));
    let server = server.clone();
    let replies = async move {
        match preparing.await {
            Ok(description) => {
                server.set_description(description);
                shared.upstream.call(outgoing_call(&call, &caller, deferral))
            }
            Err(refusal) => {
                let event = match Frame::parse(refusal.body) {
                    Ok(frame) => UpstreamEvent::Final(CallResponse::relayed(frame)),
                    Err(error) => UpstreamEvent::Lost(CallError::Invalid(error.to_string())),
                };
                stream::once(ready(event)).boxed()
            }
        }
    };
    stream::once(replies).flatten().boxed()
}

/// Compares the `Mcp-Param-*` headers of a call with its arguments (2026-07-28, *Server Behavior for Custom
/// Headers*). The check passes if the server's tools cannot be listed.
///
/// # Errors
/// The reply that refuses a call with a mismatch.
async fn check_param_headers(
    shared: &RouteContext,
    call: &Call,
    caller: &Caller,
) -> Result<(), Box<CallReply>> {
    let Some(param_headers) = shared.tool_list(caller).await else { return Ok(()) };
    compare_param_headers(call, &param_headers)
}

/// Compares the `Mcp-Param-*` headers of a call with its arguments, given the server's tools.
///
/// # Errors
/// The reply that refuses a call with a mismatch.
fn compare_param_headers(call: &Call, param_headers: &ToolParamHeaders) -> Result<(), Box<CallReply>> {
    let mirrored = param_headers.headers_of_tool(call.target.as_deref().unwrap_or_default());
    if mirrored.is_empty() {
        return Ok(());
    }
    let arguments = call.params.as_ref().and_then(|params| params.get("arguments"));
    headers::check_params(mirrored, arguments.as_ref(), &call.headers).map_err(|mismatch| {
        let error = ErrorObject::new(code::HEADER_MISMATCH, mismatch.to_string());
        Box::new(reply::refuse(call, StatusCode::BAD_REQUEST, &error))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TASKS, TestServer, call, endpoint, response};
    use super::*;
    use crate::{policy, runtime::Clock, upstream::Upstream};
    use serde_json::{Value, json};
    use std::future::pending;
    use tokio::time::sleep;

    /// A server whose handshake and tool list each take `preparing`. It answers calls with the result
    /// `answer`, or never.
    fn slow_server(preparing: Duration, answer: Option<&'static str>) -> impl Upstream {
        let answers = move |outgoing: OutgoingCall| {
            let (takes, result) = match outgoing.call.method {
                Method::ToolsList => (preparing, Some(r#"{"tools":[]}"#)),
                _ => (Duration::ZERO, answer),
            };
            stream::once(async move {
                let Some(result) = result else { return pending().await };
                sleep(takes).await;
                response(result)
            })
            .boxed()
        };
        TestServer { preparing, answers }
    }

    /// The response to a client with task support, and how long it took.
    async fn call_and_time(server: impl Upstream, defer: policy::DeferPolicy) -> (Value, Duration) {
        let (endpoint, clock) = endpoint(server, defer);
        let began = clock.now();
        let answer = call(&endpoint, "tools/call", TASKS, json!({ "name": "t" })).await;
        (answer, clock.now() - began)
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_the_handshake_and_the_tools_counts_against_the_threshold() {
        let (second, after) = (Duration::from_secs(1), Duration::from_secs(5));
        let defer = policy::DeferPolicy { after, ..policy::DeferPolicy::default() };
        for preparing in [0, 1, 2, 3, 60] {
            let server = slow_server(preparing * second, None);
            let (answer, took) = call_and_time(server, defer.clone()).await;
            assert_eq!(answer["result"]["resultType"], "task", "{answer:#}");
            assert_eq!(took, after, "{preparing}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_refusal_keeps_its_code_in_the_task() {
        let tools = r#"{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{"p":{"type":"string","x-mcp-header":"P"}}}}]}"#;
        let minute = Duration::from_secs(60);
        let answers = move |_: OutgoingCall| stream::once(ready(response(tools))).boxed();
        let (endpoint, _) =
            endpoint(TestServer { preparing: minute, answers }, policy::DeferPolicy::default());
        let params = json!({ "name": "t", "arguments": { "p": "unmirrored" } });
        let task = call(&endpoint, "tools/call", TASKS, params).await;
        let id = &task["result"]["taskId"];
        sleep(3 * minute).await;
        let shown = call(&endpoint, "tasks/get", TASKS, json!({ "taskId": id })).await;
        assert_eq!(shown["result"]["status"], "failed", "{shown}");
        assert_eq!(shown["result"]["error"]["code"], code::HEADER_MISMATCH, "{shown}");
    }

    #[tokio::test(start_paused = true)]
    async fn mode_always_always_makes_a_task() {
        let defer = policy::DeferPolicy { mode: Mode::Always, ..policy::DeferPolicy::default() };
        for _ in 0..20 {
            let server = slow_server(Duration::ZERO, Some(r#"{"content":[]}"#));
            let (answer, _) = call_and_time(server, defer.clone()).await;
            assert_eq!(answer["result"]["resultType"], "task", "{answer:#}");
        }
    }
}
