//! Who hears what a server says beside calls, in the sessions of one group: the hosted sessions of legacy
//! clients whose calls are made there.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use super::message;
use crate::{
    protocol::Frame,
    runtime::Mutex,
    upstream::{Answer, Description},
};

/// The hosted sessions of one group.
#[derive(Default)]
pub(super) struct Audience {
    /// The lock guards a few lines each time.
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    /// Calls of clients that have no hosted session are made there too, or were.
    has_others: AtomicBool,
}

/// One that hears what is said beside calls.
pub(super) trait Listener: Send + Sync {
    fn hears(&self, frame: &Frame);

    /// A question that can be meant for it alone.
    fn asked(&self, frame: &Frame, answer: Box<dyn Answer>);

    /// The least severe of the messages that its client has asked to hear, if it has.
    fn level(&self) -> Option<Level>;
}

/// How severe a log message is (2025-11-25, *Logging, Log Levels*), by its place among [`LEVELS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level(usize);

/// The least severe first.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

// === impl Audience ===

impl Audience {
    pub(super) fn join(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// A call is made for somebody who is not among it.
    pub(super) fn is_joined_by_another(&self) {
        if !self.has_others.load(Ordering::Relaxed) {
            self.has_others.store(true, Ordering::Relaxed);
        }
    }

    /// The only client that the server can know of.
    pub(super) fn only(&self) -> Option<Arc<dyn Listener>> {
        let mut all = self.all().into_iter();
        match (all.next(), all.next()) {
            (Some(only), None) if !self.has_others.load(Ordering::Relaxed) => Some(only),
            (Some(_) | None, _) => None,
        }
    }

    pub(super) fn hears(&self, frame: &Frame) {
        self.all().iter().for_each(|listener| listener.hears(frame));
    }

    /// A session of the server is lost, and what it would have reported there: what it says it reports may have
    /// changed.
    pub(super) fn is_lost(&self, server: &Description) {
        server.reported().for_each(|list| self.hears(&message::list_changed(list)));
    }

    /// The least severe of the messages that anybody has asked to hear.
    pub(super) fn level(&self) -> Option<&'static str> {
        Some(self.all().iter().filter_map(|listener| listener.level()).min()?.as_str())
    }

    fn all(&self) -> Vec<Arc<dyn Listener>> {
        self.listeners.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

// === impl Level ===

impl Level {
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
