//! `/events`: how everything is, once a second, for a page that is open.
//!
//! It is made once for all who watch, and only while somebody does. A watcher is given the latest when there is room
//! for it, and never what has been in between: one that reads slowly sees less of it, and one that reads nothing is let
//! go with its connection ([`server`](super::server)).

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

/// Those who watch.
pub struct EventStreams {
    /// An event as it is sent; empty where none was made for those who watch now.
    latest: watch::Sender<Bytes>,
    /// Told when somebody begins to watch.
    watcher_added: Notify,
    permits: Arc<Semaphore>,
    started: String,
}

/// What is told at a time.
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

/// Who may watch at a time; each has one of the few connections.
const WATCHERS: usize = 8;

/// How often they are told.
const PERIOD: Duration = Duration::from_secs(1);

/// Tasks that are told of.
const TASKS: usize = 200;

// === impl Events ===

impl EventStreams {
    /// `started` is when the proxy was, as people read it.
    pub fn new(started: String) -> Self {
        Self {
            latest: watch::Sender::new(Bytes::new()),
            watcher_added: Notify::new(),
            permits: Arc::new(Semaphore::new(WATCHERS)),
            started,
        }
    }

    /// When the proxy was started, as people read it.
    pub(super) fn started(&self) -> &str {
        &self.started
    }
}

/// A stream of events, as long as its reader stays.
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

/// Tells those who watch, for as long as it is polled.
pub(super) async fn publish_periodically(parts: impl Fn() -> Arc<AdminParts> + Send) {
    let events = Arc::clone(&parts().events);
    let EventStreams { latest, watcher_added: begins, .. } = &*events;
    loop {
        if latest.receiver_count() == 0 {
            // What was is of no use to whoever comes later.
            latest.send_replace(Bytes::new());
            begins.notified().await;
            continue;
        }
        let event = format!("event: state\ndata: {}\n\n", state(&parts()).await);
        latest.send_replace(event.into());
        sleep(PERIOD).await;
    }
}

/// Everything, on one line. Of a store that fails there are no tasks.
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

/// What was written as JSON, without line breaks.
fn raw(json: Bytes) -> Box<RawValue> {
    let text = String::from_utf8(json.into()).expect("JSON is text");
    RawValue::from_string(text).expect("it was written by a serializer")
}
