//! Modes and thresholds of deferral for each tool.

use super::{CallLimits, Rollout, RolloutMembership, TicketAfter, rollout};
use serde_json::Value;
use std::{fmt, str::FromStr, sync::Arc, time::Duration};

/// Whether and when a call becomes a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A call becomes a task once the threshold has passed, for clients that declare the tasks extension.
    #[default]
    Auto,
    /// A call stays synchronous.
    Never,
    /// A call becomes a task immediately, for clients that declare the tasks extension.
    Always,
    /// As `Auto`, but calls of clients that do not declare the tasks extension are refused.
    Required,
    /// A call stays synchronous; the proxy records whether it would have become a task.
    Observe,
    /// The tool is hidden from `tools/list`, and calls of it are refused like those of an unknown tool. Only
    /// in rules for tools, not for a route.
    Deny,
}

/// The deferral policy of all tools of a route (`defer`), which rules for tools override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferPolicy {
    /// The mode of tools that no rule overrides.
    pub mode: Mode,
    /// How long a call runs before it becomes a task. Default 5 s.
    pub after: Duration,
    /// How long the result of a finished task is kept, at least [`MIN_RETENTION`]. Default 1 h.
    pub retention: Duration,
    /// The rollout of the policy; `None` for all callers.
    pub rollout: Option<Arc<Rollout>>,
}

/// The minimum retention of a result; a shorter setting is raised to this value.
pub const MIN_RETENTION: Duration = Duration::from_secs(1);

/// The overrides of the route's policy for the tools whose names match (`tools`). `None` means the route's
/// setting.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRule {
    /// The pattern that the names of the rule's tools match.
    pub matches: NamePattern,
    /// The mode of the tools; `None` for the route's mode.
    pub mode: Option<Mode>,
    /// How long a call runs before it becomes a task; `None` for the route's threshold.
    pub after: Option<Duration>,
    /// The rollout of the rule; `None` for the route's rollout.
    pub rollout: Option<Arc<Rollout>>,
    /// When a call of the tools gets a ticket instead of its result.
    pub ticket: TicketAfter,
    /// Limits on the calls of all tools of the rule together, in addition to the limits of the route.
    pub limits: CallLimits,
    /// The timeout of a call at the server; `None` for the route's timeout.
    pub timeout: Option<Duration>,
    /// The keys for the tool's input requests, in the order in which the requests arrive.
    pub keys: Arc<[String]>,
    /// The capabilities that a client must declare to call the tools: an object of objects, in the shape of
    /// `requiredCapabilities`.
    pub requires: Option<Arc<Value>>,
}

/// The policy of one tool for one caller, with the rules and the rollout applied. Computed for each call, so
/// it shares the data of its rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolPolicy {
    /// The mode for this caller.
    pub mode: Mode,
    /// How long a call runs before it becomes a task.
    pub after: Duration,
    /// When a call of the tool gets a ticket instead of its result.
    pub ticket: TicketAfter,
    /// How long the result of a finished task is kept.
    pub retention: Duration,
    /// The keys for the tool's input requests, in the order in which the requests arrive.
    pub keys: Arc<[String]>,
    /// The capabilities that a client must declare to call the tool, in the shape of `requiredCapabilities`;
    /// `None` for no requirement.
    pub requires: Option<Arc<Value>>,
    /// Whether `mode` is `observe` only because the caller is not a member of the rollout.
    pub is_outside_rollout: bool,
}

/// A pattern for names with `*` (any run of characters) and `?` (any one character), as in a shell. Parsed
/// once; matching allocates nothing.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NamePattern {
    text: Box<str>,
    shape: PatternShape,
}

/// The form of a pattern. Most are names or prefixes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PatternShape {
    /// No wildcard: this exact name.
    Name,
    /// One `*`, at the end: names that begin with this number of bytes of the text.
    Prefix(usize),
    /// Any other pattern, as characters.
    Wildcard(Box<[char]>),
}

/// Error: the text is not the name of a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mode `{0}`; use auto, never, always, required, observe or, for a tool, deny")]
pub struct UnknownMode(pub String);

// === impl Mode ===

impl Mode {
    /// All modes, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::Auto, Self::Never, Self::Always, Self::Required, Self::Observe, Self::Deny];

    /// Returns the name of the mode as written in the configuration, such as `auto`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Never => "never",
            Self::Always => "always",
            Self::Required => "required",
            Self::Observe => "observe",
            Self::Deny => "deny",
        }
    }

    /// Whether calls can become tasks in this mode.
    pub const fn makes_tasks(self) -> bool {
        match self {
            Self::Auto | Self::Always | Self::Required => true,
            Self::Never | Self::Observe | Self::Deny => false,
        }
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text).ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl DeferPolicy ===

impl Default for DeferPolicy {
    fn default() -> Self {
        Self {
            mode: Mode::Auto,
            after: Duration::from_secs(5),
            retention: Duration::from_secs(60 * 60),
            rollout: None,
        }
    }
}

impl DeferPolicy {
    /// Returns the policy of `tool` for a caller with this rollout membership: the first matching rule
    /// overrides the route's default. For a caller outside the rollout a mode that would make tasks becomes
    /// `observe`.
    pub fn tool_policy(&self, rules: &[ToolRule], tool: &str, membership: &RolloutMembership) -> ToolPolicy {
        let matching_rule = rules.iter().enumerate().find(|(_, rule)| rule.matches.matches(tool));
        let policy = self.policy_inside_rollout(matching_rule.map(|(_, rule)| rule));
        let rollout_rule = matching_rule.filter(|(_, rule)| rule.rollout.is_some()).map(|(number, _)| number);
        match policy.mode.makes_tasks() && !rollout::is_member(membership, rollout_rule) {
            true => policy.into_observed(),
            false => policy,
        }
    }

