//! Everything that is checked from the outside, in one binary.

mod cli;
mod config;
mod exchange;
mod passthrough;
mod samples;
mod simulation;
mod support;
