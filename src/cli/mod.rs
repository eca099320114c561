//! What people type.
