//! Which servers have tasks of their own, and what is added to the words of those that have none.

use super::{edited::Edit, knows_tasks};
use crate::{
    bridge::offer::{self, Handshake},
    dialect::Credentials,
    protocol::{Capabilities, splice::Object},
    proxy::{Passage, endpoint::Shared},
    upstream::Identity,
};
use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

/// What is known of a server's own tasks: what it last said in a handshake.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Offering(AtomicU8);

const UNKNOWN: u8 = 0;
const THEIRS: u8 = 1;
const NONE: u8 = 2;

// === impl Offering ===

impl Offering {
    fn learn(&self, has_tasks: bool) {
        self.0.store(if has_tasks { THEIRS } else { NONE }, Ordering::Relaxed);
    }

    fn known(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => None,
            known => Some(known == THEIRS),
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Whether tasks of 2025-11-25 are made here for the client of this request.
    pub(super) async fn offers_tasks(&self, passage: &Passage) -> bool {
        knows_tasks(&passage.headers) && !self.server_has_tasks(passage).await
    }

    /// Whether the server has tasks of its own. One that has not been heard since we started (its
    /// sessions may be older than that) is asked, in a session of our own; one that does not answer
    /// will say so itself to whoever calls it.
    pub(super) async fn server_has_tasks(&self, passage: &Passage) -> bool {
        if let Some(known) = self.offering.known() {
            return known;
        }
        let caller = Identity {
            principal: passage.principal,
            credentials: Credentials::of(&passage.headers, &self.route.forward),
            capabilities: Arc::new(Capabilities::none()),
        };
        let Ok(server) = self.upstream.describe(&caller).await else { return true };
        let has_tasks = Object::read(&server.capabilities).is_ok_and(|object| object.contains("tasks"));
        self.offering.learn(has_tasks);
        has_tasks
    }
}

/// What the answer to `initialize` becomes. `told_apart` is whether the caller is known by more than
/// its session.
pub(super) fn handshake(shared: Arc<Shared>, told_apart: bool) -> Edit {
    Box::new(move |answer, in_session| match offer::handshake(answer, told_apart || in_session)? {
        Handshake::Theirs => {
            shared.offering.learn(true);
            None
        }
        Handshake::None { offer } => {
            shared.offering.learn(false);
            offer
        }
    })
}

/// What the answer to `tools/list` becomes.
pub(super) fn tools(shared: Arc<Shared>) -> Edit {
    Box::new(move |answer, _| offer::tools(answer, |tool| shared.route.treatment(tool).mode))
}
