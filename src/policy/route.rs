//! Where calls come in and which server they go to.

use super::{
    CallLimits, CallQueue, CallerHead, DeferPolicy, Mode, NamePattern, Rollout, RolloutBasis,
    RolloutMembership, TicketAfter, TicketPolicy, ToolPolicy, ToolRule, rollout,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::{fmt, sync::Arc, time::Duration};

/// One MCP endpoint of the proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The path clients use, `/mcp` by default. Also the route's name.
    pub path: Arc<str>,
    pub defer: DeferPolicy,
    /// The first match wins.
    pub tools: Vec<ToolRule>,
    /// Of all its `tools/call` together.
    pub limits: CallLimits,
    pub queue: CallQueue,
    /// The time of a call at the server, where it is shorter than what its server is held to: that is the longest time of
    /// all tools.
    pub timeout: Option<Duration>,
    pub principal: PrincipalSource,
    pub questions: InputPolicy,
    pub legacy_tasks: LegacyTaskPolicy,
    pub resume: ResumePolicy,
    pub held: WaitPolicy,
    pub tickets: TicketPolicy,
    /// Headers beside `Authorization` and cookies by which the server knows the caller. They are
    /// forwarded, and callers that differ in them share no session.
    pub forward: Vec<HeaderName>,
    /// Add `HttpResponse` to the requests that are sent to the server (RFC 7239). Off by default.
    pub forwarded: bool,
    /// Headers of every response of the route, in the place of the server's own of these names.
    pub response_headers: ResponseHeaders,
    /// Turn an empty `resources/read` result into the error it stands for. Off by default.
    pub empty_contents_is_error: bool,
}

/// Headers that an operator has written: each name once.
pub type ResponseHeaders = Vec<(HeaderName, HeaderValue)>;

/// What a caller is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PrincipalSource {
    /// The hash of the `Authorization` value. A refreshed token is another principal.
    #[default]
    Authorization,
    /// The value of a header that something trusted in front of the proxy sets.
    Header(HeaderName),
}

/// How questions are treated that a server asks during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputPolicy {
    /// How long further ones are waited for after the first, so that parallel ones are put together.
    /// It adds to every answer that asks. Default 25 ms.
    pub settle: Duration,
    /// How long an unanswered one may wait before a task exists; the server's call, its session and
    /// a few KiB wait with it. Default 5 min.
    pub park: Duration,
}

/// What a client gets that waits for a slow `tools/call`, `prompts/get` or `resources/read` without a
/// task, so that neither it nor what stands in between takes the call for dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// After how much silence a client that gave a progress token is told that the call still runs;
    /// `Missing` for never. Each costs a line of about 150 bytes. Default 10 s.
    pub progress: Option<Duration>,
    /// After how much silence an answer becomes an event stream and the stream gets a comment, which
    /// keeps the connection open. From then on an error cannot have an HTTP status of its own, so a
    /// shorter time costs some clients a clear error; a longer one risks an impatient proxy in
    /// between. It holds for whatever a client waits for. Default 5 s.
    pub comments: Duration,
    /// How long a client waits at most, from its request on: then it gets an error, and the server is
    /// told that the call is cancelled. Default none; the server's own time is
    /// `upstream::Timeouts::call`.
    pub deadline: Option<Duration>,
    /// How long a `tools/call` may run before a client that knows no tasks is answered with a ticket. Default
    /// none: it waits.
    pub ticket: Option<Duration>,
}

/// How tasks are made for clients of 2025-11-25.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyTaskPolicy {
    /// The longest time for which a client can wish its task's result to be kept, at least a second.
    /// Default 24 h.
    pub max_ttl: Duration,
    /// Whether a task whose tool returned an error is `completed`, and not `failed` as the revision
    /// has it: some clients drop the result of a failed task. Off by default.
    pub errors_complete: bool,
    /// What a model may go on with while the task works.
    pub immediate_response: Option<String>,
    /// Whether a caller finds in one era the tasks it made in the other. Off by default, and never for
    /// those who show nothing to be told apart by.
    pub across_eras: bool,
    pub unsolicited: UnsolicitedTasks,
}

/// Whether the answers of a server without event ids can be taken up by legacy clients where they
/// broke, and how long calls wait to be taken up after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePolicy {
    /// Whether events are given ids and kept. Off by default: it costs memory, and work of its own for
    /// each such answer.
    pub mint: bool,
    /// How long after its end an answer is kept. Default 5 min.
    pub keep: Duration,
    /// How much of one answer is kept, in bytes: the latest. Default 1 MiB.
    pub bytes: usize,
    /// How long a call that the process before this one has made waits for its caller to show its credentials
    /// again, without which it cannot be taken up. Default 5 min.
    pub wait: Duration,
    /// Answers that are kept at a time; further ones go without ids. Default 1000.
    pub streams: usize,
}

/// Who may be given a task without having asked for one (SEP-2229, draft): clients that would not
/// understand it break, and only their operator knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UnsolicitedTasks {
    #[default]
    Never,
    Always,
    /// Whoever one of these is true of.
    Matching(Vec<ClientMatch>),
}

/// What a client is told by. Never by what it calls itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMatch {
    /// A header it sends, with this value.
    Header(HeaderName, String),
    /// Its principal, as the log shows it: the first 16 hexadecimal digits of its hash.
    Principal(String),
}

