//! The folder: made, locked, and its database opened.

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

/// The database in a folder.
pub(super) fn database(folder: &Path) -> PathBuf {
    folder.join(DATABASE)
}

/// The name of the database.
pub(super) const DATABASE: &str = "tasks.db";
/// The name of the file that says which process has the folder for itself.
const LOCK: &str = "lock";

/// How long another program, such as one that makes a backup, is waited for.
const BUSY: Duration = Duration::from_secs(5);
/// Pages in the write-ahead log, from which on a commit carries them over into the database: three flushes, so that
/// it is done once for some 350 tasks. A start after a crash reads them.
const LOG_PAGES: u64 = 4096;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Memory for pages of one connection.
const CACHE_KIB: i64 = 2048;

/// The folder of a store, held open: what is in it is opened below this descriptor, and no symbolic link is followed.
///
/// Its owner is the user of this process or root, and it cannot be written by every user: either could replace what is in
/// it by links to files elsewhere, which would then be cut, removed or read in their place. Clones share the descriptor.
#[derive(Clone, Debug)]
pub(super) struct StoreFolder(Arc<OpenFolder>);

#[derive(Debug)]
struct OpenFolder {
    /// As it was named.
    path: PathBuf,
    folder: OwnedFd,
}

/// The folder is this process's alone, until this is dropped. No process that is started from here inherits it.
#[derive(Debug)]
pub(super) struct FolderLock {
    /// Has a description of its own, so that the lock ends with it.
    _folder: OwnedFd,
    _file: File,
}

// === impl StoreFolder ===

impl StoreFolder {
    /// Opens the folder, which is made with mode 0700 if there is none.
    ///
    /// # Errors
    /// [`Error::NoFolder`], [`Error::UnsafeReason`], [`Error::Folder`].
    pub(super) fn make(path: &Path) -> Result<Self, Error> {
        if fs::metadata(path).is_err() {
            DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(Error::folder(path))?;
        }
        Self::open(path)
    }

    /// Opens the folder.
    ///
    /// # Errors
    /// As [`StoreFolder::make`].
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

    /// As it was named, for messages. What is opened by this path may be another folder by now.
    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Locks the folder for this process alone: the folder itself, as the file in it can be removed while it is locked; and the
    /// file, which says who has locked it, and is what older versions lock.
    ///
    /// # Errors
    /// [`Error::IdInUse`], [`Error::UnsafeReason`], [`Error::Folder`].
    pub(super) fn lock(&self) -> Result<FolderLock, Error> {
        let failed = |source| Error::Folder { path: self.path().to_owned(), source };
        let in_use = |pid| Error::InUse { path: self.path().to_owned(), pid };
        let folder = self.reopen().map_err(failed)?;
        // Any other error: file systems of the network may lock nothing that is not open to be written, as a folder cannot be.
        if flock(&folder, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Err(in_use(self.open_file(Path::new(LOCK)).ok().as_mut().and_then(pid)));
        }
        let mut file = self.open_private(LOCK)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(pid(&mut file))),
            Err(error) => return Err(failed(error.into())),
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(FolderLock { _folder: folder, _file: file })
    }

    /// The process that has locked the folder, if one has; `Missing` of it where it did not say which.
    pub(super) fn lock_holder(&self) -> Option<Option<u32>> {
        let is_locked =
            |it: BorrowedFd<'_>| flock(it, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
        let mut file = self.open_file(Path::new(LOCK)).ok();
        let is_used = self.reopen().is_ok_and(|folder| is_locked(folder.as_fd()))
            || file.as_ref().is_some_and(|file| is_locked(file.as_fd()));
        is_used.then(|| file.as_mut().and_then(pid))
    }

    /// The folder by a descriptor that shares no lock with others.
    fn reopen(&self) -> io::Result<OwnedFd> {
        open_folder(self.0.folder.as_fd(), OsStr::new(".")).map_err(Into::into)
    }

    /// A file in it that nobody else may read, made if there is none. It is a file of its own, of a trusted owner.
    ///
    /// # Errors
    /// [`Error::UnsafeReason`], [`Error::Folder`].
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

    /// Whether the database is there. A link is none.
    ///
    /// # Errors
    /// [`Error::UnsafeReason`] where something else has its name.
    pub(super) fn has_database(&self) -> Result<bool, Error> {
        match statat(&self.0.folder, DATABASE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Symlink => {
                Err(self.refused_link(DATABASE))
            }
            Ok(found) => Ok(FileType::from_raw_mode(found.st_mode) == FileType::RegularFile),
            Err(_) => Ok(false),
        }
    }

    /// The path by which SQLite opens a file of it: without links, and of this very folder. SQLite opens what it keeps beside
    /// the database without following links, too.
    ///
    /// # Errors
    /// Where another folder has the path by now.
    pub(super) fn path_for_sqlite(&self, name: &str) -> io::Result<PathBuf> {
        let real = fs::canonicalize(self.path())?;
        let (found, ours) = (fs::metadata(&real)?, fstat(&self.0.folder)?);
        #[expect(clippy::unnecessary_cast, reason = "other systems have narrower types")]
        let is_ours = (found.dev(), found.ino()) == (ours.st_dev as u64, ours.st_ino as u64);
        match is_ours {
            true => Ok(real.join(name)),
            false => Err(io::Error::other("it was moved away, or another put in its place")),
        }
    }

    /// Opens a file below it to be read.
    ///
    /// # Errors
    /// Those of the system; a link is one.
    pub(super) fn open_file(&self, path: &Path) -> io::Result<File> {
        let (folder, name) = self.parent(path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(folder.as_fd(), name, flags, Mode::empty()).map_err(link_error)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
        }
    }

    /// Makes a file below it, in folders that are made where there are none. It, and the way to it, survive a loss of power
    /// once it is written and flushed and [`StoreFolder::flush`] has been called for its folder.
    ///
    /// # Errors
    /// Those of the system; where it is there already.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        let name = name_of(path)?;
        let mut at: Option<OwnedFd> = None;
        for part in folders_of(path) {
            let above = at.as_ref().map_or_else(|| self.0.folder.as_fd(), AsFd::as_fd);
            let next = match open_folder(above, part) {
                Err(Errno::NOENT) => {
                    match mkdirat(above, part, Mode::RWXU) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    fsync(above)?;
                    open_folder(above, part)
                }
                opened => opened,
            };
            at = Some(next.map_err(link_error)?);
        }
        let folder = at.as_ref().map_or_else(|| self.0.folder.as_fd(), AsFd::as_fd);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?))
    }

    /// Removes a file below it.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = self.parent(path)?;
        Ok(unlinkat(folder.as_fd(), name, AtFlags::empty())?)
    }

    /// Bytes of a file below it.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn length(&self, path: &Path) -> io::Result<u64> {
        Ok(self.open_file(path)?.metadata()?.len())
    }

    /// What is in a folder below it, by name; nothing where that is none.
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

    /// What is in a folder below it by name survives a loss of power.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn flush(&self, path: &Path) -> io::Result<()> {
        Ok(fsync(self.folder(path)?.as_fd())?)
    }

    fn folder(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut at = self.0.folder.try_clone()?;
        for part in path {
            at = open_folder(at.as_fd(), part).map_err(link_error)?;
        }
        Ok(at)
    }

    /// The folder that a file below it is in, and the file's name there.
    fn parent<'p>(&self, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
        Ok((self.folder(path.parent().unwrap_or_else(|| Path::new("")))?, name_of(path)?))
    }

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

