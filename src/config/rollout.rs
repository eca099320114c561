//! What of the configuration is about rollouts: for whom a mode holds already.

use super::{
    At,
    kind::{pattern, string, word},
    problem::{Place, Problem},
    section::{Kind, Report, Section, Set, leaf, mapping},
    values::{self, Invalid},
    yaml::{Node, Value},
};
use crate::policy::{Defer, Mode, Rollout, RolloutBy, Share, ToolRule};
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// For whom calls become tasks already, and where that is written.
pub(super) fn rollout(s: &mut Section<'_, '_>) -> Option<At<Arc<Rollout>>> {
    let about = "Share of principals whose calls become tasks, as in `25%`; or a mapping with more \
                 options. The others are treated as in mode `observe`. Default: `100%`.";
    match s.key("rollout", about).set(kind()) {
        Set::To(At { place, value }) => Some(At::new(place, Arc::new(value))),
        Set::Unset | Set::Wrong => None,
    }
}

fn kind() -> Kind<'static, Rollout> {
    let Kind { schema, read, .. } = mapping("`rollout`", |s| Some(long(s)).flatten());
    let schema = Box::new(move || json!({ "anyOf": [share_schema(), schema()] }));
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => read(node, report),
        Value::List(_) | Value::Scalar { .. } => leaf(node, report, share).map(|share| Rollout {
            share,
            by: RolloutBy::default(),
            always: Vec::new(),
            never: Vec::new(),
        }),
    };
    Kind { schema, show: |_| Json::Null, read: Box::new(read) }
}

fn long(s: &mut Section<'_, '_>) -> Option<Rollout> {
    let written = s
        .key(
            "share",
            "Share of principals (or of other values of `by`) that is inside, as in `25%` or `0.5%`.",
        )
        .required(word(share_schema(), share));
    if written.is_unset() {
        s.wrong(s.place, "`rollout` has no `share`; add one, as in `share: 25%`");
    }
    let by = s
        .key(
            "by",
            "Attribute that decides whether a request is inside: `principal`, `session` (legacy clients only), or `{ header: X-Tenant }`. \
             Requests without it are outside until the share is 100%.",
        )
        .with_default("principal")
        .set(by());
    if let Set::To(At { place, value: RolloutBy::Session }) = &by {
        doubt_session(*place, s);
    }
    let always = s.key("always", "Values of `by` that are inside at any share; `*` matches any characters.");
    let always = always.list(pattern());
    let never = s.key("never", "Values of `by` that are outside at any share. Overrides `always`.");
    let never = never.list(pattern());
    for name in &always {
        if never.iter().any(|other| other.value == name.value) {
            let name_of = name.value.as_str();
            s.wrong(name.place, format!("`{name_of}` is in both `always` and `never`; remove it from one"));
        }
    }
    let plain = |names: Vec<At<_>>| names.into_iter().map(|name| name.value).collect();
    let (always, never) = (plain(always), plain(never));
    Some(Rollout { share: written.given()?, by: by.given().unwrap_or_default(), always, never })
}

/// A client of 2026-07-28 has no session.
fn doubt_session(place: Place, s: &mut Section<'_, '_>) {
    let message = "warning: clients of 2026-07-28 have no sessions, so with `session` they are all \
                   outside until the share is 100%; to include them, use `principal` or a header";
    s.report.doubts.push(Problem::new(place, message));
}

fn by() -> Kind<'static, RolloutBy> {
    let header = mapping("`by`", |s| {
        let header = s.key("header", "Name of the header.").required(string(values::sign_header));
        if header.is_unset() {
            s.wrong(s.place, "`by` names no header; add one, as in `{ header: X-Tenant }`");
        }
        header.given().map(RolloutBy::Header)
    });
    let Kind { schema, read, .. } = header;
    let schema = Box::new(move || json!({ "anyOf": [{ "enum": ["principal", "session"] }, schema()] }));
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => read(node, report),
        Value::List(_) | Value::Scalar { .. } => leaf(node, report, |text| match text {
            "principal" => Ok(RolloutBy::Principal),
            "session" => Ok(RolloutBy::Session),
            _ => Err(Invalid(format!(
                "unknown value `{text}` of `by`; use principal, session or {{ header: X-Tenant }}"
            ))),
        }),
    };
    Kind { schema, show: |_| Json::Null, read: Box::new(read) }
}

fn share_schema() -> Json {
    json!({ "type": "string", "pattern": r"^[0-9]{1,3}(\.[0-9]{1,4})?%$" })
}

/// A share of all: per cent, with up to four digits behind the point.
fn share(text: &str) -> Result<Share, Invalid> {
    let invalid = |why: &str| Err(Invalid(format!("`{text}` {why}; write a share as in 25% or 0.5%")));
    let Some(number) = text.strip_suffix('%') else { return invalid("has no % sign") };
    let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(rest) {
        return invalid("is not a share");
    }
    if rest.len() > 4 {
        return invalid("is finer than 0.0001%");
    }
    let millionths = format!("{whole}{rest:0<4}").parse().ok().and_then(Share::of_millionths);
    millionths.map_or_else(|| invalid("is more than 100%"), Ok)
}

/// The rollouts of tools, each where its rule is written.
pub(super) fn of_tools(rules: &[At<Option<At<ToolRule>>>]) -> Vec<At<Arc<Rollout>>> {
    let rules = rules.iter().filter_map(|rule| rule.value.as_ref());
    let written = rules.filter_map(|rule| Some((rule.place, rule.value.rollout.as_ref()?)));
    written.map(|(place, rollout)| At::new(place, Arc::clone(rollout))).collect()
}

/// Callers are told apart by `Authorization` alone, and nothing here says that they have one: a proxy that is tried out
/// on one machine would make no task at all, and nothing would say why.
pub(super) fn doubt_anonymous<'a>(
    rollouts: impl Iterator<Item = &'a At<Arc<Rollout>>>,
    s: &mut Section<'_, '_>,
) {
    for At { place, value: rollout } in rollouts {
        let admits_anonymous = rollout.always.iter().any(|pattern| pattern.matches("anonymous"));
        if rollout.by == RolloutBy::Principal && rollout.share.is_partial() && !admits_anonymous {
            let message = format!(
                "warning: clients without `Authorization` are outside this rollout until its share is \
                 100%, so none of their calls becomes a task; if yours send none, set `principal: {{ \
                 header: X-User }}` or `access.tokens`, or remove `rollout` (share {})",
                rollout.share
            );
            s.report.doubts.push(Problem::new(*place, message));
        }
    }
}

/// A rollout of what makes no tasks holds for nobody.
pub(super) fn pointless(
    of_route: Option<&At<Arc<Rollout>>>,
    defer: &Defer,
    tools: &[ToolRule],
    s: &mut Section<'_, '_>,
) {
    let inherits = |rule: &ToolRule| rule.rollout.is_none() && rule.mode.is_some_and(Mode::makes_tasks);
    if let Some(At { place, .. }) = of_route
        && !defer.mode.makes_tasks()
        && !tools.iter().any(inherits)
    {
        s.wrong(*place, without_tasks(defer.mode));
    }
}

/// The same of a tool's own.
pub(super) fn pointless_of_tool(rollout: Option<&At<Arc<Rollout>>>, mode: Mode, s: &mut Section<'_, '_>) {
    if let Some(At { place, .. }) = rollout
        && !mode.makes_tasks()
    {
        s.wrong(*place, without_tasks(mode));
    }
}

fn without_tasks(mode: Mode) -> String {
    format!(
        "mode `{}` makes no tasks, so a rollout has no effect; use `auto`, or remove `rollout`",
        mode.as_str()
    )
}
