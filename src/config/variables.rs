//! `${NAME}` and `${NAME:-default}` in the values of a configuration.
//!
//! They are replaced in the tree that was read, so what a variable gives is never YAML: a text stays one text, and
//! a plain one may be a number. What is replaced remembers how it was written, and nothing that is shown to anybody,
//! neither a problem nor the settings, holds what a variable gave.

use super::{
    MAX_FILE,
    problem::Problem,
    section::Report,
    surroundings::Environment,
    values::Invalid,
    yaml::{Entry, Node, Origin, Value},
};
use std::collections::BTreeMap;

/// How a text was written that has variables in it, and what those gave.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Given {
    pub(super) written: String,
    values: Vec<String>,
}

/// What variables gave, by their names.
pub(super) type Used = BTreeMap<String, String>;

/// A value of so many bytes is shown nowhere in what is said of the whole; a shorter one is no secret, and may well
/// be a word of ours.
const TELLING: usize = 8;
/// So many characters of a value in a row give something of it away.
const PIECE: usize = 4;

/// A part of a text.
#[derive(Debug, PartialEq)]
enum Part<'t> {
    Text(&'t str),
    Variable { name: &'t str, default: Option<&'t str> },
}

/// Puts the values of variables in their places.
pub(super) fn substitute(node: &mut Node, environment: &Environment, report: &mut Report) -> Used {
    let mut work = Substitution { environment, report, used: Used::new(), bytes: 0 };
    work.walk(node);
    work.used
}

struct Substitution<'e> {
    environment: &'e Environment,
    report: &'e mut Report,
    used: Used,
    /// Of all texts with variables, those of aliases counted each time.
    bytes: u64,
}

// === impl Substitution ===

impl Substitution<'_> {
    fn walk(&mut self, node: &mut Node) {
        let place = node.place;
        match &mut node.value {
            Value::List(items) => items.iter_mut().for_each(|item| self.walk(item)),
            Value::Map(entries) => {
                for Entry { key, key_place, node } in entries {
                    if key.contains("${") {
                        let message = format!(
                            "warning: variables are expanded in values only, and `{key}` is a key: it stays as it is written"
                        );
                        self.report.doubts.push(Problem::new(*key_place, message));
                    }
                    self.walk(node);
                }
            }
            Value::Scalar { text, origin, .. } if text.contains("${") => {
                *origin = match self.text(text) {
                    Ok((replaced, values)) => {
                        let written = std::mem::replace(text, replaced);
                        Origin::Variables(Box::new(Given { written, values }))
                    }
                    Err(Invalid(message)) => {
                        self.report.problems.push(Problem::new(place, message));
                        Origin::Wrong
                    }
                };
            }
            Value::Scalar { .. } => {}
        }
    }

    /// The text with what its variables give, and that.
    fn text(&mut self, text: &str) -> Result<(String, Vec<String>), Invalid> {
        let (mut whole, mut values) = (String::new(), Vec::new());
        for part in parts(text)? {
            match part {
                Part::Text(text) => whole.push_str(text),
                Part::Variable { name, default } => {
                    let set = self.environment.get(name)?.filter(|set| default.is_none() || !set.is_empty());
                    let Some(value) = set else {
                        whole.push_str(default.ok_or_else(|| unset(name))?);
                        continue;
                    };
                    self.count(value.len(), name)?;
                    whole.push_str(value);
                    values.push(value.to_owned());
                    self.used.insert(name.to_owned(), value.to_owned());
                }
            }
        }
        Ok((whole, values))
    }

    fn count(&mut self, bytes: usize, name: &str) -> Result<(), Invalid> {
        self.bytes += bytes as u64;
        match self.bytes > MAX_FILE {
            true => Err(Invalid(format!(
                "with the value of `{name}` the configuration exceeds the limit of {MAX_FILE} bytes"
            ))),
            false => Ok(()),
        }
    }
}

