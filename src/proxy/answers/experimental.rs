//! Responses for the tasks of 2025-11-25 (*Tasks*): `tasks/get`, `tasks/result`, `tasks/cancel`,
//! `tasks/list`, and the client's responses to input requests of a task.

use super::TaskRefusal;
use crate::{
    dialect::legacy,
    protocol::{ErrorObject, Kind, Method, Payload, RequestId, Timestamp, code, sse},
    proxy::{
        AccessSummary, BodyPiece, LegacyRequest, LegacyResponse, ResponseBody,
        call_registry::MailboxMessage,
        relay::legacy_http::{
            empty_response, refusal_response, refuse_requests, result_response, stream_response,
            task_end_response,
        },
        reply::record_call_error,
        route_context::RouteContext,
        session::LegacyClient,
        tasks::{
            persist::STORE_RETRY_DELAY,
            watchers::{TaskWatcher, WatcherKind},
        },
    },
    runtime::{or_pending, wait_until},
    store::ListCursor,
    task::{Canceller, Record, TaskId, TaskView, view::experimental},
    telemetry::RequestOutcome,
    upstream::CallError,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, time::sleep_until};

/// The error text for a task that does not exist or belongs to another owner.
const NOT_FOUND: &str = "Failed to retrieve task: Task not found";

/// Tasks on one page of `tasks/list`.
const PAGE_SIZE: usize = 50;

/// Serves a request about tasks with this method and request id. `task` is the task id in its params.
pub(in crate::proxy) async fn serve(
    shared: &Arc<RouteContext>,
    request: &LegacyRequest,
    client: &LegacyClient,
    method: &Method,
    id: &RequestId,
    task: Option<&str>,
) -> LegacyResponse {
    if *method == Method::TasksList {
        return list_tasks(shared, request, client, id).await;
    }
    let owner = client.owner(&shared.route);
    let record = match super::look_up_task(shared, method, task, &owner, client.principal).await {
        Ok(record) => record,
        Err(reason) => return task_refusal_response(id, reason),
    };
    match method {
        Method::TasksResult => task_result_response(shared, request, id, record).await,
        Method::TasksCancel => cancel_task(shared, id, &record).await,
        _ => task_response(shared, id, &record),
    }
}

/// The response that refuses a request about a task, for the reason `reason`.
fn task_refusal_response(id: &RequestId, reason: TaskRefusal) -> LegacyResponse {
    // Always 200: clients in the field do not show HTTP errors to their users.
    refusal_response(id, &reason.error(NOT_FOUND))
}

/// Responds with the status of the task: to `tasks/get`, and to a successful `tasks/cancel`.
fn task_response(shared: &RouteContext, id: &RequestId, record: &Record) -> LegacyResponse {
    let options = shared.legacy_view_options();
    let view = experimental::task_object(record, shared.clock.timestamp(), options);
    result_response(id, &view, access_summary(record, options))
}

/// The summary for the access log, which is the audit trail of retrievals: the shown status, and the span of
/// the task's call.
fn access_summary(record: &Record, options: experimental::ViewOptions) -> AccessSummary {
    let shown = Some(experimental::task_status(record, options.tool_errors));
    AccessSummary { shown_status: shown, origin: record.trace.clone(), ..AccessSummary::default() }
}

/// Responds to `tasks/cancel` once the cancellation is stored. A task that has ended cannot be cancelled.
async fn cancel_task(shared: &RouteContext, id: &RequestId, record: &Record) -> LegacyResponse {
    let current = match super::cancel_task(&shared.ledger, &record.id, Canceller::Client).await {
        Ok(Some(cancelled)) => return task_response(shared, id, &cancelled),
        Ok(None) => shared.ledger.load(&record.id).await,
        Err(error) => Err(error),
    };
    let status = match current {
        Ok(Some(ended)) => experimental::task_status(&ended, shared.legacy_view_options().tool_errors),
        Ok(None) => return task_refusal_response(id, TaskRefusal::Unknown),
        Err(error) => return task_refusal_response(id, error.into()),
    };
    let message = format!("Cannot cancel task: already in terminal status '{status}'");
    refusal_response(id, &ErrorObject::new(code::INVALID_PARAMS, message))
}

