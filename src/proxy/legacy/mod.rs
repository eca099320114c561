//! Requests of legacy clients in front of a legacy server: which are relayed, and which the proxy serves.
//!
//! Requests are relayed, and the server's responses come back unchanged ([`relay`]). If the server has no
//! tasks of its own, some messages are intercepted, because the proxy serves the tasks of 2025-11-25: `deny`
//! refuses calls of denied tools; `task_capability` adds tasks to the server's capabilities; `require_task`
//! refuses messages that would run a tool other than as the required task; `task_call` makes a call a task,
//! [`CallDriver`](super::drive) runs it, and `answers::experimental` responds for the task, once `ping` has
//! shown that the session exists. `session_delete` ends sessions; `detach_on_drop` completes the dispatch of
//! a call whose client disconnects before it is sent. The state of a session is in
//! [`session`](super::session).
//!
//! Requests of clients of other revisions, and requests to servers with tasks of their own, are relayed.

mod deny;
mod detach_on_drop;
mod ping;
mod require_task;
mod session_delete;
mod task_call;
mod task_capability;

use super::{
    AccessSummary, LegacyRequest, LegacyResponse,
    admission::{CallLimitError, PendingAdmission},
    answers::experimental,
    observed_call::ObservedCall,
    relay::{
        self, ResponseEdit, event_ids,
        legacy_http::{self, empty_response, refusal_response},
    },
    reply::{self, shutdown_error},
    route_context::RouteContext,
    session::{LegacyClient, ResponseOwner},
    tickets::{self, legacy_call},
};
use crate::{
    bridge::{DriveMode, LegacyToolCall, Plan, offer, plan_legacy},
    dialect::legacy::ClientMessage,
    policy::Mode,
    protocol::{Frame, Method, RequestId},
    telemetry::RequestOutcome,
};
use detach_on_drop::{DetachOnDrop, DispatchFlag};
use http::{StatusCode, header::RETRY_AFTER};
use std::sync::Arc;

/// The decision about a client's request.
enum RequestDisposition {
    /// Relay the request to the server; apply the edit, if present, to the response.
    Relay(Option<ResponseEdit>),
    /// Relay this message in place of the client's message.
    RelayAs(Frame),
    /// Send this response to the client; the server receives nothing.
    Respond(LegacyResponse),
}

/// Serves one HTTP request of a legacy client in front of a legacy server: relays it, or responds in the
/// server's place.
pub(super) async fn serve(shared: Arc<RouteContext>, request: LegacyRequest) -> LegacyResponse {
    let client = LegacyClient::from_headers(request.principal, &request.headers, &shared.sessions.revisions);
    if let Some(refusal) = session_delete::closed_session_response(&shared, &client, &request) {
        return refusal;
    }
    if shared.stopping.is_stopped()
        && is_new_work(&request)
        && !legacy_call::is_ticket_call(&shared, &client, &request)
    {
        return stopping_response(&request);
    }
    // The future of a DELETE is boxed, so that it does not enlarge the future of every call.
    if request.method == http::Method::DELETE {
        return Box::pin(session_delete::delete_session(shared, client, request)).await;
    }
    if !can_be_intercepted(&shared, &client, &request) {
        return apply_disposition(shared, client, request, RequestDisposition::Relay(None)).await;
    }
    let dispatch_flag = DispatchFlag::default();
    // A call and a change of a task continue after their client disconnects; a request that waits for the
    // result of another call ends.
    let outlives_client = request.post.can_request_input()
        && !legacy_call::is_ticket_call(&shared, &client, &request)
        || is_task_change(&request);
    let (drain, detach_flag) = (shared.stopping.clone(), dispatch_flag.clone());
    let serving = async move {
        let disposition = decide(&shared, &client, &request, &dispatch_flag).await;
        dispatch_flag.set();
        apply_disposition(shared, client, request, disposition).await
    };
    match outlives_client {
        true => DetachOnDrop::new(drain, detach_flag, serving).await,
        false => Box::pin(serving).await,
    }
}

/// Whether the request cancels a task, or carries the response to an input request.
fn is_task_change(request: &LegacyRequest) -> bool {
    matches!(
        &request.post.messages[..],
        [ClientMessage::Request { method: Method::TasksCancel, .. } | ClientMessage::Response(Some(_))]
    )
}

