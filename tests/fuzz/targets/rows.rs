//! Rows of the disk store: whatever is in one, it is a record, which is written the same again and goes on as any
//! other, or an error that says what is wrong.

use bytes::Bytes;
use deferral::internals::{
    protocol::Timestamp,
    store::disk::{RecordRow, RowColumns, RowError, encode_owner},
    task::{
        Record, TaskEvent, TaskState, apply,
        view::{experimental, extension},
    },
};
use std::{sync::Arc, time::Duration};

const NOW: Timestamp = Timestamp::from_millis(1_785_234_600_000);
const POLLS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

pub fn target(row: &[u8]) {
    let Some(read) = read(row) else { return };
    match read {
        Ok(record) => {
            is_written_the_same(record.clone());
            goes_on(&record);
        }
        Err(error) => assert!(error.to_string().len() > 10, "{error}"),
    }
}

/// The record in it, if it can be read. Three lines: the owner, when the task was made, the head; what is behind them
/// is the body.
pub fn read(row: &[u8]) -> Option<Result<Record, RowError>> {
    let mut parts = row.splitn(4, |byte| *byte == b'\n');
    let (owner, created, head) = (parts.next()?, parts.next()?, parts.next()?);
    let head = std::str::from_utf8(head).ok()?;
    let created = std::str::from_utf8(created).ok().and_then(|created| created.parse().ok());
    let columns = RowColumns { id: [7; 16], owner, created: created.unwrap_or_default(), head };
    let read = columns.record(Bytes::copy_from_slice(parts.next().unwrap_or_default()));
    if let Ok(record) = &read {
        // What is listed is read without its body.
        let listed = columns.without_body().expect("what is read whole is read in part");
        assert_eq!(listed.state.status(), record.state.status());
    }
    Some(read)
}

fn is_written_the_same(record: Record) {
    let row = RecordRow::from_record(Arc::new(record.clone()));
    let owner = encode_owner(&record.owner);
    let created = i64::try_from(record.created.as_millis()).unwrap_or(i64::MAX);
    let columns = RowColumns { id: record.id.entropy(), owner: &owner, created, head: &row.head };
    let again = columns.record(row.body.clone()).expect("what was written is read");
    // A time that no row can have is the last that one can.
    let (created, ttl) = (again.created, record.ttl.min(Duration::from_millis(u64::MAX)));
    assert_eq!(again, Record { created, ttl, ..record });
}

/// It is shown, renewed and ended as any other.
fn goes_on(record: &Record) {
    if let TaskState::InputRequired { outstanding } = &record.state {
        assert!(!outstanding.is_empty(), "a task waits for nothing");
    }
    let _ = (record.due_at(), record.is_expired(NOW), record.stored_bytes());
    extension::get_task_result(record, NOW, POLLS, None);
    let terms = experimental::ViewOptions { poll: POLLS, tool_errors: experimental::ToolErrors::Failed };
    experimental::task_object(record, NOW, terms);
    for event in
        [TaskEvent::TtlRenewed, TaskEvent::CANCELLED_BY_CLIENT, TaskEvent::Returned { result: "{}".into() }]
    {
        if let Ok((next, _)) = apply(record, event, NOW) {
            is_written_the_same(next);
        }
    }
}
