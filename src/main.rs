//! Arguments in, exit code out. Everything else is in the library.

use clap::Parser;
use deferral::cli::{self, Cli, Command};
use std::{io, process::ExitCode};

/// Many small allocations on many threads are what a proxy does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match Cli::parse().command() {
        Command::Serve(args) => cli::serve::run(&args),
        // A reader that went away (`| head`) has seen enough.
        Command::Check(args) => cli::check::run(&args, &mut io::stdout().lock(), &mut io::stderr().lock())
            .unwrap_or_default()
            .into(),
        Command::Call(args) => cli::runtime().block_on(cli::call::run(args)).into(),
        Command::Demo(args) => match cli::runtime().block_on(cli::demo::run(args, &mut io::stdout())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                cli::USAGE.into()
            }
        },
    }
}
