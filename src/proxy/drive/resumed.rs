//! Resumes the call of a task that a former process has left.

use super::{
    CallDriver, CallForm, CallSpan, DetachedState, Exchange,
    canonical::{CanonicalForm, ServerCell},
    deadlines,
    native::NativeForm,
    open_requests::{AnswerTarget, OpenRequests},
};
use crate::{
    bridge::exchange::InputDelivery,
    dialect::{Call, Caller, ClientInfo, Credentials, ExtraHeaders, Principal},
    protocol::{Capabilities, Frame, InputRequest, InputResponses, Method, RequestId},
    proxy::{
        call_registry::CallRegistration,
        route_context::RouteContext,
        session::SessionKey,
        tasks::{
            anchor::{AnchorForm, TaskAnchor},
            ledger::TaskLease,
            orphan_report::OrphanFate,
        },
    },
    task::{InputAnswer, Record, TaskState, view::experimental::TaskResultFormat},
    telemetry::CallOrigin,
    upstream::{CallerIdentity, Deferral, ResumedCall, ServerRequest},
};
use bytes::Bytes;
use std::{sync::Arc, time::Instant};

/// The resources of a task whose call is to be resumed: the registration of the call, the lease of the task,
/// and the task's entry in the log's report.
pub(in crate::proxy) struct Resumption {
    /// The registration of the call, with its mailbox.
    pub(in crate::proxy) registration: CallRegistration,
    /// The lease of the task.
    pub(in crate::proxy) lease: TaskLease,
    /// The task's entry in the log's report on recovered tasks.
    pub(in crate::proxy) fate: OrphanFate,
}

