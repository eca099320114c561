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
    /// The upstream session, request and event from which the call is resumed.
    pub call: upstream::CallAnchor,
    /// Whether the caller sent credentials. Credentials are not stored, so the call is resumed only with the
    /// caller's next request.
    pub needs_credentials: bool,
    /// The form of the call's messages.
    pub words: AnchorForm,
    /// Open input requests of the task, and responses that the server may not have received: the server's
    /// request id as a raw JSON token, and the key in the task record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<(String, String)>,
    /// Keys of input requests that the server has cancelled and the record may still hold. Responses to these
    /// requests are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken_back: Vec<String>,
}

/// The form of a call's messages, with the data that resuming the call in this form requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnchorForm {
    /// Messages in the form of 2026-07-28, translated for the server or the client.
    Canonical {
        /// The client's declared capabilities, raw JSON.
        declared: String,
    },
    /// Messages of the client's own legacy revision, relayed unchanged.
    Native {
        /// The digest of the client's session, if it has an id.
        session: Option<[u8; 16]>,
        /// Whether the client requested progress notifications.
        wants_progress: bool,
    },
}

/// Encrypts and decrypts anchors with a key derived from the store's secret (AES-256-GCM).
pub struct AnchorSeal(LessSafeKey);

// === impl AnchorSeal ===

impl AnchorSeal {
    /// Derives the key for anchors from the store's secret.
    pub fn new(secret: &StoreSecret) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &secret.derive_key(KeyPurpose::Anchors));
        Self(LessSafeKey::new(key.expect("the key has the cipher's length")))
    }

    /// Encrypts the anchor, bound to this task; [`AnchorSeal::open`] restores it for the same task.
    pub fn seal(&self, task: &TaskId, anchor: &TaskAnchor) -> Bytes {
        self.seal_bytes(task, serde_json::to_vec(anchor).expect("an anchor is JSON"))
    }

    /// Encrypts a serialized anchor, whose format may be that of another version of the proxy.
    pub fn seal_bytes(&self, task: &TaskId, mut buffer: Vec<u8>) -> Bytes {
        let nonce: [u8; NONCE_LEN] = random();
        self.0
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(task.as_str().as_bytes()),
                &mut buffer,
            )
            .expect("an anchor is far shorter than the cipher allows");
        [&nonce[..], &buffer].concat().into()
    }

    /// Decrypts and parses the anchor of this task. `None` if the bytes were sealed for another task or with
    /// another secret, or do not contain an anchor.
    pub fn open(&self, task: &TaskId, sealed: &[u8]) -> Option<TaskAnchor> {
        serde_json::from_slice(&self.open_bytes(task, sealed)?).ok()
    }

    /// Whether the bytes were sealed for this task with this secret, by any version of the proxy.
    pub fn can_open(&self, task: &TaskId, sealed: &[u8]) -> bool {
        self.open_bytes(task, sealed).is_some()
    }

    fn open_bytes(&self, task: &TaskId, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, ciphertext) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut buffer = ciphertext.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plaintext_len =
            self.0.open_in_place(nonce, Aad::from(task.as_str().as_bytes()), &mut buffer).ok()?.len();
        buffer.truncate(plaintext_len);
        Some(buffer)
    }
}
