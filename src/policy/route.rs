//! A route of the proxy, and the policies for its calls.

use super::{
    CallLimits, CallQueue, CallerHead, DeferPolicy, Mode, NamePattern, Rollout, RolloutBasis,
    RolloutMembership, TicketAfter, TicketPolicy, ToolPolicy, ToolRule, rollout,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::{fmt, sync::Arc, time::Duration};

/// One MCP endpoint of the proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The path that clients use, `/mcp` by default. Also the route's name.
    pub path: Arc<str>,
    /// The deferral policy of all tools that no rule overrides.
    pub defer: DeferPolicy,
    /// The overrides for tools, in order; the first rule that matches a tool's name applies.
    pub tools: Vec<ToolRule>,
    /// Limits on all `tools/call` requests of the route together.
    pub limits: CallLimits,
    /// The bounds of the queue for calls that exceed a concurrency limit.
    pub queue: CallQueue,
    /// The timeout of a call at the server. `None` if it equals the server's own timeout, which is the
    /// longest of all tools of the route.
    pub timeout: Option<Duration>,
    /// How callers are identified.
    pub principal: PrincipalSource,
    /// The handling of a server's input requests (`questions`).
    pub input_policy: InputPolicy,
    /// The tasks of 2025-11-25 for legacy clients (`tasks`).
    pub legacy_tasks: LegacyTaskPolicy,
    /// The resumption of event streams and calls (`resume`).
    pub resume: ResumePolicy,
    /// Keep-alive and limits for clients that wait without a task (`held`).
    pub wait_policy: WaitPolicy,
    /// The tickets for clients without task support (`tickets`).
    pub tickets: TicketPolicy,
    /// Request headers that select the upstream session in addition to those that do so by default: callers
    /// that differ in these headers share no session.
    pub session_headers: Vec<HeaderName>,
    /// Whether the `Forwarded` header (RFC 7239) is added to requests to the server. Off by default.
    pub adds_forwarded_header: bool,
    /// Headers that are set on every response of the route; they replace the server's headers of the same
    /// names.
    pub response_headers: ResponseHeaders,
    /// Whether an empty `resources/read` result is converted to the error for an unknown resource. Off by
    /// default.
    pub empty_contents_is_error: bool,
}

/// Configured response headers; each name occurs once.
pub type ResponseHeaders = Vec<(HeaderName, HeaderValue)>;

/// How a route identifies callers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PrincipalSource {
    /// The hash of the `Authorization` value; so a client with a refreshed token is another principal.
    #[default]
    Authorization,
    /// The value of a header that a trusted proxy in front sets.
    Header(HeaderName),
}

/// The handling of input requests during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputPolicy {
    /// How long to wait for further input requests after the first, so that parallel ones are sent together.
    /// Adds to the latency of every input request. Default 25 ms.
    pub settle: Duration,
    /// How long a call without a task may wait for input responses. The server's call, its session and a few
    /// KiB of memory are held meanwhile. Default 5 min.
    pub park: Duration,
    /// How long an input request of a process may keep other clients waiting for the process. Default 30 s.
    pub turn: Duration,
}

/// Keep-alive messages and limits for a client that waits for a slow `tools/call`, `prompts/get` or
/// `resources/read` without a task, so that neither the client nor an intermediary times out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// The time without a message after which a client that sent a progress token gets a progress
    /// notification; `None` for never. A notification takes about 150 bytes. Default 10 s.
    pub progress_after: Option<Duration>,
    /// The time without a byte after which a response becomes an event stream and the stream gets a comment,
    /// which keeps the connection open. From then on an error cannot have an HTTP status of its own, so a
    /// shorter time costs some clients a clear error; after a longer one an intermediary may time out.
    /// Applies to all waiting requests. Default 5 s.
    pub comment_after: Duration,
    /// How long a client may wait, counted from its request. Afterwards the client gets an error, and the
    /// call is cancelled at the server. Default none; the server's own timeout is `upstream::Timeouts::call`.
    pub deadline: Option<Duration>,
    /// How long a `tools/call` may run before a client without task support gets a ticket instead of the
    /// result. Default none: the client waits.
    pub ticket_after: Option<Duration>,
}

