//! Requests of legacy clients in front of a legacy server.
//!
//! [`plan_legacy`] decides how a request is handled, with the facts of `session_facts`; this module carries out
//! its [`LegacyAction`]. Most requests are relayed, and the server's responses come back unchanged ([`relay`]).
//! If the server has no tasks of its own, the proxy serves the tasks of 2025-11-25: `task_capability` adds tasks
//! to the server's capabilities; `task_call` makes a call a task, [`CallDriver`](super::drive) runs it, and
//! `answers::experimental` responds for the task, once `ping` has shown that the session exists.
//! `session_delete` ends sessions; `detach_on_drop` completes the dispatch of a call whose client disconnects
//! before it is sent. The state of a session is in [`session`](super::session).

mod detach_on_drop;
mod ping;
mod session_delete;
mod session_facts;
mod task_call;
mod task_capability;

use super::{
    AccessSummary, LegacyRequest, LegacyResponse,
    admission::{CallLimitError, PendingAdmission},
    answers::experimental,
    call_registry::{CancelTarget, MailboxMessage},
    observed_call::ObservedCall,
    relay::{
        self, ResponseEdit, event_ids,
        legacy_http::{self, empty_response},
    },
    reply::{self, shutdown_error},
    route_context::RouteContext,
    session::LegacyClient,
    tickets::legacy_call,
};
use crate::{
    bridge::{LegacyAction, LegacyDrive, LegacyPlan, offer, plan_legacy},
    policy::TicketGrant,
    protocol::{ErrorObject, Frame, RequestId},
    telemetry::RequestOutcome,
};
use detach_on_drop::{DetachOnDrop, DispatchFlag};
use http::{StatusCode, header::RETRY_AFTER};
use session_facts::SessionFacts;
use std::sync::Arc;

/// Serves one HTTP request of a legacy client in front of a legacy server: relays it, or responds in the
/// server's place.
pub(super) async fn serve(shared: Arc<RouteContext>, request: LegacyRequest) -> LegacyResponse {
    let client = LegacyClient::from_headers(request.principal, &request.headers, &shared.sessions.revisions);
    let facts = SessionFacts { shared: &shared, client: &client, request: &request };
    let plan = plan_legacy(&facts.request_facts(), &facts);
    if matches!(plan, LegacyPlan::Act(LegacyAction::Relay)) {
        return relay_request(shared, client, request, (None, false)).await;
    }
    // The future is boxed, so that it does not enlarge that of a relayed request.
    let (drain, dispatch_flag) = (shared.stopping.clone(), DispatchFlag::default());
    let outlives_client = plan.outlives_client(&request.post);
    let flag = dispatch_flag.clone();
    let serving = async move {
        let action = match plan {
            LegacyPlan::Act(action) => action,
            plan @ LegacyPlan::DependsOnServerTasks { .. } => {
                plan.resolve(shared.server_has_tasks(client.principal, &request.headers).await)
            }
        };
        carry_out(shared, client, request, action, flag).await
    };
    match outlives_client {
        true => DetachOnDrop::new(drain, dispatch_flag, serving).await,
        false => Box::pin(serving).await,
    }
}

/// Carries out the action for a request. Sets the flag when the dispatch of a call is decided.
async fn carry_out(
    shared: Arc<RouteContext>,
    client: LegacyClient,
    mut request: LegacyRequest,
    action: LegacyAction,
    dispatch_flag: DispatchFlag,
) -> LegacyResponse {
    let is_initialize = action == LegacyAction::RelayInitialize;
    let edit = match action {
        LegacyAction::Relay => None,
        LegacyAction::RelayInitialize => Some(task_capability::edit_initialize(
            Arc::clone(&shared),
            request.params(),
            (client.principal, &request.rollout_membership),
        )),
        LegacyAction::RelayToolList { marks_tasks, ticket_grant } => {
            edit_tool_list(&shared, &client, &request, (marks_tasks, ticket_grant))
        }
        LegacyAction::RelayWithoutTask => {
            remove_task_param(&mut request);
            None
        }
        LegacyAction::DeleteSession => return session_delete::delete_session(shared, client, request).await,
        LegacyAction::Cancel(id) => match cancel_held(&shared, &client, id.as_ref()) {
            true => return empty_response(StatusCode::ACCEPTED),
            false => None,
        },
        LegacyAction::ReceiveResponse(id) => {
            let find_owner = || shared.sessions.input_requests.owner_task(client.session?, &id);
            if let Some((task, key)) = offer::parse_input_request_id(&id).or_else(find_owner) {
                return experimental::receive_response(&shared, &request, &client, &task, key).await;
            }
            None
        }
        LegacyAction::ServeTask { id, method, task } => {
            return match ping::check_session(&shared, &request, client.session).await {
                Some(refusal) => refusal,
                None => experimental::serve(&shared, &request, &client, &method, &id, task.as_deref()).await,
            };
        }
        LegacyAction::ServeTicket { id, action, names } => {
            return legacy_call::serve(&shared, &request, &client, &id, (action, &names)).await;
        }
        LegacyAction::Drive { id, tool, drive } => match request.message.take() {
            Some(message) => {
                let call = (&id, &*tool, &message);
                return drive_call(&shared, &request, &client, call, drive, &dispatch_flag).await;
            }
            None => None,
        },
        LegacyAction::Refuse(error) => return refused_response(&request, &error),
        LegacyAction::RefuseClosedSession => return session_delete::closed_session_response(&request),
        LegacyAction::RefuseNewWork => return stopping_response(&request),
    };
    dispatch_flag.set();
    relay_request(shared, client, request, (edit, is_initialize)).await
}

