//! The keys of `upstream`: the URL of a server, or the command that starts it.

use super::upstream_http::{HTTP_KEYS, HttpUpstreamKeys, read_http_upstream_keys};
use crate::{
    config::schema::{
        LoadContext, SectionReader, Setting, SpannedValue, UrlText, ValueResult, ValueType, boolean, count,
        duration_or_off, entries, invalid, list, mapping, positive_duration, program_text, secret_source,
        string, text, url, values, warn_literal_secret, word,
    },
    upstream::{
        self, ServerCommand, ServerUrl, UpstreamTarget,
        stdio::{DEFAULT_MAX_PROCESSES, EnvInheritance, EnvVariables, OWN_PREFIX, ProcessSharing, StartMode},
    },
};
use serde_json::json;

/// Keys of `upstream` that apply to a command only.
const COMMAND_KEYS: [&str; 7] = ["env", "inherit_env", "cwd", "start", "start_timeout", "instances", "idle"];

/// Reads `upstream`: `url` or `command`, with the keys that belong to each. `None` if it is ambiguous or
/// invalid.
pub(super) fn read_upstream(
    s: &mut SectionReader<'_, '_>,
    is_exposed: bool,
    context: LoadContext<'_>,
) -> Option<(UpstreamTarget, upstream::Config)> {
    s.require_one_of(&[&["url"], &["command"]]);
    let url = s.key("url", "MCP endpoint of the server, over Streamable HTTP.").read(server_url());
    let words = s
        .key("command", "Command that starts a stdio server, with its arguments. Relative paths among the arguments are relative to `cwd`.")
        .read(list(program_text()).with_min_items());
    let settings = read_command_settings(s, context);
    let shared = s
        .key("shared", "Whether clients on other machines may share a server that cannot tell them apart: a stdio server, or one that gets an `Authorization` or `Cookie` from `headers`. Each client can then do whatever the server can do with its files and credentials. Without it and without `access.tokens`, the configuration of such a server is refused if `listen` is beyond loopback or `public_url` is set.")
        .with_default("false")
        .read(boolean());
    let http_keys = read_http_upstream_keys(s, context);
    match (url, words) {
        (Setting::Unset, Setting::Unset) => {
            s.add_problem(s.span, "`upstream` names no server; add a `url` or a `command`");
            None
        }
        (Setting::Valid(_), Setting::Valid(words)) => {
            s.add_problem(words.span, "`upstream` has both `url` and `command`; remove one of the two");
            None
        }
        (Setting::Valid(url), Setting::Unset | Setting::Invalid) => {
            s.reject_keys(&COMMAND_KEYS, |key| {
                format!("`{key}` is for stdio servers (`command`), and this one has a `url`; remove it")
            });
            check_shared_url(&shared, &http_keys, is_exposed, s);
            let config = http_keys.into_config(&url, context, s);
            Some((UpstreamTarget::Url(url.value), config))
        }
        (Setting::Unset, Setting::Valid(SpannedValue { span, value: words })) => {
            let words = words.into_iter().map(|word| word.value).collect();
            let command = SpannedValue::new(span, ServerCommand { words, ..settings });
            check_command(&command, is_exposed && !shared.ok().unwrap_or(false), context, s)?;
            Some((UpstreamTarget::Command(Box::new(command.value)), upstream::Config::default()))
        }
        (Setting::Invalid, _) | (Setting::Unset, Setting::Invalid) => None,
    }
}