    /// Returns the policy of a tool with this rule (`None` for no rule) for members of the rollout.
    fn policy_inside_rollout(&self, rule: Option<&ToolRule>) -> ToolPolicy {
        ToolPolicy {
            mode: rule.and_then(|rule| rule.mode).unwrap_or(self.mode),
            after: rule.and_then(|rule| rule.after).unwrap_or(self.after),
            ticket: rule.map(|rule| rule.ticket).unwrap_or_default(),
            retention: self.retention,
            keys: rule.map(|rule| Arc::clone(&rule.keys)).unwrap_or_default(),
            requires: rule.and_then(|rule| rule.requires.clone()),
            is_outside_rollout: false,
        }
    }
}

// === impl ToolPolicy ===

impl ToolPolicy {
    /// Converts the policy to that for a caller outside the rollout: `observe` with the same threshold.
    fn into_observed(self) -> Self {
        let after = if self.mode == Mode::Always { Duration::ZERO } else { self.after };
        Self { mode: Mode::Observe, after, is_outside_rollout: true, ..self }
    }
}

// === impl NamePattern ===

impl NamePattern {
    /// Parses a pattern. Every text is a valid pattern.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        let text = text.into();
        let shape = match text.find(['*', '?']) {
            None => PatternShape::Name,
            Some(star) if &text[star..] == "*" => PatternShape::Prefix(star),
            Some(_) => PatternShape::Wildcard(text.chars().collect()),
        };
        Self { text, shape }
    }

    /// Returns the pattern as written in the configuration.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the pattern matches the whole `name`. Takes at most as many steps as the product of the
    /// lengths of name and pattern.
    pub fn matches(&self, name: &str) -> bool {
        match &self.shape {
            PatternShape::Name => *self.text == *name,
            PatternShape::Prefix(length) => name.as_bytes().starts_with(&self.text.as_bytes()[..*length]),
            PatternShape::Wildcard(pattern) => matches_wildcard(pattern, name),
        }
    }
}

/// Matches a name against a pattern with wildcards, backtracking to the last `*` only.
fn matches_wildcard(pattern: &[char], name: &str) -> bool {
    let (mut position, mut rest) = (0, name.chars());
    // The position after the last `*` of the pattern, and the part of the name that this `*` has not
    // consumed.
    let mut last_star = None;
    loop {
        let before = rest.clone();
        let Some(char) = rest.next() else { break };
        match pattern.get(position) {
            Some('*') => {
                position += 1;
                last_star = Some((position, before.clone()));
                rest = before;
            }
            Some(&expected) if expected == '?' || expected == char => position += 1,
            _ => {
                let Some((after_star, unconsumed)) = &mut last_star else { return false };
                unconsumed.next();
                (position, rest) = (*after_star, unconsumed.clone());
            }
        }
    }
    pattern[position..].iter().all(|&char| char == '*')
}

impl fmt::Debug for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.text).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, matches) in [
            ("greet", "greet", true),
            ("greet", "greeting", false),
            ("train_*", "train_", true),
            ("train_*", "train_big", true),
            ("train_*", "retrain_big", false),
            ("*_report", "export_report", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "é", true),
            ("?", "", false),
            ("*", "", true),
            ("*", "any", true),
            ("é*", "école", true),
            ("é*", "e", false),
            ("?*", "", false),
            ("*?", "x", true),
            ("a?c*", "abcd", true),
            ("a**c", "abc", true),
            ("*a", "aab", false),
            ("*ab", "aab", true),
        ] {
            assert_eq!(NamePattern::new(pattern).matches(name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_wins() {
        let rule = |pattern: &str, mode| ToolRule {
            matches: NamePattern::new(pattern),
            mode: Some(mode),
            after: None,
            rollout: None,
            ticket: TicketAfter::Inherited,
            limits: CallLimits::default(),
            timeout: None,
            keys: Arc::default(),
            requires: None,
        };
        let rules = [rule("train_x", Mode::Never), rule("train_*", Mode::Required)];
        let defer = DeferPolicy::default();
        assert_eq!(defer.tool_policy(&rules, "train_x", &RolloutMembership::default()).mode, Mode::Never);
        assert_eq!(defer.tool_policy(&rules, "train_y", &RolloutMembership::default()).mode, Mode::Required);
        assert_eq!(defer.tool_policy(&rules, "other", &RolloutMembership::default()).mode, Mode::Auto);
        assert_eq!(defer.tool_policy(&rules, "train_x", &RolloutMembership::default()).after, defer.after);
    }

    #[test]
    fn a_rule_is_read_once_and_shared_by_all_calls() {
        let rules = [ToolRule {
            matches: NamePattern::new("*x*"),
            mode: None,
            after: None,
            rollout: None,
            ticket: TicketAfter::Inherited,
            limits: CallLimits::default(),
            timeout: None,
            keys: ["a".to_owned(), "b".to_owned()].into(),
            requires: Some(Arc::new(serde_json::json!({ "roots": {} }))),
        }];
        let policy = DeferPolicy::default().tool_policy(&rules, "axb", &RolloutMembership::default());
        assert!(Arc::ptr_eq(&policy.keys, &rules[0].keys));
        let required = rules[0].requires.as_ref().expect("it requires something");
        assert!(policy.requires.is_some_and(|shared| Arc::ptr_eq(&shared, required)));
    }
}