/// Relays a request, which may be an `initialize`; applies the edit, if present, to the response.
async fn relay_request(
    shared: Arc<RouteContext>,
    client: LegacyClient,
    request: LegacyRequest,
    (edit, is_initialize): (Option<ResponseEdit>, bool),
) -> LegacyResponse {
    if let Some(resumed) = event_ids::resume(&shared, &client, &request) {
        return resumed;
    }
    let observed = ObservedCall::begin_for_request(&shared, &request);
    let admission = match admit(&shared, &request) {
        Ok(admission) => admission,
        Err(limit_error) => return not_admitted_response(&request, &limit_error),
    };
    let replay = event_ids::replay_params(&shared, &client, &request);
    let response = relay::forward(Arc::clone(&shared), client, request, edit, (admission, observed)).await;
    shared.sessions.note_response(&client, is_initialize, &response);
    match replay {
        Some(params) => event_ids::buffer_response(&shared, params, response),
        None => response,
    }
}

/// Admits the calls in a request to the concurrency and rate limits. Returns `None` if the request holds no
/// call with limits.
fn admit(shared: &RouteContext, request: &LegacyRequest) -> Result<Option<PendingAdmission>, CallLimitError> {
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

/// Builds the response that refuses the requests of a body; nothing is sent to the server.
fn refused_response(request: &LegacyRequest, error: &ErrorObject) -> LegacyResponse {
    let request_ids = request.post.request_ids();
    let status = if request_ids.is_empty() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let summary = AccessSummary::failed(RequestOutcome::Refused, error);
    legacy_http::refuse_requests(status, &request_ids, error, summary)
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

/// Removes the task parameters from the call in a request.
fn remove_task_param(request: &mut LegacyRequest) {
    let without_task = request.message.as_ref().map(offer::remove_task_param);
    if let Some(Ok(message)) = without_task.map(Frame::parse) {
        request.body = message.as_bytes().clone();
        request.message = Some(message);
    }
}

/// Builds the edit of the response to `tools/list`; `None` if the response stays unchanged.
fn edit_tool_list(
    shared: &Arc<RouteContext>,
    client: &LegacyClient,
    request: &LegacyRequest,
    (marks_tasks, ticket_grant): (bool, Option<TicketGrant>),
) -> Option<ResponseEdit> {
    let membership = || request.rollout_membership.clone();
    let edit = marks_tasks.then(|| task_capability::edit_tool_list(Arc::clone(shared), membership()));
    match ticket_grant {
        Some(grant) => Some(legacy_call::edit_tool_list(shared, client, (grant, membership()), edit)),
        None => edit,
    }
}

/// Cancels the client's request with this id, if the proxy holds it: a call in the proxy's queue, a request
/// that waits with a ticket, whose call continues, or a call that the proxy makes. Returns whether the proxy
/// holds it; otherwise the server must be notified.
fn cancel_held(shared: &RouteContext, client: &LegacyClient, id: Option<&RequestId>) -> bool {
    let Some(session) = client.session else { return false };
    let Some(id) = id else { return true };
    let sessions = &shared.sessions;
    if sessions.pending_requests.withdraw_queued(session, id) {
        return true;
    }
    if let Some(cancelled) = sessions.ticket_waits.get(session, id.clone()) {
        cancelled.notify_one();
        return true;
    }
    let call = sessions.waiting_calls.get(session, id.clone());
    call.is_some_and(|call| {
        shared.ledger.call_registry.deliver(&call, MailboxMessage::Cancelled(CancelTarget::Request))
    })
}

/// Makes a call in the client's session, as a task or as a call that may become one.
async fn drive_call(
    shared: &Arc<RouteContext>,
    request: &LegacyRequest,
    client: &LegacyClient,
    (id, tool, message): (&RequestId, &str, &Frame),
    drive: LegacyDrive,
    dispatch_flag: &DispatchFlag,
) -> LegacyResponse {
    // The proxy began to shut down while the server's capabilities were requested. This client requires a
    // task, and cannot read a plain result.
    if matches!(drive, LegacyDrive::Task(_)) && !shared.can_make_tasks() {
        return stopping_response(request);
    }
    if let Some(refusal) = ping::check_session(shared, request, client.session).await {
        return refusal;
    }
    let admission = match shared.admit(std::iter::once(tool), request.principal) {
        Ok(admission) => admission,
        Err(limit_error) => return not_admitted_response(request, &limit_error),
    };
    let (after, task_param, ticket_options) = match drive {
        LegacyDrive::Task(task_param) => (None, Some(task_param), None),
        LegacyDrive::Defer { after, task_param } => (Some(after), task_param, None),
        LegacyDrive::Ticket { after, options } => (Some(after), None, Some(options)),
    };
    let options = (task_param, ticket_options);
    let call = task_call::prepare_call(shared, request, client, message, tool, options, admission);
    dispatch_flag.set();
    match after {
        Some(after) => {
            task_call::respond_on_stream(shared, call, id.clone(), after, request.keep_alive).await
        }
        None => task_call::start_as_task(shared, call, id).await,
    }
}
