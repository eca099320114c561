//! Selects the clients that get tickets, and when: clients without task support that would time out before a
//! slow tool ends.

use super::{ClientMatch, Mode, NamePattern, ToolPolicy};
use http::HeaderMap;
use std::{sync::Arc, time::Duration};

/// The ticket settings of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TicketPolicy {
    /// The clients that get tickets, in order; the first match applies. `None` for all clients without task
    /// support.
    pub holders: Option<Vec<TicketHolder>>,
    /// How long a call of the result tool waits for the result. `None`: as long as the first call ran before
    /// its ticket.
    pub result_wait: Option<Duration>,
    /// The text of a ticket for the client's model; `None` for the default text.
    pub text: Option<Arc<str>>,
}

/// An entry of the configuration for clients that get tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketHolder {
    /// How the client is recognised.
    pub client_match: HolderMatch,
    /// The time after which a call gets a ticket. If the route or the tool also sets one, the shorter time
    /// applies.
    pub after: Option<Duration>,
    /// How long a call of the result tool waits, for this holder; `None` for the route's setting.
    pub result_wait: Option<Duration>,
}

/// How a ticket holder is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HolderMatch {
    /// By a request header or the principal.
    Client(ClientMatch),
    /// By the client's `clientInfo.name`, a hint that any client can set.
    Name(NamePattern),
}

/// The time after which a call of a tool gets a ticket instead of its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TicketAfter {
    /// Not set: the time of the ticket holder applies, if it has one.
    #[default]
    Inherited,
    /// Calls of the tool get no tickets.
    Never,
    /// After the call has run for this time.
    After(Duration),
}

/// The ticket settings of one client before those of a tool are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketGrant {
    after: Option<Duration>,
    wait: Option<Duration>,
    /// Whether the operator has named the client, instead of enabling tickets for all clients.
    pub is_named: bool,
}

/// The ticket settings for calls of one tool by one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketTerms {
    /// How long the call may run before the client gets a ticket.
    pub after: Duration,
    /// How long a call of the result tool waits for the result.
    pub result_wait: Duration,
}

// === impl TicketPolicy ===

impl TicketPolicy {
    /// Returns the grant for a client with these request headers and this `clientInfo.name`; `None` if the
    /// client gets no tickets. `principal` returns the client's principal as it appears in the log.
    pub fn grant_for(
        &self,
        headers: &HeaderMap,
        principal: impl Fn() -> String,
        name: Option<&str>,
    ) -> Option<TicketGrant> {
        let Some(holders) = &self.holders else {
            return Some(TicketGrant { after: None, wait: self.result_wait, is_named: false });
        };
        let matches_client = |holder: &&TicketHolder| match &holder.client_match {
            HolderMatch::Client(client_match) => client_match.matches(headers, &principal),
            HolderMatch::Name(pattern) => name.is_some_and(|name| pattern.matches(name)),
        };
        let TicketHolder { after, result_wait: wait, .. } = holders.iter().find(matches_client)?;
        Some(TicketGrant { after: *after, wait: wait.or(self.result_wait), is_named: true })
    }

    /// Whether any holder sets a ticket time itself, so that tickets are possible without a time of the route
    /// or a tool.
    pub fn has_thresholds(&self) -> bool {
        self.holders.iter().flatten().any(|holder| holder.after.is_some())
    }

    /// Whether any holder is recognised by a request header, so that headers must be available for a match.
    pub fn needs_headers(&self) -> bool {
        let is_by_header =
            |client_match: &HolderMatch| matches!(client_match, HolderMatch::Client(ClientMatch::Header(..)));
        self.holders.iter().flatten().any(|holder| is_by_header(&holder.client_match))
    }
}

// === impl TicketGrant ===

impl TicketGrant {
    /// Returns how long a call of the result tool waits if the terms of the ticket are unknown; `None` if
    /// neither the client nor the route sets a time.
    pub fn result_wait(&self) -> Option<Duration> {
        self.wait.or(self.after)
    }

