//! Selection of the revision in `initialize` for a server that rejects the newest.
//!
//! A server should answer with a revision of its choice (2025-11-25, *Lifecycle*, Version Negotiation); many
//! reject an unknown one instead. Their error names the revisions that they support, in `data.supported` or
//! in its text, or only mentions the version. In each case another revision is offered, each at most once.

use std::time::{Duration, Instant};

use crate::{
    protocol::{Era, ErrorObject, Revision, code},
    runtime::Mutex,
};
use bytes::Bytes;
use http::StatusCode;

/// Time for which the revision that a server accepted is offered first. The server may be upgraded meanwhile.
const OFFER_LIFETIME: Duration = Duration::from_secs(60 * 60);

/// Revisions offered in one handshake, in order.
#[derive(Clone, Debug)]
pub(super) struct RevisionOffers {
    current: Revision,
    refused: Vec<Revision>,
}

/// Revision that the server accepted in the last handshake with a fallback; empty if it accepts the newest.
#[derive(Debug, Default)]
pub(super) struct RememberedOffer(Mutex<Option<(Revision, Instant)>>);

// === impl RevisionOffers ===

impl RevisionOffers {
    /// Offers whose first revision is `first`.
    pub(super) fn starting_with(first: Revision) -> Self {
        Self { current: first, refused: Vec::new() }
    }

    /// Revision offered now.
    pub(super) fn current(&self) -> Revision {
        self.current
    }

    /// Whether a revision was rejected and another offered.
    pub(super) fn has_fallen_back(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Selects the next revision if this JSON-RPC error rejects the current one. Returns `false` if the error
    /// does not reject it, or if no revision is left.
    pub(super) fn offer_next_after_error(&mut self, error: &Bytes) -> bool {
        let code = ErrorObject::from_raw(error.clone()).code();
        let is_about_version = matches!(code, code::INVALID_PARAMS | code::UNSUPPORTED_VERSION);
        self.offer_next(error, is_about_version)
    }

    /// Selects the next revision if this HTTP error and its body reject the current one, as
    /// [`RevisionOffers::offer_next_after_error`].
    pub(super) fn offer_next_after_status(&mut self, status: StatusCode, body: &Bytes) -> bool {
        let is_of_request = status.is_client_error()
            && !matches!(status.as_u16(), 401 | 403 | 404 | 405 | 408 | 429)
            || matches!(status.as_u16(), 500 | 501 | 505);
        is_of_request && self.offer_next(body, false)
    }

    /// Selects the newest revision that the rejection names and that was not rejected; if it names none, the
    /// next older one.
    fn offer_next(&mut self, refusal: &[u8], is_about_version: bool) -> bool {
        let named = revisions_in(refusal);
        let is_named = |revision: &Revision| named.contains(revision) && *revision != self.current;
        let is_any_named = Revision::ALL.iter().any(is_named);
        if !(is_any_named || is_about_version || has_version_word(refusal)) {
            return false;
        }
        self.refused.push(self.current);
        let is_untried =
            |revision: &Revision| revision.era() == Era::Legacy && !self.refused.contains(revision);
        let mut untried = Revision::ALL.into_iter().rev().filter(is_untried);
        let next = match is_any_named {
            true => untried.find(is_named),
            false => {
                let refused = self.current;
                untried.clone().find(|revision| *revision < refused).or_else(|| untried.next())
            }
        };
        match next {
            Some(next) => {
                self.current = next;
                true
            }
            None => false,
        }
    }
}

/// Returns the revisions whose dates occur in a text.
fn revisions_in(text: &[u8]) -> Vec<Revision> {
    let occurs = |revision: &Revision| memchr::memmem::find(text, revision.as_str().as_bytes()).is_some();
    Revision::ALL.into_iter().filter(occurs).collect()
}

/// Whether a rejection mentions a version.
fn has_version_word(text: &[u8]) -> bool {
    text.to_ascii_lowercase().windows(b"version".len()).any(|window| window == b"version")
}

// === impl RememberedOffer ===

impl RememberedOffer {
    /// Returns the revision to offer first in a handshake.
    pub(super) fn first_offer(&self, now: Instant) -> Revision {
        match *self.0.lock() {
            Some((revision, since)) if now.saturating_duration_since(since) < OFFER_LIFETIME => revision,
            Some(_) | None => Revision::NEWEST_LEGACY,
        }
    }

    /// Stores the revision that a handshake ended with, if the handshake fell back to it. A revision that was
    /// offered first and accepted does not extend its time.
    pub(super) fn remember(&self, offers: &RevisionOffers, now: Instant) {
        if offers.has_fallen_back() {
            *self.0.lock() = Some((offers.current(), now));
        }
    }

