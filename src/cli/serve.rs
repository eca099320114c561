//! `deferral serve`: from flags, and a file if one is named, to a configuration.
//!
//! Flags and file mean the same: a flag becomes the setting of a [`File`] laid over the one that
//! was read, and both are judged together.

use super::USAGE;
use crate::{
    app,
    config::{
        self, At, Config, LogFormat, Place, Problem, Problems, Store,
        file::{self, File, Set},
        values::{self, Invalid},
    },
    policy::{Mode, Pattern},
    runtime::wall_clock,
    telemetry,
};
use http::Uri;
use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// The MCP endpoint of the server to stand in front of.
    #[arg(long, value_name = "URL", value_parser = values::upstream_url)]
    upstream: Option<Uri>,
    /// The configuration file, or `-` for the standard input; flags beside it override it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients come in [default: 127.0.0.1:8808].
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::address)]
    listen: Option<SocketAddr>,
    /// Where the operator's listener is, or `off` [default: 127.0.0.1:8809].
    #[arg(long, value_name = "ADDR:PORT|off", value_parser = admin)]
    admin: Option<Admin>,
    /// A name by which clients reach the proxy, such as that of a container or of a service in a cluster; `*`
    /// for every one. May be repeated. `localhost` and IP addresses need none.
    #[arg(long = "host", value_name = "NAME", value_parser = values::host)]
    hosts: Vec<String>,
    /// How long a call may run before it becomes a task [default: 5s].
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    after: Option<Duration>,
    /// Which calls become tasks: auto, never, always, required or observe [default: auto].
    #[arg(long, value_parser = values::mode)]
    mode: Option<Mode>,
    /// Another mode for the tools of that name, as in `train_*=always` or `report=auto:1s`; the first
    /// match holds.
    #[arg(long = "tool", value_name = "PATTERN=MODE[:AFTER]", value_parser = tool)]
    tools: Vec<Tool>,
    /// Where tasks are kept: memory [default: memory].
    #[arg(long, value_name = "STORE", value_parser = values::store)]
    store: Option<Store>,
    /// How the log is written: text or json [default: text].
    #[arg(long, value_name = "FORMAT", value_parser = values::log)]
    log: Option<LogFormat>,
    /// The command that starts a server over stdio: understood, so that it can be said that none is served.
    #[arg(last = true, value_name = "CMD", hide = true)]
    command: Vec<String>,
}

/// An address, or `off`.
#[derive(Clone, Copy, Debug)]
struct Admin(Option<SocketAddr>);

/// A rule for some tools.
#[derive(Clone, Debug)]
struct Tool {
    pattern: Pattern,
    mode: Mode,
    after: Option<Duration>,
}

/// Why the proxy cannot be started as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "error: no server to stand in front of; name one in one of these ways:\n
    deferral --upstream http://127.0.0.1:9000/mcp    a server over Streamable HTTP
    deferral --config deferral.yaml                  a configuration file, for everything else\n
`deferral --help` lists every flag, `deferral demo` shows how it works"
    )]
    NoServer,
    #[error(transparent)]
    Config(#[from] Problems),
}

/// Serves until the process is told to stop. Prints one line when it is ready, with the address it
/// really has.
pub fn run(args: &Args) -> ExitCode {
    let config = match args.config() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return USAGE.into();
        }
    };
    let format = match config.log {
        LogFormat::Text => telemetry::Format::Text,
        LogFormat::Json => telemetry::Format::Json,
    };
    let _log = telemetry::log::start(format, wall_clock);
    let served = super::runtime().block_on(app::run(config, |running| {
        for path in &running.paths {
            for address in &running.addresses {
                println!("listening on {}", running.url(address, path));
            }
        }
    }));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ app::Error::Hurried) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            USAGE.into()
        }
    }
}

// === impl Args ===

impl Args {
    /// The configuration that was asked for.
    ///
    /// # Errors
    /// Everything that is wrong with the flags and the file; [`Error::NoServer`] where neither
    /// names a server.
    pub fn config(&self) -> Result<Config, Error> {
        if self.config.is_none() && self.upstream.is_none() && self.command.is_empty() {
            return Err(Error::NoServer);
        }
        Ok(config::load_with(self.config.as_deref(), |file, problems| self.overlay(file, problems))?)
    }

