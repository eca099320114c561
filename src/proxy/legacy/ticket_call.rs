//! Tickets for clients of older revisions: the list of tools as they are to see it, and calls of the tools that take a
//! ticket. A call that is answered with one is made as a task is ([`task_call`](super::task_call)).

use crate::{
    bridge::{offer, ticket},
    dialect::legacy::{self, Message},
    policy::{Holding, Standing},
    protocol::{ErrorObject, Frame, Heartbeat, Id, Kind, Method, sse},
    proxy::{
        AccessSummary, Commit, Passage, Passed, Passing, Piece,
        answers::ticket::{Answer, Holder, Next, Watch, answer},
        passage::{events, nothing, success, task_end},
        relay::Edit,
        reply::lost_error,
        session::{Client, ClientInfo, Registered},
        shared::Shared,
        tickets,
    },
    task::{Record, view},
    telemetry::Outcome,
    upstream::CallError,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::{sync::Notify, time::timeout};

/// Whether a request is a call of a tool that takes a ticket, which begins nothing new.
pub(super) fn is_one(shared: &Shared, client: &Client, passage: &Passage) -> bool {
    let [Message::Request { method: Method::ToolsCall, target: Some(tool), .. }] = &passage.post.messages[..]
    else {
        return false;
    };
    tickets::wanted(shared, client, tool, || ticket::argument(passage.params())).is_some()
}

/// Whether a request could be one of those that do not simply pass, where there are tickets or were: those that were given
/// are good whatever the configuration says by now.
pub(super) fn may_concern(shared: &Shared, client: &Client, passage: &Passage) -> bool {
    match &passage.post.messages[..] {
        [Message::Request { method: Method::ToolsList, .. }] => shared.route.has_tickets(),
        [Message::Request { method: Method::ToolsCall, target, .. }] => {
            let tool = target.as_deref().unwrap_or_default();
            tool.starts_with(ticket::ToolNames::BEGINNING)
                || tickets::ticketing(shared, client, passage, tool).is_some()
        }
        [Message::Cancelled(_)] => {
            !shared.sessions.waiting.is_empty() || !shared.sessions.with_tickets.is_empty()
        }
        [Message::Response(Some(id))] => {
            shared.route.has_tickets() && offer::is_ours(id) || !shared.sessions.questions.is_empty()
        }
        _ => false,
    }
}

/// What the answer to `tools/list` becomes for a client that gets tickets, behind what else is changed in it.
pub(super) fn tools(
    shared: &Arc<Shared>,
    client: &Client,
    (holding, standing): (Holding, Standing),
    before: Option<Edit>,
) -> Edit {
    let (shared, session) = (Arc::clone(shared), client.session);
    let mut before = before;
    Box::new(move |answer, in_session| {
        let changed = before.as_mut().and_then(|edit| edit(answer, in_session));
        let frame = changed.clone().and_then(|bytes| Frame::parse(bytes).ok());
        let answer = frame.as_ref().unwrap_or(answer);
        tickets::list(&shared, answer, (holding, &standing), |names| {
            // Without a session it is not known who has been given them; the operator has said so.
            session.is_none_or(|session| {
                shared.sessions.holders.give(session, names);
                true
            })
        })
        .or(changed)
    })
}

/// Answers a call of one of the tools that take a ticket; `None` where it is a tool of the server's.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    passage: &Passage,
    client: &Client,
    id: &Id,
    tool: &str,
) -> Option<Passed> {
    let params = passage.params();
    let (wanted, names) = tickets::wanted(shared, client, tool, || ticket::argument(params))?;
    let holding = tickets::holding(shared, client, passage);
    let holder = Holder {
        owner: client.owner(&shared.route),
        principal: client.principal,
        names: &names,
        wait: tickets::wait(shared, holding),
        hears: true,
    };
    let watch = match answer(shared, holder, wanted, params).await {
        Answer::Said(result, account) | Answer::About(_, result, account) => {
            return Some(success(id, result.to_string().as_bytes(), account));
        }
        Answer::Waits(watch) => watch,
    };
    let token = params.and_then(offer::progress_token).and_then(Id::from_token);
    let heartbeat =
        token.map(|token| Heartbeat::new(token.detached().as_bytes().clone(), client.hears_messages()));
    let taken_back = Arc::new(Notify::new());
    let registered = client
        .session
        .map(|session| shared.sessions.with_tickets.register(session, id, Arc::clone(&taken_back)));
    let known = client.session.and_then(|session| shared.sessions.holders.client(session));
    let (id, over) = (id.detached(), false);
    let waiting = Waiting { watch, id, heartbeat, taken_back, known, _registered: registered, over };
    Some(waited(waiting, passage.keep_alive).await)
}

/// The client takes requests back (2025-11-25, *Cancellation*): those that wait with a ticket end, and the calls that
/// they wait for go on. Whether all of them did; the server has never heard of them.
pub(super) fn taken_back(shared: &Shared, client: &Client, passage: &Passage) -> bool {
    let Some(session) = client.session else { return false };
    let mut all = true;
    for id in passage.post.cancels() {
        match shared.sessions.with_tickets.get(session, id.clone()) {
            Some(waiting) => waiting.notify_one(),
            None => all = false,
        }
    }
    all
}

