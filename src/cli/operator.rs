//! Access of commands to the admin listener of a running proxy.

use super::{
    exit_codes::{EXIT_FAILURE, EXIT_NEGATIVE},
    printer::Printer,
};
use crate::client::{AdminClient, Error};
use clap::ValueHint;
use http::Uri;
use std::{env, fs, path::PathBuf};

#[derive(Clone, Debug, clap::Args)]
pub struct AdminArgs {
    /// URL of the proxy's admin listener (`admin` in its configuration).
    #[arg(long, value_name = "URL", default_value = DEFAULT, value_hint = ValueHint::Url)]
    admin: Uri,
    /// File that contains the admin token. Without this flag, the token is the value of DEFERRAL_ADMIN_TOKEN, or is read from the file that a proxy of the same user on this machine wrote at start.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,
}

/// The default admin address.
const DEFAULT: &str = "http://127.0.0.1:8809";
/// The environment variable with the admin token.
const TOKEN_VARIABLE: &str = "DEFERRAL_ADMIN_TOKEN";

// === impl AdminArgs ===

impl AdminArgs {
    /// Creates a client with the admin token of the option, the variable or a token file on this machine, if
    /// there is one.
    ///
    /// # Errors
    /// A message if the address or the token is invalid.
    pub fn client(&self) -> Result<AdminClient, String> {
        self.check_scheme()?;
        let token = match &self.token_file {
            Some(path) => {
                let text = fs::read_to_string(path);
                Some(text.map_err(|error| format!("--token-file {}: {error}", path.display()))?)
            }
            None => env::var(TOKEN_VARIABLE).ok(),
        };
        let token = token.as_deref().map(str::trim).filter(|token| !token.is_empty());
        AdminClient::new(self.admin.clone(), token).map_err(|error| error.to_string())
    }

    /// Creates a client without a token, for health checks.
    ///
    /// # Errors
    /// A message if the address is invalid.
    pub fn health_client(&self) -> Result<AdminClient, String> {
        self.check_scheme().map(|()| AdminClient::for_health_checks(self.admin.clone()))
    }

    fn check_scheme(&self) -> Result<(), String> {
        match self.admin.scheme_str() {
            Some("http" | "https") => Ok(()),
            _ => Err(format!("--admin {} must begin with http:// or https://", self.admin)),
        }
    }

    /// Returns the text of an error, with a suggestion where there is one.
    pub fn explain(&self, error: &Error) -> String {
        match error {
            Error::Unreachable { .. } => format!(
                "no response at {}: check that the proxy is running and that this is its `admin` address, which may be `off` (--admin URL)",
                self.admin
            ),
            Error::Status { status, .. } if status.as_u16() == 401 => {
                format!(
                    "{error}\nthe token is in the file that the proxy prints at start (`admin token: PATH`), or where `admin.token` says; pass it with --token-file or the variable {TOKEN_VARIABLE}"
                )
            }
            other => other.to_string(),
        }
    }

    /// Prints the error with a suggestion. Returns the exit code: [`EXIT_NEGATIVE`] if
    /// the proxy refused the request as such.
    pub fn report(&self, error: &Error, printer: &mut Printer) -> u8 {
        printer.error(self.explain(error));
        match error {
            Error::Status { status, .. } if matches!(status.as_u16(), 400 | 404 | 409) => EXIT_NEGATIVE,
            _ => EXIT_FAILURE,
        }
    }
}