// === impl Held ===

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

// === impl Resume ===

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

// === impl LegacyTasks ===

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

// === impl Unsolicited ===

impl UnsolicitedTasks {
    /// Whether it holds for a client that sends these headers and whom the log knows as `principal`.
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
    /// Whether it is true of a client that sends these headers and whom the log knows as `principal`.
    pub(super) fn matches(&self, headers: &HeaderMap, principal: impl Fn() -> String) -> bool {
        match self {
            Self::Header(name, value) => headers.get_all(name).iter().any(|sent| sent == value.as_str()),
            Self::Principal(known) => *known == principal(),
        }
    }
}

// === impl Questions ===

impl Default for InputPolicy {
    fn default() -> Self {
        Self { settle: Duration::from_millis(25), park: Duration::from_secs(5 * 60) }
    }
}

// === impl Route ===

impl Route {
    /// What holds for a tool on this route, once it holds for everybody.
    pub fn tool_policy(&self, tool: &str) -> ToolPolicy {
        self.tool_policy_for(tool, &RolloutMembership::default())
    }

    /// What holds for a tool on this route, and a caller of this standing.
    pub fn tool_policy_for(&self, tool: &str, standing: &RolloutMembership) -> ToolPolicy {
        let mut policy = self.defer.tool_policy(&self.tools, tool, standing);
        if let (TicketAfter::Inherited, Some(after)) = (policy.ticket, self.held.ticket) {
            policy.ticket = TicketAfter::After(after);
        }
        policy
    }

    /// The rule that holds for a tool: the first that matches, whatever it sets.
    fn rule(&self, tool: &str) -> Option<&ToolRule> {
        self.tools.iter().find(|rule| rule.matches.matches(tool))
    }

    /// The pattern of the rule that sets the mode of a tool; none where that is the route's own.
    pub fn mode_rule(&self, tool: &str) -> Option<&NamePattern> {
        self.rule(tool).filter(|rule| rule.mode.is_some()).map(|rule| &rule.matches)
    }

    /// The same for its mode or its threshold.
    pub fn threshold_rule(&self, tool: &str) -> Option<&NamePattern> {
        let sets = |rule: &&ToolRule| rule.mode.is_some() || rule.after.is_some();
        self.rule(tool).filter(sets).map(|rule| &rule.matches)
    }

    /// The pattern of the rule by which calls of a tool are answered with a ticket after this long; none where the
    /// route says so, or who holds the ticket.
    pub fn ticket_rule(&self, tool: &str, after: Duration) -> Option<&NamePattern> {
        let rule = self.rule(tool).filter(|rule| rule.ticket == TicketAfter::After(after));
        rule.map(|rule| &rule.matches)
    }

    /// The time of a call of this tool at the server, where it is not what its server is held to.
    pub fn call_timeout(&self, tool: &str) -> Option<Duration> {
        self.rule(tool).and_then(|rule| rule.timeout).or(self.timeout)
    }

    /// Whether calls may have a time of their own.
    pub fn has_timeouts(&self) -> bool {
        self.timeout.is_some() || self.tools.iter().any(|rule| rule.timeout.is_some())
    }

    /// Whether calls of this tool are refused, and it is hidden.
    pub fn denies(&self, tool: &str) -> bool {
        self.rule(tool).is_some_and(|rule| rule.mode == Some(Mode::Deny))
    }

    /// Whether any tool is denied.
    pub fn denies_tools(&self) -> bool {
        self.tools.iter().any(|rule| rule.mode == Some(Mode::Deny))
    }

    /// Whether calls of any tool may be only observed.
    pub fn has_observed_tools(&self) -> bool {
        self.modes().any(|mode| mode == Mode::Observe) || self.rollouts().flatten().next().is_some()
    }

    /// The rollout under which a tool's calls become tasks, if there is one.
    pub fn rollout(&self, tool: &str) -> Option<&Rollout> {
        let of_rule = self.rule(tool).and_then(|rule| rule.rollout.as_deref());
        of_rule.or(self.defer.rollout.as_deref())
    }

    /// For which rollouts of the route the caller with this head is in. Costs nothing where there are none.
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

    /// That of `defer`, and those of the rules.
    fn rollouts(&self) -> impl Iterator<Item = Option<&Rollout>> {
        let of_rules = self.tools.iter().map(|rule| rule.rollout.as_deref());
        [self.defer.rollout.as_deref()].into_iter().chain(of_rules)
    }

    /// Whether tasks of 2025-11-25 are offered to a caller of this standing that begins a session. Where that
    /// depends on the session nobody knows yet: the list of tools says it, tool by tool.
    pub fn offers_tasks(&self, standing: &RolloutMembership) -> bool {
        let by_session = |rollout: &Rollout| rollout.by == RolloutBasis::Session;
        self.has_tasks() && (self.defers_for(standing) || self.rollouts().flatten().any(by_session))
    }

    /// Whether any tool's calls may become tasks for a caller of this standing. True without a rollout: then
    /// the modes alone say it.
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

    /// Whether any tool must be run as a task, by a caller of this standing.
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

/// Whether two paths differ in a slash at their end at most: clients write `/mcp` and `/mcp/` for one endpoint.
pub fn is_same_path(one: &str, other: &str) -> bool {
    one == other || one.strip_suffix('/') == Some(other) || other.strip_suffix('/') == Some(one)
}
