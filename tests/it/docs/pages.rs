//! Links, code blocks and lists of the pages.

use super::{all_blocks, blocks, pages, root, text};
use deferral::internals::config;
use regex_lite::Regex;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What kinds of blocks there are, and so who looks at them: this file at all but `console`.
const KINDS: [&str; 7] = ["yaml", "json", "toml", "console", "python", "javascript", "text"];

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .collect::<String>();
    kept.trim().replace(' ', "-")
}

fn anchors(page: &Path) -> BTreeSet<String> {
    let headings = Regex::new(r"(?m)^#+ (.*)$").expect("a pattern");
    headings.captures_iter(&text(page)).map(|found| anchor(&found[1])).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let link = Regex::new(r"\]\(([^)]+)\)").expect("a pattern");
    for page in pages() {
        for found in link.captures_iter(&text(&page)) {
            let (path, heading) =
                found[1].split_once('#').map_or((&found[1], None), |(path, rest)| (path, Some(rest)));
            if path.starts_with("https://") {
                continue;
            }
            let target: PathBuf = match path {
                "" => page.clone(),
                path => page.parent().expect("it is in a folder").join(path),
            };
            assert!(root().join(&target).exists(), "{}: {path} is not there", page.display());
            if let Some(heading) = heading {
                assert!(
                    anchors(&target).contains(heading),
                    "{}: {} has no #{heading}",
                    page.display(),
                    target.display()
                );
            }
        }
    }
}

#[test]
fn every_page_is_in_the_index() {
    let index = text(Path::new("docs/README.md"));
    for page in pages().iter().filter(|page| page.starts_with("docs") && !page.ends_with("README.md")) {
        let name = page.strip_prefix("docs").expect("it is below").display();
        assert!(index.contains(&format!("({name})")), "{name} is not in docs/README.md");
    }
}

#[test]
fn every_block_says_what_it_is() {
    for page in pages() {
        for block in blocks(&page) {
            assert!(KINDS.contains(&&*block.kind), "{}:{}: `{}`", block.page, block.line, block.kind);
        }
    }
}

#[test]
fn what_is_shown_as_json_and_toml_can_be_read() {
    for block in all_blocks(&["json", "toml"]) {
        let error = match &*block.kind {
            "json" => {
                serde_json::from_str::<serde_json::Value>(&block.text).err().map(|error| error.to_string())
            }
            _ => toml::from_str::<toml::Table>(&block.text).err().map(|error| error.to_string()),
        };
        assert_eq!(error, None, "{}:{}", block.page, block.line);
    }
}

/// A part of a configuration, made whole: keys of a route where it is indented, else keys of the top level.
fn whole(text: &str) -> String {
    const SERVER: &str = "upstream: { url: 'http://127.0.0.1:9000/mcp' }\n";
    let is_route = text.starts_with("    ");
    match text.contains("routes:") {
        true => text.to_owned(),
        false if is_route && text.contains("    upstream:") => format!("routes:\n  - path: /mcp\n{text}"),
        false if is_route => format!("routes:\n  - path: /mcp\n    {SERVER}{text}"),
        false => format!("{text}\nroutes:\n  - {SERVER}"),
    }
}

/// Everything that samples name: certificates that fit their keys, secrets, commands.
fn surroundings(text: &str) -> (tempfile::TempDir, Vec<(String, String)>) {
    let folder = tempfile::tempdir().expect("a folder");
    let front = root().join("tests/it/front");
    let named = |pattern: &str| -> Vec<String> {
        let pattern = Regex::new(pattern).expect("a pattern");
        pattern.captures_iter(text).map(|found| found[1].trim_matches('"').to_owned()).collect()
    };
    for (pattern, file) in [
        (r"\bcert: ([^ ,}]+)", "cert.pem"),
        (r"\bkey: (?:\{ file: )?([^ ,{}]+)", "key.pem"),
        (r"\bca: ([^ ,}]+)", "cert.pem"),
    ] {
        for name in named(pattern) {
            fs::copy(front.join(file), folder.path().join(name)).expect("it can be copied");
        }
    }
    let secret = |number: usize| format!("{number:064x}");
    for (number, name) in named(r"\bfile: ([^ ,}]+)").into_iter().enumerate() {
        if !folder.path().join(&name).exists() {
            fs::write(folder.path().join(name), secret(number)).expect("it can be written");
        }
    }
    let variables = named(r"\benv: ([A-Z_]+)").into_iter().chain(named(r"\$\{([A-Z_]+)"));
    let variables = variables.enumerate().map(|(number, name)| (name, secret(1000 + number))).collect();
    (folder, variables)
}

#[test]
fn every_configuration_is_accepted() {
    for block in all_blocks(&["yaml"]) {
        let text = whole(&block.text);
        let (folder, variables) = surroundings(&text);
        let file = folder.path().join("deferral.yaml");
        fs::write(&file, &text).expect("it can be written");
        let output = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .arg("check")
            .arg(&file)
            .envs(variables)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}:{}:\n{said}\n{text}", block.page, block.line);
    }
}

#[test]
fn every_code_of_ours_is_explained() {
    let page = text(Path::new("docs/errors.md"));
    let known = fs::read_to_string(root().join("src/manual/errors.md")).expect("it is text");
    let code = Regex::new(r"`(-3\d{4})`").expect("a pattern");
    let codes: BTreeSet<_> = code.captures_iter(&known).map(|found| found[1].to_owned()).collect();
    assert!(codes.len() >= 8, "{codes:?}");
    for code in codes {
        assert!(page.contains(&format!("`{code}`")), "docs/errors.md says nothing of {code}");
    }
}

#[test]
fn metrics_that_are_named_are_there() {
    let known = fs::read_to_string(root().join("src/manual/metrics.md")).expect("it is text");
    let name = Regex::new(r"`(deferral_[a-z_]+)").expect("a pattern");
    for page in pages() {
        for found in name.captures_iter(&text(&page)) {
            // Tools of ours, and a package.
            let is_tool = ["deferral_result", "deferral_cancel", "deferral_mcp"].contains(&&found[1]);
            assert!(
                is_tool || known.contains(&format!("`{}`", &found[1])),
                "{}: {}",
                page.display(),
                &found[1]
            );
        }
    }
}

/// Words of ours that people look for, in quotes: those of the program, or of its tests.
#[test]
fn quoted_messages_exist_in_the_source() {
    let quoted = Regex::new(r"“([^”]+)”").expect("a pattern");
    let mut source = String::new();
    for folder in ["src", "tests/it"] {
        let mut left = vec![root().join(folder)];
        while let Some(path) = left.pop() {
            if path.is_dir() {
                left.extend(
                    fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path()),
                );
            } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("docs/pages.rs") {
                source.push_str(&fs::read_to_string(path).expect("it is text"));
            }
        }
    }
    // Long texts are broken into lines there.
    let joined = Regex::new(r"\\\n\s*").expect("a pattern").replace_all(&source, "");
    let mut count = 0;
    for page in pages() {
        for found in quoted.captures_iter(&text(&page)) {
            count += 1;
            for part in found[1].split('…').map(str::trim).filter(|part| !part.is_empty()) {
                assert!(joined.contains(part), "{}: nobody says “{part}”", page.display());
            }
        }
    }
    assert!(count > 5, "there are {count}");
}

#[test]
fn the_schema_that_editors_get_is_the_one_that_the_reference_is_made_of() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_deferral")).args(["check", "--schema"]).output().expect("it runs");
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(shown, config::schema());
}
