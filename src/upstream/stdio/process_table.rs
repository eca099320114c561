//! Processes of a server, for its operator.
//!
//! A process is registered when it starts and removed when nothing of it is left. The last one that ended
//! stays, with its last lines on standard error: these may belong to any caller, so only the operator sees
//! them, and no error has them.

use crate::{
    dialect::Principal,
    protocol::{ClockOffset, Timestamp},
    runtime::Mutex,
    upstream::CallerIdentity,
};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

/// Registry of one server's processes.
#[derive(Debug, Default)]
pub struct ProcessRegistry(Mutex<RegistryState>);

#[derive(Debug, Default)]
struct RegistryState {
    starts: u64,
    running: Vec<Arc<RegisteredProcess>>,
    last_ended: Option<EndedProcess>,
}

/// Entry of one process in the registry.
#[derive(Debug)]
pub struct RegistryEntry {
    table: Arc<ProcessRegistry>,
    process: Arc<RegisteredProcess>,
}

#[derive(Debug)]
struct RegisteredProcess {
    pid: OnceLock<i32>,
    since: Timestamp,
    serves: CallerIdentity,
    calls: AtomicUsize,
}

/// Counts a pending call of a process, until dropped.
#[derive(Debug)]
pub struct PendingCallGuard(Arc<RegisteredProcess>);

/// Processes of a server at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessTable {
    /// Number of starts since the proxy started.
    pub starts: u64,
    /// In the order of their starts.
    pub running: Vec<RunningProcess>,
    /// The last that ended by itself, or else the last that was ended.
    pub last_ended: Option<EndedProcess>,
}

/// A running process.
#[derive(Clone, Debug, Serialize)]
pub struct RunningProcess {
    /// `None` until the supervisor has reported it.
    pub pid: Option<i32>,
    #[serde(serialize_with = "shown")]
    pub since: Timestamp,
    /// Its only caller, as in the log; `None` for a process shared by all callers that declare the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// Capabilities that its callers declare: raw JSON.
    pub capabilities: Box<RawValue>,
    /// Number of pending calls.
    pub calls: usize,
}

/// An ended process.
#[derive(Clone, Debug, Serialize)]
pub struct EndedProcess {
    pub pid: Option<i32>,
    #[serde(serialize_with = "shown")]
    pub since: Timestamp,
    #[serde(serialize_with = "shown")]
    pub at: Timestamp,
    /// Status, as text.
    pub how: String,
    /// Whether the proxy ended it.
    pub is_wanted: bool,
    /// Its last lines on standard error, the oldest first.
    pub said: Vec<String>,
}

fn shown<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&(*at + ClockOffset::ZERO))
}

// === impl ProcessRegistry ===

impl ProcessRegistry {
    /// Registers a process that is started for this identity.
    pub fn register(self: &Arc<Self>, serves: CallerIdentity, now: Timestamp) -> RegistryEntry {
        let process =
            RegisteredProcess { pid: OnceLock::new(), since: now, serves, calls: AtomicUsize::new(0) };
        let process = Arc::new(process);
        let mut known = self.0.lock();
        known.starts += 1;
        known.running.push(process.clone());
        RegistryEntry { table: self.clone(), process }
    }

    /// Number of running processes, and whether one of them serves callers like this one.
    pub fn running(&self, like: &CallerIdentity) -> (usize, bool) {
        let known = self.0.lock();
        let is_like = |process: &Arc<RegisteredProcess>| {
            let CallerIdentity { principal, capabilities, .. } = &process.serves;
            *principal == like.principal && capabilities.legacy() == like.capabilities.legacy()
        };
        (known.running.len(), known.running.iter().any(is_like))
    }

    pub fn shown(&self) -> ProcessTable {
        let known = self.0.lock();
        ProcessTable {
            starts: known.starts,
            running: known.running.iter().map(|process| process.shown()).collect(),
            last_ended: known.last_ended.clone(),
        }
    }
}

// === impl RegistryEntry ===

impl RegistryEntry {
    pub fn set_pid(&self, pid: i32) {
        let _ = self.process.pid.set(pid);
    }

    /// Counts a pending call.
    pub fn begin_call(&self) -> PendingCallGuard {
        self.process.calls.fetch_add(1, Ordering::Relaxed);
        PendingCallGuard(self.process.clone())
    }

    /// Number of pending calls.
    pub fn pending_calls(&self) -> usize {
        self.process.calls.load(Ordering::Relaxed)
    }

    /// Removes the process: nothing of it is left.
    pub fn record_end(&self, now: Timestamp, how: &str, is_wanted: bool, said: Vec<String>) {
        let mut known = self.table.0.lock();
        known.running.retain(|other| !Arc::ptr_eq(other, &self.process));
        if !is_wanted || known.last_ended.as_ref().is_none_or(|last| last.is_wanted) {
            known.last_ended = Some(EndedProcess {
                pid: self.process.pid.get().copied(),
                since: self.process.since,
                at: now,
                how: how.to_owned(),
                is_wanted,
                said,
            });
        }
    }
}

// === impl RegisteredProcess ===

impl RegisteredProcess {
    fn shown(&self) -> RunningProcess {
        let CallerIdentity { principal, capabilities, .. } = &self.serves;
        let declared = String::from_utf8_lossy(capabilities.legacy()).into_owned();
        RunningProcess {
            pid: self.pid.get().copied(),
            since: self.since,
            caller: Some(principal).filter(|caller| !caller.is_anonymous()).map(Principal::to_string),
            capabilities: RawValue::from_string(declared).expect("they were read as JSON"),
            calls: self.calls.load(Ordering::Relaxed),
        }
    }
}

impl Drop for PendingCallGuard {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}
