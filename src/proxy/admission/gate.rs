//! A limit on concurrent calls with a fair queue.
//!
//! Waiting callers are served in rotation, each with its oldest call, so that a caller with many calls does
//! not delay the others by all of them. A caller has a bounded number of calls in the queue.

use crate::{dialect::Principal, runtime::Mutex, telemetry::Limit};
use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::sync::oneshot;

/// Limits the calls that run at a time, and queues the others.
pub(super) struct ConcurrencyGate {
    state: Mutex<GateState>,
}

struct GateState {
    limit: usize,
    running: usize,
    /// Callers with queued calls, in the order in which they are served next. Each caller occurs once; the
    /// key is its `CallerQueue::rotation_key`.
    rotation: BTreeMap<u64, Principal>,
    waiting: HashMap<Principal, CallerQueue>,
    /// Calls that continue after input responses and were admitted before.
    continuing: BTreeMap<u64, QueuedCall>,
    /// The next sequence number.
    number: u64,
}

/// The queued calls of one caller.
struct CallerQueue {
    /// The caller's key in `GateState::rotation`.
    rotation_key: u64,
    /// In the order of arrival. Never empty.
    waiters: BTreeMap<u64, QueuedCall>,
}

struct QueuedCall {
    /// The number of calls in the message: more than one for a batch.
    weight: usize,
    permit: oneshot::Sender<ConcurrencyPermit>,
}

/// The class of a call that requests a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionClass {
    /// A new call; queued only if its caller has fewer than this number of calls in the queue.
    New(usize),
    /// A call that has already waited at another gate.
    Admitted,
    /// A call that continues after input responses: precedes all others.
    Continuing,
}

/// A permit for the calls of one message. Dropping the permit frees its capacity, and admits queued calls.
pub(super) struct ConcurrencyPermit {
    gate: Arc<ConcurrencyGate>,
    weight: usize,
}

/// A position in the queue of a gate: a future that resolves to the permit. Dropping the position leaves the
/// queue.
pub(super) struct QueuePosition {
    gate: Arc<ConcurrencyGate>,
    /// `None` for a call that continues after input responses: such calls have a queue that is common to all
    /// callers.
    principal: Option<Principal>,
    number: u64,
    permit: oneshot::Receiver<ConcurrencyPermit>,
}

/// The outcome of entering a gate: the call is admitted at once, or queued.
pub(super) enum GateEntry {
    /// The call is admitted with this permit.
    Admitted(ConcurrencyPermit),
    /// The call waits in the queue at this position.
    Queued(QueuePosition),
}

/// Error: the caller already has the maximum number of calls in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

// === impl ConcurrencyGate ===

impl ConcurrencyGate {
    /// Creates a gate for `limit` concurrent calls.
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let state = GateState {
            limit,
            running: 0,
            rotation: BTreeMap::new(),
            waiting: HashMap::new(),
            continuing: BTreeMap::new(),
            number: 0,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Changes the limit. Admitted calls stay admitted.
    pub(super) fn set_limit(self: &Arc<Self>, limit: usize) {
        self.state.lock().limit = limit;
        self.admit_waiting();
    }

    /// Returns the maximum number of concurrent calls.
    pub(super) fn limit(&self) -> usize {
        self.state.lock().limit
    }

    /// Requests a permit for `weight` calls of one message: admits the message at once or queues it.
    ///
    /// # Errors
    /// [`QueueFull`] if `class` is [`AdmissionClass::New`] and the caller has too many queued calls.
    pub(super) fn enter(
        self: &Arc<Self>,
        principal: Principal,
        weight: usize,
        class: AdmissionClass,
    ) -> Result<GateEntry, QueueFull> {
        let mut state = self.state.lock();
        let has_no_queue = match class {
            AdmissionClass::Continuing => state.continuing.is_empty(),
            AdmissionClass::New(_) | AdmissionClass::Admitted => {
                state.continuing.is_empty() && state.rotation.is_empty()
            }
        };
        if has_no_queue && state.has_capacity(weight) {
            state.running += weight;
            drop(state);
            return Ok(GateEntry::Admitted(ConcurrencyPermit::new(self, weight)));
        }
        let queued = state.waiting.get(&principal).map_or(0, |caller_queue| caller_queue.waiters.len());
        if matches!(class, AdmissionClass::New(max_queued) if queued >= max_queued) {
            return Err(QueueFull);
        }
        let (sender, permit) = oneshot::channel();
        let number = state.number;
        state.number += 1;
        let waiter = QueuedCall { weight, permit: sender };
        let principal = match class {
            AdmissionClass::Continuing => {
                state.continuing.insert(number, waiter);
                None
            }
            AdmissionClass::New(_) | AdmissionClass::Admitted => {
                state.enqueue(principal, number, waiter);
                Some(principal)
            }
        };
        drop(state);
        Ok(GateEntry::Queued(QueuePosition { gate: Arc::clone(self), principal, number, permit }))
    }

    /// Admits queued calls while there are free permits.
    fn admit_waiting(self: &Arc<Self>) {
        loop {
            let next = self.state.lock().pop_next();
            let Some(QueuedCall { weight, permit }) = next else { return };
            // A caller that left the queue in this moment drops the permit, which admits the next call.
            drop(permit.send(ConcurrencyPermit::new(self, weight)));
        }
    }
}

/// Whether a message with `weight` calls can be admitted. A message with more calls than the limit is
/// admitted when no other call runs: the limit may have been lowered after the message was queued.
fn has_capacity(running: usize, limit: usize, weight: usize) -> bool {
    running == 0 || running.saturating_add(weight) <= limit
}

// === impl GateState ===

impl GateState {
    fn has_capacity(&self, weight: usize) -> bool {
        has_capacity(self.running, self.limit, weight)
    }

