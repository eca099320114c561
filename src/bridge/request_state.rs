//! `requestState`: connects a client's retry with its call, for this client only (2026-07-28, *Multi
//! Round-Trip Requests, Server Requirements*).
//!
//! The state is 102 bytes in 136 characters. It is sealed, so that it reveals nothing and cannot be forged or
//! altered. It is bound to the caller, the route and the request; it contains the round, so that no two
//! states are equal; and it expires. Only the one canonical spelling of a state is accepted: a decoder that
//! ignores trailing text or spare bits would accept an altered state.
//!
//! ```text
//! version 1 | key id 4 | nonce 12 | kind 1 | call 16 | node 8 | round 4 | expires 8 | binding 32 | tag 16
//! '------ authenticated -------'   '------------------- encrypted ---------------------------'
//! ```
//!
//! A seal cannot guarantee that a state is used only once: the registry of parked calls ensures that each
//! call gets the responses of a round once.

use super::ticket_seal::TicketSeal;
use crate::{
    dialect::Principal,
    protocol::{Method, Payload, Timestamp, canonical, splice::ObjectEdit},
    task::TaskId,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    digest::{Context, Digest, SHA256},
};
use std::fmt;

/// The contents of a `requestState`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestState {
    /// The call that the retry continues.
    pub target: RetryTarget,
    /// The random number that identifies the process that issued the state: only this process has the parked
    /// call.
    pub node: u64,
    /// The round of input requests to which the state belongs, counted from one.
    pub round: u32,
    /// The time from which on the state is refused as expired.
    pub expires: Timestamp,
    /// The digest of the request for which the state was issued.
    pub binding: RequestBinding,
}

/// The call that a retry belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryTarget {
    /// A parked call, by the id of the task that it may become.
    Parked(TaskId),
    /// A call that ended with `-32042` (URL elicitation required), to be sent again.
    Restart,
}

/// A digest of the caller, the route and the request: a state is valid only for the same request of the same
/// caller.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RequestBinding([u8; 32]);

/// The keys that seal and open states and tickets. One key seals; every key opens, so that keys can be
/// rotated while older states are in use. Replicas with the same keys open each other's states.
pub struct SealKeyring {
    /// The key that seals, and also opens.
    pub(super) sealing_key: SealKey,
    /// Further keys that only open.
    pub(super) older_keys: Vec<SealKey>,
}

/// One secret key, with its id and the keys derived from it.
pub(super) struct SealKey {
    id: [u8; 4],
    cipher: LessSafeKey,
    /// The keys for tickets, derived from the same secret.
    pub(super) ticket_seal: TicketSeal,
}

/// The reason why a `requestState` is refused; the client gets the error `-32602`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestStateError {
    /// The state is altered, forged, of another server, or sealed with a key that is no longer configured.
    #[error("`requestState` was not issued by this server")]
    Malformed,
    #[error("`requestState` belongs to another request or caller")]
    Foreign,
    #[error("`requestState` has expired")]
    Expired,
}

/// The version of the sealed format, the first byte of a state.
const FORMAT_VERSION: u8 = 1;
const KEY_ID_LEN: usize = 4;
/// The length of the part that is authenticated but not encrypted, in bytes.
const HEADER_LEN: usize = 1 + KEY_ID_LEN;
const PAYLOAD_LEN: usize = 1 + 16 + 8 + 4 + 8 + 32;
const TAG_LEN: usize = 16;
/// The length of a sealed state, in bytes.
const SEALED_LEN: usize = HEADER_LEN + NONCE_LEN + PAYLOAD_LEN + TAG_LEN;
/// The length of a sealed state as base64url text, in characters.
const TEXT_LEN: usize = (SEALED_LEN * 4).div_ceil(3);

/// The `kind` byte of [`RetryTarget::Parked`].
const KIND_PARKED: u8 = 0;
/// The `kind` byte of [`RetryTarget::Restart`].
const KIND_RESTART: u8 = 1;

