//! What a client of 2026-07-28 says with every request.

use super::{ClientInfo, ExtraHeaders};
use crate::protocol::Capabilities;
use http::header::{ACCEPT_LANGUAGE, USER_AGENT};
use std::sync::Arc;

/// What a client said of itself with its request before. Mostly it says the same, which is then neither read nor kept
/// again.
#[derive(Clone, Debug)]
pub struct ClientProfile {
    pub capabilities: Arc<Capabilities>,
    pub client_info: ClientInfo,
    /// Those that pass with each request, where they are such as do not change from one to the next.
    pub headers: ExtraHeaders,
}

// === impl Remembered ===

impl ClientProfile {
    /// With a request that declared and said this.
    pub fn of(capabilities: &Arc<Capabilities>, client_info: &ClientInfo, headers: &ExtraHeaders) -> Self {
        Self {
            capabilities: Arc::clone(capabilities),
            client_info: client_info.clone(),
            headers: if are_stable(headers) { headers.clone() } else { ExtraHeaders::default() },
        }
    }

    /// Whether a request said nothing else.
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

    /// Bytes that it takes.
    pub fn retained_bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        self.capabilities.retained_bytes() + self.client_info.retained_bytes() + headers.sum::<usize>()
    }
}

fn are_stable(headers: &ExtraHeaders) -> bool {
    headers.keys().all(|name| [USER_AGENT, ACCEPT_LANGUAGE].contains(name))
}
