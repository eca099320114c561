//! The tables of the database, and their migrations.
//!
//! The database file has the version of its tables (`PRAGMA user_version`) and a mark of this program
//! (`PRAGMA application_id`). A change of the tables is a new entry of [`MIGRATIONS`]; released entries are
//! never changed.

use super::Error;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::path::Path;

/// The mark of this program in the database file: `defr`, as `file` and SQLite's own tools show it.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"defr");

/// The SQL that migrates the tables from each version to the next; the first entry creates them in an empty
/// file.
pub(super) const MIGRATIONS: &[&str] = &["
    CREATE TABLE tasks (
        number INTEGER PRIMARY KEY,
        id BLOB NOT NULL UNIQUE,
        version INTEGER NOT NULL,
        -- The process that holds it, or held it last.
        node INTEGER NOT NULL,
        state TEXT NOT NULL,
        -- Whether somebody must see to it: it has not ended, or its server is to be told that it is cancelled.
        open INTEGER NOT NULL,
        due INTEGER NOT NULL,
        owner BLOB NOT NULL,
        created INTEGER NOT NULL,
        -- Those that count towards the quotas.
        bytes INTEGER NOT NULL,
        head TEXT NOT NULL,
        anchor BLOB,
        -- The name of the file below `results` that has the body; NULL where that is here.
        file TEXT,
        -- Last, as nothing behind it could be read without it.
        body BLOB
    ) STRICT;
    CREATE INDEX owned ON tasks (owner, created, id);
    -- A task is in one of the two, so that each change touches as few pages as can be.
    CREATE INDEX open ON tasks (node, due) WHERE open;
    CREATE INDEX ended ON tasks (due) WHERE NOT open;
    CREATE INDEX files ON tasks (file) WHERE file IS NOT NULL;
    -- Tasks that have ended, of each principal; those that have not are few, and are counted at a start.
    CREATE TABLE usage (
        principal BLOB NOT NULL,
        route TEXT NOT NULL,
        state TEXT NOT NULL,
        tasks INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        PRIMARY KEY (principal, route, state)
    ) STRICT, WITHOUT ROWID;
", "
    -- Values of the store as a whole, by name.
    CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
"];

/// The version of the tables that this program writes.
pub(super) const CURRENT_VERSION: i64 = MIGRATIONS.len().cast_signed() as i64;

/// Migrates the tables to the current version, in one transaction.
///
/// # Errors
/// [`Error::Newer`], [`Error::Foreign`], and the errors of the database.
pub(super) fn upgrade(folder: &Path, connection: &mut Connection) -> Result<(), Error> {
    migrate(folder, connection, MIGRATIONS)
}

fn migrate(folder: &Path, connection: &mut Connection, migrations: &[&str]) -> Result<(), Error> {
    let known = i64::try_from(migrations.len()).unwrap_or(i64::MAX);
    let path = folder.to_owned();
    let found = version(folder, connection)?;
    if found > known {
        return Err(Error::Newer { path, found, known });
    }
    if found == known {
        return Ok(());
    }
    let applied = (|| {
        let transaction = Transaction::new(connection, TransactionBehavior::Immediate)?;
        for migration in &migrations[usize::try_from(found).unwrap_or_default()..] {
            transaction.execute_batch(migration)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", known)?;
        transaction.commit()
    })();
    applied.map_err(Error::database(folder))
}

/// Reads the version of the tables; 0 if there are none.
///
/// # Errors
/// [`Error::Foreign`], and the errors of the database.
pub(super) fn version(folder: &Path, connection: &Connection) -> Result<i64, Error> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let tables =
        || connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
    let found = (|| Ok((number("application_id")?, number("user_version")?, tables()?)))();
    match found.map_err(Error::database(folder))? {
        (0, 0, 0) => Ok(0),
        (application, version, _) if application == i64::from(APPLICATION_ID) => Ok(version),
        _ => Err(Error::Foreign { path: folder.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "CREATE TABLE a (x INTEGER) STRICT; INSERT INTO a VALUES (7)";

    fn sum(connection: &Connection) -> rusqlite::Result<i64> {
        connection.query_row("SELECT sum(x + y) FROM a", [], |row| row.get(0))
    }

    #[test]
    fn an_older_file_is_upgraded_with_its_content() {
        let (folder, mut file) = (Path::new("folder"), Connection::open_in_memory().expect("opens"));
        migrate(folder, &mut file, &[FIRST]).expect("new");
        assert_eq!(version(folder, &file).expect("ours"), 1);
        let second = "ALTER TABLE a ADD COLUMN y INTEGER NOT NULL DEFAULT 1";
        // A failed migration changes nothing, not even by the ones before it.
        let failed = migrate(folder, &mut file, &[FIRST, second, "nonsense"]).expect_err("fails");
        assert!(matches!(failed, Error::Database { .. }), "{failed}");
        assert_eq!(version(folder, &file).expect("ours"), 1);
        sum(&file).expect_err("it has no second column yet");
        for _ in 0..2 {
            migrate(folder, &mut file, &[FIRST, second]).expect("brought up");
            assert_eq!((version(folder, &file).expect("ours"), sum(&file)), (2, Ok(8)));
        }
        let newer = migrate(folder, &mut file, &[FIRST]).expect_err("newer");
        assert!(matches!(newer, Error::Newer { found: 2, known: 1, .. }), "{newer}");
    }

    #[test]
    fn a_database_of_another_program_is_refused() {
        let mut file = Connection::open_in_memory().expect("opens");
        file.execute_batch(FIRST).expect("written");
        let foreign = upgrade(Path::new("folder"), &mut file).expect_err("foreign");
        assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    }
}
