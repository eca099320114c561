//! Differences between two configurations, as key paths.

use super::{Config, DEFAULT_PATH};
use serde_json::Value as Json;
use std::collections::BTreeSet;

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
    route.get("path").and_then(Json::as_str).unwrap_or(DEFAULT_PATH)
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
