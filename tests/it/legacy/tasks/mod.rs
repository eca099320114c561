//! Tasks of 2025-11-25 in front of a server that has none.

mod cancelling;
mod ids;
mod isolation;
mod life;
mod policies;
mod questions;
mod results;
mod streams;
mod talk;
