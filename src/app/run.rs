//! Serves until the process is signalled to stop, and reloads the configuration on request.

use super::{Error, RunningProxy, start, watch::FileWatch};
use crate::{
    admin::{ReloadResult, TokenFolder},
    config::{Config, ConfigWarnings, StoreConfig},
    runtime::{notify, or_pending},
    telemetry::{ConfigRefused, ConfigReloaded, ConfigWarning},
};
use std::{
    env,
    fmt::Display,
    future::pending,
    path::{Path, PathBuf, absolute},
    time::Duration,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

/// How to read the configuration again for a reload.
pub struct ConfigSource {
    /// Reads and checks the configuration; the error lists everything that is wrong with it.
    pub read: Box<dyn Fn() -> Result<Config, String> + Send>,
    /// Whether to reload when a file of the configuration changes (`--watch`).
    pub is_watched: bool,
}

/// Events that end the process, besides SIGTERM and Ctrl-C.
#[derive(Default)]
pub struct StopTriggers {
    /// Whether SIGHUP ends the process in order, because its terminal has closed; otherwise SIGHUP reloads
    /// the configuration.
    pub stops_on_hangup: bool,
    /// Resolves when an MCP host writes to the standard input; `None` if the standard input is not read.
    pub host_message: Option<oneshot::Receiver<()>>,
}

/// The signals that stop the process.
struct StopSignals {
    terminate: Option<Signal>,
    interrupt: Option<Signal>,
}

/// Trigger of a reload.
enum ReloadTrigger {
    /// SIGHUP.
    Signal,
    /// `POST /reload`, with the sender for its result.
    Operator(oneshot::Sender<ReloadResult>),
    /// A file of the configuration has changed.
    Watch,
}

/// The work that a shutdown waits for, counted at its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingWork {
    /// Calls in flight that are not tasks.
    pub calls: usize,
    /// Active tasks.
    pub tasks: usize,
    /// Results of tasks that have not been fetched.
    pub results: usize,
    /// Longest time that the shutdown waits (`drain`, notice and drain time together).
    pub limit: Duration,
    /// Whether the signal was Ctrl-C, and not SIGTERM.
    pub is_interrupt: bool,
}

/// Most keys that a log event names.
const MAX_LOGGED_KEYS: usize = 20;

/// Serves until the process is signalled to stop, then shuts down in order; at once at a second signal.
/// `on_ready` is called once clients are served, `on_stopping` when the shutdown begins.
///
/// # Errors
/// The same as for [`start`]; also [`Error::SecondSignal`] and [`Error::StartedByHost`].
pub async fn run(
    mut config: Config,
    source: ConfigSource,
    mut triggers: StopTriggers,
    on_ready: impl FnOnce(&RunningProxy),
    on_stopping: impl FnOnce(&PendingWork),
) -> Result<(), Error> {
    let (mut signals, mut hangup) = (StopSignals::listen(), listen_to(SignalKind::hangup()));
    let mut watch = source.is_watched.then(|| FileWatch::new(file_paths(&config)));
    let warnings = config.warnings.clone();
    let token_folders = token_folders(&config);
    if let Some(admin) = &mut config.admin {
        admin.token_folders = token_folders;
    }
    let mut running = start(config)?;
    log_warnings(&warnings);
    on_ready(&running);
    notify::ready();
    let (is_interrupt, host_url) = loop {
        let trigger = tokio::select! {
            biased;
            is_interrupt = signals.wait() => break (is_interrupt, None),
            () = wait_for_host(&mut triggers.host_message) => break (false, Some(running.first_url())),
            Some(()) = or_pending(hangup.as_mut().map(Signal::recv)) => match triggers.stops_on_hangup {
                true => break (false, None),
                false => ReloadTrigger::Signal,
            },
            Some(reply) = running.reload_requests.recv() => ReloadTrigger::Operator(reply),
            () = or_pending(watch.as_mut().map(FileWatch::changed)) => ReloadTrigger::Watch,
        };
        let trigger_name = trigger.as_str();
        notify::reloading();
        let outcome = (source.read)().and_then(|config| {
            if let Some(watch) = &mut watch {
                watch.set_files(file_paths(&config));
            }
            let warnings = config.warnings.clone();
            let changed = running.reload(config).map_err(|error| error.to_string())?;
            log_warnings(&warnings);
            Ok(changed)
        });
        match &outcome {
            Ok(changed) => {
                let needs_restart = changed.needs_restart.join(", ");
                ConfigReloaded {
                    by: trigger_name,
                    changed: &join_names(&changed.changed),
                    needs_restart: &needs_restart,
                }
                .emit();
            }
            Err(error) => ConfigRefused { by: trigger_name, error }.emit(),
        }
        notify::ready();
        if let ReloadTrigger::Operator(reply) = trigger {
            // The operator may have disconnected.
            let _ = reply.send(outcome);
        }
    };
    notify::stopping();
    on_stopping(&running.pending_work(is_interrupt));
    let second_signal = async {
        signals.wait().await;
    };
    match (running.stop_or_abort(second_signal).await, host_url) {
        (_, Some(url)) => Err(Error::StartedByHost { url }),
        (true, None) => Err(Error::SecondSignal),
        (false, None) => Ok(()),
    }
}