/// Applies the decision about a request: relays the request, or returns the prepared response.
async fn apply_disposition(
    shared: Arc<RouteContext>,
    client: LegacyClient,
    request: LegacyRequest,
    disposition: RequestDisposition,
) -> LegacyResponse {
    match disposition {
        RequestDisposition::Relay(edit) => {
            if let Some(resumed) = event_ids::resume(&shared, &client, &request) {
                return resumed;
            }
            let observed = ObservedCall::begin_for_request(&shared, &request);
            let admission = match admit(&shared, &request) {
                Ok(admission) => admission,
                Err(limit_error) => return not_admitted_response(&request, &limit_error),
            };
            let replay = event_ids::replay_params(&shared, &client, &request);
            let is_initialize = matches!(
                &request.post.messages[..],
                [ClientMessage::Request { method: Method::Initialize, .. }]
            );
            let response =
                relay::forward(Arc::clone(&shared), client, request, edit, (admission, observed)).await;
            shared.sessions.note_response(&client, is_initialize, &response);
            match replay {
                Some(params) => event_ids::buffer_response(&shared, params, response),
                None => response,
            }
        }
        RequestDisposition::RelayAs(message) => {
            let request =
                LegacyRequest { body: message.as_bytes().clone(), message: Some(message), ..request };
            Box::pin(apply_disposition(shared, client, request, RequestDisposition::Relay(None))).await
        }
        RequestDisposition::Respond(response) => response,
    }
}

/// Admits the calls in a request to the concurrency and rate limits. Returns `None` if the request holds no
/// call with limits.
fn admit(shared: &RouteContext, request: &LegacyRequest) -> Result<Option<PendingAdmission>, CallLimitError> {
    if shared.limiters.is_none() {
        return Ok(None);
    }
    let mut tools = request.post.called_tools().peekable();
    if tools.peek().is_none() {
        return Ok(None);
    }
    shared.admit(tools, request.principal)
}

/// Builds the response to a request whose calls are not admitted; nothing is sent to the server.
fn not_admitted_response(request: &LegacyRequest, limit_error: &CallLimitError) -> LegacyResponse {
    let error = limit_error.record_and_build_error();
    let summary = AccessSummary::failed(RequestOutcome::Refused, &error);
    let mut response =
        legacy_http::refuse_requests(StatusCode::OK, &request.post.request_ids(), &error, summary);
    response.headers.extend(limit_error.retry_after().map(|retry_after| (RETRY_AFTER, retry_after)));
    response
}

/// Whether a request begins new work: the request is neither about a task, nor a response, nor a ping.
fn is_new_work(request: &LegacyRequest) -> bool {
    request.post.messages.iter().any(|message| match message {
        ClientMessage::Request { method, .. } => !method.is_legacy_task_method() && *method != Method::Ping,
        _ => false,
    })
}

/// Builds the 503 response to new work while the proxy shuts down; nothing is sent to the server. Another
/// process may serve the retry.
fn stopping_response(request: &LegacyRequest) -> LegacyResponse {
    let (status, summary) =
        (StatusCode::SERVICE_UNAVAILABLE, AccessSummary::new(RequestOutcome::ProxyFailed));
    let mut response =
        legacy_http::refuse_requests(status, &request.post.request_ids(), &shutdown_error(), summary);
    response.headers.insert(RETRY_AFTER, reply::RETRY_AFTER);
    response
}

