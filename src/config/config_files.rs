//! The files that belong to a configuration.

use super::schema::{MapEntry, Node, NodeValue};
use ring::digest::{SHA256, digest};
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
    pub(super) is_config_file: bool,
    /// SHA-256 of the first [`MAX_DIGESTED`] bytes at load time; `None` if the file could not be read.
    pub(super) digest: Option<[u8; 32]>,
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
