//! The client of a call, for sessions that clients share.
//!
//! A process cannot tell its clients apart, and its input requests name no call. The pool gives a process to
//! one client at a time once the server has sent an input request, and `attribution` uses the same identity.

use std::sync::{Arc, Weak};

use super::listeners::BroadcastListener;
use crate::{
    dialect::{Call, ClientInfo, Credentials, Principal},
    upstream::transport::Transport,
};
use http::header::FORWARDED;

/// The client of a call. Without one, as over HTTP, each call is a client of its own.
pub(super) struct CallClient {
    /// Who the calls act for.
    principal: Principal,
    client_info: ClientInfo,
    /// Number of the only call of this client, if other anonymous calls may be of other clients.
    only_call: Option<u64>,
    /// Emulated session of a legacy client.
    session: Option<Weak<dyn BroadcastListener>>,
}

/// Prefix of the names of headers that proxies add for a remote client.
const FORWARDED_PREFIX: &str = "x-forwarded-";

// === impl CallClient ===

impl CallClient {
    /// The client of a call without a session. `None` if the transport's sessions are those of one principal.
    ///
    /// Anonymous calls with equal `clientInfo` are of one client only on this machine: without a proxy in
    /// front, everything there belongs to one user.
    pub(super) fn of_call<W: Transport>(
        transport: &W,
        id: u64,
        principal: Principal,
        credentials: &Credentials,
        call: &Call,
    ) -> Option<Arc<Self>> {
        if !W::IS_COSTLY {
            return None;
        }
        let is_forwarded = || {
            call.headers.contains_key(&FORWARDED)
                || credentials.headers().keys().any(|name| name.as_str().starts_with(FORWARDED_PREFIX))
        };
        let may_be_others = principal.is_anonymous() && (!transport.is_local() || is_forwarded());
        Some(Arc::new(Self {
            principal,
            client_info: call.client_info.clone(),
            only_call: may_be_others.then_some(id),
            session: None,
        }))
    }

    /// The client of all calls in an emulated session.
    pub(super) fn of_session(principal: Principal, session: Weak<dyn BroadcastListener>) -> Arc<Self> {
        Arc::new(Self {
            principal,
            client_info: ClientInfo::default(),
            only_call: None,
            session: Some(session),
        })
    }

    /// Emulated session of the client, if it still exists.
    pub(super) fn session(&self) -> Option<Arc<dyn BroadcastListener>> {
        self.session.as_ref()?.upgrade()
    }

    /// Whether the client has an emulated session that still exists.
    pub(super) fn has_live_session(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.strong_count() > 0)
    }

    /// Whether calls of this client can share a process with each other at the same time: an input request
    /// that may be for any of them is for their session.
    pub(super) const fn shares_with_itself(&self) -> bool {
        self.session.is_some()
    }

    /// Whether both are the same client.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (&self.session, &other.session) {
            (Some(session), Some(other)) => session.ptr_eq(other),
            (None, None) => {
                self.principal == other.principal
                    && self.only_call == other.only_call
                    && self.client_info == other.client_info
            }
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    /// Whether both act for the same principal. Different anonymous clients do not.
    pub(super) fn has_same_principal(&self, other: &Self) -> bool {
        self.principal == other.principal && (!self.principal.is_anonymous() || self.is_same(other))
    }
}