/// Whether a request may have to be intercepted. The check is cheap, because most requests are relayed.
fn can_be_intercepted(shared: &RouteContext, client: &LegacyClient, request: &LegacyRequest) -> bool {
    // An `initialize` is intercepted on every route, to record the server's capabilities.
    if let [ClientMessage::Request { method: Method::Initialize, .. }] = &request.post.messages[..] {
        return true;
    }
    if shared.sessions.pending_requests.has_queued()
        && matches!(&request.post.messages[..], [ClientMessage::Cancelled(_)])
    {
        return true;
    }
    if deny::must_check(shared, request) || legacy_call::can_intercept(shared, client, request) {
        return true;
    }
    if !shared.route.has_tasks() {
        // A route without tasks intercepts only calls of clients that the operator named for unsolicited
        // tasks: `params.task` is removed (SEP-2229, draft), because not every server would ignore the
        // parameter.
        return matches!(
            &request.post.messages[..],
            [ClientMessage::Request { method: Method::ToolsCall, .. }]
        ) && task_call::is_named_unsolicited(shared, request)
            && has_task_param(request);
    }
    if require_task::must_check(shared, request) {
        return true;
    }
    match &request.post.messages[..] {
        [ClientMessage::Request { method: Method::ToolsList, .. }] => true,
        [ClientMessage::Request { method, .. }] if method.is_legacy_task_method() => true,
        [ClientMessage::Request { method: Method::ToolsCall, target, .. }] => {
            let tool = target.as_deref().unwrap_or_default();
            let mode = shared.route.tool_policy_for(tool, &request.rollout_membership).mode;
            mode == Mode::Required
                || (mode.makes_tasks() && task_call::can_take_unsolicited(shared, client, request))
                || (is_offered(shared, request) && has_task_param(request))
        }
        [ClientMessage::Cancelled(_)] => !shared.sessions.waiting_calls.is_empty(),
        [ClientMessage::Response(Some(id))] => {
            offer::is_own_input_request(id) || !shared.sessions.input_requests.is_empty()
        }
        _ => false,
    }
}

/// Whether this caller may use tasks: the route offers them to the caller, or the operator has named the
/// client for unsolicited tasks.
fn is_offered(shared: &RouteContext, request: &LegacyRequest) -> bool {
    shared.route.can_offer_tasks(&request.rollout_membership)
        || task_call::is_named_unsolicited(shared, request)
}

/// Whether a call requests a task with `params.task`, valid or not.
fn has_task_param(request: &LegacyRequest) -> bool {
    request.params().is_some_and(|params| !matches!(offer::read_task_param(params), Ok(None)))
}

/// Decides how a request is served. Sets the flag when the dispatch of a call is decided.
async fn decide(
    shared: &Arc<RouteContext>,
    client: &LegacyClient,
    request: &LegacyRequest,
    dispatch_flag: &DispatchFlag,
) -> RequestDisposition {
    if let Some(refusal) = deny::refuse(shared, client, request) {
        return RequestDisposition::Respond(refusal);
    }
    if let Some(refusal) = require_task::refuse(shared, request).await {
        return RequestDisposition::Respond(refusal);
    }
    match &request.post.messages[..] {
        [ClientMessage::Request { method: Method::Initialize, .. }] => {
            RequestDisposition::Relay(Some(task_capability::edit_initialize(
                Arc::clone(shared),
                request.params(),
                (client.principal, &request.rollout_membership),
            )))
        }
        [ClientMessage::Request { method: Method::ToolsList, .. }] => {
            let offered = shared.route.can_offer_tasks(&request.rollout_membership)
                && task_capability::is_offered(shared, client, request).await;
            let edit = offered.then(|| {
                task_capability::edit_tool_list(Arc::clone(shared), request.rollout_membership.clone())
            });
            RequestDisposition::Relay(match tickets::legacy_eligibility(shared, client, request) {
                Some(grant) => {
                    let grant_and_membership = (grant, request.rollout_membership.clone());
                    Some(legacy_call::edit_tool_list(shared, client, grant_and_membership, edit))
                }
                None => edit,
            })
        }
        [ClientMessage::Request { method: Method::ToolsCall, id, target }] => {
            let tool = target.as_deref().unwrap_or_default();
            decide_call(shared, request, client, (id, tool), dispatch_flag).await
        }
        [ClientMessage::Request { method, id, target }]
            if method.is_legacy_task_method()
                && task_capability::is_offered(shared, client, request).await =>
        {
            RequestDisposition::Respond(match ping::check_session(shared, request, client.session).await {
                Some(refusal) => refusal,
                None => experimental::serve(shared, request, client, method, id, target.as_deref()).await,
            })
        }
        [ClientMessage::Cancelled(Some(id))] if withdraw_queued(shared, client, id) => {
            RequestDisposition::Respond(empty_response(StatusCode::ACCEPTED))
        }
        [ClientMessage::Cancelled(_)] if legacy_call::cancel_waiting(shared, client, request) => {
            RequestDisposition::Respond(empty_response(StatusCode::ACCEPTED))
        }
        [ClientMessage::Cancelled(_)] if task_call::cancel_waiting(shared, client, request) => {
            RequestDisposition::Respond(empty_response(StatusCode::ACCEPTED))
        }
        [ClientMessage::Response(Some(id))] => {
            let find_owner_task =
                || match shared.sessions.input_requests.response_owner(client.session?, id)? {
                    ResponseOwner::Task(task, key) => Some((task, key)),
                    ResponseOwner::Call => None,
                };
            match offer::parse_input_request_id(id).or_else(find_owner_task) {
                Some((task, key)) => RequestDisposition::Respond(
                    experimental::receive_response(shared, request, client, &task, key).await,
                ),
                None => RequestDisposition::Relay(None),
            }
        }
        _ => RequestDisposition::Relay(None),
    }
}

