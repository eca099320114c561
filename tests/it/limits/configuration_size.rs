//! The size and depth of a configuration.

use deferral::internals::config;
use std::{fs, path::Path};

#[test]
fn a_configuration_without_end_or_bottom_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("deferral.yaml");
    let valid = "routes: [{ upstream: { url: 'http://127.0.0.1:9/mcp' } }]\n";
    let mut text = "# It goes on and on.\n".repeat((4 << 20) / 21 + 1);
    text.push_str(valid);
    fs::write(&path, &text).expect("it can be written");
    let said = config::load(&path).map(drop).expect_err("it is too long").to_string();
    assert!(said.contains("longer than the limit of 4194304 bytes"), "{said}");

    let said =
        |text: &str| config::parse(Path::new("x.yaml"), text).map(drop).expect_err("refused").to_string();
    let deep = said(&format!("{valid}listen: {}{}\n", "[".repeat(65), "]".repeat(65)));
    assert!(deep.contains("64"), "{deep}");
    let long = said(&format!("{valid}drain: 367d\n"));
    assert!(long.contains("`367d` is longer than 366 days, the longest duration"), "{long}");
    assert!(config::parse(Path::new("x.yaml"), &format!("{valid}drain: 366d\n")).is_ok());

    let key = folder.path().join("some.key");
    fs::write(&key, "0".repeat((4 << 10) + 1)).expect("it can be written");
    fs::write(&path, format!("{valid}request_state: {{ keys: [{{ file: some.key }}] }}\n"))
        .expect("it can be written");
    let said = config::load(&path).map(drop).expect_err("no key is as long").to_string();
    assert!(said.contains("longer than 4096 bytes"), "{said}");

    // What a variable gives counts each time.
    let value = "x".repeat(3 << 20);
    let environment = config::Environment::from_iter([("LONG", &*value)]);
    let text = format!("{valid}store: &long disk:${{LONG}}\npublic_url: *long\n");
    let said =
        config::check_in(Path::new("x.yaml"), &text, &environment).map(drop).expect_err("it is too long");
    let said = said.to_string();
    let wrong = "x.yaml:2:8: with the value of `LONG` the configuration exceeds the limit of 4194304 bytes";
    assert!(said.contains(wrong) && said.len() < 1000, "{}", &said[..200]);
}
