//! From a tree of YAML to the configuration as it was written: which keys each section has, and what
//! their values must look like.
//!
//! The readers go on after a problem, so that one run reports everything. A function each; those of
//! single values are in `section`.

use super::{
    Store,
    file::{
        Access, DeferSection, File, HeldSection, Limits, Principal, QuestionsSection, RequestStateSection,
        ResumeSection, Route, Set, TasksSection, Timeouts, Tls, Tool, ToolErrors, Unsolicited, Upstream,
    },
    problem::{At, Place, Problem, nearest},
    secret::{self, KeySource},
    section::{
        Problems, Section, TOP, count, duration, duration_or_off, file_path, leaf, list, size, some_duration,
        text, truth,
    },
    values::{self, Invalid},
    yaml::{self, Node, Scalar, Value},
};
use crate::{policy::ClientMatch, protocol::capability};
use std::path::PathBuf;

/// Reads the text of a configuration file. What is wrong is added to `problems`; the rest is
/// there all the same, so that it can be judged too.
pub(super) fn read(text: &str, problems: &mut Problems) -> File {
    let before = problems.len();
    match yaml::parse(text, problems) {
        Some(node) => file(&node, problems).unwrap_or_default(),
        None if problems.len() == before => {
            problems.push(Problem::new(Place::START, "the file is empty; it needs at least one route"));
            // Reported once: not also as routes that are missing.
            File { routes: Set::Wrong, ..File::default() }
        }
        None => File { routes: Set::Wrong, ..File::default() },
    }
}

fn file(node: &Node, problems: &mut Problems) -> Option<File> {
    let Some(mut top) = Section::open(node, TOP, problems) else {
        return Some(File { routes: Set::Wrong, ..File::default() });
    };
    let file = File {
        listen: top.set("listen", |node, problems| match node.value {
            Value::List(_) => list(node, problems, |node, problems| leaf(node, problems, values::address)),
            _ => leaf(node, problems, values::address).map(|address| vec![At::new(node.place, address)]),
        }),
        tls: top.set("tls", tls),
        // YAML 1.1 takes a bare `off` for false; whoever wrote `false` meant the same.
        admin: top.set("admin", |node, problems| match node.scalar() {
            Some(Scalar::Bool(false)) => Some(None),
            _ => leaf(node, problems, values::admin),
        }),
        store: top.set("store", store),
        routes: top.set("routes", |node, problems| list(node, problems, route)),
        request_state: top.set("request_state", request_state),
        access: top.set("access", access),
        limits: top.set("limits", limits),
        timeouts: top.set("timeouts", timeouts),
        drain: top.set("drain", duration),
        log: top.set("log", |node, problems| leaf(node, problems, values::log)),
        public_url: top.set("public_url", |node, problems| leaf(node, problems, values::public_url)),
    };
    top.close();
    Some(file)
}

fn tls(node: &Node, problems: &mut Problems) -> Option<Tls> {
    let mut section = Section::open(node, "`tls`", problems)?;
    let tls = Tls { cert: section.set("cert", file_path), key: section.set("key", file_path) };
    section.close();
    Some(tls)
}

fn store(node: &Node, problems: &mut Problems) -> Option<Store> {
    if let Value::Scalar { .. } = node.value {
        return leaf(node, problems, values::store);
    }
    let only = "must be `memory`, which forgets tasks at exit: this version has no other";
    problems.push(Problem::new(node.place, format!("{only}, not {}", node.what())));
    None
}

fn route(node: &Node, problems: &mut Problems) -> Option<Route> {
    let mut section = Section::open(node, "a route", problems)?;
    let route = Route {
        path: section.set("path", |node, problems| leaf(node, problems, values::path)),
        upstream: section.set("upstream", upstream_section),
        defer: section.set("defer", defer),
        tools: section.set("tools", |node, problems| list(node, problems, tool)),
        principal: section.set("principal", principal),
        forward: section.set("forward", |node, problems| {
            list(node, problems, |node, problems| leaf(node, problems, values::forwarded_header))
        }),
        questions: section.set("questions", questions),
        tasks: section.set("tasks", tasks),
        held: section.set("held", held),
        resume: section.set("resume", resume),
        empty_contents_is_error: section.set("empty_contents_is_error", truth),
    };
    section.close();
    Some(route)
}

