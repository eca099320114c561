//! Limits on the calls of a route and of the tools of its rules: concurrent calls at the server
//! (`concurrency`), and calls of one caller (principal) in a minute (`calls_per_minute`).
//!
//! A call is admitted once, when it is certain to be sent: it enters the gates of its rule and of its route,
//! and is counted. Then it waits ([`PendingAdmission`]) and holds its permits ([`AdmissionPermits`]) for as
//! long as it is at the server. The wait is part of the call: the threshold passes meanwhile, a task
//! continues to wait, and a client that disconnects or cancels leaves the queue before anything is sent.
//!
//! Gates and allowances outlive a reload ([`LimiterRegistry`]): queued calls keep their positions, and the
//! new limits apply to all later calls. A route without such limits has no limiters.

mod gate;
mod limited_replies;
mod rate;

pub(super) use limited_replies::{DequeueSignal, LimitedCall};

use crate::{
    dialect::Principal,
    policy::{CallLimits, CallQueue, Route},
    protocol::{ErrorObject, code},
    runtime::Mutex,
    telemetry::Limit,
    upstream::CallError,
};
use gate::{AdmissionClass, ConcurrencyGate, ConcurrencyPermit, GateEntry, QueuePosition};
use http::HeaderValue;
use rate::RateLimit;
use serde_json::json;
use smallvec::SmallVec;
use std::{
    collections::BTreeMap,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// The scope of a limit: a route, or the tools of a rule, which is named by its pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LimitScope {
    /// Sorts before the route: a call always passes the gate of its rule first.
    Rule(Arc<str>),
    Route,
}

/// The concurrency gate and the rate limit of one scope; each is `None` if the scope has no such limit.
#[derive(Clone)]
struct ScopeLimiter {
    scope: LimitScope,
    gate: Option<Arc<ConcurrencyGate>>,
    rate: Option<Arc<RateLimit>>,
}

/// The limiters of a route by scope, kept across configuration reloads so that queued calls keep their
/// positions and callers their used allowances.
#[derive(Default)]
pub(super) struct LimiterRegistry(Mutex<BTreeMap<LimitScope, ScopeLimiter>>);

/// The limiters of a route and its rules, by the current configuration.
pub(super) struct CallLimiters {
    route: Option<ScopeLimiter>,
    /// The limiters of the tool rules, indexed by the position of the rule in the configuration; `None` for a
    /// rule without limits.
    rules: Box<[Option<ScopeLimiter>]>,
    queue: CallQueue,
}

/// The reason why a call is not admitted.
#[derive(Clone, Debug)]
pub(super) enum CallLimitError {
    /// The caller already has `queue` calls in the queue of the scope, the maximum; `running` is the
    /// concurrency limit.
    QueueFull { scope: String, running: usize, queue: usize },
    /// A batch holds `calls` calls of the scope, of which at most `limit` may run at a time.
    BatchTooLarge { scope: String, calls: usize, limit: usize },
    /// The caller has made `per_minute` calls of the scope within a minute; the next call is allowed after
    /// `wait`.
    RateLimited { scope: String, per_minute: u32, wait: Duration },
}

/// An admitted call that may still wait for permits.
pub(super) struct PendingAdmission {
    principal: Principal,
    queue_timeout: Duration,
    permits: AdmissionPermits,
    /// The position in the queue of the gate that the call waits at, with the name of the gate's scope;
    /// `None` if the call does not wait.
    queued: Option<(QueuePosition, String)>,
    /// Gates that the call has not entered yet in their order, each with the number of calls in the message
    /// and the name of its scope.
    remaining_gates: SmallVec<[(Arc<ConcurrencyGate>, usize, String); 2]>,
}

/// The concurrency permits of a call, one for each of its gates; dropped when the server has finished with
/// the call.
#[derive(Default)]
pub(super) struct AdmissionPermits(SmallVec<[ConcurrencyPermit; 2]>);

/// The concurrency gates that apply to a call, kept so that the call can be readmitted when it continues
/// after input responses.
#[derive(Clone)]
pub(super) struct GatePath {
    principal: Principal,
    queue_timeout: Duration,
    gates: SmallVec<[(Arc<ConcurrencyGate>, String); 2]>,
}

