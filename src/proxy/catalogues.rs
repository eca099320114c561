//! The tools of a server as each caller sees them, read once and kept until they change.

use super::recent::Recent;
use crate::{
    bridge::Catalogue,
    dialect::{Caller, Principal, modern},
    protocol::Method,
    runtime::Clock,
    upstream::{Changes, Event, Identity, Outgoing, Upstream},
};
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::StreamExt;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// At most so many callers' catalogues are kept: a few hundred bytes each for most servers.
/// Beyond it, those that were used least lately are forgotten, and read again.
const KEPT: usize = 4096;

/// A server that pages for ever is not followed for ever.
const MAX_PAGES: usize = 1000;

/// A list that could not be read is not asked for again for so long: a server that hangs on it would
/// else hold up every call.
const RETRY: Duration = Duration::from_secs(30);

/// The catalogues of one server.
pub(super) struct Catalogues {
    of: Recent<Key, Arc<Entry>>,
}

/// Who a caller is to the server: its principal, and the digest of what it shows.
type Key = (Principal, [u8; 16]);

#[derive(Default)]
struct Entry {
    /// Looked at by each call, side by side.
    last: ArcSwapOption<Reading>,
    /// Held while the catalogue is read, so that first calls at the same time read it once.
    is_read: Mutex<()>,
}

/// What came of reading a catalogue.
struct Reading {
    /// Or until when it is not read again.
    catalogue: Result<Arc<Catalogue>, Instant>,
    /// Since then.
    changes: Changes,
}

// === impl Catalogues ===

impl Default for Catalogues {
    fn default() -> Self {
        Self { of: Recent::new(KEPT) }
    }
}

impl Catalogues {
    /// Looks at what [`get`](Self::get) gives, where nothing has to be read for it. The others wait for this look
    /// if they want to write to the same part of the map: it is to be short.
    pub(super) fn known<T>(
        &self,
        caller: &Caller,
        clock: &dyn Clock,
        look: impl FnOnce(Option<&Catalogue>) -> T,
    ) -> Option<T> {
        self.of.with(&key(caller), |entry| entry.fresh(clock, |known| look(known.map(|known| &**known))))?
    }

    /// The catalogue as `caller` sees it, or nothing where the server does not list its tools.
    pub(super) async fn get(
        &self,
        upstream: &dyn Upstream,
        caller: &Caller,
        clock: &dyn Clock,
        next_id: impl Fn() -> u64,
    ) -> Option<Arc<Catalogue>> {
        let entry = self.of.get_or_insert_with(key(caller), Arc::default);
        if let Some(last) = entry.fresh(clock, |known| known.cloned()) {
            return last;
        }
        let _is_read = entry.is_read.lock().await;
        // Somebody else may just have read it.
        if let Some(last) = entry.fresh(clock, |known| known.cloned()) {
            return last;
        }
        // Watched from before it is read: a change in between is then seen at the next call.
        let changes = upstream.changes(caller.principal);
        let reading = match read(upstream, caller, next_id).await {
            Some(catalogue) => Reading { catalogue: Ok(Arc::new(catalogue)), changes },
            None => {
                // What came of the failure itself, a session given up, is no change.
                let changes = upstream.changes(caller.principal);
                Reading { catalogue: Err(clock.now() + RETRY), changes }
            }
        };
        let catalogue = reading.catalogue.as_ref().ok().map(Arc::clone);
        entry.last.store(Some(Arc::new(reading)));
        catalogue
    }
}

// === impl Entry ===

impl Entry {
    /// Looks at what came of the last reading, if it is not to be read again.
    fn fresh<T>(&self, clock: &dyn Clock, look: impl FnOnce(Option<&Arc<Catalogue>>) -> T) -> Option<T> {
        let last = self.last.load();
        let last = last.as_ref().filter(|last| !last.changes.are_there())?;
        match &last.catalogue {
            Ok(catalogue) => Some(look(Some(catalogue))),
            Err(until) => (clock.now() < *until).then(|| look(None)),
        }
    }
}

fn key(caller: &Caller) -> Key {
    (caller.principal, caller.credentials.digest())
}

async fn read(upstream: &dyn Upstream, caller: &Caller, next_id: impl Fn() -> u64) -> Option<Catalogue> {
    let mut catalogue = Catalogue::default();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let page = page(upstream, caller, next_id(), cursor.as_ref()).await?;
        cursor = match catalogue.add_page(&page) {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(%error, "the tools of the server are called without knowing them");
                return None;
            }
        };
        if cursor.is_none() {
            return Some(catalogue);
        }
    }
    tracing::warn!(pages = MAX_PAGES, "tools/list has no end; the tools on further pages are not known");
    Some(catalogue)
}

async fn page(upstream: &dyn Upstream, caller: &Caller, id: u64, cursor: Option<&Bytes>) -> Option<Bytes> {
    let params = match cursor {
        Some(cursor) => format!(r#"{{"cursor":{}}}"#, String::from_utf8_lossy(cursor)),
        None => "{}".to_owned(),
    };
    let call = Arc::new(modern::request(&Method::ToolsList, &params));
    let mut replies = upstream.call(Outgoing { id, call, caller: Identity::of(caller), deferral: None });
    loop {
        match replies.next().await? {
            Event::Final(response) => return response.result(&Method::ToolsList).ok(),
            Event::Lost(error) => {
                tracing::warn!(%error, "the tools of the server could not be listed");
                return None;
            }
            Event::Notification(_) | Event::Asked(_) | Event::Withdrawn { .. } => {}
            // Nobody is there to be asked for a list.
            Event::TurnOver(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_principals_costs_nobody_else_the_catalogue_that_is_in_use() {
        let principal = |n: usize| Principal::of(&[&n.to_be_bytes()]);
        let catalogues = Catalogues::default();
        let of = |n| catalogues.of.get_or_insert_with((principal(n), [0; 16]), Arc::default);
        let (busy, last) = (of(0), KEPT + 10);
        for n in 1..=last {
            of(n);
            assert!(Arc::ptr_eq(&of(0), &busy), "{n}");
        }
        assert!(catalogues.of.get(&(principal(1), [0; 16])).is_none(), "the oldest makes room");
        assert!(catalogues.of.get(&(principal(last / 2), [0; 16])).is_some());
    }
}
