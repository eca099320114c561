//! Opening a session (2025-11-25, *Lifecycle*).

use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};

use super::{
    check::check_later,
    message,
    reports::Reports,
    server::Server,
    session::{Keeper, Session},
};
use crate::{
    runtime::Clock,
    upstream::{
        CallError, Identity,
        wire::{Again, Beside, Hello, Line, Wire},
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
/// What became of the handshake, as an error that says that no call was sent ([`CallError::before_sending`]).
pub(super) async fn open<W: Wire>(
    server: &Arc<Server<W>>,
    caller: &Identity,
    keeper: Arc<dyn Keeper<W>>,
    reports: &Reports,
) -> Result<Arc<Session<W>>, CallError> {
    let keeper = Arc::downgrade(&keeper);
    let opened = match attempt(server, caller, keeper.clone(), reports).await {
        // A kept connection that the server closed in this very moment. A handshake runs nothing of a
        // caller's, so it is begun anew, once.
        Err(CallError::Broken(_)) => attempt(server, caller, keeper, reports).await,
        other => other,
    };
    opened.map_err(CallError::before_sending)
}

async fn attempt<W: Wire>(
    server: &Arc<Server<W>>,
    caller: &Identity,
    keeper: Weak<dyn Keeper<W>>,
    reports: &Reports,
) -> Result<Arc<Session<W>>, CallError> {
    let number = server.next_id();
    let (capabilities, client_info) = (Arc::clone(&caller.capabilities), caller.client_info.clone());
    let write = move |revision| message::initialize(number, revision, capabilities.legacy(), &client_info);
    let mut hello = Hello::new(number, server.offer.first(server.clock.now()), write);
    let opened = server.wire.open(caller, &mut hello).await;
    // Whether or not a session came of it: a process may have ended with its refusal.
    server.offer.learn(&hello.offers, server.clock.now());
    let (mut description, line) = opened?;
    // Those of a server that many share would be everybody's.
    description.has_tasks &= W::IS_HTTP;
    let is_askable = caller.capabilities.can_be_asked();
    let session = Session::new(server.clone(), description, line, is_askable, keeper, reports.clone());
    let session = Arc::new(session);
    if let Err(lost) = session.line.tell(message::INITIALIZED, Again::No).await {
        session.retire();
        return Err(lost);
    }
    listen(&session).await;
    Ok(session)
}

/// Hears what the server says beside calls, in the background until the session is over. Returns when it is
/// known whether there is anything to hear, or after a short while.
pub(super) async fn listen<W: Wire>(session: &Arc<Session<W>>) {
    let (settled, known) = oneshot::channel::<()>();
    let mut settled = Some(settled);
    let listener = session.clone();
    session.server.work.spawn(async move {
        let tell = |beside| match beside {
            Beside::Message(frame) => listener.hear(frame),
            Beside::TooLarge(call) => listener.hear_too_large(call),
            Beside::Invalid(call, why) => listener.hear_invalid(call, why),
            Beside::Settled => drop(settled.take()),
            Beside::Missed => listener.has_missed(),
            Beside::Deaf => listener.set_deaf(),
            Beside::Doubtful => {
                listener.set_deaf();
                check_later(&listener);
            }
            Beside::Ended => listener.ended(),
        };
        let over = listener.over.clone();
        tokio::select! {
            () = over.cancelled() => {}
            () = listener.line.clone().listen(tell) => {}
        }
    });
    // A listener that ends has nothing more to wait for either.
    let _ = timeout(OPENING, known).await;
}