/// Responds to `tasks/list` with one page of the client's tasks.
async fn list_tasks(
    shared: &RouteContext,
    request: &LegacyRequest,
    client: &LegacyClient,
    id: &RequestId,
) -> LegacyResponse {
    let refuse = |code, message: &str| refusal_response(id, &ErrorObject::new(code, message));
    if !client.is_identifiable() {
        // The response to `initialize` did not declare `tasks/list` either.
        return refuse(
            code::METHOD_NOT_FOUND,
            "tasks/list is not served: the client has neither credentials nor a session that distinguishes it",
        );
    }
    let Ok(after) = decode_cursor(request.params()) else {
        return refuse(code::INVALID_PARAMS, "the cursor is not valid");
    };
    if let Err(reason) = super::check_poll_limit(shared, client.principal) {
        return task_refusal_response(id, reason);
    }
    let owner = client.owner(&shared.route);
    let (records, has_more) = match shared.ledger.page(&owner, after.as_ref(), PAGE_SIZE).await {
        Ok(page) => page,
        Err(error) => return task_refusal_response(id, error.into()),
    };
    let next = records.last().filter(|_| has_more).map(|last| encode_cursor(&ListCursor::from_record(last)));
    let now = shared.clock.timestamp();
    // Expired tasks cannot be fetched, and a client with tickets does not know tasks.
    let is_shown = |record: &&Arc<Record>| !record.is_expired(now) && record.view != TaskView::Ticket;
    let visible = records.iter().filter(is_shown).map(|record| &**record);
    let view = experimental::task_list(visible, next.as_deref(), now, shared.legacy_view_options());
    result_response(id, &view, AccessSummary::default())
}

/// Decodes the `cursor` of `tasks/list`: the position of the last task on the previous page. `None` without a
/// cursor; an error if the cursor is invalid.
fn decode_cursor(params: Option<&Payload>) -> Result<Option<ListCursor>, ()> {
    let Some(params) = params else { return Ok(None) };
    let Some(raw) = params.object().ok_or(())?.get("cursor").filter(|raw| raw != "null") else {
        return Ok(None);
    };
    let text: String = serde_json::from_slice(&raw).map_err(drop)?;
    let text = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(drop)?;
    let text = String::from_utf8(text).map_err(drop)?;
    let (created, id) = text.split_once(' ').ok_or(())?;
    let created = Timestamp::from_millis(created.parse().map_err(drop)?);
    Ok(Some(ListCursor { created, id: TaskId::parse(id).ok_or(())? }))
}

/// Encodes the position of the last task on a page as an opaque cursor.
fn encode_cursor(position: &ListCursor) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("{} {}", position.created.as_millis(), position.id.as_str()))
}

/// Responds to `tasks/result`: at once if the task has ended, otherwise on an event stream once it ends
/// (2025-11-25, *Tasks, Result Retrieval*).
async fn task_result_response(
    shared: &Arc<RouteContext>,
    request: &LegacyRequest,
    id: &RequestId,
    record: Arc<Record>,
) -> LegacyResponse {
    // Watch first, then load the record: no change is missed in between.
    let kind = WatcherKind::Waiter { input_filter: None };
    let Some(changes) = shared.ledger.bus.watch(vec![record.id.clone()], kind) else {
        return task_refusal_response(id, TaskRefusal::Busy);
    };
    let record = match shared.ledger.load(&record.id).await {
        Ok(found) => found.unwrap_or(record),
        Err(error) => return task_refusal_response(id, error.into()),
    };
    if let Some((body, summary)) = ended_task_response(shared, id, &record) {
        return task_end_response(body, summary, Some(shared.ledger.delivery_commit(&record.id)));
    }
    let Ok(receiver) = super::attach_waiter(shared, &record.id, None) else {
        return task_refusal_response(id, TaskRefusal::Busy);
    };
    let result_stream = TaskResultStream {
        shared: Arc::clone(shared),
        id: id.clone(),
        task: record.id.clone(),
        changes,
        messages: receiver,
        keep_alive: request.keep_alive,
        store_retry_at: None,
        is_ended: false,
    };
    let pieces = stream::unfold(result_stream, async |mut result_stream| {
        let piece = result_stream.next().await?;
        Some((piece, result_stream))
    });
    stream_response(ResponseBody::Stream(pieces.boxed()))
}

