//! `deferral store`: checks or copies a store on disk, whether it is in use or not.

use super::{
    exit_codes::{EXIT_FAILURE, EXIT_SUCCESS},
    printer::Printer,
};
use crate::store::disk::{self, BackupSummary, CheckReport};
use clap::ValueHint;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, clap::Subcommand)]
enum StoreCommand {
    /// Read a whole store, in use or not, and report its contents; exits with 2 if something is lost.
    Check {
        /// Folder of the store.
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
    },
    /// Copy a store, in use or not, to a new folder. The key is not copied: to use the copy, provide the key of the original.
    Backup {
        /// Folder of the store.
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        /// Folder to create.
        #[arg(value_hint = ValueHint::DirPath)]
        to: PathBuf,
    },
}

/// Prints the outcome and returns the exit code.
pub fn run(args: &Args, printer: &mut Printer) -> u8 {
    let outcome = match &args.command {
        StoreCommand::Check { path } => {
            disk::check(path).map(|contents| (is_whole(&contents), describe_contents(&contents)))
        }
        StoreCommand::Backup { path, to } => disk::backup(path, to).map(|BackupSummary { tasks, files }| {
            let copied =
                format!("{}: {}, {}", to.display(), count_of(tasks, "task"), count_of(files, "file"));
            (true, vec![copied, "the key was not copied; keep a copy of it in another place".to_owned()])
        }),
    };
    match outcome {
        Ok((is_whole, lines)) => {
            for line in lines {
                printer.line(line);
            }
            if is_whole {
                return EXIT_SUCCESS;
            }
            printer.error("parts of the store are lost");
        }
        Err(error) => printer.error(error),
    }
    EXIT_FAILURE
}

fn is_whole(contents: &CheckReport) -> bool {
    contents.faults.is_empty()
}

/// Describes the contents of a store, line by line.
fn describe_contents(contents: &CheckReport) -> Vec<String> {
    let CheckReport {
        process,
        schema,
        tasks,
        live,
        files,
        stored_bytes,
        unreferenced_files: unnamed,
        faults,
    } = contents;
    let mut lines = Vec::new();
    match process {
        Some(Some(pid)) => lines.push(format!("in use by process {pid}: this is a snapshot")),
        Some(None) => lines.push("in use: this is a snapshot".to_owned()),
        None => {}
    }
    lines.push(format!("schema {schema}"));
    lines.push(format!("{}, {live} of them active, {stored_bytes} bytes", count_of(*tasks, "task")));
    lines.push(format!("{} of results", count_of(*files, "file")));
    if *unnamed > 0 {
        let remedy =
            if process.is_some() { "some may be in progress" } else { "the next start removes them" };
        lines.push(format!("{} without a task; {remedy}", count_of(*unnamed, "file")));
    }
    lines.extend(faults.iter().map(|fault| format!("LOST {fault}")));
    lines.push(if is_whole(contents) {
        "ok".to_owned()
    } else {
        format!("{} lost", count_of(faults.len(), "item"))
    });
    lines
}

fn count_of(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