    /// Removes the next call to admit from the queue, and counts it as running; `None` if the queue is empty
    /// or the call has to wait.
    fn pop_next(&mut self) -> Option<QueuedCall> {
        if let Some(first) = self.continuing.first_entry() {
            let weight = first.get().weight;
            if !has_capacity(self.running, self.limit, weight) {
                return None;
            }
            self.running += weight;
            return Some(first.remove());
        }
        let (&rotation_key, &principal) = self.rotation.first_key_value()?;
        let weight = self.waiting.get(&principal)?.waiters.first_key_value()?.1.weight;
        if !self.has_capacity(weight) {
            return None;
        }
        self.running += weight;
        self.rotation.remove(&rotation_key);
        let caller_queue = self.waiting.get_mut(&principal)?;
        let (_, waiter) = caller_queue.waiters.pop_first()?;
        if caller_queue.waiters.is_empty() {
            self.waiting.remove(&principal);
        } else {
            caller_queue.rotation_key = self.number;
            self.rotation.insert(self.number, principal);
            self.number += 1;
        }
        Some(waiter)
    }

    fn enqueue(&mut self, principal: Principal, number: u64, waiter: QueuedCall) {
        let Self { rotation, waiting, .. } = self;
        let caller_queue = waiting.entry(principal).or_insert_with(|| {
            rotation.insert(number, principal);
            CallerQueue { rotation_key: number, waiters: BTreeMap::new() }
        });
        caller_queue.waiters.insert(number, waiter);
    }

    /// Removes a call from the queue; a no-op if it was admitted.
    fn remove(&mut self, principal: Option<Principal>, number: u64) {
        let Some(principal) = principal else {
            self.continuing.remove(&number);
            return;
        };
        let Some(caller_queue) = self.waiting.get_mut(&principal) else { return };
        caller_queue.waiters.remove(&number);
        if caller_queue.waiters.is_empty() {
            self.rotation.remove(&caller_queue.rotation_key);
            self.waiting.remove(&principal);
        }
    }
}

// === impl ConcurrencyPermit ===

impl ConcurrencyPermit {
    fn new(gate: &Arc<ConcurrencyGate>, weight: usize) -> Self {
        Limit::Concurrency.add_used(i64::try_from(weight).unwrap_or(i64::MAX));
        Self { gate: Arc::clone(gate), weight }
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        Limit::Concurrency.add_used(-i64::try_from(self.weight).unwrap_or(i64::MAX));
        self.gate.state.lock().running -= self.weight;
        self.gate.admit_waiting();
    }
}

// === impl QueuePosition ===

impl Future for QueuePosition {
    type Output = ConcurrencyPermit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ConcurrencyPermit> {
        let permit = ready!(Pin::new(&mut self.permit).poll(cx));
        Poll::Ready(permit.expect("the gate keeps the sender until it sends the permit"))
    }
}

impl Drop for QueuePosition {
    fn drop(&mut self) {
        self.gate.state.lock().remove(self.principal, self.number);
        // The next queued message may hold fewer calls than this one, and so be admitted at once.
        self.gate.admit_waiting();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn caller(n: u8) -> Principal {
        Principal::from_bytes([n; 16])
    }

    fn enqueue_call(gate: &Arc<ConcurrencyGate>, n: u8) -> QueuePosition {
        match gate.enter(caller(n), 1, AdmissionClass::New(100)) {
            Ok(GateEntry::Queued(position)) => position,
            Ok(GateEntry::Admitted(_)) => panic!("there is room"),
            Err(QueueFull) => panic!("the queue is full"),
        }
    }

    fn admit_call(gate: &Arc<ConcurrencyGate>, weight: usize) -> ConcurrencyPermit {
        match gate.enter(caller(0), weight, AdmissionClass::New(100)) {
            Ok(GateEntry::Admitted(permit)) => permit,
            Ok(GateEntry::Queued(_)) | Err(QueueFull) => panic!("there is no room"),
        }
    }

    fn is_empty(gate: &ConcurrencyGate) -> bool {
        let state = gate.state.lock();
        state.running == 0
            && state.rotation.is_empty()
            && state.waiting.is_empty()
            && state.continuing.is_empty()
    }

    #[test]
    fn callers_are_served_in_rotation() {
        let gate = ConcurrencyGate::new(1);
        let mut permit = Some(admit_call(&gate, 1));
        let mut positions: Vec<_> = [1, 1, 1, 2, 3, 2].map(|n| Some((n, enqueue_call(&gate, n)))).into();
        let mut order = Vec::new();
        while order.len() < 6 {
            permit.take();
            let next = positions.iter_mut().find_map(|slot| {
                let granted = (&mut slot.as_mut()?.1).now_or_never()?;
                Some((slot.take()?.0, granted))
            });
            let (n, granted) = next.expect("the next is let through");
            order.push(n);
            permit = Some(granted);
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 1]);
        drop(permit);
        assert!(is_empty(&gate));
    }

