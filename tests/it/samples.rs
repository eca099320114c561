//! Each file in `config/` is a configuration that works.

use deferral::config;
use std::{fs, path::PathBuf};

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
    assert!(samples.len() >= 3, "{samples:?}");
    for path in samples {
        if let Err(problems) = config::load(&path) {
            panic!("{problems}");
        }
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
        .replace("# limits:", "limits:")
        .replace("#   ", "  ");
    let mut full = config::parse(&path, &uncommented).unwrap_or_else(|problems| panic!("{problems}"));
    assert_ne!(full.routes[0].route.forward, plain.routes[0].route.forward, "an example, not a default");
    full.routes[0].route.forward.clear();
    assert_eq!(format!("{plain:?}"), format!("{full:?}"));
}
