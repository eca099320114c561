//! A call that is only observed: in mode `observe`, or of a caller outside a rollout. Once it is over, however it ends,
//! it is logged and counted where it would have become a task.

use super::{LegacyRequest, route_context::RouteContext};
use crate::{
    dialect::legacy::ClientMessage,
    policy::{Mode, ToolPolicy},
    protocol::Method,
    telemetry::{RequestOutcome, WouldDefer},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Logs and counts the call when it is dropped.
pub(super) struct ObservedCall {
    shared: Arc<RouteContext>,
    tool: Box<str>,
    /// The caller is outside the rollout of its tool.
    is_outside: bool,
    after: Duration,
    began: Instant,
    /// When and how it was answered. Neither where its client has disconnected first.
    answered: Option<(Instant, RequestOutcome)>,
    /// Whether it would have become a task; else its duration decides.
    would_defer: Option<bool>,
}

// === impl ObservedCall ===

impl ObservedCall {
    /// A call of this tool, that is treated so, begins at `began`.
    pub(super) fn begin(
        shared: &Arc<RouteContext>,
        tool: &str,
        policy: &ToolPolicy,
        began: Instant,
    ) -> Box<Self> {
        Box::new(Self {
            shared: Arc::clone(shared),
            tool: tool.into(),
            is_outside: policy.is_outside_rollout,
            after: policy.after,
            began,
            answered: None,
            would_defer: None,
        })
    }

    /// The one call of a legacy client's request, which is relayed. Batches never become tasks.
    pub(super) fn of_request(shared: &Arc<RouteContext>, passage: &LegacyRequest) -> Option<Box<Self>> {
        let [ClientMessage::Request { method: Method::ToolsCall, target, .. }] = &passage.post.messages[..]
        else {
            return None;
        };
        if passage.post.is_batch || !shared.route.has_observed_tools() {
            return None;
        }
        let tool = target.as_deref().unwrap_or_default();
        let policy = shared.route.tool_policy_for(tool, &passage.standing);
        let is_observed = policy.mode == Mode::Observe;
        is_observed.then(|| Self::begin(shared, tool, &policy, shared.clock.now()))
    }

    /// The threshold, and since when the call runs.
    pub(super) fn threshold(&self) -> (Duration, Instant) {
        (self.after, self.began)
    }

    /// It has been answered so.
    pub(super) fn record_outcome(&mut self, outcome: RequestOutcome) {
        self.answered.get_or_insert_with(|| (self.shared.clock.now(), outcome));
    }

    /// Whether it would have become a task, whatever its duration.
    pub(super) fn set_would_defer(&mut self, would_defer: bool) {
        self.would_defer = Some(would_defer);
    }
}

impl Drop for ObservedCall {
    fn drop(&mut self) {
        let (ended, outcome) = match self.answered {
            Some((ended, outcome)) => (ended, Some(outcome)),
            None => (self.shared.clock.now(), None),
        };
        let took = ended.saturating_duration_since(self.began);
        if !self.would_defer.unwrap_or(took >= self.after) {
            return;
        }
        let route = &self.shared.route;
        let rollout = route.rollout(&self.tool).filter(|_| self.is_outside).map(ToString::to_string);
        WouldDefer {
            tool: &self.tool,
            route: &route.path,
            after: self.after,
            took,
            is_success: outcome == Some(RequestOutcome::Result),
            rollout: rollout.as_deref(),
        }
        .emit();
    }
}
