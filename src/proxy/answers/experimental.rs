//! Responses for the tasks of 2025-11-25 (*Tasks*): `tasks/get`, `tasks/result`, `tasks/cancel`,
//! `tasks/list`, and the client's responses to input requests of a task.

use super::TaskRefusal;
use crate::{
    dialect::legacy,
    protocol::{ErrorObject, Kind, Method, Payload, RequestId, Timestamp, code, sse},
    proxy::{
        AccessSummary, BodyPiece, LegacyRequest, LegacyResponse, ResponseBody,
        call_registry::MailboxMessage,
        legacy_http::{empty_response, refusal, refused, stream_response, success, task_end},
        persist::STORE_RETRY_DELAY,
        reply::lost_error,
        route_context::RouteContext,
        session::LegacyClient,
        task_watchers::TaskWatcher,
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
    passage: &LegacyRequest,
    client: &LegacyClient,
    method: &Method,
    id: &RequestId,
    task: Option<&str>,
) -> LegacyResponse {
    if *method == Method::TasksList {
        return list(shared, passage, client, id).await;
    }
    let owner = client.owner(&shared.route);
    let record = match super::look_up(shared, method, task, &owner, client.principal).await {
        Ok(record) => record,
        Err(missing) => return not_found(id, missing),
    };
    match method {
        Method::TasksResult => result(shared, passage, id, record).await,
        Method::TasksCancel => cancel(shared, id, &record).await,
        _ => show(shared, id, &record),
    }
}

/// The response that refuses a request about a task, for the reason `missing`.
fn not_found(id: &RequestId, missing: TaskRefusal) -> LegacyResponse {
    // Always 200: clients in the field do not show HTTP errors to their users.
    refusal(id, &missing.error(NOT_FOUND))
}

/// Responds with the status of the task: to `tasks/get`, and to a successful `tasks/cancel`.
fn show(shared: &RouteContext, id: &RequestId, record: &Record) -> LegacyResponse {
    let terms = shared.legacy_terms();
    let view = experimental::task_object(record, shared.clock.timestamp(), terms);
    success(id, &view, access_summary(record, terms))
}

/// The summary for the access log, which is the audit trail of retrievals: the shown status, and the span of
/// the task's call.
fn access_summary(record: &Record, terms: experimental::ViewOptions) -> AccessSummary {
    let shown = Some(experimental::task_status(record, terms.tool_errors));
    AccessSummary { shown, origin: record.trace.clone(), ..AccessSummary::default() }
}

/// Responds to `tasks/cancel` once the cancellation is stored. A task that has ended cannot be cancelled.
async fn cancel(shared: &RouteContext, id: &RequestId, record: &Record) -> LegacyResponse {
    let now = match super::cancel(&shared.ledger, &shared.call_registry, &record.id, Canceller::Client).await
    {
        Ok(Some(cancelled)) => return show(shared, id, &cancelled),
        Ok(None) => shared.ledger.load(&record.id).await,
        Err(error) => Err(error),
    };
    let status = match now {
        Ok(Some(ended)) => experimental::task_status(&ended, shared.legacy_terms().tool_errors),
        Ok(None) => return not_found(id, TaskRefusal::Unknown),
        Err(error) => return not_found(id, error.into()),
    };
    let message = format!("Cannot cancel task: already in terminal status '{status}'");
    refusal(id, &ErrorObject::new(code::INVALID_PARAMS, message))
}

/// Responds to `tasks/list` with one page of the client's tasks.
async fn list(
    shared: &RouteContext,
    passage: &LegacyRequest,
    client: &LegacyClient,
    id: &RequestId,
) -> LegacyResponse {
    let refuse = |code, message: &str| refusal(id, &ErrorObject::new(code, message));
    if !client.is_identifiable() {
        // The response to `initialize` did not declare `tasks/list` either.
        return refuse(
            code::METHOD_NOT_FOUND,
            "tasks/list is not served: the client has neither credentials nor a session that distinguishes it",
        );
    }
    let Ok(after) = decode_cursor(passage.params()) else {
        return refuse(code::INVALID_PARAMS, "the cursor is not valid");
    };
    if let Err(limited) = super::check_poll_limit(shared, client.principal) {
        return not_found(id, limited);
    }
    let owner = client.owner(&shared.route);
    let (records, more) = match shared.ledger.page(&owner, after.as_ref(), PAGE_SIZE).await {
        Ok(page) => page,
        Err(error) => return not_found(id, error.into()),
    };
    let next = records.last().filter(|_| more).map(|last| encode_cursor(&ListCursor::of(last)));
    let now = shared.clock.timestamp();
    // Expired tasks cannot be fetched, and a client with tickets does not know tasks.
    let is_shown = |record: &&Arc<Record>| !record.is_expired(now) && record.view != TaskView::Ticket;
    let living = records.iter().filter(is_shown).map(|record| &**record);
    let view = experimental::task_list(living, next.as_deref(), now, shared.legacy_terms());
    success(id, &view, AccessSummary::default())
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
fn encode_cursor(place: &ListCursor) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("{} {}", place.created.as_millis(), place.id.as_str()))
}

