//! What is kept of a task's call beside its record, so that the next process can go on with it.
//!
//! It is sealed with the secret that lies beside the store: the id of a session is as good as a key to it with
//! many servers.

use crate::{
    runtime::random,
    store::{KeyPurpose, StoreSecret},
    task::TaskId,
    upstream,
};
use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

/// What the next process needs to go on with a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskAnchor {
    pub call: upstream::CallAnchor,
    /// Its caller showed credentials, which are not kept: it must come again first.
    pub needs_credentials: bool,
    pub words: AnchorForm,
    /// What is asked in the task: the server's id, a raw token, and the key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<(String, String)>,
    /// The keys of what the server has taken back, which the record may not know yet: an answer to it is not missed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken_back: Vec<String>,
}

/// In which words the call is made, and what must be known for that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnchorForm {
    /// Those of 2026-07-28.
    Canonical {
        /// What its client declared, raw JSON.
        declared: String,
    },
    /// Its client's own.
    Native {
        /// The client's session, by its digest, where it has an id.
        session: Option<[u8; 16]>,
        /// Whether the client wants to hear of progress.
        wants_progress: bool,
    },
}

/// Seals anchors.
pub struct AnchorSeal(LessSafeKey);

// === impl AnchorSeal ===

impl AnchorSeal {
    pub fn new(secret: &StoreSecret) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &secret.key(KeyPurpose::Anchors));
        Self(LessSafeKey::new(key.expect("the key has the cipher's length")))
    }

    /// The bytes that [`AnchorSeal::open`] turns into the anchor again, for the same task.
    pub fn seal(&self, task: &TaskId, anchor: &TaskAnchor) -> Bytes {
        self.seal_bytes(task, serde_json::to_vec(anchor).expect("an anchor is JSON"))
    }

    /// The same of whatever another version wrote for one.
    pub fn seal_bytes(&self, task: &TaskId, mut sealed: Vec<u8>) -> Bytes {
        let nonce: [u8; NONCE_LEN] = random();
        self.0
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(task.as_str().as_bytes()),
                &mut sealed,
            )
            .expect("an anchor is far shorter than the cipher allows");
        [&nonce[..], &sealed].concat().into()
    }

    /// What was sealed for this task, if it was sealed here.
    pub fn open(&self, task: &TaskId, sealed: &[u8]) -> Option<TaskAnchor> {
        serde_json::from_slice(&self.open_bytes(task, sealed)?).ok()
    }

    /// Whether this was sealed here for this task, by whatever version.
    pub fn has_sealed(&self, task: &TaskId, sealed: &[u8]) -> bool {
        self.open_bytes(task, sealed).is_some()
    }

    fn open_bytes(&self, task: &TaskId, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut rest = rest.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = self.0.open_in_place(nonce, Aad::from(task.as_str().as_bytes()), &mut rest).ok()?.len();
        rest.truncate(plain);
        Some(rest)
    }
}
