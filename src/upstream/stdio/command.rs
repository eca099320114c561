//! Command of a stdio server, and its environment.

use crate::runtime::notify;
use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Command of a stdio server, and how its processes are started and shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCommand {
    /// Program and its arguments; at least one word.
    pub words: Vec<String>,
    /// Environment variables added to the inherited ones, or replacing them.
    pub env: EnvVariables,
    /// Which variables of the proxy the processes inherit.
    pub inherit: EnvInheritance,
    /// Working directory of the processes; `None` for the proxy's.
    pub folder: Option<PathBuf>,
    /// When the first process is started.
    pub start: StartMode,
    /// Time limit of the response to `initialize`. Default 60 s, because a first start may install
    /// dependencies.
    pub start_timeout: Duration,
    /// How callers share processes, and how many there may be.
    pub instances: ProcessSharing,
    /// Time after which an unused process is ended, checked once a minute; `None` for never. Default 30 min.
    /// A second process for the same capabilities is kept for five minutes at most.
    pub idle: Option<Duration>,
    /// Whether errors of a failed start include the last line on standard error. The line may hold secrets,
    /// so this is set only if all callers are on this machine.
    pub reveals_stderr: bool,
    /// Names of environment variables that hold secrets of the proxy: no process inherits them.
    pub secret_variables: Arc<[String]>,
    /// Program of the supervisor; `None` for this program. Tests set another.
    pub supervisor: Option<PathBuf>,
}

/// Environment variables. `Debug` shows their names only, because values may be secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EnvVariables(pub Vec<(String, String)>);

/// Part of the proxy's environment that a process inherits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EnvInheritance {
    /// All variables except the proxy's own and those that hold its secrets.
    All,
    /// Variables that the SDKs' clients pass on ([`SAFE_VARIABLES`]).
    #[default]
    Safe,
    /// The safe variables and those with these names.
    Also(Vec<String>),
}

/// Time of the first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartMode {
    /// With the first call.
    #[default]
    Lazy,
    /// With the proxy.
    Eager,
}

/// How callers share the processes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSharing {
    /// One process for all callers with the same capabilities; at most this many processes.
    Shared(usize),
    /// One process for each caller.
    PerCaller,
}

/// Error of a command that cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandNotFound {
    #[error("`{program}` is not found in PATH ({path}); install it, or write where it is")]
    InPath { program: String, path: String },
    #[error("there is no `{}`", .0.display())]
    NoFile(PathBuf),
    #[error("`{}` is not an executable file", .0.display())]
    NotExecutable(PathBuf),
    #[error("the folder `{}` is not there", .0.display())]
    NoFolder(PathBuf),
}

/// Variables that the SDKs' clients pass on to the servers they start, on Unix.
pub const SAFE_VARIABLES: [&str; 6] = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"];

/// Default limit of processes of one server. Each costs as much as the server does.
pub const DEFAULT_MAX_PROCESSES: usize = 4;
/// Limit of processes of one server if each caller has its own process.
pub const MAX_PROCESSES_PER_CALLER: usize = 64;
/// Default time after which an unused process is ended.
const DEFAULT_IDLE: Duration = Duration::from_secs(30 * 60);
/// Prefix of the proxy's own variables, which no process inherits, because they may hold secrets.
pub const OWN_PREFIX: &str = "DEFERRAL_";
/// Default time limit of a start.
const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(60);

// === impl ServerCommand ===

impl ServerCommand {
    /// Creates a command of these words with default settings.
    pub fn new(words: Vec<String>) -> Self {
        Self {
            words,
            env: EnvVariables::default(),
            inherit: EnvInheritance::default(),
            folder: None,
            start: StartMode::default(),
            start_timeout: DEFAULT_START_TIMEOUT,
            instances: ProcessSharing::Shared(DEFAULT_MAX_PROCESSES),
            idle: Some(DEFAULT_IDLE),
            reveals_stderr: false,
            secret_variables: Arc::default(),
            supervisor: None,
        }
    }