/// Checks a command. `is_refused` is set if remote clients would share it. `None` if it names no program.
fn check_command(
    SpannedValue { span, value: command }: &SpannedValue<ServerCommand>,
    is_refused: bool,
    context: LoadContext<'_>,
    s: &mut SectionReader<'_, '_>,
) -> Option<()> {
    if command.words.is_empty() {
        return s.diagnostics.reject(*span, "`command` is empty; name the program first");
    }
    if command.program().is_empty() {
        let message =
            "the first item of `command` is empty; it must name the program (only arguments may be empty)";
        return s.diagnostics.reject(*span, message);
    }
    if context.checks_files
        && let Err(missing) = command.find_program()
    {
        s.add_problem(*span, missing.to_string());
    }
    s.reject_keys(&HTTP_KEYS, |key| {
        format!("`{key}` is for servers with a `url`, and this one has a `command`; remove it")
    });
    if is_refused {
        let message =
            sharing_refusal("the stdio server cannot tell them apart", "it can do", " (`--shared`)");
        s.add_problem(*span, message);
    }
    Some(())
}

/// Checks `shared` for a server at a URL. With configured credentials in `headers`, all clients look the same
/// to the server.
fn check_shared_url(
    shared: &Setting<bool>,
    http_keys: &HttpUpstreamKeys,
    is_exposed: bool,
    s: &mut SectionReader<'_, '_>,
) {
    match (http_keys.identity_header(), shared) {
        (Some(_), Setting::Valid(SpannedValue { value: true, .. })) | (Some(_), Setting::Invalid) => {}
        (Some(SpannedValue { span, value: header }), Setting::Valid(_) | Setting::Unset) if is_exposed => {
            let reason = format!(
                "the server cannot tell them apart, because `headers` sets the `{header}` of all requests"
            );
            s.add_problem(span, sharing_refusal(&reason, "it permits", ""));
        }
        (None, Setting::Valid(SpannedValue { span, .. })) => s.add_problem(
            *span,
            "`shared` is for servers that cannot tell clients apart: stdio servers, and those that get \
             their `Authorization` from `headers`; remove it",
        ),
        (Some(_), Setting::Valid(_) | Setting::Unset) | (None, Setting::Unset | Setting::Invalid) => {}
    }
}

/// Returns the problem message for a server that cannot tell clients apart, behind a listener that remote
/// clients can reach. `can` says what each client can then do.
fn sharing_refusal(reason: &str, can: &str, flag: &str) -> String {
    format!(
        "clients on other machines can connect, and {reason}: each of them can do whatever {can}; listen on \
         loopback, require tokens (`access.tokens`), or write `shared: true` under `upstream`{flag} if \
         this is intended"
    )
}

/// The URL of a server, with its display text. Warns of a literal secret in it.
pub(super) fn server_url() -> ValueType<'static, ServerUrl> {
    url(values::http_url).and_then(|uri, node, report| {
        warn_literal_secret(node, report);
        let url = UrlText::new(node.as_written().unwrap_or_default());
        Some(ServerUrl::new(uri, &url.display_form(false), url.host(), url.has_literal_port()))
    })
}

