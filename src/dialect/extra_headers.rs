//! A compact map for headers that most requests do not have.

use http::HeaderMap;
use std::{
    fmt,
    ops::Deref,
    sync::{Arc, LazyLock},
};

/// Headers that are kept as long as a call waits, shared by its owners. Without headers nothing is allocated:
/// an empty `HeaderMap` would take a hundred bytes for each owner.
#[derive(Clone, Default)]
pub struct ExtraHeaders(Option<Arc<HeaderMap>>);

static EMPTY: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

// === impl ExtraHeaders ===

impl ExtraHeaders {
    /// Returns the map for changes, copied first if it has other owners, which keep the previous map.
    pub fn to_mut(&mut self) -> &mut HeaderMap {
        Arc::make_mut(self.0.get_or_insert_default())
    }

    /// Whether both share one map, or both are empty. Equal but separate maps are not the same.
    pub fn is_same_map(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl From<HeaderMap> for ExtraHeaders {
    fn from(headers: HeaderMap) -> Self {
        Self((!headers.is_empty()).then(|| Arc::new(headers)))
    }
}

impl Deref for ExtraHeaders {
    type Target = HeaderMap;

    fn deref(&self) -> &HeaderMap {
        self.0.as_deref().unwrap_or_else(|| &EMPTY)
    }
}

impl fmt::Debug for ExtraHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
