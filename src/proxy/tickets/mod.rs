//! Decides which clients get tickets, recognises calls of the ticket tools, and edits tool lists.

pub(super) mod legacy_call;
pub(super) mod modern_call;
mod tool_call;

use super::{LegacyRequest, route_context::RouteContext, session::LegacyClient};
use crate::{
    bridge::{
        ticket::{
            TicketAction, TicketOptions, TicketToolNames, read_tool_list_page, ticket_argument,
            with_ticket_tools,
        },
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

/// The default time that a call of the result tool waits for a result: shorter than the timeout of most
/// clients.
const DEFAULT_RESULT_WAIT: Duration = Duration::from_secs(45);

/// The tool result for a call that still runs: the ticket, and the text for the model.
pub(super) fn running_result(shared: &RouteContext, record: &Record, options: &TicketOptions) -> Value {
    let now = shared.clock.timestamp();
    let ticket = shared.keyring.seal_ticket(&record.id);
    let prompt = ticket::TicketPrompt {
        ticket: &ticket,
        result_tool: &options.names.result,
        cancel_tool: &options.names.cancel,
        result_wait: options.wait,
        text: shared.route.tickets.text.as_deref(),
    };
    ticket::running_result(record, now, &prompt)
}

/// The ticket grant of a legacy client, if the client is eligible for tickets.
pub(super) fn legacy_eligibility(
    shared: &RouteContext,
    client: &LegacyClient,
    request: &LegacyRequest,
) -> Option<TicketGrant> {
    if !shared.route.has_tickets() || !shared.route.can_defer_for(&request.rollout_membership) {
        return None;
    }
    let declaration =
        client.session.and_then(|session| shared.sessions.ticket_holders.client_declaration(session));
    if declaration.as_ref().is_some_and(|declaration| declaration.declares_tasks) {
        return None;
    }
    let name = declaration.as_ref().and_then(|declaration| declaration.name.as_deref());
    let grant = shared.route.tickets.grant_for(&request.headers, || request.principal.to_string(), name)?;
    // A client that has not sent `initialize` may have declared tasks; require a match by name.
    (declaration.is_some() || grant.is_named).then_some(grant)
}

/// The ticket for a call with this policy by a legacy client, and the time after which the client gets it;
/// `None` if the client is not eligible or does not have the ticket tools. A client that the operator has named in the configuration
/// counts as having the tools, without a session or in any session opened through the proxy: some clients
/// open a session for each call, and have read the tool list in another.
pub(super) fn legacy_ticket_options(
    shared: &RouteContext,
    client: &LegacyClient,
    request: &LegacyRequest,
    policy: &ToolPolicy,
) -> Option<(Duration, TicketOptions)> {
    let grant = legacy_eligibility(shared, client, request)?;
    let terms = grant.terms(policy)?;
    let holders = &shared.sessions.ticket_holders;
    let given_names = client.session.and_then(|session| holders.given_names(session));
    let counts_as_given = || {
        grant.is_named && client.session.is_none_or(|session| holders.client_declaration(session).is_some())
    };
    let names = given_names.or_else(|| counts_as_given().then(|| holders.free_names()))?;
    Some((terms.after, TicketOptions { names, wait: terms.result_wait }))
}

/// The action of the called ticket tool, and the names of the ticket tools; `None` if the legacy client
/// called another tool. A client whose session is not remembered proves by a valid ticket that it has the
/// ticket tools.
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
        return names.action_of(tool).map(|action| (action, names));
    }
    action_by_ticket(shared, tool, ticket)
}

