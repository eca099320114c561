//! Bytes that come in pieces.

use bytes::Bytes;

/// One piece alone stays in the memory that it came in; several are copied together.
#[derive(Debug, Default)]
pub(super) enum Joined {
    #[default]
    Nothing,
    One(Bytes),
    Several(Vec<u8>),
}

// === impl Joined ===

impl Joined {
    pub(super) fn push(&mut self, piece: Bytes) {
        match self {
            _ if piece.is_empty() => {}
            Self::Nothing => *self = Self::One(piece),
            Self::One(first) => *self = Self::Several([&first[..], &piece].concat()),
            Self::Several(joined) => joined.extend_from_slice(&piece),
        }
    }
}

impl From<Joined> for Bytes {
    fn from(joined: Joined) -> Self {
        match joined {
            Joined::Nothing => Self::new(),
            Joined::One(piece) => piece,
            Joined::Several(joined) => joined.into(),
        }
    }
}
