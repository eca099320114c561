//! The configuration: as written, then as meant.
//!
//! `yaml` is what somebody wrote and where. [`mod@file`], with `route`, `server` and `limits`, says which keys there are, each in one place, and turns
//! what was written into what the parts need, each of which owns the type of its own configuration; `cross_checks`
//! judges what crosses keys. Everything that is wrong is reported at once, as `file:line:column: message` with the
//! remedy ([`Problems`]); doubts are for what may be right. The command line goes the same way: its flags are laid
//! over the tree that was read.
//!
//! Begin with [`Config`] and [`load`]. `section` is how keys are declared, `value_types` what they may be, [`values`] reads
//! the single values, [`schema()`] describes the file to editors, [`secret`] keeps what must not be shown.

mod config_files;
mod cross_checks;
mod environment;
pub mod file;
mod hints;
mod limits;
mod mcp_servers;
mod operators;
mod problem;
mod rollout;
mod route;
pub mod secret;
mod section;
mod server;
mod settings;
mod telemetry;
mod tickets;
mod upstream_http;
mod url_text;
mod value_types;
pub mod values;
mod variables;
mod yaml;

pub use config_files::ConfigFiles;
use config_files::NamedFile;
pub use environment::Environment;
pub use problem::{Problem, Problems, SourceSpan, SpannedValue, nearest};
pub use settings::RedactedSettings;
pub use yaml::Node;

use crate::{
    admin, front, policy,
    telemetry::trace,
    upstream::{self, stdio::EnvInheritance},
};
use environment::LoadContext;
use section::{DiagnosticSink, TOP_LEVEL};
use serde_json::json;
use std::{
    fmt,
    io::Read,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use variables::VariableValues;

/// A file larger than this is not a configuration.
const MAX_FILE: u64 = 4 << 20;
/// The standard input in the place of a file.
const STDIN: &str = "-";

/// Everything the proxy is started with.
#[derive(Clone, Debug)]
pub struct Config {
    pub front: front::Config,
    /// The operator's listener; `Missing` for none.
    pub admin: Option<admin::Config>,
    /// Where scrapers get metrics, beside the admin listener; `Missing` for nowhere.
    pub metrics: Option<SocketAddr>,
    pub store: StoreConfig,
    /// At least one; no two of one path.
    pub routes: Vec<RouteConfig>,
    pub quotas: policy::TaskQuotas,
    /// What `requestState`s are sealed with: the first seals, each opens. None: one is made at start,
    /// and states end with the process.
    pub state_keys: Vec<secret::SecretKey>,
    pub connections: ConnectionLimits,
    pub drain: DrainTimes,
    pub log: LogConfig,
    pub ready: ReadinessConfig,
    /// Where traces go; `Missing` for nowhere.
    pub traces: Option<trace::ExportSettings>,
    /// All of it as operators are shown it.
    pub settings: RedactedSettings,
    /// What is allowed and yet probably not meant.
    pub warnings: ConfigWarnings,
    /// The files it was read from: itself, where it is one, and those that it names.
    pub files: ConfigFiles,
}

/// What is allowed and yet probably not meant, a line each. `Debug` hides it: two configurations that mean the same may
/// be written in two ways.
#[derive(Clone, Default)]
pub struct ConfigWarnings(Vec<String>);

/// One endpoint and the server behind it.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    pub route: policy::Route,
    pub server: upstream::UpstreamTarget,
    pub upstream: upstream::Config,
}

/// How long stopping in order takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainTimes {
    /// How long after the signal to stop new calls are still served, while `/ready` says 503 and connections are let
    /// go: what it takes load balancers to hear of it. Default 0.
    pub notice: Duration,
    /// Time for calls in flight to finish, after `notice`. Calls that are still running then end with `-31007`. Default 30 s.
    pub limit: Duration,
}

const DEFAULT_DRAIN: DrainTimes = DrainTimes { notice: Duration::ZERO, limit: Duration::from_secs(30) };

/// How many connections there may be, where that was written; else it follows from what the system
/// allows ([`crate::runtime::DescriptorLimit`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// `limits.connections`
    pub clients: Option<usize>,
    /// `limits.upstream_connections`
    pub servers: Option<usize>,
}

