//! What can be said of an answer that will not come, and of a server that did not speak.

use super::{Description, Identity, Lost};
use crate::{dialect::Caller, protocol::Fault};
use bytes::Bytes;
use http::StatusCode;

// === impl Lost ===

impl Lost {
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
            | Self::Untold(_)
            | Self::Status { .. }
            | Self::Invalid(_) => Fault::Server,
            Self::TooLarge { .. }
            | Self::Busy { .. }
            | Self::Waited { .. }
            | Self::NoRoom { .. }
            | Self::Closing => Fault::Proxy,
        }
    }
}

// === impl Description ===

impl Description {
    /// A server that could not be asked.
    pub fn unknown() -> Self {
        Self {
            version: String::new(),
            capabilities: Bytes::from_static(b"{}"),
            server_info: Bytes::from_static(br#"{"name":"deferral","version":"unknown upstream"}"#),
            instructions: None,
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
