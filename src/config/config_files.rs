//! Differences between two configurations, as key paths; and the files that belong to a configuration.

use super::{
    Config,
    yaml::{MapEntry, Node, NodeValue},
};
use ring::digest::{SHA256, digest};
use serde_json::Value as Json;
use std::{
    collections::BTreeSet,
    fmt,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// A file that belongs to a configuration: the configuration file itself, or a certificate, key or token
/// file.
#[derive(Clone)]
pub struct NamedFile {
    /// The path of the file, relative to the working directory unless absolute.
    pub path: PathBuf,
    /// Whether this is the configuration file, whose changes are reported by key.
    is_itself: bool,
    /// SHA-256 of the first [`MAX_DIGESTED`] bytes at load time; `None` if the file could not be read.
    digest: Option<[u8; 32]>,
}

/// All files of a configuration. `Debug` prints none of them, so that equal configurations compare equal
/// wherever they are stored.
#[derive(Clone, Default)]
pub struct ConfigFiles(pub Vec<NamedFile>);

/// Keys of a configuration whose values are file names.
const FILE_KEYS: [&str; 4] = ["file", "cert", "key", "ca"];
/// Number of bytes of a file that are included in its digest.
const MAX_DIGESTED: u64 = 1 << 20;

// === impl NamedFile ===

impl NamedFile {
    /// Describes the configuration file itself.
    pub(super) fn itself(path: PathBuf) -> Self {
        Self { is_itself: true, ..Self::of(path) }
    }

    fn of(path: PathBuf) -> Self {
        let digest = read(&path)
            .map(|bytes| digest(&SHA256, &bytes).as_ref().try_into().expect("SHA-256 has 32 bytes"));
        Self { path, is_itself: false, digest }
    }
}

impl fmt::Debug for ConfigFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfigFiles(..)")
    }
}

/// Returns the files that a configuration names, without duplicates; relative paths are resolved against
/// `folder`.
pub(super) fn named(node: &Node, folder: &Path) -> Vec<NamedFile> {
    let mut paths = BTreeSet::new();
    collect(node, folder, &mut paths);
    paths.into_iter().map(NamedFile::of).collect()
}

fn collect(node: &Node, folder: &Path, paths: &mut BTreeSet<PathBuf>) {
    match &node.value {
        NodeValue::Scalar { .. } => {}
        NodeValue::List(items) => items.iter().for_each(|item| collect(item, folder, paths)),
        NodeValue::Map(entries) => {
            for MapEntry { key, node, .. } in entries {
                match node.characters() {
                    Some(name) if FILE_KEYS.contains(&key.as_str()) => {
                        paths.insert(folder.join(name));
                    }
                    _ => collect(node, folder, paths),
                }
            }
        }
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_DIGESTED).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

// === impl Config ===

impl Config {
    /// Returns the key paths whose values differ in `other`, and the files whose content has changed.
    pub fn changed_keys(&self, other: &Self) -> Vec<String> {
        let mut names = Vec::new();
        differences("", &self.settings.json()["settings"], &other.settings.json()["settings"], &mut names);
        for file in other.files.0.iter().filter(|file| !file.is_itself) {
            let was = self.files.0.iter().find(|was| was.path == file.path);
            if was.is_some_and(|was| was.digest != file.digest) {
                names.push(file.path.display().to_string());
            }
        }
        names
    }
}

/// Appends to `names` the key paths of leaves that differ or exist on one side only. Routes are identified by
/// `path` instead of by their position in the list.
fn differences(name: &str, before: &Json, now: &Json, names: &mut Vec<String>) {
    let within = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match (before, now) {
        (before, now) if before == now => {}
        (Json::Object(before), Json::Object(now)) => {
            for key in before.keys().chain(now.keys().filter(|key| !before.contains_key(*key))) {
                let [before, now] = [before, now].map(|map| map.get(key).unwrap_or(&Json::Null));
                differences(&within(key), before, now, names);
            }
        }
        (Json::Array(before), Json::Array(now)) if [before, now].iter().all(|items| are_routes(items)) => {
            let [were, are] = [before, now].map(|items| {
                let item = |item: &Json| (path(item).to_owned(), item.clone());
                items.iter().map(item).collect::<Vec<_>>()
            });
            let paths: BTreeSet<_> = were.iter().chain(&are).map(|(path, _)| path).collect();
            for path in paths {
                let [before, now] = [&were, &are].map(|items| {
                    items.iter().find(|(named, _)| named == path).map_or(&Json::Null, |(_, item)| item)
                });
                differences(&within(path), before, now, names);
            }
        }
        _ => names.push(name.to_owned()),
    }
}

/// Whether these list items are routes, that is, mappings with an `upstream`.
fn are_routes(items: &[Json]) -> bool {
    items.iter().all(|item| item.get("upstream").is_some())
}

fn path(route: &Json) -> &str {
    route.get("path").and_then(Json::as_str).unwrap_or(super::file::DEFAULT_PATH)
}

#[cfg(test)]
mod tests {
    use crate::config;
    use std::path::Path;

    fn read(text: &str) -> config::Config {
        config::parse(Path::new("deferral.yaml"), text).expect("it is right")
    }

    #[test]
    fn differences_are_named_by_key_and_route() {
        let before = "
listen: 127.0.0.1:1
limits: { calls: 7 }
routes:
  - { path: /a, upstream: { url: 'http://a' }, defer: { after: 1s } }
  - { path: /b, upstream: { url: 'http://b' } }
";
        let now = "
listen: 127.0.0.1:2
routes:
  - { path: /c, upstream: { url: 'http://b' } }
  - { path: /a, upstream: { url: 'http://a' }, defer: { after: 2s, mode: always } }
";
        assert_eq!(
            read(before).changed_keys(&read(now)),
            ["limits", "listen", "routes./a.defer.after", "routes./a.defer.mode", "routes./b", "routes./c"]
        );
        assert_eq!(read(before).changed_keys(&read(before)), [""; 0]);
    }

    #[test]
    fn a_file_with_changed_content_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let token = folder.path().join("alice.token");
        let path = folder.path().join("deferral.yaml");
        let text = "
access: { tokens: [{ name: alice, file: alice.token }] }
routes: [{ upstream: { url: 'http://a' } }]
";
        let read = |secret: &str| {
            std::fs::write(&token, secret).expect("it can be written");
            config::parse(&path, text).expect("it is right")
        };
        let [before, now] = ["0123456789abcdef", "fedcba9876543210"].map(read);
        assert_eq!(before.changed_keys(&now), [token.display().to_string()]);
        assert_eq!(now.files.0.iter().map(|file| &file.path).collect::<Vec<_>>(), [&path, &token]);
    }
}
