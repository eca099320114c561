//! Checks across keys. Each problem is reported at the position of one of the keys.

use super::{
    RouteConfig, SourceSpan, SpannedValue,
    environment::LoadContext,
    limits::TimeoutKeys,
    operators::AdminKeys,
    problem::Problem,
    route::Route,
    secret::{self, SecretSource, TokenSource},
    section::{SectionReader, Setting},
    upstream_http,
    value_types::UnsolicitedSetting,
    values::{InvalidValue, show_duration, show_size},
};
use crate::{
    admin,
    front::{self, PrivateKey},
    policy::{self, TicketAfter},
    upstream,
};
use std::{net::SocketAddr, sync::Arc, time::Duration};

/// Checks the admin listener against the client listeners, and reads its token. `None` if the admin listener
/// is off.
pub(super) fn check_admin(
    written: SpannedValue<Option<AdminKeys>>,
    listen: &SpannedValue<Vec<SpannedValue<SocketAddr>>>,
    context: LoadContext<'_>,
    s: &mut SectionReader<'_, '_>,
) -> Option<admin::Config> {
    check_listeners(listen, written.value.as_ref().map(|admin| &admin.listen), s);
    let AdminKeys { listen, token, tls, has_tls } = written.value?;
    let has_token = !token.is_unset();
    let admin = admin::Config {
        tokens: read_admin_token(token, context, s),
        tls,
        ..admin::Config::at_address(listen.value)
    };
    let missing = match (has_tls, has_token) {
        (true, true) => return Some(admin),
        (false, true) => "`tls`",
        (true, false) => "a `token`",
        (false, false) => "`tls` and a `token`",
    };
    if admin.is_exposed() {
        let address = listen.value;
        s.add_problem(
            listen.span,
            format!(
                "`admin` at {address} is reachable from other machines, which requires {missing}: write \
                 `admin: {{ listen: \"{address}\", token: {{ file: PATH }}, tls: {{ cert: PATH, key: PATH \
                 }} }}`, or listen on loopback"
            ),
        );
    }
    Some(admin)
}

fn read_admin_token(
    written: Setting<SecretSource>,
    context: LoadContext<'_>,
    s: &mut SectionReader<'_, '_>,
) -> policy::TokenSet {
    let Setting::Valid(SpannedValue { span, value: source }) = written else {
        return policy::TokenSet::default();
    };
    match source.read_token(context) {
        Ok(token) => policy::TokenSet::new([(ADMIN_TOKEN_NAME.into(), token.expose().as_str())]),
        Err(InvalidValue(message)) => {
            s.add_problem(span, message);
            policy::TokenSet::default()
        }
    }
}

/// The name of the admin token.
const ADMIN_TOKEN_NAME: &str = "operator";

fn check_listeners(
    listen: &SpannedValue<Vec<SpannedValue<SocketAddr>>>,
    admin: Option<&SpannedValue<SocketAddr>>,
    s: &mut SectionReader<'_, '_>,
) {
    if listen.value.is_empty() {
        s.add_problem(listen.span, "`listen` is empty; add an address, or remove the key for the default");
    }
    // Addresses with port 0 are never the same: each gets a port of its own.
    let with_port = || listen.value.iter().filter(|address| address.value.port() != 0);
    for repeated_address in repeated(with_port()) {
        s.add_problem(
            repeated_address.span,
            format!("`{}` is listed twice; remove one of the two", repeated_address.value),
        );
    }
    if let Some(admin) = admin
        && let Some(same) = with_port().find(|other| other.value == admin.value)
    {
        let (span, address) = (if admin.is_written() { admin.span } else { same.span }, admin.value);
        s.add_problem(
            span,
            format!(
                "`admin` and `listen` are both {address}; choose another port for one of them, or set `admin: off`"
            ),
        );
    }
}

/// Checks the metrics listener against the other listeners. `None` if it is off.
pub(super) fn check_metrics(
    written: Setting<Option<SocketAddr>>,
    listen: &SpannedValue<Vec<SpannedValue<SocketAddr>>>,
    admin: &SpannedValue<Option<AdminKeys>>,
    s: &mut SectionReader<'_, '_>,
) -> Option<SocketAddr> {
    let Setting::Valid(SpannedValue { span, value: Some(address) }) = written else { return None };
    let admin = admin.value.as_ref().map(|admin| admin.listen.value);
    let listens = listen.value.iter().map(|at| at.value);
    let others = listens.map(|other| ("listen", other)).chain(admin.map(|admin| ("admin", admin)));
    for (name, other) in others {
        // Addresses with port 0 are never the same: each gets a port of its own.
        if address.port() != 0 && other == address {
            s.add_problem(
                span,
                format!("`metrics` and `{name}` are both {address}; choose another port for one of them"),
            );
        }
    }
    Some(address)
}

