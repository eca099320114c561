//! Headers that most requests do not have.

use http::HeaderMap;
use std::{
    fmt,
    ops::Deref,
    sync::{Arc, LazyLock},
};

/// Headers that are retained as long as a call waits, and shared by its owners. An empty map would take a
/// hundred bytes in each place.
#[derive(Clone, Default)]
pub struct ExtraHeaders(Option<Arc<HeaderMap>>);

static NONE: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

// === impl ExtraHeaders ===

impl ExtraHeaders {
    /// The map, for changes. Other owners keep the previous map.
    pub fn to_mut(&mut self) -> &mut HeaderMap {
        Arc::make_mut(self.0.get_or_insert_default())
    }

    /// Whether both share one map, or both are empty.
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
        self.0.as_deref().unwrap_or_else(|| &NONE)
    }
}

impl fmt::Debug for ExtraHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
