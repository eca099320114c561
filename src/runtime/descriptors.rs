//! How many descriptors the system allows this process, and how they are shared out.
//!
//! Each connection is one. Where there are none left nobody can come in, and no server can be reached,
//! so what would use them up is bounded before that: connections of clients, connections to servers,
//! and a reserve that neither may touch, for the operator's address and the process itself.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the system allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    pub limit: usize,
    /// What it allowed before that was raised, where it was.
    pub before: Option<usize>,
}

/// What of it is for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShares {
    /// Connections of clients (`limits.connections`).
    pub clients: usize,
    /// Connections to servers (`limits.upstream_connections`).
    pub servers: usize,
    /// What was written is more than there is.
    pub overcommitted: bool,
}

/// Neither for clients nor for servers: sockets that listen, the operator's connections, the log, names
/// that are looked up, and what is said in passing when all else is taken ([`ConnectionLimiter`](super::ConnectionLimiter)).
const RESERVE: usize = 64;
/// As many as macOS gives whoever asks for more than it has: there the hard limit says that there is none, and is
/// refused as a soft one (`setrlimit(2)`, which names this number).
const OPEN_MAX: u64 = 10_240;

// === impl Descriptors ===

impl DescriptorLimit {
    /// Asks the system for as many as it gives, and says how many that are.
    pub fn raise() -> Self {
        let allowed = getrlimit(Resource::Nofile);
        let raised = limits_to_try(&allowed)
            .any(|current| setrlimit(Resource::Nofile, Rlimit { current, ..allowed }).is_ok());
        let limit = count(getrlimit(Resource::Nofile).current);
        Self { limit, before: raised.then(|| count(allowed.current)) }
    }

    /// What is for whom, clients first, then servers: what the operator has `written`; else the `most`
    /// there need be, or what there is.
    pub fn share(self, written: (Option<usize>, Option<usize>), most: (usize, usize)) -> DescriptorShares {
        let free = self.limit - RESERVE.min(self.limit / 4);
        let clients = written.0.unwrap_or_else(|| most.0.min(free / 3).max(1));
        // Also where clients were given too many: without any no call could be made.
        let servers = || most.1.min(free.saturating_sub(clients).max(free / 3)).max(1);
        let servers = written.1.unwrap_or_else(servers);
        DescriptorShares { clients, servers, overcommitted: clients.saturating_add(servers) > free }
    }
}

/// What is asked for, until it is given: each more than there is. `Missing` is without a limit.
fn limits_to_try(allowed: &Rlimit) -> impl Iterator<Item = Option<u64>> {
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let (current, maximum) = (number(allowed.current), number(allowed.maximum));
    let is_more = move |limit: &Option<u64>| current < number(*limit) && number(*limit) <= maximum;
    [allowed.maximum, Some(OPEN_MAX)].into_iter().filter(is_more)
}

/// No limit is more than anybody needs.
fn count(limit: Option<u64>) -> usize {
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(limit: usize, written: (Option<usize>, Option<usize>)) -> (usize, usize, bool) {
        let DescriptorShares { clients, servers, overcommitted } =
            DescriptorLimit { limit, before: None }.share(written, (10_000, 20_000));
        (clients, servers, overcommitted)
    }

    #[test]
    fn what_is_not_written_follows_from_what_there_is() {
        assert_eq!(shares(256, (None, None)), (64, 128, false));
        assert_eq!(shares(1024, (None, None)), (320, 640, false));
        assert_eq!(shares(1 << 20, (None, None)), (10_000, 20_000, false));
        assert_eq!(shares(count(None), (None, None)), (10_000, 20_000, false));
        assert_eq!(shares(8, (None, None)), (2, 4, false));
    }

    #[test]
    fn all_there_is_is_asked_for_and_where_that_is_refused_what_macos_gives() {
        let asked = |current, maximum| limits_to_try(&Rlimit { current, maximum }).collect::<Vec<_>>();
        assert_eq!(asked(Some(256), None), [None, Some(OPEN_MAX)]);
        assert_eq!(asked(Some(1024), Some(1 << 20)), [Some(1 << 20), Some(OPEN_MAX)]);
        assert_eq!(asked(Some(1024), Some(4096)), [Some(4096)]);
        assert_eq!(asked(Some(20_000), None), [None]);
        assert_eq!(asked(Some(512), Some(512)), []);
        assert_eq!(asked(None, None), []);
    }

    #[test]
    fn what_is_written_holds_and_what_is_too_much_is_said() {
        assert_eq!(shares(1024, (Some(100), None)), (100, 860, false));
        assert_eq!(shares(1024, (None, Some(10))), (320, 10, false));
        assert_eq!(shares(1024, (Some(900), Some(900))), (900, 900, true));
        assert_eq!(shares(1024, (Some(5000), None)), (5000, 320, true));
    }
}
