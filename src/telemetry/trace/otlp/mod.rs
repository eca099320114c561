//! Export to a collector: spans are batched and sent by a separate runtime task.
//!
//! Requests never wait for the export. An ended span goes into a queue; if the queue is full, the span is
//! dropped and counted. A failed export is retried a few times while the queue fills; losses are logged once
//! a minute. At shutdown the remaining spans are sent, within a time limit.

mod collector;
mod protobuf;

use super::{
    ExportSettings, TraceSources,
    span::{SpanRecord, SpanRecorder, Tracer},
};
use crate::telemetry::events::SpansLost;
use bytes::Bytes;
use collector::{ExportError, MAX_REASON_CHARS, OtlpCollector};
use futures_util::{FutureExt, future::BoxFuture};
use protobuf::PartialSuccess;
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Sleep, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Maximum number of queued spans (about 3 MiB); further ones are dropped and counted. The OpenTelemetry SDKs
/// use the same number.
const QUEUE: usize = 2048;

/// Maximum number of spans in one export.
const BATCH: usize = 512;

/// Maximum time that a span waits until an export has more spans.
const BATCH_DELAY: Duration = Duration::from_secs(5);

/// Maximum number of retries of an export.
const RETRIES: u32 = 3;

/// Delay before the first retry of an export. It doubles with each further retry, and is longer if the
/// collector requests it.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Maximum delay before a retry that a collector can request.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Minimum time between two reports of lost spans.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The handle of the running exporter.
#[derive(Debug)]
pub struct ExporterHandle {
    closing: CancellationToken,
    task: JoinHandle<()>,
}

/// A function that sends one request to the collector.
type ExportFn = Box<dyn Fn(Bytes) -> BoxFuture<'static, Result<Option<PartialSuccess>, ExportError>> + Send>;

/// The runtime task that exports ended spans.
struct SpanExporter {
    queue: mpsc::Receiver<Box<SpanRecord>>,
    export: ExportFn,
    resource: Vec<(String, String)>,
    closing: CancellationToken,
    losses: LossReporter,
}

/// Counts lost spans until they are logged.
struct LossReporter {
    /// Spans dropped because the queue was full.
    dropped: Arc<AtomicU64>,
    /// Spans that the collector did not accept.
    refused: u64,
    /// The last reason; empty if no export failed.
    reason: String,
    /// A timer until the next report is allowed; `None` if it is allowed now.
    next_report: Option<Pin<Box<Sleep>>>,
}

/// Starts the export to a collector; returns the tracer for the spans, and the handle to stop the export.
/// Must be called within a runtime.
pub fn start(settings: &ExportSettings, sources: TraceSources) -> (Tracer, ExporterHandle) {
    let collector = Arc::new(OtlpCollector::new(settings));
    let export = move |request| {
        let collector = Arc::clone(&collector);
        async move { collector.export(request).await }.boxed()
    };
    start_with(Box::new(export), settings, sources)
}

fn start_with(
    export: ExportFn,
    settings: &ExportSettings,
    sources: TraceSources,
) -> (Tracer, ExporterHandle) {
    let (sender, queue) = mpsc::channel(QUEUE);
    let (dropped, closing) = (Arc::<AtomicU64>::default(), CancellationToken::new());
    let exporter = SpanExporter {
        queue,
        export,
        resource: resource_attributes(settings, sources),
        closing: closing.clone(),
        losses: LossReporter {
            dropped: Arc::clone(&dropped),
            refused: 0,
            reason: String::new(),
            next_report: None,
        },
    };
    let task = tokio::spawn(exporter.run());
    let tracer = Tracer::new(SpanRecorder { sampler: settings.sampler, sources, queue: sender, dropped });
    (tracer, ExporterHandle { closing, task })
}

