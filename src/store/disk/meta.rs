//! Values of the store as a whole: the table `meta`.

use super::row;
use crate::protocol::{ClockOffset, ClockReading, Timestamp};
use rusqlite::{Connection, OptionalExtension, ToSql, params, types::FromSql};

/// The last stored reading of the clock, if any.
pub(super) fn clock(connection: &Connection) -> rusqlite::Result<Option<ClockReading>> {
    let (time, offset) = (get::<i64>(connection, TIME)?, get(connection, OFFSET)?);
    // The program writes both values or neither.
    Ok(time.zip(offset).map(|(time, offset)| ClockReading {
        time: Timestamp::from_millis(time.max(0).cast_unsigned()),
        offset: ClockOffset::from_millis(offset),
    }))
}

/// Stores a reading of the clock.
pub(super) fn set_clock(connection: &Connection, reading: ClockReading) -> rusqlite::Result<()> {
    set(connection, TIME, &row::time_to_column(reading.time))?;
    set(connection, OFFSET, &reading.offset.as_millis())
}

/// The check value of the key that the tasks were stored with; `None` if none has been written.
pub(super) fn key_check(connection: &Connection) -> rusqlite::Result<Option<Vec<u8>>> {
    get(connection, KEY_CHECK)
}

/// Stores the check value of the key.
pub(super) fn set_key_check(connection: &Connection, check: &[u8]) -> rusqlite::Result<()> {
    set(connection, KEY_CHECK, &check)
}

fn get<T: FromSql>(connection: &Connection, name: &str) -> rusqlite::Result<Option<T>> {
    let mut statement = connection.prepare_cached("SELECT value FROM meta WHERE name = ?1")?;
    statement.query_row([name], |row| row.get(0)).optional()
}

fn set(connection: &Connection, name: &str, value: &dyn ToSql) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES (?1, ?2)")?;
    statement.execute(params![name, value]).map(drop)
}

/// The name of the time on the records' time line, in milliseconds.
const TIME: &str = "clock_time_ms";
/// The name of the offset of the wall clock from that time line, in milliseconds.
const OFFSET: &str = "clock_offset_ms";
const KEY_CHECK: &str = "key_check";
