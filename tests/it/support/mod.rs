//! What several topics need.

pub(crate) mod clients;
pub(crate) mod json;
pub(crate) mod servers;
