//! `${NAME}` and `${NAME:-default}` in the values of a configuration.
//!
//! Variables are replaced in the parsed tree, so that the value of a variable is never parsed as YAML: a
//! quoted text stays a text, and an unquoted one may be a number. A replaced text keeps its original form,
//! and no output, neither a problem nor the settings, contains the value of a variable.

use super::{
    environment::Environment,
    interpolation::InterpolatedText,
    problem::{DiagnosticSink, InvalidValue, Problem, ValueResult},
    yaml::{MAX_FILE_BYTES, MapEntry, Node, NodeValue, TextOrigin},
};
use std::collections::BTreeMap;

/// Values of the variables that were used, by name.
pub type VariableValues = BTreeMap<String, String>;

/// Smallest length, in bytes, of values that are redacted from messages about several values. Shorter values
/// are no secrets, and may occur in the messages anyway.
const MIN_SECRET_BYTES: usize = 8;

/// A part of a text with variables.
#[derive(Debug, PartialEq)]
enum TextPart<'t> {
    Text(&'t str),
    Variable { name: &'t str, default: Option<&'t str> },
}

/// Replaces variables by their values in a whole tree. Returns the values that were used.
pub fn substitute(node: &mut Node, environment: &Environment, report: &mut DiagnosticSink) -> VariableValues {
    let mut expander = VariableExpander { environment, report, used: VariableValues::new(), bytes: 0 };
    expander.expand_node(node);
    expander.used
}

struct VariableExpander<'e> {
    environment: &'e Environment,
    report: &'e mut DiagnosticSink,
    used: VariableValues,
    /// Total size of inserted values, counting each alias.
    bytes: u64,
}

// === impl VariableExpander ===

impl VariableExpander<'_> {
    fn expand_node(&mut self, node: &mut Node) {
        let span = node.span;
        match &mut node.value {
            NodeValue::List(items) => items.iter_mut().for_each(|item| self.expand_node(item)),
            NodeValue::Map(entries) => {
                for MapEntry { key, key_span, node } in entries {
                    if key.contains("${") {
                        let message = format!(
                            "variables are expanded in values only, and `{key}` is a key: it stays as it is written"
                        );
                        self.report.warn(*key_span, message);
                    }
                    self.expand_node(node);
                }
            }
            NodeValue::Scalar { text, origin, .. } if text.contains("${") => {
                *origin = match self.expand(text) {
                    Ok((replaced, values)) => {
                        let written = std::mem::replace(text, replaced);
                        TextOrigin::Variables(Box::new(InterpolatedText { written, values }))
                    }
                    Err(InvalidValue(message)) => {
                        self.report.problems.push(Problem::new(span, message));
                        TextOrigin::Invalid
                    }
                };
            }
            NodeValue::Scalar { .. } => {}
        }
    }

    /// Returns the text with variables replaced, and the inserted values.
    fn expand(&mut self, text: &str) -> Result<(String, Vec<String>), InvalidValue> {
        let (mut whole, mut values) = (String::new(), Vec::new());
        for part in split_parts(text)? {
            match part {
                TextPart::Text(text) => whole.push_str(text),
                TextPart::Variable { name, default } => {
                    let value =
                        self.environment.get(name)?.filter(|set| default.is_none() || !set.is_empty());
                    let Some(value) = value else {
                        whole.push_str(default.ok_or_else(|| unset_error(name))?);
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
        match self.bytes > MAX_FILE_BYTES {
            true => Err(InvalidValue(format!(
                "with the value of `{name}` the configuration exceeds the limit of {MAX_FILE_BYTES} bytes"
            ))),
            false => Ok(()),
        }
    }
}

fn unset_error(name: &str) -> InvalidValue {
    InvalidValue(format!(
        "the variable `{name}` is not set; set it, or add a default: `${{{name}:-default}}`"
    ))
}

/// Splits a text into literals and variables. `$` is literal except before `{`; there, `$$` is an escaped
/// `$`, so that `$${` is `${`.
fn split_parts(text: &str) -> ValueResult<Vec<TextPart<'_>>> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find("${") {
        let before = &rest[..at];
        let dollars = before.len() - before.trim_end_matches('$').len() + 1;
        // Half of the dollars are literal.
        parts.push(TextPart::Text(&rest[..at + 1 - dollars.div_ceil(2)]));
        let inside = &rest[at + 2..];
        if dollars.is_multiple_of(2) {
            parts.push(TextPart::Text("{"));
            rest = inside;
            continue;
        }
        let Some((inside, after)) = inside.split_once('}') else {
            return Err(InvalidValue(format!(
                "`${{{inside}` has no closing brace; write `${{NAME}}`, or `$${{` for a literal `${{`"
            )));
        };
        parts.push(parse_variable(inside)?);
        rest = after;
    }
    parts.push(TextPart::Text(rest));
    Ok(parts)
}

/// Parses the text between the braces of a variable: a name, and a default if there is one.
fn parse_variable(inside: &str) -> ValueResult<TextPart<'_>> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_valid_name =
        name.bytes().all(is_name_byte) && !name.starts_with(|first: char| first.is_ascii_digit());
    if default.is_some_and(|default| default.contains("${")) {
        return Err(InvalidValue(format!(
            "the default of `{name}` cannot contain a variable; write a literal value"
        )));
    }
    match is_valid_name && !name.is_empty() {
        true => Ok(TextPart::Variable { name, default }),
        false => Err(InvalidValue(format!(
            "`${{{inside}}}` names no variable; write `${{NAME}}` or `${{NAME:-default}}` with letters, digits and `_` in the name, or `$${{` for a literal `${{`"
        ))),
    }
}

/// Replaces values of variables in the messages by the variables' names.
pub fn redact_values(problems: &mut [Problem], used: &VariableValues) {
    let mut used: Vec<_> = used.iter().filter(|(_, value)| value.len() >= MIN_SECRET_BYTES).collect();
    // Longer values come first, because a value may be part of another one.
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
        let mut report = DiagnosticSink::new(|| serde_json::Value::Null);
        let mut work = VariableExpander {
            environment: &environment,
            report: &mut report,
            used: VariableValues::new(),
            bytes: 0,
        };
        work.expand(text).map(|(text, _)| text).map_err(|InvalidValue(message)| message)
    }

    #[test]
    fn a_variable_expands_to_its_value_or_its_default() {
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
            // The value of a variable is not expanded again.
            ("${DOLLAR}", "${A}"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(becomes), "{text}");
        }
    }

    #[test]
    fn a_dollar_is_literal_unless_a_brace_follows() {
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
    fn an_invalid_variable_is_rejected_with_a_fix() {
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
            let message = of(text).expect_err(text);
            assert!(message.contains(wrong), "{text}: {message}");
        }
    }
}
