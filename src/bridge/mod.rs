//! Handles one client call between the dialects of client and server. Pure, without I/O: [`crate::proxy`]
//! carries out the decisions made here.
//!
//! [`plan`](mod@plan) chooses once how a call is handled, and [`legacy_plan`] how a request between two legacy
//! peers is handled; [`Exchange`] follows one call from its start to its
//! one outcome; [`listen`] writes the messages of a subscription. [`elicit`] writes the input requests of a
//! server for the client and validates the input responses, and [`request_state`] connects the client's retry
//! with its call.
//!
//! A client without task support may get a ticket instead of a task: [`ticket`] edits the server's messages
//! for such a client, and [`ticket_seal`] seals a task's id into a ticket.
//!
//! A call that needs no translation is relayed: [`ResponseRelay`] follows its response from its first byte to
//! its end.
//!
//! [`deny`] removes denied tools from a server's list.
//!
//! For clients of 2025-11-25, [`offer`] adds the tasks of that revision to the messages of a server without
//! any, and [`outbox`] chooses the stream for messages of such a task.

pub mod deny;
pub mod describe;
pub mod elicit;
pub mod exchange;
pub mod form;
pub mod legacy_plan;
pub mod listen;
pub mod offer;
pub mod outbox;
pub mod plan;
pub mod relay;
pub mod request_state;
pub mod ticket;
pub mod ticket_seal;
pub mod tool_list;

pub use exchange::{Exchange, ExchangeAction};
pub use legacy_plan::{LegacyAction, LegacyDrive, LegacyPlan, plan_legacy};
pub use outbox::TaskOutbox;
pub use plan::{DriveMode, plan};
pub use relay::ResponseRelay;
pub use tool_list::ToolParamHeaders;
