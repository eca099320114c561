//! Opening of a session (2025-11-25, *Lifecycle*), over the channel of any transport.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};

use super::{
    check::check_later,
    message,
    negotiation::RevisionOffers,
    server::ServerContext,
    session::{SessionOwner, UpstreamSession},
};
use crate::{
    dialect::translate,
    protocol::{Era, ErrorObject, Frame, Kind, Payload, RequestId, Revision, code, meta, splice::JsonObject},
    runtime::Clock,
    upstream::{
        CallError, CallerIdentity, UpstreamDescription,
        changes::ChangeNotifier,
        own_ids::is_answer_to,
        transport::{
            HandshakeChannel, HandshakeEvent, RetryOnLoss, SessionEvent, SessionKind, Transport,
            TransportSession,
        },
    },
};
use bytes::Bytes;
use http::StatusCode;

/// Time for which the first call of a session waits for the session's GET stream: some servers hold back the
/// response head until they have an event.
const GET_STREAM_WAIT: Duration = Duration::from_millis(100);

/// Request that opens a session: `initialize` with the revision offered now.
struct InitializeRequest {
    id: u64,
    /// Revisions offered so far, and the one offered now.
    offers: RevisionOffers,
    write_body: Box<dyn Fn(Revision) -> Bytes + Send + Sync>,
}

/// Meaning of a server's message during the handshake.
enum InitializeReply {
    /// The server's result.
    Description(UpstreamDescription),
    /// The server rejected the revision; the handshake continues with [`InitializeRequest::body`], which
    /// offers another.
    Refused,
    /// Not a response to `initialize`.
    Other,
}

/// Method of the handshake.
const INITIALIZE: &str = "initialize";
/// Time limit of the probe after a rejected `initialize`.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// JSON-RPC id of the probe.
const PROBE_ID: &str = r#""deferral/probe""#;

/// Sends `initialize` with the newest legacy revision, or with the one that the server accepted before, and
/// continues with the server's choice; then opens the GET stream, where many servers send a call's requests.
///
/// # Errors
/// The error of the handshake, as one that says that no call was sent ([`CallError::into_not_sent`]).
pub(super) async fn open<W: Transport>(
    server: &Arc<ServerContext<W>>,
    caller: &CallerIdentity,
    owner: Arc<dyn SessionOwner<W>>,
    notifier: &ChangeNotifier,
) -> Result<Arc<UpstreamSession<W>>, CallError> {
    let owner = Arc::downgrade(&owner);
    let opened = match open_once(server, caller, owner.clone(), notifier).await {
        // The server may have closed a kept connection just now. A handshake has no effects for a caller, so
        // it is repeated once.
        Err(CallError::Broken(_)) => open_once(server, caller, owner, notifier).await,
        other => other,
    };
    opened.map_err(CallError::into_not_sent)
}

async fn open_once<W: Transport>(
    server: &Arc<ServerContext<W>>,
    caller: &CallerIdentity,
    owner: Weak<dyn SessionOwner<W>>,
    notifier: &ChangeNotifier,
) -> Result<Arc<UpstreamSession<W>>, CallError> {
    let id = server.next_id();
    let (capabilities, client_info) = (Arc::clone(&caller.capabilities), caller.client_info.clone());
    let write = move |revision| message::initialize(id, revision, capabilities.legacy(), &client_info);
    let first = server.remembered_offer.first_offer(server.clock.now());
    let mut request = InitializeRequest::new(id, first, write);
    let mut channel = server.transport.open(caller).await?;
    let initialized = timeout(channel.time_limit(), initialize(&mut channel, &mut request)).await;
    let initialized = initialized.unwrap_or_else(|_| Err(channel.timeout_error(INITIALIZE)));
    // Also without a session: a process may have exited with its rejection.
    server.remembered_offer.remember(&request.offers, server.clock.now());
    let (mut description, transport) = match initialized {
        Ok(description) => {
            let session = channel.into_session(&description.version)?;
            (description, session)
        }
        Err(error) => return Err(channel.abandon(error).await),
    };
    // Tasks of a server that clients share would be accessible to all of them.
    description.has_tasks &= W::SESSIONS == SessionKind::Http;
    let session = UpstreamSession::new(server.clone(), description, transport, owner, notifier.clone());
    let session = Arc::new(session);
    if let Err(lost) = session.transport.send_message(message::INITIALIZED, RetryOnLoss::No).await {
        session.retire();
        return Err(lost);
    }
    listen(&session).await;
    Ok(session)
}

