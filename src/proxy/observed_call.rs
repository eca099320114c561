//! A call that is only observed: in mode `observe`, or of a caller outside a rollout. At its end, whatever
//! the outcome, the call is logged and counted if it would have become a task.

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

/// A call that is only observed and never becomes a task. When dropped, it is logged and counted if it would
/// have become one (`event=would_defer`).
pub(super) struct ObservedCall {
    shared: Arc<RouteContext>,
    tool: Box<str>,
    /// Whether the caller is outside the rollout of the tool.
    is_outside_rollout: bool,
    /// The threshold.
    threshold: Duration,
    began: Instant,
    /// When and with what outcome the call was answered. None if its client disconnected first.
    answered: Option<(Instant, RequestOutcome)>,
    /// Whether it would have become a task; if unset, its duration decides.
    would_defer: Option<bool>,
}

// === impl ObservedCall ===

impl ObservedCall {
    /// Begins observing a call of this tool with this policy.
    pub(super) fn begin(
        shared: &Arc<RouteContext>,
        tool: &str,
        policy: &ToolPolicy,
        began: Instant,
    ) -> Box<Self> {
        Box::new(Self {
            shared: Arc::clone(shared),
            tool: tool.into(),
            is_outside_rollout: policy.is_outside_rollout,
            threshold: policy.after,
            began,
            answered: None,
            would_defer: None,
        })
    }

    /// Begins observing the call in a relayed legacy request. `None` if the request is not a single
    /// `tools/call` of an observed tool: batches never become tasks.
    pub(super) fn begin_for_request(
        shared: &Arc<RouteContext>,
        request: &LegacyRequest,
    ) -> Option<Box<Self>> {
        let [ClientMessage::Request { method: Method::ToolsCall, target, .. }] = &request.post.messages[..]
        else {
            return None;
        };
        if request.post.is_batch || !shared.route.has_observed_tools() {
            return None;
        }
        let tool = target.as_deref().unwrap_or_default();
        let policy = shared.route.tool_policy_for(tool, &request.rollout_membership);
        let is_observed = policy.mode == Mode::Observe;
        is_observed.then(|| Self::begin(shared, tool, &policy, shared.clock.now()))
    }

    /// Returns the threshold and the start of the call.
    pub(super) fn threshold(&self) -> (Duration, Instant) {
        (self.threshold, self.began)
    }

    /// Records the outcome and the time of the response. Later outcomes are ignored.
    pub(super) fn record_outcome(&mut self, outcome: RequestOutcome) {
        self.answered.get_or_insert_with(|| (self.shared.clock.now(), outcome));
    }

    /// Sets whether the call would have become a task, regardless of its duration.
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
        if !self.would_defer.unwrap_or(took >= self.threshold) {
            return;
        }
        let route = &self.shared.route;
        let rollout =
            route.rollout_of_tool(&self.tool).filter(|_| self.is_outside_rollout).map(ToString::to_string);
        WouldDefer {
            tool: &self.tool,
            route: &route.path,
            after: self.threshold,
            took,
            is_success: outcome == Some(RequestOutcome::Result),
            rollout: rollout.as_deref(),
        }
        .emit();
    }
}
