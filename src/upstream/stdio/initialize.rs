//! Handshake with a process.
//!
//! `initialize` is sent first, and `server/discover` only after its rejection: the specification has the
//! opposite order (2026-07-28, *stdio, Backward Compatibility*), but some servers exit on any request before
//! `initialize`, and a server that supports only 2026-07-28 says so in either order.

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

/// Remembers that a server supports only 2026-07-28, so that it is not started in vain.
#[derive(Debug, Default)]
pub(super) struct ModernOnlyCache(Mutex<Option<(Instant, CallError)>>);

/// Time for which that is remembered. The server may have been replaced meanwhile.
const REMEMBERED: Duration = Duration::from_secs(5 * 60);
/// Time limit of the probe after a rejected `initialize`.
const PATIENCE: Duration = Duration::from_secs(5);
/// Id of the probe.
const PROBE: &str = r#""deferral/probe""#;

// === impl ModernOnlyCache ===

impl ModernOnlyCache {
    /// # Errors
    /// [`CallError::ModernOnly`], if that is remembered.
    pub(super) fn check(&self, now: Instant) -> Result<(), CallError> {
        match &*self.0.lock() {
            Some((since, verdict)) if now.duration_since(*since) < REMEMBERED => Err(verdict.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// Stores the error of a failed start, if it is [`CallError::ModernOnly`].
    pub(super) fn remember(&self, now: Instant, error: &CallError) {
        if let CallError::ModernOnly(_) = error {
            *self.0.lock() = Some((now, error.clone()));
        }
    }
}

/// Sends `initialize`, again for each offered revision, and reads up to the response. Messages before it do
/// not concern the handshake.
pub(super) async fn initialize(
    child: &ChildProcess,
    output: &mut OutputReader,
    request: &mut InitializeRequest,
) -> Result<UpstreamDescription, CallError> {
    child.write(request.body())?;
    loop {
        let Some(frame) = next_message(output).await else {
            let _ = timeout(STATUS, child.state().wait_ended()).await;
            let how = child.state().end_reason();
            let why = format!("its process did not answer `initialize`, and is not there any more: {how}");
            return Err(CallError::Unreachable(why));
        };
        match request.read_reply(&frame) {
            Ok(InitializeReply::Description(description)) => return Ok(description),
            // A process that exits with its rejection is detected above, and the next one is offered this
            // revision first.
            Ok(InitializeReply::Refused) => {
                let _ = child.write(request.body());
            }
            Ok(InitializeReply::Other) => {}
            Err(refused @ CallError::ModernOnly(_)) => return Err(refused),
            Err(refused) => {
                let verdict = timeout(PATIENCE, probe(child, output)).await;
                return Err(verdict.ok().flatten().unwrap_or(refused));
            }
        }
    }
}

/// Probes the revisions of a server that rejected `initialize`; `None` if it supports others than 2026-07-28.
async fn probe(child: &ChildProcess, output: &mut OutputReader) -> Option<CallError> {
    child.write(discover()).ok()?;
    loop {
        match next_message(output).await?.kind() {
            Kind::Success { id, result } if is_probe(id) => {
                return modern_only_versions(&result.get("supportedVersions")?);
            }
            Kind::Failure { error, .. } => return modern_only_error(error),
            Kind::Success { .. } | Kind::Request { .. } | Kind::Notification { .. } => {}
        }
    }
}

async fn next_message(output: &mut OutputReader) -> Option<Frame> {
    loop {
        if let SessionEvent::Message(frame) = output.next().await? {
            return Some(frame);
        }
    }
}

/// Whether a response answers the probe. Some servers write a slash as `\/`.
fn is_probe(id: &RequestId) -> bool {
    RequestId::from_token(Bytes::from_static(PROBE.as_bytes())).is_some_and(|probe| *id == probe)
}

/// `server/discover` (2026-07-28, *Discovery*).
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
