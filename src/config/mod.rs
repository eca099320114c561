//! The configuration: the file as written, and the values that each part of the proxy needs.
//!
//! [`schema`](mod@schema), which knows none of the parts, parses the file into a tree with source positions and
//! reads it key by key; [`build`] declares each key once, with its checks, and converts the tree into the `Config`
//! types of the parts. All problems are reported together, as `file:line:column: message` with a fix
//! ([`Problems`]); warnings are for values that are valid but probably unintended. Command line flags are applied
//! to the same tree.
//!
//! Begin with [`Config`] and [`load`]. [`values`] parses single values, [`schema()`] describes the file for
//! editors, [`secret`] protects keys and tokens.

mod build;
mod changes;
mod config_files;
mod mcp_servers;
mod schema;
mod settings;
pub mod values;

pub use build::{
    Config, ConfigWarnings, DEFAULT_LISTEN, DEFAULT_PATH, DrainTimes, LogFormat, RouteConfig, StoreConfig,
    StoreKeySource,
};
pub use config_files::ConfigFiles;
pub use schema::{Environment, Node, Problem, Problems, SourceSpan, find_similar, secret};
pub use settings::RedactedSettings;

use build::read_config_file;
use config_files::NamedFile;
use schema::{
    DiagnosticSink, LoadContext, MAX_FILE_BYTES, TOP_LEVEL, read_mapping, section_schema,
    variables::{self, VariableValues},
    yaml,
};
use serde_json::json;
use std::{
    io::Read,
    path::{Path, PathBuf},
};

/// The path that stands for standard input.
const STDIN: &str = "-";

/// Returns the JSON Schema (2020-12) of the configuration file, without references.
pub fn schema() -> serde_json::Value {
    let environment = Environment::default();
    let context = LoadContext { folder: Path::new(""), checks_files: false, environment: &environment };
    let mut schema = section_schema(TOP_LEVEL, |s| read_config_file(s, context));
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
    let mut diagnostics = DiagnosticSink::new(schema);
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
        let config = read_mapping(&node, TOP_LEVEL, &mut diagnostics, |s| read_config_file(s, context))?;
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