/// A client that waits for a result.
struct Waiting {
    watch: Box<Watch>,
    id: Id,
    /// For a client that gave its request a progress token.
    heartbeat: Option<Heartbeat>,
    /// Told where the client takes its request back: then it is owed no answer, and some take one amiss.
    taken_back: Arc<Notify>,
    /// What its client has said of itself, where that is remembered.
    known: Option<Arc<ClientInfo>>,
    _registered: Option<Registered<Arc<Notify>>>,
    over: bool,
}

/// Waits a moment for what is there at once, which is answered as a document; else on a stream.
async fn waited(mut waiting: Waiting, keep_alive: Duration) -> Passed {
    let first = match timeout(keep_alive, waiting.next()).await {
        Ok(Said::Last(body, account, commit)) => return task_end(body, account, commit),
        Ok(Said::Nothing) => return nothing(StatusCode::ACCEPTED),
        Ok(Said::Event(event)) => Piece::of(event),
        Err(_silence) => Piece::of(sse::KEEP_ALIVE),
    };
    let rest = stream::unfold(waiting, move |mut waiting| async move {
        if waiting.over {
            return None;
        }
        let piece = match timeout(keep_alive, waiting.next()).await {
            Ok(Said::Last(body, account, commit)) => {
                Piece { commit, ..Piece::last(sse::message(&body), account) }
            }
            Ok(Said::Nothing) => Piece::end(),
            Ok(Said::Event(event)) => Piece::of(event),
            Err(_silence) => Piece::of(sse::KEEP_ALIVE),
        };
        Some((piece, waiting))
    });
    events(Passing::Pieces(stream::once(std::future::ready(first)).chain(rest).boxed()))
}

/// What the client hears next.
enum Said {
    /// As it stands on its stream.
    Event(Bytes),
    /// The response, to be confirmed where the call has ended with it.
    Last(Bytes, AccessSummary, Option<Commit>),
    /// The end, as it has taken its request back.
    Nothing,
}

// === impl Waiting ===

impl Waiting {
    async fn next(&mut self) -> Said {
        loop {
            let next = tokio::select! {
                biased;
                () = self.taken_back.notified() => {
                    self.over = true;
                    return Said::Nothing;
                }
                next = self.watch.next() => next,
            };
            match next {
                Next::Said(event) if self.can_be_told(&event) => return Said::Event(event),
                Next::Said(_) => {}
                Next::Progress(message) => {
                    let beat = self.heartbeat.as_mut().and_then(|beat| beat.tell(&message));
                    if let Some(beat) = beat {
                        return Said::Event(sse::message(&beat));
                    }
                }
                // What is left is put on this very stream, or on the session's.
                Next::Asked(record) => {
                    if let Some(known) = self.known.clone() {
                        let can = |method: &_, params: Option<&_>| known.can_be_asked(method, params);
                        self.watch.decline(&record, can).await;
                    }
                }
                Next::Ended(record, commit) => return self.ended(&record, commit),
                Next::Runs(record) => {
                    let running = self.watch.running(&record);
                    return self.last(
                        &running,
                        AccessSummary {
                            shown: Some("working"),
                            origin: record.trace.clone(),
                            ..AccessSummary::default()
                        },
                    );
                }
                Next::Gone => {
                    return self.last(&view::ticket::unknown(), AccessSummary::of(Outcome::Refused));
                }
                Next::Closing => {
                    let error = lost_error(&CallError::Closing);
                    self.over = true;
                    let body = legacy::refusal(std::slice::from_ref(&self.id), &error);
                    return Said::Last(body, AccessSummary::of(Outcome::ProxyFailed), None);
                }
            }
        }
    }

    /// Whether an event is none that asks its client what it did not declare: that is declined.
    fn can_be_told(&self, event: &Bytes) -> bool {
        let Some(known) = &self.known else { return true };
        let Some(Ok(message)) = sse::data(event).map(Frame::parse) else { return true };
        match message.kind() {
            Kind::Request { method, params, .. } => known.can_be_asked(method, params.as_deref()),
            Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => true,
        }
    }

    /// Exactly what the call would have been answered with.
    fn ended(&mut self, record: &Record, commit: Commit) -> Said {
        self.over = true;
        let (shown, origin) = (Some(record.state.status()), record.trace.clone());
        let shown = AccessSummary { shown, origin, ..AccessSummary::default() };
        let (body, account) = match view::ticket::outcome(record, false) {
            Some(view::ticket::Outcome::Result(result)) => (legacy::success(&self.id, &result), shown),
            Some(view::ticket::Outcome::Error(error)) => {
                let error = ErrorObject::from_raw(error);
                let account = AccessSummary { outcome: Outcome::ServerError, ..shown };
                (legacy::refusal(std::slice::from_ref(&self.id), &error), account)
            }
            Some(view::ticket::Outcome::Cancelled) | None => {
                let result = view::ticket::over(record, &self.watch.ticketing.names.result);
                (legacy::success(&self.id, result.to_string().as_bytes()), shown)
            }
        };
        Said::Last(body, account, Some(commit))
    }

    fn last(&mut self, result: &Value, account: AccessSummary) -> Said {
        self.over = true;
        Said::Last(legacy::success(&self.id, result.to_string().as_bytes()), account, None)
    }
}
