//! The keys for tickets.

use super::matches::{pattern, read_client_match};
use crate::{
    config::schema::{
        SectionReader, Setting, ValueResult, duration_or_off, invalid, list, mapping, non_empty_string,
        positive_duration,
    },
    policy::{HolderMatch, TicketAfter, TicketHolder, TicketPolicy},
    task::view::ticket::{PLACEHOLDERS, REQUIRED_PLACEHOLDERS, find_placeholders},
};

/// Reads `ticket`: how long a call may run before a client without task support gets a ticket.
pub(super) fn read_ticket_after(s: &mut SectionReader<'_, '_>, description: &'static str) -> TicketAfter {
    match s.key("ticket", description).read(duration_or_off()).ok() {
        None => TicketAfter::Inherited,
        Some(None) => TicketAfter::Never,
        Some(Some(after)) => TicketAfter::After(after),
    }
}

/// Reads `tickets`. `has_times` is set if the route or one of its tool rules sets a ticket time.
pub(super) fn read_tickets(s: &mut SectionReader<'_, '_>, has_times: bool) -> TicketPolicy {
    s.key("tickets", "Details of tickets. A ticket is enabled by `held.ticket`, by the `ticket` of a tool, or by `tickets.for[].after`. It is the response to a slow call without task support: a text that tells the model to fetch the result with the tool `deferral_result`. Where tickets are enabled, the proxy adds that tool and `deferral_cancel` to the tool list.")
        .read_section("`tickets`", |s| read_ticket_policy(s, has_times))
}

fn read_ticket_policy(s: &mut SectionReader<'_, '_>, has_times: bool) -> TicketPolicy {
    let holders = s.key(
        "for",
        "Clients that get tickets for calls without task support. First match wins. An entry has one of `client`, `principal`, or `header` with `value`; it applies even if the proxy cannot tell whether the client has received the tool list with `deferral_result`. Default: all clients that have received that list.",
    );
    let holders =
        holders.read(list(mapping("a ticket client", read_holder)).non_empty(
            "`for` is empty; add a client, or remove the key for all clients without task support",
        ));
    // Invalid entries of `for` may have had a time.
    let may_have_times = has_times || holders == Setting::Invalid;
    let wait = s.key(
        "wait",
        "How long one call of `deferral_result` waits for the result. Default: as long as the call ran before the ticket.",
    );
    let tickets = TicketPolicy {
        holders: holders.ok().map(|holders| holders.into_iter().map(|holder| holder.value).collect()),
        result_wait: wait.read(positive_duration()).ok(),
        text: s
            .key(
                "text",
                "Text for the model, instead of the built-in one. Must contain `{ticket}` and `{result}`.",
            )
            .read(non_empty_string(parse_ticket_text))
            .ok()
            .map(Into::into),
    };
    if s.is_written() && !may_have_times && !tickets.has_thresholds() {
        s.add_problem(
            s.span,
            "`tickets` has no effect without a time; set `held: { ticket: 45s }`, the `ticket` of a tool, or an `after`",
        );
    }
    tickets
}

fn read_holder(s: &mut SectionReader<'_, '_>) -> Option<TicketHolder> {
    s.require_one_of(&[&["header", "value"], &["principal"], &["client"]]);
    let name = s.key(
        "client",
        "Name that the client sends (`clientInfo.name`); `*` matches any characters, `?` one.",
    );
    let holder_match = match (name.read(pattern()), read_client_match(s)) {
        (Setting::Invalid, _) | (_, Setting::Invalid) => None,
        (Setting::Valid(name), Setting::Unset) => Some(HolderMatch::Name(name.value)),
        (Setting::Unset, Setting::Valid(sign)) => Some(HolderMatch::Client(sign.value)),
        (Setting::Valid(_), Setting::Valid(_)) => {
            s.add_problem(
                s.span,
                "the client match has both `client` and another; write two entries, either is enough",
            );
            None
        }
        (Setting::Unset, Setting::Unset) => {
            let message = "the client match has neither `client`, nor `header` with `value`, nor `principal`; add one of them";
            s.add_problem(s.span, message);
            None
        }
    };
    let after = s.key("after", "How long a call of this client may run before it gets a ticket. If `tools[].ticket`, or otherwise `held.ticket`, also sets a time, the shorter of the two applies. `ticket: off` of a tool overrides this key.");
    let after = after.read(positive_duration()).ok();
    let wait = s.key("wait", "How long one call of `deferral_result` of this client waits for the result. Default: the route's `tickets.wait`.");
    let wait = wait.read(positive_duration()).ok();
    Some(TicketHolder { client_match: holder_match?, after, result_wait: wait })
}

/// Parses `text`: the text for the model, with placeholders for the call.
fn parse_ticket_text(text: &str) -> ValueResult<String> {
    if let Some(missing) = REQUIRED_PLACEHOLDERS.into_iter().find(|placeholder| !text.contains(placeholder)) {
        return invalid(format!("must contain `{missing}`, without which the model cannot fetch the result"));
    }
    match find_placeholders(text).find(|placeholder| !PLACEHOLDERS.contains(placeholder)) {
        Some(unknown) => {
            invalid(format!("unknown placeholder `{unknown}`; there are {}", PLACEHOLDERS.join(", ")))
        }
        None => Ok(text.to_owned()),
    }
}