fn upstream_section(node: &Node, problems: &mut Problems) -> Option<Upstream> {
    let mut section = Section::open(node, "`upstream`", problems)?;
    let upstream = Upstream {
        url: section.set("url", |node, problems| leaf(node, problems, values::upstream_url)),
        command: section.set_unlisted("command", |node, problems| {
            let words = list(node, problems, text)?;
            Some(words.into_iter().map(|word| word.value).collect())
        }),
    };
    section.close();
    Some(upstream)
}

fn defer(node: &Node, problems: &mut Problems) -> Option<DeferSection> {
    let mut section = Section::open(node, "`defer`", problems)?;
    let defer = DeferSection {
        mode: section.set("mode", |node, problems| leaf(node, problems, values::mode)),
        after: section.set("after", duration),
        retention: section.set("retention", duration),
    };
    section.close();
    Some(defer)
}

fn tool(node: &Node, problems: &mut Problems) -> Option<Tool> {
    let mut section = Section::open(node, "a tool rule", problems)?;
    let tool = Tool {
        matches: section.set("match", |node, problems| leaf(node, problems, values::pattern)),
        mode: section.set("mode", |node, problems| leaf(node, problems, values::mode)),
        after: section.set("after", duration),
        keys: section.set("keys", |node, problems| list(node, problems, text)),
        requires: section.set("requires", requires),
    };
    section.close();
    Some(tool)
}

fn principal(node: &Node, problems: &mut Problems) -> Option<Principal> {
    if !matches!(node.value, Value::Map(_)) {
        return leaf(node, problems, |text| match text {
            "authorization" => Ok(Principal::Authorization),
            _ => {
                Err(Invalid(format!("unknown principal `{text}`; use authorization or {{ header: X-User }}")))
            }
        });
    }
    let mut section = Section::open(node, "`principal`", problems)?;
    let header = section.set("header", |node, problems| leaf(node, problems, values::header));
    section.close();
    if header.is_unset() {
        problems.push(Problem::new(node.place, "`principal` names no header, as in `{ header: X-User }`"));
    }
    header.given().map(Principal::Header)
}

fn questions(node: &Node, problems: &mut Problems) -> Option<QuestionsSection> {
    let mut section = Section::open(node, "`questions`", problems)?;
    let questions =
        QuestionsSection { settle: section.set("settle", duration), park: section.set("park", duration) };
    section.close();
    Some(questions)
}

fn tasks(node: &Node, problems: &mut Problems) -> Option<TasksSection> {
    let mut section = Section::open(node, "`tasks`", problems)?;
    let tasks = TasksSection {
        max_ttl: section.set("max_ttl", some_duration),
        tool_errors: section.set("tool_errors", |node, problems| {
            leaf(node, problems, |text| match text {
                "failed" => Ok(ToolErrors::Failed),
                "completed" => Ok(ToolErrors::Completed),
                _ => Err(Invalid(format!(
                    "unknown outcome `{text}` of a tool's error; use failed or completed"
                ))),
            })
        }),
        immediate_response: section.set("immediate_response", text),
        across_eras: section.set("across_eras", truth),
        unsolicited: section.set("unsolicited", unsolicited),
    };
    section.close();
    Some(tasks)
}

fn unsolicited(node: &Node, problems: &mut Problems) -> Option<Unsolicited> {
    match node.value {
        Value::List(_) => list(node, problems, sign).map(Unsolicited::To),
        Value::Map(_) => {
            problems.push(Problem::new(
                node.place,
                "must be never, always or a list, as in `[{ header: X-Takes-Tasks, value: \"1\" }]`",
            ));
            None
        }
        Value::Scalar { .. } => leaf(node, problems, |text| match text {
            "never" => Ok(Unsolicited::Never),
            "always" => Ok(Unsolicited::Always),
            _ => Err(Invalid(format!(
                "`{text}` does not say who; use never, always or a list, as in `[{{ principal: 0f3c… }}]`"
            ))),
        }),
    }
}

