//! Conversion of metrics to the types of the crate `prometheus`.

use super::latency::{LatencySnapshot, PROMETHEUS_BOUNDS};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use std::time::Duration;

pub(super) const COUNTER: MetricType = MetricType::COUNTER;
pub(super) const GAUGE: MetricType = MetricType::GAUGE;
pub(super) const HISTOGRAM: MetricType = MetricType::HISTOGRAM;

/// Builds a metric family. A family without values is not exported.
pub(super) fn family(
    name: &str,
    help: &str,
    kind: MetricType,
    values: impl IntoIterator<Item = Metric>,
) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(values.into_iter().collect());
    family
}

/// Builds the value of a counter with these labels.
pub(super) fn counter(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value);
    let mut metric = metric_with_labels(labels);
    metric.set_counter(counter);
    metric
}

/// Builds the value of a gauge with these labels.
pub(super) fn gauge(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = metric_with_labels(labels);
    metric.set_gauge(gauge);
    metric
}

/// Builds the value of a histogram with these labels, in seconds.
pub(super) fn histogram(labels: &[(&str, &str)], latencies: &LatencySnapshot) -> Metric {
    let bucket = |bound: &u64| {
        let mut bucket = Bucket::default();
        // The count is exact, because each bound is also the end of a step of the histogram.
        bucket.set_cumulative_count(latencies.count_within(Duration::from_micros(*bound)) as u64);
        bucket.set_upper_bound(*bound as f64 / 1e6);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_sample_count(latencies.count);
    histogram.set_sample_sum(latencies.sum_us as f64 / 1e6);
    histogram.set_bucket(PROMETHEUS_BOUNDS.iter().map(bucket).collect());
    let mut metric = metric_with_labels(labels);
    metric.set_histogram(histogram);
    metric
}

/// Builds a metric with sorted labels, as the crate sorts its own.
fn metric_with_labels(labels: &[(&str, &str)]) -> Metric {
    let mut labels: Vec<_> = labels
        .iter()
        .map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        })
        .collect();
    labels.sort_by(|one, other| one.name().cmp(other.name()));
    Metric::from_label(labels)
}