/// The resource attributes of this process. Configured ones take precedence.
fn resource_attributes(settings: &ExportSettings, sources: TraceSources) -> Vec<(String, String)> {
    let instance_id = u128::from_be_bytes(*(sources.random)().first_chunk().expect("the array is longer"));
    let defaults = [
        ("service.name", "deferral".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", format!("{instance_id:032x}")),
        ("telemetry.sdk.name", "deferral".to_owned()),
        ("telemetry.sdk.language", "rust".to_owned()),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let mut resource = settings.resource.clone();
    for (key, value) in defaults {
        if !resource.iter().any(|(configured, _)| configured == key) {
            resource.push((key.to_owned(), value));
        }
    }
    resource
}

// === impl ExporterHandle ===

impl ExporterHandle {
    /// Stops the export: sends the remaining spans, and waits for this at most for `limit`.
    pub async fn close(self, limit: Duration) {
        self.closing.cancel();
        let abort_handle = self.task.abort_handle();
        if timeout(limit, self.task).await.is_err() {
            abort_handle.abort();
        }
    }
}

// === impl SpanExporter ===

impl SpanExporter {
    async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            self.collect_batch(&mut batch).await;
            if batch.is_empty() {
                break;
            }
            let count = batch.len() as u64;
            let request = Bytes::from(protobuf::export_request(&batch, &self.resource));
            // The request contains the spans: drop their records before waiting for the collector.
            batch.clear();
            self.send(request, count).await;
            self.losses.report_losses();
        }
        // Write the last report at once.
        self.losses.next_report = None;
        self.losses.report_losses();
    }

    /// Collects spans for one export, until the batch is full or its oldest span has waited long enough. The
    /// batch is empty at the end.
    #[expect(clippy::vec_box, reason = "as they come out of the queue, in which each is a pointer")]
    async fn collect_batch(&mut self, batch: &mut Vec<Box<SpanRecord>>) {
        let Self { queue, closing, losses, .. } = self;
        let mut deadline = None::<Pin<Box<Sleep>>>;
        while batch.len() < BATCH {
            let free = BATCH - batch.len();
            tokio::select! {
                biased;
                () = closing.cancelled() => {
                    while batch.len() < BATCH && let Ok(span) = queue.try_recv() {
                        batch.push(span);
                    }
                    return;
                }
                count = queue.recv_many(batch, free) => {
                    // The count is 0 once all tracers were dropped.
                    if count == 0 {
                        return;
                    }
                    deadline.get_or_insert_with(|| Box::pin(sleep(BATCH_DELAY)));
                }
                () = async { deadline.as_mut().expect("the timer is set").await }, if deadline.is_some() => return,
                () = losses.wait_until_due() => losses.report_losses(),
            }
        }
    }

    /// Sends one export of `count` spans, with retries; counts the spans that are lost.
    async fn send(&mut self, request: Bytes, count: u64) {
        for attempt in 0.. {
            let error = match (self.export)(request.clone()).await {
                Ok(None) => return,
                Ok(Some(partial)) => {
                    let reason: String = partial.message.chars().take(MAX_REASON_CHARS).collect();
                    return self.losses.add_refused(partial.rejected.min(count), reason);
                }
                Err(error) => error,
            };
            let (Some(requested), 0..RETRIES, false) = (error.retry, attempt, self.closing.is_cancelled())
            else {
                return self.losses.add_refused(count, error.reason);
            };
            let pause = FIRST_RETRY_DELAY * (1 << attempt);
            let pause = requested.map_or(pause, |requested| requested.clamp(pause, MAX_RETRY_DELAY));
            tokio::select! {
                () = sleep(pause) => {}
                // At shutdown, retry once without a pause.
                () = self.closing.cancelled() => {}
            }
        }
    }
}

// === impl LossReporter ===

impl LossReporter {
    /// Counts spans that the collector did not accept.
    fn add_refused(&mut self, count: u64, reason: String) {
        (self.refused, self.reason) = (self.refused + count, reason);
    }

    /// Waits until a report is allowed again; for ever if it is allowed now.
    async fn wait_until_due(&mut self) {
        match &mut self.next_report {
            Some(timer) => timer.await,
            // The next export reports the losses, so there is nothing to wait for.
            None => std::future::pending().await,
        }
        self.next_report = None;
    }

