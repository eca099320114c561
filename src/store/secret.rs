//! The secret of a store, which is kept beside the store, never in it.

use ring::hmac;

/// The secret of a store, which lasts as long as the store. Without the secret, a copy of the store neither
/// reveals the owners of its tasks nor allows forging state that the proxy gave its clients.
#[derive(Clone)]
pub struct StoreSecret(hmac::Key);

/// The purpose of a derived key. Each purpose has a key of its own.
#[derive(Clone, Copy, Debug)]
pub enum KeyPurpose {
    /// The key by which principals are derived from credentials.
    Principals,
    /// The key that seals `requestState`.
    States,
    /// The key that seals anchors.
    Anchors,
    /// A check value by which a store recognises its secret. The value is not secret: the store contains it.
    Check,
}

// === impl StoreSecret ===

impl StoreSecret {
    /// Creates the secret from random bytes.
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Derives the key for one purpose (one step of HKDF, RFC 5869, 2.3: the secret is uniform already).
    pub fn derive_key(&self, purpose: KeyPurpose) -> [u8; 32] {
        let label = match purpose {
            KeyPurpose::Principals => "deferral principals",
            KeyPurpose::States => "deferral requestState",
            KeyPurpose::Anchors => "deferral anchors",
            KeyPurpose::Check => "deferral key check",
        };
        let block = hmac::sign(&self.0, &[label.as_bytes(), &[1]].concat());
        block.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_has_a_key_of_its_own_which_is_the_same_every_time() {
        let keys = |bytes| {
            let secret = StoreSecret::new(&[bytes; 32]);
            [KeyPurpose::Principals, KeyPurpose::States, KeyPurpose::Anchors, KeyPurpose::Check]
                .map(|of| secret.derive_key(of))
        };
        let all = [keys(1), keys(2)].concat();
        assert_eq!(keys(1), keys(1));
        for (at, key) in all.iter().enumerate() {
            assert!(!all[..at].contains(key) && *key != [1; 32], "{at}");
        }
    }
}