    fn overlay(&self, file: &mut File, problems: &mut Vec<Problem>) {
        file.listen.overlay(set("--listen", self.listen.map(|address| vec![flag("--listen", address)])));
        file.admin.overlay(set("--admin", self.admin.map(|Admin(address)| address)));
        file.store.overlay(set("--store", self.store));
        file.log.overlay(set("--log", self.log));
        self.add_hosts(file);
        if self.upstream.is_some() || !self.command.is_empty() {
            self.define_route(file, problems);
        } else {
            self.change_route(file, problems);
        }
    }

    /// `--host`: beside those of the file.
    fn add_hosts(&self, file: &mut File) {
        if self.hosts.is_empty() {
            return;
        }
        let ours = self.hosts.iter().map(|host| flag("--host", host.clone()));
        let mut access = std::mem::take(&mut file.access).or_default();
        access.hosts = set("--host", Some(access.hosts.or_default().into_iter().chain(ours).collect()));
        file.access = set("--host", Some(access));
    }

    /// `--upstream`: the one route there is.
    fn define_route(&self, file: &mut File, problems: &mut Vec<Problem>) {
        let name = if self.upstream.is_some() { "--upstream" } else { "-- CMD" };
        let theirs = match &file.routes {
            Set::To(At { place: Place::File { line, .. }, value }) if !value.is_empty() => {
                Some(format!(" (line {line})"))
            }
            Set::To(At { value, .. }) if !value.is_empty() => Some(String::new()),
            Set::Wrong => Some(String::new()),
            Set::To(_) | Set::Unset => None,
        };
        if let (Some(theirs), Some(path)) = (theirs, &self.config) {
            problems.push(Problem::new(
                Place::Flag(name),
                format!(
                    "names a server, and so do the `routes` of {}{theirs}; remove one of the two",
                    path.display()
                ),
            ));
            return;
        }
        let upstream = file::Upstream {
            url: set("--upstream", self.upstream.clone()),
            command: set("-- CMD", Some(self.command.clone()).filter(|words| !words.is_empty())),
        };
        let mut route = file::Route { upstream: set(name, Some(upstream)), ..file::Route::default() };
        self.apply_to(&mut route);
        file.routes = set(name, Some(vec![flag(name, route)]));
    }

    /// `--after`, `--mode` and `--tool` beside a file: for its route, if it has one only.
    fn change_route(&self, file: &mut File, problems: &mut Vec<Problem>) {
        let name = match (self.after, self.mode, self.tools.first()) {
            (Some(_), _, _) => "--after",
            (None, Some(_), _) => "--mode",
            (None, None, Some(_)) => "--tool",
            (None, None, None) => return,
        };
        // What is wrong with the routes, or that there are none, is said elsewhere.
        let Set::To(At { value: routes, .. }) = &mut file.routes else { return };
        match &mut routes[..] {
            [] => {}
            [route] => self.apply_to(&mut route.value),
            routes => problems.push(Problem::new(
                Place::Flag(name),
                format!(
                    "means one route, and the file has {}; write it under the route you mean",
                    routes.len()
                ),
            )),
        }
    }

    fn apply_to(&self, route: &mut file::Route) {
        let mut defer = match std::mem::take(&mut route.defer) {
            Set::To(At { value, .. }) => value,
            Set::Unset | Set::Wrong => file::DeferSection::default(),
        };
        defer.after.overlay(set("--after", self.after));
        defer.mode.overlay(set("--mode", self.mode));
        route.defer = set("--after", Some(defer));
        if self.tools.is_empty() {
            return;
        }
        // Before those of the file, so that they hold.
        let ours = self.tools.iter().map(|tool| flag("--tool", tool.as_written()));
        let tools = match std::mem::take(&mut route.tools) {
            Set::To(At { value, .. }) => ours.chain(value).collect(),
            Set::Unset | Set::Wrong => ours.collect(),
        };
        route.tools = set("--tool", Some(tools));
    }
}

// === impl Tool ===