// === impl LimiterRegistry ===

impl LimiterRegistry {
    /// Returns the limiters of this route; `None` if the route has no limits, so that its calls cost nothing.
    /// Existing gates and allowances are kept with the new limits. A gate that is no longer configured admits
    /// all its calls.
    pub(super) fn limiters(&self, route: &Route) -> Option<Arc<CallLimiters>> {
        let mut registered = self.0.lock();
        let previous = std::mem::take(&mut *registered);
        let mut limiter = |scope: LimitScope, limits: CallLimits| {
            if limits.is_empty() {
                return None;
            }
            let limiter = ScopeLimiter::reconfigured(previous.get(&scope), scope.clone(), limits);
            registered.insert(scope, limiter.clone());
            Some(limiter)
        };
        let rules = route.tools.iter();
        let rules =
            rules.map(|rule| limiter(LimitScope::Rule(rule.matches.as_str().into()), rule.limits)).collect();
        let route_limiter = limiter(LimitScope::Route, route.limits);
        for (scope, limiter) in &previous {
            if registered.get(scope).is_none_or(|current| current.gate.is_none()) {
                limiter.gate.iter().for_each(|gate| gate.set_limit(usize::MAX));
            }
        }
        let limiters = CallLimiters { route: route_limiter, rules, queue: route.queue };
        (!registered.is_empty()).then(|| Arc::new(limiters))
    }
}

// === impl ScopeLimiter ===

impl ScopeLimiter {
    fn reconfigured(previous: Option<&Self>, scope: LimitScope, limits: CallLimits) -> Self {
        let gate = limits.concurrency.map(|limit| {
            let gate = previous
                .and_then(|earlier| earlier.gate.clone())
                .unwrap_or_else(|| ConcurrencyGate::new(limit.get()));
            gate.set_limit(limit.get());
            gate
        });
        let rate = limits.calls_per_minute.map(|per_minute| {
            let unchanged = previous
                .and_then(|earlier| earlier.rate.clone())
                .filter(|rate| rate.per_minute == per_minute);
            unchanged.unwrap_or_else(|| Arc::new(RateLimit::new(per_minute)))
        });
        Self { scope, gate, rate }
    }

    fn scope_name(&self, route: &Route) -> String {
        match &self.scope {
            LimitScope::Rule(pattern) => format!("the tools `{pattern}` of {}", route.path),
            LimitScope::Route => format!("{}", route.path),
        }
    }
}

// === impl CallLimiters ===

impl CallLimiters {
    /// Returns the limiters that apply to calls of this tool: those of its rule, then those of the route.
    fn limiters_for(&self, route: &Route, tool: &str) -> impl Iterator<Item = &ScopeLimiter> {
        let rule = route.tools.iter().position(|rule| rule.matches.matches(tool));
        let rule = rule.and_then(|index| self.rules.get(index)?.as_ref());
        rule.into_iter().chain(&self.route)
    }

    /// Admits the calls of one message, a single call or a batch: all of them, or none.
    ///
    /// # Errors
    /// [`CallLimitError`] if a limit is reached; then none of the calls is counted.
    pub(super) fn admit<'a>(
        &self,
        route: &Route,
        tools: impl Iterator<Item = &'a str>,
        principal: Principal,
        now: Instant,
    ) -> Result<PendingAdmission, CallLimitError> {
        let mut admission = PendingAdmission {
            principal,
            queue_timeout: self.queue.max_wait,
            permits: AdmissionPermits::default(),
            queued: None,
            remaining_gates: SmallVec::new(),
        };
        let mut limiters: SmallVec<[(&ScopeLimiter, usize); 2]> = SmallVec::new();
        for tool in tools {
            for limiter in self.limiters_for(route, tool) {
                match limiters.iter_mut().find(|(counted, _)| counted.scope == limiter.scope) {
                    Some((_, calls)) => *calls += 1,
                    None => limiters.push((limiter, 1)),
                }
            }
        }
        // The limiters are sorted so that all calls take locks in one order: otherwise two batches could
        // deadlock.
        limiters.sort_by(|(one, _), (other, _)| one.scope.cmp(&other.scope));
        for (limiter, calls) in &limiters {
            if let Some(gate) = &limiter.gate {
                admission.enter_gate(gate, *calls, self.queue.length, || limiter.scope_name(route))?;
            }
        }
        count_calls(&limiters, route, principal, now)?;
        Ok(admission)
    }
}

