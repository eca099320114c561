//! What single values may be: how each is read, and what an editor is told of it; those of a command are with its
//! keys (`server`). The readers of their texts are in [`values`], which the command line uses too.

use super::{
    At, DEFAULT_DRAIN, DrainTimes, Log, LogFormat, Store, StoreKey,
    problem::{Place, Problem, nearest},
    secret::{self, Source, TokenSource},
    section::{Kind, Report, Section, Set, leaf, list, mapping},
    surroundings::Surroundings,
    url_text::UrlText,
    values::{self, Invalid, show_duration, show_size},
    yaml::{Entry, Node, Scalar, Value},
};
use crate::{
    policy::{ClientMatch, Mode, Pattern, PrincipalSource, ResponseHeaders},
    protocol::capability,
    upstream::ServerUrl,
};
use http::{HeaderValue, Uri};
use serde_json::{Value as Json, json};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Bytes of the folder of a store: it takes a part of this when it is empty.
const SMALLEST_STORE: usize = 16 << 20;

/// Who may be given a task without having asked for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unsolicited {
    Never,
    Always,
    To(Vec<At<ClientMatch>>),
}

/// A value that is read from its text.
pub(super) fn word<'a, T>(schema: Json, read: impl Fn(&str) -> Result<T, Invalid> + 'a) -> Kind<'a, T> {
    let schema = Box::new(move || or_variable(schema.clone()));
    Kind { schema, show: |_| Json::Null, read: Box::new(move |node, report| leaf(node, report, &read)) }
}

/// What an editor is told of a value that variables may have a part in: what can be any text can be that.
pub(super) fn or_variable(schema: Json) -> Json {
    let is_any = schema["type"] == "string" && schema["pattern"].is_null() && schema["enum"].is_null();
    let variable = json!({ "type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}" });
    match schema {
        any if is_any => any,
        Json::Object(mut several) if several.contains_key("anyOf") => {
            several["anyOf"].as_array_mut().expect("it is a list").push(variable);
            several.into()
        }
        one => json!({ "anyOf": [one, variable] }),
    }
}

/// A value, or `off`: YAML 1.1 takes that for false, and whoever wrote `false` meant the same.
pub(super) fn or_off<T: 'static>(
    schema: Json,
    read: fn(&str) -> Result<Option<T>, Invalid>,
) -> Kind<'static, Option<T>> {
    let read = move |node: &Node, report: &mut Report| match node.scalar() {
        Some(Scalar::Bool(false)) => Some(None),
        _ => leaf(node, report, read),
    };
    let schema = move || or_variable(json!({ "anyOf": [schema, { "const": false }] }));
    Kind { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

pub(super) fn text() -> Kind<'static, String> {
    word(json!({ "type": "string", "minLength": 1 }), |text| match text {
        "" => Err(Invalid("must not be empty".to_owned())),
        _ => Ok(text.to_owned()),
    })
}

pub(super) fn truth() -> Kind<'static, bool> {
    let read = |node: &Node, report: &mut Report| {
        if let Some(Scalar::Bool(truth)) = node.scalar() {
            return Some(truth);
        }
        // Within `{ }` a variable stands in quotes, or it would not be YAML.
        if node.given().is_some() || node.is_wrong() {
            return leaf(node, report, |text| {
                text.parse().map_err(|_| Invalid(format!("must be true or false, not `{text}`")))
            });
        }
        let shown = match node.characters() {
            Some(text) if !text.is_empty() => format!("`{text}`"),
            _ => node.what().to_owned(),
        };
        let message = format!("must be true or false, not {shown}");
        report.problems.push(Problem::new(node.place, message));
        None
    };
    Kind {
        schema: Box::new(|| or_variable(json!({ "type": "boolean" }))),
        show: |truth| (*truth).into(),
        read: Box::new(read),
    }
}

pub(super) fn duration() -> Kind<'static, Duration> {
    let pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$";
    let schema = json!({ "anyOf": [{ "type": "string", "pattern": pattern }, { "const": 0 }] });
    word(schema, values::duration).shown(|duration| show_duration(*duration).into())
}

pub(super) fn some_duration() -> Kind<'static, Duration> {
    let read = |text: &str| match values::duration(text)? {
        Duration::ZERO => Err(Invalid("must be more than 0; leave it out for the default".to_owned())),
        duration => Ok(duration),
    };
    Kind { read: word(Json::Null, read).read, ..duration() }
}

