//! `deferral supervise`, an internal command: the process between the proxy and a stdio server.

use super::{exit_codes::EXIT_FAILURE, printer::Printer};
use crate::app;
use tokio::runtime;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(last = true, value_name = "CMD", required = true)]
    command: Vec<String>,
}

/// Supervises a process until it and its descendants have ended. Returns the exit code.
pub fn run(args: &Args, printer: &mut Printer) -> u8 {
    // One thread suffices: there may be many supervisors, each with little work.
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("descriptors are available at process start");
    match runtime.block_on(app::supervise(&args.command)) {
        Ok(code) => code,
        Err(error) => {
            printer.error(format_args!(
                "this command is for the proxy itself, which starts it for the `command` of an `upstream`: {error}"
            ));
            EXIT_FAILURE
        }
    }
}
