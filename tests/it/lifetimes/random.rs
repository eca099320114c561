//! Random choices from a seed.

/// Draws one number after the other.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One of so many (SplitMix64).
    pub(super) fn below(&mut self, many: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut drawn = self.0;
        drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let drawn = (drawn ^ (drawn >> 31)) >> 32;
        usize::try_from(drawn % u64::try_from(many).expect("few")).expect("few")
    }

    /// Once in so many times.
    pub(super) fn once_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}
