//! The admin token that is generated at start, and the file where local commands find it.
//!
//! The token is never logged. On a terminal the operator gets a one-time code instead ([`super::sign_in`]);
//! the token itself is in a file that only the user of the process can read, and that is removed at the end.

use crate::policy::TokenSet;
use ring::hmac;
use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::gate;
use crate::runtime::{Mutex, random};

/// A folder in which the token file may be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenFolder {
    /// The parent folder of the store.
    BesideStore(PathBuf),
    /// `deferral` below `$XDG_RUNTIME_DIR`, created if missing.
    Runtime(PathBuf),
}

/// The admin token that is generated at start, of 256 random bits, and its file.
pub struct GeneratedToken {
    text: String,
    tokens: TokenSet,
    folders: Vec<TokenFolder>,
    file: Mutex<TokenFileState>,
}

/// State of the token file.
#[derive(Default)]
enum TokenFileState {
    #[default]
    Unwritten,
    /// The lock is held while the token is valid, so that other proxies do not replace the file.
    Written {
        path: PathBuf,
        _lock: File,
    },
    Failed(String),
}

/// Name of the token file. If another proxy uses it, the address is added to the name.
const FILE_NAME: &str = "admin.token";

/// Prefix of the data that a proof signs, so that a proof is valid for nothing else.
const PROOF_PREFIX: &[u8] = b"deferral admin token\0";

// === impl GeneratedToken ===

impl GeneratedToken {
    /// Generates a token. [`GeneratedToken::write`] writes it to the first usable folder.
    pub fn new(folders: Vec<TokenFolder>) -> Self {
        let text = gate::hex(&random::<32>());
        Self { tokens: gate::admin_token_set(&text), text, folders, file: Mutex::default() }
    }

    /// Returns the token as a set, to compare other tokens with.
    pub(super) const fn tokens(&self) -> &TokenSet {
        &self.tokens
    }

    /// Returns the token itself, for a terminal and for tests. Must not be logged.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Writes the token file, at the first call only. `address` is a part of the file name if another proxy
    /// uses the usual one. [`GeneratedToken::path`] reports errors.
    pub(super) fn write(&self, address: SocketAddr) {
        let mut file = self.file.lock();
        if !matches!(*file, TokenFileState::Unwritten) {
            return;
        }
        let mut reason = "there is neither a store on disk nor $XDG_RUNTIME_DIR".to_owned();
        for folder in &self.folders {
            match self.write_in(folder, address) {
                Ok((path, lock)) => {
                    *file = TokenFileState::Written { path, _lock: lock };
                    return;
                }
                Err(error) => reason = error,
            }
        }
        *file = TokenFileState::Failed(reason);
    }

    fn write_in(&self, folder: &TokenFolder, address: SocketAddr) -> Result<(PathBuf, File), String> {
        let folder = folder.prepare()?;
        let mut path = folder.join(FILE_NAME);
        if is_locked(&path) {
            path = folder.join(format!("admin-{}-{}.token", address.ip(), address.port()));
        }
        let lock = replace_file(&path, &self.text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((path, lock))
    }

    /// Returns the path of the token file, or the reason why there is none.
    pub(super) fn path(&self) -> Result<PathBuf, String> {
        match &*self.file.lock() {
            TokenFileState::Written { path, .. } => Ok(path.clone()),
            TokenFileState::Failed(reason) => Err(reason.clone()),
            TokenFileState::Unwritten => Err("it was not written to a file".to_owned()),
        }
    }

    /// Removes the token file, unless another proxy has replaced it.
    pub(super) fn remove(&self) {
        let written = std::mem::take(&mut *self.file.lock());
        if let TokenFileState::Written { path, _lock } = written {
            let is_own = read_text(&path).is_ok_and(|text| text.trim_end() == self.text);
            if is_own {
                // A file that cannot be removed is harmless, because the token ends with the process.
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// Returns a proof to a command that this process knows the token, so that the command may send it. The
    /// command chooses the nonce.
    pub(super) fn proof(&self, nonce: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.text.as_bytes());
        let mut context = hmac::Context::with_key(&key);
        context.update(PROOF_PREFIX);
        context.update(nonce.as_bytes());
        gate::hex(context.sign().as_ref())
    }
}

impl fmt::Debug for GeneratedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GeneratedToken(..)")
    }
}

// === impl TokenFolder ===

impl TokenFolder {
    /// Returns the path of the folder, which is created if necessary. A runtime folder must belong to this
    /// user alone.
    fn prepare(&self) -> Result<PathBuf, String> {
        match self {
            Self::BesideStore(folder) => Ok(folder.clone()),
            Self::Runtime(base) => {
                let folder = base.join("deferral");
                let describe = |why: &str| format!("{}: {why}", folder.display());
                match DirBuilder::new().mode(0o700).create(&folder) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(describe(&error.to_string()));
                    }
                    Ok(()) | Err(_) => {}
                }
                // Links are not followed, because another user may have created them.
                let metadata = fs::symlink_metadata(&folder).map_err(|error| describe(&error.to_string()))?;
                let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
                match metadata.is_dir() && is_own && metadata.mode() & 0o077 == 0 {
                    true => Ok(folder),
                    false => Err(describe("is not a folder of this user only (mode 0700)")),
                }
            }
        }
    }
}

