//! `deferral serve`: builds the configuration from flags, environment variables and a file.
//!
//! Flags are applied to the tree that was read from the file, and both are validated together.

use super::{
    check,
    choice_parser::ChoiceParser,
    command_runtime,
    exit_codes::{EXIT_FAILURE, EXIT_NEGATIVE, EXIT_SUCCESS},
    host_input,
    printer::{self, Printer},
};
use crate::{
    app,
    config::{
        self, Config, Environment, LogFormat, Node, Problem, Problems, SourceSpan,
        values::{self, InvalidValue},
    },
    runtime::wall_clock,
    telemetry,
};
use clap::ValueHint;
use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};

#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// URL of the server behind the proxy: its MCP endpoint (Streamable HTTP).
    #[arg(long, value_name = "URL", value_parser = like(values::http_url), value_hint = ValueHint::Url)]
    upstream: Option<String>,
    /// Configuration file, or `-` for standard input. Other flags override its keys. --after, --mode, --tool, --instances
    /// and --shared require a file with exactly one route. --upstream and a command after `--` define the only route
    /// themselves, and require a file without `routes`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Reload the configuration whenever its file, or a file that it names, changes. SIGHUP reloads it in any case.
    #[arg(long, requires = "config")]
    watch: bool,
    /// Address to listen on [default: 127.0.0.1:8808].
    #[arg(long, value_name = "ADDR:PORT", value_parser = like(values::address))]
    listen: Option<String>,
    /// Admin listen address, or `off` [default: 127.0.0.1:8809].
    #[arg(long, value_name = "ADDR:PORT|off", value_parser = like(values::address_or_off))]
    admin: Option<String>,
    /// Host name by which clients reach the proxy, such as that of a container or of a service in a cluster; `*` for any.
    /// May be repeated. Requests with another name get 403. `localhost` and IP addresses are always allowed.
    #[arg(long = "host", value_name = "NAME", value_parser = values::host)]
    hosts: Vec<String>,
    /// Threshold: how long a call may run before it becomes a task [default: 5s].
    #[arg(long, value_name = "DURATION", value_parser = like(values::duration))]
    after: Option<String>,
    /// Which calls become tasks [default: auto]. auto: calls of clients with task support that are still running at
    /// --after. always: every call of these clients, at once. required: as auto, and calls of other clients are refused.
    /// never: none. observe: none, but the log and the metrics record which ones would have.
    #[arg(long, value_name = "MODE", hide_possible_values = true, value_parser = ChoiceParser::new(MODES, like(values::parse_mode)))]
    mode: Option<String>,
    /// Mode, and threshold if it differs, for the tools that match a pattern, as in `train_*=always` or `report=auto:1s`.
    /// May be repeated; the first match wins. The mode `deny` hides the tools and refuses their calls.
    #[arg(long = "tool", value_name = "PATTERN=MODE[:AFTER]", value_parser = tool)]
    tools: Vec<ToolOverride>,
    /// Task store: `memory` (tasks are lost when the process ends), or `disk:PATH`, a folder in which they are kept across
    /// restarts [default: memory].
    #[arg(long, value_name = "STORE", hide_possible_values = true, value_parser = ChoiceParser::new(&["memory", "disk:"], like(values::parse_store)))]
    store: Option<String>,
    /// Format of the log on standard error [default: text].
    #[arg(long, value_name = "FORMAT", value_parser = ChoiceParser::new(&["text", "json"], like(values::parse_log_format)))]
    log: Option<String>,
    /// Log level: error, warn, info, debug or trace; or a per-module filter, for example info,deferral::access=warn [default: info].
    #[arg(long, value_name = "LEVEL", hide_possible_values = true, value_parser = ChoiceParser::new(LEVELS, like(values::parse_log_level)))]
    log_level: Option<String>,
    /// Maximum number of processes of the stdio server [default: 4]. Clients that declare the same capabilities share one.
    #[arg(long, value_name = "N", value_parser = like(values::parse_instances))]
    instances: Option<String>,
    /// Allow clients on other machines to share the stdio server, which cannot tell them apart. Without it, and without
    /// `access.tokens` in a configuration file, a proxy in front of a stdio server does not start if --listen is beyond
    /// loopback or `public_url` is set.
    #[arg(long, requires = "command")]
    shared: bool,
    /// Command that starts a stdio server, with its arguments. It inherits all environment variables except DEFERRAL_* and
    /// those from which the configuration reads a secret.
    #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    command: Vec<String>,
    /// The flags that were set by environment variables, which problems name instead of the flag.
    #[arg(skip)]
    from_variables: Vec<(&'static str, &'static str)>,
}

const MODES: &[&str] = &["auto", "never", "always", "required", "observe"];
const LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];

