//! The span of a server's call: from before it is sent until nobody waits for it any more, however long that is and
//! whoever holds it. What happens to the call meanwhile are events of it: that it has become a task, what is asked
//! and answered, that it is cancelled.

use super::super::{
    reply::{CallEnd, error_of},
    shared::Shared,
};
use crate::{
    dialect::Call,
    protocol::{ErrorObject, Frame, Id, Kind, Method, TraceContext},
    task::{self, Record, TaskId},
    telemetry::{
        Outcome,
        trace::{
            Kind as SpanKind, Span,
            mcp::{self, Message, task_tag},
        },
    },
    upstream::ServerUrl,
};
use std::sync::Arc;

/// The span of a server's call. Dropped before the call has ended, the call has been left.
#[derive(Debug, Default)]
pub(in crate::proxy) struct CallSpan {
    span: Span,
    /// The id that its server was sent is said.
    names_id: bool,
    /// How it has ended is said.
    is_over: bool,
}

// === impl CallSpan ===

impl CallSpan {
    /// Begins one for a message that is a part of a span of ours, or of none where it is not traced. The `id` is the one that
    /// its server is sent, where that is known already.
    pub(in crate::proxy) fn begin(
        shared: &Shared,
        trace: Option<&TraceContext>,
        (method, target): (&Method, Option<&str>),
        id: Option<&Id>,
    ) -> Self {
        let Some(parent) = trace else { return Self::default() };
        let message = Message { method: method.as_str(), target, id };
        let mut span = message.begin(&shared.tracer, SpanKind::Client, Some(parent));
        if span.is_recorded() {
            span.set("deferral.route", shared.route.path.to_string());
            located(&mut span, shared.upstream.address());
        }
        Self { span, names_id: id.is_some(), is_over: false }
    }

    /// Begins one for a call, which names it to its server from then on.
    pub(super) fn of_call(shared: &Shared, call: &mut Arc<Call>) -> Self {
        let span = Self::begin(shared, call.trace.as_deref(), (&call.method, call.target.as_deref()), None);
        if let Some(context) = span.context() {
            let call = Arc::make_mut(call);
            context.put_in_headers(call.headers.to_mut());
            call.trace = Some(Arc::new(context.clone()));
        }
        span
    }

    /// Begins one for the call of a task that the process before this one has held, in the trace that it began in.
    pub(super) fn of_record(shared: &Shared, record: &Record, id: u64) -> Self {
        let call = (&Method::ToolsCall, Some(&*record.tool));
        let mut span = Self::begin(shared, record.trace.as_deref(), call, Some(&Id::from_number(id)));
        span.event("deferral.task.resumed", &[]);
        span.names(&record.id);
        span
    }

    /// By what its server knows it.
    pub(in crate::proxy) fn context(&self) -> Option<&TraceContext> {
        self.span.context()
    }

    /// The span of the client's request that the call was made for, where it is recorded.
    pub(super) fn origin(&self) -> Option<Box<TraceContext>> {
        self.span.parent().map(Box::new)
    }

    /// The same for an answer to `call`, where that is another request than the one that the call was made for: its
    /// client has come back.
    pub(super) fn origin_for(&self, call: &Call) -> Option<Box<TraceContext>> {
        let (own, theirs) = (self.context()?, call.trace.as_deref()?);
        (own.span != theirs.span).then(|| self.origin()).flatten()
    }

    /// Something happens to the call, which has to do with what stands under this key.
    pub(super) fn event(&mut self, name: &'static str, keys: &[(&'static str, &str)]) {
        if !self.span.is_recorded() {
            return;
        }
        match keys {
            [(key, value), ..] => self.span.event(name, [(*key, (*value).to_owned().into())]),
            [] => self.span.event(name, []),
        }
    }

    /// The server asks something.
    pub(super) fn asked(&mut self, key: &str, method: &str) {
        if self.span.is_recorded() {
            let with = [
                ("mcp.method.name", method.to_owned().into()),
                ("deferral.question.key", key.to_owned().into()),
            ];
            self.span.event("deferral.question", with);
        }
    }

    /// The call has become this task.
    pub(super) fn becomes(&mut self, task: &TaskId) {
        self.event("deferral.task.created", &[]);
        self.names(task);
    }

    fn names(&mut self, task: &TaskId) {
        if self.span.is_recorded() {
            self.span.set("deferral.task.id", task_tag(task.as_str()));
        }
    }

    /// The task of the call has ended like this.
    pub(super) fn settled(&mut self, event: &task::Event) {
        let status = match event {
            task::Event::Failed { .. } => "failed",
            _ => "completed",
        };
        self.span.set("deferral.task.status", status);
    }

    /// The call has ended.
    pub(super) fn ends(&mut self, word: &CallEnd) {
        if !self.span.is_recorded() || std::mem::replace(&mut self.is_over, true) {
            return;
        }
        match word {
            CallEnd::Said(response) => self.answered(response.frame()),
            CallEnd::Lost(lost) => self.span.fail(error_of(lost).code().to_string(), None),
            CallEnd::Refused(error, _) => self.span.fail(error.code().to_string(), Some(&error.message())),
        }
    }

    fn answered(&mut self, frame: &Frame) {
        // An answer has the id of its request, which is chosen only when that is written.
        if let (false, Kind::Success { id, .. } | Kind::Failure { id: Some(id), .. }) =
            (self.names_id, frame.kind())
        {
            mcp::name_id(&mut self.span, id);
        }
        match frame.kind() {
            Kind::Success { result, .. } if result.get("isError").is_some_and(|value| value == "true") => {
                self.span.fail(Outcome::ToolError.as_str(), None);
            }
            Kind::Failure { error, .. } => {
                let code = ErrorObject::from_raw(error.clone()).code().to_string();
                self.span.set("rpc.response.status_code", code.clone());
                self.span.fail(code, None);
            }
            Kind::Success { .. } | Kind::Request { .. } | Kind::Notification { .. } => {}
        }
    }

    /// The call has ended with this, which only goes by here.
    pub(in crate::proxy) fn passes(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        match outcome {
            Outcome::Result | Outcome::Task | Outcome::InputRequired => {}
            Outcome::ToolError
            | Outcome::ServerError
            | Outcome::Refused
            | Outcome::TimedOut
            | Outcome::UpstreamFailed
            | Outcome::ProxyFailed
            | Outcome::Departed => self.span.fail(outcome.as_str(), None),
        }
    }

    /// The call goes on, and is left to the next process.
    pub(super) fn released(&mut self) {
        self.event("deferral.task.released", &[]);
        self.is_over = true;
    }
}

/// Says where the server is: what its URL has beside that may hold a key.
fn located(span: &mut Span, address: Option<&ServerUrl>) {
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
        if !self.is_over {
            self.span.fail("cancelled", None);
        }
    }
}