impl Tool {
    fn as_written(&self) -> file::Tool {
        file::Tool {
            matches: set("--tool", Some(self.pattern.clone())),
            mode: set("--tool", Some(self.mode)),
            after: set("--tool", self.after),
            ..file::Tool::default()
        }
    }
}

fn flag<T>(name: &'static str, value: T) -> At<T> {
    At::new(Place::Flag(name), value)
}

fn set<T>(name: &'static str, value: Option<T>) -> Set<T> {
    value.map_or(Set::Unset, |value| Set::To(flag(name, value)))
}

fn admin(text: &str) -> Result<Admin, Invalid> {
    values::admin(text).map(Admin)
}

fn tool(text: &str) -> Result<Tool, Invalid> {
    let Some((pattern, rest)) = text.split_once('=') else {
        return Err(Invalid(format!(
            "`{text}` has no `=`; write PATTERN=MODE or PATTERN=MODE:AFTER, as in `train_*=always`"
        )));
    };
    let (mode, after) = match rest.split_once(':') {
        Some((mode, after)) => (mode, Some(values::duration(after)?)),
        None => (rest, None),
    };
    Ok(Tool { pattern: values::pattern(pattern)?, mode: values::mode(mode)?, after })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::path::Path;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        Words::parse_from([&["serve"], words].concat()).args
    }

    /// The same flags beside a file of this text.
    fn beside(text: &str, words: &[&str]) -> Result<Config, String> {
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
    fn flags_and_a_file_that_say_the_same_mean_the_same() {
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
    }

    #[test]
    fn a_flag_that_is_given_overrides_the_file_and_one_that_is_not_does_not() {
        let config =
            beside(FILE, &["--listen", "127.0.0.1:7", "--after", "1s", "--tool", "x=never"]).expect_err("x");
        assert_eq!(
            config,
            "deferral.yaml:9:22: `x` has a rule already (--tool); the first one holds, so this one never would"
        );
        let config =
            beside(FILE, &["--listen", "127.0.0.1:7", "--after", "1s", "--tool", "y=never"]).expect("right");
        assert_eq!(config.front.listen, ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(config.admin, Some("127.0.0.1:2".parse().unwrap()));
        assert_eq!(config.log, LogFormat::Json);
        let route = &config.routes[0].route;
        assert_eq!(
            (&*route.path, route.defer.mode, route.defer.after),
            ("/tools", Mode::Never, Duration::from_secs(1))
        );
        assert_eq!(route.defer.retention, Duration::from_secs(60));
        assert_eq!(route.treatment("y").mode, Mode::Never);
        assert_eq!(route.treatment("x").mode, Mode::Always);
    }

    #[test]
    fn a_server_is_named_once() {
        assert_eq!(
            beside(FILE, &["--upstream", "http://b/"]).unwrap_err(),
            "--upstream: names a server, and so do the `routes` of deferral.yaml (line 6); remove one of the two"
        );
        let config = beside("admin: off", &["--upstream", "http://b/"]).expect("the file has no routes");
        assert_eq!(config.routes[0].upstream.url, "http://b/");
        assert_eq!(config.admin, None);
        assert!(matches!(args(&["--after", "1s"]).config(), Err(Error::NoServer)));
    }

    #[test]
    fn a_flag_for_one_route_needs_one_route() {
        let two = "routes:\n  - { path: /a, upstream: { url: 'http://a' } }\n  - { path: /b, upstream: { url: 'http://b' } }\n";
        assert_eq!(
            beside(two, &["--mode", "always"]).unwrap_err(),
            "--mode: means one route, and the file has 2; write it under the route you mean"
        );
        assert!(beside("routes: []", &["--mode", "always"]).unwrap_err().contains("no route"));
    }

    #[test]
    fn rules_for_tools_are_read_from_one_word() {
        let rule = tool("a.b-*=required:1m30s").expect("it is right");
        assert_eq!(
            (rule.pattern.as_str(), rule.mode, rule.after),
            ("a.b-*", Mode::Required, Some(Duration::from_secs(90)))
        );
        for wrong in ["x", "=always", "x=", "x=maybe", "x=auto:5", "x=auto:"] {
            assert!(tool(wrong).is_err(), "{wrong}");
        }
    }
}
