//! The folder of a store: creation, lock, and the database.

use super::{Error, error::UnsafeReason, schema};
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use rustix::{
    fs::{
        AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, fsync, lstat, mkdirat, open,
        openat, statat, unlinkat,
    },
    io::Errno,
    process::geteuid,
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// The path of the database in a folder.
pub(super) fn database_path(folder: &Path) -> PathBuf {
    folder.join(DATABASE)
}

/// The file name of the database.
pub(super) const DATABASE: &str = "tasks.db";
/// The name of the lock file, which contains the id of the process that uses the folder.
const LOCK: &str = "lock";

/// The time to wait for a lock of the database that another program holds, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of pages in the write-ahead log at which a commit moves them to the database (a checkpoint). That
/// takes three flushes, so it happens once for some 350 tasks. A start after a crash reads these pages.
const LOG_PAGES: u64 = 4096;
/// Bytes of a database page.
const PAGE: u64 = 4096;
/// KiB of the page cache of one connection.
const CACHE_KIB: i64 = 2048;

/// The folder of a store, held open: files are opened below this descriptor, and no symbolic link is
/// followed.
///
/// Its owner is the user of this process or root, and it is not writable for every user: such a user could
/// replace its files by links to files elsewhere, which would then be truncated, removed or read. Clones
/// share the descriptor.
#[derive(Clone, Debug)]
pub(super) struct StoreFolder(Arc<OpenFolder>);

#[derive(Debug)]
struct OpenFolder {
    /// The configured path.
    path: PathBuf,
    folder: OwnedFd,
}

/// An exclusive lock of the folder, released when dropped. Child processes do not inherit the lock.
#[derive(Debug)]
pub(super) struct FolderLock {
    /// The descriptor has its own open file description, so that closing it releases the lock.
    _folder: OwnedFd,
    _file: File,
}

// === impl StoreFolder ===

impl StoreFolder {
    /// Opens the folder, and creates it with mode 0700 if it does not exist.
    ///
    /// # Errors
    /// [`Error::NoFolder`], [`Error::Unsafe`], [`Error::Folder`].
    pub(super) fn open_or_create(path: &Path) -> Result<Self, Error> {
        if fs::metadata(path).is_err() {
            DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(Error::folder(path))?;
        }
        Self::open(path)
    }

    /// Opens the folder.
    ///
    /// # Errors
    /// As [`StoreFolder::open_or_create`].
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let folder = match fs::metadata(path) {
            Ok(found) if !found.is_dir() => return Err(Error::NoFolder { path: path.to_owned() }),
            _ => open_named(path)?,
        };
        let found = fstat(&folder).map_err(|error| Error::folder(path)(error.into()))?;
        let refused = |why| {
            Err(Error::Unsafe {
                path: path.to_owned(),
                owner: found.st_uid,
                mode: permissions(found.st_mode),
                why,
            })
        };
        if !is_trusted(found.st_uid) {
            return refused(UnsafeReason::Owner { user: geteuid().as_raw() });
        }
        if found.st_mode & 0o002 != 0 {
            return refused(UnsafeReason::Writable);
        }
        Ok(Self(Arc::new(OpenFolder { path: path.to_owned(), folder })))
    }

    /// The configured path, for messages. The path may lead to another folder by now.
    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Locks the folder for this process alone. Two things are locked: the folder itself, because its lock
    /// file can be removed while it is locked; and the lock file, which names the process and which earlier
    /// versions lock.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Unsafe`], [`Error::Folder`].
    pub(super) fn lock(&self) -> Result<FolderLock, Error> {
        let failed = |source| Error::Folder { path: self.path().to_owned(), source };
        let in_use = |pid| Error::InUse { path: self.path().to_owned(), pid };
        let folder = self.reopen().map_err(failed)?;
        // Ignore other errors: network file systems may lock only files that are open for writing, which a
        // folder never is. The lock file is locked in any case.
        if flock(&folder, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Err(in_use(self.open_file(Path::new(LOCK)).ok().as_mut().and_then(read_pid)));
        }
        let mut file = self.open_private(LOCK)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(read_pid(&mut file))),
            Err(error) => return Err(failed(error.into())),
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(FolderLock { _folder: folder, _file: file })
    }

    /// The id of the process that has locked the folder; `None` if the folder is not locked, `Some(None)` if
    /// the id is unknown.
    pub(super) fn lock_holder(&self) -> Option<Option<u32>> {
        let is_locked = |descriptor: BorrowedFd<'_>| {
            flock(descriptor, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
        };
        let mut file = self.open_file(Path::new(LOCK)).ok();
        let is_used = self.reopen().is_ok_and(|folder| is_locked(folder.as_fd()))
            || file.as_ref().is_some_and(|file| is_locked(file.as_fd()));
        is_used.then(|| file.as_mut().and_then(read_pid))
    }

    /// Opens the folder again: the new descriptor shares no lock with others.
    fn reopen(&self) -> io::Result<OwnedFd> {
        open_folder(self.0.folder.as_fd(), OsStr::new(".")).map_err(Into::into)
    }

    /// Opens a file for reading and writing, and creates it with mode 0600 if it does not exist. The file
    /// must be a regular file without other links, of a trusted owner.
    ///
    /// # Errors
    /// [`Error::Unsafe`], [`Error::Folder`].
    pub(super) fn open_private(&self, name: &str) -> Result<File, Error> {
        let path = self.path().join(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.0.folder, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(Errno::LOOP) => return Err(self.refused_link(name)),
            Err(error) => return Err(Error::folder(self.path())(error.into())),
        };
        let found = file.metadata().map_err(Error::folder(self.path()))?;
        let refused =
            |why| Err(Error::Unsafe { path, owner: found.uid(), mode: permissions(found.mode()), why });
        match () {
            () if !found.is_file() => refused(UnsafeReason::NotAFile),
            () if !is_trusted(found.uid()) => refused(UnsafeReason::Owner { user: geteuid().as_raw() }),
            () if found.nlink() > 1 => refused(UnsafeReason::HardLink),
            () => Ok(file),
        }
    }

    /// Whether the database exists as a regular file.
    ///
    /// # Errors
    /// [`Error::Unsafe`] if a symbolic link has its name.
    pub(super) fn has_database(&self) -> Result<bool, Error> {
        match statat(&self.0.folder, DATABASE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Symlink => {
                Err(self.refused_link(DATABASE))
            }
            Ok(found) => Ok(FileType::from_raw_mode(found.st_mode) == FileType::RegularFile),
            Err(_) => Ok(false),
        }
    }

    /// The path by which SQLite opens a file of this folder, without symbolic links. SQLite does not follow
    /// links for its files beside the database, either.
    ///
    /// # Errors
    /// If the path leads to another folder by now.
    pub(super) fn path_for_sqlite(&self, name: &str) -> io::Result<PathBuf> {
        let real = fs::canonicalize(self.path())?;
        let (found, opened) = (fs::metadata(&real)?, fstat(&self.0.folder)?);
        #[expect(clippy::unnecessary_cast, reason = "other systems have narrower types")]
        let is_same = (found.dev(), found.ino()) == (opened.st_dev as u64, opened.st_ino as u64);
        match is_same {
            true => Ok(real.join(name)),
            false => Err(io::Error::other("it was moved, or replaced by another")),
        }
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The system's error; an error, too, if a part of the path is a link.
    pub(super) fn open_file(&self, path: &Path) -> io::Result<File> {
        let (folder, name) = self.parent(path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(folder.as_fd(), name, flags, Mode::empty()).map_err(link_error)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")),
        }
    }

    /// Creates a file, and its folders. They survive a loss of power once the file is written and flushed and
    /// [`StoreFolder::flush`] has been called for its folder.
    ///
    /// # Errors
    /// The system's error; an error, too, if the file exists.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        let name = name_of(path)?;
        let mut parent: Option<OwnedFd> = None;
        for part in folders_of(path) {
            let parent_fd = parent.as_ref().map_or_else(|| self.0.folder.as_fd(), AsFd::as_fd);
            let next = match open_folder(parent_fd, part) {
                Err(Errno::NOENT) => {
                    match mkdirat(parent_fd, part, Mode::RWXU) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    fsync(parent_fd)?;
                    open_folder(parent_fd, part)
                }
                opened => opened,
            };
            parent = Some(next.map_err(link_error)?);
        }
        let folder = parent.as_ref().map_or_else(|| self.0.folder.as_fd(), AsFd::as_fd);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?))
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = self.parent(path)?;
        Ok(unlinkat(folder.as_fd(), name, AtFlags::empty())?)
    }

    /// The length of a file in bytes.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn length(&self, path: &Path) -> io::Result<u64> {
        Ok(self.open_file(path)?.metadata()?.len())
    }

    /// The names in a folder; empty if there is no such folder.
    pub(super) fn names(&self, path: &Path) -> Vec<OsString> {
        let names = || -> io::Result<Vec<OsString>> {
            let folder = self.folder(path)?;
            let entries = Dir::read_from(folder.as_fd())?;
            let names =
                entries.flatten().map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
            Ok(names.filter(|name| name != "." && name != "..").collect())
        };
        names().unwrap_or_default()
    }

    /// Flushes a folder, so that the names in it survive a loss of power.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn flush(&self, path: &Path) -> io::Result<()> {
        Ok(fsync(self.folder(path)?.as_fd())?)
    }

    /// Opens a folder below this one, without following links.
    fn folder(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut current = self.0.folder.try_clone()?;
        for part in path {
            current = open_folder(current.as_fd(), part).map_err(link_error)?;
        }
        Ok(current)
    }

    /// The folder of a file, and the file's name in it.
    fn parent<'p>(&self, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
        Ok((self.folder(path.parent().unwrap_or_else(|| Path::new("")))?, name_of(path)?))
    }

    /// The error for a symbolic link in place of a file of the store.
    fn refused_link(&self, name: &str) -> Error {
        let found = statat(&self.0.folder, name, AtFlags::SYMLINK_NOFOLLOW);
        let (owner, mode) = found.map_or((0, 0), |found| (found.st_uid, permissions(found.st_mode)));
        Error::Unsafe { path: self.path().join(name), owner, mode, why: UnsafeReason::Symlink }
    }
}

