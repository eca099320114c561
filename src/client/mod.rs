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
/// Shortest poll interval, whatever the server names.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Polls in a row that may fail to reach the server before following the task fails.
const MAX_LOST_POLLS: u32 = 5;
/// The client's name in `clientInfo`.
const CLIENT_NAME: &str = "deferral-call";

/// Capabilities that the client declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientSupport {
    /// Tasks: the extension; for legacy servers, task requests where a tool supports them.
    pub tasks: bool,
    /// Elicitation, by form and by URL.
    pub elicitation: bool,
    /// Sampling requests of the server.
    pub sampling: bool,
    /// Requests for the list of roots.
    pub roots: bool,
}

/// One call of a tool.
#[derive(Clone, Copy, Debug)]
pub struct ToolCall<'a> {
    pub tool: &'a str,
    /// The arguments of the tool, a JSON object.
    pub arguments: &'a RawValue,
}

/// Input responses as raw JSON, by the keys of their requests.
pub type InputResponseMap = BTreeMap<String, Box<RawValue>>;

/// Function that is called for each step of a call.
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
    /// A poll did not reach the server, and will be repeated.
    Lost(&'a Error),
    /// The server sent an input request that this client did not declare support for, and that the client
    /// refused.
    Refused { method: &'a str },
    /// The session uses this revision, which is older than the offered one.
    Revision(&'a str),
}

/// State of a call after a request: it has ended, or waits for input responses.
#[derive(Debug)]
pub enum CallTurn {
    /// The call has ended.
    Ended(CallEnding),
    /// The input requests that the server waits for, in its order; never empty.
    InputRequired(Vec<RequestedInput>),
}

/// How a call ended.
#[derive(Debug)]
pub enum CallEnding {
    /// The result as raw JSON, which may be the error of a tool (`isError`).
    Result(Box<RawValue>),
    /// A JSON-RPC error as raw JSON.
    Error(Box<RawValue>),
    /// The task of the call was cancelled; the field has its last state.
    Cancelled(Task),
    /// The task of the call failed, without a result or an error; the field has its last state.
    Failed(Task),
}

/// An input request of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedInput {
    /// The key by which the response is sent ([`InputResponseMap`]).
    pub key: String,
    /// The method of the request, such as `elicitation/create`.
    pub method: String,
    /// The request itself; `None` if the protocol does not define the method.
    pub request: Option<InputRequest>,
}

/// Returns the supported revisions as text for messages: `2026-07-28, 2025-11-25, 2025-06-18 or 2025-03-26`.
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

    /// Returns the declared capabilities in the format of this revision, without those of tasks.
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
    /// Returns the message of the request for the user, if it has one.
    pub fn message(&self) -> Option<String> {
        JsonObject::read(&self.request.as_ref()?.params()?).ok()?.string("message")
    }
}
