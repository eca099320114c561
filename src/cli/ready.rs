//! `deferral ready`: asks a proxy that runs whether it should be sent clients, for health checks that run a program.

use super::{DONE, FAILED, NO, operator, printer::Printer};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    address: operator::AdminArgs,
}

/// Prints what `/ready` says where it is 200, else why it is not. Gives the exit code: 0 or 1, as health checks have
/// it, and 2 of a wrong command line.
pub async fn run(args: Args, printer: &mut Printer) -> u8 {
    let operator = match args.address.probe() {
        Ok(operator) => operator,
        Err(why) => {
            printer.error(why);
            return FAILED;
        }
    };
    match operator.get("/ready").await {
        Ok(body) => {
            printer.line(String::from_utf8_lossy(&body).trim());
            DONE
        }
        Err(error) => {
            printer.error(args.address.explain(&error));
            NO
        }
    }
}
