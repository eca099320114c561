//! Seals a task's id into a ticket, so that tickets cannot be forged, and a ticket and a task id cannot be
//! used in place of each other.
//!
//! The seal is synthetic (as in RFC 5297): the tag is a keyed digest of the id, and the id is masked with a
//! keyed digest of the tag. So a task always has the same ticket, and the ticket is short, because a model
//! copies it letter by letter.
//!
//! ```text
//! tk_ | base64url( tag 16 | id 16, hidden )
//! ```

use super::request_state::SealKeyring;
use crate::task::TaskId;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac::{self, HMAC_SHA256};
use subtle::ConstantTimeEq;

/// The two keys that seal tickets, derived from one secret.
pub(super) struct TicketSeal {
    tag: hmac::Key,
    mask_byte: hmac::Key,
}

/// The beginning of every ticket.
const TICKET_PREFIX: &str = "tk_";

/// Whether a text begins like a ticket. The ticket may still be invalid.
pub fn is_ticket(text: &str) -> bool {
    text.starts_with(TICKET_PREFIX)
}

// === impl SealKeyring ===

impl SealKeyring {
    /// Returns the ticket of this task, always the same for one sealing key.
    pub fn seal_ticket(&self, task: &TaskId) -> String {
        format!(
            "{TICKET_PREFIX}{}",
            URL_SAFE_NO_PAD.encode(self.sealing_key.ticket_seal.seal(task.entropy()))
        )
    }

    /// Returns the task of a ticket; `None` if no key opens it, or the text is not a ticket.
    pub fn open_ticket(&self, ticket: &str) -> Option<TaskId> {
        let sealed = URL_SAFE_NO_PAD.decode(ticket.strip_prefix(TICKET_PREFIX)?).ok()?.try_into().ok()?;
        let keys = [&self.sealing_key].into_iter().chain(&self.older_keys);
        keys.into_iter().find_map(|key| key.ticket_seal.open(&sealed)).map(TaskId::from_entropy)
    }
}

// === impl TicketSeal ===

impl TicketSeal {
    /// Derives the two keys from a secret of 32 random bytes.
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let base_key = hmac::Key::new(HMAC_SHA256, key);
        let derive_key = |label: &[u8]| hmac::Key::new(HMAC_SHA256, hmac::sign(&base_key, label).as_ref());
        Self { tag: derive_key(b"deferral ticket tag"), mask_byte: derive_key(b"deferral ticket mask") }
    }

    fn seal(&self, id: [u8; 16]) -> [u8; 32] {
        let tag = truncated_digest(&self.tag, &id);
        let mut sealed = [0; 32];
        sealed[..16].copy_from_slice(&tag);
        sealed[16..].copy_from_slice(&self.apply_mask(&tag, id));
        sealed
    }

    fn open(&self, sealed: &[u8; 32]) -> Option<[u8; 16]> {
        let (tag, masked_id) = sealed.split_at(16);
        let id = self.apply_mask(tag, masked_id.try_into().ok()?);
        bool::from(truncated_digest(&self.tag, &id).ct_eq(tag)).then_some(id)
    }

    /// Masks an id with the digest of a tag. Applying the mask twice restores the id.
    fn apply_mask(&self, tag: &[u8], mut id: [u8; 16]) -> [u8; 16] {
        id.iter_mut().zip(truncated_digest(&self.mask_byte, tag)).for_each(|(byte, mask)| *byte ^= mask);
        id
    }
}

/// Returns the first 128 bits of the HMAC-SHA256 of `data`.
fn truncated_digest(key: &hmac::Key, data: &[u8]) -> [u8; 16] {
    *hmac::sign(key, data).as_ref().first_chunk().expect("a digest has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_opens_to_its_task_and_can_neither_be_forged_nor_altered() {
        let keyring = SealKeyring::new([1; 32], &[]);
        let task = TaskId::from_entropy([7; 16]);
        let ticket = keyring.seal_ticket(&task);
        assert_eq!(ticket.len(), 46);
        assert_eq!(keyring.seal_ticket(&task), ticket, "a task always has the same ticket");
        assert_eq!(keyring.open_ticket(&ticket), Some(task.clone()));
        for at in TICKET_PREFIX.len()..ticket.len() {
            let mut altered = ticket.clone().into_bytes();
            altered[at] = if altered[at] == b'A' { b'E' } else { b'A' };
            let altered = String::from_utf8(altered).expect("ASCII");
            assert_eq!(keyring.open_ticket(&altered), None, "{altered}");
        }
        for other in ["", "tk_", task.as_str(), &format!("{ticket}A"), &ticket[3..]] {
            assert_eq!(keyring.open_ticket(other), None, "{other}");
        }
        assert_eq!(SealKeyring::new([2; 32], &[]).open_ticket(&ticket), None);
        assert!(!ticket.contains(task.as_str()));
    }

    #[test]
    fn a_new_key_opens_the_tickets_of_the_old_one() {
        let task = TaskId::from_entropy([9; 16]);
        let ticket = SealKeyring::new([1; 32], &[]).seal_ticket(&task);
        assert_eq!(SealKeyring::new([2; 32], &[[1; 32]]).open_ticket(&ticket), Some(task));
    }
}