    /// Logs the losses, unless the last report is too recent.
    fn report_losses(&mut self) {
        if self.next_report.is_some() {
            return;
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped == 0 && self.refused == 0 && self.reason.is_empty() {
            return;
        }
        SpansLost { dropped, refused: std::mem::take(&mut self.refused), why: &self.reason }.emit();
        self.reason.clear();
        self.next_report = Some(Box::pin(sleep(REPORT_INTERVAL)));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::SpanKind, *};
    use crate::telemetry::{LineFormat, LogLayer};
    use http::Uri;
    use std::{sync::Mutex, time::SystemTime};
    use tracing::subscriber::DefaultGuard;
    use tracing_subscriber::layer::SubscriberExt;

    #[expect(clippy::disallowed_methods, reason = "the time of a test, which is paused")]
    fn now() -> tokio::time::Instant {
        tokio::time::Instant::now()
    }

    /// Times of exports, in seconds.
    type Times = Arc<Mutex<Vec<u64>>>;

    /// An exporter whose collector responds with `answer`, and the times of its exports.
    fn collector<F>(answer: impl Fn() -> F + Send + Sync + 'static) -> (Tracer, ExporterHandle, Times)
    where
        F: Future<Output = Result<Option<PartialSuccess>, ExportError>> + Send + 'static,
    {
        let (times, began) = (Times::default(), now());
        let recorded = Arc::clone(&times);
        let export = move |_request| {
            recorded.lock().unwrap().push((now() - began).as_secs());
            answer().boxed()
        };
        let world = TraceSources { now: || SystemTime::UNIX_EPOCH, random: || [7; 24] };
        let settings = ExportSettings::for_collector(&Uri::from_static("http://c"), Default::default());
        let (tracer, exporting) = start_with(Box::new(export), &settings, world);
        (tracer, exporting, times)
    }

    fn gone(again: Option<Duration>) -> Result<Option<PartialSuccess>, ExportError> {
        Err(ExportError { reason: "gone".to_owned(), retry: Some(again) })
    }

    fn span(tracer: &Tracer) {
        tracer.begin(SpanKind::Server, None, || "n".to_owned());
    }

    /// The `spans_lost` lines that are logged while the guard is held.
    fn loss_lines() -> (Arc<Mutex<Vec<String>>>, DefaultGuard) {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&lines);
        let take = move |_: &tracing::Level, line: &str| {
            if let Some((_, line)) = line.split_once("event=spans_lost ") {
                kept.lock().unwrap().push(line.trim().to_owned());
            }
        };
        let layer = LogLayer::new(LineFormat::Text, || SystemTime::UNIX_EPOCH, take);
        (lines, tracing::subscriber::set_default(tracing_subscriber::registry().with(layer)))
    }

    #[tokio::test(start_paused = true)]
    async fn spans_are_sent_in_batches_by_time_and_size() {
        let (tracer, exporting, times) = collector(async || Ok(None));
        span(&tracer);
        sleep(BATCH_DELAY / 2).await;
        span(&tracer);
        sleep(BATCH_DELAY).await;
        assert_eq!(times.lock().unwrap()[..], [BATCH_DELAY.as_secs()]);
        for _ in 0..=BATCH {
            span(&tracer);
        }
        sleep(Duration::from_millis(1)).await;
        assert_eq!(times.lock().unwrap().len(), 2, "the one beyond waits");
        exporting.close(BATCH_DELAY).await;
        assert_eq!(times.lock().unwrap().len(), 3, "it is sent at the end");
    }

    #[tokio::test(start_paused = true)]
    async fn spans_are_dropped_and_counted_while_a_collector_stalls() {
        let (lines, _guard) = loss_lines();
        let (tracer, exporting, times) = collector(std::future::pending);
        for _ in 0..QUEUE + 70 {
            span(&tracer);
        }
        sleep(Duration::from_millis(1)).await;
        // One export is in flight.
        for _ in 0..BATCH + 7 {
            span(&tracer);
        }
        assert_eq!(times.lock().unwrap().len(), 1);
        let began = now();
        exporting.close(BATCH_DELAY).await;
        assert_eq!(now() - began, BATCH_DELAY, "it is not waited for any longer");
        assert!(lines.lock().unwrap().is_empty(), "no report after the end");
        drop(tracer);
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_spans_are_reported_when_the_collector_responds() {
        let (lines, _guard) = loss_lines();
        let (tracer, exporting, _) = collector(async || Ok(None));
        for _ in 0..QUEUE + 70 {
            span(&tracer);
        }
        sleep(BATCH_DELAY).await;
        assert_eq!(lines.lock().unwrap()[..], [r#"dropped=70 refused=0 why="""#]);
        exporting.close(BATCH_DELAY).await;
    }

    #[tokio::test(start_paused = true)]
    async fn exports_are_retried_and_losses_are_logged_once_a_minute() {
        let (lines, _guard) = loss_lines();
        let (tracer, exporting, times) = collector(async || gone(None));
        for _ in 0..12 {
            span(&tracer);
            sleep(Duration::from_secs(20)).await;
        }
        assert_eq!(times.lock().unwrap()[..4], [5, 6, 8, 12], "that many times, with growing pauses");
        assert_eq!(times.lock().unwrap().len(), 12 * (1 + RETRIES as usize));
        let lines = std::mem::take(&mut *lines.lock().unwrap());
        assert_eq!(lines[..2], ["dropped=0 refused=1 why=gone", "dropped=0 refused=3 why=gone"]);
        assert!(lines.len() <= 5, "{lines:#?}");
        exporting.close(BATCH_DELAY).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_can_request_a_longer_pause() {
        let (tracer, exporting, times) = collector(async || gone(Some(Duration::from_secs(3600))));
        span(&tracer);
        sleep(Duration::from_secs(300)).await;
        let pause = MAX_RETRY_DELAY.as_secs();
        assert_eq!(times.lock().unwrap()[..], [5, 5 + pause, 5 + 2 * pause, 5 + 3 * pause]);
        exporting.close(BATCH_DELAY).await;
    }
}
