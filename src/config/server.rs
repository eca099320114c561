//! The keys of `upstream`: the server's address, or the command that starts it, and what may be said of that.

use super::{
    At,
    kind::{
        count, duration_or_off, server_url, some_duration, source, string, text, truth, variable_name, word,
    },
    problem::Problem,
    reach,
    section::{Kind, Report, Section, Set, leaf, list, mapping},
    surroundings::Surroundings,
    together,
    values::{self, Invalid},
    yaml::{Entry, Node, Value},
};
use crate::upstream::{
    self,
    stdio::{INSTANCES, Inherit, Instances, OWN, Variables, When},
};
use serde_json::{Value as Json, json};

/// The server's URL, or the command that starts it and what goes with that.
pub(super) fn server(s: &mut Section<'_, '_>, around: Surroundings<'_>) -> together::Server {
    s.either(&[&["url"], &["command"]]);
    let url = s.key("url", "MCP endpoint of the server, over Streamable HTTP.").set(server_url());
    let words = s
        .key("command", "Command that starts a stdio server, with its arguments.")
        .set(list(argument()).some());
    let mut with_command = Vec::new();
    let started = started(s, around, &mut with_command);
    let shared = s
        .key(
            "shared",
            "Allow remote clients to share a server that cannot tell them apart: a stdio server, or one \
             that gets its `Authorization` from `headers`. Each client can then do whatever the server \
             can do with its files and credentials.",
        )
        .with_default("false")
        .set(truth());
    let reached = reach::written(s, around);
    let command = match words {
        Set::Unset => Set::Unset,
        Set::Wrong => Set::Wrong,
        Set::To(At { place, value: words }) => {
            let words = words.into_iter().map(|word| word.value).collect();
            Set::To(At::new(place, upstream::Command { words, ..started }))
        }
    };
    together::Server { url, command, with_command, shared, reached }
}

/// How a command is started, whose words are elsewhere. The keys that are written go to `written`.
fn started(
    s: &mut Section<'_, '_>,
    around: Surroundings<'_>,
    written: &mut Vec<At<&'static str>>,
) -> upstream::Command {
    let defaults = upstream::Command::new(Vec::new());
    let env = s.key(
        "env",
        "Environment variables of the command, in addition to those it inherits: each a string, or a secret (`{ file: PATH }`, `{ env: NAME }`).",
    );
    let env = env.set(variables(around));
    let inherit = s
        .key(
            "inherit_env",
            "Variables of the proxy's environment that the command inherits: `all`, `safe` (HOME, \
             LOGNAME, PATH, SHELL, TERM, USER, as MCP SDKs do), or a list of names in addition to the \
             safe ones.",
        )
        .with_default("safe")
        .set(inherit());
    let cwd = s.key("cwd", "Working directory of the command, relative to the folder of this file. Default: that of the proxy.").set(text());
    let start = s
        .key("start", "When the command is started: `lazy`, with the first call, or `eager`, with the proxy.")
        .with_default("lazy")
        .set(start());
    let start_timeout = s
        .key("start_timeout", "Time for the command to respond to `initialize`.")
        .with_default(&values::show_duration(defaults.start_timeout))
        .set(some_duration());
    let instances = s
        .key(
            "instances",
            "Maximum number of processes. Clients that declare the same capabilities share one; `{ per: caller }` \
             gives each principal its own, for a server that keeps state of one user. Default: 4.",
        )
        .set(instances());
    let idle = s
        .key(
            "idle",
            "How long an unused process is kept, checked once a minute, or `off` to keep it until the \
             proxy ends. An additional process for the same capabilities is kept for 5 minutes at most.",
        )
        .with_default(&defaults.idle.map_or_else(|| "off".to_owned(), values::show_duration))
        .set(duration_or_off());
    upstream::Command {
        env: given("env", env, written).unwrap_or_default(),
        inherit: given("inherit_env", inherit, written).unwrap_or_default(),
        folder: given("cwd", cwd, written).map(|path| around.folder.join(path)),
        start: given("start", start, written).unwrap_or_default(),
        start_timeout: given("start_timeout", start_timeout, written).unwrap_or(defaults.start_timeout),
        instances: given("instances", instances, written).unwrap_or(defaults.instances),
        idle: given("idle", idle, written).unwrap_or(defaults.idle),
        ..defaults
    }
}

/// What is written under a key. Where something is, the key goes to `written`.
fn given<T>(key: &'static str, set: Set<T>, written: &mut Vec<At<&'static str>>) -> Option<T> {
    if let Set::To(At { place, .. }) = &set {
        written.push(At::new(*place, key));
    }
    set.given()
}