/// Responds to `tasks/result`: at once if the task has ended, otherwise on an event stream once it ends
/// (2025-11-25, *Tasks, Result Retrieval*).
async fn result(
    shared: &Arc<RouteContext>,
    passage: &LegacyRequest,
    id: &RequestId,
    record: Arc<Record>,
) -> LegacyResponse {
    // Watch first, then load the record: no change is missed in between.
    let Some(changes) = shared.ledger.watchers.wait_for(&record.id, None) else {
        return not_found(id, TaskRefusal::Busy);
    };
    let record = match shared.ledger.load(&record.id).await {
        Ok(found) => found.unwrap_or(record),
        Err(error) => return not_found(id, error.into()),
    };
    if let Some((body, account)) = outcome(shared, id, &record) {
        return task_end(body, account, Some(shared.ledger.delivery(&record.id)));
    }
    let Ok(receiver) = super::attach(shared, &record.id, None) else {
        return not_found(id, TaskRefusal::Busy);
    };
    let waiting = TaskResultStream {
        shared: Arc::clone(shared),
        id: id.clone(),
        task: record.id.clone(),
        changes,
        messages: receiver,
        keep_alive: passage.keep_alive,
        store_retry_at: None,
        is_over: false,
    };
    let pieces = stream::unfold(waiting, async |mut waiting| {
        let piece = waiting.next().await?;
        Some((piece, waiting))
    });
    stream_response(ResponseBody::Pieces(pieces.boxed()))
}

/// The response body to `tasks/result` with its access-log summary; `None` if the task has not ended.
fn outcome(shared: &RouteContext, id: &RequestId, record: &Record) -> Option<(Bytes, AccessSummary)> {
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
    Some((body, AccessSummary { outcome, ..access_summary(record, shared.legacy_terms()) }))
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
    is_over: bool,
}

// === impl TaskResultStream ===

