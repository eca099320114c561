//! Each file in `config/` is accepted and starts.

use deferral::internals::{app, config};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// What the samples name and their readers make.
const SECRETS: &[&str] = &["alice.token", "alice-new.token", "ci.token", "operator.token", "search.token"];
/// The certificates that they name.
const CERTIFICATES: &[&str] = &["house-authority.pem", "client.pem", "client-key.pem"];

/// The samples, in a folder that has what they name, for as long as that is held.
struct Samples {
    folder: TempDir,
}

impl Samples {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in SECRETS {
            fs::write(folder.path().join(name), format!("{name}-0000-0000\n")).expect("it can be written");
        }
        let certificates = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/tls");
        for name in CERTIFICATES {
            fs::copy(certificates.join(name), folder.path().join(name)).expect("it can be copied");
        }
        let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
        for entry in fs::read_dir(samples).expect("the folder is there") {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).expect("it can be copied");
        }
        Self { folder }
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path()).expect("the folder is there");
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
        files.sort();
        files
    }
}

#[test]
fn every_sample_is_accepted() {
    let samples = Samples::new();
    assert!(samples.files().len() >= 4, "{:?}", samples.files());
    for path in samples.files() {
        if let Err(problems) = config::load(&path) {
            panic!("{problems}");
        }
    }
}

#[tokio::test]
async fn every_sample_starts() {
    let samples = Samples::new();
    for path in samples.files() {
        let mut config = config::load(&path).unwrap_or_else(|problems| panic!("{problems}"));
        // On free ports of this machine, and with a certificate that is there.
        config.front.listen = vec!["127.0.0.1:0".parse().unwrap(); config.front.listen.len()];
        if let Some(admin) = &mut config.admin {
            admin.listen = "127.0.0.1:0".parse().unwrap();
        }
        let of_operators = config.admin.as_mut().and_then(|admin| admin.tls.as_mut());
        for tls in config.front.tls.as_mut().into_iter().chain(of_operators) {
            let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/front");
            (tls.cert, tls.key) = (files.join("cert.pem"), files.join("key.pem").into());
        }
        let running = app::start(config).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!running.addresses.is_empty());
        running.stop().await;
    }
}

#[test]
fn the_upgrade_sample_shows_the_defaults_where_it_reports_it() {
    let samples = Samples::new();
    let path = samples.files().into_iter().find(|path| path.ends_with("upgrade.yaml")).expect("there is one");
    let text = fs::read_to_string(&path).unwrap();
    let plain = config::parse(&path, &text).expect("it is accepted");
    // What is commented out as a default, put in, changes nothing.
    let uncommented = text
        .replace("    # principal", "    principal")
        .replace("    # forward", "    forward")
        .replace("    # questions", "    questions")
        .replace("    # tasks:", "    tasks:")
        .replace("    # held", "    held")
        .replace("# limits:", "limits:")
        .replace("#   ", "  ");
    let mut full = config::parse(&path, &uncommented).unwrap_or_else(|problems| panic!("{problems}"));
    assert_ne!(
        full.routes[0].route.session_headers, plain.routes[0].route.session_headers,
        "an example, not a default"
    );
    full.routes[0].route.session_headers.clear();
    assert_eq!(format!("{plain:?}"), format!("{full:?}"));
}