/// Each flag and its environment variable. A variable applies if its flag is absent, and overrides the file.
const VARIABLES: [(&str, &str); 14] = [
    ("--upstream", "DEFERRAL_UPSTREAM"),
    ("--config", "DEFERRAL_CONFIG"),
    ("--watch", "DEFERRAL_WATCH"),
    ("--listen", "DEFERRAL_LISTEN"),
    ("--admin", "DEFERRAL_ADMIN"),
    ("--host", "DEFERRAL_HOST"),
    ("--after", "DEFERRAL_AFTER"),
    ("--mode", "DEFERRAL_MODE"),
    ("--tool", "DEFERRAL_TOOL"),
    ("--store", "DEFERRAL_STORE"),
    ("--log", "DEFERRAL_LOG"),
    ("--log-level", "DEFERRAL_LOG_LEVEL"),
    ("--instances", "DEFERRAL_INSTANCES"),
    ("--shared", "DEFERRAL_SHARED"),
];

/// The note on environment variables in `--help`.
pub const VARIABLES_HELP: &str = "\
Every flag of `serve` is also an environment variable: --log-level is DEFERRAL_LOG_LEVEL, --listen is DEFERRAL_LISTEN. \
A flag overrides its variable, and a variable overrides the configuration file. (A filter in DEFERRAL_LOG overrides every level.) Separate several values of DEFERRAL_HOST \
and DEFERRAL_TOOL by commas.";

/// A tool rule of `--tool`, as texts that have been validated.
#[derive(Clone, Debug)]
struct ToolOverride {
    pattern: String,
    mode: String,
    after: Option<String>,
}

/// Error of a command line or configuration with which the proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no server is configured; name one in one of these ways:\n
    deferral --upstream http://127.0.0.1:9000/mcp    an HTTP server (Streamable HTTP)
    deferral -- npx some-server                      a stdio server, by its command
    deferral --config deferral.yaml                  a configuration file, for everything else\n
`deferral --help` lists all flags, `deferral demo` shows how it works"
    )]
    NoServer,
    #[error(transparent)]
    Config(#[from] Problems),
}

/// Serves until the process is stopped. Once clients are served, prints a line for each address and path,
/// with the actual port. Returns the exit code.
pub fn run(args: Args, printer: &mut Printer) -> u8 {
    let environment = Environment::from_process();
    misspelt_variables(&environment).for_each(|warning| printer.note_line(warning));
    let args = args.with_variables(&environment).map_err(Error::Config);
    let loaded = args.and_then(|args| Ok((args.config()?, args)));
    let (config, args) = match loaded {
        Ok(read) => read,
        Err(Error::Config(problems)) => {
            check::print_problems(&problems, printer);
            return EXIT_FAILURE;
        }
        Err(error @ Error::NoServer) => {
            printer.error(error);
            return EXIT_FAILURE;
        }
    };
    let format = match config.log.format {
        LogFormat::Text => telemetry::LineFormat::Text,
        LogFormat::Json => telemetry::LineFormat::Json,
    };
    let _log = telemetry::log::start(format, config.log.level.as_deref(), wall_clock);
    let is_text = matches!(format, telemetry::LineFormat::Text);
    let on_stopping = |pending: &app::PendingWork| {
        // The log has the same information, so nothing is printed into a JSON log.
        if let Some(text) = describe_shutdown(pending).filter(|_| is_text && pending.is_interrupt) {
            Printer::standard().note(text);
        }
    };
    let on_ready = |running: &app::RunningProxy| {
        for path in &running.paths {
            for address in &running.addresses {
                printer.line(format_args!("listening on {}", running.url(address, path)));
            }
        }
        // These lines go to standard error, and have a secret only on a terminal: other output is stored and
        // collected.
        for line in running.admin.iter().flat_map(|admin| admin.ready_lines(printer::is_error_terminal())) {
            printer.note(line);
        }
    };
    let outcome = command_runtime::runtime().block_on(app::run(
        config,
        args.reload_source(),
        args.shutdown_triggers(),
        on_ready,
        on_stopping,
    ));
    match outcome {
        Ok(()) => EXIT_SUCCESS,
        Err(error) => {
            printer.error(&error);
            if matches!(error, app::Error::SecondSignal) { EXIT_NEGATIVE } else { EXIT_FAILURE }
        }
    }
}

/// Describes the calls, tasks and results that the shutdown waits for; `None` if there are none.
fn describe_shutdown(pending: &app::PendingWork) -> Option<String> {
    let &app::PendingWork { calls, tasks, results, limit, .. } = pending;
    let counts = [(calls, "call"), (tasks, "task"), (results, "result to fetch")];
    let describe_count = |(count, noun): (usize, &str)| match (count, noun.split_once(' ')) {
        (0, _) => None,
        (1, _) => Some(format!("1 {noun}")),
        (_, Some((noun, rest))) => Some(format!("{count} {noun}s {rest}")),
        (_, None) => Some(format!("{count} {noun}s")),
    };
    let counts: Vec<_> = counts.into_iter().filter_map(describe_count).collect();
    (!counts.is_empty()).then(|| {
        format!(
            "stopping: waiting for {}, up to {} (drain); press Ctrl-C again to exit at once",
            counts.join(", "),
            values::show_duration(limit)
        )
    })
}

