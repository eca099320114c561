//! Types of single values: how each is read, and its JSON Schema. The value types of a command are in
//! `server`. The text parsers are in [`values`], which the command line uses as well.

use super::{
    DEFAULT_DRAIN, DrainTimes, LogConfig, LogFormat, SpannedValue, StoreConfig, StoreKeySource,
    environment::LoadContext,
    problem::{Problem, SourceSpan, find_similar},
    secret::{self, SecretSource, TokenSource},
    section::{DiagnosticSink, SectionReader, Setting, ValueType, list, mapping, read_scalar},
    url_text::UrlText,
    values::{self, InvalidValue, show_duration, show_size},
    yaml::{MapEntry, Node, NodeValue, ScalarType},
};
use crate::{
    policy::{ClientMatch, Mode, NamePattern, PrincipalSource, ResponseHeaders},
    protocol::capability,
    upstream::ServerUrl,
};
use http::{HeaderValue, Uri};
use serde_json::{Value as Json, json};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Smallest size limit of a store folder, in bytes. An empty store already takes part of it.
const MIN_STORE_BYTES: usize = 16 << 20;

/// The value of `tasks.unsolicited`: which clients get tasks without having requested them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnsolicitedSetting {
    Never,
    Always,
    Clients(Vec<SpannedValue<ClientMatch>>),
}

/// Creates the type of a value that is parsed from its text.
pub(super) fn text_value<'a, T>(
    schema: Json,
    read: impl Fn(&str) -> Result<T, InvalidValue> + 'a,
) -> ValueType<'a, T> {
    let schema = Box::new(move || or_variable(schema.clone()));
    ValueType {
        schema,
        show: |_| Json::Null,
        read: Box::new(move |node, report| read_scalar(node, report, &read)),
    }
}

/// Extends a schema by strings that contain a variable. A schema that accepts any string stays as it is.
pub(super) fn or_variable(schema: Json) -> Json {
    let is_any = schema["type"] == "string" && schema["pattern"].is_null() && schema["enum"].is_null();
    let variable = json!({ "type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}" });
    match schema {
        any if is_any => any,
        Json::Object(mut several) if several.contains_key("anyOf") => {
            several["anyOf"].as_array_mut().expect("`anyOf` is a list").push(variable);
            several.into()
        }
        one => json!({ "anyOf": [one, variable] }),
    }
}

/// Creates the type of a value that may be `off`. YAML 1.1 reads `off` as false, so `false` is accepted as
/// well.
pub(super) fn or_off<T: 'static>(
    schema: Json,
    read: fn(&str) -> Result<Option<T>, InvalidValue>,
) -> ValueType<'static, Option<T>> {
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.scalar_type() {
        Some(ScalarType::Bool(false)) => Some(None),
        _ => read_scalar(node, report, read),
    };
    let schema = move || or_variable(json!({ "anyOf": [schema, { "const": false }] }));
    ValueType { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// A string that is not empty.
pub(super) fn text() -> ValueType<'static, String> {
    text_value(json!({ "type": "string", "minLength": 1 }), |text| match text {
        "" => Err(InvalidValue("must not be empty".to_owned())),
        _ => Ok(text.to_owned()),
    })
}

/// `true` or `false`.
pub(super) fn boolean() -> ValueType<'static, bool> {
    let read = |node: &Node, report: &mut DiagnosticSink| {
        if let Some(ScalarType::Bool(boolean)) = node.scalar_type() {
            return Some(boolean);
        }
        // Inside `{ }` a variable must be quoted to be valid YAML, and is then a string.
        if node.interpolation().is_some() || node.is_invalid() {
            return read_scalar(node, report, |text| {
                text.parse().map_err(|_| InvalidValue(format!("must be true or false, not `{text}`")))
            });
        }
        let shown = match node.scalar_text() {
            Some(text) if !text.is_empty() => format!("`{text}`"),
            _ => node.type_name().to_owned(),
        };
        let message = format!("must be true or false, not {shown}");
        report.problems.push(Problem::new(node.span, message));
        None
    };
    ValueType {
        schema: Box::new(|| or_variable(json!({ "type": "boolean" }))),
        show: |boolean| (*boolean).into(),
        read: Box::new(read),
    }
}

