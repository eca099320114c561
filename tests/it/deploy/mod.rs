//! Files in `deploy/` name only metrics, listeners and keys that the program has.
//! `tests/deploy/check.py` gives the files to the programs that read them.

use crate::support::{
    modern_client::{Client, soon},
    program::where_it_listens,
};
use deferral::internals::config;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const PAGE: &str = include_str!("../../../src/manual/metrics.md");

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

/// The series that a process writes: of each name the labels of each, with their values.
struct Exposed(BTreeMap<String, Vec<Labels>>);

type Labels = BTreeMap<String, String>;

/// The process that is scraped. It ends with this.
struct Scraped(Child);

/// Labels whose values are a deployment's own.
const FREE: [&str; 3] = ["route", "tool", "version"];
/// Labels that Prometheus adds to what it scrapes.
const ADDED: [&str; 2] = ["instance", "job"];

impl Drop for Scraped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Exposed {
    /// What a proxy writes in front of a process that has been called once, as a task.
    async fn by_a_process() -> Self {
        const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/stdio/server.py");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("deferral.yaml");
        let route = format!("{{ defer: {{ mode: always }}, upstream: {{ command: [python3, {SERVER}] }} }}");
        let text = format!("listen: 127.0.0.1:0\nadmin: \"off\"\nmetrics: 127.0.0.1:0\nroutes: [{route}]\n");
        fs::write(&file, text).expect("it can be written");
        let mut child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .arg("--config")
            .arg(&file)
            .env_remove("DEFERRAL_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let client = Client::new(where_it_listens(&mut child));
        let mut log = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let _scraped = Scraped(child);
        let started = log.find_map(|line| line.ok().filter(|line| line.contains("event=started")));
        let started = started.expect("it starts");
        let metrics = started.split_whitespace().find_map(|word| word.strip_prefix("metrics="));
        let client = client.with_tasks();
        let made = client.ask("tools/call", json!({ "name": "echo", "arguments": {} })).await.result();
        client.ended(made["taskId"].as_str().expect("a task")).await;
        let mut socket = TcpStream::connect(metrics.expect("it says where")).await.expect("it listens");
        let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        socket.write_all(request).await.expect("it reads");
        let mut answer = String::new();
        soon("an answer", socket.read_to_string(&mut answer)).await.expect("it answers");
        Self::read(answer.split_once("\r\n\r\n").expect("it has a head").1)
    }

    fn read(text: &str) -> Self {
        let mut exposed = BTreeMap::<_, Vec<_>>::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, _) = line.rsplit_once(' ').expect("a sample has a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            exposed.entry(name.to_owned()).or_default().push(pairs(labels.trim_end_matches('}')));
        }
        Self(exposed)
    }

    /// What is wrong with a series that a test of the alerts makes up: it must be one that is written, but for the
    /// values of [`FREE`] labels.
    fn misses(&self, series: &str) -> Option<String> {
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let made_up = pairs(labels.trim_end_matches('}'));
        let Some(written) = self.0.get(name) else { return Some(format!("{name} is not written")) };
        let is_that = |one: &Labels| {
            let own: Labels =
                made_up.iter().filter(|(name, _)| !ADDED.contains(&&***name)).map(own).collect();
            let is_same = |(name, value): (&String, &String)| {
                own.get(name).is_some_and(|own| own == value || FREE.contains(&&**name))
            };
            own.len() == one.len() && one.iter().all(is_same)
        };
        (!written.iter().any(is_that)).then(|| format!("{series} is not written; there are {written:?}"))
    }

    /// What is wrong with the selectors of a query, and with the labels by which it adds up: a label must be one of a
    /// series of that name, and a value one that it has.
    fn misses_in(&self, query: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut all_labels: BTreeSet<_> = ADDED.into_iter().collect();
        for (name, matchers) in selectors(query) {
            let Some(written) = self.0.get(name) else {
                wrong.push(format!("{name} is not written"));
                continue;
            };
            all_labels.extend(written.iter().flat_map(Labels::keys).map(String::as_str));
            for (label, values) in pairs(&matchers.replace("=~", "=")) {
                let known: BTreeSet<_> = written.iter().filter_map(|one| one.get(&label)).collect();
                let is_known = |value: &str| known.iter().any(|known| *known == value);
                let is_free = FREE.contains(&&*label) || values.starts_with('$');
                if !ADDED.contains(&&*label)
                    && (known.is_empty() || !is_free && !values.split('|').all(is_known))
                {
                    wrong.push(format!("{name} has no {label}=\"{values}\"; there are {known:?}"));
                }
            }
        }
        let added_up = ["by (", "on ("].into_iter().flat_map(|word| query.split(word).skip(1));
        let added_up = added_up.filter_map(|rest| Some(rest.split_once(')')?.0));
        for label in added_up.flat_map(|labels| labels.split(',')).map(str::trim) {
            if !all_labels.contains(label) {
                wrong.push(format!("nothing in {query} has the label {label}"));
            }
        }
        wrong
    }
}

