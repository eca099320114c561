//! The only place that draws random numbers.

use ring::rand::{SecureRandom, SystemRandom};

/// `N` bytes from the system's source of randomness.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the system's source of randomness works");
    bytes
}
