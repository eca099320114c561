//! Decisions as pure values: which call may become a task and when, which requests are allowed, and all
//! quotas.
//!
//! Each type here is a part of the configuration after the file was read; nothing here waits or performs I/O.

pub mod access;
pub mod call_limits;
pub mod keep_alive;
pub mod quotas;
pub mod rollout;
pub mod route;
pub mod threshold;
pub mod tickets;
pub mod tokens;

pub use access::{AccessDenial, AccessPolicy, AccessProof};
pub use call_limits::{CallLimits, CallQueue};
pub use keep_alive::{KeepAliveStep, KeepAliveTimer};
pub use quotas::TaskQuotas;
pub use rollout::{CallerHead, Rollout, RolloutBasis, RolloutMembership, RolloutShare};
pub use route::{
    ClientMatch, InputPolicy, LegacyTaskPolicy, PrincipalSource, ResponseHeaders, ResumePolicy, Route,
    UnsolicitedTasks, WaitPolicy, is_same_path,
};
pub use threshold::{DeferPolicy, MIN_RETENTION, Mode, NamePattern, ToolPolicy, ToolRule};
pub use tickets::{HolderMatch, TicketAfter, TicketGrant, TicketHolder, TicketPolicy, TicketTerms};
pub use tokens::{AccessToken, TokenError, TokenSet, bearer_token};
