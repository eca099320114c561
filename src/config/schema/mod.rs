//! The schema layer: the file as a tree with positions, and the declaration of keys. It knows none of the parts
//! of the proxy; `build` makes their `Config` types from it.
//!
//! `yaml` parses the text, `variables` replaces `${NAME}`. [`SectionReader`] reads a mapping key by key: each
//! key is declared where it is read, with its name, description, [`ValueType`] and default. Validation, the
//! JSON Schema and the list of known keys are derived from the declaration. Types that any key may have are in
//! `value_types`, those of secrets in `secret_types`; [`values`] parses single values.

mod environment;
mod hints;
mod interpolation;
mod problem;
pub mod secret;
mod secret_types;
mod section;
mod url_text;
mod value_type;
mod value_types;
pub mod values;
pub mod variables;
pub mod yaml;

pub use environment::{Environment, LoadContext};
pub use problem::{
    DiagnosticSink, InvalidValue, Problem, Problems, SourceSpan, SpannedValue, ValueResult, find_similar,
    invalid,
};
pub use secret::{SecretKey, SecretSource, SecretToken};
pub use secret_types::{key_location, read_source, secret_only, secret_source};
pub use section::{SectionReader, Setting, TOP_LEVEL, mapping, read_mapping, section_schema};
pub use url_text::UrlText;
pub use value_type::{ValueType, list, read_scalar};
pub use value_types::{
    address, addresses, boolean, count, duration, duration_or_off, entries, headers, non_empty_string,
    or_off, parse_word, positive_duration, program_text, size, string, text, url, warn_literal_secret, word,
};
pub use values::{show_duration, show_size};
pub use yaml::{MAX_FILE_BYTES, MapEntry, Node, NodeValue, ScalarType, TextOrigin};
