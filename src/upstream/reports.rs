//! What the sessions of one principal report, and who hears it.

use super::Report;
use tokio::sync::broadcast::{Receiver, Sender};

/// The reports of one principal's sessions. Clones are the same.
#[derive(Clone)]
pub(super) struct Reports {
    /// For clients that listen. As long as there is one, a session is kept open to hear for it.
    listened: Sender<Report>,
    /// For what was read earlier and may have changed since. Keeps nothing open: what nobody has
    /// used for long is read again, which costs less than a session.
    read: Sender<Report>,
}

/// Reports kept for one who does not fetch them; the oldest are dropped first.
const KEPT: usize = 256;

// === impl Reports ===

impl Reports {
    pub(super) fn new() -> Self {
        Self { listened: Sender::new(KEPT), read: Sender::new(KEPT) }
    }

    /// Nobody may be hearing it.
    pub(super) fn send(&self, report: Report) {
        let _ = self.listened.send(report.clone());
        let _ = self.read.send(report);
    }

    /// There is no session that would hear of a change: what was read may be out of date.
    pub(super) fn is_unheard(&self) {
        let _ = self.read.send(Report::ToolsChanged);
    }

    /// The server has lost a session, and what it would have reported there.
    pub(super) fn is_lost(&self) {
        for report in [Report::ToolsChanged, Report::PromptsChanged, Report::ResourcesChanged] {
            self.send(report);
        }
    }

    pub(super) fn listen(&self) -> Receiver<Report> {
        self.listened.subscribe()
    }

    pub(super) fn changes(&self) -> Receiver<Report> {
        self.read.subscribe()
    }

    pub(super) fn is_listened_to(&self) -> bool {
        self.listened.receiver_count() > 0
    }

    /// Whether somebody other than its owner may still report something or wait for it.
    pub(super) fn is_needed(&self) -> bool {
        self.is_listened_to() || self.listened.strong_count() > 1
    }
}
