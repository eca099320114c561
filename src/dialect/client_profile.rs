//! The parts of a 2026-07-28 request that a client usually repeats.

use super::{ClientInfo, ExtraHeaders};
use crate::protocol::Capabilities;
use http::header::{ACCEPT_LANGUAGE, USER_AGENT};
use std::sync::Arc;

/// The capabilities, implementation info and headers of a client's previous request. A request that repeats
/// them shares their memory and need not parse them again.
#[derive(Clone, Debug)]
pub struct ClientProfile {
    /// The client's capabilities, parsed.
    pub capabilities: Arc<Capabilities>,
    /// The client's `clientInfo`.
    pub client_info: ClientInfo,
    /// The headers forwarded with the request; empty if they include headers that usually change with each
    /// request.
    pub headers: ExtraHeaders,
}

// === impl ClientProfile ===

impl ClientProfile {
    /// Creates the profile of a request with these values.
    pub fn for_request(
        capabilities: &Arc<Capabilities>,
        client_info: &ClientInfo,
        headers: &ExtraHeaders,
    ) -> Self {
        Self {
            capabilities: Arc::clone(capabilities),
            client_info: client_info.clone(),
            headers: if are_stable(headers) { headers.clone() } else { ExtraHeaders::default() },
        }
    }

    /// Whether a request has the values of the profile. Capabilities and headers are compared by pointer.
    pub fn matches(
        &self,
        capabilities: &Arc<Capabilities>,
        client_info: &ClientInfo,
        headers: &ExtraHeaders,
    ) -> bool {
        Arc::ptr_eq(&self.capabilities, capabilities)
            && self.client_info == *client_info
            && (self.headers.is_same_map(headers) || !are_stable(headers))
    }

    /// Returns the memory that the profile keeps alive, in bytes.
    pub fn retained_bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        self.capabilities.retained_bytes() + self.client_info.retained_bytes() + headers.sum::<usize>()
    }
}

/// Whether all these headers usually stay the same across the requests of a client.
fn are_stable(headers: &ExtraHeaders) -> bool {
    headers.keys().all(|name| [USER_AGENT, ACCEPT_LANGUAGE].contains(name))
}
