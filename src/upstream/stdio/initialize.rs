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

/// Remembers that a server supports only 2026-07-28, so that the server is not started again in vain.
#[derive(Debug, Default)]
pub(super) struct ModernOnlyCache(Mutex<Option<(Instant, CallError)>>);

/// Time for which the rejection is remembered. The server may have been replaced meanwhile.
const VERDICT_LIFETIME: Duration = Duration::from_secs(5 * 60);
/// Time limit of the probe after a rejected `initialize`.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// JSON-RPC id of the probe.
const PROBE_ID: &str = r#""deferral/probe""#;

// === impl ModernOnlyCache ===

impl ModernOnlyCache {
    /// Returns the remembered rejection, if it is recent.
    ///
    /// # Errors
    /// [`CallError::ModernOnly`]
    pub(super) fn check(&self, now: Instant) -> Result<(), CallError> {
        match &*self.0.lock() {
            Some((since, error)) if now.duration_since(*since) < VERDICT_LIFETIME => Err(error.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// Stores the error of a failed start, if the error is [`CallError::ModernOnly`].
    pub(super) fn remember(&self, now: Instant, error: &CallError) {
        if let CallError::ModernOnly(_) = error {
            *self.0.lock() = Some((now, error.clone()));
        }
    }
}

/// Sends `initialize`, repeatedly with other revisions while the server rejects the offered one, and reads up
/// to the response. Messages before the response do not concern the handshake.
pub(super) async fn initialize(
    child: &ChildProcess,
    output: &mut OutputReader,
    request: &mut InitializeRequest,
) -> Result<UpstreamDescription, CallError> {
    child.write(request.body())?;
    loop {
        let Some(frame) = next_message(output).await else {
            let _ = timeout(STATUS, child.state().wait_ended()).await;
            let end_reason = child.state().end_reason();
            let reason = format!("its process ended before it answered `initialize`: {end_reason}");
            return Err(CallError::Unreachable(reason));
        };
        match request.read_reply(&frame) {
            Ok(InitializeReply::Description(description)) => return Ok(description),
            // A process that exits with its rejection is detected above, and the next process is offered this
            // revision first.
            Ok(InitializeReply::Refused) => {
                let _ = child.write(request.body());
            }
            Ok(InitializeReply::Other) => {}
            Err(refused @ CallError::ModernOnly(_)) => return Err(refused),
            Err(refused) => {
                let verdict = timeout(PROBE_TIMEOUT, probe(child, output)).await;
                return Err(verdict.ok().flatten().unwrap_or(refused));
            }
        }
    }
}

/// Sends `server/discover` to a server that rejected `initialize`. Returns the error if the server supports
/// only 2026-07-28; `None` if it supports other revisions or does not answer.
async fn probe(child: &ChildProcess, output: &mut OutputReader) -> Option<CallError> {
    child.write(discover_request()).ok()?;
    loop {
        match next_message(output).await?.kind() {
            Kind::Success { id, result } if is_probe_id(id) => {
                return modern_only_versions(&result.get("supportedVersions")?);
            }
            Kind::Failure { error, .. } => return modern_only_error(error),
            Kind::Success { .. } | Kind::Request { .. } | Kind::Notification { .. } => {}
        }
    }
}

/// Next message of the process; `None` at the end of its output.
async fn next_message(output: &mut OutputReader) -> Option<Frame> {
    loop {
        if let SessionEvent::Message(frame) = output.next().await? {
            return Some(frame);
        }
    }
}

/// Whether a response has the id of the probe. Some servers write a slash as `\/`.
fn is_probe_id(id: &RequestId) -> bool {
    RequestId::from_token(Bytes::from_static(PROBE_ID.as_bytes())).is_some_and(|probe| *id == probe)
}

/// Request `server/discover` (2026-07-28, *Discovery*).
fn discover_request() -> Bytes {
    format!(
        r#"{{"jsonrpc":"2.0","id":{PROBE_ID},"method":"server/discover","params":{{"_meta":{{"{}":"{}","{}":{{"name":"deferral","version":"{}"}},"{}":{{}}}}}}}}"#,
        meta::PROTOCOL_VERSION,
        Revision::V2026_07_28,
        meta::CLIENT_INFO,
        env!("CARGO_PKG_VERSION"),
        meta::CLIENT_CAPABILITIES,
    )
    .into()
}
