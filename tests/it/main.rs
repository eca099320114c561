//! Everything that is checked from the outside, in one binary.

mod exchange;
mod front;
mod passthrough;
mod simulation;
mod support;
