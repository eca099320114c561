//! Who holds tickets here, and how a call of theirs is spoken of.

use super::{LegacyRequest, route_context::RouteContext, session::LegacyClient};
use crate::{
    bridge::{
        ticket::{TicketAction, TicketToolNames, read_page, ticket_argument, with_ticket_tools},
        ticket_seal::is_ticket,
    },
    dialect::{Call, Caller},
    policy::{RolloutMembership, TicketGrant, TicketTerms, ToolPolicy},
    protocol::{Frame, meta, splice::JsonObject},
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
pub(super) struct TicketOptions {
    pub(super) names: Arc<TicketToolNames>,
    /// How long its result is waited for at a time.
    pub(super) wait: Duration,
}

// === impl Ticketing ===

impl TicketOptions {
    /// The result that stands for one that is not there yet.
    pub(super) fn running(&self, shared: &RouteContext, record: &Record) -> Value {
        let now = shared.clock.timestamp();
        let ticket = shared.keyring.seal_ticket(&record.id);
        let terms = ticket::TicketPrompt {
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
pub(super) fn legacy_eligibility(
    shared: &RouteContext,
    client: &LegacyClient,
    passage: &LegacyRequest,
) -> Option<TicketGrant> {
    if !shared.route.has_tickets() || !shared.route.defers_for(&passage.standing) {
        return None;
    }
    let known = client.session.and_then(|session| shared.sessions.ticket_holders.client(session));
    if known.as_ref().is_some_and(|known| known.declares_tasks) {
        return None;
    }
    let name = known.as_ref().and_then(|known| known.name.as_deref());
    let holding = shared.route.tickets.grant_for(&passage.headers, || passage.principal.to_string(), name)?;
    // Of one that is not known it is not known either whether it has declared tasks.
    (known.is_some() || holding.is_named).then_some(holding)
}

/// When, and how, a call of this tool is answered with a ticket: where the client was given the tools that take it. One
/// that the operator has named is believed to have been, if it has no session, or one that was opened here: some
/// clients open one for each call, and have read the list in another.
pub(super) fn legacy_ticket_options(
    shared: &RouteContext,
    client: &LegacyClient,
    passage: &LegacyRequest,
    tool: &str,
) -> Option<(TicketTerms, TicketOptions)> {
    let holding = legacy_eligibility(shared, client, passage)?;
    let terms = holding.terms(&shared.route.tool_policy_for(tool, &passage.standing))?;
    let holders = &shared.sessions.ticket_holders;
    let given = client.session.and_then(|session| holders.given_names(session));
    let is_believed =
        || holding.is_named && client.session.is_none_or(|session| holders.client(session).is_some());
    let names = given.or_else(|| is_believed().then(|| holders.free_names()))?;
    Some((terms, TicketOptions { names, wait: terms.wait }))
}

/// What a call of this tool wants of a ticket, if it is one of ours, and what ours are called. A session that has been
/// forgotten shows by a ticket of ours that it was given them.
pub(super) fn legacy_ticket_action(
    shared: &RouteContext,
    client: &LegacyClient,
    tool: &str,
    ticket: impl FnOnce() -> Option<String>,
) -> Option<(TicketAction, Arc<TicketToolNames>)> {
    if !tool.starts_with(TicketToolNames::PREFIX) {
        return None;
    }
    if let Some(names) =
        client.session.and_then(|session| shared.sessions.ticket_holders.given_names(session))
    {
        return names.action_of(tool).map(|wanted| (wanted, names));
    }
    action_by_ticket(shared, tool, ticket)
}

/// The same where it is not known what the client was given: a ticket shows it.
fn action_by_ticket(
    shared: &RouteContext,
    tool: &str,
    ticket: impl FnOnce() -> Option<String>,
) -> Option<(TicketAction, Arc<TicketToolNames>)> {
    let holders = &shared.sessions.ticket_holders;
    let wanted = TicketToolNames::possible_action(tool)?;
    let ticket = ticket()?;
    // One that is not copied well is none of the server's either, unless it has a tool of that name. Where no tickets are
    // given any more, only those that were are ours.
    let looks_ours = || shared.route.has_tickets() && is_ticket(&ticket) && !holders.is_used(tool);
    let is_ours = task_of(shared, &ticket).is_some() || looks_ours();
    is_ours.then(|| (wanted, holders.free_names()))
}

/// What holds for a client of 2026-07-28, if it gets tickets. It has no session in which it could have been given the tools,
/// so the operator must have named it.
pub(super) fn modern_eligibility(shared: &RouteContext, call: &Call, caller: &Caller) -> Option<TicketGrant> {
    let route = &shared.route;
    if !route.has_tickets()
        || caller.capabilities.declares_tasks()
        || !route.defers_for(&caller.rollout_membership)
    {
        return None;
    }
    let about = call.params.as_ref().and_then(|params| params.meta()?.get(meta::CLIENT_INFO));
    let name = about.and_then(|about| JsonObject::read(&about).ok()?.string("name"));
    let none = HeaderMap::new();
    let headers = caller.match_headers.as_deref().unwrap_or(&none);
    let tickets = &shared.route.tickets;
    tickets
        .grant_for(headers, || caller.principal.to_string(), name.as_deref())
        .filter(|holding| holding.is_named)
}

/// When, and how, a call of such a client is answered with a ticket.
pub(super) fn modern_ticket_options(
    shared: &RouteContext,
    call: &Call,
    caller: &Caller,
    policy: &ToolPolicy,
) -> Option<(TicketTerms, TicketOptions)> {
    let terms = modern_eligibility(shared, call, caller)?.terms(policy)?;
    Some((terms, TicketOptions { names: shared.sessions.ticket_holders.free_names(), wait: terms.wait }))
}

/// What a call of this tool by such a client wants of a ticket, as [`legacy_ticket_action`] has it.
pub(super) fn modern_ticket_action(
    shared: &RouteContext,
    call: &Call,
    caller: &Caller,
    tool: &str,
) -> Option<(TicketAction, Arc<TicketToolNames>)> {
    if !tool.starts_with(TicketToolNames::PREFIX) {
        return None;
    }
    let names = shared.sessions.ticket_holders.free_names();
    match names.action_of(tool) {
        Some(wanted) if modern_eligibility(shared, call, caller).is_some() => Some((wanted, names)),
        Some(_) | None => action_by_ticket(shared, tool, || ticket_argument(call.params.as_ref())),
    }
}

/// A page of `with_ticket_tools/edit_tool_list` as a holder sees it: `give` is told of the names that are added to the last.
pub(super) fn edit_tool_list(
    shared: &RouteContext,
    answer: &Frame,
    (holding, standing): (TicketGrant, &RolloutMembership),
    give: impl FnOnce(&Arc<TicketToolNames>) -> bool,
) -> Option<Bytes> {
    let page = read_page(answer)?;
    shared.sessions.ticket_holders.learn_names(page.similar_names);
    let names = page.is_last.then(|| shared.sessions.ticket_holders.free_names()).filter(|names| give(names));
    let may_defer = |tool: &str| holding.terms(&shared.route.tool_policy_for(tool, standing)).is_some();
    with_ticket_tools(answer, names.as_deref(), may_defer)
}

/// How long a result is waited for at a time by this client, where nothing is known of the call that it was.
pub(super) fn result_wait(shared: &RouteContext, holding: Option<TicketGrant>) -> Duration {
    let route = &shared.route;
    holding
        .and_then(|holding| holding.result_wait())
        .or(route.tickets.wait)
        .or(route.held.ticket)
        .unwrap_or(WAIT)
}

/// The task that a ticket of ours is for.
pub(super) fn task_of(shared: &RouteContext, ticket: &str) -> Option<TaskId> {
    shared.keyring.open_ticket(ticket)
}
