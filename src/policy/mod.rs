//! Decisions from given facts: which call may become a task and when, who may come in, how much of
//! everything there may be.
//!
//! Each type here is a part of the configuration as it is meant, after the file was read; nothing
//! here waits or looks anything up.

pub mod access;
pub mod call_limits;
pub mod limit;
pub mod rollout;
pub mod route;
pub mod silence;
pub mod threshold;
pub mod tickets;
pub mod tokens;

pub use access::{Access, Checked, Denied};
pub use call_limits::{CallLimits, CallQueue};
pub use limit::Quotas;
pub use rollout::{Head, Rollout, RolloutBy, Share, Standing};
pub use route::{
    ClientMatch, Held, LegacyTasks, PrincipalSource, Questions, ResponseHeaders, Resume, Route, Unsolicited,
    is_same_path,
};
pub use silence::{KeepAliveStep, Silence};
pub use threshold::{Defer, Mode, Pattern, SHORTEST_RETENTION, ToolPolicy, ToolRule};
pub use tickets::{HolderSign, Holding, TicketAfter, TicketHolder, TicketTerms, Tickets};
pub use tokens::{NotKnown, Token, Tokens, bearer_of};
