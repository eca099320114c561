//! Carries out the decisions of the state machines in [`bridge`](crate::bridge): connects calls to servers,
//! stores and clocks.
//!
//! An [`Endpoint`] serves one route. Its [`RouteService::call`] returns a stream of [`ReplyItem`]s that the
//! front polls in place, so that a fast call costs no spawn and no store access (`drive`). When a call
//! becomes a task, or its server sends an input request, the same driver moves to a runtime task of its own,
//! and `answers` responds for it from the store.
//!
//! Requests of a legacy client to a legacy server need no translation: they are relayed
//! ([`RouteService::relay`], `relay`), except for the tasks of 2025-11-25 (`legacy`). The state of the
//! client's session is in `session`.
//!
//! `admission` has the limits on the calls of a route and of its tools.
//!
//! `tickets` decides for both eras which clients get a ticket instead of a task. Calls of the ticket tools
//! are in `ticket_call` and `legacy/ticket_call`, and their results in `answers/ticket`.
//!
//! Begin with `endpoint.rs` and `drive/mod.rs`.

mod access_summary;
mod admission;
mod anchor;
mod answers;
mod call_registry;
mod call_reply;
mod drive;
mod endpoint;
mod fetch_metrics;
mod input_requests;
mod keep_alive;
mod ledger;
mod legacy;
mod legacy_http;
mod listen;
mod observed_call;
mod operator_tasks;
mod orphan_report;
mod pending_credentials;
mod persist;
mod principal_limits;
mod recent_map;
pub mod relay;
mod reply;
mod reservations;
mod restart;
mod route_context;
mod route_service;
mod server_profile;
mod session;
mod store_clock;
mod store_health;
mod sweep;
mod task_watchers;
mod ticket_call;
mod tickets;
mod tool_lists;

pub use crate::policy::KeepAliveStep;
pub use access_summary::AccessSummary;
pub use anchor::{AnchorSeal, TaskAnchor};
pub use call_registry::CallRegistry;
pub use call_reply::{CallReply, DeliveryCommit, ReplyItem, ReplyStream};
pub use drive::RestoredInput;
pub use endpoint::Endpoint;
pub use keep_alive::KeepAlive;
pub use ledger::{TaskAdmissionError, TaskLedger};
pub use legacy_http::{BodyContinuation, BodyPiece, BodyStream, LegacyRequest, LegacyResponse, ResponseBody};
pub use operator_tasks::{
    CancelOutcome, OperatorTasks, TaskCursor, TaskLookup, TaskSummary, name_and_principal,
};
pub use route_service::RouteService;
