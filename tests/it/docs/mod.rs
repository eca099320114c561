//! The pages for operators (`docs/`) and the README: what they show is what there is.

mod commands;
mod pages;
mod readme;
mod reference;

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

/// The README and all of `docs/`, relative to the top.
fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("docs")).expect("there is a folder");
    let mut pages: Vec<_> = entries.map(|entry| Path::new("docs").join(entry.unwrap().file_name())).collect();
    pages.push("README.md".into());
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