/// Whether another proxy holds the lock of the token file.
fn is_locked(path: &Path) -> bool {
    let file = open_to_read(path);
    file.is_ok_and(|file| {
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).is_err()
    })
}

/// Replaces a file by one with this text, and returns it, locked. The text is written to a temporary file and
/// renamed, so that links are not followed.
fn replace_file(path: &Path, text: &str) -> io::Result<File> {
    let temporary = path.with_file_name(format!(".{FILE_NAME}.{}", gate::hex(&random::<8>())));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        writeln!(file, "{text}")?;
        fs::rename(&temporary, path)?;
        Ok(file)
    };
    write().inspect_err(|_: &io::Error| {
        let _ = fs::remove_file(&temporary);
    })
}

/// Reads the text of a file, up to a maximum length.
fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_to_read(path)?.take(1 << 10).read_to_string(&mut text)?;
    Ok(text)
}

/// Opens a file without following links and without blocking.
fn open_to_read(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const ADDRESS: &str = "127.0.0.1:8809";

    fn write_token(folders: &[TokenFolder]) -> (GeneratedToken, Result<PathBuf, String>) {
        let token = GeneratedToken::new(folders.to_vec());
        token.write(ADDRESS.parse().expect("an address"));
        let place = token.path();
        (token, place)
    }

    #[test]
    fn the_token_file_is_beside_the_store_private_and_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (token, place) = write_token(&[TokenFolder::BesideStore(folder.path().to_owned())]);
        let path = place.expect("it is written");
        assert_eq!(path, folder.path().join("admin.token"));
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).expect("text"), format!("{}\n", token.expose()));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left beside it");
        token.remove();
        assert!(!path.exists());
    }

    #[test]
    fn links_are_replaced_without_being_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (victim, path) = (folder.path().join("victim"), folder.path().join("admin.token"));
        fs::write(&victim, "precious").expect("it is written");
        symlink(&victim, &path).expect("a link");
        let (_token, place) = write_token(&[TokenFolder::BesideStore(folder.path().to_owned())]);
        assert_eq!(place.as_ref(), Ok(&path));
        assert!(fs::symlink_metadata(&path).expect("it is there").is_file());
        assert_eq!(fs::read_to_string(&victim).expect("text"), "precious");
    }

    #[test]
    fn the_file_of_an_ended_process_is_replaced_and_that_of_a_running_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("admin.token"), "stale\n").expect("it is written");
        let beside = [TokenFolder::BesideStore(folder.path().to_owned())];
        let (one, first) = write_token(&beside);
        let (other, second) = write_token(&beside);
        assert_eq!(second, Ok(folder.path().join("admin-127.0.0.1-8809.token")));
        let first = first.expect("it is written");
        assert_eq!(fs::read_to_string(&first).expect("text").trim(), one.expose());
        other.remove();
        assert!(first.exists());
        // A file of another proxy is not removed.
        fs::write(&first, "another's\n").expect("it is written");
        one.remove();
        assert!(first.exists());
    }

    #[test]
    fn without_a_store_the_file_is_in_a_private_runtime_folder() {
        let base = tempfile::tempdir().expect("a folder");
        let runtime = [TokenFolder::Runtime(base.path().to_owned())];
        let (_token, place) = write_token(&runtime);
        assert_eq!(place, Ok(base.path().join("deferral/admin.token")));
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(base.path().join("deferral"), open).expect("it is ours");
        let (_other, place) = write_token(&runtime);
        assert!(place.as_ref().is_err_and(|why| why.contains("mode 0700")), "{place:?}");
        let elsewhere = tempfile::tempdir().expect("a folder");
        let linked = tempfile::tempdir().expect("a folder");
        symlink(elsewhere.path(), linked.path().join("deferral")).expect("a link");
        let (_token, place) = write_token(&[TokenFolder::Runtime(linked.path().to_owned())]);
        assert!(place.is_err() && fs::read_dir(elsewhere.path()).expect("a folder").count() == 0);
    }

    #[test]
    fn an_unusable_folder_is_skipped_and_a_missing_one_is_reported() {
        let base = tempfile::tempdir().expect("a folder");
        let nowhere = TokenFolder::BesideStore(base.path().join("missing"));
        let (_token, place) = write_token(&[nowhere.clone(), TokenFolder::Runtime(base.path().to_owned())]);
        assert_eq!(place, Ok(base.path().join("deferral/admin.token")));
        assert!(
            write_token(&[nowhere]).1.is_err_and(|why| why.contains("missing/admin.token: No such file"))
        );
        assert!(write_token(&[]).1.is_err_and(|why| why.contains("$XDG_RUNTIME_DIR")));
    }

    #[test]
    fn a_proof_is_of_the_token_and_the_nonce() {
        let (one, other) = (GeneratedToken::new(Vec::new()), GeneratedToken::new(Vec::new()));
        assert_eq!(one.proof("a"), one.proof("a"));
        assert!(one.proof("a") != one.proof("b") && one.proof("a") != other.proof("a"));
        assert!(!format!("{one:?}").contains(one.expose()));
    }
}