/// Members of `params` that are not part of the binding: they differ between rounds, or describe one hop.
const UNBOUND_PARAMS: [&str; 4] = ["_meta", "inputResponses", "requestState", "task"];

// === impl SealKeyring ===

impl SealKeyring {
    /// Creates the keyring from secret random bytes: `sealing` seals, and `older` keys only open.
    pub fn new(sealing: [u8; 32], older: &[[u8; 32]]) -> Self {
        Self { sealing_key: SealKey::new(&sealing), older_keys: older.iter().map(SealKey::new).collect() }
    }

    /// Seals a state into the text that [`SealKeyring::open`] opens. `nonce` must be random and new each
    /// time: two states under one nonce would reveal both. Random 96 bits suffice for about four thousand
    /// million states under one key.
    pub fn seal(&self, state: &RequestState, nonce: [u8; NONCE_LEN]) -> String {
        let header = self.sealing_key.header();
        let mut sealed = Vec::with_capacity(PAYLOAD_LEN + TAG_LEN);
        state.write(&mut sealed);
        self.sealing_key
            .cipher
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(header), &mut sealed)
            .expect("a state is far shorter than the cipher allows");
        URL_SAFE_NO_PAD.encode([&header[..], &nonce, &sealed].concat())
    }

    /// Opens the state of a client's retry. The state must be unaltered, sealed with one of the keys, issued
    /// for this request of this caller, and not expired.
    ///
    /// # Errors
    /// [`RequestStateError`]; `Foreign` for a state that is both foreign and expired. `binding` is computed
    /// only for a state that opens, because it is a digest of the whole request: any client can send a forged
    /// state with megabytes of arguments.
    pub fn open(
        &self,
        text: &str,
        binding: impl FnOnce() -> RequestBinding,
        now: Timestamp,
    ) -> Result<RequestState, RequestStateError> {
        let state = self.unseal(text).ok_or(RequestStateError::Malformed)?;
        if state.binding != binding() {
            return Err(RequestStateError::Foreign);
        }
        if state.expires <= now {
            return Err(RequestStateError::Expired);
        }
        Ok(state)
    }

    /// Decrypts a state without checking its binding or expiry; `None` if no key opens it.
    fn unseal(&self, text: &str) -> Option<RequestState> {
        if text.len() != TEXT_LEN {
            return None;
        }
        // The decoder is strict: it accepts no padding, no other alphabet, and no spare bits.
        let sealed = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (header, rest) = sealed.split_first_chunk::<HEADER_LEN>()?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_LEN>()?;
        // Key ids may coincide, so every key with a matching id is tried.
        [&self.sealing_key]
            .into_iter()
            .chain(&self.older_keys)
            .filter(|key| key.header() == *header)
            .find_map(|key| {
                let mut payload = rest.to_vec();
                let nonce = Nonce::assume_unique_for_key(*nonce);
                RequestState::read(key.cipher.open_in_place(nonce, Aad::from(*header), &mut payload).ok()?)
            })
    }
}

impl fmt::Debug for SealKeyring {
    /// Prints only the number of keys: their bytes are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("keys", &(1 + self.older_keys.len())).finish()
    }
}

// === impl SealKey ===

impl SealKey {
    fn new(key: &[u8; 32]) -> Self {
        let cipher = UnboundKey::new(&AES_256_GCM, key).expect("the key has the cipher's length");
        // The key id is derived from the key, not from its position: replicas may list their keys in
        // different orders.
        let mut id = Context::new(&SHA256);
        id.update(b"deferral requestState key id\0");
        id.update(key);
        let id = *id.finish().as_ref().first_chunk().expect("a digest is longer than an id");
        Self { id, cipher: LessSafeKey::new(cipher), ticket_seal: TicketSeal::new(key) }
    }

    /// Returns the unencrypted header of states sealed with this key.
    fn header(&self) -> [u8; HEADER_LEN] {
        let mut header = [FORMAT_VERSION; HEADER_LEN];
        header[1..].copy_from_slice(&self.id);
        header
    }
}

