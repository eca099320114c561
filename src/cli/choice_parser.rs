//! Values of options that are one of a few words, so that help names them and shells complete them.

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, TypedValueParser},
};
use std::ffi::OsStr;

/// Reads a value with `read`, whose error says what is wrong; `words` are what help and shells offer.
#[derive(Clone)]
pub(super) struct ChoiceParser<P> {
    words: &'static [&'static str],
    read: P,
}

// === impl Words ===

impl<P> ChoiceParser<P> {
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
