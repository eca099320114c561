//! Limits the number of log lines of one kind.
//!
//! Clients and servers cause log lines: a refused input request, an unknown task, a line on standard error.
//! Without a limit, one of them could fill the disk. For each kind of line and each route, at most [`LINES`]
//! lines are written within [`WINDOW`]; further lines are counted, and the count is logged as
//! `lines_suppressed`. Lines named [`RECORD`] are exempt: each request or call has one, and they are read as
//! data.

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

/// The name of events that are never suppressed.
pub const RECORD: &str = "record";

/// The name of events of a task, which are counted by task instead of by route.
pub const OF_TASK: &str = "task";

/// Maximum number of lines of one kind and route within [`WINDOW`].
const LINES: u32 = 200;
/// Interval after which further lines are written.
pub const WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of kinds and routes that are tracked. Others are not throttled: there are few routes, and
/// tasks are bounded by quotas.
const MOST: usize = 4096;
/// Maximum length of a stored route or task, in bytes.
const LONGEST: usize = 128;

/// Counts lines by kind, and by route or task.
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

/// Lines that were suppressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuppressedLines {
    /// Their field `event`.
    pub event: String,
    /// Their route or task.
    pub of: String,
    pub count: u64,
}

/// Whether a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleVerdict {
    Write,
    /// `is_first` is set for the first line of its kind that was suppressed in this window.
    Suppress {
        is_first: bool,
    },
}

/// The fields of an event that the throttle reads.
#[derive(Default)]
struct ThrottleFields {
    is_of_task: bool,
    event: String,
    of: String,
}

// === impl LogThrottle ===

impl LogThrottle {
    /// Decides whether a line is written. The clock is read only for lines that are counted.
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
        // A window with unreported suppressed lines stays as it is; they are reported within twice the
        // interval.
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

    /// Takes the counts of suppressed lines and starts their windows anew.
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

// === impl ThrottleFields ===

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
            // The value is the proxy's own and short: the tag of a task.
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

    /// The lines that are written while `log` runs.
    fn written(throttle: &Arc<LogThrottle>, log: impl FnOnce()) -> Vec<String> {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&lines);
        let take = move |_: &Level, line: &str| kept.lock().expect("whole").push(line.to_owned());
        let layer = LogLayer::new(LineFormat::Text, || SystemTime::UNIX_EPOCH, take)
            .throttled(Arc::clone(throttle), || {});
        tracing::subscriber::with_default(registry().with(layer), log);
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
        let suppressed = SuppressedLines { event: "refused".to_owned(), of: "/loud".to_owned(), count: left };
        assert_eq!(throttle.take_suppressed(), [suppressed]);
        assert_eq!(throttle.take_suppressed(), []);
        let again = written(&throttle, || tracing::warn!(event = "refused", route = "/loud"));
        assert_eq!(again.len(), 1);
    }

    #[test]
    fn records_are_always_written_and_task_lines_are_counted_by_task() {
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
    fn lines_are_written_again_in_the_next_window() {
        let throttle = LogThrottle::default();
        let at = crate::runtime::Clock::now(&crate::runtime::SystemClock::new());
        struct Kind;
        impl tracing::callsite::Callsite for Kind {
            fn set_interest(&self, _: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &tracing::Metadata<'_> {
                unreachable!("only its identity is used")
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
            "the count is reported first"
        );
        assert_eq!(throttle.take_suppressed()[0].count, 2);
        assert_eq!(count(at + WINDOW), ThrottleVerdict::Write);
    }
}
