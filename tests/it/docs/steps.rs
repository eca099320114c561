//! The steps of `scripts/test`: recipes, workflows and pages name those that exist.

use super::{pages, root, text};
use regex_lite::Regex;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The steps that the script lists in its first comment.
fn steps() -> BTreeSet<String> {
    let listed = Regex::new(r"(?m)^#   ([a-z]+)  +\S").expect("a pattern");
    listed.captures_iter(&text(Path::new("scripts/test"))).map(|found| found[1].to_owned()).collect()
}

#[test]
fn every_step_that_is_listed_can_be_named() {
    let script = text(Path::new("scripts/test"));
    let case = Regex::new(r"(?m)^    ([a-z| ]+) \| all\) ;;$").expect("a pattern");
    let case = case.captures(&script).expect("the names that are accepted");
    assert_eq!(case[1].split(" | ").map(str::to_owned).collect::<BTreeSet<_>>(), steps());
    for step in steps() {
        assert!(script.contains(&format!("\n{step}() {{\n")), "{step} is no function");
    }
}

#[test]
fn each_step_is_a_recipe_of_the_same_name() {
    let recipe = Regex::new(r"(?m)^([a-z]+):\n    scripts/test ([a-z]+)$").expect("a pattern");
    let justfile = text(Path::new("justfile"));
    let recipes: BTreeSet<_> = recipe
        .captures_iter(&justfile)
        .map(|found| {
            assert_eq!(found[1], found[2], "a recipe is named as its step");
            found[1].to_owned()
        })
        .collect();
    assert_eq!(recipes, steps());
}

#[test]
fn steps_that_are_named_exist() {
    let named = Regex::new(r"scripts/test ([a-z]+)\b").expect("a pattern");
    let workflows = fs::read_dir(root().join(".github/workflows")).expect("there is a folder");
    let workflows = workflows.map(|entry| Path::new(".github/workflows").join(entry.unwrap().file_name()));
    let steps = steps();
    for file in workflows.chain(pages()).chain([PathBuf::from("tests/fuzz/README.md")]) {
        for found in named.captures_iter(&text(&file)) {
            assert!(steps.contains(&found[1]), "{}: {}", file.display(), &found[0]);
        }
    }
}
