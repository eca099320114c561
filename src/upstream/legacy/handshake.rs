//! Opening of a session (2025-11-25, *Lifecycle*).

use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};

use super::{
    check::check_later,
    message,
    reports::ChangeNotifier,
    server::ServerContext,
    session::{SessionOwner, UpstreamSession},
};
use crate::{
    runtime::Clock,
    upstream::{
        CallError, CallerIdentity,
        transport::{InitializeRequest, RetryOnLoss, SessionEvent, Transport, TransportSession},
    },
};

/// Time for which the first call of a session waits for its GET stream: some servers hold back the response
/// head until they have an event.
const OPENING: Duration = Duration::from_millis(100);

/// Sends `initialize` with the newest legacy revision, or with the one that the server accepted before, and
/// continues with the server's choice; then opens the GET stream, where many servers send a call's requests.
///
/// # Errors
/// The error of the handshake, as one that says that no call was sent ([`CallError::into_not_sent`]).
pub(super) async fn open<W: Transport>(
    server: &Arc<ServerContext<W>>,
    caller: &CallerIdentity,
    owner: Arc<dyn SessionOwner<W>>,
    reports: &ChangeNotifier,
) -> Result<Arc<UpstreamSession<W>>, CallError> {
    let owner = Arc::downgrade(&owner);
    let opened = match attempt(server, caller, owner.clone(), reports).await {
        // The server may have closed a kept connection just now. A handshake has no effects for a caller, so
        // it is repeated once.
        Err(CallError::Broken(_)) => attempt(server, caller, owner, reports).await,
        other => other,
    };
    opened.map_err(CallError::into_not_sent)
}

async fn attempt<W: Transport>(
    server: &Arc<ServerContext<W>>,
    caller: &CallerIdentity,
    owner: Weak<dyn SessionOwner<W>>,
    reports: &ChangeNotifier,
) -> Result<Arc<UpstreamSession<W>>, CallError> {
    let number = server.next_id();
    let (capabilities, client_info) = (Arc::clone(&caller.capabilities), caller.client_info.clone());
    let write = move |revision| message::initialize(number, revision, capabilities.legacy(), &client_info);
    let mut request = InitializeRequest::new(number, server.offer.first_offer(server.clock.now()), write);
    let opened = server.transport.open(caller, &mut request).await;
    // Also without a session: a process may have exited with its rejection.
    server.offer.remember(&request.offers, server.clock.now());
    let (mut description, line) = opened?;
    // Tasks of a server that clients share would be accessible to all of them.
    description.has_tasks &= W::IS_HTTP;
    let is_askable = caller.capabilities.can_receive_input_requests();
    let session = UpstreamSession::new(server.clone(), description, line, is_askable, owner, reports.clone());
    let session = Arc::new(session);
    if let Err(lost) = session.transport.send_message(message::INITIALIZED, RetryOnLoss::No).await {
        session.retire();
        return Err(lost);
    }
    listen(&session).await;
    Ok(session)
}

/// Delivers messages outside calls, in the background until the session ends. Returns when it is known
/// whether the server provides any, or after a short while.
pub(super) async fn listen<W: Transport>(session: &Arc<UpstreamSession<W>>) {
    let (settled, known) = oneshot::channel::<()>();
    let mut settled = Some(settled);
    let listener = session.clone();
    session.server.work.spawn(async move {
        let deliver = |event| match event {
            SessionEvent::Message(frame) => listener.receive_off_stream(frame),
            SessionEvent::TooLarge(call) => listener.fail_too_large(call),
            SessionEvent::Invalid(call, why) => listener.fail_invalid(call, why),
            SessionEvent::Settled => drop(settled.take()),
            SessionEvent::Gap => listener.notify_gap(),
            SessionEvent::Unavailable => listener.set_deaf(),
            SessionEvent::Suspect => {
                listener.set_deaf();
                check_later(&listener);
            }
            SessionEvent::Ended => listener.mark_ended(),
        };
        let over = listener.over.clone();
        tokio::select! {
            () = over.cancelled() => {}
            () = listener.transport.clone().listen(deliver) => {}
        }
    });
    // An ended listener resolves the wait as well.
    let _ = timeout(OPENING, known).await;
}