/// Opens a folder by its path. A link in its place must be of a trusted owner, as one who can write to the folder above could
/// lead us anywhere by it.
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

fn open_folder(above: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(above, name, flags, Mode::empty())
}

fn name_of(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn folders_of(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.parent().into_iter().flatten()
}

/// The user of this process may do what it may, and root anything.
pub(super) fn is_trusted(owner: u32) -> bool {
    owner == geteuid().as_raw() || owner == 0
}

/// What the system says of a link that is not followed, in words.
fn link_error(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => {
            io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link, and the store follows none")
        }
        Errno::NOTDIR => io::Error::new(
            io::ErrorKind::NotADirectory,
            "it is a symbolic link or no folder, and the store follows no link",
        ),
        error => error.into(),
    }
}

fn pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Bytes that the write-ahead log takes beside the database, in a folder that may take so many.
pub(super) fn log_bytes(max_bytes: Option<u64>) -> u64 {
    let most = LOG_PAGES * PAGE;
    max_bytes.map_or(most, |max| most.min(max / 4))
}

/// Opens the database for the one who writes, with the tables of this version.
///
/// # Errors
/// As [`schema::upgrade`]; [`Error::UnsafeReason`].
pub(super) fn open_to_write(folder: &StoreFolder, max_bytes: Option<u64>) -> Result<Connection, Error> {
    let is_new = !folder.has_database()?;
    // Before SQLite does, which lets others read; what it keeps beside it has the same mode.
    drop(folder.open_private(DATABASE)?);
    let path = folder.path();
    let failed = || Error::database(path);
    let mut connection = connect_to_write(folder).map_err(failed())?;
    // Can only be chosen before there are tables.
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

/// Opens the database for one who reads.
pub(super) fn open_to_read(folder: &StoreFolder) -> rusqlite::Result<Connection> {
    connect(folder, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// Opens the database as it is, to be changed.
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
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    Ok(connection)
}

/// Whether the database is another than `id`, as the folder was moved, or another put in its place.
pub(super) fn has_moved(folder: &Path, id: (u64, u64)) -> bool {
    identity(folder).ok() != Some(id)
}

/// What tells the database from another of the same name.
pub(super) fn identity(folder: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(database(folder))?;
    Ok((found.dev(), found.ino()))
}

/// The folder that this one is in.
pub(super) fn parent_folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(above) if above.as_os_str().is_empty() => ".".into(),
        Some(above) => above.to_owned(),
        None => path.to_owned(),
    }
}

/// What is in a folder by name survives a loss of power.
pub(super) fn flush_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
