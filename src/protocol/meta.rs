//! The keys of `_meta` that the protocol reserves, and what of them each era may see.

/// The protocol version of a request (2026-07-28).
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// Who the client says it is (2026-07-28).
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// What the client can do, for this request (2026-07-28).
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// The least severe log message wanted for this request (2026-07-28).
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// Who the server says it is, on results (2026-07-28).
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// Which subscription a notification belongs to (2026-07-28).
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// Which task a message belongs to (2025-11-25).
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// What a model may go on with while a task works (2025-11-25, *Tasks, Creating Tasks*).
pub const IMMEDIATE_RESPONSE: &str = "io.modelcontextprotocol/model-immediate-response";
/// A task as a draft of SEP-1686 had it, and as FastMCP 2.14 looks for it in what a call is answered with.
pub const DRAFT_TASK: &str = "modelcontextprotocol.io/task";
/// Opts a request into progress notifications (all revisions).
pub const PROGRESS_TOKEN: &str = "progressToken";
/// What stands for a result that is fetched later, in a result of ours.
pub const TICKET: &str = "deferral/ticket";
/// The tasks extension (SEP-2663), as it stands in `capabilities.extensions`.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The keys a 2026-07-28 request carries for its own hop, unknown to a legacy server.
pub const PER_REQUEST: [&str; 4] = [PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL];
