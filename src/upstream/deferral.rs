//! Deferral state of a call, and the data by which the next process resumes it (2025-11-25, *Resumability and
//! Redelivery*).

use crate::runtime::Mutex;
use serde::{Deserialize, Serialize};
use std::{
    future::pending,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::Notify;

/// Deferral state of a call ([`Deferral::mark_deferred`]), and requests of its task to the call. Clones share
/// the state.
#[derive(Clone, Debug, Default)]
pub struct Deferral(Arc<DeferralState>);

#[derive(Debug, Default)]
struct DeferralState {
    is_deferred: AtomicBool,
    is_released: AtomicBool,
    /// Resume position of the call, for a task that outlives the process.
    anchor: Option<AnchorUpdates>,
    /// Observer of the deferral. Unset while the deferral changes nothing for other calls.
    observer: OnceLock<Weak<dyn DeferralObserver>>,
}

/// Source of a call's session, where a deferred call occupies another budget than a call.
pub(super) trait DeferralObserver: Send + Sync {
    /// Called once the call is marked as deferred.
    fn call_deferred(self: Arc<Self>);
}

#[derive(Debug, Default)]
struct AnchorUpdates {
    /// Last position that [`Deferral::next_anchor`] has not returned yet.
    anchor: Mutex<Option<Box<CallAnchor>>>,
    changed: Notify,
}

/// Position of a call at its server: enough to resume its stream or to cancel it, not enough to send the call
/// again. Holds no credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallAnchor {
    /// Id of the server's session.
    pub session: String,
    /// Revision of the session.
    pub revision: String,
    /// Id of the call's request.
    pub call: u64,
    /// Last event id of the call's stream. Without one the call can only be cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event: Option<String>,
    /// `serverInfo` of the session, raw JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub server_info: String,
    /// Whether the client opened the session and continues to use it; messages are then passed in the
    /// client's revision.
    #[serde(default)]
    pub is_clients: bool,
}

// === impl Deferral ===

impl Deferral {
    /// State of a call; `outlives_process` says whether its task must outlive the process, so that resume
    /// positions are needed.
    pub fn new(outlives_process: bool) -> Self {
        let anchor = outlives_process.then(AnchorUpdates::default);
        Self(Arc::new(DeferralState { anchor, ..DeferralState::default() }))
    }

    /// Marks the call as deferred. From now on the call's session counts towards
    /// [`UpstreamLimits::task_sessions`](super::UpstreamLimits::task_sessions), so that the call delays no
    /// other call. Must not run while the call is polled.
    pub fn mark_deferred(&self) {
        self.0.is_deferred.store(true, Ordering::Relaxed);
        if let Some(observer) = self.0.observer.get().and_then(Weak::upgrade) {
            observer.call_deferred();
        }
    }

    /// Sets the observer, if there is none.
    pub(super) fn set_observer(&self, observer: Weak<dyn DeferralObserver>) {
        let _ = self.0.observer.set(observer);
    }

    /// Whether the call is deferred.
    pub fn is_deferred(&self) -> bool {
        self.0.is_deferred.load(Ordering::Relaxed)
    }

    /// Waits until the resume position of the call changes, and returns it. Pending without end if the task
    /// does not outlive the process.
    pub async fn next_anchor(&self) -> Box<CallAnchor> {
        let Some(AnchorUpdates { anchor, changed }) = &self.0.anchor else { return pending().await };
        loop {
            let notified = changed.notified();
            if let Some(anchor) = anchor.lock().take() {
                return anchor;
            }
            notified.await;
        }
    }

    /// Whether the task of the call outlives the process.
    pub fn is_durable(&self) -> bool {
        self.0.anchor.is_some()
    }

    /// Whether the resume position of the call must be recorded.
    pub fn needs_anchor(&self) -> bool {
        self.0.anchor.is_some() && self.is_deferred()
    }

    /// Sets the resume position of the call, and wakes [`Deferral::next_anchor`].
    pub fn set_anchor(&self, position: CallAnchor) {
        if let Some(AnchorUpdates { anchor, changed }) = &self.0.anchor {
            *anchor.lock() = Some(Box::new(position));
            changed.notify_one();
        }
    }

    /// Hands the call over to another process: from now on, dropping its events neither cancels the call nor
    /// ends its session.
    pub fn release(&self) {
        self.0.is_released.store(true, Ordering::Relaxed);
    }

    /// Whether the call was handed over to another process.
    pub fn is_released(&self) -> bool {
        self.0.is_released.load(Ordering::Relaxed)
    }
}