/// The permission bits of a mode, whose type is narrower on macOS than on Linux.
fn permissions(mode: impl Into<u32>) -> u32 {
    mode.into() & 0o7777
}

/// Opens a folder by its path. If the path is that of a link, the link must be of a trusted owner, because a
/// user who can write to the parent folder could redirect it.
fn open_named(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let failed = |error: Errno| Error::folder(path)(error.into());
    match open(path, flags | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(folder) => return Ok(folder),
        Err(Errno::LOOP | Errno::NOTDIR) => {}
        Err(error) => return Err(failed(error)),
    }
    let link = lstat(path).map_err(failed)?;
    if !is_trusted(link.st_uid) {
        let (owner, mode) = (link.st_uid, permissions(link.st_mode));
        return Err(Error::Unsafe {
            path: path.to_owned(),
            owner,
            mode,
            why: UnsafeReason::Owner { user: geteuid().as_raw() },
        });
    }
    open(path, flags, Mode::empty()).map_err(failed)
}

/// Opens a folder directly below another, without following a link.
fn open_folder(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// The last part of a path.
fn name_of(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// The parts of a path but the last.
fn folders_of(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.parent().into_iter().flatten()
}

/// Whether files of this owner can be trusted. The user of this process and root can change the files of the
/// store in any case.
pub(super) fn is_trusted(owner: u32) -> bool {
    owner == geteuid().as_raw() || owner == 0
}

/// Converts the system's error to one that says that links are not followed, if that is its cause.
fn link_error(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a symbolic link, which the store does not follow",
        ),
        Errno::NOTDIR => io::Error::new(
            io::ErrorKind::NotADirectory,
            "it is a symbolic link, which the store does not follow, or not a folder",
        ),
        error => error.into(),
    }
}

