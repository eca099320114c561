//! Resource subscriptions: shared by all subscribers of an identity, and made again in another session when
//! the session that holds them ends.

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
    /// The request could not be completed.
    Refused(ErrorObject),
    #[error(transparent)]
    Lost(#[from] CallError),
}

/// Resource subscriptions of one identity, by URI.
pub(super) struct ResourceSubscriptions<W: Transport>(Mutex<HashMap<String, SubscriptionEntry<W>>>);

struct SubscriptionEntry<W: Transport> {
    /// Number of guards of this subscription.
    guards: usize,
    /// Session in which `resources/subscribe` was sent.
    session: Weak<UpstreamSession<W>>,
    /// Whether the server has accepted the subscription.
    is_accepted: bool,
}

/// Keeps a resource subscription; dropping the last guard of a resource unsubscribes.
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

    /// Subscribes again, in a new list session, to the resources whose session has ended.
    pub(super) fn resubscribe(&self, pool: &Arc<SessionPool<W>>, session: &Arc<UpstreamSession<W>>) {
        let orphans: Vec<_> = {
            let mut subscriptions = self.0.lock();
            let orphans = subscriptions.iter_mut().filter(|(_, entry)| entry.session.strong_count() == 0);
            orphans
                .map(|(uri, entry)| {
                    entry.session = Arc::downgrade(session);
                    uri.clone()
                })
                .collect()
        };
        for uri in orphans {
            let pool = pool.clone();
            pool.server().clone().work.spawn(async move {
                if let Err(error) = send_request(&pool, Method::ResourcesSubscribe, &uri).await {
                    tracing::warn!(error = %error, "a resource could not be subscribed again");
                }
            });
        }
    }

    /// Returns update notifications for the resources subscribed in this session, after a gap in its
    /// messages.
    pub(super) fn update_notifications(&self, session: &Arc<UpstreamSession<W>>) -> Vec<Frame> {
        let target = Arc::downgrade(session);
        let subscriptions = self.0.lock();
        let subscribed_here = subscriptions.iter().filter(|(_, entry)| entry.session.ptr_eq(&target));
        subscribed_here.map(|(uri, _)| message::resource_updated(uri)).collect()
    }

    /// Moves the subscriptions of a session that takes no more calls to another.
    pub(super) fn move_from(&self, pool: &Arc<SessionPool<W>>, session: &Arc<UpstreamSession<W>>) {
        let old_session = Arc::downgrade(session);
        let mut has_moved = false;
        for entry in self.0.lock().values_mut().filter(|held| held.session.ptr_eq(&old_session)) {
            entry.session = Weak::new();
            has_moved = true;
        }
        if has_moved && !pool.server().work.is_closing() {
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
    let is_accepted = {
        let mut subscriptions = guard.pool.subscriptions.0.lock();
        let new_entry =
            || SubscriptionEntry { guards: 0, session: Arc::downgrade(&session), is_accepted: false };
        let entry = subscriptions.entry(guard.uri.clone()).or_insert_with(new_entry);
        entry.guards += 1;
        entry.is_accepted
    };
    if !is_accepted {
        // Another caller may request the same now; a second request is harmless. The guard removes the entry
        // if the request fails or is dropped.
        send_request(&guard.pool, Method::ResourcesSubscribe, uri).await?;
        if let Some(entry) = guard.pool.subscriptions.0.lock().get_mut(uri) {
            entry.is_accepted = true;
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
        body: message::resource_request(id, method.as_str(), uri),
        method,
        headers: ExtraHeaders::default(),
        deferral: None,
        client: None,
        timeout: None,
    };
    let mut replies = CallExchange::new(pool.clone(), request);
    while let Some(event) = replies.next().await {
        match event {
            UpstreamEvent::Final(response) => {
                let refused = ErrorObject::from_message(response.frame());
                return refused.map_or(Ok(()), |error| Err(SubscribeError::Refused(error)));
            }
            UpstreamEvent::Lost(error) => return Err(error.into()),
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
    fn from(error: SubscribeError) -> Self {
        match error {
            SubscribeError::Refused(error) => Self::Invalid(error.message()),
            SubscribeError::Lost(lost) => lost,
        }
    }
}

// === impl SubscriptionGuard ===

impl<W: Transport> Drop for SubscriptionGuard<W> {
    fn drop(&mut self) {
        let must_unsubscribe = {
            let mut subscriptions = self.pool.subscriptions.0.lock();
            let Some(entry) = subscriptions.get_mut(&self.uri) else { return };
            entry.guards -= 1;
            if entry.guards > 0 {
                return;
            }
            subscriptions.remove(&self.uri).is_some_and(|entry| entry.is_accepted)
        };
        if must_unsubscribe && !self.pool.server().work.is_closing() {
            let (pool, uri) = (self.pool.clone(), std::mem::take(&mut self.uri));
            self.pool.server().clone().work.spawn(async move {
                if let Err(error) = send_request(&pool, Method::ResourcesUnsubscribe, &uri).await {
                    tracing::debug!(error = %error, "a resource could not be unsubscribed");
                }
            });
        }
    }
}
