//! Parsers of single values that the command line shares with the file, so that both accept the same values.

pub use super::{
    build::{
        host, parse_instances, parse_log_format, parse_log_level, parse_mode, parse_pattern, parse_store,
        parse_tool_mode,
    },
    schema::{
        InvalidValue,
        values::{address, address_or_off, duration, header, http_url, show_duration},
    },
};
