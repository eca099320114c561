//! Who holds tickets here, and how a call of theirs is spoken of.

use super::{Passage, session::Client, shared::Shared};
use crate::{
    bridge::{
        sealed::looks_sealed,
        ticket::{ToolNames, Wanted, argument, page, tools},
    },
    dialect::{Call, Caller},
    policy::{Holding, Standing, TicketTerms, ToolPolicy},
    protocol::{Frame, meta, splice::Object},
    task::{Record, TaskId, view::ticket},
};
use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// How long a result is waited for at a time where nothing was said of it: less than most clients wait.
const WAIT: Duration = Duration::from_secs(45);

/// How a call is answered that takes longer than its client waits, where the client is given a ticket.
#[derive(Clone, Debug)]
pub(super) struct Ticketing {
    pub(super) names: Arc<ToolNames>,
    /// How long its result is waited for at a time.
    pub(super) wait: Duration,
}

// === impl Ticketing ===

impl Ticketing {
    /// The result that stands for one that is not there yet.
    pub(super) fn running(&self, shared: &Shared, record: &Record) -> Value {
        let now = shared.clock.timestamp();
        let ticket = shared.keyring.ticket(&record.id);
        let terms = ticket::Terms {
            ticket: &ticket,
            result: &self.names.result,
            cancel: &self.names.cancel,
            wait: self.wait,
            text: shared.route.tickets.text.as_deref(),
        };
        ticket::running(record, now, &terms)
    }
}

/// What holds for a client of an older revision, if it gets tickets.
pub(super) fn holding(shared: &Shared, client: &Client, passage: &Passage) -> Option<Holding> {
    if !shared.route.has_tickets() || !shared.route.defers_for(&passage.standing) {
        return None;
    }
    let known = client.session.and_then(|session| shared.sessions.holders.client(session));
    if known.as_ref().is_some_and(|known| known.declares_tasks) {
        return None;
    }
    let name = known.as_ref().and_then(|known| known.name.as_deref());
    let holding = shared.route.tickets.of(&passage.headers, || passage.principal.to_string(), name)?;
    // Of one that is not known it is not known either whether it has declared tasks.
    (known.is_some() || holding.is_named).then_some(holding)
}

/// When, and how, a call of this tool is answered with a ticket: where the client was given the tools that take it. One
/// that the operator has named is believed to have been, if it has no session, or one that was opened here: some
/// clients open one for each call, and have read the list in another.
pub(super) fn ticketing(
    shared: &Shared,
    client: &Client,
    passage: &Passage,
    tool: &str,
) -> Option<(TicketTerms, Ticketing)> {
    let holding = holding(shared, client, passage)?;
    let terms = holding.terms(&shared.route.treatment_for(tool, &passage.standing))?;
    let holders = &shared.sessions.holders;
    let given = client.session.and_then(|session| holders.given(session));
    let is_believed =
        || holding.is_named && client.session.is_none_or(|session| holders.client(session).is_some());
    let names = given.or_else(|| is_believed().then(|| holders.names()))?;
    Some((terms, Ticketing { names, wait: terms.wait }))
}

/// What a call of this tool wants of a ticket, if it is one of ours, and what ours are called. A session that has been
/// forgotten shows by a ticket of ours that it was given them.
pub(super) fn wanted(
    shared: &Shared,
    client: &Client,
    tool: &str,
    ticket: impl FnOnce() -> Option<String>,
) -> Option<(Wanted, Arc<ToolNames>)> {
    if !tool.starts_with(ToolNames::BEGINNING) {
        return None;
    }
    if let Some(names) = client.session.and_then(|session| shared.sessions.holders.given(session)) {
        return names.wanted(tool).map(|wanted| (wanted, names));
    }
    alike(shared, tool, ticket)
}

/// The same where it is not known what the client was given: a ticket shows it.
fn alike(
    shared: &Shared,
    tool: &str,
    ticket: impl FnOnce() -> Option<String>,
) -> Option<(Wanted, Arc<ToolNames>)> {
    let holders = &shared.sessions.holders;
    let wanted = ToolNames::alike(tool)?;
    let ticket = ticket()?;
    // One that is not copied well is none of the server's either, unless it has a tool of that name. Where no tickets are
    // given any more, only those that were are ours.
    let looks_ours = || shared.route.has_tickets() && looks_sealed(&ticket) && !holders.uses(tool);
    let is_ours = task_of(shared, &ticket).is_some() || looks_ours();
    is_ours.then(|| (wanted, holders.names()))
}

/// What holds for a client of 2026-07-28, if it gets tickets. It has no session in which it could have been given the tools,
/// so the operator must have named it.
pub(super) fn holding_of(shared: &Shared, call: &Call, caller: &Caller) -> Option<Holding> {
    let route = &shared.route;
    if !route.has_tickets() || caller.capabilities.declares_tasks() || !route.defers_for(&caller.standing) {
        return None;
    }
    let about = call.params.as_ref().and_then(|params| params.meta()?.get(meta::CLIENT_INFO));
    let name = about.and_then(|about| Object::read(&about).ok()?.string("name"));
    let none = HeaderMap::new();
    let headers = caller.signs.as_deref().unwrap_or(&none);
    let tickets = &shared.route.tickets;
    tickets.of(headers, || caller.principal.to_string(), name.as_deref()).filter(|holding| holding.is_named)
}

/// When, and how, a call of such a client is answered with a ticket.
pub(super) fn ticketing_of(
    shared: &Shared,
    call: &Call,
    caller: &Caller,
    policy: &ToolPolicy,
) -> Option<(TicketTerms, Ticketing)> {
    let terms = holding_of(shared, call, caller)?.terms(policy)?;
    Some((terms, Ticketing { names: shared.sessions.holders.names(), wait: terms.wait }))
}

/// What a call of this tool by such a client wants of a ticket, as [`wanted`] has it.
pub(super) fn wanted_by(
    shared: &Shared,
    call: &Call,
    caller: &Caller,
    tool: &str,
) -> Option<(Wanted, Arc<ToolNames>)> {
    if !tool.starts_with(ToolNames::BEGINNING) {
        return None;
    }
    let names = shared.sessions.holders.names();
    match names.wanted(tool) {
        Some(wanted) if holding_of(shared, call, caller).is_some() => Some((wanted, names)),
        Some(_) | None => alike(shared, tool, || argument(call.params.as_ref())),
    }
}

/// A page of `tools/list` as a holder sees it: `give` is told of the names that are added to the last.
pub(super) fn list(
    shared: &Shared,
    answer: &Frame,
    (holding, standing): (Holding, &Standing),
    give: impl FnOnce(&Arc<ToolNames>) -> bool,
) -> Option<Bytes> {
    let page = page(answer)?;
    shared.sessions.holders.learn(page.alike);
    let names = page.is_last.then(|| shared.sessions.holders.names()).filter(|names| give(names));
    let may_defer = |tool: &str| holding.terms(&shared.route.treatment_for(tool, standing)).is_some();
    tools(answer, names.as_deref(), may_defer)
}

/// How long a result is waited for at a time by this client, where nothing is known of the call that it was.
pub(super) fn wait(shared: &Shared, holding: Option<Holding>) -> Duration {
    let route = &shared.route;
    holding.and_then(|holding| holding.waits()).or(route.tickets.wait).or(route.held.ticket).unwrap_or(WAIT)
}

/// The task that a ticket of ours is for.
pub(super) fn task_of(shared: &Shared, ticket: &str) -> Option<TaskId> {
    shared.keyring.task_of(ticket)
}
