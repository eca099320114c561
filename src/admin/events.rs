//! `/events`: the whole state once a second, for an open admin page.
//!
//! The state is built once for all watchers, and only while there are any. A watcher gets the latest state
//! when it can accept it: a slow reader skips states, and a reader that accepts nothing is disconnected
//! ([`server`](super::server)).

use super::{
    metrics, processes,
    response::{AdminResponse, error_response},
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
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of tasks in an event.
const MAX_EVENT_TASKS: usize = 200;

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
pub(super) fn open_stream(parts: &AdminParts) -> AdminResponse {
    let Ok(permit) = Arc::clone(&parts.events.permits).try_acquire_owned() else {
        let error = format!(
            "{WATCHERS} event streams are open, the maximum; close a page, or poll `/tasks` and `/tools`"
        );
        return error_response(StatusCode::SERVICE_UNAVAILABLE, &error);
    };
    let mut latest = parts.events.latest.subscribe();
    if !latest.borrow_and_update().is_empty() {
        latest.mark_changed();
    }
    parts.events.watcher_added.notify_one();
    let body = stream::unfold((latest, permit), |(mut latest, permit)| async move {
        latest.changed().await.ok()?;
        let event = latest.borrow_and_update().clone();
        Some((Ok::<_, Infallible>(Frame::data(event)), (latest, permit)))
    });
    let mut response = Response::new(StreamBody::new(body).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Publishes an event every second while there are watchers. The future never ends.
pub(super) async fn publish_periodically(parts: impl Fn() -> Arc<AdminParts> + Send) {
    let events = Arc::clone(&parts().events);
    let EventStreams { latest, watcher_added, .. } = &*events;
    loop {
        if latest.receiver_count() == 0 {
            // The old state is useless to later watchers.
            latest.send_replace(Bytes::new());
            watcher_added.notified().await;
            continue;
        }
        let event = format!("event: state\ndata: {}\n\n", state_json(&parts()).await);
        latest.send_replace(event.into());
        sleep(EVENT_INTERVAL).await;
    }
}

/// Returns the state of the proxy on one line of JSON; without tasks if the store fails.
async fn state_json(parts: &AdminParts) -> String {
    let (_, ready) = parts.ready();
    let state = EventState {
        at: parts.operators.now().wall_time().to_string(),
        version: env!("CARGO_PKG_VERSION"),
        started: &parts.events.started,
        ready: to_raw_json(ready),
        calls: counted::call_counts(),
        tasks: tasks::first_page(parts, MAX_EVENT_TASKS).await.ok(),
        tools: to_raw_json(metrics::tools_json(parts.events.started())),
        limits: to_raw_json(metrics::limits_json(&parts.ledger).await),
        routes: to_raw_json(routes::routes_json(&parts.routes)),
        processes: to_raw_json(processes::processes_json(&parts.servers)),
        questions_waiting: counted::open_input_requests(),
    };
    serde_json::to_string(&state).expect("it is written to memory")
}

/// Embeds JSON from a serializer, which contains no line breaks.
fn to_raw_json(json: Bytes) -> Box<RawValue> {
    let text = String::from_utf8(json.into()).expect("JSON is text");
    RawValue::from_string(text).expect("it was written by a serializer")
}
