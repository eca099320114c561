//! Who holds tickets, and from when on: clients that know no tasks, and give up before a slow tool is done.

use super::{ClientMatch, Mode, NamePattern, ToolPolicy};
use http::HeaderMap;
use std::{sync::Arc, time::Duration};

/// How tickets are given on a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TicketPolicy {
    /// Who gets them, where that was said; else everybody who knows no tasks. The first that is meant counts.
    pub holders: Option<Vec<TicketHolder>>,
    /// How long a result is waited for at a time. Left out, it is as long as the call was waited for.
    pub wait: Option<Duration>,
    /// What the model is told in the place of our own words.
    pub text: Option<Arc<str>>,
}

/// Somebody who gets tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketHolder {
    pub sign: HolderMatch,
    /// After how long, if not when the route or the tool has it. The shorter counts where there are both.
    pub after: Option<Duration>,
    /// How long a result is waited for at a time, for this one.
    pub wait: Option<Duration>,
}

/// What a holder is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HolderMatch {
    Client(ClientMatch),
    /// What it calls itself (`clientInfo.name`): a hint, as anybody can.
    Name(NamePattern),
}

/// When a tool's call is answered with a ticket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TicketAfter {
    /// Nothing was said: when the holder's own entry says, if it does.
    #[default]
    Inherited,
    Never,
    After(Duration),
}

/// What holds for one client, whatever it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketGrant {
    after: Option<Duration>,
    wait: Option<Duration>,
    /// The operator has named it, and did not only say that everybody gets them.
    pub is_named: bool,
}

/// What holds for one client and one tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketTerms {
    /// How long the call may run before it is answered with a ticket.
    pub after: Duration,
    /// How long its result is waited for at a time.
    pub wait: Duration,
}

// === impl Tickets ===

impl TicketPolicy {
    /// Whether, and how, a client gets tickets that sends these headers, whom the log knows as `principal`, and that
    /// calls itself this.
    pub fn grant_for(
        &self,
        headers: &HeaderMap,
        principal: impl Fn() -> String,
        name: Option<&str>,
    ) -> Option<TicketGrant> {
        let Some(holders) = &self.holders else {
            return Some(TicketGrant { after: None, wait: self.wait, is_named: false });
        };
        let is_meant = |holder: &&TicketHolder| match &holder.sign {
            HolderMatch::Client(sign) => sign.matches(headers, &principal),
            HolderMatch::Name(pattern) => name.is_some_and(|name| pattern.matches(name)),
        };
        let TicketHolder { after, wait, .. } = holders.iter().find(is_meant)?;
        Some(TicketGrant { after: *after, wait: wait.or(self.wait), is_named: true })
    }

    /// Whether somebody gets them sooner or later whatever the route and its tools say.
    pub fn has_thresholds(&self) -> bool {
        self.holders.iter().flatten().any(|holder| holder.after.is_some())
    }

    /// Whether somebody is known by a header.
    pub fn needs_headers(&self) -> bool {
        let is_header = |sign: &HolderMatch| matches!(sign, HolderMatch::Client(ClientMatch::Header(..)));
        self.holders.iter().flatten().any(|holder| is_header(&holder.sign))
    }
}

// === impl Holding ===

impl TicketGrant {
    /// How long a result is waited for at a time, or was to be before the first ticket.
    pub fn result_wait(&self) -> Option<Duration> {
        self.wait.or(self.after)
    }

    /// What holds for calls of the tool that is treated so. None where its calls are never answered with tickets: they
    /// become no tasks, or nothing but.
    pub fn terms(&self, policy: &ToolPolicy) -> Option<TicketTerms> {
        match policy.mode {
            Mode::Auto | Mode::Always => {}
            Mode::Never | Mode::Required | Mode::Observe | Mode::Deny => return None,
        }
        let after = match (policy.ticket, self.after) {
            (TicketAfter::Never, _) | (TicketAfter::Inherited, None) => return None,
            (TicketAfter::Inherited, Some(after)) | (TicketAfter::After(after), None) => after,
            (TicketAfter::After(one), Some(other)) => one.min(other),
        };
        Some(TicketTerms { after, wait: self.wait.unwrap_or(after) })
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
        TicketHolder { sign, after: (after > 0).then_some(after * SECOND), wait: None }
    }

    #[test]
    fn the_first_holder_that_is_meant_counts_and_nobody_else_gets_any() {
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
    fn what_never_becomes_a_task_or_is_nothing_else_is_no_ticket_either() {
        let holding = TicketGrant { after: Some(SECOND), wait: Some(2 * SECOND), is_named: false };
        let terms = |mode| holding.terms(&policy(mode, TicketAfter::Inherited));
        let given = Some(TicketTerms { after: SECOND, wait: 2 * SECOND });
        assert_eq!((terms(Mode::Auto), terms(Mode::Always)), (given, given));
        for mode in [Mode::Never, Mode::Required, Mode::Observe, Mode::Deny] {
            assert_eq!(terms(mode), None, "{mode}");
        }
    }
}
