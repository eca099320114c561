//! Chooses how a request of a legacy client in front of a legacy server is handled: relayed, with or without
//! edits, answered by the proxy, made by the proxy as a call of its own, or refused. No other module makes
//! this choice.
//!
//! Facts that cost a look-up are requested from [`LegacySessionFacts`], and only if the plan depends on them:
//! most requests are relayed after a few comparisons, without an allocation. Whether the server has tasks of
//! its own may be known only after a handshake with the server; a plan that depends on it contains the
//! actions for both cases ([`LegacyPlan::DependsOnServerTasks`]).

use super::{
    offer::{self, TaskParam},
    plan::{deferral_threshold, denied_error},
    ticket::{TicketAction, TicketOptions, TicketToolNames},
};
use crate::{
    dialect::legacy::{ClientMessage, LegacyPost},
    policy::{Mode, RolloutMembership, Route, TicketGrant, ToolPolicy},
    protocol::{ErrorObject, Frame, Method, RequestId, code},
};
use std::{sync::Arc, time::Duration};

/// The plan for a request of a legacy client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LegacyPlan {
    /// Carry out this action.
    Act(LegacyAction),
    /// The action depends on whether the server has tasks of its own.
    DependsOnServerTasks(Box<ServerTasksBranch>),
}

/// The actions of a plan that depends on whether the server has tasks of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTasksBranch {
    pub with_tasks: LegacyAction,
    pub without_tasks: LegacyAction,
}

/// How a request of a legacy client is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LegacyAction {
    /// Relay the request and its response unchanged.
    Relay,
    /// Relay an `initialize`; record its response, and offer tasks in it.
    RelayInitialize,
    /// Relay a `tools/list`; edit its response.
    RelayToolList {
        /// Whether tools that can or must run as tasks are marked.
        marks_tasks: bool,
        /// Present if the ticket tools are added.
        ticket_grant: Option<TicketGrant>,
    },
    /// Relay a call without its task parameters, and its response unchanged.
    RelayWithoutTask,
    /// End the client's session. Decided when it is carried out: whether the server receives the DELETE.
    DeleteSession,
    /// Cancel the request with this id, if the proxy holds it; otherwise relay the cancellation. `None` if the
    /// cancellation names no valid id.
    Cancel(Option<RequestId>),
    /// Pass the response on to the task that sent the input request with this id; relay the response if no
    /// task did.
    ReceiveResponse(RequestId),
    /// Answer a request about tasks of the proxy, with this method, once the session is known to exist.
    ServeTask { id: RequestId, method: Method, task: Option<String> },
    /// Answer a call of one of the ticket tools, which the client has under `names`.
    ServeTicket { id: RequestId, action: TicketAction, names: Arc<TicketToolNames> },
    /// Make the call in the client's session, once the session is known to exist.
    Drive { id: RequestId, tool: String, drive: LegacyDrive },
    /// Refuse the requests in the body with this error; nothing is sent to the server.
    Refuse(ErrorObject),
    /// Refuse the request, because its client has ended the session.
    RefuseClosedSession,
    /// Refuse the request, because it begins new work while the proxy shuts down.
    RefuseNewWork,
}

/// When a call that the proxy makes for a legacy client becomes a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LegacyDrive {
    /// The call is a task before it is sent: it is stored first, and refused if a quota is full.
    Task(TaskParam),
    /// The call becomes a task if the server has not responded after this time; at zero, immediately.
    Defer { after: Duration, task_param: Option<TaskParam> },
    /// If the server has not responded after this time, the client, which does not support tasks, gets a
    /// ticket.
    Ticket { after: Duration, options: TicketOptions },
}

/// One HTTP request of a legacy client, with the facts about its client and its route that cost nothing.
#[derive(Clone, Copy)]
pub struct LegacyRequestFacts<'a> {
    pub http_method: &'a http::Method,
    pub post: &'a LegacyPost,
    /// The message in the body; `None` if the body is a batch, or is not one message.
    pub message: Option<&'a Frame>,
    /// Whether the client's revision has tasks.
    pub has_task_support: bool,
    pub route: &'a Route,
    /// The rollouts of the route that include the caller.
    pub membership: &'a RolloutMembership,
    /// Whether calls on the route are limited (`concurrency`, `calls_per_minute`).
    pub has_limits: bool,
    /// Whether the proxy shuts down.
    pub is_stopping: bool,
}

