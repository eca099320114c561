//! One client call crossing from one dialect to another. Pure: what is decided here is carried out
//! by [`crate::proxy`].
//!
//! [`plan`](mod@plan) chooses once what is to become of a call; [`Exchange`] follows one call from its
//! start to its one outcome; [`listen`] says what a subscription is told. A question of the server's on the
//! way is carried by [`elicit`], and [`request_state`] finds its call again when the client comes back with the
//! answer.
//!
//! A client that knows no tasks may hold a ticket: [`ticket`] says what changes for it in what its server says, and
//! [`ticket_seal`] makes the ticket of a task's id.
//!
//! A call that needs no translation goes by: [`ResponseRelay`] follows its answer from its first byte to its end.
//!
//! [`deny`] takes the tools that the operator denies out of a server's list.
//!
//! For clients of 2025-11-25, [`offer`] adds the tasks of that revision to what a server without any
//! says, and [`outbox`] knows where such a task can speak to its client.

pub mod deny;
pub mod describe;
pub mod elicit;
pub mod exchange;
pub mod form;
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
pub use outbox::TaskOutbox;
pub use plan::{DriveMode, LegacyToolCall, Plan, plan, plan_legacy};
pub use relay::ResponseRelay;
pub use tool_list::ToolParamHeaders;