/// Where tasks are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreConfig {
    /// In this process; forgotten at its end.
    #[default]
    Memory,
    /// In a folder, for the next process, too.
    Disk {
        path: PathBuf,
        /// The store's key; `Missing` for the file beside the folder.
        key: Option<StoreKeySource>,
        /// Bytes of the folder; `Missing` for as many as the disk has.
        max_bytes: Option<usize>,
    },
}

/// Where the key of a store on disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreKeySource {
    /// In this file, which is made where there is none.
    File(PathBuf),
    /// At hand, since the configuration was read.
    Value(secret::SecretKey),
}

/// How the log is written, and what of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    pub format: LogFormat,
    /// In the syntax of `tracing`'s filters, as in `warn` or `info,deferral::access=warn`; `Missing` for `info`.
    pub level: Option<String>,
}

/// What `/ready` needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadinessConfig {
    /// Each route's server can be reached. Default no: clients of the others are served, and those of this one are told.
    pub needs_servers: bool,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// The JSON Schema (2020-12) of the configuration file, every part written out in its place.
pub fn schema() -> serde_json::Value {
    let nowhere = Environment::default();
    let context = LoadContext { folder: Path::new(""), checks_files: false, environment: &nowhere };
    let mut schema = section::schema(TOP_LEVEL, |s| file::file(s, context));
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("deferral");
    schema["description"] = json!("Configuration of deferral, a reverse proxy for MCP servers.");
    schema
}

/// Reads a configuration file. What it names is not looked at, except for keys.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(path: &Path) -> Result<Config, Problems> {
    Ok(load_overlaid(Some(path), |_, _| {}, false)?.0)
}

/// Reads a configuration file, looks whether the certificates it names can be served with, and says beside it what
/// is allowed and yet probably not meant, if there is anything.
///
/// # Errors
/// Everything that is wrong with it.
pub fn check(path: &Path) -> Result<(Config, Option<Problems>), Problems> {
    load_overlaid(Some(path), |_, _| {}, true)
}

/// Reads a configuration file, if there is one (`-` is the standard input), lays something else over it
/// (the flags of the command line), looks whether the certificates it names can be served with, and says
/// what it all means.
///
/// # Errors
/// Everything that is wrong with both.
pub fn load_with(
    path: Option<&Path>,
    overlay: impl FnOnce(&mut Node, &mut Vec<Problem>),
) -> Result<Config, Problems> {
    Ok(load_overlaid(path, overlay, true)?.0)
}

fn load_overlaid(
    path: Option<&Path>,
    overlay: impl FnOnce(&mut Node, &mut Vec<Problem>),
    look: bool,
) -> Result<(Config, Option<Problems>), Problems> {
    let environment = Environment::of_process();
    let Some(path) = path else { return parse_overlaid(None, None, overlay, look, &environment) };
    let name = display_path(path).to_owned();
    let read = if path == Path::new(STDIN) { read_all(std::io::stdin()) } else { read_file(path) };
    let text = match read {
        Ok(text) => text,
        Err(message) => return Err(Problems::one(Some(name), Problem::new(SourceSpan::Whole, message))),
    };
    parse_overlaid(Some(name), Some(&text), overlay, look, &environment)
}

/// What a file is called where something is wrong with it.
pub fn display_path(path: &Path) -> &Path {
    if path == Path::new(STDIN) { Path::new("<stdin>") } else { path }
}

/// As [`load`], from a text; `path` is what its problems name, and where relative paths begin.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(path: &Path, text: &str) -> Result<Config, Problems> {
    Ok(parse_overlaid(Some(path.to_owned()), Some(text), |_, _| {}, false, &Environment::of_process())?.0)
}

/// As [`check`], of a text, where the environment has these variables.
///
/// # Errors
/// Everything that is wrong with it.
pub fn check_in(
    path: &Path,
    text: &str,
    environment: &Environment,
) -> Result<(Config, Option<Problems>), Problems> {
    parse_overlaid(Some(path.to_owned()), Some(text), |_, _| {}, true, environment)
}