/// Checks that the path of health checks is not the path of a route. `None` if health checks are off.
pub(super) fn check_health_path(
    written: Setting<Option<String>>,
    routes: &Setting<Vec<SpannedValue<Route>>>,
    s: &mut SectionReader<'_, '_>,
) -> Option<Arc<str>> {
    let Setting::Valid(SpannedValue { span, value: Some(path) }) = written else { return None };
    if let Setting::Valid(SpannedValue { value: routes, .. }) = routes {
        let is_same = |route: &&str| policy::is_same_path(route, &path);
        let paths = routes.iter().filter_map(|route| route.value.path.as_ref());
        if let Some(route) = paths.map(|path| &*path.value).find(is_same) {
            s.add_problem(
                span,
                format!(
                    "`health` is `{path}`, which is also the path of a route (`{route}`); choose another"
                ),
            );
        }
    }
    Some(path.into())
}

/// Returns the items that equal an earlier item.
fn repeated<'a, T: PartialEq + 'a>(
    items: impl Iterator<Item = &'a SpannedValue<T>>,
) -> impl Iterator<Item = &'a SpannedValue<T>> {
    let mut earlier = Vec::new();
    items.filter(move |item| {
        let is_repeated = earlier.contains(&&item.value);
        earlier.push(&item.value);
        is_repeated
    })
}

/// Returns the values without their positions. Reports repeated values with the message from `describe`.
pub(super) fn reject_repeated<T: PartialEq>(
    items: Vec<SpannedValue<T>>,
    s: &mut SectionReader<'_, '_>,
    describe: impl Fn(&T) -> String,
) -> Vec<T> {
    for item in repeated(items.iter()) {
        s.add_problem(item.span, describe(&item.value));
    }
    items.into_iter().map(|at| at.value).collect()
}

/// Reads the secret keys of `request_state`. Each invalid key is a problem of its own.
pub(super) fn read_state_keys(
    written: Setting<Vec<SpannedValue<SecretSource>>>,
    context: LoadContext<'_>,
    s: &mut SectionReader<'_, '_>,
) -> Vec<secret::SecretKey> {
    let sources = match written {
        Setting::Valid(keys) => keys,
        Setting::Unset if s.is_written() => {
            s.add_problem(
                s.span,
                "`request_state` has no `keys`; add them, as in `keys: [{ env: STATE_KEY }]`",
            );
            return Vec::new();
        }
        Setting::Unset | Setting::Invalid => return Vec::new(),
    };
    if sources.value.is_empty() {
        s.add_problem(
            sources.span,
            "`keys` is empty; add a key, or remove `request_state` to have one generated at start",
        );
    }
    let mut keys: Vec<SpannedValue<secret::SecretKey>> = Vec::new();
    for SpannedValue { span, value: source } in sources.value {
        match source.read_key(context) {
            Err(InvalidValue(message)) => s.add_problem(span, message),
            Ok(key) => {
                if let Some(first) = keys.iter().find(|first| first.value == key) {
                    let line = line_suffix(first.span);
                    s.add_problem(span, format!("this key is listed already{line}; remove one of the two"));
                }
                keys.push(SpannedValue::new(span, key));
            }
        }
    }
    keys.into_iter().map(|key| key.value).collect()
}

/// Returns the location of a certificate's private key, and its position in the file; `None` if the key is
/// absent or invalid.
pub(super) fn private_key(
    written: Setting<SecretSource>,
    context: LoadContext<'_>,
    s: &mut SectionReader<'_, '_>,
) -> Option<SpannedValue<PrivateKey>> {
    let Setting::Valid(SpannedValue { span, value: source }) = written else { return None };
    match source.read_private_key(context) {
        Ok(key) => Some(SpannedValue::new(span, key)),
        Err(InvalidValue(message)) => {
            s.add_problem(span, message);
            None
        }
    }
}

