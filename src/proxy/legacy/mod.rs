//! Requests of legacy clients in front of a legacy server: which of them pass, and which are answered here.
//!
//! What they send is passed on, and what the server says comes back as it is ([`relay`]). Where the server has
//! no tasks of its own, some messages leave that road, because tasks of 2025-11-25 are made here:
//! `denied` refuses calls of tools that the operator denies;
//! `task_capability` adds them to what the server says of itself; `required` refuses what must not reach the
//! server in any shape; `task_call` makes a call a task, [`Driver`](super::drive) holds it, and
//! `answers::experimental` answers for it, in a session that is there (`ping`). `farewell` ends sessions; `outliving` makes a call whose client leaves before it is sent. What is
//! known of a session is in [`session`](super::session).
//!
//! A client of another revision, or one whose server has tasks, notices nothing of all this.

mod denied;
mod farewell;
mod outliving;
mod ping;
mod required;
mod task_call;
mod task_capability;
mod ticket_call;

use super::{
    AccessSummary, Passage, Passed,
    admission::{NotAdmitted, Turn},
    answers::experimental,
    observed_call::ObservedCall,
    passage::{self, nothing, refusal},
    relay::{self, Edit, event_ids},
    reply::{self, stopping_error},
    session::{Client, Whose},
    shared::Shared,
    tickets,
};
use crate::{
    bridge::{Drive, NativeCall, Plan, offer, plan_native},
    dialect::legacy::Message,
    policy::Mode,
    protocol::{Frame, Id, Method},
    telemetry::Outcome,
};
use http::{StatusCode, header::RETRY_AFTER};
use outliving::{Decided, Outliving};
use std::sync::Arc;

/// What a request means to us.
enum Disposition {
    /// It goes to the server; of its answer this is changed.
    Passes(Option<Edit>),
    /// The same, with this message in the place of its own.
    PassesAs(Frame),
    /// It is answered here.
    Ends(Passed),
}

/// Serves one request of a legacy client.
pub(super) async fn pass(shared: Arc<Shared>, passage: Passage) -> Passed {
    let client = Client::of(passage.principal, &passage.headers, &shared.sessions.revisions);
    if let Some(gone) = farewell::refusal(&shared, &client, &passage) {
        return gone;
    }
    if shared.stopping.is_stopped()
        && begins_something(&passage)
        && !ticket_call::is_one(&shared, &client, &passage)
    {
        return stopping(&passage);
    }
    // Apart, so that their futures are not a part of every call's.
    if passage.method == http::Method::DELETE {
        return Box::pin(farewell::leave(shared, client, passage)).await;
    }
    if !may_leave(&shared, &client, &passage) {
        return carry_out(shared, client, passage, Disposition::Passes(None)).await;
    }
    let decided = Decided::default();
    // A call outlives its client, and so does what changes a task; a request that waits for the result of another call
    // does not.
    let outlives = passage.post.may_ask() && !ticket_call::is_one(&shared, &client, &passage)
        || changes_a_task(&passage);
    let (work, is_decided) = (shared.stopping.clone(), decided.clone());
    let disposed = async move {
        let disposition = dispose(&shared, &client, &passage, &decided).await;
        decided.set();
        carry_out(shared, client, passage, disposition).await
    };
    match outlives {
        true => Outliving::new(work, is_decided, disposed).await,
        false => Box::pin(disposed).await,
    }
}

/// Whether a request ends a task, or answers one.
fn changes_a_task(passage: &Passage) -> bool {
    matches!(
        &passage.post.messages[..],
        [Message::Request { method: Method::TasksCancel, .. } | Message::Response(Some(_))]
    )
}

/// Does with a request what was decided.
async fn carry_out(
    shared: Arc<Shared>,
    client: Client,
    passage: Passage,
    disposition: Disposition,
) -> Passed {
    match disposition {
        Disposition::Passes(edit) => {
            if let Some(resumed) = event_ids::resume(&shared, &client, &passage) {
                return resumed;
            }
            let observed = ObservedCall::of_passage(&shared, &passage);
            let turn = match admit(&shared, &passage) {
                Ok(turn) => turn,
                Err(refused) => return not_admitted(&passage, &refused),
            };
            let kept = event_ids::terms(&shared, &client, &passage);
            let begins =
                matches!(&passage.post.messages[..], [Message::Request { method: Method::Initialize, .. }]);
            let passed = relay::pass(Arc::clone(&shared), client, passage, edit, (turn, observed)).await;
            shared.sessions.saw(&client, begins, &passed);
            match kept {
                Some(terms) => event_ids::keep(&shared, terms, passed),
                None => passed,
            }
        }
        Disposition::PassesAs(message) => {
            let passage = Passage { body: message.as_bytes().clone(), message: Some(message), ..passage };
            Box::pin(carry_out(shared, client, passage, Disposition::Passes(None))).await
        }
        Disposition::Ends(passed) => passed,
    }
}