/// Returns a warning for each unknown environment variable that is similar to a known one.
fn misspelt_variables(environment: &Environment) -> impl Iterator<Item = String> {
    let known = || VARIABLES.into_iter().filter_map(|(_, variable)| variable.strip_prefix(PREFIX));
    environment.names().filter_map(move |name| {
        let word = name.strip_prefix(PREFIX).filter(|word| !known().any(|known| known == *word))?;
        let similar = config::find_similar(
            word,
            known().map(str::to_lowercase).collect::<Vec<_>>().iter().map(String::as_str),
        )?
        .to_uppercase();
        Some(format!("warning: unknown environment variable `{name}`; did you mean `{PREFIX}{similar}`?"))
    })
}

// === impl Args ===

impl Args {
    /// Builds the configuration.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems of flags and file; [`Error::NoServer`] if neither names a server.
    pub fn config(&self) -> Result<Config, Error> {
        if self.config.is_none() && self.upstream.is_none() && self.command.is_empty() {
            return Err(Error::NoServer);
        }
        Ok(config::load_with(self.config.as_deref(), |file, problems| self.overlay(file, problems))?)
    }

    /// Applies environment variables for absent flags. An empty variable counts as unset.
    ///
    /// # Errors
    /// All problems of the variables.
    fn with_variables(mut self, environment: &Environment) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let names_server = self.upstream.is_some() || !self.command.is_empty();
        let mut applied = Vec::new();
        for (flag, variable) in VARIABLES {
            let value = match environment.get(variable) {
                Ok(Some(value)) if !value.trim().is_empty() => value.trim(),
                Ok(_) => continue,
                Err(error) => {
                    problems.push(Problem::new(SourceSpan::Flag(variable), error.0));
                    continue;
                }
            };
            match self.apply_variable(flag, value, names_server) {
                Ok(true) => applied.push((flag, variable)),
                Ok(false) => {}
                Err(error) => problems.push(Problem::new(SourceSpan::Flag(variable), error.0)),
            }
        }
        let is_applied = |flag: &str| applied.iter().any(|(other, _)| *other == flag);
        for (flag, is_missing, needs) in [
            ("--watch", self.config.is_none(), "a configuration file (--config, DEFERRAL_CONFIG)"),
            ("--shared", self.command.is_empty(), "a stdio server (-- CMD)"),
        ] {
            if is_applied(flag) && is_missing {
                problems.push(Problem::new(SourceSpan::Flag(variable_of(flag)), format!("needs {needs}")));
            }
        }
        self.from_variables = applied;
        Problems::into_result(None, problems, self)
    }

    /// Applies an environment variable, unless its flag is given. Returns whether it was applied.
    fn apply_variable(&mut self, flag: &str, value: &str, names_server: bool) -> Result<bool, InvalidValue> {
        let set_text = |target: &mut Option<String>, parse: &dyn Fn(&str) -> Result<String, InvalidValue>| {
            let is_free = target.is_none();
            if is_free {
                *target = Some(parse(value)?);
            }
            Ok(is_free)
        };
        let set_boolean = |target: &mut bool| {
            let is_true = match value {
                "true" | "1" => true,
                "false" | "0" => false,
                _ => return Err(InvalidValue(format!("`{value}` must be true or false"))),
            };
            let is_free = !*target && is_true;
            *target |= is_true;
            Ok(is_free)
        };
        match flag {
            "--upstream" if names_server => Ok(false),
            "--upstream" => set_text(&mut self.upstream, &like(values::http_url)),
            "--config" => {
                let is_free = self.config.is_none();
                self.config.get_or_insert_with(|| value.into());
                Ok(is_free)
            }
            "--watch" => set_boolean(&mut self.watch),
            "--listen" => set_text(&mut self.listen, &like(values::address)),
            "--admin" => set_text(&mut self.admin, &like(values::address_or_off)),
            "--host" => set_list(&mut self.hosts, value, values::host),
            "--after" => set_text(&mut self.after, &like(values::duration)),
            "--mode" => set_text(&mut self.mode, &like(values::parse_mode)),
            "--tool" => set_list(&mut self.tools, value, tool),
            "--store" => set_text(&mut self.store, &like(values::parse_store)),
            // Other values of `DEFERRAL_LOG` are log filters, which the log reads itself.
            "--log" if values::parse_log_format(value).is_err() => Ok(false),
            "--log" => set_text(&mut self.log, &like(values::parse_log_format)),
            "--log-level" => set_text(&mut self.log_level, &like(values::parse_log_level)),
            "--instances" => set_text(&mut self.instances, &like(values::parse_instances)),
            "--shared" => set_boolean(&mut self.shared),
            _ => unreachable!("each flag of `VARIABLES` is one of these"),
        }
    }

    /// Returns the flag or the environment variable that set a value, for problems.
    fn source_of(&self, flag: &'static str) -> SourceSpan {
        let variable = self.from_variables.iter().find(|(other, _)| *other == flag);
        SourceSpan::Flag(variable.map_or(flag, |(_, variable)| variable))
    }

    /// Returns the events that stop the process, in addition to signals.
    fn shutdown_triggers(&self) -> app::StopTriggers {
        let is_terminal =
            io::stdin().is_terminal() || printer::is_output_terminal() || printer::is_error_terminal();
        let reads_input = self.config.as_deref() != Some(Path::new("-"));
        app::StopTriggers {
            stops_on_hangup: self.config.is_none() && is_terminal,
            host_message: reads_input.then(host_input::watch_stdin).flatten(),
        }
    }

    /// Returns the source from which a reload reads the configuration.
    fn reload_source(&self) -> app::ConfigSource {
        let args = self.clone();
        let read = move || match args.config.as_deref() {
            Some(path) if path == Path::new("-") => Err(
                "the configuration was read from standard input, which cannot be read again; start with a \
                     file to reload it"
                    .to_owned(),
            ),
            _ => args.config().map_err(|error| error.to_string()),
        };
        app::ConfigSource { read: Box::new(read), is_watched: self.watch }
    }

    /// Applies `--log` and `--log-level`. The key `log` may be a format or a mapping; it must be a mapping if
    /// a level is set.
    fn apply_log(&self, file: &mut Node) {
        if self.log_level.is_none() && self.log.is_none() {
            return;
        }
        let from_file = file.get_mut("log").cloned();
        let is_mapping = from_file.as_ref().is_some_and(Node::is_map);
        if self.log_level.is_none() && !is_mapping {
            return self.set_from_flag(file, "log", "--log", self.log.as_ref());
        }
        if !is_mapping {
            file.set("log", Node::empty_map(self.source_of("--log-level")));
        }
        let Some(log) = file.get_or_insert("log", Node::empty_map(self.source_of("--log-level"))) else {
            return;
        };
        if let Some(format) = from_file.filter(|_| !is_mapping) {
            log.set("format", format);
        }
        self.set_from_flag(log, "format", "--log", self.log.as_ref());
        self.set_from_flag(log, "level", "--log-level", self.log_level.as_ref());
    }

    /// Sets a key to the value of a flag, if the flag is given.
    fn set_from_flag(&self, section: &mut Node, key: &str, flag: &'static str, value: Option<&String>) {
        set_key(section, key, self.source_of(flag), value);
    }

    /// Applies all flags to the tree that was read from the file.
    fn overlay(&self, file: &mut Node, problems: &mut Vec<Problem>) {
        self.set_from_flag(file, "listen", "--listen", self.listen.as_ref());
        self.apply_admin(file);
        self.set_from_flag(file, "store", "--store", self.store.as_ref());
        self.apply_log(file);
        // The hosts of `--host` are added to those of the file.
        if let ([_, ..], Some(access)) =
            (&self.hosts[..], file.get_or_insert("access", Node::empty_map(self.source_of("--host"))))
            && let Some(hosts) = access.get_or_insert("hosts", Node::list(self.source_of("--host"), []))
            && let Some(hosts) = hosts.items_mut()
        {
            hosts.extend(self.hosts.iter().map(|host| Node::text(self.source_of("--host"), host)));
        }
        if self.upstream.is_some() || !self.command.is_empty() {
            self.define_route(file, problems);
        } else {
            self.change_route(file, problems);
        }
    }

    /// Applies `--admin`: replaces the address, and keeps the token and TLS of the file.
    fn apply_admin(&self, file: &mut Node) {
        let is_off = self.admin.as_deref() == Some("off");
        match file.get_mut("admin") {
            Some(admin) if admin.is_map() && !is_off => {
                self.set_from_flag(admin, "listen", "--admin", self.admin.as_ref())
            }
            Some(_) | None => self.set_from_flag(file, "admin", "--admin", self.admin.as_ref()),
        }
    }

    /// Applies `--upstream` or `-- CMD`: defines the only route.
    fn define_route(&self, file: &mut Node, problems: &mut Vec<Problem>) {
        let span = if self.upstream.is_some() { self.source_of("--upstream") } else { flag_span("-- CMD") };
        let file_routes = file.get_mut("routes").and_then(|routes| routes.items());
        if let (Some((routes, [_, ..])), Some(path)) = (file_routes, &self.config) {
            let line = match routes {
                SourceSpan::File { line, .. } => format!(" (line {line})"),
                SourceSpan::Flag(_) | SourceSpan::Whole => String::new(),
            };
            problems.push(Problem::new(
                span,
                format!(
                    "names a server, and the `routes` of {}{line} do so as well; remove one of the two",
                    path.display()
                ),
            ));
            return;
        }
        let mut upstream = Node::empty_map(span);
        self.set_from_flag(&mut upstream, "url", "--upstream", self.upstream.as_ref());
        if !self.command.is_empty() {
            let words = self.command.iter().map(|word| Node::text(flag_span("-- CMD"), word));
            upstream.set("command", Node::list(flag_span("-- CMD"), words));
            upstream.set("inherit_env", Node::text(flag_span("-- CMD"), "all"));
            if self.shared {
                upstream.set("shared", Node::text(self.source_of("--shared"), "true"));
            }
        }
        let mut route = Node::empty_map(span);
        route.set("upstream", upstream);
        self.apply_to_route(&mut route);
        file.set("routes", Node::list(span, [route]));
    }

    /// Applies `--after`, `--mode`, `--tool` and `--instances` to the route of a file, which must have only
    /// one.
    fn change_route(&self, file: &mut Node, problems: &mut Vec<Problem>) {
        let given = [
            ("--after", self.after.is_some()),
            ("--mode", self.mode.is_some()),
            ("--tool", !self.tools.is_empty()),
            ("--instances", self.instances.is_some()),
        ];
        let Some((name, _)) = given.into_iter().find(|(_, is_given)| *is_given) else { return };
        // Problems of the routes themselves are reported when the file is checked.
        match file.get_mut("routes").and_then(Node::items_mut).map(Vec::as_mut_slice) {
            None | Some([]) => {}
            Some([route]) => self.apply_to_route(route),
            Some(routes) => problems.push(Problem::new(
                self.source_of(name),
                format!(
                    "applies to a single route, and the file has {}; set it in the file, under the route it is meant for",
                    routes.len()
                ),
            )),
        }
    }

    fn apply_to_route(&self, route: &mut Node) {
        if let Some(defer) = route.get_or_insert("defer", Node::empty_map(self.source_of("--after"))) {
            self.set_from_flag(defer, "after", "--after", self.after.as_ref());
            self.set_from_flag(defer, "mode", "--mode", self.mode.as_ref());
        }
        // A missing server is reported when the file is checked.
        if let Some(upstream) = route.get_mut("upstream") {
            self.set_from_flag(upstream, "instances", "--instances", self.instances.as_ref());
        }
        // The rules of `--tool` come before those of the file, because the first match wins.
        if let ([_, ..], Some(tools)) =
            (&self.tools[..], route.get_or_insert("tools", Node::list(self.source_of("--tool"), [])))
            && let Some(tools) = tools.items_mut()
        {
            tools.splice(0..0, self.tools.iter().map(|tool| tool.to_node(self.source_of("--tool"))));
        }
    }
}

