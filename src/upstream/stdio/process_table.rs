//! The processes of a server, as its operator is shown them.
//!
//! Each is entered when it is started and taken out when nothing is left of it. The last that ended stays, with what
//! it said last: that may be anybody's, so it is for whoever runs the server, and in no caller's error.

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

/// All of one server.
#[derive(Debug, Default)]
pub struct ProcessRegistry(Mutex<RegistryState>);

#[derive(Debug, Default)]
struct RegistryState {
    starts: u64,
    running: Vec<Arc<RegisteredProcess>>,
    last_ended: Option<EndedProcess>,
}

/// The place of one process in the table.
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

/// A call that a process is to answer; counted until it is dropped.
#[derive(Debug)]
pub struct PendingCallGuard(Arc<RegisteredProcess>);

/// The processes of a server at this moment.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessTable {
    /// How many have been started, since the proxy was.
    pub starts: u64,
    /// In the order of their starts.
    pub running: Vec<RunningProcess>,
    /// The last that ended by itself; where none has, the last that was ended.
    pub last_ended: Option<EndedProcess>,
}

/// A process that runs.
#[derive(Clone, Debug, Serialize)]
pub struct RunningProcess {
    /// `Missing` until its supervisor has told it.
    pub pid: Option<i32>,
    #[serde(serialize_with = "shown")]
    pub since: Timestamp,
    /// Whose alone it is, as the log has it; of everybody who declares the same, where it is nobody's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// What those declare that it serves: raw JSON.
    pub capabilities: Box<RawValue>,
    /// Calls whose answers are waited for.
    pub calls: usize,
}

/// A process that has ended.
#[derive(Clone, Debug, Serialize)]
pub struct EndedProcess {
    pub pid: Option<i32>,
    #[serde(serialize_with = "shown")]
    pub since: Timestamp,
    #[serde(serialize_with = "shown")]
    pub at: Timestamp,
    /// In words.
    pub how: String,
    /// Whether it was ended from here.
    pub is_wanted: bool,
    /// Its last lines on standard error, the oldest first.
    pub said: Vec<String>,
}

fn shown<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&(*at + ClockOffset::ZERO))
}

// === impl Table ===

impl ProcessRegistry {
    /// A process is started for these.
    pub fn register(self: &Arc<Self>, serves: CallerIdentity, now: Timestamp) -> RegistryEntry {
        let process =
            RegisteredProcess { pid: OnceLock::new(), since: now, serves, calls: AtomicUsize::new(0) };
        let process = Arc::new(process);
        let mut known = self.0.lock();
        known.starts += 1;
        known.running.push(process.clone());
        RegistryEntry { table: self.clone(), process }
    }

    /// How many run, and whether one of them serves callers like these.
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

// === impl Entry ===

impl RegistryEntry {
    pub fn set_pid(&self, pid: i32) {
        let _ = self.process.pid.set(pid);
    }

    /// The process is to answer one more call.
    pub fn begin_call(&self) -> PendingCallGuard {
        self.process.calls.fetch_add(1, Ordering::Relaxed);
        PendingCallGuard(self.process.clone())
    }

    /// How many calls' answers are waited for.
    pub fn pending_calls(&self) -> usize {
        self.process.calls.load(Ordering::Relaxed)
    }

    /// Nothing is left of it.
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

// === impl Process ===

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