/// The tasks that the proxy provides for clients of 2025-11-25.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyTaskPolicy {
    /// The maximum retention that a client can request for its task, at least a second. Default 24 h.
    pub max_ttl: Duration,
    /// Whether a task whose tool returned an error is `completed` instead of `failed`, which the revision
    /// requires: some clients drop the result of a failed task. Off by default.
    pub completes_on_tool_error: bool,
    /// A text in the response that creates a task, with which the client's model can continue while the task
    /// works.
    pub immediate_response: Option<String>,
    /// Whether a caller can access, in a session of one era, the tasks that it created in the other. Off by
    /// default, and never for callers without credentials.
    pub is_shared_across_eras: bool,
    /// The clients that may get tasks that they did not request.
    pub unsolicited: UnsolicitedTasks,
}

/// Resumption of event streams by legacy clients if the server sets no event ids, and of calls after a
/// restart (`resume`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePolicy {
    /// Whether the proxy assigns event ids and buffers the events. Off by default, because each such response
    /// takes memory and work.
    pub assigns_event_ids: bool,
    /// How long a buffered response is kept after its end. Default 5 min.
    pub keep_for: Duration,
    /// The maximum size of the buffered events of one response, in bytes; older events are dropped. Default 1
    /// MiB.
    pub max_bytes: usize,
    /// How long a call of the previous process waits for a request of its caller, whose credentials the
    /// resumption at the server needs. Default 5 min.
    pub credentials_timeout: Duration,
    /// The maximum number of buffered responses; events of further responses get no ids. Default 1000.
    pub max_streams: usize,
}

/// The clients that may get a task without requesting one (SEP-2229, draft). Clients that do not support
/// unsolicited tasks fail, and no declaration shows the support, so the operator must name the clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UnsolicitedTasks {
    /// No client gets unsolicited tasks.
    #[default]
    Never,
    /// Every client gets unsolicited tasks.
    Always,
    /// Clients that match one of these.
    Matching(Vec<ClientMatch>),
}

/// How a client is recognised. Never by `clientInfo`, which the client chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMatch {
    /// The client's requests have this header with this value.
    Header(HeaderName, String),
    /// The client's principal as it appears in the log: the first 16 hexadecimal digits of its hash.
    Principal(String),
}

// === impl WaitPolicy ===

impl Default for WaitPolicy {
    fn default() -> Self {
        Self {
            progress_after: Some(Duration::from_secs(10)),
            comment_after: Duration::from_secs(5),
            deadline: None,
            ticket_after: None,
        }
    }
}

// === impl ResumePolicy ===

impl Default for ResumePolicy {
    fn default() -> Self {
        Self {
            assigns_event_ids: false,
            keep_for: Duration::from_secs(5 * 60),
            credentials_timeout: Duration::from_secs(5 * 60),
            max_bytes: 1 << 20,
            max_streams: 1000,
        }
    }
}

// === impl LegacyTaskPolicy ===

impl Default for LegacyTaskPolicy {
    fn default() -> Self {
        Self {
            max_ttl: Duration::from_secs(24 * 60 * 60),
            completes_on_tool_error: false,
            immediate_response: None,
            is_shared_across_eras: false,
            unsolicited: UnsolicitedTasks::Never,
        }
    }
}

// === impl UnsolicitedTasks ===

impl UnsolicitedTasks {
    /// Whether a client may get unsolicited tasks. `principal` returns the client's principal as it appears
    /// in the log.
    pub fn applies_to(&self, headers: &HeaderMap, principal: impl Fn() -> String) -> bool {
        let matches = match self {
            Self::Never => return false,
            Self::Always => return true,
            Self::Matching(matches) => matches,
        };
        matches.iter().any(|client_match| client_match.matches(headers, &principal))
    }
}

// === impl ClientMatch ===

