//! Parser for option values from a fixed list, which help and shell completion show.

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, TypedValueParser},
};
use std::ffi::OsStr;

/// Parses a value with `parser`; help and completion show `choices`.
#[derive(Clone)]
pub(super) struct ChoiceParser<P> {
    words: &'static [&'static str],
    read: P,
}

// === impl ChoiceParser ===

impl<P> ChoiceParser<P> {
    /// Creates a parser. `choices` are shown only; `parser` decides which values are valid.
    pub(super) const fn new(words: &'static [&'static str], read: P) -> Self {
        Self { words, read }
    }
}

impl<P: TypedValueParser> TypedValueParser for ChoiceParser<P> {
    type Value = P::Value;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Self::Value, Error> {
        self.read.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.words.iter().map(PossibleValue::new)))
    }
}
