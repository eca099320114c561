//! Everything that is checked from the outside, in one binary, a file for each topic.

mod architecture;
mod cli;
mod config;
mod deploy;
mod disk;
mod docs;
mod exchange;
mod front;
mod fuzz;
mod hosted;
mod house;
mod ledger;
mod legacy;
mod lifetimes;
mod limits;
mod metrics;
mod operators;
mod passthrough;
mod proxy;
mod questions;
mod relay;
mod reload;
mod rollout;
mod rules;
mod samples;
mod simulation;
mod stdio;
mod stores;
mod support;
mod task_engine;
mod tasks;
mod tickets;
#[cfg(feature = "otlp")]
mod traces;
mod upstream;
