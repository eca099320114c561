//! Processes of a server, for its operator.
//!
//! A process is registered when it starts and removed when none of its descendants is left. The last ended
//! process stays in the table, with its last lines on standard error. The lines may belong to any caller, so
//! only the operator sees them, and no error contains them.

use crate::{
    dialect::Principal,
    protocol::Timestamp,
    runtime::Mutex,
    upstream::{
        CallerIdentity,
        process_table::{EndedProcess, ProcessTable, RunningProcess},
    },
};
use serde_json::value::RawValue;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

/// Registry of the processes of one server.
#[derive(Debug, Default)]
pub struct ProcessRegistry(Mutex<RegistryState>);

#[derive(Debug, Default)]
struct RegistryState {
    starts: u64,
    running: Vec<Arc<RegisteredProcess>>,
    last_ended: Option<EndedProcess>,
}

/// Registration of one process in the registry.
#[derive(Debug)]
pub struct RegistryEntry {
    registry: Arc<ProcessRegistry>,
    process: Arc<RegisteredProcess>,
}

#[derive(Debug)]
struct RegisteredProcess {
    pid: OnceLock<i32>,
    /// Time of the start.
    since: Timestamp,
    /// Identity for which the process was started.
    identity: CallerIdentity,
    /// Number of pending calls.
    pending_calls: AtomicUsize,
}

/// Counts a pending call of a process, until dropped.
#[derive(Debug)]
pub struct PendingCallGuard(Arc<RegisteredProcess>);

// === impl ProcessRegistry ===

impl ProcessRegistry {
    /// Registers a process that is started for this identity.
    pub fn register(self: &Arc<Self>, identity: CallerIdentity, now: Timestamp) -> RegistryEntry {
        let process = RegisteredProcess {
            pid: OnceLock::new(),
            since: now,
            identity,
            pending_calls: AtomicUsize::new(0),
        };
        let process = Arc::new(process);
        let mut state = self.0.lock();
        state.starts += 1;
        state.running.push(process.clone());
        RegistryEntry { registry: self.clone(), process }
    }

    /// Number of running processes, and whether one of them has the principal and capabilities of this
    /// caller.
    pub fn running(&self, caller: &CallerIdentity) -> (usize, bool) {
        let state = self.0.lock();
        let has_same_identity = |process: &Arc<RegisteredProcess>| {
            let CallerIdentity { principal, capabilities, .. } = &process.identity;
            *principal == caller.principal && capabilities.legacy() == caller.capabilities.legacy()
        };
        (state.running.len(), state.running.iter().any(has_same_identity))
    }

    /// Returns the processes for operators.
    pub fn snapshot(&self) -> ProcessTable {
        let state = self.0.lock();
        ProcessTable {
            starts: state.starts,
            running: state.running.iter().map(|process| process.snapshot()).collect(),
            last_ended: state.last_ended.clone(),
        }
    }
}

// === impl RegistryEntry ===

impl RegistryEntry {
    /// Sets the process id that the supervisor reported.
    pub fn set_pid(&self, pid: i32) {
        let _ = self.process.pid.set(pid);
    }

    /// Counts a pending call until the guard is dropped.
    pub fn begin_call(&self) -> PendingCallGuard {
        self.process.pending_calls.fetch_add(1, Ordering::Relaxed);
        PendingCallGuard(self.process.clone())
    }

    /// Number of pending calls.
    pub fn pending_calls(&self) -> usize {
        self.process.pending_calls.load(Ordering::Relaxed)
    }

    /// Moves the process to `last_ended`: none of its descendants is left. `last_lines` are its last lines on
    /// standard error, `status` is its exit status as text.
    pub fn record_end(&self, now: Timestamp, status: &str, is_requested: bool, last_lines: Vec<String>) {
        let mut state = self.registry.0.lock();
        state.running.retain(|other| !Arc::ptr_eq(other, &self.process));
        if !is_requested || state.last_ended.as_ref().is_none_or(|last| last.is_wanted) {
            state.last_ended = Some(EndedProcess {
                pid: self.process.pid.get().copied(),
                since: self.process.since,
                at: now,
                how: status.to_owned(),
                is_wanted: is_requested,
                said: last_lines,
            });
        }
    }
}

// === impl RegisteredProcess ===

impl RegisteredProcess {
    fn snapshot(&self) -> RunningProcess {
        let CallerIdentity { principal, capabilities, .. } = &self.identity;
        let declared = String::from_utf8_lossy(capabilities.legacy()).into_owned();
        RunningProcess {
            pid: self.pid.get().copied(),
            since: self.since,
            caller: Some(principal).filter(|caller| !caller.is_anonymous()).map(Principal::to_string),
            capabilities: RawValue::from_string(declared).expect("they were read as JSON"),
            calls: self.pending_calls.load(Ordering::Relaxed),
        }
    }
}

impl Drop for PendingCallGuard {
    fn drop(&mut self) {
        self.0.pending_calls.fetch_sub(1, Ordering::Relaxed);
    }
}
