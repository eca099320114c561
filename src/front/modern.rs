//! Requests of 2026-07-28: each is a POST of its own.

use super::{
    Front,
    layers::{access_entry::AccessEntry, span},
    metadata::PublicAddress,
    removed_token,
};
use crate::{
    dialect::{Call, Caller},
    policy::Route,
    protocol::{Capabilities, Method, ProgressHeartbeat, RequestId},
    proxy::{KeepAlive, ReplyStream, RouteService},
};
use bytes::Bytes;
use http::request::Parts;
use std::{sync::Arc, time::Instant};

/// A call in progress, with what its response needs.
pub(super) struct DispatchedCall {
    pub(super) id: RequestId,
    pub(super) items: ReplyStream,
    pub(super) keep_alive: KeepAlive,
    /// Replaces the server's address in challenges for credentials.
    pub(super) address: PublicAddress,
}

/// Hands a call to the route's service, and begins its span and access log entry.
pub(super) fn dispatch(
    front: &Front,
    service: &dyn RouteService,
    head: &Parts,
    (mut call, capabilities): (Arc<Call>, Arc<Capabilities>),
    entry: &mut AccessEntry,
) -> DispatchedCall {
    let began = entry.begin_call(&call);
    let trace = entry.set_span(span::begin_call_span(&front.tracer, &call, &head.headers));
    if trace.is_some() {
        Arc::make_mut(&mut call).trace = trace;
    }
    let caller = Caller {
        principal: entry.principal(),
        credentials: entry.connection().credentials(&head.headers, &service.route().session_headers),
        capabilities,
        client_info: call.client_info.clone(),
        rollout_membership: service.route().rollout_membership(
            &head.headers,
            entry.token_name(),
            entry.principal(),
        ),
        match_headers: service.route().tickets.needs_headers().then(|| Arc::new(head.headers.clone())),
    };
    DispatchedCall {
        id: call.id.clone(),
        keep_alive: keep_alive(service.route(), &call, &caller, began),
        address: PublicAddress::from_request(front, head, entry.connection()),
        items: match call.method {
            Method::Listen => {
                let (removal, id) = (removed_token::watch_removal(front, entry), call.id.clone());
                removed_token::end_listen_on_removal(removal, service.call(call, caller), id)
            }
            _ => service.call(call, caller),
        },
    }
}

/// Selects the keep-alive messages of a waiting call. A client that declares tasks gets no progress
/// notifications here, because it will read progress from its task.
fn keep_alive(route: &Route, call: &Call, caller: &Caller, began: Instant) -> KeepAlive {
    if !call.method.can_request_input() {
        return KeepAlive::comments_only(route.wait_policy.comment_after, began);
    }
    let token = call.progress_token.as_deref().filter(|_| !caller.capabilities.declares_tasks());
    let heartbeat = token.map(|token| ProgressHeartbeat::new(Bytes::copy_from_slice(token), true));
    KeepAlive::new(route.wait_policy, heartbeat, began)
}
