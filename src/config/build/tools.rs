//! The keys of `tools`: overrides for the tools of a route.

use super::{
    defer::tool_mode,
    matches::pattern,
    rollout::{read_rollout, reject_ineffective_tool_rollout},
    tickets::read_ticket_after,
};
use crate::{
    config::schema::{
        DiagnosticSink, MapEntry, Node, NodeValue, Problem, ScalarType, SectionReader, Setting, SpannedValue,
        ValueType, count, duration, find_similar, mapping, positive_duration, text,
    },
    policy::{CallLimits, Mode, NamePattern, TicketAfter, ToolRule},
    protocol::capability::KNOWN_CAPABILITIES,
};
use serde_json::{Value as Json, json};
use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
};

/// Reads `tools`: the valid rules, with the positions of their patterns.
///
/// `route_mode` and `route_limits` are those of the route.
pub(super) fn read_tools(
    s: &mut SectionReader<'_, '_>,
    route_mode: Mode,
    route_limits: &CallLimits,
) -> Vec<SpannedValue<ToolRule>> {
    let rules = s
        .key("tools", "Per-tool overrides. First match wins.")
        .read_list(mapping("a tool rule", move |s| Some(read_tool_rule(s, route_mode))));
    let rules: Vec<SpannedValue<ToolRule>> = rules.into_iter().filter_map(|rule| rule.value).collect();
    for (index, rule) in rules.iter().enumerate() {
        warn_ineffective_keys(rule, route_limits, s);
        reject_unreachable(rule, &rules[..index], s);
    }
    rules
}

/// Reads a tool rule, with the position of its pattern; `None` if the pattern is absent or invalid.
fn read_tool_rule(s: &mut SectionReader<'_, '_>, route_mode: Mode) -> Option<SpannedValue<ToolRule>> {
    let matches =
        s.key("match", "Name of the tool; `*` matches any characters, `?` one.").read_required(pattern());
    if matches.is_unset() {
        s.add_problem(s.span, "the rule has no `match`; add the name of a tool, or `*` for all");
    }
    let mode = s
        .key("mode", "As `defer.mode`, or `deny`: the tool is hidden from `tools/list`, and its calls are refused like those of an unknown tool. Default: the route's mode.")
        .read(tool_mode())
        .ok();
    let after = s
        .key("after", "Threshold: how long a call may run before it becomes a task. Default: the route's.")
        .read(duration())
        .ok();
    let ticket = read_ticket_after(
        s,
        "How long a call of these tools may run before a client without task support gets a ticket, or `off`. \
         Default: the route's (`held.ticket`).",
    );
    let rollout = read_rollout(
        s,
        "Share of principals for whose calls of the tool the mode applies, as in `25%`; or a mapping with \
         more options. Default: the route's (`defer.rollout`).",
    );
    let keys = read_input_keys(s);
    let requires = s
        .key("requires", "Capabilities that a client must declare to call the tool, as in `{ sampling: {} }`. Calls of other clients are refused (`-32021`).")
        .read(required_capabilities());
    let timeout = s
        .key("timeout", "Maximum duration of a call, including the handshake and the wait for a session; after that it is cancelled, and it or its task fails with `-31003`. Default: the route's.")
        .read(positive_duration())
        .ok();
    let limits = read_call_limits(
        s,
        "Maximum concurrent calls of these tools at the server, of all principals together, in addition to \
         the route's limit. Further calls wait as for the route's limit. Default: no limit of their own.",
        "Maximum calls of these tools by one principal per minute, in addition to the route's limit. Default: \
         no limit of their own.",
    );
    let Setting::Valid(SpannedValue { span, value: matches }) = matches else { return None };
    reject_ineffective_tool_rollout(rollout.as_ref(), mode.unwrap_or(route_mode), s);
    let (rollout, requires) = (rollout.map(|rollout| rollout.value), requires.ok().map(Arc::new));
    let rule = ToolRule { matches, mode, after, rollout, ticket, limits, timeout, keys, requires };
    Some(SpannedValue::new(span, rule))
}

fn read_input_keys(s: &mut SectionReader<'_, '_>) -> Arc<[String]> {
    let keys = s
        .key("keys", "Names of the tool's input requests, in the order in which the tool sends them: the keys of `inputRequests` and `inputResponses`. Default: kind and number, as in `elicitation-1`.")
        .read_list(text());
    let describe =
        |key: &String, _: &str| format!("the key `{key}` is listed twice; each input request needs its own");
    s.reject_repeated(keys, describe).into()
}

/// Reads `concurrency` and `calls_per_minute`, whose descriptions are the parameters.
pub(super) fn read_call_limits(
    s: &mut SectionReader<'_, '_>,
    concurrency_description: &'static str,
    rate_description: &'static str,
) -> CallLimits {
    let concurrency = s.key("concurrency", concurrency_description).read(count::<usize>(1)).ok();
    let calls_per_minute = s.key("calls_per_minute", rate_description).read(count::<u32>(1)).ok();
    CallLimits {
        concurrency: concurrency.and_then(NonZeroUsize::new),
        calls_per_minute: calls_per_minute.and_then(NonZeroU32::new),
    }
}