/// Facts about a request's client and session that cost a look-up.
pub trait LegacySessionFacts {
    /// Whether the client has ended its session, and the proxy has responded.
    fn is_closed(&self) -> bool;
    /// Whether the proxy holds any request that a client can cancel, in any session.
    fn has_cancellable_requests(&self) -> bool;
    /// Whether the proxy has relayed an input request that has no response yet, in any session.
    fn has_open_input_requests(&self) -> bool;
    /// Whether the operator has named the client as one that accepts unsolicited tasks (SEP-2229, draft).
    fn accepts_unsolicited_tasks(&self) -> bool;
    /// The action of this tool and the names of the ticket tools, if the tool is one of them for this client.
    fn ticket_tool(&self, tool: &str) -> Option<(TicketAction, Arc<TicketToolNames>)>;
    /// The client's ticket grant, if it may have the ticket tools.
    fn ticket_grant(&self) -> Option<TicketGrant>;
    /// The ticket for a call with this policy, and the time after which the client gets it; `None` if it may
    /// not get one.
    fn ticket(&self, policy: &ToolPolicy) -> Option<(Duration, TicketOptions)>;
}

/// What the parts of the plan have in common.
struct Planner<'a, S> {
    request: &'a LegacyRequestFacts<'a>,
    session: &'a S,
    /// Whether the messages of the body are checked for denied or required tools.
    is_checked: bool,
}

/// The reason in the error for an ambiguous message ([`ambiguity`](crate::dialect::ambiguity)) where calls are
/// denied or limited.
const DENIED_AMBIGUITY_REASON: &str = "calls on this route are denied (mode: deny) or limited (concurrency, \
     calls_per_minute), so a message must be one that can be read in one way";
/// The reason in the error for an ambiguous message where tools must run as tasks.
const REQUIRED_AMBIGUITY_REASON: &str =
    "tools here run as tasks only (mode: required), so a message must be unambiguous";

/// Returns the plan for a request of a legacy client to a legacy server.
pub fn plan_legacy(request: &LegacyRequestFacts<'_>, session: &impl LegacySessionFacts) -> LegacyPlan {
    let messages = &request.post.messages[..];
    let is_initialize = matches!(messages, [ClientMessage::Request { method: Method::Initialize, .. }]);
    // `initialize` begins a new session.
    if !is_initialize && session.is_closed() {
        return LegacyPlan::Act(LegacyAction::RefuseClosedSession);
    }
    let ticket_tool = match messages {
        [ClientMessage::Request { method: Method::ToolsCall, target: Some(tool), .. }]
            if tool.starts_with(TicketToolNames::PREFIX) =>
        {
            session.ticket_tool(tool)
        }
        _ => None,
    };
    if request.is_stopping && ticket_tool.is_none() && messages.iter().any(is_new_work) {
        return LegacyPlan::Act(LegacyAction::RefuseNewWork);
    }
    if *request.http_method == http::Method::DELETE {
        return LegacyPlan::Act(LegacyAction::DeleteSession);
    }
    let is_post = *request.http_method == http::Method::POST;
    let is_restricted = is_post && (request.has_limits || request.route.has_denied_tools());
    let requires_tasks = is_post && request.route.has_required_tasks(request.membership);
    // A ticket tool is the proxy's own; the rules for the server's tools do not apply.
    if let Some(error) = is_restricted.then(|| find_denied(request, ticket_tool.is_some())).flatten() {
        return LegacyPlan::Act(LegacyAction::Refuse(error));
    }
    let plan = Planner { request, session, is_checked: is_restricted || requires_tasks }.plan(ticket_tool);
    match requires_tasks.then(|| find_required(request)).flatten() {
        Some(error) => LegacyPlan::branch(plan.resolve(true), LegacyAction::Refuse(error)),
        None => plan,
    }
}

/// Whether a message begins new work: it is a request, neither about a task nor a ping.
fn is_new_work(message: &ClientMessage) -> bool {
    matches!(message, ClientMessage::Request { method, .. }
        if !method.is_legacy_task_method() && *method != Method::Ping)
}

