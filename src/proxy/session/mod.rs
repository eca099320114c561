//! The sessions of legacy clients, as far as they are known here.
//!
//! A session is the server's own; what is kept of it beside is in these files, each with its bound. Nothing
//! here sends anything or waits for a server.

mod by_request;
mod cancelled_requests;
mod client;
mod client_ids;
mod in_flight;
mod key;
mod latest;
mod presence;
mod relayed_questions;
mod streams;
mod tickets;
mod unfinished;

pub(super) use by_request::Registered;
pub(super) use cancelled_requests::{Asked, Ended};
pub(super) use client::Client;
pub(super) use in_flight::{InFlight, OurCall, TheirCall};
pub(super) use key::Key;
pub(super) use relayed_questions::{RelayedQuestion, Whose};
pub(super) use streams::{Follower, Stream, next_line};
pub(super) use tickets::{ClientInfo, Holders};
pub(super) use unfinished::{Left, Place, Unfinished};

use crate::task::TaskId;
use crate::{protocol::headers::SESSION_ID, proxy::Passed};
use by_request::ByRequest;
use client::Revisions;
use client_ids::ClientIds;
use presence::Presence;
use relayed_questions::RelayedQuestions;
use std::sync::Arc;
use streams::Streams;
use tokio::sync::Notify;

/// What is known of the sessions of one route.
#[derive(Default)]
pub(super) struct Sessions {
    /// Which of them are there.
    pub(super) presence: Presence,
    /// Which of them are of 2025-11-25.
    pub(super) revisions: Revisions,
    /// What clients have asked and taken back, and which sessions they have ended.
    pub(super) ended: Arc<Ended>,
    /// Which ids of our range clients have used.
    pub(super) client_ids: ClientIds,
    /// What streams have left unanswered whose clients may come back.
    pub(super) unfinished: Arc<Unfinished>,
    /// The calls in flight, ours and the clients', and so whose a question is that names no call.
    pub(super) in_flight: Arc<InFlight>,
    /// What clients are asked on the streams of calls that are no tasks yet.
    pub(super) questions: Arc<RelayedQuestions>,
    /// The calls that may become tasks unasked, by the client's own id: a cancel of one names that, which its
    /// server has never heard of.
    pub(super) waiting: Arc<ByRequest<TaskId>>,
    /// Which of them hold tickets.
    pub(super) holders: Holders,
    /// The requests that wait with a ticket, by the client's own id: a cancel of one ends the wait.
    pub(super) with_tickets: Arc<ByRequest<Arc<Notify>>>,
    /// The streams on which sessions listen.
    pub(super) streams: Arc<Streams>,
}

// === impl Sessions ===

impl Sessions {
    /// What has become of a session, by what its server has answered. `begins` is whether it was asked for a handshake.
    ///
    /// A server may give the id of a session again that is over: one that is derived from the user, or the only one that
    /// there is. Then the session lives again.
    pub(super) fn saw(&self, client: &Client, begins: bool, passed: &Passed) {
        self.presence.saw(client, false, passed);
        let opened = passed.headers.get(&SESSION_ID).filter(|_| begins && passed.status.is_success());
        if let Some(opened) = opened {
            let key = Key::named(client.principal, opened);
            self.ended.reopen(key);
            self.in_flight.reopen(key);
        }
    }
}
