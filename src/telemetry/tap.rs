//! Live view of requests, tasks and input requests, for operators (`deferral tap`).
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

/// Maximum number of open taps.
pub const TAPS: usize = 4;

/// Maximum number of lines in the queue of a tap. Further lines are dropped.
const LINES: usize = 1024;

/// Maximum size of shown arguments and results, in bytes. Larger ones are shown by their size.
pub const SHOWN_BYTES: usize = 16 << 10;

/// Number of open taps, and of those that show arguments and results.
static OPEN: AtomicUsize = AtomicUsize::new(0);
static WITH_ARGUMENTS: AtomicUsize = AtomicUsize::new(0);
static SUBSCRIBERS: Mutex<Vec<Arc<TapSubscriber>>> = Mutex::new(Vec::new());

/// Whether a tool name matches.
pub type ToolFilter = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// The events that a tap shows. Absent members match everything.
#[derive(Default)]
pub struct TapFilter {
    /// The path of the route.
    pub route: Option<String>,
    /// Callers as shown in the access log: the digits of a principal, or the name of a token. One must match.
    pub callers: Option<Vec<String>>,
    /// The filter for tool names.
    pub tool: Option<ToolFilter>,
    /// Whether arguments and results are shown.
    pub arguments: bool,
}

struct TapSubscriber {
    filter: TapFilter,
    lines: mpsc::Sender<String>,
    dropped: AtomicU64,
}

/// A tap, open until it is dropped.
pub struct Tap {
    subscriber: Arc<TapSubscriber>,
    lines: mpsc::Receiver<String>,
}

/// The maximum of [`TAPS`] taps is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyTaps;

/// What an event is about.
#[derive(Clone, Copy)]
pub struct TapSubject<'a> {
    pub route: &'a str,
    pub principal: &'a dyn fmt::Display,
    /// The name of the caller's token, if known.
    pub token: Option<&'a str>,
    /// Empty if the event is not about a tool.
    pub tool: &'a str,
}

/// Arguments and result of a call, for taps that show them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallContent {
    pub arguments: Option<Value>,
    pub result: Option<Value>,
}

/// Whether a tap is open.
pub fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}

/// Whether a tap that shows arguments and results is open.
pub fn has_argument_taps() -> bool {
    WITH_ARGUMENTS.load(Ordering::Relaxed) > 0
}

/// Publishes an event to the open taps. `fields` is called only if a tap shows the event; `content` is for
/// taps that show arguments and results.
pub fn publish(
    event: &str,
    about: TapSubject<'_>,
    content: Option<&CallContent>,
    fields: impl FnOnce(&mut Map<String, Value>),
) {
    let watchers: Vec<_> =
        SUBSCRIBERS.lock().iter().filter(|watcher| watcher.filter.matches(about)).map(Arc::clone).collect();
    if watchers.is_empty() {
        return;
    }
    let mut line = Map::new();
    line.insert("at".to_owned(), wall_time().to_string().into());
    line.insert("event".to_owned(), event.into());
    line.insert("route".to_owned(), about.route.into());
    line.insert("principal".to_owned(), about.principal.to_string().into());
    line.extend(about.token.map(|token| ("caller".to_owned(), token.into())));
    fields(&mut line);
    let redacted = Value::Object(line.clone()).to_string();
    for watcher in watchers {
        let content = content.filter(|_| watcher.filter.arguments);
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
        if watcher.lines.try_send(text).is_err() {
            watcher.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The JSON value, or its size if it is too large.
pub fn content_or_size(json: &[u8]) -> Value {
    match json.len() <= SHOWN_BYTES {
        true => serde_json::from_slice(json).unwrap_or(Value::Null),
        false => format!("({} bytes)", json.len()).into(),
    }
}

// === impl TapFilter ===

impl TapFilter {
    fn matches(&self, about: TapSubject<'_>) -> bool {
        let is_caller = |callers: &[String]| {
            let principal = about.principal.to_string();
            callers.iter().any(|caller| *caller == principal || about.token == Some(&**caller))
        };
        self.route.as_deref().is_none_or(|route| route == about.route)
            && self.tool.as_ref().is_none_or(|is_tool| !about.tool.is_empty() && is_tool(about.tool))
            && self.callers.as_deref().is_none_or(is_caller)
    }
}

// === impl Tap ===

impl Tap {
    /// Opens a tap.
    ///
    /// # Errors
    /// [`TooManyTaps`].
    pub fn open(filter: TapFilter) -> Result<Self, TooManyTaps> {
        let (sender, lines) = mpsc::channel(LINES);
        let watcher = Arc::new(TapSubscriber { filter, lines: sender, dropped: AtomicU64::new(0) });
        let mut watchers = SUBSCRIBERS.lock();
        if watchers.len() >= TAPS {
            return Err(TooManyTaps);
        }
        OPEN.fetch_add(1, Ordering::Relaxed);
        WITH_ARGUMENTS.fetch_add(usize::from(watcher.filter.arguments), Ordering::Relaxed);
        watchers.push(Arc::clone(&watcher));
        Ok(Self { subscriber: watcher, lines })
    }

    /// The next line, a JSON object. If lines were dropped, their number comes first.
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
        SUBSCRIBERS.lock().retain(|watcher| !Arc::ptr_eq(watcher, &self.subscriber));
        WITH_ARGUMENTS.fetch_sub(usize::from(self.subscriber.filter.arguments), Ordering::Relaxed);
        OPEN.fetch_sub(1, Ordering::Relaxed);
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
        let filter =
            TapFilter { tool: Some(Box::new(|tool| tool == "t")), arguments: true, ..TapFilter::default() };
        let Ok(mut of_tool) = Tap::open(filter) else { panic!("there is room") };
        assert!(is_open() && has_argument_taps());
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
        for _ in 0..LINES + 5 {
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
        let open: Vec<_> = (0..TAPS - 2).map(|_| Tap::open(TapFilter::default()).ok()).collect();
        assert!(Tap::open(TapFilter::default()).is_err());
        drop((of_route, of_tool, open));
        assert!(!is_open() && !has_argument_taps());
    }
}
