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
mod ticket_call;

use super::{
    AccessSummary, LegacyRequest, LegacyResponse,
    admission::{CallLimitError, PendingAdmission},
    answers::experimental,
    legacy_http::{self, empty_response, refusal},
    observed_call::ObservedCall,
    relay::{self, ResponseEdit, event_ids},
    reply::{self, stopping_error},
    route_context::RouteContext,
    session::{LegacyClient, ResponseOwner},
    tickets,
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
pub(super) async fn serve(shared: Arc<RouteContext>, passage: LegacyRequest) -> LegacyResponse {
    let client = LegacyClient::of(passage.principal, &passage.headers, &shared.sessions.revisions);
    if let Some(gone) = session_delete::closed_session_reply(&shared, &client, &passage) {
        return gone;
    }
    if shared.stopping.is_stopped()
        && is_new_work(&passage)
        && !ticket_call::is_ticket_call(&shared, &client, &passage)
    {
        return stopping_reply(&passage);
    }
    // The future of a DELETE is boxed, so that it does not enlarge the future of every call.
    if passage.method == http::Method::DELETE {
        return Box::pin(session_delete::delete_session(shared, client, passage)).await;
    }
    if !can_be_intercepted(&shared, &client, &passage) {
        return carry_out(shared, client, passage, RequestDisposition::Relay(None)).await;
    }
    let decided = DispatchFlag::default();
    // A call and a change of a task continue after their client disconnects; a request that waits for the
    // result of another call ends.
    let outlives = passage.post.can_request_input()
        && !ticket_call::is_ticket_call(&shared, &client, &passage)
        || is_task_change(&passage);
    let (work, is_decided) = (shared.stopping.clone(), decided.clone());
    let disposed = async move {
        let disposition = decide(&shared, &client, &passage, &decided).await;
        decided.set();
        carry_out(shared, client, passage, disposition).await
    };
    match outlives {
        true => DetachOnDrop::new(work, is_decided, disposed).await,
        false => Box::pin(disposed).await,
    }
}

/// Whether the request cancels a task, or carries the response to an input request.
fn is_task_change(passage: &LegacyRequest) -> bool {
    matches!(
        &passage.post.messages[..],
        [ClientMessage::Request { method: Method::TasksCancel, .. } | ClientMessage::Response(Some(_))]
    )
}

/// Applies the decision about a request: relays the request, or returns the prepared response.
async fn carry_out(
    shared: Arc<RouteContext>,
    client: LegacyClient,
    passage: LegacyRequest,
    disposition: RequestDisposition,
) -> LegacyResponse {
    match disposition {
        RequestDisposition::Relay(edit) => {
            if let Some(resumed) = event_ids::resume(&shared, &client, &passage) {
                return resumed;
            }
            let observed = ObservedCall::of_request(&shared, &passage);
            let turn = match admit(&shared, &passage) {
                Ok(turn) => turn,
                Err(refused) => return not_admitted(&passage, &refused),
            };
            let kept = event_ids::replay_params(&shared, &client, &passage);
            let begins = matches!(
                &passage.post.messages[..],
                [ClientMessage::Request { method: Method::Initialize, .. }]
            );
            let passed = relay::forward(Arc::clone(&shared), client, passage, edit, (turn, observed)).await;
            shared.sessions.note_response(&client, begins, &passed);
            match kept {
                Some(terms) => event_ids::buffer_response(&shared, terms, passed),
                None => passed,
            }
        }
        RequestDisposition::RelayAs(message) => {
            let passage =
                LegacyRequest { body: message.as_bytes().clone(), message: Some(message), ..passage };
            Box::pin(carry_out(shared, client, passage, RequestDisposition::Relay(None))).await
        }
        RequestDisposition::Respond(passed) => passed,
    }
}

/// Admits the calls in a request to the concurrency and rate limits. Returns `None` if the request holds no
/// call with limits.
fn admit(shared: &RouteContext, passage: &LegacyRequest) -> Result<Option<PendingAdmission>, CallLimitError> {
    if shared.limiters.is_none() {
        return Ok(None);
    }
    let mut tools = passage.post.called_tools().peekable();
    if tools.peek().is_none() {
        return Ok(None);
    }
    shared.admit(tools, passage.principal)
}

/// Builds the response to a request whose calls are not admitted; nothing is sent to the server.
fn not_admitted(passage: &LegacyRequest, refused: &CallLimitError) -> LegacyResponse {
    let error = refused.error();
    let account = AccessSummary::failed(RequestOutcome::Refused, &error);
    let mut passed = legacy_http::refused(StatusCode::OK, &passage.post.request_ids(), &error, account);
    passed.headers.extend(refused.retry_after().map(|wait| (RETRY_AFTER, wait)));
    passed
}

/// Whether a request begins new work: the request is neither about a task, nor a response, nor a ping.
fn is_new_work(passage: &LegacyRequest) -> bool {
    passage.post.messages.iter().any(|message| match message {
        ClientMessage::Request { method, .. } => !method.is_about_legacy_tasks() && *method != Method::Ping,
        _ => false,
    })
}

/// Builds the 503 response to new work while the proxy shuts down; nothing is sent to the server. Another
/// process may serve the retry.
fn stopping_reply(passage: &LegacyRequest) -> LegacyResponse {
    let (status, account) = (StatusCode::SERVICE_UNAVAILABLE, AccessSummary::of(RequestOutcome::ProxyFailed));
    let mut refused = legacy_http::refused(status, &passage.post.request_ids(), &stopping_error(), account);
    refused.headers.insert(RETRY_AFTER, reply::RETRY_AFTER);
    refused
}

/// Whether a request may have to be intercepted. The check is cheap, because most requests are relayed.
fn can_be_intercepted(shared: &RouteContext, client: &LegacyClient, passage: &LegacyRequest) -> bool {
    // An `initialize` is intercepted on every route, to record the server's capabilities.
    if let [ClientMessage::Request { method: Method::Initialize, .. }] = &passage.post.messages[..] {
        return true;
    }
    if shared.sessions.pending_requests.has_queued()
        && matches!(&passage.post.messages[..], [ClientMessage::Cancelled(_)])
    {
        return true;
    }
    if deny::can_refuse(shared, passage) || ticket_call::can_concern(shared, client, passage) {
        return true;
    }
    if !shared.route.has_tasks() {
        // A route without tasks intercepts only calls of clients that the operator named for unsolicited
        // tasks: `params.task` is removed (SEP-2229, draft), because not every server would ignore the
        // parameter.
        return matches!(
            &passage.post.messages[..],
            [ClientMessage::Request { method: Method::ToolsCall, .. }]
        ) && task_call::is_named_unsolicited(shared, passage)
            && has_task_param(passage);
    }
    if require_task::can_refuse(shared, passage) {
        return true;
    }
    match &passage.post.messages[..] {
        [ClientMessage::Request { method: Method::ToolsList, .. }] => true,
        [ClientMessage::Request { method, .. }] if method.is_about_legacy_tasks() => true,
        [ClientMessage::Request { method: Method::ToolsCall, target, .. }] => {
            let tool = target.as_deref().unwrap_or_default();
            let mode = shared.route.tool_policy_for(tool, &passage.standing).mode;
            mode == Mode::Required
                || (mode.makes_tasks() && task_call::can_take_unsolicited(shared, client, passage))
                || (is_offered(shared, passage) && has_task_param(passage))
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
fn is_offered(shared: &RouteContext, passage: &LegacyRequest) -> bool {
    shared.route.offers_tasks(&passage.standing) || task_call::is_named_unsolicited(shared, passage)
}

/// Whether a call requests a task with `params.task`, valid or not.
fn has_task_param(passage: &LegacyRequest) -> bool {
    passage.params().is_some_and(|params| !matches!(offer::task_param(params), Ok(None)))
}

/// Decides how a request is served. Sets the flag when the dispatch of a call is decided.
async fn decide(
    shared: &Arc<RouteContext>,
    client: &LegacyClient,
    passage: &LegacyRequest,
    decided: &DispatchFlag,
) -> RequestDisposition {
    if let Some(refusal) = deny::refuse(shared, client, passage) {
        return RequestDisposition::Respond(refusal);
    }
    if let Some(refusal) = require_task::refuse(shared, passage).await {
        return RequestDisposition::Respond(refusal);
    }
    match &passage.post.messages[..] {
        [ClientMessage::Request { method: Method::Initialize, .. }] => {
            RequestDisposition::Relay(Some(task_capability::edit_initialize(
                Arc::clone(shared),
                passage.params(),
                (client.principal, &passage.standing),
            )))
        }
        [ClientMessage::Request { method: Method::ToolsList, .. }] => {
            let offered = shared.route.offers_tasks(&passage.standing)
                && task_capability::is_offered(shared, client, passage).await;
            let edit = offered
                .then(|| task_capability::edit_tool_list(Arc::clone(shared), passage.standing.clone()));
            RequestDisposition::Relay(match tickets::legacy_eligibility(shared, client, passage) {
                Some(holding) => {
                    let holding = (holding, passage.standing.clone());
                    Some(ticket_call::edit_tool_list(shared, client, holding, edit))
                }
                None => edit,
            })
        }
        [ClientMessage::Request { method: Method::ToolsCall, id, target }] => {
            let tool = target.as_deref().unwrap_or_default();
            call(shared, passage, client, (id, tool), decided).await
        }
        [ClientMessage::Request { method, id, target }]
            if method.is_about_legacy_tasks()
                && task_capability::is_offered(shared, client, passage).await =>
        {
            RequestDisposition::Respond(match ping::check_session(shared, passage, client.session).await {
                Some(refusal) => refusal,
                None => experimental::serve(shared, passage, client, method, id, target.as_deref()).await,
            })
        }
        [ClientMessage::Cancelled(Some(id))] if withdraw_queued(shared, client, id) => {
            RequestDisposition::Respond(empty_response(StatusCode::ACCEPTED))
        }
        [ClientMessage::Cancelled(_)] if ticket_call::cancel_waiting(shared, client, passage) => {
            RequestDisposition::Respond(empty_response(StatusCode::ACCEPTED))
        }
        [ClientMessage::Cancelled(_)] if task_call::cancel_waiting(shared, client, passage) => {
            RequestDisposition::Respond(empty_response(StatusCode::ACCEPTED))
        }
        [ClientMessage::Response(Some(id))] => {
            let put_as_it_is = || match shared.sessions.input_requests.response_owner(client.session?, id)? {
                ResponseOwner::Task(task, key) => Some((task, key)),
                ResponseOwner::Call => None,
            };
            match offer::parse_input_request_id(id).or_else(put_as_it_is) {
                Some((task, key)) => RequestDisposition::Respond(
                    experimental::receive_response(shared, passage, client, &task, key).await,
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
async fn call(
    shared: &Arc<RouteContext>,
    passage: &LegacyRequest,
    client: &LegacyClient,
    (id, tool): (&RequestId, &str),
    decided: &DispatchFlag,
) -> RequestDisposition {
    let Some(message) = &passage.message else { return RequestDisposition::Relay(None) };
    if let Some(answered) = ticket_call::serve(shared, passage, client, id, tool).await {
        return RequestDisposition::Respond(answered);
    }
    let Some(params) = message.params() else { return RequestDisposition::Relay(None) };
    let wish = match client.has_task_support() {
        true => offer::task_param(params),
        // A proxy that has not declared task support to the client ignores `params.task` (2025-11-25,
        // *Tasks*).
        false => Ok(None),
    };
    let takes_unasked = task_call::can_take_unsolicited(shared, client, passage);
    let ticketing = tickets::legacy_ticket_options(shared, client, passage, tool);
    let ticket = ticketing.as_ref().map(|(terms, _)| terms.after);
    let policy = shared.route.tool_policy_for(tool, &passage.standing);
    let plan = plan_legacy(
        &LegacyToolCall { tool, task_param: wish, accepts_unsolicited: takes_unasked, ticket },
        &policy,
    );
    let is_ticket = matches!(plan, Plan::Drive(DriveMode::Ticket { .. }));
    // Tickets are for clients without task support, to which the server's own tasks are irrelevant.
    let is_its_own = || shared.server_has_tasks(passage.principal, &passage.headers);
    if plan == Plan::Relay || !is_ticket && is_its_own().await {
        return RequestDisposition::Relay(None);
    }
    let drive = match plan {
        Plan::Relay => return RequestDisposition::Relay(None),
        Plan::RelayWithoutTask => {
            let plain = Frame::parse(offer::without_task(message));
            return plain.map_or(RequestDisposition::Relay(None), RequestDisposition::RelayAs);
        }
        Plan::Refuse(error) => return RequestDisposition::Respond(refusal(id, &error)),
        // The proxy began to shut down while the server's capabilities were requested. This client requires a
        // task, and cannot read a plain result.
        Plan::Drive(DriveMode::Task) if !shared.makes_tasks() => {
            return RequestDisposition::Respond(stopping_reply(passage));
        }
        Plan::Drive(drive) => drive,
    };
    if let Some(refusal) = ping::check_session(shared, passage, client.session).await {
        return RequestDisposition::Respond(refusal);
    }
    let wish = wish.ok().flatten();
    let ticketing = ticketing.filter(|_| is_ticket).map(|(_, ticketing)| ticketing);
    let turn = match shared.admit(std::iter::once(tool), passage.principal) {
        Ok(turn) => turn,
        Err(refused) => return RequestDisposition::Respond(not_admitted(passage, &refused)),
    };
    let call = task_call::prepare_call(shared, passage, client, message, tool, (wish, ticketing), turn);
    decided.set();
    RequestDisposition::Respond(match drive {
        DriveMode::Defer { after } | DriveMode::Ticket { after } => {
            task_call::on_stream(shared, call, id.clone(), after, passage.keep_alive).await
        }
        DriveMode::Task | DriveMode::Inline | DriveMode::Observe { .. } => {
            task_call::as_task(shared, call, id).await
        }
    })
}
