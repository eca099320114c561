//! Tickets for legacy clients: the tool list for ticket holders, and calls of the tools that take a ticket. A
//! call that is answered with a ticket is made like a task (`legacy/task_call`).

use super::tool_call::{ResultWatch, TicketCaller, TicketToolAnswer, WatchEvent, call_ticket_tool};
use crate::{
    bridge::{
        offer,
        ticket::{TicketAction, TicketToolNames},
    },
    dialect::legacy,
    policy::{RolloutMembership, TicketGrant},
    protocol::{ErrorObject, Frame, Kind, ProgressHeartbeat, RequestId, sse},
    proxy::{
        AccessSummary, BodyPiece, DeliveryCommit, LegacyRequest, LegacyResponse, ResponseBody,
        relay::{
            ResponseEdit,
            legacy_http::{empty_response, result_response, stream_response, task_end_response},
        },
        reply::record_call_error,
        route_context::RouteContext,
        session::{ClientDeclaration, LegacyClient, RequestRegistration},
        tasks::watchers::InputFilter,
        tickets,
    },
    task::{Record, view},
    telemetry::RequestOutcome,
    upstream::CallError,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::{sync::Notify, time::timeout};

/// Builds the edit of the response to `tools/list` that adds the ticket tools; it is applied after
/// `previous_edit`.
pub(in crate::proxy) fn edit_tool_list(
    shared: &Arc<RouteContext>,
    client: &LegacyClient,
    (grant, membership): (TicketGrant, RolloutMembership),
    previous_edit: Option<ResponseEdit>,
) -> ResponseEdit {
    let (shared, session) = (Arc::clone(shared), client.session);
    let mut previous_edit = previous_edit;
    Box::new(move |response, session_id| {
        let edited = previous_edit.as_mut().and_then(|edit| edit(response, session_id));
        let frame = edited.clone().and_then(|bytes| Frame::parse(bytes).ok());
        let response = frame.as_ref().unwrap_or(response);
        tickets::edit_tool_list(&shared, response, (grant, &membership), |names| {
            // Without a session nothing is recorded: the operator has named the client, which counts as
            // having the ticket tools.
            session.is_none_or(|session| {
                shared.sessions.ticket_holders.set_given_names(session, names);
                true
            })
        })
        .or(edited)
    })
}

/// Serves a call of the ticket tool with this action; the client has the tools under `names`.
pub(in crate::proxy) async fn serve(
    shared: &Arc<RouteContext>,
    request: &LegacyRequest,
    client: &LegacyClient,
    id: &RequestId,
    (action, names): (TicketAction, &Arc<TicketToolNames>),
) -> LegacyResponse {
    let params = request.params();
    let grant = tickets::legacy_eligibility(shared, client, request);
    let declaration =
        client.session.and_then(|session| shared.sessions.ticket_holders.client_declaration(session));
    let client_declaration = declaration.clone();
    let askable = InputFilter::new(move |method, params| {
        client_declaration.as_ref().is_none_or(|declaration| declaration.can_receive(method, params))
    });
    let caller = TicketCaller {
        owner: client.owner(&shared.route),
        principal: client.principal,
        names,
        wait: tickets::result_wait(shared, grant),
        accepts_messages: true,
        input_filter: askable,
    };
    let watch = match call_ticket_tool(shared, caller, action, params).await {
        TicketToolAnswer::Result(result, summary) | TicketToolAnswer::CallResult(_, result, summary) => {
            return result_response(id, result.to_string().as_bytes(), summary);
        }
        TicketToolAnswer::Pending(watch) => watch,
    };
    let token = params.and_then(offer::progress_token).and_then(RequestId::from_token);
    let heartbeat = token.map(|token| {
        ProgressHeartbeat::new(token.detached().as_bytes().clone(), client.has_progress_messages())
    });
    let cancelled = Arc::new(Notify::new());
    let registration = client
        .session
        .map(|session| shared.sessions.ticket_waits.register(session, id, Arc::clone(&cancelled)));
    let (id, is_over) = (id.detached(), false);
    let wait =
        TicketWait { watch, id, heartbeat, cancelled, declaration, _registration: registration, is_over };
    respond(wait, request.keep_alive).await
}

/// A client's request that waits for the result of a ticket's call.
struct TicketWait {
    watch: Box<ResultWatch>,
    id: RequestId,
    /// Present if the client gave a progress token.
    heartbeat: Option<ProgressHeartbeat>,
    /// Notified when the client cancels its request: then no response is owed, and some clients fail on an
    /// unexpected response.
    cancelled: Arc<Notify>,
    /// The capabilities that the client declared in `initialize`; `None` if they are not known.
    declaration: Option<Arc<ClientDeclaration>>,
    _registration: Option<RequestRegistration<Arc<Notify>>>,
    is_over: bool,
}

/// Responds with a document if the result arrives within `keep_alive`, otherwise with an event stream.
async fn respond(mut wait: TicketWait, keep_alive: Duration) -> LegacyResponse {
    let first = match timeout(keep_alive, wait.next()).await {
        Ok(TicketWaitEvent::Response(body, summary, commit)) => {
            return task_end_response(body, summary, commit);
        }
        Ok(TicketWaitEvent::Cancelled) => return empty_response(StatusCode::ACCEPTED),
        Ok(TicketWaitEvent::Message(event)) => BodyPiece::from_bytes(event),
        Err(_silence) => BodyPiece::from_bytes(sse::KEEP_ALIVE),
    };
    let remaining = stream::unfold(wait, move |mut wait| async move {
        if wait.is_over {
            return None;
        }
        let piece = match timeout(keep_alive, wait.next()).await {
            Ok(TicketWaitEvent::Response(body, summary, commit)) => {
                BodyPiece { commit, ..BodyPiece::last(sse::message(&body), summary) }
            }
            Ok(TicketWaitEvent::Cancelled) => BodyPiece::end(),
            Ok(TicketWaitEvent::Message(event)) => BodyPiece::from_bytes(event),
            Err(_silence) => BodyPiece::from_bytes(sse::KEEP_ALIVE),
        };
        Some((piece, wait))
    });
    stream_response(ResponseBody::Stream(stream::once(std::future::ready(first)).chain(remaining).boxed()))
}

/// An event of the wait for a ticket's result, as it is sent to the client.
enum TicketWaitEvent {
    /// An SSE event to relay to the client.
    Message(Bytes),
    /// The JSON-RPC response to the request. The commit is present if the response is the result of the call,
    /// and is confirmed on delivery.
    Response(Bytes, AccessSummary, Option<DeliveryCommit>),
    /// The end without a response, because the client cancelled its request.
    Cancelled,
}

// === impl TicketWait ===

impl TicketWait {
    /// Waits for the next event to send to the client.
    async fn next(&mut self) -> TicketWaitEvent {
        loop {
            let next = tokio::select! {
                biased;
                () = self.cancelled.notified() => {
                    self.is_over = true;
                    return TicketWaitEvent::Cancelled;
                }
                next = self.watch.next() => next,
            };
            match next {
                WatchEvent::Message(event) if self.can_deliver(&event) => {
                    return TicketWaitEvent::Message(event);
                }
                WatchEvent::Message(_) => {}
                WatchEvent::Progress(message) => {
                    let notification =
                        self.heartbeat.as_mut().and_then(|heartbeat| heartbeat.beat_with_message(&message));
                    if let Some(notification) = notification {
                        return TicketWaitEvent::Message(sse::message(&notification));
                    }
                }
                // Input requests that the client can receive are put on this stream, or on the session's GET
                // stream.
                WatchEvent::InputRequired(record) => drop(self.watch.receivable_requests(&record)),
                WatchEvent::Ended(record, commit) => return self.end_response(&record, commit),
                WatchEvent::StillRunning(record) => {
                    let still_running_result = self.watch.running_result(&record);
                    return self.final_response(
                        &still_running_result,
                        AccessSummary {
                            shown_status: Some("working"),
                            origin: record.trace.clone(),
                            ..AccessSummary::default()
                        },
                    );
                }
                WatchEvent::Expired => {
                    return self.final_response(
                        &view::ticket::unknown_ticket_result(),
                        AccessSummary::new(RequestOutcome::Refused),
                    );
                }
                WatchEvent::Closing => {
                    let error = record_call_error(&CallError::Closing);
                    self.is_over = true;
                    let body = legacy::error_responses(std::slice::from_ref(&self.id), &error);
                    return TicketWaitEvent::Response(
                        body,
                        AccessSummary::new(RequestOutcome::ProxyFailed),
                        None,
                    );
                }
            }
        }
    }

    /// Whether the client may receive this event. An input request for a capability that the client did not
    /// declare is not delivered.
    fn can_deliver(&self, event: &Bytes) -> bool {
        let Some(declaration) = &self.declaration else { return true };
        let Some(Ok(message)) = sse::data(event).map(Frame::parse) else { return true };
        match message.kind() {
            Kind::Request { method, params, .. } => declaration.can_receive(method, params.as_deref()),
            Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => true,
        }
    }

    /// Builds the response for a call that has ended: the result or error of the call.
    fn end_response(&mut self, record: &Record, commit: DeliveryCommit) -> TicketWaitEvent {
        self.is_over = true;
        let (shown, origin) = (Some(record.state.status()), record.trace.clone());
        let shown = AccessSummary { shown_status: shown, origin, ..AccessSummary::default() };
        let (body, summary) = match view::ticket::call_outcome(record, false) {
            Some(view::ticket::CallOutcome::Result(result)) => {
                (legacy::success_response(&self.id, &result), shown)
            }
            Some(view::ticket::CallOutcome::Error(error)) => {
                let error = ErrorObject::from_raw(error);
                let summary = AccessSummary { outcome: RequestOutcome::ServerError, ..shown };
                (legacy::error_responses(std::slice::from_ref(&self.id), &error), summary)
            }
            Some(view::ticket::CallOutcome::Cancelled) | None => {
                let result =
                    view::ticket::already_ended_result(record, &self.watch.ticket_options.names.result);
                (legacy::success_response(&self.id, result.to_string().as_bytes()), shown)
            }
        };
        TicketWaitEvent::Response(body, summary, Some(commit))
    }

    /// Builds the final response with this result, and ends the wait.
    fn final_response(&mut self, result: &Value, summary: AccessSummary) -> TicketWaitEvent {
        self.is_over = true;
        TicketWaitEvent::Response(
            legacy::success_response(&self.id, result.to_string().as_bytes()),
            summary,
            None,
        )
    }
}
