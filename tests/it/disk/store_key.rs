//! The key of a store.

use super::{StoreFolder, insert};
use deferral::internals::store::disk::key;
use std::{fs, os::unix::fs::PermissionsExt as _};

#[tokio::test]
async fn a_key_is_made_at_the_first_start_beside_the_folder_and_stays() {
    let world = StoreFolder::new();
    let first = key(&world.path, None).expect("made");
    let file = world.above.path().join("tasks.key");
    let text = fs::read_to_string(&file).expect("it is there");
    assert_eq!((text.len(), text.trim().len()), (65, 64));
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    let store = world.open();
    insert(&*store, 1).await;
    // A running store does not mind, nor how the folder is written.
    assert_eq!(key(&world.path, None).expect("read"), first);
    assert_eq!(key(&world.path.join(""), None).expect("read"), first);
    assert_eq!(key(&world.path.join("."), None).expect("read"), first);
    assert_eq!(key(&world.path, Some(&file)).expect("read"), first);
    let other = world.above.path().join("other.key");
    fs::write(&other, "ab".repeat(32)).expect("written");
    assert_eq!(key(&world.path, Some(&other)).expect("read"), [0xab; 32]);
}

#[tokio::test]
async fn tasks_without_their_key_and_a_key_that_is_none_are_refused() {
    let world = StoreFolder::new();
    let file = world.above.path().join("tasks.key");
    let refused = || key(&world.path, None).expect_err("refused").to_string();
    // A store without tasks needs none yet.
    world.open().close().await;
    let first = key(&world.path, None).expect("made");
    let store = world.open();
    insert(&*store, 1).await;
    fs::remove_file(&file).expect("removed");
    let (folder, name) = (world.shown(), file.display().to_string());
    assert_eq!(
        refused(),
        format!(
            "the task store {folder} has tasks, and its key {name} is not there: they would have no owner; put the \
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