    /// Forgets the stored revision, because the server or the network path to it may have changed.
    pub(super) fn clear(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWEST: Revision = Revision::NEWEST_LEGACY;

    fn offered_after(errors: &[&'static str]) -> Vec<Option<&'static str>> {
        let mut offers = RevisionOffers::starting_with(NEWEST);
        let next = |error: &&'static str| {
            let changed = offers.offer_next_after_error(&Bytes::from_static(error.as_bytes()));
            changed.then(|| offers.current().as_str())
        };
        errors.iter().map(next).collect()
    }

    #[test]
    fn the_newest_revision_that_a_refusal_lists_is_offered_next() {
        let listed = r#"{"code":-32602,"message":"Unsupported protocol version","data":{"supported":["2024-11-05","2025-03-26"],"requested":"2025-11-25"}}"#;
        assert_eq!(offered_after(&[listed, listed, listed]), [Some("2025-03-26"), Some("2024-11-05"), None]);
        let in_words = r#"{"code":-32000,"message":"2025-11-25 is unknown here; 2025-06-18 is not"}"#;
        assert_eq!(offered_after(&[in_words]), [Some("2025-06-18")]);
        let both_eras = r#"{"code":-32022,"message":"no","data":{"supported":["2026-07-28","2025-06-18"]}}"#;
        assert_eq!(offered_after(&[both_eras]), [Some("2025-06-18")]);
    }

    #[test]
    fn the_next_older_revision_is_offered_where_a_refusal_lists_none() {
        let words = r#"{"code":-32600,"message":"Unsupported Version: 2025-11-25"}"#;
        let bare = r#"{"code":-32602,"message":"Invalid params"}"#;
        let other = ["2025-06-18", "2025-03-26", "2024-11-05"].map(Some);
        assert_eq!(offered_after(&[words, bare, bare, bare]), [&other[..], &[None]].concat());
    }

    #[test]
    fn a_refusal_for_another_reason_ends_the_handshake() {
        for error in [
            r#"{"code":-32000,"message":"not today"}"#,
            r#"{"code":-32601,"message":"method not found"}"#,
            r#"{"code":-32022,"message":"no","data":{"supported":["2026-07-28"]}}"#,
        ] {
            assert_eq!(offered_after(&[error]), [None], "{error}");
        }
        for (status, changes) in
            [(400, true), (422, true), (500, true), (401, false), (404, false), (503, false)]
        {
            let mut offers = RevisionOffers::starting_with(NEWEST);
            let body = Bytes::from_static(b"protocol version not supported");
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(offers.offer_next_after_status(status, &body), changes, "{status}");
            assert!(!offers.offer_next_after_status(StatusCode::BAD_REQUEST, &Bytes::new()));
        }
    }

    #[test]
    fn a_server_that_speaks_newer_revisions_again_is_offered_them() {
        let mut offers = RevisionOffers::starting_with(Revision::V2025_03_26);
        let listed = Bytes::from_static(br#"{"code":-32602,"message":"speak 2025-06-18"}"#);
        assert!(offers.offer_next_after_error(&listed));
        assert_eq!(offers.current(), Revision::V2025_06_18);
        let mut offers = RevisionOffers::starting_with(Revision::V2024_11_05);
        let bare = Bytes::from_static(br#"{"code":-32602,"message":""}"#);
        assert!(offers.offer_next_after_error(&bare), "there is none older");
        assert_eq!(offers.current(), NEWEST);
    }

    #[test]
    fn a_remembered_offer_is_forgotten_after_a_while_and_on_request() {
        let remembered = RememberedOffer::default();
        let now = crate::runtime::Clock::now(&crate::runtime::SystemClock::new());
        let mut offers = RevisionOffers::starting_with(NEWEST);
        remembered.remember(&offers, now);
        assert_eq!(remembered.first_offer(now), NEWEST);
        assert!(offers.offer_next_after_error(&Bytes::from_static(br#"{"code":-32602,"message":""}"#)));
        remembered.remember(&offers, now);
        assert_eq!(remembered.first_offer(now), Revision::V2025_06_18);
        // A handshake that starts with the stored revision does not extend its time.
        remembered.remember(&RevisionOffers::starting_with(Revision::V2025_06_18), now + OFFER_LIFETIME / 2);
        assert_eq!(remembered.first_offer(now + OFFER_LIFETIME), NEWEST);
        remembered.remember(&offers, now);
        remembered.clear();
        assert_eq!(remembered.first_offer(now), NEWEST);
    }
}
