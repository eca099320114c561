//! The keys of `_meta` that the protocol reserves, and the revisions that have them.

/// The protocol version of a request (2026-07-28).
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The client's implementation info (2026-07-28).
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// The client's capabilities for this request (2026-07-28).
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// The least severe log message that the client wants for this request (2026-07-28).
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// The server's implementation info, on results (2026-07-28).
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// The subscription that a notification belongs to (2026-07-28).
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// The task that a message belongs to (2025-11-25).
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// A text with which a model can continue while a task works (2025-11-25, *Tasks, Creating Tasks*).
pub const IMMEDIATE_RESPONSE: &str = "io.modelcontextprotocol/model-immediate-response";
/// The task that a call created, as a draft of SEP-1686 has it. FastMCP 2.14 reads it from the result of a
/// call.
pub const DRAFT_TASK: &str = "modelcontextprotocol.io/task";
/// Opts a request into progress notifications (all revisions).
pub const PROGRESS_TOKEN: &str = "progressToken";
/// Marks a result of the proxy as a ticket: it stands for a result that is fetched later.
pub const TICKET: &str = "deferral/ticket";
/// The key of the tasks extension (SEP-2663) in `capabilities.extensions`.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The keys of `_meta` that a 2026-07-28 request carries for its own hop. A legacy server does not know them.
pub const PER_REQUEST: [&str; 4] = [PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL];
