//! The configuration: the file as written, and the values that each part of the proxy needs.
//!
//! `yaml` parses the file into a tree with source positions. [`mod@file`], with `route`, `server` and
//! `limits`, declares each key once and converts the tree into the `Config` types of the parts;
//! `cross_checks` validates combinations of keys. All problems are reported together, as `file:line:column:
//! message` with a fix ([`Problems`]); warnings are for values that are valid but probably unintended.
//! Command line flags are applied to the same tree.
//!
//! Begin with [`Config`] and [`load`]. `section` declares keys, `value_types` has the types of values,
//! [`values`] parses single values, [`schema()`] describes the file for editors, [`secret`] protects keys and
//! tokens.

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
pub use problem::{Problem, Problems, SourceSpan, SpannedValue, find_similar};
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

/// Maximum size of a configuration file, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// The path that stands for standard input.
const STDIN: &str = "-";

/// The complete configuration of the proxy.
#[derive(Clone, Debug)]
pub struct Config {
    /// The client listeners.
    pub front: front::Config,
    /// Admin listener; `None` if off.
    pub admin: Option<admin::Config>,
    /// Additional listener for Prometheus; `None` if off.
    pub metrics: Option<SocketAddr>,
    /// Where task records are stored.
    pub store: StoreConfig,
    /// The routes: at least one, with distinct paths.
    pub routes: Vec<RouteConfig>,
    /// Limits of tasks, in total and of one principal.
    pub quotas: policy::TaskQuotas,
    /// Keys that encrypt `requestState`: the first encrypts, all decrypt. If empty, a key is generated at
    /// start, and states are valid until the process ends.
    pub state_keys: Vec<secret::SecretKey>,
    /// Limits of open connections that are written in the file.
    pub connections: ConnectionLimits,
    /// Durations of the phases of a shutdown.
    pub drain: DrainTimes,
    /// Format and level of the log.
    pub log: LogConfig,
    /// Conditions under which `/ready` responds with 200.
    pub ready: ReadinessConfig,
    /// Trace export; `None` if off.
    pub traces: Option<trace::ExportSettings>,
    /// The configuration as shown to operators, without secrets.
    pub settings: RedactedSettings,
    /// Warnings about valid but probably unintended values.
    pub warnings: ConfigWarnings,
    /// The configuration file and the files that it names.
    pub files: ConfigFiles,
}

/// Warnings about valid but probably unintended values, one per line. `Debug` hides them, so that equivalent
/// configurations compare equal.
#[derive(Clone, Default)]
pub struct ConfigWarnings(Vec<String>);

/// A route and its server.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    /// The path and the policies of the route.
    pub route: policy::Route,
    /// The URL of the server, or the command that starts it.
    pub server: upstream::UpstreamTarget,
    /// Limits, timeouts, headers and TLS of the connections to the server.
    pub upstream: upstream::Config,
}

/// Durations of the phases of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainTimes {
    /// Time after the stop signal in which new calls are still served, while `/ready` responds with 503 and
    /// idle connections are closed, so that load balancers can notice. Default 0.
    pub notice: Duration,
    /// Time for calls in flight to finish, after `notice`. Calls that are still running then end with
    /// `-31007`. Default 30 s.
    pub limit: Duration,
}

/// The default of `drain`.
const DEFAULT_DRAIN: DrainTimes = DrainTimes { notice: Duration::ZERO, limit: Duration::from_secs(30) };

/// Configured connection limits. Limits that are not set are derived from the limit of open files
/// ([`crate::runtime::DescriptorShares`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The limit of client connections (`limits.connections`); `None` if it is not set.
    pub clients: Option<usize>,
    /// The limit of connections to servers (`limits.upstream_connections`); `None` if it is not set.
    pub servers: Option<usize>,
}