/// A duration, as in `5s`, or 0.
pub(super) fn duration() -> ValueType<'static, Duration> {
    let pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$";
    let schema = json!({ "anyOf": [{ "type": "string", "pattern": pattern }, { "const": 0 }] });
    text_value(schema, values::duration).show_with(|duration| show_duration(*duration).into())
}

/// A duration of more than 0.
pub(super) fn positive_duration() -> ValueType<'static, Duration> {
    let read = |text: &str| match values::duration(text)? {
        Duration::ZERO => Err(InvalidValue("must be more than 0; leave it out for the default".to_owned())),
        duration => Ok(duration),
    };
    ValueType { read: text_value(Json::Null, read).read, ..duration() }
}

/// A positive duration, or `off`.
pub(super) fn duration_or_off() -> ValueType<'static, Option<Duration>> {
    let pattern = r"^(off|([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+)$";
    let kind = or_off(json!({ "type": "string", "pattern": pattern }), |text| match text {
        "off" => Ok(None),
        text => match values::duration(text)? {
            Duration::ZERO => Err(InvalidValue("must be more than 0; `off` is for never".to_owned())),
            duration => Ok(Some(duration)),
        },
    });
    kind.show_with(|duration| {
        duration.map_or_else(|| "off".into(), |duration| show_duration(duration).into())
    })
}

/// A size in bytes, as in `4MiB`, of at least `minimum`.
pub(super) fn size(minimum: usize) -> ValueType<'static, usize> {
    let pattern = r"^[0-9]+(\.[0-9]+)? ?(GiB|MiB|KiB|GB|MB|kB|KB|B)?$";
    let schema = json!({ "anyOf": [{ "type": "integer", "minimum": minimum }, { "type": "string", "pattern": pattern }] });
    let read = move |text: &str| match values::size(text)? {
        size if size < minimum => Err(InvalidValue(format!("must be at least {}", show_size(minimum)))),
        size => Ok(size),
    };
    text_value(schema, read).show_with(|size| show_size(*size).into())
}

/// A whole number of at least `minimum`.
pub(super) fn count<N: TryFrom<usize> + Copy + Into<Json>>(minimum: usize) -> ValueType<'static, N> {
    let read = move |text: &str| {
        let digits = text.replace('_', "");
        match digits.parse().ok().and_then(|count: usize| Some((count, N::try_from(count).ok()?))) {
            Some((count, _)) if count < minimum => Err(InvalidValue(format!("must be at least {minimum}"))),
            Some((_, count)) => Ok(count),
            None => Err(InvalidValue(format!("`{text}` is not a count; write a whole number"))),
        }
    };
    text_value(json!({ "type": "integer", "minimum": minimum }), read).show_with(|count| (*count).into())
}

/// One address, or a list of addresses.
pub(super) fn addresses() -> ValueType<'static, Vec<SpannedValue<SocketAddr>>> {
    let one = || {
        text_value(json!({ "type": "string", "examples": ["127.0.0.1:8808", "[::]:8808"] }), values::address)
    };
    let (read_address, list_type) = (one().read, list(one()));
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::List(_) => (list_type.read)(node, report),
        _ => read_address(node, report).map(|address| vec![SpannedValue::new(node.span, address)]),
    };
    ValueType {
        schema: Box::new(move || json!({ "anyOf": [(one().schema)(), (list(one()).schema)()] })),
        show: |all| all.iter().map(|address| address.value.to_string()).collect::<Vec<_>>().join(", ").into(),
        read: Box::new(read),
    }
}

/// The task store. A path in the file is relative to the folder of the file, a path on the command line to
/// the working directory.
pub(super) fn store(context: LoadContext<'_>) -> ValueType<'_, StoreConfig> {
    let folder = context.folder;
    let disk = mapping("`store`", move |s| read_disk(s, context));
    let ValueType { schema, read, .. } = disk;
    let schema = move || {
        let word = json!({ "type": "string", "pattern": "^(memory|disk:.+)$", "examples": ["memory", "disk:./data"] });
        json!({ "anyOf": [word, schema()] })
    };
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::Map(_) => read(node, report),
        _ => read_scalar(node, report, values::store).map(|store| match (store, node.span) {
            (StoreConfig::Disk { path, key, max_bytes }, SourceSpan::File { .. } | SourceSpan::Whole) => {
                StoreConfig::Disk { path: folder.join(path), key, max_bytes }
            }
            (store, _) => store,
        }),
    };
    let show = |store: &StoreConfig| match store {
        StoreConfig::Memory => "memory".into(),
        StoreConfig::Disk { path, .. } => format!("disk:{}", path.display()).into(),
    };
    ValueType { schema: Box::new(schema), show, read: Box::new(read) }
}