/// Returns the error for the first message of a POST that must not reach the server on a route that denies
/// tools or limits calls.
///
/// A server may parse a message differently, and runs the calls in a batch. Therefore a message must be
/// unambiguous; a batch with a denied call is refused as a whole, and so is a batch with `tools/list`, whose
/// response could not be edited. Where calls are counted, an ambiguous message is refused as well.
fn find_denied(request: &LegacyRequestFacts<'_>, is_ticket_call: bool) -> Option<ErrorObject> {
    if let Some(ambiguity) = &request.post.ambiguity {
        return Some(ambiguity.error(DENIED_AMBIGUITY_REASON));
    }
    if is_ticket_call {
        return None;
    }
    request.post.messages.iter().find_map(|message| match message {
        ClientMessage::Request { method: Method::ToolsCall, target, .. } => {
            let tool = target.as_deref().unwrap_or_default();
            request.route.is_denied(tool).then(|| denied_error(tool))
        }
        ClientMessage::Request { method: Method::ToolsList, .. }
            if request.post.is_batch && request.route.has_denied_tools() =>
        {
            let text = "a batch on this route must not hold tools/list (mode: deny); send it on its own";
            Some(ErrorObject::new(code::INVALID_REQUEST, text))
        }
        ClientMessage::Request { .. }
        | ClientMessage::Notification(_)
        | ClientMessage::Cancelled(_)
        | ClientMessage::Response(_) => None,
    })
}

/// Returns the error for a POST that would run a tool that must be a task in another form: an ambiguous
/// message, or a call in a batch. [`Planner::plan_call`] handles a single call.
fn find_required(request: &LegacyRequestFacts<'_>) -> Option<ErrorObject> {
    if let Some(ambiguity) = &request.post.ambiguity {
        return Some(ambiguity.error(REQUIRED_AMBIGUITY_REASON));
    }
    let is_required =
        |tool: &&str| request.route.tool_policy_for(tool, request.membership).mode == Mode::Required;
    // The name of a call without one is empty, and such a call is ambiguous.
    let tool = request.post.is_batch.then(|| request.post.called_tools().find(is_required)).flatten()?;
    let text = format!("the tool {tool} runs as a task only, and a call in a batch cannot; nothing was sent");
    Some(ErrorObject::new(code::METHOD_NOT_FOUND, text))
}

// === impl LegacyPlan ===

impl LegacyPlan {
    fn branch(with_tasks: LegacyAction, without_tasks: LegacyAction) -> Self {
        Self::DependsOnServerTasks(Box::new(ServerTasksBranch { with_tasks, without_tasks }))
    }

    /// Returns the action, given whether the server has tasks of its own.
    pub fn resolve(self, server_has_tasks: bool) -> LegacyAction {
        match self {
            Self::Act(action) => action,
            Self::DependsOnServerTasks(branch) if server_has_tasks => branch.with_tasks,
            Self::DependsOnServerTasks(branch) => branch.without_tasks,
        }
    }

    /// Whether the request is carried out after its client disconnects (2025-11-25, *Sending Messages to the
    /// Server*): a call is, and a change of a task; a request that waits for the result of another call is not.
    pub fn outlives_client(&self, post: &LegacyPost) -> bool {
        let action = match self {
            Self::Act(action) => action,
            Self::DependsOnServerTasks(branch) => &branch.with_tasks,
        };
        let is_task_change = || {
            matches!(
                &post.messages[..],
                [ClientMessage::Request { method: Method::TasksCancel, .. }
                    | ClientMessage::Response(Some(_))]
            )
        };
        !matches!(action, LegacyAction::ServeTicket { .. }) && (post.can_request_input() || is_task_change())
    }
}

// === impl Planner ===