fn unset(name: &str) -> Invalid {
    Invalid(format!("the variable `{name}` is not set; set it, or add a default: `${{{name}:-default}}`"))
}

/// A `$` is one everywhere but before `{`. There two of them are one that is meant as it stands: `$${` is `${`.
fn parts(text: &str) -> Result<Vec<Part<'_>>, Invalid> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find("${") {
        let before = &rest[..at];
        let dollars = before.len() - before.trim_end_matches('$').len() + 1;
        // Half of them are meant as they stand.
        parts.push(Part::Text(&rest[..at + 1 - dollars.div_ceil(2)]));
        let inside = &rest[at + 2..];
        if dollars.is_multiple_of(2) {
            parts.push(Part::Text("{"));
            rest = inside;
            continue;
        }
        let Some((inside, behind)) = inside.split_once('}') else {
            return Err(Invalid(format!(
                "`${{{inside}` has no closing brace; write `${{NAME}}`, or `$${{` for a literal `${{`"
            )));
        };
        parts.push(variable(inside)?);
        rest = behind;
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

/// What stands between the braces.
fn variable(inside: &str) -> Result<Part<'_>, Invalid> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_fit = name.bytes().all(is_name) && !name.starts_with(|first: char| first.is_ascii_digit());
    if default.is_some_and(|default| default.contains("${")) {
        return Err(Invalid(format!(
            "the default of `{name}` cannot contain a variable; write a literal value"
        )));
    }
    match is_fit && !name.is_empty() {
        true => Ok(Part::Variable { name, default }),
        false => Err(Invalid(format!(
            "`${{{inside}}}` names no variable; write `${{NAME}}` or `${{NAME:-default}}` with letters, digits and `_` in the name, or `$${{` for a literal `${{`"
        ))),
    }
}

// === impl Given ===

impl Given {
    /// What is wrong with the `text` that variables gave, without what they gave: `said` of that, or else what
    /// `again` says of the text as it was written, or else only that.
    pub(super) fn wrong(
        &self,
        text: &str,
        said: Invalid,
        again: impl FnOnce() -> Option<Invalid>,
    ) -> Invalid {
        let written = &self.written;
        let said = said.0.replace(&format!("`{text}`"), &format!("`{written}`"));
        let shows = |said: &str| {
            let said = said.replace(written, "");
            self.values.iter().any(|value| gives_away(&said, value))
        };
        let said = match shows(&said) {
            false => said,
            true => again().map_or_else(|| "must be another value".to_owned(), |Invalid(said)| said),
        };
        Invalid(match said.contains(written) {
            true => format!("{said} (the values of variables are not shown)"),
            false => format!("{said} (the value of `{written}`, which is not shown)"),
        })
    }
}

/// Whether a piece of the value can be read in what is said.
fn gives_away(said: &str, value: &str) -> bool {
    let ends: Vec<_> = value.char_indices().map(|(at, _)| at).chain([value.len()]).collect();
    let length = PIECE.min(ends.len() - 1);
    length > 0 && ends.windows(length + 1).any(|piece| said.contains(&value[piece[0]..piece[length]]))
}

/// What is said of several values at once, with the names of variables in the place of what they gave.
pub(super) fn name_values(problems: &mut [Problem], used: &Used) {
    let mut used: Vec<_> = used.iter().filter(|(_, value)| value.len() >= TELLING).collect();
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
        let mut report = Report::default();
        let mut work =
            Substitution { environment: &environment, report: &mut report, used: Used::new(), bytes: 0 };
        work.text(text).map(|(text, _)| text).map_err(|Invalid(message)| message)
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
        assert!(gives_away("at 8808x", "8808") && gives_away("a hunter3", "hunter2"));
        assert!(gives_away("`5s`", "5") && !gives_away("must be 7", "5"));
        assert!(!gives_away("hun", "hunter2") && !gives_away("anything", ""));
        assert!(gives_away("säge", "ssägen"));
    }
}