impl ClientMatch {
    /// Whether a client with these request headers matches. `principal` returns the client's principal as it
    /// appears in the log.
    pub(super) fn matches(&self, headers: &HeaderMap, principal: impl Fn() -> String) -> bool {
        match self {
            Self::Header(name, value) => {
                headers.get_all(name).iter().any(|received| received == value.as_str())
            }
            Self::Principal(expected) => *expected == principal(),
        }
    }
}

// === impl InputPolicy ===

impl Default for InputPolicy {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(25),
            park: Duration::from_secs(5 * 60),
            turn: Duration::from_secs(30),
        }
    }
}

// === impl Route ===

impl Route {
    /// Returns the policy of a tool on this route for members of all rollouts.
    pub fn tool_policy(&self, tool: &str) -> ToolPolicy {
        self.tool_policy_for(tool, &RolloutMembership::default())
    }

    /// Returns the policy of a tool on this route for a caller with this rollout membership.
    pub fn tool_policy_for(&self, tool: &str, membership: &RolloutMembership) -> ToolPolicy {
        let mut policy = self.defer.tool_policy(&self.tools, tool, membership);
        if let (TicketAfter::Inherited, Some(after)) = (policy.ticket, self.wait_policy.ticket_after) {
            policy.ticket = TicketAfter::After(after);
        }
        policy
    }

    /// Returns the first rule that matches the name of the tool, whatever the rule sets.
    fn find_rule(&self, tool: &str) -> Option<&ToolRule> {
        self.tools.iter().find(|rule| rule.matches.matches(tool))
    }

    /// Returns the pattern of the rule that sets the mode of a tool; `None` if the tool has the route's mode.
    pub fn mode_rule(&self, tool: &str) -> Option<&NamePattern> {
        self.find_rule(tool).filter(|rule| rule.mode.is_some()).map(|rule| &rule.matches)
    }

    /// Returns the pattern of the rule that sets the mode or the threshold of a tool; `None` if the tool has
    /// those of the route.
    pub fn threshold_rule(&self, tool: &str) -> Option<&NamePattern> {
        let sets_threshold = |rule: &&ToolRule| rule.mode.is_some() || rule.after.is_some();
        self.find_rule(tool).filter(sets_threshold).map(|rule| &rule.matches)
    }

    /// Returns the pattern of the rule that sets this ticket time for a tool; `None` if the route or the
    /// ticket holder sets the time.
    pub fn ticket_rule(&self, tool: &str, after: Duration) -> Option<&NamePattern> {
        let rule = self.find_rule(tool).filter(|rule| rule.ticket == TicketAfter::After(after));
        rule.map(|rule| &rule.matches)
    }

    /// Returns the timeout of a call of this tool at the server; `None` if the server's own timeout applies.
    pub fn call_timeout(&self, tool: &str) -> Option<Duration> {
        self.find_rule(tool).and_then(|rule| rule.timeout).or(self.timeout)
    }

    /// Whether any call may have a timeout that differs from the server's own.
    pub fn has_timeouts(&self) -> bool {
        self.timeout.is_some() || self.tools.iter().any(|rule| rule.timeout.is_some())
    }

    /// Whether the tool is denied (`mode: deny`): its calls are refused, and it is hidden from lists.
    pub fn is_denied(&self, tool: &str) -> bool {
        self.find_rule(tool).is_some_and(|rule| rule.mode == Some(Mode::Deny))
    }

    /// Whether any rule denies tools (`mode: deny`).
    pub fn has_denied_tools(&self) -> bool {
        self.tools.iter().any(|rule| rule.mode == Some(Mode::Deny))
    }

    /// Whether calls of any tool may be observed only.
    pub fn has_observed_tools(&self) -> bool {
        self.modes().any(|mode| mode == Mode::Observe) || self.rollouts().flatten().next().is_some()
    }

    /// Returns the rollout that applies to a tool: that of its rule, else that of the route; `None` without a
    /// rollout.
    pub fn rollout_of_tool(&self, tool: &str) -> Option<&Rollout> {
        let rule_rollout = self.find_rule(tool).and_then(|rule| rule.rollout.as_deref());
        rule_rollout.or(self.defer.rollout.as_deref())
    }

