//! What the sessions of one principal report, and who hears it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tokio::sync::broadcast::{Receiver, Sender};

use crate::{protocol::ListKind, runtime::Mutex, upstream::ChangeNotification};

/// The reports of one principal's sessions. Clones are the same. Costs about a hundred bytes where nobody
/// listens.
#[derive(Clone, Default)]
pub(super) struct ChangeNotifier(Arc<NotifierState>);

#[derive(Default)]
struct NotifierState {
    /// For clients that listen; none while nobody does, because it is as large as all it may keep. As long
    /// as there is one, a session is kept open to hear for it. Held for a report.
    sender: Mutex<Option<Sender<ChangeNotification>>>,
    /// How many sessions would report something.
    reporting: AtomicUsize,
    /// How often the tools have changed, or may have.
    tools: Arc<AtomicU64>,
}

/// A session that reports what it hears, counted.
pub(super) struct ReportingSession(ChangeNotifier);

/// Whether the tools may have changed since they were read. Keeps nothing open: what nobody has used for
/// long is read again, which costs less than a session. The default is of tools that have changed.
#[derive(Debug, Default)]
pub struct ToolChanges {
    /// As in [`NotifierState`]; changed also with the end of the last session that would have reported a change.
    tools: Option<Arc<AtomicU64>>,
    seen: u64,
}

/// Reports kept for one who does not fetch them; the oldest are dropped first.
const KEPT: usize = 256;

// === impl Reports ===

impl ChangeNotifier {
    /// Nobody may be hearing it.
    pub(super) fn send(&self, report: ChangeNotification) {
        if report == ChangeNotification::ListChanged(ListKind::Tools) {
            self.mark_tools_changed();
        }
        if let Some(listened) = &*self.0.sender.lock() {
            let _ = listened.send(report);
        }
    }

    /// There is no session that would hear of a change: what was read may be out of date.
    pub(super) fn mark_tools_changed(&self) {
        self.0.tools.fetch_add(1, Ordering::Relaxed);
    }

    /// The server has lost a session, and what it would have reported there.
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

    /// How many sessions would report something.
    pub(super) fn reporting_sessions(&self) -> usize {
        self.0.reporting.load(Ordering::Relaxed)
    }

    /// Whether somebody other than its owner may still report something or wait for it.
    pub(super) fn is_needed(&self) -> bool {
        self.has_listeners() || Arc::strong_count(&self.0) > 1
    }
}

// === impl Inner ===

impl Drop for NotifierState {
    /// Nobody is left to report a change.
    fn drop(&mut self) {
        self.tools.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Hearing ===

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

// === impl Changes ===

impl ToolChanges {
    /// Of tools that never change.
    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self { tools: Some(Arc::default()), seen: 0 }
    }

    /// Whether there was one, or could have been one that nobody heard.
    pub fn has_changed(&self) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.load(Ordering::Relaxed) != self.seen)
    }
}