/// Resumes the call of a task in the background; the call is not sent again. `record` must have been loaded
/// after the call was registered.
///
/// # Errors
/// The unchanged `resumption` if the call cannot be resumed: the server does not support that, or may not
/// have received a response that cannot be sent again.
pub(in crate::proxy) fn resume_call(
    shared: &Arc<RouteContext>,
    resumption: Resumption,
    record: &Record,
    anchor: &TaskAnchor,
    credentials: Credentials,
) -> Result<(), Resumption> {
    let Some(RestoredInput { open: restored, undelivered, closed_keys }) =
        RestoredInput::restore(record, anchor)
    else {
        return Err(resumption);
    };
    let principal = Principal::from_bytes(record.owner.principal);
    let declared = match &anchor.words {
        AnchorForm::Canonical { declared } => Capabilities::read(Bytes::copy_from_slice(declared.as_bytes())),
        AnchorForm::Native { .. } => Ok(Capabilities::none()),
    };
    let Ok(capabilities) = declared.map(Arc::new) else { return Err(resumption) };
    // The client info is not needed: the session has been initialized already.
    let caller = CallerIdentity { principal, credentials, capabilities, client_info: ClientInfo::default() };
    let deferral = Deferral::new(true);
    deferral.mark_deferred();
    let mut ids: Vec<_> = restored.iter().map(|request| request.id.clone()).collect();
    ids.extend(undelivered.iter().map(|response| response.id.clone()));
    // The server has received the other responses, and may still repeat their input requests.
    for id in anchor.questions.iter().filter_map(|(token, _)| parse_id(token)) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let server = shared.upstream.resumption();
    let resumed = server.and_then(|server| server.resume_call(&caller, &anchor.call, ids, deferral.clone()));
    let Some(ResumedCall { replies, open_requests: responders, off_stream }) = resumed else {
        return Err(resumption);
    };
    let mut responders = responders.into_iter();

    let policy = shared.route.tool_policy(&record.tool);
    let mut open_requests = OpenRequests::new(&shared.route.path, &policy.keys, InputResponses::default());
    open_requests.mark_keys_used(&record.keys_used);
    for (request, responder) in restored.into_iter().zip(responders.by_ref()) {
        let origin = CallOrigin { principal: principal.to_string(), tool: record.tool.to_string() };
        open_requests.restore(
            request.key,
            request.request,
            request.id,
            AnswerTarget::Direct(responder),
            origin,
        );
    }
    let mut sent_responses = Vec::new();
    for (UndeliveredResponse { key, id, answer }, responder) in
        undelivered.into_iter().zip(responders.by_ref())
    {
        // A server that has the response already ignores another one with the same id.
        responder.respond(answer);
        sent_responses.push((id, key));
    }
    responders.for_each(|responder| responder.discard());
    let (input_delivery, form) = match &anchor.words {
        AnchorForm::Canonical { .. } => {
            let began = shared.clock.now();
            (
                InputDelivery::RoundTrips,
                CallForm::Canonical(canonical_form(caller, record, anchor, deferral, began)),
            )
        }
        AnchorForm::Native { session, wants_progress } => {
            let session = session.map(SessionKey::from_digest);
            let begin =
                |(key, call)| shared.sessions.in_flight.begin_proxy_call(key, anchor.call.call, None, call);
            let native = NativeForm {
                owner: record.owner.clone(),
                session,
                tool: record.tool.to_string(),
                ttl: None,
                wants_progress: *wants_progress,
                view: record.view,
                // The client already has the handle.
                result_format: TaskResultFormat::Published,
                ticket_options: None,
                progress: None,
                deferral,
                needs_credentials: anchor.needs_credentials,
                in_flight: session.zip(off_stream).map(begin),
                stream_opening: None,
                began: shared.clock.now(),
                last_status: record.state.status(),
            };
            (InputDelivery::Stream, CallForm::Native(Box::new(native)))
        }
    };
    let limits = shared.call_limits(&record.tool, principal, None);
    let (replies, _) = match &limits {
        Some(limits) => limits.limit_replies(None, replies, &shared.clock),
        None => (replies, None),
    };
    let Resumption { registration, lease, fate } = resumption;
    let mut driver = Box::new(CallDriver {
        shared: Arc::clone(shared),
        exchange: Exchange::stored_task(input_delivery, deadlines(shared, None, record.view)),
        replies: Some(replies),
        limits,
        // The call is not queued: the server has it already, whatever the limits are now.
        dequeued: None,
        observed: None,
        retries: 0,
        policy,
        detached: Some(DetachedState::from_registration(registration, open_requests)),
        form,
        span: CallSpan::begin_for_record(shared, record, anchor.call.call),
    });
    driver.detached().lease = Some(lease);
    driver.detached().restore_anchor(anchor.call.clone(), sent_responses, shared.clock.now(), fate);
    driver.start_task();
    if let (CallForm::Native(_), Some(DetachedState { open_requests, streams: Some(streams), .. })) =
        (&driver.form, driver.detached.as_deref_mut())
    {
        open_requests.numbers().into_iter().for_each(|input| streams.queue_input_request(input, false));
    }
    for key in closed_keys {
        driver.queue_withdrawal(key);
    }
    driver.detached().registration.begin_reading();
    // Requests that wait for the result have found no call to attach to, and attach now.
    shared.ledger.watchers.wake_waiters(&record.id);
    shared.stopping.spawn(driver.run());
    Ok(())
}

/// The state of a task's input requests, restored from the task record and the anchor of its call.
pub struct RestoredInput {
    /// Input requests that are still open.
    pub open: Vec<RestoredRequest>,
    /// Responses that the server may not have received.
    pub undelivered: Vec<UndeliveredResponse>,
    /// Keys of requests and responses that are obsolete and to be removed from the record: the server has
    /// cancelled the request, or the server's request id is unknown.
    pub closed_keys: Vec<String>,
}

/// An input request of a task that is still open.
pub struct RestoredRequest {
    /// The key in the task record.
    pub key: String,
    /// The server's request id.
    pub id: RequestId,
    /// The request, in the form of the call's messages.
    pub request: ServerRequest,
}

/// A client's response to an input request that the server may not have received.
pub struct UndeliveredResponse {
    /// The key of the input request in the task record.
    pub key: String,
    /// The server's request id.
    pub id: RequestId,
    /// The response: a result or an error, as raw JSON.
    pub answer: InputAnswer,
}

// === impl RestoredInput ===