fn parse_overlaid(
    path: Option<PathBuf>,
    text: Option<&str>,
    overlay: impl FnOnce(&mut Node, &mut Vec<Problem>),
    look: bool,
    environment: &Environment,
) -> Result<(Config, Option<Problems>), Problems> {
    let mut report = DiagnosticSink::default();
    let read = match text {
        Some(text) => yaml::parse(text, &mut report.problems),
        None => Some(Node::map(SourceSpan::Whole)),
    };
    // YAML takes comments of JSON for parts of keys.
    let of_host = read.as_ref().and_then(mcp_servers::problem);
    if let Some(problem) = of_host.or_else(|| text.and_then(mcp_servers::problem_in_text)) {
        return Err(Problems::one(path, problem));
    }
    if read.is_none() && report.problems.is_empty() {
        report
            .problems
            .push(Problem::new(SourceSpan::START, "the file is empty; it needs at least one route"));
    }
    let folder = path.as_deref().and_then(Path::parent).unwrap_or_else(|| Path::new("")).to_owned();
    let context = LoadContext { folder: &folder, checks_files: look, environment };
    let mut used = VariableValues::new();
    let config = read.and_then(|mut node| {
        // Before the flags, which a shell has replaced variables in already.
        used = variables::substitute(&mut node, environment, &mut report);
        overlay(&mut node, &mut report.problems);
        let name = path.as_deref().map(Path::to_string_lossy);
        let config = section::read(&node, TOP_LEVEL, &mut report, |s| file::file(s, context))?;
        let itself = path.clone().filter(|path| path != Path::new(STDIN)).map(NamedFile::itself);
        let files = ConfigFiles(itself.into_iter().chain(config_files::named(&node, &folder)).collect());
        let settings = RedactedSettings::of(name.as_deref(), &node);
        let mut config = Config { settings, files, ..config };
        config.prepare_commands(secret::secret_variables(&node));
        Some(config)
    });
    let DiagnosticSink { mut problems, warnings: mut doubts, .. } = report;
    variables::redact_values(&mut problems, &used);
    variables::redact_values(&mut doubts, &used);
    let config = Problems::or_ok(path.clone(), problems, config)?;
    let mut config = config.expect("what cannot be read is a problem");
    let doubts = Problems::or_ok(path, doubts, ()).err();
    let line = |line: String| line.replacen(": warning: ", ": ", 1);
    config.warnings = ConfigWarnings(doubts.iter().flat_map(Problems::lines).map(line).collect());
    Ok((config, doubts))
}

// === impl Warnings ===

impl ConfigWarnings {
    /// Each with its place, as in `deferral.yaml:7:5: …`.
    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Debug for ConfigWarnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Warnings(..)")
    }
}

// === impl Config ===

impl Config {
    /// Gives commands what follows from other keys: the variables with secrets of the proxy, which no process inherits; and
    /// whether callers may be told what a server wrote to standard error, which is where all of them are on this machine.
    fn prepare_commands(&mut self, secrets: Vec<String>) {
        let secrets: Arc<[String]> = secrets.into();
        let is_local = self.front.public_url.is_none()
            && self.front.listen.iter().all(|address| address.ip().to_canonical().is_loopback());
        for route in &mut self.routes {
            if let upstream::UpstreamTarget::Command(command) = &mut route.server {
                // What is not inherited anyway need not be withheld: a command that stays the same keeps its processes.
                command.withheld = match &command.inherit {
                    EnvInheritance::All => Arc::clone(&secrets),
                    EnvInheritance::Safe => Arc::default(),
                    EnvInheritance::Also(names) => {
                        secrets.iter().filter(|secret| names.contains(secret)).cloned().collect()
                    }
                };
                command.reveals_stderr = is_local;
            }
        }
    }
}

/// The text of a file that may be a configuration; otherwise what to say of it.
fn read_file(path: &Path) -> Result<String, String> {
    read_all(std::fs::File::open(path).map_err(read_error)?)
}

fn read_all(source: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    source.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("is longer than the limit of {MAX_FILE} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].split(|byte| *byte == b'\n').count();
        format!("is not UTF-8 (line {line})")
    })
}

fn read_error(error: std::io::Error) -> String {
    format!("cannot be read: {error}")
}
