//! `${NAME}` and `${NAME:-default}` in the values of a configuration.
//!
//! They are replaced in the tree that was read, so what a variable gives is never YAML: a text stays one text, and
//! a plain one may be a number. What is replaced remembers how it was written, and nothing that is shown to anybody,
//! neither a problem nor the settings, holds what a variable gave.

use super::{
    MAX_FILE,
    environment::Environment,
    problem::Problem,
    section::DiagnosticSink,
    values::InvalidValue,
    yaml::{MapEntry, Node, NodeValue, TextOrigin},
};
use std::collections::BTreeMap;

/// How a text was written that has variables in it, and what those gave.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InterpolatedText {
    pub(super) written: String,
    values: Vec<String>,
}

/// What variables gave, by their names.
pub(super) type VariableValues = BTreeMap<String, String>;

/// A value of so many bytes is shown nowhere in what is said of the whole; a shorter one is no secret, and may well
/// be a word of ours.
const MIN_SECRET_BYTES: usize = 8;
/// So many characters of a value in a row give something of it away.
const LEAK_CHARS: usize = 4;

/// A part of a text.
#[derive(Debug, PartialEq)]
enum TextPart<'t> {
    Text(&'t str),
    Variable { name: &'t str, default: Option<&'t str> },
}

/// Puts the values of variables in their places.
pub(super) fn substitute(
    node: &mut Node,
    environment: &Environment,
    report: &mut DiagnosticSink,
) -> VariableValues {
    let mut work = VariableExpander { environment, report, used: VariableValues::new(), bytes: 0 };
    work.walk(node);
    work.used
}

struct VariableExpander<'e> {
    environment: &'e Environment,
    report: &'e mut DiagnosticSink,
    used: VariableValues,
    /// Of all texts with variables, those of aliases counted each time.
    bytes: u64,
}

// === impl Substitution ===

impl VariableExpander<'_> {
    fn walk(&mut self, node: &mut Node) {
        let place = node.place;
        match &mut node.value {
            NodeValue::List(items) => items.iter_mut().for_each(|item| self.walk(item)),
            NodeValue::Map(entries) => {
                for MapEntry { key, key_place, node } in entries {
                    if key.contains("${") {
                        let message = format!(
                            "warning: variables are expanded in values only, and `{key}` is a key: it stays as it is written"
                        );
                        self.report.warnings.push(Problem::new(*key_place, message));
                    }
                    self.walk(node);
                }
            }
            NodeValue::Scalar { text, origin, .. } if text.contains("${") => {
                *origin = match self.expand(text) {
                    Ok((replaced, values)) => {
                        let written = std::mem::replace(text, replaced);
                        TextOrigin::Variables(Box::new(InterpolatedText { written, values }))
                    }
                    Err(InvalidValue(message)) => {
                        self.report.problems.push(Problem::new(place, message));
                        TextOrigin::Invalid
                    }
                };
            }
            NodeValue::Scalar { .. } => {}
        }
    }

    /// The text with what its variables give, and that.
    fn expand(&mut self, text: &str) -> Result<(String, Vec<String>), InvalidValue> {
        let (mut whole, mut values) = (String::new(), Vec::new());
        for part in parts(text)? {
            match part {
                TextPart::Text(text) => whole.push_str(text),
                TextPart::Variable { name, default } => {
                    let set = self.environment.get(name)?.filter(|set| default.is_none() || !set.is_empty());
                    let Some(value) = set else {
                        whole.push_str(default.ok_or_else(|| unset(name))?);
                        continue;
                    };
                    self.add_bytes(value.len(), name)?;
                    whole.push_str(value);
                    values.push(value.to_owned());
                    self.used.insert(name.to_owned(), value.to_owned());
                }
            }
        }
        Ok((whole, values))
    }

    fn add_bytes(&mut self, bytes: usize, name: &str) -> Result<(), InvalidValue> {
        self.bytes += bytes as u64;
        match self.bytes > MAX_FILE {
            true => Err(InvalidValue(format!(
                "with the value of `{name}` the configuration exceeds the limit of {MAX_FILE} bytes"
            ))),
            false => Ok(()),
        }
    }
}

fn unset(name: &str) -> InvalidValue {
    InvalidValue(format!(
        "the variable `{name}` is not set; set it, or add a default: `${{{name}:-default}}`"
    ))
}

/// A `$` is one everywhere but before `{`. There two of them are one that is meant as it stands: `$${` is `${`.
fn parts(text: &str) -> Result<Vec<TextPart<'_>>, InvalidValue> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find("${") {
        let before = &rest[..at];
        let dollars = before.len() - before.trim_end_matches('$').len() + 1;
        // Half of them are meant as they stand.
        parts.push(TextPart::Text(&rest[..at + 1 - dollars.div_ceil(2)]));
        let inside = &rest[at + 2..];
        if dollars.is_multiple_of(2) {
            parts.push(TextPart::Text("{"));
            rest = inside;
            continue;
        }
        let Some((inside, behind)) = inside.split_once('}') else {
            return Err(InvalidValue(format!(
                "`${{{inside}` has no closing brace; write `${{NAME}}`, or `$${{` for a literal `${{`"
            )));
        };
        parts.push(variable(inside)?);
        rest = behind;
    }
    parts.push(TextPart::Text(rest));
    Ok(parts)
}