// === impl RequestState ===

impl RequestState {
    fn write(&self, out: &mut Vec<u8>) {
        let (kind, call) = match &self.target {
            RetryTarget::Parked(call) => (KIND_PARKED, call.entropy()),
            RetryTarget::Restart => (KIND_RESTART, [0; 16]),
        };
        out.push(kind);
        out.extend_from_slice(&call);
        out.extend_from_slice(&self.node.to_be_bytes());
        out.extend_from_slice(&self.round.to_be_bytes());
        out.extend_from_slice(&self.expires.as_millis().to_be_bytes());
        out.extend_from_slice(&self.binding.0);
    }

    fn read(payload: &[u8]) -> Option<Self> {
        let (&[kind], rest) = payload.split_first_chunk()?;
        let (&call, rest) = rest.split_first_chunk()?;
        let (&node, rest) = rest.split_first_chunk()?;
        let (&round, rest) = rest.split_first_chunk()?;
        let (&expires, rest) = rest.split_first_chunk()?;
        let target = match kind {
            KIND_PARKED => RetryTarget::Parked(TaskId::from_entropy(call)),
            KIND_RESTART => RetryTarget::Restart,
            _ => return None,
        };
        Some(Self {
            target,
            node: u64::from_be_bytes(node),
            round: u32::from_be_bytes(round),
            expires: Timestamp::from_millis(u64::from_be_bytes(expires)),
            binding: RequestBinding(rest.try_into().ok()?),
        })
    }
}

// === impl RequestBinding ===

impl RequestBinding {
    /// Computes the binding of a request. The parameters are compared by value ([`canonical`]), without the
    /// members that differ between rounds: a client may serialize them anew for its retry. Absent parameters
    /// equal parameters without any bound member.
    pub fn for_request(
        principal: Principal,
        route: &str,
        method: &Method,
        target: Option<&str>,
        params: Option<&Payload>,
    ) -> Self {
        let mut digest = Context::new(&SHA256);
        let mut add_part = |part: &[u8]| {
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part);
        };
        add_part(b"deferral requestState binding");
        add_part(principal.as_bytes());
        add_part(route.as_bytes());
        add_part(method.as_str().as_bytes());
        add_part(if target.is_some() { b"about" } else { b"" });
        add_part(target.unwrap_or_default().as_bytes());
        add_part(&bound_params(params));
        Self::from_digest(&digest.finish())
    }

    fn from_digest(digest: &Digest) -> Self {
        Self(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Debug for RequestBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Binding(..)")
    }
}

