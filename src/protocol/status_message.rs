//! Words of a server that are kept, and shown with every poll.

/// The most that is kept of them, in bytes.
pub const LONGEST: usize = 4096;

/// The words, cut between characters where they are longer than [`LONGEST`].
pub fn shorten(mut words: String) -> String {
    if words.len() > LONGEST {
        let cut = (0..=LONGEST).rev().find(|&at| words.is_char_boundary(at)).unwrap_or(0);
        words.truncate(cut);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_are_cut_between_characters() {
        assert_eq!(shorten("short".to_owned()), "short");
        let words = shorten(format!("x{}", "é".repeat(4000)));
        assert_eq!(words.len(), LONGEST - 1);
        assert!(words.ends_with('é'));
    }
}