    /// Determines the caller's membership in each rollout of the route; `None`, at no cost, without a
    /// rollout. `token` is the name of the caller's access token.
    pub fn rollout_membership(
        &self,
        headers: &HeaderMap,
        token: Option<&str>,
        principal: impl fmt::Display,
    ) -> RolloutMembership {
        if self.rollouts().flatten().next().is_none() {
            return RolloutMembership::default();
        }
        let principal = principal.to_string();
        let head = CallerHead { headers, token, principal: &principal };
        let is_included = |rollout: &Rollout| rollout.includes(&self.path, &self.principal, head);
        Some(self.rollouts().map(|rollout| rollout.is_none_or(is_included)).collect())
    }

    /// Returns the rollout of `defer`, then that of each rule; `None` where there is none.
    fn rollouts(&self) -> impl Iterator<Item = Option<&Rollout>> {
        let rule_rollouts = self.tools.iter().map(|rule| rule.rollout.as_deref());
        [self.defer.rollout.as_deref()].into_iter().chain(rule_rollouts)
    }

    /// Whether tasks of 2025-11-25 are offered to a caller with this membership when it begins a session. If
    /// the membership depends on the session, whose id is not known yet, tasks are offered, and `tools/list`
    /// decides for each tool.
    pub fn can_offer_tasks(&self, membership: &RolloutMembership) -> bool {
        let is_by_session = |rollout: &Rollout| rollout.basis == RolloutBasis::Session;
        self.has_tasks() && (self.can_defer_for(membership) || self.rollouts().flatten().any(is_by_session))
    }

    /// Whether calls of any tool may become tasks for a caller with this membership. Always true without a
    /// rollout: only the modes decide then.
    pub fn can_defer_for(&self, membership: &RolloutMembership) -> bool {
        membership.is_none() || self.modes_for(membership).any(Mode::makes_tasks)
    }

    /// Whether any call on the route may get a ticket instead of its result.
    pub fn has_tickets(&self) -> bool {
        let has_ticket_time = |rule: &ToolRule| matches!(rule.ticket, TicketAfter::After(_));
        self.wait_policy.ticket_after.is_some()
            || self.tools.iter().any(has_ticket_time)
            || self.tickets.has_thresholds()
    }

    /// Whether calls of any tool may become tasks, for some caller.
    pub fn has_tasks(&self) -> bool {
        self.modes().any(Mode::makes_tasks)
    }

    /// Whether any tool must be called as a task (`mode: required`) by a caller with this membership.
    pub fn has_required_tasks(&self, membership: &RolloutMembership) -> bool {
        self.modes_for(membership).any(|mode| mode == Mode::Required)
    }

    /// Returns the modes that apply to a caller with this membership: a mode that makes tasks only if the
    /// caller is a member of its rollout.
    fn modes_for(&self, membership: &RolloutMembership) -> impl Iterator<Item = Mode> {
        let rule_modes = self.tools.iter().enumerate().map(|(number, rule)| {
            let rollout_rule = rule.rollout.is_some().then_some(number);
            (rule.mode.unwrap_or(self.defer.mode), rollout_rule)
        });
        let all = rule_modes.chain([(self.defer.mode, None)]);
        all.filter(|(mode, rollout_rule)| {
            !mode.makes_tasks() || rollout::is_member(membership, *rollout_rule)
        })
        .map(|(mode, _)| mode)
    }

    /// Returns the modes of the route and of its rules.
    fn modes(&self) -> impl Iterator<Item = Mode> {
        self.tools.iter().filter_map(|rule| rule.mode).chain([self.defer.mode])
    }
}

/// Whether two paths differ at most in a trailing slash: clients write `/mcp` and `/mcp/` for one endpoint.
pub fn is_same_path(one: &str, other: &str) -> bool {
    one == other || one.strip_suffix('/') == Some(other) || other.strip_suffix('/') == Some(one)
}
