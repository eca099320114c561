//! Joins chunks of bytes.

use bytes::Bytes;

/// Joins chunks of bytes to one. A single chunk keeps its allocation; several are copied together.
#[derive(Debug, Default)]
pub(super) enum ByteJoiner {
    #[default]
    Empty,
    Single(Bytes),
    Copied(Vec<u8>),
}

// === impl ByteJoiner ===

impl ByteJoiner {
    /// Appends a chunk; an empty one changes nothing.
    pub(super) fn push(&mut self, piece: Bytes) {
        match self {
            _ if piece.is_empty() => {}
            Self::Empty => *self = Self::Single(piece),
            Self::Single(first) => *self = Self::Copied([&first[..], &piece].concat()),
            Self::Copied(joined) => joined.extend_from_slice(&piece),
        }
    }
}

impl From<ByteJoiner> for Bytes {
    fn from(joined: ByteJoiner) -> Self {
        match joined {
            ByteJoiner::Empty => Self::new(),
            ByteJoiner::Single(piece) => piece,
            ByteJoiner::Copied(joined) => joined.into(),
        }
    }
}
