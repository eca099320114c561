//! The exit codes of all commands (`docs/commands.md`).

/// Exit code: success.
pub(super) const EXIT_SUCCESS: u8 = 0;
/// Exit code for a negative result: an error of the tool, a proxy that is not ready, an unknown task.
pub(super) const EXIT_NEGATIVE: u8 = 1;
/// Exit code for a failure: an invalid command line or configuration, no connection, a refusal. A line on
/// standard error begins with `error: `.
pub(super) const EXIT_FAILURE: u8 = 2;
/// Exit code: the call was cancelled.
pub(super) const EXIT_CANCELLED: u8 = 130;
