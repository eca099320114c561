//! How many lines of one kind are logged in a while.
//!
//! Clients and servers cause lines of the log: a refused question, a task that is not there, a line on standard error. One
//! that does so without end would fill the disk of its proxy. So of each kind of line, for each route, at most [`LINES`] are
//! written within [`WINDOW`]; further ones are counted, and the count is a line of its own (`lines_suppressed`). This holds
//! for every line but those named [`RECORD`], of which a request or a call has one each and which are read as data.

use std::{
    collections::HashMap,
    fmt::{self, Write},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tracing::{
    Event,
    callsite::Identifier,
    field::{Field, Visit},
};

/// The name of an event that is never suppressed.
pub const RECORD: &str = "record";

/// The name of an event of one task: it is counted by its task instead of by its route.
pub const OF_TASK: &str = "task";

/// Lines of one kind and route that are written within [`WINDOW`].
const LINES: u32 = 200;
/// How long it takes until as many may be written again.
pub const WINDOW: Duration = Duration::from_secs(10);
/// Kinds and routes that are told apart at a time. Further ones are not throttled: there are not that many routes, and
/// tasks are bounded by their quotas.
const MOST: usize = 4096;
/// Bytes of a route or a task that are kept.
const LONGEST: usize = 128;

/// Counts lines.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<HashMap<ThrottleKey, ThrottleWindow>>);

/// A kind of line, and its route or task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ThrottleKey {
    kind: Identifier,
    of: String,
}

#[derive(Debug)]
struct ThrottleWindow {
    since: Instant,
    written: u32,
    suppressed: u64,
    event: String,
}

/// Lines that were not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuppressedLines {
    /// Which: the value of their field `event`.
    pub event: String,
    /// The route they are of, or the task.
    pub of: String,
    pub count: u64,
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleVerdict {
    Write,
    /// `is_first`: no other of its kind was suppressed in this while.
    Suppress {
        is_first: bool,
    },
}

/// What is looked at of an event.
#[derive(Default)]
struct ThrottleFields {
    is_of_task: bool,
    event: String,
    of: String,
}

// === impl LogThrottle ===

impl LogThrottle {
    /// Whether a line is written. The clock is read where that has to be counted.
    pub fn judge(&self, event: &Event<'_>, now: impl FnOnce() -> Instant) -> ThrottleVerdict {
        let about = event.metadata();
        if about.name() == RECORD {
            return ThrottleVerdict::Write;
        }
        let mut fields = ThrottleFields { is_of_task: about.name() == OF_TASK, ..ThrottleFields::default() };
        event.record(&mut fields);
        let ThrottleFields { event, of, .. } = fields;
        self.count(ThrottleKey { kind: about.callsite(), of }, event, now())
    }

    fn count(&self, key: ThrottleKey, event: String, now: Instant) -> ThrottleVerdict {
        let mut windows = self.windows();
        if windows.len() >= MOST && !windows.contains_key(&key) {
            windows.retain(|_, window| window.suppressed > 0 || now.duration_since(window.since) < WINDOW);
            if windows.len() >= MOST {
                return ThrottleVerdict::Write;
            }
        }
        let window =
            windows.entry(key).or_insert(ThrottleWindow { since: now, written: 0, suppressed: 0, event });
        // One whose count was not told stays as it is: what is suppressed is told within twice the while.
        if now.duration_since(window.since) >= WINDOW && window.suppressed == 0 {
            (window.since, window.written) = (now, 0);
        }
        if window.written < LINES {
            window.written += 1;
            return ThrottleVerdict::Write;
        }
        window.suppressed += 1;
        ThrottleVerdict::Suppress { is_first: window.suppressed == 1 }
    }

    /// Takes the counts of what was suppressed. From then on as many lines may be written again.
    pub fn take_suppressed(&self) -> Vec<SuppressedLines> {
        let mut taken = Vec::new();
        self.windows().retain(|key, window| {
            if window.suppressed > 0 {
                let event = std::mem::take(&mut window.event);
                taken.push(SuppressedLines { event, of: key.of.clone(), count: window.suppressed });
            }
            window.suppressed == 0
        });
        taken
    }

