//! Callers on whose behalf calls are made, and the sessions of legacy clients.

use crate::{
    dialect::{Caller, ClientInfo, Credentials, Principal},
    protocol::Capabilities,
};
use http::HeaderMap;
use std::sync::Arc;

/// Caller on whose behalf a session is opened. Callers that differ in any field share no session, unless the
/// transport ignores the field.
#[derive(Clone, Debug)]
pub struct CallerIdentity {
    pub principal: Principal,
    pub credentials: Credentials,
    /// Capabilities, declared to the server unchanged.
    pub capabilities: Arc<Capabilities>,
    /// The client's own `clientInfo`. Sent in the handshake over HTTP only.
    pub client_info: ClientInfo,
}

/// A session that a legacy client opened at the server through the proxy: the parts that all its requests
/// share.
#[derive(Clone, Debug)]
pub struct ClientSession {
    /// Owner of the session.
    pub principal: Principal,
    /// Query of the URL that the client requests, without `?`.
    pub query: Option<String>,
    /// Headers of the client's requests, with its session id.
    pub headers: HeaderMap,
}

// === impl CallerIdentity ===

impl CallerIdentity {
    /// Identity of a principal, without credentials and capabilities.
    pub fn of_principal(principal: Principal) -> Self {
        let capabilities = Arc::new(Capabilities::none());
        let (credentials, client_info) = (Credentials::default(), ClientInfo::default());
        Self { principal, credentials, capabilities, client_info }
    }

    /// Identity under which a caller's calls share sessions.
    pub fn from_caller(caller: &Caller) -> Self {
        Self {
            principal: caller.principal,
            credentials: caller.credentials.clone(),
            capabilities: Arc::clone(&caller.capabilities),
            client_info: caller.client_info.clone(),
        }
    }
}
