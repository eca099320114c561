//! The system's limit on file descriptors, and its division among connections.
//!
//! Each connection uses one descriptor. Without a free one no client can connect and no server can be
//! reached, so the users of descriptors are bounded below the limit: connections of clients, connections to
//! servers, and a reserve for the admin listener and the process itself.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit on open file descriptors of this process (`RLIMIT_NOFILE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The current soft limit.
    pub limit: usize,
    /// The soft limit before [`DescriptorLimit::raise`] raised it; `None` if it was not raised.
    pub raised_from: Option<usize>,
}

/// The division of the file descriptors among connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShares {
    /// Connections of clients (`limits.connections`).
    pub clients: usize,
    /// Connections to servers (`limits.upstream_connections`).
    pub servers: usize,
    /// The two limits together exceed the descriptors.
    pub is_overcommitted: bool,
}

/// Number of descriptors for neither clients nor servers: listening sockets, the admin listener's
/// connections, the log, name lookups, and control messages when all permits are taken
/// ([`ConnectionLimiter`](super::ConnectionLimiter)).
const RESERVE: usize = 64;
/// macOS reports no hard limit, and refuses a soft limit above this number (`setrlimit(2)`).
const OPEN_MAX: u64 = 10_240;

// === impl DescriptorLimit ===

impl DescriptorLimit {
    /// Raises the soft limit as far as the system allows, and returns the resulting limit.
    pub fn raise() -> Self {
        let former = getrlimit(Resource::Nofile);
        let raised = limits_to_try(&former)
            .any(|current| setrlimit(Resource::Nofile, Rlimit { current, ..former }).is_ok());
        let limit = limit_to_count(getrlimit(Resource::Nofile).current);
        Self { limit, raised_from: raised.then(|| limit_to_count(former.current)) }
    }

    /// Divides the descriptors among connections of clients (first of each pair) and to servers (second). A
    /// `configured` limit is used as it is; without one, the limit is at most its default (`defaults`), and
    /// small enough for the descriptors.
    pub fn divide(
        self,
        configured: (Option<usize>, Option<usize>),
        defaults: (usize, usize),
    ) -> DescriptorShares {
        let free = self.limit - RESERVE.min(self.limit / 4);
        let clients = configured.0.unwrap_or_else(|| defaults.0.min(free / 3).max(1));
        // Servers get a third of the descriptors even if the clients' limit is too large: without connections
        // to servers no call could be made.
        let servers = || defaults.1.min(free.saturating_sub(clients).max(free / 3)).max(1);
        let servers = configured.1.unwrap_or_else(servers);
        DescriptorShares { clients, servers, is_overcommitted: clients.saturating_add(servers) > free }
    }
}

/// The soft limits to try, in this order; each is above the current one. `None` is no limit.
fn limits_to_try(former: &Rlimit) -> impl Iterator<Item = Option<u64>> {
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let (current, maximum) = (number(former.current), number(former.maximum));
    let is_above = move |limit: &Option<u64>| current < number(*limit) && number(*limit) <= maximum;
    [former.maximum, Some(OPEN_MAX)].into_iter().filter(is_above)
}

/// Converts a limit to a count; `None` (no limit) becomes more than any use.
fn limit_to_count(limit: Option<u64>) -> usize {
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(limit: usize, written: (Option<usize>, Option<usize>)) -> (usize, usize, bool) {
        let DescriptorShares { clients, servers, is_overcommitted: overcommitted } =
            DescriptorLimit { limit, raised_from: None }.divide(written, (10_000, 20_000));
        (clients, servers, overcommitted)
    }

    #[test]
    fn default_shares_follow_from_the_limit() {
        assert_eq!(shares(256, (None, None)), (64, 128, false));
        assert_eq!(shares(1024, (None, None)), (320, 640, false));
        assert_eq!(shares(1 << 20, (None, None)), (10_000, 20_000, false));
        assert_eq!(shares(limit_to_count(None), (None, None)), (10_000, 20_000, false));
        assert_eq!(shares(8, (None, None)), (2, 4, false));
    }

    #[test]
    fn the_hard_limit_is_tried_first_and_then_that_of_macos() {
        let tried = |current, maximum| limits_to_try(&Rlimit { current, maximum }).collect::<Vec<_>>();
        assert_eq!(tried(Some(256), None), [None, Some(OPEN_MAX)]);
        assert_eq!(tried(Some(1024), Some(1 << 20)), [Some(1 << 20), Some(OPEN_MAX)]);
        assert_eq!(tried(Some(1024), Some(4096)), [Some(4096)]);
        assert_eq!(tried(Some(20_000), None), [None]);
        assert_eq!(tried(Some(512), Some(512)), []);
        assert_eq!(tried(None, None), []);
    }

    #[test]
    fn configured_shares_hold_and_overcommitment_is_reported() {
        assert_eq!(shares(1024, (Some(100), None)), (100, 860, false));
        assert_eq!(shares(1024, (None, Some(10))), (320, 10, false));
        assert_eq!(shares(1024, (Some(900), Some(900))), (900, 900, true));
        assert_eq!(shares(1024, (Some(5000), None)), (5000, 320, true));
    }
}
