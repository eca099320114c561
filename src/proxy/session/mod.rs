//! The sessions of legacy clients, as far as they are known here.
//!
//! A session is the server's own; what is kept of it beside is in these files, each with its bound. Nothing
//! here sends anything or waits for a server.

mod bounded_map;
mod client;
mod client_ids;
mod get_streams;
mod in_flight;
mod key;
mod pending_requests;
mod presence;
mod relayed_input_requests;
mod request_map;
mod ticket_holders;
mod unfinished_streams;

pub(super) use client::LegacyClient;
pub(super) use get_streams::{GetStream, StreamFollower, next_stream_id};
pub(super) use in_flight::{ClientCall, InFlightCalls, ProxyCallGuard};
pub(super) use key::SessionKey;
pub(super) use pending_requests::{PendingRequest, PendingRequests};
pub(super) use relayed_input_requests::{RelayedInputRequest, ResponseOwner};
pub(super) use request_map::RequestRegistration;
pub(super) use ticket_holders::{ClientDeclaration, TicketHolders};
pub(super) use unfinished_streams::{EventKey, UnfinishedStream, UnfinishedStreams};

use crate::task::TaskId;
use crate::{protocol::headers::SESSION_ID, proxy::LegacyResponse};
use client::SessionRevisions;
use client_ids::ClientIds;
use get_streams::GetStreams;
use presence::SessionPresence;
use relayed_input_requests::RelayedInputRequests;
use request_map::RequestMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// What is known of the sessions of one route.
#[derive(Default)]
pub(super) struct LegacySessions {
    /// Which of them are there.
    pub(super) presence: SessionPresence,
    /// Which of them are of 2025-11-25.
    pub(super) revisions: SessionRevisions,
    /// What clients have asked and taken back, and which sessions they have ended.
    pub(super) pending_requests: Arc<PendingRequests>,
    /// Which ids of our range clients have used.
    pub(super) client_ids: ClientIds,
    /// What streams have left unanswered whose clients may come back.
    pub(super) unfinished_streams: Arc<UnfinishedStreams>,
    /// The calls in flight, ours and the clients', and so whose a question is that names no call.
    pub(super) in_flight: Arc<InFlightCalls>,
    /// What clients are asked on the streams of calls that are no tasks yet.
    pub(super) input_requests: Arc<RelayedInputRequests>,
    /// The calls that may become tasks unasked, by the client's own id: a cancel of one names that, which its
    /// server has never heard of.
    pub(super) waiting_calls: Arc<RequestMap<TaskId>>,
    /// Which of them hold tickets.
    pub(super) ticket_holders: TicketHolders,
    /// The requests that wait with a ticket, by the client's own id: a cancel of one ends the wait.
    pub(super) ticket_waits: Arc<RequestMap<Arc<Notify>>>,
    /// The streams on which sessions listen.
    pub(super) streams: Arc<GetStreams>,
}

// === impl Sessions ===

impl LegacySessions {
    /// What has become of a session, by what its server has answered. `begins` is whether it was asked for a handshake.
    ///
    /// A server may give the id of a session again that is over: one that is derived from the user, or the only one that
    /// there is. Then the session lives again.
    pub(super) fn note_response(&self, client: &LegacyClient, begins: bool, passed: &LegacyResponse) {
        self.presence.note_response(client, false, passed);
        let opened = passed.headers.get(&SESSION_ID).filter(|_| begins && passed.status.is_success());
        if let Some(opened) = opened {
            let key = SessionKey::named(client.principal, opened);
            self.pending_requests.reopen(key);
            self.in_flight.reopen(key);
        }
    }
}