fn read_disk(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> Option<StoreConfig> {
    let folder = context.folder;
    let path = s
        .key("disk", "Folder for task records, which survive restarts. Created if missing. Only one process uses it at a time; another one exits with code 2.")
        .read_required(text());
    let key = s
        .key(
            "key",
            "Key of the store, 32 bytes as 64 hex digits: its file, or `{ env: NAME }`. Principals in the folder are identified by digests made with the key; results are not encrypted. Without the key no stored task could be given to its owner, so a store that has tasks is refused at start. Default: the file `PATH.key` beside the folder, generated at the first start.",
        )
        .read(key_location());
    let max_bytes = s
        .key("max_bytes", "Maximum size of the folder. Beyond it no further call becomes a task. Default: only the task results in it are limited (`limits.stored_bytes`).")
        .read(size(MIN_STORE_BYTES));
    if path.is_unset() {
        s.add_problem(s.span, "`store` names no folder; add `disk`, as in `{ disk: ./data }`");
    }
    let key = match key {
        Setting::Valid(SpannedValue { value: SecretSource::File(file), .. }) => {
            Some(StoreKeySource::File(folder.join(file)))
        }
        Setting::Valid(SpannedValue { span, value: source }) => match source.read_key(context) {
            Ok(key) => Some(StoreKeySource::Value(key)),
            Err(InvalidValue(message)) => {
                s.add_problem(span, message);
                None
            }
        },
        Setting::Unset | Setting::Invalid => None,
    };
    Some(StoreConfig::Disk { path: folder.join(path.ok()?), key, max_bytes: max_bytes.ok() })
}

/// The value of `drain`: the limit alone, or a mapping.
pub(super) fn drain() -> ValueType<'static, DrainTimes> {
    let ValueType { schema, read, .. } = mapping("`drain`", |s| Some(read_drain_times(s)));
    let ValueType { schema: limit, read: read_limit, .. } = duration();
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::Map(_) => read(node, report),
        _ => read_limit(node, report).map(|limit| DrainTimes { limit, ..DEFAULT_DRAIN }),
    };
    ValueType {
        schema: Box::new(move || json!({ "anyOf": [limit(), schema()] })),
        show: |drain| show_duration(drain.limit).into(),
        read: Box::new(read),
    }
}

fn read_drain_times(s: &mut SectionReader<'_, '_>) -> DrainTimes {
    let notice = s.key(
        "notice",
        "Time after the stop signal in which new calls are still served. `/ready` already responds with 503, and idle connections are closed. Set it to the time that load balancers need to notice.",
    );
    let notice = notice.read_or(duration(), DEFAULT_DRAIN.notice);
    let limit = s.key("limit", "Maximum time for calls and tasks in flight to finish, after `notice`; after that they end with `-31007`, except tasks in a store on disk whose calls can be resumed, which are left to the next process.");
    DrainTimes { notice, limit: limit.read_or(duration(), DEFAULT_DRAIN.limit) }
}

/// The value of `log`: a format, or a mapping.
pub(super) fn log() -> ValueType<'static, LogConfig> {
    let ValueType { schema, read, .. } = mapping("`log`", |s| Some(read_log_keys(s)));
    let ValueType { schema: format_schema, read: read_format, .. } = log_format();
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::Map(_) => read(node, report),
        _ => read_format(node, report).map(|format| LogConfig { format, level: None }),
    };
    ValueType {
        schema: Box::new(move || json!({ "anyOf": [format_schema(), schema()] })),
        show: |log| (log_format().show)(&log.format),
        read: Box::new(read),
    }
}

fn read_log_keys(s: &mut SectionReader<'_, '_>) -> LogConfig {
    let format = s
        .key("format", "Format: `text` for people, `json` for programs.")
        .read_or(log_format(), LogFormat::Text);
    let level = s.key(
        "level",
        "Level: error, warn, info, debug or trace; or a per-module filter, as in `info,deferral::access=warn`. Default: info. If the environment variable DEFERRAL_LOG contains a filter, that overrides it.",
    );
    let level = level.read(string(values::log_level)).ok();
    LogConfig { format, level }
}

