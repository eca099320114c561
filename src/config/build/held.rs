//! The keys of `held`: clients that wait for a slow call without a task.

use super::limits::TimeoutKeys;
use crate::{
    config::schema::{SectionReader, SpannedValue, duration_or_off, positive_duration, show_duration},
    policy::{DeferPolicy, Mode, TicketAfter, ToolRule, WaitPolicy},
};
use std::time::Duration;

/// The longest duration of a call of a route, and the key that sets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTimeLimit {
    pub(super) key: &'static str,
    pub(super) limit: Duration,
}

// === impl CallTimeLimit ===

impl CallTimeLimit {
    /// Returns the limit of a route: its own `timeout`, or else `timeouts.call`.
    pub(super) fn for_route(route_timeout: Option<Duration>, timeouts: &TimeoutKeys) -> Self {
        match route_timeout {
            Some(limit) => Self { key: "timeout", limit },
            None => Self { key: "timeouts.call", limit: timeouts.upstream.call },
        }
    }
}

/// Reads `held`. The `ticket` of each tool is checked as that of the route is.
pub(super) fn read_held(
    s: &mut SectionReader<'_, '_>,
    defer: &DeferPolicy,
    tools: &[SpannedValue<ToolRule>],
    keep_alive: Duration,
    call: CallTimeLimit,
) -> WaitPolicy {
    let longest_threshold = longest_threshold(defer, tools);
    let policy = s
        .key("held", "Clients that wait for a slow call without a task: keep-alive, deadline, ticket.")
        .read_section("`held`", |s| read_wait_policy(s, longest_threshold, keep_alive, call));
    for SpannedValue { span, value: rule } in tools {
        if let TicketAfter::After(after) = rule.ticket {
            check_ticket(&SpannedValue::new(*span, Some(after)), policy.deadline, call, s);
        }
    }
    policy
}

fn read_wait_policy(
    s: &mut SectionReader<'_, '_>,
    longest_threshold: Duration,
    keep_alive: Duration,
    call: CallTimeLimit,
) -> WaitPolicy {
    let defaults = WaitPolicy::default();
    let deadline = s
        .key("deadline", "How long a client may wait; after that it gets an error (`-31003`), and the call is cancelled. `off`: no limit.")
        .read_spanned_or(duration_or_off(), defaults.deadline);
    check_deadline(&deadline, longest_threshold, call, s);
    let ticket = s
        .key("ticket", "How long a `tools/call` without task support may run before its client gets a ticket (see `tickets`), or `off`. Set it below the timeout of the client.")
        .read_spanned_or(duration_or_off(), defaults.ticket_after);
    check_ticket(&ticket, deadline.value, call, s);
    WaitPolicy {
        progress_after: s
            .key("progress", "Time without a message of the server after which a client that sent a progress token gets a progress notification, or `off`.")
            .read_or(duration_or_off(), defaults.progress_after),
        comment_after: s
            .key("comments", "Time without data of the server after which the proxy sends an SSE comment, to keep the connection open. Default: `timeouts.keep_alive`.")
            .read(positive_duration())
            .ok()
            .unwrap_or(keep_alive),
        deadline: deadline.value,
        ticket_after: ticket.value,
    }
}

/// Reports a deadline that is never reached, or that ends calls before they can become tasks.
fn check_deadline(
    written: &SpannedValue<Option<Duration>>,
    after: Duration,
    CallTimeLimit { key, limit: call }: CallTimeLimit,
    s: &mut SectionReader<'_, '_>,
) {
    let Some(Some(deadline)) = written.explicit().copied() else { return };
    let [shown, shown_after, shown_call] = [deadline, after, call].map(show_duration);
    if deadline >= call {
        let message = format!(
            "`deadline` ({shown}) is never reached, because `{key}` ({shown_call}) ends every call earlier; raise \
             `{key}`, or lower `deadline`"
        );
        s.add_problem(written.span, message);
    } else if deadline <= after {
        let message = format!(
            "`deadline` ({shown}) ends calls before they can become tasks (`after` is {shown_after}); raise \
             `deadline`, or lower `after`"
        );
        s.add_problem(written.span, message);
    }
}

/// Reports a ticket time that is never reached, because calls end earlier.
fn check_ticket(
    written: &SpannedValue<Option<Duration>>,
    deadline: Option<Duration>,
    CallTimeLimit { key, limit: call }: CallTimeLimit,
    s: &mut SectionReader<'_, '_>,
) {
    let Some(after) = written.value else { return };
    let (name, limit) = match deadline {
        Some(deadline) if deadline < call => ("deadline", deadline),
        _ => (key, call),
    };
    if after >= limit {
        let [after, limit] = [after, limit].map(show_duration);
        let message = format!(
            "`ticket` ({after}) is never given, because `{name}` ({limit}) ends every call earlier; raise \
             `{name}`, or lower `ticket`"
        );
        s.add_problem(written.span, message);
    }
}

/// Returns the longest threshold of the route and its tools; zero if no calls become tasks after a threshold.
fn longest_threshold(defer: &DeferPolicy, tools: &[SpannedValue<ToolRule>]) -> Duration {
    let of_tool = |SpannedValue { value: rule, .. }: &SpannedValue<ToolRule>| {
        (rule.mode.unwrap_or(defer.mode), rule.after.unwrap_or(defer.after))
    };
    let thresholds = tools.iter().map(of_tool).chain([(defer.mode, defer.after)]);
    let waits = thresholds.filter(|(mode, _)| match mode {
        Mode::Auto | Mode::Required => true,
        Mode::Always | Mode::Never | Mode::Observe | Mode::Deny => false,
    });
    waits.map(|(_, after)| after).max().unwrap_or_default()
}
