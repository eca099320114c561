//! `/events`: the whole state once a second, for an open admin page.
//!
//! The state is built once for all watchers, and only while there are any. A watcher gets the latest state
//! when it can accept it: a slow reader skips states, and a reader that accepts nothing is disconnected
//! ([`server`](super::server)).

use super::{
    metrics, processes,
    response::{AdminResponse, problem},
    routes,
    server::AdminParts,
    tasks,
};
use crate::telemetry::metrics as counted;
use bytes::Bytes;
use futures_util::stream;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde::Serialize;
use serde_json::value::RawValue;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::sleep,
};

/// The open `/events` streams.
pub struct EventStreams {
    /// The latest event as sent; empty while there were no watchers.
    latest: watch::Sender<Bytes>,
    /// Notified when a watcher is added.
    watcher_added: Notify,
    /// Permits of watchers, at most [`WATCHERS`].
    permits: Arc<Semaphore>,
    /// The start time of the proxy, formatted.
    started: String,
}

/// The content of an event: the whole state of the proxy.
#[derive(Serialize)]
struct EventState<'a> {
    at: String,
    version: &'a str,
    started: &'a str,
    ready: Box<RawValue>,
    calls: counted::CallCounts,
    tasks: Option<tasks::TaskListPage>,
    tools: Box<RawValue>,
    limits: Box<RawValue>,
    routes: Box<RawValue>,
    processes: Box<RawValue>,
    questions_waiting: u64,
}

/// Maximum number of open streams; each uses one of the few connections of the listener.
const WATCHERS: usize = 8;

/// Interval between events.
const PERIOD: Duration = Duration::from_secs(1);

/// Maximum number of tasks in an event.
const TASKS: usize = 200;

// === impl EventStreams ===

impl EventStreams {
    /// Creates the set of streams, at first empty. `started` is the formatted start time of the proxy.
    pub fn new(started: String) -> Self {
        Self {
            latest: watch::Sender::new(Bytes::new()),
            watcher_added: Notify::new(),
            permits: Arc::new(Semaphore::new(WATCHERS)),
            started,
        }
    }

    /// Returns the formatted start time of the proxy.
    pub(super) fn started(&self) -> &str {
        &self.started
    }
}

/// Opens an event stream that lasts as long as its client reads it; 503 if too many streams are open.
pub(super) fn stream(parts: &AdminParts) -> AdminResponse {
    let Ok(place) = Arc::clone(&parts.events.permits).try_acquire_owned() else {
        let error = format!(
            "{WATCHERS} event streams are open, the maximum; close a page, or poll `/tasks` and `/tools`"
        );
        return problem(StatusCode::SERVICE_UNAVAILABLE, &error);
    };
    let mut latest = parts.events.latest.subscribe();
    if !latest.borrow_and_update().is_empty() {
        latest.mark_changed();
    }
    parts.events.watcher_added.notify_one();
    let body = stream::unfold((latest, place), |(mut latest, place)| async move {
        latest.changed().await.ok()?;
        let event = latest.borrow_and_update().clone();
        Some((Ok::<_, Infallible>(Frame::data(event)), (latest, place)))
    });
    let mut answer = Response::new(StreamBody::new(body).boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Publishes an event every second while there are watchers. The future never ends.
pub(super) async fn publish_periodically(parts: impl Fn() -> Arc<AdminParts> + Send) {
    let events = Arc::clone(&parts().events);
    let EventStreams { latest, watcher_added: begins, .. } = &*events;
    loop {
        if latest.receiver_count() == 0 {
            // The old state is useless to later watchers.
            latest.send_replace(Bytes::new());
            begins.notified().await;
            continue;
        }
        let event = format!("event: state\ndata: {}\n\n", state(&parts()).await);
        latest.send_replace(event.into());
        sleep(PERIOD).await;
    }
}

/// Returns the state of the proxy on one line of JSON; without tasks if the store fails.
async fn state(parts: &AdminParts) -> String {
    let (_, ready) = parts.ready();
    let state = EventState {
        at: parts.operators.now().wall().to_string(),
        version: env!("CARGO_PKG_VERSION"),
        started: &parts.events.started,
        ready: raw(ready),
        calls: counted::calls(),
        tasks: tasks::first(parts, TASKS).await.ok(),
        tools: raw(metrics::tools(parts.events.started())),
        limits: raw(metrics::limits(&parts.ledger).await),
        routes: raw(routes::shown(&parts.routes)),
        processes: raw(processes::shown(&parts.servers)),
        questions_waiting: counted::questions_waiting(),
    };
    serde_json::to_string(&state).expect("it is written to memory")
}

/// Embeds JSON from a serializer, which contains no line breaks.
fn raw(json: Bytes) -> Box<RawValue> {
    let text = String::from_utf8(json.into()).expect("JSON is text");
    RawValue::from_string(text).expect("it was written by a serializer")
}