fn log_format() -> ValueType<'static, LogFormat> {
    text_value(json!({ "enum": ["text", "json"] }), values::log).show_with(|format| match format {
        LogFormat::Text => "text".into(),
        LogFormat::Json => "json".into(),
    })
}

/// `required` (true) or `ignored` (false).
pub(super) fn required() -> ValueType<'static, bool> {
    text_value(json!({ "enum": ["required", "ignored"] }), values::required)
        .show_with(|required| if *required { "required".into() } else { "ignored".into() })
}

/// An HTTP URL, with the given parser.
pub(super) fn url(read: fn(&str) -> Result<Uri, InvalidValue>) -> ValueType<'static, Uri> {
    text_value(json!({ "type": "string", "pattern": "^https?://" }), read)
}

/// The URL of a server, with its display text. Warns of a literal secret in it.
pub(super) fn server_url() -> ValueType<'static, ServerUrl> {
    let ValueType { schema, read, .. } = url(values::upstream_url);
    let read = move |node: &Node, report: &mut DiagnosticSink| {
        let uri = read(node, report)?;
        let text = node.as_written().unwrap_or_default();
        warn_literal_secret(node, report);
        let url = UrlText::new(text);
        Some(ServerUrl::new(uri, &url.display_form(false), url.host(), url.has_literal_port()))
    };
    ValueType { schema, show: |_| Json::Null, read: Box::new(read) }
}

/// Warns of a literal secret in a URL of the file.
pub(super) fn warn_literal_secret(node: &Node, report: &mut DiagnosticSink) {
    let (SourceSpan::File { .. }, Some(text)) = (node.span, node.as_written()) else { return };
    if let Some(what) = UrlText::new(text).literal_secret() {
        let message = format!(
            "warning: this URL contains {what}, in a file that is printed, copied and put under version \
             control; set an environment variable and write `${{NAME}}` instead"
        );
        report.warnings.push(Problem::new(node.span, message));
    }
}

/// The path of a route.
pub(super) fn path() -> ValueType<'static, String> {
    text_value(json!({ "type": "string", "pattern": "^/" }), values::path)
}

/// The mode of a route, without `deny`.
pub(super) fn mode() -> ValueType<'static, Mode> {
    let modes: Vec<_> = Mode::ALL.into_iter().filter(|mode| *mode != Mode::Deny).map(Mode::as_str).collect();
    text_value(json!({ "enum": modes }), values::mode).show_with(|mode| mode.as_str().into())
}

/// The mode of a tool, which may be `deny`.
pub(super) fn tool_mode() -> ValueType<'static, Mode> {
    text_value(json!({ "enum": Mode::ALL.map(Mode::as_str) }), values::tool_mode)
        .show_with(|mode| mode.as_str().into())
}

/// A pattern for names, with `*` and `?`.
pub(super) fn pattern() -> ValueType<'static, NamePattern> {
    ValueType { schema: text().schema, ..text_value(Json::Null, values::pattern) }
}

/// A string with the given parser.
pub(super) fn string<T: 'static>(read: fn(&str) -> Result<T, InvalidValue>) -> ValueType<'static, T> {
    text_value(json!({ "type": "string" }), read)
}

