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
    DependsOnServerTasks { with_tasks: Box<LegacyAction>, without_tasks: Box<LegacyAction> },
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
    let ticket_call = match messages {
        [ClientMessage::Request { id, method: Method::ToolsCall, target: Some(tool) }]
            if tool.starts_with(TicketToolNames::PREFIX) =>
        {
            session.ticket_tool(tool).map(|(action, names)| (id.clone(), action, names))
        }
        _ => None,
    };
    if request.is_stopping && ticket_call.is_none() && messages.iter().any(is_new_work) {
        return LegacyPlan::Act(LegacyAction::RefuseNewWork);
    }
    if *request.http_method == http::Method::DELETE {
        return LegacyPlan::Act(LegacyAction::DeleteSession);
    }
    let is_post = *request.http_method == http::Method::POST;
    let is_restricted = is_post && (request.has_limits || request.route.has_denied_tools());
    let requires_tasks = is_post && request.route.has_required_tasks(request.membership);
    // A ticket tool is the proxy's own; the rules for the server's tools do not apply.
    if let Some(error) = is_restricted.then(|| find_denied(request, ticket_call.is_some())).flatten() {
        return LegacyPlan::Act(LegacyAction::Refuse(error));
    }
    let plan = match ticket_call.filter(|_| request.message.is_some()) {
        Some((id, action, names)) => LegacyPlan::Act(LegacyAction::ServeTicket { id, action, names }),
        None => Planner { request, session, is_checked: is_restricted || requires_tasks }.plan(),
    };
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
        _ => None,
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
        Self::DependsOnServerTasks { with_tasks: with_tasks.into(), without_tasks: without_tasks.into() }
    }

    /// Returns the action, given whether the server has tasks of its own.
    pub fn resolve(self, server_has_tasks: bool) -> LegacyAction {
        match self {
            Self::Act(action) => action,
            Self::DependsOnServerTasks { with_tasks, .. } if server_has_tasks => *with_tasks,
            Self::DependsOnServerTasks { without_tasks, .. } => *without_tasks,
        }
    }

    /// Whether the request is carried out after its client disconnects (2025-11-25, *Sending Messages to the
    /// Server*): a call is, and a change of a task; a request that waits for the result of another call is not.
    pub fn outlives_client(&self, post: &LegacyPost) -> bool {
        let action = match self {
            Self::Act(action) => action,
            Self::DependsOnServerTasks { with_tasks, .. } => with_tasks,
        };
        match &post.messages[..] {
            _ if matches!(action, LegacyAction::ServeTicket { .. }) => false,
            [
                ClientMessage::Request { method: Method::TasksCancel, .. } | ClientMessage::Response(Some(_)),
            ] => true,
            _ => post.can_request_input(),
        }
    }
}

// === impl Planner ===

