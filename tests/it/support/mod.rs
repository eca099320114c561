//! What several topics need.

pub(crate) mod json;
