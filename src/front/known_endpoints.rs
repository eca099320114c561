//! Endpoints of authorization servers that their metadata documents have named, by origin.

use crate::runtime::Mutex;
use dashmap::DashMap;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// The known endpoints of authorization servers, by origin (`scheme://host:port`).
#[derive(Default)]
pub(super) struct KnownEndpoints(DashMap<String, Arc<OriginEndpoints>>);

/// The known endpoints of one origin.
#[derive(Default)]
pub(super) struct OriginEndpoints {
    /// When each path was last named.
    named_at: Mutex<HashMap<String, Instant>>,
    /// When the documents were last fetched to find an endpoint. Locked during a fetch, so that concurrent
    /// requests fetch once.
    pub(super) last_lookup: tokio::sync::Mutex<Option<Instant>>,
}

/// How long an endpoint is forwarded after a document has named it.
const ENDPOINT_TTL: Duration = Duration::from_secs(60 * 60);

// === impl KnownEndpoints ===

impl KnownEndpoints {
    /// Returns the endpoints of an origin (`scheme://host:port`), which is added if it is new.
    pub(super) fn for_origin(&self, origin: &str) -> Arc<OriginEndpoints> {
        Arc::clone(&self.0.entry(origin.to_owned()).or_default())
    }
}

// === impl OriginEndpoints ===

impl OriginEndpoints {
    /// Whether a document has named this path within the last [`ENDPOINT_TTL`].
    pub(super) fn contains(&self, path: &str, now: Instant) -> bool {
        self.named_at
            .lock()
            .get(path)
            .is_some_and(|named_at| now.saturating_duration_since(*named_at) < ENDPOINT_TTL)
    }

    /// Adds the paths that a document names at `now`, and removes expired ones.
    pub(super) fn insert<'a>(&self, paths: impl Iterator<Item = &'a str>, now: Instant) {
        let mut named_at = self.named_at.lock();
        named_at.retain(|_, at| now.saturating_duration_since(*at) < ENDPOINT_TTL);
        named_at.extend(paths.map(|path| (path.to_owned(), now)));
    }
}
