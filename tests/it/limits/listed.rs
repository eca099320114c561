//! The manual's list of all bounds says what the source says.

use deferral::internals::config;
use std::{collections::BTreeMap, fs, path::Path};

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the manual's tables, cell by cell, without the marks of code.
fn rows() -> Vec<Vec<String>> {
    let text = read("manual/limits.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()).collect()
}

#[test]
fn every_limit_and_timeout_of_the_configuration_is_listed_with_its_default() {
    let schema = config::schema();
    let mut wanted = BTreeMap::new();
    for section in ["limits", "timeouts"] {
        let keys = schema["properties"][section]["properties"].as_object().expect("it has keys");
        for (key, about) in keys {
            let default = &about["default"];
            let default = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
            wanted.insert(format!("{section}.{key}"), default);
        }
    }
    let is_key = |row: &&Vec<String>| row[0].starts_with("limits.") || row[0].starts_with("timeouts.");
    let listed: BTreeMap<_, _> =
        rows().iter().filter(is_key).map(|row| (row[0].clone(), row[1].clone())).collect();
    assert_eq!(listed, wanted, "src/manual/limits.md lists the left, the configuration has the right");
}

#[test]
fn every_constant_that_is_listed_is_there_with_its_value() {
    let constants: Vec<_> = rows().into_iter().filter(|row| row[0].ends_with(".rs")).collect();
    assert!(constants.len() > 40, "{}", constants.len());
    for row in constants {
        let (file, name, value) = (&row[0], &row[1], &row[2]);
        let text = read(file);
        let found = text.lines().find_map(|line| line.split_once(&format!("const {name}: ")));
        let (_, found) = found.unwrap_or_else(|| panic!("src/{file} has no constant {name}"));
        let (_, found) = found.split_once(" = ").expect("it has a value");
        let found = evaluated(found.trim_end_matches(';'));
        assert_eq!(found, meant(value), "{name} of src/{file} is listed as {value}");
    }
}

/// What a constant's expression comes to: a number, or milliseconds.
fn evaluated(expression: &str) -> u64 {
    let number = |text: &str| text.replace('_', "").trim().parse::<u64>();
    let product = |text: &str| text.split('*').map(|part| number(part).expect("a number")).product::<u64>();
    let inside = |name: &str| expression.strip_prefix(name)?.strip_suffix(')');
    if let Some(seconds) = inside("Duration::from_secs(") {
        return product(seconds) * 1000;
    }
    if let Some(millis) = inside("Duration::from_millis(") {
        return product(millis);
    }
    match expression.split_once("<<") {
        Some((base, by)) => number(base).expect("a number") << number(by).expect("a number"),
        None => product(expression),
    }
}

/// What the manual says: `64 KiB`, `2 s`, `100`.
fn meant(value: &str) -> u64 {
    let (number, unit) = value.split_once(' ').unwrap_or((value, ""));
    let number: u64 = number.parse().unwrap_or_else(|_| panic!("{value} is no number"));
    number
        * match unit {
            "" | "ms" => 1,
            "s" => 1000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            unit => panic!("{unit} is no unit"),
        }
}
