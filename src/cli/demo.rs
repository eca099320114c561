//! `deferral demo`.
#[derive(Debug, clap::Args)]
pub struct Args {}
