//! What starts a server, and in which surroundings.

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

/// How the processes of a server are started and shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCommand {
    /// The program and its arguments: one word at least.
    pub words: Vec<String>,
    /// Variables beside those that are inherited, or in their place.
    pub env: EnvVariables,
    pub inherit: EnvInheritance,
    /// Where it runs; else where the proxy does.
    pub folder: Option<PathBuf>,
    pub start: StartMode,
    /// For the answer to `initialize`. Default 60 s: a first start may install what it needs.
    pub start_timeout: Duration,
    pub instances: ProcessSharing,
    /// How long a process that nobody uses is kept, looked at once a minute; `Missing` for ever. Default 30 min. A second one
    /// for callers that declare the same is kept for five minutes at most.
    pub idle: Option<Duration>,
    /// Callers of a server that does not start are told its last line on standard error. It may hold what is not theirs to
    /// know: only where all of them are on this machine.
    pub reveals_stderr: bool,
    /// Variables that hold secrets of the proxy, by their names: no process inherits them.
    pub withheld: Arc<[String]>,
    /// What watches over each process, where it is not this program but that of a test.
    pub supervisor: Option<PathBuf>,
}

/// Variables by their names. `Debug` shows the names alone: what they hold may be a secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EnvVariables(pub Vec<(String, String)>);

/// What of the proxy's environment a process gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EnvInheritance {
    All,
    /// What the SDKs' own clients pass on ([`SAFE`]).
    #[default]
    Safe,
    /// These beside the safe ones.
    Also(Vec<String>),
}

/// When the first process starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartMode {
    /// With the first call.
    #[default]
    Lazy,
    /// With the proxy.
    Eager,
}

/// Who shares a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSharing {
    /// All callers that declare the same; so many processes at most.
    Shared(usize),
    /// Nobody: each caller has its own.
    PerCaller,
}

/// A command that cannot be started.
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

/// What the SDKs' clients pass on to the servers they start, on Unix.
pub const SAFE: [&str; 6] = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"];

/// Processes of one server, where nothing is written. Each costs what the server costs.
pub const INSTANCES: usize = 4;
/// Processes of one server where each caller has its own.
pub const PER_CALLER: usize = 64;
/// How long a process that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// Variables of the proxy begin so, and no process inherits any of them: they may hold its secrets.
pub const OWN: &str = "DEFERRAL_";
/// How long a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

// === impl Command ===

impl ServerCommand {
    /// With all that need not be written.
    pub fn new(words: Vec<String>) -> Self {
        Self {
            words,
            env: EnvVariables::default(),
            inherit: EnvInheritance::default(),
            folder: None,
            start: StartMode::default(),
            start_timeout: START_TIMEOUT,
            instances: ProcessSharing::Shared(INSTANCES),
            idle: Some(IDLE),
            reveals_stderr: false,
            withheld: Arc::default(),
            supervisor: None,
        }
    }

