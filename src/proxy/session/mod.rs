//! The proxy's state about the sessions of legacy clients.
//!
//! A session belongs to its server. Each file of this module holds one kind of state that the proxy keeps
//! about sessions, within a bound. This module sends nothing and never waits for a server.

mod bounded_map;
mod client;
mod client_ids;
mod get_streams;
mod in_flight;
mod key;
mod listening;
mod pending_requests;
mod presence;
mod relayed_input_requests;
mod request_map;
mod ticket_holders;
mod unfinished_streams;

pub(super) use client::LegacyClient;
pub(super) use get_streams::{ExpectedStream, GetStream, StreamFollower, next_stream_id};
pub(super) use in_flight::{ClientCall, InFlightCalls, ProxyCallGuard};
pub(super) use key::SessionKey;
pub(super) use listening::StreamOpening;
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

/// The state of the sessions of one route.
#[derive(Default)]
pub(super) struct LegacySessions {
    /// The sessions that are known to exist at the server.
    pub(super) presence: SessionPresence,
    /// The negotiated revisions of sessions of 2025-11-25.
    pub(super) revisions: SessionRevisions,
    /// Requests of clients in flight, with their cancellations, and ended sessions.
    pub(super) pending_requests: Arc<PendingRequests>,
    /// Request ids in the proxy's range that clients have used.
    pub(super) client_ids: ClientIds,
    /// Requests that broken streams left unanswered, for clients that resume the streams.
    pub(super) unfinished_streams: Arc<UnfinishedStreams>,
    /// Calls in flight, the proxy's and the clients', for the attribution of input requests.
    pub(super) in_flight: Arc<InFlightCalls>,
    /// Input requests on the streams of calls that are not tasks yet.
    pub(super) input_requests: Arc<RelayedInputRequests>,
    /// Calls that may become tasks although their clients did not request tasks, by the client's own request
    /// id: a cancellation names that id, which the server does not know.
    pub(super) waiting_calls: Arc<RequestMap<TaskId>>,
    /// The sessions that were given the ticket tools.
    pub(super) ticket_holders: TicketHolders,
    /// Requests that wait with a ticket, by the client's own request id: a cancellation ends the wait.
    pub(super) ticket_waits: Arc<RequestMap<Arc<Notify>>>,
    /// The GET streams of the sessions.
    pub(super) streams: Arc<GetStreams>,
}

// === impl LegacySessions ===

impl LegacySessions {
    /// Updates the state of a session after a response of its server to a request other than a DELETE.
    /// `is_initialize` is whether the request was `initialize`.
    ///
    /// A server may assign the id of an ended session to a new one, for example an id derived from the user,
    /// or a constant. Then the state of the former session is reset.
    pub(super) fn note_response(
        &self,
        client: &LegacyClient,
        is_initialize: bool,
        response: &LegacyResponse,
    ) {
        self.presence.note_response(client, false, response);
        let session_id =
            response.headers.get(&SESSION_ID).filter(|_| is_initialize && response.status.is_success());
        if let Some(session_id) = session_id {
            let key = SessionKey::from_id(client.principal, session_id);
            self.pending_requests.reopen(key);
            self.in_flight.reopen(key);
        }
    }
}