fn own((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}

/// Labels as they are written between braces. No value has a comma or a quotation mark.
fn pairs(text: &str) -> Labels {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().trim_matches('"').to_owned())).collect()
}

/// The names of metrics in a query, with what stands in braces behind each.
fn selectors(query: &str) -> Vec<(&str, &str)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = query.match_indices(is_word).map(|(at, _)| at);
    let starts = starts.filter(|at| !query[..*at].ends_with(is_word));
    let words = starts.map(|at| {
        query[at..]
            .split_once(|c| !is_word(c))
            .map_or((&query[at..], ""), |(word, _)| (word, &query[at + word.len()..]))
    });
    let names = words.filter(|(word, _)| word.starts_with("deferral_") || word.starts_with("process_"));
    names
        .map(|(name, rest)| {
            let matchers = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            (name, matchers.map_or("", |(matchers, _)| matchers))
        })
        .collect()
}

/// The expressions of the alerts.
fn expressions(alerts: &str) -> Vec<String> {
    let mut expressions = Vec::<String>::new();
    let mut is_one = false;
    for line in alerts.lines().map(str::trim) {
        if let Some(first) = line.strip_prefix("expr:") {
            is_one = true;
            expressions.push(first.trim_start_matches([' ', '|']).to_owned());
        } else if line.starts_with("for:") || line.starts_with("labels:") {
            is_one = false;
        } else if let (true, Some(last)) = (is_one, expressions.last_mut()) {
            *last += " ";
            *last += line;
        }
    }
    expressions
}

#[tokio::test]
async fn the_tests_of_the_alerts_feed_the_series_that_a_process_writes() {
    let exposed = Exposed::by_a_process().await;
    let tests = read("prometheus/alerts.test.yaml");
    let fed: Vec<_> =
        tests.lines().filter_map(|line| line.split("series: '").nth(1)?.split('\'').next()).collect();
    assert!(fed.len() > 10, "{fed:?}");
    let wrong: Vec<_> = fed.into_iter().filter_map(|series| exposed.misses(series)).collect();
    assert_eq!(wrong, [""; 0]);
}

#[tokio::test]
async fn the_queries_of_the_alerts_and_the_dashboard_select_series_that_a_process_writes() {
    let exposed = Exposed::by_a_process().await;
    let dashboard: Value = serde_json::from_str(&read("grafana/dashboard.json")).expect("JSON");
    let targets = dashboard["panels"].as_array().expect("panels").iter();
    let targets = targets.filter_map(|panel| panel["targets"].as_array()).flatten();
    let shown = targets.map(|target| target["expr"].as_str().expect("a query").to_owned());
    let alerts = expressions(&read("prometheus/alerts.yaml"));
    assert!(alerts.len() > 10, "{alerts:?}");
    let wrong: Vec<_> = shown.chain(alerts).flat_map(|query| exposed.misses_in(&query)).collect();
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn a_series_that_is_not_written_is_found() {
    let exposed = Exposed::read("deferral_x_total{route=\"/mcp\",outcome=\"good\"} 0\nprocess_y 1\n");
    for (series, is_missed) in [
        (r#"deferral_x_total{route="/a",outcome="good"}"#, false),
        (r#"deferral_x_total{route="/a",outcome="bad"}"#, true),
        (r#"deferral_x_total{route="/a"}"#, true),
        (r#"deferral_x_total{route="/a",outcome="good",tool="t"}"#, true),
        (r#"deferral_z_total{route="/a",outcome="good"}"#, true),
        (r#"process_y{instance="a",job="b"}"#, false),
    ] {
        assert_eq!(exposed.misses(series).is_some(), is_missed, "{series}");
    }
    for (query, is_missed) in [
        (r#"sum by (route) (rate(deferral_x_total{outcome=~"good"}[5m]))"#, false),
        (r#"sum by (route) (rate(deferral_x_total{outcome=~"good|bad"}[5m]))"#, true),
        (r#"sum by (tool) (rate(deferral_x_total[5m]))"#, true),
        (r#"sum by (route, outcome) (rate(deferral_x_total{route=~"$route"}[5m]))"#, false),
        (r#"rate(deferral_x_total{kind="good"}[5m])"#, true),
        ("process_y / process_z", true),
        ("process_y and on (instance, job) deferral_x_total", false),
    ] {
        assert_eq!(!exposed.misses_in(query).is_empty(), is_missed, "{query}");
    }
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
