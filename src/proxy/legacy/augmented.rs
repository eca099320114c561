//! A `tools/call` that is run as a task, because its client of 2025-11-25 wants it to be one.
//!
//! The task is stored, then the call is made in the client's own session, without `params.task`, and
//! the client has its answer: the task. From then on a runtime task holds the call ([`Run`]). No
//! connection of the client's matters to it, and no departure cancels anything (2025-11-25, *Sending
//! Messages to the Server*).

use super::{Client, refusal, residents::Resident, run::Run, session, streams::Key};
use crate::{
    bridge::offer::{self, Wish},
    dialect::Credentials,
    protocol::{Capabilities, ErrorObject, Frame, Id, Kind, Method, code},
    proxy::{Account, Passage, Passed, endpoint::Shared, reply::lost_error, tasks::NoRoom},
    task::{Owner, Record, view::experimental},
    telemetry::Outcome,
    upstream::{Identity, Lost, Replies, Request},
};
use bytes::Bytes;
use http::HeaderMap;
use std::{sync::Arc, time::Duration};
use tokio::sync::oneshot;

/// The ids of our requests in sessions of clients: far above what a client counts to, and still
/// exact in a double.
pub(super) const IDS: u64 = 1 << 51;

/// A call as it is made in its client's session, whether it is a task by now or may become one.
pub(super) struct InSession {
    pub(super) shared: Arc<Shared>,
    pub(super) owner: Owner,
    pub(super) session: Option<Key>,
    pub(super) tool: String,
    /// How long the client wants the task to be kept.
    pub(super) ttl: Option<Duration>,
    /// Whether the client wants to hear of progress; else the token is ours.
    pub(super) wants_progress: bool,
    /// Dropping it cancels the call at the server.
    pub(super) replies: Replies,
    /// Given back after the replies.
    pub(super) resident: Option<Resident>,
}

/// Makes the task, and begins the call.
pub(super) async fn begin(call: InSession, id: &Id) -> Passed {
    let (made, asked) = oneshot::channel();
    let stopping = call.shared.stopping.clone();
    // On its own from the start: a client that leaves while the task is stored must not leave a task
    // behind that nobody holds.
    stopping.spawn(async move {
        // Stored before the call is made: the stream of replies does nothing until it is polled.
        match call.into_task().await {
            Ok((run, created)) => {
                // Whoever has left finds it in `tasks/list`.
                let _ = made.send(Ok((run.id().clone(), created)));
                run.run().await;
            }
            Err((_, no_room)) => drop(made.send(Err(no_room))),
        }
    });
    match asked.await {
        Ok(Ok((task, created))) => {
            let account = Account { outcome: Outcome::Task, task: Some(task), ..Account::default() };
            super::success(id, &created, account)
        }
        // Never a plain result instead, which the client could not tell from the task's.
        Ok(Err(no_room)) => refusal(id, &ErrorObject::new(code::BUSY, no_room.to_string())),
        Err(_) => refusal(id, &lost_error(&Lost::Closing)),
    }
}

// === impl InSession ===

impl InSession {
    /// The call that `message` asks for. Nothing is sent before its replies are polled.
    pub(super) fn new(
        shared: &Arc<Shared>,
        passage: &Passage,
        client: &Client,
        message: &Frame,
        tool: &str,
        wish: Wish,
    ) -> Self {
        let number = IDS + shared.next_id();
        let request = Request {
            caller: Identity {
                principal: passage.principal,
                // They are among the session's headers.
                credentials: Credentials::default(),
                capabilities: Arc::new(Capabilities::none()),
            },
            id: number,
            method: Method::ToolsCall,
            body: offer::call(message, number),
            headers: HeaderMap::new(),
            deferral: None,
        };
        let token = match message.kind() {
            Kind::Request { params: Some(params), .. } => offer::progress_token(params),
            _ => None,
        };
        let wants_progress = token.is_some();
        // A slice of the message would keep all of it.
        let token = token.map(|token| Bytes::copy_from_slice(&token));
        let resident = client.session.map(|key| Resident::new(shared, key, number, token));
        let replies = shared.upstream.call_in(session(passage), request);
        let replies = match &resident {
            Some(resident) => resident.replies(replies),
            None => replies,
        };
        Self {
            shared: Arc::clone(shared),
            owner: client.owner.clone(),
            session: client.session,
            tool: tool.to_owned(),
            ttl: wish.ttl,
            wants_progress,
            replies,
            resident,
        }
    }

    /// Stores the task. Gives what holds it from now on, and the `CreateTaskResult`.
    ///
    /// # Errors
    /// [`NoRoom`], and the call as it was.
    pub(super) async fn into_task(self) -> Result<(Box<Run>, Vec<u8>), (Self, NoRoom)> {
        let shared = Arc::clone(&self.shared);
        let treatment = shared.route.treatment(&self.tool);
        let terms = &shared.route.legacy_tasks;
        let retention = self.ttl.map_or(treatment.retention, |ttl| ttl.min(terms.max_ttl));
        let (hold, now) = (shared.tasks.hold(), shared.clock.timestamp());
        let mut record =
            Record::new(hold.id().clone(), self.owner.clone(), self.tool.clone(), retention, now);
        record.raised = false;
        let immediate = terms.immediate_response.as_deref();
        let created = experimental::created(&record, now, shared.legacy_terms(), immediate);
        if let Err(no_room) = shared.tasks.admit(record, false).await {
            return Err((self, no_room));
        }
        let run = Run::new(hold, self, &treatment.keys);
        Ok((run, created))
    }
}

// === impl Shared ===

impl Shared {
    /// How tasks of 2025-11-25 are shown here.
    pub(super) fn legacy_terms(&self) -> experimental::Terms {
        experimental::Terms {
            poll: self.tasks.poll_bounds(),
            tool_errors: match self.route.legacy_tasks.errors_complete {
                true => experimental::ToolErrors::Completed,
                false => experimental::ToolErrors::Failed,
            },
        }
    }
}
