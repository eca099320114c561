//! Secret values: keys and tokens.
//!
//! Secrets are never written in the configuration itself, which is printed, copied and put under version
//! control; the configuration names a file or an environment variable. No message contains any part of a
//! secret.

use super::{
    environment::LoadContext,
    problem::{InvalidValue, ValueResult, invalid},
    yaml::{Node, NodeValue},
};
use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::HeaderValue;
use std::{fmt, fs::File, io::Read, path::PathBuf};

/// A value that is never shown: `Debug` hides it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

/// A secret key of 32 bytes.
pub type SecretKey = Secret<[u8; 32]>;

/// A bearer token.
pub type SecretToken = Secret<String>;

/// Location of a secret: a file or an environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    File(PathBuf),
    /// The name of an environment variable.
    Env(String),
}

/// Maximum size of a secret file, in bytes.
const MAX_SECRET_FILE_BYTES: u64 = 4 << 10;

/// Length of a key, in bytes.
const KEY_BYTES: usize = 32;

/// Minimum length of a token, in characters. Tokens are not stretched, so shorter ones can be guessed: 16 hex
/// digits are 64 bits.
const MIN_TOKEN_LENGTH: usize = 16;

// === impl Secret ===

impl<T> Secret<T> {
    /// Wraps a value that must not be shown.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the secret value itself, which must not be shown.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

// === impl SecretSource ===

impl SecretSource {
    /// Reads a key.
    ///
    /// # Errors
    /// A message if the source is missing, or its content is not a valid key.
    pub fn read_key(&self, context: LoadContext<'_>) -> ValueResult<SecretKey> {
        parse_key(&self.read_text(context)?).map_err(|why| {
            InvalidValue(format!(
                "{} {why}; a key is 32 bytes as 64 hex digits or base64, generated for example by `openssl rand -hex 32`",
                self.resolve(context)
            ))
        })
    }

    /// Reads a token.
    ///
    /// # Errors
    /// A message if the source is missing, or its content is not a valid token.
    pub fn read_token(&self, context: LoadContext<'_>) -> ValueResult<SecretToken> {
        let text = self.read_text(context)?;
        parse_token(&text).map_err(|why| {
            InvalidValue(format!(
                "{} {why}; a token has at least {MIN_TOKEN_LENGTH} letters, digits and `-._~+/`, generated for example by `openssl rand -hex 32`",
                self.resolve(context)
            ))
        })
    }

    /// Reads a header value.
    ///
    /// # Errors
    /// A message if the source is missing, or its content is not a valid header value.
    pub fn read_header(&self, context: LoadContext<'_>) -> ValueResult<HeaderValue> {
        let mut value = HeaderValue::from_str(self.read_text(context)?.trim())
            .ok()
            .filter(|value| !value.is_empty())
            .ok_or_else(|| {
                InvalidValue(format!("{} does not hold a valid header value", self.resolve(context)))
            })?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Reads the value of an environment variable for a command. The trailing line break of a file is
    /// removed.
    ///
    /// # Errors
    /// A message if the source is missing, or its content cannot be the value of a variable.
    pub fn read_variable(&self, context: LoadContext<'_>) -> ValueResult<String> {
        let mut text = self.read_text(context)?;
        if let (Self::File(_), Some(line)) = (self, text.strip_suffix('\n')) {
            text.truncate(line.strip_suffix('\r').unwrap_or(line).len());
        }
        match text.contains('\0') {
            true => invalid(format!("{} contains a NUL character", self.resolve(context))),
            false => Ok(text),
        }
    }

    /// Reads the text of the secret.
    ///
    /// # Errors
    /// A message if the source is missing.
    pub fn read_text(&self, context: LoadContext<'_>) -> ValueResult<String> {
        match self.resolve(context) {
            Self::File(path) => {
                read_file(&path).map_err(|why| InvalidValue(format!("{} {why}", Self::File(path.clone()))))
            }
            Self::Env(name) => match context.environment.get(&name)? {
                Some(value) => Ok(value.to_owned()),
                None => invalid(format!("{self} is not set")),
            },
        }
    }

    /// Returns the same source with its path resolved against the folder of the configuration.
    pub fn resolve(&self, context: LoadContext<'_>) -> Self {
        match self {
            Self::File(path) => Self::File(context.folder.join(path)),
            Self::Env(name) => Self::Env(name.clone()),
        }
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the file `{}`", path.display()),
            Self::Env(name) => write!(f, "the environment variable `{name}`"),
        }
    }
}

/// Returns the names of environment variables that hold secrets of the proxy itself: keys, tokens, and
/// private keys of certificates, outside of `routes`.
pub fn secret_variables(file: &Node) -> Vec<String> {
    fn collect(node: &Node, names: &mut Vec<String>) {
        match &node.value {
            NodeValue::Map(entries) => {
                for entry in entries {
                    match entry.node.scalar_text() {
                        Some(name) if entry.key == "env" => names.push(name.to_owned()),
                        _ => collect(&entry.node, names),
                    }
                }
            }
            NodeValue::List(items) => items.iter().for_each(|item| collect(item, names)),
            NodeValue::Scalar { .. } => {}
        }
    }
    let mut names = Vec::new();
    if let NodeValue::Map(entries) = &file.value {
        entries
            .iter()
            .filter(|entry| entry.key != "routes")
            .for_each(|entry| collect(&entry.node, &mut names));
    }
    names
}

fn read_file(path: &PathBuf) -> Result<String, String> {
    let describe = |error: std::io::Error| format!("cannot be read: {error}");
    let mut text = String::new();
    let file = File::open(path).map_err(describe)?;
    let length = file.take(MAX_SECRET_FILE_BYTES + 1).read_to_string(&mut text).map_err(describe)?;
    if length as u64 > MAX_SECRET_FILE_BYTES {
        return Err(format!("is longer than {MAX_SECRET_FILE_BYTES} bytes"));
    }
    Ok(text)
}

/// Parses a key, ignoring surrounding white space. Error messages contain counts only.
fn parse_key(text: &str) -> Result<SecretKey, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    // Hex digits are tried before base64: 64 of them are also valid base64, of 48 bytes.
    let bytes =
        if is_hex && text.len() == 2 * KEY_BYTES { Some(decode_hex(text)) } else { decode_base64(text) };
    let length = bytes.as_ref().map(Vec::len);
    match (bytes.and_then(|bytes| bytes.try_into().ok()), length) {
        (Some(key), _) => Ok(Secret(key)),
        (None, _) if is_hex => Err(format!("has {} hex digits", text.len())),
        (None, Some(length)) => Err(format!("has {length} bytes")),
        (None, None) => Err("is neither hex digits nor base64".to_owned()),
    }
}

