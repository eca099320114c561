//! The program: arguments in, exit code out. Everything else is in the library.

use std::process::ExitCode;

/// mimalloc, because a proxy makes many small allocations on many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    deferral::run()
}
