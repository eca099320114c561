//! The keys of `defer`: which calls become tasks, and when.

use super::rollout;
use crate::{
    config::schema::{SectionReader, SpannedValue, ValueResult, ValueType, duration, invalid, show_duration},
    policy::{self, DeferPolicy, Mode, Rollout, threshold::UnknownMode},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// Retention below which a client that disconnects briefly or polls slowly may miss the result.
const SHORT_RETENTION: Duration = Duration::from_secs(60);

/// Reads `defer`. The rollout is returned with its position as well.
pub(super) fn read_defer(s: &mut SectionReader<'_, '_>) -> (DeferPolicy, Option<SpannedValue<Arc<Rollout>>>) {
    s.key("defer", "Which `tools/call` requests become tasks, and when.").read_section("`defer`", read_policy)
}

fn read_policy(s: &mut SectionReader<'_, '_>) -> (DeferPolicy, Option<SpannedValue<Arc<Rollout>>>) {
    let defaults = DeferPolicy::default();
    let retention = s
        .key("retention", "How long the result of a finished task is kept, at least 1s. A task that is working is kept in any case.")
        .read_spanned_or(duration(), defaults.retention);
    warn_short_retention("retention", &retention, s);
    let rollout = rollout::read_rollout(
        s,
        "Share of principals whose calls become tasks, as in `25%`; or a mapping with more options. The \
         others are treated as in mode `observe`. Default: `100%`.",
    );
    let defer = DeferPolicy {
        mode: s
            .key("mode", "`auto`: a call with task support that is still running at `after` becomes a task (one with `params.task` at once). `always`: a call with task support becomes a task at once. `required`: as `auto`, and calls without task support are refused (`-32021`, legacy: `-32601`). `never`: no call becomes a task. `observe`: as `never`, but the log and the metrics record which calls would have become tasks. Only `auto` and `always` give tickets.")
            .read_or(route_mode(), defaults.mode),
        after: s
            .key("after", "Threshold: how long a call may run before it becomes a task.")
            .read_or(duration(), defaults.after),
        retention: retention.value,
        rollout: rollout.as_ref().map(|rollout| Arc::clone(&rollout.value)),
    };
    (defer, rollout)
}

/// Warns of a retention that is too short for a client to fetch the result.
pub(super) fn warn_short_retention(
    key: &str,
    SpannedValue { span, value }: &SpannedValue<Duration>,
    s: &mut SectionReader<'_, '_>,
) {
    if *value >= SHORT_RETENTION {
        return;
    }
    let shown = show_duration(*value);
    let effect = match *value < policy::MIN_RETENTION {
        true => format!("counts as {}", show_duration(policy::MIN_RETENTION)),
        false => "is short".to_owned(),
    };
    let message = format!(
        "`{key}` ({shown}) {effect}: the result of a task is removed that long after its end, fetched or not; \
         a client that disconnects for a moment, or polls less often than asked, never gets it"
    );
    s.warn(*span, message);
}

/// The mode of a route, without `deny`.
fn route_mode() -> ValueType<'static, Mode> {
    let modes: Vec<_> = Mode::ALL.into_iter().filter(|mode| *mode != Mode::Deny).map(Mode::as_str).collect();
    ValueType::text(json!({ "enum": modes }), parse_mode).show_with(|mode| mode.as_str().into())
}

/// The mode of a tool, which may be `deny`.
pub(super) fn tool_mode() -> ValueType<'static, Mode> {
    ValueType::text(json!({ "enum": Mode::ALL.map(Mode::as_str) }), parse_tool_mode)
}

/// Parses the mode of a route.
///
/// # Errors
/// The mode is unknown, or is `deny`, which applies to tools only.
pub fn parse_mode(text: &str) -> ValueResult<Mode> {
    match parse_tool_mode(text)? {
        Mode::Deny => invalid(
            "`deny` applies to tools, not to a route; write it for a tool, as in `tools: [{ match: \
             delete_*, mode: deny }]` (`--tool 'delete_*=deny'`), or remove the route",
        ),
        mode => Ok(mode),
    }
}

/// Parses the mode of a tool.
///
/// # Errors
/// The mode is unknown.
pub fn parse_tool_mode(text: &str) -> ValueResult<Mode> {
    text.parse().or_else(|error: UnknownMode| invalid(error.to_string()))
}