/// Parses a token, ignoring surrounding white space; the characters are those of `Bearer` credentials (RFC
/// 6750, 2.1).
fn parse_token(text: &str) -> Result<SecretToken, String> {
    let text = text.trim();
    let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    match text.trim_end_matches('=').bytes().all(is_token_byte) {
        _ if text.is_empty() => Err("is empty".to_owned()),
        false => Err("has a character that is not allowed in a token".to_owned()),
        true if text.len() < MIN_TOKEN_LENGTH => Err(format!("has {} characters", text.len())),
        true => Ok(Secret(text.to_owned())),
    }
}

/// Whether a text is a valid key. Used where a name is expected, so that a misplaced key is not shown in the
/// message.
pub fn is_key(text: &str) -> bool {
    parse_key(text).is_ok()
}

fn decode_hex(digits: &str) -> Vec<u8> {
    let value = |digit: &u8| match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => unreachable!("only hex digits come here"),
    };
    digits.as_bytes().chunks(2).map(|pair| value(&pair[0]) << 4 | value(&pair[1])).collect()
}

/// Decodes base64 in either alphabet, padded or not.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    [alphabet::STANDARD, alphabet::URL_SAFE]
        .iter()
        .find_map(|alphabet| GeneralPurpose::new(alphabet, config).decode(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1dfeff";

    fn bytes() -> [u8; 32] {
        let mut bytes = std::array::from_fn(|at| u8::try_from(at).unwrap());
        (bytes[30], bytes[31]) = (0xfe, 0xff);
        bytes
    }

    #[test]
    fn a_key_reads_the_same_in_every_spelling() {
        for text in [
            HEX,
            &HEX.to_uppercase(),
            &format!("  {HEX}\r\n"),
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwd/v8=",
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwd/v8",
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwd_v8=\n",
        ] {
            assert_eq!(parse_key(text).as_ref().map(Secret::expose), Ok(&bytes()), "{text}");
        }
    }

    #[test]
    fn an_invalid_key_is_reported_without_showing_it() {
        for (text, wrong) in [
            (String::new(), "is empty"),
            (" \n".to_owned(), "is empty"),
            (HEX[..62].to_owned(), "has 62 hex digits"),
            (format!("{HEX}00"), "has 66 hex digits"),
            ("c2VjcmV0IHNlY3JldA==".to_owned(), "has 13 bytes"),
            ("correct horse battery staple".to_owned(), "is neither hex digits nor base64"),
        ] {
            assert_eq!(parse_key(&text), Err(wrong.to_owned()), "{text}");
        }
    }

    #[test]
    fn an_invalid_token_is_reported_without_showing_it() {
        for text in ["0123456789abcdef\n", " aZ9-._~+/aZ9-._~+/== \r\n"] {
            assert_eq!(parse_token(text).as_ref().map(Secret::expose).map(String::as_str), Ok(text.trim()));
        }
        for (text, wrong) in [
            ("", "is empty"),
            ("\n", "is empty"),
            ("0123456789abcde\n", "has 15 characters"),
            ("0123456789 abcdef", "has a character that is not allowed in a token"),
            ("0123456789=abcdef", "has a character that is not allowed in a token"),
            ("correct-horse-bättery-staple", "has a character that is not allowed in a token"),
        ] {
            assert_eq!(parse_token(text), Err(wrong.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_secret_is_hidden_in_debug_output() {
        assert_eq!(format!("{:?}", [Secret::new(HEX)]), "[Secret(..)]");
        assert_eq!(format!("{:#?}", parse_key(HEX).unwrap()), "Secret(..)");
    }
}
