//! A small client: it calls one tool at a time, follows its task to the end, and passes on the server's input
//! requests.
//!
//! It supports both eras: in `modern` every request stands alone (2026-07-28), in `legacy` a handshake comes
//! first and a server may send messages on several streams (2025-03-26 to 2025-11-25). A [`ToolSession`]
//! hides the difference: a call ends, or waits for input responses ([`CallTurn`]), and events in between are
//! [`CallStep`]s. `session` finds out the server's era.
//!
//! Server data is kept unchanged: results are raw JSON, numbers included.
//!
//! `ticket` is the ticket that a proxy gives a client without task support, `http_transport` sends requests
//! and reads bodies, `message` is JSON-RPC, `tools` lists tools, `task` and `progress` are the state of a
//! running call, `error` has the errors. `operator` is a client of the admin address.

mod error;
mod http_transport;
mod legacy;
mod message;
mod modern;
mod operator;
mod progress;
mod session;
mod task;
mod ticket;
mod tools;

pub use error::{Error, error_text};
pub use message::JsonRpcRequest;
pub use operator::AdminClient;
pub use progress::Progress;
pub use session::ToolSession;
pub use task::{Task, TaskStatus};
pub use ticket::Ticket;
pub use tools::{ToolList, arguments, no_arguments};

use crate::protocol::{InputKind, InputRequest, Revision, splice::JsonObject};
use serde_json::{Value, json, value::RawValue};
use std::{collections::BTreeMap, time::Duration};

/// The revisions that the client supports.
pub const REVISIONS: [Revision; 4] =
    [Revision::V2026_07_28, Revision::V2025_11_25, Revision::V2025_06_18, Revision::V2025_03_26];
/// Poll interval of a task whose server names none.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Least poll interval, whatever the server names.
const LEAST_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Attempts in a row that may fail to reach the server before following the task fails.
const LOST_POLLS: u32 = 5;
/// The client's name in `clientInfo`.
const NAME: &str = "deferral-call";

/// Capabilities that the client declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientSupport {
    /// The tasks extension; for legacy servers, task requests where a tool supports them.
    pub tasks: bool,
    /// Elicitation, by form and by URL.
    pub elicitation: bool,
    pub sampling: bool,
    pub roots: bool,
}

/// One call of a tool.
#[derive(Clone, Copy, Debug)]
pub struct ToolCall<'a> {
    pub tool: &'a str,
    /// A JSON object.
    pub arguments: &'a RawValue,
}

/// Input responses, raw, by the keys of their requests.
pub type InputResponseMap = BTreeMap<String, Box<RawValue>>;

/// Called for each step.
type StepObserver<'a> = &'a mut (dyn FnMut(CallStep<'_>) + Send);

/// An event of a call before its end.
#[derive(Debug)]
pub enum CallStep<'a> {
    /// `notifications/progress`.
    Progress(Progress),
    /// The call became a task.
    Handle(&'a Task),
    /// The server sent the state of the task, requested or not.
    Polled(&'a Task),
    /// A poll that did not reach the server; it is repeated.
    Lost(&'a Error),
    /// The server sent a request that this client did not declare support for, and that was refused.
    Refused { method: &'a str },
    /// The server chose an older revision than the offered one.
    Revision(&'a str),
}

/// Outcome of a request.
#[derive(Debug)]
pub enum CallTurn {
    Ended(CallEnding),
    /// The input requests that the server waits for, in its order; never empty.
    InputRequired(Vec<RequestedInput>),
}

/// How a call ended.
#[derive(Debug)]
pub enum CallEnding {
    /// A result, raw. A tool's own error is one too.
    Result(Box<RawValue>),
    /// A JSON-RPC error, raw.
    Error(Box<RawValue>),
    /// Its task was cancelled.
    Cancelled(Task),
    /// Its task failed, without a result or an error.
    Failed(Task),
}

/// An input request of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedInput {
    pub key: String,
    pub method: String,
    /// The request, if the protocol defines it.
    pub request: Option<InputRequest>,
}

/// [`REVISIONS`], in words.
pub fn revisions() -> String {
    let [newest @ .., oldest] = REVISIONS.map(Revision::as_str);
    format!("{} or {oldest}", newest.join(", "))
}

// === impl ClientSupport ===

impl ClientSupport {
    /// Whether a server of this revision may send this input request.
    fn includes(self, kind: InputKind, revision: Revision) -> bool {
        match kind {
            InputKind::Elicitation => self.elicitation && revision >= Revision::V2025_06_18,
            InputKind::Sampling => self.sampling,
            InputKind::Roots => self.roots,
        }
    }

    /// The capabilities in the format of this revision, without those of tasks.
    fn capabilities(self, revision: Revision) -> Value {
        let mut capabilities = json!({});
        if self.includes(InputKind::Elicitation, revision) {
            capabilities["elicitation"] = match revision >= Revision::V2025_11_25 {
                true => json!({ "form": {}, "url": {} }),
                false => json!({}),
            };
        }
        if self.includes(InputKind::Sampling, revision) {
            capabilities["sampling"] = json!({});
        }
        if self.includes(InputKind::Roots, revision) {
            capabilities["roots"] = json!({});
        }
        capabilities
    }
}

// === impl CallTurn ===

impl From<CallEnding> for CallTurn {
    fn from(ending: CallEnding) -> Self {
        Self::Ended(ending)
    }
}

// === impl RequestedInput ===

impl RequestedInput {
    /// Its message for the user, if it has one.
    pub fn message(&self) -> Option<String> {
        JsonObject::read(&self.request.as_ref()?.params()?).ok()?.string("message")
    }
}