/// A duration that is more than nothing, or `off`.
pub(super) fn duration_or_off() -> Kind<'static, Option<Duration>> {
    let pattern = r"^(off|([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+)$";
    let kind = or_off(json!({ "type": "string", "pattern": pattern }), |text| match text {
        "off" => Ok(None),
        text => match values::duration(text)? {
            Duration::ZERO => Err(Invalid("must be more than 0; `off` is for never".to_owned())),
            duration => Ok(Some(duration)),
        },
    });
    kind.shown(|duration| duration.map_or_else(|| "off".into(), |duration| show_duration(duration).into()))
}

pub(super) fn size(least: usize) -> Kind<'static, usize> {
    let pattern = r"^[0-9]+(\.[0-9]+)? ?(GiB|MiB|KiB|GB|MB|kB|KB|B)?$";
    let schema = json!({ "anyOf": [{ "type": "integer", "minimum": least }, { "type": "string", "pattern": pattern }] });
    let read = move |text: &str| match values::size(text)? {
        size if size < least => Err(Invalid(format!("must be at least {}", show_size(least)))),
        size => Ok(size),
    };
    word(schema, read).shown(|size| show_size(*size).into())
}

pub(super) fn count<N: TryFrom<usize> + Copy + Into<Json>>(least: usize) -> Kind<'static, N> {
    let read = move |text: &str| {
        let digits = text.replace('_', "");
        match digits.parse().ok().and_then(|count: usize| Some((count, N::try_from(count).ok()?))) {
            Some((count, _)) if count < least => Err(Invalid(format!("must be at least {least}"))),
            Some((_, count)) => Ok(count),
            None => Err(Invalid(format!("`{text}` is not a count; write a whole number"))),
        }
    };
    word(json!({ "type": "integer", "minimum": least }), read).shown(|count| (*count).into())
}

/// One address, or a list of them.
pub(super) fn addresses() -> Kind<'static, Vec<At<SocketAddr>>> {
    let one =
        || word(json!({ "type": "string", "examples": ["127.0.0.1:8808", "[::]:8808"] }), values::address);
    let (single, several) = (one().read, list(one()));
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::List(_) => (several.read)(node, report),
        _ => single(node, report).map(|address| vec![At::new(node.place, address)]),
    };
    Kind {
        schema: Box::new(move || json!({ "anyOf": [(one().schema)(), (list(one()).schema)()] })),
        show: |all| all.iter().map(|address| address.value.to_string()).collect::<Vec<_>>().join(", ").into(),
        read: Box::new(read),
    }
}

/// Where tasks are kept. A path in the file is relative to its folder, one on the command line to where we are.
pub(super) fn store(around: Surroundings<'_>) -> Kind<'_, Store> {
    let folder = around.folder;
    let disk = mapping("`store`", move |s| disk(s, around));
    let Kind { schema, read, .. } = disk;
    let schema = move || {
        let word = json!({ "type": "string", "pattern": "^(memory|disk:.+)$", "examples": ["memory", "disk:./data"] });
        json!({ "anyOf": [word, schema()] })
    };
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => read(node, report),
        _ => leaf(node, report, values::store).map(|store| match (store, node.place) {
            (Store::Disk { path, key, max_bytes }, Place::File { .. } | Place::Whole) => {
                Store::Disk { path: folder.join(path), key, max_bytes }
            }
            (store, _) => store,
        }),
    };
    let show = |store: &Store| match store {
        Store::Memory => "memory".into(),
        Store::Disk { path, .. } => format!("disk:{}", path.display()).into(),
    };
    Kind { schema: Box::new(schema), show, read: Box::new(read) }
}

fn disk(s: &mut Section<'_, '_>, around: Surroundings<'_>) -> Option<Store> {
    let folder = around.folder;
    let path = s
        .key("disk", "Folder for task records, which survive restarts. Created if missing.")
        .required(text());
    let key = s
        .key(
            "key",
            "Key for the digests of principals in the folder: its file, or `{ env: NAME }`. Default: the \
             folder's name plus `.key`, generated at the first start.",
        )
        .set(key_place());
    let max_bytes = s
        .key("max_bytes", "Size limit of the folder, in bytes. When it is reached, calls stay synchronous. Default: no limit.")
        .set(size(SMALLEST_STORE));
    if path.is_unset() {
        s.wrong(s.place, "`store` names no folder; add `disk`, as in `{ disk: ./data }`");
    }
    let key = match key {
        Set::To(At { value: Source::File(file), .. }) => Some(StoreKey::File(folder.join(file))),
        Set::To(At { place, value: source }) => match source.key(around) {
            Ok(key) => Some(StoreKey::Given(key)),
            Err(Invalid(message)) => {
                s.wrong(place, message);
                None
            }
        },
        Set::Unset | Set::Wrong => None,
    };
    Some(Store::Disk { path: folder.join(path.given()?), key, max_bytes: max_bytes.given() })
}

