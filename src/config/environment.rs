//! What a configuration is read in: the folder of its file, and the variables of the environment.

use super::values::InvalidValue;
use std::{collections::BTreeMap, env, fmt, path::Path};

/// The variables of the environment, as they were at one moment. `Debug` shows none of them.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, Option<String>>);

/// What a configuration is read in.
#[derive(Clone, Copy)]
pub(super) struct LoadContext<'a> {
    /// Where relative paths begin.
    pub(super) folder: &'a Path,
    /// Whether certificates and commands are looked for.
    pub(super) checks_files: bool,
    pub(super) environment: &'a Environment,
}

// === impl Environment ===

impl Environment {
    /// Those of this process.
    pub fn of_process() -> Self {
        // A name that is not text can be named nowhere.
        let named = |(name, value): (_, std::ffi::OsString)| {
            Some((std::ffi::OsString::into_string(name).ok()?, value.into_string().ok()))
        };
        Self(env::vars_os().filter_map(named).collect())
    }

    /// The names of all that are set.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The value of a variable; `Missing` where it is not set.
    ///
    /// # Errors
    /// Where it is not text.
    pub fn get(&self, name: &str) -> Result<Option<&str>, InvalidValue> {
        match self.0.get(name) {
            Some(None) => Err(InvalidValue(format!("the environment variable `{name}` is not valid UTF-8"))),
            Some(Some(value)) => Ok(Some(value)),
            None => Ok(None),
        }
    }

    /// The value of a variable that is text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_deref()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Environment {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(variables: I) -> Self {
        let named = |(name, value): (&str, &str)| (name.to_owned(), Some(value.to_owned()));
        Self(variables.into_iter().map(named).collect())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment(..)")
    }
}