/// Response headers: a mapping of names to strings.
pub(super) fn response_headers() -> ValueType<'static, ResponseHeaders> {
    let read = |node: &Node, report: &mut DiagnosticSink| {
        let NodeValue::Map(entries) = &node.value else {
            let message = format!("must be a mapping (`NAME: value`), not {}", node.type_name());
            report.problems.push(Problem::new(node.span, message));
            return None;
        };
        let before = report.problems.len();
        let mut headers = ResponseHeaders::new();
        for MapEntry { key, key_span, node } in entries {
            let name = values::response_header(key).and_then(|name| {
                match headers.iter().any(|(known, _)| *known == name) {
                    true => Err(InvalidValue(format!(
                        "`{key}` is listed twice, with different capitalisation; remove one of the two"
                    ))),
                    false => Ok(name),
                }
            });
            let name =
                name.map_err(|InvalidValue(message)| report.problems.push(Problem::new(*key_span, message)));
            let first_new = report.problems.len();
            let value = read_scalar(node, report, values::header_value);
            for Problem { message, .. } in &mut report.problems[first_new..] {
                if message.starts_with("must ") {
                    message.insert_str(0, &format!("the header `{key}` "));
                }
            }
            let value = value.and_then(|value| HeaderValue::from_str(&value).ok());
            headers.extend(name.ok().zip(value));
        }
        (report.problems.len() == before).then_some(headers)
    };
    let schema = || json!({ "type": "object", "additionalProperties": { "type": "string" } });
    ValueType { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// The source of the principal: `authorization`, or a header.
pub(super) fn principal() -> ValueType<'static, PrincipalSource> {
    let header = mapping("`principal`", |s| {
        let header =
            s.key("header", "Request header whose value names the principal. Only a trusted proxy in front should be able to set it: a client that reaches the listener directly could choose any value.").read_required(string(values::header));
        if header.is_unset() {
            s.add_problem(s.span, "`principal` names no header; add one, as in `{ header: X-User }`");
        }
        header.ok().map(PrincipalSource::Header)
    });
    let ValueType { schema, show, read } = header;
    let schema = Box::new(move || json!({ "anyOf": [{ "const": "authorization" }, schema()] }));
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::Map(_) => read(node, report),
        _ => read_scalar(node, report, |text| match text {
            "authorization" => Ok(PrincipalSource::Authorization),
            _ => Err(InvalidValue(format!(
                "unknown principal `{text}`; use authorization or {{ header: X-User }}"
            ))),
        }),
    };
    ValueType { schema, show, read: Box::new(read) }
}

/// Final status of a task whose tool returned an error; true for `completed`.
pub(super) fn tool_errors() -> ValueType<'static, bool> {
    let read = |text: &str| match text {
        "failed" => Ok(false),
        "completed" => Ok(true),
        _ => Err(InvalidValue(format!("unknown value `{text}` of `tool_errors`; use failed or completed"))),
    };
    let shown = |complete: &bool| if *complete { "completed".into() } else { "failed".into() };
    text_value(json!({ "enum": ["failed", "completed"] }), read).show_with(shown)
}

/// Reads a client match: a header with a given value, or a principal. Unset if none of its keys is written.
pub(super) fn read_client_match(s: &mut SectionReader<'_, '_>) -> Setting<ClientMatch> {
    let header = s
        .key("header", "Header by which these clients are recognised, together with `value`.")
        .read(string(values::client_match_header));
    let value = s.key("value", "Value of the header.").read(string(values::header_value));
    let principal = text_value(json!({ "type": "string", "pattern": "^[0-9a-f]{16}$" }), values::principal);
    let principal =
        s.key("principal", "Principal, as 16 hex digits: the field `principal` of the access log, which is there also if the token has a name. The digits stay the same after a restart with the same store key.").read(principal);
    let message = match (header, value, principal) {
        (Setting::Unset, Setting::Unset, Setting::Unset) => return Setting::Unset,
        (Setting::Invalid, ..) | (_, Setting::Invalid, _) | (.., Setting::Invalid) => {
            return Setting::Invalid;
        }
        (Setting::Valid(header), Setting::Valid(value), Setting::Unset) => {
            return Setting::Valid(SpannedValue::new(
                header.span,
                ClientMatch::Header(header.value, value.value),
            ));
        }
        (Setting::Unset, Setting::Unset, Setting::Valid(SpannedValue { span, value })) => {
            return Setting::Valid(SpannedValue::new(span, ClientMatch::Principal(value)));
        }
        (Setting::Valid(_), Setting::Unset, Setting::Unset) => {
            "the client match has no `value` for its `header`; add one"
        }
        (Setting::Unset, Setting::Valid(_), Setting::Unset) => {
            "the client match has no `header` for its `value`; add one"
        }
        (Setting::Valid(_), _, Setting::Valid(_)) | (_, Setting::Valid(_), Setting::Valid(_)) => {
            "the client match has both a header and `principal`; write two entries, either is enough"
        }
    };
    s.add_problem(s.span, message);
    Setting::Invalid
}