/// Counts the calls against the per-minute allowances of their caller: all of the calls, or none.
fn count_calls(
    limiters: &[(&ScopeLimiter, usize)],
    route: &Route,
    principal: Principal,
    now: Instant,
) -> Result<(), CallLimitError> {
    let rates = limiters.iter().filter_map(|(limiter, calls)| {
        let rate = limiter.rate.as_deref()?;
        Some((*limiter, rate, u32::try_from(*calls).unwrap_or(u32::MAX), rate.allowance(principal)))
    });
    let rates: SmallVec<[_; 2]> = rates.collect();
    // The allowances are locked in the sorted order of their limiters, so that two batches cannot deadlock.
    let mut locked: SmallVec<[_; 2]> = rates.iter().map(|(.., allowance)| allowance.lock()).collect();
    let mut updated: SmallVec<[_; 2]> = SmallVec::new();
    for ((limiter, rate, calls, _), allowance) in rates.iter().zip(&locked) {
        let checked = rate.check(**allowance, *calls, now);
        updated.push(checked.map_err(|wait| CallLimitError::RateLimited {
            scope: limiter.scope_name(route),
            per_minute: rate.per_minute.get(),
            wait,
        })?);
    }
    locked
        .iter_mut()
        .zip(updated)
        .for_each(|(allowance, updated_allowance)| **allowance = Some(updated_allowance));
    Ok(())
}

// === impl PendingAdmission ===

impl PendingAdmission {
    fn enter_gate(
        &mut self,
        gate: &Arc<ConcurrencyGate>,
        calls: usize,
        queue: usize,
        scope_name: impl Fn() -> String,
    ) -> Result<(), CallLimitError> {
        let limit = gate.limit();
        if calls > 1 && calls > limit {
            return Err(CallLimitError::BatchTooLarge { scope: scope_name(), calls, limit });
        }
        if self.queued.is_some() {
            self.remaining_gates.push((Arc::clone(gate), calls, scope_name()));
            return Ok(());
        }
        match gate.enter(self.principal, calls, AdmissionClass::New(queue)) {
            Ok(GateEntry::Admitted(permit)) => self.permits.0.push(permit),
            Ok(GateEntry::Queued(position)) => {
                Limit::Concurrency.record_hit();
                self.queued = Some((position, scope_name()));
            }
            Err(gate::QueueFull) => {
                return Err(CallLimitError::QueueFull { scope: scope_name(), running: limit, queue });
            }
        }
        Ok(())
    }

    /// Whether the call holds all its permits.
    pub(super) fn is_ready(&self) -> bool {
        self.queued.is_none()
    }

    /// Returns the permits of a call that need not wait.
    ///
    /// # Errors
    /// The admission itself, if the call has to wait.
    pub(super) fn try_permits(self) -> Result<AdmissionPermits, Box<Self>> {
        if self.is_ready() { Ok(self.permits) } else { Err(Box::new(self)) }
    }

    /// Waits until the call holds the permits of all its gates. A call for which `is_task` returns false
    /// waits at most for the queue timeout; a task waits without limit.
    ///
    /// # Errors
    /// [`CallError::ConcurrencyTimeout`] if the queue timeout passes first.
    pub(super) async fn wait(mut self, is_task: impl Fn() -> bool) -> Result<AdmissionPermits, CallError> {
        let mut queue_timer = pin!(sleep(self.queue_timeout));
        let mut has_timed_out = false;
        loop {
            let (mut position, scope) = match self.queued.take() {
                Some(queued) => queued,
                None if self.remaining_gates.is_empty() => return Ok(self.permits),
                None => {
                    let (gate, calls, scope) = self.remaining_gates.remove(0);
                    match gate.enter(self.principal, calls, AdmissionClass::Admitted) {
                        Ok(GateEntry::Admitted(permit)) => {
                            self.permits.0.push(permit);
                            continue;
                        }
                        Ok(GateEntry::Queued(next_position)) => (next_position, scope),
                        Err(gate::QueueFull) => {
                            unreachable!("an admitted call always has a place in the queue")
                        }
                    }
                }
            };
            let permit = loop {
                tokio::select! {
                    // A permit that arrives at the moment of the queue timeout is used.
                    biased;
                    permit = &mut position => break permit,
                    () = &mut queue_timer, if !has_timed_out => {
                        if !is_task() {
                            return Err(CallError::ConcurrencyTimeout { scope, after: self.queue_timeout });
                        }
                        has_timed_out = true;
                    }
                }
            };
            self.permits.0.push(permit);
        }
    }
}

