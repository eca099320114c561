//! `deferral ready`: asks a proxy that runs whether it should be sent clients, for health checks that run a program.

use super::{USAGE, operator, plain::plain};
use std::io::{self, Write};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    address: operator::Address,
}

/// Prints what `/ready` says to `out` where it is 200, else to `err` why it is not. Gives the exit code: 0 or 1.
///
/// # Errors
/// Where nothing can be printed.
pub async fn run(args: Args, out: &mut impl Write, err: &mut impl Write) -> io::Result<u8> {
    let operator = match args.address.operator() {
        Ok(operator) => operator,
        Err(why) => {
            writeln!(err, "error: {why}")?;
            return Ok(USAGE);
        }
    };
    match operator.get("/ready").await {
        Ok(body) => writeln!(out, "{}", plain(String::from_utf8_lossy(&body).trim()))?,
        Err(error) => {
            writeln!(err, "error: {}", plain(&args.address.explain(&error)))?;
            return Ok(1);
        }
    }
    Ok(0)
}