impl<S: LegacySessionFacts> Planner<'_, S> {
    /// Returns the plan for messages that may reach the server.
    fn plan(&self, ticket_tool: Option<(TicketAction, Arc<TicketToolNames>)>) -> LegacyPlan {
        let (request, session) = (self.request, self.session);
        match &request.post.messages[..] {
            [ClientMessage::Request { id, method, target }] => match method {
                Method::Initialize => LegacyPlan::Act(LegacyAction::RelayInitialize),
                Method::ToolsList => self.plan_tool_list(),
                Method::ToolsCall => self.plan_call(id, target.as_deref().unwrap_or_default(), ticket_tool),
                method
                    if method.is_legacy_task_method()
                        && request.has_task_support
                        && (request.route.has_tasks() || self.is_checked) =>
                {
                    let (id, method, task) = (id.clone(), method.clone(), target.clone());
                    LegacyPlan::branch(LegacyAction::Relay, LegacyAction::ServeTask { id, method, task })
                }
                _ => LegacyPlan::Act(LegacyAction::Relay),
            },
            [ClientMessage::Cancelled(id)] if self.is_checked || session.has_cancellable_requests() => {
                LegacyPlan::Act(LegacyAction::Cancel(id.clone()))
            }
            [ClientMessage::Response(Some(id))]
                if self.knows_task_requests() && offer::is_own_input_request(id)
                    || session.has_open_input_requests() =>
            {
                LegacyPlan::Act(LegacyAction::ReceiveResponse(id.clone()))
            }
            _ => LegacyPlan::Act(LegacyAction::Relay),
        }
    }

    /// Whether the id of an input request can be that of a task of this route.
    fn knows_task_requests(&self) -> bool {
        self.is_checked || self.request.route.has_tasks() || self.request.route.has_tickets()
    }

    fn plan_tool_list(&self) -> LegacyPlan {
        let ticket_grant = self.session.ticket_grant();
        let relay = match ticket_grant {
            Some(_) => LegacyAction::RelayToolList { marks_tasks: false, ticket_grant },
            None => LegacyAction::Relay,
        };
        match self.request.has_task_support && self.request.route.can_offer_tasks(self.request.membership) {
            true => {
                LegacyPlan::branch(relay, LegacyAction::RelayToolList { marks_tasks: true, ticket_grant })
            }
            false => LegacyPlan::Act(relay),
        }
    }

    /// Returns the plan for a single `tools/call`. A server with tasks of its own receives the call unchanged
    /// (2025-11-25, *Tasks, Tool-Level Negotiation*), except from clients without task support, which may get
    /// tickets: to them the server's tasks are irrelevant.
    fn plan_call(
        &self,
        id: &RequestId,
        tool: &str,
        ticket_tool: Option<(TicketAction, Arc<TicketToolNames>)>,
    ) -> LegacyPlan {
        let (request, session) = (self.request, self.session);
        let Some(message) = request.message else { return LegacyPlan::Act(LegacyAction::Relay) };
        if let Some((action, names)) = ticket_tool {
            return LegacyPlan::Act(LegacyAction::ServeTicket { id: id.clone(), action, names });
        }
        let Some(params) = message.params() else { return LegacyPlan::Act(LegacyAction::Relay) };
        let accepts_unsolicited = request.has_task_support && session.accepts_unsolicited_tasks();
        let task_param = match accepts_unsolicited || self.reads_task_param(tool) {
            true => offer::read_task_param(params),
            // A proxy that has not declared task support to the client ignores `params.task` (2025-11-25,
            // *Tasks*).
            false => Ok(None),
        };
        let policy = request.route.tool_policy_for(tool, request.membership);
        let makes_tasks = policy.mode.makes_tasks();
        let refuse = |code, message: String| LegacyAction::Refuse(ErrorObject::new(code, message));
        let drive = |drive| LegacyAction::Drive { id: id.clone(), tool: tool.to_owned(), drive };
        let action = match task_param {
            _ if policy.mode == Mode::Deny => LegacyAction::Refuse(denied_error(tool)),
            // To such a client the proxy is a server with unsolicited tasks, which ignores `params.task`
            // whatever it contains (SEP-2229, draft, *Task Support and Handling*). The parameter is removed,
            // because not every server ignores it.
            Ok(Some(_)) | Err(_) if accepts_unsolicited && !makes_tasks => LegacyAction::RelayWithoutTask,
            Err(invalid) => refuse(code::INVALID_PARAMS, invalid.to_string()),
            Ok(task_param) if accepts_unsolicited && makes_tasks => {
                drive(LegacyDrive::Defer { after: deferral_threshold(&policy), task_param })
            }
            Ok(Some(task_param)) if makes_tasks => drive(LegacyDrive::Task(task_param)),
            Ok(Some(_)) => refuse(
                code::METHOD_NOT_FOUND,
                format!("the tool {tool} does not run as a task: call it without params.task"),
            ),
            Ok(None) if policy.mode == Mode::Required => refuse(
                code::METHOD_NOT_FOUND,
                format!("the tool {tool} runs as a task only: call it with params.task (2025-11-25)"),
            ),
            Ok(None) => {
                let ticket = session.ticket(&policy);
                let ticket = ticket.map(|(after, options)| drive(LegacyDrive::Ticket { after, options }));
                return LegacyPlan::Act(ticket.unwrap_or(LegacyAction::Relay));
            }
        };
        LegacyPlan::branch(LegacyAction::Relay, action)
    }

    /// Whether the task parameters of a call of this tool count, from a client that is not named for
    /// unsolicited tasks.
    fn reads_task_param(&self, tool: &str) -> bool {
        let request = self.request;
        // Where messages are checked, and for a tool with a name like those of the ticket tools, the
        // parameters count although no tasks are offered to the client.
        request.has_task_support
            && (request.route.can_offer_tasks(request.membership)
                || self.is_checked
                || tool.starts_with(TicketToolNames::PREFIX))
    }
}
