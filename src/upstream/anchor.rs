//! By what a call can be taken up again by the process after this one (2025-11-25, *Resumability and
//! Redelivery*).

use serde::{Deserialize, Serialize};

/// Where a call is at its server: enough to go on hearing of it, or to tell the server that nobody waits any more,
/// and nothing by which it could be made again. Without credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallAnchor {
    /// The id of the server's session.
    pub session: String,
    /// The revision that is spoken there.
    pub revision: String,
    /// The id of the call's request.
    pub call: u64,
    /// The last event of the call's stream that had an id. Without one only a cancellation can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event: Option<String>,
    /// What the server said of itself in the session, raw JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub server_info: String,
    /// Its client has opened the session, and goes on using it; and what the server says stays in its words.
    #[serde(default)]
    pub is_clients: bool,
}
