//! Change notifications of one principal's sessions, and their subscribers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tokio::sync::broadcast::{Receiver, Sender};

use crate::{protocol::ListKind, runtime::Mutex};
use bytes::Bytes;

/// A change notification of a server: one of its lists, or a resource, has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeNotification {
    ListChanged(ListKind),
    /// A resource changed. `params` are the raw parameters of the notification.
    ResourceUpdated {
        uri: String,
        params: Bytes,
    },
}

/// Sends the change notifications of one principal's sessions to subscribers. Clones share the state. Costs
/// about a hundred bytes without subscribers.
#[derive(Clone, Default)]
pub struct ChangeNotifier(Arc<NotifierState>);

#[derive(Default)]
struct NotifierState {
    /// Sender for subscribers; `None` without any, because its buffer is allocated in full. While there are
    /// subscribers, a session is kept open. Locked for one notification.
    sender: Mutex<Option<Sender<ChangeNotification>>>,
    /// Number of open sessions whose servers report changes.
    reporting_sessions: AtomicUsize,
    /// Number of times that the server's tools changed, or may have changed.
    tools_version: Arc<AtomicU64>,
}

/// Counts a session whose server reports changes, until dropped.
pub(super) struct ReportingSession(ChangeNotifier);

/// Tracks whether a server's tools may have changed since they were read. Keeps no session open: reading
/// tools again that were unused for long costs less than a session. The default value always reports a
/// change.
#[derive(Debug, Default)]
pub struct ToolChanges {
    /// Shared version counter of the notifier. Also advances when the last session that could report a change
    /// ends. `None` reports a change always.
    version: Option<Arc<AtomicU64>>,
    seen_version: u64,
}

/// Limit of unread notifications of a subscriber; the oldest are dropped first.
const MAX_UNREAD: usize = 256;

// === impl ChangeNotifier ===

impl ChangeNotifier {
    /// Sends a notification to the subscribers, if there are any.
    pub(super) fn send(&self, notification: ChangeNotification) {
        if notification == ChangeNotification::ListChanged(ListKind::Tools) {
            self.mark_tools_changed();
        }
        if let Some(sender) = &*self.0.sender.lock() {
            let _ = sender.send(notification);
        }
    }

    /// Marks the tools as changed: no session would report a change, so cached tools may be out of date.
    pub(super) fn mark_tools_changed(&self) {
        self.0.tools_version.fetch_add(1, Ordering::Relaxed);
    }

    /// Notifies of all lists after a session was lost with its notifications.
    pub(super) fn notify_all_changed(&self) {
        ListKind::ALL.into_iter().for_each(|list| self.send(ChangeNotification::ListChanged(list)));
    }

    /// Subscribes to notifications sent from now on. A session is kept open until the receiver is dropped.
    pub fn subscribe(&self) -> Receiver<ChangeNotification> {
        self.0.sender.lock().get_or_insert_with(|| Sender::new(MAX_UNREAD)).subscribe()
    }

    /// Returns a tracker of changes to the server's tools from now on. Keeps no session open; a change that may
    /// have been missed counts as a change.
    pub fn tool_changes(&self) -> ToolChanges {
        let tools = &self.0.tools_version;
        ToolChanges { seen_version: tools.load(Ordering::Relaxed), version: Some(Arc::clone(tools)) }
    }

    /// Whether there are subscribers.
    pub(super) fn has_listeners(&self) -> bool {
        let mut sender = self.0.sender.lock();
        sender.take_if(|sender| sender.receiver_count() == 0);
        sender.is_some()
    }

    /// Number of open sessions whose servers report changes.
    pub(super) fn reporting_sessions(&self) -> usize {
        self.0.reporting_sessions.load(Ordering::Relaxed)
    }

    /// Whether a session or subscriber still uses this notifier.
    pub(super) fn is_needed(&self) -> bool {
        self.has_listeners() || Arc::strong_count(&self.0) > 1
    }
}

// === impl NotifierState ===

impl Drop for NotifierState {
    /// Marks the tools as changed: nothing reports changes any more.
    fn drop(&mut self) {
        self.tools_version.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl ReportingSession ===

impl ReportingSession {
    /// Counts a session that reports to this notifier.
    pub(super) fn new(notifier: &ChangeNotifier) -> Self {
        notifier.0.reporting_sessions.fetch_add(1, Ordering::Relaxed);
        Self(notifier.clone())
    }
}

impl Drop for ReportingSession {
    fn drop(&mut self) {
        self.0.0.reporting_sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl ToolChanges ===

impl ToolChanges {
    /// Whether the tools have changed, or may have changed, since this tracker was created.
    pub fn has_changed(&self) -> bool {
        self.version.as_ref().is_none_or(|tools| tools.load(Ordering::Relaxed) != self.seen_version)
    }
}
