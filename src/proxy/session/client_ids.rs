//! Request ids of clients that could collide with the proxy's request ids.
//!
//! Requests that the proxy sends in a client's session have ids from 2^30 on ([`own_ids`]). Clients rarely
//! use that range; ids that a client has used are skipped.

use super::{SessionKey, bounded_map::BoundedMap};
use crate::{protocol::RequestId, runtime::Mutex, upstream::own_ids};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The ids in the proxy's range that a route's clients have used in requests and as progress tokens.
#[derive(Debug, Default)]
pub(in crate::proxy) struct ClientIds {
    /// Whether any id was recorded: lets most requests skip the lock.
    has_used_ids: AtomicBool,
    /// Locked for one insertion or look-up.
    used_ids: Mutex<BoundedMap<(SessionKey, u64), (), MAX_IDS>>,
}

/// Ids that are remembered for all sessions of a route. Each costs about 60 bytes. The probability that a
/// request of the proxy gets an evicted id is one in a thousand million.
const MAX_IDS: usize = 16 << 10;

// === impl ClientIds ===

impl ClientIds {
    /// Records an id that a client has used in this session. Cheap for an id outside the proxy's range, as
    /// most are.
    pub(in crate::proxy) fn mark_used(&self, session: SessionKey, id: &RequestId) {
        if let Some(number) = id.as_number().filter(|&number| own_ids::is_client_session_id(number)) {
            self.used_ids.lock().insert((session, number), ());
            self.has_used_ids.store(true, Relaxed);
        }
    }

    /// Returns a fresh id for a request of the proxy in a client's session, which the client has not used
    /// there.
    pub(in crate::proxy) fn next_proxy_id(&self, session: Option<SessionKey>) -> u64 {
        loop {
            let number = own_ids::next_in_client_session();
            if !session.is_some_and(|session| self.has_used(session, number)) {
                return number;
            }
        }
    }

    fn has_used(&self, session: SessionKey, number: u64) -> bool {
        self.has_used_ids.load(Relaxed) && self.used_ids.lock().contains(&(session, number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Principal;
    use http::HeaderValue;

    #[test]
    fn an_id_used_by_the_client_is_skipped_in_its_session_only() {
        let key = |name| SessionKey::from_id(Principal::ANONYMOUS, &HeaderValue::from_static(name));
        let ids = ClientIds::default();
        let first = ids.next_proxy_id(Some(key("a")));
        // Other tests may take some ids meanwhile.
        for number in first..first + 1000 {
            ids.mark_used(key("a"), &RequestId::from_token(format!("{number}.0").into()).expect("an id"));
        }
        assert!(ids.next_proxy_id(Some(key("b"))) < first + 1000);
        assert!(ids.next_proxy_id(Some(key("a"))) >= first + 1000);
    }

    #[test]
    fn remembered_ids_are_bounded_and_in_range() {
        let key = SessionKey::from_id(Principal::ANONYMOUS, &HeaderValue::from_static("a"));
        let ids = ClientIds::default();
        for id in ["1", "\"1073741824\"", "1073741824.5", "2147483648", "-1073741824"] {
            ids.mark_used(key, &RequestId::from_token(id.into()).expect("an id"));
        }
        assert!(!ids.has_used_ids.load(Relaxed));
        for number in 0..2 * MAX_IDS as u64 {
            ids.mark_used(key, &RequestId::from_number((1 << 30) + number));
        }
        assert_eq!(ids.used_ids.lock().sizes(), (MAX_IDS, MAX_IDS));
    }
}
