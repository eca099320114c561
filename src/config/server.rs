//! The keys of `upstream`: the URL of a server, or the command that starts it.

use super::{
    SpannedValue, cross_checks,
    environment::LoadContext,
    problem::Problem,
    section::{DiagnosticSink, SectionReader, Setting, ValueType, list, mapping, read_scalar},
    upstream_http,
    value_types::{
        boolean, count, duration_or_off, parse_variable_name, positive_duration, read_source, server_url,
        string, text, text_value,
    },
    values::{self, InvalidValue},
    yaml::{MapEntry, Node, NodeValue},
};
use crate::upstream::{
    self,
    stdio::{DEFAULT_MAX_PROCESSES, EnvInheritance, EnvVariables, OWN_PREFIX, ProcessSharing, StartMode},
};
use serde_json::{Value as Json, json};

/// Reads `upstream`: `url` or `command`, with the keys that belong to each.
pub(super) fn read_upstream(
    s: &mut SectionReader<'_, '_>,
    context: LoadContext<'_>,
) -> cross_checks::UpstreamKeys {
    s.require_one_of(&[&["url"], &["command"]]);
    let url = s.key("url", "MCP endpoint of the server, over Streamable HTTP.").read(server_url());
    let words = s
        .key("command", "Command that starts a stdio server, with its arguments. Relative paths among the arguments are relative to `cwd`.")
        .read(list(argument()).non_empty());
    let mut written_keys = Vec::new();
    let command_settings = read_command_keys(s, context, &mut written_keys);
    let shared = s
        .key(
            "shared",
            "Whether clients on other machines may share a server that cannot tell them apart: a stdio server, or one that gets an `Authorization` or `Cookie` from `headers`. Each client can then do whatever the server can do with its files and credentials. Without it and without `access.tokens`, the configuration of such a server is refused if `listen` is beyond loopback or `public_url` is set.",
        )
        .with_default("false")
        .read(boolean());
    let http_keys = upstream_http::read_http_upstream_keys(s, context);
    let command = match words {
        Setting::Unset => Setting::Unset,
        Setting::Invalid => Setting::Invalid,
        Setting::Valid(SpannedValue { span, value: words }) => {
            let words = words.into_iter().map(|word| word.value).collect();
            Setting::Valid(SpannedValue::new(span, upstream::ServerCommand { words, ..command_settings }))
        }
    };
    cross_checks::UpstreamKeys { url, command, command_keys: written_keys, shared, http: http_keys }
}

/// Reads the settings of a command except its words. Appends the names of the keys that are written to
/// `written`.
fn read_command_keys(
    s: &mut SectionReader<'_, '_>,
    context: LoadContext<'_>,
    written: &mut Vec<SpannedValue<&'static str>>,
) -> upstream::ServerCommand {
    let defaults = upstream::ServerCommand::new(Vec::new());
    let env = s.key(
        "env",
        "Environment variables of the command, in addition to those it inherits (`inherit_env`): each a string, or a secret (`{ file: PATH }`, `{ env: NAME }`).",
    );
    let env = env.read(variables(context));
    let inherit = s
        .key(
            "inherit_env",
            "Variables of the proxy's environment that the command inherits: `all`, `safe` (HOME, LOGNAME, PATH, SHELL, TERM, USER, as MCP SDKs do), or a list of names in addition to the safe ones. Never inherited: DEFERRAL_* variables, and those from which the configuration reads a secret. A command given as `deferral -- CMD` has `all`.",
        )
        .with_default("safe")
        .read(inherit());
    let cwd = s.key("cwd", "Working directory of the command, relative to the folder of this file. Default: that of the proxy.").read(text());
    let start = s
        .key("start", "When the command is started: `lazy`, with the first request that needs it, or `eager`, with the proxy.")
        .with_default("lazy")
        .read(start());
    let start_timeout = s
        .key("start_timeout", "Maximum time for the command to respond to `initialize`; after that it is ended, and the calls that wait for it fail with `-31001`.")
        .with_default(&values::show_duration(defaults.start_timeout))
        .read(positive_duration());
    let instances = s
        .key(
            "instances",
            "Maximum number of processes (default 4). Clients that declare the same capabilities share one. When another one is needed at the maximum, an unused process is ended; if all are in use, the client shares a process whose clients declare at least its capabilities, or waits (`limits.queue`, `timeouts.queue`). `{ per: caller }`: each principal has its own process, for a server that keeps state of one user; at most 64, and a further principal waits.",
        )
        .read(instances());
    let idle = s
        .key(
            "idle",
            "How long an unused process is kept, or `off` to keep it until the proxy ends. If several processes serve the same capabilities, all but one are kept for 5 minutes at most.",
        )
        .with_default(&defaults.idle.map_or_else(|| "off".to_owned(), values::show_duration))
        .read(duration_or_off());
    upstream::ServerCommand {
        env: record_key("env", env, written).unwrap_or_default(),
        inherit: record_key("inherit_env", inherit, written).unwrap_or_default(),
        folder: record_key("cwd", cwd, written).map(|path| context.folder.join(path)),
        start: record_key("start", start, written).unwrap_or_default(),
        start_timeout: record_key("start_timeout", start_timeout, written).unwrap_or(defaults.start_timeout),
        instances: record_key("instances", instances, written).unwrap_or(defaults.instances),
        idle: record_key("idle", idle, written).unwrap_or(defaults.idle),
        ..defaults
    }
}