/// Reads the process id in the lock file.
fn read_pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Maximum bytes of the write-ahead log beside the database, in a folder that is bounded to `max_bytes`.
pub(super) fn log_bytes(max_bytes: Option<u64>) -> u64 {
    let default_bytes = LOG_PAGES * PAGE;
    max_bytes.map_or(default_bytes, |max| default_bytes.min(max / 4))
}

/// Opens the database for the writer, and creates or migrates the tables.
///
/// # Errors
/// As [`schema::upgrade`]; [`Error::Unsafe`].
pub(super) fn open_to_write(folder: &StoreFolder, max_bytes: Option<u64>) -> Result<Connection, Error> {
    let is_new = !folder.has_database()?;
    // Create the file before SQLite does, which would let other users read it. The other files of SQLite get
    // the same mode.
    drop(folder.open_private(DATABASE)?);
    let path = folder.path();
    let failed = || Error::database(path);
    let mut connection = connect_to_write(folder).map_err(failed())?;
    // This must be set before there are tables.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(failed())?;
    let mode = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
    mode.map_err(failed())?;
    let log_pages = i64::try_from(log_bytes(max_bytes) / PAGE).unwrap_or(i64::MAX);
    connection.pragma_update(None, "wal_autocheckpoint", log_pages).map_err(failed())?;
    schema::upgrade(path, &mut connection)?;
    if is_new {
        folder
            .flush(Path::new(""))
            .and_then(|()| flush_folder(&parent_folder(path)))
            .map_err(Error::folder(path))?;
    }
    Ok(connection)
}

/// Opens the database for reading.
pub(super) fn open_to_read(folder: &StoreFolder) -> rusqlite::Result<Connection> {
    connect(folder, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// Opens the database for writing, without migrations.
pub(super) fn connect_to_write(folder: &StoreFolder) -> rusqlite::Result<Connection> {
    connect(folder, OpenFlags::SQLITE_OPEN_READ_WRITE)
}

fn connect(folder: &StoreFolder, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let refused = |error: io::Error| {
        let code = ffi::Error { code: ErrorCode::CannotOpen, extended_code: ffi::SQLITE_CANTOPEN };
        rusqlite::Error::SqliteFailure(code, Some(error.to_string()))
    };
    let path = folder.path_for_sqlite(DATABASE).map_err(refused)?;
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    Ok(connection)
}

/// Whether the database is not the file with this device and inode (`id`), because the folder was moved or
/// replaced.
pub(super) fn has_moved(folder: &Path, id: (u64, u64)) -> bool {
    identity(folder).ok() != Some(id)
}

/// The device and the inode of the database.
pub(super) fn identity(folder: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(database_path(folder))?;
    Ok((found.dev(), found.ino()))
}

/// The parent of a folder; `.` for a relative path of one part.
pub(super) fn parent_folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => ".".into(),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    }
}

/// Flushes a folder, so that the names in it survive a loss of power.
pub(super) fn flush_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