    /// The first word. The others may hold what is not to be shown.
    pub fn program(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Looks whether there is something to start. It may be gone when it is started.
    ///
    /// # Errors
    /// [`CommandNotFound`] says what is missing where.
    pub fn find(&self) -> Result<PathBuf, CommandNotFound> {
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
        let found = env::split_paths(&path).map(|place| folder.join(place).join(program));
        let not_found = || CommandNotFound::InPath {
            program: program.to_owned(),
            path: path.to_string_lossy().into_owned(),
        };
        found.into_iter().find(|path| is_executable(path)).ok_or_else(not_found)
    }

    /// What watches over each process.
    pub fn supervisor(&self) -> PathBuf {
        match &self.supervisor {
            Some(program) => program.clone(),
            // Also once another has been put in its place on the disk.
            None if cfg!(target_os = "linux") => PathBuf::from("/proc/self/exe"),
            None => env::current_exe().unwrap_or_else(|_| PathBuf::from(env!("CARGO_PKG_NAME"))),
        }
    }

    /// Every variable that a process gets.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let is_written = |name: &OsStr| self.env.0.iter().any(|(written, _)| name == written.as_str());
        let is_inherited = |name: &OsStr| match &self.inherit {
            EnvInheritance::All => true,
            EnvInheritance::Safe => SAFE.iter().any(|safe| name == *safe),
            EnvInheritance::Also(names) => {
                SAFE.iter().any(|safe| name == *safe) || names.iter().any(|also| name == also.as_str())
            }
        };
        // What begins so is a function of a shell, and a danger to others (as the SDKs have it).
        let is_function =
            |value: &OsStr| self.inherit != EnvInheritance::All && value.as_bytes().starts_with(b"()");
        let is_withheld = |name: &OsStr| {
            name == notify::SOCKET
                || name.as_bytes().starts_with(OWN.as_bytes())
                || self.withheld.iter().any(|withheld| name == withheld.as_str())
        };
        let inherited = env::vars_os()
            .filter(|(name, value)| is_inherited(name) && !is_written(name) && !is_function(value))
            .filter(|(name, _)| !is_withheld(name));
        let written = self.env.0.iter().map(|(name, value)| (name.into(), value.into()));
        inherited.chain(written).collect()
    }
}

// === impl Variables ===

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
    path.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> ServerCommand {
        ServerCommand::new(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn a_command_is_found_where_it_would_be_started() {
        assert!(command(&["sh", "-c", "x"]).find().is_ok_and(|path| path.ends_with("sh")));
        let missing = command(&["no-such-program-anywhere"]).find().expect_err("missing").to_string();
        let path = env::var("PATH").expect("there is one");
        assert!(missing.contains("`no-such-program-anywhere`") && missing.contains(&path), "{missing}");

        let folder = tempfile::tempdir().expect("a folder");
        let mut here = ServerCommand { folder: Some(folder.path().to_owned()), ..command(&["./server"]) };
        assert_eq!(here.find(), Err(CommandNotFound::NoFile(folder.path().join("./server"))));
        std::fs::write(folder.path().join("server"), "").expect("it can be written");
        assert_eq!(here.find(), Err(CommandNotFound::NotExecutable(folder.path().join("./server"))));
        let all = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path().join("server"), all).expect("it is ours");
        assert_eq!(here.find(), Ok(folder.path().join("./server")));

        here.words = vec!["server".to_owned()];
        here.env =
            EnvVariables(vec![("PATH".to_owned(), folder.path().to_str().expect("a plain path").to_owned())]);
        assert!(here.find().is_ok());
        here.folder = Some(folder.path().join("none"));
        assert_eq!(here.find(), Err(CommandNotFound::NoFolder(folder.path().join("none"))));
    }

    #[test]
    fn a_process_gets_what_is_safe_what_is_named_and_what_is_written() {
        let given = |inherit, env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            ServerCommand { inherit, env, withheld: [].into(), ..command(&["x"]) }.environment()
        };
        let names = |given: &[(OsString, OsString)]| -> Vec<String> {
            given.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
        };
        let safe = names(&given(EnvInheritance::Safe, &[]));
        assert!(safe.iter().all(|name| SAFE.contains(&name.as_str())), "{safe:?}");
        assert!(safe.contains(&"PATH".to_owned()));
        // Cargo sets this for every test.
        let also = names(&given(EnvInheritance::Also(vec!["CARGO_MANIFEST_DIR".to_owned()]), &[]));
        assert_eq!(also.len(), safe.len() + 1);
        let all = given(EnvInheritance::All, &[("PATH", "/mine"), ("NEW", "1")]);
        let own = env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(OWN.as_bytes())).count();
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
                let command = ServerCommand { inherit: inherit.clone(), env, withheld, ..command(&["x"]) };
                command.environment().into_iter().any(|(name, _)| name == secret)
            };
            assert!(has(&[], &[]));
            assert!(!has(&[secret], &[]));
            assert!(has(&[secret], &[(secret, "written")]), "what is written is meant");
        }
    }
}