// === impl ToolOverride ===

impl ToolOverride {
    fn to_node(&self, span: SourceSpan) -> Node {
        let mut rule = Node::empty_map(span);
        for (key, value) in
            [("match", Some(&self.pattern)), ("mode", Some(&self.mode)), ("after", self.after.as_ref())]
        {
            set_key(&mut rule, key, span, value);
        }
        rule
    }
}

const fn flag_span(name: &'static str) -> SourceSpan {
    SourceSpan::Flag(name)
}

/// Prefix of all environment variables of the proxy.
const PREFIX: &str = "DEFERRAL_";

fn variable_of(flag: &str) -> &'static str {
    VARIABLES.iter().find(|(name, _)| *name == flag).map_or(PREFIX, |(_, variable)| variable)
}

/// Sets a list to comma-separated values of a variable, unless its flag is given. Returns whether it was set.
fn set_list<T>(
    target: &mut Vec<T>,
    values: &str,
    parse: impl Fn(&str) -> Result<T, InvalidValue>,
) -> Result<bool, InvalidValue> {
    if !target.is_empty() {
        return Ok(false);
    }
    let values = values.split(',').map(str::trim).filter(|value| !value.is_empty());
    *target = values.map(parse).collect::<Result<_, _>>()?;
    Ok(true)
}

