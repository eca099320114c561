//! The route of a call, and the policies of its server.

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
    pub defer: DeferPolicy,
    /// The first match applies.
    pub tools: Vec<ToolRule>,
    /// For all its `tools/call` together.
    pub limits: CallLimits,
    pub queue: CallQueue,
    /// The timeout of a call at the server, if it is shorter than the server's own timeout, which is the
    /// longest of all tools.
    pub timeout: Option<Duration>,
    pub principal: PrincipalSource,
    pub questions: InputPolicy,
    pub legacy_tasks: LegacyTaskPolicy,
    pub resume: ResumePolicy,
    pub held: WaitPolicy,
    pub tickets: TicketPolicy,
    /// Headers in addition to `Authorization` and cookies by which the server identifies the caller. They are
    /// forwarded, and callers that differ in them share no session.
    pub forward: Vec<HeaderName>,
    /// Adds `Forwarded` to the requests that are sent to the server (RFC 7239). Off by default.
    pub forwarded: bool,
    /// Headers of every response of the route, which replace the server's own of these names.
    pub response_headers: ResponseHeaders,
    /// Turns an empty `resources/read` result into the error for an unknown resource. Off by default.
    pub empty_contents_is_error: bool,
}

/// Configured headers: each name once.
pub type ResponseHeaders = Vec<(HeaderName, HeaderValue)>;

/// How a route identifies callers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PrincipalSource {
    /// The hash of the `Authorization` value. A refreshed token is another principal.
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
    /// How long an unanswered input request may wait before a task exists. The server's call, its session and
    /// a few KiB of memory wait with it. Default 5 min.
    pub park: Duration,
}

/// Keep-alive messages and limits for a client that waits for a slow `tools/call`, `prompts/get` or
/// `resources/read` without a task, so that neither it nor an intermediary times out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// The silence after which a client that sent a progress token gets a progress notification; `None` for
    /// never. Each takes about 150 bytes. Default 10 s.
    pub progress: Option<Duration>,
    /// The silence after which a response becomes an event stream and the stream gets a comment, which keeps
    /// the connection open. From then on an error cannot have an HTTP status of its own, so a shorter time
    /// costs some clients a clear error; after a longer one an intermediary may time out. Applies to all
    /// waiting requests. Default 5 s.
    pub comments: Duration,
    /// How long a client may wait, counted from its request. After that it gets an error, and the call is
    /// cancelled at the server. Default none; the server's own timeout is `upstream::Timeouts::call`.
    pub deadline: Option<Duration>,
    /// How long a `tools/call` may run before a client without task support is answered with a ticket.
    /// Default none: it waits.
    pub ticket: Option<Duration>,
}

/// The tasks that the proxy provides for clients of 2025-11-25.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyTaskPolicy {
    /// The longest retention that a client can request for its task, at least a second. Default 24 h.
    pub max_ttl: Duration,
    /// Whether a task whose tool returned an error is `completed` instead of `failed`, which the revision
    /// requires: some clients drop the result of a failed task. Off by default.
    pub errors_complete: bool,
    /// A text with which a model can continue while the task works.
    pub immediate_response: Option<String>,
    /// Whether a caller finds in one era the tasks it made in the other. Off by default, and never for
    /// callers without credentials.
    pub across_eras: bool,
    pub unsolicited: UnsolicitedTasks,
}

/// Whether legacy clients can resume responses of a server without event ids, and how long calls wait for
/// their resumption after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePolicy {
    /// Whether events get ids and are kept. Off by default: it takes memory and work for each such response.
    pub mint: bool,
    /// How long a response is kept after its end. Default 5 min.
    pub keep: Duration,
    /// The maximum size of the kept end of one response, in bytes. Default 1 MiB.
    pub bytes: usize,
    /// How long a call of the previous process waits until its caller sends its credentials again, which the
    /// resumption requires. Default 5 min.
    pub wait: Duration,
    /// The maximum number of kept responses; further ones get no ids. Default 1000.
    pub streams: usize,
}

/// The clients that may get a task without requesting one (SEP-2229, draft). Clients without support for it
/// fail, and only their operator knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UnsolicitedTasks {
    #[default]
    Never,
    Always,
    /// Clients that one of these matches.
    Matching(Vec<ClientMatch>),
}

