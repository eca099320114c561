//! Tasks of 2025-11-25 in front of a server that has none.

mod isolation;
mod policies;
mod questions;
mod streams;
mod talk;
