//! A small client: it calls one tool at a time, follows its task to the end, and hands on what the
//! server asks in between.
//!
//! It speaks two dialects: in `modern` every request stands alone (2026-07-28), in `legacy` a handshake
//! comes first and a server may speak on any of several streams (2025-03-26 to 2025-11-25). Whoever calls
//! sees no difference in a [`ToolSession`]: a call ends, or waits for answers and goes on with them ([`CallTurn`]),
//! and what happens on the way is told as [`CallStep`]s. `session` finds out which of the two the server speaks.
//!
//! What a server sends is kept as it came: results are raw JSON, numbers included.
//!
//! `ticket` is what a proxy gives a client that wants no tasks, `http_transport` makes requests and reads bodies, `message` is JSON-RPC, `tools` lists tools, `task` and
//! `progress` are what a server shows of a call at work, `error` is why there is no answer. `operator` asks a proxy at its operator's address.

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

/// The revisions that it speaks.
pub const REVISIONS: [Revision; 4] =
    [Revision::V2026_07_28, Revision::V2025_11_25, Revision::V2025_06_18, Revision::V2025_03_26];
/// How often a task is polled whose server does not say.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A server that asks to be polled more often than this is not taken at its word.
const LEAST_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Attempts in a row that may fail to reach the server before the task is given up.
const LOST_POLLS: u32 = 5;
/// What the client calls itself.
const NAME: &str = "deferral-call";

/// What a client says it can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientSupport {
    /// The tasks extension, or in older dialects the wish for a task where a tool offers them.
    pub tasks: bool,
    /// Elicitation, by form and at an address.
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

/// Answers, raw, by the keys of their questions.
pub type InputResponseMap = BTreeMap<String, Box<RawValue>>;

/// Told what happens on the way.
type StepObserver<'a> = &'a mut (dyn FnMut(CallStep<'_>) + Send);

/// Something heard of a call before its end.
#[derive(Debug)]
pub enum CallStep<'a> {
    /// `notifications/progress`.
    Progress(Progress),
    /// The call became a task.
    Handle(&'a Task),
    /// The server told how the task is, asked or unasked.
    Polled(&'a Task),
    /// A poll that did not reach the server; it is made again.
    Lost(&'a Error),
    /// The server asked what this client did not declare, and was refused.
    Refused { method: &'a str },
    /// The server chose an older revision than it was offered.
    Revision(&'a str),
}

/// What a request came to.
#[derive(Debug)]
pub enum CallTurn {
    Ended(CallEnding),
    /// The server waits for answers to these, in its order; never empty.
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
    /// Its task failed, and there is neither a result nor an error.
    Failed(Task),
}

/// A question of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedInput {
    pub key: String,
    pub method: String,
    /// The question, if it is one that the protocol knows.
    pub request: Option<InputRequest>,
}

/// [`REVISIONS`], in words.
pub fn revisions() -> String {
    let [newest @ .., oldest] = REVISIONS.map(Revision::as_str);
    format!("{} or {oldest}", newest.join(", "))
}

// === impl Declared ===

impl ClientSupport {
    /// Whether a server that speaks this revision may ask this.
    fn includes(self, kind: InputKind, revision: Revision) -> bool {
        match kind {
            InputKind::Elicitation => self.elicitation && revision >= Revision::V2025_06_18,
            InputKind::Sampling => self.sampling,
            InputKind::Roots => self.roots,
        }
    }

    /// What this revision knows of what can be answered. Nothing is said of tasks here.
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

// === impl Turn ===

impl From<CallEnding> for CallTurn {
    fn from(ending: CallEnding) -> Self {
        Self::Ended(ending)
    }
}

// === impl Asked ===

impl RequestedInput {
    /// What it says to a person, where it says something.
    pub fn message(&self) -> Option<String> {
        JsonObject::read(&self.request.as_ref()?.params()?).ok()?.string("message")
    }
}
