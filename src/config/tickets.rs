//! What of the configuration is about tickets.

use super::{
    At,
    kind::{client_sign, duration_or_off, pattern, some_duration, text, word},
    section::{Kind, Section, Set, list, mapping},
    values::Invalid,
};
use crate::{
    policy::{HolderSign, TicketAfter, TicketHolder, Tickets},
    task::view::ticket::{NEEDED, PLACES, places},
};
use serde_json::Value as Json;

/// How long a call may run before a client that knows no tasks is answered with a ticket.
pub(super) fn after(s: &mut Section<'_, '_>, about: &'static str) -> TicketAfter {
    match s.key("ticket", about).set(duration_or_off()).given() {
        None => TicketAfter::Unsaid,
        Some(None) => TicketAfter::Never,
        Some(Some(after)) => TicketAfter::After(after),
    }
}

/// `has_times` says whether the route or a tool of it says when.
pub(super) fn tickets(s: &mut Section<'_, '_>, has_times: bool) -> Tickets {
    let holders = s.key(
        "for",
        "Clients that get tickets, among those without task support. First match wins. Default: all of \
         them.",
    );
    let holders = holders.set(list(mapping("a ticket client", holder)).some());
    if let Set::To(At { place, value }) = &holders
        && value.is_empty()
    {
        s.wrong(
            *place,
            "`for` is empty; add a client, or remove the key for all clients without task support",
        );
    }
    // Of what cannot be read it is not known whether it has a time.
    let may_have_times = has_times || holders == Set::Wrong;
    let wait = s.key(
        "wait",
        "How long one call of `deferral_result` waits for the result. Default: as long as the call ran before the ticket.",
    );
    let tickets = Tickets {
        holders: holders.given().map(|holders| holders.into_iter().map(|holder| holder.value).collect()),
        wait: wait.set(some_duration()).given(),
        text: s
            .key(
                "text",
                "Text for the model, instead of the built-in one. Must contain `{ticket}` and `{result}`.",
            )
            .set(words())
            .given()
            .map(Into::into),
    };
    if s.is_written() && !may_have_times && !tickets.have_times() {
        s.wrong(
            s.place,
            "`tickets` has no effect without a time; set `held: { ticket: 45s }`, the `ticket` of a tool, or an `after`",
        );
    }
    tickets
}

fn holder(s: &mut Section<'_, '_>) -> Option<TicketHolder> {
    s.either(&[&["header", "value"], &["principal"], &["client"]]);
    let name = s.key(
        "client",
        "Name that the client sends (`clientInfo.name`); `*` matches any characters, `?` one.",
    );
    let sign = match (name.set(pattern()), client_sign(s)) {
        (Set::Wrong, _) | (_, Set::Wrong) => None,
        (Set::To(name), Set::Unset) => Some(HolderSign::Name(name.value)),
        (Set::Unset, Set::To(sign)) => Some(HolderSign::Client(sign.value)),
        (Set::To(_), Set::To(_)) => {
            s.wrong(
                s.place,
                "the client match has both `client` and another; write two entries, either is enough",
            );
            None
        }
        (Set::Unset, Set::Unset) => {
            let message = "the client match has neither `client`, nor `header` with `value`, nor `principal`; add one of them";
            s.wrong(s.place, message);
            None
        }
    };
    let after = s.key("after", "How long a call of this client may run before it gets a ticket, or the time of the route or the tool if that is shorter.");
    let after = after.set(some_duration()).given();
    let wait = s.key("wait", "How long one call of `deferral_result` of this client waits for the result.");
    let wait = wait.set(some_duration()).given();
    Some(TicketHolder { sign: sign?, after, wait })
}

/// Words for a model, with places for what is known of the call.
fn words() -> Kind<'static, String> {
    let Kind { schema, show, .. } = text();
    let read = word(Json::Null, |text: &str| {
        if let Some(missing) = NEEDED.into_iter().find(|place| !text.contains(place)) {
            let why = format!("must contain `{missing}`, without which the model cannot fetch the result");
            return Err(Invalid(why));
        }
        match places(text).find(|place| !PLACES.contains(place)) {
            Some(unknown) => {
                Err(Invalid(format!("unknown placeholder `{unknown}`; there are {}", PLACES.join(", "))))
            }
            None => Ok(text.to_owned()),
        }
    })
    .read;
    Kind { schema, show, read }
}
