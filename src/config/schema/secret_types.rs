//! Types of values that locate a secret. The secret itself is never written in the configuration.

use super::{
    problem::{ValueResult, invalid},
    secret::{SecretSource, is_key},
    section::{SectionReader, Setting, mapping},
    value_type::ValueType,
    value_types::string,
    values,
};
use std::path::PathBuf;

/// The location of a private key or store key: a file name, or a mapping with `file` or `env`.
pub fn key_location() -> ValueType<'static, SecretSource> {
    let file = string(|text| match text {
        "" => invalid("must not be empty"),
        text if is_key(text) || text.contains("-----BEGIN") => {
            invalid("must name a file that holds the key, not be the key itself")
        }
        text => Ok(SecretSource::File(text.into())),
    });
    file.or_mapping(secret_source("a key", "the key"))
}

/// The source of a secret: a mapping with `file` or `env`. `section` and `what` name it in messages.
pub fn secret_source(section: &'static str, what: &'static str) -> ValueType<'static, SecretSource> {
    mapping(section, move |s| read_source(s, what))
}

/// Reads `file` or `env`, the source of a secret. `what` names the secret in messages. `None` if it is absent
/// or invalid, which is reported.
pub fn read_source(s: &mut SectionReader<'_, '_>, what: &'static str) -> Option<SecretSource> {
    s.require_one_of(&[&["file"], &["env"]]);
    let file = s.key("file", "File that contains the secret.");
    let file = file.read(location("file", what, |text| Ok(PathBuf::from(text))));
    let env = s.key("env", "Name of the environment variable that contains the secret.");
    let env = env.read(location("variable", what, values::variable_name));
    let message = match (file, env) {
        (Setting::Valid(file), Setting::Unset) => return Some(SecretSource::File(file.value)),
        (Setting::Unset, Setting::Valid(env)) => return Some(SecretSource::Env(env.value)),
        (Setting::Invalid, _) | (_, Setting::Invalid) => return None,
        (Setting::Unset, Setting::Unset) => format!("{what} has neither `file` nor `env`; add one of them"),
        (Setting::Valid(_), Setting::Valid(_)) => {
            format!("{what} has both `file` and `env`; remove one of the two")
        }
    };
    s.add_problem(s.span, message);
    None
}

/// The name of a file or variable. A key in its place is rejected without being shown.
fn location<T: 'static>(
    kind: &'static str,
    what: &'static str,
    parse: fn(&str) -> ValueResult<T>,
) -> ValueType<'static, T> {
    string(move |text| match text {
        "" => invalid("must not be empty"),
        text if is_key(text) => {
            invalid(format!("must name a {kind} that holds {what}, not be {what} itself"))
        }
        text => parse(text),
    })
}

/// Restricts a mapping that locates a secret: any other value is rejected without being shown, because it may
/// be the secret.
pub fn secret_only<'a, T: 'a>(what: &'static str, mapping: ValueType<'a, T>) -> ValueType<'a, T> {
    mapping.mapping_only(format!(
        "{what} must not be written in this file; name its source: `{{ file: PATH }}` or `{{ env: NAME }}`"
    ))
}
