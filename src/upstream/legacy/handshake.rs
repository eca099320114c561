//! Opening of a session (2025-11-25, *Lifecycle*).

use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};

use super::{
    check::check_later,
    message,
    server::ServerContext,
    session::{SessionOwner, UpstreamSession},
};
use crate::{
    runtime::Clock,
    upstream::{
        CallError, CallerIdentity,
        changes::ChangeNotifier,
        transport::{InitializeRequest, RetryOnLoss, SessionEvent, Transport, TransportSession},
    },
};

/// Time for which the first call of a session waits for the session's GET stream: some servers hold back the
/// response head until they have an event.
const GET_STREAM_WAIT: Duration = Duration::from_millis(100);

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
    let mut request =
        InitializeRequest::new(id, server.remembered_offer.first_offer(server.clock.now()), write);
    let opened = server.transport.open(caller, &mut request).await;
    // Also without a session: a process may have exited with its rejection.
    server.remembered_offer.remember(&request.offers, server.clock.now());
    let (mut description, transport) = opened?;
    // Tasks of a server that clients share would be accessible to all of them.
    description.has_tasks &= W::IS_HTTP;
    let accepts_input = caller.capabilities.can_receive_input_requests();
    let session =
        UpstreamSession::new(server.clone(), description, transport, accepts_input, owner, notifier.clone());
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