/// Admits the calls that a request holds, where they are limited.
fn admit(shared: &Shared, passage: &Passage) -> Result<Option<Turn>, NotAdmitted> {
    if shared.limiters.is_none() {
        return Ok(None);
    }
    let mut tools = passage.post.calls().peekable();
    if tools.peek().is_none() {
        return Ok(None);
    }
    shared.admit(tools, passage.principal)
}

/// The refusal of all that a request holds, as its calls are not admitted; nothing is sent.
fn not_admitted(passage: &Passage, refused: &NotAdmitted) -> Passed {
    let error = refused.error();
    let account = AccessSummary::failed(Outcome::Refused, &error);
    let mut passed = passage::refused(StatusCode::OK, &passage.post.waiting(), &error, account);
    passed.headers.extend(refused.retry_after().map(|wait| (RETRY_AFTER, wait)));
    passed
}

/// Whether a request begins something new: neither about a task, nor an answer, nor a sign of life.
fn begins_something(passage: &Passage) -> bool {
    passage.post.messages.iter().any(|message| match message {
        Message::Request { method, .. } => !method.is_about_legacy_tasks() && *method != Method::Ping,
        _ => false,
    })
}

/// The answer to what is new while the proxy stops; nothing is sent. Another process may take it.
fn stopping(passage: &Passage) -> Passed {
    let (status, account) = (StatusCode::SERVICE_UNAVAILABLE, AccessSummary::of(Outcome::ProxyFailed));
    let mut refused = passage::refused(status, &passage.post.waiting(), &stopping_error(), account);
    refused.headers.insert(RETRY_AFTER, reply::RETRY_AFTER);
    refused
}

/// Whether a request could be one of those that do not simply pass. Cheap: most do.
fn may_leave(shared: &Shared, client: &Client, passage: &Passage) -> bool {
    // What the server says of itself is learned from on any route.
    if let [Message::Request { method: Method::Initialize, .. }] = &passage.post.messages[..] {
        return true;
    }
    if shared.sessions.ended.has_queued() && matches!(&passage.post.messages[..], [Message::Cancelled(_)]) {
        return true;
    }
    if denied::may_refuse(shared, passage) || ticket_call::may_concern(shared, client, passage) {
        return true;
    }
    if !shared.route.has_tasks() {
        // Nothing is offered, so nothing is understood; but for a client that the operator named as one that takes
        // tasks unasked, `params.task` is ignored (SEP-2229, draft), which not every server would.
        return matches!(&passage.post.messages[..], [Message::Request { method: Method::ToolsCall, .. }])
            && task_call::is_named(shared, passage)
            && wishes(passage);
    }
    if required::may_refuse(shared, passage) {
        return true;
    }
    match &passage.post.messages[..] {
        [Message::Request { method: Method::ToolsList, .. }] => true,
        [Message::Request { method, .. }] if method.is_about_legacy_tasks() => true,
        [Message::Request { method: Method::ToolsCall, target, .. }] => {
            let tool = target.as_deref().unwrap_or_default();
            let mode = shared.route.treatment_for(tool, &passage.standing).mode;
            mode == Mode::Required
                || (mode.makes_tasks() && task_call::takes_unasked(shared, client, passage))
                || (is_offered(shared, passage) && wishes(passage))
        }
        [Message::Cancelled(_)] => !shared.sessions.waiting.is_empty(),
        [Message::Response(Some(id))] => offer::is_ours(id) || !shared.sessions.questions.is_empty(),
        _ => false,
    }
}

/// Whether a caller of this standing was told that there are tasks, or is named as one that knows them.
fn is_offered(shared: &Shared, passage: &Passage) -> bool {
    shared.route.offers_tasks(&passage.standing) || task_call::is_named(shared, passage)
}

/// Whether a call wants to be a task.
fn wishes(passage: &Passage) -> bool {
    passage.params().is_some_and(|params| !matches!(offer::wish(params), Ok(None)))
}

