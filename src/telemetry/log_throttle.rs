//! Limits the number of log lines of one kind.
//!
//! Clients and servers cause log lines: a refused input request, an unknown task, a line on standard error.
//! Without a limit, a single peer could fill the disk. For each kind of line and each route, at most
//! [`MAX_LINES`] lines are written within [`WINDOW`]; further lines are counted, and the count is logged as
//! `lines_suppressed`. Events named [`RECORD`] are exempt: each request or call has one, and they are read as
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

/// The name (in `tracing`) of events that are never suppressed.
pub const RECORD: &str = "record";

/// The name (in `tracing`) of events of a task, which are counted by task instead of by route.
pub const TASK_EVENT: &str = "task";

/// Maximum number of lines of one kind and route within [`WINDOW`].
const MAX_LINES: u32 = 200;
/// The interval after which further lines of a kind are written.
pub const WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of pairs of kind and route that are tracked. Other pairs are not throttled: there are few
/// routes, and tasks are bounded by quotas.
const MAX_TRACKED_KINDS: usize = 4096;
/// Maximum length of a stored route or task id, in bytes.
const MAX_SCOPE_BYTES: usize = 128;

/// Counts log lines by kind, and by route or task.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<HashMap<ThrottleKey, ThrottleWindow>>);

/// A kind of line (its place in the source), and its route or task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ThrottleKey {
    kind: Identifier,
    scope: String,
}

/// The lines of one kind and route in the current interval.
#[derive(Debug)]
struct ThrottleWindow {
    since: Instant,
    written: u32,
    suppressed: u64,
    event: String,
}

/// How many lines from one place in the source, about one route or task, were suppressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuppressedLines {
    /// The field `event` of the lines. Lines from another place in the source are counted separately, even if
    /// they have the same event.
    pub event: String,
    /// The route or the task of the lines; empty if they have none.
    pub scope: String,
    pub count: u64,
}

/// The decision whether a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleVerdict {
    Write,
    /// The line is suppressed. `is_first` is set for the first one of its kind and route in this window.
    Suppress {
        is_first: bool,
    },
}

/// The fields of an event that the throttle reads.
#[derive(Default)]
struct ThrottleFields {
    is_of_task: bool,
    event: String,
    scope: String,
}

// === impl LogThrottle ===

impl LogThrottle {
    /// Counts a line, and decides whether it is written. The clock is read only for lines that can be
    /// suppressed.
    pub fn check(&self, event: &Event<'_>, now: impl FnOnce() -> Instant) -> ThrottleVerdict {
        let metadata = event.metadata();
        if metadata.name() == RECORD {
            return ThrottleVerdict::Write;
        }
        let mut fields =
            ThrottleFields { is_of_task: metadata.name() == TASK_EVENT, ..ThrottleFields::default() };
        event.record(&mut fields);
        let ThrottleFields { event, scope, .. } = fields;
        self.count(ThrottleKey { kind: metadata.callsite(), scope }, event, now())
    }

    fn count(&self, key: ThrottleKey, event: String, now: Instant) -> ThrottleVerdict {
        let mut windows = self.windows();
        if windows.len() >= MAX_TRACKED_KINDS && !windows.contains_key(&key) {
            windows.retain(|_, window| window.suppressed > 0 || now.duration_since(window.since) < WINDOW);
            if windows.len() >= MAX_TRACKED_KINDS {
                return ThrottleVerdict::Write;
            }
        }
        let window =
            windows.entry(key).or_insert(ThrottleWindow { since: now, written: 0, suppressed: 0, event });
        // Keep a window with unreported suppressed lines; they are reported within twice the interval.
        if now.duration_since(window.since) >= WINDOW && window.suppressed == 0 {
            (window.since, window.written) = (now, 0);
        }
        if window.written < MAX_LINES {
            window.written += 1;
            return ThrottleVerdict::Write;
        }
        window.suppressed += 1;
        ThrottleVerdict::Suppress { is_first: window.suppressed == 1 }
    }

    /// Takes the counts of suppressed lines, and ends their windows.
    pub fn take_suppressed(&self) -> Vec<SuppressedLines> {
        let mut taken = Vec::new();
        self.windows().retain(|key, window| {
            if window.suppressed > 0 {
                let event = std::mem::take(&mut window.event);
                taken.push(SuppressedLines { event, scope: key.scope.clone(), count: window.suppressed });
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
    fn field_mut(&mut self, field: &Field) -> Option<&mut String> {
        match (field.name(), self.is_of_task) {
            ("event", _) => Some(&mut self.event),
            ("route", false) | ("task", true) => Some(&mut self.scope),
            _ => None,
        }
    }
}

impl Visit for ThrottleFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if let Some(target) = self.field_mut(field) {
            let end = (0..=value.len().min(MAX_SCOPE_BYTES)).rev().find(|end| value.is_char_boundary(*end));
            target.push_str(&value[..end.unwrap_or(0)]);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if let Some(target) = self.field_mut(field) {
            // The value is written by the proxy, and short: the tag of a task.
            let _ = write!(target, "{value:?}");
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
        assert_eq!(count("event=refused route=/loud"), MAX_LINES as usize);
        assert_eq!((count("route=/quiet"), count("event=other")), (10, 10));
        let left = FLOOD - u64::from(MAX_LINES);
        let suppressed =
            SuppressedLines { event: "refused".to_owned(), scope: "/loud".to_owned(), count: left };
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
        assert_eq!((count("task=0 "), count("task=1 ")), (MAX_LINES as usize, MAX_LINES as usize));
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
        let key = || ThrottleKey { kind: Identifier(&KIND), scope: String::new() };
        let count = |now| throttle.count(key(), "e".to_owned(), now);
        for _ in 0..MAX_LINES {
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