/// How long stopping takes: its limit alone, or a mapping.
pub(super) fn drain() -> Kind<'static, DrainTimes> {
    let Kind { schema, read, .. } = mapping("`drain`", |s| Some(drain_times(s)));
    let Kind { schema: limit, read: read_limit, .. } = duration();
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => read(node, report),
        _ => read_limit(node, report).map(|limit| DrainTimes { limit, ..DEFAULT_DRAIN }),
    };
    Kind {
        schema: Box::new(move || json!({ "anyOf": [limit(), schema()] })),
        show: |drain| show_duration(drain.limit).into(),
        read: Box::new(read),
    }
}

fn drain_times(s: &mut Section<'_, '_>) -> DrainTimes {
    let notice = s.key(
        "notice",
        "Time after the stop signal in which new calls are still served, `/ready` responds with 503, and \
         idle connections are closed. Set it to the time load balancers need to notice.",
    );
    let notice = notice.or(duration(), DEFAULT_DRAIN.notice);
    let limit = s.key("limit", "Time for calls in flight to finish, after `notice`. Calls that are still running then end with `-31007`.");
    DrainTimes { notice, limit: limit.or(duration(), DEFAULT_DRAIN.limit) }
}

pub(super) fn log() -> Kind<'static, Log> {
    let Kind { schema, read, .. } = mapping("`log`", |s| Some(log_of(s)));
    let Kind { schema: one, read: read_one, .. } = log_format();
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => read(node, report),
        _ => read_one(node, report).map(|format| Log { format, level: None }),
    };
    Kind {
        schema: Box::new(move || json!({ "anyOf": [one(), schema()] })),
        show: |log| (log_format().show)(&log.format),
        read: Box::new(read),
    }
}

fn log_of(s: &mut Section<'_, '_>) -> Log {
    let format = s.key("format", "`text` for people, `json` for programs.").or(log_format(), LogFormat::Text);
    let level = s.key(
        "level",
        "Level: error, warn, info, debug or trace; or a per-module filter, for example \
         `info,deferral::access=warn`. Default: info. The environment variable DEFERRAL_LOG overrides it.",
    );
    let level = level.set(string(values::log_level)).given();
    Log { format, level }
}

fn log_format() -> Kind<'static, LogFormat> {
    word(json!({ "enum": ["text", "json"] }), values::log).shown(|format| match format {
        LogFormat::Text => "text".into(),
        LogFormat::Json => "json".into(),
    })
}

/// Whether something is `required`, or `ignored`.
pub(super) fn required() -> Kind<'static, bool> {
    word(json!({ "enum": ["required", "ignored"] }), values::required)
        .shown(|required| if *required { "required".into() } else { "ignored".into() })
}

pub(super) fn url(read: fn(&str) -> Result<Uri, Invalid>) -> Kind<'static, Uri> {
    word(json!({ "type": "string", "pattern": "^https?://" }), read)
}

/// The URL of a server, with the text that it is shown as. A literal secret in it is doubted.
pub(super) fn server_url() -> Kind<'static, ServerUrl> {
    let Kind { schema, read, .. } = url(values::upstream_url);
    let read = move |node: &Node, report: &mut Report| {
        let uri = read(node, report)?;
        let text = node.as_written().unwrap_or_default();
        doubt_literal_secret(node, report);
        let url = UrlText::new(text);
        Some(ServerUrl::shown_as(uri, &url.shown(false), url.host(), url.has_literal_port()))
    };
    Kind { schema, show: |_| Json::Null, read: Box::new(read) }
}

/// Warns of a secret that stands in a URL of the file.
pub(super) fn doubt_literal_secret(node: &Node, report: &mut Report) {
    let (Place::File { .. }, Some(text)) = (node.place, node.as_written()) else { return };
    if let Some(what) = UrlText::new(text).literal_secret() {
        let message = format!(
            "warning: this URL contains {what}, in a file that is printed, copied and put under version \
             control; set an environment variable and write `${{NAME}}` instead"
        );
        report.doubts.push(Problem::new(node.place, message));
    }
}

pub(super) fn path() -> Kind<'static, String> {
    word(json!({ "type": "string", "pattern": "^/" }), values::path)
}

