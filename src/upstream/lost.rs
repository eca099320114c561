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
