//! Change notifications of one principal's sessions, and their subscribers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tokio::sync::broadcast::{Receiver, Sender};

use crate::{protocol::ListKind, runtime::Mutex, upstream::ChangeNotification};

/// Change notifications of one principal's sessions. Clones share it. Costs about a hundred bytes without
/// subscribers.
#[derive(Clone, Default)]
pub(super) struct ChangeNotifier(Arc<NotifierState>);

#[derive(Default)]
struct NotifierState {
    /// Sender for subscribers; `None` without any, because its buffer is allocated in full. While there are
    /// subscribers, a session is kept open. Locked for one notification.
    sender: Mutex<Option<Sender<ChangeNotification>>>,
    /// Number of sessions that report changes.
    reporting: AtomicUsize,
    /// Number of times that the tools changed, or may have.
    tools: Arc<AtomicU64>,
}

/// Counts a session that reports changes, until dropped.
pub(super) struct ReportingSession(ChangeNotifier);

/// Tracks whether the tools may have changed since they were read. Keeps no session open: tools unused for
/// long are read again, which costs less than a session. The default reports a change.
#[derive(Debug, Default)]
pub struct ToolChanges {
    /// As in [`NotifierState`]; changes also when the last session that could report a change ends.
    tools: Option<Arc<AtomicU64>>,
    seen: u64,
}

/// Limit of unread notifications of a subscriber; the oldest are dropped first.
const KEPT: usize = 256;

// === impl ChangeNotifier ===

impl ChangeNotifier {
    /// Sends a notification to the subscribers, if there are any.
    pub(super) fn send(&self, report: ChangeNotification) {
        if report == ChangeNotification::ListChanged(ListKind::Tools) {
            self.mark_tools_changed();
        }
        if let Some(listened) = &*self.0.sender.lock() {
            let _ = listened.send(report);
        }
    }

    /// Marks the tools as changed: no session would report a change, so cached tools may be out of date.
    pub(super) fn mark_tools_changed(&self) {
        self.0.tools.fetch_add(1, Ordering::Relaxed);
    }

    /// Notifies of all lists after a session was lost with its notifications.
    pub(super) fn notify_all_changed(&self) {
        ListKind::ALL.into_iter().for_each(|list| self.send(ChangeNotification::ListChanged(list)));
    }

    pub(super) fn subscribe(&self) -> Receiver<ChangeNotification> {
        self.0.sender.lock().get_or_insert_with(|| Sender::new(KEPT)).subscribe()
    }

    pub(super) fn changes(&self) -> ToolChanges {
        let tools = &self.0.tools;
        ToolChanges { seen: tools.load(Ordering::Relaxed), tools: Some(Arc::clone(tools)) }
    }

    pub(super) fn has_listeners(&self) -> bool {
        let mut listened = self.0.sender.lock();
        listened.take_if(|listened| listened.receiver_count() == 0);
        listened.is_some()
    }

    /// Number of sessions that report changes.
    pub(super) fn reporting_sessions(&self) -> usize {
        self.0.reporting.load(Ordering::Relaxed)
    }

    /// Whether a session or subscriber still uses it.
    pub(super) fn is_needed(&self) -> bool {
        self.has_listeners() || Arc::strong_count(&self.0) > 1
    }
}

// === impl NotifierState ===

impl Drop for NotifierState {
    /// Marks the tools as changed: nothing reports changes any more.
    fn drop(&mut self) {
        self.tools.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl ReportingSession ===

impl ReportingSession {
    pub(super) fn of(reports: &ChangeNotifier) -> Self {
        reports.0.reporting.fetch_add(1, Ordering::Relaxed);
        Self(reports.clone())
    }
}

impl Drop for ReportingSession {
    fn drop(&mut self) {
        self.0.0.reporting.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl ToolChanges ===

impl ToolChanges {
    /// For tools that never change.
    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self { tools: Some(Arc::default()), seen: 0 }
    }

    /// Whether the tools have changed, or may have.
    pub fn has_changed(&self) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.load(Ordering::Relaxed) != self.seen)
    }
}
