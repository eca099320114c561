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
//! `tasks` stores the tasks of all routes, within quotas, and recovers those of a former process.
//!
//! `tickets` decides for both eras which clients get a ticket instead of a task, and serves the tools that
//! take one.
//!
//! Begin with `endpoint.rs` and `drive/mod.rs`.

mod admission;
mod answers;
mod call_registry;
mod drive;
mod endpoint;
mod input_requests;
mod keep_alive;
mod legacy;
mod listen;
mod observed_call;
mod recent_map;
pub mod relay;
mod reply;
mod route_context;
mod route_service;
mod server_profile;
mod session;
mod tasks;
mod tickets;
mod tool_lists;

pub use crate::policy::KeepAliveStep;
pub use call_registry::CallRegistry;
pub use drive::RestoredInput;
pub use endpoint::Endpoint;
pub use keep_alive::KeepAlive;
pub use relay::legacy_http::{
    BodyContinuation, BodyPiece, BodyStream, LegacyRequest, LegacyResponse, ResponseBody,
};
pub use reply::{AccessSummary, CallReply, DeliveryCommit, ReplyItem, ReplyStream};
pub use route_service::RouteService;
pub use tasks::{
    AnchorSeal, CancelOutcome, LeaseState, OperatorTasks, TaskAdmissionError, TaskAnchor, TaskCursor,
    TaskLedger, TaskLookup, TaskSummary, name_and_principal,
};
