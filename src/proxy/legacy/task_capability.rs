//! What servers say of themselves in a handshake: which have tasks of their own, and which revisions they
//! know; and what is added to the words of those that have no tasks.

use crate::{
    bridge::offer::{self, Handshake},
    dialect::{Credentials, Principal, legacy},
    protocol::{Capabilities, Revision},
    proxy::{Passage, relay::Edit, session::Key, shared::Shared},
    upstream::{CallError, Identity},
};
use bytes::Bytes;
use http::HeaderMap;
use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

/// What is known of a server: what it last said in a handshake.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Offering {
    /// Whether it has tasks of its own.
    tasks: Known,
    /// Whether it survives the end of a session.
    farewells: Known,
}

/// A yes, a no, or nothing yet.
#[derive(Debug, Default)]
struct Known(AtomicU8);

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// The first revision whose servers go on after a DELETE.
const SURVIVES: Revision = Revision::V2025_06_18;

// === impl Offering ===

impl Offering {
    fn learn_tasks(&self, has_tasks: bool) {
        self.tasks.learn(has_tasks);
    }

    /// The server has answered a client that knows revisions up to `asked`. Servers answer with the
    /// client's own where they know it, else with the newest that they know: an answer older than what
    /// was asked for is the newest there is, and one that was asked for may not be.
    fn learn_revision(&self, asked: Option<Revision>, answered: &str) {
        match (asked, Revision::parse(answered)) {
            // One that we do not know is newer than all that we do.
            (_, None) => self.farewells.learn(true),
            (_, Some(answered)) if answered >= SURVIVES => self.farewells.learn(true),
            (Some(asked), Some(_)) if asked >= SURVIVES => self.farewells.learn(false),
            (Some(_) | None, Some(_)) => {}
        }
    }

    /// Whether the server goes on serving after a session was ended by a DELETE, where that is known.
    pub(super) fn survives_farewells(&self) -> Option<bool> {
        self.farewells.get()
    }
}

// === impl Known ===

impl Known {
    fn learn(&self, yes: bool) {
        self.0.store(if yes { YES } else { NO }, Ordering::Relaxed);
    }

    fn get(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => None,
            known => Some(known == YES),
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Whether tasks of 2025-11-25 are made here for the client of this request.
    pub(super) async fn offers_tasks(&self, passage: &Passage) -> bool {
        self.knows_tasks(passage.principal, &passage.headers) && !self.server_has_tasks(passage).await
    }

    /// Whether the server has tasks of its own. One that has not been heard since we started (its
    /// sessions may be older than that) is asked; one that does not answer will say so itself to whoever
    /// calls it.
    pub(super) async fn server_has_tasks(&self, passage: &Passage) -> bool {
        if let Some(known) = self.offering.tasks.get() {
            return known;
        }
        match self.ask_server(passage.principal, &passage.headers).await {
            Ok(()) => self.offering.tasks.get().unwrap_or(true),
            Err(_) => true,
        }
    }

    /// Asks the server what it is, in a session of our own, with the newest revision of its era.
    ///
    /// # Errors
    /// What became of the handshake.
    pub(super) async fn ask_server(
        &self,
        principal: Principal,
        headers: &HeaderMap,
    ) -> Result<(), CallError> {
        let caller = Identity {
            principal,
            credentials: Credentials::of(headers, &self.route.forward),
            capabilities: Arc::new(Capabilities::none()),
        };
        let server = self.upstream.describe(&caller).await?;
        self.offering.learn_tasks(server.has_tasks);
        self.offering.learn_revision(Some(Revision::NEWEST_LEGACY), &server.version);
        Ok(())
    }
}

/// What the answer to this `initialize` becomes: on a route without tasks what it is, and only learned
/// from.
pub(super) fn handshake(shared: Arc<Shared>, body: &Bytes, principal: Principal) -> Edit {
    let asked = legacy::asked_revision(body);
    Box::new(move |answer, in_session| {
        if let Some(answered) = legacy::answered_revision(answer) {
            shared.offering.learn_revision(asked, &answered);
            if let Some(session) = in_session
                && answered == Revision::V2025_11_25.as_str()
            {
                shared.revisions.learn(Key::named(principal, session));
            }
        }
        if !shared.route.has_tasks() {
            return None;
        }
        match offer::handshake(answer, !principal.is_anonymous() || in_session.is_some())? {
            Handshake::Theirs => {
                shared.offering.learn_tasks(true);
                None
            }
            Handshake::None { offer } => {
                shared.offering.learn_tasks(false);
                offer
            }
        }
    })
}

/// What the answer to `tools/list` becomes.
pub(super) fn tools(shared: Arc<Shared>) -> Edit {
    Box::new(move |answer, _| offer::tools(answer, |tool| shared.route.treatment(tool).mode))
}
