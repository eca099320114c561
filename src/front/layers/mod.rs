//! The layers that a request passes before it is dispatched: one file each.

pub(super) mod access;
pub(super) mod access_entry;
pub(super) mod health;
pub(super) mod principal;
pub(super) mod route_headers;
pub(super) mod shed;
pub(super) mod span;
pub(super) mod tokens;
