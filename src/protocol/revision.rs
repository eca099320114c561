//! Dated revisions of the protocol, and the era each belongs to.

use std::fmt;

/// A revision of the protocol that the proxy supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// HTTP+SSE with two endpoints.
    V2024_11_05,
    /// Streamable HTTP, JSON-RPC batches.
    V2025_03_26,
    /// Elicitation, the `MCP-Protocol-Version` header.
    V2025_06_18,
    /// Experimental tasks, URL elicitation.
    V2025_11_25,
    /// Stateless: every request carries its version and capabilities.
    V2026_07_28,
}

/// The era of a revision (2026-07-28, *Versioning*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// A session begun by an `initialize` handshake (2025-11-25 and earlier).
    Legacy,
    /// Version, identity and capabilities on each request (2026-07-28 and later).
    Modern,
}

// === impl Revision ===

impl Revision {
    /// All known revisions, the oldest first.
    pub const ALL: [Self; 5] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25, Self::V2026_07_28];

    /// The newest revision that a legacy `initialize` offers.
    pub const NEWEST_LEGACY: Self = Self::V2025_11_25;

    /// The date of the revision as messages and headers have it, such as `2025-11-25`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// Parses the date in messages and headers.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|revision| revision.as_str() == text)
    }

    /// Whether the revision has (experimental) tasks.
    pub fn has_tasks(self) -> bool {
        self == Self::V2025_11_25
    }

    /// Whether progress notifications may have a `message`.
    pub fn progress_has_message(self) -> bool {
        self > Self::V2024_11_05
    }

    /// Whether a stream may begin with an event that only sets an id (2025-11-25, *Listening for Messages
    /// from the Server*). Clients of older revisions parse the empty data as a message.
    pub fn has_empty_events(self) -> bool {
        self >= Self::V2025_11_25
    }

    /// Whether servers of this revision still work after a DELETE of a session: servers on the Python SDK
    /// before 2025-06-18 permanently fail all sessions of all clients after one.
    pub fn survives_delete(self) -> bool {
        self >= Self::V2025_06_18
    }

    /// The era that the revision belongs to.
    pub const fn era(self) -> Era {
        match self {
            Self::V2024_11_05 | Self::V2025_03_26 | Self::V2025_06_18 | Self::V2025_11_25 => Era::Legacy,
            Self::V2026_07_28 => Era::Modern,
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Era ===

impl Era {
    /// The name of the era, `legacy` or `modern`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_revision_reads_back() {
        for revision in Revision::ALL {
            assert_eq!(Revision::parse(revision.as_str()), Some(revision));
        }
        assert_eq!(Revision::parse("v999.0.0"), None);
    }
}
