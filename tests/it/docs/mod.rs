//! The pages in `docs/` and the README: what they show exists and works.

mod commands;
mod examples;
mod pages;
mod readme;
mod reference;
mod steps;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A block of a page between fences, with what kind it is said to be and the line it begins in.
struct Block {
    page: String,
    line: usize,
    kind: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Pages at the top, for contributors and people who report a vulnerability.
const TOP: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];

/// The pages at the top, those of `examples/` and `tests/`, and all of `docs/`, relative to the top.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = TOP.map(PathBuf::from).to_vec();
    pages.extend(["examples/README.md", "tests/README.md"].map(PathBuf::from));
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("there is a folder") {
            let path = folder.join(entry.unwrap().file_name());
            match root().join(&path).is_dir() {
                true => folders.push(path),
                false => pages.push(path),
            }
        }
    }
    pages.sort();
    assert!(pages.iter().all(|page| page.extension().is_some_and(|end| end == "md")), "{pages:?}");
    pages
}

fn text(page: &Path) -> String {
    fs::read_to_string(root().join(page)).expect("it is text")
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = text(page);
    let mut found: Vec<Block> = Vec::new();
    let mut open = false;
    for (at, line) in text.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(_) if open => open = false,
            Some(kind) => {
                open = true;
                let page = page.display().to_string();
                found.push(Block { page, line: at + 1, kind: kind.to_owned(), text: String::new() });
            }
            None if open => {
                let block = found.last_mut().expect("one is open");
                block.text.push_str(line);
                block.text.push('\n');
            }
            None => {}
        }
    }
    assert!(!open, "{}: a block has no end", page.display());
    found
}

fn all_blocks(kinds: &[&str]) -> Vec<Block> {
    let all = pages().into_iter().flat_map(|page| blocks(&page));
    all.filter(|block| kinds.contains(&block.kind.as_str())).collect()
}
