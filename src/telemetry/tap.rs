//! A live view of requests, tasks and input requests, for operators (`deferral tap`).
//!
//! If no tap is open, an event costs one relaxed read ([`is_open`]). A tap has a bounded queue of lines;
//! lines that do not fit are dropped and counted, so that a slow reader costs the memory of one queue and
//! never delays a call.

use crate::runtime::{Mutex, wall_time};
use serde_json::{Map, Value};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use tokio::sync::mpsc;

/// Maximum number of taps that are open at a time.
pub const MAX_TAPS: usize = 4;

/// Maximum number of lines in the queue of a tap. Further lines are dropped.
const QUEUE_LINES: usize = 1024;

/// Maximum size of shown arguments and results, in bytes. Larger ones are shown by their size.
pub const MAX_CONTENT_BYTES: usize = 16 << 10;

/// The number of open taps.
static OPEN_TAPS: AtomicUsize = AtomicUsize::new(0);
/// The number of open taps that show arguments and results.
static OPEN_CONTENT_TAPS: AtomicUsize = AtomicUsize::new(0);
/// The open taps.
static SUBSCRIBERS: Mutex<Vec<Arc<TapSubscriber>>> = Mutex::new(Vec::new());

/// A function that returns whether a tool name matches.
pub type ToolFilter = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// The events that a tap shows. An absent member matches everything.
#[derive(Default)]
pub struct TapFilter {
    /// The path of the route.
    pub route: Option<String>,
    /// The callers as the access log shows them: the digits of a principal, or the name of a token. One must
    /// match.
    pub callers: Option<Vec<String>>,
    /// The filter for tool names.
    pub tool: Option<ToolFilter>,
    /// Whether arguments and results are shown.
    pub shows_content: bool,
}

/// The filter and the queue of an open tap.
struct TapSubscriber {
    filter: TapFilter,
    lines: mpsc::Sender<String>,
    /// The number of lines dropped since the last report.
    dropped: AtomicU64,
}

/// A tap, which is open until it is dropped.
pub struct Tap {
    subscriber: Arc<TapSubscriber>,
    lines: mpsc::Receiver<String>,
}

/// Error: the maximum number of taps is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyTaps;

/// The subject of an event, by which taps select events.
#[derive(Clone, Copy)]
pub struct TapSubject<'a> {
    pub route: &'a str,
    pub principal: &'a dyn fmt::Display,
    /// The name of the caller's token, if known.
    pub token: Option<&'a str>,
    /// Empty if the event is not about a tool.
    pub tool: &'a str,
}

/// The arguments and the result of a call, for taps that show them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallContent {
    pub arguments: Option<Value>,
    pub result: Option<Value>,
}

/// Whether a tap is open.
pub fn is_open() -> bool {
    OPEN_TAPS.load(Ordering::Relaxed) > 0
}

/// Whether a tap that shows arguments and results is open.
pub fn has_content_taps() -> bool {
    OPEN_CONTENT_TAPS.load(Ordering::Relaxed) > 0
}

