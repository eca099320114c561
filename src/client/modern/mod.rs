//! Revision 2026-07-28: each request is self-contained, and a slow call becomes a task of the extension.
//!
//! If the server requires input, it ends the request, and the call is sent again with the responses
//! ([`PendingInput`]). `task` follows a call that became a task, `outline` reads the kind of a result, and
//! `params` mirrors arguments into headers.

mod outline;
mod params;
mod task;

#[cfg(test)]
mod script;
#[cfg(test)]
mod tests;

use super::{
    CLIENT_NAME, CallEnding, CallStep, CallTurn, ClientSupport, Error, InputResponseMap, StepObserver, Task,
    ToolCall,
    http_transport::{HttpTransport, is_event_stream},
    message::{JsonRpcRequest, JsonRpcResponse, parse_result},
    progress::Progress,
    tools,
};
use crate::protocol::{
    Era, Frame, Method, Revision, code,
    headers::{self, ParamHeader},
    meta,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use hyper::body::Incoming;
use outline::ResultOutline;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use std::{collections::BTreeSet, time::Duration};

/// Delay of a retry that the server requests without input requests.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A client of one server. The protocol has no session; the state is that of one call.
#[derive(Debug)]
pub struct ModernClient {
    transport: HttpTransport,
    /// The capabilities that each request declares.
    declared: ClientSupport,
    next_id: u64,
    /// Arguments of the tool that are mirrored into headers.
    mirrored_params: Vec<ParamHeader>,
    /// The handle of the active task.
    task: Option<String>,
    /// What continues once input responses are given; `Some` while input is required.
    pending_input: Option<PendingInput>,
}

/// What the first response shows about the server's support of this revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RevisionSupport {
    /// The server supports this revision, or no other revision would help.
    Known,
    /// The server refused the request, as legacy servers do without a handshake; modern servers may, too.
    Doubtful,
}

/// What continues once input responses are given.
#[derive(Debug)]
enum PendingInput {
    /// The call itself, to be retried with the `requestState` that the server gave, if any.
    Call { state: Option<Box<RawValue>> },
    /// The task of the call. Answered requests may be listed for a moment longer, and are not passed on again
    /// (tasks extension, *Task Update Requests*).
    Task { task: Task, answered: BTreeSet<String> },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallParams<'a> {
    name: &'a str,
    arguments: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_responses: Option<&'a InputResponseMap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_state: Option<&'a RawValue>,
    #[serde(rename = "_meta")]
    meta: Value,
}

// === impl ModernClient ===

impl ModernClient {
    pub fn new(url: Uri, headers: HeaderMap, declared: ClientSupport) -> Self {
        let transport = HttpTransport::new(url, headers);
        Self { transport, declared, next_id: 1, mirrored_params: Vec::new(), task: None, pending_input: None }
    }

    /// Calls a tool, and follows its task if the call becomes one.
    pub(super) async fn call(
        &mut self,
        call: &ToolCall<'_>,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        self.task = None;
        self.send_call(call, None, None, on_step).await
    }

    /// Sends input responses, and continues the call or its task.
    pub(super) async fn respond(
        &mut self,
        call: &ToolCall<'_>,
        responses: &InputResponseMap,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        match self.pending_input.take().expect("responses follow input requests") {
            PendingInput::Call { state } => self.send_call(call, Some(responses), state, on_step).await,
            PendingInput::Task { task, mut answered } => {
                answered.extend(responses.keys().cloned());
                let updated = self.update(&task, responses, on_step).await;
                updated.map_err(|error| error.with_task(&task.id))?;
                self.follow(task, answered, on_step).await
            }
        }
    }

    /// Cancels the active task. A call without a task is cancelled by closing its connection, which dropping
    /// its future has done (2026-07-28, *Streamable HTTP, Cancellation*).
    pub(super) async fn cancel(&mut self) -> Result<(), Error> {
        let Some(task) = self.task.take() else { return Ok(()) };
        self.cancel_task(&task).await.map_err(|error| error.with_task(&task))
    }

