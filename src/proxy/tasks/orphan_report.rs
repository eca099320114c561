//! The log's report on the tasks of a former process: each task is counted once its fate is known.
//!
//! The first line is written when the fates of all tasks are known, except for those that wait for their
//! callers. A second line follows when the fates of the others are known.

use crate::{
    runtime::{DrainWatch, Mutex},
    task::TaskState,
    telemetry::OrphanSummary,
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::Notify, time::sleep};

/// How long the first line waits for servers to respond. Calls without a response by then count as `pending`
/// in that line.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);

/// Counts the tasks of former processes by their fates, for the log.
#[derive(Debug, Default)]
pub(in crate::proxy) struct OrphanReport {
    /// Locked only while a task is counted.
    counts: Mutex<OrphanSummary>,
    /// Notified whenever the fate of a task becomes known.
    fate_known: Notify,
}

/// Counts one task of a former process, whose fate is not known yet. If this value is dropped without a fate,
/// the task is left to the next process, and not counted.
#[derive(Debug)]
pub(in crate::proxy) struct OrphanFate {
    report: Arc<OrphanReport>,
    /// The count that includes the task at present.
    counts_as: OrphanState,
}

/// The state under which an undecided task counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrphanState {
    /// Its server has not responded yet.
    Pending,
    /// The task waits for its caller's credentials.
    Waiting,
}

// === impl OrphanReport ===

impl OrphanReport {
    /// Adds a task, whose fate is recorded on the returned value.
    pub(in crate::proxy) fn add(self: &Arc<Self>) -> OrphanFate {
        self.counts.lock().pending += 1;
        OrphanFate { report: Arc::clone(self), counts_as: OrphanState::Pending }
    }

    /// Writes the report's lines as the fates become known; called once all tasks have been added. Ends when
    /// the drain time is over (`overdue`) at the latest.
    pub(in crate::proxy) async fn emit(self: Arc<Self>, overdue: DrainWatch) {
        tokio::select! {
            biased;
            () = self.wait_until(|counts| counts.pending == 0) => {}
            () = sleep(REPORT_TIMEOUT) => {}
            () = overdue.stopped() => {}
        }
        let first = self.take_counts();
        if first != OrphanSummary::default() {
            first.emit();
        }
        let waited = first.waiting + first.pending;
        if waited == 0 {
            return;
        }
        tokio::select! {
            biased;
            () = self.wait_until(|counts| counts.pending + counts.waiting == 0) => {}
            () = overdue.stopped() => {}
        }
        let later = self.take_counts();
        // Tasks that are left to the next process are not reported.
        if later.resumed + later.failed + later.cancelled + later.untold > 0 {
            OrphanSummary { waited: Some(waited), ..later }.emit();
        }
    }

    /// Waits until the counts satisfy the condition.
    async fn wait_until(&self, condition: impl Fn(&OrphanSummary) -> bool) {
        loop {
            let notified = self.fate_known.notified();
            if condition(&self.counts.lock()) {
                return;
            }
            notified.await;
        }
    }

    /// Returns the counts, and resets those of known fates, so that no fate is reported twice.
    fn take_counts(&self) -> OrphanSummary {
        let mut counts = self.counts.lock();
        let OrphanSummary { waiting, pending, .. } = *counts;
        std::mem::replace(&mut *counts, OrphanSummary { waiting, pending, ..OrphanSummary::default() })
    }
}

// === impl OrphanFate ===

impl OrphanFate {
    /// Counts the task as waiting for its caller's credentials.
    pub(in crate::proxy) fn mark_waiting(&mut self) {
        self.count_as(OrphanState::Waiting);
    }

    /// Counts the task as pending: its caller has sent a request, and the call is being resumed.
    pub(in crate::proxy) fn mark_pending(&mut self) {
        self.count_as(OrphanState::Pending);
    }

    /// Counts the task as resumed: the server has continued the call.
    pub(in crate::proxy) fn record_resumed(self) {
        self.report.counts.lock().resumed += 1;
    }

    /// Counts the task as cancelled; `is_notified` is whether its server has received the cancellation.
    pub(in crate::proxy) fn record_cancelled(self, is_notified: bool) {
        let mut counts = self.report.counts.lock();
        match is_notified {
            true => counts.cancelled += 1,
            false => counts.untold += 1,
        }
    }

    /// Counts the task by its state. An unfinished task is left to the next process.
    pub(in crate::proxy) fn record_ended(self, state: &TaskState) {
        match state {
            TaskState::Completed { .. } => self.record_resumed(),
            TaskState::Failed { .. } => self.report.counts.lock().failed += 1,
            TaskState::Cancelled => self.record_cancelled(true),
            TaskState::Working | TaskState::InputRequired { .. } => {}
        }
    }

    fn count_as(&mut self, state: OrphanState) {
        let mut counts = self.report.counts.lock();
        *pending_count(&mut counts, self.counts_as) -= 1;
        *pending_count(&mut counts, state) += 1;
        self.counts_as = state;
        drop(counts);
        self.report.fate_known.notify_waiters();
    }
}

impl Drop for OrphanFate {
    fn drop(&mut self) {
        *pending_count(&mut self.report.counts.lock(), self.counts_as) -= 1;
        self.report.fate_known.notify_waiters();
    }
}

fn pending_count(counts: &mut OrphanSummary, counts_as: OrphanState) -> &mut usize {
    match counts_as {
        OrphanState::Pending => &mut counts.pending,
        OrphanState::Waiting => &mut counts.waiting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        runtime::Drain,
        telemetry::{LineFormat, LogLayer},
    };
    use std::time::UNIX_EPOCH;
    use tracing_subscriber::layer::SubscriberExt;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_respond_is_pending_and_reported_later() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&written);
        let take = move |_: &tracing::Level, line: &str| kept.lock().push(line.to_owned());
        let lines = LogLayer::new(LineFormat::Text, || UNIX_EPOCH, take);
        let _written = tracing::subscriber::set_default(tracing_subscriber::registry().with(lines));
        let (_drain, overdue) = Drain::new();
        let report = Arc::<OrphanReport>::default();
        let (silent, failed, mut waits, left) = (report.add(), report.add(), report.add(), report.add());
        waits.mark_waiting();
        failed.record_ended(&TaskState::Failed { error: Default::default() });
        let reporting = tokio::spawn(report.emit(overdue));
        sleep(REPORT_TIMEOUT - Duration::from_secs(1)).await;
        assert_eq!(written.lock().len(), 0, "two of them may still answer");
        sleep(Duration::from_secs(2)).await;
        silent.record_resumed();
        waits.record_cancelled(false);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(written.lock().len(), 1, "one is not known yet");
        // This task goes to the next process.
        drop(left);
        reporting.await.expect("it does not panic");
        let written = written.lock().clone();
        let counts = "resumed=0 waiting=1 pending=2 failed=1 cancelled=0 untold=0\n";
        assert!(written[0].ends_with(counts), "{written:?}");
        let counts = "resumed=1 waiting=0 pending=0 failed=0 cancelled=0 untold=1 waited=3\n";
        assert!(written[1].ends_with(counts), "{written:?}");
    }
}