/// Sets a key to a text, if there is one.
fn set_key(section: &mut Node, key: &str, span: SourceSpan, value: Option<&String>) {
    if let Some(text) = value {
        section.set(key, Node::text(span, text));
    }
}

/// Returns a parser that validates the text of a flag like a value in the file, and returns the text itself.
fn like<T>(
    read: fn(&str) -> Result<T, InvalidValue>,
) -> impl Fn(&str) -> Result<String, InvalidValue> + Clone {
    move |text| read(text).map(|_| text.to_owned())
}

fn tool(text: &str) -> Result<ToolOverride, InvalidValue> {
    let Some((pattern, rest)) = text.split_once('=') else {
        return Err(InvalidValue(format!(
            "`{text}` has no `=`; write PATTERN=MODE or PATTERN=MODE:AFTER, as in `train_*=always`"
        )));
    };
    let (mode, after) = match rest.split_once(':') {
        Some((mode, after)) => (mode, Some(like(values::duration)(after)?)),
        None => (rest, None),
    };
    Ok(ToolOverride {
        pattern: like(values::parse_pattern)(pattern)?,
        mode: like(values::parse_tool_mode)(mode)?,
        after,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Mode;
    use clap::Parser;
    use std::time::Duration;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        Words::parse_from([&["serve"], words].concat()).args
    }

    /// Returns the configuration of a file with this text, and of these flags.
    fn config_with_file(text: &str, words: &[&str]) -> Result<Config, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deferral.yaml");
        std::fs::write(&path, text).expect("it can be written");
        let path = path.to_str().expect("a plain path");
        args(&[words, &["--config", path]].concat())
            .config()
            .map_err(|error| error.to_string().replace(path, "deferral.yaml"))
    }

    const FILE: &str = "
listen: 127.0.0.1:1
admin: 127.0.0.1:2
log: json
routes:
  - path: /tools
    upstream: { url: 'http://a/mcp' }
    defer: { mode: never, after: 9s, retention: 1m }
    tools: [{ match: x, mode: always }]
";

    #[test]
    fn a_stop_reports_what_it_waits_for() {
        let of = |calls, tasks, results| {
            let limit = Duration::from_secs(35);
            describe_shutdown(&app::PendingWork { calls, tasks, results, limit, is_interrupt: true })
        };
        assert_eq!(
            of(2, 1, 3).as_deref(),
            Some(
                "stopping: waiting for 2 calls, 1 task, 3 results to fetch, up to 35s (drain); press Ctrl-C again to exit at once"
            )
        );
        assert!(of(0, 0, 1).is_some_and(|text| text.contains("waiting for 1 result to fetch, up to")));
        assert_eq!(of(0, 0, 0), None);
    }

    #[test]
    fn equal_flags_and_files_give_equal_configurations() {
        let flags = args(&[
            "--upstream",
            "http://127.0.0.1:9000/mcp",
            "--listen",
            "127.0.0.1:1",
            "--admin",
            "off",
            "--after",
            "250ms",
            "--mode",
            "observe",
            "--tool",
            "train_*=always",
            "--tool",
            "x=auto:1s",
            "--store",
            "memory",
            "--log",
            "json",
            "--host",
            "proxy",
            "--host",
            "mcp.example.com",
        ]);
        let variables = [
            ("DEFERRAL_UPSTREAM", "http://127.0.0.1:9000/mcp"),
            ("DEFERRAL_LISTEN", "127.0.0.1:1"),
            ("DEFERRAL_ADMIN", "off"),
            ("DEFERRAL_AFTER", " 250ms "),
            ("DEFERRAL_MODE", "observe"),
            ("DEFERRAL_TOOL", "train_*=always, x=auto:1s"),
            ("DEFERRAL_STORE", "memory"),
            ("DEFERRAL_LOG", "json"),
            ("DEFERRAL_HOST", "proxy,mcp.example.com"),
            ("DEFERRAL_LOG_LEVEL", ""),
        ];
        let variables = args(&[]).with_variables(&variables.into_iter().collect()).expect("they are right");
        let file = "
listen: 127.0.0.1:1
admin: off
store: memory
log: json
access: { hosts: [proxy, mcp.example.com] }
routes:
  - upstream: { url: 'http://127.0.0.1:9000/mcp' }
    defer: { mode: observe, after: 250ms }
    tools: [{ match: train_*, mode: always }, { match: x, mode: auto, after: 1s }]
";
        let file = config::parse(Path::new("deferral.yaml"), file).expect("it is right");
        assert_eq!(format!("{:#?}", flags.config().expect("they are right")), format!("{file:#?}"));
        assert_eq!(format!("{:#?}", variables.config().expect("they are right")), format!("{file:#?}"));
    }

    fn with_environment(variables: &[(&str, &str)], words: &[&str]) -> Result<Args, String> {
        args(words).with_variables(&variables.iter().copied().collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_flag_has_a_variable() {
        use clap::CommandFactory;
        let command = Words::command();
        let flags = command.get_arguments().filter_map(|arg| arg.get_long()).filter(|flag| *flag != "help");
        let mut flags: Vec<_> = flags
            .map(|flag| (format!("--{flag}"), format!("{PREFIX}{}", flag.to_uppercase().replace('-', "_"))))
            .collect();
        let mut named: Vec<_> =
            VARIABLES.map(|(flag, variable)| (flag.to_owned(), variable.to_owned())).into();
        flags.sort();
        named.sort();
        assert_eq!(flags, named, "add what is missing to `VARIABLES` and `Args::apply_variable`");
    }

    #[test]
    fn a_flag_overrides_its_variable_and_a_variable_the_file() {
        let variables =
            [("DEFERRAL_LISTEN", "127.0.0.1:5"), ("DEFERRAL_AFTER", "3s"), ("DEFERRAL_LOG_LEVEL", "warn")];
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deferral.yaml");
        std::fs::write(&path, FILE).expect("it can be written");
        let path = path.to_str().expect("a plain path");
        let all = [&variables[..], &[("DEFERRAL_CONFIG", path)]].concat();
        let config = with_environment(&all, &["--after", "2s"]).expect("right").config().expect("right");
        assert_eq!(config.front.listen, ["127.0.0.1:5".parse().unwrap()]);
        assert_eq!(config.routes[0].route.defer.after, Duration::from_secs(2));
        assert_eq!((config.log.format, config.log.level.as_deref()), (LogFormat::Json, Some("warn")));
        // The server may be named by a flag, a command or a variable.
        let upstream = ("DEFERRAL_UPSTREAM", "http://variable/");
        for (words, server) in [
            (&["--upstream", "http://flag/"][..], "Url(http://flag/)"),
            (&["--", "sh"], "Command"),
            (&[], "Url(http://variable/)"),
        ] {
            let config = with_environment(&[upstream], words).expect("right").config().expect("right");
            assert!(format!("{:?}", config.routes[0].server).starts_with(server), "{words:?}");
        }
    }

    #[test]
    fn problems_of_a_variable_name_it() {
        for (variable, value, problem) in [
            ("DEFERRAL_UPSTREAM", "localhost", "DEFERRAL_UPSTREAM: `localhost` "),
            ("DEFERRAL_LISTEN", "8808", "DEFERRAL_LISTEN: `8808` "),
            ("DEFERRAL_ADMIN", "no", "DEFERRAL_ADMIN: `no` "),
            ("DEFERRAL_AFTER", "5", "DEFERRAL_AFTER: `5` has no unit"),
            ("DEFERRAL_MODE", "fast", "DEFERRAL_MODE: "),
            ("DEFERRAL_TOOL", "a=always,b", "DEFERRAL_TOOL: `b` has no `=`"),
            ("DEFERRAL_STORE", "disc:x", "DEFERRAL_STORE: "),
            ("DEFERRAL_LOG_LEVEL", "deferral=loud", "DEFERRAL_LOG_LEVEL: "),
            ("DEFERRAL_INSTANCES", "none", "DEFERRAL_INSTANCES: "),
            ("DEFERRAL_WATCH", "yes", "DEFERRAL_WATCH: `yes` must be true or false"),
            ("DEFERRAL_WATCH", "true", "DEFERRAL_WATCH: needs a configuration file"),
            ("DEFERRAL_SHARED", "true", "DEFERRAL_SHARED: needs a stdio server"),
        ] {
            let message = with_environment(&[(variable, value)], &[]).expect_err(variable);
            assert!(message.starts_with(problem), "{message}");
        }
        // Problems that are found later name the variable as well.
        let upstream = ("DEFERRAL_UPSTREAM", "http://a/");
        for (variable, value, problem) in [
            ("DEFERRAL_ADMIN", "0.0.0.0:3", "DEFERRAL_ADMIN: `admin` at 0.0.0.0:3"),
            ("DEFERRAL_INSTANCES", "2", "DEFERRAL_INSTANCES: `instances` is for stdio servers (`command`)"),
        ] {
            let args = with_environment(&[upstream, (variable, value)], &[]).expect("each is right");
            let message = args.config().expect_err(variable).to_string();
            assert!(message.starts_with(problem), "{message}");
        }
    }

    #[test]
    fn a_log_filter_variable_does_not_set_the_format() {
        let variables = [("DEFERRAL_UPSTREAM", "http://a/"), ("DEFERRAL_LOG", "warn,deferral::task=info")];
        let config = with_environment(&variables, &[]).expect("right").config().expect("right");
        assert_eq!((config.log.format, config.log.level), (LogFormat::Text, None));
    }

    #[test]
    fn a_misspelt_variable_is_reported_with_a_suggestion() {
        let warnings =
            |name: &str| misspelt_variables(&[(name, "x")].into_iter().collect()).collect::<Vec<_>>();
        assert!(warnings("DEFERRAL_LISTN")[0].contains("did you mean `DEFERRAL_LISTEN`?"));
        // Kubernetes sets such variables for a service named `deferral`; files may use others.
        for fine in [
            "DEFERRAL_LISTEN",
            "DEFERRAL_PORT",
            "DEFERRAL_SERVICE_HOST",
            "DEFERRAL_STORE_KEY",
            "DEFERRAL_ADMIN_TOKEN",
            "PATH",
        ] {
            assert_eq!(warnings(fine), [""; 0], "{fine}");
        }
    }

    #[test]
    fn instances_of_a_command_may_be_a_flag() {
        let instances = |config: Config| {
            let server = format!("{:?}", config.routes[0].server);
            server.split("instances: ").nth(1).map(|rest| rest[.."Shared(1)".len()].to_owned())
        };
        let of = |words: &[&str]| instances(args(words).config().expect("right"));
        assert_eq!(of(&["--instances", "1", "--", "sh"]).as_deref(), Some("Shared(1)"));
        assert_eq!(of(&["--", "sh"]).as_deref(), Some("Shared(4)"));
        let file = "routes: [{ upstream: { command: [sh], instances: 2 } }]";
        let beside = config_with_file(file, &["--instances", "3"]).expect("right");
        assert_eq!(instances(beside).as_deref(), Some("Shared(3)"));
    }

    #[test]
    fn flags_are_taken_literally() {
        let flags = ["--upstream", "http://a/?${HOME}", "--tool", "${HOME}=never"];
        let config = args(&flags).config().expect("a shell has replaced what it should");
        // The display form omits the query.
        assert_eq!(format!("{:?}", config.routes[0].server), "Url(http://a/?…)");
        assert_eq!(config.routes[0].route.tools[0].matches.as_str(), "${HOME}");
    }

    #[test]
    fn the_log_level_may_be_a_flag_or_in_the_file() {
        let log = |file: &str, flags: &[&str]| {
            let file = format!("{file}\n{}", FILE.replace("log: json\n", ""));
            config_with_file(&file, flags).map(|config| (config.log.format, config.log.level))
        };
        let warn = || Some("warn".to_owned());
        assert_eq!(log("log: json", &["--log-level", "warn"]), Ok((LogFormat::Json, warn())));
        assert_eq!(log("log: { level: warn }", &["--log", "json"]), Ok((LogFormat::Json, warn())));
        assert_eq!(
            log("log: { format: json, level: debug }", &["--log-level", "warn"]),
            Ok((LogFormat::Json, warn()))
        );
        assert_eq!(log("", &["--log-level", "warn"]), Ok((LogFormat::Text, warn())));
        assert_eq!(log("log: text", &[]), Ok((LogFormat::Text, None)));
        let wrong = log("log: { level: 'deferral=loud' }", &[]).expect_err("it is no level");
        assert!(wrong.contains("deferral.yaml:1:15: `deferral=loud` is not a log level"), "{wrong}");
    }

    #[test]
    fn a_given_flag_overrides_the_file_and_an_absent_one_does_not() {
        let config =
            config_with_file(FILE, &["--listen", "127.0.0.1:7", "--after", "1s", "--tool", "x=never"])
                .expect_err("x");
        assert_eq!(
            config,
            "deferral.yaml:9:22: there is a rule for `x` already (--tool), and the first match wins; remove one of the two"
        );
        let config =
            config_with_file(FILE, &["--listen", "127.0.0.1:7", "--after", "1s", "--tool", "y=never"])
                .expect("right");
        assert_eq!(config.front.listen, ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(config.admin.map(|admin| admin.listen), Some("127.0.0.1:2".parse().unwrap()));
        assert_eq!(config.log.format, LogFormat::Json);
        let route = &config.routes[0].route;
        assert_eq!(
            (&*route.path, route.defer.mode, route.defer.after),
            ("/tools", Mode::Never, Duration::from_secs(1))
        );
        assert_eq!(route.defer.retention, Duration::from_secs(60));
        assert_eq!(route.tool_policy("y").mode, Mode::Never);
        assert_eq!(route.tool_policy("x").mode, Mode::Always);
    }

    #[test]
    fn the_admin_flag_keeps_the_token_of_the_file() {
        let file = "admin: { listen: 127.0.0.1:2, token: { file: operator.token } }\nroutes: [{ upstream: { url: 'http://a' } }]\n";
        let moved = config_with_file(file, &["--admin", "127.0.0.1:3"]).expect_err("there is no such file");
        assert!(moved.starts_with("deferral.yaml:1:38: the file ") && moved.lines().count() == 1, "{moved}");
        assert_eq!(config_with_file(file, &["--admin", "off"]).expect("right").admin, None);
        let exposed =
            config_with_file("routes: [{ upstream: { url: 'http://a' } }]", &["--admin", "0.0.0.0:3"]);
        let message = exposed.expect_err("it is refused");
        assert!(
            message.starts_with("--admin: `admin` at 0.0.0.0:3 is reachable from other machines"),
            "{message}"
        );
    }

    #[test]
    fn a_store_path_is_relative_to_the_working_directory_or_to_the_file() {
        let folder = |config: Config| match config.store {
            config::StoreConfig::Disk { path, .. } => path,
            config::StoreConfig::Memory => panic!("it is on disk"),
        };
        let by_flag = config_with_file(FILE, &["--store", "disk:data"]).expect("right");
        assert_eq!(folder(by_flag), Path::new("data"));
        let by_file = config_with_file(&format!("store: {{ disk: data }}{FILE}"), &[]).expect("right");
        assert!(folder(by_file).is_absolute());
    }

    #[test]
    fn a_server_is_configured_once() {
        assert_eq!(
            config_with_file(FILE, &["--upstream", "http://b/"]).unwrap_err(),
            "--upstream: names a server, and the `routes` of deferral.yaml (line 6) do so as well; remove one of the two"
        );
        let config =
            config_with_file("admin: off", &["--upstream", "http://b/"]).expect("the file has no routes");
        assert_eq!(format!("{:?}", config.routes[0].server), "Url(http://b/)");
        assert_eq!(config.admin, None);
        assert!(matches!(args(&["--after", "1s"]).config(), Err(Error::NoServer)));
    }

    #[test]
    fn a_flag_for_one_route_needs_one_route() {
        let two = "routes:\n  - { path: /a, upstream: { url: 'http://a' } }\n  - { path: /b, upstream: { url: 'http://b' } }\n";
        assert_eq!(
            config_with_file(two, &["--mode", "always"]).unwrap_err(),
            "--mode: applies to a single route, and the file has 2; set it in the file, under the route it is meant for"
        );
        assert!(config_with_file("routes: []", &["--mode", "always"]).unwrap_err().contains("no route"));
    }

    #[test]
    fn rules_for_tools_are_read_from_one_word() {
        let rule = tool("a.b-*=required:1m30s").expect("it is right");
        assert_eq!(
            (&*rule.pattern, &*rule.mode, rule.after.as_deref()),
            ("a.b-*", "required", Some("1m30s"))
        );
        for wrong in ["x", "=always", "x=", "x=maybe", "x=auto:5", "x=auto:"] {
            assert!(tool(wrong).is_err(), "{wrong}");
        }
    }
}
