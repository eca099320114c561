//! The keys of `tasks`: tasks of revision 2025-11-25.

use super::{defer::warn_short_retention, matches::read_client_match};
use crate::{
    config::schema::{
        DiagnosticSink, Node, NodeValue, SectionReader, SpannedValue, ValueType, boolean, invalid, list,
        mapping, positive_duration, read_scalar, text, word,
    },
    policy::{ClientMatch, LegacyTaskPolicy, UnsolicitedTasks},
};
use serde_json::json;

/// Reads `tasks`.
pub(super) fn read_legacy_tasks(s: &mut SectionReader<'_, '_>) -> LegacyTaskPolicy {
    s.key("tasks", "Tasks of revision 2025-11-25, which the proxy offers to clients of that revision if the server does not support them.")
        .read_section("`tasks`", read_task_policy)
}

fn read_task_policy(s: &mut SectionReader<'_, '_>) -> LegacyTaskPolicy {
    let defaults = LegacyTaskPolicy::default();
    let max_ttl = s
        .key("max_ttl", "Longest retention of a result that a client can request, at least 1s. A task that is working is kept in any case.")
        .read_spanned_or(positive_duration(), defaults.max_ttl);
    warn_short_retention("max_ttl", &max_ttl, s);
    LegacyTaskPolicy {
        max_ttl: max_ttl.value,
        completes_on_tool_error: s
            .key("tool_errors", "Final status of a task whose tool returned an error: `failed`, as the revision specifies, or `completed`, for clients that drop the result of a failed task.")
            .read_or(word("value `{}` of `tool_errors`", &[("failed", false), ("completed", true)]), defaults.completes_on_tool_error),
        immediate_response: s
            .key("immediate_response", "Text for the model to continue with while a task is working, which the proxy adds to the response with the handle (`_meta`, `io.modelcontextprotocol/model-immediate-response`). Default: none.")
            .read(text())
            .ok(),
        is_shared_across_eras: s
            .key("across_eras", "Whether a principal's modern clients may use the tasks that its legacy clients made, and the other way round. Never applies to clients without credentials.")
            .read_or(boolean(), defaults.is_shared_across_eras),
        unsolicited: read_unsolicited(s),
    }
}

/// Reads `unsolicited`: `never`, `always` or a list of distinct client matches.
fn read_unsolicited(s: &mut SectionReader<'_, '_>) -> UnsolicitedTasks {
    let clients = s
        .key("unsolicited", "Clients of 2025-11-25 whose slow calls become tasks although they did not ask for that (SEP-2229, a draft): `never`, `always`, or a list of client matches. Clients that do not expect it fail.")
        .read_or(unsolicited_type(), UnsolicitedSetting::Never);
    match clients {
        UnsolicitedSetting::Never => UnsolicitedTasks::Never,
        UnsolicitedSetting::Always => UnsolicitedTasks::Always,
        UnsolicitedSetting::Clients(matches) => {
            UnsolicitedTasks::Matching(s.reject_repeated(matches, |_, line| {
                format!("this client match is listed already{line}; remove one of the two")
            }))
        }
    }
}

/// The value of `unsolicited`.
#[derive(Clone)]
enum UnsolicitedSetting {
    Never,
    Always,
    Clients(Vec<SpannedValue<ClientMatch>>),
}

fn unsolicited_type() -> ValueType<'static, UnsolicitedSetting> {
    let client = mapping("a client match", |s| {
        s.require_one_of(&[&["header", "value"], &["principal"]]);
        let client_match = read_client_match(s);
        if client_match.is_unset() {
            s.add_problem(
                s.span,
                "the client match has neither `header` with `value` nor `principal`; add one of them",
            );
        }
        client_match.ok()
    });
    let clients = list(client).non_empty("`unsolicited` is empty; add a client match, or write `never`");
    let read_word = |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::Map(_) => report.reject(
            node.span,
            "must be never, always or a list, as in `[{ header: X-Takes-Tasks, value: \"1\" }]`",
        ),
        NodeValue::List(_) | NodeValue::Scalar { .. } => read_scalar(node, report, |text| match text {
            "never" => Ok(UnsolicitedSetting::Never),
            "always" => Ok(UnsolicitedSetting::Always),
            _ => invalid(format!(
                "unknown value `{text}` of `unsolicited`; use never, always or a list, as in `[{{ principal: 0f3c… }}]`"
            )),
        }),
    };
    ValueType::new(|| json!({ "enum": ["never", "always"] }), read_word)
        .or_list(clients.map(UnsolicitedSetting::Clients))
        .show_with(|_| "never".into())
}
