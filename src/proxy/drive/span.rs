//! The trace span of a call at the server, from before the call is sent until its end, even if the call
//! outlives its client's request. Span events record that the call becomes a task, input requests and
//! responses, and cancellation.

use super::super::{
    reply::{CallEnd, call_error_object},
    route_context::RouteContext,
};
use crate::{
    dialect::Call,
    protocol::{ErrorObject, Frame, Kind, Method, RequestId, TraceContext},
    task::{self, Record, TaskId},
    telemetry::{
        RequestOutcome,
        trace::{
            Span, SpanKind,
            mcp::{self, MessageAttributes, task_tag},
        },
    },
    upstream::ServerUrl,
};
use std::sync::Arc;

/// The trace span of a call at the server. If it is dropped before an outcome is recorded, the span fails as
/// `cancelled`.
#[derive(Debug, Default)]
pub(in crate::proxy) struct CallSpan {
    span: Span,
    /// Whether the span has the request id that was sent to the server.
    has_id: bool,
    /// Whether the span has an outcome.
    is_ended: bool,
}

// === impl CallSpan ===

impl CallSpan {
    /// Begins the span of a message to the server, as a child of `trace`, the span of the client's request;
    /// without `trace` nothing is recorded. `id` is the request id at the server, if it is known already.
    pub(in crate::proxy) fn begin(
        shared: &RouteContext,
        trace: Option<&TraceContext>,
        (method, target): (&Method, Option<&str>),
        id: Option<&RequestId>,
    ) -> Self {
        let Some(parent) = trace else { return Self::default() };
        let message = MessageAttributes { method: method.as_str(), target, id };
        let mut span = message.begin_span(&shared.tracer, SpanKind::Client, Some(parent));
        if span.is_recorded() {
            span.set("deferral.route", shared.route.path.to_string());
            set_server_address(&mut span, shared.server_url());
        }
        Self { span, has_id: id.is_some(), is_ended: false }
    }

    /// Begins the span of a call, and puts the span's context into the headers of the call for the server.
    pub(super) fn begin_for_call(shared: &RouteContext, call: &mut Arc<Call>) -> Self {
        let span = Self::begin(shared, call.trace.as_deref(), (&call.method, call.target.as_deref()), None);
        if let Some(context) = span.context() {
            let call = Arc::make_mut(call);
            context.write_to_headers(call.headers.to_mut());
            call.trace = Some(Arc::new(context.clone()));
        }
        span
    }

    /// Begins the span of a recovered call, in the trace of its original request. `id` is the request id at
    /// the server.
    pub(super) fn begin_for_record(shared: &RouteContext, record: &Record, id: u64) -> Self {
        let call = (&Method::ToolsCall, Some(&*record.tool));
        let mut span = Self::begin(shared, record.trace.as_deref(), call, Some(&RequestId::from_number(id)));
        span.add_event("deferral.task.resumed", &[]);
        span.set_task_id(&record.id);
        span
    }

    /// The trace context that the server receives; `None` if the call is not traced.
    pub(in crate::proxy) fn context(&self) -> Option<&TraceContext> {
        self.span.context()
    }

    /// The context of the client's request that made the call; `None` if the call is not traced.
    pub(super) fn origin(&self) -> Option<Box<TraceContext>> {
        self.span.parent().map(Box::new)
    }

    /// The context of the client's request that made the call, for a reply to its retry `call`; `None` if
    /// `call` is the original request.
    pub(super) fn origin_for(&self, call: &Call) -> Option<Box<TraceContext>> {
        let (call_context, retry_context) = (self.context()?, call.trace.as_deref()?);
        (call_context.span != retry_context.span).then(|| self.origin()).flatten()
    }