/// Reads the tokens of clients. Each invalid token is a problem of its own.
pub(super) fn read_client_tokens(
    written: Setting<Vec<SpannedValue<TokenSource>>>,
    context: LoadContext<'_>,
    s: &mut SectionReader<'_, '_>,
) -> policy::TokenSet {
    let Setting::Valid(SpannedValue { span, value: sources }) = written else {
        return policy::TokenSet::default();
    };
    if sources.is_empty() {
        s.add_problem(span, "`tokens` is empty; add a token, or remove the key if no token is required");
    }
    let mut tokens: Vec<(SourceSpan, String, secret::SecretToken)> = Vec::new();
    for SpannedValue { span, value: TokenSource { name, source } } in sources {
        match source.read_token(context) {
            Err(InvalidValue(message)) => s.add_problem(span, message),
            Ok(token) => {
                if let Some((first, ..)) = tokens.iter().find(|(.., other)| *other == token) {
                    let line = line_suffix(*first);
                    s.add_problem(
                        span,
                        format!("this token is listed already{line}; give each client its own"),
                    );
                }
                tokens.push((span, name, token));
            }
        }
    }
    policy::TokenSet::new(
        tokens.iter().map(|(_, name, token)| (name.as_str().into(), token.expose().as_str())),
    )
}

/// Returns the valid routes. Reports an empty list and repeated paths.
pub(super) fn check_routes(
    written: Setting<Vec<SpannedValue<Route>>>,
    s: &mut SectionReader<'_, '_>,
) -> Vec<RouteConfig> {
    let no_routes = "no route; add one, as in `routes: [{ upstream: { url: \"http://…\" } }]`";
    let routes = match written {
        Setting::Valid(SpannedValue { span, value }) => {
            if value.is_empty() {
                s.add_problem(span, no_routes);
            }
            value
        }
        Setting::Unset => {
            s.add_problem(SourceSpan::Whole, no_routes);
            return Vec::new();
        }
        Setting::Invalid => return Vec::new(),
    };
    let mut earlier_paths: Vec<&SpannedValue<String>> = Vec::new();
    for path in routes.iter().filter_map(|route| route.value.path.as_ref()) {
        if let Some(first) = earlier_paths.iter().find(|other| other.value == path.value) {
            let (path_, line) = (&path.value, line_suffix(first.span));
            s.add_problem(path.span, format!("the path `{path_}` is already a route{line}; choose another"));
        }
        earlier_paths.push(path);
    }
    routes.into_iter().filter_map(|route| route.value.config).collect()
}

/// The values of the keys of `upstream`, before they are checked against each other.
pub(super) struct UpstreamKeys {
    /// The MCP endpoint, for a server over HTTP.
    pub(super) url: Setting<upstream::ServerUrl>,
    /// The command, for a stdio server, with its settings.
    pub(super) command: Setting<upstream::ServerCommand>,
    /// The names of the written keys that apply to a command only.
    pub(super) command_keys: Vec<SpannedValue<&'static str>>,
    /// Whether clients may share a server that cannot tell them apart.
    pub(super) shared: Setting<bool>,
    /// The values of the keys that apply to a URL only.
    pub(super) http: upstream_http::HttpUpstreamKeys,
}

/// Returns the server and its connection settings, if `upstream` is unambiguous and valid.
pub(super) fn check_server(
    written: Setting<UpstreamKeys>,
    is_exposed: bool,
    context: LoadContext<'_>,
    s: &mut SectionReader<'_, '_>,
) -> Option<(upstream::UpstreamTarget, upstream::Config)> {
    let SpannedValue { span, value: UpstreamKeys { url, command, command_keys, shared, http: http_keys } } =
        match written {
            Setting::Valid(server) => server,
            Setting::Unset => {
                s.add_problem(s.span, "the route has no `upstream`; add `upstream: { url: \"http://…\" }`");
                return None;
            }
            Setting::Invalid => return None,
        };
    match (url, command) {
        (Setting::Unset, Setting::Unset) => {
            s.add_problem(span, "`upstream` names no server; add a `url` or a `command`");
            None
        }
        (Setting::Valid(_), Setting::Valid(command)) => {
            s.add_problem(command.span, "`upstream` has both `url` and `command`; remove one of the two");
            None
        }
        (Setting::Valid(url), Setting::Unset | Setting::Invalid) => {
            for SpannedValue { span, value: key } in command_keys {
                s.add_problem(
                    span,
                    format!("`{key}` is for stdio servers (`command`), and this one has a `url`; remove it"),
                );
            }
            check_shared_url(&shared, &http_keys, is_exposed, s);
            let config = http_keys.into_config(&url, context, s);
            Some((upstream::UpstreamTarget::Url(url.value), config))
        }
        (Setting::Unset, Setting::Valid(SpannedValue { span, value: command })) => {
            if command.words.is_empty() {
                s.add_problem(span, "`command` is empty; name the program first");
                return None;
            }
            if command.program().is_empty() {
                s.add_problem(span, "the first item of `command` is empty; it must name the program (only arguments may be empty)");
                return None;
            }
            if context.checks_files
                && let Err(missing) = command.find_program()
            {
                s.add_problem(span, missing.to_string());
            }
            for SpannedValue { span, value: key } in http_keys.written_keys() {
                let message =
                    format!("`{key}` is for servers with a `url`, and this one has a `command`; remove it");
                s.add_problem(span, message);
            }
            if is_exposed && !shared.ok().unwrap_or(false) {
                let message =
                    sharing_refusal("the stdio server cannot tell them apart", "it can do", " (`--shared`)");
                s.add_problem(span, message);
            }
            Some((upstream::UpstreamTarget::Command(Box::new(command)), upstream::Config::default()))
        }
        (Setting::Invalid, _) | (Setting::Unset, Setting::Invalid) => None,
    }
}