/// How a client is recognised. Never by `clientInfo`, which the client chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMatch {
    /// A header of its requests, with this value.
    Header(HeaderName, String),
    /// Its principal as in the log: the first 16 hexadecimal digits of its hash.
    Principal(String),
}

// === impl WaitPolicy ===

impl Default for WaitPolicy {
    fn default() -> Self {
        Self {
            progress: Some(Duration::from_secs(10)),
            comments: Duration::from_secs(5),
            deadline: None,
            ticket: None,
        }
    }
}

// === impl ResumePolicy ===

impl Default for ResumePolicy {
    fn default() -> Self {
        Self {
            mint: false,
            keep: Duration::from_secs(5 * 60),
            wait: Duration::from_secs(5 * 60),
            bytes: 1 << 20,
            streams: 1000,
        }
    }
}

// === impl LegacyTaskPolicy ===

impl Default for LegacyTaskPolicy {
    fn default() -> Self {
        Self {
            max_ttl: Duration::from_secs(24 * 60 * 60),
            errors_complete: false,
            immediate_response: None,
            across_eras: false,
            unsolicited: UnsolicitedTasks::Never,
        }
    }
}

// === impl UnsolicitedTasks ===

impl UnsolicitedTasks {
    /// Whether it applies to a client with these headers and this principal, as in the log.
    pub fn applies_to(&self, headers: &HeaderMap, principal: impl Fn() -> String) -> bool {
        let signs = match self {
            Self::Never => return false,
            Self::Always => return true,
            Self::Matching(signs) => signs,
        };
        signs.iter().any(|sign| sign.matches(headers, &principal))
    }
}

// === impl ClientMatch ===

impl ClientMatch {
    /// Whether it matches a client with these headers and this principal, as in the log.
    pub(super) fn matches(&self, headers: &HeaderMap, principal: impl Fn() -> String) -> bool {
        match self {
            Self::Header(name, value) => headers.get_all(name).iter().any(|sent| sent == value.as_str()),
            Self::Principal(known) => *known == principal(),
        }
    }
}

// === impl InputPolicy ===

impl Default for InputPolicy {
    fn default() -> Self {
        Self { settle: Duration::from_millis(25), park: Duration::from_secs(5 * 60) }
    }
}

// === impl Route ===

impl Route {
    /// The policy of a tool on this route, for members of all rollouts.
    pub fn tool_policy(&self, tool: &str) -> ToolPolicy {
        self.tool_policy_for(tool, &RolloutMembership::default())
    }

    /// The policy of a tool on this route, for a caller with this rollout membership.
    pub fn tool_policy_for(&self, tool: &str, standing: &RolloutMembership) -> ToolPolicy {
        let mut policy = self.defer.tool_policy(&self.tools, tool, standing);
        if let (TicketAfter::Inherited, Some(after)) = (policy.ticket, self.held.ticket) {
            policy.ticket = TicketAfter::After(after);
        }
        policy
    }

    /// The rule of a tool: the first that matches, whatever it sets.
    fn rule(&self, tool: &str) -> Option<&ToolRule> {
        self.tools.iter().find(|rule| rule.matches.matches(tool))
    }

    /// The pattern of the rule that sets the mode of a tool; `None` if the mode is the route's own.
    pub fn mode_rule(&self, tool: &str) -> Option<&NamePattern> {
        self.rule(tool).filter(|rule| rule.mode.is_some()).map(|rule| &rule.matches)
    }

    /// The pattern of the rule that sets the mode or the threshold of a tool.
    pub fn threshold_rule(&self, tool: &str) -> Option<&NamePattern> {
        let sets = |rule: &&ToolRule| rule.mode.is_some() || rule.after.is_some();
        self.rule(tool).filter(sets).map(|rule| &rule.matches)
    }

    /// The pattern of the rule that sets this ticket time for a tool; `None` if the route or the ticket
    /// holder sets it.
    pub fn ticket_rule(&self, tool: &str, after: Duration) -> Option<&NamePattern> {
        let rule = self.rule(tool).filter(|rule| rule.ticket == TicketAfter::After(after));
        rule.map(|rule| &rule.matches)
    }

    /// The timeout of a call of this tool at the server, if it differs from the server's own.
    pub fn call_timeout(&self, tool: &str) -> Option<Duration> {
        self.rule(tool).and_then(|rule| rule.timeout).or(self.timeout)
    }