    /// Adds an event to the span, with at most one attribute: only the first of `attributes` is used.
    pub(super) fn add_event(&mut self, name: &'static str, attributes: &[(&'static str, &str)]) {
        if !self.span.is_recorded() {
            return;
        }
        match attributes {
            [(key, value), ..] => self.span.event(name, [(*key, (*value).to_owned().into())]),
            [] => self.span.event(name, []),
        }
    }

    /// Adds an event for an input request of the server with this key and method.
    pub(super) fn record_input_request(&mut self, key: &str, method: &str) {
        if self.span.is_recorded() {
            let attributes = [
                ("mcp.method.name", method.to_owned().into()),
                ("deferral.question.key", key.to_owned().into()),
            ];
            self.span.event("deferral.question", attributes);
        }
    }

    /// Records that the call has become this task.
    pub(super) fn record_task(&mut self, task: &TaskId) {
        self.add_event("deferral.task.created", &[]);
        self.set_task_id(task);
    }

    fn set_task_id(&mut self, task: &TaskId) {
        if self.span.is_recorded() {
            self.span.set("deferral.task.id", task_tag(task.as_str()));
        }
    }

    /// Records the status with which the call's task ends.
    pub(super) fn record_task_end(&mut self, event: &task::TaskEvent) {
        let status = match event {
            task::TaskEvent::Failed { .. } => "failed",
            _ => "completed",
        };
        self.span.set("deferral.task.status", status);
    }

    /// Records the outcome of a driven call. Later outcomes are ignored.
    pub(super) fn record_end(&mut self, end: &CallEnd) {
        if !self.span.is_recorded() || std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        match end {
            CallEnd::Response(response) => self.record_response(response.frame()),
            CallEnd::Lost(lost) => self.span.fail(call_error_object(lost).code().to_string(), None),
            CallEnd::Refused(error, _) => self.span.fail(error.code().to_string(), Some(&error.message())),
        }
    }

    /// Records the server's response: its request id, and whether it is an error.
    fn record_response(&mut self, frame: &Frame) {
        // The id of the response is that of the request, which the upstream chose when it wrote the request.
        if let (false, Kind::Success { id, .. } | Kind::Failure { id: Some(id), .. }) =
            (self.has_id, frame.kind())
        {
            mcp::set_request_id(&mut self.span, id);
        }
        match frame.kind() {
            Kind::Success { result, .. } if result.get("isError").is_some_and(|value| value == "true") => {
                self.span.fail(RequestOutcome::ToolError.as_str(), None);
            }
            Kind::Failure { error, .. } => {
                let code = ErrorObject::from_raw(error.clone()).code().to_string();
                self.span.set("rpc.response.status_code", code.clone());
                self.span.fail(code, None);
            }
            Kind::Success { .. } | Kind::Request { .. } | Kind::Notification { .. } => {}
        }
    }

    /// Records the outcome of a relayed call. Later outcomes are ignored.
    pub(in crate::proxy) fn record_outcome(&mut self, outcome: RequestOutcome) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        match outcome {
            RequestOutcome::Result | RequestOutcome::Task | RequestOutcome::InputRequired => {}
            RequestOutcome::ToolError
            | RequestOutcome::ServerError
            | RequestOutcome::Refused
            | RequestOutcome::TimedOut
            | RequestOutcome::UpstreamFailed
            | RequestOutcome::ProxyFailed
            | RequestOutcome::Disconnected => self.span.fail(outcome.as_str(), None),
        }
    }

    /// Records that the call is left to the next process, so that the span does not count as cancelled.
    pub(super) fn record_release(&mut self) {
        self.add_event("deferral.task.released", &[]);
        self.is_ended = true;
    }
}

/// Sets the attributes of the server's host and port. The rest of its URL is left out, because it may contain
/// a key.
fn set_server_address(span: &mut Span, address: Option<&ServerUrl>) {
    let Some(url) = address else { return span.set("network.transport", "pipe") };
    span.set("network.transport", "tcp");
    span.set("network.protocol.name", "http");
    span.set("network.protocol.version", "1.1");
    span.set("server.address", url.host().to_owned());
    if let Some(port) = url.port() {
        span.set("server.port", i64::from(port));
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        if !self.is_ended {
            self.span.fail("cancelled", None);
        }
    }
}