/// Returns the value of a key, and appends its name to `written` if it is set.
fn record_key<T>(
    key: &'static str,
    setting: Setting<T>,
    written: &mut Vec<SpannedValue<&'static str>>,
) -> Option<T> {
    if let Setting::Valid(SpannedValue { span, .. }) = &setting {
        written.push(SpannedValue::new(*span, key));
    }
    setting.ok()
}

/// The type of `env`: a mapping of names to strings, or to sources of secrets.
fn variables(context: LoadContext<'_>) -> ValueType<'_, EnvVariables> {
    let ValueType { schema: secret_schema, read: read_secret, .. } =
        mapping("a variable", |s| read_source(s, "the value"));
    let value = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::Map(_) => {
            let value = read_secret(node, report)?.read_variable(context);
            value.map_err(|InvalidValue(message)| report.problems.push(Problem::new(node.span, message))).ok()
        }
        NodeValue::List(_) | NodeValue::Scalar { .. } => {
            read_scalar(node, report, |text| match text.contains('\0') {
                true => Err(InvalidValue("must not contain a NUL character".to_owned())),
                false => Ok(text.to_owned()),
            })
        }
    };
    let read = move |node: &Node, report: &mut DiagnosticSink| {
        let NodeValue::Map(entries) = &node.value else {
            let message = format!("must be a mapping (`NAME: value`), not {}", node.type_name());
            report.problems.push(Problem::new(node.span, message));
            return None;
        };
        let read = |entry: &MapEntry| {
            let name = parse_variable_name(&entry.key);
            if let Err(InvalidValue(message)) = &name {
                report.problems.push(Problem::new(entry.key_span, message.clone()));
            }
            let value = value(&entry.node, report);
            Some((name.ok()?, value?))
        };
        let read: Vec<_> = entries.iter().map(read).collect();
        read.into_iter().collect()
    };
    let schema = move || {
        let value = json!({ "anyOf": [{ "type": ["string", "number", "boolean"] }, secret_schema()] });
        json!({ "type": "object", "additionalProperties": value })
    };
    ValueType { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// The type of `inherit_env`: `all`, `safe` or a list of names.
fn inherit() -> ValueType<'static, EnvInheritance> {
    let ValueType { schema, read, .. } = list(string(parse_inherited_name)).non_empty();
    let schema = Box::new(move || json!({ "anyOf": [{ "enum": ["all", "safe"] }, schema()] }));
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::List(_) => {
            let names = read(node, report)?;
            Some(EnvInheritance::Also(names.into_iter().map(|name| name.value).collect()))
        }
        NodeValue::Map(_) | NodeValue::Scalar { .. } => read_scalar(node, report, |text| match text {
            "all" => Ok(EnvInheritance::All),
            "safe" => Ok(EnvInheritance::Safe),
            _ => Err(InvalidValue(format!(
                "unknown value `{text}` of `inherit_env`; use all, safe or a list of names"
            ))),
        }),
    };
    ValueType { schema, show: |_| Json::Null, read: Box::new(read) }
}

/// The type of a word of `command`. Arguments may be empty; [`cross_checks`] checks that the program is not.
fn argument() -> ValueType<'static, String> {
    text_value(json!({ "type": "string" }), |text| match text.contains('\0') {
        true => Err(InvalidValue("must not contain a NUL character".to_owned())),
        false => Ok(text.to_owned()),
    })
}

/// Parses the name of an inherited environment variable.
fn parse_inherited_name(name: &str) -> Result<String, InvalidValue> {
    match name.starts_with(OWN_PREFIX) {
        true => Err(InvalidValue(format!(
            "`{name}` is never inherited, because variables that begin with {OWN_PREFIX} configure the proxy; set it under `routes[].upstream.env`"
        ))),
        false => parse_variable_name(name),
    }
}

/// The type of `start`: `lazy` or `eager`.
fn start() -> ValueType<'static, StartMode> {
    text_value(json!({ "enum": ["lazy", "eager"] }), |text| match text {
        "lazy" => Ok(StartMode::Lazy),
        "eager" => Ok(StartMode::Eager),
        _ => Err(InvalidValue(format!("unknown value `{text}` of `start`; use lazy or eager"))),
    })
}

/// The type of `instances`: a number of processes, or one process for each principal.
fn instances() -> ValueType<'static, ProcessSharing> {
    let per = mapping("`instances`", |s| {
        let caller = |text: &str| match text {
            "caller" => Ok(()),
            _ => Err(InvalidValue(format!("must be `caller`, not `{text}`"))),
        };
        let per = s
            .key("per", "`caller`: one process for each principal.")
            .read_required(text_value(json!({ "const": "caller" }), caller));
        if per.is_unset() {
            s.add_problem(s.span, "`instances` is empty; write a number, or `{ per: caller }`");
        }
        per.ok().map(|()| ProcessSharing::PerCaller)
    });
    let number = || count::<usize>(1);
    let (read_number, ValueType { schema, read, .. }) = (number().read, per);
    let schema = Box::new(move || {
        let mut number = (number().schema)();
        number["default"] = DEFAULT_MAX_PROCESSES.into();
        json!({ "anyOf": [number, schema()] })
    });
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::Map(_) => read(node, report),
        NodeValue::List(_) | NodeValue::Scalar { .. } => {
            read_number(node, report).map(ProcessSharing::Shared)
        }
    };
    ValueType { schema, show: |_| Json::Null, read: Box::new(read) }
}