/// Location of the task store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreConfig {
    /// In memory; lost when the process ends.
    #[default]
    Memory,
    /// In a folder; survives restarts.
    Disk {
        /// The folder of the store.
        path: PathBuf,
        /// The key of the store; `None` for the key file beside the folder.
        key: Option<StoreKeySource>,
        /// Size limit of the folder, in bytes; `None` for no limit.
        max_bytes: Option<usize>,
    },
}

/// Source of the key of a store on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreKeySource {
    /// A key file, which is created if missing.
    File(PathBuf),
    /// The key itself, read together with the configuration.
    Value(secret::SecretKey),
}

/// Format and level of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    pub format: LogFormat,
    /// Filter in the syntax of `tracing`, as in `warn` or `info,deferral::access=warn`; `None` for `info`.
    pub level: Option<String>,
}

/// Conditions of `/ready`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadinessConfig {
    /// Whether `/ready` requires that the server of each route is reachable. Default false: clients of the
    /// other routes are served, and those of this route get errors.
    pub needs_servers: bool,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Returns the JSON Schema (2020-12) of the configuration file, without references.
pub fn schema() -> serde_json::Value {
    let environment = Environment::default();
    let context = LoadContext { folder: Path::new(""), checks_files: false, environment: &environment };
    let mut schema = section::schema(TOP_LEVEL, |s| file::read_config_file(s, context));
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("deferral");
    schema["description"] = json!("Configuration of deferral, a reverse proxy for MCP servers.");
    schema
}

/// Reads a configuration file. Files that it names are not checked, except for keys.
///
/// # Errors
/// All problems of the file.
pub fn load(path: &Path) -> Result<Config, Problems> {
    Ok(load_overlaid(Some(path), |_, _| {}, false)?.0)
}

/// Reads a configuration file, checks the certificates and commands that it names, and returns its warnings
/// as well.
///
/// # Errors
/// All problems of the file.
pub fn check(path: &Path) -> Result<(Config, Option<Problems>), Problems> {
    load_overlaid(Some(path), |_, _| {}, true)
}

/// Reads a configuration file, if one is given (`-` is standard input), applies `overlay` (the flags of the
/// command line), and checks the certificates and commands that it names.
///
/// # Errors
/// All problems of the file and the overlay.
pub fn load_with(
    path: Option<&Path>,
    overlay: impl FnOnce(&mut Node, &mut Vec<Problem>),
) -> Result<Config, Problems> {
    Ok(load_overlaid(path, overlay, true)?.0)
}

fn load_overlaid(
    path: Option<&Path>,
    overlay: impl FnOnce(&mut Node, &mut Vec<Problem>),
    checks_files: bool,
) -> Result<(Config, Option<Problems>), Problems> {
    let environment = Environment::from_process();
    let Some(path) = path else { return parse_overlaid(None, None, overlay, checks_files, &environment) };
    let name = display_path(path).to_owned();
    let content = if path == Path::new(STDIN) { read_all(std::io::stdin()) } else { read_file(path) };
    let text = match content {
        Ok(text) => text,
        Err(message) => return Err(Problems::single(Some(name), Problem::new(SourceSpan::Whole, message))),
    };
    parse_overlaid(Some(name), Some(&text), overlay, checks_files, &environment)
}

/// Returns the name of a configuration file for messages: `<stdin>` for `-`.
pub fn display_path(path: &Path) -> &Path {
    if path == Path::new(STDIN) { Path::new("<stdin>") } else { path }
}

/// Reads a configuration from a text, as [`load`] does from a file. `path` is the file name in problems and
/// the base of relative paths.
///
/// # Errors
/// All problems of the text.
pub fn parse(path: &Path, text: &str) -> Result<Config, Problems> {
    Ok(parse_overlaid(Some(path.to_owned()), Some(text), |_, _| {}, false, &Environment::from_process())?.0)
}