/// Returns the folders for the admin token that is generated at start: beside the store, else in the runtime
/// directory of the login session.
fn token_folders(config: &Config) -> Vec<TokenFolder> {
    let store = match &config.store {
        // The path is made absolute first, because `.` has no parent.
        StoreConfig::Disk { path, .. } => {
            absolute(path).ok().and_then(|path| path.parent().map(Path::to_owned))
        }
        StoreConfig::Memory => None,
    };
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let runtime = runtime.map(TokenFolder::Runtime);
    store.map(TokenFolder::BesideStore).into_iter().chain(runtime).collect()
}

fn log_warnings(warnings: &ConfigWarnings) {
    for warning in warnings.lines() {
        ConfigWarning { warning }.emit();
    }
}

/// Resolves when an MCP host has written to the standard input.
async fn wait_for_host(message: &mut Option<oneshot::Receiver<()>>) {
    if let Some(received) = message
        && received.await.is_ok()
    {
        return;
    }
    *message = None;
    pending().await
}

fn file_paths(config: &Config) -> Vec<PathBuf> {
    config.files.0.iter().map(|file| file.path.clone()).collect()
}

/// Joins names for a log line, at most [`MAX_LOGGED_KEYS`].
fn join_names(names: &[impl Display]) -> String {
    let mut shown: Vec<_> = names.iter().take(MAX_LOGGED_KEYS).map(ToString::to_string).collect();
    if names.len() > MAX_LOGGED_KEYS {
        shown.push(format!("and {} more", names.len() - MAX_LOGGED_KEYS));
    }
    shown.join(", ")
}

// === impl ReloadTrigger ===

impl ReloadTrigger {
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Signal => "SIGHUP",
            Self::Operator(_) => "POST /reload",
            Self::Watch => "--watch",
        }
    }
}

// === impl StopSignals ===

impl StopSignals {
    /// Listens to the signals from now on.
    fn listen() -> Self {
        let [terminate, interrupt] = [SignalKind::terminate(), SignalKind::interrupt()].map(listen_to);
        Self { terminate, interrupt }
    }

    /// Resolves at the next SIGTERM or Ctrl-C. Returns whether the signal was Ctrl-C.
    async fn wait(&mut self) -> bool {
        tokio::select! {
            _ = or_pending(self.terminate.as_mut().map(Signal::recv)) => false,
            _ = or_pending(self.interrupt.as_mut().map(Signal::recv)) => true,
        }
    }
}

/// Listens to a signal from now on; `None` if the system does not allow it.
fn listen_to(kind: SignalKind) -> Option<Signal> {
    signal(kind).ok()
}