/// The response body to `tasks/result` with its access-log summary; `None` if the task has not ended.
fn ended_task_response(
    shared: &RouteContext,
    id: &RequestId,
    record: &Record,
) -> Option<(Bytes, AccessSummary)> {
    let refusal = |error: &ErrorObject| legacy::error_responses(std::slice::from_ref(id), error);
    let (body, outcome) = match experimental::task_outcome(record)? {
        experimental::TaskOutcome::Result(result) => {
            (legacy::success_response(id, &result), RequestOutcome::Result)
        }
        experimental::TaskOutcome::Error(error) => {
            (refusal(&ErrorObject::from_raw(error)), RequestOutcome::ServerError)
        }
        experimental::TaskOutcome::Cancelled => {
            let error = ErrorObject::new(code::INVALID_PARAMS, "the task was cancelled: it has no result");
            (refusal(&error), RequestOutcome::Refused)
        }
    };
    Some((body, AccessSummary { outcome, ..access_summary(record, shared.legacy_view_options()) }))
}

/// The event stream of a client that waits for a result.
struct TaskResultStream {
    shared: Arc<RouteContext>,
    id: RequestId,
    task: TaskId,
    changes: TaskWatcher,
    /// Messages of the task's call (SSE events); `None` while the task has no call in this process.
    messages: Option<mpsc::Receiver<Bytes>>,
    keep_alive: Duration,
    /// When to retry the store after a failure.
    store_retry_at: Option<Instant>,
    is_ended: bool,
}

// === impl TaskResultStream ===

impl TaskResultStream {
    /// Waits for the next piece of the stream; `None` after the last one.
    async fn next(&mut self) -> Option<BodyPiece> {
        if self.is_ended {
            return None;
        }
        // Not restarted by each change: the task may change often without a message for the client.
        let comment_at = self.shared.clock.now() + self.keep_alive;
        loop {
            tokio::select! {
                // Messages that precede the end are sent before it.
                biased;
                event = or_pending(self.messages.as_mut().map(mpsc::Receiver::recv)) => match event {
                    Some(bytes) => return Some(BodyPiece::from_bytes(bytes)),
                    None => self.messages = None,
                },
                () = first_of(self.changes.changed(), wait_until(self.store_retry_at)) => {
                    if let Some(piece) = self.read_result().await {
                        return Some(piece);
                    }
                }
                () = self.shared.overdue.stopped() => {
                    let error = record_call_error(&CallError::Closing);
                    let body = legacy::error_responses(std::slice::from_ref(&self.id), &error);
                    return Some(self.last_piece(&body, AccessSummary::new(RequestOutcome::ProxyFailed)));
                }
                () = sleep_until(comment_at.into()) => {
                    return Some(BodyPiece::from_bytes(sse::KEEP_ALIVE));
                }
            }
        }
    }

    /// Loads the task after a possible change. Returns the last piece if the task has ended or expired.
    async fn read_result(&mut self) -> Option<BodyPiece> {
        let Ok(found) = self.shared.ledger.load(&self.task).await else {
            self.store_retry_at = Some(self.shared.clock.now() + STORE_RETRY_DELAY);
            return None;
        };
        self.store_retry_at = None;
        let Some(record) = found else {
            let error = ErrorObject::new(code::INVALID_PARAMS, "Failed to retrieve task: Task has expired");
            let body = legacy::error_responses(std::slice::from_ref(&self.id), &error);
            return Some(self.last_piece(&body, AccessSummary::new(RequestOutcome::Refused)));
        };
        let Some((body, summary)) = ended_task_response(&self.shared, &self.id, &record) else {
            if self.messages.is_none() {
                // The call may have been resumed since.
                self.messages = super::attach_waiter(&self.shared, &self.task, None).ok().flatten();
            }
            return None;
        };
        // Messages that preceded the end may still be buffered.
        let mut buffered = Vec::new();
        while let Some(Ok(event)) = self.messages.as_mut().map(mpsc::Receiver::try_recv) {
            buffered.extend_from_slice(&event);
        }
        let mut last = self.last_piece(&body, summary);
        last.commit = Some(self.shared.ledger.delivery_commit(&record.id));
        if !buffered.is_empty() {
            buffered.extend_from_slice(&last.bytes);
            last.bytes = buffered.into();
        }
        Some(last)
    }

