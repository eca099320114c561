//! The facts about a request's client and session that a plan may depend on.

use crate::{
    bridge::{
        legacy_plan::{LegacyRequestFacts, LegacySessionFacts},
        ticket::{TicketAction, TicketOptions, TicketToolNames, ticket_argument},
    },
    policy::{TicketGrant, ToolPolicy},
    proxy::{LegacyRequest, route_context::RouteContext, session::LegacyClient, tickets},
};
use std::{sync::Arc, time::Duration};

/// Looks up the facts about the client and the session of one request.
pub(super) struct SessionFacts<'a> {
    pub(super) shared: &'a RouteContext,
    pub(super) client: &'a LegacyClient,
    pub(super) request: &'a LegacyRequest,
}

// === impl SessionFacts ===

impl<'a> SessionFacts<'a> {
    /// The facts about the request that need no look-up.
    pub(super) fn request_facts(&self) -> LegacyRequestFacts<'a> {
        let Self { shared, client, request } = *self;
        LegacyRequestFacts {
            http_method: &request.method,
            post: &request.post,
            message: request.message.as_ref(),
            has_task_support: client.has_task_support(),
            route: &shared.route,
            membership: &request.rollout_membership,
            has_limits: shared.limiters.is_some(),
            is_stopping: shared.stopping.is_stopped(),
        }
    }
}

impl LegacySessionFacts for SessionFacts<'_> {
    fn is_closed(&self) -> bool {
        self.client.session.is_some_and(|key| self.shared.sessions.pending_requests.is_closed(key))
    }

    fn has_cancellable_requests(&self) -> bool {
        let sessions = &self.shared.sessions;
        sessions.pending_requests.has_queued()
            || !sessions.waiting_calls.is_empty()
            || !sessions.ticket_waits.is_empty()
    }

    fn has_open_input_requests(&self) -> bool {
        !self.shared.sessions.input_requests.is_empty()
    }

    fn accepts_unsolicited_tasks(&self) -> bool {
        let unsolicited = &self.shared.route.legacy_tasks.unsolicited;
        unsolicited.applies_to(&self.request.headers, || self.request.principal.to_string())
    }

    fn ticket_tool(&self, tool: &str) -> Option<(TicketAction, Arc<TicketToolNames>)> {
        let ticket = || ticket_argument(self.request.params());
        tickets::legacy_ticket_action(self.shared, self.client, tool, ticket)
    }

    fn ticket_grant(&self) -> Option<TicketGrant> {
        tickets::legacy_eligibility(self.shared, self.client, self.request)
    }

    fn ticket(&self, policy: &ToolPolicy) -> Option<(Duration, TicketOptions)> {
        tickets::legacy_ticket_options(self.shared, self.client, self.request, policy)
    }
}
