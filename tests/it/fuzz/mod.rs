//! The fuzz targets, on their seeds and on random variations of them.
//!
//! libFuzzer runs the same functions for longer, and learns from what they do (`tests/fuzz/README.md`).
//! `PROPTEST_CASES` says how much is tried here.

#[path = "../../fuzz/targets/mod.rs"]
mod targets;

use proptest::{
    prelude::*,
    sample::Index,
    test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
};

/// Something that happens to a seed.
#[derive(Clone, Debug)]
enum Change {
    Cut(Index, Index),
    /// A piece of another seed, or of the same, is put in.
    Graft(Index, Index, Index, Index),
    Overwrite(Index, u8),
    Insert(Index, u8),
}

#[test]
fn no_answer_is_read_otherwise_than_hyper_reads_it() {
    holds("http1");
}

#[test]
fn all_readers_of_event_streams_see_the_same_however_they_are_cut() {
    holds("sse");
}

#[test]
fn output_of_a_process_has_the_same_lines_however_it_is_cut() {
    holds("lines");
}

#[test]
fn no_post_is_read_otherwise_than_serde_json_reads_it() {
    holds("post");
}

#[test]
fn no_message_is_read_otherwise_than_serde_json_reads_it() {
    holds("frame");
}

#[test]
fn a_change_of_a_member_touches_no_other_and_can_be_undone() {
    holds("splice");
}

#[test]
fn no_header_differs_from_its_body() {
    holds("headers");
}

#[test]
fn no_request_state_opens_that_was_not_sealed() {
    holds("request_state");
}

#[test]
fn no_row_of_the_disk_store_is_read_as_what_was_never_written() {
    holds("rows");
}

#[test]
fn an_anchor_opens_only_if_it_was_sealed_and_its_input_requests_are_known() {
    holds("anchors");
}

#[test]
fn no_configuration_is_refused_without_a_place_or_accepted_and_does_not_start() {
    holds("config");
}

#[test]
fn every_target_has_seeds_and_a_program_of_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    let names = |folder: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(root.join(folder)).expect("readable");
        let name = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
        entries.map(|entry| name(&entry.expect("readable").path())).collect()
    };
    let targets: BTreeSet<_> = targets::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names("seeds"), targets);
    assert_eq!(names("fuzz_targets"), targets);
}

/// A seed of another form than what is read today leads nowhere: it was so of all of them, once.
#[test]
fn seeds_of_rows_are_records_but_for_those_that_are_wrong_on_purpose() {
    let refused: Vec<_> = seeds("rows")
        .into_iter()
        .filter(|(_, row)| targets::rows::read(row).expect("three lines").is_err())
        .map(|(name, _)| name)
        .collect();
    let on_purpose =
        ["asks-nothing", "asks-under-one-key-twice", "kept-for-longer-than-any", "lengths-beyond-all"];
    assert_eq!(refused, on_purpose);
}

/// Runs a target.
fn holds(name: &str) {
    let (_, target) = targets::ALL.into_iter().find(|(known, _)| *known == name).expect("a target");
    let seeds: Vec<_> = seeds(name).into_values().collect();
    seeds.iter().for_each(|seed| target(seed));
    target(b"");

    let changes = prop::collection::vec(change(), 1..6);
    // Deterministic, unless a seed is configured.
    let config = Config { failure_persistence: None, ..Config::default() };
    let mut runner = match env::var_os("PROPTEST_CASES") {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let outcome = runner.run(&(any::<Index>(), changes), |(seed, changes)| {
        target(&changed(&seeds, seed, &changes));
        Ok(())
    });
    if let Err(TestError::Fail(why, (seed, changes))) = outcome {
        panic!("{why}\n{}", changed(&seeds, seed, &changes).escape_ascii());
    }
    outcome.expect("nothing is rejected");
}

/// The seeds of a target, by their names.
fn seeds(name: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds").join(name);
    let seed = |path: &Path| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read(path).expect("readable"))
    };
    fs::read_dir(folder).expect("seeds").map(|entry| seed(&entry.expect("readable").path())).collect()
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<Index>;
    let byte = || prop_oneof![any::<u8>(), prop::sample::select(b" \r\n\t:;,\"\\{}[]01-=\0".to_vec())];
    prop_oneof![
        (index(), index()).prop_map(|(at, length)| Change::Cut(at, length)),
        (index(), index(), index(), index())
            .prop_map(|(at, seed, from, length)| Change::Graft(at, seed, from, length)),
        (index(), byte()).prop_map(|(at, byte)| Change::Overwrite(at, byte)),
        (index(), byte()).prop_map(|(at, byte)| Change::Insert(at, byte)),
    ]
}

fn changed(seeds: &[Vec<u8>], seed: Index, changes: &[Change]) -> Vec<u8> {
    let mut bytes = seed.get(seeds).clone();
    for change in changes {
        match change {
            Change::Cut(at, length) => {
                let at = at.index(bytes.len() + 1);
                let length = length.index((bytes.len() - at + 1).min(32));
                bytes.drain(at..at + length);
            }
            Change::Graft(at, other, from, length) => {
                let other = other.get(seeds);
                let from = from.index(other.len() + 1);
                let length = length.index((other.len() - from + 1).min(64));
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, other[from..from + length].iter().copied());
            }
            Change::Overwrite(at, byte) => {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
            }
            Change::Insert(at, byte) => bytes.insert(at.index(bytes.len() + 1), *byte),
        }
    }
    bytes
}
