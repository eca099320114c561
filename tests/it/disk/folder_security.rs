//! A folder that another user could have prepared is refused, and links in it are not followed.

use super::{StoreFolder, end, id, insert, result};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink},
    path::{Path, PathBuf},
    process::Command,
};

const FOREIGN: &str = "what belongs to somebody else";
/// A user that runs nothing here.
const STRANGER: u32 = 54_321;

/// A file elsewhere, to which links lead.
fn foreign(world: &StoreFolder) -> PathBuf {
    let path = world.above.path().join("foreign");
    fs::create_dir_all(&path).expect("made");
    fs::write(path.join("file"), FOREIGN).expect("written");
    path
}

/// Whether the file is as it was, and alone.
fn is_untouched(foreign: &Path) {
    assert_eq!(fs::read_to_string(foreign.join("file")).expect("it is there"), FOREIGN);
    let names: Vec<_> =
        fs::read_dir(foreign).expect("a folder").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(names, ["file"]);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

/// Owners can be tried by root alone.
fn is_root(world: &StoreFolder) -> bool {
    fs::metadata(world.above.path()).expect("it is there").uid() == 0
}

/// What `deferral store` says, and its exit code.
fn store(words: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_deferral")).arg("store").args(words).output();
    let output = output.expect("the program starts");
    (String::from_utf8([output.stdout, output.stderr].concat()).expect("text"), output.status.code())
}

#[tokio::test]
async fn a_link_in_the_place_of_a_file_of_the_store_is_refused_and_not_followed() {
    for name in ["lock", "tasks.db"] {
        let world = StoreFolder::new();
        let foreign = foreign(&world);
        fs::create_dir(&world.path).expect("made");
        symlink(foreign.join("file"), world.path.join(name)).expect("linked");
        let refused = world.refused();
        assert!(
            refused.starts_with(&format!("PATH/{name} is not safe to keep tasks in: it is a symbolic link")),
            "{refused}"
        );
        assert!(refused.ends_with(&format!("find out who created it, and remove PATH/{name}")), "{refused}");
        is_untouched(&foreign);
        // What does not exist yet is not made either.
        fs::remove_file(world.path.join(name)).expect("removed");
        symlink(foreign.join("new"), world.path.join(name)).expect("linked");
        assert!(world.refused().contains("it is a symbolic link"), "{}", world.refused());
        is_untouched(&foreign);
        fs::remove_file(world.path.join(name)).expect("removed");
        fs::hard_link(foreign.join("file"), world.path.join(name)).expect("linked");
        assert!(world.refused().contains("it is a hard link"), "{}", world.refused());
        is_untouched(&foreign);
    }
}

#[tokio::test]
async fn a_link_in_the_place_of_a_folder_of_results_is_neither_swept_nor_written_to_nor_read() {
    for link in ["results", "results/00"] {
        let world = StoreFolder::new();
        let foreign = foreign(&world);
        // As if it was swept as `results/00`, and as `results`.
        fs::create_dir(foreign.join("00")).expect("made");
        fs::write(foreign.join("00/file"), FOREIGN).expect("written");
        fs::create_dir_all(world.path.join(link).parent().expect("one")).expect("made");
        symlink(&foreign, world.path.join(link)).expect("linked");
        let store = world.open();
        insert(&*store, 1).await;
        let task = id(1);
        let large =
            deferral::internals::store::update(&*store, &task, &super::returned(300 << 10), super::START)
                .await;
        assert!(large.is_err(), "there is nowhere to keep it: {large:?}");
        store.close().await;
        fs::remove_file(foreign.join("00/file")).expect("it is still there");
        fs::remove_dir(foreign.join("00")).expect("nothing else is");
        is_untouched(&foreign);
    }
}

#[tokio::test]
async fn a_result_that_was_replaced_by_a_link_is_not_read_and_not_copied() {
    let world = StoreFolder::new();
    let foreign = foreign(&world);
    let store_on_disk = world.open();
    insert(&*store_on_disk, 1).await;
    end(&*store_on_disk, 1, 300 << 10).await;
    assert_eq!(result(&*store_on_disk, 1).await, Some(300 << 10));
    store_on_disk.close().await;
    let file = world.files().remove(0);
    fs::write(foreign.join("file"), "x".repeat(300 << 10)).expect("written");
    fs::remove_file(&file).expect("removed");
    symlink(foreign.join("file"), &file).expect("linked");
    let store_on_disk = world.open();
    let read = store_on_disk.load(&id(1)).await.expect_err("it is not there").to_string();
    assert!(read.contains("it is a symbolic link"), "{read}");
    store_on_disk.close().await;
    let (said, code) = store(&["check", &world.shown()]);
    assert!(said.contains("LOST task ") && said.contains("it is a symbolic link"), "{said}");
    assert_eq!(code, Some(2));
    let to = world.above.path().join("copy");
    let (said, code) = store(&["backup", &world.shown(), &to.display().to_string()]);
    assert!(said.contains("it is a symbolic link"), "{said}");
    assert_eq!((code, to.exists()), (Some(2), false));
}

#[tokio::test]
async fn a_folder_that_every_user_can_write_to_is_refused_by_the_proxy_and_by_its_tools() {
    let world = StoreFolder::new();
    world.open().close().await;
    for mode in [0o777, 0o1777, 0o702] {
        set_mode(&world.path, mode);
        let refused = world.refused();
        let owner = fs::metadata(&world.path).expect("it is there").uid();
        assert_eq!(
            refused,
            format!(
                "PATH is not safe to keep tasks in: every user can write to it (owner: user {owner}, mode {mode:04o}); run `chmod 700 PATH`, or \
                 name a folder below it that does not exist, which is made with mode 0700"
            )
        );
        for words in [
            &["check", &world.shown()][..],
            &["backup", &world.shown(), &world.above.path().join("to").display().to_string()],
        ] {
            let (said, code) = store(words);
            assert!(said.contains("every user can write to it"), "{said}");
            assert_eq!(code, Some(2));
        }
    }
    let config = format!(
        "listen: 127.0.0.1:0\nadmin: off\nstore: {{ disk: '{}' }}\nroutes: [{{ upstream: {{ url: 'http://127.0.0.1:1' }} }}]\n",
        world.shown()
    );
    let file = world.above.path().join("deferral.yaml");
    fs::write(&file, config).expect("written");
    let output =
        Command::new(env!("CARGO_BIN_EXE_deferral")).arg("--config").arg(&file).output().expect("it ends");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("every user can write to it") && said.contains("chmod 700"), "{said}");
    // Those of a group of ours may.
    set_mode(&world.path, 0o770);
    world.open().close().await;
}

