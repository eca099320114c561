//! Arguments in, exit code out. Everything else is in the library.

use std::process::ExitCode;

/// Many small allocations on many threads are what a proxy does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    deferral::run()
}
