//! A `tools/call` that is run as a task, because its client of 2025-11-25 wants it to be one.
//!
//! The task is stored, then the call is made in the client's own session, without `params.task`, and
//! the client has its answer: the task. From then on a runtime task holds the call ([`Driver`]). No
//! connection of the client's matters to it, and no departure cancels anything (2025-11-25, *Sending
//! Messages to the Server*).

use super::Client;
use crate::{
    bridge::offer,
    protocol::{ErrorObject, Frame, Id, Kind, Method, code},
    proxy::{
        AccessSummary, Passage, Passed,
        drive::{Driver, Native},
        ids, passage,
        reply::lost_error,
        session::Resident,
        shared::Shared,
    },
    task::view::experimental,
    telemetry::Outcome,
    upstream::{CallError, NativeCall, Replies},
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use tokio::sync::oneshot;

/// Makes the task, and begins the call.
pub(super) async fn begin(shared: &Arc<Shared>, (call, replies): (Native, Replies), id: &Id) -> Passed {
    let (made, asked) = oneshot::channel();
    let work = Arc::clone(shared);
    // On its own from the start: a client that leaves while the task is stored must not leave a task
    // behind that nobody holds.
    shared.stopping.spawn(async move {
        match Driver::of_a_task(&work, call, replies).await {
            Ok((driver, created)) => {
                // Whoever has left finds it in `tasks/list`.
                let _ = made.send(Ok((driver.id().clone(), created)));
                driver.run().await;
            }
            Err(no_room) => drop(made.send(Err(no_room))),
        }
    });
    match asked.await {
        Ok(Ok((task, created))) => {
            let account =
                AccessSummary { outcome: Outcome::Task, task: Some(task), ..AccessSummary::default() };
            passage::success(id, &created, account)
        }
        // Never a plain result instead, which the client could not tell from the task's.
        Ok(Err(no_room)) => passage::refusal(id, &ErrorObject::new(code::BUSY, no_room.to_string())),
        Err(_) => passage::refusal(id, &lost_error(&CallError::Closing)),
    }
}

/// The call that `message` asks for, made in its client's own session. Nothing is sent before its replies are
/// polled.
pub(super) fn in_session(
    shared: &Arc<Shared>,
    passage: &Passage,
    client: &Client,
    message: &Frame,
    tool: &str,
    ttl: Option<Duration>,
) -> (Native, Replies) {
    let number = ids::next_in_session();
    let call = NativeCall { id: number, method: Method::ToolsCall, body: offer::call(message, number) };
    let token = match message.kind() {
        Kind::Request { params: Some(params), .. } => offer::progress_token(params),
        _ => None,
    };
    let wants_progress = token.is_some();
    // A slice of the message would keep all of it.
    let token = token.map(|token| Bytes::copy_from_slice(&token));
    let (replies, call) = shared.upstream.call_in(passage.session(), call);
    let resident =
        client.session.zip(call).map(|(key, call)| Resident::new(shared, key, number, token, call));
    let native = Native {
        owner: client.owner.clone(),
        session: client.session,
        tool: tool.to_owned(),
        ttl,
        wants_progress,
        _resident: resident,
        began: shared.clock.now(),
        told: "working",
    };
    (native, replies)
}

// === impl Shared ===

impl Shared {
    /// How tasks of 2025-11-25 are shown here.
    pub(in crate::proxy) fn legacy_terms(&self) -> experimental::Terms {
        experimental::Terms {
            poll: self.ledger.poll_bounds(),
            tool_errors: match self.route.legacy_tasks.errors_complete {
                true => experimental::ToolErrors::Completed,
                false => experimental::ToolErrors::Failed,
            },
        }
    }
}
