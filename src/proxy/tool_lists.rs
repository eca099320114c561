//! The tool lists of a server, one for each caller, read once and cached until they change.
//!
//! A list is read in the background, once for all calls that need it. A call waits for the list at most
//! [`WAIT_LIMIT`]; without the list, the call's headers are not compared with its parameters.

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

/// Callers whose lists are cached: a few hundred bytes each for most servers. Beyond this number the least
/// recently used lists are evicted and read again.
const MAX_ENTRIES: usize = 4096;

/// Pages of `tools/list` that are read. Tools on later pages are unknown.
const MAX_PAGES: usize = 100;

/// How long reading all pages may take.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a call waits for a list, counted from the start of the read.
const WAIT_LIMIT: Duration = Duration::from_millis(250);

/// How long the proxy waits before it reads a list again that could not be read completely.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// The cached tool lists of one server, one for each caller.
pub(super) struct ToolListCache {
    entries: RecentMap<ToolListKey, Arc<CachedToolList>>,
}

/// A caller as the server sees it: its principal, and the digest of its credentials.
type ToolListKey = (Principal, [u8; 16]);

/// The parameters of a read.
pub(super) struct ToolListReader<'a> {
    /// The path of the route, for the log and the metrics.
    pub(super) route: &'a Arc<str>,
    pub(super) upstream: &'a Arc<dyn Upstream>,
    pub(super) clock: &'a Arc<dyn Clock>,
    /// Stops the read when signalled.
    pub(super) closing: &'a DrainWatch,
    /// The caller as whom the list is read.
    pub(super) caller: &'a Caller,
    /// Generates the ids of the `tools/list` requests.
    pub(super) next_id: fn() -> u64,
}

#[derive(Default)]
struct CachedToolList {
    /// The outcome of the last read; `None` before the first. All calls access it concurrently.
    last: ArcSwapOption<ToolListSnapshot>,
    /// The read in progress, shared by all calls: its start, and a token that is cancelled at the end of the
    /// read.
    refresh: Mutex<Option<(Instant, CancellationToken)>>,
}

/// The outcome of a read.
struct ToolListSnapshot {
    /// The tools' mirrored parameters, as far as the list could be read; `None` if no page could be read.
    param_headers: Option<Arc<ToolParamHeaders>>,
    /// When to read again; `None` if the read was complete.
    retry_at: Option<Instant>,
    /// Detects list changes since the read.
    changes: ToolChanges,
}

/// The pages of a list.
struct ToolListPages {
    /// The tools' mirrored parameters; `None` if no page could be read.
    param_headers: Option<ToolParamHeaders>,
    /// Whether reading again is useless: the end of the list was reached, or a bound that the next read would
    /// reach as well.
    is_final: bool,
}

// === impl ToolListCache ===

impl Default for ToolListCache {
    fn default() -> Self {
        Self { entries: RecentMap::new(MAX_ENTRIES) }
    }
}

impl ToolListCache {
    /// Passes the cached list to `inspect`, if [`get`](Self::get) would return without a read; `None` otherwise.
    /// Holds a lock of the map while `inspect` runs, so `inspect` must be short.
    pub(super) fn peek<T>(
        &self,
        caller: &Caller,
        clock: &dyn Clock,
        inspect: impl FnOnce(Option<&ToolParamHeaders>) -> T,
    ) -> Option<T> {
        self.entries.with_value(&cache_key(caller), |entry| {
            entry.with_fresh_list(clock, |param_headers| {
                inspect(param_headers.map(|param_headers| &**param_headers))
            })
        })?
    }

    /// The list as the caller sees it: from the cache, or read from the server. `None` if the list cannot be
    /// read within [`WAIT_LIMIT`].
    pub(super) async fn get(&self, reader: ToolListReader<'_>) -> Option<Arc<ToolParamHeaders>> {
        let entry = self.entries.get_or_insert_with(cache_key(reader.caller), Arc::default);
        if let Some(last) = entry.with_fresh_list(&**reader.clock, |param_headers| param_headers.cloned()) {
            return last;
        }
        let (since, done) = entry.refresh(&reader);
        let remaining = (since + WAIT_LIMIT).saturating_duration_since(reader.clock.now());
        if remaining.is_zero() {
            // Even a timer that is due at once would take up to a millisecond.
            return None;
        }
        timeout(remaining, done.cancelled()).await.ok()?;
        // The list is used even if it has changed during the read: the next call reads it again.
        entry.last.load().as_ref()?.param_headers.clone()
    }
}

// === impl CachedToolList ===

impl CachedToolList {
    /// Passes the last list to `inspect`, unless the list has changed or is due to be read again; `None` then.
    fn with_fresh_list<T>(
        &self,
        clock: &dyn Clock,
        inspect: impl FnOnce(Option<&Arc<ToolParamHeaders>>) -> T,
    ) -> Option<T> {
        let last = self.last.load();
        let last = last.as_ref().filter(|last| !last.changes.has_changed())?;
        let is_fresh = last.retry_at.is_none_or(|retry_at| clock.now() < retry_at);
        is_fresh.then(|| inspect(last.param_headers.as_ref()))
    }