impl<S: LegacySessionFacts> Planner<'_, S> {
    /// Returns the plan for messages that may reach the server.
    fn plan(&self) -> LegacyPlan {
        let (request, session) = (self.request, self.session);
        match &request.post.messages[..] {
            [ClientMessage::Request { id, method, target }] => match method {
                Method::Initialize => LegacyPlan::Act(LegacyAction::RelayInitialize),
                Method::ToolsList => self.plan_tool_list(),
                Method::ToolsCall => self.plan_call(id, target.as_deref().unwrap_or_default()),
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
                if offer::is_own_input_request(id)
                    && (self.is_checked || request.route.has_tasks() || request.route.has_tickets())
                    || session.has_open_input_requests() =>
            {
                LegacyPlan::Act(LegacyAction::ReceiveResponse(id.clone()))
            }
            _ => LegacyPlan::Act(LegacyAction::Relay),
        }
    }

    fn plan_tool_list(&self) -> LegacyPlan {
        let ticket_grant = self.session.ticket_grant();
        let relay = match ticket_grant {
            Some(_) => LegacyAction::RelayToolList { marks_tasks: false, ticket_grant },
            None => LegacyAction::Relay,
        };
        if !self.request.has_task_support || !self.request.route.can_offer_tasks(self.request.membership) {
            return LegacyPlan::Act(relay);
        }
        LegacyPlan::branch(relay, LegacyAction::RelayToolList { marks_tasks: true, ticket_grant })
    }

    /// Returns the plan for a single `tools/call`. A server with tasks of its own receives the call unchanged
    /// (2025-11-25, *Tasks, Tool-Level Negotiation*), except from clients without task support, which may get
    /// tickets: to them the server's tasks are irrelevant.
    fn plan_call(&self, id: &RequestId, tool: &str) -> LegacyPlan {
        let (request, session) = (self.request, self.session);
        let Some(params) = request.message.and_then(Frame::params) else {
            return LegacyPlan::Act(LegacyAction::Relay);
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::{self, NamePattern, ToolRule},
        protocol::MessageReader,
    };
    use bytes::Bytes;
    use expect_test::expect;

    const AFTER: Duration = Duration::from_secs(5);
    const TICKET_AFTER: Duration = Duration::from_secs(3);

    /// Facts about a session, as the look-ups would find them.
    #[derive(Clone, Copy, Default)]
    struct SessionState {
        is_closed: bool,
        has_cancellable_requests: bool,
        has_open_input_requests: bool,
        accepts_unsolicited_tasks: bool,
        gets_tickets: bool,
    }

    impl LegacySessionFacts for SessionState {
        fn is_closed(&self) -> bool {
            self.is_closed
        }

        fn has_cancellable_requests(&self) -> bool {
            self.has_cancellable_requests
        }

        fn has_open_input_requests(&self) -> bool {
            self.has_open_input_requests
        }

        fn accepts_unsolicited_tasks(&self) -> bool {
            self.accepts_unsolicited_tasks
        }

        fn ticket_tool(&self, tool: &str) -> Option<(TicketAction, Arc<TicketToolNames>)> {
            let names = Arc::new(TicketToolNames::choose_unused(|_| false));
            names.action_of(tool).filter(|_| self.gets_tickets).map(|action| (action, names))
        }

        fn ticket_grant(&self) -> Option<TicketGrant> {
            let tickets = policy::TicketPolicy::default();
            tickets.grant_for(&http::HeaderMap::new(), String::new, None).filter(|_| self.gets_tickets)
        }

        fn ticket(&self, policy: &ToolPolicy) -> Option<(Duration, TicketOptions)> {
            let terms = self.ticket_grant()?.terms(policy)?;
            let names = Arc::new(TicketToolNames::choose_unused(|_| false));
            Some((terms.after, TicketOptions { names, wait: terms.result_wait }))
        }
    }

    /// A route with this mode, and with the mode `rule` for the tool `t`.
    fn route(mode: Mode, rule: Option<Mode>) -> Route {
        let rule = rule.map(|mode| ToolRule {
            matches: NamePattern::new("t"),
            mode: Some(mode),
            after: None,
            rollout: None,
            ticket: policy::TicketAfter::Inherited,
            limits: Default::default(),
            timeout: None,
            keys: Arc::default(),
            requires: None,
        });
        Route {
            path: "/mcp".into(),
            defer: policy::DeferPolicy { mode, after: AFTER, ..Default::default() },
            tools: rule.into_iter().collect(),
            principal: policy::PrincipalSource::Authorization,
            input_policy: policy::InputPolicy::default(),
            legacy_tasks: policy::LegacyTaskPolicy::default(),
            resume: policy::ResumePolicy::default(),
            tickets: policy::TicketPolicy::default(),
            wait_policy: policy::WaitPolicy::default(),
            session_headers: Vec::new(),
            limits: Default::default(),
            queue: Default::default(),
            timeout: None,
            response_headers: Vec::new(),
            adds_forwarded_header: false,
            empty_contents_is_error: false,
        }
    }

    /// The facts that a test varies; the others are in the body and the route.
    #[derive(Clone, Copy, Default)]
    struct Situation {
        has_task_support: bool,
        has_limits: bool,
        is_stopping: bool,
        session: SessionState,
    }

    /// The plan for a request with this body, or for a GET or DELETE, and what is read of the body.
    fn plan_for(body: &str, route: &Route, situation: Situation) -> (LegacyPlan, LegacyPost) {
        let http_method = match body {
            "GET" => http::Method::GET,
            "DELETE" => http::Method::DELETE,
            _ => http::Method::POST,
        };
        let bytes = Bytes::copy_from_slice(body.as_bytes());
        let message = Frame::parse(bytes.clone());
        let post = match &message {
            _ if http_method != http::Method::POST => LegacyPost::default(),
            Ok(frame) => LegacyPost::from_frame(frame),
            Err(_) => LegacyPost::read(&mut MessageReader::new(bytes))
                .unwrap_or_else(|error| LegacyPost::unreadable(body.as_bytes(), error)),
        };
        let Situation { has_task_support, has_limits, is_stopping, session } = situation;
        let request = LegacyRequestFacts {
            http_method: &http_method,
            post: &post,
            message: message.as_ref().ok(),
            has_task_support,
            route,
            membership: &None,
            has_limits,
            is_stopping,
        };
        (plan_legacy(&request, &session), post)
    }

    /// The plan as text; before `else` for a server without tasks, behind it for a server with tasks.
    fn plan_text(body: &str, route: &Route, situation: Situation) -> String {
        match plan_for(body, route, situation).0 {
            LegacyPlan::Act(action) => action_text(&action),
            LegacyPlan::DependsOnServerTasks { with_tasks, without_tasks } => {
                format!("{} else {}", action_text(&without_tasks), action_text(&with_tasks))
            }
        }
    }

    fn action_text(action: &LegacyAction) -> String {
        match action {
            LegacyAction::Relay => "relay".to_owned(),
            LegacyAction::RelayInitialize => "relay initialize".to_owned(),
            LegacyAction::RelayToolList { marks_tasks, ticket_grant } => {
                let marks = if *marks_tasks { ", mark tasks" } else { "" };
                let tickets = if ticket_grant.is_some() { ", add ticket tools" } else { "" };
                format!("relay{marks}{tickets}")
            }
            LegacyAction::RelayWithoutTask => "relay without task".to_owned(),
            LegacyAction::DeleteSession => "delete session".to_owned(),
            LegacyAction::Cancel(_) => "cancel".to_owned(),
            LegacyAction::ReceiveResponse(_) => "receive".to_owned(),
            LegacyAction::ServeTask { .. } => "serve task".to_owned(),
            LegacyAction::ServeTicket { action, .. } => format!("ticket {action:?}"),
            LegacyAction::Drive { drive: LegacyDrive::Task(_), .. } => "task".to_owned(),
            LegacyAction::Drive { drive: LegacyDrive::Defer { after, .. }, .. } => format!("task {after:?}"),
            LegacyAction::Drive { drive: LegacyDrive::Ticket { after, .. }, .. } => {
                format!("ticket {after:?}")
            }
            LegacyAction::Refuse(error) => format!("refuse {}", error.code()),
            LegacyAction::RefuseClosedSession => "refuse: closed".to_owned(),
            LegacyAction::RefuseNewWork => "refuse: stopping".to_owned(),
        }
    }

    fn request(method: &str, params: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
    }

    /// Behind the bars: the plan, the plan for a client that accepts unsolicited tasks, and the same two for
    /// a client that gets tickets. The clients have task support.
    #[test]
    fn the_plan_of_a_single_call_in_every_mode() {
        let calls = [("plain", ""), ("a task", r#","task":{}"#), ("unread", r#","task":5"#)];
        let mut table = String::new();
        for mode in Mode::ALL {
            for (label, task_param) in calls {
                let columns = [(false, false), (false, true), (true, false), (true, true)];
                let plans = columns.map(|(gets_tickets, accepts_unsolicited_tasks)| {
                    let call = request("tools/call", &format!(r#"{{"name":"t"{task_param}}}"#));
                    let mut route = route(Mode::Auto, Some(mode));
                    route.wait_policy.ticket_after = gets_tickets.then_some(TICKET_AFTER);
                    let session =
                        SessionState { gets_tickets, accepts_unsolicited_tasks, ..Default::default() };
                    let situation = Situation { has_task_support: true, session, ..Default::default() };
                    format!("{:29}", plan_text(&call, &route, situation))
                });
                let row = format!("{:8} | {label:6} | {}", format!("{mode:?}"), plans.join(" | "));
                table += &format!("{}\n", row.trim_end());
            }
        }
        expect![[r#"
            Auto     | plain  | relay                         | task 5s else relay            | ticket 3s                     | task 5s else relay
            Auto     | a task | task else relay               | task 5s else relay            | task else relay               | task 5s else relay
            Auto     | unread | refuse -32602 else relay      | refuse -32602 else relay      | refuse -32602 else relay      | refuse -32602 else relay
            Never    | plain  | relay                         | relay                         | relay                         | relay
            Never    | a task | refuse -32601 else relay      | relay without task else relay | refuse -32601 else relay      | relay without task else relay
            Never    | unread | refuse -32602 else relay      | relay without task else relay | refuse -32602 else relay      | relay without task else relay
            Always   | plain  | relay                         | task 0ns else relay           | ticket 3s                     | task 0ns else relay
            Always   | a task | task else relay               | task 0ns else relay           | task else relay               | task 0ns else relay
            Always   | unread | refuse -32602 else relay      | refuse -32602 else relay      | refuse -32602 else relay      | refuse -32602 else relay
            Required | plain  | refuse -32601 else relay      | task 5s else relay            | refuse -32601 else relay      | task 5s else relay
            Required | a task | task else relay               | task 5s else relay            | task else relay               | task 5s else relay
            Required | unread | refuse -32602 else relay      | refuse -32602 else relay      | refuse -32602 else relay      | refuse -32602 else relay
            Observe  | plain  | relay                         | relay                         | relay                         | relay
            Observe  | a task | refuse -32601 else relay      | relay without task else relay | refuse -32601 else relay      | relay without task else relay
            Observe  | unread | refuse -32602 else relay      | relay without task else relay | refuse -32602 else relay      | relay without task else relay
            Deny     | plain  | refuse -32602                 | refuse -32602                 | refuse -32602                 | refuse -32602
            Deny     | a task | refuse -32602                 | refuse -32602                 | refuse -32602                 | refuse -32602
            Deny     | unread | refuse -32602                 | refuse -32602                 | refuse -32602                 | refuse -32602
        "#]].assert_eq(&table);
    }

    /// The bodies of all kinds of messages.
    fn bodies() -> Vec<(&'static str, String)> {
        let own_request = offer::input_request_id(&crate::task::TaskId::from_entropy([1; 16]), "key");
        let call = request("tools/call", r#"{"name":"t"}"#);
        vec![
            ("initialize", request("initialize", "{}")),
            ("tools/list", request("tools/list", "{}")),
            ("call", call.clone()),
            ("call as a task", request("tools/call", r#"{"name":"t","task":{}}"#)),
            ("ambiguous call", request("tools/call", r#"{"name":"t","name":"u"}"#)),
            ("ticket tool", request("tools/call", r#"{"name":"deferral_result"}"#)),
            ("task, ticket-like tool", request("tools/call", r#"{"name":"deferral_x","task":{}}"#)),
            ("prompts/get", request("prompts/get", r#"{"name":"p"}"#)),
            ("ping", request("ping", "{}")),
            ("tasks/get", request("tasks/get", r#"{"taskId":"x"}"#)),
            ("tasks/cancel", request("tasks/cancel", r#"{"taskId":"x"}"#)),
            (
                "cancellation",
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#.to_owned(),
            ),
            ("other notification", r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned()),
            ("response to us", format!(r#"{{"jsonrpc":"2.0","id":{own_request},"result":{{}}}}"#)),
            ("other response", r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned()),
            ("batch of one call", format!("[{call}]")),
            ("batch with a list", format!("[{},{}]", request("ping", "{}"), request("tools/list", "{}"))),
            ("unreadable", "{".to_owned()),
            ("GET", "GET".to_owned()),
            ("DELETE", "DELETE".to_owned()),
        ]
    }

    /// Writes under each kind of message its plans, each with the columns that have it.
    fn grouped_table(columns: &[(&str, Route, Situation)]) -> String {
        let (mut table, all) = (String::new(), columns.len());
        for (label, body) in bodies() {
            let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
            for (column, route, situation) in columns {
                let plan = plan_text(&body, route, *situation);
                match groups.iter_mut().find(|(other, _)| *other == plan) {
                    Some((_, columns)) => columns.push(column),
                    None => groups.push((plan, vec![column])),
                }
            }
            table += &format!("{label}\n");
            for (plan, columns) in groups {
                let columns = if columns.len() == all { "all".to_owned() } else { columns.join(", ") };
                table += &format!("    {plan:35} | {columns}\n");
            }
        }
        table
    }

    #[test]
    fn the_plan_of_each_message_on_each_route() {
        let with_tickets = {
            let mut route = route(Mode::Auto, None);
            route.wait_policy.ticket_after = Some(TICKET_AFTER);
            route
        };
        let legacy = Situation::default();
        let tasks = Situation { has_task_support: true, ..legacy };
        let tickets = Situation { session: SessionState { gets_tickets: true, ..legacy.session }, ..legacy };
        let limits = |situation| Situation { has_limits: true, ..situation };
        let columns = [
            ("never", route(Mode::Never, None), legacy),
            ("never+tasks", route(Mode::Never, None), tasks),
            ("never+limits", route(Mode::Never, None), limits(legacy)),
            ("never+limits+tasks", route(Mode::Never, None), limits(tasks)),
            ("auto", route(Mode::Auto, None), legacy),
            ("auto+tasks", route(Mode::Auto, None), tasks),
            ("required", route(Mode::Auto, Some(Mode::Required)), legacy),
            ("required+tasks", route(Mode::Auto, Some(Mode::Required)), tasks),
            ("denied", route(Mode::Auto, Some(Mode::Deny)), legacy),
            ("denied+tasks", route(Mode::Auto, Some(Mode::Deny)), tasks),
            ("tickets", with_tickets, tickets),
        ];
        expect![[r#"
            initialize
                relay initialize                    | all
            tools/list
                relay                               | never, never+tasks, never+limits, never+limits+tasks, auto, required, denied
                relay, mark tasks else relay        | auto+tasks, required+tasks, denied+tasks
                relay, add ticket tools             | tickets
            call
                relay                               | never, never+tasks, never+limits, never+limits+tasks, auto, auto+tasks
                refuse -32601 else relay            | required, required+tasks
                refuse -32602                       | denied, denied+tasks
                ticket 3s                           | tickets
            call as a task
                relay                               | never, never+tasks, never+limits, auto
                refuse -32601 else relay            | never+limits+tasks, required
                task else relay                     | auto+tasks, required+tasks
                refuse -32602                       | denied, denied+tasks
                ticket 3s                           | tickets
            ambiguous call
                relay                               | never, never+tasks, auto, auto+tasks
                refuse -32602                       | never+limits, never+limits+tasks, denied, denied+tasks
                refuse -32602 else relay            | required, required+tasks
                ticket 3s                           | tickets
            ticket tool
                relay                               | never, never+tasks, never+limits, never+limits+tasks, auto, auto+tasks, required, required+tasks, denied, denied+tasks
                ticket Result                       | tickets
            task, ticket-like tool
                relay                               | never, never+limits, auto, required, denied
                refuse -32601 else relay            | never+tasks, never+limits+tasks
                task else relay                     | auto+tasks, required+tasks, denied+tasks
                ticket 3s                           | tickets
            prompts/get
                relay                               | all
            ping
                relay                               | all
            tasks/get
                relay                               | never, never+tasks, never+limits, auto, required, denied, tickets
                serve task else relay               | never+limits+tasks, auto+tasks, required+tasks, denied+tasks
            tasks/cancel
                relay                               | never, never+tasks, never+limits, auto, required, denied, tickets
                serve task else relay               | never+limits+tasks, auto+tasks, required+tasks, denied+tasks
            cancellation
                relay                               | never, never+tasks, auto, auto+tasks, tickets
                cancel                              | never+limits, never+limits+tasks, required, required+tasks, denied, denied+tasks
            other notification
                relay                               | all
            response to us
                relay                               | never, never+tasks
                receive                             | never+limits, never+limits+tasks, auto, auto+tasks, required, required+tasks, denied, denied+tasks, tickets
            other response
                relay                               | all
            batch of one call
                relay                               | never, never+tasks, never+limits, never+limits+tasks, auto, auto+tasks, tickets
                refuse -32601 else relay            | required, required+tasks
                refuse -32602                       | denied, denied+tasks
            batch with a list
                relay                               | never, never+tasks, never+limits, never+limits+tasks, auto, auto+tasks, required, required+tasks, tickets
                refuse -32600                       | denied, denied+tasks
            unreadable
                relay                               | never, never+tasks, auto, auto+tasks, tickets
                refuse -32700                       | never+limits, never+limits+tasks, denied, denied+tasks
                refuse -32700 else relay            | required, required+tasks
            GET
                relay                               | all
            DELETE
                delete session                      | all
        "#]].assert_eq(&grouped_table(&columns));
    }

    #[test]
    fn the_plan_of_each_message_in_each_state() {
        let none = Situation { has_task_support: true, ..Situation::default() };
        let state = |session| Situation { session, ..none };
        let default = SessionState::default();
        let columns = [
            ("none", none),
            ("closed", state(SessionState { is_closed: true, ..default })),
            ("stopping", Situation { is_stopping: true, ..none }),
            (
                "stopping+tickets",
                Situation { is_stopping: true, ..state(SessionState { gets_tickets: true, ..default }) },
            ),
            ("cancellable", state(SessionState { has_cancellable_requests: true, ..default })),
            ("input requests", state(SessionState { has_open_input_requests: true, ..default })),
            ("unsolicited", state(SessionState { accepts_unsolicited_tasks: true, ..default })),
        ];
        let columns = columns.map(|(label, situation)| (label, route(Mode::Never, None), situation));
        expect![[r#"
            initialize
                relay initialize                    | none, closed, cancellable, input requests, unsolicited
                refuse: stopping                    | stopping, stopping+tickets
            tools/list
                relay                               | none, cancellable, input requests, unsolicited
                refuse: closed                      | closed
                refuse: stopping                    | stopping, stopping+tickets
            call
                relay                               | none, cancellable, input requests, unsolicited
                refuse: closed                      | closed
                refuse: stopping                    | stopping, stopping+tickets
            call as a task
                relay                               | none, cancellable, input requests
                refuse: closed                      | closed
                refuse: stopping                    | stopping, stopping+tickets
                relay without task else relay       | unsolicited
            ambiguous call
                relay                               | none, cancellable, input requests, unsolicited
                refuse: closed                      | closed
                refuse: stopping                    | stopping, stopping+tickets
            ticket tool
                relay                               | none, cancellable, input requests, unsolicited
                refuse: closed                      | closed
                refuse: stopping                    | stopping
                ticket Result                       | stopping+tickets
            task, ticket-like tool
                refuse -32601 else relay            | none, cancellable, input requests
                refuse: closed                      | closed
                refuse: stopping                    | stopping, stopping+tickets
                relay without task else relay       | unsolicited
            prompts/get
                relay                               | none, cancellable, input requests, unsolicited
                refuse: closed                      | closed
                refuse: stopping                    | stopping, stopping+tickets
            ping
                relay                               | none, stopping, stopping+tickets, cancellable, input requests, unsolicited
                refuse: closed                      | closed
            tasks/get
                relay                               | none, stopping, stopping+tickets, cancellable, input requests, unsolicited
                refuse: closed                      | closed
            tasks/cancel
                relay                               | none, stopping, stopping+tickets, cancellable, input requests, unsolicited
                refuse: closed                      | closed
            cancellation
                relay                               | none, stopping, stopping+tickets, input requests, unsolicited
                refuse: closed                      | closed
                cancel                              | cancellable
            other notification
                relay                               | none, stopping, stopping+tickets, cancellable, input requests, unsolicited
                refuse: closed                      | closed
            response to us
                relay                               | none, stopping, stopping+tickets, cancellable, unsolicited
                refuse: closed                      | closed
                receive                             | input requests
            other response
                relay                               | none, stopping, stopping+tickets, cancellable, unsolicited
                refuse: closed                      | closed
                receive                             | input requests
            batch of one call
                relay                               | none, cancellable, input requests, unsolicited
                refuse: closed                      | closed
                refuse: stopping                    | stopping, stopping+tickets
            batch with a list
                relay                               | none, cancellable, input requests, unsolicited
                refuse: closed                      | closed
                refuse: stopping                    | stopping, stopping+tickets
            unreadable
                relay                               | none, stopping, stopping+tickets, cancellable, input requests, unsolicited
                refuse: closed                      | closed
            GET
                relay                               | none, stopping, stopping+tickets, cancellable, input requests, unsolicited
                refuse: closed                      | closed
            DELETE
                delete session                      | none, stopping, stopping+tickets, cancellable, input requests, unsolicited
                refuse: closed                      | closed
        "#]].assert_eq(&grouped_table(&columns));
    }

    #[test]
    fn a_call_and_a_change_of_a_task_outlive_their_clients() {
        let session = SessionState { gets_tickets: true, ..Default::default() };
        let situation = Situation { has_task_support: true, session, ..Default::default() };
        let outlives = |body: &str| {
            let (plan, post) = plan_for(body, &route(Mode::Auto, Some(Mode::Required)), situation);
            plan.outlives_client(&post)
        };
        let surviving: Vec<_> =
            bodies().into_iter().filter(|(_, body)| outlives(body)).map(|(label, _)| label).collect();
        expect![[r#"
            [
                "call",
                "call as a task",
                "ambiguous call",
                "task, ticket-like tool",
                "prompts/get",
                "tasks/cancel",
                "response to us",
                "other response",
                "batch of one call",
            ]
        "#]]
        .assert_debug_eq(&surviving);
    }
}
