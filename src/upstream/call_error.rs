//! What can be said of an answer that will not come, and of a server that did not speak.

use super::{CallError, Description, Identity};
use crate::{dialect::Caller, protocol::Fault};
use bytes::Bytes;
use http::StatusCode;

// === impl CallError ===

impl CallError {
    /// What only a server can be asked that is spoken to over Streamable HTTP.
    pub(super) fn not_over_http() -> Self {
        Self::Invalid("it is not spoken to over Streamable HTTP".to_owned())
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Unauthorized { .. } | Self::Forbidden { .. } => Fault::Client,
            Self::Status { status, .. } if *status == StatusCode::TOO_MANY_REQUESTS => Fault::Client,
            Self::Unreachable(_)
            | Self::ConnectTimeout(_)
            | Self::CallTimeout(_)
            | Self::FirstByteTimeout(_)
            | Self::IdleTimeout(_)
            | Self::Broken(_)
            | Self::SessionEnded
            | Self::Exited(_)
            | Self::Unread { .. }
            | Self::Untold(_)
            | Self::Status { .. }
            | Self::Invalid(_) => Fault::Server,
            Self::TooLarge { .. }
            | Self::Busy { .. }
            | Self::Waited { .. }
            | Self::AllInUse { .. }
            | Self::NoRoom { .. }
            | Self::Closing => Fault::Proxy,
        }
    }

    /// Whether the server may still be at a call that ended with this. An HTTP error says that it is not,
    /// but where a gateway has given up what the server behind it may go on with. 524 is what a large one
    /// in the field says instead of 504.
    pub fn leaves_it_running(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status.as_u16(), 502 | 504 | 524),
            Self::Unreachable(_)
            | Self::ConnectTimeout(_)
            | Self::NoRoom { .. }
            | Self::Busy { .. }
            | Self::Waited { .. }
            | Self::AllInUse { .. }
            | Self::Unread { .. }
            | Self::Exited(_)
            | Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::SessionEnded => false,
            Self::CallTimeout(_)
            | Self::FirstByteTimeout(_)
            | Self::IdleTimeout(_)
            | Self::Broken(_)
            | Self::Untold(_)
            | Self::Invalid(_)
            | Self::TooLarge { .. }
            | Self::Closing => true,
        }
    }

    /// What it means for a call whose stream broke that it could not be taken up because of this.
    #[must_use]
    pub fn when_resuming(self) -> Self {
        let why = match self {
            Self::SessionEnded | Self::CallTimeout(_) | Self::Closing => return self,
            Self::Broken(why) => why,
            other => other.to_string(),
        };
        Self::Broken(format!("its stream could not be taken up again: {why}"))
    }
}

// === impl Description ===

impl Description {
    /// A server that could not be asked.
    pub fn unknown() -> Self {
        Self {
            version: String::new(),
            capabilities: Bytes::from_static(b"{}"),
            has_tasks: false,
            server_info: Bytes::from_static(br#"{"name":"deferral","version":"unknown upstream"}"#),
            instructions: None,
            result: Bytes::new(),
        }
    }
}

// === impl Identity ===

impl Identity {
    pub fn of(caller: &Caller) -> Self {
        Self {
            principal: caller.principal,
            credentials: caller.credentials.clone(),
            capabilities: std::sync::Arc::clone(&caller.capabilities),
        }
    }
}