/// Sends `initialize`, repeatedly with other revisions while the server rejects the offered one, and reads up
/// to the response.
async fn initialize(
    channel: &mut impl HandshakeChannel,
    request: &mut InitializeRequest,
) -> Result<UpstreamDescription, CallError> {
    channel.send(INITIALIZE, request.body())?;
    loop {
        let is_refused = match channel.receive().await? {
            HandshakeEvent::Message(frame) => match request.read_reply(&frame) {
                Ok(InitializeReply::Description(description)) => return Ok(description),
                Ok(InitializeReply::Refused) => true,
                Ok(InitializeReply::Other) => false,
                Err(refused) => return Err(explain_by_probe(channel, refused).await),
            },
            HandshakeEvent::Refused { status, body, error } => {
                let json_error = json_rpc_refusal(status, &body);
                let is_modern = matches!(json_error, Some(CallError::ModernOnly(_)));
                if is_modern || !request.offers.offer_next_after_status(status, &body) {
                    return Err(match json_error {
                        Some(error) => error,
                        None => channel.explain(error).await,
                    });
                }
                true
            }
        };
        if is_refused {
            // A process that exits with its rejection is detected by `receive`, and the next process is
            // offered this revision first.
            let _ = channel.send(INITIALIZE, request.body());
        }
    }
}

/// Error of a rejected `initialize`, after the server was asked for its revisions.
///
/// `server/discover` is sent only after the rejection: the specification has the opposite order (2026-07-28,
/// *stdio, Backward Compatibility*), but some servers exit on any request before `initialize`, and a server
/// that supports only 2026-07-28 says so in either order.
async fn explain_by_probe<C: HandshakeChannel>(channel: &mut C, refused: CallError) -> CallError {
    if !C::CAN_PROBE || matches!(refused, CallError::ModernOnly(_)) {
        return refused;
    }
    let verdict = timeout(PROBE_TIMEOUT, probe(channel)).await;
    verdict.ok().flatten().unwrap_or(refused)
}

