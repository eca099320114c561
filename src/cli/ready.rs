//! `deferral ready`: checks readiness of a running proxy, for health checks that run a program.

use super::{DONE, FAILED, NO, operator, printer::Printer};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    address: operator::AdminArgs,
}

/// Prints the response of `/ready`, or the error. Returns the exit code: 0 or 1, as health checks expect, and
/// 2 for a usage error.
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