/// Checks `shared` for a server at a URL. With configured credentials in `headers`, all clients look the same
/// to the server.
fn check_shared_url(
    shared: &Setting<bool>,
    http_keys: &upstream_http::HttpUpstreamKeys,
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

/// Returns the valid tool rules. Reports rules that can never match, because an earlier rule does.
pub(super) fn check_tool_rules(
    written: Vec<SpannedValue<Option<SpannedValue<policy::ToolRule>>>>,
    s: &mut SectionReader<'_, '_>,
) -> Vec<policy::ToolRule> {
    let rules: Vec<_> = written.into_iter().filter_map(|rule| rule.value).collect();
    for (index, rule) in rules.iter().enumerate() {
        let earlier = &mut rules[..index].iter();
        let Some(first) = earlier.find(|first| matches_all_of(&first.value.matches, &rule.value.matches))
        else {
            continue;
        };
        let (pattern, earlier_pattern) = (rule.value.matches.as_str(), first.value.matches.as_str());
        let line = line_suffix(first.span);
        let message = match pattern == earlier_pattern {
            true => {
                format!(
                    "there is a rule for `{pattern}` already{line}, and the first match wins; remove one of the two"
                )
            }
            false => {
                format!(
                    "this rule never applies, because `{earlier_pattern}`{line} matches all of `{pattern}`; put this one first"
                )
            }
        };
        s.add_problem(rule.span, message);
    }
    rules.into_iter().map(|rule| rule.value).collect()
}

/// Whether the pattern `first` certainly matches every name that `second` matches.
///
/// A pattern of plain characters and `*` that matches the text of another pattern also matches whatever the
/// wildcards of the other stand for, because only a `*` can match them. A `?` could match a `*` as a single
/// character, so patterns with `?` are compared for equality only.
fn matches_all_of(first: &policy::NamePattern, second: &policy::NamePattern) -> bool {
    first == second || (!first.as_str().contains('?') && first.matches(second.as_str()))
}

/// Reads `tasks.unsolicited`. Reports an empty list and repeated client matches.
pub(super) fn check_unsolicited(
    written: SpannedValue<UnsolicitedSetting>,
    s: &mut SectionReader<'_, '_>,
) -> policy::UnsolicitedTasks {
    let matches = match written.value {
        UnsolicitedSetting::Never => return policy::UnsolicitedTasks::Never,
        UnsolicitedSetting::Always => return policy::UnsolicitedTasks::Always,
        UnsolicitedSetting::Clients(matches) => matches,
    };
    if matches.is_empty() {
        s.add_problem(written.span, "`unsolicited` is empty; add a client match, or write `never`");
    }
    let mut earlier: Vec<&SpannedValue<policy::ClientMatch>> = Vec::new();
    for client_match in &matches {
        if let Some(first) = earlier.iter().find(|first| first.value == client_match.value) {
            let line = line_suffix(first.span);
            s.add_problem(
                client_match.span,
                format!("this client match is listed already{line}; remove one of the two"),
            );
        }
        earlier.push(client_match);
    }
    policy::UnsolicitedTasks::Matching(matches.into_iter().map(|client_match| client_match.value).collect())
}

/// The longest duration of a call of a route, and the key that sets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTimeLimit {
    pub(super) key: &'static str,
    pub(super) limit: Duration,
}