/// The value of `tasks.unsolicited`: `never`, `always` or a list of client matches.
pub(super) fn unsolicited() -> ValueType<'static, UnsolicitedSetting> {
    let matches = list(mapping("a client match", |s| {
        s.require_one_of(&[&["header", "value"], &["principal"]]);
        let client_match = read_client_match(s);
        if client_match.is_unset() {
            s.add_problem(
                s.span,
                "the client match has neither `header` with `value` nor `principal`; add one of them",
            );
        }
        client_match.ok()
    }))
    .non_empty();
    let ValueType { schema, read, .. } = matches;
    let schema = Box::new(move || json!({ "anyOf": [{ "enum": ["never", "always"] }, schema()] }));
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::List(_) => read(node, report).map(UnsolicitedSetting::Clients),
        NodeValue::Map(_) => {
            let message =
                "must be never, always or a list, as in `[{ header: X-Takes-Tasks, value: \"1\" }]`";
            report.problems.push(Problem::new(node.span, message));
            None
        }
        NodeValue::Scalar { .. } => read_scalar(node, report, |text| match text {
            "never" => Ok(UnsolicitedSetting::Never),
            "always" => Ok(UnsolicitedSetting::Always),
            _ => Err(InvalidValue(format!(
                "unknown value `{text}` of `unsolicited`; use never, always or a list, as in `[{{ principal: 0f3c… }}]`"
            ))),
        }),
    };
    ValueType { schema, show: |_| "never".into(), read: Box::new(read) }
}

/// Parses the name of an environment variable.
pub(super) fn parse_variable_name(text: &str) -> Result<String, InvalidValue> {
    match text.is_empty() || text.contains(['=', '\0']) {
        true => Err(InvalidValue("must be the name of an environment variable, which has no `=`".to_owned())),
        false => Ok(text.to_owned()),
    }
}

/// The source of a key, never the key itself.
pub(super) fn key_source() -> ValueType<'static, SecretSource> {
    secret_location("a key", mapping("a key", |s| read_source(s, "the key")))
}

/// The location of a key: a file name, or a mapping with `file` or `env`; never the key itself.
pub(super) fn key_location() -> ValueType<'static, SecretSource> {
    let ValueType { schema, show, read } = mapping("a key", |s| read_source(s, "the key"));
    let schema = move || json!({ "anyOf": [{ "type": "string" }, schema()] });
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::Map(_) => read(node, report),
        _ => read_scalar(node, report, |text| match text {
            "" => Err(InvalidValue("must not be empty".to_owned())),
            text if secret::is_key(text) || text.contains("-----BEGIN") => {
                Err(InvalidValue("must name a file that holds the key, not be the key itself".to_owned()))
            }
            text => Ok(SecretSource::File(text.into())),
        }),
    };
    ValueType { schema: Box::new(schema), show, read: Box::new(read) }
}

/// The source of the admin token, never the token itself.
pub(super) fn admin_token() -> ValueType<'static, SecretSource> {
    secret_location("a token", mapping("a token", |s| read_source(s, "the token")))
}

/// The name of a client's token and its source, never the token itself.
pub(super) fn token_source() -> ValueType<'static, TokenSource> {
    secret_location(
        "a token",
        mapping("a token", |s| {
            let name = s
                .key("name", "Principal of requests with this token, shown in the log. When a token is rotated, the new one keeps the name.")
                .read_required(string(|text| match secret::is_key(text) {
                    true => Err(InvalidValue("must be a name for the token, not the token itself".to_owned())),
                    false => values::token_name(text),
                }));
            if name.is_unset() {
                s.add_problem(s.span, "the token has no `name`; name its principal, as in `name: alice`");
            }
            match (name, read_source(s, "the token")) {
                (Setting::Valid(name), Some(source)) => Some(TokenSource { name: name.value, source }),
                (Setting::Unset | Setting::Invalid, _) | (_, None) => None,
            }
        }),
    )
}

/// Reads `file` or `env`, the source of a secret. `what` names the secret in messages. `None` if it is absent
/// or invalid, which is reported.
pub(super) fn read_source(s: &mut SectionReader<'_, '_>, what: &'static str) -> Option<SecretSource> {
    fn location_type<T>(
        kind: &'static str,
        what: &'static str,
        read: impl Fn(&str) -> Result<T, InvalidValue> + 'static,
    ) -> ValueType<'static, T> {
        text_value(json!({ "type": "string" }), move |text| match text {
            "" => Err(InvalidValue("must not be empty".to_owned())),
            text if secret::is_key(text) => {
                Err(InvalidValue(format!("must name a {kind} that holds {what}, not be {what} itself")))
            }
            text => read(text),
        })
    }
    s.require_one_of(&[&["file"], &["env"]]);
    let file = location_type("file", what, |text| Ok(PathBuf::from(text)));
    let file = s.key("file", "File that contains the secret.").read(file);
    let env = s.key("env", "Name of the environment variable that contains the secret.").read(location_type(
        "variable",
        what,
        parse_variable_name,
    ));
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

