//! Parser for option values from a fixed list, which help and shell completion show.

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, TypedValueParser},
};
use std::ffi::OsStr;

/// Parses a value with `parser`; help and completion show `choices`.
#[derive(Clone)]
pub(super) struct ChoiceParser<P> {
    choices: &'static [&'static str],
    parser: P,
}

// === impl ChoiceParser ===

impl<P> ChoiceParser<P> {
    /// Creates a parser. `choices` are shown only; `parser` decides which values are valid.
    pub(super) const fn new(choices: &'static [&'static str], parser: P) -> Self {
        Self { choices, parser }
    }
}

impl<P: TypedValueParser> TypedValueParser for ChoiceParser<P> {
    type Value = P::Value;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Self::Value, Error> {
        self.parser.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.choices.iter().map(PossibleValue::new)))
    }
}