/// Checks a configuration in a text, as [`check`] does with a file, with the given environment variables. The
/// problems beside the configuration are its warnings.
///
/// # Errors
/// All problems of the text.
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
    checks_files: bool,
    environment: &Environment,
) -> Result<(Config, Option<Problems>), Problems> {
    let mut diagnostics = DiagnosticSink::default();
    let tree = match text {
        Some(text) => yaml::parse(text, &mut diagnostics.problems),
        None => Some(Node::empty_map(SourceSpan::Whole)),
    };
    // The files of MCP hosts are recognised before other problems are reported: YAML would read JSON comments
    // as parts of keys.
    let host_problem = tree.as_ref().and_then(mcp_servers::host_file_problem);
    if let Some(problem) = host_problem.or_else(|| text.and_then(mcp_servers::host_text_problem)) {
        return Err(Problems::single(path, problem));
    }
    if tree.is_none() && diagnostics.problems.is_empty() {
        diagnostics
            .problems
            .push(Problem::new(SourceSpan::START, "the file is empty; it needs at least one route"));
    }
    let folder = path.as_deref().and_then(Path::parent).unwrap_or_else(|| Path::new("")).to_owned();
    let context = LoadContext { folder: &folder, checks_files, environment };
    let mut used_variables = VariableValues::new();
    let config = tree.and_then(|mut node| {
        // Variables are replaced before the overlay: the shell has already replaced those in flags.
        used_variables = variables::substitute(&mut node, environment, &mut diagnostics);
        overlay(&mut node, &mut diagnostics.problems);
        let name = path.as_deref().map(Path::to_string_lossy);
        let config = section::read_mapping(&node, TOP_LEVEL, &mut diagnostics, |s| {
            file::read_config_file(s, context)
        })?;
        let config_file = path.clone().filter(|path| path != Path::new(STDIN)).map(NamedFile::config_file);
        let files = ConfigFiles(
            config_file.into_iter().chain(config_files::referenced_files(&node, &folder)).collect(),
        );
        let settings = RedactedSettings::from_tree(name.as_deref(), &node);
        let mut config = Config { settings, files, ..config };
        config.prepare_commands(secret::secret_variables(&node));
        Some(config)
    });
    let DiagnosticSink { mut problems, mut warnings, .. } = diagnostics;
    variables::redact_values(&mut problems, &used_variables);
    variables::redact_values(&mut warnings, &used_variables);
    let config = Problems::into_result(path.clone(), problems, config)?;
    let mut config = config.expect("an unreadable node has been reported");
    let warnings = Problems::into_result(path, warnings, ()).err();
    let without_label = |line: String| line.replacen(": warning: ", ": ", 1);
    config.warnings = ConfigWarnings(warnings.iter().flat_map(Problems::lines).map(without_label).collect());
    Ok((config, warnings))
}

// === impl ConfigWarnings ===

impl ConfigWarnings {
    /// Returns the warnings with their source positions, as in `deferral.yaml:7:5: …`.
    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Debug for ConfigWarnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfigWarnings(..)")
    }
}

// === impl Config ===

impl Config {
    /// Completes the commands of stdio servers with values derived from other keys: the secret variables of
    /// the proxy, which no process inherits, and whether clients may see the standard error of a server,
    /// which requires that all of them are local.
    fn prepare_commands(&mut self, secrets: Vec<String>) {
        let secrets: Arc<[String]> = secrets.into();
        let is_local = self.front.public_url.is_none()
            && self.front.listen.iter().all(|address| address.ip().to_canonical().is_loopback());
        for route in &mut self.routes {
            if let upstream::UpstreamTarget::Command(command) = &mut route.server {
                // Withholding only variables that would be inherited keeps unchanged commands equal, so that
                // a reload keeps their processes.
                command.secret_variables = match &command.inherit {
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

/// Reads a file with a size limit. The error is a message without the file name.
fn read_file(path: &Path) -> Result<String, String> {
    read_all(std::fs::File::open(path).map_err(read_error)?)
}

fn read_all(source: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("is longer than the limit of {MAX_FILE_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].split(|byte| *byte == b'\n').count();
        format!("is not UTF-8 (line {line})")
    })
}

fn read_error(error: std::io::Error) -> String {
    format!("cannot be read: {error}")
}
