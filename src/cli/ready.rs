//! `deferral ready`: checks readiness of a running proxy, for health checks that run a program.

use super::{
    exit_codes::{EXIT_FAILURE, EXIT_NEGATIVE, EXIT_SUCCESS},
    operator,
    printer::Printer,
};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    address: operator::AdminArgs,
}

/// Prints the response of `/ready`, or the error. Returns the exit code: 0 or 1, as health checks expect, and
/// 2 for a usage error.
pub async fn run(args: Args, printer: &mut Printer) -> u8 {
    let client = match args.address.health_client() {
        Ok(client) => client,
        Err(error) => {
            printer.error(error);
            return EXIT_FAILURE;
        }
    };
    match client.get("/ready").await {
        Ok(body) => {
            printer.line(String::from_utf8_lossy(&body).trim());
            EXIT_SUCCESS
        }
        Err(error) => {
            printer.error(args.address.explain(&error));
            EXIT_NEGATIVE
        }
    }
}