impl TaskResultStream {
    /// Waits for the next piece of the stream; `None` after the last one.
    async fn next(&mut self) -> Option<BodyPiece> {
        if self.is_over {
            return None;
        }
        // Not restarted by each change: the task may change often without a message for the client.
        let silent = self.shared.clock.now() + self.keep_alive;
        loop {
            tokio::select! {
                // Messages that precede the end are sent before it.
                biased;
                event = or_pending(self.messages.as_mut().map(mpsc::Receiver::recv)) => match event {
                    Some(bytes) => return Some(BodyPiece::of(bytes)),
                    None => self.messages = None,
                },
                () = either(self.changes.changed(), wait_until(self.store_retry_at)) => {
                    if let Some(piece) = self.read_result().await {
                        return Some(piece);
                    }
                }
                () = self.shared.overdue.stopped() => {
                    let error = lost_error(&CallError::Closing);
                    let body = legacy::error_responses(std::slice::from_ref(&self.id), &error);
                    return Some(self.last(&body, AccessSummary::of(RequestOutcome::ProxyFailed)));
                }
                () = sleep_until(silent.into()) => {
                    return Some(BodyPiece::of(sse::KEEP_ALIVE));
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
            return Some(self.last(&body, AccessSummary::of(RequestOutcome::Refused)));
        };
        let Some((body, account)) = outcome(&self.shared, &self.id, &record) else {
            if self.messages.is_none() {
                // The call may have been resumed since.
                self.messages = super::attach(&self.shared, &self.task, None).ok().flatten();
            }
            return None;
        };
        // Messages that preceded the end may still be buffered.
        let mut words = Vec::new();
        while let Some(Ok(event)) = self.messages.as_mut().map(mpsc::Receiver::try_recv) {
            words.extend_from_slice(&event);
        }
        let mut last = self.last(&body, account);
        last.commit = Some(self.shared.ledger.delivery(&record.id));
        if !words.is_empty() {
            words.extend_from_slice(&last.bytes);
            last.bytes = words.into();
        }
        Some(last)
    }

    /// The last piece of the stream, with this response.
    fn last(&mut self, body: &[u8], account: AccessSummary) -> BodyPiece {
        self.is_over = true;
        BodyPiece::last(sse::message(body), account)
    }
}

/// Resolves when the first of the two futures does.
async fn either<T>(one: impl Future<Output = T>, other: impl Future<Output = ()>) {
    tokio::select! {
        _ = one => {}
        () = other => {}
    }
}

/// Receives a client's response to the input request `key` of its task. A duplicate or late response is
/// accepted (202) and has no effect.
pub(in crate::proxy) async fn receive_response(
    shared: &RouteContext,
    passage: &LegacyRequest,
    client: &LegacyClient,
    task: &TaskId,
    key: String,
) -> LegacyResponse {
    let taken = || empty_response(StatusCode::ACCEPTED);
    let Some(frame) = &passage.message else { return taken() };
    // Copied, because slices would keep the whole request in memory.
    let (id, outcome) = match frame.kind() {
        Kind::Success { id, result } => (Some(id), Ok(Bytes::copy_from_slice(result))),
        Kind::Failure { id, error } => (id.as_ref(), Err(Bytes::copy_from_slice(error))),
        Kind::Request { .. } | Kind::Notification { .. } => return taken(),
    };
    // Not counted as a poll: the limit would lose a response that the client sends only once.
    let Ok(record) = shared.ledger.load(task).await else {
        return response_refused(TaskRefusal::StoreFailed);
    };
    let owner = client.owner(&shared.route);
    if record.as_ref().is_none_or(|record| !owner.can_access(record)) {
        let reason = if record.is_some() { "foreign" } else { "unknown" };
        return match super::record_miss(shared, "response", client.principal, reason) {
            refusal @ TaskRefusal::TooMany(_) => response_refused(refusal),
            _ => taken(),
        };
    }
    let answers = BTreeMap::from([(key.clone(), outcome.clone())]);
    // The input request may have been relayed with the server's own id before the call became a task.
    let relayed = client.session.zip(id.cloned());
    let lasting = Arc::clone(&shared.state);
    let answered = super::deliver_responses(shared, task, answers, move |_, room| {
        if let Some((session, id)) = relayed {
            lasting.sessions.input_requests.remove(session, &id);
        }
        // Sent in any case: an input request that is not in the record may still be open in the call.
        room.send(MailboxMessage::RawResponse(key, outcome));
    });
    match answered.await {
        Ok(()) => taken(),
        Err(refusal) => response_refused(refusal),
    }
}

/// The refusal of a client's response, whose input request stays open so that the client can send the
/// response again (2025-11-25, *Sending Messages to the Server*).
fn response_refused(refusal: TaskRefusal) -> LegacyResponse {
    let error = refusal.error(NOT_FOUND);
    let (status, outcome) = match refusal {
        TaskRefusal::TooMany(_) => (StatusCode::TOO_MANY_REQUESTS, RequestOutcome::Refused),
        TaskRefusal::Unknown | TaskRefusal::Busy | TaskRefusal::StoreFull(_) | TaskRefusal::StoreFailed => {
            (StatusCode::SERVICE_UNAVAILABLE, RequestOutcome::ProxyFailed)
        }
    };
    refused(status, &[], &error, AccessSummary::failed(outcome, &error))
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
