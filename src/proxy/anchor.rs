//! The anchor of a task's call: stored beside the task record, so that the next process can resume the call.
//!
//! The anchor is sealed with the secret beside the store: many servers treat the id of a session as a
//! credential.

use crate::{
    runtime::random,
    store::{KeyPurpose, StoreSecret},
    task::TaskId,
    upstream,
};
use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

/// The data that the next process needs to resume a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskAnchor {
    pub call: upstream::CallAnchor,
    /// The caller sent credentials, which are not stored: the call waits for its next request.
    pub needs_credentials: bool,
    pub words: AnchorForm,
    /// Open input requests of the task: the server's id as a raw token, and the key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<(String, String)>,
    /// Keys of input requests that the server has cancelled and the record may still hold: a response to one
    /// of them is dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken_back: Vec<String>,
}

/// The form of the call, and what the form requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnchorForm {
    /// The form of 2026-07-28.
    Canonical {
        /// The client's declared capabilities, raw JSON.
        declared: String,
    },
    /// The client's own messages.
    Native {
        /// The digest of the client's session, if it has an id.
        session: Option<[u8; 16]>,
        /// Whether the client requested progress notifications.
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

    /// Seals the anchor; [`AnchorSeal::open`] restores it for the same task.
    pub fn seal(&self, task: &TaskId, anchor: &TaskAnchor) -> Bytes {
        self.seal_bytes(task, serde_json::to_vec(anchor).expect("an anchor is JSON"))
    }

    /// Seals the bytes of an anchor that another version wrote.
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

    /// The anchor of this task, if it was sealed with this secret.
    pub fn open(&self, task: &TaskId, sealed: &[u8]) -> Option<TaskAnchor> {
        serde_json::from_slice(&self.open_bytes(task, sealed)?).ok()
    }

    /// Whether the value was sealed for this task with this secret, by any version.
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
