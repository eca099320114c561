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
    is_config_file: bool,
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
    pub(super) fn config_file(path: PathBuf) -> Self {
        Self { is_config_file: true, ..Self::from_path(path) }
    }

    fn from_path(path: PathBuf) -> Self {
        let digest = read_prefix(&path)
            .map(|bytes| digest(&SHA256, &bytes).as_ref().try_into().expect("SHA-256 has 32 bytes"));
        Self { path, is_config_file: false, digest }
    }
}

impl fmt::Debug for ConfigFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfigFiles(..)")
    }
}

/// Returns the files that a configuration names, without duplicates; relative paths are resolved against
/// `folder`.
pub(super) fn referenced_files(node: &Node, folder: &Path) -> Vec<NamedFile> {
    let mut paths = BTreeSet::new();
    collect_paths(node, folder, &mut paths);
    paths.into_iter().map(NamedFile::from_path).collect()
}

fn collect_paths(node: &Node, folder: &Path, paths: &mut BTreeSet<PathBuf>) {
    match &node.value {
        NodeValue::Scalar { .. } => {}
        NodeValue::List(items) => items.iter().for_each(|item| collect_paths(item, folder, paths)),
        NodeValue::Map(entries) => {
            for MapEntry { key, node, .. } in entries {
                match node.scalar_text() {
                    Some(name) if FILE_KEYS.contains(&key.as_str()) => {
                        paths.insert(folder.join(name));
                    }
                    _ => collect_paths(node, folder, paths),
                }
            }
        }
    }
}

fn read_prefix(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_DIGESTED).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

// === impl Config ===

impl Config {
    /// Returns the key paths whose values differ in `other`, and the files whose content has changed.
    pub fn changed_keys(&self, other: &Self) -> Vec<String> {
        let mut names = Vec::new();
        collect_differences(
            "",
            &self.settings.json()["settings"],
            &other.settings.json()["settings"],
            &mut names,
        );
        for file in other.files.0.iter().filter(|file| !file.is_config_file) {
            let old = self.files.0.iter().find(|old| old.path == file.path);
            if old.is_some_and(|old| old.digest != file.digest) {
                names.push(file.path.display().to_string());
            }
        }
        names
    }
}

/// Appends to `names` the key paths of leaves that differ or exist on one side only. Routes are identified by
/// `path` instead of by their position in the list.
fn collect_differences(name: &str, old: &Json, new: &Json, names: &mut Vec<String>) {
    let child_name = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match (old, new) {
        (before, now) if before == now => {}
        (Json::Object(before), Json::Object(now)) => {
            for key in before.keys().chain(now.keys().filter(|key| !before.contains_key(*key))) {
                let [before, now] = [before, now].map(|map| map.get(key).unwrap_or(&Json::Null));
                collect_differences(&child_name(key), before, now, names);
            }
        }
        (Json::Array(before), Json::Array(now)) if [before, now].iter().all(|items| are_routes(items)) => {
            let [old_routes, new_routes] = [before, now].map(|items| {
                let item = |item: &Json| (route_path(item).to_owned(), item.clone());
                items.iter().map(item).collect::<Vec<_>>()
            });
            let paths: BTreeSet<_> = old_routes.iter().chain(&new_routes).map(|(path, _)| path).collect();
            for path in paths {
                let [before, now] = [&old_routes, &new_routes].map(|items| {
                    items.iter().find(|(named, _)| named == path).map_or(&Json::Null, |(_, item)| item)
                });
                collect_differences(&child_name(path), before, now, names);
            }
        }
        _ => names.push(name.to_owned()),
    }
}

/// Whether these list items are routes, that is, mappings with an `upstream`.
fn are_routes(items: &[Json]) -> bool {
    items.iter().all(|item| item.get("upstream").is_some())
}

fn route_path(route: &Json) -> &str {
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