    /// Whether calls may have a timeout of their own.
    pub fn has_timeouts(&self) -> bool {
        self.timeout.is_some() || self.tools.iter().any(|rule| rule.timeout.is_some())
    }

    /// Whether the tool is denied: its calls are refused, and it is hidden.
    pub fn denies(&self, tool: &str) -> bool {
        self.rule(tool).is_some_and(|rule| rule.mode == Some(Mode::Deny))
    }

    /// Whether any tool is denied.
    pub fn denies_tools(&self) -> bool {
        self.tools.iter().any(|rule| rule.mode == Some(Mode::Deny))
    }

    /// Whether calls of any tool may be observed only.
    pub fn has_observed_tools(&self) -> bool {
        self.modes().any(|mode| mode == Mode::Observe) || self.rollouts().flatten().next().is_some()
    }

    /// The rollout that applies to a tool, if there is one.
    pub fn rollout(&self, tool: &str) -> Option<&Rollout> {
        let of_rule = self.rule(tool).and_then(|rule| rule.rollout.as_deref());
        of_rule.or(self.defer.rollout.as_deref())
    }

    /// The caller's membership in each rollout of the route. Costs nothing without a rollout.
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
        let admits = |rollout: &Rollout| rollout.admits(&self.path, &self.principal, head);
        Some(self.rollouts().map(|rollout| rollout.is_none_or(admits)).collect())
    }

    /// The rollout of `defer`, and those of the rules.
    fn rollouts(&self) -> impl Iterator<Item = Option<&Rollout>> {
        let of_rules = self.tools.iter().map(|rule| rule.rollout.as_deref());
        [self.defer.rollout.as_deref()].into_iter().chain(of_rules)
    }

    /// Whether tasks of 2025-11-25 are offered to a caller with this membership that begins a session. If
    /// that depends on the session, whose id is not known yet, the answer is yes, and the list of tools
    /// decides for each tool.
    pub fn offers_tasks(&self, standing: &RolloutMembership) -> bool {
        let by_session = |rollout: &Rollout| rollout.by == RolloutBasis::Session;
        self.has_tasks() && (self.defers_for(standing) || self.rollouts().flatten().any(by_session))
    }

    /// Whether any tool's calls may become tasks for a caller with this membership. True without a rollout:
    /// then only the modes decide.
    pub fn defers_for(&self, standing: &RolloutMembership) -> bool {
        standing.is_none() || self.modes_for(standing).any(Mode::makes_tasks)
    }

    /// Whether any call may be answered with a ticket.
    pub fn has_tickets(&self) -> bool {
        let is_after = |rule: &ToolRule| matches!(rule.ticket, TicketAfter::After(_));
        self.held.ticket.is_some() || self.tools.iter().any(is_after) || self.tickets.has_thresholds()
    }

    /// Whether any tool may be run as a task of 2025-11-25.
    pub fn has_tasks(&self) -> bool {
        self.modes().any(Mode::makes_tasks)
    }

    /// Whether any tool must be run as a task, by a caller with this membership.
    pub fn requires_tasks(&self, standing: &RolloutMembership) -> bool {
        self.modes_for(standing).any(|mode| mode == Mode::Required)
    }

    fn modes_for(&self, standing: &RolloutMembership) -> impl Iterator<Item = Mode> {
        let of_rules = self.tools.iter().enumerate().map(|(number, rule)| {
            let own = rule.rollout.is_some().then_some(number);
            (rule.mode.unwrap_or(self.defer.mode), own)
        });
        let all = of_rules.chain([(self.defer.mode, None)]);
        all.filter(|(mode, own)| !mode.makes_tasks() || rollout::admits(standing, *own)).map(|(mode, _)| mode)
    }

    fn modes(&self) -> impl Iterator<Item = Mode> {
        self.tools.iter().filter_map(|rule| rule.mode).chain([self.defer.mode])
    }
}

/// Whether two paths differ at most in a trailing slash: clients write `/mcp` and `/mcp/` for one endpoint.
pub fn is_same_path(one: &str, other: &str) -> bool {
    one == other || one.strip_suffix('/') == Some(other) || other.strip_suffix('/') == Some(one)
}
