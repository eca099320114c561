//! `deferral supervise`, which nobody types: what the proxy starts between itself and a server's process.

use super::{FAILED, printer::Printer};
use crate::app;
use tokio::runtime;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(last = true, value_name = "CMD", required = true)]
    command: Vec<String>,
}

/// Watches over one process until nothing of it is left. Gives the exit code.
pub fn run(args: &Args, printer: &mut Printer) -> u8 {
    // There may be many of these, and each does next to nothing.
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the system gives descriptors to a process that starts");
    match runtime.block_on(app::supervise(&args.command)) {
        Ok(code) => code,
        Err(error) => {
            printer.error(format_args!(
                "this command is for the proxy itself, which starts it for the `command` of an `upstream`: {error}"
            ));
            FAILED
        }
    }
}