/// The mode of a route, which is not `deny`.
pub(super) fn mode() -> Kind<'static, Mode> {
    let modes: Vec<_> = Mode::ALL.into_iter().filter(|mode| *mode != Mode::Deny).map(Mode::as_str).collect();
    word(json!({ "enum": modes }), values::mode).shown(|mode| mode.as_str().into())
}

/// The mode of a tool.
pub(super) fn tool_mode() -> Kind<'static, Mode> {
    word(json!({ "enum": Mode::ALL.map(Mode::as_str) }), values::tool_mode).shown(|mode| mode.as_str().into())
}

pub(super) fn pattern() -> Kind<'static, Pattern> {
    Kind { schema: text().schema, ..word(Json::Null, values::pattern) }
}

/// A text of some sort.
pub(super) fn string<T: 'static>(read: fn(&str) -> Result<T, Invalid>) -> Kind<'static, T> {
    word(json!({ "type": "string" }), read)
}

/// Headers of responses: a mapping of names to texts.
pub(super) fn response_headers() -> Kind<'static, ResponseHeaders> {
    let read = |node: &Node, report: &mut Report| {
        let Value::Map(entries) = &node.value else {
            let message = format!("must be a mapping (`NAME: value`), not {}", node.what());
            report.problems.push(Problem::new(node.place, message));
            return None;
        };
        let before = report.problems.len();
        let mut headers = ResponseHeaders::new();
        for Entry { key, key_place, node } in entries {
            let name = values::response_header(key).and_then(|name| {
                match headers.iter().any(|(known, _)| *known == name) {
                    true => Err(Invalid(format!(
                        "`{key}` is listed twice, with different capitalisation; remove one of the two"
                    ))),
                    false => Ok(name),
                }
            });
            let name =
                name.map_err(|Invalid(message)| report.problems.push(Problem::new(*key_place, message)));
            let known = report.problems.len();
            let value = leaf(node, report, values::header_value);
            for Problem { message, .. } in &mut report.problems[known..] {
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
    Kind { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// What a caller is.
pub(super) fn principal() -> Kind<'static, PrincipalSource> {
    let header = mapping("`principal`", |s| {
        let header =
            s.key("header", "Request header that names the principal.").required(string(values::header));
        if header.is_unset() {
            s.wrong(s.place, "`principal` names no header; add one, as in `{ header: X-User }`");
        }
        header.given().map(PrincipalSource::Header)
    });
    let Kind { schema, show, read } = header;
    let schema = Box::new(move || json!({ "anyOf": [{ "const": "authorization" }, schema()] }));
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => read(node, report),
        _ => leaf(node, report, |text| match text {
            "authorization" => Ok(PrincipalSource::Authorization),
            _ => {
                Err(Invalid(format!("unknown principal `{text}`; use authorization or {{ header: X-User }}")))
            }
        }),
    };
    Kind { schema, show, read: Box::new(read) }
}

/// What a task becomes whose tool returned an error: whether it is completed.
pub(super) fn tool_errors() -> Kind<'static, bool> {
    let read = |text: &str| match text {
        "failed" => Ok(false),
        "completed" => Ok(true),
        _ => Err(Invalid(format!("unknown value `{text}` of `tool_errors`; use failed or completed"))),
    };
    let shown = |complete: &bool| if *complete { "completed".into() } else { "failed".into() };
    word(json!({ "enum": ["failed", "completed"] }), read).shown(shown)
}

/// What a client is told by: a header of this value, or the principal.
/// Unset where it has none of them.
pub(super) fn client_sign(s: &mut Section<'_, '_>) -> Set<ClientMatch> {
    let header = s.key("header", "Header that these clients send.").set(string(values::sign_header));
    let value = s.key("value", "Value of the header.").set(string(values::header_value));
    let principal = word(json!({ "type": "string", "pattern": "^[0-9a-f]{16}$" }), values::principal);
    let principal = s.key("principal", "Principal, as the access log shows it.").set(principal);
    let message = match (header, value, principal) {
        (Set::Unset, Set::Unset, Set::Unset) => return Set::Unset,
        (Set::Wrong, ..) | (_, Set::Wrong, _) | (.., Set::Wrong) => return Set::Wrong,
        (Set::To(header), Set::To(value), Set::Unset) => {
            return Set::To(At::new(header.place, ClientMatch::Header(header.value, value.value)));
        }
        (Set::Unset, Set::Unset, Set::To(At { place, value })) => {
            return Set::To(At::new(place, ClientMatch::Principal(value)));
        }
        (Set::To(_), Set::Unset, Set::Unset) => "the client match has no `value` for its `header`; add one",
        (Set::Unset, Set::To(_), Set::Unset) => "the client match has no `header` for its `value`; add one",
        (Set::To(_), _, Set::To(_)) | (_, Set::To(_), Set::To(_)) => {
            "the client match has both a header and `principal`; write two entries, either is enough"
        }
    };
    s.wrong(s.place, message);
    Set::Wrong
}

pub(super) fn unsolicited() -> Kind<'static, Unsolicited> {
    let signs = list(mapping("a client match", |s| {
        s.either(&[&["header", "value"], &["principal"]]);
        let sign = client_sign(s);
        if sign.is_unset() {
            s.wrong(
                s.place,
                "the client match has neither `header` with `value` nor `principal`; add one of them",
            );
        }
        sign.given()
    }))
    .some();
    let Kind { schema, read, .. } = signs;
    let schema = Box::new(move || json!({ "anyOf": [{ "enum": ["never", "always"] }, schema()] }));
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::List(_) => read(node, report).map(Unsolicited::To),
        Value::Map(_) => {
            let message =
                "must be never, always or a list, as in `[{ header: X-Takes-Tasks, value: \"1\" }]`";
            report.problems.push(Problem::new(node.place, message));
            None
        }
        Value::Scalar { .. } => leaf(node, report, |text| match text {
            "never" => Ok(Unsolicited::Never),
            "always" => Ok(Unsolicited::Always),
            _ => Err(Invalid(format!(
                "unknown value `{text}` of `unsolicited`; use never, always or a list, as in `[{{ principal: 0f3c… }}]`"
            ))),
        }),
    };
    Kind { schema, show: |_| "never".into(), read: Box::new(read) }
}

