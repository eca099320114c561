//! The keys of `store`.

use crate::config::schema::{
    LoadContext, SecretKey, SecretSource, SectionReader, SourceSpan, ValueResult, ValueType, invalid,
    key_location, mapping, size, text,
};
use serde_json::json;
use std::path::PathBuf;

/// Location of the task store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreConfig {
    /// In memory; lost when the process ends.
    #[default]
    Memory,
    /// In a folder; survives restarts.
    Disk {
        /// The folder of the store.
        path: PathBuf,
        /// The key of the store; `None` for the key file beside the folder.
        key: Option<StoreKeySource>,
        /// Size limit of the folder, in bytes; `None` for no limit.
        max_bytes: Option<usize>,
    },
}

/// Source of the key of a store on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreKeySource {
    /// A key file, which is created if missing.
    File(PathBuf),
    /// The key itself, read together with the configuration.
    Value(SecretKey),
}

/// Smallest size limit of a store folder, in bytes. An empty store already takes part of it.
const MIN_STORE_BYTES: usize = 16 << 20;

/// Reads `store`.
pub(super) fn read_store(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> StoreConfig {
    s.key("store", "Task store: `memory` (tasks are lost when the process ends), or a folder in which they are kept across restarts, as in `{ disk: ./tasks }`.")
        .read_or(store_type(context), StoreConfig::Memory)
}

/// The type of `store`. A path in the file is relative to the folder of the file, a path on the command line
/// to the working directory.
fn store_type(context: LoadContext<'_>) -> ValueType<'_, StoreConfig> {
    let schema =
        json!({ "type": "string", "pattern": "^(memory|disk:.+)$", "examples": ["memory", "disk:./data"] });
    ValueType::scalar(schema, parse_store)
        .and_then(move |store, node, _| {
            Some(match (store, node.span) {
                (StoreConfig::Disk { path, key, max_bytes }, SourceSpan::File { .. } | SourceSpan::Whole) => {
                    StoreConfig::Disk { path: context.folder.join(path), key, max_bytes }
                }
                (store, _) => store,
            })
        })
        .or_mapping(mapping("`store`", move |s| read_disk(s, context)))
        .show_with(|store| match store {
            StoreConfig::Memory => "memory".into(),
            StoreConfig::Disk { path, .. } => format!("disk:{}", path.display()).into(),
        })
}

/// Parses the task store.
///
/// # Errors
/// The store is unknown.
pub fn parse_store(text: &str) -> ValueResult<StoreConfig> {
    match text {
        "memory" => Ok(StoreConfig::Memory),
        _ => match text.strip_prefix("disk:") {
            Some("") => invalid(format!("`{text}` names no folder; write it as in `disk:./data`")),
            Some(path) => Ok(StoreConfig::Disk { path: path.into(), key: None, max_bytes: None }),
            None => invalid(format!(
                "there is no store `{text}` in this version; use memory (tasks end with the process) or disk:PATH"
            )),
        },
    }
}

fn read_disk(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> Option<StoreConfig> {
    let path = s
        .key("disk", "Folder for task records, which survive restarts. Created if missing. Only one process uses it at a time; another one exits with code 2.")
        .read_required(text());
    if path.is_unset() {
        s.add_problem(s.span, "`store` names no folder; add `disk`, as in `{ disk: ./data }`");
    }
    let key = s
        .key("key", "Key of the store, 32 bytes as 64 hex digits: its file, or `{ env: NAME }`. Principals in the folder are identified by digests made with the key; results are not encrypted. Without the key no stored task could be given to its owner, so a store that has tasks is refused at start. Default: the file `PATH.key` beside the folder, generated at the first start.")
        .read(store_key(context));
    let max_bytes = s
        .key("max_bytes", "Maximum size of the folder. Beyond it no further call becomes a task. Default: only the task results in it are limited (`limits.stored_bytes`).")
        .read(size(MIN_STORE_BYTES));
    let path = context.folder.join(path.ok()?);
    Some(StoreConfig::Disk { path, key: key.ok(), max_bytes: max_bytes.ok() })
}

fn store_key(context: LoadContext<'_>) -> ValueType<'_, StoreKeySource> {
    key_location().and_then(move |source, node, report| match source {
        SecretSource::File(file) => Some(StoreKeySource::File(context.folder.join(file))),
        source @ SecretSource::Env(_) => {
            report.accept(node.span, source.read_key(context)).map(StoreKeySource::Value)
        }
    })
}