impl CallTimeLimit {
    /// Returns the limit of a route: its own `timeout`, or else `timeouts.call`.
    pub(super) fn for_route(route_timeout: Option<Duration>, timeouts: &TimeoutKeys) -> Self {
        match route_timeout {
            Some(limit) => Self { key: "timeout", limit },
            None => Self { key: "timeouts.call", limit: timeouts.upstream.call },
        }
    }
}

/// Warns of tool limits that are never reached, because the route has lower ones, and of other keys in rules
/// with `deny`.
pub(super) fn check_call_limits(
    rules: &[SpannedValue<Option<SpannedValue<policy::ToolRule>>>],
    route_limits: &policy::CallLimits,
    s: &mut SectionReader<'_, '_>,
) {
    for SpannedValue { span, value: rule } in rules.iter().filter_map(|rule| rule.value.as_ref()) {
        let tools = rule.matches.as_str();
        let mut warn = |message: String| s.diagnostics.warnings.push(Problem::new(*span, message));
        if rule.mode == Some(policy::Mode::Deny) {
            let is_pointless = rule.after.is_some()
                || rule.timeout.is_some()
                || rule.ticket != TicketAfter::Inherited
                || rule.requires.is_some()
                || !rule.keys.is_empty()
                || !rule.limits.is_empty();
            if is_pointless {
                warn(format!(
                    "warning: calls of `{tools}` are refused (mode: deny), so the other keys of the rule have no effect"
                ));
            }
            continue;
        }
        let check_limit = |key: &str, tool_limit: Option<usize>, route_limit: Option<usize>| {
            let (tool_limit, route_limit) = (tool_limit?, route_limit?);
            (tool_limit > route_limit).then(|| {
                format!(
                    "warning: `{key}` ({tool_limit}) of `{tools}` is never reached, because the route's \
                     ({route_limit}) applies to these calls as well; raise the route's, or lower this one"
                )
            })
        };
        let limits = rule.limits;
        let concurrency = (limits.concurrency, route_limits.concurrency);
        let per_minute = (limits.calls_per_minute, route_limits.calls_per_minute);
        let to_usize = |count: std::num::NonZeroU32| count.get() as usize;
        check_limit("concurrency", concurrency.0.map(usize::from), concurrency.1.map(usize::from))
            .map(&mut warn);
        check_limit("calls_per_minute", per_minute.0.map(to_usize), per_minute.1.map(to_usize))
            .map(&mut warn);
    }
}

/// Reports a deadline that is never reached, or that ends calls before they can become tasks.
pub(super) fn check_deadline(
    written: &SpannedValue<Option<Duration>>,
    defer: &policy::DeferPolicy,
    tools: &[policy::ToolRule],
    CallTimeLimit { key, limit: call }: CallTimeLimit,
    s: &mut SectionReader<'_, '_>,
) {
    let (true, Some(deadline)) = (written.is_written(), written.value) else { return };
    let after = longest_threshold(defer, tools);
    let shown = show_duration(deadline);
    let message = match () {
        () if deadline >= call => format!(
            "`deadline` ({shown}) is never reached, because `{key}` ({}) ends every call earlier; raise \
             `{key}`, or lower `deadline`",
            show_duration(call)
        ),
        () if deadline <= after => format!(
            "`deadline` ({shown}) ends calls before they can become tasks (`after` is {}); raise `deadline`, or lower `after`",
            show_duration(after)
        ),
        () => return,
    };
    s.add_problem(written.span, message);
}

/// Returns the ticket times of tool rules, with the positions of the rules.
pub(super) fn tool_ticket_times(
    rules: &[SpannedValue<Option<SpannedValue<policy::ToolRule>>>],
) -> Vec<SpannedValue<Option<Duration>>> {
    let written = rules.iter().filter_map(|rule| rule.value.as_ref());
    let after = |rule: &SpannedValue<policy::ToolRule>| match rule.value.ticket {
        TicketAfter::After(after) => Some(SpannedValue::new(rule.span, Some(after))),
        TicketAfter::Inherited | TicketAfter::Never => None,
    };
    written.filter_map(after).collect()
}

/// Reports a ticket time that is never reached, because calls end earlier.
pub(super) fn check_ticket(
    written: &SpannedValue<Option<Duration>>,
    deadline: Option<Duration>,
    CallTimeLimit { key, limit: call }: CallTimeLimit,
    s: &mut SectionReader<'_, '_>,
) {
    let Some(after) = written.value else { return };
    let (name, limit) = match deadline {
        Some(deadline) if deadline < call => ("deadline", deadline),
        _ => (key, call),
    };
    if after >= limit {
        let message = format!(
            "`ticket` ({}) is never given, because `{name}` ({}) ends every call earlier; raise `{name}`, or lower `ticket`",
            show_duration(after),
            show_duration(limit)
        );
        s.add_problem(written.span, message);
    }
}

