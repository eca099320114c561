//! Resource subscriptions: shared by all subscribers of an identity, and made again in another session when
//! theirs ends.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use futures_util::StreamExt;

use super::{
    exchange::CallExchange, message, pool::SessionPool, request::CallRequest, session::UpstreamSession,
};
use crate::{
    dialect::ExtraHeaders,
    protocol::{ErrorObject, Frame, Method},
    runtime::Mutex,
    upstream::{CallError, UpstreamEvent, transport::Transport},
};

/// Error of a subscription.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubscribeError {
    /// The server's JSON-RPC error.
    #[error("{}", .0.message())]
    Refused(ErrorObject),
    #[error(transparent)]
    Lost(#[from] CallError),
}

/// Subscriptions of one identity.
pub(super) struct ResourceSubscriptions<W: Transport>(Mutex<HashMap<String, SubscriptionEntry<W>>>);

struct SubscriptionEntry<W: Transport> {
    /// Number of guards.
    holders: usize,
    /// Session in which it was made.
    session: Weak<UpstreamSession<W>>,
    /// Whether the server has accepted it.
    agreed: bool,
}

/// Keeps a subscription; dropping the last guard unsubscribes.
pub(super) struct SubscriptionGuard<W: Transport> {
    pool: Arc<SessionPool<W>>,
    uri: String,
}

// === impl ResourceSubscriptions ===

impl<W: Transport> Default for ResourceSubscriptions<W> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<W: Transport> ResourceSubscriptions<W> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Subscribes the resources without a session in a new list session.
    pub(super) fn resubscribe(&self, pool: &Arc<SessionPool<W>>, session: &Arc<UpstreamSession<W>>) {
        let orphans: Vec<_> = {
            let mut held = self.0.lock();
            let orphans = held.iter_mut().filter(|(_, held)| held.session.strong_count() == 0);
            orphans
                .map(|(uri, held)| {
                    held.session = Arc::downgrade(session);
                    uri.clone()
                })
                .collect()
        };
        for uri in orphans {
            let pool = pool.clone();
            pool.server().clone().work.spawn(async move {
                if let Err(lost) = send_request(&pool, Method::ResourcesSubscribe, &uri).await {
                    tracing::warn!(error = %lost, "a resource could not be subscribed again");
                }
            });
        }
    }

    /// Update notifications for the resources subscribed in this session.
    pub(super) fn updates(&self, session: &Arc<UpstreamSession<W>>) -> Vec<Frame> {
        let here = Arc::downgrade(session);
        let held = self.0.lock();
        let held = held.iter().filter(|(_, held)| held.session.ptr_eq(&here));
        held.map(|(uri, _)| message::resource_updated(uri)).collect()
    }

    /// Moves the subscriptions of a session that takes no more calls to another.
    pub(super) fn move_from(&self, pool: &Arc<SessionPool<W>>, session: &Arc<UpstreamSession<W>>) {
        let gone = Arc::downgrade(session);
        let mut any = false;
        for held in self.0.lock().values_mut().filter(|held| held.session.ptr_eq(&gone)) {
            held.session = Weak::new();
            any = true;
        }
        if any && !pool.server().work.is_closing() {
            let pool = pool.clone();
            pool.server().clone().work.spawn(async move {
                if let Ok(session) = pool.list_session().await {
                    pool.subscriptions.resubscribe(&pool, &session);
                }
            });
        }
    }
}

/// Subscribes, unless the identity already has.
///
/// # Errors
/// The error of `resources/subscribe`.
pub(super) async fn subscribe<W: Transport>(
    pool: Arc<SessionPool<W>>,
    uri: &str,
) -> Result<SubscriptionGuard<W>, SubscribeError> {
    let session = pool.list_session().await?;
    let guard = SubscriptionGuard { pool, uri: uri.to_owned() };
    let agreed = {
        let mut held = guard.pool.subscriptions.0.lock();
        let fresh = || SubscriptionEntry { holders: 0, session: Arc::downgrade(&session), agreed: false };
        let held = held.entry(guard.uri.clone()).or_insert_with(fresh);
        held.holders += 1;
        held.agreed
    };
    if !agreed {
        // Another caller may request the same now; a second request is harmless. The guard removes the entry
        // if the request fails or is dropped.
        send_request(&guard.pool, Method::ResourcesSubscribe, uri).await?;
        if let Some(held) = guard.pool.subscriptions.0.lock().get_mut(uri) {
            held.agreed = true;
        }
    }
    Ok(guard)
}

/// Sends a request of the proxy in the list session.
async fn send_request<W: Transport>(
    pool: &Arc<SessionPool<W>>,
    method: Method,
    uri: &str,
) -> Result<(), SubscribeError> {
    let id = pool.server().next_id();
    let request = CallRequest {
        id,
        body: message::about_resource(id, method.as_str(), uri),
        method,
        headers: ExtraHeaders::default(),
        deferral: None,
        timeout: None,
    };
    let mut replies = CallExchange::new(pool.clone(), request);
    while let Some(event) = replies.next().await {
        match event {
            UpstreamEvent::Final(response) => {
                let refused = ErrorObject::of(response.frame());
                return refused.map_or(Ok(()), |error| Err(SubscribeError::Refused(error)));
            }
            UpstreamEvent::Lost(lost) => return Err(lost.into()),
            UpstreamEvent::Notification(_)
            | UpstreamEvent::ServerRequest(_)
            | UpstreamEvent::RequestCancelled { .. } => {}
            UpstreamEvent::InputRequired(_) => {
                return Err(CallError::Invalid("it sends input requests".to_owned()).into());
            }
        }
    }
    Err(CallError::Closing.into())
}

// === impl CallError ===

impl From<SubscribeError> for CallError {
    fn from(why: SubscribeError) -> Self {
        match why {
            SubscribeError::Refused(error) => Self::Invalid(error.message()),
            SubscribeError::Lost(lost) => lost,
        }
    }
}

// === impl SubscriptionGuard ===

impl<W: Transport> Drop for SubscriptionGuard<W> {
    fn drop(&mut self) {
        let let_go = {
            let mut held = self.pool.subscriptions.0.lock();
            let Some(entry) = held.get_mut(&self.uri) else { return };
            entry.holders -= 1;
            if entry.holders > 0 {
                return;
            }
            held.remove(&self.uri).is_some_and(|held| held.agreed)
        };
        if let_go && !self.pool.server().work.is_closing() {
            let (pool, uri) = (self.pool.clone(), std::mem::take(&mut self.uri));
            self.pool.server().clone().work.spawn(async move {
                if let Err(lost) = send_request(&pool, Method::ResourcesUnsubscribe, &uri).await {
                    tracing::debug!(error = %lost, "a resource could not be unsubscribed");
                }
            });
        }
    }
}