async fn dispose(shared: &Arc<Shared>, client: &Client, passage: &Passage, decided: &Decided) -> Disposition {
    if let Some(refusal) = denied::refuse(shared, client, passage) {
        return Disposition::Ends(refusal);
    }
    if let Some(refusal) = required::refuse(shared, passage).await {
        return Disposition::Ends(refusal);
    }
    match &passage.post.messages[..] {
        [Message::Request { method: Method::Initialize, .. }] => {
            Disposition::Passes(Some(task_capability::handshake(
                Arc::clone(shared),
                passage.params(),
                (client.principal, &passage.standing),
            )))
        }
        [Message::Request { method: Method::ToolsList, .. }] => {
            let offered = shared.route.offers_tasks(&passage.standing)
                && task_capability::is_offered(shared, client, passage).await;
            let edit = offered.then(|| task_capability::tools(Arc::clone(shared), passage.standing.clone()));
            Disposition::Passes(match tickets::holding(shared, client, passage) {
                Some(holding) => {
                    let holding = (holding, passage.standing.clone());
                    Some(ticket_call::tools(shared, client, holding, edit))
                }
                None => edit,
            })
        }
        [Message::Request { method: Method::ToolsCall, id, target }] => {
            let tool = target.as_deref().unwrap_or_default();
            call(shared, passage, client, (id, tool), decided).await
        }
        [Message::Request { method, id, target }]
            if method.is_about_legacy_tasks()
                && task_capability::is_offered(shared, client, passage).await =>
        {
            Disposition::Ends(match ping::refused(shared, passage, client.session).await {
                Some(refusal) => refusal,
                None => experimental::serve(shared, passage, client, method, id, target.as_deref()).await,
            })
        }
        [Message::Cancelled(Some(id))] if is_withdrawn(shared, client, id) => {
            Disposition::Ends(nothing(StatusCode::ACCEPTED))
        }
        [Message::Cancelled(_)] if ticket_call::taken_back(shared, client, passage) => {
            Disposition::Ends(nothing(StatusCode::ACCEPTED))
        }
        [Message::Cancelled(_)] if task_call::taken_back(shared, client, passage) => {
            Disposition::Ends(nothing(StatusCode::ACCEPTED))
        }
        [Message::Response(Some(id))] => {
            let put_as_it_is = || match shared.sessions.questions.answered(client.session?, id)? {
                Whose::Task(task, key) => Some((task, key)),
                Whose::Call => None,
            };
            match offer::question(id).or_else(put_as_it_is) {
                Some((task, key)) => {
                    Disposition::Ends(experimental::answered(shared, passage, client, &task, key).await)
                }
                None => Disposition::Passes(None),
            }
        }
        _ => Disposition::Passes(None),
    }
}

/// Whether the client cancels a call that waits in a queue of ours.
fn is_withdrawn(shared: &Shared, client: &Client, id: &Id) -> bool {
    client.session.is_some_and(|session| shared.sessions.ended.withdraw(session, id))
}

/// A `tools/call`: relayed, or one that is to be a task here.
async fn call(
    shared: &Arc<Shared>,
    passage: &Passage,
    client: &Client,
    (id, tool): (&Id, &str),
    decided: &Decided,
) -> Disposition {
    let Some(message) = &passage.message else { return Disposition::Passes(None) };
    if let Some(answered) = ticket_call::serve(shared, passage, client, id, tool).await {
        return Disposition::Ends(answered);
    }
    let Some(params) = message.params() else { return Disposition::Passes(None) };
    let wish = match client.knows_tasks() {
        true => offer::wish(params),
        // A receiver that knows no tasks ignores what it is asked of them.
        false => Ok(None),
    };
    let takes_unasked = task_call::takes_unasked(shared, client, passage);
    let ticketing = tickets::ticketing(shared, client, passage, tool);
    let ticket = ticketing.as_ref().map(|(terms, _)| terms.after);
    let policy = shared.route.treatment_for(tool, &passage.standing);
    let plan = plan_native(&NativeCall { tool, wish, takes_unasked, ticket }, &policy);
    let is_ticket = matches!(plan, Plan::Drive(Drive::Ticket { .. }));
    // What it has of its own is nothing to whoever knows no tasks.
    let is_its_own = || shared.server_has_tasks(passage.principal, &passage.headers);
    if plan == Plan::Relay || !is_ticket && is_its_own().await {
        return Disposition::Passes(None);
    }
    let drive = match plan {
        Plan::Relay => return Disposition::Passes(None),
        Plan::RelayWithoutTask => {
            let plain = Frame::parse(offer::without_task(message));
            return plain.map_or(Disposition::Passes(None), Disposition::PassesAs);
        }
        Plan::Refuse(error) => return Disposition::Ends(refusal(id, &error)),
        // The proxy was told to stop while it was found out what the server has. A plain result is none for this client.
        Plan::Drive(Drive::Task) if !shared.makes_tasks() => return Disposition::Ends(stopping(passage)),
        Plan::Drive(drive) => drive,
    };
    if let Some(refusal) = ping::refused(shared, passage, client.session).await {
        return Disposition::Ends(refusal);
    }
    let wish = wish.ok().flatten();
    let ticketing = ticketing.filter(|_| is_ticket).map(|(_, ticketing)| ticketing);
    let turn = match shared.admit(std::iter::once(tool), passage.principal) {
        Ok(turn) => turn,
        Err(refused) => return Disposition::Ends(not_admitted(passage, &refused)),
    };
    let call = task_call::in_session(shared, passage, client, message, tool, (wish, ticketing), turn);
    decided.set();
    Disposition::Ends(match drive {
        Drive::Defer { after } | Drive::Ticket { after } => {
            task_call::on_stream(shared, call, id.clone(), after, passage.keep_alive).await
        }
        Drive::Task | Drive::Hold | Drive::Observe { .. } => task_call::as_task(shared, call, id).await,
    })
}
