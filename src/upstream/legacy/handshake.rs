//! Opening a session (2025-11-25, *Lifecycle*).

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

/// How long a session's first call waits for what is said beside calls: some servers hold back the head of
/// the GET stream until there is something to say.
const OPENING: Duration = Duration::from_millis(100);

/// Sends `initialize` with the newest legacy revision, or with one that the server made us offer, and goes on with the
/// one that the server chooses;
/// then listens beside calls, because many servers put a call's questions there.
///
/// # Errors
/// What became of the handshake, as an error that says that no call was sent ([`CallError::into_not_sent`]).
pub(super) async fn open<W: Transport>(
    server: &Arc<ServerContext<W>>,
    caller: &CallerIdentity,
    keeper: Arc<dyn SessionOwner<W>>,
    reports: &ChangeNotifier,
) -> Result<Arc<UpstreamSession<W>>, CallError> {
    let keeper = Arc::downgrade(&keeper);
    let opened = match attempt(server, caller, keeper.clone(), reports).await {
        // A kept connection that the server closed in this very moment. A handshake runs nothing of a
        // caller's, so it is begun anew, once.
        Err(CallError::Broken(_)) => attempt(server, caller, keeper, reports).await,
        other => other,
    };
    opened.map_err(CallError::into_not_sent)
}

async fn attempt<W: Transport>(
    server: &Arc<ServerContext<W>>,
    caller: &CallerIdentity,
    keeper: Weak<dyn SessionOwner<W>>,
    reports: &ChangeNotifier,
) -> Result<Arc<UpstreamSession<W>>, CallError> {
    let number = server.next_id();
    let (capabilities, client_info) = (Arc::clone(&caller.capabilities), caller.client_info.clone());
    let write = move |revision| message::initialize(number, revision, capabilities.legacy(), &client_info);
    let mut hello = InitializeRequest::new(number, server.offer.first_offer(server.clock.now()), write);
    let opened = server.transport.open(caller, &mut hello).await;
    // Whether or not a session came of it: a process may have ended with its refusal.
    server.offer.remember(&hello.offers, server.clock.now());
    let (mut description, line) = opened?;
    // Those of a server that many share would be everybody's.
    description.has_tasks &= W::IS_HTTP;
    let is_askable = caller.capabilities.can_receive_input_requests();
    let session =
        UpstreamSession::new(server.clone(), description, line, is_askable, keeper, reports.clone());
    let session = Arc::new(session);
    if let Err(lost) = session.transport.send_message(message::INITIALIZED, RetryOnLoss::No).await {
        session.retire();
        return Err(lost);
    }
    listen(&session).await;
    Ok(session)
}

/// Hears what the server says beside calls, in the background until the session is over. Returns when it is
/// known whether there is anything to hear, or after a short while.
pub(super) async fn listen<W: Transport>(session: &Arc<UpstreamSession<W>>) {
    let (settled, known) = oneshot::channel::<()>();
    let mut settled = Some(settled);
    let listener = session.clone();
    session.server.work.spawn(async move {
        let tell = |beside| match beside {
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
            () = listener.transport.clone().listen(tell) => {}
        }
    });
    // A listener that ends has nothing more to wait for either.
    let _ = timeout(OPENING, known).await;
}