    fn windows(&self) -> MutexGuard<'_, HashMap<ThrottleKey, ThrottleWindow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Fields ===

impl ThrottleFields {
    fn of(&mut self, field: &Field) -> Option<&mut String> {
        match (field.name(), self.is_of_task) {
            ("event", _) => Some(&mut self.event),
            ("route", false) | ("task", true) => Some(&mut self.of),
            _ => None,
        }
    }
}

impl Visit for ThrottleFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if let Some(kept) = self.of(field) {
            let end = (0..=value.len().min(LONGEST)).rev().find(|end| value.is_char_boundary(*end));
            kept.push_str(&value[..end.unwrap_or(0)]);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if let Some(kept) = self.of(field) {
            // Ours, and short: the tag of a task.
            let _ = write!(kept, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::line::{LineFormat, LogLayer};
    use std::{
        sync::{Arc, Mutex},
        time::SystemTime,
    };
    use tracing::Level;
    use tracing_subscriber::{layer::SubscriberExt, registry};

    /// What is written of what `tell` tells.
    fn written(throttle: &Arc<LogThrottle>, tell: impl FnOnce()) -> Vec<String> {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&lines);
        let take = move |_: &Level, line: &str| kept.lock().expect("whole").push(line.to_owned());
        let layer = LogLayer::new(LineFormat::Text, || SystemTime::UNIX_EPOCH, take)
            .throttled(Arc::clone(throttle), || {});
        tracing::subscriber::with_default(registry().with(layer), tell);
        std::mem::take(&mut *lines.lock().expect("whole"))
    }

    #[test]
    fn lines_of_one_kind_and_route_are_bounded_and_the_others_counted() {
        const FLOOD: u64 = 10_000;
        let throttle = Arc::<LogThrottle>::default();
        let lines = written(&throttle, || {
            for number in 0..FLOOD {
                tracing::warn!(event = "refused", route = "/loud", number);
                if number % 1000 == 0 {
                    tracing::warn!(event = "refused", route = "/quiet", number);
                    tracing::info!(event = "other", route = "/loud", number);
                }
            }
        });
        let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
        assert_eq!(count("event=refused route=/loud"), LINES as usize);
        assert_eq!((count("route=/quiet"), count("event=other")), (10, 10));
        let left = FLOOD - u64::from(LINES);
        let told = SuppressedLines { event: "refused".to_owned(), of: "/loud".to_owned(), count: left };
        assert_eq!(throttle.take_suppressed(), [told]);
        assert_eq!(throttle.take_suppressed(), []);
        let again = written(&throttle, || tracing::warn!(event = "refused", route = "/loud"));
        assert_eq!(again.len(), 1);
    }

    #[test]
    fn a_record_is_always_written_and_what_a_task_does_is_counted_by_task() {
        let throttle = Arc::<LogThrottle>::default();
        let lines = written(&throttle, || {
            for number in 0..1000 {
                tracing::info!(name: "record", event = "request", route = "/mcp", number);
                tracing::info!(name: "task", event = "transition", task = %(number % 2), route = "/mcp");
                tracing::info!(name: "task", event = "transition", task = %format_args!("one{number}"), route = "/mcp");
            }
        });
        let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
        assert_eq!(count("event=request"), 1000);
        assert_eq!((count("task=0 "), count("task=1 ")), (LINES as usize, LINES as usize));
        assert_eq!(count("task=one"), 1000);
    }

    #[test]
    fn as_many_lines_may_be_written_again_after_a_while() {
        let throttle = LogThrottle::default();
        let at = crate::runtime::Clock::now(&crate::runtime::SystemClock::new());
        struct Kind;
        impl tracing::callsite::Callsite for Kind {
            fn set_interest(&self, _: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &tracing::Metadata<'_> {
                unreachable!("it is only told apart")
            }
        }
        static KIND: Kind = Kind;
        let key = || ThrottleKey { kind: Identifier(&KIND), of: String::new() };
        let count = |now| throttle.count(key(), "e".to_owned(), now);
        for _ in 0..LINES {
            assert_eq!(count(at), ThrottleVerdict::Write);
        }
        assert_eq!(count(at), ThrottleVerdict::Suppress { is_first: true });
        assert_eq!(
            count(at + WINDOW),
            ThrottleVerdict::Suppress { is_first: false },
            "the count is told first"
        );
        assert_eq!(throttle.take_suppressed()[0].count, 2);
        assert_eq!(count(at + WINDOW), ThrottleVerdict::Write);
    }
}
