//! Problems of a configuration: all problems are collected, each with its position and its fix.

use serde_json::Value as Json;
use std::{fmt, path::PathBuf};

/// The position where a setting was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceSpan {
    /// A position in the file. Lines and columns count from 1; columns count characters.
    File { line: usize, column: usize },
    /// A command line flag, by its name (`--listen`).
    Flag(&'static str),
    /// No position: the setting is missing, or has its default.
    Whole,
}

/// A value and the position where it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpannedValue<T> {
    pub span: SourceSpan,
    pub value: T,
}

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub span: SourceSpan,
    /// Text that says what is wrong with which key, and the fix.
    pub message: String,
}

/// All problems of a configuration, in the order of the file. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    file: Option<PathBuf>,
    list: Vec<Problem>,
}

/// An invalid value; the text is the problem message with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub String);

/// The value that a text stands for.
pub type ValueResult<T> = Result<T, InvalidValue>;

/// Collects problems and warnings while the file is read.
pub struct DiagnosticSink {
    pub problems: Vec<Problem>,
    /// Warnings about valid but probably unintended values.
    pub warnings: Vec<Problem>,
    /// Path of the section that is being read; lists end with `[]`.
    pub path: Vec<String>,
    /// Returns the JSON Schema of the whole file, for suggestions of keys in other sections.
    pub file_schema: fn() -> Json,
}

// === impl SourceSpan ===

impl SourceSpan {
    /// The beginning of the file.
    pub const START: Self = Self::File { line: 1, column: 1 };

    /// Formats the position for a message about another setting: ` (line 7)` for a position in the file, `
    /// (--listen)` for a flag, nothing without a position.
    pub fn suffix(self) -> String {
        match self {
            Self::File { line, .. } => format!(" (line {line})"),
            Self::Flag(flag) => format!(" ({flag})"),
            Self::Whole => String::new(),
        }
    }
}

// === impl SpannedValue ===

impl<T> SpannedValue<T> {
    pub const fn new(span: SourceSpan, value: T) -> Self {
        Self { span, value }
    }

    /// Creates a default value, which has no position.
    pub const fn default_value(value: T) -> Self {
        Self::new(SourceSpan::Whole, value)
    }

    /// Whether the value is written in the file or set by a flag, and not a default.
    pub fn is_written(&self) -> bool {
        self.span != SourceSpan::Whole
    }

    /// Returns the value, unless it is a default.
    pub fn explicit(&self) -> Option<&T> {
        self.is_written().then_some(&self.value)
    }
}

// === impl Problem ===

impl Problem {
    pub fn new(span: SourceSpan, message: impl Into<String>) -> Self {
        Self { span, message: message.into() }
    }
}

// === impl DiagnosticSink ===

impl DiagnosticSink {
    pub const fn new(file_schema: fn() -> Json) -> Self {
        Self { problems: Vec::new(), warnings: Vec::new(), path: Vec::new(), file_schema }
    }

    /// Reports a problem. Returns `None`, the value that could not be read.
    pub fn reject<T>(&mut self, span: SourceSpan, message: impl Into<String>) -> Option<T> {
        self.problems.push(Problem::new(span, message));
        None
    }

    /// Returns a valid value; reports an invalid one.
    pub fn accept<T>(&mut self, span: SourceSpan, value: ValueResult<T>) -> Option<T> {
        match value {
            Ok(value) => Some(value),
            Err(InvalidValue(message)) => self.reject(span, message),
        }
    }

    /// Adds a warning.
    pub fn warn(&mut self, span: SourceSpan, message: impl AsRef<str>) {
        self.warnings.push(Problem::new(span, format!("warning: {}", message.as_ref())));
    }

    /// Names the value in the problems from the index `first` on whose parser did not know the name.
    pub fn name_value(&mut self, first: usize, name: &str) {
        for Problem { message, .. } in &mut self.problems[first..] {
            if message.starts_with("must ") {
                message.insert_str(0, &format!("{name} "));
            }
        }
    }
}

// === impl Problems ===

impl Problems {
    /// Returns `value` if there are no problems. `file` is the name of the configuration file.
    ///
    /// # Errors
    /// The problems, in the order of the file.
    pub fn into_result<T>(file: Option<PathBuf>, mut list: Vec<Problem>, value: T) -> Result<T, Self> {
        if list.is_empty() {
            return Ok(value);
        }
        list.sort_by_key(|problem| problem.span);
        // YAML aliases repeat the same problem.
        list.dedup();
        Err(Self { file, list })
    }

    /// Creates a list of one problem.
    pub fn single(file: Option<PathBuf>, problem: Problem) -> Self {
        Self { file, list: vec![problem] }
    }
}

impl Problems {
    /// Returns one line per problem: `file:line:column: message`, as editors and CI understand it.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.list.iter().map(|Problem { span, message }| match (span, &self.file) {
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
    /// Prints [`Problems::lines`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().collect::<Vec<_>>().join("\n"))
    }
}

impl std::error::Error for Problems {}

/// Creates the error for an invalid value.
///
/// # Errors
/// Always.
pub fn invalid<T>(message: impl Into<String>) -> ValueResult<T> {
    Err(InvalidValue(message.into()))
}

/// Returns the entry of `known` that `word` is probably a misspelling of.
pub fn find_similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
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
    fn a_misspelling_is_recognised_and_another_word_is_not() {
        let known = ["listen", "admin", "routes", "public_url"];
        assert_eq!(find_similar("lisetn", known), Some("listen"));
        assert_eq!(find_similar("Listen", known), Some("listen"));
        assert_eq!(find_similar("public-url", known), Some("public_url"));
        assert_eq!(find_similar("route", known), Some("routes"));
        assert_eq!(find_similar("workers", known), None);
        assert_eq!(find_similar("x", known), None);
    }
}
