//! What a client of 2026-07-28 says with every request.

use super::{ClientInfo, Further};
use crate::protocol::Capabilities;
use http::header::{ACCEPT_LANGUAGE, USER_AGENT};
use std::sync::Arc;

/// What a client said of itself with its request before. Mostly it says the same, which is then neither read nor kept
/// again.
#[derive(Clone, Debug)]
pub struct Remembered {
    pub capabilities: Arc<Capabilities>,
    pub client_info: ClientInfo,
    /// Those that pass with each request, where they are such as do not change from one to the next.
    pub headers: Further,
}

// === impl Remembered ===

impl Remembered {
    /// With a request that declared and said this.
    pub fn of(capabilities: &Arc<Capabilities>, client_info: &ClientInfo, headers: &Further) -> Self {
        Self {
            capabilities: Arc::clone(capabilities),
            client_info: client_info.clone(),
            headers: if is_said_again(headers) { headers.clone() } else { Further::default() },
        }
    }

    /// Whether a request said nothing else.
    pub fn is_of(
        &self,
        capabilities: &Arc<Capabilities>,
        client_info: &ClientInfo,
        headers: &Further,
    ) -> bool {
        Arc::ptr_eq(&self.capabilities, capabilities)
            && self.client_info == *client_info
            && (self.headers.is_same(headers) || !is_said_again(headers))
    }

    /// Bytes that it takes.
    pub fn kept(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        self.capabilities.kept() + self.client_info.kept() + headers.sum::<usize>()
    }
}

fn is_said_again(headers: &Further) -> bool {
    headers.keys().all(|name| [USER_AGENT, ACCEPT_LANGUAGE].contains(name))
}