/// Reads the settings of a command except its words.
fn read_command_settings(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> ServerCommand {
    let defaults = ServerCommand::new(Vec::new());
    ServerCommand {
        env: s
            .key("env", "Environment variables of the command, in addition to those it inherits (`inherit_env`): each a string, or a secret (`{ file: PATH }`, `{ env: NAME }`).")
            .read(variables(context))
            .ok()
            .unwrap_or_default(),
        inherit: s
            .key("inherit_env", "Variables of the proxy's environment that the command inherits: `all`, `safe` (HOME, LOGNAME, PATH, SHELL, TERM, USER, as MCP SDKs do), or a list of names in addition to the safe ones. Never inherited: DEFERRAL_* variables, and those from which the configuration reads a secret. A command given as `deferral -- CMD` has `all`.")
            .with_default("safe")
            .read(inheritance())
            .ok()
            .unwrap_or_default(),
        folder: s
            .key("cwd", "Working directory of the command, relative to the folder of this file. Default: that of the proxy.")
            .read(text().map(|path| context.folder.join(path)))
            .ok(),
        start: s
            .key("start", "When the command is started: `lazy`, with the first request that needs it, or `eager`, with the proxy.")
            .read_or(word("value `{}` of `start`", &[("lazy", StartMode::Lazy), ("eager", StartMode::Eager)]), StartMode::default()),
        start_timeout: s
            .key("start_timeout", "Maximum time for the command to respond to `initialize`; after that it is ended, and the calls that wait for it fail with `-31001`.")
            .read_or(positive_duration(), defaults.start_timeout),
        instances: s
            .key("instances", "Maximum number of processes (default 4). Clients that declare the same capabilities share one. When another one is needed at the maximum, an unused process is ended; if all are in use, the client shares a process whose clients declare at least its capabilities, or waits (`limits.queue`, `timeouts.queue`). `{ per: caller }`: each principal has its own process, for a server that keeps state of one user; at most 64, and a further principal waits.")
            .read_or(instances(), defaults.instances),
        idle: s
            .key("idle", "How long an unused process is kept, or `off` to keep it until the proxy ends. If several processes serve the same capabilities, all but one are kept for 5 minutes at most.")
            .read_or(duration_or_off(), defaults.idle),
        ..defaults
    }
}

/// The type of `env`: a mapping of names to strings, or to sources of secrets.
fn variables(context: LoadContext<'_>) -> ValueType<'_, EnvVariables> {
    let secret = secret_source("a variable", "the value")
        .and_then(move |source, node, report| report.accept(node.span, source.read_variable(context)));
    let value =
        program_text().with_schema(|| json!({ "type": ["string", "number", "boolean"] })).or_mapping(secret);
    entries("NAME: value", values::variable_name, value)
        .map(|variables| variables.into_iter().map(|(name, value)| (name, value.value)).collect())
}

/// The type of `inherit_env`: `all`, `safe` or a list of names.
fn inheritance() -> ValueType<'static, EnvInheritance> {
    let names = list(string(parse_inherited_name)).with_min_items();
    let names = names.map(|names| EnvInheritance::Also(names.into_iter().map(|name| name.value).collect()));
    let word = ValueType::scalar(json!({ "enum": ["all", "safe"] }), |text| match text {
        "all" => Ok(EnvInheritance::All),
        "safe" => Ok(EnvInheritance::Safe),
        _ => invalid(format!("unknown value `{text}` of `inherit_env`; use all, safe or a list of names")),
    });
    word.or_list(names)
}

/// Parses the name of an inherited environment variable.
fn parse_inherited_name(name: &str) -> ValueResult<String> {
    match name.starts_with(OWN_PREFIX) {
        true => invalid(format!(
            "`{name}` is never inherited, because variables that begin with {OWN_PREFIX} configure the proxy; set it under `routes[].upstream.env`"
        )),
        false => values::variable_name(name),
    }
}

/// The type of `instances`: a number of processes, or one process for each principal.
fn instances() -> ValueType<'static, ProcessSharing> {
    let per = mapping("`instances`", |s| {
        let caller = ValueType::text(json!({ "const": "caller" }), |text| match text {
            "caller" => Ok(ProcessSharing::PerCaller),
            _ => invalid(format!("must be `caller`, not `{text}`")),
        });
        let per = s.key("per", "`caller`: one process for each principal.").read_required(caller);
        if per.is_unset() {
            s.add_problem(s.span, "`instances` is empty; write a number, or `{ per: caller }`");
        }
        per.ok()
    });
    let schema = || {
        let mut number = count::<usize>(1).schema();
        number["default"] = DEFAULT_MAX_PROCESSES.into();
        number
    };
    count(1).with_schema(schema).map(ProcessSharing::Shared).or_mapping(per)
}

/// Parses a number of processes, at least one.
///
/// # Errors
/// The text is not such a number.
pub fn parse_instances(text: &str) -> ValueResult<usize> {
    match text.trim().parse() {
        Ok(count @ 1..) => Ok(count),
        Ok(_) | Err(_) => {
            invalid(format!("`{text}` is not a number of processes; write a whole number of at least 1"))
        }
    }
}
