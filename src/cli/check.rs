//! `deferral check`: judges a configuration file without starting anything.

use super::USAGE;
use crate::config;
use std::{
    io::{self, Write},
    path::PathBuf,
};

#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Args {
    /// The configuration file to check, or `-` for the standard input.
    #[arg(value_name = "FILE", required_unless_present_any = ["config", "schema"])]
    file: Option<PathBuf>,
    /// The same, in the way of `deferral serve`.
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
    /// Print the JSON Schema of configuration files, for editors.
    #[arg(long, conflicts_with_all = ["file", "config"])]
    schema: bool,
}

/// Prints `FILE: ok (2 routes)` to `out`, and to `err` what is probably not meant; or everything that is
/// wrong to `err`. Gives the exit code, which doubts do not change.
///
/// # Errors
/// Where nothing can be printed.
pub fn run(args: &Args, out: &mut impl Write, err: &mut impl Write) -> io::Result<u8> {
    let Some(path) = args.file.as_ref().or(args.config.as_ref()).filter(|_| !args.schema) else {
        let schema = serde_json::to_string_pretty(&config::schema()).expect("a JSON value is JSON");
        writeln!(out, "{schema}")?;
        return Ok(0);
    };
    let (config, doubts) = match config::check(path) {
        Ok(checked) => checked,
        Err(problems) => {
            writeln!(err, "{problems}")?;
            return Ok(USAGE);
        }
    };
    if let Some(doubts) = doubts {
        writeln!(err, "{doubts}")?;
    }
    let (count, noun) = (config.routes.len(), if config.routes.len() == 1 { "route" } else { "routes" });
    writeln!(out, "{}: ok ({count} {noun})", config::shown(path).display())?;
    Ok(0)
}