/// Returns the canonical form of the bound parameters.
fn bound_params(params: Option<&Payload>) -> Vec<u8> {
    let Some(params) = params else { return canonical::canonicalize(b"{}") };
    let Some(object) = params.object() else { return canonical::canonicalize(params) };
    let mut edit = ObjectEdit::new(object);
    for key in UNBOUND_PARAMS {
        edit.remove(key);
    }
    canonical::canonicalize(&edit.apply())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const LATER: Timestamp = Timestamp::from_millis(1_300_000);
    const NONCE: [u8; NONCE_LEN] = [5; NONCE_LEN];

    fn binding(params: &str) -> RequestBinding {
        let params = Payload::read(Bytes::copy_from_slice(params.as_bytes()));
        RequestBinding::for_request(
            Principal::ANONYMOUS,
            "/mcp",
            &Method::ToolsCall,
            Some("t"),
            Some(&params),
        )
    }

    fn state() -> RequestState {
        let resumes = RetryTarget::Parked(TaskId::from_entropy([9; 16]));
        RequestState { target: resumes, node: 7, round: 1, expires: LATER, binding: binding("{}") }
    }

    fn keyring() -> SealKeyring {
        SealKeyring::new([1; 32], &[])
    }

    #[test]
    fn a_state_opens_as_it_was_sealed() {
        for resumes in [RetryTarget::Parked(TaskId::from_entropy([0xfe; 16])), RetryTarget::Restart] {
            for (round, node) in [(0, 0), (1, u64::MAX), (u32::MAX, 1)] {
                let state = RequestState { target: resumes.clone(), node, round, ..state() };
                let text = keyring().seal(&state, NONCE);
                assert_eq!(text.len(), 136);
                assert!(
                    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')),
                    "{text}"
                );
                assert_eq!(keyring().open(&text, || state.binding, NOW), Ok(state));
            }
        }
    }

    #[test]
    fn the_binding_is_not_computed_for_a_forged_state() {
        let altered = keyring().seal(&state(), NONCE).replace(|c: char| c.is_ascii_digit(), "_");
        let unasked = || unreachable!("the digest is not needed");
        assert_eq!(keyring().open(&altered, unasked, NOW), Err(RequestStateError::Malformed));
        assert_eq!(keyring().open("", unasked, NOW), Err(RequestStateError::Malformed));
    }

    #[test]
    fn a_foreign_state_is_reported_as_foreign_even_if_expired() {
        let text = keyring().seal(&state(), NONCE);
        let other = binding(r#"{"arguments":{}}"#);
        assert_eq!(keyring().open(&text, || other, NOW), Err(RequestStateError::Foreign));
        assert_eq!(keyring().open(&text, || other, LATER), Err(RequestStateError::Foreign));
    }

    #[test]
    fn a_state_is_refused_from_its_expiry_on() {
        let text = keyring().seal(&state(), NONCE);
        let just_before = Timestamp::from_millis(LATER.as_millis() - 1);
        assert_eq!(keyring().open(&text, || state().binding, just_before), Ok(state()));
        assert_eq!(keyring().open(&text, || state().binding, LATER), Err(RequestStateError::Expired));
    }

    #[test]
    fn a_new_key_seals_and_the_old_ones_still_open() {
        let old = keyring().seal(&state(), NONCE);
        let rotated = SealKeyring::new([2; 32], &[[3; 32], [1; 32]]);
        let new = rotated.seal(&state(), NONCE);
        for text in [&old, &new] {
            assert_eq!(rotated.open(text, || state().binding, NOW), Ok(state()));
        }
        assert_eq!(keyring().open(&new, || state().binding, NOW), Err(RequestStateError::Malformed));
        assert_eq!(
            SealKeyring::new([2; 32], &[]).open(&old, || state().binding, NOW),
            Err(RequestStateError::Malformed)
        );
    }

    #[test]
    fn two_states_under_different_nonces_or_rounds_differ() {
        let one = keyring().seal(&state(), NONCE);
        assert_ne!(one, keyring().seal(&state(), [6; NONCE_LEN]));
        assert_ne!(one, keyring().seal(&RequestState { round: 2, ..state() }, NONCE));
    }

    #[test]
    fn text_in_any_other_spelling_is_not_ours() {
        let text = keyring().seal(&state(), NONCE);
        let standard = text.replace('-', "+").replace('_', "/");
        assert_ne!(standard, text, "the example has a character that differs");
        for other in [
            format!("{text}-TAMPERED"),
            format!("{text}="),
            format!("{text}=="),
            format!("{text}\n"),
            format!(" {text}"),
            format!("{text}A"),
            text[..135].to_owned(),
            text[4..].to_owned(),
            standard,
            String::new(),
            "=".repeat(136),
            "\u{e9}".repeat(68),
        ] {
            assert_eq!(
                keyring().open(&other, || state().binding, NOW),
                Err(RequestStateError::Malformed),
                "{other}"
            );
        }
    }

    #[test]
    fn every_character_of_a_state_counts() {
        const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=. ";
        let text = keyring().seal(&state(), NONCE);
        for at in 0..text.len() {
            for &with in ALPHABET.iter().filter(|with| **with != text.as_bytes()[at]) {
                let mut altered = text.clone().into_bytes();
                altered[at] = with;
                let altered = String::from_utf8(altered).expect("ascii");
                assert_eq!(
                    keyring().open(&altered, || state().binding, NOW),
                    Err(RequestStateError::Malformed),
                    "{altered}"
                );
            }
        }
    }

    #[test]
    fn a_request_is_the_same_however_its_parameters_are_written() {
        let first = binding(r#"{"name":"t","arguments":{"n":1.0,"who":"é"},"_meta":{"progressToken":1}}"#);
        for again in [
            r#"{ "arguments" : { "who" : "\u00e9", "n" : 1 }, "name" : "t" }"#,
            r#"{"name":"t","arguments":{"n":1,"who":"é"},"requestState":"x","inputResponses":{"a":{}},"task":{},"_meta":null}"#,
        ] {
            assert_eq!(binding(again), first, "{again}");
        }
        for other in [
            r#"{"name":"t","arguments":{"n":1,"who":"e"}}"#,
            r#"{"name":"t","arguments":{"n":2,"who":"é"}}"#,
            r#"{"name":"t","arguments":{"n":1,"who":"é","_meta":{}}}"#,
            r#"{"name":"t","arguments":{"n":1,"who":"é"},"x":0}"#,
            r#"{"name":"t"}"#,
        ] {
            assert_ne!(binding(other), first, "{other}");
        }
    }

    #[test]
    fn no_parameters_are_the_same_as_none_that_count() {
        let of = |params: Option<&'static str>| {
            let params = params.map(|text| Payload::read(Bytes::from_static(text.as_bytes())));
            RequestBinding::for_request(
                Principal::ANONYMOUS,
                "/mcp",
                &Method::PromptsGet,
                Some("p"),
                params.as_ref(),
            )
        };
        assert_eq!(of(None), of(Some("{}")));
        assert_eq!(of(None), of(Some(r#"{"inputResponses":{}}"#)));
        assert_ne!(of(None), of(Some("[]")));
    }

    #[test]
    fn a_binding_depends_on_caller_route_and_request() {
        let someone = Principal::derive(&[b"someone"]);
        let bindings = [
            RequestBinding::for_request(Principal::ANONYMOUS, "/mcp", &Method::ToolsCall, Some("t"), None),
            RequestBinding::for_request(someone, "/mcp", &Method::ToolsCall, Some("t"), None),
            RequestBinding::for_request(someone, "/mc", &Method::ToolsCall, Some("pt"), None),
            RequestBinding::for_request(someone, "/mcp", &Method::PromptsGet, Some("t"), None),
            RequestBinding::for_request(someone, "/mcp", &Method::ToolsCall, Some("u"), None),
            RequestBinding::for_request(someone, "/mcp", &Method::ToolsCall, Some(""), None),
            RequestBinding::for_request(someone, "/mcp", &Method::ToolsCall, None, None),
        ];
        for (at, one) in bindings.iter().enumerate() {
            assert!(bindings[at + 1..].iter().all(|other| other != one), "{at}");
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let printed = format!("{:?} {:?}", keyring(), binding("{}"));
        assert_eq!(printed, "Keyring { keys: 1 } Binding(..)");
    }

    proptest! {
        #[test]
        fn any_state_opens_as_it_was_sealed(
            call in any::<[u8; 16]>(), round in any::<u32>(), expires in 1u64.., nonce in any::<[u8; 12]>(), key in any::<[u8; 32]>(),
        ) {
            let resumes = RetryTarget::Parked(TaskId::from_entropy(call));
            let state = RequestState { target: resumes, round, expires: Timestamp::from_millis(expires), ..state() };
            let ring = SealKeyring::new(key, &[]);
            let text = ring.seal(&state, nonce);
            prop_assert_eq!(ring.open(&text, || state.binding, Timestamp::from_millis(expires - 1)), Ok(state));
        }

        #[test]
        fn text_that_was_not_sealed_here_is_refused(text in "[A-Za-z0-9_-]{136}", any in ".{0,200}") {
            for text in [text, any] {
                prop_assert_eq!(keyring().open(&text, || state().binding, NOW), Err(RequestStateError::Malformed));
            }
        }
    }
}