    #[test]
    fn leaving_the_queue_passes_on_a_permit_in_flight() {
        let gate = ConcurrencyGate::new(1);
        let permit = admit_call(&gate, 1);
        let (first, second, third) = (enqueue_call(&gate, 1), enqueue_call(&gate, 1), enqueue_call(&gate, 2));
        drop(first);
        drop(permit);
        // The second call's permit was sent and not received yet.
        drop(second);
        assert!(third.now_or_never().is_some());
        assert!(is_empty(&gate));
    }

    #[test]
    fn the_queue_is_bounded_for_each_caller() {
        let gate = ConcurrencyGate::new(1);
        let _permit = admit_call(&gate, 1);
        let enter = |n| gate.enter(caller(n), 1, AdmissionClass::New(1));
        let Ok(_place) = enter(1) else { panic!("there is one place") };
        assert!(matches!(enter(1), Err(QueueFull)));
        assert!(matches!(enter(2), Ok(GateEntry::Queued(_))));
        assert!(matches!(gate.enter(caller(1), 1, AdmissionClass::Continuing), Ok(GateEntry::Queued(_))));
    }

    #[test]
    fn a_continuing_call_precedes_all_others() {
        let gate = ConcurrencyGate::new(1);
        let permit = admit_call(&gate, 1);
        let new = enqueue_call(&gate, 1);
        let Ok(GateEntry::Queued(mut continuing)) = gate.enter(caller(2), 1, AdmissionClass::Continuing)
        else {
            panic!("it waits")
        };
        drop(permit);
        let permit = (&mut continuing).now_or_never().expect("it is first");
        let mut new = new;
        assert!((&mut new).now_or_never().is_none());
        drop(permit);
        assert!(new.now_or_never().is_some());
    }

    #[test]
    fn a_raised_limit_admits_queued_calls_and_a_lowered_one_ends_none() {
        let gate = ConcurrencyGate::new(1);
        let _permit = admit_call(&gate, 1);
        let (first, second, mut third) =
            (enqueue_call(&gate, 1), enqueue_call(&gate, 1), enqueue_call(&gate, 1));
        gate.set_limit(3);
        let permits = [first.now_or_never(), second.now_or_never()];
        assert!(permits.iter().all(Option::is_some) && (&mut third).now_or_never().is_none());
        gate.set_limit(1);
        drop(permits);
        assert!((&mut third).now_or_never().is_none(), "one runs still");
    }

    #[test]
    fn a_batch_waits_for_all_its_permits_and_an_oversized_one_runs_alone() {
        let gate = ConcurrencyGate::new(2);
        let permit = admit_call(&gate, 1);
        let Ok(GateEntry::Queued(mut batch)) = gate.enter(caller(1), 5, AdmissionClass::Admitted) else {
            panic!("it waits")
        };
        let mut behind = enqueue_call(&gate, 2);
        assert!((&mut behind).now_or_never().is_none(), "it does not pass the batch");
        drop(permit);
        let permit = (&mut batch).now_or_never().expect("it goes alone");
        assert!((&mut behind).now_or_never().is_none());
        drop(permit);
        assert!(behind.now_or_never().is_some());
    }
}
