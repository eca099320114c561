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
    patience: Duration,
    permits: AdmissionPermits,
    /// The position in the queue of the gate that the call waits at, with the name of the gate's scope;
    /// `None` if the call does not wait.
    waiting: Option<(QueuePosition, String)>,
    /// Gates that the call has not entered yet in their order, each with the number of calls in the message
    /// and the name of its scope.
    ahead: SmallVec<[(Arc<ConcurrencyGate>, usize, String); 2]>,
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
    patience: Duration,
    gates: SmallVec<[(Arc<ConcurrencyGate>, String); 2]>,
}

// === impl LimiterRegistry ===

impl LimiterRegistry {
    /// Returns the limiters of this route; `None` if the route has no limits, so that its calls cost nothing.
    /// Existing gates and allowances are kept with the new limits. A gate that is no longer configured admits
    /// all its calls.
    pub(super) fn limiters(&self, route: &Route) -> Option<Arc<CallLimiters>> {
        let mut known = self.0.lock();
        let before = std::mem::take(&mut *known);
        let mut limiter = |scope: LimitScope, limits: CallLimits| {
            if limits.is_empty() {
                return None;
            }
            let limiter = ScopeLimiter::reconfigured(before.get(&scope), scope.clone(), limits);
            known.insert(scope, limiter.clone());
            Some(limiter)
        };
        let rules = route.tools.iter();
        let rules =
            rules.map(|rule| limiter(LimitScope::Rule(rule.matches.as_str().into()), rule.limits)).collect();
        let route_limiter = limiter(LimitScope::Route, route.limits);
        for (scope, limiter) in &before {
            if known.get(scope).is_none_or(|now| now.gate.is_none()) {
                limiter.gate.iter().for_each(|gate| gate.set_limit(usize::MAX));
            }
        }
        let limiters = CallLimiters { route: route_limiter, rules, queue: route.queue };
        (!known.is_empty()).then(|| Arc::new(limiters))
    }
}

// === impl ScopeLimiter ===

