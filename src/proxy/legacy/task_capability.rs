//! Adds the tasks of 2025-11-25 to the capabilities of servers without tasks of their own.

use crate::{
    bridge::offer::{self, ServerTaskSupport},
    dialect::{Principal, legacy},
    policy::RolloutMembership,
    protocol::{Payload, Revision},
    proxy::{
        relay::ResponseEdit,
        route_context::RouteContext,
        session::{ClientDeclaration, SessionKey},
    },
    telemetry::metrics,
};
use std::sync::Arc;

/// Builds the edit of the response to an `initialize` with these `params`: adds the task capability, and
/// records the revision and the session. On a route without tasks the response stays unchanged, and only its
/// content is recorded.
pub(super) fn edit_initialize(
    shared: Arc<RouteContext>,
    params: Option<&Payload>,
    (principal, membership): (Principal, &RolloutMembership),
) -> ResponseEdit {
    let offers_tasks = shared.route.can_offer_tasks(membership);
    let requested = params.and_then(legacy::requested_revision);
    let client = shared.route.has_tickets().then(|| ClientDeclaration::from_initialize_params(params));
    Box::new(move |response, session_id| {
        if let (Some(client), Some(session)) = (&client, session_id) {
            shared
                .sessions
                .ticket_holders
                .add_session(SessionKey::from_id(principal, session), client.clone());
        }
        if let Some(negotiated) = legacy::negotiated_revision(response) {
            let revision = Revision::parse(&negotiated);
            shared.server_profile.record_revision(requested, revision);
            if let (Some(session), Some(revision)) = (session_id, revision) {
                shared.sessions.revisions.record(SessionKey::from_id(principal, session), revision);
            }
        }
        if !shared.route.has_tasks() {
            return None;
        }
        match offer::read_task_support(response, !principal.is_anonymous() || session_id.is_some())? {
            ServerTaskSupport::Native => {
                shared.server_profile.record_tasks(true);
                None
            }
            ServerTaskSupport::Missing { offer } => {
                shared.server_profile.record_tasks(false);
                offer.filter(|_| offers_tasks)
            }
        }
    })
}

/// Builds the edit of the response to `tools/list`, which marks the tools that can or must run as tasks.
pub(super) fn edit_tool_list(shared: Arc<RouteContext>, membership: RolloutMembership) -> ResponseEdit {
    Box::new(move |response, _| {
        offer::edit_tool_list(response, |tool| {
            metrics::mark_tool_listed(&shared.route.path, tool);
            shared.route.tool_policy_for(tool, &membership).mode
        })
    })
}
