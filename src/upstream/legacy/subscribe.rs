//! Resource subscriptions: made once for all who want the same one, and made again in another
//! session when theirs is gone.

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

/// Why there is no subscription.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubscribeError {
    /// The server's own words.
    #[error("{}", .0.message())]
    Refused(ErrorObject),
    #[error(transparent)]
    Lost(#[from] CallError),
}

/// The subscriptions of one identity.
pub(super) struct ResourceSubscriptions<W: Transport>(Mutex<HashMap<String, SubscriptionEntry<W>>>);

struct SubscriptionEntry<W: Transport> {
    /// Guards that keep it.
    holders: usize,
    /// Where it was made.
    session: Weak<UpstreamSession<W>>,
    /// The server has agreed to it.
    agreed: bool,
}

/// Keeps a subscription; the last one to go lets go of it at the server.
pub(super) struct SubscriptionGuard<W: Transport> {
    group: Arc<SessionPool<W>>,
    uri: String,
}

// === impl Subscribed ===

impl<W: Transport> Default for ResourceSubscriptions<W> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<W: Transport> ResourceSubscriptions<W> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// A list session has been opened: what lives in no session is subscribed in it.
    pub(super) fn resubscribe(&self, group: &Arc<SessionPool<W>>, session: &Arc<UpstreamSession<W>>) {
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
            let group = group.clone();
            group.server().clone().work.spawn(async move {
                if let Err(lost) = send_request(&group, Method::ResourcesSubscribe, &uri).await {
                    tracing::warn!(error = %lost, "a resource could not be subscribed again");
                }
            });
        }
    }

    /// That each of what is subscribed in this session has changed.
    pub(super) fn updates(&self, session: &Arc<UpstreamSession<W>>) -> Vec<Frame> {
        let here = Arc::downgrade(session);
        let held = self.0.lock();
        let held = held.iter().filter(|(_, held)| held.session.ptr_eq(&here));
        held.map(|(uri, _)| message::resource_updated(uri)).collect()
    }

    /// A session takes no more calls: what was subscribed in it is subscribed in another.
    pub(super) fn move_from(&self, group: &Arc<SessionPool<W>>, session: &Arc<UpstreamSession<W>>) {
        let gone = Arc::downgrade(session);
        let mut any = false;
        for held in self.0.lock().values_mut().filter(|held| held.session.ptr_eq(&gone)) {
            held.session = Weak::new();
            any = true;
        }
        if any && !group.server().work.is_closing() {
            let group = group.clone();
            group.server().clone().work.spawn(async move {
                if let Ok(session) = group.list_session().await {
                    group.subscriptions.resubscribe(&group, &session);
                }
            });
        }
    }
}

/// Subscribes, unless somebody with the same identity has.
///
/// # Errors
/// What became of `resources/subscribe`.
pub(super) async fn subscribe<W: Transport>(
    group: Arc<SessionPool<W>>,
    uri: &str,
) -> Result<SubscriptionGuard<W>, SubscribeError> {
    let session = group.list_session().await?;
    let guard = SubscriptionGuard { group, uri: uri.to_owned() };
    let agreed = {
        let mut held = guard.group.subscriptions.0.lock();
        let fresh = || SubscriptionEntry { holders: 0, session: Arc::downgrade(&session), agreed: false };
        let held = held.entry(guard.uri.clone()).or_insert_with(fresh);
        held.holders += 1;
        held.agreed
    };
    if !agreed {
        // Others may be asking for the same just now; it does no harm to ask twice. The guard
        // undoes the entry if this fails or is not waited for.
        send_request(&guard.group, Method::ResourcesSubscribe, uri).await?;
        if let Some(held) = guard.group.subscriptions.0.lock().get_mut(uri) {
            held.agreed = true;
        }
    }
    Ok(guard)
}

/// Makes a call of our own to the list session.
async fn send_request<W: Transport>(
    group: &Arc<SessionPool<W>>,
    method: Method,
    uri: &str,
) -> Result<(), SubscribeError> {
    let id = group.server().next_id();
    let request = CallRequest {
        id,
        body: message::about_resource(id, method.as_str(), uri),
        method,
        headers: ExtraHeaders::default(),
        deferral: None,
        timeout: None,
    };
    let mut replies = CallExchange::new(group.clone(), request);
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
                return Err(CallError::Invalid("it asks something first".to_owned()).into());
            }
        }
    }
    Err(CallError::Closing.into())
}

// === impl NotSubscribed ===

impl From<SubscribeError> for CallError {
    fn from(why: SubscribeError) -> Self {
        match why {
            SubscribeError::Refused(error) => Self::Invalid(error.message()),
            SubscribeError::Lost(lost) => lost,
        }
    }
}

// === impl Guard ===

impl<W: Transport> Drop for SubscriptionGuard<W> {
    fn drop(&mut self) {
        let let_go = {
            let mut held = self.group.subscriptions.0.lock();
            let Some(entry) = held.get_mut(&self.uri) else { return };
            entry.holders -= 1;
            if entry.holders > 0 {
                return;
            }
            held.remove(&self.uri).is_some_and(|held| held.agreed)
        };
        if let_go && !self.group.server().work.is_closing() {
            let (group, uri) = (self.group.clone(), std::mem::take(&mut self.uri));
            self.group.server().clone().work.spawn(async move {
                if let Err(lost) = send_request(&group, Method::ResourcesUnsubscribe, &uri).await {
                    tracing::debug!(error = %lost, "a resource could not be unsubscribed");
                }
            });
        }
    }
}
