//! The manual's list of limits agrees with the source.

use deferral::internals::config;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const ADVICE: &str = "where a word of advice begins or ends";
const STEPS: &str = "how finely time is counted";

/// Constants with a number or a time that bound nothing, with the word for what each is.
const NO_BOUND: &[(&str, &str)] = &[
    ("upstream/legacy/session.rs NEVER_ANSWERED", "an id that no request has"),
    ("upstream/legacy/pool/mod.rs CREDENTIAL_COPIES", FORMAT),
    ("front/refused_streams.rs FIELD_PREFIX_LENGTH", FORMAT),
    ("front/refused_streams.rs HEAD_LENGTH", FORMAT),
    ("app/mod.rs PROBE_INTERVAL", PAUSE),
    ("app/watch.rs POLL_INTERVAL", PAUSE),
    ("admin/events.rs EVENT_INTERVAL", PAUSE),
    ("admin/listener.rs ACCEPT_PAUSE", PAUSE),
    ("admin/listener.rs PERMIT_POLL_INTERVAL", PAUSE),
    ("admin/listener.rs MIN_IDLE_WHEN_FULL", PAUSE),
    ("front/half_closed.rs FIRST_CHECK", PAUSE),
    ("front/half_closed.rs MAX_CHECK_INTERVAL", PAUSE),
    ("admin/tasks.rs DEFAULT_PAGE_TASKS", DEFAULT),
    ("admin/tap.rs KEEP_ALIVE_INTERVAL", PAUSE),
    ("proxy/tasks/operator_tasks.rs BATCH_SIZE", "a portion: the rest is asked for right after it"),
    ("policy/rollout.rs MILLION", "how finely shares are counted"),
    ("proxy/tasks/operator_tasks.rs NAME_DIGITS", FORMAT),
    ("proxy/tasks/operator_tasks.rs MIN_NAME_DIGITS", "the least that names a task"),
    ("bridge/request_state.rs HEADER_LEN", FORMAT),
    ("bridge/request_state.rs KEY_ID_LEN", FORMAT),
    ("bridge/request_state.rs PAYLOAD_LEN", FORMAT),
    ("bridge/request_state.rs SEALED_LEN", FORMAT),
    ("bridge/request_state.rs TAG_LEN", FORMAT),
    ("bridge/request_state.rs TEXT_LEN", FORMAT),
    ("dialect/session_seal.rs TAG_BYTES", FORMAT),
    ("dialect/session_seal.rs TAG_CHARS", FORMAT),
    ("client/legacy/mod.rs TASK_TTL", DEFAULT),
    ("client/legacy/resume.rs DEFAULT_PAUSE", PAUSE),
    ("client/legacy/resume.rs SHORTEST_PAUSES", PAUSE),
    ("client/mod.rs POLL_INTERVAL", DEFAULT),
    ("client/modern/mod.rs RETRY_DELAY", PAUSE),
    ("cli/demo.rs SLOW_CALL_SECONDS", PLAY),
    ("cli/report/advice.rs MIN_CALLS", ADVICE),
    ("cli/report/advice.rs CLIENT_TIMEOUT", ADVICE),
    ("cli/report/advice.rs MAX_THRESHOLD_SECONDS", ADVICE),
    ("cli/report/advice.rs THRESHOLDS", ADVICE),
    ("cli/report/advice.rs DEFAULT_SECONDS", ADVICE),
    ("cli/report/mod.rs BAR_WIDTH", "how wide a picture is"),
    ("cli/tasks.rs ROUTE_COLUMN", "which column it is"),
    ("cli/tasks.rs LINE_WIDTH", "how wide a table is"),
    ("cli/tools.rs NAME_WIDTH", "how wide a column is"),
    ("cli/tools.rs LINE_WIDTH", "how wide a list is"),
    ("client/ticket.rs MIN_POLL_INTERVAL", PAUSE),
    ("cli/call.rs CANCEL_NOTICE_DELAY", PAUSE),
    ("demo/booking.rs MAX_PARTY", PLAY),
    ("demo/server.rs PROGRESS_INTERVAL", PLAY),
    ("proxy/tickets/mod.rs DEFAULT_RESULT_WAIT", DEFAULT),
    ("config/schema/secret.rs KEY_BYTES", FORMAT),
    ("config/build/defer.rs SHORT_RETENTION", "where a word of advice begins"),
    ("config/schema/interpolation.rs LEAK_CHARS", "what gives a value away"),
    ("config/schema/variables.rs MIN_SECRET_BYTES", "what gives a value away"),
    ("front/listener.rs ACCEPT_PAUSE", PAUSE),
    ("runtime/idle.rs MIN_IDLE", PAUSE),
    ("runtime/idle.rs MIN_PENDING", PAUSE),
    ("runtime/event_throttle.rs LOG_INTERVAL", PAUSE),
    ("proxy/drive/anchor_state.rs DELIVERY_WINDOW", PAUSE),
    ("proxy/drive/anchor_state.rs WRITE_INTERVAL", PAUSE),
    ("upstream/own_ids.rs SEGMENT_SIZE", NUMBERS),
    ("upstream/own_ids.rs RANGE_SIZE", NUMBERS),
    ("proxy/tasks/persist.rs FIRST_RETRY_DELAY", PAUSE),
    ("proxy/tasks/quotas.rs NO_SPACE_EVENT_BYTES", "an estimate: what the words that say so take"),
    ("proxy/admission/rate.rs MINUTE", "the time in which calls are counted"),
    ("proxy/listen.rs MERGE_WINDOW", PAUSE),
    ("proxy/tasks/store_health.rs LOG_INTERVAL", PAUSE),
    ("proxy/tasks/sweep.rs SWEEP_INTERVAL", PAUSE),
    ("runtime/descriptors.rs OPEN_MAX", "the system's number"),
    ("runtime/drain.rs ACTIVE_MASK", "how two counts share a number"),
    ("runtime/drain.rs ONE_TASK", "how two counts share a number"),
    ("runtime/per_thread.rs STRIPES", "how finely what threads share is spread"),
    ("runtime/net.rs CLOSE_WAIT", PAUSE),
    ("runtime/net.rs PIPE_BUFFER", "a stand-in for the system's own buffers"),
    ("runtime/connection_limiter.rs RECLAIM_INTERVAL", PAUSE),
    ("config/build/store.rs MIN_STORE_BYTES", "the least that a setting may be"),
    ("store/disk/folder.rs PAGE", FORMAT),
    ("store/disk/results.rs PROBE", "bytes that are tried, and removed"),
    ("store/disk/record_cache.rs RECORD_OVERHEAD", "an estimate, counted towards `ENDED_BYTES`"),
    ("store/disk/schema.rs CURRENT_VERSION", "the version of the tables"),
    ("store/disk/schema.rs APPLICATION_ID", "a mark by which a file is known"),
    ("store/disk/writer.rs OVERHEAD_BYTES", "an estimate, counted towards `store.max_bytes`"),
    ("store/disk/recount.rs STEP", "a portion: the rest is counted right after it"),
    ("store/disk/recount.rs FIRST_STEPS", "a portion: the rest is counted right after it"),
    ("store/disk/writer.rs VACUUM_INTERVAL", PAUSE),
    ("store/disk/writer.rs COUNT_PAUSE", PAUSE),
    ("store/disk/writer.rs IDLE_BEFORE_VACUUM", PAUSE),
    ("store/disk/writer.rs VACUUM_PAGES", "a portion: the rest is given back right after it"),
    ("store/disk/writer.rs SPARE_PAGES", "what is left where pages are given back"),
    ("task/id.rs DIGITS", FORMAT),
    ("telemetry/metrics/latency.rs DECADE_STEPS", STEPS),
    ("telemetry/metrics/latency.rs DECADES", STEPS),
    ("telemetry/metrics/latency.rs STEPS", STEPS),
    ("telemetry/metrics/latency.rs BOUNDS", STEPS),
    ("telemetry/metrics/latency.rs PROMETHEUS_BOUNDS", STEPS),
    ("telemetry/metrics/limits.rs COUNT", "how many there are"),
    ("telemetry/trace/otlp/mod.rs BATCH_DELAY", PAUSE),
    ("telemetry/trace/otlp/mod.rs FIRST_RETRY_DELAY", PAUSE),
    ("telemetry/trace/otlp/mod.rs REPORT_INTERVAL", PAUSE),
    ("telemetry/trace/settings.rs DEFAULT_TIMEOUT", DEFAULT),
    ("telemetry/log.rs FLUSH_BYTES", "a portion: it is written right then"),
    ("upstream/legacy/attribution.rs NO_CALL", "it stands for a call that there is not"),
    ("upstream/legacy/pool/mod.rs IDENTITY_BYTES", "an estimate, counted towards `limits.identity_bytes`"),
    ("upstream/legacy/pool/mod.rs REOPEN_PAUSE", PAUSE),
    ("upstream/stdio/mod.rs EVICTION_INTERVAL", "how often it is asked for; `timeouts.queue` ends the wait"),
    ("upstream/http/listen.rs DEFAULT_PAUSE", PAUSE),
    ("upstream/config.rs DEFAULT_MAX_CONNECTIONS", DEFAULT),
    ("upstream/stdio/command.rs DEFAULT_MAX_PROCESSES", DEFAULT),
    ("upstream/stdio/command.rs DEFAULT_START_TIMEOUT", DEFAULT),
    ("upstream/stdio/command.rs DEFAULT_IDLE", DEFAULT),
    ("upstream/stdio/start_limiter.rs MINUTE", "the time in which `BUDGET` is counted"),
    ("upstream/stdio/start_limiter.rs FIRST_PAUSE", PAUSE),
    ("upstream/stdio/start_limiter.rs STEADY_RUN", "where a start counts as one that has worked"),
    ("upstream/stdio/supervisor.rs NOT_STARTED", "an exit code"),
    ("upstream/stdio/tests/mod.rs PIPE", "a test's"),
    ("upstream/http/resume.rs DEFAULT_PAUSE", PAUSE),
    ("proxy/relay/forward.rs CONFLICT_PAUSES", PAUSE),
    ("upstream/http/resume.rs MIN_PAUSES", PAUSE),
    ("upstream/legacy/schedules.rs SESSIONS", "a test's"),
    ("upstream/legacy/pools.rs SWEEP_INTERVAL", PAUSE),
    ("upstream/legacy/outbound.rs RETRY_PAUSES", PAUSE),
];

