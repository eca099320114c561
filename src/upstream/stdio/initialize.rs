//! The first words with a process.
//!
//! `initialize` comes first, and `server/discover` only where that is refused: the specification would have it the
//! other way round (2026-07-28, *stdio, Backward Compatibility*), but there are servers that die of a request before
//! `initialize`, and one that speaks 2026-07-28 alone says so in either order.

use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::time::timeout;

use super::{OutputReader, STATUS, child::ChildProcess};
use crate::{
    protocol::{Frame, Kind, RequestId, Revision, meta},
    runtime::Mutex,
    upstream::{
        CallError, UpstreamDescription,
        transport::{
            InitializeReply, InitializeRequest, SessionEvent, modern_only_error, modern_only_versions,
        },
    },
};

/// Whether a server has said that it speaks 2026-07-28 alone: then it is not started for nothing.
#[derive(Debug, Default)]
pub(super) struct ModernOnlyCache(Mutex<Option<(Instant, CallError)>>);

/// How long that is taken for granted. It may have been replaced by one that speaks more.
const REMEMBERED: Duration = Duration::from_secs(5 * 60);
/// How long a server that has refused `initialize` may take to say what it speaks.
const PATIENCE: Duration = Duration::from_secs(5);
/// The id of that question.
const PROBE: &str = r#""deferral/probe""#;

// === impl Verdict ===

impl ModernOnlyCache {
    /// # Errors
    /// [`CallError::ModernOnly`], where that is remembered.
    pub(super) fn check(&self, now: Instant) -> Result<(), CallError> {
        match &*self.0.lock() {
            Some((since, verdict)) if now.duration_since(*since) < REMEMBERED => Err(verdict.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// It did not come up, because of this.
    pub(super) fn remember(&self, now: Instant, error: &CallError) {
        if let CallError::ModernOnly(_) = error {
            *self.0.lock() = Some((now, error.clone()));
        }
    }
}

/// Sends `initialize`, again for each revision that is offered, and reads up to the answer. Messages before it concern
/// no handshake.
pub(super) async fn initialize(
    child: &ChildProcess,
    said: &mut OutputReader,
    hello: &mut InitializeRequest,
) -> Result<UpstreamDescription, CallError> {
    child.write(hello.body())?;
    loop {
        let Some(frame) = next_message(said).await else {
            let _ = timeout(STATUS, child.state().wait_ended()).await;
            let how = child.state().end_reason();
            let why = format!("its process did not answer `initialize`, and is not there any more: {how}");
            return Err(CallError::Unreachable(why));
        };
        match hello.read_reply(&frame) {
            Ok(InitializeReply::Description(description)) => return Ok(description),
            // A process that ends with its refusal is found gone above, and the next is offered this first.
            Ok(InitializeReply::Refused) => {
                let _ = child.write(hello.body());
            }
            Ok(InitializeReply::Other) => {}
            Err(refused @ CallError::ModernOnly(_)) => return Err(refused),
            Err(refused) => {
                let verdict = timeout(PATIENCE, probe(child, said)).await;
                return Err(verdict.ok().flatten().unwrap_or(refused));
            }
        }
    }
}

/// Asks a server that has refused `initialize` what it speaks; nothing where it is none of 2026-07-28.
async fn probe(child: &ChildProcess, said: &mut OutputReader) -> Option<CallError> {
    child.write(discover()).ok()?;
    loop {
        match next_message(said).await?.kind() {
            Kind::Success { id, result } if is_probe(id) => {
                return modern_only_versions(&result.get("supportedVersions")?);
            }
            Kind::Failure { error, .. } => return modern_only_error(error),
            Kind::Success { .. } | Kind::Request { .. } | Kind::Notification { .. } => {}
        }
    }
}

async fn next_message(said: &mut OutputReader) -> Option<Frame> {
    loop {
        if let SessionEvent::Message(frame) = said.next().await? {
            return Some(frame);
        }
    }
}

/// Whether a response answers the probe. Some servers write a slash as `\/`.
fn is_probe(id: &RequestId) -> bool {
    RequestId::from_token(Bytes::from_static(PROBE.as_bytes())).is_some_and(|probe| *id == probe)
}

/// 2026-07-28, *Discovery*.
fn discover() -> Bytes {
    format!(
        r#"{{"jsonrpc":"2.0","id":{PROBE},"method":"server/discover","params":{{"_meta":{{"{}":"{}","{}":{{"name":"deferral","version":"{}"}},"{}":{{}}}}}}}}"#,
        meta::PROTOCOL_VERSION,
        Revision::V2026_07_28,
        meta::CLIENT_INFO,
        env!("CARGO_PKG_VERSION"),
        meta::CLIENT_CAPABILITIES,
    )
    .into()
}