fn sign(node: &Node, problems: &mut Problems) -> Option<ClientMatch> {
    let mut section = Section::open(node, "a client's sign", problems)?;
    let header = section.set("header", |node, problems| leaf(node, problems, values::sign_header));
    let value = section.set("value", |node, problems| leaf(node, problems, values::header_value));
    let principal = section.set("principal", |node, problems| leaf(node, problems, values::principal));
    section.close();
    let mut wrong = |message: &str| {
        problems.push(Problem::new(node.place, message));
        None
    };
    match (header, value, principal) {
        (Set::Wrong, ..) | (_, Set::Wrong, _) | (.., Set::Wrong) => None,
        (Set::To(header), Set::To(value), Set::Unset) => Some(ClientMatch::Header(header.value, value.value)),
        (Set::Unset, Set::Unset, Set::To(principal)) => Some(ClientMatch::Principal(principal.value)),
        (Set::To(_), Set::Unset, Set::Unset) => wrong("the sign has no `value` for its `header`; add one"),
        (Set::Unset, Set::To(_), Set::Unset) => wrong("the sign has no `header` for its `value`; add one"),
        (Set::Unset, Set::Unset, Set::Unset) => {
            wrong("the sign has neither `header` with `value` nor `principal`; give it one")
        }
        (Set::To(_), _, Set::To(_)) | (_, Set::To(_), Set::To(_)) => {
            wrong("the sign has both a header and `principal`; make two of it, either is enough")
        }
    }
}

fn held(node: &Node, problems: &mut Problems) -> Option<HeldSection> {
    let mut section = Section::open(node, "`held`", problems)?;
    let held = HeldSection {
        progress: section.set("progress", duration_or_off),
        comments: section.set("comments", some_duration),
        deadline: section.set("deadline", duration_or_off),
    };
    section.close();
    Some(held)
}

fn resume(node: &Node, problems: &mut Problems) -> Option<ResumeSection> {
    let mut section = Section::open(node, "`resume`", problems)?;
    let resume = ResumeSection {
        mint: section.set("mint", truth),
        keep: section.set("keep", some_duration),
        bytes: section.set("bytes", size(1)),
        streams: section.set("streams", count(1)),
    };
    section.close();
    Some(resume)
}

fn request_state(node: &Node, problems: &mut Problems) -> Option<RequestStateSection> {
    let mut section = Section::open(node, "`request_state`", problems)?;
    let keys = section.set("keys", |node, problems| list(node, problems, key_source));
    section.close();
    Some(RequestStateSection { keys })
}

fn key_source(node: &Node, problems: &mut Problems) -> Option<KeySource> {
    if !matches!(node.value, Value::Map(_)) {
        // Not shown: it may be a key.
        problems.push(Problem::new(
            node.place,
            "a key is not written here; say where it is: `{ file: PATH }` or `{ env: NAME }`",
        ));
        return None;
    }
    let mut section = Section::open(node, "a key", problems)?;
    let file = section.set("file", |node, problems| {
        leaf(node, problems, |text| match text {
            "" => Err(Invalid("must not be empty".to_owned())),
            text if secret::is_key(text) => {
                Err(Invalid("must name a file that holds the key, not be the key".to_owned()))
            }
            text => Ok(PathBuf::from(text)),
        })
    });
    let env = section.set("env", |node, problems| {
        leaf(node, problems, |text| match text {
            "" => Err(Invalid("must not be empty".to_owned())),
            text if secret::is_key(text) => {
                Err(Invalid("must name a variable that holds the key, not be the key".to_owned()))
            }
            text if text.contains(['=', '\0']) => {
                Err(Invalid("must be the name of an environment variable, which has no `=`".to_owned()))
            }
            text => Ok(text.to_owned()),
        })
    });
    section.close();
    match (file, env) {
        (Set::To(file), Set::Unset) => Some(KeySource::File(file.value)),
        (Set::Unset, Set::To(env)) => Some(KeySource::Env(env.value)),
        (Set::Wrong, _) | (_, Set::Wrong) => None,
        (Set::Unset, Set::Unset) => {
            problems.push(Problem::new(node.place, "the key has neither `file` nor `env`; give it one"));
            None
        }
        (Set::To(_), Set::To(_)) => {
            problems.push(Problem::new(node.place, "the key has both `file` and `env`; keep one of the two"));
            None
        }
    }
}

fn access(node: &Node, problems: &mut Problems) -> Option<Access> {
    let mut section = Section::open(node, "`access`", problems)?;
    let access = Access {
        hosts: section.set("hosts", |node, problems| {
            list(node, problems, |node, problems| leaf(node, problems, values::host))
        }),
        origins: section.set("origins", |node, problems| {
            list(node, problems, |node, problems| leaf(node, problems, values::origin))
        }),
    };
    section.close();
    Some(access)
}