    /// The last piece of the stream, with this response.
    fn last_piece(&mut self, body: &[u8], summary: AccessSummary) -> BodyPiece {
        self.is_ended = true;
        BodyPiece::last(sse::message(body), summary)
    }
}

/// Resolves when the first of the two futures does.
async fn first_of<T>(one: impl Future<Output = T>, other: impl Future<Output = ()>) {
    tokio::select! {
        _ = one => {}
        () = other => {}
    }
}

/// Receives a client's response to the input request `key` of its task. A duplicate or late response is
/// accepted (202) and has no effect.
pub(in crate::proxy) async fn receive_response(
    shared: &RouteContext,
    request: &LegacyRequest,
    client: &LegacyClient,
    task: &TaskId,
    key: String,
) -> LegacyResponse {
    let accepted = || empty_response(StatusCode::ACCEPTED);
    let Some(frame) = &request.message else { return accepted() };
    // Copied, because slices would keep the whole request in memory.
    let (id, outcome) = match frame.kind() {
        Kind::Success { id, result } => (Some(id), Ok(Bytes::copy_from_slice(result))),
        Kind::Failure { id, error } => (id.as_ref(), Err(Bytes::copy_from_slice(error))),
        Kind::Request { .. } | Kind::Notification { .. } => return accepted(),
    };
    // Not counted as a poll: the limit would lose a response that the client sends only once.
    let Ok(record) = shared.ledger.load(task).await else {
        return response_refusal(TaskRefusal::StoreFailed);
    };
    let owner = client.owner(&shared.route);
    if record.as_ref().is_none_or(|record| !owner.can_access(record)) {
        let reason = if record.is_some() { "foreign" } else { "unknown" };
        return match super::record_miss(shared, "response", client.principal, reason) {
            refusal @ TaskRefusal::TooMany(_) => response_refusal(refusal),
            _ => accepted(),
        };
    }
    let responses = BTreeMap::from([(key.clone(), outcome.clone())]);
    // The input request may have been relayed with the server's own id before the call became a task.
    let relayed = client.session.zip(id.cloned());
    let state = Arc::clone(&shared.state);
    let delivery = super::deliver_responses(shared, task, responses, move |_| {
        if let Some((session, id)) = relayed {
            state.sessions.input_requests.remove(session, &id);
        }
        // Sent in any case: an input request that is not in the record may still be open in the call.
        Some(MailboxMessage::RawResponse(key, outcome))
    });
    match delivery.await {
        Ok(()) => accepted(),
        Err(refusal) => response_refusal(refusal),
    }
}

/// The refusal of a client's response, whose input request stays open so that the client can send the
/// response again (2025-11-25, *Sending Messages to the Server*).
fn response_refusal(refusal: TaskRefusal) -> LegacyResponse {
    let error = refusal.error(NOT_FOUND);
    let (status, outcome) = match refusal {
        TaskRefusal::TooMany(_) => (StatusCode::TOO_MANY_REQUESTS, RequestOutcome::Refused),
        TaskRefusal::Unknown | TaskRefusal::Busy | TaskRefusal::StoreFull(_) | TaskRefusal::StoreFailed => {
            (StatusCode::SERVICE_UNAVAILABLE, RequestOutcome::ProxyFailed)
        }
    };
    refuse_requests(status, &[], &error, AccessSummary::failed(outcome, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_and_invalid_ones_are_rejected() {
        let place = ListCursor { created: Timestamp::from_millis(7), id: TaskId::from_entropy([1; 16]) };
        let of =
            |params: &str| decode_cursor(Some(&Payload::read(Bytes::copy_from_slice(params.as_bytes()))));
        assert_eq!(of(&format!(r#"{{"cursor":"{}"}}"#, encode_cursor(&place))), Ok(Some(place)));
        assert_eq!(of("{}"), Ok(None));
        assert_eq!(of(r#"{"cursor":null}"#), Ok(None));
        for wrong in [r#""""#, r#""x""#, r#""!!""#, "7", r#""NyA3""#] {
            assert_eq!(of(&format!(r#"{{"cursor":{wrong}}}"#)), Err(()), "{wrong}");
        }
    }
}
