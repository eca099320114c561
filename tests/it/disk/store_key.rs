//! The key of a store.

use super::{StoreFolder, folder::sqlite, id, insert, inspect::deferral, record};
use bytes::Bytes;
use deferral::internals::store::{DiskStore, Store as _, StoreBounds, StoreSecret, disk::load_or_create_key};
use std::{fs, os::unix::fs::PermissionsExt as _};

#[tokio::test]
async fn a_key_is_made_at_the_first_start_beside_the_folder_and_stays() {
    let world = StoreFolder::new();
    let first = load_or_create_key(&world.path, None).expect("made");
    let file = world.above.path().join("tasks.key");
    let text = fs::read_to_string(&file).expect("it is there");
    assert_eq!((text.len(), text.trim().len()), (65, 64));
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    let store = world.open();
    insert(&*store, 1).await;
    // A running store does not mind, nor how the folder is written.
    assert_eq!(load_or_create_key(&world.path, None).expect("read"), first);
    assert_eq!(load_or_create_key(&world.path.join(""), None).expect("read"), first);
    assert_eq!(load_or_create_key(&world.path.join("."), None).expect("read"), first);
    assert_eq!(load_or_create_key(&world.path, Some(&file)).expect("read"), first);
    let other = world.above.path().join("other.key");
    fs::write(&other, "ab".repeat(32)).expect("written");
    assert_eq!(load_or_create_key(&world.path, Some(&other)).expect("read"), [0xab; 32]);
}

#[tokio::test]
async fn tasks_without_their_key_and_a_key_that_is_none_are_refused() {
    let world = StoreFolder::new();
    let file = world.above.path().join("tasks.key");
    let refused = || load_or_create_key(&world.path, None).expect_err("refused").to_string();
    // A store without tasks needs none yet.
    world.open().close().await;
    let first = load_or_create_key(&world.path, None).expect("made");
    let store = world.open();
    insert(&*store, 1).await;
    fs::remove_file(&file).expect("removed");
    let (folder, name) = (world.shown(), file.display().to_string());
    assert_eq!(
        refused(),
        format!(
            "the task store {folder} has tasks, and its key {name} is not there: their owners could not be identified; put the \
             key back, or move the folder away to begin anew"
        )
    );
    for wrong in ["", "ab", &"g".repeat(64), &"a".repeat(65)] {
        fs::write(&file, wrong).expect("written");
        assert_eq!(
            refused(),
            format!("{name} is not a key: a key is 64 hex digits, as `openssl rand -hex 32` creates it")
        );
    }
    fs::remove_file(&file).expect("removed");
    fs::create_dir(&file).expect("made");
    assert!(
        refused().starts_with(&format!("the key {name} of the task store cannot be used: ")),
        "{}",
        refused()
    );
    assert_ne!(first, [0; 32]);
}

/// Opens the store with a key of these bytes, or returns the error text. The key opens a seal that equals `sealed`.
async fn opened_with(world: &StoreFolder, bytes: u8, sealed: &[u8]) -> Result<DiskStore, String> {
    let store = DiskStore::open(&world.path, StoreBounds::NONE, None).expect("opens");
    let checked = store.check_key(&StoreSecret::new(&[bytes; 32]), "KEY", |_, found| found == sealed);
    match checked {
        Ok(()) => Ok(store),
        Err(error) => {
            store.close().await;
            Err(error.to_string().replace(&world.shown(), "PATH"))
        }
    }
}

const OTHER_KEY: &str = "the task store PATH has tasks that were stored with another key than KEY, without which their \
                         owners cannot be identified; restore their key, or move the folder away to start with an empty one";

#[tokio::test]
async fn tasks_are_not_opened_with_another_key() {
    let world = StoreFolder::new();
    for bytes in [1, 2] {
        // A store without tasks accepts any key.
        opened_with(&world, bytes, b"").await.expect("opens").close().await;
    }
    let store = opened_with(&world, 2, b"").await.expect("opens");
    insert(&store, 1).await;
    store.close().await;
    for _ in 0..2 {
        assert_eq!(opened_with(&world, 1, b"").await.err().as_deref(), Some(OTHER_KEY));
        let store = opened_with(&world, 2, b"").await.expect("opens");
        assert!(
            store.load(&id(1)).await.expect("answers").is_some(),
            "the refused key left the task unchanged"
        );
        store.close().await;
    }
    let store = opened_with(&world, 2, b"").await.expect("opens");
    store.remove(&id(1)).await.expect("removed");
    store.close().await;
    opened_with(&world, 1, b"").await.expect("opens");
}

#[tokio::test]
async fn a_store_without_a_check_value_recognises_its_key_by_its_seals() {
    let world = StoreFolder::new();
    let store = world.open();
    for number in 1..=2 {
        insert(&*store, number).await;
    }
    store.set_anchor(&id(1), Some(Bytes::from_static(b"seal"))).await.expect("kept");
    store.close().await;
    assert_eq!(opened_with(&world, 1, b"other").await.err().as_deref(), Some(OTHER_KEY));
    opened_with(&world, 2, b"seal").await.expect("opens").close().await;
    // The check value has been added.
    assert_eq!(opened_with(&world, 1, b"seal").await.err().as_deref(), Some(OTHER_KEY));
    // A store without seals cannot recognise its key.
    drop(sqlite(&world.database(), "DELETE FROM meta; UPDATE tasks SET anchor = NULL"));
    opened_with(&world, 1, b"").await.expect("opens").close().await;
    assert_eq!(opened_with(&world, 2, b"").await.err().as_deref(), Some(OTHER_KEY));
}

#[tokio::test]
async fn the_program_names_the_wrong_key_and_exits() {
    let world = StoreFolder::new();
    let file = world.above.path().join("tasks.key");
    let store = world.try_open().expect("opens");
    let own = load_or_create_key(&world.path, None).expect("made");
    store.check_key(&StoreSecret::new(&own), "KEY", |_, _| true).expect("it is new");
    store.insert(record(1)).await.expect("kept");
    store.close().await;
    fs::write(&file, "ab".repeat(32)).expect("written");
    let shown = format!("disk:{}", world.shown());
    let output =
        deferral(&["--upstream", "http://127.0.0.1:9/", "--listen", "127.0.0.1:0", "--store", &shown]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    let expected = OTHER_KEY.replace("PATH", &world.shown()).replace("KEY", &file.display().to_string());
    assert!(said.contains(&expected), "{said}");
}
