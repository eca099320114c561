//! Private keys and the store's key: from files and variables.

use deferral::internals::{
    app,
    config::{self, Config, Environment, StoreConfig, StoreKeySource},
};
use std::{fs, path::Path};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1dfeff";

fn checked(text: &str) -> Result<Config, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let pem = |name: &str| fs::read_to_string(folder.join(name)).expect("it is there");
    let [served, shown, strange] =
        ["front/key.pem", "support/tls/client-key.pem", "support/tls/stranger-key.pem"].map(pem);
    let variables = [
        ("SERVED", &*served),
        ("SHOWN", &*shown),
        ("STRANGE", &*strange),
        ("STORE", KEY),
        ("WORD", "hunter2"),
    ];
    let checked = config::check_in(&folder.join("f.yaml"), text, &Environment::from_iter(variables));
    let folder = format!("{}/", folder.display());
    checked.map(|(config, _)| config).map_err(|problems| problems.to_string().replace(&folder, ""))
}

/// With the key of the address, that of a server, and that of the store in these places.
fn with(tls: &str, upstream: &str, store: &str) -> Result<Config, String> {
    checked(&format!(
        "listen: 127.0.0.1:0\nadmin: off\ntls: {{ cert: front/cert.pem, key: {tls} }}\nstore: {{ disk: {store} }}\n\
         routes:\n- upstream: {{ url: 'https://a/', tls: {{ cert: support/tls/client.pem, key: {upstream} }} }}\n"
    ))
}

#[tokio::test]
async fn keys_are_in_files_or_in_variables() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("{}/tasks", folder.path().display());
    let by_name = with("front/key.pem", "support/tls/client-key.pem", &store).expect("it is right");
    for (tls, upstream) in [
        ("{ file: front/key.pem }", "{ file: support/tls/client-key.pem }"),
        ("{ env: SERVED }", "{ env: SHOWN }"),
    ] {
        let config = with(tls, upstream, &format!("{store}, key: {{ env: STORE }}")).expect("it is right");
        assert!(config.routes[0].upstream == by_name.routes[0].upstream, "they hold the same");
        let StoreConfig::Disk { key: Some(StoreKeySource::Value(key)), .. } = &config.store else {
            panic!("another store")
        };
        assert_eq!(key.expose()[..2], [0, 1]);
        let shown = format!("{config:?} {}", config.settings.json());
        assert!(!shown.contains("PRIVATE KEY") && !shown.contains("0001020304"), "{shown}");
        app::start(config).unwrap_or_else(|error| panic!("{error}")).stop().await;
    }
    let made: Vec<_> =
        fs::read_dir(folder.path()).expect("it is there").flatten().map(|one| one.file_name()).collect();
    assert_eq!(made, ["tasks"], "no key is made beside a store that has been given one");
}

#[test]
fn an_invalid_key_is_named_by_its_place_and_never_shown() {
    let right = ("front/key.pem", "support/tls/client-key.pem", "tasks");
    for (tls, upstream, store, said) in [
        ("{ env: NONE }", right.1, right.2, "f.yaml:3:35: the environment variable `NONE` is not set"),
        (
            "{ env: WORD }",
            right.1,
            right.2,
            "f.yaml:3:35: cannot read a private key from the environment variable `WORD` (tls.key): no items found",
        ),
        (
            "{ env: STRANGE }",
            right.1,
            right.2,
            "f.yaml:3:6: front/cert.pem (tls.cert) and the environment variable `STRANGE` (tls.key) cannot be used together",
        ),
        (
            "{ file: none.pem }",
            right.1,
            right.2,
            "f.yaml:3:35: cannot read a private key from none.pem (tls.key): No such file",
        ),
        ("{}", right.1, right.2, "f.yaml:3:35: the key has neither `file` nor `env`; add one of them"),
        (
            "'-----BEGIN PRIVATE KEY----- hunter2'",
            right.1,
            right.2,
            "f.yaml:3:35: `key` must name a file that holds the key, not be the key itself",
        ),
        (
            right.0,
            "{ env: STRANGE }",
            right.2,
            "f.yaml:6:47: support/tls/client.pem (tls.cert) and the environment variable `STRANGE` (tls.key) cannot be used together",
        ),
        (right.0, "{ env: NONE }", right.2, "f.yaml:6:76: the environment variable `NONE` is not set"),
        (
            right.0,
            right.1,
            "tasks, key: { env: WORD }",
            "f.yaml:4:28: the environment variable `WORD` is neither hex digits nor base64",
        ),
        (
            right.0,
            right.1,
            &format!("tasks, key: {KEY}"),
            "f.yaml:4:28: `key` must name a file that holds the key, not be the key itself",
        ),
    ] {
        let problems = with(tls, upstream, store).map(drop).expect_err(said);
        assert!(problems.starts_with(said), "{problems}\n{said}");
        assert!(!problems.contains("hunter2") && !problems.contains(KEY), "{problems}");
    }
}
