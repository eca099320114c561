//! Everything that is tested from outside, one file a topic.

mod cli;
mod config;
mod samples;