/// Warns of limits that are never reached, because the route has lower ones, and of other keys in rules with
/// `deny`.
fn warn_ineffective_keys(
    SpannedValue { span, value: rule }: &SpannedValue<ToolRule>,
    route_limits: &CallLimits,
    s: &mut SectionReader<'_, '_>,
) {
    let tools = rule.matches.as_str();
    if rule.mode == Some(Mode::Deny) {
        let is_pointless = rule.after.is_some()
            || rule.timeout.is_some()
            || rule.ticket != TicketAfter::Inherited
            || rule.requires.is_some()
            || !rule.keys.is_empty()
            || !rule.limits.is_empty();
        if is_pointless {
            s.warn(*span, format!("calls of `{tools}` are refused (mode: deny), so the other keys of the rule have no effect"));
        }
        return;
    }
    let mut check_limit = |key: &str, tool_limit: Option<usize>, route_limit: Option<usize>| {
        if let (Some(tool_limit), Some(route_limit)) = (tool_limit, route_limit)
            && tool_limit > route_limit
        {
            let message = format!(
                "`{key}` ({tool_limit}) of `{tools}` is never reached, because the route's ({route_limit}) \
                 applies to these calls as well; raise the route's, or lower this one"
            );
            s.warn(*span, message);
        }
    };
    let concurrency = |limits: &CallLimits| limits.concurrency.map(usize::from);
    let per_minute = |limits: &CallLimits| limits.calls_per_minute.map(|count| count.get() as usize);
    check_limit("concurrency", concurrency(&rule.limits), concurrency(route_limits));
    check_limit("calls_per_minute", per_minute(&rule.limits), per_minute(route_limits));
}

/// Reports a rule that can never match, because an earlier rule does.
fn reject_unreachable(
    rule: &SpannedValue<ToolRule>,
    earlier: &[SpannedValue<ToolRule>],
    s: &mut SectionReader<'_, '_>,
) {
    let matches_all =
        |first: &&SpannedValue<ToolRule>| matches_all_of(&first.value.matches, &rule.value.matches);
    let Some(first) = earlier.iter().find(matches_all) else { return };
    let (pattern, earlier_pattern) = (rule.value.matches.as_str(), first.value.matches.as_str());
    let line = first.span.suffix();
    let message = match pattern == earlier_pattern {
        true => format!(
            "there is a rule for `{pattern}` already{line}, and the first match wins; remove one of the two"
        ),
        false => format!(
            "this rule never applies, because `{earlier_pattern}`{line} matches all of `{pattern}`; put this one first"
        ),
    };
    s.add_problem(rule.span, message);
}

/// Whether the pattern `first` certainly matches every name that `second` matches.
///
/// A pattern of plain characters and `*` that matches the text of another pattern also matches whatever the
/// wildcards of the other stand for, because only a `*` can match them. A `?` could match a `*` as a single
/// character, so patterns with `?` are compared for equality only.
fn matches_all_of(first: &NamePattern, second: &NamePattern) -> bool {
    first == second || (!first.as_str().contains('?') && first.matches(second.as_str()))
}

/// The type of `requires`, client capabilities: a mapping of mappings, as JSON.
fn required_capabilities() -> ValueType<'static, Json> {
    let schema = || json!({ "type": "object", "additionalProperties": { "type": "object" } });
    ValueType::new(schema, read_capabilities)
}

fn read_capabilities(node: &Node, report: &mut DiagnosticSink) -> Option<Json> {
    let NodeValue::Map(entries) = &node.value else {
        let message = format!(
            "must be a mapping of capabilities, as in `{{ sampling: {{}} }}`, not {}",
            node.type_name()
        );
        return report.reject(node.span, message);
    };
    let before = report.problems.len();
    for entry in entries {
        let NodeValue::Map(inner) = &entry.node.value else {
            let message = format!("a capability must be a mapping; write `{}: {{}}`", entry.key);
            report.problems.push(Problem::new(entry.node.span, message));
            continue;
        };
        let known = KNOWN_CAPABILITIES.iter().find(|(name, _)| *name == entry.key);
        match known {
            // The content of these capabilities is not specified.
            Some((_, [])) => {}
            Some((_, parts)) => {
                inner.iter().for_each(|part| reject_misspelt(part, parts.iter().copied(), report))
            }
            None => reject_misspelt(entry, KNOWN_CAPABILITIES.map(|(name, _)| name), report),
        }
    }
    let unknown = |name: &&MapEntry| KNOWN_CAPABILITIES.iter().all(|(known, _)| *known != name.key);
    if let Some(MapEntry { key, .. }) = entries.iter().find(unknown) {
        let message = format!(
            "`{key}` is not a capability of the specification; clients that do not declare it are refused"
        );
        report.warn(node.span, message);
    }
    (report.problems.len() == before).then(|| to_json(node))
}

/// Reports a misspelt capability, which no client would declare. Other unknown names are allowed: clients may
/// declare capabilities outside the specification (2026-07-28, *Capabilities*).
fn reject_misspelt<'a>(
    entry: &MapEntry,
    known: impl IntoIterator<Item = &'a str> + Clone,
    report: &mut DiagnosticSink,
) {
    let is_known = known.clone().into_iter().any(|name| name == entry.key);
    if let Some(near) = find_similar(&entry.key, known).filter(|_| !is_known) {
        let message =
            format!("unknown capability `{}`, which no client declares; did you mean `{near}`?", entry.key);
        report.problems.push(Problem::new(entry.key_span, message));
    }
}

/// Converts a node to JSON.
fn to_json(node: &Node) -> Json {
    match &node.value {
        NodeValue::List(items) => items.iter().map(to_json).collect(),
        NodeValue::Map(entries) => {
            entries.iter().map(|entry| (entry.key.clone(), to_json(&entry.node))).collect()
        }
        NodeValue::Scalar { text, .. } => match node.scalar_type() {
            Some(ScalarType::Null) => Json::Null,
            Some(ScalarType::Bool(boolean)) => boolean.into(),
            Some(ScalarType::Number) => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
            Some(ScalarType::Text) | None => text.clone().into(),
        },
    }
}