/// The action of the called ticket tool for a client whose tools are unknown: its ticket proves that it has
/// them.
fn action_by_ticket(
    shared: &RouteContext,
    tool: &str,
    ticket: impl FnOnce() -> Option<String>,
) -> Option<(TicketAction, Arc<TicketToolNames>)> {
    let holders = &shared.sessions.ticket_holders;
    let action = TicketToolNames::possible_action(tool)?;
    let ticket = ticket()?;
    // A miscopied ticket is not for the server either, unless the server has a tool of that name. On a route
    // that issues no tickets any more, only valid tickets count.
    let is_plausible = || shared.route.has_tickets() && is_ticket(&ticket) && !holders.is_server_tool(tool);
    let is_ticket_call = task_of_ticket(shared, &ticket).is_some() || is_plausible();
    is_ticket_call.then(|| (action, holders.free_names()))
}

/// The ticket grant of a client of 2026-07-28, if the client is eligible for tickets. Without a session the
/// proxy cannot know whether the client has the ticket tools, so the operator must have named the client.
pub(super) fn modern_eligibility(shared: &RouteContext, call: &Call, caller: &Caller) -> Option<TicketGrant> {
    let route = &shared.route;
    if !route.has_tickets()
        || caller.capabilities.declares_tasks()
        || !route.can_defer_for(&caller.rollout_membership)
    {
        return None;
    }
    let client_info = call.params.as_ref().and_then(|params| params.meta()?.get(meta::CLIENT_INFO));
    let name = client_info.and_then(|client_info| JsonObject::read(&client_info).ok()?.string("name"));
    let no_headers = HeaderMap::new();
    let headers = caller.match_headers.as_deref().unwrap_or(&no_headers);
    let tickets = &shared.route.tickets;
    tickets
        .grant_for(headers, || caller.principal.to_string(), name.as_deref())
        .filter(|grant| grant.is_named)
}

/// The terms and options of a ticket for a call by a client of 2026-07-28; `None` if the client is not
/// eligible.
pub(super) fn modern_ticket_options(
    shared: &RouteContext,
    call: &Call,
    caller: &Caller,
    policy: &ToolPolicy,
) -> Option<(TicketTerms, TicketOptions)> {
    let terms = modern_eligibility(shared, call, caller)?.terms(policy)?;
    Some((
        terms,
        TicketOptions { names: shared.sessions.ticket_holders.free_names(), wait: terms.result_wait },
    ))
}

/// The action of the called ticket tool, and the names of the ticket tools; `None` if the client of
/// 2026-07-28 called another tool. See [`legacy_ticket_action`].
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
        Some(action) if modern_eligibility(shared, call, caller).is_some() => Some((action, names)),
        Some(_) | None => action_by_ticket(shared, tool, || ticket_argument(call.params.as_ref())),
    }
}

/// Edits a page of `tools/list` for a client with a ticket grant: adds the ticket tools to the last page.
/// `give_names` gets their names and returns whether to add them. `None` if the page is unchanged or cannot be
/// parsed.
pub(super) fn edit_tool_list(
    shared: &RouteContext,
    response: &Frame,
    (grant, membership): (TicketGrant, &RolloutMembership),
    give_names: impl FnOnce(&Arc<TicketToolNames>) -> bool,
) -> Option<Bytes> {
    let page = read_tool_list_page(response)?;
    shared.sessions.ticket_holders.record_similar_names(page.similar_names);
    let names =
        page.is_last.then(|| shared.sessions.ticket_holders.free_names()).filter(|names| give_names(names));
    let may_defer = |tool: &str| grant.terms(&shared.route.tool_policy_for(tool, membership)).is_some();
    with_ticket_tools(response, names.as_deref(), may_defer)
}

/// How long one call of the result tool waits for the result, by the client's grant, the route, or the
/// default.
pub(super) fn result_wait(shared: &RouteContext, grant: Option<TicketGrant>) -> Duration {
    let route = &shared.route;
    grant
        .and_then(|grant| grant.result_wait())
        .or(route.tickets.result_wait)
        .or(route.wait_policy.ticket_after)
        .unwrap_or(DEFAULT_RESULT_WAIT)
}

/// The task that a ticket belongs to; `None` if the ticket is invalid.
pub(super) fn task_of_ticket(shared: &RouteContext, ticket: &str) -> Option<TaskId> {
    shared.keyring.open_ticket(ticket)
}