impl ScopeLimiter {
    fn reconfigured(before: Option<&Self>, scope: LimitScope, limits: CallLimits) -> Self {
        let gate = limits.concurrency.map(|limit| {
            let gate = before
                .and_then(|before| before.gate.clone())
                .unwrap_or_else(|| ConcurrencyGate::new(limit.get()));
            gate.set_limit(limit.get());
            gate
        });
        let rate = limits.calls_per_minute.map(|per_minute| {
            let same =
                before.and_then(|before| before.rate.clone()).filter(|rate| rate.per_minute == per_minute);
            same.unwrap_or_else(|| Arc::new(RateLimit::new(per_minute)))
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
        let rule = rule.and_then(|at| self.rules.get(at)?.as_ref());
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
        let mut turn = PendingAdmission {
            principal,
            patience: self.queue.max_wait,
            permits: AdmissionPermits::default(),
            waiting: None,
            ahead: SmallVec::new(),
        };
        let mut limiters: SmallVec<[(&ScopeLimiter, usize); 2]> = SmallVec::new();
        for tool in tools {
            for limiter in self.limiters_for(route, tool) {
                match limiters.iter_mut().find(|(known, _)| known.scope == limiter.scope) {
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
                turn.enter_gate(gate, *calls, self.queue.length, || limiter.scope_name(route))?;
            }
        }
        count_calls(&limiters, route, principal, now)?;
        Ok(turn)
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
    let mut held: SmallVec<[_; 2]> = rates.iter().map(|(.., allowance)| allowance.lock()).collect();
    let mut after: SmallVec<[_; 2]> = SmallVec::new();
    for ((limiter, rate, calls, _), allowance) in rates.iter().zip(&held) {
        let counted = rate.check(**allowance, *calls, now);
        after.push(counted.map_err(|wait| CallLimitError::RateLimited {
            scope: limiter.scope_name(route),
            per_minute: rate.per_minute.get(),
            wait,
        })?);
    }
    held.iter_mut().zip(after).for_each(|(allowance, after)| **allowance = Some(after));
    Ok(())
}

// === impl PendingAdmission ===

impl PendingAdmission {
    fn enter_gate(
        &mut self,
        gate: &Arc<ConcurrencyGate>,
        calls: usize,
        queue: usize,
        scope: impl Fn() -> String,
    ) -> Result<(), CallLimitError> {
        let limit = gate.limit();
        if calls > 1 && calls > limit {
            return Err(CallLimitError::BatchTooLarge { scope: scope(), calls, limit });
        }
        if self.waiting.is_some() {
            self.ahead.push((Arc::clone(gate), calls, scope()));
            return Ok(());
        }
        match gate.enter(self.principal, calls, AdmissionClass::New(queue)) {
            Ok(GateEntry::Admitted(permit)) => self.permits.0.push(permit),
            Ok(GateEntry::Queued(place)) => {
                Limit::Concurrency.record_hit();
                self.waiting = Some((place, scope()));
            }
            Err(gate::QueueFull) => {
                return Err(CallLimitError::QueueFull { scope: scope(), running: limit, queue });
            }
        }
        Ok(())
    }

    /// Whether the call holds all its permits.
    pub(super) fn is_ready(&self) -> bool {
        self.waiting.is_none()
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
        let mut patience = pin!(sleep(self.patience));
        let mut is_patient = false;
        loop {
            let (mut place, scope) = match self.waiting.take() {
                Some(waiting) => waiting,
                None if self.ahead.is_empty() => return Ok(self.permits),
                None => {
                    let (gate, calls, scope) = self.ahead.remove(0);
                    match gate.enter(self.principal, calls, AdmissionClass::Admitted) {
                        Ok(GateEntry::Admitted(permit)) => {
                            self.permits.0.push(permit);
                            continue;
                        }
                        Ok(GateEntry::Queued(place)) => (place, scope),
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
                    permit = &mut place => break permit,
                    () = &mut patience, if !is_patient => {
                        if !is_task() {
                            return Err(CallError::ConcurrencyTimeout { scope, after: self.patience });
                        }
                        is_patient = true;
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
    pub(super) fn of(
        limiters: &CallLimiters,
        route: &Route,
        tool: &str,
        principal: Principal,
    ) -> Option<Self> {
        let of_call = limiters.limiters_for(route, tool);
        let gates: SmallVec<_> =
            of_call.filter_map(|limiter| Some((limiter.gate.clone()?, limiter.scope_name(route)))).collect();
        (!gates.is_empty()).then_some(Self { principal, patience: limiters.queue.max_wait, gates })
    }

    /// Enters the gates again for a call that continues after input responses: the call precedes new calls
    /// and is never refused.
    pub(super) fn readmit(&self) -> PendingAdmission {
        let mut turn = PendingAdmission {
            principal: self.principal,
            patience: self.patience,
            permits: AdmissionPermits::default(),
            waiting: None,
            ahead: SmallVec::new(),
        };
        for (gate, scope) in &self.gates {
            if turn.waiting.is_some() {
                turn.ahead.push((Arc::clone(gate), 1, scope.clone()));
                continue;
            }
            match gate.enter(self.principal, 1, AdmissionClass::Continuing) {
                Ok(GateEntry::Admitted(permit)) => turn.permits.0.push(permit),
                Ok(GateEntry::Queued(place)) => turn.waiting = Some((place, scope.clone())),
                Err(gate::QueueFull) => unreachable!("a continuing call always has a place in the queue"),
            }
        }
        turn
    }
}

// === impl CallLimitError ===

impl CallLimitError {
    /// Returns the JSON-RPC error for the client, and counts one hit of the limit in the metrics.
    pub(super) fn error(&self) -> ErrorObject {
        match self {
            Self::QueueFull { scope, running, queue } => {
                Limit::Queue.record_hit();
                let words = format!(
                    "no free call of {scope}: {running} running (concurrency), and the queue of this caller is full at {queue} \
                     (limits.queue); nothing was sent"
                );
                ErrorObject::new(code::BUSY, words)
            }
            Self::BatchTooLarge { scope, calls, limit } => {
                Limit::Concurrency.record_hit();
                let words = format!(
                    "the batch holds {calls} calls of {scope}, of which {limit} may run at a time (concurrency); send \
                     fewer in one batch; nothing was sent"
                );
                ErrorObject::new(code::BUSY, words)
            }
            Self::RateLimited { scope, per_minute, wait } => {
                Limit::CallsPerMinute.record_hit();
                let seconds = seconds(*wait);
                let words = format!(
                    "this caller has made {per_minute} calls of {scope} within a minute, the limit (calls_per_minute); try again in \
                     {seconds} s; nothing was sent"
                );
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                let data = json!({ "limit": Limit::CallsPerMinute.key(), "retryAfterMs": wait_ms });
                ErrorObject::with_data(code::BUSY, words, &data)
            }
        }
    }

    /// Returns the value of the `Retry-After` header, in seconds; `None` if the time is not known.
    pub(super) fn retry_after(&self) -> Option<HeaderValue> {
        match self {
            Self::RateLimited { wait, .. } => Some(seconds(*wait).into()),
            Self::QueueFull { .. } | Self::BatchTooLarge { .. } => None,
        }
    }
}

/// Returns the duration in whole seconds, rounded up.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