impl RestoredInput {
    /// Restores the input requests from the task record and the anchor of its call. `None` if a response
    /// cannot be sent again, because the server's request id is unknown.
    pub fn restore(record: &Record, anchor: &TaskAnchor) -> Option<Self> {
        let undelivered = undelivered_responses(record, anchor)?;
        let open = restored_requests(record, anchor);
        let mut closed_keys = closed_keys(record, &open);
        closed_keys.extend(record.undelivered.keys().filter(|key| anchor.taken_back.contains(key)).cloned());
        Some(Self { open, undelivered, closed_keys })
    }
}

/// The request id with this raw JSON token.
fn parse_id(token: &str) -> Option<RequestId> {
    RequestId::from_token(Bytes::copy_from_slice(token.as_bytes()))
}

/// The responses that the server may not have received. `None` if one of them cannot be sent again, because
/// the server's request id is unknown.
fn undelivered_responses(record: &Record, anchor: &TaskAnchor) -> Option<Vec<UndeliveredResponse>> {
    let answered = |(key, answer): (&String, &InputAnswer)| {
        let (token, _) = anchor.questions.iter().find(|(_, other_key)| other_key == key)?;
        let id = parse_id(token)?;
        Some(UndeliveredResponse { key: key.clone(), id, answer: answer.clone() })
    };
    let is_deliverable = |(key, _): &(&String, &InputAnswer)| !anchor.taken_back.contains(key);
    record.undelivered.iter().filter(is_deliverable).map(answered).collect()
}

/// The open input requests, each once.
fn restored_requests(record: &Record, anchor: &TaskAnchor) -> Vec<RestoredRequest> {
    let none = Default::default();
    let outstanding = match &record.state {
        TaskState::InputRequired { outstanding } => outstanding,
        TaskState::Working
        | TaskState::Completed { .. }
        | TaskState::Failed { .. }
        | TaskState::Cancelled => &none,
    };
    let restore = |(token, key): &(String, String)| {
        let id = parse_id(token)?;
        let request = outstanding.get(key)?;
        let server_request = match anchor.words {
            AnchorForm::Canonical { .. } => {
                ServerRequest::Canonical(InputRequest::from_raw(request.clone())?)
            }
            // `request` has all members of the message but `jsonrpc` and `id`.
            AnchorForm::Native { .. } => {
                let head = format!(r#"{{"jsonrpc":"2.0","id":{token},"#);
                ServerRequest::Native(
                    Frame::parse([head.as_bytes(), request.get(1..)?].concat().into()).ok()?,
                )
            }
        };
        Some(RestoredRequest { key: key.clone(), id, request: server_request })
    };
    let mut open: Vec<RestoredRequest> = Vec::new();
    for request in anchor.questions.iter().filter_map(restore) {
        if open.iter().all(|other| other.key != request.key) {
            open.push(request);
        }
    }
    open
}

/// The keys of requests that are outstanding in the record and cannot be restored: the anchor does not
/// contain them, or they cannot be parsed.
fn closed_keys(record: &Record, open: &[RestoredRequest]) -> Vec<String> {
    let TaskState::InputRequired { outstanding } = &record.state else { return Vec::new() };
    let is_open = |key: &&String| open.iter().any(|open| open.key == **key);
    outstanding.keys().filter(|key| !is_open(key)).cloned().collect()
}

/// The state of a resumed call in the form of 2026-07-28. The client's request is not known any more, except
/// for the tool.
fn canonical_form(
    caller: CallerIdentity,
    record: &Record,
    anchor: &TaskAnchor,
    deferral: Deferral,
    began: Instant,
) -> CanonicalForm {
    let CallerIdentity { principal, credentials, capabilities, client_info } = caller;
    let call = Call {
        bytes: Bytes::new(),
        id: RequestId::from_number(anchor.call.call),
        method: Method::ToolsCall,
        params: None,
        target: Some(record.tool.to_string()),
        progress_token: None,
        log_level: None,
        headers: ExtraHeaders::default(),
        client_info: client_info.clone(),
        trace: None,
    };
    CanonicalForm {
        call: Arc::new(call),
        caller: Arc::new(Caller {
            principal,
            credentials,
            capabilities,
            client_info,
            match_headers: None,
            rollout_membership: Default::default(),
        }),
        server: ServerCell::default(),
        binding: None,
        missing_capability: None,
        supplied: InputResponses::default(),
        deferral: Some(deferral),
        ticket_options: None,
        progress: None,
        began,
    }
}
