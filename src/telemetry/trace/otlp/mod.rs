//! Export to a collector: spans are batched and sent by a separate runtime task.
//!
//! Requests never wait for it. An ended span goes into a queue; if the queue is full, the span is dropped and
//! counted. A failed export is retried a few times while the queue fills; losses are logged once a minute. At
//! shutdown the remaining spans are sent, within a time limit.

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

/// Maximum number of queued spans; further ones are dropped and counted. The SDKs use the same number; about
/// 3 MiB.
const QUEUE: usize = 2048;

/// Maximum number of spans in one export.
const BATCH: usize = 512;

/// Maximum time that a span waits for others.
const DELAY: Duration = Duration::from_secs(5);

/// Maximum number of retries of an export.
const RETRIES: u32 = 3;

/// Pause before the first retry. It doubles with each further one, and is longer if the collector requests
/// it.
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause that a collector can request.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Minimum time between two reports of lost spans.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Handle of the running exporter.
#[derive(Debug)]
pub struct ExporterHandle {
    closing: CancellationToken,
    work: JoinHandle<()>,
}

/// Sends one request to the collector.
type ExportFn = Box<dyn Fn(Bytes) -> BoxFuture<'static, Result<Option<PartialSuccess>, ExportError>> + Send>;

struct SpanExporter {
    ended: mpsc::Receiver<Box<SpanRecord>>,
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
    why: String,
    /// No report before this time.
    next_report: Option<Pin<Box<Sleep>>>,
}

/// Starts the export to a collector. Must be called within a runtime.
pub fn start(settings: &ExportSettings, world: TraceSources) -> (Tracer, ExporterHandle) {
    let collector = Arc::new(OtlpCollector::new(settings));
    let export = move |request| {
        let collector = Arc::clone(&collector);
        async move { collector.export(request).await }.boxed()
    };
    start_with(Box::new(export), settings, world)
}

fn start_with(export: ExportFn, settings: &ExportSettings, world: TraceSources) -> (Tracer, ExporterHandle) {
    let (sender, ended) = mpsc::channel(QUEUE);
    let (dropped, closing) = (Arc::<AtomicU64>::default(), CancellationToken::new());
    let exporter = SpanExporter {
        ended,
        export,
        resource: resource(settings, world),
        closing: closing.clone(),
        losses: LossReporter {
            dropped: Arc::clone(&dropped),
            refused: 0,
            why: String::new(),
            next_report: None,
        },
    };
    let work = tokio::spawn(exporter.run());
    let tracer = Tracer::new(SpanRecorder { sampler: settings.sampler, world, ended: sender, dropped });
    (tracer, ExporterHandle { closing, work })
}