/// Publishes an event to the open taps. `fields` is called only if a tap shows the event; `content` is for
/// taps that show arguments and results.
pub fn publish(
    event: &str,
    subject: TapSubject<'_>,
    content: Option<&CallContent>,
    fields: impl FnOnce(&mut Map<String, Value>),
) {
    let subscribers: Vec<_> = SUBSCRIBERS
        .lock()
        .iter()
        .filter(|subscriber| subscriber.filter.matches(subject))
        .map(Arc::clone)
        .collect();
    if subscribers.is_empty() {
        return;
    }
    let mut line = Map::new();
    line.insert("at".to_owned(), wall_time().to_string().into());
    line.insert("event".to_owned(), event.into());
    line.insert("route".to_owned(), subject.route.into());
    line.insert("principal".to_owned(), subject.principal.to_string().into());
    line.extend(subject.token.map(|token| ("caller".to_owned(), token.into())));
    fields(&mut line);
    let redacted = Value::Object(line.clone()).to_string();
    for subscriber in subscribers {
        let content = content.filter(|_| subscriber.filter.shows_content);
        let text = match content {
            None => redacted.clone(),
            Some(content) => {
                let mut line = line.clone();
                for (name, value) in [("arguments", &content.arguments), ("result", &content.result)] {
                    line.extend(value.clone().map(|value| (name.to_owned(), value)));
                }
                Value::Object(line).to_string()
            }
        };
        if subscriber.lines.try_send(text).is_err() {
            subscriber.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Parses JSON for a tap; a value of more than 16 KiB is replaced by its size in words.
pub fn content_or_size(json: &[u8]) -> Value {
    match json.len() <= MAX_CONTENT_BYTES {
        true => serde_json::from_slice(json).unwrap_or(Value::Null),
        false => format!("({} bytes)", json.len()).into(),
    }
}

// === impl TapFilter ===

impl TapFilter {
    /// Whether the tap shows an event with this subject.
    fn matches(&self, subject: TapSubject<'_>) -> bool {
        let matches_caller = |callers: &[String]| {
            let principal = subject.principal.to_string();
            callers.iter().any(|caller| *caller == principal || subject.token == Some(&**caller))
        };
        self.route.as_deref().is_none_or(|route| route == subject.route)
            && self
                .tool
                .as_ref()
                .is_none_or(|matches_tool| !subject.tool.is_empty() && matches_tool(subject.tool))
            && self.callers.as_deref().is_none_or(matches_caller)
    }
}

// === impl Tap ===

impl Tap {
    /// Opens a tap, which receives the matching events from now on.
    ///
    /// # Errors
    /// [`TooManyTaps`].
    pub fn open(filter: TapFilter) -> Result<Self, TooManyTaps> {
        let (sender, lines) = mpsc::channel(QUEUE_LINES);
        let subscriber = Arc::new(TapSubscriber { filter, lines: sender, dropped: AtomicU64::new(0) });
        let mut subscribers = SUBSCRIBERS.lock();
        if subscribers.len() >= MAX_TAPS {
            return Err(TooManyTaps);
        }
        OPEN_TAPS.fetch_add(1, Ordering::Relaxed);
        OPEN_CONTENT_TAPS.fetch_add(usize::from(subscriber.filter.shows_content), Ordering::Relaxed);
        subscribers.push(Arc::clone(&subscriber));
        Ok(Self { subscriber, lines })
    }

    /// Waits for the next line, a JSON object. If lines were dropped, a line with their number comes first.
    pub async fn next(&mut self) -> String {
        let dropped = self.subscriber.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            return format!(r#"{{"event":"lost","lines":{dropped}}}"#);
        }
        self.lines.recv().await.expect("the subscriber keeps the sender")
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        SUBSCRIBERS.lock().retain(|subscriber| !Arc::ptr_eq(subscriber, &self.subscriber));
        OPEN_CONTENT_TAPS.fetch_sub(usize::from(self.subscriber.filter.shows_content), Ordering::Relaxed);
        OPEN_TAPS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn about<'a>(route: &'a str, caller: &'a str, tool: &'a str) -> TapSubject<'a> {
        TapSubject { route, principal: Box::leak(Box::new(caller.to_owned())), token: None, tool }
    }

    fn next(tap: &mut Tap) -> Option<Value> {
        tap.next().now_or_never().map(|line| serde_json::from_str(&line).expect("JSON"))
    }

    // A single test, because the taps are global to the process.
    #[test]
    fn a_tap_filters_events_and_counts_dropped_lines() {
        assert!(!is_open());
        let filter = TapFilter { route: Some("/a".to_owned()), ..TapFilter::default() };
        let Ok(mut of_route) = Tap::open(filter) else { panic!("there is room") };
        let filter = TapFilter {
            tool: Some(Box::new(|tool| tool == "t")),
            shows_content: true,
            ..TapFilter::default()
        };
        let Ok(mut of_tool) = Tap::open(filter) else { panic!("there is room") };
        assert!(is_open() && has_content_taps());
        let content = CallContent { arguments: Some(1.into()), result: None };
        publish("request", about("/a", "c", "other"), Some(&content), |line| {
            drop(line.insert("x".to_owned(), 7.into()))
        });
        let line = next(&mut of_route).expect("it is shown");
        assert_eq!((&line["event"], &line["x"], line.get("arguments")), (&"request".into(), &7.into(), None));
        assert_eq!(next(&mut of_tool), None);
        publish("request", about("/b", "c", "t"), Some(&content), |_| {});
        assert_eq!(next(&mut of_tool).expect("it is shown")["arguments"], 1);
        assert_eq!(next(&mut of_route), None);
        for _ in 0..QUEUE_LINES + 5 {
            publish("request", about("/a", "c", ""), None, |_| {});
        }
        assert_eq!(next(&mut of_route).expect("it says so")["lines"], 5);
        assert_eq!(next(&mut of_route).expect("then the others")["event"], "request");
        let filter =
            TapFilter { callers: Some(vec!["c".to_owned(), "d".to_owned()]), ..TapFilter::default() };
        let Ok(mut of_callers) = Tap::open(filter) else { panic!("there is room") };
        publish("request", about("/b", "e", "t"), None, |_| {});
        publish("request", TapSubject { token: Some("d"), ..about("/b", "f", "t") }, None, |_| {});
        let line = next(&mut of_callers).expect("it is shown");
        assert_eq!((&line["principal"], &line["caller"]), (&"f".into(), &"d".into()));
        assert_eq!(next(&mut of_callers), None);
        drop(of_callers);
        let open: Vec<_> = (0..MAX_TAPS - 2).map(|_| Tap::open(TapFilter::default()).ok()).collect();
        assert!(Tap::open(TapFilter::default()).is_err());
        drop((of_route, of_tool, open));
        assert!(!is_open() && !has_content_taps());
    }
}