fn limits(node: &Node, problems: &mut Problems) -> Option<Limits> {
    let mut section = Section::open(node, "`limits`", problems)?;
    let limits = Limits {
        body_bytes: section.set("body_bytes", size(1)),
        body_memory: section.set("body_memory", size(1)),
        // The HTTP parser's own buffer is no smaller.
        header_bytes: section.set("header_bytes", size(8 << 10)),
        // What a browser sends of its own accord must fit.
        headers: section.set("headers", count(32)),
        connections: section.set("connections", count(1)),
        upstream_connections: section.set("upstream_connections", count(1)),
        calls: section.set("calls", count(1)),
        streams: section.set("streams", count(1)),
        // The protocol's own members need about eight.
        depth: section.set("depth", count(16)),
        sessions: section.set("sessions", count(1)),
        task_sessions: section.set("task_sessions", count(0)),
        queue: section.set("queue", count(0)),
        messages: section.set("messages", count(1)),
        identities: section.set("identities", count(1)),
        identity_bytes: section.set("identity_bytes", size(1)),
        result_bytes: section.set("result_bytes", size(1)),
        departed: section.set("departed", count(0)),
        tasks: section.set("tasks", count(0)),
        tasks_per_principal: section.set("tasks_per_principal", count(0)),
        stored_bytes: section.set("stored_bytes", size(0)),
        stored_bytes_per_principal: section.set("stored_bytes_per_principal", size(0)),
        stored_result_bytes: section.set("stored_result_bytes", size(0)),
        polls_per_second: section.set("polls_per_second", count(1)),
        misses_per_minute: section.set("misses_per_minute", count(1)),
        listens_per_principal: section.set("listens_per_principal", count(0)),
        poll_interval_min: section.set("poll_interval_min", some_duration),
        poll_interval_max: section.set("poll_interval_max", some_duration),
    };
    section.close();
    Some(limits)
}

fn timeouts(node: &Node, problems: &mut Problems) -> Option<Timeouts> {
    let mut section = Section::open(node, "`timeouts`", problems)?;
    let timeouts = Timeouts {
        connect: section.set("connect", some_duration),
        first_byte: section.set("first_byte", some_duration),
        idle: section.set("idle", some_duration),
        call: section.set("call", some_duration),
        queue: section.set("queue", some_duration),
        read_headers: section.set("read_headers", some_duration),
        read_body: section.set("read_body", some_duration),
        idle_connection: section.set("idle_connection", some_duration),
        write: section.set("write", some_duration),
        keep_alive: section.set("keep_alive", some_duration),
    };
    section.close();
    Some(timeouts)
}

/// An object of objects, as JSON.
fn requires(node: &Node, problems: &mut Problems) -> Option<serde_json::Value> {
    let Value::Map(entries) = &node.value else {
        problems.push(Problem::new(
            node.place,
            format!("must be a mapping of capabilities, as in `{{ sampling: {{}} }}`, not {}", node.what()),
        ));
        return None;
    };
    let before = problems.len();
    for entry in entries {
        let Value::Map(inner) = &entry.node.value else {
            problems.push(Problem::new(
                entry.node.place,
                format!("a capability is a mapping; write `{}: {{}}`", entry.key),
            ));
            continue;
        };
        let known = capability::OF_CLIENTS.iter().find(|(name, _)| *name == entry.key);
        match known {
            // What is in these is anybody's.
            Some((_, [])) => {}
            Some((_, parts)) => inner.iter().for_each(|part| slip(part, parts.iter().copied(), problems)),
            None => slip(entry, capability::OF_CLIENTS.map(|(name, _)| name), problems),
        }
    }
    (problems.len() == before).then(|| json(node))
}

/// A capability that is a slip of the finger, for then no client would declare it. Others may be somebody's
/// own: clients can have capabilities that the specification does not know (2026-07-28, *Capabilities*).
fn slip<'a>(entry: &yaml::Entry, known: impl IntoIterator<Item = &'a str> + Clone, problems: &mut Problems) {
    let is_known = known.clone().into_iter().any(|name| name == entry.key);
    if let Some(near) = nearest(&entry.key, known).filter(|_| !is_known) {
        let message = format!("no client declares `{}`; did you mean `{near}`?", entry.key);
        problems.push(Problem::new(entry.key_place, message));
    }
}

fn json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(entries) => entries.iter().map(|entry| (entry.key.clone(), json(&entry.node))).collect(),
        Value::Scalar { text, .. } => match node.scalar() {
            Some(Scalar::Null) => serde_json::Value::Null,
            Some(Scalar::Bool(truth)) => truth.into(),
            Some(Scalar::Number) => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
            Some(Scalar::Text) | None => text.clone().into(),
        },
    }
}
