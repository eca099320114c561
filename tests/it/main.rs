//! The integration tests: one binary, one folder for each topic. `tests/README.md` has the harness of each.

mod admin;
mod architecture;
mod cli;
mod config;
mod config_samples;
mod deploy;
mod disk;
mod docs;
mod emulated_sessions;
mod exchange;
mod front;
mod fuzz;
mod input_requests;
mod legacy;
mod lifetimes;
mod limits;
mod metrics;
mod passthrough;
mod proxy;
mod relay;
mod reload;
mod rollout;
mod rules;
mod simulation;
mod stdio;
mod stores;
mod support;
mod task_engine;
mod task_ledger;
mod task_machine;
mod tickets;
#[cfg(feature = "otlp")]
mod traces;
mod upstream;
mod whole_proxy;
