//! A limit on the calls of one caller in a minute.
//!
//! A caller may use its whole allowance at once; the allowance grows back evenly, one call each
//! `60 s / limit`. The state of a caller is the moment at which its allowance is complete again (the generic
//! cell rate algorithm).

use crate::{dialect::Principal, proxy::recent_map::RecentMap, runtime::Mutex};
use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

/// Callers whose allowance is stored: about 150 bytes each. Beyond this number the callers with the oldest
/// calls are evicted and start with a full allowance.
const MAX_CALLERS: usize = 16 << 10;

const MINUTE: Duration = Duration::from_secs(60);

/// A limit on the calls of each caller in a minute, with the allowances of all callers.
pub(super) struct RateLimit {
    /// The maximum number of calls of one caller in a minute.
    pub(super) per_minute: NonZeroU32,
    allowances: RecentMap<Principal, CallAllowance>,
}

/// The time at which the allowance of a caller is complete again; `None` before the caller's first call.
pub(super) type CallAllowance = Arc<Mutex<Option<Instant>>>;

// === impl RateLimit ===

impl RateLimit {
    /// Creates a limit of `per_minute` calls for each caller.
    pub(super) fn new(per_minute: NonZeroU32) -> Self {
        Self { per_minute, allowances: RecentMap::new(MAX_CALLERS) }
    }

    /// Returns the allowance of this caller, shared with concurrent calls; a new caller's allowance is
    /// complete.
    pub(super) fn allowance(&self, principal: Principal) -> CallAllowance {
        self.allowances.get_or_insert_with(principal, Arc::default)
    }

    /// Computes when an allowance that is complete at `full_at` is complete again after this number of
    /// further calls. `None` for `full_at` means a complete allowance.
    ///
    /// # Errors
    /// The time to wait until this number of calls is allowed.
    pub(super) fn check(
        &self,
        full_at: Option<Instant>,
        calls: u32,
        now: Instant,
    ) -> Result<Instant, Duration> {
        let full_again_at =
            full_at.map_or(now, |earlier| earlier.max(now)) + MINUTE * calls / self.per_minute.get();
        match (full_again_at - now).checked_sub(MINUTE) {
            None | Some(Duration::ZERO) => Ok(full_again_at),
            Some(wait) => Err(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Clock, SystemClock};

    #[test]
    fn the_allowance_refills_evenly_and_the_wait_is_exact() {
        let limit = RateLimit::new(NonZeroU32::new(3).expect("3"));
        let start = SystemClock::new().now();
        let mut whole_at = None;
        let mut call = |after: u64| {
            let now = start + Duration::from_secs(after);
            let checked = limit.check(whole_at, 1, now);
            if let Ok(at) = checked {
                whole_at = Some(at);
            }
            checked.map(|_| ()).map_err(|wait| wait.as_secs())
        };
        assert_eq!([call(0), call(0), call(0)], [Ok(()); 3]);
        assert_eq!([call(0), call(5), call(19)], [Err(20), Err(15), Err(1)], "a refused call takes nothing");
        assert_eq!([call(20), call(20), call(40)], [Ok(()), Err(20), Ok(())]);
        assert_eq!([call(1000), call(1000), call(1000), call(1000)], [Ok(()), Ok(()), Ok(()), Err(20)]);
    }

    #[test]
    fn callers_beyond_the_bound_are_evicted() {
        let limit = RateLimit::new(NonZeroU32::MIN);
        for n in 0..(MAX_CALLERS as u32 + 1000) {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            limit.allowance(Principal::from_bytes(bytes));
        }
        assert!(limit.allowances.len() <= MAX_CALLERS);
    }
}
