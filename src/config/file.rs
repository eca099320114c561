//! The keys of the top level and of the client listeners: name, description, type, default and effect, each
//! declared once.
//!
//! `deferral check --schema` prints the descriptions; the defaults are those of the parts that use the
//! values. Checks across keys are in `cross_checks`.
//!
//! The keys of a route are in `route`, those of its server in `server`, and `limits` and `timeouts` in
//! `limits`.

use super::{
    Config, ConfigFiles, ConfigWarnings, DEFAULT_DRAIN, LogConfig, ReadinessConfig, RedactedSettings,
    SpannedValue, StoreConfig,
    cross_checks::{self, private_key},
    environment::LoadContext,
    limits::{read_limits, read_timeouts},
    operators::{self, admin_type},
    route::read_route,
    secret,
    section::{SectionReader, Setting, list, mapping},
    telemetry::{check_traces, read_telemetry},
    value_types::{
        addresses, drain, key_location, key_source, log, or_off, required, store, string, text, token_source,
        url,
    },
    values,
};
use crate::{
    front,
    policy::{self, AccessPolicy},
};
use serde_json::json;

/// The default address of the client listener.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8808";
/// The default path of a route.
pub const DEFAULT_PATH: &str = "/mcp";

/// Reads the whole file: declares the keys of the top level, and converts their values.
pub(super) fn read_config_file(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> Config {
    let listen = s
        .key(
            "listen",
            "Addresses to listen on: an IP address with a port, or a list of them. Port 0 picks a free port.",
        )
        .read_spanned_or(
            addresses(),
            vec![SpannedValue::default_value(DEFAULT_LISTEN.parse().expect("the default is an address"))],
        );
    let admin = s
        .key("admin", "Admin listen address; or a mapping that also sets a token and TLS; or `off`. The admin listener serves the admin page, health checks and metrics, and the commands `deferral tasks`, `explain`, `report`, `tap` and `ready` connect to it.")
        .read_spanned_or(admin_type(context), Some(operators::AdminKeys::default()));
    let metrics_setting = s
        .key(
            "metrics",
            "Listen address for Prometheus: serves `/metrics` over plain HTTP without a token, and nothing else; or `off`. The admin listener serves `/metrics` as well.",
        )
        .with_default("off")
        .read(or_off(json!({ "type": "string", "examples": ["0.0.0.0:9464", "off"] }), values::admin));
    let metrics = cross_checks::check_metrics(metrics_setting, &listen, &admin, s);
    let admin = cross_checks::check_admin(admin, &listen, context, s);
    let limits = s.key("limits", "Resource limits.").read_section("`limits`", read_limits);
    let timeouts = s.key("timeouts", "Timeouts.").read_section("`timeouts`", read_timeouts);
    let public_url = s
        .key(
            "public_url",
            "Scheme and host by which clients reach the proxy, if a load balancer or another proxy is in front of it, as in `https://mcp.example.com`. The proxy puts it into the OAuth metadata that it sends to clients, in place of the `Host` of each request. If it is set, clients count as being on other machines, even if `listen` is on loopback (`upstream.shared`). If requests arrive with this host in `Host`, it must also be listed in `access.hosts`.",
        )
        .read(url(values::public_url));
    // The proxy is exposed if remote clients can connect, directly or through a reverse proxy on this
    // machine. Otherwise all clients belong to one user.
    let is_exposed = matches!(public_url, Setting::Valid(_))
        || listen.value.iter().any(|address| !address.value.ip().to_canonical().is_loopback());
    let access = s
        .key("access", "Access control for client requests: hosts, origins, tokens.")
        .read_section("`access`", |s| read_access(s, context));
    // A proxy that requires tokens does not count as exposed.
    let needs_token = access.needs_token;
    let is_exposed = is_exposed && !needs_token;
    let routes = s.key("routes", "Routes: paths of the proxy and the servers behind them. To be left out if `--upstream` or a command names the server.").read_required(
        list(mapping("a route", |s| {
            Some(read_route(s, &limits, &timeouts, is_exposed, needs_token, context))
        }))
        .non_empty(),
    );
    let telemetry = s.key("telemetry", "Export of traces.").read_section("`telemetry`", read_telemetry);
    let health = s
        .key(
            "health",
            "Path on the client listeners that responds to GET like `/ready` of the admin listener (200 \
             or 503), without a token; or `off`.",
        )
        .with_default("off")
        .read(or_off(json!({ "type": "string", "examples": ["/healthz", "off"] }), values::health));
    let ready = s
        .key("ready", "When `/ready` responds with 200. Default: from the start until the stop signal.")
        .read_section("`ready`", read_ready);
    let health = cross_checks::check_health_path(health, &routes, s);
    Config {
        admin,
        metrics,
        store: s
            .key("store", "Task store: `memory` (tasks are lost when the process ends), or a folder in which they are kept across restarts, as in `{ disk: ./tasks }`.")
            .read_or(store(context), StoreConfig::Memory),
        quotas: limits.quotas,
        state_keys: s
            .key(
                "request_state",
                "Encryption of `requestState`, which identifies a call: the client sends it back when it repeats the call with input responses. Default: a key generated at start; a state is then invalid after a restart.",
            )
            .read_section("`request_state`", |s| read_state_keys(s, context)),
        connections: limits.connections,
        drain: s
            .key(
                "drain",
                "Maximum time at shutdown (SIGTERM or Ctrl-C) for calls and tasks in flight to finish, as in `30s`; or a mapping that also sets how long new calls are still served, as in `{ notice: 5s, limit: 30s }`.",
            )
            .read_or(drain(), DEFAULT_DRAIN),
        log: s
            .key(
                "log",
                "Log on standard error: `text` or `json`; or a mapping that also sets the level.",
            )
            .read_or(log(), LogConfig::default()),
        ready,
        traces: check_traces(telemetry, context, s),
        settings: RedactedSettings::default(),
        warnings: ConfigWarnings::default(),
        files: ConfigFiles::default(),
        routes: cross_checks::check_routes(routes, s),
        front: front::Config {
            listen: listen.value.into_iter().map(|address| address.value).collect(),
            tls: s.key("tls", "TLS of the client listeners, which then serve HTTPS only. Default: plain HTTP.").read_section("`tls`", |s| read_tls(s, context)),
            access: access.access,
            tokens: access.tokens,
            limits: limits.front,
            timeouts: timeouts.front,
            public_url: public_url.ok(),
            health: health.map(|path| front::HealthConfig { path, needs_servers: ready.needs_servers }),
        },
    }
}

/// Reads the certificate chain and private key of an HTTPS listener. `None` if they are absent or invalid.
pub(super) fn read_tls(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> Option<front::TlsPaths> {
    let cert = s
        .key("cert", "PEM file of the certificate chain, the server's own certificate first.")
        .read_required(text());
    let key = s.key("key", "Private key of the first certificate: its PEM file, or `{ env: NAME }`.");
    let key = key.read_required(key_location());
    for (key, unset) in [("cert", cert.is_unset()), ("key", key.is_unset())] {
        if unset && s.is_written() {
            s.add_problem(s.span, format!("`tls` has no `{key}`; name a PEM file"));
        }
    }
    let (Setting::Valid(cert), Some(key)) = (cert, private_key(key, context, s)) else { return None };
    let LoadContext { folder, checks_files, .. } = context;
    let paths = front::TlsPaths { cert: folder.join(cert.value), key: key.value };
    if checks_files && let Err(error) = paths.check() {
        let span = match &error {
            front::TlsError::Cert { .. } | front::TlsError::NoCert { .. } => cert.span,
            front::TlsError::Key { .. } => key.span,
            front::TlsError::Pair { .. } => s.span,
        };
        s.add_problem(span, error.to_string());
    }
    Some(paths)
}

fn read_ready(s: &mut SectionReader<'_, '_>) -> ReadinessConfig {
    let upstream = s.key(
        "upstream",
        "`required`: `/ready` responds with 503 while the server of a route is known to be unreachable; a server that has not been called yet, or was unreachable, is probed every 5 s by a handshake (a stdio server is started for it). Before the result of the first probe `/ready` responds with 200. `ignored`: servers do not affect `/ready`.",
    );
    ReadinessConfig { needs_servers: upstream.read_or(required(), false) }
}

fn read_state_keys(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> Vec<secret::SecretKey> {
    let keys = s
        .key(
            "keys",
            "Keys, each 32 bytes as 64 hex digits or base64. The first encrypts, all decrypt. To rotate: put the new key first, and remove the old one once `questions.park` has passed. Replicas with the same keys recognise each other's states; the retry must nevertheless reach the replica that has the call, and gets an error elsewhere.",
        )
        .read_required(list(key_source()).non_empty());
    cross_checks::read_state_keys(keys, context, s)
}

/// The values of the keys of `access`.
struct AccessKeys {
    access: AccessPolicy,
    tokens: policy::TokenSet,
    /// Whether `tokens` is written, valid or not.
    needs_token: bool,
}

/// Reads `access`. `localhost` and IP addresses are always allowed hosts.
fn read_access(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> AccessKeys {
    let hosts = s.key("hosts", "Host names by which clients reach the proxy, or `*` for any. Requests with another `Host` get 403 (protection against DNS rebinding). `localhost` and IP addresses are always allowed.");
    let hosts = hosts.read_list(string(values::host));
    let origins = s.key("origins", "Origins of web pages that may send requests, as in `https://app.example.com`, or `*` for any. Always allowed are pages of the names in `hosts` (not by its `*`), of `localhost`, and of loopback addresses. Other origins get 403. Requests without `Origin` do not come from web pages and are not affected.");
    let origins = origins.read_list(string(values::origin));
    let without_spans = |list: Vec<SpannedValue<String>>| list.into_iter().map(|at| at.value).collect();
    let tokens = s
        .key(
            "tokens",
            "Bearer tokens of clients (`Authorization: Bearer`), each in a file or a variable. Requests without a valid token get 401. The name of the token is the principal of the request; several tokens may have one name, for rotation. The token is not forwarded to the server. Default: no token is required.",
        )
        .read(list(token_source()).non_empty());
    AccessKeys {
        access: AccessPolicy { hosts: without_spans(hosts), origins: without_spans(origins) },
        needs_token: !tokens.is_unset(),
        tokens: cross_checks::read_client_tokens(tokens, context, s),
    }
}