/// Returns the longest threshold of the route and its tools; zero if no calls become tasks after a threshold.
fn longest_threshold(defer: &policy::DeferPolicy, tools: &[policy::ToolRule]) -> Duration {
    let tools = tools.iter().map(|tool| (tool.mode.unwrap_or(defer.mode), tool.after.unwrap_or(defer.after)));
    let waits = tools.chain([(defer.mode, defer.after)]).filter(|(mode, _)| match mode {
        policy::Mode::Auto | policy::Mode::Required => true,
        policy::Mode::Always | policy::Mode::Never | policy::Mode::Observe | policy::Mode::Deny => false,
    });
    waits.map(|(_, after)| after).max().unwrap_or_default()
}

/// Returns the memory limit of request bodies, `limits.body_memory`, which must hold at least one body.
pub(super) fn check_body_memory(
    body_bytes: &SpannedValue<usize>,
    written: &SpannedValue<usize>,
    s: &mut SectionReader<'_, '_>,
) -> usize {
    // A large body may take seven eighths of the memory for bodies.
    let bytes = body_bytes.value;
    let required = bytes.saturating_add(bytes / 7).saturating_add(1);
    let memory = if written.is_written() { written.value } else { written.value.max(required) };
    if memory < required && bytes > front::SMALL_BODY || memory < bytes {
        s.add_problem(
            written.span,
            format!(
                "a body of `body_bytes` ({}) does not fit into `body_memory` ({}); raise `body_memory` to \
                 at least {required}, or lower `body_bytes`",
                show_size(bytes),
                show_size(memory)
            ),
        );
    }
    memory
}

/// Reports a shortest poll interval that is longer than the longest one.
pub(super) fn check_poll_interval(
    shortest: &SpannedValue<Duration>,
    longest: &SpannedValue<Duration>,
    s: &mut SectionReader<'_, '_>,
) {
    if shortest.value > longest.value {
        let span = if shortest.is_written() { shortest.span } else { longest.span };
        let (shortest, longest) = (shortest.value, longest.value);
        s.add_problem(
            span,
            format!(
                "`poll_interval_min` ({shortest:?}) is more than `poll_interval_max` ({longest:?}); lower it"
            ),
        );
    }
}

/// Retention below which a client that disconnects briefly or polls slowly may miss the result.
const SHORT_RETENTION: Duration = Duration::from_secs(60);

/// Warns of a retention that is too short for a client to fetch the result.
pub(super) fn warn_short_retention(
    key: &str,
    SpannedValue { span, value }: &SpannedValue<Duration>,
    s: &mut SectionReader<'_, '_>,
) {
    if *value >= SHORT_RETENTION {
        return;
    }
    let shown = show_duration(*value);
    let effect = match *value < policy::MIN_RETENTION {
        true => format!("counts as {}", show_duration(policy::MIN_RETENTION)),
        false => "is short".to_owned(),
    };
    let message = format!(
        "warning: `{key}` ({shown}) {effect}: the result of a task is removed that long after its end, \
         fetched or not; a client that disconnects for a moment, or polls less often than asked, never \
         gets it"
    );
    s.diagnostics.warnings.push(Problem::new(*span, message));
}

/// Warns of an exposed route on which all clients without `Authorization` are one principal, because
/// `principal` is not written. Writing the default turns the warning off.
pub(super) fn warn_single_principal(path: &str, s: &mut SectionReader<'_, '_>) {
    let message = format!(
        "warning: on `{path}` all clients without `Authorization` are one principal, also those that send \
         a cookie or an API key: they share one quota, and the id of a task is all it takes to use it; \
         name the header that tells them apart, as in `principal: {{ header: X-Api-Key }}`, or write \
         `principal: authorization` if every client sends that"
    );
    s.diagnostics.warnings.push(Problem::new(s.span, message));
}

/// Formats the position of another setting for a message: ` (line 7)` for a position in the file, `
/// (--listen)` for a flag, nothing without a position.
pub(super) fn line_suffix(span: SourceSpan) -> String {
    match span {
        SourceSpan::File { line, .. } => format!(" (line {line})"),
        SourceSpan::Flag(flag) => format!(" ({flag})"),
        SourceSpan::Whole => String::new(),
    }
}
