//! What is wrong with a configuration: all of it at once, each thing with its place and its remedy.

use std::{fmt, path::PathBuf};

/// Where a setting was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceSpan {
    /// In the file. Both count from 1; columns count characters.
    File { line: usize, column: usize },
    /// On the command line, by the name of the flag (`--listen`).
    Flag(&'static str),
    /// Nowhere in particular: something is missing altogether.
    Whole,
}

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpannedValue<T> {
    pub place: SourceSpan,
    pub value: T,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub place: SourceSpan,
    /// Names the thing and says what would be right.
    pub message: String,
}

/// Everything that is wrong with a configuration, in the order of the file. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    file: Option<PathBuf>,
    list: Vec<Problem>,
}

// === impl Place ===

impl SourceSpan {
    pub(super) const START: Self = Self::File { line: 1, column: 1 };
}

// === impl At ===

impl<T> SpannedValue<T> {
    pub const fn new(place: SourceSpan, value: T) -> Self {
        Self { place, value }
    }

    /// A default.
    pub const fn default_value(value: T) -> Self {
        Self::new(SourceSpan::Whole, value)
    }

    pub fn is_written(&self) -> bool {
        self.place != SourceSpan::Whole
    }

    /// The value, where it is not a default.
    pub fn explicit(&self) -> Option<&T> {
        self.is_written().then_some(&self.value)
    }
}

// === impl Problem ===

impl Problem {
    pub fn new(place: SourceSpan, message: impl Into<String>) -> Self {
        Self { place, message: message.into() }
    }
}

// === impl Problems ===

impl Problems {
    /// `Err` with the problems, unless there are none.
    ///
    /// # Errors
    /// The problems, in the order of the file.
    pub fn or_ok<T>(file: Option<PathBuf>, mut list: Vec<Problem>, value: T) -> Result<T, Self> {
        if list.is_empty() {
            return Ok(value);
        }
        list.sort_by_key(|problem| problem.place);
        // What aliases repeat is wrong once.
        list.dedup();
        Err(Self { file, list })
    }

    pub(super) fn one(file: Option<PathBuf>, problem: Problem) -> Self {
        Self { file, list: vec![problem] }
    }
}

impl Problems {
    /// A line for each: `file:line:column: message`, as editors and CI understand it.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.list.iter().map(|Problem { place, message }| match (place, &self.file) {
            (SourceSpan::File { line, column }, Some(file)) => {
                format!("{}:{line}:{column}: {message}", file.display())
            }
            (SourceSpan::File { line, column }, None) => format!("{line}:{column}: {message}"),
            (SourceSpan::Flag(flag), _) => format!("{flag}: {message}"),
            (SourceSpan::Whole, Some(file)) => format!("{}: {message}", file.display()),
            (SourceSpan::Whole, None) => message.clone(),
        })
    }
}

impl fmt::Display for Problems {
    /// [`Problems::lines`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().collect::<Vec<_>>().join("\n"))
    }
}

impl std::error::Error for Problems {}

/// The one of `known` that `text_value` was probably meant to be.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_understood_and_another_word_is_not() {
        let known = ["listen", "admin", "routes", "public_url"];
        assert_eq!(nearest("lisetn", known), Some("listen"));
        assert_eq!(nearest("Listen", known), Some("listen"));
        assert_eq!(nearest("public-url", known), Some("public_url"));
        assert_eq!(nearest("route", known), Some("routes"));
        assert_eq!(nearest("workers", known), None);
        assert_eq!(nearest("x", known), None);
    }
}