/// Sends `server/discover` to a server that rejected `initialize`. Returns the error if the server supports
/// only 2026-07-28; `None` if it supports other revisions or does not answer.
async fn probe(channel: &mut impl HandshakeChannel) -> Option<CallError> {
    channel.send("server/discover", discover_request()).ok()?;
    loop {
        let HandshakeEvent::Message(frame) = channel.receive().await.ok()? else { return None };
        match frame.kind() {
            Kind::Success { id, result } if is_probe_id(id) => {
                return modern_only_versions(&result.get("supportedVersions")?);
            }
            Kind::Failure { error, .. } => return modern_only_error(error),
            Kind::Success { .. } | Kind::Request { .. } | Kind::Notification { .. } => {}
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

/// Error for an HTTP error response to `initialize` whose body holds a JSON-RPC error; `None` without one, or
/// if the status is about credentials.
fn json_rpc_refusal(status: StatusCode, body: &Bytes) -> Option<CallError> {
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        return None;
    }
    let error = JsonObject::read(body).ok()?.get("error")?;
    let status_error =
        || CallError::Status { status, detail: InitializeRequest::refusal_text(&error), retry_after: None };
    Some(modern_only_error(&error).unwrap_or_else(status_error))
}

/// Delivers messages outside calls, in the background until the session ends. Returns when it is known
/// whether the server provides any, or after a short while.
pub(super) async fn listen<W: Transport>(session: &Arc<UpstreamSession<W>>) {
    let (settled_tx, settled_rx) = oneshot::channel::<()>();
    let mut settled_tx = Some(settled_tx);
    let listener = session.clone();
    session.server.work.spawn(async move {
        let deliver = |event| match event {
            SessionEvent::Message(frame) => listener.receive_off_stream(frame),
            SessionEvent::TooLarge(call) => listener.fail_too_large(call),
            SessionEvent::Invalid(call, why) => listener.fail_invalid(call, why),
            SessionEvent::Settled => drop(settled_tx.take()),
            SessionEvent::Gap => listener.notify_after_gap(),
            SessionEvent::Unavailable => listener.set_no_off_stream(),
            SessionEvent::Suspect => {
                listener.set_no_off_stream();
                check_later(&listener);
            }
            SessionEvent::Ended => listener.mark_ended(),
        };
        let stop_reader = listener.stop_reader.clone();
        tokio::select! {
            () = stop_reader.cancelled() => {}
            () = listener.transport.clone().listen(deliver) => {}
        }
    });
    // An ended listener resolves the wait as well.
    let _ = timeout(GET_STREAM_WAIT, settled_rx).await;
}

// === impl InitializeRequest ===

impl InitializeRequest {
    /// Creates the request with this id and the first revision to offer; `write` serializes the request for a
    /// revision.
    fn new(id: u64, first: Revision, write: impl Fn(Revision) -> Bytes + Send + Sync + 'static) -> Self {
        Self { id, offers: RevisionOffers::starting_with(first), write_body: Box::new(write) }
    }

    /// Serializes the request with the revision that is offered now.
    fn body(&self) -> Bytes {
        (self.write_body)(self.offers.current())
    }

    /// Reads a message of the server during the handshake. Messages before the response do not concern the
    /// handshake.
    ///
    /// # Errors
    /// [`CallError::ModernOnly`] and [`CallError::Invalid`]: the server refuses, or its result is incomplete.
    fn read_reply(&mut self, frame: &Frame) -> Result<InitializeReply, CallError> {
        match frame.kind() {
            Kind::Success { id, result } if is_answer_to(id, self.id) => {
                describe(result).map(InitializeReply::Description)
            }
            Kind::Failure { error, .. } => match modern_only_error(error) {
                Some(lost) => Err(lost),
                None if self.offers.offer_next_after_error(error) => Ok(InitializeReply::Refused),
                None => Err(CallError::Invalid(Self::refusal_text(error))),
            },
            Kind::Success { .. } | Kind::Request { .. } | Kind::Notification { .. } => {
                Ok(InitializeReply::Other)
            }
        }
    }

    /// Error text for an `initialize` that was rejected with this JSON-RPC error object.
    fn refusal_text(error: &Bytes) -> String {
        let error = ErrorObject::from_raw(error.clone());
        format!("initialize was refused: {} ({})", error.message(), error.code())
    }
}

fn describe(result: &Payload) -> Result<UpstreamDescription, CallError> {
    let invalid = |what: &str| CallError::Invalid(format!("the answer to initialize {what}"));
    let result = result.object().ok_or_else(|| invalid("is not an object"))?;
    let empty = || Bytes::from_static(b"{}");
    let capabilities = result.get("capabilities").unwrap_or_else(empty);
    Ok(UpstreamDescription {
        version: result.string("protocolVersion").ok_or_else(|| invalid("names no protocolVersion"))?,
        has_tasks: JsonObject::read(&capabilities).is_ok_and(|object| object.contains("tasks")),
        capabilities: Payload::read(translate::without_legacy_tasks(&capabilities)),
        // Copied, because it is stored with each task, and a slice would keep the whole response.
        server_info: Bytes::copy_from_slice(&result.get("serverInfo").unwrap_or_else(empty)),
        instructions: result.get("instructions"),
        result: result.as_bytes().clone(),
    })
}

/// Returns the error of a server that supports only revisions without a handshake (2026-07-28, *Versioning
/// and Compatibility*), from its JSON-RPC error; `None` if the error is another.
fn modern_only_error(error: &Bytes) -> Option<CallError> {
    let parsed = ErrorObject::from_raw(error.clone());
    let data =
        JsonObject::read(error).ok()?.get("data").filter(|_| parsed.code() == code::UNSUPPORTED_VERSION)?;
    modern_only_versions(&JsonObject::read(&data).ok()?.get("supported")?)
}

/// As [`modern_only_error`], from the JSON array of the versions that the server names.
fn modern_only_versions(versions: &Bytes) -> Option<CallError> {
    let versions: Vec<String> = serde_json::from_slice(versions).ok()?;
    let is_modern =
        |version: &String| Revision::parse(version).is_none_or(|revision| revision.era() == Era::Modern);
    versions.iter().all(is_modern).then(|| CallError::ModernOnly(versions.join(", ")))
}