    /// Sends the call, for the first time or as a retry with input responses: as a request of its own, with
    /// an id of its own (2026-07-28, *Multi Round-Trip Requests, Client Requirements*).
    async fn send_call(
        &mut self,
        call: &ToolCall<'_>,
        mut responses: Option<&InputResponseMap>,
        mut state: Option<Box<RawValue>>,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        loop {
            let id = self.next_id();
            let mut meta = self.request_meta();
            meta[meta::PROGRESS_TOKEN] = id.into();
            let params = CallParams {
                name: call.tool,
                arguments: call.arguments,
                input_responses: responses,
                request_state: state.as_deref(),
                meta,
            };
            let mut extra = params::mirror_arguments(&self.mirrored_params, call.arguments);
            extra.insert(headers::NAME.clone(), headers::encode(call.tool));
            let result = match self.request(id, Method::ToolsCall.as_str(), params, extra, on_step).await? {
                JsonRpcResponse::Result(result) => result,
                JsonRpcResponse::Error(error) => return Ok(CallEnding::Error(error).into()),
            };
            let mut outline: ResultOutline<'_> = parse_result(&result)?;
            match outline.result_type.as_deref() {
                Some("task") => {
                    let task = outline.task()?;
                    if !self.declared.tasks {
                        return Err(Error::UndeclaredTask { task: task.id });
                    }
                    on_step(CallStep::Handle(&task));
                    self.task = Some(task.id.clone());
                    return self.follow(task, BTreeSet::new(), on_step).await;
                }
                Some("input_required") => {
                    let requests = outline.input_requests()?;
                    let next = outline.request_state.take();
                    if !requests.is_empty() {
                        self.pending_input = Some(PendingInput::Call { state: next });
                        return Ok(CallTurn::InputRequired(requests));
                    }
                    if next.is_none() {
                        return Err(Error::Invalid(
                            "`input_required` has neither input requests nor `requestState`".to_owned(),
                        ));
                    }
                    (responses, state) = (None, next);
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                // Older servers name no result type; results of unknown types are shown as they are.
                Some(_) | None => return Ok(CallEnding::Result(result).into()),
            }
        }
    }

    /// Looks up the tool before its call, if one is given.
    pub(super) async fn open(&mut self, tool: Option<&str>) -> Result<(), Error> {
        if tool.is_some() {
            self.probe(tool).await.map_err(with_hint)?;
        }
        Ok(())
    }

    /// Looks up the tool, and whether the server supports the revision. Stores which parameters of the tool
    /// are mirrored into headers; a tool that the server does not list has none.
    ///
    /// # Errors
    /// [`Error`]; if [it may be that of a legacy server](Error::may_be_legacy_server), a legacy revision may
    /// help.
    pub(super) async fn probe(&mut self, tool: Option<&str>) -> Result<RevisionSupport, Error> {
        let Some(tool) = tool else {
            let params = json!({ "_meta": self.request_meta() });
            return Ok(RevisionSupport::from_response(&self.query(&Method::Discover, params).await?));
        };
        let mut support = RevisionSupport::Known;
        let listed = tools::find_tool(tool, async |cursor| {
            let response = self.request_tools_page(cursor).await?;
            support = RevisionSupport::from_response(&response);
            Ok(response)
        });
        let schema = listed.await?.and_then(|tool| tool.input_schema);
        let schema = schema.map_or_else(Bytes::new, |raw| Bytes::from(raw.get().to_owned()));
        self.mirrored_params = headers::param_headers(&schema);
        Ok(support)
    }

    /// Lists the tools of the server.
    pub(super) async fn list_tools(&mut self) -> Result<tools::ToolList, Error> {
        tools::list_all(async |cursor| self.request_tools_page(cursor).await).await
    }

    async fn request_tools_page(&mut self, cursor: Option<String>) -> Result<JsonRpcResponse, Error> {
        let mut params = json!({ "_meta": self.request_meta() });
        if let Some(cursor) = cursor {
            params["cursor"] = cursor.into();
        }
        self.query(&Method::ToolsList, params).await
    }

    /// Sends a request that is neither a call nor about a task.
    async fn query(&mut self, method: &Method, params: Value) -> Result<JsonRpcResponse, Error> {
        let id = self.next_id();
        self.request(id, method.as_str(), params, HeaderMap::new(), &mut |_| {}).await
    }

    fn next_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Returns the metadata of each request (2026-07-28, *Per-request metadata*).
    fn request_meta(&self) -> Value {
        let mut capabilities = self.declared.capabilities(Revision::V2026_07_28);
        if self.declared.tasks {
            capabilities["extensions"] = json!({ meta::TASKS_EXTENSION: {} });
        }
        json!({
            meta::PROTOCOL_VERSION: Revision::V2026_07_28.as_str(),
            meta::CLIENT_INFO: { "name": CLIENT_NAME, "version": env!("CARGO_PKG_VERSION") },
            meta::CLIENT_CAPABILITIES: capabilities,
        })
    }

    async fn request(
        &self,
        id: u64,
        method: &str,
        params: impl Serialize,
        mut extra: HeaderMap,
        on_step: StepObserver<'_>,
    ) -> Result<JsonRpcResponse, Error> {
        extra.insert(
            headers::PROTOCOL_VERSION.clone(),
            HeaderValue::from_static(Revision::V2026_07_28.as_str()),
        );
        extra.insert(headers::METHOD.clone(), headers::encode(method));
        let response = self.transport.post(JsonRpcRequest::new(id, method, params).to_json(), extra).await?;
        if is_event_stream(&response) {
            return self.read_events(id, response, on_step).await;
        }
        let status = response.status();
        JsonRpcResponse::from_document(status, self.transport.read_body(response.into_body()).await?, id)
    }

    async fn read_events(
        &self,
        id: u64,
        response: Response<Incoming>,
        on_step: StepObserver<'_>,
    ) -> Result<JsonRpcResponse, Error> {
        let mut events = self.transport.events(response.into_body());
        while let Some(event) = events.next().await? {
            if event.data.is_empty() {
                continue;
            }
            let frame = Frame::parse(event.data)?;
            if let Some(response) = JsonRpcResponse::from_frame(&frame, id) {
                return response;
            }
            if let Some(progress) = Progress::from_frame(&frame, id) {
                on_step(CallStep::Progress(progress));
            }
        }
        Err(self.transport.truncated_error())
    }
}

// === impl RevisionSupport ===

impl RevisionSupport {
    fn from_response(response: &JsonRpcResponse) -> Self {
        #[derive(Deserialize)]
        struct RefusalError {
            code: i64,
            #[serde(default)]
            data: Value,
        }
        let JsonRpcResponse::Error(error) = response else { return Self::Known };
        match serde_json::from_str(error.get()) {
            // The error lists the revisions of the server.
            Ok(RefusalError { code: code::UNSUPPORTED_VERSION, data }) => {
                let listed = data["supported"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let is_legacy = |revision: Revision| revision.era() == Era::Legacy;
                match listed.filter_map(Revision::parse).any(is_legacy) {
                    true => Self::Doubtful,
                    false => Self::Known,
                }
            }
            // These are error codes of this revision (2026-07-28, *Error Codes*), and of the proxy.
            Ok(RefusalError { code: -32099..=-32020 | -31999..=-31000, .. }) => Self::Known,
            Ok(RefusalError { .. }) | Err(_) => Self::Doubtful,
        }
    }
}

/// Adds a hint to errors with which legacy servers answer a request without a handshake.
fn with_hint(error: Error) -> Error {
    match error {
        Error::Status { status, detail }
            if matches!(
                status,
                StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
            ) =>
        {
            let hint = "the server may support legacy revisions only: try `--protocol 2025-11-25`";
            Error::Status { status, detail: format!("{detail}\n{hint}") }
        }
        other => other,
    }
}