/// The resource attributes of this process. Those of the operator take precedence.
fn resource(settings: &ExportSettings, world: TraceSources) -> Vec<(String, String)> {
    let drawn = u128::from_be_bytes(*(world.random)().first_chunk().expect("the array is longer"));
    let own = [
        ("service.name", "deferral".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", format!("{drawn:032x}")),
        ("telemetry.sdk.name", "deferral".to_owned()),
        ("telemetry.sdk.language", "rust".to_owned()),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let mut resource = settings.resource.clone();
    for (key, value) in own {
        if !resource.iter().any(|(known, _)| known == key) {
            resource.push((key.to_owned(), value));
        }
    }
    resource
}

// === impl ExporterHandle ===

impl ExporterHandle {
    /// Sends the remaining spans, at most for `limit`.
    pub async fn close(self, limit: Duration) {
        self.closing.cancel();
        let work = self.work.abort_handle();
        if timeout(limit, self.work).await.is_err() {
            work.abort();
        }
    }
}

// === impl SpanExporter ===

impl SpanExporter {
    async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            self.gather(&mut batch).await;
            if batch.is_empty() {
                break;
            }
            let count = batch.len() as u64;
            let request = Bytes::from(protobuf::export_request(&batch, &self.resource));
            // The spans are not needed while waiting for the collector.
            batch.clear();
            self.send(request, count).await;
            self.losses.report_losses();
        }
        // The last report is not delayed.
        self.losses.next_report = None;
        self.losses.report_losses();
    }

    /// Collects spans for one export, until the batch is full or the oldest span has waited long enough. An
    /// empty batch means the end.
    #[expect(clippy::vec_box, reason = "as they come out of the queue, in which each is a pointer")]
    async fn gather(&mut self, batch: &mut Vec<Box<SpanRecord>>) {
        let Self { ended, closing, losses, .. } = self;
        let mut due = None::<Pin<Box<Sleep>>>;
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            tokio::select! {
                biased;
                () = closing.cancelled() => {
                    while batch.len() < BATCH && let Ok(span) = ended.try_recv() {
                        batch.push(span);
                    }
                    return;
                }
                count = ended.recv_many(batch, room) => {
                    // All tracers were dropped.
                    if count == 0 {
                        return;
                    }
                    due.get_or_insert_with(|| Box::pin(sleep(DELAY)));
                }
                () = async { due.as_mut().expect("the timer is set").await }, if due.is_some() => return,
                () = losses.wait_until_due() => losses.report_losses(),
            }
        }
    }

    /// Sends one export, with retries.
    async fn send(&mut self, request: Bytes, count: u64) {
        for attempt in 0.. {
            let not_taken = match (self.export)(request.clone()).await {
                Ok(None) => return,
                Ok(Some(partial)) => {
                    let words: String = partial.message.chars().take(MAX_REASON_CHARS).collect();
                    return self.losses.add_refused(partial.rejected.min(count), words);
                }
                Err(not_taken) => not_taken,
            };
            let (Some(wanted), 0..RETRIES, false) = (not_taken.retry, attempt, self.closing.is_cancelled())
            else {
                return self.losses.add_refused(count, not_taken.why);
            };
            let pause = PAUSE * (1 << attempt);
            let pause = wanted.map_or(pause, |wanted| wanted.clamp(pause, LONGEST_PAUSE));
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
    fn add_refused(&mut self, count: u64, why: String) {
        (self.refused, self.why) = (self.refused + count, why);
    }

    /// Waits until a report is allowed.
    async fn wait_until_due(&mut self) {
        match &mut self.next_report {
            Some(quiet) => quiet.await,
            // The next export reports the losses.
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
        if dropped == 0 && self.refused == 0 && self.why.is_empty() {
            return;
        }
        SpansLost { dropped, refused: std::mem::take(&mut self.refused), why: &self.why }.emit();
        self.why.clear();
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
        Err(ExportError { why: "gone".to_owned(), retry: Some(again) })
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
        sleep(DELAY / 2).await;
        span(&tracer);
        sleep(DELAY).await;
        assert_eq!(times.lock().unwrap()[..], [DELAY.as_secs()]);
        for _ in 0..=BATCH {
            span(&tracer);
        }
        sleep(Duration::from_millis(1)).await;
        assert_eq!(times.lock().unwrap().len(), 2, "the one beyond waits");
        exporting.close(DELAY).await;
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
        exporting.close(DELAY).await;
        assert_eq!(now() - began, DELAY, "it is not waited for any longer");
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
        sleep(DELAY).await;
        assert_eq!(lines.lock().unwrap()[..], [r#"dropped=70 refused=0 why="""#]);
        exporting.close(DELAY).await;
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
        exporting.close(DELAY).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_can_request_a_longer_pause() {
        let (tracer, exporting, times) = collector(async || gone(Some(Duration::from_secs(3600))));
        span(&tracer);
        sleep(Duration::from_secs(300)).await;
        let pause = LONGEST_PAUSE.as_secs();
        assert_eq!(times.lock().unwrap()[..], [5, 5 + pause, 5 + 2 * pause, 5 + 3 * pause]);
        exporting.close(DELAY).await;
    }
}