/// Environment variables: a mapping of names to texts, or to where those are.
fn variables(around: Surroundings<'_>) -> Kind<'_, Variables> {
    let Kind { schema: elsewhere, read: where_it_is, .. } = mapping("a variable", |s| source(s, "the value"));
    let value = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => {
            let value = where_it_is(node, report)?.variable(around);
            value.map_err(|Invalid(message)| report.problems.push(Problem::new(node.place, message))).ok()
        }
        Value::List(_) | Value::Scalar { .. } => leaf(node, report, |text| match text.contains('\0') {
            true => Err(Invalid("must not contain a NUL character".to_owned())),
            false => Ok(text.to_owned()),
        }),
    };
    let read = move |node: &Node, report: &mut Report| {
        let Value::Map(entries) = &node.value else {
            let message = format!("must be a mapping (`NAME: value`), not {}", node.what());
            report.problems.push(Problem::new(node.place, message));
            return None;
        };
        let read = |entry: &Entry| {
            let name = variable_name(&entry.key);
            if let Err(Invalid(message)) = &name {
                report.problems.push(Problem::new(entry.key_place, message.clone()));
            }
            let value = value(&entry.node, report);
            Some((name.ok()?, value?))
        };
        let read: Vec<_> = entries.iter().map(read).collect();
        read.into_iter().collect()
    };
    let schema = move || {
        let value = json!({ "anyOf": [{ "type": ["string", "number", "boolean"] }, elsewhere()] });
        json!({ "type": "object", "additionalProperties": value })
    };
    Kind { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// What of the environment is inherited.
fn inherit() -> Kind<'static, Inherit> {
    let Kind { schema, read, .. } = list(string(inherited_name)).some();
    let schema = Box::new(move || json!({ "anyOf": [{ "enum": ["all", "safe"] }, schema()] }));
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::List(_) => {
            let names = read(node, report)?;
            Some(Inherit::Also(names.into_iter().map(|name| name.value).collect()))
        }
        Value::Map(_) | Value::Scalar { .. } => leaf(node, report, |text| match text {
            "all" => Ok(Inherit::All),
            "safe" => Ok(Inherit::Safe),
            _ => Err(Invalid(format!(
                "unknown value `{text}` of `inherit_env`; use all, safe or a list of names"
            ))),
        }),
    };
    Kind { schema, show: |_| Json::Null, read: Box::new(read) }
}

/// A word of a command. An empty one is an argument like any other; that the program has a name is judged by
/// [`together`].
fn argument() -> Kind<'static, String> {
    word(json!({ "type": "string" }), |text| match text.contains('\0') {
        true => Err(Invalid("must not contain a NUL character".to_owned())),
        false => Ok(text.to_owned()),
    })
}

/// A variable that a process inherits.
fn inherited_name(name: &str) -> Result<String, Invalid> {
    match name.starts_with(OWN) {
        true => Err(Invalid(format!(
            "`{name}` is never inherited, because variables that begin with {OWN} configure the proxy; set it under `routes[].upstream.env`"
        ))),
        false => variable_name(name),
    }
}

/// When a command is started.
fn start() -> Kind<'static, When> {
    word(json!({ "enum": ["lazy", "eager"] }), |text| match text {
        "lazy" => Ok(When::Lazy),
        "eager" => Ok(When::Eager),
        _ => Err(Invalid(format!("unknown value `{text}` of `start`; use lazy or eager"))),
    })
}

/// Who shares a process: so many of all, or each caller has its own.
fn instances() -> Kind<'static, Instances> {
    let per = mapping("`instances`", |s| {
        let caller = |text: &str| match text {
            "caller" => Ok(()),
            _ => Err(Invalid(format!("must be `caller`, not `{text}`"))),
        };
        let per = s
            .key("per", "`caller`: one process for each principal.")
            .required(word(json!({ "const": "caller" }), caller));
        if per.is_unset() {
            s.wrong(s.place, "`instances` is empty; write a number, or `{ per: caller }`");
        }
        per.given().map(|()| Instances::PerCaller)
    });
    let number = || count::<usize>(1);
    let (several, Kind { schema, read, .. }) = (number().read, per);
    let schema = Box::new(move || {
        let mut number = (number().schema)();
        number["default"] = INSTANCES.into();
        json!({ "anyOf": [number, schema()] })
    });
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => read(node, report),
        Value::List(_) | Value::Scalar { .. } => several(node, report).map(Instances::Shared),
    };
    Kind { schema, show: |_| Json::Null, read: Box::new(read) }
}