/// Restricts a mapping that locates a secret: any other value is rejected without being shown, because it may
/// be the secret.
pub(super) fn secret_location<T: 'static>(
    what: &'static str,
    mapping: ValueType<'static, T>,
) -> ValueType<'static, T> {
    let ValueType { schema, show, read } = mapping;
    let read = move |node: &Node, report: &mut DiagnosticSink| {
        if let NodeValue::Map(_) = node.value {
            return read(node, report);
        }
        let message = format!(
            "{what} must not be written in this file; name its source: `{{ file: PATH }}` or `{{ env: NAME }}`"
        );
        report.problems.push(Problem::new(node.span, message));
        None
    };
    ValueType { schema, show, read: Box::new(read) }
}

/// Client capabilities: a mapping of mappings, as JSON.
pub(super) fn requires() -> ValueType<'static, Json> {
    let schema = || json!({ "type": "object", "additionalProperties": { "type": "object" } });
    ValueType { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read_capabilities) }
}

fn read_capabilities(node: &Node, report: &mut DiagnosticSink) -> Option<Json> {
    let NodeValue::Map(entries) = &node.value else {
        let message = format!(
            "must be a mapping of capabilities, as in `{{ sampling: {{}} }}`, not {}",
            node.type_name()
        );
        report.problems.push(Problem::new(node.span, message));
        return None;
    };
    let before = report.problems.len();
    for entry in entries {
        let NodeValue::Map(inner) = &entry.node.value else {
            let message = format!("a capability must be a mapping; write `{}: {{}}`", entry.key);
            report.problems.push(Problem::new(entry.node.span, message));
            continue;
        };
        let known = capability::KNOWN_CAPABILITIES.iter().find(|(name, _)| *name == entry.key);
        match known {
            // The content of these capabilities is not specified.
            Some((_, [])) => {}
            Some((_, parts)) => {
                inner.iter().for_each(|part| reject_misspelt(part, parts.iter().copied(), report))
            }
            None => reject_misspelt(entry, capability::KNOWN_CAPABILITIES.map(|(name, _)| name), report),
        }
    }
    let unknown =
        |name: &&MapEntry| capability::KNOWN_CAPABILITIES.iter().all(|(known, _)| *known != name.key);
    if let Some(MapEntry { key, .. }) = entries.iter().find(unknown) {
        let message = format!(
            "warning: `{key}` is not a capability of the specification; clients that do not declare it are refused"
        );
        report.warnings.push(Problem::new(node.span, message));
    }
    (report.problems.len() == before).then(|| to_json(node))
}

/// Reports a misspelt capability, which no client would declare. Other unknown names are allowed: clients may
/// declare capabilities outside the specification (2026-07-28, *Capabilities*).
fn reject_misspelt<'a>(
    entry: &MapEntry,
    known: impl IntoIterator<Item = &'a str> + Clone,
    report: &mut DiagnosticSink,
) {
    let is_known = known.clone().into_iter().any(|name| name == entry.key);
    if let Some(near) = find_similar(&entry.key, known).filter(|_| !is_known) {
        let message =
            format!("unknown capability `{}`, which no client declares; did you mean `{near}`?", entry.key);
        report.problems.push(Problem::new(entry.key_span, message));
    }
}

/// Converts a node to JSON.
fn to_json(node: &Node) -> Json {
    match &node.value {
        NodeValue::List(items) => items.iter().map(to_json).collect(),
        NodeValue::Map(entries) => {
            entries.iter().map(|entry| (entry.key.clone(), to_json(&entry.node))).collect()
        }
        NodeValue::Scalar { text, .. } => match node.scalar_type() {
            Some(ScalarType::Null) => Json::Null,
            Some(ScalarType::Bool(boolean)) => boolean.into(),
            Some(ScalarType::Number) => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
            Some(ScalarType::Text) | None => text.clone().into(),
        },
    }
}
