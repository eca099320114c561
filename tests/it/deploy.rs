//! What is deployed beside the program names nothing that the program does not have.
//! `tests/deploy/check.py` gives the files to the programs that read them.

use deferral::internals::config;
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::Path};

const PAGE: &str = include_str!("../../src/manual/metrics.md");

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of metrics in a text, without what histograms add to theirs.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("deferral_") || word.starts_with("process_"));
    names.map(|name| name.strip_suffix("_bucket").unwrap_or(name).to_owned()).collect()
}

fn listed() -> BTreeSet<String> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect()
}

#[test]
fn the_dashboard_and_the_alerts_are_made_of_the_metrics_there_are() {
    let dashboard: Value = serde_json::from_str(&read("grafana/dashboard.json")).expect("JSON");
    let targets = dashboard["panels"].as_array().expect("panels").iter();
    let targets = targets.filter_map(|panel| panel["targets"].as_array()).flatten();
    let shown: String =
        targets.map(|target| target["expr"].as_str().expect("a query").to_owned() + "\n").collect();
    let listed = listed();
    for text in [&shown, &read("prometheus/alerts.yaml")] {
        let strange: Vec<_> = named(text).difference(&listed).cloned().collect();
        assert!(strange.is_empty(), "these are no metrics: {strange:?}");
    }
    // What is counted is there to be seen.
    let unseen: Vec<_> = listed.difference(&named(&shown)).cloned().collect();
    let left = [
        "deferral_build_info",
        "process_start_time_seconds",
        "process_threads",
        "process_virtual_memory_bytes",
    ];
    assert_eq!(unseen, left, "these are on no panel");
}

#[test]
fn each_alert_is_shown_to_speak() {
    let tests = read("prometheus/alerts.test.yaml");
    for line in read("prometheus/alerts.yaml").lines() {
        if let Some(name) = line.trim().strip_prefix("- alert: ") {
            assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} is not tested");
        }
    }
}

#[test]
fn scrapers_are_sent_to_the_listener_for_metrics() {
    let configured = |text: &str| {
        let config = config::parse(Path::new("deferral.yaml"), text).expect("a configuration");
        config.metrics.expect("it has a listener for metrics").port()
    };
    let port = configured(&read("docker/deferral.yaml"));
    assert!(read("docker/compose.yaml").contains(&format!("\"127.0.0.1:{port}:{port}\"")));
    assert!(read("docker/Dockerfile.source").contains(&format!("EXPOSE 8808 {port}\n")));
    let manifest = read("kubernetes/deferral.yaml");
    assert!(manifest.contains(&format!("metrics: 0.0.0.0:{port}\n")));
    assert!(manifest.contains(&format!("{{ name: metrics, containerPort: {port} }}")));
    assert!(manifest.contains(&format!("{{ name: metrics, port: {port}, targetPort: metrics }}")));
    let labels = "{ app.kubernetes.io/name: deferral, app.kubernetes.io/component: metrics }";
    let monitor = read("kubernetes/servicemonitor.yaml");
    assert!(
        manifest.contains(&format!("labels: {labels}"))
            && monitor.contains(&format!("matchLabels: {labels}"))
    );
    assert!(monitor.contains("{ port: metrics, path: /metrics, "));
    assert!(read("prometheus/scrape.yaml").contains(&format!("targets: [\"127.0.0.1:{port}\"]")));
}
