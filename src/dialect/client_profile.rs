//! The parts of a 2026-07-28 request that a client usually repeats.

use super::{ClientInfo, ExtraHeaders};
use crate::protocol::Capabilities;
use http::header::{ACCEPT_LANGUAGE, USER_AGENT};
use std::sync::Arc;

/// The capabilities, implementation info and headers of a client's previous request. A request with the same
/// values needs neither parsing nor memory for them.
#[derive(Clone, Debug)]
pub struct ClientProfile {
    pub capabilities: Arc<Capabilities>,
    pub client_info: ClientInfo,
    /// The headers forwarded with each request, if all of them are stable across requests.
    pub headers: ExtraHeaders,
}

// === impl ClientProfile ===

impl ClientProfile {
    /// The profile of a request with these values.
    pub fn of(capabilities: &Arc<Capabilities>, client_info: &ClientInfo, headers: &ExtraHeaders) -> Self {
        Self {
            capabilities: Arc::clone(capabilities),
            client_info: client_info.clone(),
            headers: if are_stable(headers) { headers.clone() } else { ExtraHeaders::default() },
        }
    }

    /// Whether a request has the same values.
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

    /// Bytes of memory that it takes.
    pub fn retained_bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        self.capabilities.retained_bytes() + self.client_info.retained_bytes() + headers.sum::<usize>()
    }
}

fn are_stable(headers: &ExtraHeaders) -> bool {
    headers.keys().all(|name| [USER_AGENT, ACCEPT_LANGUAGE].contains(name))
}
