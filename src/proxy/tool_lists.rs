//! The tools of a server as each caller sees them, read once and kept until they change.
//!
//! They are read beside the calls that ask for them, once for all. A call waits for that a moment at most
//! ([`WAIT_LIMIT`]): the parameters of a tool that is not known are not compared with headers.

use super::recent_map::RecentMap;
use crate::{
    bridge::ToolParamHeaders,
    dialect::{Caller, Principal, modern},
    protocol::Method,
    runtime::{Clock, DrainWatch, Mutex},
    telemetry::metrics,
    upstream::{CallerIdentity, OutgoingCall, ToolChanges, Upstream, UpstreamEvent},
};
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::StreamExt;
use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Callers whose catalogues are kept: a few hundred bytes each for most servers. Beyond it, those that were used
/// least lately are forgotten, and read again.
const MAX_ENTRIES: usize = 4096;

/// Pages of `tools/list` that are read. The tools on further ones are not known.
const MAX_PAGES: usize = 100;

/// How long all pages may take.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a call waits for a catalogue that is being read, counted from the beginning of that.
const WAIT_LIMIT: Duration = Duration::from_millis(250);

/// How long a list that could not be read to its end is not asked for again.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// The catalogues of one server.
pub(super) struct ToolListCache {
    entries: RecentMap<ToolListKey, Arc<CachedToolList>>,
}

/// Who a caller is to the server: its principal, and the digest of what it shows.
type ToolListKey = (Principal, [u8; 16]);

/// Who reads a catalogue, and for whom.
pub(super) struct ToolListReader<'a> {
    pub(super) route: &'a Arc<str>,
    pub(super) upstream: &'a Arc<dyn Upstream>,
    pub(super) clock: &'a Arc<dyn Clock>,
    /// Ends the reading.
    pub(super) closing: &'a DrainWatch,
    pub(super) caller: &'a Caller,
    /// Gives ids to requests.
    pub(super) next_id: fn() -> u64,
}

#[derive(Default)]
struct CachedToolList {
    /// Looked at by each call, side by side.
    last: ArcSwapOption<ToolListSnapshot>,
    /// The reading under way, which all calls share: since when, and what is cancelled with its end.
    refresh: Mutex<Option<(Instant, CancellationToken)>>,
}

/// The outcome of reading a catalogue.
struct ToolListSnapshot {
    /// What was read, as far as that went.
    catalogue: Option<Arc<ToolParamHeaders>>,
    /// When it is read again, where it was not read to its end.
    retry_at: Option<Instant>,
    /// Since then.
    changes: ToolChanges,
}

/// What was read of a list.
struct ToolListPages {
    /// None where nothing was.
    catalogue: Option<ToolParamHeaders>,
    /// Whether the end of the list was reached, or a bound that the list will meet again.
    is_final: bool,
}

// === impl Catalogues ===

impl Default for ToolListCache {
    fn default() -> Self {
        Self { entries: RecentMap::new(MAX_ENTRIES) }
    }
}

impl ToolListCache {
    /// Looks at what [`get`](Self::get) gives, where nothing has to be read for it. Others that write to the same part
    /// of the map wait for this look: it is to be short.
    pub(super) fn peek<T>(
        &self,
        caller: &Caller,
        clock: &dyn Clock,
        look: impl FnOnce(Option<&ToolParamHeaders>) -> T,
    ) -> Option<T> {
        self.entries
            .with(&key(caller), |entry| entry.fresh(clock, |known| look(known.map(|known| &**known))))?
    }

    /// The catalogue as the caller sees it; none where it cannot be read, or not within [`WAIT_LIMIT`].
    pub(super) async fn get(&self, reader: ToolListReader<'_>) -> Option<Arc<ToolParamHeaders>> {
        let entry = self.entries.get_or_insert_with(key(reader.caller), Arc::default);
        if let Some(last) = entry.fresh(&**reader.clock, |known| known.cloned()) {
            return last;
        }
        let (since, done) = entry.refresh(&reader);
        let left = (since + WAIT_LIMIT).saturating_duration_since(reader.clock.now());
        if left.is_zero() {
            // A timer would take up to a millisecond.
            return None;
        }
        timeout(left, done.cancelled()).await.ok()?;
        // Even where it has changed since: it was read after this call had come.
        entry.last.load().as_ref()?.catalogue.clone()
    }
}

// === impl Entry ===

impl CachedToolList {
    /// Looks at what was read last, if it is not to be read again.
    fn fresh<T>(
        &self,
        clock: &dyn Clock,
        look: impl FnOnce(Option<&Arc<ToolParamHeaders>>) -> T,
    ) -> Option<T> {
        let last = self.last.load();
        let last = last.as_ref().filter(|last| !last.changes.has_changed())?;
        let is_fresh = last.retry_at.is_none_or(|again| clock.now() < again);
        is_fresh.then(|| look(last.catalogue.as_ref()))
    }