/// The name of an environment variable.
pub(super) fn variable_name(text: &str) -> Result<String, Invalid> {
    match text.is_empty() || text.contains(['=', '\0']) {
        true => Err(Invalid("must be the name of an environment variable, which has no `=`".to_owned())),
        false => Ok(text.to_owned()),
    }
}

/// Where a key is: never the key.
pub(super) fn key_source() -> Kind<'static, Source> {
    elsewhere("a key", mapping("a key", |s| source(s, "the key")))
}

/// Where a key is: a file by its name alone, or a mapping that says where; never the key.
pub(super) fn key_place() -> Kind<'static, Source> {
    let Kind { schema, show, read } = mapping("a key", |s| source(s, "the key"));
    let schema = move || json!({ "anyOf": [{ "type": "string" }, schema()] });
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => read(node, report),
        _ => leaf(node, report, |text| match text {
            "" => Err(Invalid("must not be empty".to_owned())),
            text if secret::is_key(text) || text.contains("-----BEGIN") => {
                Err(Invalid("must name a file that holds the key, not be the key itself".to_owned()))
            }
            text => Ok(Source::File(text.into())),
        }),
    };
    Kind { schema: Box::new(schema), show, read: Box::new(read) }
}

/// The operator's token: where it is, never the token.
pub(super) fn operator_token() -> Kind<'static, Source> {
    elsewhere("a token", mapping("a token", |s| source(s, "the token")))
}

/// A client's token, by its name: where it is, never the token.
pub(super) fn token_source() -> Kind<'static, TokenSource> {
    elsewhere(
        "a token",
        mapping("a token", |s| {
            let name = s
                .key("name", "Principal of requests with this token, also shown in the log. When a token is rotated, the new one keeps the name.")
                .required(string(|text| match secret::is_key(text) {
                    true => Err(Invalid("must be a name for the token, not the token itself".to_owned())),
                    false => values::token_name(text),
                }));
            if name.is_unset() {
                s.wrong(s.place, "the token has no `name`; name its principal, as in `name: alice`");
            }
            match (name, source(s, "the token")) {
                (Set::To(name), Some(source)) => Some(TokenSource { name: name.value, source }),
                (Set::Unset | Set::Wrong, _) | (_, None) => None,
            }
        }),
    )
}

