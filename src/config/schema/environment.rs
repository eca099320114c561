//! The context in which a configuration is read: the folder of its file, and the environment variables.

use super::problem::{ValueResult, invalid};
use std::{collections::BTreeMap, env, fmt, path::Path};

/// A snapshot of the environment variables. `Debug` hides them.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, Option<String>>);

/// The context in which a configuration is read.
#[derive(Clone, Copy)]
pub struct LoadContext<'a> {
    /// The folder of the configuration file, the base of relative paths.
    pub folder: &'a Path,
    /// Whether certificates and commands are checked for existence and validity.
    pub checks_files: bool,
    /// The environment variables that the configuration may use.
    pub environment: &'a Environment,
}

// === impl Environment ===

impl Environment {
    /// Takes a snapshot of the environment of this process.
    pub fn from_process() -> Self {
        // Names that are not UTF-8 cannot occur in a configuration.
        let to_entry = |(name, value): (_, std::ffi::OsString)| {
            Some((std::ffi::OsString::into_string(name).ok()?, value.into_string().ok()))
        };
        Self(env::vars_os().filter_map(to_entry).collect())
    }

    /// Returns the names of all variables.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the value of a variable; `None` if it is not set.
    ///
    /// # Errors
    /// A message if the value is not valid UTF-8.
    pub fn get(&self, name: &str) -> ValueResult<Option<&str>> {
        match self.0.get(name) {
            Some(None) => invalid(format!("the environment variable `{name}` is not valid UTF-8")),
            Some(Some(value)) => Ok(Some(value)),
            None => Ok(None),
        }
    }

    /// Returns the value of a variable; `None` if it is not set or not valid UTF-8.
    pub fn get_text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_deref()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Environment {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(variables: I) -> Self {
        let to_entry = |(name, value): (&str, &str)| (name.to_owned(), Some(value.to_owned()));
        Self(variables.into_iter().map(to_entry).collect())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment(..)")
    }
}