#[tokio::test]
async fn a_folder_or_a_file_of_another_user_is_refused() {
    let world = StoreFolder::new();
    if !is_root(&world) {
        return;
    }
    world.open().close().await;
    chown(&world.path, Some(STRANGER), None).expect("we are root");
    let refused = world.refused();
    assert!(
        refused.starts_with("PATH is not safe to keep tasks in: it belongs to another user than this process, which is user 0 (owner: user 54321, mode 0700)"),
        "{refused}"
    );
    assert!(refused.contains("`chown -R 0 PATH`"), "{refused}");
    let (said, code) = store(&["check", &world.shown()]);
    assert!(said.contains("it belongs to another user"), "{said}");
    assert_eq!(code, Some(2));
    chown(&world.path, Some(0), None).expect("we are root");
    for name in ["lock", "tasks.db"] {
        chown(world.path.join(name), Some(STRANGER), None).expect("we are root");
        assert!(world.refused().starts_with(&format!("PATH/{name} is not safe")), "{}", world.refused());
        chown(world.path.join(name), Some(0), None).expect("we are root");
    }
    world.open().close().await;
    // A link to a folder of ours is what its owner makes of it.
    let link =
        StoreFolder { path: world.above.path().join("link"), above: tempfile::tempdir().expect("a folder") };
    symlink(&world.path, &link.path).expect("linked");
    link.open().close().await;
    lchown(&link.path, Some(STRANGER), None).expect("we are root");
    assert!(link.refused().contains("it belongs to another user"), "{}", link.refused());
}

#[tokio::test]
async fn a_key_of_another_user_beside_the_folder_is_not_used() {
    use deferral::internals::store::disk::load_or_create_key;
    let world = StoreFolder::new();
    let foreign = foreign(&world);
    let beside = world.above.path().join("tasks.key");
    fs::write(foreign.join("file"), "ab".repeat(32)).expect("written");
    symlink(foreign.join("file"), &beside).expect("linked");
    let refused = load_or_create_key(&world.path, None).expect_err("refused").to_string();
    assert!(refused.contains("it is a symbolic link, or belongs to another user"), "{refused}");
    // One that is named may be one, as mounted secrets are.
    assert_eq!(load_or_create_key(&world.path, Some(&beside)).expect("read"), [0xab; 32]);
    fs::remove_file(&beside).expect("removed");
    fs::write(foreign.join("file"), FOREIGN).expect("written");
    // The file that becomes the key is made, and not written through a link.
    symlink(foreign.join("file"), world.above.path().join(format!("tasks.key.{}.new", std::process::id())))
        .expect("linked");
    load_or_create_key(&world.path, None).expect("made");
    is_untouched(&foreign);
}
