//! Texts with variables: the original form, and errors without the values of the variables.

use super::problem::InvalidValue;

/// The original form of a text with variables, and the values that were inserted.
#[derive(Clone, Debug, PartialEq)]
pub struct InterpolatedText {
    /// The text as written, as in `${NAME}`.
    pub written: String,
    /// The inserted values.
    pub values: Vec<String>,
}

/// Number of consecutive characters of a value that count as a leak.
const LEAK_CHARS: usize = 4;

// === impl InterpolatedText ===

impl InterpolatedText {
    /// Rewords the error for the replaced `text` so that it contains no value of a variable. Falls back to
    /// the error that `original_error` returns for the original text, and then to a generic message.
    pub fn redact_error(
        &self,
        text: &str,
        message: InvalidValue,
        original_error: impl FnOnce() -> Option<InvalidValue>,
    ) -> InvalidValue {
        let written = &self.written;
        let message = message.0.replace(&format!("`{text}`"), &format!("`{written}`"));
        let leaks = |message: &str| {
            let message = message.replace(written, "");
            self.values.iter().any(|value| leaks_value(&message, value))
        };
        let message = match leaks(&message) {
            false => message,
            true => original_error()
                .map_or_else(|| "must be another value".to_owned(), |InvalidValue(message)| message),
        };
        InvalidValue(match message.contains(written) {
            true => format!("{message} (the values of variables are not shown)"),
            false => format!("{message} (the value of `{written}`, which is not shown)"),
        })
    }
}

/// Whether the message contains [`LEAK_CHARS`] consecutive characters of the value.
fn leaks_value(message: &str, value: &str) -> bool {
    let ends: Vec<_> = value.char_indices().map(|(at, _)| at).chain([value.len()]).collect();
    let length = LEAK_CHARS.min(ends.len() - 1);
    length > 0 && ends.windows(length + 1).any(|piece| message.contains(&value[piece[0]..piece[length]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_value_counts_as_a_leak() {
        assert!(leaks_value("at 8808x", "8808") && leaks_value("a hunter3", "hunter2"));
        assert!(leaks_value("`5s`", "5") && !leaks_value("must be 7", "5"));
        assert!(!leaks_value("hun", "hunter2") && !leaks_value("anything", ""));
        assert!(leaks_value("säge", "ssägen"));
    }
}