    /// Returns the settings for calls with this tool policy; `None` if such calls never get tickets, because
    /// they never become tasks or run only as tasks.
    pub fn terms(&self, policy: &ToolPolicy) -> Option<TicketTerms> {
        match policy.mode {
            Mode::Auto | Mode::Always => {}
            Mode::Never | Mode::Required | Mode::Observe | Mode::Deny => return None,
        }
        let after = match (policy.ticket, self.after) {
            (TicketAfter::Never, _) | (TicketAfter::Inherited, None) => return None,
            (TicketAfter::Inherited, Some(after)) | (TicketAfter::After(after), None) => after,
            (TicketAfter::After(tool_after), Some(grant_after)) => tool_after.min(grant_after),
        };
        Some(TicketTerms { after, result_wait: self.wait.unwrap_or(after) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy(mode: Mode, ticket: TicketAfter) -> ToolPolicy {
        ToolPolicy { mode, ticket, ..ToolPolicy::default() }
    }

    fn holder(sign: HolderMatch, after: u32) -> TicketHolder {
        TicketHolder { client_match: sign, after: (after > 0).then_some(after * SECOND), result_wait: None }
    }

    #[test]
    fn the_first_matching_holder_applies_and_other_clients_get_no_tickets() {
        let name = |text: &str| HolderMatch::Name(NamePattern::new(text));
        let header = ClientMatch::Header("x-agent".parse().expect("a name"), "1".to_owned());
        let tickets = TicketPolicy {
            holders: Some(vec![
                holder(HolderMatch::Client(header), 1),
                holder(name("codex*"), 2),
                holder(HolderMatch::Client(ClientMatch::Principal("ab".to_owned())), 3),
            ]),
            ..TicketPolicy::default()
        };
        let mut headers = HeaderMap::new();
        let of = |headers: &HeaderMap, principal: &str, name| {
            let holding = tickets.grant_for(headers, || principal.to_owned(), name)?;
            Some(holding.after.expect("each has one").as_secs())
        };
        assert_eq!(of(&headers, "ab", Some("codex-mcp-client")), Some(2));
        assert_eq!(of(&headers, "ab", Some("other")), Some(3));
        assert_eq!(of(&headers, "cd", None), None);
        headers.insert("x-agent", HeaderValue::from_static("1"));
        assert_eq!(of(&headers, "ab", Some("codex")), Some(1));
    }

    #[test]
    fn the_shorter_of_two_times_counts_and_a_tool_may_have_none() {
        let holding = |after: Option<u32>| TicketGrant {
            after: after.map(|after| after * SECOND),
            wait: None,
            is_named: true,
        };
        let after =
            |holding: TicketGrant, ticket| Some(holding.terms(&policy(Mode::Auto, ticket))?.after.as_secs());
        let tool = |after: u32| TicketAfter::After(after * SECOND);
        assert_eq!(after(holding(None), tool(20)), Some(20));
        assert_eq!(after(holding(Some(40)), tool(20)), Some(20));
        assert_eq!(after(holding(Some(4)), tool(20)), Some(4));
        assert_eq!(after(holding(Some(40)), TicketAfter::Inherited), Some(40));
        assert_eq!(after(holding(None), TicketAfter::Inherited), None);
        assert_eq!(after(holding(Some(4)), TicketAfter::Never), None);
    }

    #[test]
    fn tools_without_tasks_or_with_tasks_only_give_no_tickets() {
        let holding = TicketGrant { after: Some(SECOND), wait: Some(2 * SECOND), is_named: false };
        let terms = |mode| holding.terms(&policy(mode, TicketAfter::Inherited));
        let given = Some(TicketTerms { after: SECOND, result_wait: 2 * SECOND });
        assert_eq!((terms(Mode::Auto), terms(Mode::Always)), (given, given));
        for mode in [Mode::Never, Mode::Required, Mode::Observe, Mode::Deny] {
            assert_eq!(terms(mode), None, "{mode}");
        }
    }
}
