//! Listeners for messages outside calls, in the sessions of one pool: the emulated sessions of legacy clients
//! whose calls are made there.

use bytes::Bytes;
use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use super::message;
use crate::{
    protocol::{Frame, RequestId, frame::to_single_line},
    runtime::Mutex,
    upstream::{Responder, UpstreamDescription},
};

/// Emulated sessions that use one pool, as listeners for its messages outside calls.
#[derive(Default)]
pub(super) struct BroadcastListeners {
    /// Locked for a few statements only.
    listeners: Mutex<ListenerList>,
    /// Whether clients without an emulated session make calls in the pool, or did.
    is_shared: AtomicBool,
}

#[derive(Default)]
struct ListenerList {
    /// Includes sessions that have ended.
    all: Vec<Weak<dyn BroadcastListener>>,
    /// Number of sessions that ever joined.
    joined: u64,
}

/// Listeners of a pool when a session with the server was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListenerCensus {
    /// Number of listeners at that time.
    present: u64,
    /// Value of [`ListenerList::joined`] at that time.
    joined: u64,
}

/// Listener for messages outside calls.
pub(super) trait BroadcastListener: Send + Sync {
    /// Delivers a message; `line` is the message on one line.
    fn notify(&self, frame: &Frame, line: &Bytes);

    /// Returns a new id for a request to the listener.
    fn next_request_id(&self) -> RequestId;

    /// Sends a request of the server that can only be for this listener, under an `id` from
    /// [`BroadcastListener::next_request_id`]. `responder` takes the listener's response.
    fn send_request(&self, id: RequestId, frame: &Frame, responder: Box<dyn Responder>);

    /// Cancels the open request `id` at the listener: a response would not be forwarded to the server.
    fn cancel_request(&self, id: &RequestId, reason: &str);

    /// Whether the client reads the stream on which requests outside calls are sent.
    fn is_listening(&self) -> bool;

    /// Lowest severity of log messages that the client requested with `logging/setLevel`; `None` if it
    /// requested none.
    fn level(&self) -> Option<LogSeverity>;
}

/// Severity of log messages (2025-11-25, *Logging, Log Levels*), as an index of [`LEVELS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogSeverity(usize);

/// Severities in ascending order.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

// === impl BroadcastListeners ===

impl BroadcastListeners {
    /// Adds a listener, unless it is in the list already.
    pub(super) fn join(&self, listener: Weak<dyn BroadcastListener>) {
        let mut listeners = self.listeners.lock();
        listeners.all.retain(|listener| listener.strong_count() > 0);
        // A listener that returns is not a new one.
        if !listeners.all.iter().any(|other| other.ptr_eq(&listener)) {
            listeners.all.push(listener);
            listeners.joined += 1;
        }
    }

    /// Returns how many listeners exist now and how many ever joined.
    pub(super) fn census(&self) -> ListenerCensus {
        let listeners = self.listeners.lock();
        let present = listeners.all.iter().filter(|listener| listener.strong_count() > 0).count() as u64;
        ListenerCensus { present, joined: listeners.joined }
    }

    /// Marks that a client without an emulated session uses the pool.
    pub(super) fn mark_shared(&self) {
        if !self.is_shared.load(Ordering::Relaxed) {
            self.is_shared.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the only client that the server can know in a session that was opened at `at_start`; `None` if
    /// there may be others. A client that was served there and has left may have unfinished calls, whose
    /// requests would arrive in the session.
    pub(super) fn sole_listener(&self, at_start: ListenerCensus) -> Option<Arc<dyn BroadcastListener>> {
        if self.is_shared.load(Ordering::Relaxed) {
            return None;
        }
        let listeners = self.listeners.lock();
        let ever = at_start.present + (listeners.joined - at_start.joined);
        listeners.all.iter().find_map(Weak::upgrade).filter(|_| ever <= 1)
    }

    /// Sends a message outside calls to all listeners.
    pub(super) fn notify(&self, frame: &Frame) {
        // Serialized once: the line is shared by all listeners that store it.
        let line = to_single_line(frame.as_bytes().clone());
        self.live_listeners().iter().for_each(|listener| listener.notify(frame, &line));
    }

    /// Notifies listeners after a session was lost: each list whose changes the server reports may have
    /// changed.
    pub(super) fn notify_lists_changed(&self, server: &UpstreamDescription) {
        server.reported_lists().for_each(|list| self.notify(&message::list_changed(list)));
    }

    /// Lowest severity that any listener requested; `None` if none requested one.
    pub(super) fn lowest_level(&self) -> Option<&'static str> {
        Some(self.live_listeners().iter().filter_map(|listener| listener.level()).min()?.as_str())
    }

    fn live_listeners(&self) -> Vec<Arc<dyn BroadcastListener>> {
        self.listeners.lock().all.iter().filter_map(Weak::upgrade).collect()
    }
}

// === impl LogSeverity ===

impl LogSeverity {
    /// Severity for a client that requested none while others did: servers send at least this much by
    /// default.
    pub(super) const DEFAULT: Self = Self(1);

    /// Severity of this name in the protocol, such as `warning`; `None` if there is none.
    pub(super) fn parse(name: &str) -> Option<Self> {
        LEVELS.iter().position(|level| *level == name).map(Self)
    }

    fn as_str(self) -> &'static str {
        LEVELS[self.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct RecordingListener(Mutex<Vec<Bytes>>);

    impl BroadcastListener for RecordingListener {
        fn notify(&self, _: &Frame, line: &Bytes) {
            self.0.lock().push(line.clone());
        }

        fn next_request_id(&self) -> RequestId {
            RequestId::from_number(0)
        }

        fn send_request(&self, _: RequestId, _: &Frame, _: Box<dyn Responder>) {}

        fn cancel_request(&self, _: &RequestId, _: &str) {}

        fn is_listening(&self) -> bool {
            true
        }

        fn level(&self) -> Option<LogSeverity> {
            None
        }
    }

    #[test]
    fn a_message_for_all_listeners_is_in_memory_once() {
        let audience = BroadcastListeners::default();
        let all = [Arc::new(RecordingListener::default()), Arc::new(RecordingListener::default())];
        for hearing in &all {
            let listener: Arc<dyn BroadcastListener> = hearing.clone();
            audience.join(Arc::downgrade(&listener));
        }
        let said = Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\r\"method\":\"notifications/x\"}");
        audience.notify(&Frame::parse(said).expect("a message"));
        let [first, second] = all.map(|hearing| hearing.0.lock().pop().expect("it has heard"));
        assert_eq!(&first[..], b"{\"jsonrpc\":\"2.0\", \"method\":\"notifications/x\"}");
        assert_eq!(first.as_ptr(), second.as_ptr());
    }
}