/// What stands between the braces.
fn variable(inside: &str) -> Result<TextPart<'_>, InvalidValue> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_fit = name.bytes().all(is_name) && !name.starts_with(|first: char| first.is_ascii_digit());
    if default.is_some_and(|default| default.contains("${")) {
        return Err(InvalidValue(format!(
            "the default of `{name}` cannot contain a variable; write a literal value"
        )));
    }
    match is_fit && !name.is_empty() {
        true => Ok(TextPart::Variable { name, default }),
        false => Err(InvalidValue(format!(
            "`${{{inside}}}` names no variable; write `${{NAME}}` or `${{NAME:-default}}` with letters, digits and `_` in the name, or `$${{` for a literal `${{`"
        ))),
    }
}

// === impl Given ===

impl InterpolatedText {
    /// What is wrong with the `expand` that variables gave, without what they gave: `said` of that, or else what
    /// `again` says of the text as it was written, or else only that.
    pub(super) fn redact_error(
        &self,
        text: &str,
        said: InvalidValue,
        again: impl FnOnce() -> Option<InvalidValue>,
    ) -> InvalidValue {
        let written = &self.written;
        let said = said.0.replace(&format!("`{text}`"), &format!("`{written}`"));
        let shows = |said: &str| {
            let said = said.replace(written, "");
            self.values.iter().any(|value| has_piece_of(&said, value))
        };
        let said = match shows(&said) {
            false => said,
            true => again().map_or_else(|| "must be another value".to_owned(), |InvalidValue(said)| said),
        };
        InvalidValue(match said.contains(written) {
            true => format!("{said} (the values of variables are not shown)"),
            false => format!("{said} (the value of `{written}`, which is not shown)"),
        })
    }
}

/// Whether a piece of the value can be read in what is said.
fn has_piece_of(said: &str, value: &str) -> bool {
    let ends: Vec<_> = value.char_indices().map(|(at, _)| at).chain([value.len()]).collect();
    let length = LEAK_CHARS.min(ends.len() - 1);
    length > 0 && ends.windows(length + 1).any(|piece| said.contains(&value[piece[0]..piece[length]]))
}

/// What is said of several values at once, with the names of variables in the place of what they gave.
pub(super) fn redact_values(problems: &mut [Problem], used: &VariableValues) {
    let mut used: Vec<_> = used.iter().filter(|(_, value)| value.len() >= MIN_SECRET_BYTES).collect();
    // One may be a part of another.
    used.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
    for Problem { message, .. } in problems {
        for (name, value) in &used {
            if message.contains(&**value) {
                *message = message.replace(&**value, &format!("${{{name}}}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<String, String> {
        let environment =
            Environment::from_iter([("A", "1"), ("EMPTY", ""), ("_x9", "y: [z]"), ("DOLLAR", "${A}")]);
        let mut report = DiagnosticSink::default();
        let mut work = VariableExpander {
            environment: &environment,
            report: &mut report,
            used: VariableValues::new(),
            bytes: 0,
        };
        work.expand(text).map(|(text, _)| text).map_err(|InvalidValue(message)| message)
    }

    #[test]
    fn a_variable_is_what_it_is_set_to_and_else_its_default() {
        for (text, becomes) in [
            ("${A}", "1"),
            ("a${A}b${A}c", "a1b1c"),
            ("${_x9}", "y: [z]"),
            ("${NO:-d}", "d"),
            ("${NO:-}", ""),
            ("${NO:-a:-b}", "a:-b"),
            ("${A:-d}", "1"),
            ("[${EMPTY}]", "[]"),
            ("${EMPTY:-d}", "d"),
            // What a variable gives is not looked at again.
            ("${DOLLAR}", "${A}"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(becomes), "{text}");
        }
    }

    #[test]
    fn a_dollar_is_one_unless_a_brace_follows() {
        for (text, becomes) in [
            ("$", "$"),
            ("$$", "$$"),
            ("$A", "$A"),
            ("cost: 5$", "cost: 5$"),
            ("$${A}", "${A}"),
            ("$$${A}", "$1"),
            ("$$$${A}", "$${A}"),
            ("$$ ${A}", "$$ 1"),
            ("$${", "${"),
            ("${A}$", "1$"),
            ("{A}", "{A}"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(becomes), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_replaced_is_named_with_what_would_help() {
        for (text, wrong) in [
            ("${NO}", "the variable `NO` is not set; set it, or add a default: `${NO:-default}`"),
            ("x${A", "`${A` has no closing brace"),
            ("${}", "`${}` names no variable"),
            ("${1A}", "`${1A}` names no variable"),
            ("${A B}", "`${A B}` names no variable"),
            ("${A-d}", "`${A-d}` names no variable; write `${NAME}` or `${NAME:-default}`"),
            ("${A:?x}", "`${A:?x}` names no variable"),
            ("${ä}", "names no variable"),
            ("${NO:-${A}}", "the default of `NO` cannot contain a variable"),
        ] {
            let said = of(text).expect_err(text);
            assert!(said.contains(wrong), "{text}: {said}");
        }
    }

    #[test]
    fn a_piece_of_a_value_gives_it_away() {
        assert!(has_piece_of("at 8808x", "8808") && has_piece_of("a hunter3", "hunter2"));
        assert!(has_piece_of("`5s`", "5") && !has_piece_of("must be 7", "5"));
        assert!(!has_piece_of("hun", "hunter2") && !has_piece_of("anything", ""));
        assert!(has_piece_of("säge", "ssägen"));
    }
}