    /// Reads the list in the background, unless a read is in progress. Returns the start of the read, and a
    /// token that is cancelled at its end.
    fn refresh(self: &Arc<Self>, reader: &ToolListReader<'_>) -> (Instant, CancellationToken) {
        let mut refresh = self.refresh.lock();
        if let Some((since, done)) = &*refresh {
            return (*since, done.clone());
        }
        let (since, done) = (reader.clock.now(), CancellationToken::new());
        *refresh = Some((since, done.clone()));
        drop(refresh);
        let guard = RefreshGuard { entry: Arc::clone(self), done: done.clone() };
        let (route, upstream) = (Arc::clone(reader.route), Arc::clone(reader.upstream));
        let (clock, caller, next_id) = (Arc::clone(reader.clock), reader.caller.clone(), reader.next_id);
        let closing = reader.closing.clone();
        reader.closing.spawn(async move {
            let reading = read_with_timeout(&route, &*upstream, &*clock, &caller, next_id);
            let reading = tokio::select! {
                reading = reading => reading,
                () = closing.stopped() => return,
            };
            guard.entry.last.store(Some(Arc::new(reading)));
            drop(guard);
        });
        (since, done)
    }
}

/// Marks the read as ended when dropped, whatever its outcome.
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

/// Reads the list within [`READ_TIMEOUT`]; keeps the pages that were read by then.
async fn read_with_timeout(
    route: &str,
    upstream: &dyn Upstream,
    clock: &dyn Clock,
    caller: &Caller,
    next_id: fn() -> u64,
) -> ToolListSnapshot {
    // Subscribed before the read, so that the next call sees a change that happened during the read.
    let changes = upstream.watch(caller.principal).tool_changes();
    let mut pages = ToolListPages { param_headers: None, is_final: false };
    if timeout(READ_TIMEOUT, pages.read(route, upstream, caller, next_id)).await.is_err() {
        tracing::warn!(route, after = ?READ_TIMEOUT, "tools/list took too long; the tools on further pages are not known");
    }
    let ToolListPages { param_headers, is_final } = pages;
    match is_final {
        true => ToolListSnapshot { param_headers: param_headers.map(Arc::new), retry_at: None, changes },
        false => {
            // The failure itself, such as a closed session, does not count as a change.
            let changes = upstream.watch(caller.principal).tool_changes();
            ToolListSnapshot {
                param_headers: param_headers.map(Arc::new),
                retry_at: Some(clock.now() + RETRY_DELAY),
                changes,
            }
        }
    }
}

/// The cache key of a caller.
fn cache_key(caller: &Caller) -> ToolListKey {
    (caller.principal, caller.credentials.digest())
}

// === impl ToolListPages ===

impl ToolListPages {
    /// Reads page after page. Dropping the future keeps the pages read so far.
    async fn read(&mut self, route: &str, upstream: &dyn Upstream, caller: &Caller, next_id: fn() -> u64) {
        // Cursors are stored as hashes, because a cursor may be as long as a message.
        let (hashes, mut cursors) = (RandomState::new(), HashSet::new());
        let mut cursor: Option<Bytes> = None;
        for _ in 0..MAX_PAGES {
            let Some(page) = request_page(upstream, caller, next_id(), cursor.as_ref()).await else { return };
            let param_headers = self.param_headers.get_or_insert_default();
            cursor = match param_headers.add_page(&page, |tool| metrics::mark_tool_listed(route, tool)) {
                Ok(next) => next.map(|next| Bytes::copy_from_slice(&next)),
                Err(error) => {
                    tracing::warn!(%error, "the server's tools/list is invalid; its tools are called without it");
                    return;
                }
            };
            match &cursor {
                // Some servers send an empty cursor at the end.
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

/// Requests one page of `tools/list`, at this raw cursor. Returns its raw result; `None` after a failure,
/// which is logged.
async fn request_page(
    upstream: &dyn Upstream,
    caller: &Caller,
    id: u64,
    cursor: Option<&Bytes>,
) -> Option<Bytes> {
    let params = match cursor {
        Some(cursor) => format!(r#"{{"cursor":{}}}"#, String::from_utf8_lossy(cursor)),
        None => "{}".to_owned(),
    };
    let call = Arc::new(modern::build_call(&Method::ToolsList, &params));
    let mut replies =
        upstream.call(OutgoingCall { id, call, caller: CallerIdentity::from_caller(caller), deferral: None });
    loop {
        match replies.next().await? {
            UpstreamEvent::Final(response) => return response.client_result(&Method::ToolsList).ok(),
            UpstreamEvent::Lost(error) => {
                tracing::warn!(%error, "the tools of the server could not be listed");
                return None;
            }
            UpstreamEvent::Notification(_)
            | UpstreamEvent::ServerRequest(_)
            | UpstreamEvent::RequestCancelled { .. } => {}
            // The proxy has no client to forward input requests of a list to.
            UpstreamEvent::InputRequired(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_principals_do_not_evict_a_tool_list_in_use() {
        let principal = |n: usize| Principal::derive(&[&n.to_be_bytes()]);
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
