//! What the sessions of one principal report, and who hears it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tokio::sync::broadcast::{Receiver, Sender};

use crate::{protocol::List, runtime::Mutex, upstream::Report};

/// The reports of one principal's sessions. Clones are the same. Costs about a hundred bytes where nobody
/// listens.
#[derive(Clone, Default)]
pub(super) struct Reports(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// For clients that listen; none while nobody does, because it is as large as all it may keep. As long
    /// as there is one, a session is kept open to hear for it. Held for a report.
    listened: Mutex<Option<Sender<Report>>>,
    /// How many sessions would report something.
    hearing: AtomicUsize,
    /// How often the tools have changed, or may have.
    tools: Arc<AtomicU64>,
}

/// A session that reports what it hears, counted.
pub(super) struct Hearing(Reports);

/// Whether the tools may have changed since they were read. Keeps nothing open: what nobody has used for
/// long is read again, which costs less than a session. The default is of tools that have changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// As in [`Inner`]; changed also with the end of the last session that would have reported a change.
    tools: Option<Arc<AtomicU64>>,
    seen: u64,
}

/// Reports kept for one who does not fetch them; the oldest are dropped first.
const KEPT: usize = 256;

// === impl Reports ===

impl Reports {
    /// Nobody may be hearing it.
    pub(super) fn send(&self, report: Report) {
        if report == Report::ListChanged(List::Tools) {
            self.is_unheard();
        }
        if let Some(listened) = &*self.0.listened.lock() {
            let _ = listened.send(report);
        }
    }

    /// There is no session that would hear of a change: what was read may be out of date.
    pub(super) fn is_unheard(&self) {
        self.0.tools.fetch_add(1, Ordering::Relaxed);
    }

    /// The server has lost a session, and what it would have reported there.
    pub(super) fn is_lost(&self) {
        List::ALL.into_iter().for_each(|list| self.send(Report::ListChanged(list)));
    }

    pub(super) fn listen(&self) -> Receiver<Report> {
        self.0.listened.lock().get_or_insert_with(|| Sender::new(KEPT)).subscribe()
    }

    pub(super) fn changes(&self) -> Changes {
        let tools = &self.0.tools;
        Changes { seen: tools.load(Ordering::Relaxed), tools: Some(Arc::clone(tools)) }
    }

    pub(super) fn is_listened_to(&self) -> bool {
        let mut listened = self.0.listened.lock();
        listened.take_if(|listened| listened.receiver_count() == 0);
        listened.is_some()
    }

    /// How many sessions would report something.
    pub(super) fn hearing(&self) -> usize {
        self.0.hearing.load(Ordering::Relaxed)
    }

    /// Whether somebody other than its owner may still report something or wait for it.
    pub(super) fn is_needed(&self) -> bool {
        self.is_listened_to() || Arc::strong_count(&self.0) > 1
    }
}

// === impl Inner ===

impl Drop for Inner {
    /// Nobody is left to report a change.
    fn drop(&mut self) {
        self.tools.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Hearing ===

impl Hearing {
    pub(super) fn of(reports: &Reports) -> Self {
        reports.0.hearing.fetch_add(1, Ordering::Relaxed);
        Self(reports.clone())
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.0.0.hearing.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Changes ===

impl Changes {
    /// Of tools that never change.
    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self { tools: Some(Arc::default()), seen: 0 }
    }

    /// Whether there was one, or could have been one that nobody heard.
    pub fn are_there(&self) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.load(Ordering::Relaxed) != self.seen)
    }
}
