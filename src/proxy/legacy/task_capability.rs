//! Tasks of 2025-11-25 among what servers say of themselves: added to the words of those that have none of their
//! own.

use crate::{
    bridge::offer::{self, Handshake},
    dialect::{Principal, legacy},
    policy::Standing,
    protocol::{Payload, Revision},
    proxy::{
        Passage,
        relay::Edit,
        session::{Client, ClientInfo, Key},
        shared::Shared,
    },
    telemetry::metrics,
};
use std::sync::Arc;

/// Whether tasks are made here for this client.
pub(super) async fn is_offered(shared: &Shared, client: &Client, passage: &Passage) -> bool {
    client.knows_tasks() && !shared.server_has_tasks(client.principal, &passage.headers).await
}

/// What the answer to this `initialize` becomes: on a route without tasks what it is, and only learned
/// from.
pub(super) fn handshake(
    shared: Arc<Shared>,
    params: Option<&Payload>,
    (principal, standing): (Principal, &Standing),
) -> Edit {
    let offers_tasks = shared.route.offers_tasks(standing);
    let asked = params.and_then(legacy::asked_revision);
    let client = shared.route.has_tickets().then(|| ClientInfo::of(params));
    Box::new(move |answer, in_session| {
        if let (Some(client), Some(session)) = (&client, in_session) {
            shared.sessions.holders.opens(Key::named(principal, session), client.clone());
        }
        if let Some(answered) = legacy::answered_revision(answer) {
            let revision = Revision::parse(&answered);
            shared.server_profile.learn_revision(asked, revision);
            if let (Some(session), Some(revision)) = (in_session, revision) {
                shared.sessions.revisions.learn(Key::named(principal, session), revision);
            }
        }
        if !shared.route.has_tasks() {
            return None;
        }
        match offer::handshake(answer, !principal.is_anonymous() || in_session.is_some())? {
            Handshake::Theirs => {
                shared.server_profile.learn_tasks(true);
                None
            }
            Handshake::None { offer } => {
                shared.server_profile.learn_tasks(false);
                offer.filter(|_| offers_tasks)
            }
        }
    })
}

/// What the answer to `tools/list` becomes.
pub(super) fn tools(shared: Arc<Shared>, standing: Standing) -> Edit {
    Box::new(move |answer, _| {
        offer::tools(answer, |tool| {
            metrics::tool_listed(&shared.route.path, tool);
            shared.route.treatment_for(tool, &standing).mode
        })
    })
}