/// Cancels a call that waits in the proxy's queue. Returns whether the call was in the queue.
fn withdraw_queued(shared: &RouteContext, client: &LegacyClient, id: &RequestId) -> bool {
    client.session.is_some_and(|session| shared.sessions.pending_requests.withdraw_queued(session, id))
}

/// Decides whether a `tools/call` is relayed, refused, or made by the proxy as a task or as a call that may
/// become one.
async fn decide_call(
    shared: &Arc<RouteContext>,
    request: &LegacyRequest,
    client: &LegacyClient,
    (id, tool): (&RequestId, &str),
    dispatch_flag: &DispatchFlag,
) -> RequestDisposition {
    let Some(message) = &request.message else { return RequestDisposition::Relay(None) };
    if let Some(response) = legacy_call::serve(shared, request, client, id, tool).await {
        return RequestDisposition::Respond(response);
    }
    let Some(params) = message.params() else { return RequestDisposition::Relay(None) };
    let task_param = match client.has_task_support() {
        true => offer::read_task_param(params),
        // A proxy that has not declared task support to the client ignores `params.task` (2025-11-25,
        // *Tasks*).
        false => Ok(None),
    };
    let accepts_unsolicited = task_call::can_take_unsolicited(shared, client, request);
    let ticketing = tickets::legacy_ticket_options(shared, client, request, tool);
    let ticket = ticketing.as_ref().map(|(terms, _)| terms.after);
    let policy = shared.route.tool_policy_for(tool, &request.rollout_membership);
    let plan =
        plan_legacy(&LegacyToolCall { tool, task_param, accepts_unsolicited, ticket_after: ticket }, &policy);
    let is_ticket = matches!(plan, Plan::Drive(DriveMode::Ticket { .. }));
    // Tickets are for clients without task support, to which the server's own tasks are irrelevant.
    let server_has_tasks = || shared.server_has_tasks(request.principal, &request.headers);
    if plan == Plan::Relay || !is_ticket && server_has_tasks().await {
        return RequestDisposition::Relay(None);
    }
    let drive = match plan {
        Plan::Relay => return RequestDisposition::Relay(None),
        Plan::RelayWithoutTask => {
            let without_task = Frame::parse(offer::remove_task_param(message));
            return without_task.map_or(RequestDisposition::Relay(None), RequestDisposition::RelayAs);
        }
        Plan::Refuse(error) => return RequestDisposition::Respond(refusal_response(id, &error)),
        // The proxy began to shut down while the server's capabilities were requested. This client requires a
        // task, and cannot read a plain result.
        Plan::Drive(DriveMode::Task) if !shared.can_make_tasks() => {
            return RequestDisposition::Respond(stopping_response(request));
        }
        Plan::Drive(drive) => drive,
    };
    if let Some(refusal) = ping::check_session(shared, request, client.session).await {
        return RequestDisposition::Respond(refusal);
    }
    let task_param = task_param.ok().flatten();
    let ticketing = ticketing.filter(|_| is_ticket).map(|(_, ticketing)| ticketing);
    let admission = match shared.admit(std::iter::once(tool), request.principal) {
        Ok(admission) => admission,
        Err(limit_error) => return RequestDisposition::Respond(not_admitted_response(request, &limit_error)),
    };
    let call =
        task_call::prepare_call(shared, request, client, message, tool, (task_param, ticketing), admission);
    dispatch_flag.set();
    RequestDisposition::Respond(match drive {
        DriveMode::Defer { after } | DriveMode::Ticket { after } => {
            task_call::respond_on_stream(shared, call, id.clone(), after, request.keep_alive).await
        }
        DriveMode::Task | DriveMode::Inline | DriveMode::Observe { .. } => {
            task_call::start_as_task(shared, call, id).await
        }
    })
}
