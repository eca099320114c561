//! The face of 2026-07-28: every request is a POST of its own.

use super::{
    Front,
    layers::{span, trace::Line},
    metadata::Address,
    removed_token,
};
use crate::{
    dialect::{Call, Caller},
    policy::Route,
    protocol::{Capabilities, Heartbeat, Id, Method},
    proxy::{Items, KeepAlive, Service},
};
use bytes::Bytes;
use http::request::Parts;
use std::{sync::Arc, time::Instant};

/// A call on its way.
pub(super) struct Asked {
    pub(super) id: Id,
    pub(super) items: Items,
    pub(super) ladder: KeepAlive,
    pub(super) address: Address,
}

/// Hands a call to the service.
pub(super) fn ask(
    front: &Front,
    service: &dyn Service,
    head: &Parts,
    (mut call, capabilities): (Arc<Call>, Arc<Capabilities>),
    line: &mut Line,
) -> Asked {
    let began = line.asks(&call);
    let trace = line.spans(span::of_call(&front.tracer, &call, &head.headers));
    if trace.is_some() {
        Arc::make_mut(&mut call).trace = trace;
    }
    let caller = Caller {
        principal: line.principal(),
        credentials: line.connection().credentials(&head.headers, &service.route().forward),
        capabilities,
        client_info: call.client_info.clone(),
        standing: service.route().standing(&head.headers, line.token(), line.principal()),
        signs: service.route().tickets.ask_for_headers().then(|| Arc::new(head.headers.clone())),
    };
    Asked {
        id: call.id.clone(),
        ladder: ladder(service.route(), &call, &caller, began),
        address: Address::of(front, head, line.connection()),
        items: match call.method {
            Method::Listen => {
                let (removal, id) = (removed_token::removal(front, line), call.id.clone());
                removed_token::end_listening(removal, service.call(call, caller), id)
            }
            _ => service.call(call, caller),
        },
    }
}

/// What the client is told while it waits. One that can be given a task is told of progress there.
fn ladder(route: &Route, call: &Call, caller: &Caller, began: Instant) -> KeepAlive {
    if !call.method.may_ask() {
        return KeepAlive::of_comments(route.held.comments, began);
    }
    let token = call.progress_token.as_deref().filter(|_| !caller.capabilities.declares_tasks());
    let heartbeat = token.map(|token| Heartbeat::new(Bytes::copy_from_slice(token), true));
    KeepAlive::new(route.held, heartbeat, began)
}
