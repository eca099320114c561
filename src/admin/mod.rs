//! For operators.