    /// Reads the catalogue in the background, unless that is under way. Gives since when it is, and its end.
    fn refresh(self: &Arc<Self>, reader: &ToolListReader<'_>) -> (Instant, CancellationToken) {
        let mut refresh = self.refresh.lock();
        if let Some((since, done)) = &*refresh {
            return (*since, done.clone());
        }
        let (since, done) = (reader.clock.now(), CancellationToken::new());
        *refresh = Some((since, done.clone()));
        drop(refresh);
        let ended = RefreshGuard { entry: Arc::clone(self), done: done.clone() };
        let (route, upstream) = (Arc::clone(reader.route), Arc::clone(reader.upstream));
        let (clock, caller, next_id) = (Arc::clone(reader.clock), reader.caller.clone(), reader.next_id);
        let closing = reader.closing.clone();
        reader.closing.spawn(async move {
            let reading = read_within(&route, &*upstream, &*clock, &caller, next_id);
            let reading = tokio::select! {
                reading = reading => reading,
                () = closing.stopped() => return,
            };
            ended.entry.last.store(Some(Arc::new(reading)));
            drop(ended);
        });
        (since, done)
    }
}

/// Marks a reading as ended when it is dropped, however it ended.
struct RefreshGuard {
    entry: Arc<CachedToolList>,
    done: CancellationToken,
}

impl Drop for RefreshGuard {
    fn drop(&mut self) {
        *self.entry.refresh.lock() = None;
        self.done.cancel();
    }
}

async fn read_within(
    route: &str,
    upstream: &dyn Upstream,
    clock: &dyn Clock,
    caller: &Caller,
    next_id: fn() -> u64,
) -> ToolListSnapshot {
    // Watched from before it is read: a change in between is then seen at the next call.
    let changes = upstream.tool_changes(caller.principal);
    let mut pages = ToolListPages { catalogue: None, is_final: false };
    if timeout(READ_TIMEOUT, pages.read(route, upstream, caller, next_id)).await.is_err() {
        tracing::warn!(route, after = ?READ_TIMEOUT, "tools/list took too long; the tools on further pages are not known");
    }
    let ToolListPages { catalogue, is_final } = pages;
    match is_final {
        true => ToolListSnapshot { catalogue: catalogue.map(Arc::new), retry_at: None, changes },
        false => {
            // The failure itself, as of a session given up, is no change.
            let changes = upstream.tool_changes(caller.principal);
            ToolListSnapshot {
                catalogue: catalogue.map(Arc::new),
                retry_at: Some(clock.now() + RETRY_DELAY),
                changes,
            }
        }
    }
}

fn key(caller: &Caller) -> ToolListKey {
    (caller.principal, caller.credentials.digest())
}

// === impl Pages ===

impl ToolListPages {
    /// Reads page after page. Dropping it in between keeps what was read.
    async fn read(&mut self, route: &str, upstream: &dyn Upstream, caller: &Caller, next_id: fn() -> u64) {
        // By their hashes: a cursor may be as long as a message.
        let (hashes, mut cursors) = (RandomState::new(), HashSet::new());
        let mut cursor: Option<Bytes> = None;
        for _ in 0..MAX_PAGES {
            let Some(page) = page(upstream, caller, next_id(), cursor.as_ref()).await else { return };
            let catalogue = self.catalogue.get_or_insert_default();
            cursor = match catalogue.add_page(&page, |tool| metrics::mark_tool_listed(route, tool)) {
                Ok(next) => next.map(|next| Bytes::copy_from_slice(&next)),
                Err(error) => {
                    tracing::warn!(%error, "the tools of the server are called without knowing them");
                    return;
                }
            };
            match &cursor {
                // Servers write an empty one at the end.
                None => return self.is_final = true,
                Some(next) if next == "\"\"" || next == "null" => return self.is_final = true,
                Some(next) if !cursors.insert(hashes.hash_one(next)) => {
                    tracing::warn!(
                        route,
                        "the pages of tools/list repeat; the rest of the tools is not known"
                    );
                    return self.is_final = true;
                }
                Some(_) => {}
            }
        }
        tracing::warn!(
            route,
            pages = MAX_PAGES,
            "tools/list has no end; the tools on further pages are not known"
        );
        self.is_final = true;
    }
}

async fn page(upstream: &dyn Upstream, caller: &Caller, id: u64, cursor: Option<&Bytes>) -> Option<Bytes> {
    let params = match cursor {
        Some(cursor) => format!(r#"{{"cursor":{}}}"#, String::from_utf8_lossy(cursor)),
        None => "{}".to_owned(),
    };
    let call = Arc::new(modern::request(&Method::ToolsList, &params));
    let mut replies =
        upstream.call(OutgoingCall { id, call, caller: CallerIdentity::of(caller), deferral: None });
    loop {
        match replies.next().await? {
            UpstreamEvent::Final(response) => return response.result(&Method::ToolsList).ok(),
            UpstreamEvent::Lost(error) => {
                tracing::warn!(%error, "the tools of the server could not be listed");
                return None;
            }
            UpstreamEvent::Notification(_)
            | UpstreamEvent::ServerRequest(_)
            | UpstreamEvent::RequestCancelled { .. } => {}
            // Nobody is there to be asked for a list.
            UpstreamEvent::InputRequired(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_principals_costs_nobody_else_the_catalogue_that_is_in_use() {
        let principal = |n: usize| Principal::of(&[&n.to_be_bytes()]);
        let catalogues = ToolListCache::default();
        let of = |n| catalogues.entries.get_or_insert_with((principal(n), [0; 16]), Arc::default);
        let (busy, last) = (of(0), MAX_ENTRIES + 10);
        for n in 1..=last {
            of(n);
            assert!(Arc::ptr_eq(&of(0), &busy), "{n}");
        }
        assert!(catalogues.entries.get(&(principal(1), [0; 16])).is_none(), "the oldest makes room");
        assert!(catalogues.entries.get(&(principal(last / 2), [0; 16])).is_some());
    }
}
