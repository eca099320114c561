//! Who hears what a server says beside calls, in the sessions of one group: the hosted sessions of legacy
//! clients whose calls are made there.

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

/// The hosted sessions of one group.
#[derive(Default)]
pub(super) struct BroadcastListeners {
    /// The lock guards a few lines each time.
    listeners: Mutex<ListenerList>,
    /// Calls of clients that have no hosted session are made there too, or were.
    has_others: AtomicBool,
}

#[derive(Default)]
struct ListenerList {
    /// Those that have gone included.
    all: Vec<Weak<dyn BroadcastListener>>,
    /// How many have joined, ever.
    joined: u64,
}

/// Who there was when a session with the server began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListenerCensus {
    present: u64,
    joined: u64,
}

/// One that hears what is said beside calls.
pub(super) trait BroadcastListener: Send + Sync {
    /// `line` is the same on one line.
    fn notify(&self, frame: &Frame, line: &Bytes);

    /// An id for a question to it.
    fn next_request_id(&self) -> RequestId;

    /// A question that can be meant for it alone, under the id that was given for that.
    fn send_request(&self, id: RequestId, frame: &Frame, answer: Box<dyn Responder>);

    /// A question is taken back: its answer reaches nobody.
    fn cancel_request(&self, id: &RequestId, reason: &str);

    /// The least severe of the messages that its client has asked to hear, if it has.
    fn level(&self) -> Option<LogSeverity>;
}

/// How severe a log message is (2025-11-25, *Logging, Log Levels*), by its place among [`LEVELS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogSeverity(usize);

/// The least severe first.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

// === impl Audience ===

impl BroadcastListeners {
    pub(super) fn join(&self, listener: Weak<dyn BroadcastListener>) {
        let mut listeners = self.listeners.lock();
        listeners.all.retain(|listener| listener.strong_count() > 0);
        // One that was elsewhere for a while is no other.
        if !listeners.all.iter().any(|known| known.ptr_eq(&listener)) {
            listeners.all.push(listener);
            listeners.joined += 1;
        }
    }

    /// Who there is now.
    pub(super) fn census(&self) -> ListenerCensus {
        let listeners = self.listeners.lock();
        let present = listeners.all.iter().filter(|listener| listener.strong_count() > 0).count() as u64;
        ListenerCensus { present, joined: listeners.joined }
    }

    /// A call is made for somebody who is not among it.
    pub(super) fn mark_shared(&self) {
        if !self.has_others.load(Ordering::Relaxed) {
            self.has_others.store(true, Ordering::Relaxed);
        }
    }

    /// The only client that the server can know of in a session that began at this `census`: another that was served
    /// there and has gone may have left something behind, which asks for it.
    pub(super) fn sole_listener(&self, census: ListenerCensus) -> Option<Arc<dyn BroadcastListener>> {
        if self.has_others.load(Ordering::Relaxed) {
            return None;
        }
        let listeners = self.listeners.lock();
        let ever = census.present + (listeners.joined - census.joined);
        listeners.all.iter().find_map(Weak::upgrade).filter(|_| ever <= 1)
    }

    pub(super) fn notify(&self, frame: &Frame) {
        // Once: what many keep is the memory of all of them.
        let line = to_single_line(frame.as_bytes().clone());
        self.all().iter().for_each(|listener| listener.notify(frame, &line));
    }

    /// A session of the server is lost, and what it would have reported there: what it says it reports may have
    /// changed.
    pub(super) fn notify_lists_changed(&self, server: &UpstreamDescription) {
        server.reported_lists().for_each(|list| self.notify(&message::list_changed(list)));
    }

    /// The least severe of the messages that anybody has asked to hear.
    pub(super) fn level(&self) -> Option<&'static str> {
        Some(self.all().iter().filter_map(|listener| listener.level()).min()?.as_str())
    }

    fn all(&self) -> Vec<Arc<dyn BroadcastListener>> {
        self.listeners.lock().all.iter().filter_map(Weak::upgrade).collect()
    }
}

// === impl Level ===

impl LogSeverity {
    /// What a client hears that has not said what it wants, where others have: a server says all of that by
    /// itself, or more.
    pub(super) const USUAL: Self = Self(1);

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

        fn level(&self) -> Option<LogSeverity> {
            None
        }
    }

    #[test]
    fn what_all_hear_is_in_memory_once() {
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
