//! Data by which the next process resumes a call (2025-11-25, *Resumability and Redelivery*).

use serde::{Deserialize, Serialize};

/// Position of a call at its server: enough to resume its stream or to cancel it, not enough to send the call
/// again. Holds no credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallAnchor {
    /// Id of the server's session.
    pub session: String,
    /// Revision of the session.
    pub revision: String,
    /// Id of the call's request.
    pub call: u64,
    /// Last event id of the call's stream. Without one the call can only be cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event: Option<String>,
    /// `serverInfo` of the session, raw JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub server_info: String,
    /// Whether the client opened the session and continues to use it; messages are then passed in the
    /// client's revision.
    #[serde(default)]
    pub is_clients: bool,
}