/// The keys that say where a secret is, which is `what`: never the secret.
pub(super) fn source(s: &mut Section<'_, '_>, what: &'static str) -> Option<Source> {
    fn of<T>(
        place: &'static str,
        what: &'static str,
        read: impl Fn(&str) -> Result<T, Invalid> + 'static,
    ) -> Kind<'static, T> {
        word(json!({ "type": "string" }), move |text| match text {
            "" => Err(Invalid("must not be empty".to_owned())),
            text if secret::is_key(text) => {
                Err(Invalid(format!("must name a {place} that holds {what}, not be {what} itself")))
            }
            text => read(text),
        })
    }
    s.either(&[&["file"], &["env"]]);
    let file = of("file", what, |text| Ok(PathBuf::from(text)));
    let file = s.key("file", "File with the secret.").set(file);
    let env = s.key("env", "Environment variable with the secret.").set(of("variable", what, variable_name));
    let message = match (file, env) {
        (Set::To(file), Set::Unset) => return Some(Source::File(file.value)),
        (Set::Unset, Set::To(env)) => return Some(Source::Env(env.value)),
        (Set::Wrong, _) | (_, Set::Wrong) => return None,
        (Set::Unset, Set::Unset) => format!("{what} has neither `file` nor `env`; add one of them"),
        (Set::To(_), Set::To(_)) => format!("{what} has both `file` and `env`; remove one of the two"),
    };
    s.wrong(s.place, message);
    None
}

/// A mapping that says where a secret is. What stands in its place is not shown: it may be the secret.
pub(super) fn elsewhere<T: 'static>(what: &'static str, mapping: Kind<'static, T>) -> Kind<'static, T> {
    let Kind { schema, show, read } = mapping;
    let read = move |node: &Node, report: &mut Report| {
        if let Value::Map(_) = node.value {
            return read(node, report);
        }
        let message = format!(
            "{what} must not be written in this file; name its source: `{{ file: PATH }}` or `{{ env: NAME }}`"
        );
        report.problems.push(Problem::new(node.place, message));
        None
    };
    Kind { schema, show, read: Box::new(read) }
}

/// An object of objects, as JSON.
pub(super) fn requires() -> Kind<'static, Json> {
    let schema = || json!({ "type": "object", "additionalProperties": { "type": "object" } });
    Kind { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(capabilities) }
}

fn capabilities(node: &Node, report: &mut Report) -> Option<Json> {
    let Value::Map(entries) = &node.value else {
        let message =
            format!("must be a mapping of capabilities, as in `{{ sampling: {{}} }}`, not {}", node.what());
        report.problems.push(Problem::new(node.place, message));
        return None;
    };
    let before = report.problems.len();
    for entry in entries {
        let Value::Map(inner) = &entry.node.value else {
            let message = format!("a capability must be a mapping; write `{}: {{}}`", entry.key);
            report.problems.push(Problem::new(entry.node.place, message));
            continue;
        };
        let known = capability::OF_CLIENTS.iter().find(|(name, _)| *name == entry.key);
        match known {
            // What is in these is anybody's.
            Some((_, [])) => {}
            Some((_, parts)) => inner.iter().for_each(|part| slip(part, parts.iter().copied(), report)),
            None => slip(entry, capability::OF_CLIENTS.map(|(name, _)| name), report),
        }
    }
    let unknown = |name: &&Entry| capability::OF_CLIENTS.iter().all(|(known, _)| *known != name.key);
    if let Some(Entry { key, .. }) = entries.iter().find(unknown) {
        let message = format!(
            "warning: `{key}` is not a capability of the specification; clients that do not declare it are refused"
        );
        report.doubts.push(Problem::new(node.place, message));
    }
    (report.problems.len() == before).then(|| as_json(node))
}

/// A capability that is a slip of the finger, for then no client would declare it. Others may be somebody's
/// own: clients can have capabilities that the specification does not know (2026-07-28, *Capabilities*).
fn slip<'a>(entry: &Entry, known: impl IntoIterator<Item = &'a str> + Clone, report: &mut Report) {
    let is_known = known.clone().into_iter().any(|name| name == entry.key);
    if let Some(near) = nearest(&entry.key, known).filter(|_| !is_known) {
        let message =
            format!("unknown capability `{}`, which no client declares; did you mean `{near}`?", entry.key);
        report.problems.push(Problem::new(entry.key_place, message));
    }
}

fn as_json(node: &Node) -> Json {
    match &node.value {
        Value::List(items) => items.iter().map(as_json).collect(),
        Value::Map(entries) => {
            entries.iter().map(|entry| (entry.key.clone(), as_json(&entry.node))).collect()
        }
        Value::Scalar { text, .. } => match node.scalar() {
            Some(Scalar::Null) => Json::Null,
            Some(Scalar::Bool(truth)) => truth.into(),
            Some(Scalar::Number) => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
            Some(Scalar::Text) | None => text.clone().into(),
        },
    }
}