    /// First word, the program. The other words may hold secrets.
    pub fn program(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Finds the file of the program. The file may disappear before it is started.
    ///
    /// # Errors
    /// [`CommandNotFound`] names what is missing and where.
    pub fn find_program(&self) -> Result<PathBuf, CommandNotFound> {
        let folder = self.folder.as_deref().unwrap_or_else(|| Path::new(""));
        if self.folder.is_some() && !folder.is_dir() {
            return Err(CommandNotFound::NoFolder(folder.to_owned()));
        }
        let program = self.program();
        if program.contains('/') {
            let path = folder.join(program);
            return match path.metadata() {
                Err(_) => Err(CommandNotFound::NoFile(path)),
                Ok(_) if is_executable(&path) => Ok(path),
                Ok(_) => Err(CommandNotFound::NotExecutable(path)),
            };
        }
        let path = self.environment().into_iter().find(|(name, _)| name == "PATH");
        let path = path.map_or_else(OsString::new, |(_, path)| path);
        let candidates =
            env::split_paths(&path).map(|folder_in_path| folder.join(folder_in_path).join(program));
        let not_found = || CommandNotFound::InPath {
            program: program.to_owned(),
            path: path.to_string_lossy().into_owned(),
        };
        candidates.into_iter().find(|path| is_executable(path)).ok_or_else(not_found)
    }

    /// Path of the supervisor program.
    pub fn supervisor(&self) -> PathBuf {
        match &self.supervisor {
            Some(program) => program.clone(),
            // Valid even after the file on disk was replaced.
            None if cfg!(target_os = "linux") => PathBuf::from("/proc/self/exe"),
            None => env::current_exe().unwrap_or_else(|_| PathBuf::from(env!("CARGO_PKG_NAME"))),
        }
    }

    /// Environment variables of a process: the inherited and the configured ones.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let is_configured =
            |name: &OsStr| self.env.0.iter().any(|(configured, _)| name == configured.as_str());
        let is_inherited = |name: &OsStr| match &self.inherit {
            EnvInheritance::All => true,
            EnvInheritance::Safe => SAFE_VARIABLES.iter().any(|safe| name == *safe),
            EnvInheritance::Also(names) => {
                SAFE_VARIABLES.iter().any(|safe| name == *safe)
                    || names.iter().any(|also| name == also.as_str())
            }
        };
        // A value with this prefix is a shell function, and a risk (as in the SDKs).
        let is_function =
            |value: &OsStr| self.inherit != EnvInheritance::All && value.as_bytes().starts_with(b"()");
        let is_withheld = |name: &OsStr| {
            name == notify::SOCKET
                || name.as_bytes().starts_with(OWN_PREFIX.as_bytes())
                || self.secret_variables.iter().any(|secret| name == secret.as_str())
        };
        let inherited = env::vars_os()
            .filter(|(name, value)| is_inherited(name) && !is_configured(name) && !is_function(value))
            .filter(|(name, _)| !is_withheld(name));
        let configured = self.env.0.iter().map(|(name, value)| (name.into(), value.into()));
        inherited.chain(configured).collect()
    }
}

// === impl EnvVariables ===

impl FromIterator<(String, String)> for EnvVariables {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}

impl fmt::Debug for EnvVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> ServerCommand {
        ServerCommand::new(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn a_command_is_found_where_it_would_be_started() {
        assert!(command(&["sh", "-c", "x"]).find_program().is_ok_and(|path| path.ends_with("sh")));
        let missing = command(&["no-such-program-anywhere"]).find_program().expect_err("missing").to_string();
        let path = env::var("PATH").expect("there is one");
        assert!(missing.contains("`no-such-program-anywhere`") && missing.contains(&path), "{missing}");

        let folder = tempfile::tempdir().expect("a folder");
        let mut here = ServerCommand { folder: Some(folder.path().to_owned()), ..command(&["./server"]) };
        assert_eq!(here.find_program(), Err(CommandNotFound::NoFile(folder.path().join("./server"))));
        std::fs::write(folder.path().join("server"), "").expect("it can be written");
        assert_eq!(here.find_program(), Err(CommandNotFound::NotExecutable(folder.path().join("./server"))));
        let all = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path().join("server"), all).expect("it is ours");
        assert_eq!(here.find_program(), Ok(folder.path().join("./server")));

        here.words = vec!["server".to_owned()];
        here.env =
            EnvVariables(vec![("PATH".to_owned(), folder.path().to_str().expect("a plain path").to_owned())]);
        assert!(here.find_program().is_ok());
        here.folder = Some(folder.path().join("none"));
        assert_eq!(here.find_program(), Err(CommandNotFound::NoFolder(folder.path().join("none"))));
    }

    #[test]
    fn a_process_gets_the_safe_the_named_and_the_configured_variables() {
        let given = |inherit, env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            ServerCommand { inherit, env, secret_variables: [].into(), ..command(&["x"]) }.environment()
        };
        let names = |given: &[(OsString, OsString)]| -> Vec<String> {
            given.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
        };
        let safe = names(&given(EnvInheritance::Safe, &[]));
        assert!(safe.iter().all(|name| SAFE_VARIABLES.contains(&name.as_str())), "{safe:?}");
        assert!(safe.contains(&"PATH".to_owned()));
        // Cargo sets this for every test.
        let also = names(&given(EnvInheritance::Also(vec!["CARGO_MANIFEST_DIR".to_owned()]), &[]));
        assert_eq!(also.len(), safe.len() + 1);
        let all = given(EnvInheritance::All, &[("PATH", "/mine"), ("NEW", "1")]);
        let own =
            env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(OWN_PREFIX.as_bytes())).count();
        assert_eq!(all.len(), env::vars_os().count() - own + 1);
        assert!(all.contains(&("PATH".into(), "/mine".into())) && all.contains(&("NEW".into(), "1".into())));
    }

    #[test]
    fn no_process_inherits_a_secret_of_the_proxy() {
        // Cargo sets this for every test.
        let secret = "CARGO_MANIFEST_DIR";
        for inherit in [EnvInheritance::All, EnvInheritance::Also(vec![secret.to_owned()])] {
            let has = |withheld: &[&str], env: &[(&str, &str)]| {
                let withheld = withheld.iter().map(|name| (*name).to_owned()).collect();
                let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
                let command = ServerCommand {
                    inherit: inherit.clone(),
                    env,
                    secret_variables: withheld,
                    ..command(&["x"])
                };
                command.environment().into_iter().any(|(name, _)| name == secret)
            };
            assert!(has(&[], &[]));
            assert!(!has(&[secret], &[]));
            assert!(has(&[secret], &[(secret, "written")]), "what is written is meant");
        }
    }
}
