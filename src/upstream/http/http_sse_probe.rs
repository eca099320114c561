//! Probe for HTTP+SSE, the transport of 2024-11-05, for an error that names it.
//!
//! Such a server answers a GET with an event stream whose first event is `endpoint`, which is also how
//! clients of later revisions detect it (2025-11-25, *Transports*, Backwards Compatibility).

use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{HeaderMap, Method};
use http_body_util::BodyDataStream;
use std::{pin::pin, time::Duration};
use tokio::time::timeout;

use super::{messages::is_events, server::StreamableHttp, session::without_content};
use crate::{
    protocol::sse::EventDecoder,
    upstream::http1::{self, ConnectionReuse, SendOptions, TrafficClass},
};

/// Time limit for the first event; the call that opens the session waits as well.
const FIRST_EVENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Size limit of the first event, in bytes.
const MAX_EVENT_BYTES: usize = 4 << 10;

/// Whether a GET at the server's URL starts an event stream of HTTP+SSE. `post_headers` are the headers of
/// POSTs of the same caller.
pub(super) async fn is_http_sse(server: &StreamableHttp, post_headers: &HeaderMap) -> bool {
    timeout(FIRST_EVENT_TIMEOUT, begins_with_endpoint(server, post_headers)).await == Ok(Some(true))
}

async fn begins_with_endpoint(server: &StreamableHttp, post_headers: &HeaderMap) -> Option<bool> {
    let mut extra_lines = server.configured_lines();
    extra_lines.extend_from_slice(b"accept: text/event-stream\r\n");
    let lines = http1::header_lines(&without_content(post_headers));
    let lines: [&[u8]; 2] = [&lines, &extra_lines];
    let (path, body) = (&server.path, Bytes::new());
    let options = SendOptions { reuse: ConnectionReuse::Any, traffic: TrafficClass::Call, cookies: None };
    let pending = server.client.send(&Method::GET, path, lines, body, options);
    let response = pending.await.ok()?;
    if !response.status().is_success() || !is_events(response.headers()) {
        return None;
    }
    let mut decoder = EventDecoder::new(MAX_EVENT_BYTES);
    let mut chunks = pin!(BodyDataStream::new(response.into_body()));
    while let Some(chunk) = chunks.try_next().await.ok()? {
        decoder.feed(chunk);
        if let Some(event) = decoder.next_event().ok()? {
            return Some(event.event.as_deref() == Some("endpoint"));
        }
    }
    None
}
