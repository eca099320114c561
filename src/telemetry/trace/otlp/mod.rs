//! The way to a collector: spans are gathered and sent together, in work of its own.
//!
//! Nobody waits for it. A span that has ended goes into a queue; where that is full it is dropped and counted. A
//! collector that is gone or slow is asked again a few times, while the queue fills; what is lost is told in the log
//! once a minute. At the end what is left is sent, if that does not take long.

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

/// Spans that wait to be sent; a further one is dropped and counted. As many as the SDKs keep: some 3 MiB.
const QUEUE: usize = 2048;

/// Spans of one export.
const BATCH: usize = 512;

/// How long a span waits for others.
const DELAY: Duration = Duration::from_secs(5);

/// How often an export is tried again.
const RETRIES: u32 = 3;

/// The pause before that; each further one is twice as long, or longer where the collector wants that.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause that a collector may want.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How often it is told that spans are lost.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Sends spans until it is closed.
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

/// What was lost, and has not been told.
struct LossReporter {
    /// For want of room.
    dropped: Arc<AtomicU64>,
    /// Not taken by the collector.
    refused: u64,
    why: String,
    /// Until when nothing is told.
    next_report: Option<Pin<Box<Sleep>>>,
}

/// Begins to send spans to a collector. To be called within a runtime.
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

/// What is said of this process: what the operator has set holds.
fn resource(settings: &ExportSettings, world: TraceSources) -> Vec<(String, String)> {
    let drawn = u128::from_be_bytes(*(world.random)().first_chunk().expect("it is longer"));
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

// === impl Exporting ===

impl ExporterHandle {
    /// Sends what is left, for at most so long.
    pub async fn close(self, limit: Duration) {
        self.closing.cancel();
        let work = self.work.abort_handle();
        if timeout(limit, self.work).await.is_err() {
            work.abort();
        }
    }
}

// === impl Exporter ===

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
            // Not kept while the collector is waited for.
            batch.clear();
            self.send(request, count).await;
            self.losses.report_losses();
        }
        // Nothing more is told from here on.
        self.losses.next_report = None;
        self.losses.report_losses();
    }

    /// Takes spans for one export: enough of them, or all that have ended within a while. None means the end.
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
                    // Nobody makes spans any more.
                    if count == 0 {
                        return;
                    }
                    due.get_or_insert_with(|| Box::pin(sleep(DELAY)));
                }
                () = async { due.as_mut().expect("it is set").await }, if due.is_some() => return,
                () = losses.wait_until_due() => losses.report_losses(),
            }
        }
    }

    /// Sends one export, more than once where that could help.
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
                // Once more, and at once.
                () = self.closing.cancelled() => {}
            }
        }
    }
}

// === impl Losses ===

impl LossReporter {
    fn add_refused(&mut self, count: u64, why: String) {
        (self.refused, self.why) = (self.refused + count, why);
    }

    /// Resolves when there is something to tell, and it may be told.
    async fn wait_until_due(&mut self) {
        match &mut self.next_report {
            Some(quiet) => quiet.await,
            // Told with the next export.
            None => std::future::pending().await,
        }
        self.next_report = None;
    }

    /// Tells what is lost, unless that was told a moment ago.
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

    /// When exports came, in seconds.
    type Times = Arc<Mutex<Vec<u64>>>;

    /// A collector that answers like this, and when it was asked.
    fn collector<F>(answer: impl Fn() -> F + Send + Sync + 'static) -> (Tracer, ExporterHandle, Times)
    where
        F: Future<Output = Result<Option<PartialSuccess>, ExportError>> + Send + 'static,
    {
        let (times, began) = (Times::default(), now());
        let asked = Arc::clone(&times);
        let export = move |_request| {
            asked.lock().unwrap().push((now() - began).as_secs());
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

    /// What is said of lost spans while the guard is held.
    fn told() -> (Arc<Mutex<Vec<String>>>, DefaultGuard) {
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
    async fn spans_are_sent_together_after_a_while_or_as_soon_as_there_are_enough() {
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
    async fn beside_a_collector_that_stalls_spans_beyond_the_queue_are_dropped_and_counted() {
        let (lines, _guard) = told();
        let (tracer, exporting, times) = collector(std::future::pending);
        for _ in 0..QUEUE + 70 {
            span(&tracer);
        }
        sleep(Duration::from_millis(1)).await;
        // One export is on its way.
        for _ in 0..BATCH + 7 {
            span(&tracer);
        }
        assert_eq!(times.lock().unwrap().len(), 1);
        let began = now();
        exporting.close(DELAY).await;
        assert_eq!(now() - began, DELAY, "it is not waited for any longer");
        assert!(lines.lock().unwrap().is_empty(), "nobody is left to tell");
        drop(tracer);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_dropped_is_told_when_the_collector_answers_again() {
        let (lines, _guard) = told();
        let (tracer, exporting, _) = collector(async || Ok(None));
        for _ in 0..QUEUE + 70 {
            span(&tracer);
        }
        sleep(DELAY).await;
        assert_eq!(lines.lock().unwrap()[..], [r#"dropped=70 refused=0 why="""#]);
        exporting.close(DELAY).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_is_gone_is_asked_again_and_the_loss_is_told_once_a_minute() {
        let (lines, _guard) = told();
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
    async fn a_collector_may_want_a_pause_of_some_length() {
        let (tracer, exporting, times) = collector(async || gone(Some(Duration::from_secs(3600))));
        span(&tracer);
        sleep(Duration::from_secs(300)).await;
        let pause = LONGEST_PAUSE.as_secs();
        assert_eq!(times.lock().unwrap()[..], [5, 5 + pause, 5 + 2 * pause, 5 + 3 * pause]);
        exporting.close(DELAY).await;
    }
}
