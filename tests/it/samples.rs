//! Each file in `config/` is a configuration that works.

use deferral::internals::{app, config};
use std::{
    fs,
    path::{Path, PathBuf},
};

fn samples() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("the folder is there").map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_sample_is_accepted() {
    let samples = samples();
    assert!(samples.len() >= 4, "{samples:?}");
    for path in samples {
        if let Err(problems) = config::load(&path) {
            panic!("{problems}");
        }
    }
}

#[tokio::test]
async fn every_sample_starts() {
    for path in samples() {
        let mut config = config::load(&path).unwrap_or_else(|problems| panic!("{problems}"));
        // On free ports of this machine, and with a certificate that is there.
        config.front.listen = vec!["127.0.0.1:0".parse().unwrap(); config.front.listen.len()];
        config.admin = config.admin.map(|_| "127.0.0.1:0".parse().unwrap());
        if let Some(tls) = &mut config.front.tls {
            let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/front");
            (tls.cert, tls.key) = (files.join("cert.pem"), files.join("key.pem"));
        }
        let running = app::start(config).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!running.addresses.is_empty());
        running.stop().await;
    }
}

#[test]
fn the_upgrade_sample_shows_the_defaults_where_it_says_so() {
    let path = samples().into_iter().find(|path| path.ends_with("upgrade.yaml")).expect("there is one");
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
    assert_ne!(full.routes[0].route.forward, plain.routes[0].route.forward, "an example, not a default");
    full.routes[0].route.forward.clear();
    assert_eq!(format!("{plain:?}"), format!("{full:?}"));
}
