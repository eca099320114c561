//! Carries out what [`bridge`](crate::bridge) decides: joins calls to servers, stores and clocks.
//!
//! An [`Endpoint`] is one route at work. Its [`Service::call`] gives a stream of [`Item`]s that is
//! polled in place by whoever writes them to the client, so that a fast call costs no spawn and no
//! store access (`drive`). When a call becomes a task, or its server asks something, the very
//! same driver moves to a runtime task of its own, and `answers` speaks for it
//! from the store.
//!
//! A legacy client in front of a legacy server needs none of this: its requests are passed on
//! ([`Service::pass`], `relay`), but for what concerns the tasks of 2025-11-25 (`legacy`). What is known of
//! its session is in `session`.
//!
//! `admission` has the limits of the calls of a route and of its tools.
//!
//! Who holds a ticket in the place of a task is said by `tickets`, for both eras; calls of the tools that take one are
//! in `ticket_call` and `legacy/ticket_call`, and what they are told in `answers/ticket`.

mod absent;
mod access_summary;
mod admission;
mod anchor;
mod answers;
mod catalogues;
mod collection;
mod conversation;
mod drive;
mod endpoint;
mod hub;
mod input_requests;
mod keep;
mod keep_alive;
mod ledger;
mod legacy;
mod limits;
mod listen;
mod observed_call;
mod operators;
mod orphan_report;
mod passage;
mod recent;
pub mod relay;
mod reply;
mod reservations;
mod restart;
mod server_profile;
mod service;
mod session;
mod shared;
mod store_health;
mod sweep;
mod switchboard;
mod ticket_call;
mod tickets;

pub use crate::policy::KeepAliveStep;
pub use access_summary::AccessSummary;
pub use anchor::{Anchor, AnchorSeal};
pub use conversation::{Commit, Item, Items, Reply};
pub use drive::Left;
pub use endpoint::Endpoint;
pub use keep_alive::KeepAlive;
pub use ledger::{Ledger, NoRoom};
pub use operators::{Cancelled, Cursor, Found, Operators, SeenTask, names_of};
pub use passage::{Passage, Passed, Passing, Piece, Pieces, Then};
pub use service::Service;
pub use switchboard::Switchboard;