// === impl GatePath ===

impl GatePath {
    /// Returns the gates that apply to calls of this tool; `None` if there are none.
    pub(super) fn for_tool(
        limiters: &CallLimiters,
        route: &Route,
        tool: &str,
        principal: Principal,
    ) -> Option<Self> {
        let tool_limiters = limiters.limiters_for(route, tool);
        let gates: SmallVec<_> = tool_limiters
            .filter_map(|limiter| Some((limiter.gate.clone()?, limiter.scope_name(route))))
            .collect();
        (!gates.is_empty()).then_some(Self { principal, queue_timeout: limiters.queue.max_wait, gates })
    }

    /// Enters the gates again for a call that continues after input responses: the call precedes new calls
    /// and is never refused.
    pub(super) fn readmit(&self) -> PendingAdmission {
        let mut admission = PendingAdmission {
            principal: self.principal,
            queue_timeout: self.queue_timeout,
            permits: AdmissionPermits::default(),
            queued: None,
            remaining_gates: SmallVec::new(),
        };
        for (gate, scope) in &self.gates {
            if admission.queued.is_some() {
                admission.remaining_gates.push((Arc::clone(gate), 1, scope.clone()));
                continue;
            }
            match gate.enter(self.principal, 1, AdmissionClass::Continuing) {
                Ok(GateEntry::Admitted(permit)) => admission.permits.0.push(permit),
                Ok(GateEntry::Queued(position)) => admission.queued = Some((position, scope.clone())),
                Err(gate::QueueFull) => unreachable!("a continuing call always has a place in the queue"),
            }
        }
        admission
    }
}

// === impl CallLimitError ===

impl CallLimitError {
    /// Returns the JSON-RPC error for the client, and counts one hit of the limit in the metrics.
    pub(super) fn record_and_build_error(&self) -> ErrorObject {
        match self {
            Self::QueueFull { scope, running, queue } => {
                Limit::Queue.record_hit();
                let message = format!(
                    "no free call of {scope}: {running} running (concurrency), and the queue of this caller is full at {queue} \
                     (limits.queue); nothing was sent"
                );
                ErrorObject::new(code::BUSY, message)
            }
            Self::BatchTooLarge { scope, calls, limit } => {
                Limit::Concurrency.record_hit();
                let message = format!(
                    "the batch holds {calls} calls of {scope}, of which {limit} may run at a time (concurrency); send \
                     fewer in one batch; nothing was sent"
                );
                ErrorObject::new(code::BUSY, message)
            }
            Self::RateLimited { scope, per_minute, wait } => {
                Limit::CallsPerMinute.record_hit();
                let retry_seconds = ceil_seconds(*wait);
                let message = format!(
                    "this caller has made {per_minute} calls of {scope} within a minute, the limit (calls_per_minute); try again in \
                     {retry_seconds} s; nothing was sent"
                );
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                let data = json!({ "limit": Limit::CallsPerMinute.key(), "retryAfterMs": wait_ms });
                ErrorObject::with_data(code::BUSY, message, &data)
            }
        }
    }

    /// Returns the value of the `Retry-After` header, in seconds; `None` if the time is not known.
    pub(super) fn retry_after(&self) -> Option<HeaderValue> {
        match self {
            Self::RateLimited { wait, .. } => Some(ceil_seconds(*wait).into()),
            Self::QueueFull { .. } | Self::BatchTooLarge { .. } => None,
        }
    }
}

/// Returns the duration in whole seconds, rounded up.
fn ceil_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
