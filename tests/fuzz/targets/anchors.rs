//! What a call is taken up with after a restart: only what was sealed opens, for the task it was sealed for; and
//! whatever was sealed, everything that is asked in the task can be answered or is withdrawn.

use super::rows;
use deferral::internals::{
    proxy::{AnchorSeal, RestoredInput, TaskAnchor},
    store::StoreSecret,
    task::{Record, TaskId, TaskState},
};
use std::collections::BTreeSet;

/// A line, the anchor; then, as [`rows`] has it, the row of the disk store that it lies beside.
pub fn target(kept: &[u8]) {
    let (line, row) = match kept.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&kept[..at], &kept[at + 1..]),
        None => (kept, &b""[..]),
    };
    let seal = AnchorSeal::new(&StoreSecret::new(&[1; 32]));
    let task = TaskId::from_entropy([7; 16]);
    assert_eq!(seal.open(&task, kept), None, "nobody sealed it");
    let sealed = seal.seal_bytes(&task, line.to_vec());
    only_its_own_task_opens(&seal, &task, &sealed, line);
    let Some(anchor) = seal.open(&task, &sealed) else { return };
    assert_eq!(
        seal.open(&task, &seal.seal(&task, &anchor)).as_ref(),
        Some(&anchor),
        "it is written the same"
    );
    if let Some(Ok(record)) = rows::read(row) {
        all_that_is_asked_is_seen_to(&record, &anchor);
    }
}

fn only_its_own_task_opens(seal: &AnchorSeal, task: &TaskId, sealed: &[u8], line: &[u8]) {
    assert!(line.len() < 16 || !sealed.windows(line.len()).any(|bytes| bytes == line), "it can be read");
    assert_eq!(seal.open(&TaskId::from_entropy([8; 16]), sealed), None, "of another task");
    assert_eq!(AnchorSeal::new(&StoreSecret::new(&[2; 32])).open(task, sealed), None, "with another key");
    let at = line.iter().fold(0, |at, byte| (at * 31 + usize::from(*byte)) % sealed.len());
    let mut altered = sealed.to_vec();
    altered[at] ^= 1 << (at % 8);
    assert_eq!(seal.open(task, &altered), None, "one bit another, at {at}");
    assert_eq!(seal.open(task, &sealed[..at]), None, "cut at {at}");
    assert_eq!(seal.open(task, &[sealed, b"0"].concat()), None, "a byte more");
}

fn all_that_is_asked_is_seen_to(record: &Record, anchor: &TaskAnchor) {
    let Some(left) = RestoredInput::restore(record, anchor) else {
        assert!(!record.undelivered.is_empty(), "every answer can be delivered");
        return;
    };
    let open: BTreeSet<_> = left.open.iter().map(|open| &open.key).collect();
    let forgotten: BTreeSet<_> = left.closed_keys.iter().collect();
    let asked: BTreeSet<_> = match &record.state {
        TaskState::InputRequired { outstanding } => outstanding.keys().collect(),
        TaskState::Working
        | TaskState::Completed { .. }
        | TaskState::Failed { .. }
        | TaskState::Cancelled => BTreeSet::new(),
    };
    let answered: BTreeSet<_> = record.undelivered.keys().collect();
    // No key is given twice, but in a row that nobody has written.
    if !asked.is_disjoint(&answered) {
        return;
    }
    let undelivered: BTreeSet<_> = left.undelivered.iter().map(|answered| &answered.key).collect();
    assert_eq!(&(&open | &undelivered) | &forgotten, &asked | &answered);
    assert!(open.is_disjoint(&forgotten) && undelivered.is_disjoint(&forgotten));
    assert!(open.is_subset(&asked) && undelivered.is_subset(&answered));
    assert_eq!(open.len(), left.open.len(), "each is asked once");
}