const PAUSE: &str = "a pause or a rhythm of our own";
const FORMAT: &str = "the length of what is always so long";
const DEFAULT: &str = "the default of something that is set elsewhere";
const PLAY: &str = "part of what the demo plays";
const NUMBERS: &str = "where a row of numbers begins";

/// The Rust files below a folder: their paths from there, and what they say.
pub(super) fn in_sources(folder: &str) -> impl Iterator<Item = (String, String)> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut folders, mut files) = (vec![top.clone()], Vec::<PathBuf>::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|extension| extension == "rs") => files.push(path),
                false => {}
            }
        }
    }
    files.into_iter().map(move |path| {
        let name = path.strip_prefix(&top).expect("it is below").to_string_lossy().replace('\\', "/");
        (name, fs::read_to_string(path).expect("it can be read"))
    })
}

/// The name of a constant that is a number or a time, if this line declares one.
fn counts(line: &str) -> Option<&str> {
    let (before, rest) = line.trim().split_once("const ")?;
    if !(before.is_empty() || before.starts_with("pub") && before.ends_with(' ')) {
        return None;
    }
    let (name, rest) = rest.split_once(": ")?;
    let (kind, _) = rest.split_once(" =")?;
    let kind = kind.trim_start_matches('[').split(';').next()?;
    let number = [
        "usize",
        "u64",
        "u32",
        "u16",
        "u128",
        "i64",
        "i32",
        "isize",
        "Duration",
        "NonZeroUsize",
        "NonZeroU32",
    ];
    (number.contains(&kind)
        && name.bytes().all(|byte| byte.is_ascii_uppercase() || b"_0123456789".contains(&byte)))
    .then_some(name)
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the manual's tables, cell by cell, without the marks of code.
pub(super) fn rows() -> Vec<Vec<String>> {
    let text = read("manual/limits.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()).collect()
}

#[test]
fn every_limit_and_timeout_of_the_configuration_is_listed_with_its_default() {
    let schema = config::schema();
    let mut wanted = BTreeMap::new();
    for section in ["limits", "timeouts"] {
        let keys = schema["properties"][section]["properties"].as_object().expect("it has keys");
        for (key, about) in keys {
            let default = &about["default"];
            let default = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
            wanted.insert(format!("{section}.{key}"), default);
        }
    }
    let is_key = |row: &&Vec<String>| row[0].starts_with("limits.") || row[0].starts_with("timeouts.");
    let listed: BTreeMap<_, _> =
        rows().iter().filter(is_key).map(|row| (row[0].clone(), row[1].clone())).collect();
    assert_eq!(listed, wanted, "src/manual/limits.md lists the left, the configuration has the right");
}

#[test]
fn every_constant_that_is_listed_is_there_with_its_value() {
    let constants: Vec<_> = rows().into_iter().filter(|row| row[0].ends_with(".rs")).collect();
    assert!(constants.len() > 40, "{}", constants.len());
    for row in constants {
        let (file, name, value) = (&row[0], &row[1], &row[2]);
        let text = read(file);
        let found = text.lines().find_map(|line| line.split_once(&format!("const {name}: ")));
        let (_, found) = found.unwrap_or_else(|| panic!("src/{file} has no constant {name}"));
        let (_, found) = found.split_once(" = ").expect("it has a value");
        let found = evaluated(found.trim_end_matches(';'));
        assert_eq!(found, meant(value), "{name} of src/{file} is listed as {value}");
    }
}

#[test]
fn every_constant_that_bounds_something_is_listed() {
    let rows = rows();
    let listed: BTreeSet<_> = rows
        .iter()
        .filter(|row| row[0].ends_with(".rs"))
        .map(|row| format!("{} {}", row[0], row[1]))
        .collect();
    let mut excused: BTreeSet<_> = NO_BOUND.iter().map(|(constant, _)| (*constant).to_owned()).collect();
    assert_eq!(excused.len(), NO_BOUND.len(), "a constant is excused twice");
    let (mut found, mut missing) = (0, Vec::new());
    for (file, text) in in_sources("src") {
        // Codes of errors are no bounds, and there are many in that one file.
        if file == "protocol/code.rs" {
            continue;
        }
        // Behind this there are only tests.
        let ours = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let ours = ours.split("#[cfg(test)]\nmod exploration {").next().unwrap_or_default();
        for name in ours.lines().filter_map(counts) {
            let constant = format!("{file} {name}");
            found += 1;
            let (is_listed, is_excused) = (listed.contains(&constant), excused.remove(&constant));
            assert!(!(is_listed && is_excused), "{constant} is listed as a bound and excused as none");
            if !(is_listed || is_excused) {
                missing.push(constant);
            }
        }
    }
    assert!(
        missing.is_empty(),
        "list what bounds something in src/manual/limits.md, and name what does not in NO_BOUND here: {missing:#?}"
    );
    assert!(excused.is_empty(), "these are not there: {excused:?}");
    assert!(found > 100, "{found}");
}

#[test]
fn a_constant_that_counts_is_seen_however_it_is_declared() {
    for line in [
        "const MOST: usize = 1;",
        "    pub(super) const MOST: Duration = Duration::from_secs(1);",
        "pub const MOST: [u64; 2] = [1, 2];",
        "pub(in crate::front) const MOST: u32 = 1 << 3;",
    ] {
        assert_eq!(counts(line), Some("MOST"), "{line}");
    }
    for line in [
        "const NAME: &str = \"x\";",
        "// const MOST: usize = 1;",
        "fn random<const N: usize>() {",
        "let x = 1;",
    ] {
        assert_eq!(counts(line), None, "{line}");
    }
}

/// What a constant's expression comes to: a number, or milliseconds.
fn evaluated(expression: &str) -> u64 {
    let number = |text: &str| text.replace('_', "").trim().parse::<u64>();
    let product = |text: &str| text.split('*').map(|part| number(part).expect("a number")).product::<u64>();
    let inside = |name: &str| expression.strip_prefix(name)?.strip_suffix(')');
    if let Some(seconds) = inside("Duration::from_secs(") {
        return product(seconds) * 1000;
    }
    if let Some(millis) = inside("Duration::from_millis(") {
        return product(millis);
    }
    match expression.split_once("<<") {
        Some((base, by)) => number(base).expect("a number") << number(by).expect("a number"),
        None => product(expression),
    }
}

/// What the manual says: `64 KiB`, `2 s`, `100`.
fn meant(value: &str) -> u64 {
    let (number, unit) = value.split_once(' ').unwrap_or((value, ""));
    let number: u64 = number.parse().unwrap_or_else(|_| panic!("{value} is no number"));
    number
        * match unit {
            "" | "ms" => 1,
            "s" => 1000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            unit => panic!("{unit} is no unit"),
        }
}
