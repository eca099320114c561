//! What several topics need.

pub(crate) mod clients;
pub(crate) mod faulty;
pub(crate) mod json;
pub(crate) mod servers;
pub(crate) mod time;
