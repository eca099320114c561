//! Export of spans to a collector, and its failures.

use super::{Traced, with_meta};
use crate::{proxy::proxy_and_server::Setup, support::collector::Collector};
use serde_json::json;
use std::{fs, time::Duration};

#[tokio::test]
async fn spans_are_posted_below_the_collectors_url() {
    let traced = Traced::new().await;
    traced.called(&traced.client(), with_meta(json!({}))).await;
    let collector = traced.told().await;
    assert_eq!(collector.path(), "/v1/traces");
    assert_eq!(collector.header("content-type").as_deref(), Some("application/x-protobuf"));
    assert!(!collector.names().is_empty());
}

#[tokio::test]
async fn spans_go_over_grpc_with_a_key_from_a_file() {
    let collector = Collector::start().await;
    let key = tempfile::NamedTempFile::new().expect("a file");
    fs::write(key.path(), "k-0000\n").expect("it can be written");
    let top = format!(
        "telemetry: {{ otlp: {{ endpoint: \"{}\", protocol: grpc, headers: {{ api-key: {{ file: \"{}\" }} }} }} }}",
        collector.url(),
        key.path().display()
    );
    let traced = Traced { world: Setup::new().top(top.leak()).start().await, collector };
    traced.called(&traced.client(), with_meta(json!({}))).await;
    let collector = traced.told().await;
    assert_eq!(collector.path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert_eq!(collector.header("api-key").as_deref(), Some("k-0000"));
    assert_eq!(collector.span("tools/call greet", false).says("deferral.outcome"), Some("result"));
}

#[tokio::test]
async fn a_collector_that_stalls_keeps_neither_a_call_nor_the_end_waiting() {
    let collector = Collector::answering(|| 0).await;
    let top = format!("telemetry: {{ otlp: \"{}\" }}", collector.url());
    let traced = Traced { world: Setup::new().top(top.leak()).start().await, collector };
    for _ in 0..50 {
        let answer = traced.called(&traced.client(), with_meta(json!({}))).await;
        assert_eq!(answer["result"]["content"][0]["text"], "done");
    }
    // It waits for the collector for two seconds at most; this is for a machine that is busy.
    let stopped = tokio::time::timeout(Duration::from_secs(60), traced.told()).await;
    assert_eq!(stopped.expect("it ends all the same").exports(), 1);
}

#[tokio::test]
async fn no_span_is_sent_where_traces_are_off() {
    let collector = Collector::start().await;
    let traced = Traced { world: Setup::new().top("telemetry: { otlp: off }").start().await, collector };
    traced.called(&traced.client(), with_meta(json!({}))).await;
    assert_eq!(traced.told().await.exports(), 0);
}
