//! The keys of `rollout`: the share of principals to which a mode applies.

use super::{header_names::client_match_header, matches::pattern};
use crate::{
    config::schema::{
        SectionReader, Setting, SourceSpan, SpannedValue, ValueResult, ValueType, invalid, mapping, string,
    },
    policy::{DeferPolicy, Mode, Rollout, RolloutBasis, RolloutShare, ToolRule},
};
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// Reads `rollout`, with its position; `None` if it is absent or invalid.
///
/// `description` is that of the key.
pub(super) fn read_rollout(
    s: &mut SectionReader<'_, '_>,
    description: &'static str,
) -> Option<SpannedValue<Arc<Rollout>>> {
    let of_all =
        |share| Rollout { share, basis: RolloutBasis::default(), always: Vec::new(), never: Vec::new() };
    let share = ValueType::scalar(share_schema(), parse_share).map(of_all);
    let rollout = share.or_mapping(mapping("`rollout`", read_rollout_keys)).map(Arc::new);
    match s.key("rollout", description).read(rollout) {
        Setting::Valid(rollout) => Some(rollout),
        Setting::Unset | Setting::Invalid => None,
    }
}

fn read_rollout_keys(s: &mut SectionReader<'_, '_>) -> Option<Rollout> {
    let share = s
        .key(
            "share",
            "Share of principals (or of other values of `by`) in the rollout, as in `25%` or `0.5%`.",
        )
        .read_required(ValueType::text(share_schema(), parse_share));
    if share.is_unset() {
        s.add_problem(s.span, "`rollout` has no `share`; add one, as in `share: 25%`");
    }
    let by = s
        .key("by", "Attribute that decides whether a request is in the rollout: `principal`, `session` (legacy clients only), or `{ header: X-Tenant }`. Requests without the attribute are outside the rollout, unless the share is 100%.")
        .with_default("principal")
        .read(basis_type());
    if let Setting::Valid(SpannedValue { span, value: RolloutBasis::Session }) = by {
        s.warn(
            span,
            "clients of 2026-07-28 have no sessions, so with `session` they are all outside until the share \
             is 100%; to include them, use `principal` or a header",
        );
    }
    let always = s
        .key("always", "Values of `by` that are in the rollout whatever the share; `*` matches any characters. A principal is written as the name of its token, the value of its header, or as the access log shows it.")
        .read_list(pattern());
    let never = s
        .key("never", "Values of `by` that are not in the rollout whatever the share, written as those of `always`. Overrides `always`.")
        .read_list(pattern());
    for name in always.iter().filter(|name| never.iter().any(|other| other.value == name.value)) {
        let text = name.value.as_str();
        s.add_problem(name.span, format!("`{text}` is in both `always` and `never`; remove it from one"));
    }
    let without_spans = |names: Vec<SpannedValue<_>>| names.into_iter().map(|name| name.value).collect();
    let (always, never) = (without_spans(always), without_spans(never));
    Some(Rollout { share: share.ok()?, basis: by.ok().unwrap_or_default(), always, never })
}

fn basis_type() -> ValueType<'static, RolloutBasis> {
    let header = mapping("`by`", |s| {
        let header = s.key("header", "Name of the header.").read_required(string(client_match_header));
        if header.is_unset() {
            s.add_problem(s.span, "`by` names no header; add one, as in `{ header: X-Tenant }`");
        }
        header.ok().map(RolloutBasis::Header)
    });
    let attribute = |text: &str| match text {
        "principal" => Ok(RolloutBasis::Principal),
        "session" => Ok(RolloutBasis::Session),
        _ => invalid(format!(
            "unknown value `{text}` of `by`; use principal, session or {{ header: X-Tenant }}"
        )),
    };
    ValueType::scalar(json!({ "enum": ["principal", "session"] }), attribute).or_mapping(header)
}

fn share_schema() -> Json {
    json!({ "type": "string", "pattern": r"^[0-9]{1,3}(\.[0-9]{1,4})?%$" })
}

/// Parses a percentage with up to four decimal places.
fn parse_share(text: &str) -> ValueResult<RolloutShare> {
    let invalid = |why: &str| invalid(format!("`{text}` {why}; write a share as in 25% or 0.5%"));
    let Some(number) = text.strip_suffix('%') else { return invalid("has no % sign") };
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(decimals) {
        return invalid("is not a share");
    }
    if decimals.len() > 4 {
        return invalid("is finer than 0.0001%");
    }
    let millionths = format!("{whole}{decimals:0<4}").parse().ok().and_then(RolloutShare::from_millionths);
    millionths.map_or_else(|| invalid("is more than 100%"), Ok)
}

/// Checks the rollouts of a route and its tools. `needs_credentials` is set if requests without
/// `Authorization` have no principal.
pub(super) fn check_rollouts(
    of_route: Option<&SpannedValue<Arc<Rollout>>>,
    defer: &DeferPolicy,
    tools: &[SpannedValue<ToolRule>],
    needs_credentials: bool,
    s: &mut SectionReader<'_, '_>,
) {
    let inherits = |rule: &SpannedValue<ToolRule>| {
        rule.value.rollout.is_none() && rule.value.mode.is_some_and(Mode::makes_tasks)
    };
    if let Some(SpannedValue { span, .. }) = of_route
        && !defer.mode.makes_tasks()
        && !tools.iter().any(inherits)
    {
        s.add_problem(*span, ineffective_message(defer.mode));
    }
    if needs_credentials {
        let of_tools = tools.iter().filter_map(|rule| Some((rule.span, rule.value.rollout.as_ref()?)));
        for (span, rollout) in
            of_route.map(|rollout| (rollout.span, &rollout.value)).into_iter().chain(of_tools)
        {
            warn_anonymous(span, rollout, s);
        }
    }
}

/// Warns of a partial rollout by principal on a route that identifies principals by `Authorization` only.
/// Without credentials, as in a local trial, no call would become a task, with no visible reason.
fn warn_anonymous(span: SourceSpan, rollout: &Rollout, s: &mut SectionReader<'_, '_>) {
    let admits_anonymous = rollout.always.iter().any(|pattern| pattern.matches("anonymous"));
    if rollout.basis == RolloutBasis::Principal && rollout.share.is_partial() && !admits_anonymous {
        let message = format!(
            "clients without `Authorization` are outside this rollout until its share is 100%, so none of \
             their calls becomes a task; if yours send none, set `principal: {{ header: X-User }}` or \
             `access.tokens`, or remove `rollout` (share {})",
            rollout.share
        );
        s.warn(span, message);
    }
}

/// Reports a rollout of a tool rule whose mode makes no tasks.
pub(super) fn reject_ineffective_tool_rollout(
    rollout: Option<&SpannedValue<Arc<Rollout>>>,
    mode: Mode,
    s: &mut SectionReader<'_, '_>,
) {
    if let Some(SpannedValue { span, .. }) = rollout
        && !mode.makes_tasks()
    {
        s.add_problem(*span, ineffective_message(mode));
    }
}

fn ineffective_message(mode: Mode) -> String {
    format!(
        "mode `{}` makes no tasks, so a rollout has no effect; use `auto`, or remove `rollout`",
        mode.as_str()
    )
}
