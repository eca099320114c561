//! Session ids bound to the principal that opened the session.
//!
//! A server's session id is a bearer secret: every client that knows it could use the session. If only the
//! proxy knows the principal, the server cannot check the caller. In this case the proxy appends a tag to the
//! id, a keyed digest of id and principal. No state is kept: the tag is checked against the principal of each
//! later request, also after a restart and by other processes with the same key.

use super::Principal;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderValue;
use ring::hmac;
use std::fmt;
use subtle::ConstantTimeEq;

/// Seals and opens session ids. One key seals; the older keys only open, so that keys can be rotated.
pub struct SessionSeal {
    sealing_key: hmac::Key,
    older_keys: Vec<hmac::Key>,
}

/// The length of the digest in a tag, in bytes: 128 bits.
const TAG_BYTES: usize = 16;
/// The length of a tag in characters, as base64url without padding.
const TAG_CHARS: usize = (TAG_BYTES * 4).div_ceil(3);
/// The separator between id and tag. Session ids are visible ASCII (2025-11-25, *Session Management*).
const SEPARATOR: u8 = b'.';

// === impl SessionSeal ===

impl SessionSeal {
    /// Creates a seal from secret random bytes: `sealing` seals, and `older` keys only open. The bytes may
    /// have other uses, too: the keys are derived from them (one step of HKDF, RFC 5869, 2.3).
    pub fn new(sealing: [u8; 32], older: impl IntoIterator<Item = [u8; 32]>) -> Self {
        let derive_key = |bytes: [u8; 32]| {
            let secret = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
            hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&secret, b"deferral sessions\x01").as_ref())
        };
        Self { sealing_key: derive_key(sealing), older_keys: older.into_iter().map(derive_key).collect() }
    }

    /// Returns the sealed id for the client, `ID.TAG`, which opens for this principal only.
    pub fn seal(&self, principal: Principal, id: &HeaderValue) -> HeaderValue {
        let mut text = Vec::with_capacity(id.len() + 1 + TAG_CHARS);
        text.extend_from_slice(id.as_bytes());
        text.push(SEPARATOR);
        text.extend_from_slice(&compute_tag(&self.sealing_key, principal, id.as_bytes()));
        HeaderValue::from_bytes(&text).expect("a header value with visible ASCII behind it is one")
    }

    /// Opens a client's sealed id. Returns the server's own id; `None` if the tag is missing, was altered, or
    /// belongs to another principal.
    pub fn open(&self, principal: Principal, sealed: &HeaderValue) -> Option<HeaderValue> {
        let bytes = sealed.as_bytes();
        let (id, rest) = bytes.split_at_checked(bytes.len().checked_sub(TAG_CHARS + 1)?)?;
        let (separator, presented_tag) = rest.split_first()?;
        let is_tag_of =
            |key: &hmac::Key| bool::from(compute_tag(key, principal, id)[..].ct_eq(presented_tag));
        let is_valid = *separator == SEPARATOR
            && (is_tag_of(&self.sealing_key) || self.older_keys.iter().any(is_tag_of));
        is_valid.then(|| HeaderValue::from_bytes(id).expect("a part of a header value is one"))
    }
}

impl fmt::Debug for SessionSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionSeal").finish_non_exhaustive()
    }
}

/// Computes the tag of a session id for a principal, as text.
fn compute_tag(key: &hmac::Key, principal: Principal, id: &[u8]) -> [u8; TAG_CHARS] {
    let mut context = hmac::Context::with_key(key);
    // The principal has a fixed length, so that no part of an id can be read as part of it.
    context.update(principal.as_bytes());
    context.update(id);
    let mut text = [0; TAG_CHARS];
    let written = URL_SAFE_NO_PAD.encode_slice(&context.sign().as_ref()[..TAG_BYTES], &mut text);
    assert_eq!(written, Ok(TAG_CHARS), "the length is that of the encoding");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: HeaderValue = HeaderValue::from_static("s-1.2");

    fn seal(keys: &[u8]) -> SessionSeal {
        SessionSeal::new([keys[0]; 32], keys[1..].iter().map(|&byte| [byte; 32]))
    }

    #[test]
    fn a_sealed_id_opens_for_its_principal_alone() {
        let (alice, bob) = (Principal::derive(&[b"alice"]), Principal::derive(&[b"bob"]));
        let seal = seal(&[1]);
        let sealed = seal.seal(alice, &ID);
        assert!(sealed.as_bytes().starts_with(b"s-1.2."), "{sealed:?}");
        assert!(sealed.to_str().is_ok(), "{sealed:?}");
        assert_eq!(seal.open(alice, &sealed), Some(ID));
        for other in [bob, Principal::ANONYMOUS] {
            assert_eq!(seal.open(other, &sealed), None);
        }
    }

    #[test]
    fn an_id_without_its_tag_or_with_another_is_not_opened() {
        let alice = Principal::derive(&[b"alice"]);
        let seal = seal(&[1]);
        let sealed = seal.seal(alice, &ID).to_str().expect("text").to_owned();
        let altered = |at: usize, with: &str| [&sealed[..at], with, &sealed[at + 1..]].concat();
        let shorter = sealed[..sealed.len() - 1].to_owned();
        let short = "x".repeat(TAG_CHARS);
        for shown in [
            "s-1.2",
            "",
            ".",
            &short,
            &shorter,
            &format!("{sealed}x"),
            &altered(0, "t"),
            &altered(5, "-"),
            &altered(sealed.len() - 3, "_"),
        ] {
            if shown != sealed {
                assert_eq!(
                    seal.open(alice, &HeaderValue::try_from(shown).expect("a value")),
                    None,
                    "{shown}"
                );
            }
        }
    }

    #[test]
    fn an_older_key_opens_and_the_first_seals() {
        let alice = Principal::derive(&[b"alice"]);
        let (before, after, another) = (seal(&[1]), seal(&[2, 1]), seal(&[2]));
        let (old, new) = (before.seal(alice, &ID), after.seal(alice, &ID));
        assert_eq!(after.open(alice, &old), Some(ID));
        assert_eq!(another.open(alice, &new), Some(ID));
        assert_eq!(another.open(alice, &old), None);
    }
}
